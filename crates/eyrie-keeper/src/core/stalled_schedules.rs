//! Random schedules of ranks that do nothing while they wait: each sends all messages of a round,
//! and only then receives. So ranks wait for room that only others could give, which wait as well.
//! Memory is scarce, some messages are longer than all of it, ranks die. However that is, all ranks
//! must come to their end, and what is received must be what was sent. A failure names its seed.

use super::testing::{layout, mix, Image, Process, World, RANKS};
use eyrie_ledger::error::LedgerError;
use eyrie_ledger::region;
use eyrie_router::space::Bounds;
use eyrie_router::RouterEvent;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::time::Duration;

/// Time that passes when no rank can do anything. It may pass so often until one can.
const TICK: Duration = Duration::from_millis(100);
const MOST_TICKS: u32 = 400;

/// Many short messages, and some that are longer than the memory.
fn content(source: u32, to: u32, ssn: u64) -> Vec<u8> {
    let n = mix(mix(u64::from(source) + 7, u64::from(to)), ssn);
    let len = match n % 64 {
        0 => n >> 8 & 0x7_ffff,
        1..=8 => n >> 8 & 0x3fff,
        _ => n >> 8 & 127,
    };
    vec![n as u8; len as usize]
}

/// The ranks, and what each of them sends: a list of receivers for each round.
struct Talk {
    world: World,
    random: SmallRng,
    processes: Vec<Process>,
    rounds: Vec<Vec<Vec<u32>>>,
    now: Duration,
}

/// What a rank does next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Next {
    Send(u32),
    Receive,
    Nothing,
}

impl Talk {
    fn new(seed: u64) -> Talk {
        let mut random = SmallRng::seed_from_u64(seed);
        let disk = if seed % 2 == 0 { 1 << 40 } else { 0 };
        let memory = random.gen_range(1..6) << 17;
        let mut world = World::within(Bounds { memory, disk });
        let processes = (0..RANKS).map(|rank| start(&mut world, rank)).collect();
        let most = random.gen_range(1..400);
        let mut round = |_| -> Vec<u32> {
            (0..random.gen_range(0..most)).map(|_| random.gen_range(0..RANKS)).collect()
        };
        let rounds = (0..RANKS).map(|_| (0..4).map(&mut round).collect()).collect();
        Talk { world, random, processes, rounds, now: Duration::ZERO }
    }

    /// A rank that sends in a round has received all of the rounds before.
    fn next(&self, rank: u32) -> Next {
        let state = &self.processes[rank as usize].state;
        let sent = state.sent.iter().sum::<u64>() as usize;
        let mut before = 0;
        let mut now = None;
        for (round, to) in self.rounds[rank as usize].iter().enumerate() {
            if now.is_none() && sent < before + to.len() {
                now = Some((round, to[sent - before]));
            }
            before += to.len();
        }
        let rounds = now.map_or(usize::MAX, |(round, _)| round);
        let has_all = (0..RANKS).all(|source| {
            let of = self.rounds[source as usize].iter().take(rounds).flatten();
            state.received[source as usize] >= of.filter(|to| **to == rank).count() as u64
        });
        match now {
            _ if !has_all => Next::Receive,
            Some((_, to)) => Next::Send(to),
            None => Next::Nothing,
        }
    }

    /// True: the rank has done something.
    fn step(&mut self, rank: u32) -> bool {
        let next = self.next(rank);
        let process = &mut self.processes[rank as usize];
        let conn = process.conn;
        let done = match next {
            Next::Send(to) => process.send(rank, to).map(|_| true),
            Next::Receive => {
                let sources: Vec<_> = (0..RANKS).flat_map(|source| [source; 16]).collect();
                let before = process.state.rsn();
                process.progress(rank, &sources).map(|()| process.state.rsn() > before)
            }
            Next::Nothing => Ok(false),
        };
        match done {
            Ok(done) => done,
            Err(LedgerError::Full { .. }) => {
                self.world.want_room(rank, conn);
                false
            }
            Err(e) => panic!("{e}"),
        }
    }

    /// What each rank does, and what it uses, is granted and wants.
    fn described(&self) -> Vec<(Next, [u64; 3])> {
        let of = |rank: u32| {
            let heap = &self.world.heaps[rank as usize];
            let layout = layout(rank);
            let bytes = [region::used, region::granted, region::wanted].map(|of| of(heap, &layout));
            (self.next(rank), bytes)
        };
        (0..RANKS).map(of).collect()
    }

    fn tick(&mut self) {
        self.now += TICK;
        self.world.core.tick(self.now, &mut self.world.asked);
        self.world.relieve();
        let is_fatal = |event: &RouterEvent| matches!(event, RouterEvent::Fatal { .. });
        assert_eq!(self.world.events().into_iter().find(is_fatal), None);
    }

    fn die(&mut self, rank: u32) {
        self.processes[rank as usize].state = Image::default();
        self.world.fence(rank);
        self.world.recover(rank);
        let mut process = start(&mut self.world, rank);
        let sent = process.newest();
        process.replay(rank, &sent);
        self.processes[rank as usize] = process;
    }

    fn run(&mut self, deaths: bool) {
        let mut ticks = 0;
        while (0..RANKS).any(|rank| self.next(rank) != Next::Nothing) {
            let first = self.random.gen_range(0..RANKS);
            let done = (first..first + RANKS).any(|rank| self.step(rank % RANKS));
            if done {
                ticks = 0;
            } else {
                ticks += 1;
                assert!(ticks < MOST_TICKS, "no rank goes on: {:?}", self.described());
                self.tick();
            }
            if deaths && self.random.gen_range(0..400) == 0 {
                self.die(first);
            }
        }
    }
}

fn start(world: &mut World, rank: u32) -> Process {
    let mut process = world.start(rank, &Image::default());
    process.content = content;
    world.replayed(rank, process.conn);
    process
}

#[test]
fn ranks_that_send_before_they_receive_come_to_their_end_however_little_memory_there_is() {
    let more = std::env::var_os("EYRIE_TEST_MORE").is_some();
    let first = std::env::var("EYRIE_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
    let seeds = match first {
        Some(seed) => seed..seed + 1,
        None => 0..if more { 1000 } else { 40 },
    };
    let mut beyond = 0;
    for seed in seeds {
        let done = std::panic::catch_unwind(|| {
            let mut talk = Talk::new(seed);
            // Without a disk what a rank has received is lost in the end.
            talk.run(seed % 4 == 0);
            let granted = |rank| region::granted(&talk.world.heaps[rank as usize], &layout(rank));
            let granted = (0..RANKS).map(granted).sum::<u64>();
            granted.saturating_sub(talk.world.log.memory)
        });
        assert!(done.is_ok(), "EYRIE_TEST_SEED={seed}");
        beyond += done.unwrap_or(0);
    }
    assert!(beyond > 0 || first.is_some(), "no rank has ever waited in vain");
}
