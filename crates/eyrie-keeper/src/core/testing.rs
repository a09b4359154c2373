//! What the tests of the core share: ranks that use the ledgers as the provider does, over memory
//! of one process, and an output that remembers what the core has asked.

use super::output::{ConnId, Output};
use super::store::Store;
use super::Core;
use eyrie_ledger::heap::Heap;
use eyrie_ledger::layout::Layout;
use eyrie_ledger::memory::{Memory, View};
use eyrie_ledger::observed::ObservedReader;
use eyrie_ledger::order::OrderReader;
use eyrie_ledger::reader::Reader;
use eyrie_ledger::region;
use eyrie_ledger::spilled::{PayloadCheck, Spilled, HEAD};
use eyrie_ledger::writer::{Message, Sent, Sizes, Writer};
use eyrie_ledger::{error::LedgerError, Envelope};
use eyrie_router::space::Bounds;
use eyrie_router::{RouterCommand, RouterEvent};
use eyrie_wire::keeper::ToKeeper;
use eyrie_wire::{Incarnation, Rank, RankInstance};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::sync::Mutex;

pub const RANKS: u32 = 3;
pub const REGION: u64 = 8 << 20;

/// Large messages begin early, so that tests are quick.
const SIZES: Sizes = Sizes { at_once: 3000, step: 1000 };

/// Remembers what the core has asked.
#[derive(Default)]
pub struct Asked {
    pub events: Vec<RouterEvent>,
    pub admitted: Vec<ConnId>,
    pub closed: Vec<ConnId>,
    /// Ranks whose process runs.
    pub running: BTreeSet<Rank>,
    /// Ranks whose process was killed.
    pub killed: Vec<Rank>,
    /// Files of spilled messages, and where they are in that of the rank admitted last.
    pub files: BTreeMap<Rank, Vec<u8>>,
    pub spilled: (u64, u64),
    /// Bytes of memory that the host has yet; `None`: any.
    pub memory: Option<u64>,
    /// Bytes that the files take in all; `None`: any.
    pub disk: Option<u64>,
}

