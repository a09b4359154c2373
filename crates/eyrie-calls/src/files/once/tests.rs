//! Random programs of calls on files over three ranks, which die at any moment, compared with the
//! same program undisturbed. The files are the test's own. What is decided about each call, and the
//! stream of observations, are those of ranks. A router has what was stored, and of the rest as
//! much as happened to arrive, perhaps with half a record. `make test-more` runs 100,000 programs,
//! the tests otherwise 2,000. EYRIE_TEST_SEED says which is the first.

use super::{ask, read, write, Asking, Number, Reading, Writing, Wrote};
use crate::files::change::{Change, When};
use crate::files::freshness;
use crate::files::kernel::Identity;
use crate::files::records::Call;
use crate::files::storing::{store, store_by};
use crate::for_provider::{eyrie_calls_again, eyrie_calls_take};
use crate::observed::{stream, ObservedStream, ROOM};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};

const RANKS: usize = 3;
/// Names that ranks have by turns; behind them each has one of its own.
const NAMES: usize = 6;
/// Those of files that were there before the job.
const OLD: usize = 4;
const TURNS: usize = 4;
const NONE: i64 = -(libc::ENOENT as i64);
const EXISTS: i64 = -(libc::EEXIST as i64);

/// A small generator of our own: this library has no other use for one.
#[derive(Clone)]
struct Draw(u64);

impl Draw {
    fn new(seed: u64) -> Draw {
        let mut draw = Draw(seed ^ 0x9e37_79b9_7f4a_7c15);
        draw.below(2);
        draw
    }

    fn below(&mut self, n: usize) -> usize {
        let next = self.0.wrapping_mul(6_364_136_223_846_793_005);
        self.0 = next.wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % n as u64) as usize
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

struct File {
    content: Vec<u8>,
    /// By the job.
    is_changed: bool,
}

/// What all ranks see.
#[derive(Default)]
struct Disk {
    files: Vec<File>,
    names: BTreeMap<usize, usize>,
    /// What files from before the job had, by the names that they had.
    kept: BTreeMap<usize, Vec<u8>>,
    /// Files that have no name yet, of each rank.
    nameless: [Option<usize>; RANKS],
}

impl Disk {
    fn named(&self, name: usize) -> Option<&File> {
        self.names.get(&name).map(|file| &self.files[*file])
    }

    fn identity(&self, name: usize) -> Result<Identity, i64> {
        let file = self.names.get(&name).ok_or(NONE)?;
        Ok(Identity { ino: *file as u64 + 1, born_ns: 0 })
    }

    fn keep(&mut self, name: usize) {
        let old = self.named(name).filter(|file| !file.is_changed);
        if let Some(content) = old.map(|file| file.content.clone()) {
            self.kept.entry(name).or_insert(content);
        }
    }
}

/// What a rank does and sees, and what it would have in an image.
#[derive(Clone)]
struct Program {
    me: usize,
    draw: Draw,
    seen: u64,
}

/// The files, and when the rank that is running dies.
struct World {
    disk: RefCell<Disk>,
    /// After so many steps.
    dies_in: Cell<u32>,
    now: Cell<i64>,
}

/// With which a rank unwinds.
struct Died;

impl World {
    fn new() -> World {
        let mut disk = Disk::default();
        for name in 0..OLD {
            let content = vec![b'0' + name as u8; 3 * name];
            disk.files.push(File { content, is_changed: false });
            disk.names.insert(name, name);
        }
        World { disk: RefCell::new(disk), dies_in: Cell::new(u32::MAX), now: Cell::new(0) }
    }

    /// A moment in which the rank may die.
    fn step(&self) {
        let left = self.dies_in.get();
        if left == 0 {
            resume_unwind(Box::new(Died));
        }
        if left < u32::MAX {
            self.dies_in.set(left - 1);
        }
    }

    /// Does something to the files, before and after which the rank may die.
    fn does(&self, what: impl FnOnce(&mut Disk) -> i64) -> i64 {
        self.step();
        let value = what(&mut self.disk.borrow_mut());
        self.step();
        value
    }
}

// Calls, each as the functions in front of the C library's make it.

const READ: u8 = 1;
const WRITE: u8 = 2;
const LOOK: u8 = 3;
const LIST: u8 = 4;
const RENAME: u8 = 5;
const UNLINK: u8 = 6;
const MAKE: u8 = 7;
const CUT: u8 = 8;

struct Read<'a> {
    world: &'a World,
    name: usize,
    bytes: Vec<u8>,
}

