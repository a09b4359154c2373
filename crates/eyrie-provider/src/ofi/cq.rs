//! The completion queue. Reading it is the progress call: in [`progress`] the clock ticks and
//! messages become visible, and nowhere else.

use super::queue::{Cq, Entry};
use super::{absent, base_ops, ep};
use crate::core::rank::Unread;
use crate::{mpi_library, process, signals};
use eyrie_libfabric::abi::*;
use libc::{c_char, c_int, c_void, size_t, ssize_t};
use std::collections::VecDeque;

static BASE: fi_ops = base_ops(close);
static OPS: fi_ops_cq = fi_ops_cq {
    size: size_of::<fi_ops_cq>(),
    read,
    readfrom,
    readerr,
    sread: no_sread,
    sreadfrom: absent,
    signal: absent,
    strerror,
};

/// `fi_cq_open`.
///
/// # Safety
/// As libfabric calls it.
pub unsafe extern "C" fn open(
    _domain: *mut fid_domain,
    attr: *mut fi_cq_attr,
    cq: *mut *mut fid_cq,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the library gives null or whole attributes, and a place for the result.
    unsafe {
        let format = attr.as_ref().map_or(FI_CQ_FORMAT_TAGGED, |a| a.format);
        // The shorter formats are prefixes of the tagged one.
        let entry_len = match format {
            FI_CQ_FORMAT_CONTEXT => 8,
            FI_CQ_FORMAT_MSG => 24,
            FI_CQ_FORMAT_DATA => 40,
            _ => size_of::<fi_cq_tagged_entry>(),
        };
        let fid = fid_cq { fid: fid { fclass: FI_CLASS_CQ, context, ops: &BASE }, ops: &OPS };
        *cq = Box::into_raw(Box::new(Cq { fid, entry_len, queue: VecDeque::new() })).cast();
    }
    0
}

unsafe extern "C" fn close(f: *mut fid) -> c_int {
    ep::forget(f);
    // SAFETY: `open` has made it, and the library does not use it after closing it.
    drop(unsafe { Box::from_raw(f.cast::<Cq>()) });
    0
}

unsafe extern "C" fn no_sread(
    _: *mut fid_cq,
    _: *mut c_void,
    _: size_t,
    _: *const c_void,
    _: c_int,
) -> ssize_t {
    -(libc::ENOSYS as ssize_t)
}

/// A progress call.
pub fn progress(unread: Unread) {
    let signal = process::call_or_end(|rank| {
        // SAFETY: calls do not overlap (FI_THREAD_DOMAIN), and no caller of this function holds a
        // reference to the endpoint.
        let Some(ep) = (unsafe { ep::open_one() }) else { return Ok(None) };
        rank.progress(unread, |event| ep.report(event))?;
        Ok(rank.signal())
    });
    if let Some(signal) = signal {
        signals::raise(signal);
    }
}

unsafe extern "C" fn read(cq: *mut fid_cq, buf: *mut c_void, count: size_t) -> ssize_t {
    mpi_library::report_once();
    let cq = cq.cast::<Cq>();
    // SAFETY: the queue is ours. What a progress call finds may be put into this very queue, so no
    // reference to it is held meanwhile.
    unsafe {
        progress((*cq).unread());
        (*cq).take(buf, count)
    }
}

unsafe extern "C" fn readfrom(
    cq: *mut fid_cq,
    buf: *mut c_void,
    count: size_t,
    src_addr: *mut u64,
) -> ssize_t {
    // SAFETY: the arguments are those of this call; `src_addr` is null or has `count` places.
    unsafe {
        let n = read(cq, buf, count);
        if !src_addr.is_null() {
            for i in 0..n.max(0) as usize {
                *src_addr.add(i) = FI_ADDR_UNSPEC;
            }
        }
        n
    }
}

unsafe extern "C" fn readerr(cq: *mut fid_cq, out: *mut fi_cq_err_entry, _flags: u64) -> ssize_t {
    // SAFETY: the queue is ours; `out` is a whole error entry.
    unsafe {
        let cq = &mut *cq.cast::<Cq>();
        match cq.queue.front().copied() {
            Some(Entry { entry: e, error, over }) if error != 0 => {
                cq.queue.pop_front();
                (*out).op_context = e.op_context;
                (*out).flags = e.flags;
                (*out).len = e.len;
                (*out).buf = e.buf;
                (*out).data = e.data;
                (*out).tag = e.tag;
                (*out).olen = over;
                (*out).err = error;
                (*out).prov_errno = error;
                (*out).err_data_size = 0;
                1
            }
            _ => -(libc::EAGAIN as ssize_t),
        }
    }
}

unsafe extern "C" fn strerror(
    _cq: *mut fid_cq,
    error: c_int,
    _data: *const c_void,
    buf: *mut c_char,
    len: size_t,
) -> *const c_char {
    let text: &std::ffi::CStr = match error {
        FI_ETRUNC => c"message longer than the receive buffer",
        libc::ECANCELED => c"receive canceled",
        libc::ENOMSG => c"no such message",
        libc::EACCES => c"no memory region has this key at the target",
        libc::EFAULT => c"not within the target's memory region",
        _ => c"unknown error",
    };
    if !buf.is_null() && len > 0 {
        // SAFETY: copies no more than there is room for, and ends the string.
        unsafe {
            libc::strncpy(buf, text.as_ptr(), len);
            *buf.add(len - 1) = 0;
        }
    }
    text.as_ptr()
}
