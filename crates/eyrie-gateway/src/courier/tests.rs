//! The courier between real protocols: the gateway of the other domain, and routers of this one.
//! Connections break, gateways of either side and routers are lost, senders die and send again, and
//! bytes move in random order. Each message must arrive once, in the order of its pair, and none
//! may be acknowledged to its sender before it was received. These tests must find each error of
//! `mutation.rs`.

use super::mutation::{self, Mutation};
use super::*;
use eyrie_router::protocol::{ConnId, Protocol, RouterCommand, RouterEvent};
use eyrie_router::space::Bounds;
use eyrie_router::testing::{on_all_processors, MemoryStore, Said};
use eyrie_wire::data::{
    content_hash, put_plain, Ack, Deliver, Envelope, Kind, Message, Piece, Place, Ready, Received,
    Repeat, Segment, SegmentDone, SegmentRequest, Shown, StreamKind, MAX_INLINE,
};
use eyrie_wire::traffic::Sent;
use eyrie_wire::{Incarnation, RankInstance};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::{BTreeMap, VecDeque};

/// Random interleavings in one run of the tests; EYRIE_SCHEDULES asks for others.
const SCHEDULES: u64 = 10_000;
/// Steps of one interleaving.
const STEPS: usize = 300;
/// Rounds in which everything must come to rest.
const ROUNDS: usize = 400;

/// A domain has this many ranks at most: ranks of this domain, then those of the other one.
const OWN: u32 = 2;
const OTHERS: u32 = 2;

fn own() -> impl Iterator<Item = Rank> {
    Rank::first(OWN)
}

fn others() -> impl Iterator<Item = Rank> {
    (OWN..OWN + OTHERS).map(Rank)
}

/// The content of a message: no part of it is like another one of its length.
fn content(source: Rank, destination: Rank, ssn: u64, len: usize) -> Vec<u8> {
    let seed = (u64::from(source.0) << 8 ^ u64::from(destination.0)) << 20 ^ ssn;
    let mut bytes = Vec::with_capacity(len);
    while bytes.len() < len {
        let word = (seed ^ (bytes.len() as u64) << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let part = (len - bytes.len()).min(512);
        bytes.extend(word.to_le_bytes());
        bytes.resize(bytes.len() + part, (word >> 50) as u8);
    }
    bytes.truncate(len);
    bytes
}

/// What a sender keeps until it is acknowledged, and what an image of it holds.
#[derive(Clone)]
struct Memory {
    /// What was sent to each rank.
    sent: Vec<Sent>,
    kept: VecDeque<Message>,
}

impl Default for Memory {
    fn default() -> Memory {
        Memory { sent: vec![Sent::default(); OWN as usize], kept: VecDeque::new() }
    }
}

/// A rank of the other domain.
struct Sender {
    instance: RankInstance,
    memory: Memory,
    images: Vec<Memory>,
    conn: Option<ConnId>,
    ready: bool,
    known: Vec<u64>,
    /// How many of the kept messages were sent on this connection.
    sent: usize,
    /// Frames that are not acknowledged: whether each is a kept message.
    frames: VecDeque<bool>,
    acknowledged: u64,
    segment: Option<(u32, u64, u64)>,
    asked: bool,
}

/// A rank of this domain.
#[derive(Default)]
struct Receiver {
    conn: Option<ConnId>,
    begun: bool,
    rsn: u64,
    shown: BTreeMap<Rank, Sent>,
    ahead: Vec<u8>,
    reported: u64,
}

/// Which protocol a connection leads to: a router of this domain, or the other gateway.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum At {
    Home(usize),
    Gateway,
}

/// The output of the courier, and its connections.
#[derive(Default)]
struct Lines {
    conns: BTreeMap<Link, ConnId>,
    /// What it has sent.
    wires: BTreeMap<Link, VecDeque<Vec<u8>>>,
    room: usize,
}

impl Output for Lines {
    fn frame(&mut self, link: Link, header: &Header, payload: &[u8]) {
        if self.conns.contains_key(&link) {
            let mut bytes = Vec::new();
            put_plain(&mut bytes, header, payload);
            self.wires.entry(link).or_default().push_back(bytes);
        }
    }

    fn has_room(&self, link: Link) -> bool {
        self.conns.contains_key(&link) && self.wires.get(&link).map_or(0, VecDeque::len) < self.room
    }
}

