//! The router's loop: one thread, one epoll. It moves bytes between sockets and the protocol, and
//! decides nothing. It must never wait for a rank.

use crate::config::Config;
use crate::conn::{Accepted, Conn, Stage};
use crate::protocol::{ConnId, Output, Protocol, RouterCommand, RouterEvent, UNRECEIVED_BYTES};
use crate::saved;
use crate::space::{Bounds, Files};
use crate::spin::{Sizes, Spin, Traffic, AT_ONCE, ONE_AND_ANOTHER};
use crate::trunk::{self, put_frame, put_word, Channels, Record, Word};
use crossbeam_channel::Sender;
use eyrie_transport::handshake::{verdict, HandshakeError, Step};
use eyrie_transport::Listener;
use eyrie_wire::auth::Secret;
use eyrie_wire::control::Claim;
use eyrie_wire::data::{
    put, put_plain, Determinant, Frame, Header, ObservedPart, StreamKind, MAX_INLINE,
};
use eyrie_wire::directory::KeptUntil;
use eyrie_wire::domains::Domains;
use eyrie_wire::{Incarnation, Rank, RankInstance, RouterId};
use rustc_hash::FxHashMap;
use rustix::buffer::spare_capacity;
use rustix::event::epoll;
use rustix::io::Errno;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// What [`crate::Router`] asks of the loop.
pub enum Order {
    Command(RouterCommand),
    Accept(Accepted),
    Stop,
}

/// The queue of orders and the descriptor that wakes the loop.
pub struct Mailbox {
    pub orders: Mutex<Vec<Order>>,
    pub wake: OwnedFd,
}

const LISTENER: u64 = 0;
const WAKE: u64 = 1;
const FIRST_CONN: u64 = 2;

/// How long a handshake may take, or the end of a connection.
const PATIENCE: Duration = Duration::from_secs(5);
/// Most connections in their handshake at a time.
const MAX_STRANGERS: usize = 1024;
/// How often the loop checks deadlines and space.
const TICK: Duration = Duration::from_millis(500);
/// Most reads of a connection that is drained before its rank is fenced. It is more than a socket's
/// buffer ever holds, and ends the reading of a sender that still lives.
const DRAIN_READS: usize = 1024;

/// How often a connection's queue is written and filled again before other connections have their
/// turn.
const WRITE_ROUNDS: u32 = 16;
/// Where several connections can be read, all are read before anything is written: what they send
/// to the same rank wakes it once. With this many bytes queued, writing is not deferred.
const DEFERRED_BYTES: usize = 16 * 1024;
/// Before it writes, the loop also reads what has arrived meanwhile, at most this often.
const READ_ROUNDS: u32 = 4;

/// The sockets, to which the protocol's output goes.
struct Wires {
    epoll: Arc<OwnedFd>,
    conns: FxHashMap<ConnId, Conn>,
    /// Streams on trunks, which have numbers as connections have.
    channels: Channels,
    /// Connections with something to write.
    touched: Vec<ConnId>,
    /// Bytes queued since the last write.
    queued_bytes: usize,
    id: RouterId,
    events: Sender<(RouterId, RouterEvent)>,
}

impl Wires {
    fn queue(&mut self, id: ConnId, put: impl FnOnce(&mut Conn)) {
        if let Some(conn) = self.conns.get_mut(&id) {
            let before = conn.out.len();
            put(conn);
            self.queued_bytes += conn.out.len() - before;
            if !conn.touched {
                conn.touched = true;
                self.touched.push(id);
            }
        }
    }

    /// Queues a frame for a connection, or on the trunk of a stream.
    fn put(&mut self, id: ConnId, put: impl FnOnce(&mut Vec<u8>)) {
        match self.channels.of(id) {
            Some((trunk, rank)) => self.queue(trunk, |conn| put_frame(&mut conn.out, rank, put)),
            None => self.queue(id, |conn| put(&mut conn.out)),
        }
    }

    /// Sets the events for which epoll reports the connection.
    fn watch(&mut self, id: ConnId) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        conn.watched = conn.blocked;
        if conn.held {
            return;
        }
        let mut flags = epoll::EventFlags::empty();
        flags.set(epoll::EventFlags::IN, !matches!(conn.stage, Stage::Closing));
        flags.set(epoll::EventFlags::OUT, conn.blocked);
        // Where that fails, the connection is closed at its rank's next attempt.
        let _ = epoll::modify(&self.epoll, &*conn, epoll::EventData::new_u64(id), flags);
    }

    fn remove(&mut self, id: ConnId) {
        if let Some(conn) = self.conns.remove(&id) {
            if !conn.held {
                let _ = epoll::delete(&self.epoll, &conn);
            }
        }
    }
}

