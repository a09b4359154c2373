//! Ending connections. What an ended sender may still have written to its segments must never be
//! reused.

use super::conns::Conns;
use super::kept::Kept;
use super::orders::RouterEvent;
use super::output::{ConnId, Output};
use super::room::Room;
use crate::space::{Space, Store};
use eyrie_wire::data::StreamKind;
use eyrie_wire::RankInstance;

/// Ends connections.
pub struct Close<'a, S: Store> {
    pub conns: &'a mut Conns,
    pub kept: &'a Kept,
    pub room: &'a mut Room,
    pub space: &'a mut Space<S>,
}

impl<S: Store> Close<'_, S> {
    /// Removes a connection; the segments of a sender accept no more writes.
    pub fn remove(&mut self, id: ConnId) -> Option<(RankInstance, StreamKind)> {
        let conn = self.conns.remove(id)?;
        self.room.remove(id);
        if conn.stream == StreamKind::Send {
            for segment in conn.segments {
                if conn.passes_files {
                    self.space.segments.abandon(segment);
                } else {
                    self.space.segments.close(segment);
                }
            }
        }
        Some((conn.instance, conn.stream))
    }

    /// Handles the end of a connection.
    pub fn disconnected(&mut self, id: ConnId, out: &mut impl Output<S::File>) {
        let Some((instance, stream)) = self.remove(id) else { return };
        let left = self.conns.leave(instance.rank, stream, id);
        let is_here = !self.kept.is_elsewhere(instance.rank);
        if left && stream == StreamKind::Delivery && is_here {
            out.event(RouterEvent::Disconnected(instance));
        }
    }

    /// Closes a connection that has sent something invalid.
    pub fn refuse(&mut self, id: ConnId, reason: &str, out: &mut impl Output<S::File>) {
        let instance = self.conns.get(id).map(|conn| conn.instance);
        out.event(RouterEvent::Refused { instance, reason: reason.into() });
        self.disconnected(id, out);
        out.close(id);
    }
}
