//! The program: what it sends when depends on all that it has seen and when, so that any error in
//! order or replay shows in the content of a message; what it has computed at the end does not.

use crate::core::matching::{Completion, Context, Outcome, Posted};
use crate::core::path::Path;
use crate::core::rank::{Event, RankCore, Unread};
use crate::core::rma::{Done, Kind, Pending, Region};
use crate::core::world::World;
use eyrie_wire::data::{AtomicOp, Envelope};
use eyrie_wire::Rank;
use std::alloc::{alloc_zeroed, dealloc, Layout};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

/// Receives that a program has posted at all times.
const SLOTS: usize = 3;
const WINDOW_BYTES: usize = 8192;
const WINDOW_KEY: u64 = 7;
const ANSWERS: usize = 8;
const ANSWER_BYTES: usize = 64;
/// libfabric's numbers: a sum of 64-bit numbers.
const SUM: u8 = 2;
const UINT64: u8 = 7;

/// The process around a program.
pub trait TestWorld: World {
    type Path: TestPath<World = Self>;

    /// What the program observes besides messages.
    fn random_byte(&self) -> u8;

    /// A call begins in which an image may be taken; `copy` makes what such an image would hold of
    /// the rank and the program.
    fn begin_call(&self, _copy: &dyn Fn() -> Copied<Self>) {}

    /// The program has received a message from outside its own state, or has done something that
    /// others see: `number` names it, and it must always be the same.
    fn note(&self, _what: Noted, _number: u64, _state: u64) {}
}

/// A path of test programs.
pub trait TestPath: Path<World: TestWorld<Path = Self>> + 'static {}

impl<P: Path<World: TestWorld<Path = P>> + 'static> TestPath for P {}

/// What must be the same whenever it happens again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Noted {
    /// A message that was received.
    Message,
    /// An effect of a rank.
    Effect(u32),
}

/// A rank of a test.
pub type TestRank<W> = RankCore<<W as TestWorld>::Path>;

/// What an image holds of a rank above its path.
pub type Above<W> = Rc<dyn Fn(<W as TestWorld>::Path) -> TestRank<W>>;

/// A rank above its path, and its program, before a call.
pub struct Copied<W: TestWorld> {
    pub rank: Above<W>,
    pub program: Program,
}

/// What all programs of a job have in common.
#[derive(Clone, Copy)]
pub struct Shape {
    pub seed: u64,
    pub ranks: u32,
    /// Things that each rank sends or asks for.
    pub total: u64,
    /// Longest message that can be received, in bytes.
    pub longest: usize,
    /// Bytes of a message, but for the first 16, by seed and action.
    pub len: fn(u64, u64) -> usize,
    /// Bytes of the record of an observation.
    pub observation: usize,
    /// Programs do things that cannot be undone.
    pub effects: bool,
}

impl Shape {
    /// What the `n`th action of a rank is, in every run.
    fn action(&self, number: u32, n: u64) -> u64 {
        mix(mix(self.seed, n), number.into())
    }

    fn destination(&self, word: u64) -> u32 {
        (word >> 8) as u32 % self.ranks
    }
}

fn mix(state: u64, word: u64) -> u64 {
    (state ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29) ^ word
}

fn is_message(word: u64) -> bool {
    word % 5 < 3
}

/// The memory of a process: always at the same place.
pub struct Memory {
    at: *mut u8,
    slot_bytes: usize,
}

impl Memory {
    pub fn new(shape: &Shape) -> Memory {
        let slot_bytes = shape.longest;
        // SAFETY: the layout is not empty.
        let at = unsafe { alloc_zeroed(Memory::layout(slot_bytes)) };
        assert!(!at.is_null());
        Memory { at, slot_bytes }
    }

    fn layout(slot_bytes: usize) -> Layout {
        let bytes = WINDOW_BYTES + ANSWERS * ANSWER_BYTES + SLOTS * slot_bytes;
        Layout::from_size_align(bytes, 64).expect("a size that exists")
    }

    fn answer(&self, n: usize) -> *mut u8 {
        self.at.wrapping_add(WINDOW_BYTES + n * ANSWER_BYTES)
    }

    fn slot(&self, n: usize) -> *mut u8 {
        self.answer(ANSWERS).wrapping_add(n * self.slot_bytes)
    }

    fn bytes(&self) -> usize {
        Memory::layout(self.slot_bytes).size()
    }

    /// All of it, as it is now.
    pub fn copy(&self) -> Rc<[u8]> {
        // SAFETY: so many bytes were allocated, and nothing writes to them during this.
        unsafe { std::slice::from_raw_parts(self.at, self.bytes()) }.into()
    }

    pub fn window(&self) -> Vec<u8> {
        self.copy()[..WINDOW_BYTES].to_vec()
    }