struct World {
    random: SmallRng,
    homes: Vec<(Protocol<MemoryStore>, Said)>,
    gateway: (Protocol<MemoryStore>, Said),
    courier: Courier,
    lines: Lines,
    senders: Vec<Sender>,
    receivers: Vec<Receiver>,
    /// What senders and receivers have sent.
    wires: BTreeMap<(At, ConnId), VecDeque<Vec<u8>>>,
    next: ConnId,
    bounds: Bounds,
    large: bool,
    /// Most bytes of a large message.
    longest: usize,
    /// The last message to each rank that a connection of the courier has given, or that its router
    /// has greeted it with.
    given: BTreeMap<(Link, Rank), u64>,
    /// The length of each message, so that it is the same when it is sent again.
    lens: BTreeMap<(Rank, Rank, u64), usize>,
    now: Duration,
    losses: u64,
}

const HOME_BOUNDS: Bounds = Bounds { memory: 256 << 20, disk: 1 << 30 };

fn gateway(bounds: Bounds) -> Protocol<MemoryStore> {
    let elsewhere = (0..OWN + OTHERS).map(|rank| rank < OWN).collect();
    Protocol::new(elsewhere, bounds, MemoryStore::default()).as_gateway()
}

impl World {
    fn new(seed: u64) -> World {
        let mut random = SmallRng::seed_from_u64(seed);
        let homes = random.gen_range(1..3);
        let small = random.gen_bool(0.3);
        let bounds = if small { Bounds { memory: 1 << 20, disk: 2 << 20 } } else { HOME_BOUNDS };
        let said =
            |random: &mut SmallRng| Said { room: random.gen_range(1..12), ..Said::default() };
        let sender = |rank| Sender {
            instance: RankInstance { rank, incarnation: Incarnation(1) },
            memory: Memory::default(),
            images: vec![Memory::default()],
            conn: None,
            ready: false,
            known: Vec::new(),
            sent: 0,
            frames: VecDeque::new(),
            acknowledged: 0,
            segment: None,
            asked: false,
        };
        let mut world = World {
            homes: Vec::new(),
            gateway: (gateway(bounds), said(&mut random)),
            courier: Courier::new(own().collect(), others().collect(), (OWN + OTHERS) as usize),
            lines: Lines { room: random.gen_range(1..12), ..Lines::default() },
            senders: others().map(sender).collect(),
            receivers: own().map(|_| Receiver::default()).collect(),
            wires: BTreeMap::new(),
            next: 10,
            bounds,
            large: random.gen_bool(0.4),
            longest: if random.gen_bool(0.1) { 700_000 } else { 60_000 },
            given: BTreeMap::new(),
            lens: BTreeMap::new(),
            now: Duration::ZERO,
            losses: 0,
            random,
        };
        for k in 0..homes {
            let home = (world.home(k, homes), said(&mut world.random));
            world.homes.push(home);
        }
        world.direct();
        world
    }

    fn home(&self, k: usize, homes: usize) -> Protocol<MemoryStore> {
        let here = |rank: u32| rank < OWN && rank as usize % homes == k;
        let is_primary = (0..OWN + OTHERS).map(here).collect();
        Protocol::new(is_primary, HOME_BOUNDS, MemoryStore::default())
            .keeping_until_received(u64::MAX)
    }

    /// The courier is told where the routers are.
    fn direct(&mut self) {
        let homes = self.homes.len() as u32;
        let gateway = RouterId(homes);
        let primary = |rank: u32| if rank < OWN { RouterId(rank % homes) } else { gateway };
        let primaries: Vec<_> = (0..OWN + OTHERS).map(primary).collect();
        self.courier.set_primaries(&primaries, &mut self.lines);
    }

    fn router(&mut self, at: At) -> &mut (Protocol<MemoryStore>, Said) {
        match at {
            At::Home(k) => &mut self.homes[k],
            At::Gateway => &mut self.gateway,
        }
    }

    fn primary(&self, own: usize) -> At {
        At::Home(own % self.homes.len())
    }

    fn run(mut self) -> u64 {
        for _ in 0..STEPS {
            self.step();
        }
        for _ in 0..ROUNDS {
            self.now += Duration::from_secs(1);
            self.tick();
            self.connect_all();
            self.move_all(usize::MAX);
            for at in 0..self.receivers.len() {
                self.report(at);
            }
            self.move_all(usize::MAX);
        }
        self.check_end();
        self.losses
    }

    fn step(&mut self) {
        match self.random.gen_range(0..100) {
            0..=29 => self.send(),
            30..=64 => {
                let most = self.random.gen_range(1..6);
                self.move_all(most);
            }
            65..=79 => self.connect_some(),
            80..=86 => {
                let at = self.random.gen_range(0..self.receivers.len());
                self.report(at);
            }
            87..=90 => {
                self.now += Duration::from_millis(self.random.gen_range(1..900));
                self.tick();
            }
            91..=94 => self.break_one(),
            95 => self.lose_gateway(),
            96 => self.lose_courier(),
            97 => self.lose_home(),
            98 => self.kill_sender(),
            _ => {
                let at = self.random.gen_range(0..self.senders.len());
                let sender = &mut self.senders[at];
                sender.images.push(sender.memory.clone());
            }
        }
    }

