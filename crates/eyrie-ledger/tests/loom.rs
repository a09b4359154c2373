//! The orderings of the ledger under loom: all executions that the memory model allows of a writer
//! and a reader, with the code of this crate over loom's atomics. Each release, acquire and fence
//! is then taken out, one at a time: loom must find a wrong execution, or the test would not find
//! a wrong ordering either.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p eyrie-ledger --release --test loom`
#![cfg(loom)]

use eyrie_ledger::bells::Bells;
use eyrie_ledger::heap::Heap;
use eyrie_ledger::layout::{Channel, Layout};
use eyrie_ledger::memory::{Hints, Memory, View};
use eyrie_ledger::mutation::{activate, Mutation};
use eyrie_ledger::order::OrderReader;
use eyrie_ledger::reader::Reader;
use eyrie_ledger::writer::{Message, Sizes, Writer};
use eyrie_ledger::{region, Envelope};
use loom::sync::atomic::{fence, AtomicU32, AtomicU64, Ordering::*};
use loom::sync::Arc;
use loom::thread;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

const BYTES: u64 = 64 << 10;
const SIZES: Sizes = Sizes { at_once: 32, step: 24 };

fn layout() -> Layout {
    Layout::new(0, 2, BYTES)
}

/// Memory whose words are loom's where both threads touch them. What lay there before the threads
/// began is a copy of a heap.
struct Modelled {
    heap: Heap,
    words: BTreeMap<u64, AtomicU64>,
}

impl Modelled {
    fn new(heap: Heap, touched: &BTreeSet<u64>) -> Modelled {
        let words = touched.iter().map(|at| (*at, AtomicU64::new(heap.load(*at)))).collect();
        Modelled { heap, words }
    }
}

/// The memory as its reader has it.
struct Reads(Arc<Modelled>);

/// The memory as its writer has it. It loads what it has stored itself, since no other thread
/// stores, and loads that from the heap: loom tries an order of two accesses of a word only when no
/// third one lies between them, and would leave executions out.
struct Writes(Arc<Modelled>);

impl View for Reads {
    fn bytes(&self) -> u64 {
        BYTES
    }
    fn load(&self, at: u64) -> u64 {
        self.0.words.get(&at).map_or_else(|| self.0.heap.load(at), |word| word.load(Relaxed))
    }
    fn load_acquire(&self, at: u64) -> u64 {
        self.0.words.get(&at).map_or_else(|| self.0.heap.load(at), |word| word.load(Acquire))
    }
    fn read(&self, at: u64, to: &mut [u8]) {
        read_by_words(|at| self.load(at), at, to);
    }
    fn fence(&self) {
        fence(SeqCst);
    }
}

impl View for Writes {
    fn bytes(&self) -> u64 {
        BYTES
    }
    fn load(&self, at: u64) -> u64 {
        self.0.heap.load(at)
    }
    fn load_acquire(&self, at: u64) -> u64 {
        self.load(at)
    }
    fn read(&self, at: u64, to: &mut [u8]) {
        read_by_words(|at| self.load(at), at, to);
    }
    fn fence(&self) {
        fence(SeqCst);
    }
}

impl Memory for Writes {
    fn store(&self, at: u64, value: u64) {
        self.0.heap.store(at, value);
        if let Some(word) = self.0.words.get(&at) {
            word.store(value, Relaxed);
        }
    }
    fn store_release(&self, at: u64, value: u64) {
        self.0.heap.store(at, value);
        if let Some(word) = self.0.words.get(&at) {
            word.store(value, Release);
        }
    }
    fn write(&self, at: u64, from: &[u8]) {
        write_by_words(|at| self.load(at), |at, word| self.store(at, word), at, from);
    }
}

/// Memory that notes which words are stored, and which are loaded.
struct Noting<'a> {
    heap: &'a Heap,
    loaded: RefCell<BTreeSet<u64>>,
    stored: RefCell<BTreeSet<u64>>,
}

impl<'a> Noting<'a> {
    fn new(heap: &'a Heap) -> Noting<'a> {
        Noting { heap, loaded: RefCell::default(), stored: RefCell::default() }
    }
}

impl View for Noting<'_> {
    fn bytes(&self) -> u64 {
        BYTES
    }
    fn load(&self, at: u64) -> u64 {
        self.loaded.borrow_mut().insert(at);
        self.heap.load(at)
    }
    fn load_acquire(&self, at: u64) -> u64 {
        self.load(at)
    }
    fn read(&self, at: u64, to: &mut [u8]) {
        read_by_words(|at| self.load(at), at, to);
    }
    fn fence(&self) {}
}

