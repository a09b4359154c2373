//! The router's protocol: connections, frames and commands in; frames, closes and events out. It
//! has no socket, no clock and no thread of its own. It must never let a message reach a rank
//! before it is logged, and never accept anything from an older incarnation.

mod acknowledge;
mod adopt;
mod ahead;
mod append;
mod await_receipt;
mod closing;
mod conns;
mod deliver;
mod fence;
mod from_receiver;
mod from_sender;
mod keep_room;
mod kept;
mod log;
mod mutation;
mod noted;
mod observed;
mod orders;
mod output;
mod pending_adoptions;
mod ranks;
mod receipts;
mod room;
mod saved;
mod scarcity;
mod segments;
mod sign_of_life;
mod streams;
mod truncate;
mod verify;

#[cfg(test)]
mod tests;

use crate::space::{Bounds, Space, Store};
use acknowledge::Acknowledge;
use await_receipt::AwaitReceipt;
use closing::Close;
use conns::{Conn, Conns};
use deliver::Deliver;
use eyrie_wire::data::{Frame, StreamKind};
use eyrie_wire::directory::KeptUntil;
use eyrie_wire::{Incarnation, Rank, RankInstance};
use fence::Fence;
pub use fence::BEGINNING;
use from_receiver::FromReceiver;
use from_sender::{FromSender, NOT_HERE_ANY_MORE};
use keep_room::KeepRoom;
use kept::Kept;
use log::Log;
use mutation::{active, Mutation};
pub use orders::{LineFigures, RouterCommand, RouterEvent, SavedAt, Stats};
pub use output::{ConnId, Output};
use pending_adoptions::Adoptions;
use ranks::Ranks;
use receipts::Receipts;
pub use receipts::UNRECEIVED_BYTES;
use room::Room;
use saved::{Restore, Save};
use scarcity::Scarcity;
use segments::GiveSegments;
use sign_of_life::SignOfLife;
use std::io;
use std::io::{Read, Write};
use std::time::Duration;
use streams::Streams;
use truncate::Truncate;

/// The protocol of one router: components that own their fields, and are borrowed by name by what
/// handles an input.
pub struct Protocol<S: Store> {
    conns: Conns,
    ranks: Ranks,
    kept: Kept,
    receipts: Receipts,
    adoptions: Adoptions,
    streams: Streams,
    room: Room,
    space: Space<S>,
}

impl<S: Store> Protocol<S> {
    /// `is_primary`: for each rank of the job whether this is its primary router.
    pub fn new(is_primary: Vec<bool>, bounds: Bounds, store: S) -> Protocol<S> {
        let count = is_primary.len();
        Protocol {
            conns: Conns::new(count),
            ranks: Ranks::new(count as u32),
            kept: Kept::new(is_primary),
            receipts: Receipts::none(),
            adoptions: Adoptions::none(count),
            streams: Streams::new(count),
            room: Room::new(bounds, count as u32),
            space: Space::new(bounds, count as u32, store),
        }
    }

    /// Acknowledges messages to their senders only when they were received, or when a sender keeps
    /// more than `most` bytes.
    #[must_use]
    pub fn keeping_until_received(mut self, most: u64) -> Self {
        self.receipts = Receipts::new(self.kept.is_primary(), most);
        self
    }

    /// Makes this router the gateway of a domain. The receivers of the ranks whose primary router
    /// it is are couriers of other domains. A message is acknowledged only when a courier has said
    /// that it is safe there, and truncated then.
    #[must_use]
    pub fn as_gateway(mut self) -> Self {
        self.kept.become_gateway();
        self.keeping_until_received(u64::MAX)
    }

    /// Sets the incarnations that may connect at the start.
    #[must_use]
    pub fn beginning_with(mut self, incarnations: &[Incarnation]) -> Self {
        self.ranks.begin_with(incarnations);
        self
    }

    /// Makes this router take over from a lost one of the same number.
    #[must_use]
    pub fn taking_over(mut self) -> Self {
        self.ranks.must_report();
        if self.kept.is_gateway() {
            self.adoptions.take_over_nothing();
        } else {
            self.adoptions.take_over(self.kept.is_primary());
        }
        self
    }

