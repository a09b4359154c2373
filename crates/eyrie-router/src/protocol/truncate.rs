//! Truncating the log of a rank. It must never remove what is behind the given message.

use super::await_receipt::AwaitReceipt;
use super::conns::Conns;
use super::kept::Kept;
use super::output::Output;
use super::ranks::Ranks;
use super::receipts::Receipts;
use crate::space::{Space, Store};
use eyrie_wire::data::{Header, SegmentDrop, StreamKind};
use eyrie_wire::Rank;

/// Truncates logs.
pub struct Truncate<'a, S: Store> {
    pub conns: &'a mut Conns,
    pub ranks: &'a Ranks,
    pub kept: &'a mut Kept,
    pub receipts: &'a mut Receipts,
    pub space: &'a mut Space<S>,
}

impl<S: Store> Truncate<'_, S> {
    /// Removes the messages of a rank up to `rsn`, which it has received.
    pub fn truncate(&mut self, rank: Rank, rsn: u64, out: &mut impl Output<S::File>) {
        let Truncate { conns, ranks, kept, receipts, space } = self;
        AwaitReceipt { conns, ranks, kept, receipts, space }.received(rank, rsn, out);
        for (segment, frames) in kept.truncate(rank, rsn, space) {
            if !space.segments.frames_truncated(segment, frames) {
                continue;
            }
            for (id, conn) in conns.of_kind(StreamKind::Delivery) {
                if conn.segments.contains(&segment) {
                    conn.segments.retain(|s| *s != segment);
                    out.frame(id, &Header::SegmentDrop(SegmentDrop { segment }), &[]);
                }
            }
        }
    }
}