    /// Makes it what it was; all zero without a copy.
    pub fn restore(&self, copy: Option<&[u8]>) {
        // SAFETY: so many bytes were allocated; the copy is of this memory, and so as long; nothing
        // else uses the memory now.
        unsafe {
            match copy {
                Some(copy) => std::ptr::copy_nonoverlapping(copy.as_ptr(), self.at, copy.len()),
                None => self.at.write_bytes(0, self.bytes()),
            }
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout.
        unsafe { dealloc(self.at, Memory::layout(self.slot_bytes)) };
    }
}

/// What a rank observes besides messages: random bytes, and signals; and the same ones again.
#[derive(Clone, Default)]
pub struct Observing {
    taken: u64,
    recorded: Vec<u8>,
    again: VecDeque<u8>,
    /// Nothing is observed again any more.
    is_new: bool,
}

/// Begins the record of a signal: its clock follows.
const SIGNAL: u8 = 255;
const SIGNAL_BYTES: usize = 9;

impl Observing {
    /// Observes a byte, whose record has so many.
    pub fn observe(&mut self, random: u8, bytes: usize) -> u8 {
        let Some(byte) = self.again.pop_front() else {
            self.recorded.resize(self.recorded.len() + bytes, random);
            return random;
        };
        assert_ne!(byte, SIGNAL, "it observes something instead of a signal");
        self.again.drain(..bytes - 1);
        self.taken += bytes as u64;
        byte
    }

    /// Whether the program gets a signal at this clock. `is_new`: the rank follows nothing.
    /// `comes`: one has come, as far as nothing is known.
    pub fn signal(&mut self, clock: u64, is_new: bool, comes: bool) -> bool {
        if !self.is_new && !self.again.is_empty() {
            let known = [&[SIGNAL], &clock.to_le_bytes()[..]].concat();
            let is_next = self.again.iter().take(SIGNAL_BYTES).eq(&known);
            if is_next {
                self.again.drain(..SIGNAL_BYTES);
                self.taken += SIGNAL_BYTES as u64;
            }
            return is_next;
        }
        self.is_new |= is_new;
        if self.is_new && comes {
            self.recorded.push(SIGNAL);
            self.recorded.extend(clock.to_le_bytes());
        }
        self.is_new && comes
    }

    pub fn take(&mut self, take: &mut dyn FnMut(u64, &[u8])) {
        take(self.taken, &self.recorded);
        self.taken += self.recorded.len() as u64;
        self.recorded.clear();
    }

    pub fn observed(&self) -> u64 {
        self.taken
    }

    pub fn waiting(&self) -> usize {
        self.recorded.len()
    }

    pub fn again(&mut self, bytes: Vec<u8>) {
        assert!(bytes.is_empty() || self.recorded.is_empty(), "it observes something else");
        self.again = bytes.into();
        self.is_new = false;
    }

    pub fn skip(&self, to: u64) {
        assert!(self.taken >= to, "it observes less than before: {} of {to} bytes", self.taken);
    }
}

/// What a program does next.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    Observe,
    Act,
    Ask,
}

/// A program between two calls.
#[derive(Clone)]
pub struct Program {
    number: u32,
    shape: Shape,
    /// Depends on everything.
    state: u64,
    /// Depends on what was received only.
    pub sum: u64,
    does: Next,
    /// The next thing to send or to ask for.
    next: u64,
    received: u64,
    expected: u64,
    waiting: u64,
    effects: u64,
    pub observing: Rc<RefCell<Observing>>,
}

impl Program {
    pub fn new(number: u32, shape: Shape) -> Program {
        let senders = 0..shape.ranks;
        let actions = senders.flat_map(|r| (0..shape.total).map(move |n| shape.action(r, n)));
        let expected =
            actions.filter(|w| is_message(*w) && shape.destination(*w) == number).count() as u64;
        let state = mix(shape.seed, number.into());
        let sum = 0;
        let next = 0;
        let received = 0;
        let waiting = 0;
        let effects = 0;
        let does = Next::Observe;
        let observing = Rc::default();
        Program {
            number,
            shape,
            state,
            sum,
            does,
            next,
            received,
            expected,
            waiting,
            effects,
            observing,
        }
    }

    /// The program as it is now, which goes on by itself.
    pub fn copy(&self) -> Program {
        self.with(&self.observing)
    }

    /// The program as it is now, with a copy of what it has observed.
    pub fn with(&self, observing: &Rc<RefCell<Observing>>) -> Program {
        let observing = Rc::new(RefCell::new(observing.borrow().clone()));
        Program { observing, ..self.clone() }
    }

