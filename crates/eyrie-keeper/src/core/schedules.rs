//! Random schedules: ranks send, receive, observe and die at any store, images count at any time,
//! memory is scarce, and all is saved and read back. There are images, or a disk that messages are
//! taken out to, or both. Each message must come as it was sent, to each incarnation again from its
//! image on. A failure names its seed.

use super::testing::{heaps, layout, Asked, Image, Process, World, RANKS, REGION};
use super::{Core, Head};
use eyrie_ledger::error::LedgerError;
use eyrie_ledger::layout::PAGE;
use eyrie_ledger::region;
use eyrie_router::space::Bounds;
use eyrie_router::RouterEvent;
use eyrie_wire::Rank;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::time::Duration;

/// Steps of a schedule.
const STEPS: u32 = 400;

/// A job, and the images of its ranks: the ones that count, and those that will.
struct Job {
    world: World,
    random: SmallRng,
    processes: Vec<Process>,
    counted: Vec<Image>,
    stored: Vec<Vec<Image>>,
    now: Duration,
    /// What gives room.
    images: bool,
    disk: bool,
    /// Most bytes that were on disk.
    most_spilled: u64,
}

impl Job {
    fn new(seed: u64) -> Job {
        let mut random = SmallRng::seed_from_u64(seed);
        let (images, disk) = [(true, false), (false, true), (true, true)][(seed % 3) as usize];
        let memory = random.gen_range(1..if disk { 5 } else { 12 }) << 19;
        let mut world = World::within(Bounds { memory, disk: if disk { 1 << 40 } else { 0 } });
        let image = Image {
            received: vec![0; RANKS as usize],
            sent: vec![0; RANKS as usize],
            ..Image::default()
        };
        let processes: Vec<_> = (0..RANKS).map(|rank| world.start(rank, &image)).collect();
        if disk {
            (0..RANKS).for_each(|rank| world.replayed(rank, processes[rank as usize].conn));
        }
        let counted = vec![image; RANKS as usize];
        let stored = vec![Vec::new(); RANKS as usize];
        let now = Duration::ZERO;
        let most_spilled = 0;
        Job { world, random, processes, counted, stored, now, images, disk, most_spilled }
    }

    fn rank(&mut self) -> u32 {
        self.random.gen_range(0..RANKS)
    }

    fn step(&mut self) {
        let rank = self.rank();
        match self.random.gen_range(0..100) {
            0..=39 => {
                let to = self.rank();
                let times = self.random.gen_range(1..20);
                for _ in 0..times {
                    self.retried(rank, |process| process.send(rank, to).map(drop));
                }
            }
            40..=69 => {
                let sources: Vec<_> =
                    (0..self.random.gen_range(0..20)).map(|_| self.rank()).collect();
                self.retried(rank, |process| process.progress(rank, &sources));
            }
            70..=77 if self.images || self.may_observe(rank) => {
                self.retried(rank, |process| process.observe(rank))
            }
            78..=85 if self.images => {
                let image = self.processes[rank as usize].state.clone();
                self.stored[rank as usize].push(image);
            }
            86..=91 if self.images => self.count_one(rank),
            92..=94 => self.die(rank),
            95..=97 => {
                let stores = self.random.gen_range(0..400);
                let to = self.rank();
                self.world.heaps[rank as usize].stop_after(stores);
                let process = &mut self.processes[rank as usize];
                // What it does from then on is never seen.
                while !self.world.heaps[rank as usize].stopped() {
                    if process.send(rank, to).is_err() {
                        break;
                    }
                }
                self.world.heaps[rank as usize].stop_after(u64::MAX);
                self.die(rank);
            }
            98 => self.save_and_go_on(),
            _ => self.tick(),
        }
    }

    /// Without images a rank that observes more than there is room for is not protected in the end.
    fn may_observe(&self, rank: u32) -> bool {
        self.processes[rank as usize].state.observed < self.world.log.memory / 16
    }

    fn tick(&mut self) {
        self.now += Duration::from_millis(700);
        self.world.core.tick(self.now, &mut self.world.asked);
        self.world.relieve();
        let on_disk = self.world.core.stats().disk_bytes;
        self.most_spilled = self.most_spilled.max(on_disk);
    }

