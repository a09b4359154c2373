//! Two ranks and the real protocol of their routers, in memory: programs that send, receive, read,
//! write and count in each other's memory, killed at any moment of any call, with lost connections
//! and images of all ages. What they compute must be what an undisturbed run computes, and what
//! they send again must be what they sent.

mod lost;

use super::host::{ConnectError, File, Host, Interest, RouterStream};
use super::RouterPath;
use crate::core::matching::{Completion, Context, Outcome, Posted};
use crate::core::path::{ImagePoint, Path};
use crate::core::rank::{Event, RankCore, Unread};
use crate::core::rma::{Done, Kind, Pending, Region};
use crate::core::world::World as _;
use eyrie_router::protocol::{ConnId, Protocol};
use eyrie_router::space::Bounds;
use eyrie_router::testing::{on_all_processors, MemoryFile, MemoryStore, Said};
use eyrie_router::{RouterCommand, RouterEvent};
use eyrie_wire::data::{self, AtomicOp, Envelope, Frame};
use eyrie_wire::directory::KeptUntil;
use eyrie_wire::{Incarnation, Rank, RankInstance, RouterId};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::io::{self, ErrorKind};
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::rc::Rc;
use std::time::Duration;

/// Random runs; EYRIE_SCHEDULES asks for another number.
const SCHEDULES: u64 = 500;
const RANKS: u32 = 2;

// The world: connections in memory, and the routers at their ends.

/// A connection.
#[derive(Default)]
struct Wire {
    to_router: VecDeque<u8>,
    to_rank: VecDeque<u8>,
    /// Bytes ever given to the rank, and files with the position of the byte that they come with.
    given: u64,
    taken: u64,
    files: VecDeque<(u64, MemoryFile)>,
    /// What the router has read and not understood yet.
    input: Vec<u8>,
    rank_closed: bool,
    router_closed: bool,
    /// Whose it is.
    rank: Rank,
}

struct Router {
    protocol: Protocol<MemoryStore>,
    said: Said,
    wires: BTreeMap<ConnId, Wire>,
    sent: lost::Sent,
}

struct World {
    random: SmallRng,
    routers: Vec<Router>,
    next_conn: ConnId,
    now: Duration,
    ticks: u64,
    /// Things that a rank still does before it dies.
    dies_in: Option<u32>,
    /// Everything goes its way at once.
    calm: bool,
    /// Connections pass files.
    files: bool,
    /// Connections break at any time.
    breaks: bool,
    /// All connections break when a rank waits next.
    breaks_at_wait: bool,
    told: Vec<(RankInstance, Vec<data::Determinant>, Vec<data::ObservedPart>)>,
    /// Those of whom a router has said that they re-execute no more.
    replayed: Vec<RankInstance>,
    /// Where routers may be lost.
    loss: Option<lost::Loss>,
}

/// The panic of a killed rank.
struct Killed;

type Shared = Rc<RefCell<World>>;

impl Router {
    fn new(
        number: u32,
        routers: u32,
        with: impl FnOnce(Protocol<MemoryStore>) -> Protocol<MemoryStore>,
    ) -> Router {
        let is_primary = (0..RANKS).map(|r| r % routers == number).collect();
        let bounds = Bounds { memory: 4 << 20, disk: 1 << 30 };
        Router {
            protocol: with(Protocol::new(is_primary, bounds, MemoryStore::default())),
            said: Said { room: 16, ..Said::default() },
            wires: BTreeMap::new(),
            sent: lost::Sent::default(),
        }
    }

    /// Moves bytes from the rank to the protocol, at most so many, and back.
    fn pump(&mut self, most: usize) {
        for conn in self.wires.keys().copied().collect::<Vec<_>>() {
            if !self.said.held.contains(&conn) {
                self.read(conn, most);
            }
            self.write(conn);
        }
    }

    fn read(&mut self, conn: ConnId, most: usize) {
        let Some(wire) = self.wires.get_mut(&conn).filter(|w| !w.router_closed) else { return };
        let n = most.min(wire.to_router.len());
        wire.input.extend(wire.to_router.drain(..n));
        let rank = wire.rank;
        let over = wire.rank_closed && wire.to_router.is_empty();
        let input = std::mem::take(&mut wire.input);
        let mut used = 0;
        while let Some(frame) = Frame::parse(&input[used..]).expect("ranks write sound frames") {
            used += frame.len;
            self.sent.note(rank, &frame);
            if !self.protocol.frame(conn, &frame, &mut self.said) {
                break;
            }
        }
        if let Some(wire) = self.wires.get_mut(&conn) {
            wire.input = input[used..].to_vec();
        }
        self.protocol.settle(conn, &mut self.said);
        if over {
            self.protocol.disconnected(conn, &mut self.said);
            self.wires.remove(&conn);
        }
    }

    fn write(&mut self, conn: ConnId) {
        loop {
            let queued = self.said.frames.remove(&conn).unwrap_or_default();
            let Some(wire) = self.wires.get_mut(&conn) else { return };
            for (bytes, file) in queued {
                if let Some(file) = file {
                    wire.files.push_back((wire.given, file));
                }
                wire.given += bytes.len() as u64;
                wire.to_rank.extend(bytes);
            }
            wire.router_closed |= self.said.closed.contains(&conn);
            let full = wire.to_rank.len() > 256 * 1024;
            if full || !self.protocol.writable(conn, &mut self.said) {
                return;
            }
        }
    }
}

