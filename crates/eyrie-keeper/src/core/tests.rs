use super::testing::{heaps, layout, observation, Asked, Image, Process, World, RANKS, REGION};
use super::{Core, Head};
use eyrie_ledger::error::LedgerError;
use eyrie_ledger::layout::{Channel, PAGE};
use eyrie_ledger::order::OrderReader;
use eyrie_ledger::reader::Reader;
use eyrie_ledger::region;
use eyrie_router::space::Bounds;
use eyrie_router::{RouterCommand, RouterEvent, BEGINNING};
use eyrie_wire::data::{Determinant, MAX_PART};
use eyrie_wire::keeper::ToKeeper;
use eyrie_wire::traffic::{PairSent, Sent};
use eyrie_wire::{Incarnation, Rank, RankInstance};
use std::time::Duration;

const MIB: u64 = 1 << 20;

/// A keeper and processes of all ranks.
fn started(log_memory: u64) -> (World, Vec<Process>) {
    let mut world = World::new(log_memory);
    let processes = (0..RANKS).map(|rank| world.start(rank, &Image::default())).collect();
    world.events();
    (world, processes)
}

fn named(world: &mut World, is: impl Fn(&RouterEvent) -> bool) -> Vec<RouterEvent> {
    world.events().into_iter().filter(is).collect()
}

fn is_scarce(event: &RouterEvent) -> bool {
    matches!(event, RouterEvent::LogScarce { .. })
}

#[test]
fn all_ranks_are_admitted_at_the_start_and_older_incarnations_are_not() {
    let mut world = World::new(64 * MIB);
    for rank in 0..RANKS {
        let id = world.connect(rank);
        assert_eq!(world.asked.admitted.pop(), Some(id));
        assert_eq!(world.events(), [RouterEvent::Connected(world.instance(rank))]);
    }
    let no_rank = RankInstance { rank: Rank(RANKS), incarnation: Incarnation(1) };
    assert!(world.core.admit(no_rank).is_err());
    let old = world.instance(1);
    world.fence(1);
    let said = world.core.admit(old).unwrap_err();
    assert_eq!(said, "incarnation 1 of rank 1 has been replaced by 2");
    world.events();
    world.core.connected(77, old, 5, &mut world.asked);
    let refused = RouterEvent::Refused { instance: Some(old), reason: said };
    assert_eq!((world.events(), world.asked.closed.pop()), (vec![refused], Some(77)));
}

#[test]
fn a_connection_replaces_an_older_one_and_the_end_of_the_older_one_is_none() {
    let mut world = World::new(64 * MIB);
    let first = world.connect(0);
    let second = world.connect(0);
    assert_eq!((&world.asked.closed, &world.asked.admitted), (&vec![first], &vec![first, second]));
    world.events();
    world.core.disconnected(first, Rank(0), &mut world.asked);
    assert_eq!(world.events(), []);
    world.core.disconnected(second, Rank(0), &mut world.asked);
    assert_eq!(world.events(), [RouterEvent::Disconnected(world.instance(0))]);
    let third = world.connect(0);
    world.events();
    world.command(RouterCommand::BreakConnections(Rank(0)));
    assert_eq!(world.events(), [RouterEvent::Disconnected(world.instance(0))]);
    assert_eq!(world.asked.closed.last(), Some(&third));
}

#[test]
fn a_second_process_of_an_incarnation_is_refused_while_the_first_one_runs() {
    let mut world = World::new(64 * MIB);
    let first = world.connect(0);
    let instance = world.instance(0);
    world.events();
    world.core.connected(50, instance, 4321, &mut world.asked);
    let reason = "process 100 of incarnation 1 of rank 0 has not ended".to_string();
    assert_eq!(world.events(), [RouterEvent::Refused { instance: Some(instance), reason }]);
    assert_eq!((&world.asked.closed, &world.asked.admitted), (&vec![50], &vec![first]));
    world.asked.running.clear();
    world.core.connected(51, instance, 4321, &mut world.asked);
    assert_eq!(world.asked.admitted, [first, 51]);
}

#[test]
fn a_fenced_rank_is_admitted_after_its_process_has_ended_and_its_recovery() {
    let (mut world, mut all) = started(64 * MIB);
    all[1].send(1, 0).unwrap();
    all[0].progress(0, &[1]).unwrap();
    all[0].progress(0, &[1]).unwrap();
    all[0].observe(0).unwrap();
    let fenced = world.fence(0);
    let RouterEvent::Fenced { instance, determinants, observed } = fenced else { panic!() };
    assert_eq!(instance, RankInstance { rank: Rank(0), incarnation: Incarnation(2) });
    assert_eq!(determinants, [Determinant { clock: 1, rsn: 1 }]);
    assert_eq!((observed[0].from, observed[0].clock), (0, 2));
    assert_eq!(observed[0].bytes, observation(0, 0));
    let early = world.connect(0);
    assert!(!world.asked.admitted.contains(&early), "its recovery is not prepared");
    world.recover(0);
    assert_eq!(world.asked.admitted.last(), Some(&early));
    assert_eq!(region::incarnation(&world.heaps[0], &layout(0)), Ok(2));
}

#[test]
fn a_recovery_that_comes_before_the_end_of_the_old_process_admits_nothing() {
    let (mut world, _) = started(64 * MIB);
    world.incarnations[2] = Incarnation(2);
    let instance = world.instance(2);
    world.command(RouterCommand::Fence(instance));
    world.recover(2);
    let conn = world.connect(2);
    assert!(!world.asked.admitted.contains(&conn));
    assert_eq!(region::incarnation(&world.heaps[2], &layout(2)), Ok(1));
    world.events();
    world.core.ended(Rank(2), Err("it has not".into()), &mut world.asked);
    assert_eq!(world.events(), [RouterEvent::Fatal { reason: "it has not".into() }]);
}

