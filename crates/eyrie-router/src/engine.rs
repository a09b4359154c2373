//! The router's loop: one thread, one epoll. Reads frames, logs them, delivers them. It must never wait
//! for a rank: who does not read is left behind and fed from its log later.

use crate::conn::{Conn, Handshake, Stage, HANDSHAKE_TIMEOUT, OUT_BYTES};
use crate::log::{Cursor, Log};
use crate::segments::Segments;
use crate::spill::Spill;
use crate::verify::Verifier;
use crate::{Config, RouterEvent, Stats};
use crossbeam_channel::Sender;
use eyrie_wire::data::{
    home, Determinant, Frame, Header, Hello, Kind, Stream, IN_SEGMENT, MAX_INLINE,
};
use eyrie_wire::{Incarnation, Rank};
use rustix::buffer::spare_capacity;
use rustix::event::{epoll, Timespec};
use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// What the handle asks of the loop.
pub enum Command {
    Fence(Rank, Incarnation, Sender<Vec<Determinant>>),
    Recover(Rank, Incarnation, Vec<Determinant>),
    Discard(Rank, u64, u64),
    BreakConnections(Rank),
    Stats(Sender<Stats>),
    Stop,
}

/// The queue of commands and the descriptor that wakes the loop.
pub struct Mailbox {
    pub commands: Mutex<Vec<Command>>,
    pub wake: OwnedFd,
}

const LISTENER: u64 = 0;
const WAKE: u64 = 1;
const FIRST_CONN: u64 = 2;

/// Unacknowledged frames and bytes after which a sender is told.
const ACK_FRAMES: u64 = 256;
const ACK_BYTES: usize = 64 * 1024;
/// Segments whose descriptors one connection may hold at a time.
const PASSED_SEGMENTS: usize = 32;
/// Connections that have not proven themselves, at a time.
const MAX_STRANGERS: usize = 1024;
/// How often the loop looks after deadlines and space.
const TICK: Duration = Duration::from_millis(500);

/// How long the router asks again before it sleeps, and after how many failures it stops doing so.
const SPIN_TIME: Duration = Duration::from_micros(20);
const SPIN_MISSES: u32 = 8;

/// What the router knows of a rank.
struct RankState {
    /// Who may speak.
    incarnation: Incarnation,
    /// The home router has been given what the incarnation needs to replay.
    recovered: bool,
    determinants: Vec<Determinant>,
    /// The clock of the last message that this router has of it.
    spoken: u64,
    delivery: Option<u64>,
    send: Option<u64>,
    cursor: Cursor,
    /// The delivery stream's position at its start.
    resumed: u64,
    verifier: Verifier,
}

/// The router.
pub struct Engine {
    config: Config,
    events: Sender<RouterEvent>,
    mailbox: Arc<Mailbox>,
    epoll: OwnedFd,
    listener: UnixListener,
    conns: HashMap<u64, Conn>,
    next_conn: u64,
    ranks: Vec<RankState>,
    /// Logs of the ranks that are at home here (empty ones for the others).
    logs: Vec<Log>,
    spill: Spill,
    segments: Segments,
    /// Connections that wait for a segment, for lack of space.
    waiting: Vec<(u64, u64)>,
    block_memory: u64,
    messages: u64,
    bytes: u64,
    spill_failed: Option<Instant>,
    dirty: Vec<Rank>,
}

fn stop_reading(e: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, e)
}

/// Waiting for events: where one follows another within a few microseconds, asking again is faster than sleeping
/// and being woken. Where asking did not help lately, it sleeps at once.
#[derive(Default)]
struct Spin {
    /// Times in a row that asking again did not help.
    misses: u32,
}