impl Read<'_> {
    fn has(&mut self, content: Option<Vec<u8>>) -> i64 {
        let Some(content) = content else { return NONE };
        self.bytes = content;
        self.bytes.len() as i64
    }
}

impl Reading for Read<'_> {
    fn make(&mut self) -> i64 {
        self.world.step();
        let content = self.world.disk.borrow().named(self.name).map(|file| file.content.clone());
        self.has(content)
    }

    fn make_again(&mut self) -> i64 {
        let disk = self.world.disk.borrow();
        let same = disk.named(self.name).filter(|file| !file.is_changed);
        let content = same.map(|file| &file.content).or_else(|| disk.kept.get(&self.name)).cloned();
        drop(disk);
        self.has(content)
    }

    fn replay(&mut self, at: usize, bytes: &[u8]) {
        self.bytes.truncate(at);
        self.bytes.extend(bytes);
    }

    fn replayed(&mut self, n: i64) {
        assert_eq!(self.bytes.len() as i64, n.max(0));
    }

    fn number(&self) -> Number {
        (0, self.world.disk.borrow().names.get(&self.name).map_or(0, |file| *file as u64 + 1))
    }

    fn is_changed(&self) -> bool {
        self.world.disk.borrow().named(self.name).is_none_or(|file| file.is_changed)
    }

    fn given(&self, at: usize, most: usize) -> &[u8] {
        // In pieces.
        &self.bytes[at..(at + most.min(7)).min(self.bytes.len())]
    }
}

struct Write<'a> {
    world: &'a World,
    name: usize,
    at: usize,
    bytes: &'a [u8],
}

impl Writing for Write<'_> {
    fn make(&mut self) -> i64 {
        panic!("it does something else than before");
    }

    fn make_first(&mut self, _call: Call) -> (i64, Wrote) {
        self.world.disk.borrow_mut().keep(self.name);
        // Half of it may be there when the rank dies.
        for end in [self.bytes.len() / 2, self.bytes.len()] {
            self.world.does(|disk| {
                let file = disk.names[&self.name];
                let File { content, is_changed } = &mut disk.files[file];
                let room = content.len().max(self.at + end);
                content.resize(room, 0);
                content[self.at..self.at + end].copy_from_slice(&self.bytes[..end]);
                *is_changed = true;
                0
            });
        }
        (self.bytes.len() as i64, Wrote::Somewhere)
    }

    fn made_before(&mut self, n: i64, _end: Option<i64>) -> i64 {
        n
    }

    fn len(&self) -> i64 {
        self.bytes.len() as i64
    }

    fn number(&self) -> Number {
        (0, self.world.disk.borrow().names.get(&self.name).map_or(0, |file| *file as u64 + 1))
    }
}

struct Ask<F> {
    question: F,
    bytes: Vec<u8>,
}

impl<F: FnMut(&mut Vec<u8>) -> i64> Asking for Ask<F> {
    fn make(&mut self) -> i64 {
        (self.question)(&mut self.bytes)
    }

    fn replay(&mut self, bytes: &[u8]) {
        self.bytes = bytes.to_vec();
    }

    fn given(&self) -> &[u8] {
        &self.bytes
    }
}

/// A call with a name.
fn call(what: u8, name: usize) -> Call {
    let path = [b'a' + name as u8, 0];
    // SAFETY: the path is a C string, which outlives the call.
    unsafe { Call::new(what, path.as_ptr().cast()) }
}

impl World {
    fn change(
        &self,
        call: Call,
        before: &dyn Fn() -> Result<Identity, i64>,
        is_done: &dyn Fn(Identity) -> bool,
        keep: &[usize],
        make: impl Fn(&mut Disk) -> i64,
    ) -> i64 {
        let keep = |when| {
            if when == When::Before {
                keep.iter().for_each(|name| self.disk.borrow_mut().keep(*name));
            }
        };
        let change = Change { call, before, is_done, stand_ins: &|| (), keep: &keep };
        change.make(&|| self.does(&make))
    }

    fn rename(&self, old: usize, new: usize) -> i64 {
        let named = || self.disk.borrow().identity(old);
        self.change(call(RENAME, old), &named, &|it| named() != Ok(it), &[old, new], |disk| {
            let Some(file) = disk.names.remove(&old) else { return NONE };
            disk.files[file].is_changed = true;
            disk.names.insert(new, file);
            0
        })
    }