    /// This router, to which no rank has connected yet, with all that was saved.
    ///
    /// # Errors
    /// Those of the reader; when there is no room for the log, or the stream is that of a router
    /// that was started otherwise.
    pub fn restored(mut self, from: &mut impl Read) -> io::Result<Self> {
        let Protocol { conns, ranks, kept, receipts, adoptions, streams, room, space } = &mut self;
        Restore { conns, ranks, kept, receipts, adoptions, streams, room, space }.restore(from)?;
        Ok(self)
    }

    /// Writes all that this router holds.
    ///
    /// # Errors
    /// Those of the writer; when the log cannot be read, or a rank has not said yet which messages
    /// of a lost router it has.
    pub fn save(&self, to: &mut impl Write) -> io::Result<()> {
        let Protocol { ranks, kept, receipts, adoptions, space, .. } = self;
        Save { ranks, kept, receipts, adoptions, space }.save(to)
    }

    /// Whether this incarnation may connect.
    ///
    /// # Errors
    /// Why not.
    pub fn admit(&self, instance: RankInstance) -> Result<(), String> {
        self.ranks.admit(instance)
    }

    /// Begins an admitted connection, which replaces an older one of the same stream.
    /// `passes_files`: whether descriptors can be sent over it.
    pub fn connected(
        &mut self,
        id: ConnId,
        instance: RankInstance,
        stream: StreamKind,
        passes_files: bool,
        out: &mut impl Output<S::File>,
    ) {
        // The sender keeps the content of a message until it is received. It does not have it when
        // the content is in a file of a router, which may be lost, or in an image.
        let until_received = self.receipts.kept_until() == KeptUntil::Received;
        let keeps_content = until_received && stream == StreamKind::Send;
        if stream == StreamKind::Delivery {
            if let Some(adoption) = self.adoptions.of_mut(instance.rank) {
                adoption.begin();
            }
            let begun = self.streams.of_mut(instance.rank);
            (begun.resumed, begun.early) = (None, None);
        }
        let conn = Conn::new(instance, stream, passes_files && !keeps_content);
        let old = self.conns.add(id, conn);
        if let Some(old) = old.filter(|_| !active(Mutation::KeepOldConnection)) {
            self.close().remove(old);
            out.close(old);
        }
        if stream == StreamKind::Send {
            self.sending().greet(id, instance.rank, out);
        }
    }

    /// Handles a frame of a connection. False: the connection was closed because of it.
    pub fn frame(&mut self, id: ConnId, frame: &Frame, out: &mut impl Output<S::File>) -> bool {
        let Some(conn) = self.conns.get(id) else { return false };
        let rank = conn.instance.rank;
        let stream = conn.stream;
        let refusal = match stream {
            StreamKind::Send => match self.sending().frame(id, rank, frame, out) {
                Ok(lacks_space) => {
                    if lacks_space {
                        self.keep_room(out);
                    }
                    None
                }
                // It has not heard yet where to send it: a new connection, and it has.
                Err(NOT_HERE_ANY_MORE) => {
                    self.close().disconnected(id, out);
                    out.close(id);
                    None
                }
                Err(reason) => Some(reason.to_owned()),
            },
            StreamKind::Delivery => self.receiving().frame(id, rank, frame, out).err(),
        };
        if let Some(reason) = refusal {
            self.refuse(id, &reason, out);
        }
        self.conns.get(id).is_some()
    }

    /// Closes a connection that has sent something invalid.
    pub fn refuse(&mut self, id: ConnId, reason: &str, out: &mut impl Output<S::File>) {
        self.close().refuse(id, reason, out);
    }

    /// Everything that was read at once has been handled: acknowledges and delivers it.
    pub fn settle(&mut self, id: ConnId, out: &mut impl Output<S::File>) {
        let Protocol { conns, ranks, receipts, .. } = self;
        Acknowledge { conns, ranks, receipts }.acknowledge(id, false, out);
        while let Some(rank) = self.kept.next_dirty() {
            self.deliver(rank, out);
        }
        self.keep_room(out);
    }

    /// Handles the end of a connection.
    pub fn disconnected(&mut self, id: ConnId, out: &mut impl Output<S::File>) {
        self.close().disconnected(id, out);
    }