impl Output<Arc<OwnedFd>> for Wires {
    fn frame(&mut self, id: ConnId, header: &Header, payload: &[u8]) {
        self.put(id, |out| put_plain(out, header, payload));
    }

    fn replay(&mut self, id: ConnId, list: &[Determinant], observed: Option<ObservedPart<&[u8]>>) {
        self.put(id, |out| {
            put(out, &Header::Replay, list.iter().copied(), observed, &[]);
        });
    }

    fn logged(&mut self, id: ConnId, frame: &[u8]) {
        self.put(id, |out| out.extend_from_slice(frame));
    }

    fn frame_with_file(&mut self, id: ConnId, header: &Header, file: Arc<OwnedFd>) {
        self.queue(id, |conn| {
            conn.attach(file);
            put_plain(&mut conn.out, header, &[]);
        });
    }

    fn has_room(&self, id: ConnId) -> bool {
        let has_room = |id| self.conns.get(id).is_some_and(Conn::has_room);
        match self.channels.of(id) {
            Some((trunk, _)) => self.channels.has_room(id, has_room(&trunk)),
            None => has_room(&id),
        }
    }

    fn close(&mut self, id: ConnId) {
        if let Some((trunk, rank)) = self.channels.of(id) {
            self.channels.remove(id);
            return self.queue(trunk, |conn| put_word(&mut conn.out, rank, Word::Closed));
        }
        self.queue(id, |conn| {
            conn.stage = Stage::Closing;
            conn.since = Instant::now();
        });
    }

    fn hold(&mut self, id: ConnId, held: bool) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        if conn.held == held {
            return;
        }
        conn.held = held;
        // Removed from epoll altogether: otherwise it would report the peer's end again and again.
        if held {
            let _ = epoll::delete(&self.epoll, &*conn);
        } else {
            let mut flags = epoll::EventFlags::IN;
            flags.set(epoll::EventFlags::OUT, conn.blocked);
            let _ = epoll::add(&self.epoll, &*conn, epoll::EventData::new_u64(id), flags);
        }
    }

    fn event(&mut self, event: RouterEvent) {
        tracing::debug!(?event);
        // The receiver is gone only while the job ends.
        let _ = self.events.send((self.id, event));
    }
}

/// The loop.
pub struct Loop {
    protocol: Protocol<Files>,
    wires: Wires,
    listener: Listener,
    secret: Secret,
    mailbox: Arc<Mailbox>,
    next_conn: ConnId,
    /// The connections that were read last, newest first.
    read_last: [ConnId; 3],
    sizes: Sizes,
    begun: Instant,
}

impl Loop {
    /// Binds the address and opens the files of the log.
    ///
    /// # Errors
    /// When either cannot be done.
    pub fn new(
        config: Config,
        secret: Secret,
        events: Sender<(RouterId, RouterEvent)>,
        mailbox: Arc<Mailbox>,
    ) -> io::Result<Loop> {
        let listener = Listener::bind(&config.listen)?;
        listener.set_nonblocking(true)?;
        let listening = RouterEvent::Listening(listener.addr()?);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let data = epoll::EventData::new_u64;
        epoll::add(&epoll, &listener, data(LISTENER), epoll::EventFlags::IN)?;
        epoll::add(&epoll, &mailbox.wake, data(WAKE), epoll::EventFlags::IN)?;
        let files = Files::create(&config.spill_dir)?;
        let bounds = Bounds { memory: config.log_memory, disk: config.log_disk };
        let mut protocol =
            Protocol::new(config.is_primary, bounds, files).beginning_with(&config.incarnations);
        if config.gateway.is_some() {
            protocol = protocol.as_gateway();
        } else if config.kept_until == KeptUntil::Received {
            protocol = protocol.keeping_until_received(UNRECEIVED_BYTES);
        }
        if config.takes_over {
            protocol = protocol.taking_over();
        }
        if let Some(at) = &config.saved {
            protocol = saved::read(protocol, at, (config.id, &secret))?;
        }
        // The thread that starts this router has the other end.
        let _ = events.send((config.id, listening));
        Ok(Loop {
            protocol,
            wires: Wires {
                epoll: Arc::new(epoll),
                conns: FxHashMap::default(),
                channels: Channels::default(),
                touched: Vec::new(),
                queued_bytes: 0,
                id: config.id,
                events,
            },
            listener,
            secret,
            mailbox,
            next_conn: FIRST_CONN,
            read_last: [WAKE; 3],
            sizes: Sizes::default(),
            begun: Instant::now(),
        })
    }

