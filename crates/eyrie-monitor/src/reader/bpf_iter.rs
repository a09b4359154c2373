//! The BPF iterator over tasks: a read returns a record of every task. This reader adds the threads
//! of a process up. It needs Linux 5.8, CAP_BPF and CAP_PERFMON.

use super::bpf_record;
use super::kind::Kind;
use super::tick::{Reader, Tally, Tick};
use crate::adapt::Rates;
use crate::bpf::{begin, Loaded, Record, ITER};
use crate::sample::Process;
use eyrie_proc::kept::page_size;
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
/// The kernel returns at most 8 pages at a time.
const BUFFER: usize = 32 << 10;

pub struct Iter {
    link: RawFd,
    buffer: Box<[u8; BUFFER]>,
    records: Vec<Record>,
    /// Threads that came before their process, which happens after process numbers have wrapped
    /// around.
    early: Vec<Thread>,
    page: u64,
    rates: Rates,
    /// Dropped after the descriptors, which are valid as long as it is.
    _loaded: Loaded,
}

impl Iter {
    /// Why this node or user cannot use it.
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

    /// Reads all records; returns the number of processes for which there was no room.
    fn gather(&mut self) -> std::io::Result<u32> {
        let file = begin(self.link)?;
        self.records.clear();
        self.early.clear();
        let mut kept = 0;
        let mut beyond = 0;
        loop {
            let read = rustix::io::read(&file, &mut self.buffer[kept..])?;
            if read == 0 {
                break;
            }
            let filled = kept + read;
            let used = self.parse(filled, &mut beyond);
            self.buffer.copy_within(used..filled, 0);
            kept = filled - used;
        }
        for thread in &self.early {
            add(&mut self.records, thread);
        }
        Ok(beyond)
    }

    /// Parses whole records at the front of the buffer; returns how many bytes they had.
    fn parse(&mut self, filled: usize, beyond: &mut u32) -> usize {
        let mut at = 0;
        while let Some(mark) = self.buffer[..filled].get(at..at + 8) {
            let is_thread = mark == THREAD.to_ne_bytes();
            let size = if is_thread { size_of::<Thread>() } else { size_of::<Record>() };
            let Some(raw) = self.buffer[..filled].get(at..at + size) else { break };
            if is_thread {
                // SAFETY: `raw` has as many bytes as a `Thread`, and any bytes are a valid one.
                let thread = unsafe { raw.as_ptr().cast::<Thread>().read_unaligned() };
                if !add(&mut self.records, &thread) && self.early.len() < self.early.capacity() {
                    self.early.push(thread);
                }
            } else if self.records.len() < self.records.capacity() {
                // SAFETY: `raw` has as many bytes as a `Record`, and any bytes are a valid one.
                self.records.push(unsafe { raw.as_ptr().cast::<Record>().read_unaligned() });
            } else {
                *beyond += 1;
            }
            at += size;
        }
        at
    }
}

/// Adds a thread to its process, if that is known: records are ordered by process number.
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
            let mut process = bpf_record::process(record, self.page);
            self.rates.judge(at, &mut process, tick);
            out.push(process);
        }
        Tally { beyond, failed: 0 }
    }
}
