//! The ledgers as a process has them. No image holds this: pointers into ledgers live no longer.

use super::ahead::Ahead;
use super::host::LedgerHost;
use super::spilled::SpilledMessages;
use crate::core::mutation::{active, Mutation};
use eyrie_ledger::bells::Bells;
use eyrie_ledger::error::LedgerError;
use eyrie_ledger::reader::Reader;
use eyrie_ledger::writer::Writer;

/// The ledgers as this process has them.
pub(super) struct Attached<H: LedgerHost> {
    pub writer: Writer<H::Own>,
    /// What each rank sends to this one.
    pub readers: Vec<Reader<H::Region>>,
    pub bells: Bells<H::Bells>,
    /// Messages that were taken out of the ledgers: this rank shows them again when it re-executes.
    pub spilled: SpilledMessages<H::Spilled>,
    /// Messages passed of each rank: what boards are compared with.
    pub passed: Vec<u64>,
    /// What becomes visible in the progress call under way: how many messages of which ranks.
    pub showing: Vec<(u32, u32)>,
    /// The source that is looked at first.
    pub first: u32,
    /// Of each source, the large message that was not whole when it was last looked at: its number,
    /// and how much of it there was.
    pub partial: Vec<(u64, u64)>,
    /// What was copied ahead of the next message of each source.
    pub ahead: Vec<Ahead>,
    /// There is a message that no board names.
    pub is_unnamed: bool,
}

impl<H: LedgerHost> Attached<H> {
    /// Looks for messages that no board names, or that were published and are not where they
    /// should be. Boards are hints: a stray write there may hide a message.
    pub fn look_for_unnamed(&mut self, me: u32) -> Result<(), LedgerError> {
        for (source, reader) in (0..).zip(&mut self.readers) {
            reader.look_for_lost()?;
            let is_named = self.bells.has_new(me, source, self.passed[source as usize]);
            self.is_unnamed |= !is_named && reader.look()?.is_some();
        }
        if active(Mutation::TrustBoards) {
            self.is_unnamed = false;
        }
        Ok(())
    }
}
