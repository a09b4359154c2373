//! Acknowledging messages that were received. Where routers may be lost, a sender keeps a message
//! until its destination has it in its memory: so it is always in two places. The router must never
//! acknowledge a message that only it has without an event ([`RouterEvent::Exposed`]). And no
//! sender may stop because a receiver computes or is being restored.

use super::log::Log;
use super::mutation::{active, Mutation};
use super::receipts::Awaited;
use super::send::{ACK_BYTES, ACK_FRAMES};
use super::unreadable::unreadable;
use super::{ConnId, Output, Protocol, RouterEvent};
use crate::space::Store;
use eyrie_wire::data::{Ack, Header, Message, StreamKind};
use eyrie_wire::Rank;
use std::time::Duration;

/// How long a sender that is about to end is asked to wait for its receivers.
const FLUSH: Duration = Duration::from_secs(1);

impl<S: Store> Protocol<S> {
    /// Handles a rank's report of what it has received.
    pub(super) fn receipt(
        &mut self,
        rank: Rank,
        rsn: u64,
        out: &mut impl Output<S::File>,
    ) -> Result<(), &'static str> {
        if let Some(adoption) = &mut self.adoptions[rank as usize] {
            adoption.has(rsn);
        } else if self.ranks[rank as usize].resumed.is_some() {
            if rsn > self.logs[rank as usize].newest() {
                return Err("a rank has received what was not sent to it");
            }
            self.received(rank, rsn, out);
        }
        Ok(())
    }

    /// Notes that a rank has received its messages up to `rsn`, as far as there are any.
    pub(super) fn received(&mut self, rank: Rank, rsn: u64, out: &mut impl Output<S::File>) {
        let Some(receipts) = self.receipts.get_mut(rank as usize) else { return };
        let log = &self.logs[rank as usize];
        let mut sources: Vec<Rank> = Vec::new();
        while receipts.rsn < rsn {
            let logged = match log.next(&mut receipts.cursor, &self.space) {
                Ok(Some(logged)) => logged,
                Ok(None) => break,
                Err(e) => return unreadable(rank, &e, out),
            };
            let (deliver, len) = (logged.deliver, logged.frame.len());
            if deliver.rsn > rsn {
                break;
            }
            Log::advance(&mut receipts.cursor, len);
            if deliver.rsn > receipts.rsn {
                receipts.rsn = deliver.rsn;
                receipts.ssn[deliver.source as usize] = deliver.ssn;
                sources.push(deliver.source);
            }
        }
        if receipts.exposed.is_some_and(|newest| newest <= receipts.rsn) {
            receipts.exposed = None;
            out.event(RouterEvent::Covered { rank });
        }
        sources.sort_unstable();
        sources.dedup();
        for source in sources {
            if let Some(id) = self.ranks[source as usize].send {
                self.acknowledge(id, false, out);
            }
        }
    }

    /// A message has arrived, and its frame is the last that was counted: it is acknowledged once
    /// it was received.
    pub(super) fn await_receipt(
        &mut self,
        id: ConnId,
        source: Rank,
        m: &Message,
        out: &mut impl Output<S::File>,
    ) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let Message { destination, ssn, .. } = *m;
        let received = self.receipts[destination as usize].last_ssn(source);
        if ssn <= received || active(Mutation::AcknowledgeUnreceived) {
            return;
        }
        let frames = conn.frames - 1;
        let unreceived = &mut conn.unreceived;
        let bytes = unreceived.before_last;
        unreceived.messages.push_back(Awaited { destination, ssn, frames, bytes });
        while let Some(first) = self.first_beyond(id) {
            self.expose(id, first, out);
        }
    }

    /// The destination of the first message that its sender need not keep any longer.
    fn first_beyond(&self, id: ConnId) -> Option<Rank> {
        let unreceived = &self.conns.get(&id)?.unreceived;
        let first = unreceived.messages.front()?;
        let beyond = unreceived.bytes - first.bytes > self.most_unreceived;
        beyond.then_some(first.destination)
    }

    /// Releases the first message that is pending on this connection. If it was not received, only
    /// this router has it from now on.
    fn expose(&mut self, id: ConnId, destination: Rank, out: &mut impl Output<S::File>) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let Some(Awaited { ssn, .. }) = conn.unreceived.messages.pop_front() else { return };
        let receipts = &mut self.receipts[destination as usize];
        if ssn <= receipts.last_ssn(conn.instance.rank) {
            return;
        }
        let newest = match self.adoptions[destination as usize] {
            Some(_) => u64::MAX,
            None => self.logs[destination as usize].newest(),
        };
        if receipts.exposed.replace(newest).is_none() && !active(Mutation::HideExposed) {
            out.event(RouterEvent::Exposed { rank: destination });
        }
    }

    /// Acknowledges to a sender what was received, if that is enough, or `now`.
    pub(super) fn acknowledge_received(
        &mut self,
        id: ConnId,
        now: bool,
        out: &mut impl Output<S::File>,
    ) {
        let most = self.most_unreceived;
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let rank = conn.instance.rank;
        let unreceived = &mut conn.unreceived;
        let receipts = &self.receipts;
        let received = |m: &Awaited| m.ssn <= receipts[m.destination as usize].last_ssn(rank);
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
        let state = &self.ranks[rank as usize];
        let (clock, observed) = state.holds();
        out.frame(id, &Header::Ack(Ack { frames, clock, observed }), &[]);
    }

    /// A sender is about to end: it waits for its receivers, but not for long.
    pub(super) fn begin_flush(&mut self, id: ConnId, out: &mut impl Output<S::File>) {
        let now = self.room.now;
        if let Some(conn) = self.conns.get_mut(&id) {
            conn.unreceived.flush = Some((conn.frames, now));
        }
        self.acknowledge(id, true, out);
    }

    /// Releases the messages of senders that have waited for their receivers long enough.
    pub(super) fn end_flushes(&mut self, out: &mut impl Output<S::File>) {
        let now = self.room.now;
        let over =
            |c: &super::Conn| c.unreceived.flush.is_some_and(|(_, since)| now > since + FLUSH);
        let late = self.conns.iter().filter(|(_, c)| c.stream == StreamKind::Send && over(c));
        for id in late.map(|(id, _)| *id).collect::<Vec<ConnId>>() {
            while let Some(first) = self.first_flushed(id) {
                self.expose(id, first, out);
            }
            self.acknowledge(id, true, out);
        }
    }

    /// The destination of the first message for which a sender that is about to end waits.
    fn first_flushed(&self, id: ConnId) -> Option<Rank> {
        let unreceived = &self.conns.get(&id)?.unreceived;
        let (last, _) = unreceived.flush?;
        unreceived.messages.front().filter(|m| m.frames < last).map(|m| m.destination)
    }
}