    /// Runs until it is stopped.
    pub fn run(mut self) {
        let mut events = Vec::with_capacity(256);
        let mut last_tick = Instant::now();
        let mut spin = Spin::default();
        let epoll = Arc::clone(&self.wires.epoll);
        let timeout = TICK.try_into().expect("a short time");
        loop {
            events.clear();
            let traffic = self.traffic();
            let expected = self.expected_answer();
            let own = &mut self;
            let peek = expected.map(|id| move || own.serve(id, epoll::EventFlags::IN));
            match spin.wait(&epoll, &mut events, &timeout, &traffic, peek) {
                Ok(()) | Err(Errno::INTR) => {}
                Err(e) => return self.wires.event(RouterEvent::Fatal { reason: e.to_string() }),
            }
            for _ in 0..READ_ROUNDS {
                if self.serve_all(&events) {
                    return;
                }
                if !self.has_more(&mut events) {
                    break;
                }
            }
            self.write_touched();
            if last_tick.elapsed() >= TICK {
                last_tick = Instant::now();
                self.tick();
            }
        }
    }

    /// Where two ranks answer each other, the connection on which the next answer is expected.
    fn expected_answer(&self) -> Option<ConnId> {
        let [newest, before, first] = self.read_last;
        let take_turns = newest == first && newest != before;
        let conns = Some(&self.wires.conns).filter(|c| take_turns && c.len() <= ONE_AND_ANOTHER)?;
        let is_open = |conn: &&Conn| matches!(conn.stage, Stage::Open) && !conn.held;
        conns.get(&before).filter(is_open).map(|_| before)
    }

    fn traffic(&self) -> Traffic {
        Traffic { connections: self.wires.conns.len(), short: self.sizes.are_short() }
    }

    /// Bytes that have arrived on a connection; `None`: it does not exist any more.
    fn received(&self, id: ConnId) -> Option<u64> {
        self.wires.conns.get(&id).map(|conn| conn.received)
    }

    /// Serves all connections with events. True: stop.
    fn serve_all(&mut self, events: &[epoll::Event]) -> bool {
        for event in events {
            match event.data.u64() {
                LISTENER => self.accept(),
                WAKE => {
                    if self.run_orders() {
                        return true;
                    }
                }
                id => drop(self.serve(id, event.flags)),
            }
            if self.wires.queued_bytes >= DEFERRED_BYTES {
                self.write_touched();
            }
        }
        false
    }

    /// Whether there is more to be read by now, where several ranks may send to the same one and
    /// frames for it are deferred. While payloads are in segments, nothing more has arrived as a
    /// rule: a rank takes longer to write one than the router to deliver the one before.
    fn has_more(&self, events: &mut Vec<epoll::Event>) -> bool {
        events.clear();
        self.wires.queued_bytes > 0
            && self.sizes.largest() <= MAX_INLINE as u64
            && self.wires.conns.len() > ONE_AND_ANOTHER
            && epoll::wait(&self.wires.epoll, spare_capacity(events), Some(&AT_ONCE))
                .is_ok_and(|n| n > 0)
    }

    fn tick(&mut self) {
        let late: Vec<ConnId> = (self.wires.conns.iter())
            .filter(|(_, c)| !matches!(c.stage, Stage::Open) && c.since.elapsed() > PATIENCE)
            .map(|(id, _)| *id)
            .collect();
        for id in late {
            self.end(id);
        }
        self.protocol.tick(self.begun.elapsed(), &mut self.wires);
        self.write_touched();
    }

    fn accept(&mut self) {
        while let Ok(socket) = self.listener.accept() {
            if socket.set_nonblocking(true).is_ok() {
                self.add(Conn::new(socket));
            }
        }
    }

    /// Adds a connection whose peer has not proven itself.
    fn add(&mut self, conn: Conn) {
        self.limit_strangers(conn.is_of_line());
        let id = self.next_conn;
        self.next_conn += 1;
        let data = epoll::EventData::new_u64(id);
        if epoll::add(&self.wires.epoll, &conn, data, epoll::EventFlags::IN).is_ok() {
            self.wires.conns.insert(id, conn);
        }
    }

