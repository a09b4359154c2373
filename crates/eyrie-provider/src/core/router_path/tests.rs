//! Two ranks and the real protocol of their routers, in memory: programs that send, receive, read,
//! write and count in each other's memory, killed at any moment of any call, with lost connections
//! and images of all ages. What they compute must be what an undisturbed run computes, and what
//! they send again must be what they sent.

mod lost;

use super::host::{ConnectError, File, Host, Interest, RouterStream};
use super::RouterPath;
use crate::core::asking::Asked;
use crate::core::matching::Posted;
use crate::core::path::{ImagePoint, Path};
use crate::core::rank::{Event, RankCore, Unread};
use crate::core::testing::job::{die, Image, Job, MakePath, Outcome, Scene, Slot};
use crate::core::testing::program::{self, Observing, Shape, TestWorld};
use crate::core::testing::schedules;
use crate::core::world::World as _;
use eyrie_router::protocol::{ConnId, Protocol};
use eyrie_router::space::Bounds;
use eyrie_router::testing::{MemoryFile, MemoryStore, Said};
use eyrie_router::{RouterCommand, RouterEvent};
use eyrie_wire::data::{self, Envelope, Frame};
use eyrie_wire::directory::KeptUntil;
use eyrie_wire::{Incarnation, Rank, RankInstance, RouterId};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::io::{self, ErrorKind};
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Random runs; EYRIE_SCHEDULES asks for another number.
const SCHEDULES: u64 = 500;
const RANKS: u32 = 2;
/// The signal that ranks get.
const SIGNAL: i32 = 10;

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
    /// The primary router of each rank.
    primaries: Vec<RouterId>,
    /// The router of all ranks of other domains.
    gateway: Option<RouterId>,
    /// Those of whom a router has said that they re-execute no more.
    replayed: Vec<RankInstance>,
    /// Where routers may be lost.
    loss: Option<lost::Loss>,
}

type Shared = Rc<RefCell<World>>;

impl Router {
    fn new(
        number: u32,
        primaries: &[RouterId],
        with: impl FnOnce(Protocol<MemoryStore>) -> Protocol<MemoryStore>,
    ) -> Router {
        let is_primary = primaries.iter().map(|primary| primary.0 == number).collect();
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
        let primaries: Vec<_> = (0..RANKS).map(|rank| RouterId(rank % routers)).collect();
        World {
            routers: (0..routers).map(|k| Router::new(k, &primaries, |p| p)).collect(),
            next_conn: 1,
            now: Duration::ZERO,
            ticks: 0,
            dies_in: None,
            calm,
            files,
            breaks: false,
            breaks_at_wait: false,
            told: Vec::new(),
            primaries,
            gateway: None,
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
        let mut determinants = Vec::new();
        let mut observed = Vec::new();
        for (who, list, parts) in self.told.drain(..) {
            assert_eq!(who, instance);
            determinants.extend(list);
            observed.extend(parts);
        }
        let primary = self.primaries[instance.rank.index()];
        let router = &mut self.routers[primary.index()];
        router.protocol.command(RouterCommand::Serve(vec![instance.rank]), &mut router.said);
        let recover = RouterCommand::Recover { instance, determinants, observed };
        router.protocol.command(recover, &mut router.said);
    }
}

type TestRank = program::TestRank<TestHost>;

/// A rank's world.
struct TestHost {
    world: Shared,
    instance: RankInstance,
    observing: Rc<RefCell<Observing>>,
    /// The primary router of each rank, as it was told last.
    primaries: Vec<RouterId>,
}

impl TestHost {
    /// Of a rank that observes nothing.
    fn new(world: &Shared, instance: RankInstance) -> TestHost {
        TestHost::observing(world, instance, &Rc::default())
    }

    fn observing(
        world: &Shared,
        instance: RankInstance,
        observing: &Rc<RefCell<Observing>>,
    ) -> TestHost {
        let observing = observing.clone();
        let primaries = world.borrow().primaries.clone();
        TestHost { world: world.clone(), instance, observing, primaries }
    }

