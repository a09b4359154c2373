//! The router's protocol: connections, frames and commands in; frames, closes and events out. It
//! has no socket, no clock and no thread of its own. It must never let a message reach a rank
//! before it is logged, and never accept anything from an older incarnation.

mod adopt;
mod adoption;
mod ahead;
mod deliver;
mod log;
mod mutation;
mod noted;
mod observed;
mod orders;
mod receipts;
mod received;
mod room;
mod saved;
mod send;
mod unreadable;
mod verify;

#[cfg(test)]
mod tests;

use crate::space::{Bounds, Space, Store};
use adoption::Adoption;
use ahead::Ahead;
use eyrie_transport::KeptUntil;
use eyrie_wire::data::{Determinant, Frame, Header, ObservedPart, Resume, StreamKind, MAX_INLINE};
use eyrie_wire::{Incarnation, Rank, RankInstance};
use log::{Cursor, Log};
use mutation::{active, Mutation};
use observed::ObservedLog;
pub use orders::{RouterCommand, RouterEvent, SavedAt, Stats};
pub use receipts::UNRECEIVED_BYTES;
use receipts::{Receipts, Unreceived};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::time::Duration;
use verify::Verifier;

/// Most bytes of a rank's first observations that the rank is given when it starts anew.
pub const BEGINNING: u64 = 1 << 20;

/// The number of a connection in the loop. Numbers are not reused.
pub type ConnId = u64;

/// Where the protocol's output goes. `F` is a segment's file.
pub trait Output<F> {
    /// Queues a frame.
    fn frame(&mut self, conn: ConnId, header: &Header, payload: &[u8]);
    /// Queues a frame of what is to be replayed: determinants, and a part of the observations.
    fn replay(&mut self, conn: ConnId, list: &[Determinant], observed: Option<ObservedPart<&[u8]>>);
    /// Queues a frame as the log has it.
    fn logged(&mut self, conn: ConnId, frame: &[u8]);
    /// Queues a frame and sends a file with it.
    fn frame_with_file(&mut self, conn: ConnId, header: &Header, file: F);
    /// Whether more messages may be queued for the connection at present.
    fn has_room(&self, conn: ConnId) -> bool;
    /// Ends a connection once its queue is written.
    fn close(&mut self, conn: ConnId);
    /// Stops or resumes reading frames of this sender.
    fn hold(&mut self, conn: ConnId, held: bool);
    fn event(&mut self, event: RouterEvent);
}

/// A proven connection.
struct Conn {
    instance: RankInstance,
    stream: StreamKind,
    /// Frames of this connection that are logged, and those that its rank does not know of yet.
    frames: u64,
    unacknowledged: u64,
    unacknowledged_bytes: usize,
    /// The messages of a sender that its receivers have not received yet.
    unreceived: Unreceived,
    /// Whether files can be passed; if not, payloads go in pieces on the stream.
    passes_files: bool,
    /// Of a sender: the segments that it may fill. Of a receiver: those whose files it has, oldest
    /// first.
    segments: VecDeque<u32>,
}

/// The router's state of a rank.
struct RankState {
    /// The incarnation that may connect.
    incarnation: u32,
    /// Whether the primary router has been given what the incarnation needs to replay.
    recovered: bool,
    /// In order.
    determinants: Vec<Determinant>,
    /// Images that count have the determinants up to this clock; they were truncated.
    truncated: u64,
    observed: ObservedLog,
    /// The clock of the rank's last message or observation that this router has.
    last_clock: u64,
    delivery: Option<ConnId>,
    send: Option<ConnId>,
    cursor: Cursor,
    /// How much of the next message's payload was sent ahead of it.
    ahead: Ahead,
    /// The rsn behind which the delivery stream began; `None` until its rank has sent it.
    resumed: Option<u64>,
    /// Where the delivery stream is to begin once the recovery is prepared. The rank's connection
    /// and the controller's command may come in either order.
    early: Option<Resume>,
    verifier: Verifier,
    /// The last message before the images of the rank: later ones are needed.
    needed_after: u64,
    /// Whether it has reported to this router all that it reported to the one before, if there was
    /// one.
    has_reported: bool,
    /// The growth of its log in bytes, as last reported.
    growth_reported: u64,
}

impl RankState {
    /// Up to which clock its progress is stable, here or in an image, and up to which byte its
    /// observations are.
    fn holds(&self) -> (u64, u64) {
        let last = self.determinants.last().map_or(0, |d| d.clock);
        let truncated = if active(Mutation::ForgetWhatWasTruncated) { 0 } else { self.truncated };
        (last.max(truncated), self.observed.end())
    }
}