#[test]
fn a_rank_that_never_connected_is_fenced_with_nothing() {
    let mut world = World::new(64 * MIB);
    let fenced = world.fence(1);
    let nothing = RouterEvent::Fenced {
        instance: world.instance(1),
        determinants: Vec::new(),
        observed: Vec::new(),
    };
    assert_eq!(fenced, nothing);
}

#[test]
fn the_beginning_of_what_was_observed_is_cut_and_bounded() {
    let (mut world, mut all) = started(64 * MIB);
    let mut end = 0;
    while end < 2 * BEGINNING {
        all[0].observe(0).unwrap();
        end = all[0].state.observed;
    }
    let RouterEvent::Fenced { observed, .. } = world.fence(0) else { panic!() };
    let mut next = 0;
    for part in &observed {
        assert_eq!(part.from, next);
        assert!(part.bytes.len() <= MAX_PART);
        next = part.end();
    }
    assert!((BEGINNING..BEGINNING + MIB / 4).contains(&next), "{next} bytes");
}

#[test]
fn a_damaged_order_ends_the_job_with_its_sentence() {
    let (mut world, mut all) = started(64 * MIB);
    all[1].send(1, 0).unwrap();
    all[0].progress(0, &[1]).unwrap();
    let used = layout(0).extents();
    (used..used + PAGE).step_by(8).for_each(|at| world.heaps[0].flip(at, 1));
    let RouterEvent::Fatal { reason } = world.fence(0) else { panic!() };
    assert!(reason.starts_with("rank 0's ledger is damaged"), "{reason}");
}

#[test]
fn an_image_releases_what_it_has_and_nothing_more() {
    let (mut world, mut all) = started(64 * MIB);
    for round in 0..200 {
        all[1].send(1, 0).unwrap();
        all[2].send(2, 0).unwrap();
        all[0].progress(0, if round % 3 == 0 { &[1, 2, 1] } else { &[2] }).unwrap();
        all[0].observe(0).unwrap();
    }
    let image = all[0].state.clone();
    all[2].send(2, 0).unwrap();
    all[0].progress(0, &[1, 1, 2]).unwrap();
    world.truncate(0, &image);
    assert_eq!(world.events(), []);
    let heaps = world.heaps.clone();
    let released = |source: u32, to: u32| {
        region::released(&heaps[source as usize], &layout(source), Channel::Rank(to))
    };
    assert_eq!((released(1, 0), released(2, 0)), (image.received[1], image.received[2]));
    assert_eq!((released(1, 2), released(0, 1)), (0, 0), "other receivers");
    for source in [1, 2u32] {
        let from = image.received[source as usize];
        let mut reader = Reader::new(world.heaps[source as usize], layout(source), 0, from);
        assert_eq!(reader.look().unwrap().unwrap().ssn, from + 1);
    }
    // An older image changes nothing.
    world.truncate(0, &Image::default());
    assert_eq!(released(1, 0), image.received[1]);
}

#[test]
fn an_image_that_does_not_agree_with_the_order_ends_the_job() {
    let (mut world, mut all) = started(64 * MIB);
    all[1].send(1, 0).unwrap();
    all[0].progress(0, &[1]).unwrap();
    let mut image = all[0].state.clone();
    image.received[2] = 1;
    world.truncate(0, &image);
    let reason = "an image of rank 0 has 2 messages at clock 1, and its ledger says 1".to_string();
    assert_eq!(world.events(), [RouterEvent::Fatal { reason }]);
    assert_eq!(region::released(&world.heaps[1], &layout(1), Channel::Rank(0)), 0);
}

/// Sends until the ledger is full, and says so to the keeper each time; at most `most` bytes.
fn fill(world: &mut World, process: &mut Process, rank: u32, to: u32, most: u64) -> bool {
    while region::used(&world.heaps[rank as usize], &layout(rank)) < most {
        match process.send(rank, to) {
            Ok(_) => {}
            Err(LedgerError::Full { .. }) => {
                world.want_room(rank, process.conn);
                if matches!(process.send(rank, to), Err(LedgerError::Full { .. })) {
                    return true;
                }
            }
            Err(e) => panic!("{e}"),
        }
    }
    false
}

#[test]
fn grants_grow_within_the_bound_and_what_others_do_not_use_is_taken_back() {
    let (mut world, mut all) = started(6 * MIB);
    let granted = |world: &World| -> Vec<u64> {
        let of = |rank: u32| region::granted(&world.heaps[rank as usize], &layout(rank));
        (0..RANKS).map(of).collect()
    };
    assert_eq!(granted(&world), [2 * MIB; 3]);
    assert!(fill(&mut world, &mut all[0], 0, 1, 8 * MIB), "it is full in the end");
    let grants = granted(&world);
    assert!(grants[0] > 5 * MIB, "{grants:?}");
    assert!(grants.iter().sum::<u64>() <= 6 * MIB, "{grants:?}");
    all[1].send(1, 2).unwrap();
    let scarce = RouterEvent::LogScarce { rank: Rank(1) };
    assert!(world.events().contains(&scarce));
    world.events();
    for seconds in 1..30 {
        world.core.tick(Duration::from_secs(seconds), &mut world.asked);
        assert!(fill(&mut world, &mut all[0], 0, 1, 8 * MIB), "it sends again");
    }
    let held = named(&mut world, |event| matches!(event, RouterEvent::HeldBack { .. }));
    let [RouterEvent::HeldBack { reason }] = &held[..] else { panic!("{held:?}") };
    assert!(reason.contains("rank 0 waits until rank 1 receives"), "{reason}");
}