impl World {
    fn new(random: SmallRng, routers: u32, calm: bool, files: bool) -> World {
        World {
            routers: (0..routers).map(|k| Router::new(k, routers, |protocol| protocol)).collect(),
            next_conn: 1,
            now: Duration::ZERO,
            ticks: 0,
            dies_in: None,
            calm,
            files,
            breaks: false,
            breaks_at_wait: false,
            told: Vec::new(),
            replayed: Vec::new(),
            loss: None,
            random,
        }
    }

    /// The routers work.
    fn pump(&mut self) {
        for k in 0..self.routers.len() {
            let most = if self.calm { usize::MAX } else { 1 << self.random.gen_range(4..18) };
            self.routers[k].pump(most);
        }
        self.tick_routers();
        if self.breaks && self.random.gen_bool(0.02) {
            self.break_one();
        }
        self.hear();
    }

    fn hear(&mut self) {
        for (k, router) in self.routers.iter_mut().enumerate() {
            for event in router.said.events.drain(..) {
                if self.loss.as_mut().is_some_and(|loss| loss.hears(k, &event)) {
                    continue;
                }
                match event {
                    RouterEvent::Fenced { instance, determinants, observed } => {
                        self.told.push((instance, determinants, observed));
                    }
                    RouterEvent::Connected(_)
                    | RouterEvent::Disconnected(_)
                    | RouterEvent::LogGrown { .. } => {}
                    RouterEvent::Replayed { instance, .. } => self.replayed.push(instance),
                    other => panic!("{other:?}"),
                }
            }
        }
    }

    /// A rank does something that a kill may come before.
    fn lives(&mut self) -> bool {
        match &mut self.dies_in {
            None => true,
            Some(0) => false,
            Some(n) => {
                *n -= 1;
                true
            }
        }
    }

    /// The network breaks at a random connection.
    fn break_one(&mut self) {
        let k = self.random.gen_range(0..self.routers.len());
        let conns: Vec<ConnId> = self.routers[k].wires.keys().copied().collect();
        if conns.is_empty() {
            return;
        }
        let conn = conns[self.random.gen_range(0..conns.len())];
        // A part of what is under way may still arrive.
        let part = if self.random.gen_bool(0.5) { self.random.gen_range(0..500) } else { 0 };
        self.routers[k].read(conn, part);
        self.break_wire(k, conn);
    }

    fn break_wire(&mut self, k: usize, conn: ConnId) {
        let router = &mut self.routers[k];
        if let Some(wire) = router.wires.get_mut(&conn) {
            wire.to_router.clear();
            wire.router_closed = true;
        }
        router.protocol.disconnected(conn, &mut router.said);
    }

    /// The network breaks altogether.
    fn break_all(&mut self) {
        for k in 0..self.routers.len() {
            for conn in self.routers[k].wires.keys().copied().collect::<Vec<_>>() {
                self.break_wire(k, conn);
            }
        }
    }

    /// A rank has died: what it has given to the kernel still counts, then its next incarnation may
    /// come.
    fn recover(&mut self, instance: RankInstance) {
        for router in &mut self.routers {
            if let Some(conn) = router.protocol.send_stream(instance.rank) {
                router.read(conn, usize::MAX);
            }
            router.protocol.command(RouterCommand::Fence(instance), &mut router.said);
        }
        self.hear();
        let (mut determinants, mut observed) = (Vec::new(), Vec::new());
        for (who, list, parts) in self.told.drain(..) {
            assert_eq!(who, instance);
            determinants.extend(list);
            observed.extend(parts);
        }
        let primary = instance.rank.index() % self.routers.len();
        let router = &mut self.routers[primary];
        let recover = RouterCommand::Recover { instance, determinants, observed };
        router.protocol.command(recover, &mut router.said);
    }
}

/// What a rank observes besides messages: random bytes, and the same ones again.
#[derive(Clone, Default)]
struct Observing {
    taken: u64,
    recorded: Vec<u8>,
    again: VecDeque<u8>,
}

impl Observing {
    fn observe(&mut self, random: u8) -> u8 {
        let Some(byte) = self.again.pop_front() else {
            self.recorded.push(random);
            return random;
        };
        self.taken += 1;
        byte
    }
}

type TestRank = RankCore<RouterPath<TestHost>>;

/// A rank's world.
struct TestHost {
    world: Shared,
    instance: RankInstance,
    observing: Rc<RefCell<Observing>>,
}

impl TestHost {
    /// Of a rank that observes nothing.
    fn new(world: &Shared, instance: RankInstance) -> TestHost {
        TestHost { world: world.clone(), instance, observing: Rc::default() }
    }

    /// A kill may come now.
    fn survives(world: &Shared) {
        if !world.borrow_mut().lives() {
            resume_unwind(Box::new(Killed));
        }
    }
}

struct TestStream {
    world: Shared,
    files: bool,
    router: usize,
    conn: ConnId,
}

