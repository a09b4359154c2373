//! The endpoint: binds queue and address vector, and is where sends and receives are posted (`msg.rs`,
//! `tagged.rs`). A process has one at a time.

use super::abi::*;
use super::av::{self, Av};
use super::cq::Cq;
use super::{absent, base_ops, msg, tagged};
use crate::core::matching::{Context, Posted};
use crate::core::rank;
use eyrie_wire::Rank;
use libc::{c_int, c_void, size_t, ssize_t};
use std::sync::atomic::{AtomicPtr, Ordering};

/// The endpoint.
#[repr(C)]
pub struct Ep {
    fid: fid_ep,
    av: *mut Av,
    send_queue: *mut Cq,
    receive_queue: *mut Cq,
    /// Operations without FI_COMPLETION are not reported.
    selective_send: bool,
    selective_receive: bool,
    /// Flags of operations that have none of their own.
    send_flags: u64,
    receive_flags: u64,
    min_multi_recv: usize,
}

static OPEN: AtomicPtr<Ep> = AtomicPtr::new(std::ptr::null_mut());

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

/// The queue that receives are reported to, if there is an endpoint.
pub fn receive_queue() -> Option<*mut Cq> {
    // SAFETY: a live endpoint or null; it is taken out before it is freed.
    let ep = unsafe { OPEN.load(Ordering::Relaxed).as_ref() }?;
    (!ep.receive_queue.is_null()).then_some(ep.receive_queue)
}

/// A queue is closed before its endpoint: nothing is reported to it any more.
pub fn forget_queue(cq: *mut Cq) {
    // SAFETY: a live endpoint or null.
    if let Some(ep) = unsafe { OPEN.load(Ordering::Relaxed).as_mut() } {
        for queue in [&mut ep.send_queue, &mut ep.receive_queue] {
            if *queue == cq {
                *queue = std::ptr::null_mut();
            }
        }
    }
}

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
        eprintln!("eyrie: a second libfabric endpoint in one process is not supported");
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
            rma: std::ptr::null(),
            tagged: &tagged::OPS,
            atomic: std::ptr::null(),
            collective: std::ptr::null(),
        };
        let ep = Box::into_raw(Box::new(Ep {
            fid,
            av: std::ptr::null_mut(),
            send_queue: std::ptr::null_mut(),
            receive_queue: std::ptr::null_mut(),
            selective_send: false,
            selective_receive: false,
            send_flags,
            receive_flags,
            min_multi_recv: 64,
        }));
        OPEN.store(ep, Ordering::Relaxed);
        *out = ep.cast();
    }
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
    // SAFETY: handed through.
    unsafe { open(domain, info, out, context) }
}

unsafe extern "C" fn close(f: *mut fid) -> c_int {
    rank::call(|rank| {
        // Others may still wait for what this rank has sent.
        rank.flush();
        rank.matching.forget_posted();
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
            FI_CLASS_CNTR | FI_CLASS_EQ => {}
            _ => return -libc::EINVAL,
        }
    }
    0
}

unsafe extern "C" fn control(_: *mut fid, command: c_int, _: *mut c_void) -> c_int {
    if command != FI_ENABLE {
        return -libc::ENOSYS;
    }
    rank::call(|rank| rank.attach());
    0
}

unsafe extern "C" fn getname(_: *mut fid, to: *mut c_void, len: *mut size_t) -> c_int {
    let address = rank::call(|rank| av::address(rank.me.rank));
    // SAFETY: the library gives room for `*len` bytes.
    unsafe { av::copy_out(&address, to, len) }
}

