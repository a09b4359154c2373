//! The world of a test's ranks: memory that outlives them, their keeper, time; and all that may
//! happen to them in the middle of a call.

use super::keeper::Keeper;
use super::window::{Hint, Window};
use super::{Ledgers, LedgersJob};
use crate::core::asking::Asked;
use crate::core::ledger_path::host::{AdmissionError, LedgerHost, Windows, WindowsOf};
use crate::core::ledger_path::LedgerPath;
use crate::core::path::{ImagePoint, Path};
use crate::core::testing::job::{die, Scene, Slot};
use crate::core::testing::program::{Copied, Noted, Observing, TestWorld};
use eyrie_ledger::heap::{Heap, HeapHints};
use eyrie_ledger::memory::Hints;
use eyrie_wire::keeper::{Ledgers as Shape, ToKeeper};
use eyrie_wire::RankInstance;
use rand::rngs::SmallRng;
use rand::Rng;
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::{Rc, Weak};
use std::time::Duration;

/// The signal that ranks get.
const SIGNAL: i32 = 10;

/// No test lasts so long.
const FOR_EVER: Duration = Duration::from_secs(3600);

/// What one rank is in for.
#[derive(Default)]
pub struct Life {
    /// Looks and stores that it still does before it dies.
    pub dies_in: Cell<Option<u64>>,
    /// What an image in the call under way would hold above the path.
    copied: RefCell<Option<Copied<TestHost>>>,
    /// It goes on after an image from which another process of it will go on, too.
    is_apart: Cell<bool>,
}

pub struct World {
    pub random: RefCell<SmallRng>,
    /// Nothing is disturbed.
    pub calm: bool,
    pub keeper: RefCell<Keeper>,
    pub region_bytes: u64,
    pub hints: Rc<HeapHints>,
    pub lives: Vec<Life>,
    pub job: OnceCell<Weak<LedgersJob>>,
    now: Cell<Duration>,
    ticks: Cell<u64>,
    /// Ticks that pass between two looks at them, at most.
    pub tick: Cell<u64>,
    /// Looks and stores until another rank makes a call.
    until_others: Cell<u64>,
    noted: RefCell<BTreeMap<(Noted, u64), u64>>,
    /// Those of whom the keeper knows that they re-execute no more.
    pub replayed: RefCell<BTreeSet<RankInstance>>,
    /// Done once, when this rank has looked at this hint.
    pub on_look: RefCell<Option<OnLook>>,
    /// Sleeps that no ring ended before they began.
    pub slept: Cell<u32>,
    /// Whether the keeper knows of the ranks: it gives room to no others.
    pub connected: Cell<bool>,
}

/// A rank, a hint, and what happens when it has looked there.
pub type OnLook = (usize, u64, Box<dyn FnOnce()>);

pub type Shared = Rc<World>;

impl World {
    /// `granted`: bytes that each rank gets at first. `strict`: it gets more only when no other
    /// rank can give it room.
    pub fn new(
        random: SmallRng,
        calm: bool,
        region_bytes: u64,
        (granted, strict): (Vec<u64>, bool),
    ) -> World {
        let ranks = granted.len();
        let bytes = eyrie_ledger::bells::Bells::<Hint>::bytes(ranks as u32);
        World {
            random: RefCell::new(random),
            calm,
            keeper: RefCell::new(Keeper::new(region_bytes, granted, strict)),
            region_bytes,
            hints: Rc::new(HeapHints::new(bytes)),
            lives: (0..ranks).map(|_| Life::default()).collect(),
            job: OnceCell::new(),
            now: Cell::default(),
            ticks: Cell::default(),
            tick: Cell::new(200_000),
            until_others: Cell::new(0),
            noted: RefCell::default(),
            replayed: RefCell::default(),
            on_look: RefCell::default(),
            slept: Cell::default(),
            connected: Cell::new(true),
        }
    }

    pub fn ranks(&self) -> usize {
        self.lives.len()
    }

    pub fn chance(&self, of: f64) -> bool {
        !self.calm && self.random.borrow_mut().gen_bool(of)
    }

    /// A number of so many bits at most, small ones as often as large ones.
    pub fn number(&self, bits: u32) -> u64 {
        let random = &mut *self.random.borrow_mut();
        random.gen::<u64>() >> (64 - random.gen_range(1..=bits))
    }

    fn job(&self) -> Option<Rc<LedgersJob>> {
        self.job.get().and_then(Weak::upgrade)
    }