impl Store for Asked {
    fn write(&mut self, rank: Rank, at: u64, bytes: &[u8]) -> io::Result<()> {
        let all: usize = self.files.values().map(Vec::len).sum();
        if self.disk.is_some_and(|disk| (all + bytes.len()) as u64 > disk) {
            return Err(io::Error::other("/spill: no space left on device"));
        }
        let file = self.files.entry(rank).or_default();
        assert!(at as usize <= file.len(), "a hole in the file of rank {rank}");
        file.truncate(at as usize);
        file.extend_from_slice(bytes);
        Ok(())
    }
    fn read(&self, rank: Rank, at: u64, to: &mut [u8]) -> io::Result<()> {
        let file = self.files.get(&rank).map_or(&[][..], Vec::as_slice);
        let bytes = file.get(at as usize..at as usize + to.len());
        to.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
    fn free(&mut self, rank: Rank, begin: u64, end: u64) {
        self.files.get_mut(&rank).unwrap()[begin as usize..end as usize].fill(0);
    }
    fn truncate(&mut self, rank: Rank, end: u64) {
        if let Some(file) = self.files.get_mut(&rank) {
            file.truncate(end as usize);
        }
    }
}

impl Output for Asked {
    fn event(&mut self, event: RouterEvent) {
        self.events.push(event);
    }
    fn admit(&mut self, id: ConnId, spilled: (u64, u64)) {
        self.admitted.push(id);
        self.spilled = spilled;
    }
    fn close(&mut self, id: ConnId) {
        self.closed.push(id);
    }
    fn adopt(&mut self, _: ConnId, rank: Rank) {
        self.running.insert(rank);
    }
    fn runs(&self, rank: Rank) -> bool {
        self.running.contains(&rank)
    }
    fn memory_left(&self) -> u64 {
        self.memory.unwrap_or(u64::MAX)
    }
    fn end(&mut self, rank: Rank) {
        self.running.remove(&rank);
        self.killed.push(rank);
    }
}

/// A number that follows from others.
pub fn mix(a: u64, b: u64) -> u64 {
    let x = (a ^ b.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ x >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^ x >> 32
}

/// The content of a message follows from its numbers, so that it is the same when it is sent again.
pub fn payload(source: u32, to: u32, ssn: u64) -> Vec<u8> {
    let n = mix(mix(u64::from(source), u64::from(to)), ssn);
    let len = match n % 8 {
        _ if (source, to) == (1, 2) && ssn % 100 == 99 => n >> 8 & 0xf_ffff,
        0..=3 => n >> 8 & 31,
        4..=6 => n >> 8 & 1023,
        _ => n >> 8 & 0x3fff,
    };
    (0..len).map(|at| (mix(n, at / 8) ^ at) as u8).collect()
}

/// Bytes that a rank observes.
pub fn observation(rank: u32, from: u64) -> Vec<u8> {
    let n = mix(u64::from(rank) + 100, from);
    (0..1 + n % 700).map(|at| (mix(n, at / 8) ^ at) as u8).collect()
}

/// What an image has.
#[derive(Clone, Default, Debug)]
pub struct Image {
    pub clock: u64,
    pub received: Vec<u64>,
    pub sent: Vec<u64>,
    pub observed: u64,
}

impl Image {
    pub fn rsn(&self) -> u64 {
        self.received.iter().sum()
    }
}

/// A process of a rank.
pub struct Process {
    pub conn: ConnId,
    writer: Writer<&'static Heap>,
    readers: Vec<Reader<&'static Heap>>,
    heaps: Vec<&'static Heap>,
    /// Messages that it has received before and that are not in the ledgers.
    spilled: VecDeque<(Spilled, Vec<u8>)>,
    /// The content of the messages of a rank to another one, by their number.
    pub content: fn(u32, u32, u64) -> Vec<u8>,
    pub state: Image,
}

/// A keeper and the processes of the ranks of its job.
pub struct World {
    pub core: Core<&'static Heap>,
    pub asked: Asked,
    pub heaps: Vec<&'static Heap>,
    pub incarnations: Vec<Incarnation>,
    pub log: Bounds,
    next_conn: ConnId,
}

/// Memory that no test uses at present. It is never freed, so that ranks can refer to it.
static UNUSED: Mutex<Vec<&'static Heap>> = Mutex::new(Vec::new());

/// Zeroed memory for the regions of all ranks.
pub fn heaps() -> Vec<&'static Heap> {
    (0..RANKS).map(|_| zeroed()).collect()
}

fn zeroed() -> &'static Heap {
    let unused = UNUSED.lock().unwrap().pop();
    let heap = unused.unwrap_or_else(|| Box::leak(Box::new(Heap::new(REGION))));
    heap.stop_after(u64::MAX);
    (0..REGION).step_by(8).filter(|at| heap.load(*at) != 0).for_each(|at| heap.store(at, 0));
    heap
}

impl Drop for World {
    fn drop(&mut self) {
        // Where a test has panicked, the memory is lost.
        if let Ok(mut unused) = UNUSED.lock() {
            unused.append(&mut self.heaps);
        }
    }
}

pub fn layout(rank: u32) -> Layout {
    Layout::new(rank, RANKS, REGION)
}

impl World {
    /// With so many bytes of memory for logs, and no disk.
    pub fn new(memory: u64) -> World {
        World::within(Bounds { memory, disk: 0 })
    }

    /// With so many bytes for logs.
    pub fn within(log: Bounds) -> World {
        let heaps = heaps();
        let incarnations = vec![Incarnation(1); RANKS as usize];
        let core = Core::new(heaps.clone(), REGION, log, &incarnations);
        World { core, asked: Asked::default(), heaps, incarnations, log, next_conn: 1 }
    }

    pub fn instance(&self, rank: u32) -> RankInstance {
        RankInstance { rank: Rank(rank), incarnation: self.incarnations[rank as usize] }
    }

    /// The number of the process of the present incarnation.
    pub fn pid(&self, rank: u32) -> u32 {
        self.incarnations[rank as usize].0 * 100 + rank
    }

    pub fn command(&mut self, command: RouterCommand) {
        self.core.command(command, &mut self.asked);
    }

    /// Connects the present incarnation of a rank.
    pub fn connect(&mut self, rank: u32) -> ConnId {
        let id = self.next_conn;
        self.next_conn += 1;
        let instance = self.instance(rank);
        let pid = self.pid(rank);
        assert_eq!(self.core.admit(instance), Ok(()));
        self.core.connected(id, instance, pid, &mut self.asked);
        id
    }