#[test]
fn an_image_is_asked_for_every_second_until_one_gives_room() {
    let (mut world, mut all) = started(6 * MIB);
    let received = |all: &mut Vec<Process>| {
        while all[2].state.received[0] < all[0].state.sent[2] {
            all[2].progress(2, &[0; 16]).unwrap();
        }
    };
    assert!(fill(&mut world, &mut all[0], 0, 2, 8 * MIB));
    received(&mut all);
    world.events();
    for ms in (100..2000).step_by(100) {
        world.core.tick(Duration::from_millis(ms), &mut world.asked);
    }
    let scarce = named(&mut world, is_scarce);
    assert_eq!(scarce, [RouterEvent::LogScarce { rank: Rank(2) }]);
    let image = all[2].state.clone();
    world.truncate(2, &image);
    assert!(all[0].send(0, 2).is_ok(), "there is room again");
    world.events();
    world.core.tick(Duration::from_secs(4), &mut world.asked);
    assert_eq!(named(&mut world, |event| matches!(event, RouterEvent::HeldBack { .. })), []);
    assert!(fill(&mut world, &mut all[0], 0, 2, 8 * MIB) || all[0].state.sent[2] > 0);
}

#[test]
fn another_image_is_asked_for_at_once_when_one_was_not_enough_and_a_rank_waits() {
    let (mut world, mut all) = started(6 * MIB);
    let early = all[2].state.clone();
    assert!(fill(&mut world, &mut all[0], 0, 2, 8 * MIB));
    let scarce = RouterEvent::LogScarce { rank: Rank(2) };
    assert_eq!(named(&mut world, is_scarce), std::slice::from_ref(&scarce));
    world.truncate(2, &early);
    assert_eq!(named(&mut world, is_scarce), [scarce], "it had nothing");
    while all[2].state.received[0] < all[0].state.sent[2] {
        all[2].progress(2, &[0; 16]).unwrap();
    }
    let image = all[2].state.clone();
    world.truncate(2, &image);
    assert_eq!(named(&mut world, is_scarce), [], "there is room as soon as the rank looks");
}

#[test]
fn growth_is_looked_at_more_often_while_much_is_sent() {
    let (mut world, mut all) = started(64 * MIB);
    let second = Duration::from_secs(1);
    world.core.tick(second, &mut world.asked);
    assert_eq!(world.core.pause(), Duration::from_millis(100));
    let mut sent = 0;
    while sent < 5 * MIB {
        sent += super::testing::payload(0, 1, all[0].state.sent[1] + 1).len() as u64;
        all[0].send(0, 1).unwrap();
    }
    // Steps of 1 MiB: five of them in a tenth of a second.
    let later = second + Duration::from_millis(100);
    world.core.tick(later, &mut world.asked);
    assert!(world.core.pause() <= Duration::from_millis(20));
    world.core.tick(later + Duration::from_millis(20), &mut world.asked);
    assert_eq!(world.core.pause(), Duration::from_millis(100), "nothing was sent");
}

#[test]
fn growth_is_reported_in_steps_and_figures_are_of_what_was_sent() {
    let (mut world, mut all) = started(64 * MIB);
    let mut bytes = 0;
    let mut messages = 0;
    while bytes < 3 * MIB {
        bytes += super::testing::payload(0, 1, messages + 1).len() as u64;
        all[0].send(0, 1).unwrap();
        messages += 1;
    }
    world.core.tick(Duration::from_secs(1), &mut world.asked);
    world.core.tick(Duration::from_secs(2), &mut world.asked);
    let grown = RouterEvent::LogGrown { rank: Rank(1), bytes: bytes + 64 * messages };
    assert_eq!(world.events(), [grown]);
    world.command(RouterCommand::Stats);
    let Some(RouterEvent::Stats(stats)) = world.events().pop() else { panic!() };
    assert_eq!((stats.messages, stats.bytes, stats.disk_bytes), (messages, bytes, 0));
    assert!(stats.log_bytes[1] > bytes && stats.memory_bytes >= stats.log_bytes[1]);
    assert_eq!((stats.log_bytes[0], stats.log_bytes[2]), (0, 0));
    world.command(RouterCommand::Traffic);
    let sent = Sent { messages, bytes };
    let wanted = RouterEvent::Traffic(vec![PairSent { from: Rank(0), to: Rank(1), sent }]);
    assert_eq!(world.events(), [wanted]);
}

#[test]
fn reports_of_a_rank_are_events_and_content_that_differs_is_reported_once_a_recovery() {
    let (mut world, all) = started(64 * MIB);
    let conn = all[0].conn;
    let say = |world: &mut World, conn, message| {
        world.core.message(conn, Rank(0), message, &mut world.asked);
        world.events()
    };
    let replayed = say(&mut world, conn, ToKeeper::Replayed { messages: 7 });
    let instance = world.instance(0);
    assert_eq!(replayed, [RouterEvent::Replayed { instance, messages: 7 }]);
    let differs = ToKeeper::ContentDiffers { reason: "a time".into() };
    let reported = RouterEvent::ContentDiffers { rank: Rank(0), reason: "a time".into() };
    assert_eq!(say(&mut world, conn, differs.clone()), std::slice::from_ref(&reported));
    assert_eq!(say(&mut world, conn, differs.clone()), []);
    let diverged = say(&mut world, conn, ToKeeper::Diverged { reason: "x".into() });
    assert_eq!(diverged, [RouterEvent::Divergence { rank: Rank(0), reason: "x".into() }]);
    world.fence(0);
    world.recover(0);
    let again = world.connect(0);
    world.events();
    assert_eq!(say(&mut world, conn, differs.clone()), [], "an older connection");
    assert_eq!(say(&mut world, again, differs), [reported]);
}

