//! The BPF open-coded task iterator: one call leaves a record of every process in mapped memory.
//! It is the cheapest reader, and needs Linux 6.7, CAP_BPF and CAP_PERFMON. It must never read
//! memory that the kernel is writing: it reads only when the call is over.

use super::bpf_record;
use super::kind::Kind;
use super::tick::{Reader, Tally, Tick};
use crate::adapt::Rates;
use crate::bpf::{run, Loaded, Mapped, Record, OPEN};
use crate::sample::Process;
use eyrie_proc::kept::page_size;
use std::os::fd::RawFd;

/// `struct control` of open.bpf.c.
#[derive(Clone, Copy)]
#[repr(C)]
struct Control {
    refresh: u32,
    count: u32,
    beyond: u32,
}

pub struct Open {
    program: RawFd,
    control: Mapped,
    records: Mapped,
    capacity: usize,
    page: u64,
    rates: Rates,
    /// Dropped after the descriptors, which are valid as long as it is.
    _loaded: Loaded,
}

impl Open {
    /// # Errors
    /// Why this node or user cannot use it.
    pub fn new(capacity: usize) -> Result<Open, String> {
        let loaded = Loaded::new(OPEN, &[(c"records", capacity as u32)])?;
        Ok(Open {
            program: loaded.program_fd(c"sample")?,
            control: loaded.mapped(c"control", size_of::<Control>())?,
            records: loaded.mapped(c"records", capacity * size_of::<Record>())?,
            capacity,
            page: page_size(),
            rates: Rates::new(capacity),
            _loaded: loaded,
        })
    }
}

impl Reader for Open {
    fn kind(&self) -> Kind {
        Kind::BpfOpen
    }

    fn read(&mut self, tick: &Tick, out: &mut Vec<Process>) -> Tally {
        self.control.write(Control { refresh: tick.refresh.into(), count: 0, beyond: 0 });
        if run(self.program).is_err() {
            return Tally { failed: 1, ..Tally::default() };
        }
        // SAFETY: any bytes are a valid `Control`, and the program has ended: `run` is over.
        let control = unsafe { self.control.slice::<Control>(1)[0] };
        let count = (control.count as usize).min(self.capacity);
        // SAFETY: any bytes are a valid `Record`, and the program has ended: `run` is over.
        let records = unsafe { self.records.slice::<Record>(count) };
        for (at, record) in records.iter().enumerate() {
            let mut process = bpf_record::process(record, self.page);
            self.rates.judge(at, &mut process, tick);
            out.push(process);
        }
        Tally { beyond: control.beyond, failed: 0 }
    }
}
