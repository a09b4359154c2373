//! The BPF iterator over tasks: a read gives a record of every task, threads included, that are
//! added up here. Needs Linux 5.8, CAP_BPF and CAP_PERFMON.

use super::bpf;
use super::kind::Kind;
use super::tick::{Reader, Tally, Tick};
use crate::adapt::Rates;
use crate::bpf::{begin, Loaded, Record, ITER};
use crate::procfs::page_size;
use crate::sample::Process;
use std::os::fd::RawFd;

/// `struct thread` of iter.bpf.c.
#[derive(Clone, Copy)]
#[repr(C)]
struct Thread {
    mark: u64,
    utime: u64,
    stime: u64,
    runtime: u64,
    process: u64,
}

/// The mark of a thread's record.
const THREAD: u64 = u64::MAX;
/// The kernel hands out at most 8 pages at a time.
const BUFFER: usize = 32 << 10;

pub struct Iter {
    link: RawFd,
    buffer: Box<[u8; BUFFER]>,
    records: Vec<Record>,
    /// Threads that came before their process, which happens when process numbers have wrapped
    /// around.
    early: Vec<Thread>,
    page: u64,
    rates: Rates,
    /// After its descriptors.
    _loaded: Loaded,
}

impl Iter {
    /// # Errors
    /// Says why this node or user cannot have it.
    pub fn new(capacity: usize) -> Result<Iter, String> {
        let mut loaded = Loaded::new(ITER, &[])?;
        Ok(Iter {
            link: loaded.attach_iterator(c"dump")?,
            buffer: Box::new([0; BUFFER]),
            records: Vec::with_capacity(capacity),
            early: Vec::with_capacity(capacity),
            page: page_size(),
            rates: Rates::new(capacity),
            _loaded: loaded,
        })
    }

    /// Reads all records; the number of processes that found no room.
    fn gather(&mut self) -> std::io::Result<u32> {
        let file = begin(self.link)?;
        self.records.clear();
        self.early.clear();
        let (mut kept, mut beyond) = (0, 0);
        loop {
            let read = rustix::io::read(&file, &mut self.buffer[kept..])?;
            if read == 0 {
                break;
            }
            let filled = kept + read;
            let used = self.take(filled, &mut beyond);
            self.buffer.copy_within(used..filled, 0);
            kept = filled - used;
        }
        for thread in &self.early {
            add(&mut self.records, thread);
        }
        Ok(beyond)
    }

    /// Takes whole records from the front of the buffer; how many bytes they were.
    fn take(&mut self, filled: usize, beyond: &mut u32) -> usize {
        let mut at = 0;
        while let Some(mark) = self.buffer[..filled].get(at..at + 8) {
            let is_thread = mark == THREAD.to_ne_bytes();
            let size = if is_thread { size_of::<Thread>() } else { size_of::<Record>() };
            let Some(raw) = self.buffer[..filled].get(at..at + size) else { break };
            if is_thread {
                // SAFETY: as many bytes as the type has, and any are valid.
                let thread = unsafe { raw.as_ptr().cast::<Thread>().read_unaligned() };
                if !add(&mut self.records, &thread) && self.early.len() < self.early.capacity() {
                    self.early.push(thread);
                }
            } else if self.records.len() < self.records.capacity() {
                // SAFETY: as above.
                self.records.push(unsafe { raw.as_ptr().cast::<Record>().read_unaligned() });
            } else {
                *beyond += 1;
            }
            at += size;
        }
        at
    }
}

/// Adds a thread to its process, if that is known: records come by number.
fn add(records: &mut [Record], thread: &Thread) -> bool {
    let found = match records.last() {
        Some(last) if u64::from(last.pid) == thread.process => Ok(records.len() - 1),
        _ => records.binary_search_by_key(&thread.process, |r| r.pid.into()),
    };
    if let Ok(at) = found {
        records[at].utime += thread.utime;
        records[at].stime += thread.stime;
        records[at].runtime += thread.runtime;
    }
    found.is_ok()
}

impl Reader for Iter {
    fn kind(&self) -> Kind {
        Kind::BpfIter
    }

    fn read(&mut self, tick: &Tick, out: &mut Vec<Process>) -> Tally {
        let Ok(beyond) = self.gather() else { return Tally { failed: 1, ..Tally::default() } };
        for (at, record) in self.records.iter().enumerate() {
            let mut process = bpf::process(record, self.page);
            self.rates.judge(at, &mut process, tick);
            out.push(process);
        }
        Tally { beyond, failed: 0 }
    }
}