unsafe extern "C" fn cancel(f: *mut fid, context: *mut c_void) -> ssize_t {
    rank::call(|rank| {
        if let Some(c) = rank.matching.cancel(context as Context) {
            // SAFETY: the endpoint is ours; its queue is null or live.
            unsafe {
                if let Some(queue) = (*f.cast::<Ep>()).receive_queue.as_mut() {
                    queue.received(&c);
                }
            }
        }
    });
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

/// A message to send, as the calls give it.
pub struct SendCall {
    pub content: (*const c_void, usize),
    pub destination: u64,
    /// `eyrie_wire::data` flags.
    pub flags: u8,
    pub tag: u64,
    pub data: u64,
    pub context: *mut c_void,
    /// `None`: an inject, never reported. `Some(flags)`: of the operation.
    pub report: Option<u64>,
}

impl Ep {
    /// # Safety
    /// `ep` was opened by [`open`].
    pub unsafe fn of<'a>(ep: *mut fid_ep) -> &'a mut Ep {
        // SAFETY: as above; calls do not overlap (FI_THREAD_DOMAIN).
        unsafe { &mut *ep.cast() }
    }

    /// Flags of a send, of a receive, that has none of its own.
    pub fn send_flags(&self) -> Option<u64> {
        Some(self.send_flags)
    }

    pub fn receive_flags(&self) -> u64 {
        self.receive_flags
    }

    fn rank(&self, addr: u64) -> Option<Rank> {
        // SAFETY: null or a live table.
        unsafe { self.av.as_ref() }?.rank(addr)
    }

    /// Sends; the operation is complete when this returns.
    pub fn send(&mut self, s: &SendCall) -> ssize_t {
        let Some(destination) = self.rank(s.destination) else { return -(libc::EINVAL as ssize_t) };
        let (start, len) = s.content;
        let content = if len == 0 {
            &[]
        } else {
            // SAFETY: the library gives a buffer of this length.
            unsafe { std::slice::from_raw_parts(start.cast::<u8>(), len) }
        };
        rank::call(|rank| rank.send(destination, s.flags, s.tag, s.data, content));
        if let Some(flags) = s.report {
            if !self.selective_send || flags & FI_COMPLETION != 0 {
                let kind = if s.flags & eyrie_wire::data::TAGGED != 0 { FI_TAGGED } else { FI_MSG };
                // SAFETY: null or a live queue.
                if let Some(queue) = unsafe { self.send_queue.as_mut() } {
                    queue.sent(s.context, FI_SEND | kind, len);
                }
            }
        }
        0
    }

    /// A receive from the parts that the calls give.
    pub fn posted(
        &self,
        buffer: (*mut c_void, usize),
        source: u64,
        tag: Option<(u64, u64)>,
        context: *mut c_void,
        flags: u64,
    ) -> Posted {
        let (tag_bits, ignore) = tag.unwrap_or((0, 0));
        Posted {
            context: context as Context,
            buffer: buffer.0.cast(),
            len: buffer.1,
            source: if source == FI_ADDR_UNSPEC { None } else { self.rank(source) },
            tagged: tag.is_some(),
            tag: tag_bits,
            ignore,
            multi: (flags & FI_MULTI_RECV != 0).then_some(self.min_multi_recv),
            used: 0,
            report: !self.selective_receive || flags & FI_COMPLETION != 0,
        }
    }

    /// Posts a receive.
    pub fn receive(&mut self, p: Posted) -> ssize_t {
        // SAFETY: null or a live queue.
        let Some(queue) = (unsafe { self.receive_queue.as_mut() }) else {
            return -(libc::EINVAL as ssize_t);
        };
        rank::call(|rank| rank.matching.post(p, |c| queue.received(&c)));
        0
    }

    /// The queue that receives are reported to.
    pub fn queue(&mut self) -> Option<&mut Cq> {
        // SAFETY: null or a live queue.
        unsafe { self.receive_queue.as_mut() }
    }
}

/// The one buffer of a list (we say `iov_limit` 1).
///
/// # Safety
/// `iov` has `count` entries.
pub unsafe fn one_buffer(iov: *const libc::iovec, count: usize) -> Option<(*mut c_void, usize)> {
    match count {
        0 => Some((std::ptr::null_mut(), 0)),
        // SAFETY: as above.
        1 => Some(unsafe { ((*iov).iov_base, (*iov).iov_len) }),
        _ => None,
    }
}