    fn unlink(&self, name: usize) -> i64 {
        let named = || self.disk.borrow().identity(name);
        self.change(call(UNLINK, name), &named, &|it| named() != Ok(it), &[name], |disk| {
            disk.names.remove(&name).map_or(NONE, |_| 0)
        })
    }

    /// Makes an empty file, unless there is one.
    fn make(&self, me: usize, name: usize) -> i64 {
        let nameless = || {
            let mut disk = self.disk.borrow_mut();
            if disk.names.contains_key(&name) {
                return Err(EXISTS);
            }
            disk.files.push(File { content: Vec::new(), is_changed: true });
            let file = disk.files.len() - 1;
            disk.nameless[me] = Some(file);
            Ok(Identity { ino: file as u64 + 1, born_ns: 0 })
        };
        let is_done = |it| self.disk.borrow().identity(name) == Ok(it);
        self.change(call(MAKE, name), &nameless, &is_done, &[], |disk| {
            if disk.names.contains_key(&name) {
                return EXISTS;
            }
            let file = disk.nameless[me].take().expect("it was made without a name");
            disk.names.insert(name, file);
            0
        })
    }

    fn cut(&self, name: usize, size: usize) -> i64 {
        let named = || self.disk.borrow().identity(name);
        self.change(call(CUT, name), &named, &|_| false, &[name], |disk| {
            let Some(file) = disk.names.get(&name).copied() else { return NONE };
            disk.files[file].content.resize(size, 0);
            disk.files[file].is_changed = true;
            0
        })
    }

    fn write(&self, name: usize, at: usize, bytes: &[u8]) -> i64 {
        write(Call::on_open(WRITE), &mut Write { world: self, name, at, bytes })
    }
}

// The program.

