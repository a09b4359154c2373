//! What ranks say on their send streams: messages are ordered and logged here. No message may be
//! delivered or acknowledged before it is logged.

use super::acknowledge::Acknowledge;
use super::append::Append;
use super::await_receipt::AwaitReceipt;
use super::conns::Conns;
use super::kept::Kept;
use super::mutation::{active, Mutation};
use super::orders::RouterEvent;
use super::output::{ConnId, Output};
use super::pending_adoptions::Adoptions;
use super::ranks::Ranks;
use super::receipts::Receipts;
use super::room::Room;
use super::segments::GiveSegments;
use crate::space::{Space, Store};
use eyrie_wire::data::{
    content_hash, Deliver, Frame, Header, Known, Message, Piece, Ready, Repeat,
};
use eyrie_wire::directory::KeptUntil;
use eyrie_wire::{Incarnation, Rank};

const NOT_HERE: &str = "message for a rank whose primary router is another one";
/// The same of a rank that this router served before.
pub const NOT_HERE_ANY_MORE: &str = "message for a rank whose primary router is another one by now";

/// Handles frames of send streams.
pub struct FromSender<'a, S: Store> {
    pub conns: &'a mut Conns,
    pub ranks: &'a mut Ranks,
    pub kept: &'a mut Kept,
    pub receipts: &'a mut Receipts,
    pub adoptions: &'a mut Adoptions,
    pub room: &'a mut Room,
    pub space: &'a mut Space<S>,
}

