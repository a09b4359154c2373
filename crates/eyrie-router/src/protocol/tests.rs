//! The protocol under random interleavings of senders, receivers, lost connections, deaths, fences,
//! images and full disks. The ranks are models that do what a rank does. Their messages depend on
//! all that they have seen and when, so that any error in order, repetition or replay shows in the
//! content of a message. These tests must find each error of `mutation.rs`.

mod gateway;
mod lost;

use super::mutation::{self, Mutation};
use super::noted::{forget_logged, is_logged};
use super::*;
use crate::testing::{on_all_processors, MemoryFile, MemoryStore, Said};
use eyrie_wire::data::{
    content_hash, put, put_plain, Deliver, Determinant, Envelope, Header, Message, ObservedPart,
    Piece, Place, Repeat, Replayed, Resume, SegmentRequest, MAX_INLINE,
};
use eyrie_wire::directory::KeptUntil;
use eyrie_wire::traffic::Sent;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

/// Random interleavings in one run of the tests. EYRIE_TEST_MORE (`make test-more`) or
/// EYRIE_SCHEDULES ask for more.
const SCHEDULES: u64 = 10_000;
const ALL_SCHEDULES: u64 = 100_000;
/// Steps of one interleaving.
const STEPS: usize = 300;
/// Least rounds in which everything comes to rest, and how many of the last ones must be quiet.
const ROUNDS: usize = 60;
const QUIET_ROUNDS: usize = 5;

/// A rank's computation from all that it has seen: the state depends on every word before.
fn mix(state: u64, word: u64) -> u64 {
    (state ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29) ^ word
}

/// A message that a sender keeps until it is acknowledged.
#[derive(Clone)]
struct Kept {
    message: Message,
    content: Vec<u8>,
}

/// A model of a rank, with what an image of it would hold.
#[derive(Clone)]
struct Model {
    ranks: u32,
    state: u64,
    clock: u64,
    rsn: u64,
    sent: Vec<Sent>,
    /// The last message seen from each source.
    shown: Vec<Sent>,
    /// For each router: the messages that it has not acknowledged.
    kept: Vec<VecDeque<Kept>>,
    /// Determinants that the rank does not know to be in any router.
    unstored: VecDeque<Determinant>,
    /// Bytes that it has observed other than by messages, and the parts that it does not know to be
    /// in any router.
    observed: u64,
    unstored_observed: VecDeque<ObservedPart>,
}

/// A connection of a model.
#[derive(Clone, Default)]
struct Link {
    conn: Option<ConnId>,
    ready: bool,
    /// The last ssn for each destination that the router has.
    known: Vec<u64>,
    /// Messages and other frames given to this connection, in order, that are not acknowledged.
    unacknowledged: VecDeque<bool>,
    acknowledged: u64,
    determinants_sent: u64,
    observed_sent: u64,
    segment: Option<Room>,
    asked: bool,
}

/// A segment for large messages.
#[derive(Clone)]
struct Room {
    segment: u32,
    /// `None`: payloads go in pieces.
    file: Option<MemoryFile>,
    bytes: u64,
    used: u64,
}

/// A process: a model and its connections.
struct Process {
    instance: RankInstance,
    model: Model,
    delivery: Option<ConnId>,
    delivery_ready: bool,
    /// The determinants to be replayed.
    script: VecDeque<Determinant>,
    /// The observations to be made again.
    observed_script: Vec<ObservedPart>,
    has_reported: bool,
    /// The rsn up to which earlier processes of the rank had received.
    received_before: u64,
    links: Vec<Link>,
    files: BTreeMap<u32, MemoryFile>,
    /// Pieces of the next payload, and the place of the first one.
    pieces: (Option<Piece>, Vec<u8>),
    /// Messages that have arrived and are not visible yet.
    inbox: VecDeque<(Deliver, Vec<u8>)>,
}

struct World {
    random: SmallRng,
    routers: Vec<Protocol<MemoryStore>>,
    said: Vec<Said>,
    disk: Rc<Cell<bool>>,
    /// Bytes under way from a rank to a router.
    wires: BTreeMap<(usize, ConnId), VecDeque<Vec<u8>>>,
    next_conn: ConnId,
    processes: Vec<Process>,
    images: Vec<Vec<Model>>,
    incarnations: Vec<Incarnation>,
    /// Ranks that cannot be recovered until their next image.
    unprotected: BTreeSet<Rank>,
    /// Whether the log still reaches back to the start.
    truncated: BTreeSet<Rank>,
    /// The content of each message when it first reached a router: (source, destination, ssn).
    sent: BTreeMap<(Rank, Rank, u64), Vec<u8>>,
    /// Messages that each rank has received from each source.
    came: BTreeMap<(Rank, Rank), u64>,
    /// The messages that were delivered to each rank, by rsn.
    delivered: BTreeMap<(Rank, u64), (Rank, u64, Vec<u8>)>,
    large: bool,
    /// Set where routers may be lost.
    loss: Option<lost::Loss>,
    /// Whether connections pass files.
    files: bool,
    now: Duration,
    recoveries: u64,
}

impl World {
    fn new(seed: u64) -> World {
        forget_logged();
        let mut random = SmallRng::seed_from_u64(seed);
        let ranks = random.gen_range(2..5u32);
        let routers = random.gen_range(1..3u32);
        let disk = Rc::new(Cell::new(false));
        // Small, so that the log spills: a block is 256 KiB.
        let small = random.gen_bool(0.3);
        let memory = if small { 1 << 20 } else { 64 << 20 };
        let bounds = Bounds { memory, disk: if small { 12 << 20 } else { 1 << 30 } };
        let protocol = |k: u32| {
            let store = MemoryStore::new(disk.clone());
            Protocol::new((0..ranks).map(|r| r % routers == k).collect(), bounds, store)
        };
        let model = |rank: Rank| Model {
            ranks,
            state: mix(seed, rank.0.into()),
            clock: 0,
            rsn: 0,
            sent: vec![Sent::default(); ranks as usize],
            shown: vec![Sent::default(); ranks as usize],
            kept: vec![VecDeque::new(); routers as usize],
            unstored: VecDeque::new(),
            observed: 0,
            unstored_observed: VecDeque::new(),
        };
        let mut world = World {
            routers: (0..routers).map(protocol).collect(),
            said: (0..routers)
                .map(|_| Said { room: random.gen_range(1..20), ..Said::default() })
                .collect(),
            disk,
            wires: BTreeMap::new(),
            next_conn: 10,
            processes: Vec::new(),
            images: (0..ranks).map(|r| vec![model(Rank(r))]).collect(),
            incarnations: vec![Incarnation(1); ranks as usize],
            unprotected: BTreeSet::new(),
            truncated: BTreeSet::new(),
            sent: BTreeMap::new(),
            came: BTreeMap::new(),
            delivered: BTreeMap::new(),
            large: random.gen_bool(0.3),
            files: random.gen_bool(0.5),
            loss: None,
            now: Duration::ZERO,
            recoveries: 0,
            random,
        };
        for rank in 0..ranks {
            let process = world.process(
                RankInstance { rank: Rank(rank), incarnation: Incarnation(1) },
                model(Rank(rank)),
            );
            world.processes.push(process);
        }
        if seed % 2 == 1 {
            world.may_lose_routers(bounds);
        }
        world
    }

