//! One-sided communication: memory regions that other ranks may read and write, and this rank's
//! requests that are not answered yet. A request is a message like any other, logged and clocked.
//! Its target applies it when it becomes visible, in a progress call, and answers it there.
//!
//! Requests to one target are numbered, applied and answered in order, so that an answer says that
//! all before it are done as well.

mod atomic;

pub use atomic::{is_supported, size_of as element_size};

use super::matching::{Content, Context};
use eyrie_wire::data::{AtomicOp, Envelope};
use eyrie_wire::Rank;
use std::collections::{BTreeMap, VecDeque};
use std::io;

/// Memory that others may read and write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Region {
    pub base: usize,
    /// Bytes.
    pub len: usize,
}

impl Region {
    /// The address of `len` bytes from `offset` on, if they lie within the region.
    fn at(&self, offset: u64, len: u64) -> Option<*mut u8> {
        let end = offset.checked_add(len)?;
        if end > self.len as u64 {
            return None;
        }
        Some(self.base.checked_add(offset as usize)? as *mut u8)
    }
}

/// The result of a request at its target.
pub enum Applied {
    /// It is done; the answer may wait for others.
    Done,
    /// It is answered at once, with this content.
    Answer { error: u32, content: Answer },
}

/// The content of an answer.
pub enum Answer {
    Nothing,
    /// Memory as it is now.
    Memory {
        at: *const u8,
        len: usize,
    },
    /// What it was before an atomic operation.
    Before(Vec<u8>),
}

/// The memory regions of this rank.
#[derive(Clone, Default)]
pub struct Regions(BTreeMap<u64, Region>);

impl Regions {
    /// Makes memory known under a key; false when the key is taken.
    pub fn add(&mut self, key: u64, region: Region) -> bool {
        if self.0.contains_key(&key) {
            return false;
        }
        self.0.insert(key, region);
        true
    }

    pub fn remove(&mut self, key: u64) {
        self.0.remove(&key);
    }

    fn find(&self, key: u64, offset: u64, len: u64) -> Result<*mut u8, u32> {
        let region = self.0.get(&key).ok_or(libc::EACCES as u32)?;
        region.at(offset, len).ok_or(libc::EFAULT as u32)
    }

    /// Applies a request that has become visible.
    ///
    /// # Safety
    /// The regions are memory of this process that nothing else uses during the call.
    ///
    /// # Errors
    /// When the request's content cannot be read.
    pub unsafe fn apply(
        &self,
        request: &Envelope,
        content: &(impl Content + ?Sized),
        size: usize,
    ) -> io::Result<Applied> {
        let refused = |error| Ok(Applied::Answer { error, content: Answer::Nothing });
        match *request {
            Envelope::Write { key, offset, .. } => match self.find(key, offset, size as u64) {
                // SAFETY: `find` has checked that the region has so many bytes. By the contract
                // nothing else uses them now.
                Ok(to) => unsafe { content.copy_to(to, size) }.map(|()| Applied::Done),
                Err(error) => refused(error),
            },
            Envelope::Read { key, offset, len, .. } => match self.find(key, offset, len) {
                Ok(at) => {
                    let content = Answer::Memory { at, len: len as usize };
                    Ok(Applied::Answer { error: 0, content })
                }
                Err(error) => refused(error),
            },
            Envelope::Atomic { key, offset, what, op, datatype, count, .. } => {
                let mut operands = vec![0u8; size];
                // SAFETY: the vector has `size` bytes.
                unsafe { content.copy_to(operands.as_mut_ptr(), size)? };
                let Some(element) = atomic::size_of(datatype) else {
                    return refused(libc::EOPNOTSUPP as u32);
                };
                let len = u64::from(count) * element as u64;
                let to = match self.find(key, offset, len) {
                    Ok(to) => to,
                    Err(error) => return refused(error),
                };
                // SAFETY: the region has so many bytes, and by the contract nothing else uses them
                // now.
                let memory = unsafe { std::slice::from_raw_parts_mut(to, len as usize) };
                let before = (what != AtomicOp::Update).then(|| memory.to_vec());
                if !atomic::apply(op, datatype, memory, &operands) {
                    return refused(libc::EOPNOTSUPP as u32);
                }
                Ok(match before {
                    None => Applied::Done,
                    Some(before) => Applied::Answer { error: 0, content: Answer::Before(before) },
                })
            }
            _ => refused(libc::EINVAL as u32),
        }
    }

