//! The ledgers as a process has them. No image holds this: pointers into ledgers live no longer.

use super::host::LedgerHost;
use super::spilled::SpilledMessages;
use eyrie_ledger::bells::Bells;
use eyrie_ledger::reader::Reader;
use eyrie_ledger::writer::Writer;

/// The ledgers as this process has them.
pub(super) struct Attached<H: LedgerHost> {
    pub writer: Writer<H::Own>,
    /// What each rank sends to this one.
    pub readers: Vec<Reader<H::Region>>,
    pub bells: Bells<H::Bells>,
    /// Messages that were taken out of the ledgers: this rank shows them again when it re-executes.
    pub spilled: SpilledMessages,
    /// Messages passed of each rank: what boards are compared with.
    pub passed: Vec<u64>,
    /// What becomes visible in the progress call under way: how many messages of which ranks.
    pub showing: Vec<(u32, u32)>,
    /// The source that is looked at first.
    pub first: u32,
    /// A large message that was not whole when it was last looked at: its source, its number, and
    /// how much of it there was.
    pub partial: (u32, u64, u64),
}