/// The protocol of one router.
pub struct Protocol<S: Store> {
    /// For each rank whether this is its primary router.
    at_home: Vec<bool>,
    ranks: Vec<RankState>,
    /// Logs of the ranks whose primary router this is (empty ones for the others).
    logs: Vec<Log>,
    /// Until when senders keep messages: they are acknowledged then. If until they are received,
    /// `receipts` has for each rank how far they were.
    kept_until: KeptUntil,
    most_unreceived: u64,
    receipts: Vec<Receipts>,
    /// Whether this router has taken over from a lost one. If so, `adoptions` has the state of each
    /// rank whose log it does not know yet.
    takes_over: bool,
    adoptions: Vec<Option<Adoption>>,
    /// Bytes of messages that are pending until an adoption.
    pending_bytes: u64,
    space: Space<S>,
    conns: FxHashMap<ConnId, Conn>,
    room: room::Room,
    /// Ranks with new messages.
    dirty: Vec<Rank>,
    /// Bytes of frames in memory, and of observations.
    block_memory: u64,
    observed_memory: u64,
    messages: u64,
    bytes: u64,
    /// Buffer for a piece of a payload.
    piece: Vec<u8>,
}

impl<S: Store> Protocol<S> {
    /// `at_home`: for each rank of the job whether this is its primary router.
    pub fn new(at_home: Vec<bool>, bounds: Bounds, store: S) -> Protocol<S> {
        let count = at_home.len() as u32;
        let rank = |_| RankState {
            incarnation: 1,
            recovered: true,
            determinants: Vec::new(),
            truncated: 0,
            observed: ObservedLog::default(),
            last_clock: 0,
            delivery: None,
            send: None,
            cursor: Cursor::default(),
            ahead: Ahead::default(),
            resumed: None,
            early: None,
            verifier: Verifier::default(),
            needed_after: 0,
            has_reported: true,
            growth_reported: 0,
        };
        Protocol {
            ranks: (0..count).map(rank).collect(),
            logs: at_home.iter().map(|here| Log::new(if *here { count } else { 0 })).collect(),
            kept_until: KeptUntil::Logged,
            most_unreceived: 0,
            receipts: Vec::new(),
            takes_over: false,
            adoptions: (0..count).map(|_| None).collect(),
            pending_bytes: 0,
            space: Space::new(bounds, count, store),
            conns: FxHashMap::default(),
            room: room::Room::new(bounds, count),
            dirty: Vec::new(),
            block_memory: 0,
            observed_memory: 0,
            messages: 0,
            bytes: 0,
            piece: vec![0; MAX_INLINE],
            at_home,
        }
    }

    /// Acknowledges messages to their senders only when they were received, or when a sender keeps
    /// more than `most` bytes.
    #[must_use]
    pub fn keeping_until_received(mut self, most: u64) -> Self {
        self.kept_until = KeptUntil::Received;
        self.most_unreceived = most;
        let count = self.ranks.len();
        let receipts = |here: &bool| Receipts::new(if *here { count } else { 0 });
        self.receipts = self.at_home.iter().map(receipts).collect();
        self
    }

    /// Sets the incarnations that may connect at the start.
    #[must_use]
    pub fn beginning_with(mut self, incarnations: &[Incarnation]) -> Self {
        for (state, incarnation) in self.ranks.iter_mut().zip(incarnations) {
            state.incarnation = *incarnation;
        }
        self
    }

    /// Whether this incarnation may connect.
    ///
    /// # Errors
    /// Why not.
    pub fn admit(&self, instance: RankInstance) -> Result<(), String> {
        let Some(state) = self.ranks.get(instance.rank as usize) else {
            return Err("there is no such rank in the job".into());
        };
        if instance.incarnation != state.incarnation && !active(Mutation::ForgetTheFence) {
            return Err(format!("{instance} has been replaced by {}", state.incarnation));
        }
        Ok(())
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
        let keeps_content = self.kept_until == KeptUntil::Received && stream == StreamKind::Send;
        let passes_files = passes_files && !keeps_content;
        let state = &mut self.ranks[instance.rank as usize];
        let slot = match stream {
            StreamKind::Delivery => {
                if let Some(adoption) = &mut self.adoptions[instance.rank as usize] {
                    adoption.begin();
                }
                (state.resumed, state.early) = (None, None);
                &mut state.delivery
            }
            StreamKind::Send => &mut state.send,
        };
        let old = slot.replace(id).filter(|_| !active(Mutation::KeepOldConnection));
        let conn = Conn {
            instance,
            stream,
            frames: 0,
            unacknowledged: 0,
            unacknowledged_bytes: 0,
            unreceived: Unreceived::default(),
            passes_files,
            segments: VecDeque::new(),
        };
        self.conns.insert(id, conn);
        if let Some(old) = old {
            self.remove(old);
            out.close(old);
        }
        if stream == StreamKind::Send {
            self.greet_sender(id, instance.rank, out);
            if self.room.holds() {
                out.hold(id, true);
            }
        }
    }

