//! Acknowledging: tells senders what they need not keep any more. It must never acknowledge what is
//! not logged, nor, where routers may be lost, what was not received.

use super::conns::Conns;
use super::output::{ConnId, Output};
use super::ranks::Ranks;
use super::receipts::{Awaited, Receipts};
use eyrie_wire::data::{Ack, Header};
use eyrie_wire::directory::KeptUntil;

/// Unacknowledged frames and bytes after which a sender gets an acknowledgement.
const ACK_FRAMES: u64 = 128;
const ACK_BYTES: usize = 64 * 1024;

/// Acknowledges to senders.
pub struct Acknowledge<'a> {
    pub conns: &'a mut Conns,
    pub ranks: &'a Ranks,
    pub receipts: &'a Receipts,
}

impl Acknowledge<'_> {
    /// Acknowledges to a sender what is logged or received, if that is enough, or `now`.
    pub fn acknowledge<F>(self, id: ConnId, now: bool, out: &mut impl Output<F>) {
        match self.receipts.kept_until() {
            KeptUntil::Logged => self.logged(id, now, out),
            KeptUntil::Received => self.received(id, now, out),
        }
    }

    fn logged<F>(self, id: ConnId, now: bool, out: &mut impl Output<F>) {
        let Some(conn) = self.conns.get_mut(id) else { return };
        let due = conn.unacknowledged >= ACK_FRAMES || conn.unacknowledged_bytes >= ACK_BYTES;
        if !due && !now {
            return;
        }
        conn.unacknowledged = 0;
        conn.unacknowledged_bytes = 0;
        let (clock, observed) = self.ranks.stable(conn.instance.rank);
        out.frame(id, &Header::Ack(Ack { frames: conn.frames, clock, observed }), &[]);
    }

    fn received<F>(self, id: ConnId, now: bool, out: &mut impl Output<F>) {
        let receipts = self.receipts;
        let most = self.receipts.most_unreceived();
        let Some(conn) = self.conns.get_mut(id) else { return };
        let rank = conn.instance.rank;
        let unreceived = &mut conn.unreceived;
        let received = |m: &Awaited| m.ssn <= receipts.last_ssn(m.destination, rank);
        while unreceived.messages.front().is_some_and(received) {
            unreceived.messages.pop_front();
        }
        let (frames, bytes) = match unreceived.messages.front() {
            Some(first) => (first.frames, first.bytes),
            None => (conn.frames, unreceived.whole_bytes),
        };
        let new = frames - unreceived.acknowledged;
        let new_bytes = bytes - unreceived.acknowledged_bytes;
        let enough = new >= ACK_FRAMES || new_bytes >= (ACK_BYTES as u64).min(most / 4);
        let awaited = new > 0 && unreceived.flush.is_some();
        if !enough && !awaited && !now {
            return;
        }
        (unreceived.acknowledged, unreceived.acknowledged_bytes) = (frames, bytes);
        unreceived.flush = unreceived.flush.filter(|(last, _)| *last > frames);
        let (clock, observed) = self.ranks.stable(rank);
        out.frame(id, &Header::Ack(Ack { frames, clock, observed }), &[]);
    }
}
