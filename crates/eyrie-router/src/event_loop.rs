//! The router's loop: one thread, one epoll. It moves bytes between sockets and the protocol, and
//! decides nothing. It must never wait for a rank.

use crate::config::Config;
use crate::conn::{Accepted, Conn, Stage};
use crate::protocol::{ConnId, Output, Protocol, RouterCommand, RouterEvent, UNRECEIVED_BYTES};
use crate::saved;
use crate::space::{Bounds, Files};
use crossbeam_channel::Sender;
use eyrie_transport::handshake::{verdict, HandshakeError, Step};
use eyrie_transport::Listener;
use eyrie_wire::auth::Secret;
use eyrie_wire::control::Claim;
use eyrie_wire::data::{put, put_plain, Determinant, Frame, Header, ObservedPart, MAX_INLINE};
use eyrie_wire::directory::KeptUntil;
use eyrie_wire::{RankInstance, RouterId};
use rustc_hash::FxHashMap;
use rustix::buffer::spare_capacity;
use rustix::event::{epoll, Timespec};
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

/// The connections of two ranks that answer each other: each has one to send and one to receive. A
/// rank has nothing to send until the other's message has arrived.
const ONE_AND_ANOTHER: usize = 4;
/// Of this many polls one asks for all connections; the others only look at the connection on which
/// an answer is expected.
const PEEKS: u32 = 16;
/// How long the router polls before it sleeps, and after how many failures it stops polling.
const SPIN_TIME: Duration = Duration::from_micros(20);
const SPIN_MISSES: u32 = 8;
/// How long it polls while messages are short. Where there are more ranks than processors, an
/// alltoall of short messages takes 5 % less time with it. One of 64 KiB would take 10 to 30 %
/// more, and LAMMPS 3 to 10 % more.
const SPIN_TIME_SHORT: Duration = Duration::from_micros(60);
/// Messages are short up to this size in bytes. A longer one counts for some hundred messages more.
const SHORT_BYTES: u64 = 1024;
const REMEMBERED: u64 = 64;
const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// Adaptive polling. While events follow each other within a few microseconds, polling is faster
/// than sleeping and being woken. After `most` failures in a row the router sleeps at once. Polling
/// does not help either where ranks compute for long in between: the router would interrupt the
/// computation. On a single processor the router does not poll. Where several ranks may have
/// something to send, it yields the processor, asks once more, and sleeps.
struct Spin {
    /// Polls in a row that found nothing in time.
    misses: u32,
    /// From this many misses on it sleeps at once.
    most: u32,
    /// Polls since the last one for all connections.
    peeks: u32,
}

/// The traffic of the router, as far as it matters for polling.
struct Traffic {
    connections: usize,
    short: bool,
}

impl Default for Spin {
    fn default() -> Spin {
        let processors = std::thread::available_parallelism().map_or(2, usize::from);
        Spin { misses: 0, peeks: 0, most: if processors > 1 { SPIN_MISSES } else { 0 } }
    }
}

impl Spin {
    /// Waits for an event on a connection, or until `peek`, which tries the connection on which an
    /// answer is expected, has served it: that saves one system call a message.
    fn wait(
        &mut self,
        epoll: &OwnedFd,
        events: &mut Vec<epoll::Event>,
        traffic: &Traffic,
        mut peek: Option<impl FnMut() -> bool>,
    ) -> Result<(), Errno> {
        if self.misses < self.most {
            let time = if traffic.short { SPIN_TIME_SHORT } else { SPIN_TIME };
            let start = Instant::now();
            let mut asked = start;
            loop {
                self.peeks = (self.peeks + 1) % PEEKS;
                let found = match &mut peek {
                    Some(peek) if self.peeks > 0 => peek(),
                    _ => epoll::wait(epoll, spare_capacity(events), Some(&AT_ONCE))? > 0,
                };
                if found {
                    let others = traffic.short && asked > start && asked.elapsed() > SPIN_TIME;
                    self.misses = if others { self.misses + 1 } else { 0 };
                    return Ok(());
                }
                asked = Instant::now();
                if asked - start > time {
                    break;
                }
                std::thread::yield_now();
            }
            self.misses += 1;
        }
        if self.most == 0 && traffic.connections > ONE_AND_ANOTHER {
            std::thread::yield_now();
            if epoll::wait(epoll, spare_capacity(events), Some(&AT_ONCE))? > 0 {
                return Ok(());
            }
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

/// The sockets, to which the protocol's output goes.
struct Wires {
    epoll: Arc<OwnedFd>,
    conns: FxHashMap<ConnId, Conn>,
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
        self.queue(id, |conn| put_plain(&mut conn.out, header, payload));
    }

    fn replay(&mut self, id: ConnId, list: &[Determinant], observed: Option<ObservedPart<&[u8]>>) {
        self.queue(id, |conn| {
            put(&mut conn.out, &Header::Replay, list.iter().copied(), observed, &[]);
        });
    }

    fn logged(&mut self, id: ConnId, frame: &[u8]) {
        self.queue(id, |conn| conn.out.extend_from_slice(frame));
    }

    fn frame_with_file(&mut self, id: ConnId, header: &Header, file: Arc<OwnedFd>) {
        self.queue(id, |conn| {
            conn.attach(file);
            put_plain(&mut conn.out, header, &[]);
        });
    }

    fn has_room(&self, id: ConnId) -> bool {
        self.conns.get(&id).is_some_and(Conn::has_room)
    }

    fn close(&mut self, id: ConnId) {
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
    /// Bytes of the largest recent message: each message lowers it a little.
    largest: u64,
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
            largest: 0,
            begun: Instant::now(),
        })
    }