impl Drop for TestStream {
    fn drop(&mut self) {
        if let Some(wire) = self.world.borrow_mut().routers[self.router].wires.get_mut(&self.conn) {
            wire.rank_closed = true;
        }
    }
}

impl File for MemoryFile {
    unsafe fn read_to(&self, offset: u64, to: *mut u8, len: usize) -> io::Result<()> {
        let file = self.borrow();
        let bytes = file.get(offset as usize..).and_then(|f| f.get(..len));
        let bytes = bytes.ok_or(ErrorKind::UnexpectedEof)?;
        // SAFETY: the caller vouches for `to`.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, len) };
        Ok(())
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let at = offset as usize;
        self.borrow_mut()[at..at + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn descriptor(&self) -> Option<i32> {
        Some(0)
    }
}

impl RouterStream for TestStream {
    type File = MemoryFile;

    fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        TestHost::survives(&self.world);
        let sent = {
            let world = &mut *self.world.borrow_mut();
            if world.is_silent(self.conn) {
                return Ok(bytes.len());
            }
            let calm = world.calm;
            let part = world.random.gen_range(1..=bytes.len());
            let wire = world.routers[self.router].wires.get_mut(&self.conn);
            let wire = wire.filter(|w| !w.router_closed).ok_or(ErrorKind::BrokenPipe)?;
            if wire.to_router.len() > 100_000 {
                return Err(ErrorKind::WouldBlock.into());
            }
            let n = if calm { bytes.len() } else { part };
            wire.to_router.extend(&bytes[..n]);
            n
        };
        TestHost::survives(&self.world);
        Ok(sent)
    }

    fn receive(
        &mut self,
        into: &mut [u8],
        wait: bool,
        files: &mut dyn FnMut(MemoryFile),
    ) -> io::Result<Option<usize>> {
        TestHost::survives(&self.world);
        let world = &mut *self.world.borrow_mut();
        if wait {
            world.now += Duration::from_millis(1);
        }
        if wait || world.random.gen_bool(0.5) {
            world.pump();
        }
        let part = world.random.gen_range(1..=into.len());
        let calm = world.calm;
        if world.is_silent(self.conn) {
            return Ok(None);
        }
        let wire = world.routers[self.router].wires.get_mut(&self.conn);
        let wire = wire.ok_or(ErrorKind::ConnectionReset)?;
        let n = if calm { into.len() } else { part }.min(wire.to_rank.len());
        if n == 0 {
            return if wire.router_closed {
                Err(ErrorKind::UnexpectedEof.into())
            } else {
                Ok(None)
            };
        }
        for (place, byte) in into.iter_mut().zip(wire.to_rank.drain(..n)) {
            *place = byte;
        }
        wire.taken += n as u64;
        while wire.files.front().is_some_and(|(at, _)| *at < wire.taken) {
            files(wire.files.pop_front().expect("just seen").1);
        }
        Ok(Some(n))
    }

    fn passes_files(&self) -> bool {
        self.files
    }

    fn descriptor(&self) -> Option<i32> {
        None
    }
}

impl Host for TestHost {
    type File = MemoryFile;
    type RouterStream = TestStream;

    fn connect(
        &mut self,
        router: RouterId,
        stream: data::StreamKind,
    ) -> Result<TestStream, ConnectError> {
        TestHost::survives(&self.world);
        let (conn, files) = {
            let world = &mut *self.world.borrow_mut();
            let files = world.files;
            if world.is_down(router) || !world.calm && world.random.gen_bool(0.1) {
                return Err(ConnectError::Unreachable(ErrorKind::ConnectionRefused.into()));
            }
            let conn = world.next_conn;
            world.next_conn += 1;
            let Router { protocol, said, wires, .. } = &mut world.routers[router.index()];
            protocol.admit(self.instance).map_err(ConnectError::Refused)?;
            wires.insert(conn, Wire { rank: self.instance.rank, ..Wire::default() });
            protocol.connected(conn, self.instance, stream, files, said);
            (conn, files)
        };
        let router = router.index();
        let stream = TestStream { world: self.world.clone(), files, router, conn };
        TestHost::survives(&self.world);
        Ok(stream)
    }

    fn primary_router(&self, rank: eyrie_wire::Rank) -> RouterId {
        RouterId(rank.0 % self.routers())
    }

    fn routers(&self) -> u32 {
        self.world.borrow().routers.len() as u32
    }

    fn kept_until(&self) -> KeptUntil {
        match self.world.borrow().loss {
            Some(_) => KeptUntil::Received,
            None => KeptUntil::Logged,
        }
    }

    fn is_beside(&self, router: RouterId) -> bool {
        self.world.borrow().is_beside(router, self.instance.rank)
    }

    fn changed_routers(&mut self) -> Vec<RouterId> {
        self.world.borrow_mut().changed_routers(self.instance.rank)
    }

    fn wait<'a>(&mut self, _: impl Iterator<Item = (&'a TestStream, Interest)>, _: Duration) {
        self.pause(Duration::from_millis(1));
    }

    fn pause(&mut self, time: Duration) {
        TestHost::survives(&self.world);
        let mut world = self.world.borrow_mut();
        world.now += time;
        if std::mem::take(&mut world.breaks_at_wait) {
            world.break_all();
        }
        world.pump();
    }
}

