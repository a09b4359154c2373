//! Atomic operations on other ranks' memory (`fi_atomic`). The target applies them in its progress
//! calls, one after another, so that no rank sees a half of one.

use super::ep::{Ep, RequestCall};
use super::{absent, bytes};
use crate::core::rma::{self, Kind};
use eyrie_libfabric::abi::*;
use eyrie_wire::data::{AtomicOp, Envelope};
use libc::{c_int, c_void, size_t, ssize_t};

const EINVAL: ssize_t = -(libc::EINVAL as ssize_t);
/// Most elements of one operation.
const MAX_COUNT: usize = 1 << 16;

pub static OPS: fi_ops_atomic = fi_ops_atomic {
    size: size_of::<fi_ops_atomic>(),
    write,
    writev: absent,
    writemsg,
    inject,
    readwrite,
    readwritev: absent,
    readwritemsg,
    compwrite,
    compwritev: absent,
    compwritemsg,
    writevalid,
    readwritevalid,
    compwritevalid,
};

/// Where and how to operate.
#[derive(Clone, Copy)]
struct Operation {
    target: u64,
    offset: u64,
    key: u64,
    datatype: c_int,
    op: c_int,
    count: usize,
    context: *mut c_void,
    /// `None`: an inject, never reported.
    flags: Option<u64>,
}

impl Operation {
    /// The operation of a message with one list entry on each side.
    ///
    /// # Safety
    /// The lists have as many entries as the message says.
    unsafe fn of(msg: &fi_msg_atomic, flags: u64) -> Option<Operation> {
        if msg.rma_iov_count != 1 || msg.iov_count > 1 {
            return None;
        }
        // SAFETY: by contract, the lists have as many entries as the message says.
        let there = unsafe { &*msg.rma_iov };
        Some(Operation {
            target: msg.addr,
            offset: there.addr,
            key: there.key,
            datatype: msg.datatype,
            op: msg.op,
            count: there.count,
            context: msg.context,
            flags: Some(flags),
        })
    }

    /// Sends the request. `compare` is null unless it compares, `result` unless it returns values.
    ///
    /// # Safety
    /// The buffers have `count` elements, or are null.
    unsafe fn issue(
        &self,
        ep: &mut Ep,
        operands: *const c_void,
        compare: *const c_void,
        result: *mut c_void,
    ) -> ssize_t {
        let (Ok(op), Ok(datatype)) = (u8::try_from(self.op), u8::try_from(self.datatype)) else {
            return -(libc::EOPNOTSUPP as ssize_t);
        };
        let compares = !compare.is_null();
        if !rma::is_supported(op, datatype, compares) || self.count > MAX_COUNT {
            return -(libc::EOPNOTSUPP as ssize_t);
        }
        let len = self.count * rma::element_size(datatype).unwrap_or(0);
        let what = match (compares, result.is_null()) {
            (true, _) => AtomicOp::Compare,
            (false, false) => AtomicOp::Fetch,
            (false, true) => AtomicOp::Update,
        };
        let count = self.count as u32;
        let key = self.key;
        let offset = self.offset;
        let envelope =
            |request| Envelope::Atomic { key, offset, request, what, op, datatype, count };
        let call = RequestCall {
            target: self.target,
            kind: Kind::Atomic { fetch: what != AtomicOp::Update },
            answer: (result, len),
            context: self.context,
            flags: self.flags,
        };
        // SAFETY: the caller vouches for the buffers.
        unsafe {
            let operands = bytes(operands, if operands.is_null() { 0 } else { len });
            if compares {
                ep.request(&call, envelope, &[operands, bytes(compare, len)].concat())
            } else {
                ep.request(&call, envelope, operands)
            }
        }
    }
}

/// The address in a list of at most one entry.
///
/// # Safety
/// `iov` has `count` entries.
unsafe fn address(iov: *const fi_ioc, count: usize) -> *mut c_void {
    match count {
        0 => std::ptr::null_mut(),
        // SAFETY: by contract, `iov` has `count` entries.
        _ => unsafe { (*iov).addr },
    }
}

unsafe extern "C" fn write(
    ep: *mut fid_ep,
    buf: *const c_void,
    count: size_t,
    _desc: *mut c_void,
    target: u64,
    offset: u64,
    key: u64,
    datatype: c_int,
    op: c_int,
    context: *mut c_void,
) -> ssize_t {
    // SAFETY: the endpoint is ours; the library gives a buffer of so many elements.
    unsafe {
        let ep = Ep::of(ep);
        let flags = ep.send_flags();
        Operation { target, offset, key, datatype, op, count, context, flags }.issue(
            ep,
            buf,
            std::ptr::null(),
            std::ptr::null_mut(),
        )
    }
}

unsafe extern "C" fn writemsg(ep: *mut fid_ep, msg: *const fi_msg_atomic, flags: u64) -> ssize_t {
    // SAFETY: the endpoint is ours, the message whole.
    unsafe {
        let Some(operation) = Operation::of(&*msg, flags) else { return EINVAL };
        let operands = address((*msg).msg_iov, (*msg).iov_count);
        operation.issue(Ep::of(ep), operands, std::ptr::null(), std::ptr::null_mut())
    }
}

unsafe extern "C" fn inject(
    ep: *mut fid_ep,
    buf: *const c_void,
    count: size_t,
    target: u64,
    offset: u64,
    key: u64,
    datatype: c_int,
    op: c_int,
) -> ssize_t {
    let context = std::ptr::null_mut();
    let flags = None;
    // SAFETY: the endpoint is ours; the library gives a buffer of so many elements.
    unsafe {
        Operation { target, offset, key, datatype, op, count, context, flags }.issue(
            Ep::of(ep),
            buf,
            std::ptr::null(),
            std::ptr::null_mut(),
        )
    }
}