impl Program {
    fn saw(&mut self, value: i64, bytes: &[u8]) {
        for byte in value.to_le_bytes().iter().chain(bytes) {
            self.seen = (self.seen ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    fn text(&mut self) -> Vec<u8> {
        let len = 1 + self.draw.below(12);
        let byte = b'a' + (self.seen % 26) as u8;
        (0..len).map(|i| byte ^ i as u8).collect()
    }

    /// How long a file is, or that there is none.
    fn look(&mut self, world: &World, name: usize) -> i64 {
        let question = |_: &mut Vec<u8>| {
            world.step();
            let disk = world.disk.borrow();
            let Some(file) = disk.names.get(&name) else { return NONE };
            // As stat(2) does.
            freshness::looked((0, *file as u64 + 1));
            disk.files[*file].content.len() as i64
        };
        let size = ask(call(LOOK, name), &mut Ask { question, bytes: Vec::new() });
        self.saw(size, &[]);
        size
    }

    fn list(&mut self, world: &World) {
        let question = |names: &mut Vec<u8>| {
            world.step();
            // Those of a rank of its own come and go.
            let disk = world.disk.borrow();
            names.extend(disk.names.keys().filter(|name| **name < NAMES).map(|name| *name as u8));
            names.len() as i64
        };
        let mut asking = Ask { question, bytes: Vec::new() };
        let n = ask(Call::on_open(LIST), &mut asking);
        self.saw(n, &asking.bytes);
    }

    fn read(&mut self, world: &World, name: usize) -> Option<Vec<u8>> {
        if self.draw.one_in(2) && self.look(world, name) < 0 {
            return None;
        }
        let mut reading = Read { world, name, bytes: Vec::new() };
        let n = read(Call::on_open(READ), &mut reading);
        self.saw(n, &reading.bytes);
        (n >= 0).then_some(reading.bytes)
    }

    /// Clocks are observed in between; what they say is no part of what is compared.
    fn look_at_the_clock(&mut self, world: &World) {
        let now = world.now.get() + 1;
        world.now.set(now);
        // SAFETY: only this test uses the stream.
        let stream = unsafe { stream() };
        if stream.clock_again(1).is_none() {
            stream.write_clock(1, now);
        }
    }

    /// Something is done to a file that is this rank's now.
    fn change(&mut self, world: &World, name: usize) {
        let own = NAMES + self.me;
        let value = match self.draw.below(8) {
            0 | 1 => {
                if self.look(world, name) < 0 {
                    let made = world.make(self.me, name);
                    self.saw(made, &[]);
                }
                let at = self.draw.below(20);
                let text = self.text();
                world.write(name, at, &text)
            }
            2 => {
                let text = self.text();
                let made = world.make(self.me, own);
                self.saw(made, &[]);
                let wrote = world.write(own, 0, &text);
                self.saw(wrote, &[]);
                world.rename(own, name)
            }
            3 => world.unlink(name),
            4 => world.make(self.me, name),
            5 => world.cut(name, self.draw.below(12)),
            // It counts in its place.
            6 => match self.read(world, name) {
                Some(mut bytes) if !bytes.is_empty() => {
                    let at = self.draw.below(bytes.len());
                    bytes[at] = bytes[at].wrapping_add(1);
                    world.write(name, at, &bytes[at..=at])
                }
                _ => 0,
            },
            _ => i64::from(self.read(world, name).is_some()),
        };
        self.saw(value, &[]);
    }

    /// Between two exchanges: in turns files are changed, each by one rank, and read by all.
    fn phase(&mut self, world: &World, phase: usize, between: &mut dyn FnMut()) {
        for _ in 0..=self.draw.below(4) {
            if self.draw.one_in(3) {
                self.look_at_the_clock(world);
            }
            let turn = phase / 2;
            if phase % 2 == 0 {
                let name = RANKS * self.draw.below(NAMES / RANKS) + (self.me + turn) % RANKS;
                self.change(world, name);
            } else if self.draw.one_in(4) {
                self.list(world);
            } else {
                let name = self.draw.below(NAMES);
                self.read(world, name);
            }
            between();
        }
    }

    /// All have sent what they have seen.
    fn exchange(&mut self, seen: [u64; RANKS]) {
        seen.iter().for_each(|seen| self.saw(*seen as i64, &[]));
        self.draw = Draw::new(self.seen.wrapping_add(self.me as u64));
    }
}

// Ranks that die, and their routers.

thread_local! {
    /// What the router of the rank that is running has.
    static ROUTER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// What was recorded and not taken yet.
fn taken() -> Vec<u8> {
    let mut bytes = std::ptr::null();
    let mut from = 0;
    // SAFETY: only this test uses the stream; the bytes are copied at once.
    let bytes = unsafe {
        match eyrie_calls_take(&mut bytes, &mut from) {
            0 => Vec::new(),
            len => std::slice::from_raw_parts(bytes, len).to_vec(),
        }
    };
    let known = ROUTER.with_borrow(Vec::len);
    assert!(bytes.is_empty() || from as usize == known, "{from} is not behind {known}");
    bytes
}

/// The router has all that was recorded.
extern "C" fn give() {
    let bytes = taken();
    ROUTER.with_borrow_mut(|router| router.extend(bytes));
}

/// What another process has looked at is nothing to this one.
fn forget() {
    // SAFETY: as in a call that is being recorded.
    unsafe { store() };
}

struct Rank {
    program: Program,
    stream: ObservedStream,
    router: Vec<u8>,
    /// What is observed again.
    again: Vec<u8>,
    /// The phase at which it goes on from its image, and what that has.
    image: (usize, Program, ObservedStream),
}

struct Job {
    world: World,
    ranks: Vec<Rank>,
    /// What was exchanged.
    seen: Vec<[u64; RANKS]>,
    /// What happens to ranks; `None`: nothing does.
    chance: Option<Draw>,
    deaths: usize,
}

impl Job {
    fn new(seed: u64, rooms: &mut [Vec<u8>], chance: Option<Draw>) -> Job {
        let rank = |(me, room): (usize, &mut Vec<u8>)| {
            let draw = Draw::new(seed.wrapping_mul(RANKS as u64).wrapping_add(me as u64));
            let program = Program { me, draw, seen: seed };
            let mut stream = || ObservedStream::with_room(room.as_mut_ptr());
            let image = (0, program.clone(), stream());
            Rank { program, stream: stream(), router: Vec::new(), again: Vec::new(), image }
        };
        let ranks = rooms.iter_mut().enumerate().map(rank).collect();
        Job { world: World::new(), ranks, seen: Vec::new(), chance, deaths: 0 }
    }

    fn happens(&mut self, one_in: usize) -> bool {
        self.chance.as_mut().is_some_and(|chance| chance.one_in(one_in))
    }

    /// When the rank dies that is about to run.
    fn set_death(&mut self) {
        let dies = self.deaths < 4 && self.happens(3);
        let steps = self.chance.as_mut().filter(|_| dies).map(|chance| chance.below(60));
        self.world.dies_in.set(steps.map_or(u32::MAX, |steps| steps as u32));
    }

    /// This rank is the one that is running, or it is not any more.
    fn switch(&mut self, me: usize) {
        let rank = &mut self.ranks[me];
        // SAFETY: only this test uses the stream.
        std::mem::swap(unsafe { stream() }, &mut rank.stream);
        ROUTER.with_borrow_mut(|router| std::mem::swap(router, &mut rank.router));
    }

    /// The rank that is running goes back to its image.
    fn go_back(&mut self, me: usize) -> usize {
        let lost = taken();
        let some = self.happens(2);
        let arrived = self.chance.as_mut().filter(|_| some).map(|it| it.below(lost.len() + 1));
        ROUTER.with_borrow_mut(|router| router.extend(&lost[..arrived.unwrap_or(0)]));
        let rank = &mut self.ranks[me];
        let (phase, program, image) = &rank.image;
        rank.program = program.clone();
        rank.again = ROUTER.with_borrow(|router| router[image.passed as usize..].to_vec());
        // SAFETY: only this test uses the stream; the bytes stay until the rank goes back again.
        unsafe {
            *stream() = image.copy();
            eyrie_calls_again(rank.again.as_ptr(), rank.again.len());
        }
        forget();
        *phase
    }

    /// Runs a phase of a rank, which may die; what it does and sees is known before another sees
    /// it.
    fn run(&mut self, me: usize, phase: usize) {
        self.switch(me);
        forget();
        let mut from = phase;
        if self.deaths < 4 && self.happens(6) {
            self.deaths += 1;
            from = self.go_back(me);
        }
        loop {
            self.set_death();
            let mut chance = self.chance.as_mut().map(|it| Draw::new(it.below(1 << 30) as u64));
            let mut gives = || {
                if chance.as_mut().is_some_and(|chance| chance.one_in(4)) {
                    give();
                }
            };
            let world = &self.world;
            let seen = &self.seen;
            let program = &mut self.ranks[me].program;
            let ran = catch_unwind(AssertUnwindSafe(|| {
                for (at, seen) in (from..phase).zip(&seen[from..]) {
                    program.phase(world, at, &mut gives);
                    program.exchange(*seen);
                }
                program.phase(world, phase, &mut gives);
            }));
            if let Err(why) = ran {
                if !why.is::<Died>() {
                    resume_unwind(why);
                }
                self.deaths += 1;
                from = self.go_back(me);
                continue;
            }
            break;
        }
        give();
        // SAFETY: only this test uses the stream.
        assert!(unsafe { stream() }.is_new(), "it has not done all that it did before");
        self.switch(me);
    }

    /// Runs it to its end: what was exchanged, and what files have.
    fn all(mut self) -> (Vec<[u64; RANKS]>, BTreeMap<usize, Vec<u8>>, usize) {
        for phase in 0..2 * TURNS {
            (0..RANKS).for_each(|me| self.run(me, phase));
            let seen = std::array::from_fn(|me| self.ranks[me].program.seen);
            self.seen.push(seen);
            for me in 0..RANKS {
                self.ranks[me].program.exchange(seen);
                if self.happens(4) {
                    let rank = &mut self.ranks[me];
                    rank.image = (phase + 1, rank.program.clone(), rank.stream.copy());
                }
            }
        }
        let disk = self.world.disk.into_inner();
        let content = |(name, file): (&usize, &usize)| (*name, disk.files[*file].content.clone());
        (self.seen, disk.names.iter().map(content).collect(), self.deaths)
    }
}

#[test]
fn programs_of_ranks_that_die_are_as_if_none_had() {
    let more = std::env::var_os("EYRIE_TEST_MORE").is_some();
    let programs = if more { 100_000 } else { 2_000 };
    let seed = std::env::var("EYRIE_TEST_SEED").ok().and_then(|seed| seed.parse::<u64>().ok());
    let seed = seed.unwrap_or(1);
    println!("seeds from {seed}");
    store_by(give);
    let mut rooms: Vec<_> = (0..RANKS).map(|_| Vec::with_capacity(ROOM)).collect();
    let mut deaths = 0;
    for seed in seed..seed + programs {
        let undisturbed = Job::new(seed, &mut rooms, None).all();
        let disturbed = Job::new(seed, &mut rooms, Some(Draw::new(!seed))).all();
        assert!(undisturbed.0 == disturbed.0, "seed {seed}: ranks have seen something else");
        assert!(undisturbed.1 == disturbed.1, "seed {seed}: files have something else");
        deaths += disturbed.2;
    }
    println!("{programs} programs, {deaths} deaths");
    assert!(deaths > programs as usize);
}