#[test]
fn another_keeper_goes_on_with_what_was_saved() {
    let (mut world, mut all) = started(64 * MIB);
    for _ in 0..300 {
        all[1].send(1, 0).unwrap();
        all[0].progress(0, &[1]).unwrap();
        all[0].observe(0).unwrap();
        all[0].send(0, 2).unwrap();
    }
    let image = all[0].state.clone();
    world.truncate(0, &image);
    all[1].send(1, 0).unwrap();
    all[0].progress(0, &[1]).unwrap();
    let mut saved = Vec::new();
    world.core.save(&world.asked, &mut saved).unwrap();
    let mut from = &saved[..];
    let head = Head::read(&mut from).unwrap();
    assert_eq!(head, Head { ranks: u64::from(RANKS), region_bytes: REGION });
    let new = heaps();
    let log = world.log;
    let mut asked = Asked::default();
    let numbers = world.incarnations.clone();
    let core = Core::restored(new.clone(), REGION, log, &numbers, &mut from, &mut asked).unwrap();
    assert!(from.is_empty());
    let sent: Vec<_> = all.iter().map(|process| process.state.sent.clone()).collect();
    world.replace(core, asked, new);
    for rank in 0..RANKS {
        world.fence(rank);
        world.recover(rank);
        let from = if rank == 0 { image.clone() } else { Image::default() };
        let mut process = world.start(rank, &from);
        process.replay(rank, &sent[rank as usize]);
        if rank == 0 {
            assert_eq!(process.state.received[1], 301);
        }
    }
    // What comes later is counted from the saved image on.
    world.truncate(0, &Image { received: vec![0, 301, 0], clock: 301, ..image });
    assert!(!world.events().iter().any(|event| matches!(event, RouterEvent::Fatal { .. })));
    assert_eq!(region::released(&world.heaps[1], &layout(1), Channel::Rank(0)), 301);
    for cut in [8, saved.len() / 2, saved.len() - 1] {
        let mut from = &saved[24..cut.max(24)];
        let store = &mut Asked::default();
        assert!(Core::restored(heaps(), REGION, log, &numbers, &mut from, store).is_err());
    }
}

#[test]
fn what_is_saved_must_fit_the_regions() {
    let mut world = World::new(64 * MIB);
    world.connect(0);
    let mut saved = Vec::new();
    world.core.save(&world.asked, &mut saved).unwrap();
    // The place of the first piece of the first region.
    let at = 24 + 3 * 8 + RANKS as usize * 8;
    assert_eq!(saved[at..at + 8], [0; 8]);
    for place in [REGION, REGION - 1, u64::MAX, 7] {
        let mut changed = saved.clone();
        changed[at..at + 8].copy_from_slice(&place.to_le_bytes());
        let log = world.log;
        let store = &mut Asked::default();
        let from = &mut &changed[24..];
        let restored = Core::restored(heaps(), REGION, log, &world.incarnations, from, store);
        assert!(restored.err().unwrap().to_string().contains("outside"), "{place}");
    }
}

#[test]
fn released_order_and_observations_leave_what_the_image_goes_on_from() {
    let (mut world, mut all) = started(64 * MIB);
    for _ in 0..5000 {
        all[1].send(1, 0).unwrap();
        all[0].progress(0, &[1]).unwrap();
        all[0].observe(0).unwrap();
    }
    let image = all[0].state.clone();
    world.truncate(0, &image);
    for _ in 0..5000 {
        all[1].send(1, 0).unwrap();
        all[0].progress(0, &[1]).unwrap();
        all[0].observe(0).unwrap();
    }
    let sent = all[0].newest();
    let RouterEvent::Fenced { observed, determinants, .. } = world.fence(0) else { panic!() };
    assert_eq!(
        (observed, determinants),
        (vec![], vec![Determinant { clock: 10_000, rsn: 10_000 }])
    );
    world.recover(0);
    let mut process = world.start(0, &image);
    process.replay(0, &sent);
    assert_eq!((process.state.clock, process.state.received[1]), (10_000, 10_000));
}