    fn primary(&self, rank: Rank) -> usize {
        rank.index() % self.routers.len()
    }

    fn process(&self, instance: RankInstance, model: Model) -> Process {
        let links =
            vec![Link { known: vec![0; self.images.len()], ..Link::default() }; self.routers.len()];
        Process {
            instance,
            model,
            delivery: None,
            delivery_ready: false,
            script: VecDeque::new(),
            observed_script: Vec::new(),
            has_reported: false,
            received_before: 0,
            links,
            files: BTreeMap::new(),
            pieces: (None, Vec::new()),
            inbox: VecDeque::new(),
        }
    }

    fn run(mut self) -> u64 {
        for _ in 0..STEPS {
            self.step();
        }
        // Everything comes to rest: no rank dies any more, and all that was sent arrives.
        self.disk.set(false);
        let mut round = 0;
        let mut quiet = 0;
        while round < ROUNDS || quiet < QUIET_ROUNDS && round < 10 * ROUNDS {
            self.now += Duration::from_secs(1);
            // Images make room again where logs are full.
            let rank = round % self.processes.len();
            self.take_image(rank);
            for k in 0..self.routers.len() {
                self.routers[k].tick(self.now, &mut self.said[k]);
                self.check(k);
            }
            for p in 0..self.processes.len() {
                self.connect(p);
                self.move_wires();
                self.progress(p, true);
            }
            (round, quiet) = (round + 1, if self.is_quiet() { quiet + 1 } else { 0 });
        }
        self.check_end();
        self.recoveries
    }

    /// Whether every rank that can be recovered has replayed its determinants and seen all
    /// messages.
    fn is_quiet(&self) -> bool {
        let quiet = |p: &Process| p.script.is_empty() && p.inbox.is_empty();
        let protected = |p: &&Process| !self.unprotected.contains(&p.instance.rank);
        self.processes.iter().filter(protected).all(quiet)
    }

    fn step(&mut self) {
        let p = self.random.gen_range(0..self.processes.len());
        match self.random.gen_range(0..100) {
            0..=29 => self.progress(p, false),
            30..=49 => self.move_one_wire(),
            50..=69 => self.connect(p),
            70..=89 => self.move_wires(),
            90..=91 => self.break_connections(p),
            92..=93 => self.take_image(p),
            94..=95 => {
                let comes_early = self.random.gen_bool(0.3);
                self.die(p, comes_early);
            }
            96 if self.random.gen_bool(0.5) => self.save_all(),
            96 => self.zombie(p),
            98 => self.lose_router(),
            97 => self.disk.set(!self.disk.get() && self.random.gen_bool(0.5)),
            _ => {
                self.now += Duration::from_millis(self.random.gen_range(100..4000));
                for k in 0..self.routers.len() {
                    self.routers[k].tick(self.now, &mut self.said[k]);
                    self.check(k);
                }
            }
        }
    }

    // Connections.

    fn connect(&mut self, p: usize) {
        let instance = self.processes[p].instance;
        if self.processes[p].delivery.is_none() {
            let k = self.primary(instance.rank);
            let conn = self.next_conn;
            self.next_conn += 1;
            self.routers[k].admit(instance).expect("the present incarnation is admitted");
            self.routers[k].connected(
                conn,
                instance,
                StreamKind::Delivery,
                self.files,
                &mut self.said[k],
            );
            let process = &mut self.processes[p];
            (process.delivery, process.delivery_ready) = (Some(conn), false);
            process.inbox.clear();
            process.files.clear();
            process.pieces = (None, Vec::new());
            process.script.clear();
            process.observed_script.clear();
            let rsn = process.model.rsn;
            let clock = process.model.clock;
            self.send_adoption(p, k, conn);
            self.put_on_wire(k, conn, &Header::Resume(Resume { rsn, clock }), &[]);
        }
        for k in 0..self.routers.len() {
            if self.processes[p].links[k].conn.is_none() {
                let conn = self.next_conn;
                self.next_conn += 1;
                self.routers[k].admit(instance).expect("the present incarnation is admitted");
                self.routers[k].connected(
                    conn,
                    instance,
                    StreamKind::Send,
                    self.files,
                    &mut self.said[k],
                );
                let known = vec![0; self.images.len()];
                self.processes[p].links[k] = Link { conn: Some(conn), known, ..Link::default() };
                self.check(k);
            }
        }
    }

    /// Puts a frame on the wire to a router.
    fn put_on_wire(&mut self, k: usize, conn: ConnId, header: &Header, payload: &[u8]) {
        let mut bytes = Vec::new();
        put_plain(&mut bytes, header, payload);
        self.wires.entry((k, conn)).or_default().push_back(bytes);
    }

    /// The next frame on a wire reaches its router.
    fn arrive(&mut self, k: usize, conn: ConnId) {
        if self.said[k].held.contains(&conn) {
            return;
        }
        let Some(bytes) = self.wires.get_mut(&(k, conn)).and_then(VecDeque::pop_front) else {
            return;
        };
        let frame = Frame::parse(&bytes).unwrap().unwrap();
        if let Header::Message(m) = &frame.header {
            self.note_sent(k, conn, m, frame.payload);
        }
        self.routers[k].frame(conn, &frame, &mut self.said[k]);
        self.routers[k].settle(conn, &mut self.said[k]);
        self.check(k);
    }

    /// A message that reaches a router for the first time is an effect: from then on it must always
    /// be the same.
    fn note_sent(&mut self, k: usize, conn: ConnId, m: &Message, payload: &[u8]) {
        let Some(from) = self.routers[k].conns.get(conn) else { return };
        let content = match m.place {
            None => payload.to_vec(),
            Some(Place { segment, offset }) => {
                let segment = self.routers[k].space.segments.get(segment).expect("its segment");
                let at = offset as usize;
                segment.file.borrow()[at..at + m.size as usize].to_vec()
            }
        };
        let key = (from.instance.rank, m.destination, m.ssn);
        let first = self.sent.entry(key).or_insert_with(|| content.clone());
        assert_eq!(*first, content, "rank {} did not repeat itself: message {}", key.0, m.ssn);
    }

