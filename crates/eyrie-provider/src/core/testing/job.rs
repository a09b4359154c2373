//! A job of test programs: its processes, their deaths and their images. A process that is in a
//! call is nowhere else, so other processes may make calls meanwhile.

use super::program::{Above, Memory, Observing, Program, Shape, TestRank, TestWorld};
use crate::core::path::Path;
use crate::core::rank::RankCore;
use crate::core::world::World as _;
use eyrie_wire::{Incarnation, Rank, RankInstance};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::rc::Rc;
use std::time::Duration;

/// How long an image waits for what it needs.
const SETTLE: Duration = Duration::from_millis(50);

/// The panic of a killed rank.
pub struct Killed;

/// A kill comes now.
pub fn die() -> ! {
    resume_unwind(Box::new(Killed))
}

/// Makes a path in the world of a process.
pub type MakePath<W> = Rc<dyn Fn(W) -> <W as TestWorld>::Path>;

/// What is around the processes of a job.
pub trait Scene: Sized {
    type World: TestWorld;

    /// The world of a process.
    fn world(&self, instance: RankInstance, observing: &Rc<RefCell<Observing>>) -> Self::World;

    /// The path of a rank that has sent and received nothing.
    fn path(&self, world: Self::World, rank: Rank) -> <Self::World as TestWorld>::Path;

    /// What an image holds of a path.
    fn image(path: &<Self::World as TestWorld>::Path) -> MakePath<Self::World>;

    /// The process of a rank has died; the next one is this instance.
    fn recover(&self, instance: RankInstance);

    /// Whether an image of the rank that is taken now may count.
    fn is_usable(&self, _rank: usize) -> bool {
        true
    }

    /// An image of the rank is stored. Whether it counts; then what it has is truncated.
    fn counts(&self, rank: usize, image: &Image<Self::World>) -> bool;

    /// Whether a rank that has come back connects before it is asked for anything.
    fn reconnects(&self) -> bool;
}

pub struct Process<W: TestWorld> {
    pub rank: TestRank<W>,
    pub program: Program,
}

/// Where the process of a rank is.
pub enum Slot<W: TestWorld> {
    Ready(Box<Process<W>>),
    InCall,
    Dead,
}

pub struct Image<W: TestWorld> {
    above: Above<W>,
    path: MakePath<W>,
    pub program: Program,
    memory: Rc<[u8]>,
    pub clock: u64,
    pub rsn: u64,
    pub observed: u64,
    pub usable: bool,
}

/// What a rank has computed: of the messages that it has received, and in its window.
pub type Computed = (u64, Vec<u8>);

/// What each rank has computed, and what was disturbed: kills and lost routers, in the lower and
/// the upper half of the number.
pub type Outcome = (Vec<Computed>, u64);

pub struct Job<S: Scene> {
    pub scene: S,
    pub shape: Shape,
    memories: Vec<Memory>,
    incarnations: RefCell<Vec<Incarnation>>,
    pub slots: Vec<RefCell<Slot<S::World>>>,
    /// Images of each rank: the first one counts, the others are not stored yet.
    pub images: Vec<RefCell<VecDeque<Image<S::World>>>>,
    /// The last message that each rank has seen in any of its incarnations.
    seen: Vec<Cell<u64>>,
    pub kills: Cell<u64>,
}

impl<S: Scene> Job<S> {
    /// A job whose processes begin with their first call.
    pub fn new(scene: S, shape: Shape) -> Job<S> {
        let ranks = 0..shape.ranks;
        Job {
            scene,
            shape,
            memories: ranks.clone().map(|_| Memory::new(&shape)).collect(),
            incarnations: RefCell::new(vec![Incarnation(1); shape.ranks as usize]),
            slots: ranks.clone().map(|_| RefCell::new(Slot::Dead)).collect(),
            images: ranks.clone().map(|_| RefCell::default()).collect(),
            seen: ranks.map(|_| Cell::new(0)).collect(),
            kills: Cell::new(0),
        }
    }

    /// Starts all processes.
    pub fn begin(&self) {
        for (r, slot) in self.slots.iter().enumerate() {
            slot.replace(Slot::Ready(Box::new(self.start(r))));
        }
    }

    pub fn incarnations(&self) -> Vec<Incarnation> {
        self.incarnations.borrow().clone()
    }

    pub fn instance(&self, r: usize) -> RankInstance {
        let incarnation = Incarnation(self.incarnations.borrow()[r].0);
        RankInstance { rank: Rank(r as u32), incarnation }
    }

    /// Looks at the process of a rank; `None` when it is in a call, or dead.
    pub fn with<T>(&self, r: usize, f: impl FnOnce(&mut Process<S::World>) -> T) -> Option<T> {
        match &mut *self.slots[r].borrow_mut() {
            Slot::Ready(process) => Some(f(process)),
            Slot::InCall | Slot::Dead => None,
        }
    }

    /// A rank from the start, or from the image that counts.
    fn start(&self, r: usize) -> Process<S::World> {
        match self.images[r].borrow().front() {
            None => {
                self.memories[r].restore(None);
                let program = Program::new(r as u32, self.shape);
                let world = self.scene.world(self.instance(r), &program.observing);
                let mut rank = RankCore::new(self.scene.path(world, Rank(r as u32)));
                program.begin(&mut rank, &self.memories[r]);
                Process { rank, program }
            }
            Some(image) => self.start_from(r, image),
        }
    }