    /// Handles a frame of a connection. False: the connection was closed because of it.
    pub fn frame(&mut self, id: ConnId, frame: &Frame, out: &mut impl Output<S::File>) -> bool {
        let Some(conn) = self.conns.get(&id) else { return false };
        let (rank, stream) = (conn.instance.rank, conn.stream);
        let result = match stream {
            StreamKind::Send => self.send_frame(id, rank, frame, out),
            StreamKind::Delivery => self.delivery_frame(id, rank, frame, out),
        };
        match result {
            Ok(()) => self.conns.contains_key(&id),
            Err(reason) => {
                self.refuse(id, reason, out);
                false
            }
        }
    }

    /// Closes a connection that has sent something invalid.
    pub fn refuse(&mut self, id: ConnId, reason: &str, out: &mut impl Output<S::File>) {
        let instance = self.conns.get(&id).map(|c| c.instance);
        out.event(RouterEvent::Refused { instance, reason: reason.into() });
        self.disconnected(id, out);
        out.close(id);
    }

    /// Everything that was read at once has been handled: acknowledges and delivers it.
    pub fn settle(&mut self, id: ConnId, out: &mut impl Output<S::File>) {
        self.acknowledge(id, false, out);
        while let Some(rank) = self.dirty.pop() {
            self.deliver(rank, out);
        }
        self.keep_room(out);
    }

    /// Handles the end of a connection.
    pub fn disconnected(&mut self, id: ConnId, out: &mut impl Output<S::File>) {
        let Some((instance, stream)) = self.remove(id) else { return };
        let state = &mut self.ranks[instance.rank as usize];
        let slot = match stream {
            StreamKind::Delivery => &mut state.delivery,
            StreamKind::Send => &mut state.send,
        };
        if *slot == Some(id) {
            *slot = None;
            if stream == StreamKind::Delivery {
                out.event(RouterEvent::Disconnected(instance));
            }
        }
    }

    /// Removes a connection; the segments of a sender accept no more writes.
    fn remove(&mut self, id: ConnId) -> Option<(RankInstance, StreamKind)> {
        let conn = self.conns.remove(&id)?;
        self.room.remove(id);
        if conn.stream == StreamKind::Send {
            for segment in conn.segments {
                if conn.passes_files {
                    self.space.segments.abandon(segment);
                } else {
                    self.space.segments.close(segment);
                }
            }
        }
        Some((conn.instance, conn.stream))
    }

    /// Whether a router that has taken over knows all that the rank has reported to the lost one,
    /// or the rank has reported it to its primary router: for tests.
    #[cfg(any(test, feature = "testing"))]
    pub fn has_heard(&self, rank: Rank) -> bool {
        self.ranks[rank as usize].has_reported
    }

    /// The connection on which the rank sends, if there is one. What the kernel still holds of it
    /// must be given to [`Protocol::frame`] before the rank is fenced.
    pub fn send_stream(&self, rank: Rank) -> Option<ConnId> {
        self.ranks.get(rank as usize)?.send
    }

    /// Carries out a command of the controller.
    pub fn command(&mut self, command: RouterCommand, out: &mut impl Output<S::File>) {
        match command {
            RouterCommand::Fence(instance) => self.fence(instance, out),
            RouterCommand::Recover { instance, determinants, observed } => {
                self.recover(instance, determinants, observed, out)
            }
            RouterCommand::Truncate { rank, clock, rsn, observed } => {
                self.truncate(rank, (clock, rsn, observed), out);
            }
            // The loop carries it out, since it has the file.
            RouterCommand::Save(_) => {}
            RouterCommand::Stats => out.event(RouterEvent::Stats(self.stats())),
            RouterCommand::BreakConnections(rank) => {
                let Some(state) = self.ranks.get(rank as usize) else { return };
                for id in [state.delivery, state.send].into_iter().flatten() {
                    self.disconnected(id, out);
                    out.close(id);
                }
            }
        }
    }