    /// Applies a request of this rank to its own memory.
    ///
    /// # Safety
    /// As [`Regions::apply`]; and the buffer for the answer is as long as `pending` says.
    pub unsafe fn apply_own(&self, pending: Pending, request: &Envelope, content: &[u8]) -> Done {
        // The content may lie in the memory that it is written to.
        let content = content.to_vec();
        // SAFETY: the caller keeps the contract of `apply`.
        let applied = unsafe { self.apply(request, &content[..], content.len()) };
        let error = match applied {
            Ok(Applied::Done) => 0,
            Ok(Applied::Answer { error, content }) => {
                let (at, len) = match &content {
                    Answer::Nothing => (pending.buffer.cast_const(), 0),
                    Answer::Memory { at, len } => (*at, *len),
                    Answer::Before(bytes) => (bytes.as_ptr(), bytes.len()),
                };
                // SAFETY: both are valid for so many bytes; they may overlap.
                unsafe { std::ptr::copy(at, pending.buffer, len.min(pending.len)) };
                error
            }
            Err(e) => e.raw_os_error().unwrap_or(libc::EIO) as u32,
        };
        Done { pending, error }
    }
}

/// What kind of request it is, for the completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Write,
    Read,
    /// `fetch`: values come back.
    Atomic {
        fetch: bool,
    },
}

/// A request that its target has not answered.
#[derive(Clone, Copy, Debug)]
pub struct Pending {
    pub context: Context,
    pub kind: Kind,
    /// Report the completion.
    pub report: bool,
    /// Where the answer's content goes, and how much is expected.
    pub buffer: *mut u8,
    /// Bytes.
    pub len: usize,
}

/// A request is over.
#[derive(Clone, Copy, Debug)]
pub struct Done {
    pub pending: Pending,
    /// An errno, 0 when all is well.
    pub error: u32,
}

/// The requests to one target.
#[derive(Clone, Default)]
struct Line {
    /// Number of the newest request, from 1.
    newest: u64,
    waiting: VecDeque<Pending>,
}

/// All requests of this rank.
#[derive(Clone, Default)]
pub struct Requests(BTreeMap<Rank, Line>);

impl Requests {
    /// Keeps a request to `target`; returns its number.
    pub fn add(&mut self, target: Rank, pending: Pending) -> u64 {
        let line = self.0.entry(target).or_default();
        line.newest += 1;
        line.waiting.push_back(pending);
        line.newest
    }

    /// An answer of `target` has become visible: it, and all before it, are done.
    ///
    /// # Errors
    /// When its content cannot be read.
    pub fn answered(
        &mut self,
        target: Rank,
        request: u64,
        error: u32,
        content: &impl Content,
        size: usize,
        mut done: impl FnMut(Done),
    ) -> io::Result<()> {
        let Some(line) = self.0.get_mut(&target) else { return Ok(()) };
        while let Some(pending) = line.waiting.front().copied() {
            let number = line.newest + 1 - line.waiting.len() as u64;
            if number > request {
                break;
            }
            let this = number == request;
            if this && size > 0 && error == 0 {
                // SAFETY: the caller of the request gave a buffer of `len` bytes for its answer.
                unsafe { content.copy_to(pending.buffer, size.min(pending.len))? };
            }
            line.waiting.pop_front();
            done(Done { pending, error: if this { error } else { 0 } });
        }
        Ok(())
    }