    fn move_one_wire(&mut self) {
        let keys: Vec<_> = self.wires.keys().copied().collect();
        if !keys.is_empty() {
            let (k, conn) = keys[self.random.gen_range(0..keys.len())];
            self.arrive(k, conn);
        }
        self.read_all(1);
    }

    fn move_wires(&mut self) {
        for (k, conn) in self.wires.keys().copied().collect::<Vec<_>>() {
            while self.wires.get(&(k, conn)).is_some_and(|w| !w.is_empty()) {
                let before = self.wires[&(k, conn)].len();
                self.arrive(k, conn);
                if self.wires.get(&(k, conn)).is_some_and(|w| w.len() == before) {
                    break; // held back
                }
            }
        }
        self.read_all(usize::MAX);
    }

    /// Every process reads what its routers have sent, at most this many frames of each connection.
    fn read_all(&mut self, most: usize) {
        for p in 0..self.processes.len() {
            for k in 0..self.routers.len() {
                for conn in [self.processes[p].delivery, self.processes[p].links[k].conn] {
                    let Some(conn) = conn else { continue };
                    for _ in 0..most {
                        let next = self.said[k].frames.get_mut(&conn).and_then(VecDeque::pop_front);
                        let Some((bytes, file)) = next else { break };
                        self.receive(p, k, conn, &bytes, file);
                        self.routers[k].writable(conn, &mut self.said[k]);
                        self.check(k);
                    }
                    if self.said[k].closed.contains(&conn)
                        && self.said[k].frames.get(&conn).is_none_or(VecDeque::is_empty)
                    {
                        self.drop_conn(p, k, conn);
                    }
                }
            }
        }
    }

    fn drop_conn(&mut self, p: usize, k: usize, conn: ConnId) {
        self.wires.remove(&(k, conn));
        self.said[k].frames.remove(&conn);
        self.said[k].held.remove(&conn);
        let process = &mut self.processes[p];
        if process.delivery == Some(conn) {
            process.delivery = None;
        }
        if process.links[k].conn == Some(conn) {
            process.links[k].conn = None;
        }
    }

    /// The network breaks: frames on their way are lost in both directions.
    fn break_connections(&mut self, p: usize) {
        for k in 0..self.routers.len() {
            for conn in [self.processes[p].delivery, self.processes[p].links[k].conn] {
                let Some(conn) = conn else { continue };
                if conn == self.processes[p].delivery.unwrap_or(0)
                    && k != self.primary(self.processes[p].instance.rank)
                {
                    continue;
                }
                // Some of them still arrive.
                for _ in 0..self.random.gen_range(0..4) {
                    self.arrive(k, conn);
                }
                if self.random.gen_bool(0.5) {
                    self.routers[k].disconnected(conn, &mut self.said[k]);
                }
                self.drop_conn(p, k, conn);
            }
        }
    }

    fn receive(
        &mut self,
        p: usize,
        k: usize,
        conn: ConnId,
        bytes: &[u8],
        file: Option<MemoryFile>,
    ) {
        let frame = Frame::parse(bytes).unwrap().unwrap();
        let process = &mut self.processes[p];
        let delivery = process.delivery == Some(conn);
        let link = &mut process.links[k];
        match frame.header {
            Header::Known(known) => link.known[known.destination.index()] = known.ssn,
            Header::Ready(ready) if delivery => {
                process.delivery_ready = true;
                process.received_before = ready.up_to;
                if process.script.is_empty() {
                    self.report_replayed(p);
                }
            }
            Header::Ready(ready) => {
                link.ready = true;
                (link.determinants_sent, link.observed_sent) = (ready.up_to, ready.observed);
                self.stored(p, k, ready.up_to, ready.observed);
                self.send_determinants(p, k);
                self.send_kept_again(p, k);
            }
            Header::Replay => {
                process.script.extend(frame.determinants());
                process.observed_script.extend(frame.observed().map(|part| part.to_owned()));
            }
            Header::Ack(ack) => {
                let new = ack.frames - link.acknowledged;
                link.acknowledged = ack.frames;
                for _ in 0..new {
                    let is_message =
                        link.unacknowledged.pop_front().expect("acknowledged, not sent");
                    if is_message {
                        let kept = process.model.kept[k].pop_front().expect("kept");
                        let m = kept.message;
                        let rank = process.instance.rank;
                        match &self.loss {
                            Some(loss) => loss.check_received(rank, &m),
                            None => assert!(
                                is_logged(rank, m.destination, m.ssn),
                                "acknowledged and not logged: {m:?}"
                            ),
                        }
                    }
                }
                self.stored(p, k, ack.clock, ack.observed);
            }
            Header::Segment(s) if delivery => {
                process.files.insert(s.segment, file.expect("a file comes with it"));
            }
            Header::Segment(s) => {
                assert_eq!(file.is_some(), self.files && self.loss.is_none());
                link.segment = Some(Room { segment: s.segment, file, bytes: s.bytes, used: 0 });
            }
            Header::Piece(piece) => {
                let (first, bytes) = &mut process.pieces;
                let first = first.get_or_insert(piece);
                let next = (first.segment, first.offset + bytes.len() as u64);
                assert_eq!((piece.segment, piece.offset), next, "a piece is missing");
                bytes.extend_from_slice(frame.payload);
            }
            Header::SegmentDrop(s) => drop(process.files.remove(&s.segment)),
            Header::Deliver(d) => self.delivered(p, d, frame.payload),
            Header::Refused => {
                assert!(
                    self.unprotected.contains(&self.processes[p].instance.rank),
                    "refused: {}",
                    String::from_utf8_lossy(frame.payload)
                );
            }
            other => panic!("{other:?} to a rank"),
        }
    }