    /// Runs until it is stopped.
    pub fn run(mut self) {
        let mut events = Vec::with_capacity(256);
        let mut last_tick = Instant::now();
        let mut spin = Spin::default();
        let epoll = Arc::clone(&self.wires.epoll);
        loop {
            events.clear();
            let traffic = self.traffic();
            let expected = self.expected_answer();
            let own = &mut self;
            let peek = expected.map(|id| move || own.serve(id, epoll::EventFlags::IN));
            match spin.wait(&epoll, &mut events, &traffic, peek) {
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
        Traffic { connections: self.wires.conns.len(), short: self.largest <= SHORT_BYTES }
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
            && self.largest <= MAX_INLINE as u64
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
        self.limit_strangers();
        let id = self.next_conn;
        self.next_conn += 1;
        let data = epoll::EventData::new_u64(id);
        if epoll::add(&self.wires.epoll, &conn, data, epoll::EventFlags::IN).is_ok() {
            self.wires.conns.insert(id, conn);
        }
    }

    /// Where too many connections are in their handshake, ends the oldest one: a peer that knows
    /// the secret needs little time.
    fn limit_strangers(&mut self) {
        let strangers = self.wires.conns.iter();
        let strangers = strangers.filter(|(_, c)| matches!(c.stage, Stage::Handshake(_)));
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
            Some(_) => {
                self.protocol.disconnected(id, &mut self.wires);
                self.wires.remove(id);
            }
            None => {}
        }
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
        let Claim::Rank { instance, stream } = *claim else {
            self.wires.queue(id, |conn| conn.out.extend(verdict(Err("ranks only"))));
            return self.refuse(id, None, "a peer that is no rank".into());
        };
        let admitted = self.protocol.admit(instance);
        let admitted = admitted.and_then(|()| match self.wires.conns.get(&id) {
            Some(conn) => conn.may_be(instance, stream),
            None => Ok(()),
        });
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
                        let before = self.largest - self.largest / REMEMBERED;
                        self.largest = before.max(message.size);
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
                self.protocol.disconnected(id, &mut self.wires);
                return self.wires.remove(id);
            }
            match (&conn.stage, conn.blocked) {
                (_, true) => break,
                (Stage::Closing, false) => return self.wires.remove(id),
                (_, false) => {}
            }
            if !self.protocol.writable(id, &mut self.wires) {
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

    /// Reads what the rank's send stream still holds. What an old incarnation has given to the
    /// kernel is part of its history, because an image taken after the send relies on it.
    fn drain(&mut self, rank: eyrie_wire::Rank) {
        let Some(id) = self.protocol.send_stream(rank) else { return };
        for _ in 0..DRAIN_READS {
            let before = self.received(id);
            if !self.read(id) || self.received(id) == before {
                break;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{eventfd, EventfdFlags};

    #[test]
    fn other_connections_are_served_while_two_ranks_answer_each_other() {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let other = eventfd(1, EventfdFlags::CLOEXEC).unwrap();
        let data = epoll::EventData::new_u64(FIRST_CONN);
        epoll::add(&epoll, &other, data, epoll::EventFlags::IN).unwrap();
        let mut spin = Spin { misses: 0, most: SPIN_MISSES, peeks: 0 };
        let mut events = Vec::with_capacity(4);
        let mut rounds = 0;
        let traffic = Traffic { connections: ONE_AND_ANOTHER, short: false };
        while events.is_empty() {
            rounds += 1;
            assert!(rounds <= PEEKS, "only the two were served");
            spin.wait(&epoll, &mut events, &traffic, Some(|| true)).unwrap();
        }
    }

    #[test]
    fn an_event_after_a_long_computation_counts_as_a_miss() {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let mut spin = Spin { misses: 0, most: SPIN_MISSES, peeks: 0 };
        let traffic = Traffic { connections: ONE_AND_ANOTHER, short: true };
        let mut asked = 0;
        let peek = || {
            asked += 1;
            let begun = Instant::now();
            while asked > 1 && begun.elapsed() < 2 * SPIN_TIME {}
            asked > 1
        };
        spin.wait(&epoll, &mut Vec::with_capacity(4), &traffic, Some(peek)).unwrap();
        assert_eq!(spin.misses, 1);
    }
}
