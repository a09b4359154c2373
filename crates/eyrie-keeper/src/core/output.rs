//! What the core asks of the sockets and processes around it.

use super::store::Store;
use eyrie_router::RouterEvent;
use eyrie_wire::Rank;

/// The number of a connection: never used twice.
pub type ConnId = u64;

/// The connections, the processes at their other ends, the controller, and the files.
pub trait Output: Store {
    /// Sends an event to the controller.
    fn event(&mut self, event: RouterEvent);

    /// Sends the ledgers to the rank of this connection, and its file of spilled messages, which
    /// are between these two bytes.
    fn admit(&mut self, id: ConnId, spilled: (u64, u64));

    /// Closes a connection.
    fn close(&mut self, id: ConnId);

    /// The process of this connection is the rank's from now on.
    fn adopt(&mut self, id: ConnId, rank: Rank);

    /// Whether the rank has a process that has not ended.
    fn runs(&self, rank: Rank) -> bool;

    /// Bytes of memory that ledgers may take yet, of what the host and its control groups have.
    fn memory_left(&self) -> u64;

    /// Kills the rank's process. Its end is an input of the core, also where it has ended before.
    fn end(&mut self, rank: Rank);
}
