//! Signs of life of a gateway. Its senders wait for as long as the line to another domain is broken,
//! and give up a router that says nothing for two minutes. So it says something in time, even if
//! there is nothing new. It must never acknowledge by this what is not safe.

use super::acknowledge::Acknowledge;
use super::conns::Conns;
use super::kept::Kept;
use super::mutation::{active, Mutation};
use super::output::{ConnId, Output};
use super::ranks::Ranks;
use super::receipts::Receipts;
use super::room::Room;
use eyrie_wire::data::StreamKind;
use std::time::Duration;

/// Time from one sign to the next. Several fit into what a sender waits for an answer
/// (`ANSWER_TIMEOUT` of the provider).
const INTERVAL: Duration = Duration::from_secs(20);

/// Shows senders that their router lives.
pub struct SignOfLife<'a> {
    pub conns: &'a mut Conns,
    pub ranks: &'a Ranks,
    pub kept: &'a Kept,
    pub receipts: &'a Receipts,
    pub room: &'a mut Room,
}

impl SignOfLife<'_> {
    /// Shows it to senders that wait, if it is time.
    pub fn show<F>(self, out: &mut impl Output<F>) {
        let SignOfLife { conns, ranks, kept, receipts, room } = self;
        if !kept.is_gateway()
            || active(Mutation::ShowNoSign)
            || room.now < room.last_sign + INTERVAL
        {
            return;
        }
        room.last_sign = room.now;
        let all_wait = room.held || room.waits();
        let senders = conns.of_kind(StreamKind::Send);
        let waiting = senders.filter(|(_, conn)| all_wait || conn.awaits_acknowledgement());
        for id in waiting.map(|(id, _)| id).collect::<Vec<ConnId>>() {
            // One that computes reads none of them.
            if out.has_room(id) {
                Acknowledge { conns, ranks, receipts }.acknowledge(id, true, out);
            }
        }
    }
}