    /// Where too many connections are in their handshake, ends the oldest one: a peer that knows
    /// the secret needs little time. Those at the port of a gateway are counted by themselves: they
    /// must not disturb the ranks of this domain.
    fn limit_strangers(&mut self, of_line: bool) {
        let strangers = self.wires.conns.iter();
        let strangers = strangers.filter(|(_, c)| matches!(c.stage, Stage::Handshake(_)));
        let strangers = strangers.filter(|(_, c)| c.is_of_line() == of_line);
        let strangers: Vec<_> = strangers.map(|(id, c)| (c.since, *id)).collect();
        if let Some((_, oldest)) =
            strangers.iter().min().filter(|_| strangers.len() >= MAX_STRANGERS)
        {
            self.end(*oldest);
        }
    }

    /// Serves a connection. True: something has arrived on it, or it has ended.
    fn serve(&mut self, id: ConnId, flags: epoll::EventFlags) -> bool {
        use epoll::EventFlags as F;
        if flags.contains(F::OUT) {
            self.write(id);
        }
        let before = self.received(id);
        if flags.intersects(F::IN | F::HUP | F::ERR) {
            // epoll does not report what the connection has in its buffer.
            while self.read(id) && self.wires.conns.get(&id).is_some_and(Conn::has_more) {}
        }
        let came = self.received(id) != before;
        if came {
            self.read_last.rotate_right(1);
            self.read_last[0] = id;
        }
        came
    }

    /// Reads what is there and handles it. True: more may come.
    fn read(&mut self, id: ConnId) -> bool {
        let Some(conn) = self.wires.conns.get_mut(&id) else { return false };
        if matches!(conn.stage, Stage::Closing) {
            // Finds out whether the peer is still there to receive the rest.
            self.write(id);
            return false;
        }
        let before = conn.received;
        let alive = match conn.read() {
            Ok(true) if conn.received == before => return true,
            Ok(alive) => self.process_input(id) && alive,
            Err(e) => {
                tracing::info!(conn = id, error = %e, "a connection broke");
                false
            }
        };
        if !alive {
            self.end(id);
        }
        alive
    }

    /// Ends a connection from this side.
    fn end(&mut self, id: ConnId) {
        match self.wires.conns.get(&id).map(|c| &c.stage) {
            // What is queued is written first.
            Some(Stage::Closing) if self.wires.conns[&id].waiting() > 0 => {}
            Some(_) => self.drop_conn(id),
            None => {}
        }
    }

    /// A connection is gone, with the streams on it.
    fn drop_conn(&mut self, id: ConnId) {
        let is_trunk = self.wires.conns.get(&id).is_some_and(Conn::is_of_line);
        if is_trunk {
            for stream in self.wires.channels.remove_trunk(id) {
                self.protocol.disconnected(stream, &mut self.wires);
            }
        }
        self.protocol.disconnected(id, &mut self.wires);
        self.wires.remove(id);
    }

    /// Handles what was read: steps of the handshake, then frames. False: the connection is over.
    fn process_input(&mut self, id: ConnId) -> bool {
        while let Some(conn) = self.wires.conns.get_mut(&id).filter(|c| c.can_step()) {
            let step = conn.handshake(&self.secret);
            self.wires.queue(id, |_| {});
            match step {
                Ok(Step::More) => {}
                Ok(Step::Proven(claim, keys)) => {
                    if let Some(conn) = self.wires.conns.get_mut(&id) {
                        conn.open(keys);
                    }
                    return self.admit(id, &claim);
                }
                Err(e) => return self.refuse_stranger(id, &e),
            }
        }
        match self.wires.conns.get(&id).map(|c| &c.stage) {
            Some(Stage::Open) if self.wires.conns[&id].is_of_line() => self.records(id),
            Some(Stage::Open) => self.frames(id),
            other => other.is_some(),
        }
    }

    fn refuse_stranger(&mut self, id: ConnId, e: &HandshakeError) -> bool {
        self.refuse(id, None, e.to_string())
    }

    /// Refuses a connection. The controller is told, but not of those who find the port of a
    /// gateway: everyone can reach that.
    fn refuse(&mut self, id: ConnId, instance: Option<RankInstance>, reason: String) -> bool {
        if self.wires.conns.get(&id).is_some_and(Conn::is_of_line) {
            tracing::info!(conn = id, reason, "a connection from outside was refused");
        } else {
            self.wires.event(RouterEvent::Refused { instance, reason });
        }
        self.wires.close(id);
        true
    }