    /// A kill may come now.
    fn survives(world: &Shared) {
        if !world.borrow_mut().lives() {
            die();
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
        self.primaries[rank.index()]
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

    fn is_gateway(&self, router: RouterId) -> bool {
        self.world.borrow().gateway == Some(router)
    }

    fn is_beside(&self, router: RouterId) -> bool {
        self.world.borrow().is_beside(router, self.instance.rank)
    }

    fn changed_routers(&mut self) -> Vec<RouterId> {
        let mut world = self.world.borrow_mut();
        let changed = world.changed_routers(self.instance.rank);
        if !changed.is_empty() {
            self.primaries.clone_from(&world.primaries);
        }
        changed
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

impl TestWorld for TestHost {
    type Path = RouterPath<TestHost>;

    fn random_byte(&self) -> u8 {
        self.world.borrow_mut().random.gen()
    }
}

impl ImagePoint for TestHost {
    fn image_point(_: &mut impl Path<World = TestHost>) {}
}

impl crate::core::world::World for TestHost {
    fn take_observed(&mut self, take: &mut dyn FnMut(u64, &[u8])) {
        self.observing.borrow_mut().take(take);
    }

    fn observed(&self) -> u64 {
        self.observing.borrow().observed()
    }

    fn observed_waiting(&self) -> usize {
        self.observing.borrow().waiting()
    }

    fn observe_again(&mut self, bytes: Vec<u8>) {
        self.observing.borrow_mut().again(bytes);
    }

    fn skip_observed(&mut self, to: u64) {
        self.observing.borrow().skip(to);
    }

    fn signal(&mut self, clock: u64, is_new: bool) -> Option<i32> {
        let world = &mut *self.world.borrow_mut();
        // Its record would bring determinants to routers, and hide what is lost with others.
        let comes = world.loss.is_none() && world.random.gen_bool(0.02);
        self.observing.borrow_mut().signal(clock, is_new, comes).then_some(SIGNAL)
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

    fn asked(&mut self, _: Asked) {}

    fn trace(&mut self, _: eyrie_wire::page::What, _: u64, _: u32, _: u64) {}
}

// The job.

/// Some runs have messages so large that segments fill up.
fn content_len(seed: u64, word: u64) -> usize {
    match word >> 16 & 31 {
        0..8 if seed % 8 == 0 => 250_000,
        0 => 40_000,
        1 => 17_000,
        n => n as usize * 5,
    }
}

fn shape(seed: u64) -> Shape {
    let longest = 256 * 1024;
    Shape {
        seed,
        ranks: RANKS,
        total: 60,
        longest,
        len: content_len,
        observation: 1,
        effects: false,
    }
}

/// The routers around the ranks of a job.
struct Routers(Shared);

impl Scene for Routers {
    type World = TestHost;

    fn world(&self, instance: RankInstance, observing: &Rc<RefCell<Observing>>) -> TestHost {
        TestHost::observing(&self.0, instance, observing)
    }

    fn path(&self, host: TestHost, rank: Rank) -> RouterPath<TestHost> {
        RouterPath::new(host, rank, RANKS)
    }

    fn image(path: &RouterPath<TestHost>) -> MakePath<TestHost> {
        Rc::new(path.image())
    }

    fn recover(&self, instance: RankInstance) {
        let mut world = self.0.borrow_mut();
        world.dies_in = None;
        world.forget_changes(instance.rank);
        world.recover(instance);
    }

    fn is_usable(&self, r: usize) -> bool {
        self.0.borrow().is_adopted(r)
    }

    fn counts(&self, r: usize, image: &Image<TestHost>) -> bool {
        let Image { clock, rsn, observed, usable, .. } = *image;
        let counts = self.0.borrow_mut().may_count(r, usable);
        if counts {
            let truncate = RouterCommand::Truncate { rank: Rank(r as u32), clock, rsn, observed };
            for router in &mut self.0.borrow_mut().routers {
                router.protocol.command(truncate.clone(), &mut router.said);
            }
        }
        counts
    }

    fn reconnects(&self) -> bool {
        self.0.borrow_mut().random.gen_bool(0.5)
    }
}

type RouterJob = Job<Routers>;

impl RouterJob {
    fn of(seed: u64, calm: bool) -> RouterJob {
        let mut random = SmallRng::seed_from_u64(seed);
        let routers = random.gen_range(1..3);
        // Those with the largest messages go both ways.
        let files = seed / 8 % 2 == 0;
        let mut world = World::new(random, routers, calm, files);
        if seed % 2 == 1 && !calm {
            world.may_lose_routers();
        }
        let job = Job::new(Routers(Rc::new(RefCell::new(world))), shape(seed));
        job.begin();
        job
    }

    fn world(&self) -> std::cell::RefMut<'_, World> {
        self.scene.0.borrow_mut()
    }

    /// A call of rank `r`, which dies so many things later, if it is not over by then.
    fn kill(&self, r: usize, after: u32) {
        self.world().dies_in = Some(after);
        self.step(r);
        self.world().dies_in = None;
        if matches!(*self.slots[r].borrow(), Slot::Ready(_)) {
            return;
        }
        self.step(r);
    }

    fn disturb(&self) {
        let (what, r, after) = {
            let random = &mut self.world().random;
            (random.gen_range(0..100), random.gen_range(0..RANKS as usize), random.gen_range(0..12))
        };
        match what {
            0..=4 => self.take_image(r),
            5..=6 => drop(self.count_image(r)),
            7..=8 if self.may_die(r) => self.kill(r, after),
            9..=11 => self.lose_router(after),
            12 => self.move_rank(r),
            _ => {}
        }
    }

    /// Of every rank that was started again a router says at last that it re-executes no more. What
    /// was on its way when a connection broke is said again, when its rank asks for messages.
    fn all_are_recovered(&self) {
        self.world().breaks = false;
        let all = (0..RANKS as usize).map(|r| self.instance(r));
        let again: Vec<_> = all.filter(|i| i.incarnation > Incarnation(1)).collect();
        for _ in 0..1000 {
            (0..RANKS as usize).for_each(|r| self.step(r));
            let mut world = self.world();
            world.pump();
            if again.iter().all(|instance| world.replayed.contains(instance)) {
                return;
            }
        }
        panic!("not recovered: {again:?}, but {:?}", self.world().replayed);
    }

    /// Runs to the end.
    fn run(self) -> Outcome {
        let calm = self.world().calm;
        // At some time the last thing has broken.
        let disturbed = if calm { 0 } else { self.world().random.gen_range(20..600) };
        let mut calls = 0;
        while !self.is_done() {
            calls += 1;
            assert!(calls < 20_000, "it does not come to an end");
            self.world().breaks = calls < disturbed;
            if calls < disturbed {
                self.disturb();
            }
            let r = self.world().random.gen_range(0..RANKS as usize);
            self.step(r);
        }
        for r in 0..RANKS as usize {
            self.with(r, |p| p.rank.path.flush().unwrap());
        }
        self.all_are_recovered();
        (self.computed(), self.kills.get() + (self.routers_lost() << 32))
    }
}

/// One schedule with kills and one without; returns how many kills and lost routers there were.
fn compare(seed: u64) -> u64 {
    schedules::compare(seed, |calm| RouterJob::of(seed, calm).run())
}

#[test]
fn killed_ranks_compute_what_undisturbed_ones_do() {
    if let Some(sum) = schedules::run(SCHEDULES, compare) {
        let kills = sum & 0xffff_ffff;
        let lost = sum >> 32;
        assert!(kills > SCHEDULES && lost > SCHEDULES, "{kills} kills, {lost} lost");
        // Other tests add theirs, as many as they have come to.
        let moves = lost::MOVES.load(Ordering::Relaxed);
        assert!(moves > SCHEDULES / 10, "{moves} moves");
    }
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
    assert_eq!(ranks[0].path.settle(Duration::from_millis(50)), Ok(()));
    // No rank waits longer than that for a router that does not answer.
    ranks[0].send(Rank(1), tagged(3), &[7; 20_000]).unwrap();
    world.borrow_mut().break_all();
    let why = Err("what it has sent is still on its way to a router");
    assert_eq!(ranks[0].path.settle(Duration::from_millis(50)), why);
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