impl Spin {
    fn wait(
        &mut self,
        epoll: &OwnedFd,
        events: &mut Vec<epoll::Event>,
    ) -> Result<(), rustix::io::Errno> {
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        if self.misses < SPIN_MISSES {
            let start = Instant::now();
            loop {
                if epoll::wait(epoll, spare_capacity(events), Some(&none))? > 0 {
                    self.misses = 0;
                    return Ok(());
                }
                if start.elapsed() > SPIN_TIME {
                    break;
                }
                std::thread::yield_now();
            }
            self.misses += 1;
        }
        let start = Instant::now();
        let timeout = TICK.try_into().expect("a short time");
        epoll::wait(epoll, spare_capacity(events), Some(&timeout))?;
        if start.elapsed() < SPIN_TIME {
            self.misses = 0;
        }
        Ok(())
    }
}

impl Engine {
    /// Binds the socket and opens the spill file.
    ///
    /// # Errors
    /// When either cannot be done.
    pub fn new(
        config: Config,
        events: Sender<RouterEvent>,
        mailbox: Arc<Mailbox>,
    ) -> io::Result<Engine> {
        let listener = UnixListener::bind(&config.socket)?;
        listener.set_nonblocking(true)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let data = epoll::EventData::new_u64;
        epoll::add(&epoll, &listener, data(LISTENER), epoll::EventFlags::IN)?;
        epoll::add(&epoll, &mailbox.wake, data(WAKE), epoll::EventFlags::IN)?;
        let ranks = (0..config.ranks).map(|_| RankState {
            incarnation: 1,
            recovered: true,
            determinants: Vec::new(),
            spoken: 0,
            delivery: None,
            send: None,
            cursor: Cursor::default(),
            resumed: 0,
            verifier: Verifier::default(),
        });
        let at_home = |r: &Rank| home(*r, config.routers) == config.id;
        let logs = (0..config.ranks).map(|r| Log::new(if at_home(&r) { config.ranks } else { 0 }));
        Ok(Engine {
            ranks: ranks.collect(),
            logs: logs.collect(),
            spill: Spill::create(&config.spill_dir)?,
            segments: Segments::new(
                config.memory_limit / 4 * 3,
                config.ranks,
                config.spill_dir.clone(),
            ),
            config,
            events,
            mailbox,
            epoll,
            listener,
            conns: HashMap::new(),
            next_conn: FIRST_CONN,
            waiting: Vec::new(),
            block_memory: 0,
            messages: 0,
            bytes: 0,
            spill_failed: None,
            dirty: Vec::new(),
        })
    }

    /// Runs until told to stop.
    pub fn run(mut self) {
        let mut events = Vec::with_capacity(256);
        let mut last_tick = Instant::now();
        let mut spin = Spin::default();
        loop {
            events.clear();
            match spin.wait(&self.epoll, &mut events) {
                Ok(()) | Err(rustix::io::Errno::INTR) => {}
                Err(e) => {
                    let _ = self.events.send(RouterEvent::Fatal { reason: e.to_string() });
                    return;
                }
            }
            for event in &events {
                match event.data.u64() {
                    LISTENER => self.accept(),
                    WAKE => {
                        if self.run_commands() {
                            return;
                        }
                    }
                    id => self.serve(id, event.flags),
                }
            }
            if last_tick.elapsed() >= TICK {
                last_tick = Instant::now();
                self.tick();
            }
        }
    }

    fn tick(&mut self) {
        let late: Vec<u64> = (self.conns.iter())
            .filter(|(_, c)| {
                !matches!(c.stage, Stage::Rank { .. }) && c.since.elapsed() > HANDSHAKE_TIMEOUT
            })
            .map(|(id, _)| *id)
            .collect();
        for id in late {
            self.close(id);
        }
        for (id, size) in std::mem::take(&mut self.waiting) {
            self.open_segment(id, size);
        }
        self.keep_within_memory();
    }

