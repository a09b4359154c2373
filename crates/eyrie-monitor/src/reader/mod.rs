//! Readers: ways to find out what every process does, from the cheapest to the one that always
//! works. Each is one file, and all fill the same record. A reader must never allocate in `read`,
//! nor stop because a process is gone.

mod bpf_iter;
mod bpf_open;
mod bpf_record;
mod clocks;
pub mod kind;
mod plain;
mod roster;
mod taskstats;
pub mod tick;

pub use kind::Kind;
pub use tick::{Reader, Tally, Tick};

use serde::Serialize;

/// Starts a reader.
///
/// # Errors
/// Why this node or user cannot use it.
pub fn start(kind: Kind, capacity: usize) -> Result<Box<dyn Reader>, String> {
    Ok(match kind {
        Kind::BpfOpen => Box::new(bpf_open::Open::new(capacity)?),
        Kind::BpfIter => Box::new(bpf_iter::Iter::new(capacity)?),
        Kind::Taskstats => Box::new(taskstats::Taskstats::new(capacity)?),
        Kind::Clocks => Box::new(clocks::Clocks::new(capacity)?),
        Kind::Proc => Box::new(plain::Plain::new(capacity)?),
    })
}

/// A reader that was not chosen, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Declined {
    pub reader: Kind,
    pub why: String,
}

/// Chooses the wanted reader, or else the best that works. Returns also the better ones that do
/// not.
///
/// # Errors
/// When the wanted reader, or every one, does not work.
pub fn choose(
    wanted: Option<Kind>,
    capacity: usize,
) -> Result<(Box<dyn Reader>, Vec<Declined>), String> {
    if let Some(kind) = wanted {
        let reader = start(kind, capacity)
            .map_err(|why| format!("reader {} is not available: {why}", kind.name()))?;
        return Ok((reader, Vec::new()));
    }
    let mut declined = Vec::new();
    // taskstats lacks much and costs more than it saves beside BPF, but beats /proc. The order is
    // that of the measured cost.
    for kind in [Kind::BpfOpen, Kind::BpfIter, Kind::Clocks, Kind::Taskstats, Kind::Proc] {
        match start(kind, capacity) {
            Ok(reader) => return Ok((reader, declined)),
            Err(why) => declined.push(Declined { reader: kind, why }),
        }
    }
    let last = declined.pop().map_or(String::new(), |d| d.why);
    Err(format!("no reader works here; the last one, proc: {last}"))
}