    fn tick(&mut self) {
        let now = self.now;
        for (router, said) in self.homes.iter_mut().chain([&mut self.gateway]) {
            router.tick(now, said);
        }
        self.courier.tick(now, &mut self.lines);
        self.check();
    }

    // Senders.

    fn send(&mut self) {
        let at = self.random.gen_range(0..self.senders.len());
        let destination = Rank(self.random.gen_range(0..OWN));
        let len = match self.random.gen_range(0..10) {
            0 if self.large => self.random.gen_range(MAX_INLINE + 1..self.longest),
            n => n * 13,
        };
        let sender = &mut self.senders[at];
        let rank = sender.instance.rank;
        let ssn = sender.memory.sent[destination.index()].messages + 1;
        let len = *self.lens.entry((rank, destination, ssn)).or_insert(len);
        let envelope = Envelope::Tagged { tag: ssn, data: None };
        let size = len as u64;
        let sent = &mut sender.memory.sent[destination.index()];
        *sent = sent.and(size);
        let sent_bytes = sent.bytes;
        let place = None;
        let message = Message { destination, ssn, clock: ssn, envelope, size, sent_bytes, place };
        if sender.ready && ssn <= sender.known[destination.index()] {
            let content = content(rank, destination, ssn, len);
            let hash = content_hash(&content[..len.min(MAX_INLINE)]);
            let Message { clock, size, .. } = message;
            let repeat = Repeat { destination, ssn, clock, envelope, size, hash };
            sender.frames.push_back(false);
            self.put(at, &Header::Repeat(repeat), &[]);
        } else {
            sender.memory.kept.push_back(message);
            self.send_kept(at);
        }
    }

    /// Puts a frame on the wire of a sender.
    fn put(&mut self, at: usize, header: &Header, payload: &[u8]) {
        let Some(conn) = self.senders[at].conn else { return };
        let mut bytes = Vec::new();
        put_plain(&mut bytes, header, payload);
        self.wires.entry((At::Gateway, conn)).or_default().push_back(bytes);
    }

    /// Sends what is kept and was not sent on this connection.
    fn send_kept(&mut self, at: usize) {
        while self.senders[at].ready && self.senders[at].sent < self.senders[at].memory.kept.len() {
            let sender = &mut self.senders[at];
            let mut message = sender.memory.kept[sender.sent];
            let Message { destination, ssn, size, .. } = message;
            let bytes = content(sender.instance.rank, destination, ssn, size as usize);
            if bytes.len() > MAX_INLINE {
                match &mut sender.segment {
                    Some((segment, total, used)) if *used + size <= *total => {
                        message.place = Some(Place { segment: *segment, offset: *used });
                        *used += size;
                    }
                    _ => {
                        if let Some((segment, ..)) = sender.segment.take() {
                            sender.frames.push_back(false);
                            self.put(at, &Header::SegmentDone(SegmentDone { segment }), &[]);
                        }
                        let sender = &mut self.senders[at];
                        if !std::mem::replace(&mut sender.asked, true) {
                            sender.frames.push_back(false);
                            let request = SegmentRequest { bytes: size };
                            self.put(at, &Header::SegmentRequest(request), &[]);
                        }
                        return;
                    }
                }
            }
            sender.sent += 1;
            sender.frames.push_back(true);
            match message.place {
                None => self.put(at, &Header::Message(message), &bytes),
                Some(Place { segment, mut offset }) => {
                    for piece in bytes.chunks(MAX_INLINE) {
                        self.put(at, &Header::Piece(Piece { segment, offset }), piece);
                        offset += piece.len() as u64;
                    }
                    self.put(at, &Header::Message(message), &[]);
                }
            }
        }
    }

    fn sender_hears(&mut self, at: usize, frame: &Frame) {
        let sender = &mut self.senders[at];
        let rank = sender.instance.rank;
        match frame.header {
            Header::Known(known) => {
                self.receivers[known.destination.index()].check_shown(rank, known.ssn);
                sender.known[known.destination.index()] = known.ssn;
            }
            Header::Ready(_) => {
                sender.ready = true;
                let known = sender.known.clone();
                sender.memory.kept.retain(|m| m.ssn > known[m.destination.index()]);
                self.send_kept(at);
            }
            Header::Segment(s) => {
                sender.segment = Some((s.segment, s.bytes, 0));
                sender.asked = false;
                self.send_kept(at);
            }
            Header::Ack(ack) => {
                for _ in sender.acknowledged..ack.frames {
                    if sender.frames.pop_front().expect("it was sent") {
                        let m = sender.memory.kept.pop_front().expect("it was kept");
                        sender.sent -= 1;
                        self.receivers[m.destination.index()].check_shown(rank, m.ssn);
                    }
                }
                sender.acknowledged = ack.frames;
            }
            other => panic!("{other:?} to a sender"),
        }
    }

