//! What ranks have received. Where routers may be lost, a sender keeps a message until its
//! destination has it in its memory: so it is always in two places. The router must never release a
//! message that only it has without an event ([`RouterEvent::Exposed`]). And no sender may stop
//! because a receiver computes or is being restored.

use super::acknowledge::Acknowledge;
use super::conns::Conns;
use super::kept::Kept;
use super::mutation::{active, Mutation};
use super::orders::RouterEvent;
use super::output::{unreadable, ConnId, Output};
use super::pending_adoptions::Adoptions;
use super::ranks::Ranks;
use super::receipts::{Awaited, Receipts};
use crate::space::{Space, Store};
use eyrie_wire::data::{Message, StreamKind};
use eyrie_wire::Rank;
use std::time::Duration;

/// How long a sender that is about to end is asked to wait for its receivers.
const FLUSH: Duration = Duration::from_secs(1);

/// Notes what was received, and releases it at its senders.
pub struct AwaitReceipt<'a, S: Store> {
    pub conns: &'a mut Conns,
    pub ranks: &'a Ranks,
    pub kept: &'a Kept,
    pub receipts: &'a mut Receipts,
    pub space: &'a Space<S>,
}

impl<S: Store> AwaitReceipt<'_, S> {
    fn acknowledge(&mut self, id: ConnId, now: bool, out: &mut impl Output<S::File>) {
        let AwaitReceipt { conns, ranks, receipts, .. } = self;
        Acknowledge { conns, ranks, receipts }.acknowledge(id, now, out);
    }

    /// Notes that a rank has received its messages up to `rsn`, as far as there are any.
    pub fn received(&mut self, rank: Rank, rsn: u64, out: &mut impl Output<S::File>) {
        let log = self.kept.log(rank);
        let (sources, covered) = match self.receipts.advance(rank, rsn, log, self.space) {
            Ok(advanced) => advanced,
            Err(e) => return unreadable(rank, &e, out),
        };
        if covered {
            out.event(RouterEvent::Covered { rank });
        }
        for source in sources {
            if let Some(id) = self.conns.send(source) {
                self.acknowledge(id, false, out);
            }
        }
    }

    /// A message has arrived, and its frame is the last that was counted: it is acknowledged once
    /// it was received.
    pub fn await_receipt(
        &mut self,
        id: ConnId,
        source: Rank,
        m: &Message,
        adoptions: &Adoptions,
        out: &mut impl Output<S::File>,
    ) {
        let Some(conn) = self.conns.get_mut(id) else { return };
        let Message { destination, ssn, .. } = *m;
        let received = self.receipts.last_ssn(destination, source);
        if ssn <= received || active(Mutation::AcknowledgeUnreceived) {
            return;
        }
        let frames = conn.frames - 1;
        let unreceived = &mut conn.unreceived;
        let bytes = unreceived.before_last;
        unreceived.messages.push_back(Awaited { destination, ssn, frames, bytes });
        while let Some(first) = self.first_beyond(id) {
            self.expose(id, first, adoptions, out);
        }
    }

    /// The destination of the first message that its sender need not keep any longer. A message
    /// that this router has dropped its sender keeps in any case.
    fn first_beyond(&self, id: ConnId) -> Option<Rank> {
        let unreceived = &self.conns.get(id)?.unreceived;
        let first = unreceived.messages.front()?;
        if !self.kept.is_primary_of(first.destination) {
            return None;
        }
        let beyond = unreceived.bytes - first.bytes > self.receipts.most_unreceived();
        beyond.then_some(first.destination)
    }

    /// Releases the first message that is pending on this connection. If it was not received, only
    /// this router has it from now on.
    fn expose(
        &mut self,
        id: ConnId,
        destination: Rank,
        adoptions: &Adoptions,
        out: &mut impl Output<S::File>,
    ) {
        let Some(conn) = self.conns.get_mut(id) else { return };
        let Some(Awaited { ssn, .. }) = conn.unreceived.messages.pop_front() else { return };
        if ssn <= self.receipts.last_ssn(destination, conn.instance.rank) {
            return;
        }
        let newest = match adoptions.of(destination) {
            Some(_) => u64::MAX,
            None => self.kept.log(destination).newest(),
        };
        if self.receipts.expose(destination, newest) && !active(Mutation::HideExposed) {
            out.event(RouterEvent::Exposed { rank: destination });
        }
    }

    /// A sender is about to end: it waits for its receivers, but not for long.
    pub fn begin_flush(&mut self, id: ConnId, now: Duration, out: &mut impl Output<S::File>) {
        if let Some(conn) = self.conns.get_mut(id) {
            conn.unreceived.flush = Some((conn.frames, now));
        }
        self.acknowledge(id, true, out);
    }

    /// Releases the messages of senders that have waited for their receivers long enough.
    pub fn end_flushes(
        &mut self,
        now: Duration,
        adoptions: &Adoptions,
        out: &mut impl Output<S::File>,
    ) {
        if self.kept.is_gateway() && !active(Mutation::EndFlushesOfGateways) {
            return;
        }
        let senders = self.conns.of_kind(StreamKind::Send);
        let late = senders.filter(|(_, conn)| {
            conn.unreceived.flush.is_some_and(|(_, since)| now > since + FLUSH)
        });
        for id in late.map(|(id, _)| id).collect::<Vec<ConnId>>() {
            while let Some(first) = self.first_flushed(id) {
                self.expose(id, first, adoptions, out);
            }
            self.acknowledge(id, true, out);
        }
    }

    /// The destination of the first message for which a sender that is about to end waits.
    fn first_flushed(&self, id: ConnId) -> Option<Rank> {
        let unreceived = &self.conns.get(id)?.unreceived;
        let (last, _) = unreceived.flush?;
        let first = unreceived.messages.front()?;
        let is_here = self.kept.is_primary_of(first.destination);
        (is_here && first.frames < last).then_some(first.destination)
    }
}