    fn accept(&mut self) {
        while let Ok((socket, _)) = self.listener.accept() {
            let strangers =
                self.conns.values().filter(|c| !matches!(c.stage, Stage::Rank { .. })).count();
            if strangers >= MAX_STRANGERS || socket.set_nonblocking(true).is_err() {
                continue;
            }
            let (id, conn) = (self.next_conn, Conn::new(socket));
            self.next_conn += 1;
            let data = epoll::EventData::new_u64(id);
            if epoll::add(&self.epoll, &conn, data, epoll::EventFlags::IN).is_ok() {
                self.conns.insert(id, conn);
            }
        }
    }

    fn serve(&mut self, id: u64, flags: epoll::EventFlags) {
        if flags.contains(epoll::EventFlags::OUT) {
            self.flush(id);
        }
        if !flags
            .intersects(epoll::EventFlags::IN | epoll::EventFlags::HUP | epoll::EventFlags::ERR)
        {
            return;
        }
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let alive = match conn.read() {
            Ok(alive) => self.understand(id).map(|()| alive),
            Err(e) => Err(e),
        };
        match alive {
            Ok(true) => {}
            Ok(false) => self.close(id),
            Err(e) => {
                if e.kind() == io::ErrorKind::InvalidData {
                    let (rank, incarnation) = self.speaker(id).unwrap_or((u32::MAX, 0));
                    self.emit(RouterEvent::Refused {
                        rank: (rank != u32::MAX).then_some(rank),
                        incarnation,
                        reason: e.to_string(),
                    });
                }
                self.close(id);
            }
        }
        self.deliver_dirty();
    }

    fn speaker(&self, id: u64) -> Option<(Rank, Incarnation)> {
        match self.conns.get(&id)?.stage {
            Stage::Rank { rank, incarnation, .. } => Some((rank, incarnation)),
            _ => None,
        }
    }

    fn emit(&self, event: RouterEvent) {
        // Nobody listens any more only while the job ends.
        let _ = self.events.send(event);
    }

    fn understand(&mut self, id: u64) -> io::Result<()> {
        loop {
            let Some(conn) = self.conns.get_mut(&id) else { return Ok(()) };
            match conn.stage {
                Stage::Rank { .. } => return self.frames(id),
                Stage::Closing => return Ok(()),
                _ => match conn.handshake(&self.config.secret).map_err(stop_reading)? {
                    Handshake::More => {
                        self.flush(id);
                        return Ok(());
                    }
                    Handshake::Proven(hello) => self.admit(id, hello),
                },
            }
        }
    }

    /// A proven connection: takes the place of an older one of the same stream, or is refused.
    fn admit(&mut self, id: u64, hello: Hello) {
        let Some(state) = self.ranks.get_mut(hello.rank as usize) else {
            return self.refuse(id, hello, "there is no such rank in the job".into());
        };
        if hello.incarnation != state.incarnation {
            let reason = format!(
                "incarnation {} of rank {} has been replaced by incarnation {}",
                hello.incarnation, hello.rank, state.incarnation
            );
            return self.refuse(id, hello, reason);
        }
        let slot = match hello.stream {
            Stream::Delivery => &mut state.delivery,
            Stream::Send => &mut state.send,
        };
        if let Some(old) = slot.replace(id) {
            self.remove(old);
        }
        if hello.stream == Stream::Send {
            self.greet_sender(id, hello.rank);
        }
    }

    fn refuse(&mut self, id: u64, hello: Hello, reason: String) {
        if let Some(conn) = self.conns.get_mut(&id) {
            let header = Header { inline: reason.len() as u32, ..Header::new(Kind::Refused) };
            conn.push(&header, reason.as_bytes());
            conn.stage = Stage::Closing;
            conn.since = Instant::now();
        }
        self.flush(id);
        let (rank, incarnation) = (Some(hello.rank), hello.incarnation);
        self.emit(RouterEvent::Refused { rank, incarnation, reason });
    }