    /// The connection can be written. True: there was more for it.
    pub fn writable(&mut self, id: ConnId, out: &mut impl Output<S::File>) -> bool {
        let receiver = self.conns.get(id).filter(|conn| conn.stream == StreamKind::Delivery);
        match receiver.map(|conn| conn.instance.rank) {
            Some(rank) => self.deliver(rank, out),
            None => false,
        }
    }

    /// Whether a router that has taken over knows all that the rank has reported to the lost one,
    /// or the rank has reported it to its primary router: for tests.
    #[cfg(any(test, feature = "testing"))]
    pub fn has_heard(&self, rank: Rank) -> bool {
        self.ranks.has_reported(rank)
    }

    /// The connection on which the rank sends, if there is one. What the kernel still holds of it
    /// must be given to [`Protocol::frame`] before the rank is fenced.
    pub fn send_stream(&self, rank: Rank) -> Option<ConnId> {
        self.conns.send(rank)
    }

    /// Carries out a command of the controller.
    pub fn command(&mut self, command: RouterCommand, out: &mut impl Output<S::File>) {
        match command {
            RouterCommand::Fence(instance) => {
                let Protocol { conns, ranks, kept, adoptions, streams, room, space, .. } = self;
                Fence { conns, ranks, kept, adoptions, streams, room, space }.fence(instance, out);
            }
            RouterCommand::Recover { instance, determinants, observed } => {
                if self.ranks.recover(instance, determinants, observed) {
                    self.resume_early(instance.rank, out);
                }
            }
            RouterCommand::Truncate { rank, clock, rsn, observed } => {
                self.truncate(rank, (clock, rsn, observed), out);
            }
            RouterCommand::Serve(ranks) => ranks.into_iter().for_each(|rank| self.serve(rank)),
            RouterCommand::Leave(ranks) => {
                ranks.into_iter().for_each(|rank| self.leave(rank, out));
            }
            RouterCommand::ForgetSenders => self.forget_senders(out),
            // The loop carries it out, since it has the file.
            RouterCommand::Save(_) => {}
            // A gateway's, which carries them out itself, and the loop those that it has of them.
            RouterCommand::Directory(_)
            | RouterCommand::Stores { .. }
            | RouterCommand::Domains(_)
            | RouterCommand::Fetch(_)
            | RouterCommand::ToDomain { .. } => {}
            RouterCommand::Stats => out.event(RouterEvent::Stats(self.stats())),
            RouterCommand::Traffic => out.event(RouterEvent::Traffic(self.kept.traffic())),
            RouterCommand::BreakConnections(rank) => {
                let of_rank = [self.conns.delivery(rank), self.conns.send(rank)];
                for id in of_rank.into_iter().flatten() {
                    self.disconnected(id, out);
                    out.close(id);
                }
            }
        }
    }

    /// This is the primary router of the rank as well.
    fn serve(&mut self, rank: Rank) {
        if !self.ranks.has(rank) {
            return;
        }
        if self.kept.serve(rank) {
            self.receipts.serve(rank);
            self.adoptions.begin(rank);
        } else {
            // It has taken over from one that was told before, and was lost since.
            self.adoptions.needs_nothing(rank);
        }
    }

    /// This is the primary router of the rank no more. Its senders keep what it has not received.
    fn leave(&mut self, rank: Rank, out: &mut impl Output<S::File>) {
        if !self.kept.is_primary_of(rank) {
            if self.kept.is_gateway() {
                self.kept.note_left(rank);
            }
            return;
        }
        if let Some(id) = self.conns.delivery(rank) {
            self.close().disconnected(id, out);
            out.close(id);
        }
        for (segment, frames) in self.kept.leave(rank, &mut self.space) {
            self.space.segments.frames_truncated(segment, frames);
        }
        self.adoptions.end(rank);
        self.receipts.cover(rank);
        self.serve_waiting(out);
        self.keep_room(out);
    }