    /// Requests that wait for an answer.
    #[cfg(test)]
    pub fn waiting(&self) -> usize {
        self.0.values().map(|line| line.waiting.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pending(context: Context, buffer: &mut [u8]) -> Pending {
        let len = buffer.len();
        let buffer = buffer.as_mut_ptr();
        Pending { context, kind: Kind::Read, report: true, buffer, len }
    }

    #[test]
    fn an_answer_ends_all_requests_before_it_and_fills_its_own() {
        let mut requests = Requests::default();
        let mut into = [0u8; 4];
        for context in 1..=3 {
            assert_eq!(requests.add(Rank(5), pending(context, &mut into)), context as u64);
        }
        assert_eq!(requests.add(Rank(6), pending(9, &mut into)), 1);
        let mut over = Vec::new();
        let mut answer = |requests: &mut Requests, number, error, content: &[u8]| {
            let content = Slice(content);
            let size = content.0.len();
            requests
                .answered(Rank(5), number, error, &content, size, |d| {
                    over.push((d.pending.context, d.error))
                })
                .unwrap();
        };
        answer(&mut requests, 2, 0, b"abcd");
        answer(&mut requests, 3, 13, b"");
        assert_eq!(over, [(1, 0), (2, 0), (3, 13)]);
        assert_eq!((&into, requests.waiting()), (b"abcd", 1));
    }

    struct Slice<'a>(&'a [u8]);
    impl Content for Slice<'_> {
        unsafe fn copy_to(&self, to: *mut u8, len: usize) -> io::Result<()> {
            // SAFETY: the caller keeps the contract of `apply`.
            unsafe { self.0.copy_to(to, len) }
        }
    }

    #[test]
    fn requests_stay_within_their_region() {
        let mut memory = *b"0123456789";
        let mut regions = Regions::default();
        let region = Region { base: memory.as_mut_ptr() as usize, len: memory.len() };
        assert!(regions.add(7, region) && !regions.add(7, region));
        let apply = |regions: &Regions, request: Envelope, content: &[u8]| {
            // SAFETY: the region is `memory`, which nothing else uses.
            match unsafe { regions.apply(&request, &Slice(content), content.len()) }.unwrap() {
                Applied::Done => (0, Vec::new()),
                Applied::Answer { error, content: Answer::Nothing } => (error, Vec::new()),
                Applied::Answer { error, content: Answer::Before(bytes) } => (error, bytes),
                Applied::Answer { error, content: Answer::Memory { at, len } } => {
                    // SAFETY: `find` has checked that the bytes are within `memory`.
                    (error, unsafe { std::slice::from_raw_parts(at, len) }.to_vec())
                }
            }
        };
        let write = |key, offset| Envelope::Write { key, offset, request: 1 };
        assert_eq!(apply(&regions, write(7, 8), b"xy").0, 0);
        assert_eq!(apply(&regions, write(7, 9), b"xy").0, libc::EFAULT as u32);
        assert_eq!(apply(&regions, write(7, u64::MAX), b"xy").0, libc::EFAULT as u32);
        assert_eq!(apply(&regions, write(8, 0), b"xy").0, libc::EACCES as u32);
        let read = Envelope::Read { key: 7, offset: 6, request: 2, len: 4 };
        assert_eq!(apply(&regions, read, b""), (0, b"67xy".to_vec()));
        regions.remove(7);
        assert_eq!(apply(&regions, read, b"").0, libc::EACCES as u32);
    }

    #[test]
    fn a_rank_changes_its_own_memory_at_once() {
        let mut memory = [1u64, 2];
        let mut regions = Regions::default();
        let len = size_of_val(&memory);
        regions.add(7, Region { base: memory.as_mut_ptr() as usize, len });
        let mut before = [0u8; 8];
        let mut apply = |offset, operand: u64| {
            let swap = Envelope::Atomic {
                key: 7,
                offset,
                request: 0,
                what: AtomicOp::Fetch,
                // libfabric's FI_ATOMIC_WRITE and FI_UINT64.
                op: 11,
                datatype: 7,
                count: 1,
            };
            // SAFETY: the region is `memory`, which nothing else uses.
            let own = |p| unsafe { regions.apply_own(p, &swap, &operand.to_ne_bytes()) };
            let done = own(pending(3, &mut before));
            (done.pending.context, done.error, u64::from_ne_bytes(before))
        };
        assert_eq!(apply(8, 9), (3, 0, 2));
        assert_eq!(apply(8, 10), (3, 0, 9));
        assert_eq!(apply(16, 11), (3, libc::EFAULT as u32, 9));
        assert_eq!(memory, [1, 10]);
    }
}
