//! Tagged messages (`fi_tagged`): point-to-point messages and collectives go this way, and probes.

use super::cq;
use super::ep::{one_buffer, Ep, SendCall};
use crate::core::matching::{Context, Outcome, Probe};
use crate::process;
use eyrie_libfabric::abi::*;
use eyrie_wire::data::Envelope;
use libc::{c_void, iovec, size_t, ssize_t};

const EINVAL: ssize_t = -(libc::EINVAL as ssize_t);

pub static OPS: fi_ops_tagged = fi_ops_tagged {
    size: size_of::<fi_ops_tagged>(),
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
    tag: u64,
    ignore: u64,
    context: *mut c_void,
) -> ssize_t {
    // SAFETY: the library passes an endpoint that we opened, and calls do not overlap.
    let ep = unsafe { Ep::of(ep) };
    let posted = ep.posted((buf, len), source, Some((tag, ignore)), context, ep.receive_flags());
    ep.receive(posted)
}

unsafe extern "C" fn recvv(
    ep: *mut fid_ep,
    iov: *const iovec,
    desc: *mut *mut c_void,
    count: size_t,
    source: u64,
    tag: u64,
    ignore: u64,
    context: *mut c_void,
) -> ssize_t {
    // SAFETY: `iov` has `count` entries; the other arguments are those of this call.
    unsafe {
        let Some((buf, len)) = one_buffer(iov, count) else { return EINVAL };
        recv(ep, buf, len, desc.cast(), source, tag, ignore, context)
    }
}

unsafe extern "C" fn recvmsg(ep: *mut fid_ep, msg: *const fi_msg_tagged, flags: u64) -> ssize_t {
    // SAFETY: the library passes a complete message.
    let msg = unsafe { &*msg };
    if flags & FI_PEEK != 0 {
        // SAFETY: the arguments are those of this call, unchanged.
        return unsafe { probe(ep, msg, flags) };
    }
    // SAFETY: the library passes an endpoint that we opened, and calls do not overlap.
    let ep = unsafe { Ep::of(ep) };
    // SAFETY: the list has `iov_count` entries.
    let Some(buffer) = (unsafe { one_buffer(msg.msg_iov, msg.iov_count) }) else { return EINVAL };
    let posted = ep.posted(buffer, msg.addr, Some((msg.tag, msg.ignore)), msg.context, flags);
    if flags & FI_CLAIM == 0 {
        return ep.receive(posted);
    }
    let discard = flags & FI_DISCARD != 0;
    let Some(c) = process::call(|rank| rank.receive_claimed(posted, discard)) else {
        return EINVAL;
    };
    ep.received(&c);
    0
}

/// Looks for a message. If there is none, looks once more after a progress call: a library may read
/// only the answers of its probes, and while an answer waits to be read nothing new is shown.
///
/// # Safety
/// `ep` is an endpoint of ours, and no reference to it is alive.
unsafe fn probe(ep: *mut fid_ep, msg: &fi_msg_tagged, flags: u64) -> ssize_t {
    let none = (std::ptr::null_mut(), 0);
    // SAFETY: the caller promises that no other reference is alive; this one ends here.
    let (source, unread) = unsafe {
        let ep = Ep::of(ep);
        (ep.posted(none, msg.addr, None, msg.context, 0).source, ep.unread())
    };
    let probe = Probe {
        context: msg.context as Context,
        source,
        tag: msg.tag,
        ignore: msg.ignore,
        claim: flags & FI_CLAIM != 0,
        discard: flags & FI_DISCARD != 0,
    };
    let look = || process::call(|rank| rank.probe(&probe));
    let mut found = look();
    if found.outcome == Outcome::NotFound {
        cq::progress(unread);
        found = look();
    }
    // SAFETY: the first reference has ended, and the caller promises that there is no other.
    unsafe { Ep::of(ep) }.received(&found);
    0
}

unsafe extern "C" fn send(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: size_t,
    _desc: *mut c_void,
    destination: u64,
    tag: u64,
    context: *mut c_void,
) -> ssize_t {
    // SAFETY: the library passes an endpoint that we opened, and calls do not overlap.
    let ep = unsafe { Ep::of(ep) };
    let report = ep.send_flags();
    let content = (buf, len);
    let envelope = Envelope::Tagged { tag, data: None };
    ep.send(&SendCall { content, destination, envelope, context, report })
}

unsafe extern "C" fn sendv(
    ep: *mut fid_ep,
    iov: *const iovec,
    desc: *mut *mut c_void,
    count: size_t,
    destination: u64,
    tag: u64,
    context: *mut c_void,
) -> ssize_t {
    // SAFETY: `iov` has `count` entries; the other arguments are those of this call.
    unsafe {
        let Some((buf, len)) = one_buffer(iov, count) else { return EINVAL };
        send(ep, buf, len, desc.cast(), destination, tag, context)
    }
}

unsafe extern "C" fn sendmsg(ep: *mut fid_ep, msg: *const fi_msg_tagged, flags: u64) -> ssize_t {
    // SAFETY: the endpoint is ours, the message whole.
    unsafe {
        let ep = Ep::of(ep);
        let msg = &*msg;
        let Some((buf, len)) = one_buffer(msg.msg_iov, msg.iov_count) else { return EINVAL };
        let with_data = flags & FI_REMOTE_CQ_DATA != 0;
        ep.send(&SendCall {
            content: (buf, len),
            destination: msg.addr,
            envelope: Envelope::Tagged { tag: msg.tag, data: with_data.then_some(msg.data) },
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
    tag: u64,
) -> ssize_t {
    let content = (buf, len);
    let context = std::ptr::null_mut();
    let envelope = Envelope::Tagged { tag, data: None };
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
    tag: u64,
    context: *mut c_void,
) -> ssize_t {
    // SAFETY: the library passes an endpoint that we opened, and calls do not overlap.
    let ep = unsafe { Ep::of(ep) };
    let report = ep.send_flags();
    let content = (buf, len);
    let envelope = Envelope::Tagged { tag, data: Some(data) };
    ep.send(&SendCall { content, destination, envelope, context, report })
}

unsafe extern "C" fn injectdata(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: size_t,
    data: u64,
    destination: u64,
    tag: u64,
) -> ssize_t {
    let content = (buf, len);
    let context = std::ptr::null_mut();
    let envelope = Envelope::Tagged { tag, data: Some(data) };
    // SAFETY: the library passes an endpoint that we opened, and calls do not overlap.
    let ep = unsafe { Ep::of(ep) };
    ep.send(&SendCall { content, destination, envelope, context, report: None })
}