    /// A rank looks at its ledgers, or stores something there.
    pub fn happens(&self, rank: usize) {
        match self.lives[rank].dies_in.get() {
            None => {}
            Some(0) => {
                self.lives[rank].dies_in.set(None);
                die();
            }
            Some(n) => self.lives[rank].dies_in.set(Some(n - 1)),
        }
        if self.calm {
            return;
        }
        match self.until_others.get() {
            0 => {
                self.until_others.set(self.number(11));
                self.others();
            }
            n => self.until_others.set(n - 1),
        }
    }

    /// A rank has looked at a hint.
    pub fn after_look(&self, rank: usize, at: u64) {
        let is_awaited = |(who, what, _): &OnLook| (*who, *what) == (rank, at);
        let act = self.on_look.borrow_mut().take_if(|on| is_awaited(on));
        if let Some((_, _, act)) = act {
            act();
        }
    }

    /// Some rank makes a call, if it is in none; or something is done to it.
    fn others(&self) {
        let Some(job) = self.job() else { return };
        let r = self.random.borrow_mut().gen_range(0..self.ranks());
        let what = self.random.borrow_mut().gen_range(0..20);
        match what {
            0 if !self.calm => job.take_image(r),
            1 if !self.calm && !self.lives[r].is_apart.get() => drop(job.count_image(r)),
            _ => job.step(r),
        }
    }

    fn pass(&self, time: Duration) {
        self.now.set(self.now.get() + time);
    }
}

/// A rank's process.
pub struct TestHost {
    pub world: Shared,
    pub instance: RankInstance,
    pub observing: Rc<RefCell<Observing>>,
}

impl TestHost {
    fn rank(&self) -> usize {
        self.instance.rank.index()
    }
}

impl LedgerHost for TestHost {
    type Own = Window;
    type Region = Window;
    type Bells = Hint;
    type Spilled = Vec<u8>;

    fn admit(&mut self, _: Duration) -> Result<WindowsOf<Self>, AdmissionError> {
        let world = &self.world;
        let rank = self.rank();
        world.happens(rank);
        if world.chance(0.1) {
            return Err(AdmissionError::Unreachable("it is not there".into()));
        }
        let keeper = world.keeper.borrow();
        keeper.admit(self.instance);
        let window = |heap: &Rc<Heap>| Window { heap: heap.clone(), world: world.clone(), rank };
        let ranks = world.ranks() as u32;
        Ok(Windows {
            ledgers: Shape { ranks, region_bytes: world.region_bytes },
            own: window(&keeper.heaps[rank]),
            regions: keeper.heaps.iter().map(window).collect(),
            bells: Hint { hints: world.hints.clone(), world: world.clone(), rank },
            spilled: None,
        })
    }

    fn tell(&mut self, message: &ToKeeper) {
        match message {
            ToKeeper::Replayed { .. } => {
                self.world.replayed.borrow_mut().insert(self.instance);
            }
            ToKeeper::RoomWanted => {}
            ToKeeper::ContentDiffers { reason } | ToKeeper::Diverged { reason } => {
                panic!("rank {} did not repeat itself: {reason}", self.instance.rank);
            }
        }
    }

    fn is_connected(&mut self) -> bool {
        self.world.connected.get() && !self.world.chance(0.05)
    }

    fn connect_again(&mut self, _: Duration) -> Result<(), AdmissionError> {
        self.world.happens(self.rank());
        if self.world.chance(0.5) {
            return Err(AdmissionError::Unreachable("it is not there".into()));
        }
        self.world.connected.set(true);
        Ok(())
    }

    fn forget_windows(&mut self) {}

    fn keeper_descriptor(&self) -> Option<i32> {
        None
    }

    fn wake(&self, _: u64) {}

    fn sleep(&mut self, at: u64, value: u32) {
        self.world.happens(self.rank());
        if self.world.hints.load(at) == value {
            self.world.slept.set(self.world.slept.get() + 1);
            self.world.pass(Duration::from_millis(1));
            self.world.others();
        }
    }

    fn let_pass(&mut self, time: Duration) {
        self.world.happens(self.rank());
        self.world.pass(time);
        assert!(self.world.now.get() < FOR_EVER, "rank {} waits for ever", self.rank());
        let at_once = self.world.calm || self.world.chance(0.02);
        if self.world.connected.get() {
            let job = self.world.job();
            let is_free = |r: usize| {
                let slot = job.as_ref().map(|job| job.slots[r].borrow());
                slot.is_some_and(|slot| !matches!(*slot, Slot::InCall))
            };
            self.world.keeper.borrow_mut().give_room(self.rank(), at_once, is_free);
        }
        self.world.others();
    }
}

impl ImagePoint for TestHost {
    fn image_point(path: &mut impl Path<World = TestHost>) {
        let path = std::ptr::from_mut(path).cast::<LedgerPath<TestHost>>();
        // SAFETY: no other type of path has this world; the reference to it is not used meanwhile.
        image_in_wait(unsafe { &mut *path });
    }
}