    /// Tells a sender what this router has of it.
    fn greet_sender(&mut self, id: u64, rank: Rank) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        for destination in 0..self.config.ranks {
            if home(destination, self.config.routers) != self.config.id {
                continue;
            }
            let seq = self.logs[destination as usize].last_seq(rank);
            if seq > 0 {
                conn.push(&Header { peer: destination, seq, ..Header::new(Kind::Known) }, &[]);
            }
        }
        let state = &mut self.ranks[rank as usize];
        state.verifier = Verifier::default();
        let clock = state.determinants.last().map_or(0, |d| d.clock);
        conn.push(&Header { tag: clock, ..Header::new(Kind::Ready) }, &[]);
        self.flush(id);
    }

    fn frames(&mut self, id: u64) -> io::Result<()> {
        let Some(conn) = self.conns.get_mut(&id) else { return Ok(()) };
        let Stage::Rank { stream, rank, .. } = conn.stage else { return Ok(()) };
        let (input, filled) = conn.take_input();
        let mut used = 0;
        let mut result = Ok(());
        loop {
            match Frame::parse(&input[used..filled]).map_err(stop_reading) {
                Ok(Some(frame)) => {
                    used += frame.len;
                    result = match stream {
                        Stream::Send => self.sent(id, rank, &frame),
                        Stream::Delivery => self.asked(id, rank, &frame),
                    };
                    if result.is_err() {
                        break;
                    }
                }
                Ok(None) => break,
                Err(e) => {
                    result = Err(e);
                    break;
                }
            }
        }
        if let Some(conn) = self.conns.get_mut(&id) {
            conn.put_back(input, used);
        }
        if stream == Stream::Send {
            self.acknowledge(id, rank, false);
        }
        result
    }

    /// A frame on a send stream.
    fn sent(&mut self, id: u64, rank: Rank, frame: &Frame) -> io::Result<()> {
        self.keep_determinants(rank, frame.determinants);
        let h = &frame.header;
        if matches!(h.kind, Kind::Data | Kind::Resend) {
            let state = &mut self.ranks[rank as usize];
            state.spoken = state.spoken.max(h.position);
        }
        match h.kind {
            Kind::Data => self.log_message(rank, frame)?,
            Kind::Resend => self.verify(rank, h)?,
            Kind::Determinants => {}
            Kind::SegmentRequest => self.open_segment(id, h.size),
            Kind::SegmentDone => {
                if let Some(conn) = self.conns.get_mut(&id) {
                    conn.segments.retain(|s| *s != h.segment);
                }
                self.segments.close(h.segment);
            }
            Kind::Flush => {}
            _ => return Err(stop_reading("unexpected kind of frame on a send stream")),
        }
        if let Some(conn) = self.conns.get_mut(&id) {
            conn.frames += 1;
            conn.unacknowledged += 1;
            conn.unacknowledged_bytes += frame.len;
        }
        if h.kind == Kind::Flush {
            self.acknowledge(id, rank, true);
        }
        Ok(())
    }

    fn keep_determinants(&mut self, rank: Rank, bytes: &[u8]) {
        let known = &mut self.ranks[rank as usize].determinants;
        for d in Determinant::decode_all(bytes) {
            if known.last().is_none_or(|last| last.clock < d.clock) {
                known.push(d);
            }
        }
    }

    fn log_message(&mut self, source: Rank, frame: &Frame) -> io::Result<()> {
        let h = &frame.header;
        if h.peer >= self.config.ranks || home(h.peer, self.config.routers) != self.config.id {
            return Err(stop_reading("message for a rank that is not at home at this router"));
        }
        let last = self.logs[h.peer as usize].last_seq(source);
        if h.seq <= last {
            return Ok(());
        }
        if h.seq != last + 1 {
            return Err(stop_reading("a message is missing in the sequence of its sender"));
        }
        if h.flags & IN_SEGMENT != 0 {
            let end = h.offset.checked_add(h.size);
            match self.segments.get(h.segment) {
                Some(s) if end.is_some_and(|end| end <= s.size) => {}
                _ => return Err(stop_reading("message outside its segment")),
            }
            self.segments.frame_logged(h.segment);
        }
        let header = Header { kind: Kind::Deliver, peer: source, ..*h };
        self.logs[h.peer as usize].append(header, frame.payload);
        self.block_memory += frame.len as u64;
        self.messages += 1;
        self.bytes += h.size;
        if self.dirty.last() != Some(&h.peer) {
            self.dirty.push(h.peer);
        }
        Ok(())
    }

    fn verify(&mut self, source: Rank, h: &Header) -> io::Result<()> {
        if h.peer >= self.config.ranks || home(h.peer, self.config.routers) != self.config.id {
            return Err(stop_reading("message for a rank that is not at home at this router"));
        }
        let log = &self.logs[h.peer as usize];
        let verifier = &mut self.ranks[source as usize].verifier;
        if let Some(event) = verifier.check(source, h, log, &self.spill, &self.segments) {
            self.emit(event);
        }
        Ok(())
    }

    fn acknowledge(&mut self, id: u64, rank: Rank, now: bool) {
        let clock = self.ranks[rank as usize].determinants.last().map_or(0, |d| d.clock);
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let due = conn.unacknowledged >= ACK_FRAMES || conn.unacknowledged_bytes >= ACK_BYTES;
        if !due && !now {
            return;
        }
        conn.unacknowledged = 0;
        conn.unacknowledged_bytes = 0;
        let seq = conn.frames;
        conn.push(&Header { seq, tag: clock, ..Header::new(Kind::Ack) }, &[]);
        self.flush(id);
    }

    fn open_segment(&mut self, id: u64, size: u64) {
        if !self.conns.contains_key(&id) {
            return;
        }
        let mut opened = self.segments.open(size);
        if opened.is_err() {
            self.make_room("no space for large messages");
            opened = self.segments.open(size);
        }
        let Ok(segment) = opened else {
            // Tried again at the next tick: the sender is held back until there is space.
            self.waiting.push((id, size));
            return;
        };
        let s = self.segments.get(segment).expect("just made");
        let header = Header { segment, size: s.size, ..Header::new(Kind::Segment) };
        let file = s.file.clone();
        let conn = self.conns.get_mut(&id).expect("looked up above");
        conn.segments.push_back(segment);
        conn.push_with_descriptor(&header, file);
        self.flush(id);
    }

    /// A frame on a delivery stream.
    fn asked(&mut self, id: u64, rank: Rank, frame: &Frame) -> io::Result<()> {
        let h = &frame.header;
        match h.kind {
            Kind::Resume => self.resume(id, rank, h.position, h.tag),
            Kind::Replayed => {
                let state = &self.ranks[rank as usize];
                let messages = h.position.saturating_sub(state.resumed);
                let incarnation = state.incarnation;
                self.emit(RouterEvent::Replayed { rank, incarnation, messages });
                Ok(())
            }
            _ => Err(stop_reading("unexpected kind of frame on a delivery stream")),
        }
    }

    /// Starts a delivery stream behind `position`, with the determinants behind `clock`.
    fn resume(&mut self, id: u64, rank: Rank, position: u64, clock: u64) -> io::Result<()> {
        let log = &self.logs[rank as usize];
        let state = &mut self.ranks[rank as usize];
        let incarnation = state.incarnation;
        let refusal = if home(rank, self.config.routers) != self.config.id {
            Some("this is not the rank's home router".to_string())
        } else if !state.recovered {
            Some("the rank's recovery has not been prepared".to_string())
        } else if position < log.floor() || position > log.newest() {
            Some(format!(
                "the log holds messages {} to {}, the rank resumes behind {position}",
                log.floor() + 1,
                log.newest()
            ))
        } else {
            None
        };
        if let Some(reason) = refusal {
            let hello = Hello { stream: Stream::Delivery, rank, incarnation, nonce: [0; 16] };
            self.refuse(id, hello, reason);
            return Ok(());
        }
        state.cursor = log.cursor_after(position, &self.spill)?;
        state.resumed = position;
        let Some(conn) = self.conns.get_mut(&id) else { return Ok(()) };
        conn.segments.clear();
        let mut payload = Vec::new();
        let after = state.determinants.partition_point(|d| d.clock <= clock);
        for part in state.determinants[after..].chunks(MAX_INLINE / 16) {
            payload.clear();
            // A silence may not know what was discarded before it.
            let held = |d: &Determinant| Determinant { position: d.position.max(position), ..*d };
            payload.extend(part.iter().flat_map(|d| held(d).encode()));
            conn.push(
                &Header { inline: payload.len() as u32, ..Header::new(Kind::Replay) },
                &payload,
            );
        }
        conn.push(&Header::new(Kind::Ready), &[]);
        self.emit(RouterEvent::Connected { rank, incarnation });
        self.deliver(rank);
        Ok(())
    }

    fn deliver_dirty(&mut self) {
        while let Some(rank) = self.dirty.pop() {
            self.deliver(rank);
        }
        if self.block_memory > self.config.memory_limit / 4 {
            self.keep_within_memory();
        }
    }

    /// Feeds a rank from its log, as far as it takes.
    fn deliver(&mut self, rank: Rank) {
        let state = &mut self.ranks[rank as usize];
        let Some(id) = state.delivery else { return };
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let log = &self.logs[rank as usize];
        let mut failed = None;
        while !conn.blocked && failed.is_none() {
            while conn.waiting() < OUT_BYTES {
                match log.frame(&mut state.cursor, &self.spill) {
                    Ok(Some(frame)) => {
                        if frame.header.flags & IN_SEGMENT != 0 {
                            pass_segment(conn, &self.segments, frame.header.segment);
                        }
                        conn.push(&frame.header, frame.payload);
                        let len = frame.len;
                        log.advance(&mut state.cursor, len);
                    }
                    Ok(None) => break,
                    Err(e) => {
                        failed = Some(e);
                        break;
                    }
                }
            }
            if conn.waiting() == 0 {
                break;
            }
            if conn.flush().is_err() {
                return self.close(id);
            }
        }
        if conn.blocked {
            self.watch_writable(id);
        }
        if let Some(e) = failed {
            let reason = format!("the log of rank {rank} cannot be read back: {e}");
            self.emit(RouterEvent::Fatal { reason });
        }
    }

    fn watch_writable(&self, id: u64) {
        let Some(conn) = self.conns.get(&id) else { return };
        let mut flags = epoll::EventFlags::IN;
        if conn.blocked {
            flags |= epoll::EventFlags::OUT;
        }
        let _ = epoll::modify(&self.epoll, conn, epoll::EventData::new_u64(id), flags);
    }

    fn flush(&mut self, id: u64) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let was_blocked = conn.blocked;
        if conn.flush().is_err() {
            return self.close(id);
        }
        let (blocked, stage) = (conn.blocked, &conn.stage);
        match *stage {
            Stage::Closing if !blocked => return self.close(id),
            Stage::Rank { stream: Stream::Delivery, rank, .. } if was_blocked && !blocked => {
                self.watch_writable(id);
                return self.deliver(rank);
            }
            _ => {}
        }
        if blocked != was_blocked {
            self.watch_writable(id);
        }
    }

    /// Ends a connection.
    fn close(&mut self, id: u64) {
        let Some((rank, incarnation, stream)) = self.remove(id) else { return };
        let state = &mut self.ranks[rank as usize];
        let slot = match stream {
            Stream::Delivery => &mut state.delivery,
            Stream::Send => &mut state.send,
        };
        if *slot == Some(id) {
            *slot = None;
            if stream == Stream::Delivery {
                self.emit(RouterEvent::Disconnected { rank, incarnation });
            }
        }
    }

    /// Takes a connection away; its sender's segments take no more writes.
    fn remove(&mut self, id: u64) -> Option<(Rank, Incarnation, Stream)> {
        let conn = self.conns.remove(&id)?;
        let _ = epoll::delete(&self.epoll, &conn);
        self.waiting.retain(|(waiting, _)| *waiting != id);
        let Stage::Rank { stream, rank, incarnation } = conn.stage else { return None };
        if stream == Stream::Send {
            for segment in conn.segments {
                self.segments.abandon(segment);
            }
        }
        Some((rank, incarnation, stream))
    }

    fn keep_within_memory(&mut self) {
        self.block_memory = self.logs.iter().map(Log::memory).sum();
        let limit = self.config.memory_limit / 4;
        if self.block_memory <= limit {
            return;
        }
        if self.spill_failed.is_some_and(|at| at.elapsed() < Duration::from_secs(1)) {
            return;
        }
        self.spill_failed = None;
        let mut order: Vec<usize> = (0..self.logs.len()).collect();
        order.sort_by_key(|i| std::cmp::Reverse(self.logs[*i].memory()));
        for i in order {
            // Down to half the bound, so that this does not run for every message.
            while self.block_memory > limit / 2 {
                match self.logs[i].spill_one(&mut self.spill) {
                    Ok(0) => break,
                    Ok(n) => self.block_memory -= n,
                    Err(e) => {
                        self.spill_failed = Some(Instant::now());
                        return self.make_room(&format!("the log cannot be written: {e}"));
                    }
                }
            }
        }
    }

    /// No disk is left for the log: forgets what the rank with the largest log has taken already, and says
    /// that this rank cannot be recovered until its next image.
    fn make_room(&mut self, why: &str) {
        let taken = |r: usize| self.logs[r].passed(&self.ranks[r].cursor);
        let largest = (0..self.logs.len())
            .filter(|r| taken(*r) > self.logs[*r].floor())
            .max_by_key(|r| self.logs[*r].bytes());
        let Some(r) = largest else { return };
        let position = taken(r);
        self.forget(r as Rank, position);
        let reason = format!("{why}; messages up to {position} are no longer logged");
        self.emit(RouterEvent::Unprotected { rank: r as Rank, reason });
    }

    fn forget(&mut self, rank: Rank, position: u64) {
        let freed = self.logs[rank as usize].discard(position, &mut self.spill);
        for (segment, frames) in freed.segments {
            if self.segments.frames_discarded(segment, frames) {
                for conn in self.conns.values_mut() {
                    drop_segment(conn, segment);
                }
            }
        }
        self.block_memory = self.logs.iter().map(Log::memory).sum();
    }

    /// Runs what the handle asked for. True: stop.
    fn run_commands(&mut self) -> bool {
        let mut count = [0u8; 8];
        let _ = rustix::io::read(&self.mailbox.wake, &mut count);
        let commands = std::mem::take(&mut *self.mailbox.commands.lock().unwrap());
        for command in commands {
            match command {
                Command::Stop => return true,
                Command::Fence(rank, incarnation, reply) => {
                    let _ = reply.send(self.fence(rank, incarnation));
                }
                Command::Recover(rank, incarnation, mut determinants) => {
                    let state = &mut self.ranks[rank as usize];
                    if state.incarnation == incarnation {
                        determinants.append(&mut state.determinants);
                        state.determinants = merge(determinants);
                        state.recovered = true;
                    }
                }
                Command::Discard(rank, clock, position) => {
                    let known = &mut self.ranks[rank as usize].determinants;
                    let gone = known.partition_point(|d| d.clock <= clock);
                    known.drain(..gone);
                    self.forget(rank, position);
                }
                Command::BreakConnections(rank) => {
                    let state = &self.ranks[rank as usize];
                    for id in [state.delivery, state.send].into_iter().flatten() {
                        self.close(id);
                    }
                }
                Command::Stats(reply) => {
                    let _ = reply.send(self.stats());
                }
            }
        }
        false
    }

    fn fence(&mut self, rank: Rank, incarnation: Incarnation) -> Vec<Determinant> {
        // What the old incarnation has already given to the kernel is part of its history: an image taken
        // after a send counts on it.
        if let Some(id) = self.ranks[rank as usize].send {
            self.drain(id);
        }
        let state = &mut self.ranks[rank as usize];
        state.incarnation = state.incarnation.max(incarnation);
        state.recovered = false;
        for id in [state.delivery.take(), state.send.take()].into_iter().flatten() {
            self.remove(id);
        }
        let state = &self.ranks[rank as usize];
        let mut known = state.determinants.clone();
        let last = known.last().copied().unwrap_or(Determinant { clock: 0, position: 0 });
        if state.spoken > last.clock {
            // It spoke without having seen more: the next life must not see more before that either.
            known.push(Determinant { clock: state.spoken, position: last.position });
        }
        known
    }

    /// Reads what a connection still holds.
    fn drain(&mut self, id: u64) {
        // More than a socket buffer ever holds, so that a sender that is still alive cannot keep us here.
        for _ in 0..1024 {
            let Some(conn) = self.conns.get_mut(&id) else { return };
            let before = conn.received;
            let alive = conn.read();
            let more = conn.received > before;
            if self.understand(id).is_err() || !matches!(alive, Ok(true)) || !more {
                break;
            }
        }
        self.deliver_dirty();
    }

    fn stats(&self) -> Stats {
        let log_bytes = self.logs.iter().map(Log::bytes).collect();
        Stats {
            memory_bytes: self.logs.iter().map(Log::memory).sum::<u64>() + self.segments.memory,
            disk_bytes: self.spill.bytes() + self.segments.disk,
            messages: self.messages,
            bytes: self.bytes,
            log_bytes,
        }
    }
}

