//! The calls of the endpoint itself: it is opened, bound to queues, counters and address vector,
//! and closed. Operations are posted by `msg.rs`, `tagged.rs`, `rma.rs` and `atomic.rs`.

use super::ep::{Ep, OPEN};
use super::{absent, atomic, av, base_ops, msg, rma, tagged};
use crate::core::matching::Context;
use crate::core::path::Path as _;
use crate::ending::say;
use crate::process;
use eyrie_libfabric::abi::*;
use eyrie_wire::page::Endpoint;
use libc::{c_int, c_void, size_t, ssize_t};
use std::sync::atomic::Ordering;

static BASE: fi_ops = fi_ops { bind: Some(bind), control: Some(control), ..base_ops(close) };
static OPS: fi_ops_ep = fi_ops_ep {
    size: size_of::<fi_ops_ep>(),
    cancel,
    getopt,
    setopt,
    tx_ctx: absent,
    rx_ctx: absent,
    rx_size_left: absent,
    tx_size_left: absent,
};
static CM: fi_ops_cm = fi_ops_cm {
    size: size_of::<fi_ops_cm>(),
    setname: absent,
    getname,
    getpeer: absent,
    connect: absent,
    listen: absent,
    accept: absent,
    reject: absent,
    shutdown: absent,
    join: absent,
};

/// `fi_endpoint`.
///
/// # Safety
/// As libfabric calls it.
pub unsafe extern "C" fn open(
    _domain: *mut fid_domain,
    info: *mut fi_info,
    out: *mut *mut fid_ep,
    context: *mut c_void,
) -> c_int {
    if !OPEN.load(Ordering::Relaxed).is_null() {
        say("a second libfabric endpoint in one process is not supported");
        return -libc::EBUSY;
    }
    // SAFETY: the library gives a whole info and a place for the result.
    unsafe {
        let send_flags = (*info).tx_attr.as_ref().map_or(0, |t| t.op_flags);
        let receive_flags = (*info).rx_attr.as_ref().map_or(0, |r| r.op_flags);
        let fid = fid_ep {
            fid: fid { fclass: FI_CLASS_EP, context, ops: &BASE },
            ops: &OPS,
            cm: &CM,
            msg: &msg::OPS,
            rma: &rma::OPS,
            tagged: &tagged::OPS,
            atomic: &atomic::OPS,
            collective: std::ptr::null(),
        };
        let ep = Box::into_raw(Box::new(Ep {
            fid,
            av: std::ptr::null_mut(),
            send_queue: std::ptr::null_mut(),
            receive_queue: std::ptr::null_mut(),
            read_counter: std::ptr::null_mut(),
            write_counter: std::ptr::null_mut(),
            selective_send: false,
            selective_receive: false,
            send_flags,
            receive_flags,
            min_multi_recv: 64,
        }));
        OPEN.store(ep, Ordering::Relaxed);
        *out = ep.cast();
    }
    process::call(|rank| rank.path.world_mut().identity.set_endpoint(Endpoint::Open));
    0
}

/// `fi_endpoint2`: no flag means anything here.
///
/// # Safety
/// As [`open`].
pub unsafe extern "C" fn open2(
    domain: *mut fid_domain,
    info: *mut fi_info,
    out: *mut *mut fid_ep,
    _flags: u64,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the arguments are those of this call, unchanged.
    unsafe { open(domain, info, out, context) }
}

unsafe extern "C" fn close(f: *mut fid) -> c_int {
    process::call_or_end(|rank| {
        rank.forget_posted();
        // Others may still wait for what this rank has sent.
        rank.path.flush()?;
        // From here on it needs no other rank, and no other needs it: it may end in any way.
        rank.path.world_mut().identity.set_endpoint(Endpoint::Closed);
        Ok(())
    });
    OPEN.store(std::ptr::null_mut(), Ordering::Relaxed);
    // SAFETY: opened by `open`, not used any more.
    drop(unsafe { Box::from_raw(f.cast::<Ep>()) });
    0
}

unsafe extern "C" fn bind(f: *mut fid, what: *mut fid, flags: u64) -> c_int {
    // SAFETY: the endpoint is ours, and so is what it is bound to.
    unsafe {
        let ep = &mut *f.cast::<Ep>();
        match (*what).fclass {
            FI_CLASS_AV => ep.av = what.cast(),
            FI_CLASS_CQ => {
                let selective = flags & FI_SELECTIVE_COMPLETION != 0;
                if flags & FI_SEND != 0 {
                    ep.send_queue = what.cast();
                    ep.selective_send = selective;
                }
                if flags & FI_RECV != 0 {
                    ep.receive_queue = what.cast();
                    ep.selective_receive = selective;
                }
            }
            FI_CLASS_CNTR => {
                if flags & FI_READ != 0 {
                    ep.read_counter = what.cast();
                }
                if flags & FI_WRITE != 0 {
                    ep.write_counter = what.cast();
                }
            }
            FI_CLASS_EQ => {}
            _ => return -libc::EINVAL,
        }
    }
    0
}

unsafe extern "C" fn control(_: *mut fid, command: c_int, _: *mut c_void) -> c_int {
    if command != FI_ENABLE {
        return -libc::ENOSYS;
    }
    process::call_or_end(|rank| rank.path.attach());
    0
}

unsafe extern "C" fn getname(_: *mut fid, to: *mut c_void, len: *mut size_t) -> c_int {
    let address = process::call(|rank| eyrie_wire::rank_address::address(rank.path.number()));
    // SAFETY: the library gives room for `*len` bytes.
    unsafe { av::copy_out(&address, to, len) }
}

unsafe extern "C" fn cancel(f: *mut fid, context: *mut c_void) -> ssize_t {
    if let Some(c) = process::call(|rank| rank.cancel(context as Context)) {
        // SAFETY: the library passes an endpoint that we opened, and calls do not overlap.
        unsafe { Ep::of(f.cast()) }.received(&c);
    }
    0
}

unsafe extern "C" fn getopt(
    f: *mut fid,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut size_t,
) -> c_int {
    if level != FI_OPT_ENDPOINT || name != FI_OPT_MIN_MULTI_RECV {
        return -libc::ENOPROTOOPT;
    }
    // SAFETY: the library gives room for `*len` bytes.
    unsafe {
        if *len < size_of::<size_t>() {
            return -257; // FI_ETOOSMALL
        }
        value.cast::<size_t>().write_unaligned((*f.cast::<Ep>()).min_multi_recv);
        *len = size_of::<size_t>();
    }
    0
}

unsafe extern "C" fn setopt(
    f: *mut fid,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: size_t,
) -> c_int {
    if level != FI_OPT_ENDPOINT || name != FI_OPT_MIN_MULTI_RECV || len < size_of::<size_t>() {
        return -libc::ENOPROTOOPT;
    }
    // SAFETY: the library gives a value of `len` bytes.
    unsafe {
        (*f.cast::<Ep>()).min_multi_recv = value.cast::<size_t>().read_unaligned();
    }
    0
}