    fn admit(&mut self, id: ConnId, claim: &Claim) -> bool {
        if self.wires.conns.get(&id).is_some_and(Conn::is_of_line) {
            return self.admit_trunk(id, claim);
        }
        let Claim::Rank { instance, stream } = *claim else {
            self.wires.queue(id, |conn| conn.out.extend(verdict(Err("ranks only"))));
            return self.refuse(id, None, "a peer that is no rank".into());
        };
        let admitted = self.protocol.admit(instance);
        let answer = verdict(admitted.as_ref().map(drop).map_err(String::as_str));
        self.wires.queue(id, |conn| conn.out.extend(answer));
        match admitted {
            Ok(()) => {
                tracing::info!(conn = id, %instance, ?stream, "connected");
                let files = self.wires.conns.get(&id).is_some_and(Conn::passes_files);
                self.protocol.connected(id, instance, stream, files, &mut self.wires);
            }
            Err(reason) => return self.refuse(id, Some(instance), reason),
        }
        true
    }

    /// The gateway of another domain has proven itself.
    fn admit_trunk(&mut self, id: ConnId, claim: &Claim) -> bool {
        let admitted = match claim {
            Claim::Trunk => Ok(()),
            _ => Err("another domain's ranks receive, by trunks"),
        };
        self.wires.queue(id, |conn| conn.out.extend(verdict(admitted)));
        match admitted {
            Ok(()) => true,
            Err(reason) => self.refuse(id, None, reason.into()),
        }
    }

    /// Handles the records of a trunk. False: it is over.
    fn records(&mut self, id: ConnId) -> bool {
        let Some(conn) = self.wires.conns.get_mut(&id) else { return false };
        let (input, filled) = conn.take_input();
        let mut used = 0;
        let end = loop {
            match trunk::parse(&input[used..filled]) {
                Ok(Some((rank, record, len))) => {
                    used += len;
                    if let Err(reason) = self.record(id, rank, record) {
                        break Err(reason);
                    }
                }
                Ok(None) => break Ok(()),
                Err(reason) => break Err(reason),
            }
        };
        if let Some(conn) = self.wires.conns.get_mut(&id) {
            conn.put_back(input, used);
        }
        self.protocol.settle(id, &mut self.wires);
        if let Err(reason) = end {
            tracing::info!(conn = id, reason, "a trunk is refused");
        }
        end.is_ok()
    }

