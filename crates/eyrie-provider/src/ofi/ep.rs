//! The endpoint: what it is bound to, and what is posted to it and reported from it. A process has
//! one at a time.

use super::av::Av;
use super::counter::Cntr;
use super::queue::Cq;
use crate::core::matching::{Completion, Context, Posted};
use crate::core::rank::{Event, Unread};
use crate::core::rma::{Done, Kind, Pending};
use crate::process;
use eyrie_libfabric::abi::*;
use eyrie_wire::data::Envelope;
use eyrie_wire::Rank;
use libc::{c_int, c_void, ssize_t};
use std::sync::atomic::{AtomicPtr, Ordering};

/// The endpoint.
#[repr(C)]
pub struct Ep {
    pub(super) fid: fid_ep,
    pub(super) av: *mut Av,
    pub(super) send_queue: *mut Cq,
    pub(super) receive_queue: *mut Cq,
    /// Counters of one-sided operations that bring something here, and of those that do not.
    pub(super) read_counter: *mut Cntr,
    pub(super) write_counter: *mut Cntr,
    /// Operations without FI_COMPLETION are not reported.
    pub(super) selective_send: bool,
    pub(super) selective_receive: bool,
    /// Flags of operations that have none of their own.
    pub(super) send_flags: u64,
    pub(super) receive_flags: u64,
    pub(super) min_multi_recv: usize,
}

pub(super) static OPEN: AtomicPtr<Ep> = AtomicPtr::new(std::ptr::null_mut());

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
    /// `ep` is this process's endpoint.
    pub unsafe fn of<'a>(ep: *mut fid_ep) -> &'a mut Ep {
        // SAFETY: the caller gives this process's endpoint, and calls do not overlap
        // (FI_THREAD_DOMAIN).
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
        // SAFETY: the pointer is null or an address vector that is still open.
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
            // SAFETY: the pointer is null or a queue that is still open.
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
        let over = process::call_or_end(|rank| rank.request(target, pending, envelope, content));
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

    /// What the program has not read yet.
    pub fn unread(&self) -> Unread {
        // SAFETY: the pointers are null or queues that are still open (see `forget`).
        let queues = unsafe { [self.receive_queue.as_ref(), self.send_queue.as_ref()] };
        queues.into_iter().flatten().map(Cq::unread).max().unwrap_or(Unread::Nothing)
    }

    /// A receive or a probe is over.
    pub fn received(&mut self, completion: &Completion) {
        // SAFETY: the pointer is null or a queue that is still open.
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
        // SAFETY: counter and queue are null or still open.
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
        // SAFETY: by contract, `iov` has `count` entries.
        1 => Some(unsafe { ((*iov).iov_base, (*iov).iov_len) }),
        _ => None,
    }
}