    fn delivered(&mut self, p: usize, d: Deliver, payload: &[u8]) {
        let rank = self.processes[p].instance.rank;
        assert!(is_logged(d.source, rank, d.ssn), "delivered and not logged: {d:?}");
        let process = &mut self.processes[p];
        let last = process.inbox.back().map_or(process.model.rsn, |(d, _)| d.rsn);
        assert_eq!(d.rsn, last + 1, "rank {rank}: a message is missing, or came twice");
        let content = match d.place {
            None => payload.to_vec(),
            Some(Place { segment, offset }) if !self.files => {
                let (first, bytes) = std::mem::take(&mut process.pieces);
                assert_eq!(first, Some(Piece { segment, offset }), "another payload came");
                bytes
            }
            Some(Place { segment, offset }) => {
                let file = process.files.get(&segment).expect("the segment's file has come");
                let at = offset as usize;
                file.borrow()[at..at + d.size as usize].to_vec()
            }
        };
        assert_eq!(content.len() as u64, d.size);
        let now = (d.source, d.ssn, content.clone());
        if !self.delivered.contains_key(&(rank, d.rsn)) {
            let count = self.came.entry((rank, d.source)).or_default();
            *count += 1;
            assert_eq!(d.ssn, *count, "rank {rank}: not the next message from {}", d.source);
        }
        let first = self.delivered.entry((rank, d.rsn)).or_insert_with(|| now.clone());
        assert_eq!(*first, now, "rank {rank}: message {} is another one than before", d.rsn);
        assert_eq!(
            Some(&content),
            self.sent.get(&(d.source, rank, d.ssn)),
            "the content of a message is not what its sender sent"
        );
        self.processes[p].inbox.push_back((d, content));
    }

    // What ranks do.

    /// A progress call; with `drain` all messages that have arrived become visible.
    fn progress(&mut self, p: usize, drain: bool) {
        if !self.processes[p].delivery_ready || self.processes[p].delivery.is_none() {
            return;
        }
        let process = &mut self.processes[p];
        let clock = process.model.clock + 1;
        let up_to = match process.script.front() {
            Some(d) if d.clock == clock => {
                let have = process.inbox.back().map_or(process.model.rsn, |(d, _)| d.rsn);
                if have < d.rsn {
                    return; // it waits for the messages of the determinant
                }
                d.rsn
            }
            Some(d) => {
                assert!(d.clock > clock, "a determinant of the past: {d:?} at clock {clock}");
                process.model.rsn
            }
            None => {
                let here = process.inbox.len() as u64;
                let take = if drain { here } else { self.random.gen_range(0..=here) };
                process.model.rsn + take
            }
        };
        // Before the next progress call: perhaps after an image with the same clock.
        if self.processes[p].model.state >> 41 & 1 == 0 {
            self.observe(p);
        }
        let process = &mut self.processes[p];
        process.model.clock = clock;
        let mut seen = false;
        while process.model.rsn < up_to {
            let (d, content) = process.inbox.pop_front().expect("looked at above");
            process.model.rsn = d.rsn;
            process.model.shown[d.source.index()] = d.sent();
            if let Some(loss) = &mut self.loss {
                loss.shown(process.instance.rank, d.source, d.ssn);
            }
            let word = content_hash(&content);
            process.model.state =
                mix(mix(process.model.state, word), d.ssn << 8 | u64::from(d.source.0));
            seen = true;
        }
        let live = process.script.is_empty();
        if process.script.front().is_some_and(|d| d.clock == clock) {
            process.script.pop_front();
        }
        if live && seen {
            let rsn = process.model.rsn;
            process.model.unstored.push_back(Determinant { clock, rsn });
        }
        process.model.state = mix(process.model.state, clock);
        if process.script.is_empty() {
            self.report_replayed(p);
        }
        self.send_received(p, drain);
        // At the end nothing new is sent, but what was sent before is sent again.
        if !drain || !live {
            self.send_some(p);
        }
    }

    fn report_replayed(&mut self, p: usize) {
        let process = &mut self.processes[p];
        if std::mem::replace(&mut process.has_reported, true) {
            return;
        }
        let rsn = process.model.rsn;
        let rank = process.instance.rank;
        let conn = process.delivery.expect("connected");
        self.put_on_wire(self.primary(rank), conn, &Header::Replayed(Replayed { rsn }), &[]);
    }

    /// Observes a byte that is in no message; a rank that re-executes observes the same one again.
    fn observe(&mut self, p: usize) {
        let random: u8 = self.random.gen();
        let process = &mut self.processes[p];
        let model = &mut process.model;
        let at = model.observed;
        let again = process.observed_script.iter().find(|o| (o.from..o.end()).contains(&at));
        let byte = again.map_or(random, |part| part.bytes[(at - part.from) as usize]);
        if again.is_none() {
            let part = ObservedPart { from: at, clock: model.clock, bytes: vec![byte] };
            model.unstored_observed.push_back(part);
        }
        model.observed += 1;
        model.state = mix(model.state, byte.into());
    }

    /// Sends a message whose destination, length and content depend on the state.
    fn send_some(&mut self, p: usize) {
        if self.processes[p].model.state >> 40 & 1 == 0 {
            self.observe(p);
        }
        let state = self.processes[p].model.state;
        if state % 3 == 0 {
            return;
        }
        let process = &mut self.processes[p];
        let model = &mut process.model;
        let destination = (state >> 8) as u32 % model.ranks;
        let len = match (self.large, state >> 16 & 15) {
            (true, 0) => 20_000,
            (_, n) => n as usize * 7,
        };
        let mut content: Vec<u8> = state.to_le_bytes().to_vec();
        content.resize(8 + len, state as u8);
        let envelope = Envelope::Tagged { tag: state >> 20 & 7, data: None };
        let size = content.len() as u64;
        let sent = &mut model.sent[destination as usize];
        *sent = sent.and(size);
        let Sent { messages: ssn, bytes: sent_bytes } = *sent;
        let message = Message {
            destination: Rank(destination),
            ssn,
            clock: model.clock,
            envelope,
            size,
            sent_bytes,
            place: None,
        };
        let k = destination as usize % self.routers.len();
        self.processes[p].model.kept[k].push_back(Kept { message, content });
        if self.processes[p].links[k].ready {
            self.send_kept(p, k, self.processes[p].model.kept[k].len() - 1);
        }
    }