impl Memory for Noting<'_> {
    fn store(&self, at: u64, value: u64) {
        self.stored.borrow_mut().insert(at);
        self.heap.store(at, value);
    }
    fn store_release(&self, at: u64, value: u64) {
        self.store(at, value);
    }
    fn write(&self, at: u64, from: &[u8]) {
        write_by_words(|at| self.heap.load(at), |at, word| self.store(at, word), at, from);
    }
}

fn read_by_words(load: impl Fn(u64) -> u64, at: u64, to: &mut [u8]) {
    let mut word = (u64::MAX, 0);
    for (at, byte) in (at..).zip(to) {
        if word.0 != at & !7 {
            word = (at & !7, load(at & !7));
        }
        *byte = (word.1 >> (at % 8 * 8)) as u8;
    }
}

fn write_by_words(
    load: impl Fn(u64) -> u64,
    store: impl Fn(u64, u64),
    mut at: u64,
    mut from: &[u8],
) {
    while !from.is_empty() {
        let start = (at % 8) as usize;
        let n = from.len().min(8 - (at % 8) as usize);
        // A word that is written whole is not read before.
        let mut word = if n == 8 { [0; 8] } else { load(at & !7).to_le_bytes() };
        word[start..start + n].copy_from_slice(&from[..n]);
        store(at & !7, u64::from_le_bytes(word));
        (at, from) = (at + n as u64, &from[n..]);
    }
}

fn message(to: u32, payload: &[u8]) -> Message<'_> {
    Message { to, envelope: Envelope { kind: 1, ..Envelope::default() }, clock: 0, payload }
}

fn send<M: Memory>(writer: &mut Writer<M>, to: u32, payload: &[u8]) {
    writer.append(&message(to, payload), || ()).expect("there is room and nothing is damaged");
}

/// A region, and what the two sides do in it. The words that the writer stores and the reader loads
/// are found by letting the reader look before and after the writer.
fn both(before: fn(&Heap), write: Write, read: fn(&dyn Look)) {
    let begin = move || {
        let heap = Heap::new(BYTES);
        region::prepare(&heap, &layout(), 1, BYTES);
        before(&heap);
        heap
    };
    let heap = begin();
    let writing = Noting::new(&heap);
    let reading = Noting::new(&heap);
    let mut writer = open(&writing);
    writing.stored.borrow_mut().clear();
    read(&reading);
    write(&mut |act| perform(&mut writer, act));
    read(&reading);
    let touched: BTreeSet<u64> =
        writing.stored.borrow().intersection(&reading.loaded.borrow()).copied().collect();
    loom::model(move || {
        let heap = begin();
        let memory = Arc::new(Modelled::new(heap, &touched));
        let mut writer = open(Writes(memory.clone()));
        let writes = thread::spawn(move || write(&mut |act| perform(&mut writer, act)));
        read(&Reads(memory));
        writes.join().unwrap();
    });
}

fn open<M: Memory>(memory: M) -> Writer<M> {
    // Everything was sent by this incarnation's image: it goes on at the end.
    let sent = region_sent(&memory);
    Writer::open(memory, layout(), |to| sent[to as usize], SIZES).expect("a sound region")
}

fn region_sent(memory: &impl Memory) -> [u64; 2] {
    [0, 1].map(|to| memory.load(0x2000 + to * 64 + 8))
}

/// What a writer does, one act after another.
type Write = fn(&mut dyn FnMut(Act));