impl<S: Store> FromSender<'_, S> {
    /// Says to a sender what this router has of it.
    pub fn greet(&mut self, id: ConnId, rank: Rank, out: &mut impl Output<S::File>) {
        let announces = active(Mutation::AnnounceLogged);
        let received = self.receipts.kept_until() == KeptUntil::Received && !announces;
        for (destination, log) in self.kept.logs() {
            let ssn = if !self.kept.is_primary_of(destination) {
                0
            } else if received {
                self.receipts.last_ssn(destination, rank)
            } else {
                log.last_ssn(rank)
            };
            if ssn > 0 && !active(Mutation::ForgetKnown) {
                out.frame(id, &Header::Known(Known { destination, ssn }), &[]);
            }
        }
        self.ranks.begin_verifying(rank);
        let (up_to, observed) = self.ranks.stable(rank);
        out.frame(id, &Header::Ready(Ready { up_to, observed }), &[]);
        if self.room.held {
            out.hold(id, true);
        }
    }

    /// Handles a frame on a send stream. True: there is no space for what it asks for.
    ///
    /// # Errors
    /// Why the connection is to be refused.
    pub fn frame(
        &mut self,
        id: ConnId,
        rank: Rank,
        frame: &Frame,
        out: &mut impl Output<S::File>,
    ) -> Result<bool, &'static str> {
        self.keep_progress(rank, frame, out);
        if active(Mutation::AcknowledgeEarly) {
            self.count(id, frame.len, true);
            self.acknowledge(id, true, out);
        }
        let mut lacks_space = false;
        match &frame.header {
            Header::Message(m) => self.message(rank, m, frame, out)?,
            Header::Repeat(r) => self.repeat(rank, r, out)?,
            Header::Determinants | Header::DeterminantsPart | Header::Flush => {}
            Header::Piece(p) => self.write_piece(id, *p, frame.payload)?,
            // No image would make room for it, nor would cutting the logs of others.
            Header::SegmentRequest(s) if s.bytes > self.space.largest_segment() => {
                return Err("a message is larger than the log may be: raise --log-disk");
            }
            Header::SegmentRequest(s) => {
                let FromSender { conns, room, space, .. } = self;
                lacks_space = !GiveSegments { conns, room, space }.give(id, s.bytes, out);
            }
            Header::SegmentDone(s) => {
                if let Some(conn) = self.conns.get_mut(id) {
                    conn.segments.retain(|own| *own != s.segment);
                }
                self.space.segments.close(s.segment);
            }
            _ => return Err("unexpected kind of frame on a send stream"),
        }
        if !active(Mutation::AcknowledgeEarly) {
            // Pieces are a part of their message: they are logged when it is.
            let piece = matches!(frame.header, Header::Piece(_));
            self.count(id, frame.len, !piece || active(Mutation::AcknowledgePieces));
        }
        self.answer(id, rank, frame, out);
        Ok(lacks_space)
    }

    /// Keeps the determinants and observations that came with a frame.
    fn keep_progress(&mut self, rank: Rank, frame: &Frame, out: &mut impl Output<S::File>) {
        // These frames come before the one that completes the rank's report.
        let part = matches!(frame.header, Header::DeterminantsPart | Header::Piece(_));
        let ends = !part || active(Mutation::ReportAPart);
        if ends && self.ranks.reports(rank) {
            out.event(RouterEvent::Heard { instance: self.ranks.instance(rank) });
        }
        self.ranks.keep_determinants(rank, frame.determinants());
        if let Some(part) = frame.observed() {
            self.ranks.keep_observed(rank, part);
            self.append().report_growth(rank, out);
        }
    }

    /// Acknowledges a frame at once where its sender may wait for that.
    fn answer(&mut self, id: ConnId, rank: Rank, frame: &Frame, out: &mut impl Output<S::File>) {
        let FromSender { conns, ranks, kept, receipts, space, .. } = self;
        let received = receipts.kept_until() == KeptUntil::Received;
        let mut receive = AwaitReceipt { conns, ranks, kept, receipts, space };
        match &frame.header {
            Header::Message(m) if received => {
                receive.await_receipt(id, rank, m, self.adoptions, out);
            }
            // The rank may wait until they are stable.
            Header::Determinants if received => self.acknowledge(id, true, out),
            Header::Flush if received => receive.begin_flush(id, self.room.now, out),
            Header::Flush => self.acknowledge(id, true, out),
            _ => {}
        }
    }

    fn append(&mut self) -> Append<'_, S> {
        let FromSender { ranks, kept, room, space, .. } = self;
        Append { ranks, kept, room, space }
    }

    fn acknowledge(&mut self, id: ConnId, now: bool, out: &mut impl Output<S::File>) {
        let FromSender { conns, ranks, receipts, .. } = self;
        Acknowledge { conns, ranks, receipts }.acknowledge(id, now, out);
    }

    /// Counts a frame of `len` bytes; `whole`: it is acknowledged by itself.
    fn count(&mut self, id: ConnId, len: usize, whole: bool) {
        if let Some(conn) = self.conns.get_mut(id) {
            conn.count(len, whole);
        }
    }

    /// Writes a piece of a payload to a segment that this sender was given.
    fn write_piece(&mut self, id: ConnId, piece: Piece, bytes: &[u8]) -> Result<(), &'static str> {
        let Piece { segment, mut offset } = piece;
        match self.conns.get(id) {
            Some(conn) if !conn.passes_files && conn.segments.contains(&segment) => {}
            _ => return Err("a piece for a segment that is not its sender's"),
        }
        if active(Mutation::MisplacePieces) {
            offset &= 0xff;
        }
        let written = self.space.write_piece(segment, offset, bytes);
        written.map_err(|_| "a piece that cannot be written to its segment")
    }

    fn message(
        &mut self,
        source: Rank,
        m: &Message,
        frame: &Frame,
        out: &mut impl Output<S::File>,
    ) -> Result<(), &'static str> {
        self.serves(m.destination)?;
        self.ranks.spoke_at(source, m.clock);
        let last = match self.adoptions.of(m.destination) {
            Some(adoption) => adoption.last_ssn(source, m.ssn),
            None => self.kept.log(m.destination).last_ssn(source),
        };
        if m.ssn <= last && !active(Mutation::LogTwice) {
            self.verify_whole(source, m, frame.payload, out);
            return Ok(());
        }
        // What comes before the first message that a gateway gets is safe where it has taken over,
        // or where the sender has come from another domain: it sent by that one's gateway.
        let first =
            (last == 0 || active(Mutation::SkipAtGateways)) && !active(Mutation::BeginWithTheFirst);
        let is_new = self.adoptions.takes_over() || self.kept.has_left(source);
        let begins = first && is_new && self.kept.is_elsewhere(m.destination);
        if m.ssn > last + 1 && !begins && !active(Mutation::SkipSequenceCheck) {
            return Err(self.adoptions.missing((source, m.destination), last, m.ssn, out));
        }
        if let Some(place) = m.place {
            if self.space.segments.within(place.segment, place.offset, m.size).is_none() {
                return Err("message outside its segment");
            }
            self.space.segments.frame_logged(place.segment);
        }
        if active(Mutation::DeliverBeforeLogging) {
            self.deliver_unlogged(source, m, frame.payload, out);
        }
        if !self.adoptions.keep_pending(source, m, frame.payload) {
            self.append().append(source, m, frame.payload, out);
        }
        Ok(())
    }

    /// Whether this is the primary router of a rank that something is sent to.
    fn serves(&self, destination: Rank) -> Result<(), &'static str> {
        if self.kept.is_primary_of(destination) {
            Ok(())
        } else if self.kept.has_left(destination) {
            Err(NOT_HERE_ANY_MORE)
        } else {
            Err(NOT_HERE)
        }
    }

    /// The error of [`Mutation::DeliverBeforeLogging`].
    fn deliver_unlogged(
        &mut self,
        source: Rank,
        m: &Message,
        payload: &[u8],
        out: &mut impl Output<S::File>,
    ) {
        let rsn = self.kept.log(m.destination).newest() + 1;
        let Message { ssn, envelope, size, sent_bytes, place, .. } = *m;
        let deliver = Deliver { source, ssn, rsn, envelope, size, sent_bytes, place };
        let header = Header::Deliver(deliver);
        if let Some(id) = self.conns.delivery(m.destination) {
            out.frame(id, &header, payload);
        }
    }

    /// A rank that re-executes sends a message again, without its content.
    fn repeat(
        &mut self,
        source: Rank,
        again: &Repeat,
        out: &mut impl Output<S::File>,
    ) -> Result<(), &'static str> {
        self.serves(again.destination)?;
        self.ranks.spoke_at(source, again.clock);
        self.verify(source, again, out);
        Ok(())
    }

    /// A message that is here arrives again, as a whole. If its sender re-executes, it is compared
    /// as a [`Repeat`] is.
    fn verify_whole(
        &mut self,
        source: Rank,
        m: &Message,
        payload: &[u8],
        out: &mut impl Output<S::File>,
    ) {
        let again = self.ranks.instance(source).incarnation > Incarnation(1);
        // A payload in a segment is not read for this.
        if self.receipts.kept_until() == KeptUntil::Logged || !again || m.place.is_some() {
            return;
        }
        let Message { destination, ssn, clock, envelope, size, .. } = *m;
        let hash = content_hash(payload);
        let again = Repeat { destination, ssn, clock, envelope, size, hash };
        self.verify(source, &again, out);
    }

    /// Compares a message that is sent again with the log, if the log still has it.
    fn verify(&mut self, source: Rank, again: &Repeat, out: &mut impl Output<S::File>) {
        if let Some(event) = self.ranks.verify(source, again, self.kept, self.space) {
            out.event(event);
        }
    }
}
