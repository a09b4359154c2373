//! Logging a message that is the next of its sender.

use super::kept::Kept;
use super::orders::RouterEvent;
use super::output::Output;
use super::ranks::Ranks;
use super::room::Room;
use super::scarcity::Scarcity;
use crate::space::{Space, Store};
use eyrie_wire::data::Message;
use eyrie_wire::Rank;

/// Logs messages, and reports how logs grow.
pub struct Append<'a, S: Store> {
    pub ranks: &'a mut Ranks,
    pub kept: &'a mut Kept,
    pub room: &'a Room,
    pub space: &'a Space<S>,
}

impl<S: Store> Append<'_, S> {
    /// Logs the next message of its sender.
    pub fn append(
        &mut self,
        source: Rank,
        m: &Message,
        payload: &[u8],
        out: &mut impl Output<S::File>,
    ) {
        self.kept.append(source, m, payload);
        self.report_growth(m.destination, out);
    }

    /// Reports to the controller how the log of a rank has grown, in steps.
    pub fn report_growth(&mut self, rank: Rank, out: &mut impl Output<S::File>) {
        if self.kept.is_elsewhere(rank) {
            return;
        }
        let logged = self.kept.log(rank).appended();
        if let Some(bytes) = self.ranks.growth(rank, logged, self.room.growth_step()) {
            out.event(RouterEvent::LogGrown { rank, bytes });
            if self.room.is_scarce_with(self.ranks.observed_memory()) {
                let Append { ranks, kept, room, space } = self;
                Scarcity { ranks, kept, room, space }.report(out);
            }
        }
    }
}