    /// Observes something that no message has told.
    fn observe<P: TestPath>(&mut self, rank: &RankCore<P>) {
        let random = rank.path.world().random_byte() & 0x7f;
        let byte = self.observing.borrow_mut().observe(random, self.shape.observation);
        self.state = mix(self.state, byte.into());
    }

    pub fn is_done(&self) -> bool {
        (self.next, self.received, self.waiting) == (self.shape.total, self.expected, 0)
    }

    pub fn begin<P: TestPath>(&self, rank: &mut RankCore<P>, memory: &Memory) {
        // The memory lives until the end of the test; so in all below.
        rank.regions.add(WINDOW_KEY, Region { base: memory.at as usize, len: WINDOW_BYTES });
        for slot in 0..SLOTS {
            rank.post(receive(memory, slot), |_| panic!("nothing has come yet"));
        }
    }

    /// What comes next, up to the next progress call and with it.
    pub fn step<P: TestPath>(&mut self, rank: &mut RankCore<P>, memory: &Memory) {
        if self.does == Next::Observe {
            for _ in 0..self.state % 4 {
                self.observe(rank);
            }
            self.does = Next::Act;
        }
        if self.does == Next::Act {
            self.act(rank, memory);
            self.does = Next::Ask;
        }
        let mut events = Vec::new();
        rank.progress(Unread::Nothing, |event| events.push(event)).unwrap();
        self.does = Next::Observe;
        for event in events {
            match event {
                Event::Received(c) => self.receive(rank, &c, memory),
                Event::Done(d) => self.done(&d),
            }
        }
        if rank.signal().is_some() {
            self.state = mix(self.state, 9);
        }
        self.state = mix(self.state, rank.path.clock());
    }

    /// Sends something, asks for something, or does something that others see, or nothing.
    fn act<P: TestPath>(&mut self, rank: &mut RankCore<P>, memory: &Memory) {
        if self.next < self.shape.total && self.state % 3 != 0 {
            self.begin_call(rank);
            let word = self.shape.action(self.number, self.next);
            if is_message(word) {
                self.send(rank, word);
                self.next += 1;
                self.observe(rank);
            } else {
                self.ask(rank, word, memory);
                self.next += 1;
            }
        } else if self.shape.effects && self.state % 5 == 0 {
            self.begin_call(rank);
            rank.path.store_observed().unwrap();
            self.effects += 1;
            let what = Noted::Effect(self.number);
            rank.path.world().note(what, self.effects, self.state);
        }
    }

    fn begin_call<P: TestPath>(&self, rank: &RankCore<P>) {
        let copy = || Copied { rank: Rc::new(rank.image()), program: self.copy() };
        rank.path.world().begin_call(&copy);
    }

    fn send<P: TestPath>(&mut self, rank: &mut RankCore<P>, word: u64) {
        let mut content = self.state.to_le_bytes().to_vec();
        content.extend(word.to_le_bytes());
        content.resize(16 + (self.shape.len)(self.shape.seed, word), word as u8);
        let envelope = match word >> 32 & 1 {
            0 => Envelope::Tagged { tag: word >> 40, data: None },
            _ => Envelope::Tagged { tag: word >> 40, data: Some(word) },
        };
        rank.send(Rank(self.shape.destination(word)), envelope, &content).unwrap();
    }

    fn receive<P: TestPath>(&mut self, rank: &mut RankCore<P>, c: &Completion, memory: &Memory) {
        assert_eq!(c.outcome, Outcome::Received);
        // SAFETY: so much was received there, and nothing else writes to it now.
        let content = unsafe { std::slice::from_raw_parts(memory.slot(c.context), c.len) };
        let number = |at: usize| u64::from_le_bytes(content[at..at + 8].try_into().unwrap());
        let (state, word) = (number(0), number(8));
        assert_eq!(content.len(), 16 + (self.shape.len)(self.shape.seed, word));
        assert!(content[16..].iter().all(|b| *b == word as u8));
        rank.path.world().note(Noted::Message, word, state);
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
    fn ask<P: TestPath>(&mut self, rank: &mut RankCore<P>, word: u64, memory: &Memory) {
        let target = self.shape.destination(word);
        let answer = (word >> 40) as usize % ANSWERS;
        let buffer = memory.answer(answer);
        let place = 512 + u64::from(self.number) * 1024 + (word >> 24 & 7) * 64;
        let pending = |kind, len| Pending { context: answer, kind, report: true, buffer, len };
        let key = WINDOW_KEY;
        let offset = place;
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
        self.waiting += 1;
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

fn receive(memory: &Memory, slot: Context) -> Posted {
    Posted {
        context: slot,
        buffer: memory.slot(slot),
        len: memory.slot_bytes,
        source: None,
        tagged: true,
        tag: 0,
        ignore: u64::MAX,
        multi: None,
        used: 0,
        report: true,
    }
}
