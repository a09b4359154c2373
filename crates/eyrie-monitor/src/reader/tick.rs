//! The interface of a reader: at each tick it fills records and reports what went wrong.

use super::kind::Kind;
use crate::policy::Policy;
use crate::sample::Process;

/// What a reader gets at each sample.
#[derive(Clone, Copy, Debug)]
pub struct Tick {
    pub number: u64,
    /// A time of a clock that does not jump.
    pub now_ns: u64,
    /// Whether names, parents and the like are read again, too.
    pub refresh: bool,
    pub policy: Policy,
}

/// What went wrong in a sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Processes for which there was no room.
    pub beyond: u32,
    /// Reads that failed for another reason than that the process is gone.
    pub failed: u32,
}

pub trait Reader: Send {
    fn kind(&self) -> Kind;

    /// Adds every process to `out`, at most up to its capacity.
    fn read(&mut self, tick: &Tick, out: &mut Vec<Process>) -> Tally;
}