    /// A sender dies with what it had not written. The next incarnation goes on from an image.
    fn kill_sender(&mut self) {
        self.losses += 1;
        let at = self.random.gen_range(0..self.senders.len());
        if let Some(conn) = self.senders[at].conn {
            // What the kernel has of its frames is a part of its history.
            self.gateway.1.held.remove(&conn);
            while self.arrive(At::Gateway, conn) {}
        }
        self.drop_sender(at);
        let sender = &mut self.senders[at];
        sender.instance.incarnation = sender.instance.incarnation.next();
        let image = self.random.gen_range(0..sender.images.len());
        sender.memory = sender.images[image].clone();
        sender.images.truncate(image + 1);
        let fence = RouterCommand::Fence(sender.instance);
        self.gateway.0.command(fence, &mut self.gateway.1);
        self.check();
    }

    // Receivers.

    fn report(&mut self, at: usize) {
        let primary = self.primary(at);
        let receiver = &mut self.receivers[at];
        if let Some(conn) =
            receiver.conn.filter(|_| receiver.begun && receiver.rsn > receiver.reported)
        {
            receiver.reported = receiver.rsn;
            let rsn = receiver.rsn;
            self.put_at(primary, conn, &Header::Received(Received { rsn }));
        }
    }

    fn put_at(&mut self, at: At, conn: ConnId, header: &Header) {
        let mut bytes = Vec::new();
        put_plain(&mut bytes, header, &[]);
        self.wires.entry((at, conn)).or_default().push_back(bytes);
    }

    fn receiver_hears(&mut self, at: usize, frame: &Frame) {
        let receiver = &mut self.receivers[at];
        match frame.header {
            Header::Ready(_) => receiver.begun = true,
            Header::Piece(_) => receiver.ahead.extend_from_slice(frame.payload),
            Header::Deliver(d) => {
                let Deliver { source, ssn, rsn, size, .. } = d;
                assert_eq!(rsn, receiver.rsn + 1);
                receiver.rsn = rsn;
                let last = receiver.shown.entry(source).or_default();
                assert_eq!(d.sent(), last.and(size), "rank {at}: not the next one from {source}");
                *last = d.sent();
                let ahead = std::mem::take(&mut receiver.ahead);
                let came = if d.place.is_some() { &ahead[..] } else { frame.payload };
                let destination = Rank(at as u32);
                let len = self.lens[&(source, destination, ssn)];
                assert!(came == content(source, destination, ssn, len), "another content");
            }
            other => panic!("{other:?} to a receiver"),
        }
    }

    // Connections.

    fn connect_all(&mut self) {
        for at in 0..self.senders.len() {
            self.connect_sender(at);
        }
        for at in 0..self.receivers.len() {
            self.connect_receiver(at);
        }
        for link in self.courier.links() {
            self.connect_link(link);
        }
    }

    fn connect_some(&mut self) {
        for at in 0..self.senders.len() {
            if self.random.gen_bool(0.5) {
                self.connect_sender(at);
            }
        }
        for at in 0..self.receivers.len() {
            if self.random.gen_bool(0.5) {
                self.connect_receiver(at);
            }
        }
        for link in self.courier.links() {
            if self.random.gen_bool(0.4) {
                self.connect_link(link);
            }
        }
    }

    /// A connection to a router stands.
    fn connect(&mut self, at: At, instance: RankInstance, stream: StreamKind) -> ConnId {
        let conn = self.next;
        self.next += 1;
        let (router, said) = self.router(at);
        router.admit(instance).expect("it is admitted");
        router.connected(conn, instance, stream, false, said);
        conn
    }

    fn connect_sender(&mut self, at: usize) {
        if self.senders[at].conn.is_some() {
            return;
        }
        let conn = self.connect(At::Gateway, self.senders[at].instance, StreamKind::Send);
        let sender = &mut self.senders[at];
        sender.conn = Some(conn);
        sender.known = vec![0; OWN as usize];
        self.check();
    }

    fn connect_receiver(&mut self, at: usize) {
        if self.receivers[at].conn.is_some() {
            return;
        }
        let rank = Rank(at as u32);
        let primary = self.primary(at);
        let instance = RankInstance { rank, incarnation: Incarnation(1) };
        let conn = self.connect(primary, instance, StreamKind::Delivery);
        let receiver = &mut self.receivers[at];
        (receiver.conn, receiver.begun) = (Some(conn), false);
        receiver.ahead.clear();
        let rsn = receiver.rsn;
        receiver.reported = rsn;
        for (source, sent) in receiver.shown.clone() {
            self.put_at(primary, conn, &Header::Shown(Shown { source, sent }));
        }
        self.put_at(primary, conn, &Header::Received(Received { rsn }));
        self.put_at(primary, conn, &Header::Resume(Resume { rsn, clock: 0 }));
    }