    /// Sends a kept message on its connection.
    fn send_kept(&mut self, p: usize, k: usize, index: usize) {
        let process = &mut self.processes[p];
        let link = &mut process.links[k];
        let Some(conn) = link.conn else { return };
        let Kept { mut message, content } = process.model.kept[k][index].clone();
        let mut frames: Vec<(Header, Vec<u8>)> = Vec::new();
        if message.ssn <= link.known[message.destination.index()] {
            let Message { destination, ssn, clock, envelope, size, .. } = message;
            let hash = content_hash(&content[..content.len().min(eyrie_wire::data::MAX_INLINE)]);
            let repeat = Repeat { destination, ssn, clock, envelope, size, hash };
            frames.push((Header::Repeat(repeat), vec![]));
        } else if content.len() <= eyrie_wire::data::MAX_INLINE {
            frames.push((Header::Message(message), content));
        } else {
            let room = |s: &Room| s.used + message.size <= s.bytes;
            let Some(segment) = link.segment.as_mut().filter(|s| room(s)) else {
                // It waits for a segment: it stays kept, as do all messages behind it.
                if !std::mem::replace(&mut link.asked, true) {
                    let bytes = message.size;
                    link.unacknowledged.push_back(false);
                    self.put_on_wire(
                        k,
                        conn,
                        &Header::SegmentRequest(SegmentRequest { bytes }),
                        &[],
                    );
                }
                // The model closes the connection instead of waiting, which is the same to the
                // router.
                self.routers[k].disconnected(conn, &mut self.said[k]);
                return self.drop_conn(p, k, conn);
            };
            let Room { segment: number, file, used, .. } = segment;
            match file {
                Some(file) => {
                    let at = *used as usize;
                    file.borrow_mut()[at..at + content.len()].copy_from_slice(&content);
                }
                None => {
                    let mut offset = *used;
                    for part in content.chunks(MAX_INLINE) {
                        let piece = Piece { segment: *number, offset };
                        frames.push((Header::Piece(piece), part.to_vec()));
                        offset += part.len() as u64;
                    }
                }
            }
            message.place = Some(Place { segment: *number, offset: *used });
            *used += message.size;
            frames.push((Header::Message(message), vec![]));
            if self.loss.as_ref().is_none_or(|loss| loss.flushes) {
                frames.push((Header::Flush, vec![]));
            }
        }
        let mut observed = self.send_observed(p, k);
        for (header, payload) in frames {
            let process = &mut self.processes[p];
            let link = &mut process.links[k];
            match header {
                Header::Piece(_) => {}
                Header::Message(_) | Header::Repeat(_) => link.unacknowledged.push_back(true),
                _ => link.unacknowledged.push_back(false),
            }
            let from = link.determinants_sent;
            let list: Vec<Determinant> =
                process.model.unstored.iter().filter(|d| d.clock > from).copied().collect();
            link.determinants_sent = list.last().map_or(from, |d| d.clock);
            let mut bytes = Vec::new();
            let part = observed.take();
            let part = part.as_ref().map(ObservedPart::borrowed);
            put(&mut bytes, &header, list.into_iter(), part, &payload);
            self.wires.entry((k, conn)).or_default().push_back(bytes);
        }
    }

    /// Sends a router the observations that it does not have, with the determinants before them.
    /// Returns the last part, which goes with the next frame.
    fn send_observed(&mut self, p: usize, k: usize) -> Option<ObservedPart> {
        let Process { model, links, .. } = &mut self.processes[p];
        let conn = links[k].conn?;
        let from = links[k].observed_sent;
        let last = model.unstored_observed.back().filter(|part| part.end() > from).cloned();
        let end = last.as_ref().map_or(from, ObservedPart::end);
        links[k].observed_sent = end;
        let between = |part: &&ObservedPart| part.end() > from && part.end() < end;
        for part in model.unstored_observed.iter().filter(between) {
            let seen = links[k].determinants_sent;
            let list = model.unstored.iter().filter(|d| d.clock > seen).copied();
            links[k].determinants_sent = model.unstored.back().map_or(seen, |d| d.clock.max(seen));
            links[k].unacknowledged.push_back(false);
            let mut bytes = Vec::new();
            put(&mut bytes, &Header::DeterminantsPart, list, Some(part.borrowed()), &[]);
            self.wires.entry((k, conn)).or_default().push_back(bytes);
        }
        last
    }

    fn send_kept_again(&mut self, p: usize, k: usize) {
        if self.large && self.processes[p].links[k].segment.is_none() {
            let conn = self.processes[p].links[k].conn.expect("connected");
            self.processes[p].links[k].unacknowledged.push_back(false);
            self.processes[p].links[k].asked = true;
            self.put_on_wire(
                k,
                conn,
                &Header::SegmentRequest(SegmentRequest { bytes: 1 << 20 }),
                &[],
            );
            while self.wires.get(&(k, conn)).is_some_and(|w| !w.is_empty())
                && !self.said[k].held.contains(&conn)
            {
                self.arrive(k, conn);
            }
            for (bytes, file) in self.said[k].frames.remove(&conn).unwrap_or_default() {
                self.receive(p, k, conn, &bytes, file);
            }
            if self.processes[p].links[k].segment.is_none() {
                // There is none: it tries again later, as a sender that is held back does.
                self.routers[k].disconnected(conn, &mut self.said[k]);
                return self.drop_conn(p, k, conn);
            }
        }
        // Messages that the router has need not be kept any more.
        let known = self.processes[p].links[k].known.clone();
        let had = |kept: &Kept| kept.message.ssn <= known[kept.message.destination.index()];
        self.processes[p].model.kept[k].retain(|kept| !had(kept));
        for index in 0..self.processes[p].model.kept[k].len() {
            self.send_kept(p, k, index);
        }
    }

    // Images, deaths, recoveries.

    fn take_image(&mut self, p: usize) {
        let process = &self.processes[p];
        let on_their_way = |(k, kept): (usize, &VecDeque<Kept>)| {
            let known = &process.links[k].known;
            kept.iter().any(|kept| {
                let new = kept.message.ssn > known[kept.message.destination.index()];
                new && kept.content.len() > eyrie_wire::data::MAX_INLINE
            })
        };
        if self.loss.is_none() && process.model.kept.iter().enumerate().any(on_their_way) {
            return; // large messages must have reached their router
        }
        let rank = process.instance.rank;
        let model = process.model.clone();
        let Some(adrift) = self.ends_adrift(rank) else { return };
        let images = &mut self.images[rank.index()];
        if self.unprotected.remove(&rank) || adrift {
            images.clear();
        }
        images.push(model);
        if images.len() > 2 {
            images.remove(0);
        }
        let older = &images[0];
        let clock = older.clock;
        let rsn = older.rsn;
        let observed = older.observed;
        if rsn > 0 {
            self.truncated.insert(rank);
        }
        for k in 0..self.routers.len() {
            self.routers[k]
                .command(RouterCommand::Truncate { rank, clock, rsn, observed }, &mut self.said[k]);
            self.check(k);
        }
    }