unsafe extern "C" fn readwrite(
    ep: *mut fid_ep,
    buf: *const c_void,
    count: size_t,
    _desc: *mut c_void,
    result: *mut c_void,
    _result_desc: *mut c_void,
    target: u64,
    offset: u64,
    key: u64,
    datatype: c_int,
    op: c_int,
    context: *mut c_void,
) -> ssize_t {
    // SAFETY: the endpoint is ours; the library gives buffers of so many elements.
    unsafe {
        let ep = Ep::of(ep);
        let flags = ep.send_flags();
        Operation { target, offset, key, datatype, op, count, context, flags }.issue(
            ep,
            buf,
            std::ptr::null(),
            result,
        )
    }
}

unsafe extern "C" fn readwritemsg(
    ep: *mut fid_ep,
    msg: *const fi_msg_atomic,
    resultv: *mut fi_ioc,
    _result_desc: *mut *mut c_void,
    result_count: size_t,
    flags: u64,
) -> ssize_t {
    // SAFETY: the endpoint is ours, the message and the lists whole.
    unsafe {
        let Some(operation) = Operation::of(&*msg, flags) else { return EINVAL };
        if result_count != 1 {
            return EINVAL;
        }
        let operands = address((*msg).msg_iov, (*msg).iov_count);
        operation.issue(Ep::of(ep), operands, std::ptr::null(), address(resultv, 1))
    }
}

unsafe extern "C" fn compwrite(
    ep: *mut fid_ep,
    buf: *const c_void,
    count: size_t,
    _desc: *mut c_void,
    compare: *const c_void,
    _compare_desc: *mut c_void,
    result: *mut c_void,
    _result_desc: *mut c_void,
    target: u64,
    offset: u64,
    key: u64,
    datatype: c_int,
    op: c_int,
    context: *mut c_void,
) -> ssize_t {
    // SAFETY: the endpoint is ours; the library gives buffers of so many elements.
    unsafe {
        let ep = Ep::of(ep);
        let flags = ep.send_flags();
        Operation { target, offset, key, datatype, op, count, context, flags }
            .issue(ep, buf, compare, result)
    }
}

unsafe extern "C" fn compwritemsg(
    ep: *mut fid_ep,
    msg: *const fi_msg_atomic,
    comparev: *const fi_ioc,
    _compare_desc: *mut *mut c_void,
    compare_count: size_t,
    resultv: *mut fi_ioc,
    _result_desc: *mut *mut c_void,
    result_count: size_t,
    flags: u64,
) -> ssize_t {
    // SAFETY: the endpoint is ours, the message and the lists whole.
    unsafe {
        let Some(operation) = Operation::of(&*msg, flags) else { return EINVAL };
        if compare_count != 1 || result_count != 1 {
            return EINVAL;
        }
        let operands = address((*msg).msg_iov, (*msg).iov_count);
        operation.issue(Ep::of(ep), operands, address(comparev, 1), address(resultv, 1))
    }
}

/// How many elements of a type an operation takes; an error when it is not offered.
fn offered(datatype: c_int, op: c_int, compare: bool) -> Result<usize, c_int> {
    match (u8::try_from(op), u8::try_from(datatype)) {
        (Ok(op), Ok(datatype)) if rma::is_supported(op, datatype, compare) => Ok(MAX_COUNT),
        _ => Err(-libc::EOPNOTSUPP),
    }
}

/// # Safety
/// `count` is null or a place.
unsafe fn valid(datatype: c_int, op: c_int, compare: bool, count: *mut size_t) -> c_int {
    match offered(datatype, op, compare) {
        Ok(n) => {
            // SAFETY: by contract, `count` is null or a place.
            if let Some(count) = unsafe { count.as_mut() } {
                *count = n;
            }
            0
        }
        Err(e) => e,
    }
}

unsafe extern "C" fn writevalid(
    _ep: *mut fid_ep,
    datatype: c_int,
    op: c_int,
    count: *mut size_t,
) -> c_int {
    // SAFETY: the library gives a place for the result.
    unsafe { valid(datatype, op, false, count) }
}

unsafe extern "C" fn readwritevalid(
    _ep: *mut fid_ep,
    datatype: c_int,
    op: c_int,
    count: *mut size_t,
) -> c_int {
    // SAFETY: the library gives a place for the result.
    unsafe { valid(datatype, op, false, count) }
}

unsafe extern "C" fn compwritevalid(
    _ep: *mut fid_ep,
    datatype: c_int,
    op: c_int,
    count: *mut size_t,
) -> c_int {
    // SAFETY: the library gives a place for the result.
    unsafe { valid(datatype, op, true, count) }
}

/// `fi_query_atomic`.
///
/// # Safety
/// As libfabric calls it.
pub unsafe extern "C" fn query(
    _domain: *mut fid_domain,
    datatype: c_int,
    op: c_int,
    attr: *mut fi_atomic_attr,
    flags: u64,
) -> c_int {
    match offered(datatype, op, flags & FI_COMPARE_ATOMIC != 0) {
        Ok(count) => {
            // SAFETY: the library gives a place for the result.
            if let Some(attr) = unsafe { attr.as_mut() } {
                attr.count = count;
                attr.size = u8::try_from(datatype).ok().and_then(rma::element_size).unwrap_or(0);
            }
            0
        }
        Err(e) => e,
    }
}
