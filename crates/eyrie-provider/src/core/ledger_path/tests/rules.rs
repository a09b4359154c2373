//! Single rules, and the proof that the tests of this path find each error of `mutation.rs`.

use super::world::{Shared, TestHost, World};
use super::{compare, REGION};
use crate::core::ledger_path::LedgerPath;
use crate::core::matching::Posted;
use crate::core::mutation::{self, Mutation};
use crate::core::path::Path;
use crate::core::rank::{Event, RankCore, Unread};
use crate::core::testing::job::Killed;
use crate::core::testing::program::TestRank;
use crate::core::testing::schedules;
use eyrie_ledger::bells::Bells;
use eyrie_ledger::heap::HeapHints;
use eyrie_ledger::memory::Hints;
use eyrie_wire::data::Envelope;
use eyrie_wire::{Incarnation, Rank, RankInstance};
use rand::rngs::SmallRng;
use rand::SeedableRng;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::rc::Rc;

fn world(ranks: usize) -> Shared {
    let granted = vec![REGION / 2; ranks];
    Rc::new(World::new(SmallRng::seed_from_u64(1), true, REGION, (granted, false)))
}

fn rank(world: &Shared, number: u32, incarnation: u32) -> TestRank<TestHost> {
    let instance = RankInstance { rank: Rank(number), incarnation: Incarnation(incarnation) };
    let host = TestHost { world: world.clone(), instance, observing: Rc::default() };
    let mut rank = RankCore::new(LedgerPath::new(host, Rank(number), world.ranks() as u32));
    rank.path.attach().unwrap();
    rank
}

fn send(rank: &mut TestRank<TestHost>, to: u32, content: &[u8]) -> Result<(), String> {
    let envelope = Envelope::Tagged { tag: 1, data: None };
    rank.send(Rank(to), envelope, content).map_err(|e| e.to_string())
}

/// Posts a receive for any message of up to 64 bytes.
fn post(rank: &mut TestRank<TestHost>, buffer: &mut [u8; 64]) {
    rank.post(
        Posted {
            context: 0,
            buffer: buffer.as_mut_ptr(),
            len: buffer.len(),
            source: None,
            tagged: true,
            tag: 0,
            ignore: u64::MAX,
            multi: None,
            used: 0,
            report: true,
        },
        |_| panic!("it is visible already"),
    );
}

/// Whether a progress call completes a receive.
fn progresses(rank: &mut TestRank<TestHost>) -> bool {
    let mut came = false;
    rank.progress(Unread::Nothing, |event| came |= matches!(event, Event::Received(_))).unwrap();
    came
}

/// Whether a message becomes visible in one progress call.
fn receives(rank: &mut TestRank<TestHost>) -> bool {
    let mut buffer = [0; 64];
    post(rank, &mut buffer);
    let came = progresses(rank);
    rank.cancel(0);
    came
}

/// A message that no ledger can hold is an error at once, which says what to do.
fn a_message_that_is_too_long_is_refused() {
    let world = world(2);
    let mut sender = rank(&world, 0, 1);
    let error = send(&mut sender, 1, &vec![1; REGION as usize]).unwrap_err();
    assert!(error.contains("longer than rank 0's ledger"), "{error}");
    assert!(error.contains("--log-memory"), "{error}");
    assert_eq!(send(&mut sender, 1, b"short"), Ok(()));
    assert!(receives(&mut rank(&world, 1, 1)));
}

/// A rank is killed when its message is there and no board names it: its next incarnation sees to
/// that, before it sends anything.
fn boards_are_written_again() {
    for looks in 0.. {
        let world = world(5);
        let mut receiver = rank(&world, 4, 1);
        let mut sender = rank(&world, 0, 1);
        world.lives[0].dies_in.set(Some(looks));
        let sent = catch_unwind(AssertUnwindSafe(|| send(&mut sender, 4, b"hello")));
        world.lives[0].dies_in.set(None);
        match sent {
            Ok(sent) => {
                assert_eq!(sent, Ok(()));
                break;
            }
            Err(e) => assert!(e.is::<Killed>()),
        }
        let next = rank(&world, 0, 2);
        let is_there = is_there(&world, 0, 4);
        assert_eq!(receives(&mut receiver), is_there, "killed after {looks} looks");
        drop(next);
    }
}

/// Whether the first message of a rank to another lies in the ledger.
fn is_there(world: &World, from: usize, to: u32) -> bool {
    let keeper = world.keeper.borrow();
    let heap = &*keeper.heaps[from];
    let layout = keeper.layout(from);
    let mut reader = eyrie_ledger::reader::Reader::new(heap, layout, to, 0);
    reader.look().unwrap().is_some()
}

/// A stray write to the boards costs time only.
fn a_message_that_no_board_names_is_found() {
    let world = world(5);
    let mut receiver = rank(&world, 4, 1);
    let mut sender = rank(&world, 0, 1);
    assert_eq!(send(&mut sender, 4, b"hello"), Ok(()));
    let bells = 5 * 64;
    let board = bells + 4 * 64;
    assert_eq!(world.hints.load(board), 1, "the board is elsewhere");
    world.hints.store(board, 0);
    assert!((0..10_000).any(|_| receives(&mut receiver)), "it is never found");
}

/// A message that comes when its receiver has looked for the last time, and does not say yet that
/// it sleeps, ends that sleep before it begins.
fn who_goes_to_sleep_looks_again() {
    let world = world(2);
    let mut receiver = rank(&world, 1, 1);
    let mut sender = rank(&world, 0, 1);
    let bell = Bells::new(HeapHints::new(0), 2).word(1);
    // It does nothing but wait.
    world.tick.set(1);
    let act = move || send(&mut sender, 1, b"hello").unwrap();
    world.on_look.replace(Some((1, bell, Box::new(act))));
    let mut buffer = [0; 64];
    post(&mut receiver, &mut buffer);
    let came = (0..100_000).any(|_| progresses(&mut receiver));
    assert!(world.on_look.take().is_none(), "it never goes to sleep");
    assert!(came && world.slept.get() == 0, "it slept beside a message");
}

/// A rank that the keeper no longer knows of, and that waits for room, connects again.
fn one_that_waits_for_room_connects_again() {
    let world = world(2);
    let mut sender = rank(&world, 0, 1);
    world.connected.set(false);
    for _ in 0..REGION / 2 / 2048 {
        assert_eq!(send(&mut sender, 1, &[1; 2048]), Ok(()));
    }
    assert!(world.connected.get(), "it has not waited");
}

fn single_rules() {
    one_that_waits_for_room_connects_again();
    a_message_that_is_too_long_is_refused();
    boards_are_written_again();
    a_message_that_no_board_names_is_found();
    who_goes_to_sleep_looks_again();
}

#[test]
fn each_rule_holds() {
    single_rules();
}

/// Each error of `mutation.rs` is found by a single rule or by some schedule.
#[test]
fn every_error_of_a_rank_is_found() {
    schedules::expect_panics();
    let fails = |seed| catch_unwind(|| compare(seed)).is_err();
    let missed = |error: &Mutation| {
        mutation::activate(Some(*error));
        let found = catch_unwind(single_rules).is_err() || (1..600).any(fails);
        mutation::activate(None);
        !found
    };
    let missed: Vec<_> = mutation::OF_LEDGER_PATH.into_iter().filter(missed).collect();
    assert!(missed.is_empty(), "not caught: {missed:?}");
}