    /// Handles a record for the stream of a rank.
    ///
    /// # Errors
    /// Why the trunk is over.
    fn record(&mut self, trunk: ConnId, rank: Rank, record: Record) -> Result<(), &'static str> {
        let known = self.wires.channels.find(trunk, rank);
        match (record, known) {
            (Record::Frame(bytes), known) => {
                let frame = Frame::parse(bytes)?.filter(|frame| frame.len == bytes.len());
                let frame = frame.ok_or("a record is no frame")?;
                let known = match (known, frame.header) {
                    (None, Header::Resume(_)) => self.begin_stream(trunk, rank)?,
                    // Of a stream that has ended meanwhile.
                    (known, _) => known,
                };
                if let Some(id) = known {
                    self.protocol.frame(id, &frame, &mut self.wires);
                }
            }
            (Record::Word(Word::Closed), _) => return Err("a word that only a sender says"),
            // It has ended meanwhile.
            (Record::Word(_), None) => {}
            (Record::Word(word), Some(id)) => {
                self.wires.channels.set_stopped(id, word == Word::Stop);
                self.protocol.writable(id, &mut self.wires);
            }
        }
        Ok(())
    }

    /// Begins the stream of a rank on a trunk; `None`: it cannot be yet, and its receiver knows.
    ///
    /// # Errors
    /// When the rank is none of that domain, as far as is known here.
    fn begin_stream(&mut self, trunk: ConnId, rank: Rank) -> Result<Option<ConnId>, &'static str> {
        if !self.wires.conns.get(&trunk).is_some_and(|conn| conn.is_of_line_for(rank)) {
            return Err("another domain may only receive for its own ranks");
        }
        let instance = RankInstance { rank, incarnation: Incarnation(1) };
        if let Err(reason) = self.protocol.admit(instance) {
            tracing::info!(conn = trunk, %rank, reason, "a stream is refused");
            self.wires.queue(trunk, |conn| put_word(&mut conn.out, rank, Word::Closed));
            return Ok(None);
        }
        let id = self.next_conn;
        self.next_conn += 1;
        self.wires.channels.add(id, trunk, rank);
        self.protocol.connected(id, instance, StreamKind::Delivery, false, &mut self.wires);
        Ok(Some(id))
    }

    fn frames(&mut self, id: ConnId) -> bool {
        let Some(conn) = self.wires.conns.get_mut(&id) else { return false };
        let (input, filled) = conn.take_input();
        let mut used = 0;
        let mut open = true;
        while open {
            match Frame::parse(&input[used..filled]) {
                Ok(Some(frame)) => {
                    used += frame.len;
                    if let Header::Message(message) = &frame.header {
                        self.sizes.note(message.size);
                    }
                    open = self.protocol.frame(id, &frame, &mut self.wires);
                }
                Ok(None) => break,
                Err(reason) => {
                    self.protocol.refuse(id, reason, &mut self.wires);
                    open = false;
                }
            }
        }
        if let Some(conn) = self.wires.conns.get_mut(&id) {
            conn.put_back(input, used);
        }
        self.protocol.settle(id, &mut self.wires);
        true
    }

    fn write_touched(&mut self) {
        self.wires.queued_bytes = 0;
        while let Some(id) = self.wires.touched.pop() {
            self.write(id);
        }
    }

    /// Writes what is queued, and what more the protocol has for this connection.
    fn write(&mut self, id: ConnId) {
        for round in 1.. {
            let Some(conn) = self.wires.conns.get_mut(&id) else { return };
            conn.touched = false;
            if conn.flush().is_err() {
                return self.drop_conn(id);
            }
            match (&conn.stage, conn.blocked) {
                (_, true) => break,
                (Stage::Closing, false) => return self.wires.remove(id),
                (_, false) => {}
            }
            if !self.fill(id) {
                break;
            }
            if round == WRITE_ROUNDS {
                // Other connections have their turn. As there is room, the kernel reports it at
                // once.
                if let Some(conn) = self.wires.conns.get_mut(&id) {
                    conn.blocked = true;
                }
                break;
            }
        }
        if self.wires.conns.get(&id).is_some_and(|c| c.blocked != c.watched) {
            self.wires.watch(id);
        }
    }

    /// Queues what more the protocol has for a connection that can be written. True: something.
    fn fill(&mut self, id: ConnId) -> bool {
        if !self.wires.conns.get(&id).is_some_and(Conn::is_of_line) {
            return self.protocol.writable(id, &mut self.wires);
        }
        let mut queued = false;
        while self.wires.has_room(id) {
            let Some(stream) = self.wires.channels.next_starved(id) else { break };
            queued |= self.protocol.writable(stream, &mut self.wires);
        }
        queued
    }

    /// Carries out the orders in the mailbox. True: stop.
    fn run_orders(&mut self) -> bool {
        let mut count = [0u8; 8];
        let _ = rustix::io::read(&self.mailbox.wake, &mut count);
        let orders = self.mailbox.orders.lock().map(|mut o| std::mem::take(&mut *o));
        for order in orders.unwrap_or_default() {
            match order {
                Order::Stop => return true,
                Order::Accept(accepted) => self.add(Conn::of_line(accepted)),
                Order::Command(RouterCommand::Save(at)) => {
                    let written = saved::write(&self.protocol, &at, (self.wires.id, &self.secret));
                    self.wires.event(RouterEvent::Saved(written.map_err(|e| e.to_string())));
                }
                Order::Command(RouterCommand::Domains(domains)) => self.end_lines(&domains),
                Order::Command(command) => {
                    if let RouterCommand::Fence(instance) = command {
                        self.drain(instance.rank);
                    }
                    self.protocol.command(command, &mut self.wires);
                }
            }
        }
        self.write_touched();
        false
    }

    /// Ranks have gone from one domain to another, or a domain has ended: who has connected before
    /// as one of these has other rights now, and connects anew.
    fn end_lines(&mut self, domains: &Domains) {
        let lines = self.wires.conns.iter().filter(|(_, conn)| conn.is_of_line());
        let changed = lines.filter(|(_, conn)| !conn.is_of_one_of(domains));
        let changed: Vec<ConnId> = changed.map(|(id, _)| *id).collect();
        changed.into_iter().for_each(|id| self.drop_conn(id));
    }

    /// Reads what the rank's send stream still holds. What an old incarnation has given to the
    /// kernel is part of its history, because an image taken after the send relies on it.
    fn drain(&mut self, rank: Rank) {
        let Some(id) = self.protocol.send_stream(rank) else { return };
        for _ in 0..DRAIN_READS {
            let before = self.received(id);
            if !self.read(id) || self.received(id) == before {
                break;
            }
        }
    }
}