    /// The ranks of this gateway's domain have gone to another one, with what they have sent.
    fn forget_senders(&mut self, out: &mut impl Output<S::File>) {
        for rank in (0..self.ranks.count() as u32).map(Rank) {
            if !self.kept.is_elsewhere(rank) || active(Mutation::KeepSenders) {
                continue;
            }
            if let Some(id) = self.conns.delivery(rank) {
                self.close().disconnected(id, out);
                out.close(id);
            }
            let newest = self.kept.log(rank).newest();
            let Protocol { conns, ranks, kept, receipts, space, .. } = self;
            Truncate { conns, ranks, kept, receipts, space }.truncate(rank, newest, out);
            self.kept.forget_senders(rank);
            self.receipts.forget_senders(rank);
        }
        self.serve_waiting(out);
        self.keep_room(out);
    }

    /// Begins the delivery stream of a rank that connected before its recovery was prepared.
    fn resume_early(&mut self, rank: Rank, out: &mut impl Output<S::File>) {
        let Some(id) = self.conns.delivery(rank) else { return };
        let Some(early) = self.streams.of_mut(rank).early.take() else { return };
        if let Err(reason) = self.receiving().resume(id, rank, early, out) {
            self.refuse(id, &reason, out);
        }
    }

    /// An image of the rank counts, up to this clock, rsn and byte of its observations.
    fn truncate(&mut self, rank: Rank, image: (u64, u64, u64), out: &mut impl Output<S::File>) {
        if !self.ranks.has(rank) {
            return;
        }
        self.ranks.truncate(rank, image);
        let rsn = if active(Mutation::TruncateTooFar) { u64::MAX } else { image.1 };
        let Protocol { conns, ranks, kept, receipts, space, .. } = self;
        Truncate { conns, ranks, kept, receipts, space }.truncate(rank, rsn, out);
        self.serve_waiting(out);
        self.keep_room(out);
    }

    /// Figures of the router at present.
    pub fn stats(&self) -> Stats {
        let (messages, bytes) = self.kept.counts();
        Stats {
            memory_bytes: self.kept.memory()
                + self.adoptions.pending_bytes()
                + self.space.segments.memory()
                + self.ranks.observed_memory(),
            disk_bytes: self.space.disk(),
            messages,
            bytes,
            log_bytes: self.kept.logs().map(|(_, log)| Log::held(log)).collect(),
        }
    }

    /// Does what is due at `now` (since the router's start).
    pub fn tick(&mut self, now: Duration, out: &mut impl Output<S::File>) {
        self.room.now = now;
        self.serve_waiting(out);
        self.keep_room(out);
        let Protocol { conns, ranks, kept, receipts, adoptions, room, space, .. } = self;
        Scarcity { ranks, kept, room, space }.report(out);
        AwaitReceipt { conns, ranks, kept, receipts, space }.end_flushes(now, adoptions, out);
        SignOfLife { conns, ranks, kept, receipts, room }.show(out);
    }

    fn sending(&mut self) -> FromSender<'_, S> {
        let Protocol { conns, ranks, kept, receipts, adoptions, room, space, .. } = self;
        FromSender { conns, ranks, kept, receipts, adoptions, room, space }
    }

    fn receiving(&mut self) -> FromReceiver<'_, S> {
        let Protocol { conns, ranks, kept, receipts, adoptions, streams, room, space } = self;
        FromReceiver { conns, ranks, kept, receipts, adoptions, streams, room, space }
    }

    fn close(&mut self) -> Close<'_, S> {
        let Protocol { conns, kept, room, space, .. } = self;
        Close { conns, kept, room, space }
    }

    fn deliver(&mut self, rank: Rank, out: &mut impl Output<S::File>) -> bool {
        let Protocol { conns, kept, streams, space, .. } = self;
        Deliver { conns, kept, streams, space }.deliver(rank, out)
    }

    fn serve_waiting(&mut self, out: &mut impl Output<S::File>) {
        let Protocol { conns, room, space, .. } = self;
        GiveSegments { conns, room, space }.serve_waiting(out);
    }

    fn keep_room(&mut self, out: &mut impl Output<S::File>) {
        let Protocol { conns, ranks, kept, receipts, adoptions, streams, room, space } = self;
        KeepRoom { conns, ranks, kept, receipts, adoptions, streams, room, space }.keep_room(out);
    }
}
