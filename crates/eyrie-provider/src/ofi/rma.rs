//! Reads and writes of other ranks' memory (`fi_rma`). They are messages like all others: the
//! target does its part in its own progress calls.

use super::absent;
use super::ep::{one_buffer, Ep, RequestCall};
use crate::core::rma::Kind;
use eyrie_libfabric::abi::*;
use eyrie_wire::data::Envelope;
use libc::{c_void, iovec, size_t, ssize_t};

const EINVAL: ssize_t = -(libc::EINVAL as ssize_t);

pub static OPS: fi_ops_rma = fi_ops_rma {
    size: size_of::<fi_ops_rma>(),
    read,
    readv,
    readmsg,
    write,
    writev,
    writemsg,
    inject,
    writedata: absent,
    injectdata: absent,
};

/// A place in a target's memory.
#[derive(Clone, Copy)]
struct Target {
    addr: u64,
    offset: u64,
    key: u64,
}

/// The target of a message with one piece of remote memory.
///
/// # Safety
/// `rma_iov` has `rma_iov_count` entries.
unsafe fn one_target(msg: &fi_msg_rma) -> Option<Target> {
    // SAFETY: by contract, `rma_iov` has `rma_iov_count` entries.
    let there = (msg.rma_iov_count == 1).then(|| unsafe { &*msg.rma_iov })?;
    Some(Target { addr: msg.addr, offset: there.addr, key: there.key })
}

fn read_from(
    ep: &mut Ep,
    into: (*mut c_void, usize),
    from: Target,
    context: *mut c_void,
    flags: Option<u64>,
) -> ssize_t {
    let Target { addr, offset, key } = from;
    let len = into.1 as u64;
    let call = RequestCall { target: addr, kind: Kind::Read, answer: into, context, flags };
    ep.request(&call, |request| Envelope::Read { key, offset, request, len }, &[])
}

/// # Safety
/// `from` is a buffer of its length.
unsafe fn write_to(
    ep: &mut Ep,
    from: (*const c_void, usize),
    to: Target,
    context: *mut c_void,
    flags: Option<u64>,
) -> ssize_t {
    let Target { addr, offset, key } = to;
    let answer = (std::ptr::null_mut(), 0);
    let call = RequestCall { target: addr, kind: Kind::Write, answer, context, flags };
    // SAFETY: by contract, `from` is a buffer of its length.
    let content = unsafe { super::bytes(from.0, from.1) };
    ep.request(&call, |request| Envelope::Write { key, offset, request }, content)
}

unsafe extern "C" fn read(
    ep: *mut fid_ep,
    buf: *mut c_void,
    len: size_t,
    _desc: *mut c_void,
    source: u64,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> ssize_t {
    // SAFETY: the library passes an endpoint that we opened, and calls do not overlap.
    let ep = unsafe { Ep::of(ep) };
    let flags = ep.send_flags();
    read_from(ep, (buf, len), Target { addr: source, offset: addr, key }, context, flags)
}

unsafe extern "C" fn readv(
    ep: *mut fid_ep,
    iov: *const iovec,
    desc: *mut *mut c_void,
    count: size_t,
    source: u64,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> ssize_t {
    // SAFETY: `iov` has `count` entries; the other arguments are those of this call.
    unsafe {
        let Some((buf, len)) = one_buffer(iov, count) else { return EINVAL };
        read(ep, buf, len, desc.cast(), source, addr, key, context)
    }
}

unsafe extern "C" fn readmsg(ep: *mut fid_ep, msg: *const fi_msg_rma, flags: u64) -> ssize_t {
    // SAFETY: the endpoint is ours, the message whole.
    unsafe {
        let ep = Ep::of(ep);
        let msg = &*msg;
        match (one_buffer(msg.msg_iov, msg.iov_count), one_target(msg)) {
            (Some(into), Some(from)) => read_from(ep, into, from, msg.context, Some(flags)),
            _ => EINVAL,
        }
    }
}

unsafe extern "C" fn write(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: size_t,
    _desc: *mut c_void,
    destination: u64,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> ssize_t {
    // SAFETY: the endpoint is ours; the library gives a buffer of this length.
    unsafe {
        let ep = Ep::of(ep);
        let flags = ep.send_flags();
        let to = Target { addr: destination, offset: addr, key };
        write_to(ep, (buf, len), to, context, flags)
    }
}

unsafe extern "C" fn writev(
    ep: *mut fid_ep,
    iov: *const iovec,
    desc: *mut *mut c_void,
    count: size_t,
    destination: u64,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> ssize_t {
    // SAFETY: `iov` has `count` entries; the other arguments are those of this call.
    unsafe {
        let Some((buf, len)) = one_buffer(iov, count) else { return EINVAL };
        write(ep, buf, len, desc.cast(), destination, addr, key, context)
    }
}

unsafe extern "C" fn writemsg(ep: *mut fid_ep, msg: *const fi_msg_rma, flags: u64) -> ssize_t {
    // SAFETY: the endpoint is ours, the message whole.
    unsafe {
        let ep = Ep::of(ep);
        let msg = &*msg;
        // The target's completion queue would have to say so.
        if flags & FI_REMOTE_CQ_DATA != 0 {
            return -(libc::EOPNOTSUPP as ssize_t);
        }
        match (one_buffer(msg.msg_iov, msg.iov_count), one_target(msg)) {
            (Some((buf, len)), Some(to)) => write_to(ep, (buf, len), to, msg.context, Some(flags)),
            _ => EINVAL,
        }
    }
}

unsafe extern "C" fn inject(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: size_t,
    destination: u64,
    addr: u64,
    key: u64,
) -> ssize_t {
    let to = Target { addr: destination, offset: addr, key };
    // SAFETY: the endpoint is ours; the library gives a buffer of this length.
    unsafe { write_to(Ep::of(ep), (buf, len), to, std::ptr::null_mut(), None) }
}