    /// Does something for which there may be no room: then the rank says so, and images count until
    /// there is.
    fn retried(&mut self, rank: u32, act: impl Fn(&mut Process) -> Result<(), LedgerError>) {
        for round in 0..20 * RANKS {
            match act(&mut self.processes[rank as usize]) {
                Ok(()) => return,
                Err(LedgerError::Full { .. }) => {}
                Err(e) => panic!("{e}"),
            }
            self.world.events();
            let conn = self.processes[rank as usize].conn;
            self.world.want_room(rank, conn);
            self.tick();
            let asked = self.world.events().into_iter().find_map(|event| match event {
                RouterEvent::LogScarce { rank } => Some(rank),
                _ => None,
            });
            let receiver = asked.map_or(round % RANKS, |Rank(rank)| rank);
            // It takes what is there, and is captured.
            let sources: Vec<_> = (0..RANKS).flat_map(|source| [source; 64]).collect();
            let process = &mut self.processes[receiver as usize];
            let mut before = u64::MAX;
            while before != process.state.rsn() {
                before = process.state.rsn();
                // Its own ledger may be full, too.
                let _ = process.progress(receiver, &sources);
            }
            if self.images {
                let image = process.state.clone();
                self.stored[receiver as usize].push(image);
                self.count_one(receiver);
            }
        }
        panic!("no room in {} bytes", self.world.log.memory);
    }

    /// The newest image that is stored counts, or an older one, which then changes nothing later.
    fn count_one(&mut self, rank: u32) {
        let Some(image) = self.stored[rank as usize].pop() else { return };
        self.world.truncate(rank, &image);
        if image.clock >= self.counted[rank as usize].clock {
            self.counted[rank as usize] = image;
        }
        if self.random.gen() {
            self.stored[rank as usize].clear();
        }
    }

    /// A rank dies, and is executed again from its image.
    fn die(&mut self, rank: u32) {
        self.processes[rank as usize].state = Image::default();
        let fenced = self.world.fence(rank);
        assert!(matches!(fenced, RouterEvent::Fenced { .. }), "{fenced:?}");
        self.world.recover(rank);
        self.restart(rank);
    }

    fn restart(&mut self, rank: u32) {
        let image = self.counted[rank as usize].clone();
        let mut process = self.world.start(rank, &image);
        let sent = process.newest();
        process.replay(rank, &sent);
        if self.disk {
            self.world.replayed(rank, process.conn);
        }
        self.processes[rank as usize] = process;
        // Images of what will not be so again are of no use.
        self.stored[rank as usize].clear();
    }

    /// The job is saved and ends; another keeper goes on.
    fn save_and_go_on(&mut self) {
        let mut saved = Vec::new();
        self.world.core.save(&self.world.asked, &mut saved).unwrap();
        let mut from = &saved[..];
        Head::read(&mut from).unwrap();
        let heaps = heaps();
        let log = self.world.log;
        let world = &mut self.world;
        let mut asked = Asked::default();
        let numbers = &world.incarnations;
        let restored =
            Core::restored(heaps.clone(), REGION, log, numbers, &mut from, &mut asked).unwrap();
        world.replace(restored, asked, heaps);
        for rank in 0..RANKS {
            self.world.fence(rank);
            self.world.recover(rank);
        }
        (0..RANKS).for_each(|rank| self.restart(rank));
    }
}

/// Runs a schedule; returns the most bytes that were on disk.
fn run(seed: u64) -> u64 {
    let mut job = Job::new(seed);
    for _ in 0..STEPS {
        job.step();
        let events = job.world.events();
        let bad = |event: &&RouterEvent| {
            matches!(event, RouterEvent::Fatal { .. } | RouterEvent::Unprotected { .. })
        };
        assert_eq!(events.iter().find(bad), None);
        let granted = |rank: u32| region::granted(&job.world.heaps[rank as usize], &layout(rank));
        // Each has one extent for each channel at least.
        let least = u64::from(RANKS * (RANKS + 2)) * PAGE;
        assert!(
            (0..RANKS).map(granted).sum::<u64>()
                <= job.world.log.memory.max(least) + job.world.core.room.beyond
        );
    }
    job.most_spilled
}

#[test]
fn each_message_comes_as_it_was_sent_in_every_schedule() {
    let more = std::env::var_os("EYRIE_TEST_MORE").is_some();
    let first = std::env::var("EYRIE_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
    let seeds = match first {
        Some(seed) => seed..seed + 1,
        None => 0..if more { 3000 } else { 40 },
    };
    let mut spilled = 0;
    for seed in seeds {
        let done = std::panic::catch_unwind(|| run(seed));
        assert!(done.is_ok(), "EYRIE_TEST_SEED={seed}");
        spilled += done.unwrap_or(0);
    }
    assert!(spilled > 0 || first.is_some(), "nothing was taken out");
}