impl ImagePoint for TestHost {
    fn image_point(_: &mut impl Path<World = TestHost>) {}
}

impl crate::core::world::World for TestHost {
    fn take_observed(&mut self, take: &mut dyn FnMut(u64, &[u8])) {
        let Observing { taken, recorded, .. } = &mut *self.observing.borrow_mut();
        take(*taken, recorded);
        *taken += recorded.len() as u64;
        recorded.clear();
    }

    fn observed(&self) -> u64 {
        self.observing.borrow().taken
    }

    fn observed_waiting(&self) -> usize {
        self.observing.borrow().recorded.len()
    }

    fn observe_again(&mut self, bytes: Vec<u8>) {
        let observing = &mut *self.observing.borrow_mut();
        assert!(bytes.is_empty() || observing.recorded.is_empty(), "it observes something else");
        observing.again = bytes.into();
    }

    fn skip_observed(&mut self, to: u64) {
        assert!(self.observed() >= to, "it observes less than before");
    }

    fn signal(&mut self, _: u64, _: bool) -> Option<i32> {
        None
    }

    fn before_new(&mut self) {}

    fn now(&self) -> Duration {
        self.world.borrow().now
    }

    fn ticks(&self) -> u64 {
        let world = &mut *self.world.borrow_mut();
        world.ticks += world.random.gen_range(1..200_000u64);
        world.ticks
    }

    /// All that passes, or next to nothing of it.
    fn processor_time_ns(&self) -> u64 {
        let world = &mut *self.world.borrow_mut();
        let part = if world.random.gen_bool(0.5) { 1 } else { 100 };
        world.ticks / part
    }

    fn polled(&mut self, _: u64) {}

    fn trace(&mut self, _: eyrie_wire::page::What, _: u64, _: u32, _: u64) {}
}

// The program: what it sends when depends on all that it has seen and when, so that any error in
// order or replay shows in the content of a message; what it has computed at the end does not.

const SLOTS: usize = 3;
const SLOT_BYTES: usize = 256 * 1024;
const WINDOW_BYTES: usize = 4096;
const WINDOW_KEY: u64 = 7;
const ANSWERS: usize = 8;
/// libfabric's numbers: a sum of 64-bit numbers.
const SUM: u8 = 2;
const UINT64: u8 = 7;

/// The memory of a process: always at the same place.
#[repr(C, align(64))]
struct Memory {
    slots: [[u8; SLOT_BYTES]; SLOTS],
    window: [u8; WINDOW_BYTES],
    answers: [[u8; 64]; ANSWERS],
}

/// A program between two calls.
#[derive(Clone)]
struct Program {
    number: u32,
    seed: u64,
    /// Depends on everything.
    state: u64,
    /// Depends on what was received only.
    sum: u64,
    /// The next thing to send or to ask for, and how many there are.
    next: u64,
    total: u64,
    received: u64,
    expected: u64,
    waiting: u64,
    observing: Rc<RefCell<Observing>>,
}

fn mix(state: u64, word: u64) -> u64 {
    (state ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29) ^ word
}

/// What the `n`th action of a rank is, in every run.
fn action(seed: u64, number: u32, n: u64) -> u64 {
    mix(mix(seed, n), number.into())
}

fn is_message(word: u64) -> bool {
    word % 5 < 3
}

fn destination(word: u64) -> u32 {
    (word >> 8) as u32 % RANKS
}

/// Some runs have messages so large that segments fill up.
fn content_len(seed: u64, word: u64) -> usize {
    match word >> 16 & 31 {
        0..8 if seed % 8 == 0 => 250_000,
        0 => 40_000,
        1 => 17_000,
        n => n as usize * 5,
    }
}

impl Program {
    fn new(number: u32, seed: u64, total: u64) -> Program {
        let senders = 0..RANKS;
        let expected = senders.flat_map(|r| (0..total).map(move |n| action(seed, r, n)));
        let expected = expected.filter(|w| is_message(*w) && destination(*w) == number).count();
        let expected = expected as u64;
        let state = mix(seed, number.into());
        let (sum, next, received, waiting) = (0, 0, 0, 0);
        let observing = Rc::default();
        Program { number, seed, state, sum, next, total, received, expected, waiting, observing }
    }

    /// The program as it is now, which goes on by itself.
    fn copy(&self) -> Program {
        let observing = Rc::new(RefCell::new(self.observing.borrow().clone()));
        Program { observing, ..self.clone() }
    }

    /// Observes something that no message has told.
    fn observe(&mut self, rank: &TestRank) {
        let random = rank.path.host.world.borrow_mut().random.gen();
        let byte = self.observing.borrow_mut().observe(random);
        self.state = mix(self.state, byte.into());
    }

    fn is_done(&self) -> bool {
        (self.next, self.received, self.waiting) == (self.total, self.expected, 0)
    }

    fn begin(&self, rank: &mut TestRank, memory: *mut Memory) {
        // SAFETY: the memory lives until the end of the test; so in all below.
        let base = unsafe { (&raw mut (*memory).window) } as usize;
        rank.regions.add(WINDOW_KEY, Region { base, len: WINDOW_BYTES });
        for slot in 0..SLOTS {
            rank.post(receive(memory, slot), |_| panic!("nothing has come yet"));
        }
    }