/// One act of a writer.
enum Act<'a> {
    Send(u32, &'a [u8]),
    Record(u64, &'a [(u32, u32)]),
}

fn perform<M: Memory>(writer: &mut Writer<M>, act: Act) {
    match act {
        Act::Send(to, payload) => send(writer, to, payload),
        Act::Record(clock, shown) => writer.record(clock, shown).expect("there is room"),
    }
}

/// A view of either kind.
trait Look {
    /// What the messages to rank 1 behind message `count` are, as far as they are there and whole.
    fn messages(&self, count: u64) -> Vec<Vec<u8>>;
    /// What is there of message `count + 1` to rank 1.
    fn part(&self, count: u64) -> Vec<u8>;
    /// Looks for a message that was lost.
    fn look_for_lost(&self, count: u64);
    /// The clocks of the order.
    fn clocks(&self) -> Vec<u64>;
}

impl<V: View> Look for V {
    fn messages(&self, count: u64) -> Vec<Vec<u8>> {
        let mut reader = Reader::new(self, layout(), 1, count);
        let mut all = Vec::new();
        while let Some(entry) = reader.look().expect("nothing is damaged") {
            if reader.filled(&entry).expect("nothing is damaged") < entry.len {
                break;
            }
            let mut payload = vec![0; entry.len as usize];
            reader.read(&entry, 0, &mut payload);
            all.push(payload);
            reader.pass(&entry);
        }
        all
    }
    fn part(&self, count: u64) -> Vec<u8> {
        let mut reader = Reader::new(self, layout(), 1, count);
        let Some(entry) = reader.look().expect("nothing is damaged") else { return Vec::new() };
        let filled = reader.progress(&entry).expect("nothing is damaged");
        let mut part = vec![0; filled.bytes as usize];
        reader.read(&entry, 0, &mut part);
        part
    }
    fn look_for_lost(&self, count: u64) {
        Reader::new(self, layout(), 1, count).look_for_lost().expect("nothing is lost");
    }
    fn clocks(&self) -> Vec<u64> {
        let mut reader = OrderReader::open(self, layout(), 0).expect("nothing is damaged");
        let mut clocks = Vec::new();
        while let Some(record) = reader.next().expect("nothing is damaged") {
            clocks.push(record.clock);
        }
        clocks
    }
}

/// A chain of messages to rank 1 that an earlier life has left, and free extents behind it with
/// nonsense in them.
fn used(heap: &Heap) {
    let mut writer = open(heap);
    send(&mut writer, 1, b"first");
    dirty(heap);
}

/// What is not used yet holds nonsense, as memory that was in use before.
fn dirty(heap: &Heap) {
    for at in (layout().extents()..BYTES).step_by(8) {
        let entry = at < layout().extents() + 128;
        if !entry && heap.load(at) == 0 {
            heap.store(at, 0x1234_5678_9abc_def0);
        }
    }
}

/// Messages of one line and of several, in places that held something before.
fn entries() {
    both(
        |heap| {
            used(heap);
            // The place of the next message is empty, as its writer has left it.
            heap.store(layout().extents() + 128, 0);
        },
        |act| {
            act(Act::Send(1, b"a line"));
            act(Act::Send(1, &[7; 30]));
        },
        |view| {
            let all: [&[u8]; 3] = [b"first", b"a line", &[7; 30]];
            let seen = view.messages(0);
            saw(seen.len());
            assert_eq!(seen, all[..seen.len()], "half of an entry, or an old one");
        },
    );
}

/// A large message of 40 nines is written, and looked at meanwhile.
fn while_a_large_one_is_written(look: fn(&dyn Look)) {
    both(
        |heap| {
            used(heap);
            heap.store(layout().extents() + 128, 0);
        },
        |act| act(Act::Send(1, &[9; 40])),
        look,
    );
}

/// A large message is copied while it is written.
fn large() {
    while_a_large_one_is_written(|view| {
        let seen = view.messages(1);
        saw(seen.len());
        assert!(seen.is_empty() || seen == [[9; 40]], "bytes that were not written yet");
    });
}

/// A large message of which the receiver reads what is there.
fn part() {
    while_a_large_one_is_written(|view| {
        let part = view.part(1);
        saw(part.len());
        assert!(part.iter().all(|byte| *byte == 9), "bytes that were not written yet");
    });
}

/// The first message of a channel, in an extent that holds nonsense.
fn first() {
    both(
        |heap| {
            for at in (layout().extents()..BYTES).step_by(8) {
                heap.store(at, 0x1234_5678_9abc_def0);
            }
        },
        |act| act(Act::Send(1, b"first")),
        |view| {
            let seen = view.messages(0);
            saw(seen.len());
            assert!(seen.is_empty() || seen == [b"first"]);
        },
    );
}

/// The newest number is seen only with its message.
fn newest() {
    both(
        |heap| {
            used(heap);
            heap.store(layout().extents() + 128, 0);
        },
        |act| act(Act::Send(1, b"next")),
        |view| {
            saw(0);
            view.look_for_lost(1);
        },
    );
}

/// Determinants, while they are written; the second one begins an extent.
fn records() {
    both(
        |heap| {
            let mut writer = open(heap);
            writer.record(1, &[(1, 1)]).unwrap();
            let mut clock = 1;
            // The extent is full but for one byte.
            while heap.load(layout().extents() + 56) as u32 != 4096 - 64 - 1 {
                clock += 1;
                writer.record(clock, &[(1, 1)]).unwrap();
            }
        },
        |act| {
            act(Act::Record(5000, &[(0, 1)]));
        },
        |view| {
            let clocks = view.clocks();
            saw(clocks.len());
            assert!(matches!(clocks.len(), 4030 | 4031), "{}", clocks.len());
        },
    );
}

/// A receiver opens a channel while its first extent is taken off and used for another.
fn reuse() {
    both(
        |heap| {
            let mut writer = open(heap);
            // Two extents to rank 1, of which the first is not needed any more.
            for _ in 0..62 {
                send(&mut writer, 1, b"early");
            }
            for _ in 0..2 {
                send(&mut writer, 1, b"late");
            }
            region::release(heap, &layout(), Channel::Rank(1), 63);
        },
        |act| act(Act::Send(0, b"reuses the extent")),
        |view| {
            saw(0);
            assert_eq!(view.messages(63), [b"late"]);
        },
    );
}

/// Publish, look at the bell; the other: say that it sleeps, look again, sleep.
fn bell() {
    #[derive(Clone)]
    struct Words(Arc<Vec<AtomicU32>>);
    impl Hints for Words {
        fn load(&self, at: u64) -> u32 {
            self.0[word(at)].load(Relaxed)
        }
        fn store(&self, at: u64, value: u32) {
            self.0[word(at)].store(value, Relaxed);
        }
        fn add(&self, at: u64, n: u32) {
            self.0[word(at)].fetch_add(n, Release);
        }
        fn fence(&self) {
            fence(SeqCst);
        }
    }
    /// The bell of slot 0: whether it sleeps, and its word. All else is one word.
    fn word(at: u64) -> usize {
        (at / 4).min(2) as usize
    }
    loom::model(|| {
        let words = Words(Arc::new((0..3).map(|_| AtomicU32::new(0)).collect()));
        let entry = Arc::new(AtomicU64::new(0));
        let rings = {
            let bells = Bells::new(words.clone(), 2);
            let entry = entry.clone();
            thread::spawn(move || {
                entry.store(1, Release);
                bells.ring(0, 1, 1)
            })
        };
        let bells = Bells::new(words, 2);
        let word = bells.begin_sleep(0);
        let sleeps = entry.load(Acquire) == 0;
        let woken = rings.join().unwrap();
        saw(usize::from(sleeps) * 2 + usize::from(woken));
        assert!(!sleeps || woken, "it sleeps and is not woken");
        assert!(!woken || bells.begin_sleep(0) != word, "a futex would go on sleeping");
    });
}

thread_local! {
    /// What readers have seen, and how often.
    static SEEN: RefCell<BTreeMap<usize, u64>> = RefCell::default();
}

fn saw(what: usize) {
    SEEN.with(|seen| *seen.borrow_mut().entry(what).or_default() += 1);
}

/// A name, what is modelled, in how many ways it ends, and the errors that it must find.
type Case = (&'static str, fn(), usize, &'static [Mutation]);

fn all() -> [Case; 8] {
    use Mutation::*;
    [
        ("entries", entries, 3, &[KeepNextPlace, RelaxedEntry, RelaxedLook]),
        ("a large message", large, 2, &[RelaxedFilled, RelaxedFilledLook]),
        ("a part of a large message", part, 3, &[RelaxedFilled, RelaxedFilledLook]),
        ("the first message", first, 2, &[RelaxedFirst, RelaxedFirstLook]),
        ("the newest number", newest, 1, &[RelaxedNewest]),
        ("determinants", records, 2, &[RelaxedItem, RelaxedNext]),
        ("an extent that is used again", reuse, 1, &[NoFenceBeforeReuse, NoSecondLook]),
        ("a bell", bell, 3, &[NoFenceBeforeRing, NoFenceBeforeSleep]),
    ]
}

#[test]
fn all_orderings_hold_and_each_one_is_needed() {
    let mut wrong = Vec::new();
    for (name, model, ends, mutations) in all() {
        activate(None);
        SEEN.take();
        let holds = std::panic::catch_unwind(model).is_ok();
        let seen = SEEN.take();
        let executions: u64 = seen.values().sum();
        println!("{name}: {executions} executions, holds: {holds}, ends: {seen:?}");
        if !holds {
            wrong.push(format!("{name} does not hold"));
        }
        if seen.len() != ends {
            wrong.push(format!("{name} ends in {} ways and not in {ends}", seen.len()));
        }
        for mutation in mutations {
            activate(Some(*mutation));
            let found = std::panic::catch_unwind(model).is_err();
            println!("{name}, {mutation:?}: {}", if found { "found" } else { "NOT FOUND" });
            if !found {
                wrong.push(format!("{mutation:?} is not found"));
            }
        }
    }
    activate(None);
    assert!(wrong.is_empty(), "{wrong:?}");
}