    /// Connects a rank, which must be admitted, and goes on from an image.
    pub fn start(&mut self, rank: u32, image: &Image) -> Process {
        let conn = self.connect(rank);
        assert_eq!(self.asked.admitted.last(), Some(&conn), "rank {rank} is admitted");
        let heap = self.heaps[rank as usize];
        let incarnation = self.incarnations[rank as usize].0;
        assert_eq!(region::incarnation(&heap, &layout(rank)), Ok(incarnation));
        let mut state = image.clone();
        state.received.resize(RANKS as usize, 0);
        state.sent.resize(RANKS as usize, 0);
        let spilled = self.spilled(rank, &state.received);
        let sent = |to: u32| state.sent[to as usize];
        let writer = Writer::open(heap, layout(rank), sent, SIZES).unwrap();
        let reader = |(source, heap): (usize, &&'static Heap)| {
            let of = spilled.iter().rfind(|(message, _)| message.source == source as u32);
            let behind = of.map_or(state.received[source], |(message, _)| message.ssn);
            Reader::new(*heap, layout(source as u32), rank, behind)
        };
        let readers = self.heaps.iter().enumerate().map(reader).collect();
        let heaps = self.heaps.clone();
        let content = payload;
        Process { conn, writer, readers, heaps, spilled, content, state }
    }

    /// What is in the file of the rank that was admitted last, behind what it has received.
    fn spilled(&self, rank: u32, received: &[u64]) -> VecDeque<(Spilled, Vec<u8>)> {
        let (begin, end) = self.asked.spilled;
        let file = self.asked.files.get(&Rank(rank)).map_or(&[][..], Vec::as_slice);
        let mut rest = &file[begin as usize..end as usize];
        let mut found = VecDeque::new();
        while let Some((head, content)) = rest.split_first_chunk::<HEAD>() {
            let message = Spilled::read(head).expect("a sound message");
            let payload = &content[..message.len as usize];
            assert_eq!(PayloadCheck::of(payload), message.check);
            if message.ssn > received[message.source as usize] {
                found.push_back((message, payload.to_vec()));
            }
            rest = &rest[message.bytes() as usize..];
        }
        found
    }

    /// The rank says that it re-executes no more.
    pub fn replayed(&mut self, rank: u32, conn: ConnId) {
        let message = ToKeeper::Replayed { messages: 0 };
        self.core.message(conn, Rank(rank), message, &mut self.asked);
    }

    /// Takes messages out of ledgers, as long as there is something to do.
    pub fn relieve(&mut self) {
        while self.core.relieve(&mut self.asked) {}
    }

    /// Fences the rank, whose process ends, and prepares the next incarnation. Returns the event.
    pub fn fence(&mut self, rank: u32) -> RouterEvent {
        let known = self.asked.running.contains(&Rank(rank));
        let incarnation = &mut self.incarnations[rank as usize];
        *incarnation = incarnation.next();
        let instance = self.instance(rank);
        let events = self.asked.events.len();
        self.command(RouterCommand::Fence(instance));
        if known {
            assert_eq!(self.asked.killed.last(), Some(&Rank(rank)));
            assert_eq!(self.asked.events.len(), events, "its process has not ended yet");
            self.core.ended(Rank(rank), Ok(()), &mut self.asked);
        }
        self.asked.events[events..].first().expect("an answer").clone()
    }

    /// Allows the fenced incarnation to have the ledgers.
    pub fn recover(&mut self, rank: u32) {
        let instance = self.instance(rank);
        let determinants = Vec::new();
        let observed = Vec::new();
        self.command(RouterCommand::Recover { instance, determinants, observed });
    }

    /// An image counts.
    pub fn truncate(&mut self, rank: u32, image: &Image) {
        let Image { clock, observed, .. } = *image;
        let rsn = image.rsn();
        self.command(RouterCommand::Truncate { rank: Rank(rank), clock, rsn, observed });
    }

    /// The rank says that it waits for room.
    pub fn want_room(&mut self, rank: u32, conn: ConnId) {
        self.core.message(conn, Rank(rank), ToKeeper::RoomWanted, &mut self.asked);
    }

    /// Goes on with another keeper, over other memory. No process runs any more.
    pub fn replace(&mut self, core: Core<&'static Heap>, asked: Asked, heaps: Vec<&'static Heap>) {
        (self.core, self.asked) = (core, asked);
        let mut old = std::mem::replace(&mut self.heaps, heaps);
        UNUSED.lock().unwrap().append(&mut old);
    }

    /// The events since the last time.
    pub fn events(&mut self) -> Vec<RouterEvent> {
        std::mem::take(&mut self.asked.events)
    }
}

impl Process {
    /// Sends the next message to a rank.
    pub fn send(&mut self, rank: u32, to: u32) -> Result<Sent, LedgerError> {
        self.send_content(to, &(self.content)(rank, to, self.state.sent[to as usize] + 1))
    }

