//! Ranks and their ledgers in memory that outlives them: programs that send, receive, read, write
//! and count in each other's memory, observe and do what others see. They are killed at any look
//! and at any store, several at once, and come back from images of all ages, also from images that
//! were taken while they waited for room. What they compute must be what an undisturbed run
//! computes, and what they send again must be what they sent.

mod keeper;
mod rules;
mod window;
mod world;

use self::world::World;
use crate::core::path::Path;
use crate::core::testing::job::{Job, Outcome};
use crate::core::testing::program::Shape;
use crate::core::testing::schedules;
use eyrie_ledger::layout::PAGE;
use eyrie_wire::Incarnation;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::rc::Rc;

/// Random runs; EYRIE_SCHEDULES asks for another number.
const SCHEDULES: u64 = 300;
/// Bytes of a region, and of one in a long run.
const REGION: u64 = 512 << 10;
const LONG_REGION: u64 = 4 << 20;

/// Messages that lie in a line, that do not, that are large; some runs have many large ones.
fn content_len(seed: u64, word: u64) -> usize {
    match word >> 16 & 31 {
        0..6 if seed % 8 == 0 => 2_900 + (word >> 21 & 0x3fff) as usize,
        0 => 12_000,
        1 => 4_200,
        2 => 2_500,
        n => n as usize * 5 - 15,
    }
}

/// Some runs are so long that orders and observations have several extents.
fn is_long(seed: u64) -> bool {
    seed % 32 == 5
}

fn shape(seed: u64) -> Shape {
    let ranks = [2, 3, 5][(seed % 3) as usize];
    let total = match ranks {
        _ if is_long(seed) => 2400 / u64::from(ranks),
        5 => 24,
        _ => 40,
    };
    Shape { seed, ranks, total, longest: 24 << 10, len: content_len, observation: 5, effects: true }
}

/// The ledgers around the ranks of a job.
struct Ledgers(world::Shared);

type LedgersJob = Job<Ledgers>;

impl LedgersJob {
    fn of(seed: u64, calm: bool) -> Rc<LedgersJob> {
        let shape = shape(seed);
        let mut random = SmallRng::seed_from_u64(seed);
        let mut granted = || if calm { 64 * PAGE } else { random.gen_range(0..12) * PAGE };
        let granted = (0..shape.ranks).map(|_| granted()).collect();
        let bytes = if is_long(seed) { LONG_REGION } else { REGION };
        // Some ranks get no more room than they must.
        let world = Rc::new(World::new(random, calm, bytes, (granted, seed % 4 == 0)));
        let job = Rc::new(Job::new(Ledgers(world), shape));
        assert!(job.world().job.set(Rc::downgrade(&job)).is_ok());
        job.begin();
        job
    }

    fn world(&self) -> &World {
        &self.scene.0
    }

    /// A rank dies so many looks and stores later; or many do.
    fn disturb(&self) {
        let ranks = self.world().ranks();
        let what = self.world().random.borrow_mut().gen_range(0..100);
        let r = self.world().random.borrow_mut().gen_range(0..ranks);
        let dies = |r: usize| {
            let looks = self.world().number(14);
            self.world().lives[r].dies_in.set(Some(looks));
        };
        match what {
            0..=6 => self.take_image(r),
            7..=9 => drop(self.count_image(r)),
            10..=13 => dies(r),
            14 => (0..ranks).filter(|_| self.world().chance(0.6)).for_each(dies),
            _ => {}
        }
    }

    /// The keeper hears at last of every rank that was started again that it re-executes no more.
    fn all_are_recovered(&self) {
        let all = || (0..self.world().ranks()).map(|r| self.instance(r));
        for _ in 0..1000 {
            let replayed = |instance| self.world().replayed.borrow().contains(&instance);
            if all().filter(|i| i.incarnation > Incarnation(1)).all(replayed) {
                return;
            }
            (0..self.world().ranks()).for_each(|r| self.step(r));
        }
        panic!("not recovered: {:?}", all().collect::<Vec<_>>());
    }

    /// Runs to the end.
    fn run(&self) -> Outcome {
        let world = self.world();
        // At some time the last rank has died.
        let most = 10 * self.shape.total;
        let disturbed = if world.calm { 0 } else { world.random.borrow_mut().gen_range(20..most) };
        let mut calls = 0;
        while !self.is_done() {
            calls += 1;
            assert!(calls < 50_000, "it does not come to an end");
            match calls {
                calls if calls < disturbed => self.disturb(),
                calls if calls == disturbed => world.lives.iter().for_each(|l| l.dies_in.set(None)),
                _ => {}
            }
            let r = world.random.borrow_mut().gen_range(0..world.ranks());
            self.step(r);
        }
        world.lives.iter().for_each(|life| life.dies_in.set(None));
        for r in 0..world.ranks() {
            self.with(r, |p| p.rank.path.flush().unwrap());
        }
        self.all_are_recovered();
        // One that has come back since has followed what was recorded. What it did to its own
        // memory behind that was not.
        for _ in 0..1000 {
            if self.is_done() {
                break;
            }
            (0..world.ranks()).for_each(|r| self.step(r));
        }
        (self.computed(), self.kills.get())
    }
}

/// One schedule with kills and one without; returns how many kills there were.
fn compare(seed: u64) -> u64 {
    schedules::compare(seed, |calm| LedgersJob::of(seed, calm).run())
}

#[test]
fn killed_ranks_compute_what_undisturbed_ones_do() {
    if let Some(kills) = schedules::run(SCHEDULES, compare) {
        assert!(kills > 2 * SCHEDULES, "{kills} kills");
    }
}