    /// The next call.
    fn step(&mut self, rank: &mut TestRank, memory: *mut Memory) {
        for _ in 0..self.state % 4 {
            self.observe(rank);
        }
        if self.next < self.total && self.state % 3 != 0 {
            let word = action(self.seed, self.number, self.next);
            self.next += 1;
            if is_message(word) {
                self.send(rank, word);
                self.observe(rank);
            } else {
                self.ask(rank, word, memory);
            }
        }
        let mut events = Vec::new();
        rank.progress(Unread::Nothing, |event| events.push(event)).unwrap();
        for event in events {
            match event {
                Event::Received(c) => self.receive(rank, &c, memory),
                Event::Done(d) => self.done(&d),
            }
        }
        self.state = mix(self.state, rank.path.clock());
    }

    fn send(&mut self, rank: &mut TestRank, word: u64) {
        let mut content = self.state.to_le_bytes().to_vec();
        content.extend(word.to_le_bytes());
        content.resize(16 + content_len(self.seed, word), word as u8);
        let envelope = match word >> 32 & 1 {
            0 => Envelope::Tagged { tag: word >> 40, data: None },
            _ => Envelope::Tagged { tag: word >> 40, data: Some(word) },
        };
        rank.send(Rank(destination(word)), envelope, &content).unwrap();
    }

    fn receive(&mut self, rank: &mut TestRank, c: &Completion, memory: *mut Memory) {
        assert_eq!(c.outcome, Outcome::Received);
        // SAFETY: the memory lives until the end of the test (`begin`).
        let content = unsafe { &(&(*memory).slots)[c.context][..c.len] };
        let number = |at: usize| u64::from_le_bytes(content[at..at + 8].try_into().unwrap());
        let (state, word) = (number(0), number(8));
        assert_eq!(content.len(), 16 + content_len(self.seed, word));
        assert!(content[16..].iter().all(|b| *b == word as u8));
        self.state = mix(self.state, state);
        self.sum = self.sum.wrapping_add(mix(word, content.len() as u64));
        self.received += 1;
        // More may have come already.
        let mut more = Vec::new();
        rank.post(receive(memory, c.context), |c| more.push(c));
        for c in more {
            self.receive(rank, &c, memory);
        }
    }

    /// A one-sided request: a write to a place that only this rank writes, a read of one, a sum
    /// with or without the value before it.
    fn ask(&mut self, rank: &mut TestRank, word: u64, memory: *mut Memory) {
        let target = destination(word);
        let answer = (word >> 40) as usize % ANSWERS;
        // SAFETY: the memory lives until the end of the test (`begin`).
        let buffer = unsafe { (&raw mut (*memory).answers[answer]).cast::<u8>() };
        let place = 512 + u64::from(self.number) * 1024 + (word >> 24 & 7) * 64;
        let pending = |kind, len| Pending { context: answer, kind, report: true, buffer, len };
        let (key, offset) = (WINDOW_KEY, place);
        self.waiting += 1;
        let sum = |request, what| Envelope::Atomic {
            key,
            offset: 8 * (word >> 24 & 7),
            request,
            what,
            op: SUM,
            datatype: UINT64,
            count: 1,
        };
        let operand = (word & 0xffff).to_le_bytes();
        let over = match word >> 28 & 3 {
            0 => rank.request(
                Rank(target),
                pending(Kind::Write, 0),
                |request| Envelope::Write { key, offset, request },
                &[word as u8; 64],
            ),
            1 => rank.request(
                Rank(target),
                pending(Kind::Read, 64),
                |request| Envelope::Read { key, offset, request, len: 64 },
                &[],
            ),
            2 => rank.request(
                Rank(target),
                pending(Kind::Atomic { fetch: false }, 0),
                |request| sum(request, AtomicOp::Update),
                &operand,
            ),
            _ => rank.request(
                Rank(target),
                pending(Kind::Atomic { fetch: true }, 8),
                |request| sum(request, AtomicOp::Fetch),
                &operand,
            ),
        };
        if let Some(done) = over.unwrap() {
            self.done(&done);
        }
    }

    fn done(&mut self, d: &Done) {
        assert_eq!(d.error, 0);
        self.waiting -= 1;
        // SAFETY: the buffer of the request, see `ask`.
        let bytes = unsafe { std::slice::from_raw_parts(d.pending.buffer, d.pending.len) };
        for b in bytes {
            self.state = mix(self.state, (*b).into());
        }
        self.state = mix(self.state, d.pending.context as u64);
    }
}

fn receive(memory: *mut Memory, slot: Context) -> Posted {
    Posted {
        context: slot,
        // SAFETY: the memory lives until the end of the test (`Program::begin`).
        buffer: unsafe { (&raw mut (*memory).slots[slot]).cast() },
        len: SLOT_BYTES,
        source: None,
        tagged: true,
        tag: 0,
        ignore: u64::MAX,
        multi: None,
        used: 0,
        report: true,
    }
}

// Processes and their images.

struct Process {
    rank: TestRank,
    program: Program,
}

fn image_of(rank: &TestRank) -> impl Fn(TestHost) -> TestRank {
    let (rank, path) = (rank.image(), rank.path.image());
    move |host| rank(path(host))
}