    /// `comes_early`: the next incarnation connects before the controller's command reaches its
    /// router.
    fn die(&mut self, p: usize, comes_early: bool) {
        let rank = self.processes[p].instance.rank;
        if self.unprotected.contains(&rank) || !self.may_die(rank) {
            return; // it could not be recovered
        }
        self.recoveries += 1;
        self.incarnations[rank.index()].0 += 1;
        let instance = RankInstance { rank, incarnation: self.incarnations[rank.index()] };
        let mut determinants = Vec::new();
        let mut observed = Vec::new();
        for k in 0..self.routers.len() {
            // What the kernel has of its frames is a part of its history.
            if let Some(conn) = self.processes[p].links[k].conn {
                self.said[k].held.remove(&conn);
                while self.wires.get(&(k, conn)).is_some_and(|w| !w.is_empty()) {
                    self.arrive(k, conn);
                }
            }
            self.routers[k].command(RouterCommand::Fence(instance), &mut self.said[k]);
            let fenced = self.said[k].events.iter().rev().find_map(|e| match e {
                RouterEvent::Fenced { instance: i, determinants, observed } if *i == instance => {
                    Some((determinants.clone(), observed.clone()))
                }
                _ => None,
            });
            let (list, parts) = fenced.expect("a fence is answered");
            determinants.extend(list);
            observed.extend(parts);
            self.check(k);
        }
        let old = self.processes[p].delivery.take();
        let conns: Vec<_> = self.processes[p].links.iter().map(|l| l.conn).chain([old]).collect();
        for k in 0..self.routers.len() {
            for conn in conns.iter().flatten() {
                self.drop_conn(p, k, *conn);
            }
        }
        let primary = self.primary(rank);
        assert!(
            !self.routers[primary].ranks.is_prepared(rank),
            "rank {rank} counts as prepared before its recovery"
        );
        let images = &mut self.images[rank.index()];
        if images.len() == 2 && self.random.gen_bool(0.3) {
            images.pop(); // it was damaged
        }
        let model = images.last().expect("the start is one").clone();
        self.processes[p] = self.process(instance, model);
        if comes_early {
            self.connect(p);
            let conn = self.processes[p].delivery.expect("it has connected");
            self.arrive(primary, conn);
            let said = self.said[primary].frames.get(&conn).map_or(0, VecDeque::len);
            assert_eq!(said, 0, "rank {rank} gets a frame before its recovery is prepared");
        }
        let recover = RouterCommand::Recover { instance, determinants, observed };
        self.routers[primary].command(recover, &mut self.said[primary]);
        self.check(primary);
    }

    /// All ranks die, and the routers with them: other routers go on with what was saved.
    fn save_all(&mut self) {
        let all = 0..self.images.len() as u32;
        if self.disk.get()
            || !all.clone().all(|r| !self.unprotected.contains(&Rank(r)) && self.may_die(Rank(r)))
        {
            return;
        }
        for p in 0..self.processes.len() {
            self.die(p, false);
        }
        for k in 0..self.routers.len() {
            let router = &self.routers[k];
            let mut saved = Vec::new();
            router.save(&mut saved).expect("it can be saved");
            let store = MemoryStore::new(self.disk.clone());
            let mut next =
                Protocol::new(router.kept.is_primary().to_vec(), router.space.bounds, store);
            if router.receipts.kept_until() == KeptUntil::Received {
                next = next.keeping_until_received(router.receipts.most_unreceived());
            }
            match next.restored(&mut &saved[..]) {
                Ok(next) => self.routers[k] = next,
                // It takes one segment more than before: the old router goes on unchanged.
                Err(e) => assert_eq!(e.kind(), std::io::ErrorKind::StorageFull, "{e}"),
            }
        }
    }

    /// An older incarnation wakes up and tries to connect again.
    fn zombie(&mut self, p: usize) {
        let RankInstance { rank, incarnation } = self.processes[p].instance;
        if incarnation < Incarnation(2) {
            return;
        }
        let old = RankInstance { rank, incarnation: Incarnation(incarnation.0 - 1) };
        for k in 0..self.routers.len() {
            assert!(self.routers[k].admit(old).is_err(), "{old} is admitted after its fence");
        }
    }

    // Invariants.

    fn check(&mut self, k: usize) {
        for event in std::mem::take(&mut self.said[k].events) {
            if self.loss.as_mut().is_some_and(|loss| loss.handle(&event)) {
                continue;
            }
            match event {
                RouterEvent::Divergence { reason, .. }
                | RouterEvent::ContentDiffers { reason, .. } => {
                    panic!("{reason}")
                }
                RouterEvent::Fatal { reason } => panic!("{reason}"),
                RouterEvent::Unprotected { rank, .. } => {
                    self.unprotected.insert(rank);
                }
                RouterEvent::Refused { instance, reason } => {
                    let known = instance.is_some_and(|i| self.unprotected.contains(&i.rank));
                    assert!(known, "{instance:?} is refused: {reason}");
                }
                RouterEvent::Fenced { .. } => self.said[k].events.push(event),
                _ => {}
            }
        }
    }

    fn check_end(&mut self) {
        for p in 0..self.processes.len() {
            let rank = self.processes[p].instance.rank;
            if self.unprotected.contains(&rank) {
                continue;
            }
            assert!(self.processes[p].script.is_empty(), "rank {rank} has not replayed to its end");
            let log = &self.routers[self.primary(rank)].kept.log(rank);
            assert_eq!(self.processes[p].model.rsn, log.newest(), "rank {rank} waits for messages");
            for source in 0..self.processes.len() {
                let sent = self.processes[source].model.sent[rank.index()];
                assert_eq!(log.sent()[source], sent, "from {source} to {rank}");
            }
        }
    }
}

fn random_schedule(seed: u64) -> u64 {
    World::new(seed).run()
}

#[test]
fn random_interleavings_keep_every_invariant() {
    let number = |name: &str| std::env::var(name).ok().and_then(|n| n.parse().ok());
    let more = std::env::var_os("EYRIE_TEST_MORE").is_some();
    let usual = if more { ALL_SCHEDULES } else { SCHEDULES };
    let schedules = number("EYRIE_SCHEDULES").unwrap_or(usual);
    let first = number("EYRIE_SEED").unwrap_or(0);
    println!("seeds {first} to {}", first + schedules - 1);
    let run = |seed| {
        let run = std::panic::catch_unwind(|| random_schedule(seed));
        run.unwrap_or_else(|_| {
            panic!("schedule {seed} failed: EYRIE_SEED={seed} EYRIE_SCHEDULES=1 repeats it")
        })
    };
    let recoveries = on_all_processors(first..first + schedules, run);
    println!("{recoveries} recoveries");
    assert!(schedules < 1000 || recoveries > schedules);
}

// Single rules, each by itself.

fn one_router() -> (Protocol<MemoryStore>, Said) {
    let bounds = Bounds { memory: 64 << 20, disk: 1 << 30 };
    let protocol = Protocol::new(vec![true; 2], bounds, MemoryStore::default());
    (protocol, Said { room: 1000, ..Said::default() })
}

fn instance(rank: Rank, incarnation: u32) -> RankInstance {
    RankInstance { rank, incarnation: Incarnation(incarnation) }
}