/// Without images ranks wait, and then go on unprotected.
#[test]
fn what_was_received_is_cut_after_a_long_wait_and_what_was_not_is_kept() {
    let (mut world, mut all) = started(6 * MIB);
    [1, 2].iter().for_each(|rank| world.replayed(*rank, all[*rank as usize].conn));
    assert!(fill(&mut world, &mut all[0], 0, 2, 5 * MIB / 2) || all[0].state.sent[2] > 0);
    while all[2].state.received[0] < all[0].state.sent[2] {
        all[2].progress(2, &[0; 16]).unwrap();
    }
    assert!(fill(&mut world, &mut all[0], 0, 1, 8 * MIB));
    let is_cut = |event: &RouterEvent| matches!(event, RouterEvent::Unprotected { .. });
    world.core.tick(Duration::from_secs(1), &mut world.asked);
    let held = named(&mut world, |event| matches!(event, RouterEvent::HeldBack { .. }));
    let [RouterEvent::HeldBack { reason }] = &held[..] else { panic!("{held:?}") };
    assert!(reason.contains("--log-disk"), "{reason}");
    world.core.tick(Duration::from_secs(10), &mut world.asked);
    assert_eq!(named(&mut world, is_cut), []);
    world.core.tick(Duration::from_secs(11), &mut world.asked);
    let cut = named(&mut world, is_cut);
    let [RouterEvent::Unprotected { rank: Rank(2), reason }] = &cut[..] else { panic!("{cut:?}") };
    assert!(reason.contains("no space is left"), "{reason}");
    assert!(fill(&mut world, &mut all[0], 0, 1, 8 * MIB), "there was room, and it is full again");
    // What rank 1 has not received is kept, however long the others wait.
    for seconds in 12..60 {
        world.core.tick(Duration::from_secs(seconds), &mut world.asked);
    }
    assert_eq!(named(&mut world, is_cut), []);
    assert!(fill(&mut world, &mut all[0], 0, 1, 8 * MIB));
    while all[1].state.received[0] < all[0].state.sent[1] {
        all[1].progress(1, &[0; 16]).unwrap();
    }
    // Neither is what a rank has not received again.
    world.fence(2);
    world.core.tick(Duration::from_secs(80), &mut world.asked);
    world.core.tick(Duration::from_secs(91), &mut world.asked);
    let cut = named(&mut world, is_cut);
    assert!(matches!(cut[..], [RouterEvent::Unprotected { rank: Rank(1), .. }]), "{cut:?}");
}

/// A keeper with a disk, whose rank 2 has received so many times what the memory holds.
fn flooded(disk: u64, times: u64) -> (World, Vec<Process>) {
    let mut world = World::within(Bounds { memory: 3 * MIB, disk });
    let mut all: Vec<_> = (0..RANKS).map(|rank| world.start(rank, &Image::default())).collect();
    (0..RANKS).for_each(|rank| world.replayed(rank, all[rank as usize].conn));
    world.events();
    let mut now = Duration::ZERO;
    let mut sent = 0;
    while sent < times * 3 * MIB {
        let next = all[1].state.sent[2] + 1;
        match all[1].send(1, 2) {
            Ok(_) => sent += super::testing::payload(1, 2, next).len() as u64,
            Err(LedgerError::Full { .. }) => {
                while all[2].state.received[1] < all[1].state.sent[2] {
                    all[2].progress(2, &[1; 16]).unwrap();
                }
                world.want_room(1, all[1].conn);
                now += Duration::from_millis(250);
                world.core.tick(now, &mut world.asked);
                world.relieve();
                if now > Duration::from_secs(20) {
                    break;
                }
            }
            Err(e) => panic!("{e}"),
        }
    }
    (world, all)
}

#[test]
fn what_was_received_goes_to_disk_where_no_image_gives_room_and_comes_again() {
    let (mut world, mut all) = flooded(64 * MIB, 4);
    let is_bad = |event: &RouterEvent| {
        matches!(event, RouterEvent::HeldBack { .. } | RouterEvent::Unprotected { .. })
    };
    assert_eq!(named(&mut world, is_bad), []);
    let on_disk = world.core.stats().disk_bytes;
    assert!((9 * MIB..20 * MIB).contains(&on_disk), "{on_disk} bytes");
    assert!(world.core.stats().log_bytes[2] > on_disk);
    let state = all[2].state.clone();
    world.fence(2);
    world.recover(2);
    let mut process = world.start(2, &Image::default());
    process.replay(2, &state.sent);
    assert_eq!(process.state.received, state.received);
    // From an image in the middle, too, which frees what it has.
    world.replayed(2, process.conn);
    let mut image = Image { received: vec![0; 3], sent: vec![0; 3], ..Image::default() };
    let mut order = OrderReader::open(world.heaps[2], layout(2), 0).unwrap();
    while order.rsn() < 160 {
        image.clock = order.next().unwrap().unwrap().clock;
    }
    image.received[1] = order.rsn();
    world.truncate(2, &image);
    let left = world.core.stats().disk_bytes;
    assert!(left < on_disk, "{left} of {on_disk} bytes");
    world.fence(2);
    world.recover(2);
    let mut process = world.start(2, &image);
    process.replay(2, &state.sent);
    assert_eq!(process.state.received, state.received);
    world.replayed(2, process.conn);
    world.truncate(2, &process.state);
    assert_eq!(world.core.stats().disk_bytes, 0);
    assert!(world.asked.files[&Rank(2)].is_empty());
    all[1].send(1, 2).unwrap();
}

#[test]
fn a_process_that_re_executes_keeps_its_file_whatever_counts_meanwhile() {
    let (mut world, all) = flooded(64 * MIB, 2);
    world.fence(2);
    world.recover(2);
    let process = world.start(2, &Image::default());
    let bytes = world.asked.files[&Rank(2)].clone();
    world.truncate(2, &all[2].state);
    assert_eq!(world.asked.files[&Rank(2)], bytes);
    world.replayed(2, process.conn);
    world.truncate(2, &all[2].state);
    assert!(world.asked.files[&Rank(2)].is_empty());
}