struct Image {
    rank: Box<dyn Fn(TestHost) -> TestRank>,
    program: Program,
    memory: Vec<u8>,
    clock: u64,
    rsn: u64,
    observed: u64,
    /// It counts for a primary router that has taken over.
    adopted: bool,
}

struct Job {
    world: Shared,
    seed: u64,
    total: u64,
    memories: Vec<*mut Memory>,
    incarnations: Vec<Incarnation>,
    processes: Vec<Process>,
    /// Images of each rank: the first one counts, the others are not stored yet.
    images: Vec<VecDeque<Image>>,
    /// The last message that each rank has seen in any of its incarnations.
    seen: Vec<u64>,
    kills: u64,
}

impl Job {
    fn new(seed: u64, total: u64, calm: bool) -> Job {
        let mut random = SmallRng::seed_from_u64(seed);
        let routers = random.gen_range(1..3);
        // Those with the largest messages go both ways.
        let files = seed / 8 % 2 == 0;
        let mut world = World::new(random, routers, calm, files);
        if seed % 2 == 1 && !calm {
            world.may_lose_routers();
        }
        let world = Rc::new(RefCell::new(world));
        let layout = std::alloc::Layout::new::<Memory>();
        // SAFETY: the layout is not empty; zeros are a `Memory`.
        let memory = |_| unsafe { std::alloc::alloc_zeroed(layout).cast::<Memory>() };
        let mut job = Job {
            world,
            seed,
            total,
            memories: (0..RANKS).map(memory).collect(),
            incarnations: vec![Incarnation(1); RANKS as usize],
            processes: Vec::new(),
            images: (0..RANKS).map(|_| VecDeque::new()).collect(),
            seen: vec![0; RANKS as usize],
            kills: 0,
        };
        for r in 0..RANKS {
            let process = job.start(r);
            job.processes.push(process);
        }
        job
    }

    fn host(&self, rank: Rank, program: &Program) -> TestHost {
        let instance =
            RankInstance { rank, incarnation: Incarnation((self.incarnations[rank.index()]).0) };
        TestHost { world: self.world.clone(), instance, observing: program.observing.clone() }
    }

    /// A rank from the start, or from the image that counts.
    fn start(&self, r: u32) -> Process {
        let memory = self.memories[r as usize];
        match self.images[r as usize].front() {
            None => {
                // SAFETY: nothing else uses the memory now.
                unsafe { memory.write_bytes(0, 1) };
                let program = Program::new(r, self.seed, self.total);
                let mut rank =
                    RankCore::new(RouterPath::new(self.host(Rank(r), &program), Rank(r), RANKS));
                program.begin(&mut rank, memory);
                Process { rank, program }
            }
            Some(image) => {
                // SAFETY: the image is as long as the memory, which nothing else uses now.
                unsafe {
                    std::ptr::copy_nonoverlapping(
                        image.memory.as_ptr(),
                        memory.cast(),
                        image.memory.len(),
                    )
                };
                let program = image.program.copy();
                Process { rank: (image.rank)(self.host(Rank(r), &program)), program }
            }
        }
    }

    /// A call of rank `r`, in which it may die.
    fn step(&mut self, r: usize) {
        let Process { rank, program } = &mut self.processes[r];
        let memory = self.memories[r];
        let outcome = catch_unwind(AssertUnwindSafe(|| program.step(rank, memory)));
        self.world.borrow_mut().dies_in = None;
        self.seen[r] = self.seen[r].max(self.processes[r].rank.path.rsn());
        match outcome {
            Ok(()) => {}
            Err(e) if e.is::<Killed>() => self.recover(r),
            Err(e) => resume_unwind(e),
        }
    }

    fn recover(&mut self, r: usize) {
        self.kills += 1;
        self.world.borrow_mut().forget_changes(Rank(r as u32));
        self.incarnations[r].0 += 1;
        // An image that was not stored in time is gone.
        self.images[r].truncate(1);
        let instance =
            RankInstance { rank: Rank(r as u32), incarnation: Incarnation(self.incarnations[r].0) };
        self.world.borrow_mut().recover(instance);
        self.processes[r] = self.start(r as u32);
        // It must know what it observed before it observes anything: a restored rank connects at
        // once, and one without an image is given what it needs when it is started.
        self.processes[r].rank.path.attach().unwrap();
        if self.world.borrow_mut().random.gen_bool(0.5) {
            let rank = &mut self.processes[r].rank;
            rank.path.reconnect().unwrap();
        }
    }

    fn take_image(&mut self, r: usize) {
        let Process { rank, program } = &mut self.processes[r];
        if !rank.path.settled(Duration::from_millis(50)) {
            return;
        }
        let len = size_of::<Memory>();
        // SAFETY: the memory is as long as said, and nothing writes to it meanwhile.
        let memory = unsafe { std::slice::from_raw_parts(self.memories[r].cast::<u8>(), len) };
        let image = Image {
            rank: Box::new(image_of(rank)),
            program: program.copy(),
            memory: memory.to_vec(),
            clock: rank.path.clock(),
            rsn: rank.path.rsn(),
            observed: rank.path.host.observed(),
            adopted: self.world.borrow().is_adopted(r),
        };
        self.images[r].push_back(image);
    }

