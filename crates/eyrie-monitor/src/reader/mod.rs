//! Readers: ways to learn what every process does, from the cheapest to the one that always works. Each is one file; all fill the same
//! record. A reader must never allocate in `read`, nor stop because a process has gone.

mod bpf;
mod bpf_iter;
mod bpf_open;
mod clocks;
mod plain;
mod roster;
mod taskstats;

use crate::adapt::Policy;
use crate::sample::Process;
use serde::Serialize;
use std::str::FromStr;

/// The readers, best first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    BpfOpen,
    BpfIter,
    Taskstats,
    Clocks,
    Proc,
}

impl Kind {
    pub const ALL: [Kind; 5] =
        [Kind::BpfOpen, Kind::BpfIter, Kind::Taskstats, Kind::Clocks, Kind::Proc];

    pub fn name(self) -> &'static str {
        match self {
            Kind::BpfOpen => "bpf-open",
            Kind::BpfIter => "bpf-iter",
            Kind::Taskstats => "taskstats",
            Kind::Clocks => "clocks",
            Kind::Proc => "proc",
        }
    }

    /// # Errors
    /// Says why this node or user cannot have it.
    pub fn start(self, capacity: usize) -> Result<Box<dyn Reader>, String> {
        Ok(match self {
            Kind::BpfOpen => Box::new(bpf_open::Open::new(capacity)?),
            Kind::BpfIter => Box::new(bpf_iter::Iter::new(capacity)?),
            Kind::Taskstats => Box::new(taskstats::Taskstats::new(capacity)?),
            Kind::Clocks => Box::new(clocks::Clocks::new(capacity)?),
            Kind::Proc => Box::new(plain::Plain::new(capacity)?),
        })
    }
}

impl FromStr for Kind {
    type Err = String;
    fn from_str(text: &str) -> Result<Kind, String> {
        Kind::ALL.into_iter().find(|k| k.name() == text).ok_or_else(|| {
            let names: Vec<&str> = Kind::ALL.iter().map(|k| k.name()).collect();
            format!("unknown reader {text:?}: choose one of {}", names.join(", "))
        })
    }
}

/// What a reader is told at each sample.
#[derive(Clone, Copy, Debug)]
pub struct Tick {
    pub number: u64,
    /// Of a clock that does not jump.
    pub now_ns: u64,
    /// Names, parents and the like are to be read again, not only what changes.
    pub refresh: bool,
    pub policy: Policy,
}

/// What went wrong in a sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Processes that found no room.
    pub beyond: u32,
    /// Reads that failed otherwise than because the process has gone.
    pub failed: u32,
}

pub trait Reader: Send {
    fn kind(&self) -> Kind;

    /// Adds every process to `out`, at most up to its capacity.
    fn read(&mut self, tick: &Tick, out: &mut Vec<Process>) -> Tally;
}

/// A reader that was not taken, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Declined {
    pub reader: Kind,
    pub why: String,
}

/// Takes the reader that was asked for, else the best that works; with the better ones that do not.
///
/// # Errors
/// When the one asked for, or none, works.
pub fn choose(
    wanted: Option<Kind>,
    capacity: usize,
) -> Result<(Box<dyn Reader>, Vec<Declined>), String> {
    if let Some(kind) = wanted {
        let reader = kind
            .start(capacity)
            .map_err(|why| format!("reader {} is not available: {why}", kind.name()))?;
        return Ok((reader, Vec::new()));
    }
    let mut declined = Vec::new();
    // taskstats lacks much and costs more than it saves beside BPF, but beats /proc; the order is that of measured cost.
    for kind in [Kind::BpfOpen, Kind::BpfIter, Kind::Clocks, Kind::Taskstats, Kind::Proc] {
        match kind.start(capacity) {
            Ok(reader) => return Ok((reader, declined)),
            Err(why) => declined.push(Declined { reader: kind, why }),
        }
    }
    let last = declined.pop().map_or(String::new(), |d| d.why);
    Err(format!("no reader works here; the last one, proc: {last}"))
}