#[test]
fn when_the_disk_is_full_too_ranks_wait_and_what_was_received_is_released() {
    let (mut world, all) = flooded(4 * MIB, 4);
    let held = world.events().into_iter().filter_map(|event| match event {
        RouterEvent::HeldBack { reason } => Some(reason),
        RouterEvent::Unprotected { rank: Rank(2), .. } => Some("unprotected".into()),
        _ => None,
    });
    let held: Vec<_> = held.collect();
    let wanted = "the ledgers have used the 3 MiB of --log-memory and the 4 MiB of --log-disk; \
                  images make room (give more with --log-disk)";
    assert_eq!(held[0], wanted);
    assert_eq!(held[1..], ["unprotected"], "what it cannot need is released at once");
    // Its next image makes it whole again.
    world.truncate(2, &all[2].state);
    let instance = world.instance(2);
    assert!(matches!(world.fence(2), RouterEvent::Fenced { instance: of, .. } if of != instance));
    world.recover(2);
    let mut process = world.start(2, &all[2].state);
    process.replay(2, &all[2].state.sent);
}

#[test]
fn a_file_that_cannot_be_written_is_said_with_its_place_and_nothing_is_lost() {
    let mut world = World::within(Bounds { memory: 3 * MIB, disk: 64 * MIB });
    world.asked.disk = Some(MIB);
    let mut all: Vec<_> = (0..RANKS).map(|rank| world.start(rank, &Image::default())).collect();
    (0..RANKS).for_each(|rank| world.replayed(rank, all[rank as usize].conn));
    for seconds in 1..8 {
        while all[0].send(0, 2).is_ok() {}
        while all[2].state.received[0] < all[0].state.sent[2] {
            all[2].progress(2, &[0; 16]).unwrap();
        }
        world.want_room(0, all[0].conn);
        world.core.tick(Duration::from_secs(seconds), &mut world.asked);
        world.relieve();
    }
    let held = named(&mut world, |event| matches!(event, RouterEvent::HeldBack { .. }));
    let reason = "the ledgers have used the 3 MiB of --log-memory, and none of it can go to disk \
                  (/spill: no space left on device); images make room";
    assert_eq!(held, [RouterEvent::HeldBack { reason: reason.into() }]);
    let state = all[2].state.clone();
    world.fence(2);
    world.recover(2);
    let mut process = world.start(2, &Image::default());
    process.replay(2, &state.sent);
    assert_eq!(process.state.received, state.received);
}

#[test]
fn what_a_rank_has_yet_to_receive_again_is_not_cut() {
    let (mut world, mut all) = started(6 * MIB);
    assert!(fill(&mut world, &mut all[0], 0, 2, 8 * MIB));
    while all[2].state.received[0] < all[0].state.sent[2] {
        all[2].progress(2, &[0; 16]).unwrap();
    }
    for seconds in 0..60 {
        world.core.tick(Duration::from_secs(seconds), &mut world.asked);
    }
    let released = region::released(&world.heaps[0], &layout(0), Channel::Rank(2));
    assert_eq!(released, 0, "it has not said that it is past its replay");
}

#[test]
fn a_message_that_is_longer_than_the_memory_for_logs_is_granted() {
    let (mut world, mut all) = started(2 * MIB);
    let payload = vec![7; 3 * MIB as usize];
    assert!(matches!(all[0].send_content(1, &payload), Err(LedgerError::Full { .. })));
    world.want_room(0, all[0].conn);
    all[0].send_content(1, &payload).unwrap();
    assert_eq!(named(&mut world, |event| matches!(event, RouterEvent::HeldBack { .. })), []);
}

/// Sends until the ledger is full and nothing more is granted at once.
fn wait(world: &mut World, process: &mut Process, rank: u32, to: u32) {
    let granted = |world: &World| region::granted(&world.heaps[rank as usize], &layout(rank));
    let mut before = 0;
    while before != granted(world) {
        before = granted(world);
        for _ in 0..3 {
            assert!(fill(world, process, rank, to, REGION));
            let now = world.core.now() + Duration::from_millis(500);
            world.core.tick(now, &mut world.asked);
        }
    }
}

/// Bytes that a rank may use, after so many seconds more.
fn granted_after(world: &mut World, rank: u32, seconds: u64) -> u64 {
    for _ in 0..seconds {
        let now = world.core.now() + Duration::from_secs(1);
        world.core.tick(now, &mut world.asked);
    }
    region::granted(&world.heaps[rank as usize], &layout(rank))
}

#[test]
fn ranks_that_wait_for_each_other_are_granted_more_than_the_bound_and_it_is_said() {
    let (mut world, mut all) = started(3 * MIB);
    (0..RANKS).for_each(|rank| world.replayed(rank, all[rank as usize].conn));
    wait(&mut world, &mut all[0], 0, 1);
    let before = granted_after(&mut world, 0, 0);
    assert!(fill(&mut world, &mut all[1], 1, 0, REGION));
    let after = granted_after(&mut world, 0, 2);
    assert!(after > before && after < before + before / 2, "{before} and {after}");
    assert!(all[0].send(0, 1).is_ok());
    let is_said = |event: &RouterEvent| matches!(event, RouterEvent::BoundExceeded { .. });
    let said = named(&mut world, is_said);
    assert!(!said.is_empty());
    // It does not wait now: it is given no more.
    assert_eq!(granted_after(&mut world, 0, 56), after);
    assert_eq!(named(&mut world, is_said), [], "nothing was granted since");
}