    /// The newest image is stored: it counts.
    fn count_image(&mut self, r: usize) {
        let Some(image) = self.images[r].pop_back() else { return };
        if !self.may_count(r, &image) {
            return;
        }
        let Image { clock, rsn, observed, .. } = image;
        let truncate = RouterCommand::Truncate { rank: Rank(r as u32), clock, rsn, observed };
        self.images[r].clear();
        self.images[r].push_back(image);
        for router in &mut self.world.borrow_mut().routers {
            router.protocol.command(truncate.clone(), &mut router.said);
        }
    }

    fn disturb(&mut self) {
        let (what, r, after) = {
            let random = &mut self.world.borrow_mut().random;
            (random.gen_range(0..100), random.gen_range(0..RANKS as usize), random.gen_range(0..12))
        };
        match what {
            0..=4 => self.take_image(r),
            5..=6 => self.count_image(r),
            7..=8 if self.may_die(r) => {
                self.world.borrow_mut().dies_in = Some(after);
                self.step(r);
            }
            9..=11 => self.lose_router(after),
            _ => {}
        }
    }

    /// All is computed, and killed ranks have seen again what they had seen.
    fn is_done(&self) -> bool {
        let mut each = self.processes.iter().zip(&self.seen);
        each.all(|(p, seen)| p.program.is_done() && p.rank.path.rsn() >= *seen)
    }

    /// Of every rank that was started again a router says at last that it re-executes no more. What
    /// was on its way when a connection broke is said again, when its rank asks for messages.
    fn all_are_recovered(&mut self) {
        self.world.borrow_mut().breaks = false;
        let again: Vec<RankInstance> = (self.processes.iter())
            .map(|p| p.rank.path.host.instance)
            .filter(|instance| instance.incarnation > Incarnation(1))
            .collect();
        for _ in 0..1000 {
            (0..RANKS as usize).for_each(|r| self.step(r));
            let world = &mut *self.world.borrow_mut();
            world.pump();
            if again.iter().all(|instance| world.replayed.contains(instance)) {
                return;
            }
        }
        panic!("not recovered: {again:?}, but {:?}", self.world.borrow().replayed);
    }

    /// Runs to the end; returns what each rank has computed, and how often one was killed and a
    /// router lost: in the lower and upper half of the number.
    fn run(mut self) -> (Vec<(u64, Vec<u8>)>, u64) {
        let calm = self.world.borrow().calm;
        // At some time the last thing has broken.
        let disturbed = if calm { 0 } else { self.world.borrow_mut().random.gen_range(20..600) };
        let mut calls = 0;
        while !self.is_done() {
            calls += 1;
            assert!(calls < 20_000, "it does not come to an end");
            self.world.borrow_mut().breaks = calls < disturbed;
            if calls < disturbed {
                self.disturb();
            }
            let r = self.world.borrow_mut().random.gen_range(0..RANKS as usize);
            self.step(r);
        }
        for p in &mut self.processes {
            p.rank.path.flush().unwrap();
        }
        self.all_are_recovered();
        let result = self.processes.iter().zip(&self.memories).map(|(p, memory)| {
            // SAFETY: nothing uses the memory any more.
            (p.program.sum, unsafe { (**memory).window }.to_vec())
        });
        (result.collect(), self.kills + (self.routers_lost() << 32))
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.processes.clear();
        for memory in &self.memories {
            // SAFETY: allocated in `new` with this layout.
            unsafe { std::alloc::dealloc(memory.cast(), std::alloc::Layout::new::<Memory>()) };
        }
    }
}

/// One schedule with kills and one without; returns how many kills and lost routers there were.
fn compare(seed: u64) -> u64 {
    let result = catch_unwind(|| {
        let (expected, _) = Job::new(seed, 60, true).run();
        let (result, kills) = Job::new(seed, 60, false).run();
        for (now, then) in result.iter().zip(&expected) {
            assert_eq!(now.0, then.0, "other messages were received");
            let differs = now.1.iter().zip(&then.1).position(|(a, b)| a != b);
            assert_eq!(differs, None, "memory that others write differs");
        }
        kills
    });
    result.unwrap_or_else(|e| {
        eprintln!("seed {seed} (EYRIE_SEED={seed} EYRIE_SCHEDULES=1)");
        resume_unwind(e)
    })
}

#[test]
fn killed_ranks_compute_what_undisturbed_ones_do() {
    let asked = std::env::var("EYRIE_SCHEDULES").ok().and_then(|v| v.parse().ok());
    let first: u64 = std::env::var("EYRIE_SEED").ok().and_then(|v| v.parse().ok()).unwrap_or(1);
    let last = first + asked.unwrap_or(SCHEDULES);
    println!("seeds {first} to {}", last - 1);
    let sum = on_all_processors(first..last, compare);
    let (kills, lost) = (sum & 0xffff_ffff, sum >> 32);
    println!("{kills} kills, {lost} routers lost");
    assert!(asked.is_some() || kills > SCHEDULES && lost > SCHEDULES, "{kills} kills, {lost} lost");
}