/// One list out of those of several routers. A router that has not heard of the last determinants gives too low a
/// position for a silence: the positions never fall.
fn merge(mut determinants: Vec<Determinant>) -> Vec<Determinant> {
    determinants.sort_unstable();
    let mut merged: Vec<Determinant> = Vec::with_capacity(determinants.len());
    for mut d in determinants {
        match merged.last_mut() {
            Some(last) if last.clock == d.clock => last.position = last.position.max(d.position),
            last => {
                d.position = d.position.max(last.map_or(0, |l| l.position));
                merged.push(d);
            }
        }
    }
    merged
}

/// Gives the receiver a segment's descriptor when it does not have it.
fn pass_segment(conn: &mut Conn, segments: &Segments, id: u32) {
    if conn.segments.contains(&id) {
        return;
    }
    let Some(segment) = segments.get(id) else { return };
    while conn.segments.len() >= PASSED_SEGMENTS {
        let oldest = conn.segments[0];
        drop_segment(conn, oldest);
    }
    let header = Header { segment: id, size: segment.size, ..Header::new(Kind::Segment) };
    conn.push_with_descriptor(&header, segment.file.clone());
    conn.segments.push_back(id);
}

fn drop_segment(conn: &mut Conn, id: u32) {
    let delivery = matches!(conn.stage, Stage::Rank { stream: Stream::Delivery, .. });
    if delivery && conn.segments.contains(&id) {
        conn.segments.retain(|s| *s != id);
        conn.push(&Header { segment: id, ..Header::new(Kind::SegmentDrop) }, &[]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn determinants_of_several_routers_make_one_history() {
        let d = |clock, position| Determinant { clock, position };
        // The second router has heard a send at clock 9, but not of what became visible at clock 5.
        let merged = merge(vec![d(2, 1), d(5, 4), d(2, 1), d(9, 1), d(5, 4)]);
        assert_eq!(merged, [d(2, 1), d(5, 4), d(9, 4)]);
    }
}
