//! Delivery streams: the router feeds a rank from its log, as fast as the rank reads. It leaves a
//! slow reader behind and feeds it later; no other rank waits for it.

use super::ahead::Ahead;
use super::log::Log;
use super::mutation::{active, Mutation};
use super::receipts::Receipts;
use super::unreadable::unreadable;
use super::{ConnId, Output, Protocol, RouterEvent};
use crate::space::Store;
use eyrie_wire::data::{
    Deliver, Determinant, Frame, Header, Message, Piece, Place, Ready, Replayed, Resume, Segment,
    SegmentDrop, StreamKind, MAX_DETERMINANTS,
};
use eyrie_wire::Rank;

/// Segments whose files one connection may hold at a time.
const PASSED_SEGMENTS: usize = 32;

impl<S: Store> Protocol<S> {
    /// Handles a frame on a delivery stream.
    pub(super) fn delivery_frame(
        &mut self,
        id: ConnId,
        rank: Rank,
        frame: &Frame,
        out: &mut impl Output<S::File>,
    ) -> Result<(), &'static str> {
        match frame.header {
            Header::Resume(resume) => self.resume(id, rank, resume, out),
            Header::Received(received) => return self.receipt(rank, received.rsn, out),
            Header::Shown(shown) => {
                if let Some(adoption) = &mut self.adoptions[rank as usize] {
                    adoption.shown(shown);
                }
            }
            // It needs this router until it has all that it ever received.
            Header::Replayed(Replayed { rsn })
                if self.receipts.get(rank as usize).is_some_and(|r| rsn < r.rsn()) => {}
            Header::Replayed(replayed) => {
                let state = &self.ranks[rank as usize];
                let messages = replayed.rsn.saturating_sub(state.resumed.unwrap_or(0));
                let instance = eyrie_wire::RankInstance { rank, incarnation: state.incarnation };
                out.event(RouterEvent::Replayed { instance, messages });
            }
            _ => return Err("unexpected kind of frame on a delivery stream"),
        }
        Ok(())
    }

    /// Whether the router has what the rank needs to replay.
    pub(super) fn is_prepared(&self, rank: Rank) -> bool {
        self.ranks[rank as usize].recovered || active(Mutation::SkipRecovery)
    }

    /// Why a delivery stream cannot begin there.
    fn resume_refusal(&self, rank: Rank, rsn: u64) -> Option<String> {
        let log = &self.logs[rank as usize];
        if !self.at_home[rank as usize] {
            Some("this is not the rank's primary router".to_string())
        } else if rsn < log.floor() || rsn > log.newest() {
            Some(format!(
                "the log holds messages {} to {}, the rank resumes behind {rsn}",
                log.floor() + 1,
                log.newest()
            ))
        } else {
            None
        }
    }

    /// Starts a delivery stream behind what the rank has, with the determinants behind its clock,
    /// if its recovery is prepared.
    pub(super) fn resume(
        &mut self,
        id: ConnId,
        rank: Rank,
        resume: Resume,
        out: &mut impl Output<S::File>,
    ) {
        let Resume { rsn, clock } = resume;
        let adopted = self.adopt(rank, rsn, out);
        if let Some(reason) = adopted.err().or_else(|| self.resume_refusal(rank, rsn)) {
            out.frame(id, &Header::Refused, reason.as_bytes());
            return self.refuse(id, &reason, out);
        }
        if !self.is_prepared(rank) {
            self.ranks[rank as usize].early = Some(resume);
            return;
        }
        self.received(rank, rsn, out);
        let from = if active(Mutation::ResumeLate) { rsn + 1 } else { rsn };
        let cursor = match self.logs[rank as usize].cursor_after(from, &self.space) {
            Ok(cursor) => cursor,
            Err(e) => return unreadable(rank, &e, out),
        };
        let state = &mut self.ranks[rank as usize];
        state.cursor = cursor;
        state.resumed = Some(rsn);
        if !active(Mutation::GoOnInTheMiddle) {
            state.ahead = Ahead::default();
        }
        let Some(conn) = self.conns.get_mut(&id) else { return };
        conn.segments.clear();
        let instance = conn.instance;
        let after = if active(Mutation::ReplayThePast) {
            0
        } else {
            state.determinants.partition_point(|d| d.clock <= clock)
        };
        // A no-delivery determinant may have an rsn from before what was truncated.
        let held = |d: &Determinant| Determinant { rsn: d.rsn.max(rsn), ..*d };
        let list: Vec<Determinant> = state.determinants[after..].iter().map(held).collect();
        for part in list.chunks(MAX_DETERMINANTS) {
            out.replay(id, part, None);
        }
        for part in state.observed.since(clock).filter(|_| !active(Mutation::ReplayUnobserved)) {
            out.replay(id, &[], Some(part));
        }
        let up_to = self.receipts.get(rank as usize).map_or(0, Receipts::rsn);
        out.frame(id, &Header::Ready(Ready { up_to, observed: 0 }), &[]);
        out.event(RouterEvent::Connected(instance));
        self.deliver(rank, out);
    }

    /// The connection can be written. True: there was more for it.
    pub fn writable(&mut self, id: ConnId, out: &mut impl Output<S::File>) -> bool {
        match self.conns.get(&id) {
            Some(c) if c.stream == StreamKind::Delivery => {
                let rank = c.instance.rank;
                self.deliver(rank, out)
            }
            _ => false,
        }
    }

    /// Feeds a rank from its log, as fast as it reads. True: something was queued.
    pub(super) fn deliver(&mut self, rank: Rank, out: &mut impl Output<S::File>) -> bool {
        let state = &mut self.ranks[rank as usize];
        let Some(id) = state.delivery.filter(|_| state.resumed.is_some()) else { return false };
        let Some(conn) = self.conns.get_mut(&id) else { return false };
        let log = &self.logs[rank as usize];
        let mut queued = false;
        while out.has_room(id) {
            match log.next(&mut state.cursor, &self.space) {
                Ok(Some(logged)) => {
                    if let Some(Place { segment, offset }) = logged.deliver.place {
                        if conn.passes_files {
                            pass_segment(id, &mut conn.segments, &self.space, segment, out);
                        } else if let Some((from, len)) = state.ahead.next(&logged.deliver) {
                            let (offset, piece) = (offset + from, &mut self.piece[..len]);
                            if let Err(e) = self.space.read_piece(segment, offset, piece) {
                                unreadable(rank, &e, out);
                                break;
                            }
                            out.frame(id, &Header::Piece(Piece { segment, offset }), piece);
                            queued = true;
                            continue;
                        }
                    }
                    let len = logged.frame.len();
                    out.logged(id, logged.frame);
                    Log::advance(&mut state.cursor, len);
                    queued = true;
                }
                Ok(None) => break,
                Err(e) => {
                    unreadable(rank, &e, out);
                    break;
                }
            }
        }
        queued
    }

    /// The error of [`Mutation::DeliverBeforeLogging`].
    pub(super) fn deliver_unlogged(
        &mut self,
        source: Rank,
        m: &Message,
        payload: &[u8],
        out: &mut impl Output<S::File>,
    ) {
        let rsn = self.logs[m.destination as usize].newest() + 1;
        let Message { ssn, envelope, size, place, .. } = *m;
        let header = Header::Deliver(Deliver { source, ssn, rsn, envelope, size, place });
        if let Some(id) = self.ranks[m.destination as usize].delivery {
            out.frame(id, &header, payload);
        }
    }

    /// Truncates the log of a rank: removes its messages up to `rsn`.
    pub(super) fn truncate_log(&mut self, rank: Rank, rsn: u64, out: &mut impl Output<S::File>) {
        self.received(rank, rsn, out);
        let log = &mut self.logs[rank as usize];
        let before = log.memory();
        let freed = log.truncate(rsn, &mut self.space);
        self.block_memory -= before - log.memory();
        for (segment, frames) in freed {
            if !self.space.segments.frames_truncated(segment, frames) {
                continue;
            }
            for (id, conn) in &mut self.conns {
                if conn.stream == StreamKind::Delivery && conn.segments.contains(&segment) {
                    conn.segments.retain(|s| *s != segment);
                    out.frame(*id, &Header::SegmentDrop(SegmentDrop { segment }), &[]);
                }
            }
        }
    }
}

/// Sends the receiver a segment's file if it does not have it.
fn pass_segment<S: Store>(
    id: ConnId,
    passed: &mut std::collections::VecDeque<u32>,
    space: &crate::space::Space<S>,
    segment: u32,
    out: &mut impl Output<S::File>,
) {
    if passed.contains(&segment) {
        return;
    }
    let Some(found) = space.segments.get(segment) else { return };
    while passed.len() >= PASSED_SEGMENTS {
        let Some(oldest) = passed.pop_front() else { break };
        out.frame(id, &Header::SegmentDrop(SegmentDrop { segment: oldest }), &[]);
    }
    let header = Header::Segment(Segment { segment, bytes: found.bytes });
    out.frame_with_file(id, &header, found.file.clone());
    passed.push_back(segment);
}
