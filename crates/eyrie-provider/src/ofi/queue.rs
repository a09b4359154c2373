//! The contents of a completion queue: operations that are finished and not reported yet.

use crate::core::matching::{Completion, Outcome};
use crate::core::rank::Unread;
use eyrie_libfabric::abi::*;
use libc::{c_int, c_void, ssize_t};
use std::collections::VecDeque;

/// A finished operation, or a failed one (`error` not 0, `over`: bytes that did not fit).
#[derive(Clone, Copy)]
pub(super) struct Entry {
    pub(super) entry: fi_cq_tagged_entry,
    pub(super) error: c_int,
    pub(super) over: usize,
}

/// The queue.
#[repr(C)]
pub struct Cq {
    pub(super) fid: fid_cq,
    pub(super) entry_len: usize,
    pub(super) queue: VecDeque<Entry>,
}

impl Cq {
    /// A send or a one-sided operation is over. `error`: an errno, 0 when all is well.
    pub fn done(&mut self, context: *mut c_void, flags: u64, len: usize, error: c_int) {
        let buf = std::ptr::null_mut();
        let entry = fi_cq_tagged_entry { op_context: context, flags, len, buf, data: 0, tag: 0 };
        self.queue.push_back(Entry { entry, error, over: 0 });
    }

    /// A receive or a probe is done.
    pub fn received(&mut self, c: &Completion) {
        let (error, over) = match c.outcome {
            Outcome::Received | Outcome::Found => (0, 0),
            Outcome::Truncated { over } => (FI_ETRUNC, over),
            Outcome::Canceled => (libc::ECANCELED, 0),
            Outcome::NotFound => (libc::ENOMSG, 0),
        };
        if error == 0 && !c.report && !c.last_of_multi {
            return;
        }
        let mut flags = FI_RECV | if c.tagged { FI_TAGGED } else { FI_MSG };
        if c.data.is_some() {
            flags |= FI_REMOTE_CQ_DATA;
        }
        if c.last_of_multi {
            flags |= FI_MULTI_RECV;
        }
        let entry = fi_cq_tagged_entry {
            op_context: c.context as *mut c_void,
            flags,
            len: c.len,
            buf: c.buffer.cast(),
            data: c.data.unwrap_or(0),
            tag: c.tag,
        };
        self.queue.push_back(Entry { entry, error, over });
    }

    pub fn unread(&self) -> Unread {
        let of = |e: &Entry| match e.error {
            libc::ENOMSG => Unread::Misses,
            _ => Unread::Completions,
        };
        self.queue.iter().map(of).max().unwrap_or(Unread::Nothing)
    }

    /// # Safety
    /// `buf` has room for `count` entries of the queue's format.
    pub unsafe fn take(&mut self, buf: *mut c_void, count: usize) -> ssize_t {
        let mut n = 0;
        while n < count {
            match self.queue.front() {
                Some(e) if e.error == 0 => {
                    // SAFETY: the caller vouches for the room; the format is a prefix of the entry.
                    unsafe {
                        let to = buf.cast::<u8>().add(n * self.entry_len);
                        let from = (&raw const e.entry).cast::<u8>();
                        std::ptr::copy_nonoverlapping(from, to, self.entry_len);
                    }
                    self.queue.pop_front();
                    n += 1;
                }
                Some(_) if n == 0 => return -(FI_EAVAIL as ssize_t),
                _ => break,
            }
        }
        if n == 0 {
            -(libc::EAGAIN as ssize_t)
        } else {
            n as ssize_t
        }
    }
}
