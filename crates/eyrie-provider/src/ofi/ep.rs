//! The endpoint: binds queues, counters and address vector, and is where operations are posted
//! (`msg.rs`, `tagged.rs`, `rma.rs`, `atomic.rs`). A process has one at a time.

use super::abi::*;
use super::av::{self, Av};
use super::cntr::Cntr;
use super::cq::Cq;
use super::{absent, atomic, base_ops, msg, rma, tagged};
use crate::core::matching::{Completion, Context, Posted};
use crate::core::rank::Event;
use crate::core::rma::{Done, Kind, Pending};
use crate::process;
use eyrie_wire::data::Envelope;
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
    /// Counters of one-sided operations that bring something here, and of those that do not.
    read_counter: *mut Cntr,
    write_counter: *mut Cntr,
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

/// The endpoint, if there is one.
///
/// # Safety
/// No other reference to it is alive meanwhile.
pub unsafe fn open_one<'a>() -> Option<&'a mut Ep> {
    // SAFETY: a live endpoint or null; it is taken out before it is freed.
    unsafe { OPEN.load(Ordering::Relaxed).as_mut() }
}

/// A queue or a counter is closed before its endpoint: nothing is reported to it any more.
pub fn forget(object: *mut fid) {
    // SAFETY: calls do not overlap (FI_THREAD_DOMAIN).
    let Some(ep) = (unsafe { open_one() }) else { return };
    for queue in [&mut ep.send_queue, &mut ep.receive_queue] {
        if queue.cast() == object {
            *queue = std::ptr::null_mut();
        }
    }
    for counter in [&mut ep.read_counter, &mut ep.write_counter] {
        if counter.cast() == object {
            *counter = std::ptr::null_mut();
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
        process::say("a second libfabric endpoint in one process is not supported");
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
    process::call_or_end(|rank| {
        rank.forget_posted();
        // Others may still wait for what this rank has sent.
        rank.flush()
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
    process::call_or_end(|rank| rank.attach());
    0
}

unsafe extern "C" fn getname(_: *mut fid, to: *mut c_void, len: *mut size_t) -> c_int {
    let address = process::call(|rank| av::address(rank.number()));
    // SAFETY: the library gives room for `*len` bytes.
    unsafe { av::copy_out(&address, to, len) }
}

unsafe extern "C" fn cancel(f: *mut fid, context: *mut c_void) -> ssize_t {
    if let Some(c) = process::call(|rank| rank.cancel(context as Context)) {
        // SAFETY: the endpoint is ours.
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

/// A message to send, as the calls give it.
pub struct SendCall {
    pub content: (*const c_void, usize),
    pub destination: u64,
    pub envelope: Envelope,
    pub context: *mut c_void,
    /// `None`: an inject, never reported. `Some(flags)`: of the operation.
    pub report: Option<u64>,
}

/// A one-sided request, as the calls give it.
pub struct RequestCall {
    pub target: u64,
    pub kind: Kind,
    /// Where what comes back goes.
    pub answer: (*mut c_void, usize),
    pub context: *mut c_void,
    /// `None`: an inject, never reported but by a counter. `Some(flags)`: of the operation.
    pub flags: Option<u64>,
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
        // SAFETY: the library gives a buffer of this length.
        let content = unsafe { super::bytes(start, len) };
        process::call_or_end(|rank| rank.send(destination, s.envelope, content));
        if self.reports_send(s.report) {
            let tagged = matches!(s.envelope, Envelope::Tagged { .. });
            let kind = if tagged { FI_TAGGED } else { FI_MSG };
            // SAFETY: null or a live queue.
            if let Some(queue) = unsafe { self.send_queue.as_mut() } {
                queue.done(s.context, FI_SEND | kind, len, 0);
            }
        }
        0
    }

    /// Whether an operation with these flags is reported when it is done.
    fn reports_send(&self, flags: Option<u64>) -> bool {
        flags.is_some_and(|flags| !self.selective_send || flags & FI_COMPLETION != 0)
    }

    /// Sends a one-sided request; it is complete when its target's answer has become visible, or at
    /// once when this rank is its target.
    pub fn request(
        &mut self,
        call: &RequestCall,
        envelope: impl FnOnce(u64) -> Envelope,
        content: &[u8],
    ) -> ssize_t {
        let Some(target) = self.rank(call.target) else { return -(libc::EINVAL as ssize_t) };
        let pending = Pending {
            context: call.context as Context,
            kind: call.kind,
            report: self.reports_send(call.flags),
            buffer: call.answer.0.cast(),
            len: call.answer.1,
        };
        let over =
            process::call_or_end(|rank| rank.request(target, pending, envelope, content));
        if let Some(done) = over {
            self.done(&done);
        }
        0
    }

    /// What a progress call has found is reported.
    pub fn report(&mut self, event: Event) {
        match event {
            Event::Received(completion) => self.received(&completion),
            Event::Done(done) => self.done(&done),
        }
    }

    /// A receive or a probe is over.
    pub fn received(&mut self, completion: &Completion) {
        // SAFETY: null or a live queue.
        if let Some(queue) = unsafe { self.receive_queue.as_mut() } {
            queue.received(completion);
        }
    }

    /// A one-sided request is over.
    fn done(&mut self, done: &Done) {
        let Pending { context, kind, report, len, .. } = done.pending;
        let (flags, counter) = match kind {
            Kind::Write => (FI_RMA | FI_WRITE, self.write_counter),
            Kind::Read => (FI_RMA | FI_READ, self.read_counter),
            Kind::Atomic { fetch: false } => (FI_ATOMIC | FI_WRITE, self.write_counter),
            Kind::Atomic { fetch: true } => (FI_ATOMIC | FI_READ, self.read_counter),
        };
        // SAFETY: null or live; so is the queue.
        unsafe {
            if let Some(counter) = counter.as_mut() {
                counter.count(done.error == 0);
            }
            if let (true, Some(queue)) = (report || done.error != 0, self.send_queue.as_mut()) {
                queue.done(context as *mut c_void, flags, len, done.error as c_int);
            }
        }
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
        if self.receive_queue.is_null() {
            return -(libc::EINVAL as ssize_t);
        }
        process::call(|rank| rank.post(p, |c| self.received(&c)));
        0
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