fn message(ssn: u64, tag: u64, clock: u64) -> Header {
    let envelope = Envelope::Tagged { tag, data: None };
    let destination = Rank(1);
    let sent_bytes = 2 * ssn;
    let place = None;
    Header::Message(Message { destination, ssn, clock, envelope, size: 2, sent_bytes, place })
}

/// What rank 0 has sent in so many messages of two bytes.
fn sent(messages: u64) -> Sent {
    Sent { messages, bytes: 2 * messages }
}

fn say(router: &mut Protocol<MemoryStore>, said: &mut Said, conn: ConnId, header: &Header) -> bool {
    let with_payload = matches!(header, Header::Message(_) | Header::Piece(_));
    let payload: &[u8] = if with_payload { b"hi" } else { b"" };
    let mut bytes = Vec::new();
    put_plain(&mut bytes, header, payload);
    router.frame(conn, &Frame::parse(&bytes).unwrap().unwrap(), said)
}

fn a_gap_in_the_sequence_is_refused() {
    let (mut router, mut said) = one_router();
    router.connected(1, instance(Rank(0), 1), StreamKind::Send, true, &mut said);
    assert!(say(&mut router, &mut said, 1, &message(1, 5, 1)));
    assert!(!say(&mut router, &mut said, 1, &message(3, 5, 1)), "message 2 was skipped");
    assert!(matches!(said.events.last(), Some(RouterEvent::Refused { .. })));
    assert_eq!(router.kept.log(Rank(1)).newest(), 1);
}

fn another_envelope_is_a_divergence_and_other_content_is_reported_once() {
    let (mut router, mut said) = one_router();
    router.connected(1, instance(Rank(0), 1), StreamKind::Send, true, &mut said);
    for ssn in 1..=4 {
        assert!(say(&mut router, &mut said, 1, &message(ssn, 5, ssn)));
    }
    let repeat = |ssn, tag, hash| {
        let envelope = Envelope::Tagged { tag, data: None };
        Header::Repeat(Repeat { destination: Rank(1), ssn, clock: ssn, envelope, size: 2, hash })
    };
    let same = content_hash(b"hi");
    say(&mut router, &mut said, 1, &repeat(1, 5, same));
    assert!(said.events.is_empty(), "{:?}", said.events);
    say(&mut router, &mut said, 1, &repeat(2, 5, same + 1));
    say(&mut router, &mut said, 1, &repeat(3, 5, same + 1));
    assert!(matches!(said.events[..], [RouterEvent::ContentDiffers { rank: Rank(0), .. }]));
    say(&mut router, &mut said, 1, &repeat(4, 6, same));
    assert!(matches!(said.events.last(), Some(RouterEvent::Divergence { rank: Rank(0), .. })));
}

fn a_sender_learns_what_is_logged() {
    let (mut router, mut said) = one_router();
    router.connected(1, instance(Rank(0), 1), StreamKind::Send, true, &mut said);
    say(&mut router, &mut said, 1, &message(1, 5, 1));
    router.connected(2, instance(Rank(0), 1), StreamKind::Send, true, &mut said);
    let (first, _) = &said.frames[&2][0];
    let known = Frame::parse(first).unwrap().unwrap().header;
    let expected = eyrie_wire::data::Known { destination: Rank(1), ssn: 1 };
    assert_eq!(known, Header::Known(expected));
}

fn a_second_connection_replaces_the_first() {
    let (mut router, mut said) = one_router();
    router.connected(1, instance(Rank(0), 1), StreamKind::Send, true, &mut said);
    router.connected(2, instance(Rank(0), 1), StreamKind::Send, true, &mut said);
    assert_eq!(said.closed, [1]);
    assert!(!say(&mut router, &mut said, 1, &message(1, 5, 1)), "the old one can still send");
    assert_eq!(router.kept.log(Rank(1)).newest(), 0);
}

fn a_send_before_the_fence_makes_a_no_delivery_determinant() {
    let (mut router, mut said) = one_router();
    router.connected(1, instance(Rank(0), 1), StreamKind::Send, true, &mut said);
    say(&mut router, &mut said, 1, &message(1, 5, 9));
    router.command(RouterCommand::Fence(instance(Rank(0), 2)), &mut said);
    let determinants = vec![Determinant { clock: 9, rsn: 0 }];
    let observed = Vec::new();
    let fenced = RouterEvent::Fenced { instance: instance(Rank(0), 2), determinants, observed };
    assert_eq!(said.events.last(), Some(&fenced));
    assert!(!say(&mut router, &mut said, 1, &message(2, 5, 10)), "it can send behind its fence");
}

/// The rank may wait until what it has seen is stable.
fn what_was_truncated_with_an_image_is_still_stable() {
    let (mut router, mut said) = one_router();
    let word = |router: &mut Protocol<MemoryStore>, said: &mut Said, list: &[Determinant]| {
        let mut bytes = Vec::new();
        put(&mut bytes, &Header::Flush, list.iter().copied(), None, b"");
        assert!(router.frame(1, &Frame::parse(&bytes).unwrap().unwrap(), said));
        let (bytes, _) = said.frames.get_mut(&1).and_then(VecDeque::pop_back).expect("an answer");
        match Frame::parse(&bytes).unwrap().unwrap().header {
            Header::Ack(ack) => ack.clock,
            other => panic!("{other:?}"),
        }
    };
    router.connected(1, instance(Rank(0), 1), StreamKind::Send, true, &mut said);
    assert_eq!(word(&mut router, &mut said, &[Determinant { clock: 7, rsn: 0 }]), 7);
    router.command(
        RouterCommand::Truncate { rank: Rank(0), clock: 7, rsn: 0, observed: 0 },
        &mut said,
    );
    assert_eq!(word(&mut router, &mut said, &[]), 7);
    router.connected(2, instance(Rank(0), 1), StreamKind::Send, true, &mut said);
    let (greeting, _) = said.frames.get_mut(&2).and_then(VecDeque::pop_back).expect("a greeting");
    let ready = eyrie_wire::data::Ready { up_to: 7, observed: 0 };
    assert_eq!(Frame::parse(&greeting).unwrap().unwrap().header, Header::Ready(ready));
}

/// With more visible messages the rank might observe something else than what is replayed.
fn an_observation_before_the_fence_makes_a_no_delivery_determinant() {
    let (mut router, mut said) = one_router();
    router.connected(1, instance(Rank(0), 1), StreamKind::Send, true, &mut said);
    say(&mut router, &mut said, 1, &message(1, 5, 9));
    let observed = vec![ObservedPart { from: 0, clock: 12, bytes: b"hi".to_vec() }];
    let mut bytes = Vec::new();
    put(&mut bytes, &Header::Determinants, std::iter::empty(), Some(observed[0].borrowed()), &[]);
    assert!(router.frame(1, &Frame::parse(&bytes).unwrap().unwrap(), &mut said));
    router.command(RouterCommand::Fence(instance(Rank(0), 2)), &mut said);
    let determinants = vec![Determinant { clock: 12, rsn: 0 }];
    let fenced = RouterEvent::Fenced { instance: instance(Rank(0), 2), determinants, observed };
    assert_eq!(said.events.last(), Some(&fenced));
}

