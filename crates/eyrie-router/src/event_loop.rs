//! The router's loop: one thread, one epoll. It moves bytes between sockets and the protocol, and
//! decides nothing. It must never wait for a rank.

use crate::config::Config;
use crate::conn::{Conn, Stage};
use crate::protocol::{ConnId, Output, Protocol, RouterCommand, RouterEvent, UNRECEIVED_BYTES};
use crate::saved;
use crate::space::{Bounds, Files};
use crossbeam_channel::Sender;
use eyrie_transport::handshake::{verdict, HandshakeError, Step};
use eyrie_transport::{Listener, RouterId};
use eyrie_wire::auth::Secret;
use eyrie_wire::control::Claim;
use eyrie_wire::data::{put, put_plain, Determinant, Frame, Header, ObservedPart, MAX_INLINE};
use rustc_hash::FxHashMap;
use rustix::buffer::spare_capacity;
use rustix::event::{epoll, Timespec};
use rustix::io::Errno;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// What the handle asks of the loop.
pub enum Order {
    Command(RouterCommand),
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

/// How long a connection may take to prove itself, or to be closed.
const PATIENCE: Duration = Duration::from_secs(5);
/// Connections that have not proven themselves, at a time.
const MAX_STRANGERS: usize = 1024;
/// How often the loop looks after deadlines and space.
const TICK: Duration = Duration::from_millis(500);
/// Reads of a connection that is drained before its rank is fenced: more than a socket's buffer
/// ever holds, so that a sender that is still alive cannot keep us here.
const DRAIN_READS: usize = 1024;

/// How often what is queued for a connection is written and filled up before others have their
/// turn.
const WRITE_ROUNDS: u32 = 16;
/// Of several connections that have something to be read all are read before anything is written:
/// what they send to the same rank wakes it once. With so many bytes queued it is not put off.
const PUT_OFF_BYTES: usize = 16 * 1024;
/// How often, at most, what has come meanwhile is read, too, before anything is written.
const READ_ROUNDS: u32 = 4;

/// Connections of two ranks that answer each other, each with one on which it sends and one on
/// which it is delivered to: one has nothing to send until the other's message has come.
const ONE_AND_ANOTHER: usize = 4;
/// Of so many times that the router asks whether something has come it asks once for all
/// connections, and else only the one whose turn it is.
const GLANCES: u32 = 16;
/// How long the router asks again before it sleeps, and after how many failures it stops doing so.
const SPIN_TIME: Duration = Duration::from_micros(20);
const SPIN_MISSES: u32 = 8;
/// How long it does while messages are short. Where there are more ranks than processors, alltoall
/// of them takes 5 % less so, but that of 64 KiB would take 10 to 30 % more, and LAMMPS 3 to 10 %.
const SPIN_TIME_SHORT: Duration = Duration::from_micros(60);
/// Messages are short up to this size in bytes; a longer one is remembered for some hundred more.
const SHORT_BYTES: u64 = 1024;
const REMEMBERED: u64 = 64;
const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// Waiting for events: where one follows another within a few microseconds, asking again is faster
/// than sleeping and being woken. Where asking did not help lately, it sleeps at once; nor does it
/// help where somebody computes for long meanwhile, whom one that is woken interrupts. On a single
/// processor, which belongs to whoever has something to send, it lets all others go first when
/// there are several who may, asks once more for what they have sent, and sleeps.
struct Spin {
    /// Times in a row that asking again did not help.
    misses: u32,
    /// From so many on it sleeps at once.
    most: u32,
    /// How often it has asked since it asked last for all connections.
    glances: u32,
}

/// What goes through the router.
struct Traffic {
    connections: usize,
    short: bool,
}

impl Default for Spin {
    fn default() -> Spin {
        let processors = std::thread::available_parallelism().map_or(2, usize::from);
        Spin { misses: 0, glances: 0, most: if processors > 1 { SPIN_MISSES } else { 0 } }
    }
}

impl Spin {
    /// Waits for something on a connection, or until `glance`, which looks at the one whose
    /// turn it is, has served it: that takes one system call less for a message.
    fn wait(
        &mut self,
        epoll: &OwnedFd,
        events: &mut Vec<epoll::Event>,
        traffic: &Traffic,
        mut glance: Option<impl FnMut() -> bool>,
    ) -> Result<(), Errno> {
        if self.misses < self.most {
            let time = if traffic.short { SPIN_TIME_SHORT } else { SPIN_TIME };
            let start = Instant::now();
            let mut asked = start;
            loop {
                self.glances = (self.glances + 1) % GLANCES;
                let found = match &mut glance {
                    Some(glance) if self.glances > 0 => glance(),
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

/// The sockets: where the protocol's output goes.
struct Wires {
    epoll: Arc<OwnedFd>,
    conns: FxHashMap<ConnId, Conn>,
    /// Connections with something to write.
    touched: Vec<ConnId>,
    /// Bytes queued since they were written last.
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

    /// Waits for what the connection waits for.
    fn watch(&mut self, id: ConnId) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        conn.watched = conn.blocked;
        if conn.held {
            return;
        }
        let mut flags = epoll::EventFlags::empty();
        flags.set(epoll::EventFlags::IN, !matches!(conn.stage, Stage::Closing));
        flags.set(epoll::EventFlags::OUT, conn.blocked);
        // A connection that cannot be watched is closed by its rank's next attempt.
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
        // Taken out altogether: the end of the other side would be told again and again.
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
        // Nobody listens any more only while the job ends.
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
    /// The connections that were read last, the newest first.
    read_last: [ConnId; 3],
    /// Bytes of the largest message lately: each one takes a little off it.
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
            Protocol::new(config.at_home, bounds, files).beginning_with(&config.incarnations);
        if config.until_received {
            protocol = protocol.until_received(UNRECEIVED_BYTES);
        }
        if config.takes_over {
            protocol = protocol.taking_over();
        }
        if let Some(at) = &config.saved {
            protocol = saved::read(protocol, at, (config.id, &secret))?;
        }
        // Who started this router has the other end.
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

    /// Runs until told to stop.
    pub fn run(mut self) {
        let mut events = Vec::with_capacity(256);
        let mut last_tick = Instant::now();
        let mut spin = Spin::default();
        let epoll = Arc::clone(&self.wires.epoll);
        loop {
            events.clear();
            let traffic = self.traffic();
            let (turn, own) = (self.whose_turn(), &mut self);
            let glance = turn.map(|id| move || own.serve(id, epoll::EventFlags::IN));
            match spin.wait(&epoll, &mut events, &traffic, glance) {
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

    /// Where two ranks answer each other: the connection on which the answer comes.
    fn whose_turn(&self) -> Option<ConnId> {
        let [newest, before, first] = self.read_last;
        let take_turns = newest == first && newest != before;
        let conns = Some(&self.wires.conns).filter(|c| take_turns && c.len() <= ONE_AND_ANOTHER)?;
        let is_open = |conn: &&Conn| matches!(conn.stage, Stage::Open) && !conn.held;
        conns.get(&before).filter(is_open).map(|_| before)
    }

    fn traffic(&self) -> Traffic {
        Traffic { connections: self.wires.conns.len(), short: self.largest <= SHORT_BYTES }
    }

    /// Bytes that have come over a connection; `None`: there is no such one any more.
    fn received(&self, id: ConnId) -> Option<u64> {
        self.wires.conns.get(&id).map(|conn| conn.received)
    }

    /// Serves whoever there is something from. True: stop.
    fn serve_all(&mut self, events: &[epoll::Event]) -> bool {
        for event in events {
            match event.data.u64() {
                LISTENER => self.accept(),
                WAKE => {
                    if self.obey() {
                        return true;
                    }
                }
                id => drop(self.serve(id, event.flags)),
            }
            if self.wires.queued_bytes >= PUT_OFF_BYTES {
                self.write_touched();
            }
        }
        false
    }

    /// Whether there is more to be read by now, where several may send to the same rank and
    /// something for it is put off. While payloads lie in segments nothing more has come as a rule:
    /// writing one takes a rank longer than delivering the one before.
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
            self.lose(id);
        }
        self.protocol.tick(self.begun.elapsed(), &mut self.wires);
        self.write_touched();
    }

    fn accept(&mut self) {
        while let Ok(socket) = self.listener.accept() {
            if socket.set_nonblocking(true).is_err() {
                continue;
            }
            self.make_way();
            let (id, conn) = (self.next_conn, Conn::new(socket));
            self.next_conn += 1;
            let data = epoll::EventData::new_u64(id);
            if epoll::add(&self.wires.epoll, &conn, data, epoll::EventFlags::IN).is_ok() {
                self.wires.conns.insert(id, conn);
            }
        }
    }

    /// Of too many that have not proven themselves the one that has taken longest is sent away:
    /// whoever knows the secret needs no time.
    fn make_way(&mut self) {
        let strangers = self.wires.conns.iter();
        let strangers = strangers.filter(|(_, c)| matches!(c.stage, Stage::Handshake(_)));
        let strangers: Vec<_> = strangers.map(|(id, c)| (c.since, *id)).collect();
        if let Some((_, oldest)) =
            strangers.iter().min().filter(|_| strangers.len() >= MAX_STRANGERS)
        {
            self.lose(*oldest);
        }
    }

    /// Serves a connection. True: something has come over it, or it has ended.
    fn serve(&mut self, id: ConnId, flags: epoll::EventFlags) -> bool {
        use epoll::EventFlags as F;
        if flags.contains(F::OUT) {
            self.write(id);
        }
        let before = self.received(id);
        if flags.intersects(F::IN | F::HUP | F::ERR) {
            // What has been received with the rest wakes nobody.
            while self.read(id) && self.wires.conns.get(&id).is_some_and(Conn::has_more) {}
        }
        let came = self.received(id) != before;
        if came {
            self.read_last.rotate_right(1);
            self.read_last[0] = id;
        }
        came
    }

    /// Reads what is there and hands it on. True: more may come.
    fn read(&mut self, id: ConnId) -> bool {
        let Some(conn) = self.wires.conns.get_mut(&id) else { return false };
        if matches!(conn.stage, Stage::Closing) {
            // Whether the other side is still there to be told.
            self.write(id);
            return false;
        }
        let before = conn.received;
        let alive = match conn.read() {
            Ok(true) if conn.received == before => return true,
            Ok(alive) => self.understand(id) && alive,
            Err(e) => {
                tracing::info!(conn = id, error = %e, "a connection broke");
                false
            }
        };
        if !alive {
            self.lose(id);
        }
        alive
    }

    /// Ends a connection from this side.
    fn lose(&mut self, id: ConnId) {
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

    /// What was read: steps of the handshake, then frames. False: the connection is over.
    fn understand(&mut self, id: ConnId) -> bool {
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
        let event = RouterEvent::Refused { instance: None, reason: e.to_string() };
        self.wires.event(event);
        self.wires.close(id);
        true
    }

    fn admit(&mut self, id: ConnId, claim: &Claim) -> bool {
        let Claim::Rank { instance, stream } = *claim else {
            self.wires.queue(id, |conn| conn.out.extend(verdict(Err("ranks only"))));
            let reason = "somebody who is no rank".into();
            self.wires.event(RouterEvent::Refused { instance: None, reason });
            self.wires.close(id);
            return true;
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
            Err(reason) => {
                self.wires.event(RouterEvent::Refused { instance: Some(instance), reason });
                self.wires.close(id);
            }
        }
        true
    }

    fn frames(&mut self, id: ConnId) -> bool {
        let Some(conn) = self.wires.conns.get_mut(&id) else { return false };
        let (input, filled) = conn.take_input();
        let (mut used, mut open) = (0, true);
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

    /// Writes what is queued, and what the protocol has more for this connection.
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
                // Others have their turn; the kernel says at once that there is room.
                self.wires.conns.get_mut(&id).into_iter().for_each(|c| c.blocked = true);
                break;
            }
        }
        if self.wires.conns.get(&id).is_some_and(|c| c.blocked != c.watched) {
            self.wires.watch(id);
        }
    }

    /// Does what the handle asked for. True: stop.
    fn obey(&mut self) -> bool {
        let mut count = [0u8; 8];
        let _ = rustix::io::read(&self.mailbox.wake, &mut count);
        let orders = self.mailbox.orders.lock().map(|mut o| std::mem::take(&mut *o));
        for order in orders.unwrap_or_default() {
            match order {
                Order::Stop => return true,
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

    /// Reads what the rank's send stream still holds: what an old incarnation has given to the
    /// kernel is part of its history, because an image taken after a send counts on it.
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
    fn others_are_heard_while_two_answer_each_other() {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let other = eventfd(1, EventfdFlags::CLOEXEC).unwrap();
        let data = epoll::EventData::new_u64(FIRST_CONN);
        epoll::add(&epoll, &other, data, epoll::EventFlags::IN).unwrap();
        let mut spin = Spin { misses: 0, most: SPIN_MISSES, glances: 0 };
        let (mut events, mut rounds) = (Vec::with_capacity(4), 0);
        let traffic = Traffic { connections: ONE_AND_ANOTHER, short: false };
        while events.is_empty() {
            rounds += 1;
            assert!(rounds <= GLANCES, "only the two were served");
            spin.wait(&epoll, &mut events, &traffic, Some(|| true)).unwrap();
        }
    }

    #[test]
    fn what_comes_after_others_have_computed_for_long_is_no_reason_to_ask_again() {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let mut spin = Spin { misses: 0, most: SPIN_MISSES, glances: 0 };
        let traffic = Traffic { connections: ONE_AND_ANOTHER, short: true };
        let mut asked = 0;
        let glance = || {
            asked += 1;
            let begun = Instant::now();
            while asked > 1 && begun.elapsed() < 2 * SPIN_TIME {}
            asked > 1
        };
        spin.wait(&epoll, &mut Vec::with_capacity(4), &traffic, Some(glance)).unwrap();
        assert_eq!(spin.misses, 1);
    }
}