    /// Sends this to a rank.
    pub fn send_content(&mut self, to: u32, payload: &[u8]) -> Result<Sent, LedgerError> {
        let ssn = self.state.sent[to as usize] + 1;
        let envelope = Envelope { words: [ssn, 0], ..Envelope::default() };
        let message = Message { to, envelope, clock: ssn as u32, payload };
        let sent = self.writer.append(&message, || ())?;
        self.state.sent[to as usize] = ssn;
        Ok(sent)
    }

    /// Takes the next message of a source, if it is there: its content must be right.
    fn take(&mut self, rank: u32, source: u32) -> bool {
        if let Some((message, bytes)) = self.spilled.pop_front() {
            let received = &mut self.state.received[source as usize];
            assert_eq!((message.source, message.ssn), (source, *received + 1));
            assert_eq!(message.envelope.words, [message.ssn, 0]);
            assert_eq!(bytes, (self.content)(source, rank, message.ssn));
            *received = message.ssn;
            return true;
        }
        let reader = &mut self.readers[source as usize];
        let Some(entry) = reader.look().unwrap() else { return false };
        let expected = (self.content)(source, rank, entry.ssn);
        assert_eq!((entry.ssn, entry.len), (reader.count() + 1, expected.len() as u64));
        if reader.filled(&entry).unwrap() < entry.len {
            return false;
        }
        let mut bytes = vec![0; expected.len()];
        reader.read(&entry, 0, &mut bytes);
        assert_eq!(bytes, expected, "message {} from {source} to {rank}", entry.ssn);
        reader.pass(&entry);
        self.state.received[source as usize] = entry.ssn;
        true
    }

    /// A progress call: messages of some sources become visible, which is recorded.
    pub fn progress(&mut self, rank: u32, sources: &[u32]) -> Result<(), LedgerError> {
        let before = self.state.received.clone();
        let mut shown: Vec<(u32, u32)> = Vec::new();
        for source in sources {
            if self.take(rank, *source) {
                match shown.last_mut().filter(|(last, _)| last == source) {
                    Some((_, count)) => *count += 1,
                    None => shown.push((*source, 1)),
                }
            }
        }
        self.state.clock += 1;
        if shown.is_empty() {
            return Ok(());
        }
        let recorded = self.writer.record(self.state.clock, &shown);
        if recorded.is_err() {
            // It looks again later.
            self.state.clock -= 1;
            self.state.received = before;
            for (source, reader) in (0..).zip(&mut self.readers) {
                let heap = self.heaps[source as usize];
                let count = self.state.received[source as usize];
                if reader.count() != count {
                    *reader = Reader::new(heap, layout(source), rank, count);
                }
            }
        }
        recorded
    }

    /// Observes something.
    pub fn observe(&mut self, rank: u32) -> Result<(), LedgerError> {
        let part = observation(rank, self.state.observed);
        self.writer.observe(self.state.clock, &part)?;
        self.state.observed += part.len() as u64;
        Ok(())
    }

    /// Executes again what the ledger says, up to these messages sent: each must be there as it
    /// was.
    pub fn replay(&mut self, rank: u32, sent: &[u64]) {
        let heap = self.heaps[rank as usize];
        let mut order = OrderReader::open(heap, layout(rank), self.state.clock).unwrap();
        while let Some(determinant) = order.next().unwrap() {
            for (source, count) in determinant.shown {
                for _ in 0..*count {
                    assert!(self.take(rank, *source), "a message of {source} to {rank} is there");
                }
            }
            self.state.clock = determinant.clock;
        }
        assert_eq!(order.rsn(), self.state.rsn());
        let mut observed = ObservedReader::open(heap, layout(rank), self.state.observed).unwrap();
        while let Some(part) = observed.next().unwrap() {
            assert_eq!(part.bytes, observation(rank, part.from));
            self.state.observed = part.from + part.bytes.len() as u64;
            self.state.clock = self.state.clock.max(part.clock);
        }
        for (to, sent) in (0..).zip(sent) {
            while self.state.sent[to as usize] < *sent {
                let again = self.send(rank, to).unwrap();
                assert!(again != Sent::New, "it was sent before");
            }
        }
    }

    /// How many messages to each rank lie in the ledger, or did.
    pub fn newest(&self) -> Vec<u64> {
        (0..RANKS).map(|to| self.writer.newest(to)).collect()
    }
}
