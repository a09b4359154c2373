//! All that a router holds, as a stream: written when a job is saved, and read by the router that
//! goes on with it. No rank sends meanwhile. Every logged message must be in it: ranks that come
//! back from images need them as after a death.

use super::append::Append;
use super::conns::Conns;
use super::keep_room::KeepRoom;
use super::kept::Kept;
use super::log::Log;
use super::mutation::{active, Mutation};
use super::orders::RouterEvent;
use super::output::{ConnId, Output};
use super::pending_adoptions::Adoptions;
use super::ranks::{Ranks, SavedProgress};
use super::receipts::{Receipts, SavedReceipts};
use super::room::Room;
use super::streams::Streams;
use crate::space::{Space, Store};
use eyrie_transport::frame;
use eyrie_wire::data::{
    Deliver, Determinant, Frame, Header, Message, ObservedPart, Place, MAX_FRAME, MAX_INLINE,
};
use eyrie_wire::directory::KeptUntil;
use eyrie_wire::traffic::Sent;
use eyrie_wire::{Incarnation, Rank};
use serde::{Deserialize, Serialize};
use std::io;
use std::io::{Read, Write};

/// The beginning of a stream; all ranks follow.
#[derive(PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Head {
    is_primary: Vec<bool>,
    takes_over: bool,
    kept_until: KeptUntil,
}

/// A rank. If this is its primary router, the messages of its log follow.
#[derive(Serialize, Deserialize)]
struct SavedRank {
    incarnation: Incarnation,
    determinants: Vec<Determinant>,
    observed: Vec<ObservedPart>,
    spoken: u64,
    needed_after: u64,
    heard: bool,
    /// Receive sequence number of the last message that is no longer in the log.
    floor: u64,
    /// What each source has sent, up to its newest message; empty for a rank with another primary
    /// router.
    sent: Vec<Sent>,
    received: u64,
    received_ssn: Vec<u64>,
    exposed: Option<u64>,
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// The pieces in which a payload is copied: where each begins, and its length, in bytes.
fn pieces(size: u64) -> impl Iterator<Item = (u64, usize)> {
    (0..size).step_by(MAX_INLINE).map(move |at| (at, (size - at).min(MAX_INLINE as u64) as usize))
}

fn head(kept: &Kept, receipts: &Receipts, adoptions: &Adoptions) -> Head {
    Head {
        is_primary: kept.is_primary().to_vec(),
        takes_over: adoptions.takes_over(),
        kept_until: receipts.kept_until(),
    }
}

/// Writes all that a router holds.
pub struct Save<'a, S: Store> {
    pub ranks: &'a Ranks,
    pub kept: &'a Kept,
    pub receipts: &'a Receipts,
    pub adoptions: &'a Adoptions,
    pub space: &'a Space<S>,
}

impl<S: Store> Save<'_, S> {
    /// Writes all that this router holds.
    ///
    /// # Errors
    /// Those of the writer; when the log cannot be read, or a rank has not said yet which messages
    /// of a lost router it has.
    pub fn save(&self, to: &mut impl Write) -> io::Result<()> {
        if let Some(rank) = self.adoptions.first() {
            let text = format!("rank {rank} has not said to its new router what it has received");
            return Err(io::Error::other(text));
        }
        let head = head(self.kept, self.receipts, self.adoptions);
        to.write_all(&frame::encode_long(&head)?)?;
        for (rank, log) in self.kept.logs() {
            to.write_all(&frame::encode_long(&self.saved_rank(rank))?)?;
            if self.kept.is_primary_of(rank) {
                self.save_log(log, to)?;
            }
        }
        Ok(())
    }

    fn saved_rank(&self, rank: Rank) -> SavedRank {
        let (progress, receipts) = (self.ranks.saved(rank), self.receipts.saved(rank));
        let log = self.kept.log(rank);
        SavedRank {
            incarnation: progress.incarnation,
            determinants: progress.determinants,
            observed: progress.observed,
            spoken: progress.last_clock,
            needed_after: progress.needed_after,
            heard: progress.has_reported,
            floor: log.floor(),
            sent: log.sent().to_vec(),
            received: receipts.rsn,
            received_ssn: receipts.ssn,
            exposed: receipts.exposed,
        }
    }

    /// Writes the frames of a log, each with its length before it and, if its payload is in a
    /// segment, with the payload behind it; then 0.
    fn save_log(&self, log: &Log, to: &mut impl Write) -> io::Result<()> {
        let mut cursor = log.cursor_after(log.floor(), self.space)?;
        let mut piece = vec![0; MAX_INLINE];
        while let Some(logged) = log.next(&mut cursor, self.space)? {
            let Deliver { rsn, size, place, .. } = logged.deliver;
            let len = logged.frame.len();
            if rsn == log.newest() && active(Mutation::SaveNotTheLast) {
                break;
            }
            to.write_all(&(len as u32).to_le_bytes())?;
            to.write_all(logged.frame)?;
            if let Some(Place { segment, offset }) = place {
                for (at, len) in pieces(size) {
                    let piece = &mut piece[..len];
                    self.space.read_piece(segment, offset + at, piece)?;
                    to.write_all(piece)?;
                }
            }
            Log::advance(&mut cursor, len);
        }
        to.write_all(&0u32.to_le_bytes())
    }
}

