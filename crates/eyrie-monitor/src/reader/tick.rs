//! What a reader is: told a tick, it fills records and says what went wrong.

use super::kind::Kind;
use crate::policy::Policy;
use crate::sample::Process;

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