#[test]
fn a_rank_waits_for_one_that_can_receive_however_long_that_computes() {
    let (mut world, mut all) = started(3 * MIB);
    (0..RANKS).for_each(|rank| world.replayed(rank, all[rank as usize].conn));
    wait(&mut world, &mut all[0], 0, 2);
    assert!(fill(&mut world, &mut all[1], 1, 0, REGION));
    let before = granted_after(&mut world, 0, 0);
    assert_eq!(granted_after(&mut world, 0, 4999), before);
    // What rank 2 receives is released without an image, since there is no disk.
    while all[2].progress(2, &[0; 64]).is_ok() && all[2].state.received[0] < all[0].state.sent[2] {}
    let sends = |world: &mut World, all: &mut Vec<Process>| {
        granted_after(world, 0, 1);
        all[0].send(0, 2).is_ok()
    };
    assert!((0..60).any(|_| sends(&mut world, &mut all)));
    let is_exceeded = |event: &RouterEvent| matches!(event, RouterEvent::BoundExceeded { .. });
    assert_eq!(named(&mut world, is_exceeded), [], "there was room without");
}

#[test]
fn a_rank_waits_for_one_that_is_gone_until_it_must_have_ended() {
    let (mut world, mut all) = started(3 * MIB);
    (0..RANKS).for_each(|rank| world.replayed(rank, all[rank as usize].conn));
    wait(&mut world, &mut all[0], 0, 1);
    world.core.disconnected(all[1].conn, Rank(1), &mut world.asked);
    let before = granted_after(&mut world, 0, 4);
    assert_eq!(granted_after(&mut world, 0, 1), before, "it may come back");
    assert!(granted_after(&mut world, 0, 10) > before);
    assert!(all[0].send(0, 1).is_ok());
}

/// Those that their receiver has, and that go to disk, give room to the next ones.
#[test]
fn messages_that_are_longer_than_the_memory_for_logs_do_not_stay_there() {
    let mut world = World::within(Bounds { memory: MIB / 2, disk: 1 << 40 });
    let mut all: Vec<_> = (0..RANKS).map(|rank| world.start(rank, &Image::default())).collect();
    (0..RANKS).for_each(|rank| world.replayed(rank, all[rank as usize].conn));
    (0..RANKS).for_each(|rank| all[rank as usize].content = |_, _, _| vec![7; 3 << 18]);
    for n in 0..20 {
        for (rank, to) in [(0, 1), (1, 0)] {
            let sent = (0..5).find_map(|_| {
                world.want_room(rank, all[rank as usize].conn);
                granted_after(&mut world, rank, u64::from(n > 0));
                all[rank as usize].send(rank, to).ok()
            });
            assert!(sent.is_some(), "message {n} of rank {rank}");
            let mut received = || {
                let done = all[to as usize].progress(to, &[rank]);
                world.want_room(to, all[to as usize].conn);
                granted_after(&mut world, to, u64::from(done.is_err()));
                done.is_ok()
            };
            assert!((0..5).any(|_| received()), "message {n} of rank {rank}");
        }
    }
    assert!(region::used(&world.heaps[0], &layout(0)) < 4 * MIB);
}

#[test]
fn a_ledger_that_can_be_no_larger_ends_the_job_where_no_rank_can_give_room() {
    let (mut world, mut all) = started(3 * MIB);
    (0..RANKS).for_each(|rank| world.replayed(rank, all[rank as usize].conn));
    let mut fatal = Vec::new();
    for now in (1..400).map(Duration::from_secs) {
        while all[0].send(0, 0).is_ok() {}
        world.want_room(0, all[0].conn);
        world.core.tick(now, &mut world.asked);
        fatal = named(&mut world, |event| matches!(event, RouterEvent::Fatal { .. }));
        if !fatal.is_empty() {
            break;
        }
    }
    let [RouterEvent::Fatal { reason }] = &fatal[..] else { panic!("{fatal:?}") };
    assert!(reason.starts_with("rank 0's ledger is full"), "{reason}");
    assert!(reason.contains("--log-memory"), "{reason}");
}

#[test]
fn where_the_host_has_no_memory_left_ranks_wait_and_it_is_said() {
    let (mut world, mut all) = started(6 * MIB);
    (0..RANKS).for_each(|rank| world.replayed(rank, all[rank as usize].conn));
    all[0].send(0, 1).unwrap();
    world.asked.memory = Some(0);
    let used = region::used(&world.heaps[0], &layout(0));
    assert!(granted_after(&mut world, 0, 1) < used + MIB / 4, "it keeps what it uses");
    wait(&mut world, &mut all[0], 0, 1);
    wait(&mut world, &mut all[1], 1, 0);
    let before = granted_after(&mut world, 0, 1);
    assert_eq!(granted_after(&mut world, 0, 497), before);
    let held = named(&mut world, |event| matches!(event, RouterEvent::HeldBack { .. }));
    let names = |event: &RouterEvent| {
        let RouterEvent::HeldBack { reason } = event else { return false };
        reason.contains("memory.max") && reason.contains("rank 0 waits for some")
    };
    assert!(held.iter().any(names), "{held:?}");
    // Others have ended, or it has been given more.
    world.asked.memory = Some(MIB);
    assert!(granted_after(&mut world, 0, 3) > before);
    assert!(all[0].send(0, 1).is_ok());
    assert!(fill(&mut world, &mut all[0], 0, 1, REGION));
    assert!(fill(&mut world, &mut all[1], 1, 0, REGION));
    world.asked.memory = Some(0);
    granted_after(&mut world, 0, 697);
    let fatal = named(&mut world, |event| matches!(event, RouterEvent::Fatal { .. }));
    assert!(!fatal.is_empty(), "it does not wait for ever");
}

