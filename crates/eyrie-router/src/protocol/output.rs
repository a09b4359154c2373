//! Where the protocol's output goes. It only says what is to be sent.

use super::orders::RouterEvent;
use eyrie_wire::data::{Determinant, Header, ObservedPart};
use eyrie_wire::Rank;

/// The number of a connection in the loop. Numbers are not reused.
pub type ConnId = u64;

/// Where the protocol's output goes. `F` is a segment's file.
pub trait Output<F> {
    /// Queues a frame.
    fn frame(&mut self, conn: ConnId, header: &Header, payload: &[u8]);
    /// Queues a frame of what is to be replayed: determinants, and a part of the observations.
    fn replay(&mut self, conn: ConnId, list: &[Determinant], observed: Option<ObservedPart<&[u8]>>);
    /// Queues a frame as the log has it.
    fn logged(&mut self, conn: ConnId, frame: &[u8]);
    /// Queues a frame and sends a file with it.
    fn frame_with_file(&mut self, conn: ConnId, header: &Header, file: F);
    /// Whether more messages may be queued for the connection at present.
    fn has_room(&self, conn: ConnId) -> bool;
    /// Ends a connection once its queue is written.
    fn close(&mut self, conn: ConnId);
    /// Stops or resumes reading frames of this sender.
    fn hold(&mut self, conn: ConnId, held: bool);
    fn event(&mut self, event: RouterEvent);
}

/// The log of this rank cannot be read back: the router cannot go on.
pub fn unreadable<F>(rank: Rank, e: &std::io::Error, out: &mut impl Output<F>) {
    let reason = format!("the log of rank {rank} cannot be read back: {e}");
    out.event(RouterEvent::Fatal { reason });
}
