//! Send streams: what ranks send is ordered, logged and acknowledged, and only then delivered.

use super::mutation::{active, Mutation};
use super::verify::Verifier;
use super::{ConnId, Output, Protocol, RouterEvent};
use crate::space::Store;
use eyrie_transport::KeptUntil;
use eyrie_wire::data::{Ack, Frame, Header, Known, Message, ObservedPart, Piece, Ready, Repeat};
use eyrie_wire::{Rank, RankInstance};

/// Unacknowledged frames and bytes after which a sender gets an acknowledgement.
pub(super) const ACK_FRAMES: u64 = 128;
pub(super) const ACK_BYTES: usize = 64 * 1024;

const NOT_HERE: &str = "message for a rank whose primary router is another one";

impl<S: Store> Protocol<S> {
    /// Says to a sender what this router has of it.
    pub(super) fn greet_sender(&mut self, id: ConnId, rank: Rank, out: &mut impl Output<S::File>) {
        for (destination, log) in self.logs.iter().enumerate() {
            let ssn = if !self.at_home[destination] {
                0
            } else if self.kept_until == KeptUntil::Received && !active(Mutation::AnnounceLogged) {
                self.receipts[destination].last_ssn(rank)
            } else {
                log.last_ssn(rank)
            };
            if ssn > 0 && !active(Mutation::ForgetKnown) {
                let known = Known { destination: destination as Rank, ssn };
                out.frame(id, &Header::Known(known), &[]);
            }
        }
        let state = &mut self.ranks[rank as usize];
        state.verifier = Verifier::default();
        let (up_to, observed) = state.holds();
        out.frame(id, &Header::Ready(Ready { up_to, observed }), &[]);
    }

    /// Handles a frame on a send stream.
    pub(super) fn send_frame(
        &mut self,
        id: ConnId,
        rank: Rank,
        frame: &Frame,
        out: &mut impl Output<S::File>,
    ) -> Result<(), &'static str> {
        let state = &mut self.ranks[rank as usize];
        // These frames come before the one that completes the rank's report.
        let part = matches!(frame.header, Header::DeterminantsPart | Header::Piece(_));
        let ends = !part || active(Mutation::ReportAPart);
        if ends && !std::mem::replace(&mut state.has_reported, true) {
            let instance = RankInstance { rank, incarnation: state.incarnation };
            out.event(RouterEvent::Heard { instance });
        }
        self.keep_determinants(rank, frame);
        if let Some(part) = frame.observed() {
            self.keep_observed(rank, part);
            self.report_growth(rank, out);
        }
        if active(Mutation::AcknowledgeEarly) {
            self.count(id, frame.len, true);
            self.acknowledge(id, true, out);
        }
        match &frame.header {
            Header::Message(m) => self.log_message(rank, m, frame, out)?,
            Header::Repeat(r) => self.verify(rank, r, out)?,
            Header::Determinants | Header::DeterminantsPart | Header::Flush => {}
            Header::Piece(p) => self.write_piece(id, *p, frame.payload)?,
            Header::SegmentRequest(s) => self.request_segment(id, s.bytes, out),
            Header::SegmentDone(s) => {
                if let Some(conn) = self.conns.get_mut(&id) {
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
        match &frame.header {
            Header::Message(m) if self.kept_until == KeptUntil::Received => {
                self.await_receipt(id, rank, m, out)
            }
            // The rank may wait until they are stable.
            Header::Determinants if self.kept_until == KeptUntil::Received => {
                self.acknowledge(id, true, out)
            }
            Header::Flush if self.kept_until == KeptUntil::Received => self.begin_flush(id, out),
            Header::Flush => self.acknowledge(id, true, out),
            _ => {}
        }
        Ok(())
    }

    /// Counts a frame of `len` bytes; `whole`: it is acknowledged by itself.
    fn count(&mut self, id: ConnId, len: usize, whole: bool) {
        if let Some(conn) = self.conns.get_mut(&id) {
            conn.frames += u64::from(whole);
            conn.unacknowledged += u64::from(whole);
            conn.unacknowledged_bytes += len;
            conn.unreceived.count(len, whole);
        }
    }

    fn keep_determinants(&mut self, rank: Rank, frame: &Frame) {
        let known = &mut self.ranks[rank as usize].determinants;
        for d in frame.determinants() {
            let new = known.last().is_none_or(|last| last.clock < d.clock);
            if new && !active(Mutation::DropDeterminants) {
                known.push(d);
            }
        }
    }

    fn keep_observed(&mut self, rank: Rank, part: ObservedPart<&[u8]>) {
        let clock = part.clock;
        self.change_observed(rank, |log| log.push(part));
        let state = &mut self.ranks[rank as usize];
        // Until then nothing more had been visible: with more it might observe something else.
        if !active(Mutation::SkipObservedClock) {
            state.last_clock = state.last_clock.max(clock);
        }
    }

    fn is_primary_of(&self, rank: Rank) -> bool {
        self.at_home.get(rank as usize).copied().unwrap_or(false)
    }

    /// Writes a piece of a payload to a segment that this sender was given.
    fn write_piece(&mut self, id: ConnId, piece: Piece, bytes: &[u8]) -> Result<(), &'static str> {
        let Piece { segment, mut offset } = piece;
        match self.conns.get(&id) {
            Some(conn) if !conn.passes_files && conn.segments.contains(&segment) => {}
            _ => return Err("a piece for a segment that is not its sender's"),
        }
        if active(Mutation::MisplacePieces) {
            offset &= 0xff;
        }
        let written = self.space.write_piece(segment, offset, bytes);
        written.map_err(|_| "a piece that cannot be written to its segment")
    }

    fn log_message(
        &mut self,
        source: Rank,
        m: &Message,
        frame: &Frame,
        out: &mut impl Output<S::File>,
    ) -> Result<(), &'static str> {
        if !self.is_primary_of(m.destination) {
            return Err(NOT_HERE);
        }
        let state = &mut self.ranks[source as usize];
        state.last_clock = state.last_clock.max(m.clock);
        let last = match &self.adoptions[m.destination as usize] {
            Some(adoption) => adoption.last_ssn(source, m.ssn),
            None => self.logs[m.destination as usize].last_ssn(source),
        };
        if m.ssn <= last && !active(Mutation::LogTwice) {
            self.verify_whole(source, m, frame.payload, out);
            return Ok(());
        }
        if m.ssn > last + 1 && !active(Mutation::SkipSequenceCheck) {
            return Err(self.missing(source, m.destination, last, m.ssn, out));
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
        match &mut self.adoptions[m.destination as usize] {
            Some(adoption) => {
                self.pending_bytes += adoption.keep_pending(source, m, frame.payload);
            }
            None => self.append(source, m, frame.payload, out),
        }
        Ok(())
    }

    /// Logs the next message of its sender.
    pub(super) fn append(
        &mut self,
        source: Rank,
        m: &Message,
        payload: &[u8],
        out: &mut impl Output<S::File>,
    ) {
        let log = &mut self.logs[m.destination as usize];
        let before = log.memory();
        log.append(source, m, payload);
        self.block_memory += log.memory() - before;
        self.messages += 1;
        self.bytes += m.size;
        self.report_growth(m.destination, out);
        if self.dirty.last() != Some(&m.destination) {
            self.dirty.push(m.destination);
        }
    }

    fn verify(
        &mut self,
        source: Rank,
        again: &Repeat,
        out: &mut impl Output<S::File>,
    ) -> Result<(), &'static str> {
        if !self.is_primary_of(again.destination) {
            return Err(NOT_HERE);
        }
        let state = &mut self.ranks[source as usize];
        state.last_clock = state.last_clock.max(again.clock);
        self.compare(source, again, out);
        Ok(())
    }