    /// A process from an image.
    pub fn start_from(&self, r: usize, image: &Image<S::World>) -> Process<S::World> {
        self.memories[r].restore(Some(&image.memory));
        let program = image.program.copy();
        let world = self.scene.world(self.instance(r), &program.observing);
        Process { rank: (image.above)((image.path)(world)), program }
    }

    /// The memory of a rank is again what its counting image has.
    pub fn restore_memory(&self, r: usize) {
        let images = self.images[r].borrow();
        self.memories[r].restore(images.front().map(|image| &*image.memory));
    }

    /// A call of rank `r`, in which it may die. One that is dead is started again; one that is in a
    /// call does nothing.
    pub fn step(&self, r: usize) {
        match self.slots[r].replace(Slot::InCall) {
            // It is in a call.
            Slot::InCall => {}
            Slot::Ready(process) => {
                self.call(r, process, |p, memory| p.program.step(&mut p.rank, memory));
            }
            Slot::Dead => {
                // It must know what it observed before it observes anything: a restored rank
                // connects at once, and one without an image is given what it needs when it is
                // started.
                self.call(r, Box::new(self.start(r)), |p, _| {
                    p.rank.path.attach().unwrap();
                    if self.scene.reconnects() {
                        p.rank.path.reconnect().unwrap();
                    }
                });
            }
        }
    }

    fn call(
        &self,
        r: usize,
        mut process: Box<Process<S::World>>,
        call: impl FnOnce(&mut Process<S::World>, &Memory),
    ) {
        let outcome = self.survives(|| call(&mut process, &self.memories[r]));
        self.seen[r].set(self.seen[r].get().max(process.rank.path.rsn()));
        if outcome {
            self.slots[r].replace(Slot::Ready(process));
        } else {
            drop(process);
            self.die(r);
        }
    }

    /// Runs something of a process. False: it was killed.
    pub fn survives(&self, call: impl FnOnce()) -> bool {
        match catch_unwind(AssertUnwindSafe(call)) {
            Ok(()) => true,
            Err(e) if e.is::<Killed>() => false,
            Err(e) => resume_unwind(e),
        }
    }

    /// A call of a process that is in no slot. False: it was killed.
    pub fn step_apart(&self, r: usize, process: &mut Process<S::World>) -> bool {
        let survives = self.survives(|| {
            process.program.step(&mut process.rank, &self.memories[r]);
        });
        self.seen[r].set(self.seen[r].get().max(process.rank.path.rsn()));
        survives
    }

    /// The process of a rank is dead.
    pub fn die(&self, r: usize) {
        self.slots[r].replace(Slot::Dead);
        // An image that was not stored in time is gone.
        self.images[r].borrow_mut().truncate(1);
        self.next_incarnation(r);
    }

    /// The next process of a rank is another incarnation.
    pub fn next_incarnation(&self, r: usize) {
        self.kills.set(self.kills.get() + 1);
        self.incarnations.borrow_mut()[r].0 += 1;
        self.scene.recover(self.instance(r));
    }

    /// Takes an image of a process, if it is in no call.
    pub fn take_image(&self, r: usize) {
        match self.slots[r].replace(Slot::InCall) {
            Slot::Ready(process) => self.call(r, process, |Process { rank, program }, _| {
                if rank.path.settle(SETTLE).is_ok() {
                    let above = Rc::new(rank.image());
                    let image = self.image(r, above, program.copy(), &rank.path);
                    self.images[r].borrow_mut().push_back(image);
                }
            }),
            other => drop(self.slots[r].replace(other)),
        }
    }

    /// An image of a process now, with this above its path.
    pub fn image(
        &self,
        r: usize,
        above: Above<S::World>,
        program: Program,
        path: &<S::World as TestWorld>::Path,
    ) -> Image<S::World> {
        Image {
            above,
            path: S::image(path),
            program,
            memory: self.memories[r].copy(),
            clock: path.clock(),
            rsn: path.rsn(),
            observed: path.world().observed(),
            usable: self.scene.is_usable(r),
        }
    }

    /// The newest image is stored: it counts. False: there is none that does.
    pub fn count_image(&self, r: usize) -> bool {
        let Some(image) = self.images[r].borrow_mut().pop_back() else { return false };
        let counts = self.scene.counts(r, &image);
        if counts {
            let mut images = self.images[r].borrow_mut();
            images.clear();
            images.push_back(image);
        }
        counts
    }

    /// All is computed, and killed ranks have seen again what they had seen.
    pub fn is_done(&self) -> bool {
        let is_done = |p: &mut Process<S::World>, seen: &Cell<u64>| {
            p.program.is_done() && p.rank.path.rsn() >= seen.get()
        };
        let mut seen = self.seen.iter().enumerate();
        seen.all(|(r, seen)| self.with(r, |p| is_done(p, seen)) == Some(true))
    }

    /// What each rank has computed.
    pub fn computed(&self) -> Vec<Computed> {
        let of = |(r, memory): (usize, &Memory)| {
            let sum = self.with(r, |p| p.program.sum).expect("it is done");
            (sum, memory.window())
        };
        self.memories.iter().enumerate().map(of).collect()
    }
}