/// Before observations take all of the memory, images are asked for. After that they are lost, with
/// an event.
fn observations_have_a_bound() {
    let (mut router, mut said) = one_router();
    router.connected(1, instance(Rank(0), 1), StreamKind::Send, true, &mut said);
    let asks = |event: &RouterEvent| matches!(event, RouterEvent::LogScarce { rank: Rank(0) });
    let loses =
        |event: &RouterEvent| matches!(event, RouterEvent::Unprotected { rank: Rank(0), .. });
    let part = vec![7; 1 << 14];
    let mut from = 0;
    let mut asked_at = None;
    while !said.events.iter().any(loses) {
        let part = ObservedPart { from, clock: 3, bytes: &part[..] };
        let mut bytes = Vec::new();
        put(&mut bytes, &Header::Determinants, std::iter::empty(), Some(part), &[]);
        assert!(router.frame(1, &Frame::parse(&bytes).unwrap().unwrap(), &mut said));
        router.settle(1, &mut said);
        from = part.end();
        asked_at = asked_at.or(said.events.iter().any(asks).then_some(from));
        assert!(router.stats().memory_bytes <= 64 << 20);
    }
    assert!(asked_at.unwrap() < 16 << 20 && from > 48 << 20, "{asked_at:?} {from}");
    // An image within the same long calculation has all observations before it.
    let truncate = RouterCommand::Truncate { rank: Rank(0), clock: 3, rsn: 0, observed: from };
    router.command(truncate, &mut said);
    assert_eq!(router.stats().memory_bytes, 0);
}

fn a_message_that_comes_twice_is_logged_once() {
    let (mut router, mut said) = one_router();
    router.connected(1, instance(Rank(0), 1), StreamKind::Send, true, &mut said);
    assert!(say(&mut router, &mut said, 1, &message(1, 5, 1)));
    assert!(say(&mut router, &mut said, 1, &message(1, 5, 1)));
    assert_eq!(
        (router.kept.log(Rank(1)).newest(), router.kept.log(Rank(1)).last_ssn(Rank(0))),
        (1, 1)
    );
    assert_eq!(traffic(&mut router, &mut said), [(Rank(0), Rank(1), sent(1))]);
}

/// What a router tells of what ranks have sent.
fn traffic(router: &mut Protocol<MemoryStore>, said: &mut Said) -> Vec<(Rank, Rank, Sent)> {
    router.command(RouterCommand::Traffic, said);
    let Some(RouterEvent::Traffic(pairs)) = said.events.pop() else { panic!("no answer") };
    pairs.into_iter().map(|pair| (pair.from, pair.to, pair.sent)).collect()
}

fn a_piece_outside_of_its_senders_segments_is_refused() {
    let (mut router, mut said) = one_router();
    let segment = |said: &mut Said, conn| {
        let (bytes, _) =
            said.frames.get_mut(&conn).and_then(VecDeque::pop_back).expect("an answer");
        let Header::Segment(s) = Frame::parse(&bytes).unwrap().unwrap().header else { panic!() };
        s
    };
    let mut given = Vec::new();
    for (conn, rank) in [(1, 0), (2, 1)] {
        router.connected(conn, instance(Rank(rank), 1), StreamKind::Send, false, &mut said);
        let request = Header::SegmentRequest(SegmentRequest { bytes: 100_000 });
        assert!(say(&mut router, &mut said, conn, &request));
        given.push(segment(&mut said, conn));
    }
    let mut put = |conn, segment, offset| {
        say(&mut router, &mut said, conn, &Header::Piece(Piece { segment, offset }))
    };
    assert!(put(1, given[0].segment, given[0].bytes - 2));
    assert!(!put(1, given[1].segment, 0), "another sender's segment");
    assert!(!put(2, given[1].segment, given[1].bytes - 1), "beyond the end");
    router.connected(3, instance(Rank(0), 1), StreamKind::Send, false, &mut said);
    let wrapping = Header::Piece(Piece { segment: given[0].segment, offset: u64::MAX });
    assert!(!say(&mut router, &mut said, 3, &wrapping), "a segment of an earlier connection");
}

fn a_segment_that_can_never_be_made_is_refused_and_no_sender_waits_for_it() {
    let (mut router, mut said) = one_router();
    for bytes in [u64::MAX, 1 << 50] {
        router.connected(1, instance(Rank(0), 1), StreamKind::Send, false, &mut said);
        let request = Header::SegmentRequest(SegmentRequest { bytes });
        assert!(!say(&mut router, &mut said, 1, &request));
        assert!(!router.room.waits());
    }
}

fn single_rules() {
    lost::single_rules();
    gateway::single_rules();
    a_piece_outside_of_its_senders_segments_is_refused();
    a_segment_that_can_never_be_made_is_refused_and_no_sender_waits_for_it();
    a_message_that_comes_twice_is_logged_once();
    a_gap_in_the_sequence_is_refused();
    another_envelope_is_a_divergence_and_other_content_is_reported_once();
    a_sender_learns_what_is_logged();
    a_second_connection_replaces_the_first();
    a_send_before_the_fence_makes_a_no_delivery_determinant();
    what_was_truncated_with_an_image_is_still_stable();
    an_observation_before_the_fence_makes_a_no_delivery_determinant();
    observations_have_a_bound();
}

#[test]
fn each_rule_holds_by_itself() {
    single_rules();
}

#[test]
fn every_mutation_of_the_protocol_is_caught() {
    for seed in 0..300 {
        assert!(random_schedule(seed) < u64::MAX);
    }
    expect_panics();
    let mut missed: Vec<Mutation> = Vec::new();
    for mutation in mutation::ALL {
        mutation::activate(Some(mutation));
        let caught = std::panic::catch_unwind(single_rules).is_err()
            || (0..300).any(|seed| std::panic::catch_unwind(|| random_schedule(seed)).is_err());
        mutation::activate(None);
        if !caught {
            missed.push(mutation);
        }
    }
    assert!(missed.is_empty(), "not caught: {missed:?}");
}

/// Hides the panics of this thread from now on: this test expects hundreds.
fn expect_panics() {
    let expecting = std::thread::current().id();
    let shown = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if std::thread::current().id() != expecting || info.to_string().contains("not caught") {
            shown(info);
        }
    }));
}
