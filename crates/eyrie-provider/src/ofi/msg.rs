//! Untagged messages (`fi_msg`): MPICH's active messages go this way.

use super::ep::{one_buffer, Ep, SendCall};
use eyrie_libfabric::abi::*;
use eyrie_wire::data::Envelope;
use libc::{c_void, iovec, size_t, ssize_t};
use std::borrow::Cow;

const EINVAL: ssize_t = -(libc::EINVAL as ssize_t);

pub static OPS: fi_ops_msg = fi_ops_msg {
    size: size_of::<fi_ops_msg>(),
    recv,
    recvv,
    recvmsg,
    send,
    sendv,
    sendmsg,
    inject,
    senddata,
    injectdata,
};

unsafe extern "C" fn recv(
    ep: *mut fid_ep,
    buf: *mut c_void,
    len: size_t,
    _desc: *mut c_void,
    source: u64,
    context: *mut c_void,
) -> ssize_t {
    // SAFETY: the library passes an endpoint that we opened, and calls do not overlap.
    let ep = unsafe { Ep::of(ep) };
    let posted = ep.posted((buf, len), source, None, context, ep.receive_flags());
    ep.receive(posted)
}

unsafe extern "C" fn recvv(
    ep: *mut fid_ep,
    iov: *const iovec,
    desc: *mut *mut c_void,
    count: size_t,
    source: u64,
    context: *mut c_void,
) -> ssize_t {
    // SAFETY: `iov` has `count` entries; the other arguments are those of this call.
    unsafe {
        let Some((buf, len)) = one_buffer(iov, count) else { return EINVAL };
        recv(ep, buf, len, desc.cast(), source, context)
    }
}

unsafe extern "C" fn recvmsg(ep: *mut fid_ep, msg: *const fi_msg, flags: u64) -> ssize_t {
    // SAFETY: the endpoint is ours, the message whole.
    unsafe {
        let ep = Ep::of(ep);
        let msg = &*msg;
        let Some(buffer) = one_buffer(msg.msg_iov, msg.iov_count) else { return EINVAL };
        let posted = ep.posted(buffer, msg.addr, None, msg.context, flags);
        ep.receive(posted)
    }
}

unsafe extern "C" fn send(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: size_t,
    _desc: *mut c_void,
    destination: u64,
    context: *mut c_void,
) -> ssize_t {
    // SAFETY: the library passes an endpoint that we opened, and calls do not overlap.
    let ep = unsafe { Ep::of(ep) };
    let report = ep.send_flags();
    let content = (buf, len);
    let envelope = Envelope::Untagged { data: None };
    ep.send(&SendCall { content, destination, envelope, context, report })
}

unsafe extern "C" fn sendv(
    ep: *mut fid_ep,
    iov: *const iovec,
    desc: *mut *mut c_void,
    count: size_t,
    destination: u64,
    context: *mut c_void,
) -> ssize_t {
    // SAFETY: `iov` has `count` entries; the other arguments are those of this call. A send is over
    // when it returns.
    unsafe {
        let together = pieces(iov, count);
        let (buf, len) = content(&together);
        send(ep, buf, len, desc.cast(), destination, context)
    }
}

/// What several buffers hold. Intel MPI gives them for its active messages, whatever `iov_limit`
/// says.
///
/// # Safety
/// `iov` has `count` entries, which stay valid as long as the result is used.
unsafe fn pieces<'a>(iov: *const iovec, count: usize) -> Cow<'a, [u8]> {
    // SAFETY: by contract, `iov` has `count` entries, which stay valid as long as the result is
    // used.
    unsafe {
        if let Some((buf, len)) = one_buffer(iov, count) {
            return Cow::Borrowed(super::bytes(buf, len));
        }
        let all = std::slice::from_raw_parts(iov, count);
        let all = all.iter().map(|piece| super::bytes(piece.iov_base, piece.iov_len));
        Cow::Owned(all.collect::<Vec<_>>().concat())
    }
}

fn content(bytes: &[u8]) -> (*const c_void, usize) {
    (bytes.as_ptr().cast(), bytes.len())
}

unsafe extern "C" fn sendmsg(ep: *mut fid_ep, msg: *const fi_msg, flags: u64) -> ssize_t {
    // SAFETY: the endpoint is ours, the message whole.
    unsafe {
        let ep = Ep::of(ep);
        let msg = &*msg;
        let together = pieces(msg.msg_iov, msg.iov_count);
        let with_data = flags & FI_REMOTE_CQ_DATA != 0;
        ep.send(&SendCall {
            content: content(&together),
            destination: msg.addr,
            envelope: Envelope::Untagged { data: with_data.then_some(msg.data) },
            context: msg.context,
            report: Some(flags),
        })
    }
}

unsafe extern "C" fn inject(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: size_t,
    destination: u64,
) -> ssize_t {
    let content = (buf, len);
    let context = std::ptr::null_mut();
    let envelope = Envelope::Untagged { data: None };
    // SAFETY: the library passes an endpoint that we opened, and calls do not overlap.
    let ep = unsafe { Ep::of(ep) };
    ep.send(&SendCall { content, destination, envelope, context, report: None })
}

unsafe extern "C" fn senddata(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: size_t,
    _desc: *mut c_void,
    data: u64,
    destination: u64,
    context: *mut c_void,
) -> ssize_t {
    // SAFETY: the library passes an endpoint that we opened, and calls do not overlap.
    let ep = unsafe { Ep::of(ep) };
    let report = ep.send_flags();
    let content = (buf, len);
    let envelope = Envelope::Untagged { data: Some(data) };
    ep.send(&SendCall { content, destination, envelope, context, report })
}

unsafe extern "C" fn injectdata(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: size_t,
    data: u64,
    destination: u64,
) -> ssize_t {
    let content = (buf, len);
    let context = std::ptr::null_mut();
    let envelope = Envelope::Untagged { data: Some(data) };
    // SAFETY: the library passes an endpoint that we opened, and calls do not overlap.
    let ep = unsafe { Ep::of(ep) };
    ep.send(&SendCall { content, destination, envelope, context, report: None })
}