    fn fence(&mut self, instance: RankInstance, out: &mut impl Output<S::File>) {
        let Some(state) = self.ranks.get_mut(instance.rank as usize) else { return };
        state.incarnation = state.incarnation.max(instance.incarnation);
        (state.recovered, state.early) = (false, None);
        for id in [state.delivery.take(), state.send.take()].into_iter().flatten() {
            if !active(Mutation::ForgetTheFence) {
                self.remove(id);
                out.close(id);
            }
        }
        if let Some(adoption) = &mut self.adoptions[instance.rank as usize] {
            adoption.fence();
        }
        let state = &self.ranks[instance.rank as usize];
        if !state.has_reported {
            out.event(RouterEvent::Unheard { instance });
        }
        let mut determinants = state.determinants.clone();
        let last = determinants.last().copied().unwrap_or(Determinant { clock: 0, rsn: 0 });
        if state.last_clock > last.clock && !active(Mutation::SkipNoDelivery) {
            // At this clock it had sent or observed something without having seen more: the next
            // incarnation must not see more before it either. A no-delivery determinant says so.
            determinants.push(Determinant { clock: state.last_clock, rsn: last.rsn });
        }
        // The primary router keeps a rank's observations. It returns their beginning, for the case
        // that the rank is started anew.
        let observed = if self.at_home[instance.rank as usize] {
            state.observed.first(BEGINNING)
        } else {
            state.observed.all()
        };
        out.event(RouterEvent::Fenced { instance, determinants, observed });
    }

    fn recover(
        &mut self,
        instance: RankInstance,
        mut determinants: Vec<Determinant>,
        observed: Vec<ObservedPart>,
        out: &mut impl Output<S::File>,
    ) {
        let Some(state) = self.ranks.get_mut(instance.rank as usize) else { return };
        if state.incarnation != instance.incarnation {
            return;
        }
        determinants.append(&mut state.determinants);
        state.determinants = merge(determinants);
        state.recovered = true;
        self.change_observed(instance.rank, |log| log.add(observed));
        let state = &mut self.ranks[instance.rank as usize];
        if let (Some(id), Some(resume)) = (state.delivery, state.early.take()) {
            self.resume(id, instance.rank, resume, out);
        }
    }

    fn truncate(
        &mut self,
        rank: Rank,
        (clock, rsn, observed): (u64, u64, u64),
        out: &mut impl Output<S::File>,
    ) {
        let Some(state) = self.ranks.get_mut(rank as usize) else { return };
        let gone = if active(Mutation::TruncateDeterminants) {
            state.determinants.len()
        } else {
            state.determinants.partition_point(|d| d.clock <= clock)
        };
        state.determinants.drain(..gone);
        state.truncated = state.truncated.max(clock);
        state.needed_after = state.needed_after.max(rsn);
        self.change_observed(rank, |log| log.truncate(clock, observed));
        let rsn = if active(Mutation::TruncateTooFar) { u64::MAX } else { rsn };
        self.truncate_log(rank, rsn, out);
        self.serve_waiting(out);
        self.keep_room(out);
    }

    /// Changes the observations of a rank, and counts their memory.
    fn change_observed(&mut self, rank: Rank, change: impl FnOnce(&mut ObservedLog)) {
        let log = &mut self.ranks[rank as usize].observed;
        let before = log.memory();
        change(log);
        self.observed_memory = self.observed_memory + log.memory() - before;
    }

    /// Figures of the router at present.
    pub fn stats(&self) -> Stats {
        Stats {
            memory_bytes: self.block_memory
                + self.pending_bytes
                + self.space.segments.memory()
                + self.observed_memory,
            disk_bytes: self.space.disk(),
            messages: self.messages,
            bytes: self.bytes,
            log_bytes: self.logs.iter().map(Log::held).collect(),
        }
    }

    /// Does what is due at `now` (since the router's start).
    pub fn tick(&mut self, now: Duration, out: &mut impl Output<S::File>) {
        self.room.now = now;
        self.serve_waiting(out);
        self.keep_room(out);
        self.report_scarcity(out);
        self.end_flushes(out);
    }
}

/// Makes one list of determinants from those of several routers. A router that does not have the
/// last determinants gives too low an rsn for a no-delivery determinant: numbers never fall.
fn merge(mut determinants: Vec<Determinant>) -> Vec<Determinant> {
    determinants.sort_unstable();
    let mut merged: Vec<Determinant> = Vec::with_capacity(determinants.len());
    for mut d in determinants {
        match merged.last_mut() {
            Some(last) if last.clock == d.clock => last.rsn = last.rsn.max(d.rsn),
            last => {
                d.rsn = d.rsn.max(last.map_or(0, |l| l.rsn));
                merged.push(d);
            }
        }
    }
    merged
}