    fn end_of(link: Link) -> (At, Rank, StreamKind) {
        match link {
            Link::Fetch(rank) => (At::Gateway, rank, StreamKind::Delivery),
            Link::Give { source, router } => (At::Home(router.index()), source, StreamKind::Send),
        }
    }

    fn connect_link(&mut self, link: Link) {
        if self.lines.conns.contains_key(&link) {
            return;
        }
        let (at, rank, stream) = World::end_of(link);
        let conn = self.connect(at, RankInstance { rank, incarnation: Incarnation(1) }, stream);
        self.lines.conns.insert(link, conn);
        self.given.retain(|(of, _), _| *of != link);
        self.courier.connected(link, &mut self.lines);
        self.check();
    }

    /// Nothing is left of a connection on this side; the router may not know yet.
    fn forget(&mut self, at: At, conn: ConnId) {
        let hears = self.random.gen_bool(0.5);
        let (router, said) = self.router(at);
        if hears {
            router.disconnected(conn, said);
        }
        said.frames.remove(&conn);
        said.held.remove(&conn);
        self.wires.remove(&(at, conn));
    }

    fn drop_sender(&mut self, at: usize) {
        let sender = &mut self.senders[at];
        (sender.ready, sender.sent, sender.acknowledged) = (false, 0, 0);
        sender.frames.clear();
        (sender.segment, sender.asked) = (None, false);
        if let Some(conn) = sender.conn.take() {
            self.forget(At::Gateway, conn);
        }
    }

    fn drop_receiver(&mut self, at: usize) {
        if let Some(conn) = self.receivers[at].conn.take() {
            self.forget(self.primary(at), conn);
        }
    }

    /// Some of what a link has sent still arrives.
    fn drop_link(&mut self, link: Link) {
        let arrive = self.random.gen_range(0..4);
        for _ in 0..arrive {
            self.arrive_link(link);
        }
        let Some(conn) = self.lines.conns.remove(&link) else { return };
        self.lines.wires.remove(&link);
        self.forget(World::end_of(link).0, conn);
        self.courier.lost(link, &mut self.lines);
    }

    fn break_one(&mut self) {
        let senders = self.senders.len();
        let receivers = self.receivers.len();
        let links: Vec<Link> = self.lines.conns.keys().copied().collect();
        match self.random.gen_range(0..senders + receivers + links.len()) {
            n if n < senders => self.drop_sender(n),
            n if n < senders + receivers => self.drop_receiver(n - senders),
            n => self.drop_link(links[n - senders - receivers]),
        }
        self.check();
    }

    // Losses.

    /// The other gateway is lost with all that it holds: an empty one takes over.
    fn lose_gateway(&mut self) {
        self.losses += 1;
        for at in 0..self.senders.len() {
            self.drop_sender(at);
        }
        for link in self.courier.links() {
            if let Link::Fetch(_) = link {
                self.drop_link(link);
            }
        }
        self.check();
        let incarnations: Vec<_> = own()
            .map(|_| Incarnation(1))
            .chain(self.senders.iter().map(|sender| sender.instance.incarnation))
            .collect();
        let next = gateway(self.bounds).beginning_with(&incarnations).taking_over();
        self.gateway = (next, Said { room: self.gateway.1.room, ..Said::default() });
    }

    /// The gateway of this domain is lost, and with it what the courier knows.
    fn lose_courier(&mut self) {
        self.losses += 1;
        for link in self.courier.links() {
            self.drop_link(link);
        }
        self.check();
        self.courier = Courier::new(own().collect(), others().collect(), (OWN + OTHERS) as usize);
        self.direct();
    }

    /// A router of this domain is lost: an empty one takes over, and its ranks say what they have.
    fn lose_home(&mut self) {
        self.losses += 1;
        let k = self.random.gen_range(0..self.homes.len());
        for at in 0..self.receivers.len() {
            if self.primary(at) == At::Home(k) {
                self.drop_receiver(at);
            }
        }
        for link in self.courier.links() {
            if World::end_of(link).0 == At::Home(k) {
                self.drop_link(link);
            }
        }
        self.check();
        let next = self.home(k, self.homes.len()).taking_over();
        self.homes[k] = (next, Said { room: self.homes[k].1.room, ..Said::default() });
    }

    // Bytes.