    /// Compares a message that is sent again with the log, if the log still has it.
    pub(super) fn compare(&mut self, source: Rank, again: &Repeat, out: &mut impl Output<S::File>) {
        let log = &self.logs[again.destination as usize];
        let verifier = &mut self.ranks[source as usize].verifier;
        let found = verifier.check(source, again, log, &self.space);
        if let Some(event) = found.filter(|_| !active(Mutation::SkipVerification)) {
            out.event(event);
        }
    }

    /// Acknowledges to a sender what is logged, if that is enough, or `now`.
    pub(super) fn acknowledge(&mut self, id: ConnId, now: bool, out: &mut impl Output<S::File>) {
        if self.kept_until == KeptUntil::Received {
            return self.acknowledge_received(id, now, out);
        }
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let due = conn.unacknowledged >= ACK_FRAMES || conn.unacknowledged_bytes >= ACK_BYTES;
        if !due && !now {
            return;
        }
        conn.unacknowledged = 0;
        conn.unacknowledged_bytes = 0;
        let state = &self.ranks[conn.instance.rank as usize];
        let (clock, observed) = state.holds();
        out.frame(id, &Header::Ack(Ack { frames: conn.frames, clock, observed }), &[]);
    }

    /// Reports to the controller how the log of a rank has grown, in steps.
    fn report_growth(&mut self, rank: Rank, out: &mut impl Output<S::File>) {
        let step = self.room.growth_step();
        let state = &mut self.ranks[rank as usize];
        let bytes = self.logs[rank as usize].appended() + state.observed.appended();
        if bytes - state.growth_reported >= step {
            state.growth_reported = bytes;
            out.event(RouterEvent::LogGrown { rank, bytes });
            if self.observed_is_scarce() {
                self.report_scarcity(out);
            }
        }
    }
}
