//! What ranks say on their delivery streams: from where on the router is to deliver, and what they
//! have received. No delivery stream may begin before its rank's recovery is prepared.

use super::adopt::Adopt;
use super::ahead::Ahead;
use super::await_receipt::AwaitReceipt;
use super::conns::Conns;
use super::deliver::Deliver;
use super::kept::Kept;
use super::mutation::{active, Mutation};
use super::orders::RouterEvent;
use super::output::{unreadable, ConnId, Output};
use super::pending_adoptions::Adoptions;
use super::ranks::Ranks;
use super::receipts::Receipts;
use super::room::Room;
use super::segments::GiveSegments;
use super::streams::Streams;
use super::truncate::Truncate;
use crate::space::{Space, Store};
use eyrie_wire::data::{Determinant, Frame, Header, Ready, Replayed, Resume, MAX_DETERMINANTS};
use eyrie_wire::Rank;

/// Handles frames of delivery streams.
pub struct FromReceiver<'a, S: Store> {
    pub conns: &'a mut Conns,
    pub ranks: &'a mut Ranks,
    pub kept: &'a mut Kept,
    pub receipts: &'a mut Receipts,
    pub adoptions: &'a mut Adoptions,
    pub streams: &'a mut Streams,
    pub room: &'a mut Room,
    pub space: &'a mut Space<S>,
}

impl<S: Store> FromReceiver<'_, S> {
    /// Handles a frame on a delivery stream.
    ///
    /// # Errors
    /// Why the connection is to be refused.
    pub fn frame(
        &mut self,
        id: ConnId,
        rank: Rank,
        frame: &Frame,
        out: &mut impl Output<S::File>,
    ) -> Result<(), String> {
        match frame.header {
            Header::Resume(resume) => return self.resume(id, rank, resume, out),
            Header::Received(received) => return self.receipt(rank, received.rsn, out),
            Header::Shown(shown) => {
                if let Some(adoption) = self.adoptions.of_mut(rank) {
                    adoption.shown(shown);
                }
            }
            // It needs this router until it has all that it ever received.
            Header::Replayed(Replayed { rsn }) if rsn < self.receipts.rsn(rank) => {}
            Header::Replayed(_) if self.kept.is_elsewhere(rank) => {}
            Header::Replayed(replayed) => {
                let resumed = self.streams.of(rank).resumed.unwrap_or(0);
                let messages = replayed.rsn.saturating_sub(resumed);
                let instance = self.ranks.instance(rank);
                out.event(RouterEvent::Replayed { instance, messages });
            }
            _ => return Err("unexpected kind of frame on a delivery stream".into()),
        }
        Ok(())
    }

    /// Handles a rank's report of what it has received.
    fn receipt(
        &mut self,
        rank: Rank,
        rsn: u64,
        out: &mut impl Output<S::File>,
    ) -> Result<(), String> {
        if let Some(adoption) = self.adoptions.of_mut(rank) {
            adoption.has(rsn);
        } else if self.streams.of(rank).resumed.is_some() {
            if rsn > self.kept.log(rank).newest() {
                return Err("a rank has received what was not sent to it".into());
            }
            self.received(rank, rsn, out);
            if self.kept.is_elsewhere(rank) && !active(Mutation::KeepWhatIsElsewhere) {
                self.truncate(rank, rsn, out);
            }
        }
        Ok(())
    }

    /// A rank of another domain has all up to `rsn`: no image of it can need that.
    fn truncate(&mut self, rank: Rank, rsn: u64, out: &mut impl Output<S::File>) {
        let FromReceiver { conns, ranks, kept, receipts, room, space, .. } = self;
        Truncate { conns, ranks, kept, receipts, space }.truncate(rank, rsn, out);
        GiveSegments { conns, room, space }.serve_waiting(out);
    }

    fn received(&mut self, rank: Rank, rsn: u64, out: &mut impl Output<S::File>) {
        let FromReceiver { conns, ranks, kept, receipts, space, .. } = self;
        AwaitReceipt { conns, ranks, kept, receipts, space }.received(rank, rsn, out);
    }

    /// Why a delivery stream cannot begin there.
    fn refusal(&self, rank: Rank, rsn: u64) -> Option<String> {
        let log = self.kept.log(rank);
        if !self.kept.is_primary_of(rank) {
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
    ///
    /// # Errors
    /// Why it cannot begin there; the rank has been told.
    pub fn resume(
        &mut self,
        id: ConnId,
        rank: Rank,
        resume: Resume,
        out: &mut impl Output<S::File>,
    ) -> Result<(), String> {
        let Resume { rsn, clock } = resume;
        // A courier may know less than its predecessor: what that one had, and the rest comes.
        let knows_less = self.kept.is_elsewhere(rank) && !active(Mutation::ResumeWhereTold);
        let rsn = if knows_less { self.receipts.rsn(rank) } else { rsn };
        let FromReceiver { conns, ranks, kept, receipts, adoptions, room, space, .. } = self;
        let mut adopt = Adopt { conns, ranks, kept, receipts, adoptions, room, space };
        let adopted = adopt.adopt(rank, rsn, out);
        if let Some(reason) = adopted.err().or_else(|| self.refusal(rank, rsn)) {
            out.frame(id, &Header::Refused, reason.as_bytes());
            return Err(reason);
        }
        if !self.ranks.is_prepared(rank) {
            self.streams.of_mut(rank).early = Some(resume);
            return Ok(());
        }
        self.received(rank, rsn, out);
        let from = if active(Mutation::ResumeLate) { rsn + 1 } else { rsn };
        let cursor = match self.kept.log(rank).cursor_after(from, self.space) {
            Ok(cursor) => cursor,
            Err(e) => {
                unreadable(rank, &e, out);
                return Ok(());
            }
        };
        let stream = self.streams.of_mut(rank);
        (stream.cursor, stream.resumed) = (cursor, Some(rsn));
        if !active(Mutation::GoOnInTheMiddle) {
            stream.ahead = Ahead::default();
        }
        let Some(conn) = self.conns.get_mut(id) else { return Ok(()) };
        conn.segments.clear();
        let instance = conn.instance;
        self.replay(id, rank, rsn, clock, out);
        let up_to = self.receipts.rsn(rank);
        out.frame(id, &Header::Ready(Ready { up_to, observed: 0 }), &[]);
        if !self.kept.is_elsewhere(rank) || active(Mutation::TellOfElsewhere) {
            out.event(RouterEvent::Connected(instance));
        }
        let FromReceiver { conns, kept, streams, space, .. } = self;
        Deliver { conns, kept, streams, space }.deliver(rank, out);
        Ok(())
    }

    /// Sends what a rank needs that goes on behind `rsn` and `clock`.
    fn replay(&self, id: ConnId, rank: Rank, rsn: u64, clock: u64, out: &mut impl Output<S::File>) {
        // A no-delivery determinant may have an rsn from before what was truncated.
        let held = |d: &Determinant| Determinant { rsn: d.rsn.max(rsn), ..*d };
        let list: Vec<Determinant> =
            self.ranks.determinants_after(rank, clock).iter().map(held).collect();
        for part in list.chunks(MAX_DETERMINANTS) {
            out.replay(id, part, None);
        }
        let observed = self.ranks.observed(rank).since(clock);
        for part in observed.filter(|_| !active(Mutation::ReplayUnobserved)) {
            out.replay(id, &[], Some(part));
        }
    }
}