/// Reads all that a router held into one to which no rank has connected yet.
pub struct Restore<'a, S: Store> {
    pub conns: &'a mut Conns,
    pub ranks: &'a mut Ranks,
    pub kept: &'a mut Kept,
    pub receipts: &'a mut Receipts,
    pub adoptions: &'a mut Adoptions,
    pub streams: &'a Streams,
    pub room: &'a mut Room,
    pub space: &'a mut Space<S>,
}

impl<S: Store> Restore<'_, S> {
    /// Reads all that was saved.
    ///
    /// # Errors
    /// Those of the reader; when there is no room for the log, or the stream is that of a router
    /// that was started otherwise.
    pub fn restore(&mut self, from: &mut impl Read) -> io::Result<()> {
        let saved: Head = frame::read_long(from)?;
        self.adoptions.restore(saved.takes_over);
        if saved != head(self.kept, self.receipts, self.adoptions) {
            return Err(invalid("the saved router has other ranks"));
        }
        for rank in Rank::first(self.ranks.count() as u32) {
            let saved: SavedRank = frame::read_long(from)?;
            let progress = SavedProgress {
                incarnation: saved.incarnation,
                determinants: saved.determinants,
                observed: saved.observed,
                last_clock: saved.spoken,
                needed_after: saved.needed_after,
                has_reported: saved.heard,
            };
            self.ranks.restore(rank, progress);
            if !self.kept.is_primary_of(rank) {
                continue;
            }
            if saved.sent.len() != self.kept.log(rank).sources() {
                return Err(invalid("the saved router has another number of ranks"));
            }
            self.kept.begin_log(rank, saved.floor, &saved.sent);
            self.restore_log(rank, from)?;
            let cursor = self.kept.log(rank).cursor_after(saved.received, self.space)?;
            let SavedRank { received, received_ssn, exposed, .. } = saved;
            let receipts = SavedReceipts { rsn: received, ssn: received_ssn, exposed };
            self.receipts.restore(rank, &receipts, cursor);
        }
        Ok(())
    }

    fn restore_log(&mut self, rank: Rank, from: &mut impl Read) -> io::Result<()> {
        let mut bytes = vec![0; MAX_FRAME];
        // The segment that is being filled, its length, and how much of it is filled.
        let mut segment: Option<(u32, u64, u64)> = None;
        loop {
            let mut len = [0; 4];
            from.read_exact(&mut len)?;
            let len = u32::from_le_bytes(len) as usize;
            if len == 0 {
                break;
            }
            let bytes = bytes.get_mut(..len).ok_or_else(|| invalid("a frame is too long"))?;
            from.read_exact(bytes)?;
            let Ok(Some(Frame { header: Header::Deliver(d), payload, .. })) = Frame::parse(bytes)
            else {
                return Err(invalid("a frame is damaged"));
            };
            if d.rsn != self.kept.log(rank).newest() + 1 || !self.ranks.has(d.source) {
                return Err(invalid("a message is missing in a log"));
            }
            let place = match d.place {
                Some(_) => Some(self.restore_payload(d.size, &mut segment, from)?),
                None => None,
            };
            let Deliver { source, ssn, envelope, size, sent_bytes, .. } = d;
            // The determinants of its sender have its clock.
            let clock = 0;
            let destination = rank;
            let message = Message { destination, ssn, clock, envelope, size, sent_bytes, place };
            self.log(source, &message, payload);
        }
        if let Some((segment, ..)) = segment {
            self.space.segments.close(segment);
        }
        self.kept.forget_dirty();
        Ok(())
    }

    fn log(&mut self, source: Rank, message: &Message, payload: &[u8]) {
        let Restore { conns, ranks, kept, receipts, adoptions, streams, room, space } = self;
        Append { ranks, kept, room, space }.append(source, message, payload, &mut NoOutput);
        KeepRoom { conns, ranks, kept, receipts, adoptions, streams, room, space }
            .keep_room(&mut NoOutput);
    }

    fn restore_payload(
        &mut self,
        size: u64,
        filling: &mut Option<(u32, u64, u64)>,
        from: &mut impl Read,
    ) -> io::Result<Place> {
        let (segment, bytes, filled) = match filling.filter(|(_, len, used)| len - used >= size) {
            Some(room) => room,
            None => {
                if let Some((full, ..)) = filling.take() {
                    self.space.segments.close(full);
                }
                let segment = self.space.open_segment(size)?;
                let bytes = self.space.segments.get(segment).map_or(0, |s| s.bytes);
                (segment, bytes, 0)
            }
        };
        let mut piece = vec![0; MAX_INLINE];
        for (at, len) in pieces(size) {
            let piece = &mut piece[..len];
            from.read_exact(piece)?;
            self.space.write_piece(segment, filled + at, piece)?;
        }
        *filling = Some((segment, bytes, filled + size));
        self.space.segments.frame_logged(segment);
        Ok(Place { segment, offset: filled })
    }
}

/// The output while no rank is connected.
struct NoOutput;

impl<F> Output<F> for NoOutput {
    fn frame(&mut self, _: ConnId, _: &Header, _: &[u8]) {}
    fn replay(&mut self, _: ConnId, _: &[Determinant], _: Option<ObservedPart<&[u8]>>) {}
    fn logged(&mut self, _: ConnId, _: &[u8]) {}
    fn frame_with_file(&mut self, _: ConnId, _: &Header, _: F) {}
    fn has_room(&self, _: ConnId) -> bool {
        false
    }
    fn close(&mut self, _: ConnId) {}
    fn hold(&mut self, _: ConnId, _: bool) {}
    fn event(&mut self, _: RouterEvent) {}
}
