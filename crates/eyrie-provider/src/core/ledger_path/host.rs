//! What the way through ledgers needs of the process around it: the ledgers of its host, the
//! connection to their keeper, and waiting. The real one is `windows.rs`. Tests have one in memory.

use crate::core::path::ImagePoint;
use eyrie_ledger::memory::{Hints, Memory, View};
use eyrie_wire::keeper::{Ledgers, ToKeeper};
use std::io;
use std::time::Duration;

/// Why the keeper does not let a rank in.
#[derive(Debug)]
pub enum AdmissionError {
    /// Another attempt may succeed.
    Unreachable(String),
    /// It is final, for this reason.
    Refused(String),
}

/// The ledgers of a host, as one rank has them.
pub struct Windows<Own, Region, Bells, Spilled> {
    pub ledgers: Ledgers,
    /// The rank's own region.
    pub own: Own,
    /// The regions of all ranks, also its own, by their number.
    pub regions: Vec<Region>,
    pub bells: Bells,
    /// Messages that were taken out of the ledgers, which this rank has received before.
    pub spilled: Option<SpilledRange<Spilled>>,
}

/// As a process of kind `H` has them.
pub type WindowsOf<H> = Windows<
    <H as LedgerHost>::Own,
    <H as LedgerHost>::Region,
    <H as LedgerHost>::Bells,
    <H as LedgerHost>::Spilled,
>;

/// The bytes of a file that are spilled messages ([`eyrie_ledger::spilled`]).
pub struct SpilledRange<F> {
    pub file: F,
    pub begin: u64,
    pub end: u64,
}

/// A file of spilled messages.
pub trait SpilledFile {
    /// Reads bytes from a place.
    ///
    /// # Errors
    /// The file's; `UnexpectedEof` when it is too short.
    fn read(&self, at: u64, to: &mut [u8]) -> io::Result<()>;

    /// Its number, if it has one that an image must know.
    fn descriptor(&self) -> Option<i32>;
}

/// A process that has ledgers.
pub trait LedgerHost: ImagePoint {
    type Own: Memory;
    type Region: View + Clone;
    type Bells: Hints;
    type Spilled: SpilledFile;

    /// Connects to the keeper, proves who this rank is, and waits until it is let in, at most
    /// `timeout`.
    ///
    /// # Errors
    /// Why not.
    fn admit(&mut self, timeout: Duration) -> Result<WindowsOf<Self>, AdmissionError>;

    /// Tells the keeper. What does not reach it is lost with the connection.
    fn tell(&mut self, message: &ToKeeper);

    /// Whether the connection to the keeper stands. Makes a system call.
    fn is_connected(&mut self) -> bool;

    /// Connects again; the windows stay.
    ///
    /// # Errors
    /// As [`LedgerHost::admit`].
    fn connect_again(&mut self, timeout: Duration) -> Result<(), AdmissionError>;

    /// This process has come back from an image: connection and windows are gone.
    fn forget_windows(&mut self);

    /// The descriptor of the connection.
    fn keeper_descriptor(&self) -> Option<i32>;

    /// Wakes the rank that sleeps at this place of the bells.
    fn wake(&self, at: u64);

    /// Sleeps at this place of the bells while it has this value, at most about a millisecond.
    fn sleep(&mut self, at: u64, value: u32);

    /// Lets time pass between two attempts.
    fn let_pass(&mut self, time: Duration);
}