/// Two ranks that have found each other, on connections that pass `files` or not.
fn pair(files: bool) -> (Shared, Vec<TestRank>) {
    let world = Rc::new(RefCell::new(World::new(SmallRng::seed_from_u64(1), 1, true, files)));
    let rank = |rank| {
        let instance = RankInstance { rank, incarnation: Incarnation(1) };
        RankCore::new(RouterPath::new(TestHost::new(&world, instance), rank, RANKS))
    };
    let mut ranks: Vec<_> = Rank::first(RANKS).map(rank).collect();
    ranks.iter_mut().for_each(|r| r.path.attach().unwrap());
    (world, ranks)
}

fn tagged(tag: u64) -> Envelope {
    Envelope::Tagged { tag, data: None }
}

/// The tags and contents that a rank receives, while both make progress calls.
fn receive_all(ranks: &mut [TestRank], at: usize, count: usize) -> Vec<(u64, Vec<u8>)> {
    let mut buffer = vec![0u8; 1 << 20];
    let mut received = Vec::new();
    for _ in 0..200 {
        for (r, rank) in ranks.iter_mut().enumerate() {
            let post = (r == at).then_some(Posted {
                context: 0,
                buffer: buffer.as_mut_ptr(),
                len: buffer.len(),
                source: None,
                tagged: true,
                tag: 0,
                ignore: u64::MAX,
                multi: None,
                used: 0,
                report: true,
            });
            let mut came = None;
            if let Some(p) = post {
                rank.post(p, |c| came = Some(c));
            }
            rank.progress(Unread::Nothing, |event| {
                if let Event::Received(c) = event {
                    came = Some(c);
                }
            })
            .unwrap();
            match came {
                Some(c) => received.push((c.tag, buffer[..c.len].to_vec())),
                None => drop(rank.cancel(0)),
            }
        }
        if received.len() == count {
            break;
        }
    }
    received
}

#[test]
fn a_message_lost_with_its_connection_is_sent_again_by_a_rank_that_only_waits() {
    let (world, mut ranks) = pair(true);
    ranks[0].send(Rank(1), tagged(5), b"hello").unwrap();
    world.borrow_mut().break_all();
    assert_eq!(receive_all(&mut ranks, 1, 1), [(5, b"hello".to_vec())]);
}

#[test]
fn large_messages_of_a_full_segment_are_sent_again_from_it() {
    let (world, mut ranks) = pair(true);
    let content = |n: u64| vec![n as u8; 300_000];
    // The first one waits for a segment; then three fill it, and the connection breaks when the
    // rank waits for the next one.
    ranks[0].send(Rank(1), tagged(0), &content(0)).unwrap();
    ranks[0].send(Rank(1), tagged(1), &content(1)).unwrap();
    ranks[0].send(Rank(1), tagged(2), &content(2)).unwrap();
    world.borrow_mut().breaks_at_wait = true;
    ranks[0].send(Rank(1), tagged(3), &content(3)).unwrap();
    let expected: Vec<_> = (0..4).map(|n| (n, content(n))).collect();
    assert!(receive_all(&mut ranks, 1, 4) == expected);
    assert!(!world.borrow().breaks_at_wait);
}

#[test]
fn segments_that_no_unacknowledged_message_names_are_closed() {
    let (_world, mut ranks) = pair(true);
    for n in 0..100 {
        ranks[0].send(Rank(1), tagged(n), &[7; 300_000]).unwrap();
        assert!(ranks[0].path.descriptors().count() <= 4, "after {n} messages");
    }
}

#[test]
fn an_image_asks_whether_large_messages_are_safe() {
    let (world, mut ranks) = pair(true);
    for n in 0..3 {
        ranks[0].send(Rank(1), tagged(n), &[7; 20_000]).unwrap();
        // Everything that is on its way arrives.
        world.borrow_mut().pump();
    }
    assert!(ranks[0].path.settled(Duration::from_millis(50)));
    // No rank waits longer than that for a router that does not answer.
    ranks[0].send(Rank(1), tagged(3), &[7; 20_000]).unwrap();
    world.borrow_mut().break_all();
    assert!(!ranks[0].path.settled(Duration::from_millis(50)));
}

#[test]
fn a_message_larger_than_every_buffer_comes_whole_over_a_stream_that_breaks() {
    let (world, mut ranks) = pair(false);
    let content: Vec<u8> = (0..1_000_000u32).map(|n| ((n * n) >> 7) as u8).collect();
    world.borrow_mut().calm = false;
    world.borrow_mut().breaks = true;
    for n in 0..20 {
        ranks[0].send(Rank(1), tagged(n), &content).unwrap();
    }
    world.borrow_mut().breaks = false;
    let received = receive_all(&mut ranks, 1, 20);
    assert!(received == (0..20).map(|n| (n, content.clone())).collect::<Vec<_>>());
}

#[test]
fn large_messages_in_pieces_are_sent_again_whole() {
    let (world, mut ranks) = pair(false);
    let content = |n: u64| vec![n as u8; 300_000];
    for n in 0..4 {
        ranks[0].send(Rank(1), tagged(n), &content(n)).unwrap();
        // Nothing is on its way to be acknowledged: what was sent last is lost as a whole.
        world.borrow_mut().break_all();
    }
    let expected: Vec<_> = (0..4).map(|n| (n, content(n))).collect();
    assert!(receive_all(&mut ranks, 1, 4) == expected);
}