/// An image may be taken in a wait, and another process may go on from it there, after the first
/// one has died, at once or much later.
fn image_in_wait(path: &mut LedgerPath<TestHost>) {
    let world = path.host.world.clone();
    let r = path.host.rank();
    let Some(job) = world.job() else { return };
    if world.lives[r].is_apart.get() || !world.chance(0.2) || path.settle(Duration::ZERO).is_err() {
        return;
    }
    let image = {
        let copied = world.lives[r].copied.borrow();
        let Copied { rank, program } = copied.as_ref().expect("it is in a call");
        let program = program.with(&path.host.observing);
        job.image(r, rank.clone(), program, path)
    };
    job.images[r].borrow_mut().push_back(image);
    if world.chance(0.5) || !job.count_image(r) || world.chance(0.4) {
        return;
    }
    if world.chance(0.8) {
        go_on_apart(&world, &job, r);
    }
    job.next_incarnation(r);
    job.restore_memory(r);
    path.host.instance = job.instance(r);
    path.forget_connections();
    if world.chance(0.5) {
        path.reconnect().unwrap();
    }
}

/// What the process does after its image, until it dies.
fn go_on_apart(world: &World, job: &LedgersJob, r: usize) {
    let life = &world.lives[r];
    let mut process = {
        let images = job.images[r].borrow();
        job.start_from(r, &images[0])
    };
    life.is_apart.set(true);
    life.dies_in.set(Some(world.number(15)));
    let steps = world.number(5);
    let attached = job.survives(|| process.rank.path.attach().unwrap());
    let mut steps = attached.then_some(0..steps).into_iter().flatten();
    while steps.next().is_some() && job.step_apart(r, &mut process) {}
    life.is_apart.set(false);
    life.dies_in.set(None);
}

impl TestWorld for TestHost {
    type Path = LedgerPath<TestHost>;

    fn random_byte(&self) -> u8 {
        self.world.random.borrow_mut().gen()
    }

    fn begin_call(&self, copy: &dyn Fn() -> Copied<TestHost>) {
        let life = &self.world.lives[self.rank()];
        // Where one goes on apart its image was taken before.
        if !self.world.calm && !life.is_apart.get() {
            life.copied.replace(Some(copy()));
        }
    }

    fn note(&self, what: Noted, number: u64, state: u64) {
        let first = *self.world.noted.borrow_mut().entry((what, number)).or_insert(state);
        assert_eq!(first, state, "{what:?} {number} of a run that was lost");
    }
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
        let comes = self.world.chance(0.02);
        self.observing.borrow_mut().signal(clock, is_new, comes).then_some(SIGNAL)
    }

    fn before_new(&mut self) {}

    fn now(&self) -> Duration {
        self.world.pass(Duration::from_micros(1));
        self.world.now.get()
    }

    fn ticks(&self) -> u64 {
        let passed = self.world.random.borrow_mut().gen_range(1..=self.world.tick.get());
        self.world.ticks.set(self.world.ticks.get() + passed);
        self.world.ticks.get()
    }

    /// All that passes, or next to nothing of it.
    fn processor_time_ns(&self) -> u64 {
        let part = if self.world.random.borrow_mut().gen_bool(0.5) { 1 } else { 100 };
        self.world.ticks.get() / part
    }

    fn asked(&mut self, _: Asked) {}

    fn trace(&mut self, _: eyrie_wire::page::What, _: u64, _: u32, _: u64) {}
}

impl Scene for Ledgers {
    type World = TestHost;

    fn world(&self, instance: RankInstance, observing: &Rc<RefCell<Observing>>) -> TestHost {
        TestHost { world: self.0.clone(), instance, observing: observing.clone() }
    }

    fn path(&self, host: TestHost, rank: eyrie_wire::Rank) -> LedgerPath<TestHost> {
        let ranks = self.0.ranks() as u32;
        LedgerPath::new(host, rank, ranks)
    }

    fn image(path: &LedgerPath<TestHost>) -> crate::core::testing::job::MakePath<TestHost> {
        Rc::new(path.image())
    }

    fn recover(&self, instance: RankInstance) {
        self.0.lives[instance.rank.index()].dies_in.set(None);
    }

    fn counts(&self, r: usize, image: &crate::core::testing::job::Image<TestHost>) -> bool {
        let mut keeper = self.0.keeper.borrow_mut();
        keeper.truncate(r, image.clock, image.rsn, image.observed);
        true
    }

    fn reconnects(&self) -> bool {
        self.0.chance(0.5)
    }
}