    /// The next frame of a sender or a receiver arrives. False: there is none, or it is held back.
    fn arrive(&mut self, at: At, conn: ConnId) -> bool {
        if self.router(at).1.held.contains(&conn) {
            return false;
        }
        let next = self.wires.get_mut(&(at, conn)).and_then(VecDeque::pop_front);
        let Some(bytes) = next else { return false };
        let (router, said) = self.router(at);
        router.frame(conn, &Frame::parse(&bytes).unwrap().unwrap(), said);
        router.settle(conn, said);
        self.check();
        true
    }

    fn arrive_link(&mut self, link: Link) -> bool {
        let (at, ..) = World::end_of(link);
        let Some(conn) = self.lines.conns.get(&link).copied() else { return false };
        if self.router(at).1.held.contains(&conn) {
            return false;
        }
        let next = self.lines.wires.get_mut(&link).and_then(VecDeque::pop_front);
        let Some(bytes) = next else { return false };
        let frame = Frame::parse(&bytes).unwrap().unwrap();
        if let Header::Message(m) = frame.header {
            let last = self.given.entry((link, m.destination)).or_default();
            assert!(m.ssn > *last, "{link:?}: message {} was there already", m.ssn);
            *last = m.ssn;
        }
        let (router, said) = self.router(at);
        router.frame(conn, &frame, said);
        router.settle(conn, said);
        self.check();
        true
    }

    /// The next frame of a router for this connection.
    fn next_from(&mut self, at: At, conn: ConnId) -> Option<Vec<u8>> {
        let (router, said) = self.router(at);
        let (bytes, _) = said.frames.get_mut(&conn)?.pop_front()?;
        router.writable(conn, said);
        Some(bytes)
    }

    /// At most so many frames move on each connection, in each direction.
    fn move_all(&mut self, most: usize) {
        for at in 0..self.senders.len() {
            let Some(conn) = self.senders[at].conn else { continue };
            let _ = (0..most).find(|_| !self.arrive(At::Gateway, conn));
            for _ in 0..most {
                let Some(bytes) = self.next_from(At::Gateway, conn) else { break };
                self.sender_hears(at, &Frame::parse(&bytes).unwrap().unwrap());
            }
        }
        for link in self.courier.links() {
            let (at, ..) = World::end_of(link);
            let _ = (0..most).find(|_| !self.arrive_link(link));
            let Some(conn) = self.lines.conns.get(&link).copied() else { continue };
            for _ in 0..most {
                let Some(bytes) = self.next_from(at, conn) else { break };
                let frame = Frame::parse(&bytes).unwrap().unwrap();
                if let Header::Known(known) = frame.header {
                    self.given.insert((link, known.destination), known.ssn);
                }
                let taken = self.courier.frame(link, &frame, &mut self.lines);
                if taken.expect("what routers say is sound") == Taken::Later {
                    let (_, said) = self.router(at);
                    said.frames.entry(conn).or_default().push_front((bytes, None));
                    break;
                }
            }
        }
        for at in 0..self.receivers.len() {
            let primary = self.primary(at);
            let Some(conn) = self.receivers[at].conn else { continue };
            let _ = (0..most).find(|_| !self.arrive(primary, conn));
            for _ in 0..most {
                let Some(bytes) = self.next_from(primary, conn) else { break };
                self.receiver_hears(at, &Frame::parse(&bytes).unwrap().unwrap());
            }
        }
    }

    // Invariants.

    fn check(&mut self) {
        for event in self.homes.iter_mut().flat_map(|(_, said)| said.events.drain(..)) {
            use RouterEvent as E;
            match event {
                E::Fatal { .. } | E::Refused { .. } | E::Divergence { .. } => panic!("{event:?}"),
                E::ContentDiffers { .. } | E::Exposed { .. } => panic!("{event:?}"),
                _ => {}
            }
        }
        for event in self.gateway.1.events.drain(..) {
            match event {
                // These are of its own domain's ranks.
                RouterEvent::Heard { instance } | RouterEvent::Unheard { instance } => {
                    assert!(instance.rank >= Rank(OWN));
                }
                RouterEvent::Fenced { .. } | RouterEvent::HeldBack { .. } => {}
                other => panic!("{other:?} of a gateway"),
            }
        }
    }

    fn check_end(&mut self) {
        for sender in &self.senders {
            let rank = sender.instance.rank;
            assert!(sender.memory.kept.is_empty(), "rank {rank} waits for acknowledgements");
            for (at, receiver) in self.receivers.iter().enumerate() {
                let shown = receiver.shown.get(&rank).copied().unwrap_or_default();
                assert!(shown.messages >= sender.memory.sent[at].messages, "from {rank} to {at}");
            }
        }
        let stats = self.gateway.0.stats();
        assert!(stats.log_bytes.iter().all(|bytes| *bytes == 0), "{stats:?}");
        assert!(!self.courier.is_busy(), "the courier waits for acknowledgements");
    }
}