/// Two ranks are short, and the second one's share is raised in the same step.
#[test]
fn what_a_rank_was_granted_because_it_waits_is_not_taken_back_before_it_takes_it() {
    let (mut world, mut all) = started(2 * MIB);
    wait(&mut world, &mut all[2], 2, 1);
    let payload = vec![7; 3 * MIB as usize];
    assert!(matches!(all[0].send_content(1, &payload), Err(LedgerError::Full { .. })));
    world.want_room(0, all[0].conn);
    world.want_room(2, all[2].conn);
    all[0].send_content(1, &payload).unwrap();
}

/// What one that has ended had received is never released: it must not hide for whom a rank waits.
#[test]
fn a_rank_that_waits_does_not_wait_for_what_one_has_received_that_has_ended() {
    let (mut world, mut all) = started(3 * MIB);
    (0..RANKS).for_each(|rank| world.replayed(rank, all[rank as usize].conn));
    all[0].send(0, 1).unwrap();
    all[1].progress(1, &[0]).unwrap();
    world.core.disconnected(all[1].conn, Rank(1), &mut world.asked);
    wait(&mut world, &mut all[0], 0, 2);
    granted_after(&mut world, 0, 2);
    let said = named(&mut world, |event| matches!(event, RouterEvent::HeldBack { .. }));
    let [RouterEvent::HeldBack { reason }] = &said[..] else { panic!("{said:?}") };
    assert!(reason.contains("rank 0 waits until rank 2 receives"), "{reason}");
}

/// What a rank receives may be what makes room: that must not take until growth is looked at.
#[test]
fn while_a_rank_waits_the_keeper_looks_often() {
    let (mut world, mut all) = started(3 * MIB);
    (0..RANKS).for_each(|rank| world.replayed(rank, all[rank as usize].conn));
    granted_after(&mut world, 0, 1);
    assert_eq!(world.core.pause(), Duration::from_millis(100));
    wait(&mut world, &mut all[0], 0, 1);
    assert_eq!(world.core.pause(), Duration::from_millis(10));
}

/// Where the word that says so is damaged, the rank reads that it may use nothing.
#[test]
fn what_a_rank_was_granted_is_written_again_when_it_waits_for_it() {
    let (mut world, mut all) = started(64 * MIB);
    let memory = world.heaps[0];
    let granted = region::granted(&memory, &layout(0));
    region::grant(&memory, &layout(0), 0);
    while all[0].send(0, 1).is_ok() {}
    world.want_room(0, all[0].conn);
    assert_eq!(region::granted(&memory, &layout(0)), granted);
    all[0].send(0, 1).unwrap();
}

/// Only its own image releases what a rank has observed, and of the last two the older one counts.
#[test]
fn a_rank_that_lacks_room_for_what_it_observes_is_asked_for_its_own_image_until_one_counts() {
    let (mut world, mut all) = started(3 * MIB);
    (0..RANKS).for_each(|rank| world.replayed(rank, all[rank as usize].conn));
    while all[1].send(1, 2).is_ok() && all[1].state.sent[2] < 2000 {}
    let image = all[0].state.clone();
    let mut tries = 0;
    while tries < 10 {
        tries = if all[0].observe(0).is_ok() { 0 } else { tries + 1 };
        world.want_room(0, all[0].conn);
    }
    world.events();
    for _ in 0..20 {
        let now = world.core.now() + Duration::from_millis(20);
        world.core.tick(now, &mut world.asked);
    }
    let asked = named(&mut world, is_scarce);
    assert!(asked.len() > 2, "{asked:?}");
    let of_its_own = |event: &RouterEvent| *event == RouterEvent::LogScarce { rank: Rank(0) };
    assert!(asked.iter().all(of_its_own), "{asked:?}");
    world.truncate(0, &image);
    let image = all[0].state.clone();
    world.truncate(0, &image);
    let now = world.core.now() + Duration::from_millis(20);
    world.core.tick(now, &mut world.asked);
    all[0].observe(0).unwrap();
    let is_lost = |event: &RouterEvent| matches!(event, RouterEvent::Unprotected { .. });
    assert_eq!(named(&mut world, is_lost), []);
}

/// No image of a rank begins while it records, and without room it would record for ever.
#[test]
fn a_rank_that_observes_more_than_fits_is_no_longer_protected_and_goes_on() {
    let (mut world, mut all) = started(3 * MIB);
    (0..RANKS).for_each(|rank| world.replayed(rank, all[rank as usize].conn));
    let mut lost = Vec::new();
    while all[0].state.observed < 9 * MIB {
        match all[0].observe(0) {
            Ok(()) => {}
            Err(LedgerError::Full { .. }) => {
                world.want_room(0, all[0].conn);
                let now = world.core.now() + Duration::from_millis(100);
                world.core.tick(now, &mut world.asked);
                assert!(now < Duration::from_secs(60), "it waits for ever");
                lost.extend(named(&mut world, |event| {
                    matches!(event, RouterEvent::Unprotected { .. } | RouterEvent::Fatal { .. })
                }));
            }
            Err(e) => panic!("{e}"),
        }
    }
    let [RouterEvent::Unprotected { rank: Rank(0), reason }] = &lost[..] else {
        panic!("{lost:?}")
    };
    assert!(reason.contains("MiB of what it has read from files"), "{reason}");
    assert!(world.core.stats().memory_bytes <= 3 * MIB, "{}", world.core.stats().memory_bytes);
    let granted = |rank: u32| region::granted(&world.heaps[rank as usize], &layout(rank));
    let granted: u64 = (0..RANKS).map(granted).sum();
    assert!(granted <= 3 * MIB, "{granted} bytes are granted");
}
