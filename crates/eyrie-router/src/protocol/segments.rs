//! Giving senders the segments that they ask for. Without space for one a sender waits.

use super::conns::Conns;
use super::output::{ConnId, Output};
use super::room::Room;
use crate::space::{Space, Store};
use eyrie_wire::data::{Header, Segment};

/// Gives segments.
pub struct GiveSegments<'a, S: Store> {
    pub conns: &'a mut Conns,
    pub room: &'a mut Room,
    pub space: &'a mut Space<S>,
}

impl<S: Store> GiveSegments<'_, S> {
    /// Gives the sender of a connection a segment. False: there is no space for one, and it waits.
    pub fn give(&mut self, id: ConnId, bytes: u64, out: &mut impl Output<S::File>) -> bool {
        let given = self.try_give(id, bytes, out);
        if !given {
            self.room.wait(id, bytes);
        }
        given
    }

    /// Gives segments to the senders that wait for one, as long as there is space.
    pub fn serve_waiting(&mut self, out: &mut impl Output<S::File>) {
        for (id, bytes) in self.room.take_waiting() {
            self.give(id, bytes, out);
        }
    }

    fn try_give(&mut self, id: ConnId, bytes: u64, out: &mut impl Output<S::File>) -> bool {
        let Some(conn) = self.conns.get_mut(id) else { return true };
        let Ok(segment) = self.space.open_segment(bytes) else { return false };
        let Some(found) = self.space.segments.get(segment) else { return false };
        conn.segments.push_back(segment);
        let header = Header::Segment(Segment { segment, bytes: found.bytes });
        if conn.passes_files {
            out.frame_with_file(id, &header, found.file.clone());
        } else {
            out.frame(id, &header, &[]);
        }
        true
    }
}