impl Receiver {
    /// Messages of a source up to this one may be forgotten elsewhere.
    fn check_shown(&self, source: Rank, ssn: u64) {
        let shown = self.shown.get(&source).copied().unwrap_or_default().messages;
        assert!(shown >= ssn, "message {ssn} of rank {source} is acknowledged and not received");
    }
}

#[test]
fn random_interleavings_lose_nothing_and_repeat_nothing() {
    let number = |name: &str| std::env::var(name).ok().and_then(|n| n.parse().ok());
    let schedules = number("EYRIE_SCHEDULES").unwrap_or(SCHEDULES);
    let first = number("EYRIE_SEED").unwrap_or(0);
    println!("seeds {first} to {}", first + schedules - 1);
    let run = |seed| {
        let run = std::panic::catch_unwind(|| World::new(seed).run());
        run.unwrap_or_else(|_| {
            panic!("schedule {seed} failed: EYRIE_SEED={seed} EYRIE_SCHEDULES=1 repeats it")
        })
    };
    let losses = on_all_processors(first..first + schedules, run);
    println!("{losses} losses");
    assert!(schedules < 1000 || losses > schedules);
}

// Single rules, each by itself.

/// A courier for two own ranks and one other, all of whose connections stand.
fn one_courier() -> (Courier, Lines, [Link; 3]) {
    let mut lines = Lines { room: 100, ..Lines::default() };
    let mut courier = Courier::new(own().collect(), vec![Rank(2)], 3);
    courier.set_primaries(&[RouterId(0); 3], &mut lines);
    let give = Link::Give { source: Rank(2), router: RouterId(0) };
    let links = [give, Link::Fetch(Rank(0)), Link::Fetch(Rank(1))];
    for (conn, link) in (0..).zip(links) {
        lines.conns.insert(link, conn);
        courier.connected(link, &mut lines);
        let ready = Header::Ready(Ready { up_to: 0, observed: 0 });
        assert_eq!(say(&mut courier, &mut lines, link, &ready, &[]), Ok(Taken::Yes));
        lines.wires.clear();
    }
    (courier, lines, links)
}

fn say(
    courier: &mut Courier,
    lines: &mut Lines,
    link: Link,
    header: &Header,
    payload: &[u8],
) -> Result<Taken, String> {
    let mut bytes = Vec::new();
    put_plain(&mut bytes, header, payload);
    courier.frame(link, &Frame::parse(&bytes).unwrap().unwrap(), lines)
}

/// The kinds of frames that a link was given since the last look.
fn given(lines: &mut Lines, link: Link) -> Vec<Kind> {
    let bytes = lines.wires.remove(&link).unwrap_or_default();
    bytes.iter().map(|bytes| Frame::parse(bytes).unwrap().unwrap().header.kind()).collect()
}

fn small(envelope: Envelope) -> Deliver {
    let place = None;
    Deliver { source: Rank(2), ssn: 1, rsn: 1, envelope, size: 2, sent_bytes: 2, place }
}

fn large(ssn: u64) -> Deliver {
    let envelope = Envelope::Untagged { data: None };
    let place = Some(Place { segment: 9, offset: 0 });
    let sent_bytes = 20_000 * ssn;
    Deliver { source: Rank(2), ssn, rsn: 1, envelope, size: 20_000, sent_bytes, place }
}

fn a_segment_is_ended_when_nothing_is_written_to_it_any_more() {
    let (mut courier, mut lines, [give, first, second]) = one_courier();
    let announced = Header::Announced(large(1));
    let segment = |segment| Header::Segment(Segment { segment, bytes: 30_000 });
    assert_eq!(say(&mut courier, &mut lines, first, &announced, &[]), Ok(Taken::Later));
    assert_eq!(given(&mut lines, give), [Kind::SegmentRequest]);
    say(&mut courier, &mut lines, give, &segment(1), &[]).unwrap();
    assert_eq!(say(&mut courier, &mut lines, first, &announced, &[]), Ok(Taken::Yes));
    // The other one does not fit behind it.
    assert_eq!(say(&mut courier, &mut lines, second, &announced, &[]), Ok(Taken::Later));
    assert_eq!(given(&mut lines, give), [Kind::SegmentRequest]);
    let bytes = [7; 20_000];
    for (offset, piece) in (0..).step_by(MAX_INLINE).zip(bytes.chunks(MAX_INLINE)) {
        let header = Header::Piece(Piece { segment: 9, offset });
        assert_eq!(say(&mut courier, &mut lines, first, &header, piece), Ok(Taken::Yes));
    }
    let whole = Header::Deliver(large(1));
    assert_eq!(say(&mut courier, &mut lines, first, &whole, &[]), Ok(Taken::Yes));
    let pieces = [Kind::Piece, Kind::Piece, Kind::Message, Kind::SegmentDone];
    assert_eq!(given(&mut lines, give), pieces);
    say(&mut courier, &mut lines, give, &segment(2), &[]).unwrap();
    assert_eq!(say(&mut courier, &mut lines, second, &announced, &[]), Ok(Taken::Yes));
}

/// What the gateway of another domain may say is not what its ranks may do here.
fn what_is_not_of_the_other_domain_is_refused() {
    let envelope = Envelope::Untagged { data: None };
    let deliver = |source, rsn| {
        let source = Rank(source);
        Header::Deliver(Deliver { source, rsn, ..small(envelope) })
    };
    for source in [0, 1, 3, u32::MAX] {
        let (mut courier, mut lines, [give, first, _]) = one_courier();
        assert!(say(&mut courier, &mut lines, first, &deliver(source, 1), b"hi").is_err());
        assert_eq!(given(&mut lines, give), []);
    }
    let (mut courier, mut lines, [_, first, _]) = one_courier();
    assert_eq!(say(&mut courier, &mut lines, first, &deliver(2, 2), b"hi"), Ok(Taken::Yes));
    let before = say(&mut courier, &mut lines, first, &deliver(2, 1), b"hi");
    assert!(before.is_err(), "the order of the gateway");
    for piece in [Piece { segment: 8, offset: 0 }, Piece { segment: 9, offset: 1 }] {
        let (mut courier, mut lines, [give, first, _]) = one_courier();
        let segment = Header::Segment(Segment { segment: 1, bytes: 30_000 });
        say(&mut courier, &mut lines, give, &segment, &[]).unwrap();
        let announced = Header::Announced(large(1));
        assert_eq!(say(&mut courier, &mut lines, first, &announced, &[]), Ok(Taken::Yes));
        let piece = say(&mut courier, &mut lines, first, &Header::Piece(piece), b"hi");
        assert!(piece.is_err(), "another payload");
        let whole = Header::Deliver(large(1));
        assert!(say(&mut courier, &mut lines, first, &whole, &[]).is_err(), "not whole");
        let (mut courier, mut lines, [_, first, _]) = one_courier();
        assert!(say(&mut courier, &mut lines, first, &whole, &[]).is_err(), "not announced");
    }
}

/// Two ranks that send each other more than a sender may keep would wait for each other.
fn a_router_answers_for_what_its_rank_does_not_take() {
    let (mut courier, mut lines, [give, first, _]) = one_courier();
    let asked = |courier: &mut Courier, lines: &mut Lines, seconds| {
        courier.tick(Duration::from_secs(seconds), lines);
        given(lines, give)
    };
    assert_eq!(asked(&mut courier, &mut lines, 100), [], "there is nothing to ask for");
    let envelope = Envelope::Untagged { data: None };
    let message = small(envelope);
    say(&mut courier, &mut lines, first, &Header::Deliver(message), b"hi").unwrap();
    assert_eq!(given(&mut lines, give), [Kind::Message]);
    for seconds in 101..160 {
        assert_eq!(asked(&mut courier, &mut lines, seconds), [Kind::Determinants], "{seconds}");
    }
    assert_eq!(asked(&mut courier, &mut lines, 160), [Kind::Flush]);
    assert_eq!(asked(&mut courier, &mut lines, 161), [Kind::Determinants]);
    let ack = Header::Ack(Ack { frames: 62, clock: 0, observed: 0 });
    say(&mut courier, &mut lines, give, &ack, &[]).unwrap();
    assert_eq!(given(&mut lines, first), [Kind::Received]);
    assert_eq!(asked(&mut courier, &mut lines, 300), []);
}

fn single_rules() {
    a_router_answers_for_what_its_rank_does_not_take();
    a_segment_is_ended_when_nothing_is_written_to_it_any_more();
    what_is_not_of_the_other_domain_is_refused();
}

#[test]
fn each_rule_holds_by_itself() {
    single_rules();
}

#[test]
fn every_mutation_of_the_courier_is_caught() {
    assert!((0..300).map(|seed| World::new(seed).run()).sum::<u64>() > 300);
    let expecting = std::thread::current().id();
    let shown = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if std::thread::current().id() != expecting || info.to_string().contains("not caught") {
            shown(info);
        }
    }));
    let mut missed: Vec<Mutation> = Vec::new();
    for mutation in mutation::ALL {
        mutation::activate(Some(mutation));
        let fails = |seed| std::panic::catch_unwind(|| World::new(seed).run()).is_err();
        let caught = std::panic::catch_unwind(single_rules).is_err() || (0..300).any(fails);
        mutation::activate(None);
        if !caught {
            missed.push(mutation);
        }
    }
    assert!(missed.is_empty(), "not caught: {missed:?}");
}
