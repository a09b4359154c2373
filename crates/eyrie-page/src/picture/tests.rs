//! Pictures of events, of what jobs say of themselves, and of both.

use super::node::NodeState;
use super::rank::Activity;
use super::recovery::RecoveryPhase;
use super::*;
use eyrie_interface::health::{
    DoneStatus, FindingStatus, Health, NodeHealth, RankSampled, Sampled,
};
use eyrie_interface::record::{Cause, Phases};
use eyrie_interface::status::{ImageStatus, MoveStatus, RankStatus, RoleStatus};
use eyrie_interface::{Record, Status};
use eyrie_placement::Choice;
use eyrie_wire::health::HealthState;
use eyrie_wire::{ImageId, Incarnation, RankInstance, StoreId};
use std::time::Duration;

fn cause() -> Cause {
    "killed".into()
}

fn instance(rank: u32, incarnation: u32) -> RankInstance {
    RankInstance { rank: Rank(rank), incarnation: Incarnation(incarnation) }
}

fn started() -> Picture {
    let mut picture = Picture::new("melt");
    let hosts = ["a", "b", "c"].map(String::from).to_vec();
    for node in 0..3 {
        picture.event(0.0, &Record::NodeUp { node: NodeId(node) });
    }
    let job = "melt".to_string();
    picture
        .event(0.5, &Record::JobStarted { job, ranks: 4, nodes: 2, spares: 1, hosts, routers: 1 });
    for rank in 0..4 {
        let instance = instance(rank, 1);
        let node = NodeId(rank / 2);
        picture.event(0.5, &Record::RankStarted { instance, node, image: None });
        picture.event(0.6, &Record::Connected { instance });
    }
    picture
}

fn doing(picture: &Picture) -> Vec<Activity> {
    picture.ranks.iter().map(|rank| rank.get().doing).collect()
}

fn newest(picture: &Picture) -> &RecoveryPicture {
    picture.recoveries.since(0).last().copied().expect("there is a recovery")
}

#[test]
fn a_job_starts() {
    let picture = started();
    assert_eq!(doing(&picture), [Activity::Computes; 4]);
    assert_eq!(picture.head().state, JobState::Running);
    assert_eq!(picture.hosts(), ["a", "b", "c"]);
    assert!(picture.nodes.iter().all(|node| node.get().state == NodeState::Up));
    assert_eq!(picture.place_of(Rank(3)), Some(NodeId(1)));
    assert_eq!(picture.row().nodes, 3);
}

#[test]
fn a_recovery_goes_through_its_phases() {
    let mut picture = started();
    let rank = Rank(1);
    picture.event(
        1.0,
        &Record::Checkpoint {
            rank,
            image: ImageId(3),
            bytes: 10,
            file_bytes: 0,
            pause: Duration::from_millis(4),
            total: Duration::ZERO,
        },
    );
    assert_eq!(picture.figures.get().image_pause, Some(0.004));
    let failed = Record::RankFailed { instance: instance(1, 1), node: NodeId(0), cause: cause() };
    picture.event(2.0, &failed);
    assert_eq!(doing(&picture)[1], Activity::Lost);
    assert_eq!(newest(&picture).phase, RecoveryPhase::Placing);
    let image = Some(ImageId(3));
    let again = instance(1, 2);
    picture.event(
        2.1,
        &Record::Placed { instance: again, node: NodeId(2), choice: Choice::Spare, image },
    );
    assert_eq!(doing(&picture)[1], Activity::Restored);
    assert_eq!(picture.place_of(rank), Some(NodeId(2)));
    picture.event(
        2.2,
        &Record::Restored { instance: again, fetched: Duration::ZERO, restored: Duration::ZERO },
    );
    assert_eq!(doing(&picture)[1], Activity::Replays);
    let total = Duration::from_millis(400);
    picture.event(
        2.4,
        &Record::Recovered {
            instance: again,
            node: NodeId(2),
            image,
            messages: 9,
            phases: Phases { replayed: total, ..Phases::default() },
            total,
        },
    );
    assert_eq!(doing(&picture)[1], Activity::Computes);
    let recovery = newest(&picture);
    assert_eq!((recovery.phase, recovery.messages), (RecoveryPhase::Recovered, Some(9)));
    let times = [recovery.placed, recovery.restored, recovery.ended, recovery.total];
    assert_eq!(times, [Some(2.1), Some(2.2), Some(2.4), Some(0.4)]);
    assert_eq!((picture.summary.get().rank_failures, picture.summary.get().recoveries), (1, 1));
}

#[test]
fn a_lost_node_begins_one_recovery_for_each_of_its_ranks() {
    let mut picture = started();
    let ranks = vec![Rank(0), Rank(1)];
    picture.event(3.0, &Record::NodeLost { node: NodeId(0), cause: cause(), ranks });
    for rank in 0..2 {
        let instance = instance(rank, 1);
        picture.event(3.0, &Record::RankFailed { instance, node: NodeId(0), cause: cause() });
    }
    assert_eq!(picture.recoveries.since(0).len(), 2);
    assert_eq!(picture.nodes[0].get().state, NodeState::Lost);
    // One of them fails again while it comes back.
    let placed = |incarnation| Record::Placed {
        instance: instance(0, incarnation),
        node: NodeId(2),
        choice: Choice::Spare,
        image: None,
    };
    picture.event(3.1, &placed(2));
    let failed = Record::RankFailed { instance: instance(0, 2), node: NodeId(2), cause: cause() };
    picture.event(3.2, &failed);
    picture.event(3.3, &placed(3));
    let all = picture.recoveries.since(0);
    let phases: Vec<_> = all.iter().map(|of| (of.rank.0, of.phase)).collect();
    let restoring = RecoveryPhase::Restoring;
    let interrupted = RecoveryPhase::Interrupted;
    assert_eq!(phases, [(0, interrupted), (1, RecoveryPhase::Placing), (0, restoring)]);
}

#[test]
fn images_are_taken_and_fail() {
    let mut picture = started();
    let rank = Rank(2);
    let image = ImageId(1);
    picture.event(1.0, &Record::CheckpointStarted { rank, image });
    assert_eq!(doing(&picture)[2], Activity::Imaged);
    picture.event(1.1, &Record::CheckpointFailed { rank, image, cause: cause(), passing: true });
    assert_eq!(doing(&picture)[2], Activity::Computes);
    let limit = Duration::from_secs(3);
    picture.event(4.0, &Record::ImagesOverdue { ranks: vec![rank], limit, cause: cause() });
    assert_eq!(picture.ranks[2].get().overdue, Some("killed".into()));
    picture.event(5.0, &Record::ImagesAgain { ranks: vec![rank] });
    assert_eq!(picture.ranks[2].get().overdue, None);
}

/// A round of a move of the rank to node 2.
fn round_of(rank: Rank, round: u32) -> Record {
    let image = ImageId(u64::from(round));
    let took = Duration::from_millis(10);
    Record::MoveRound { rank, node: NodeId(2), image, round, bytes: 100, took }
}

#[test]
fn a_move_goes_round_by_round() {
    let mut picture = started();
    let rank = Rank(3);
    let round = |number| round_of(rank, number);
    picture.event(1.0, &round(1));
    picture.event(1.1, &round(2));
    assert_eq!(doing(&picture)[3], Activity::Moves);
    // The status forgets it a moment before the event says that it has arrived.
    picture.status(&status(vec![]));
    let pause = Duration::from_millis(20);
    picture.event(1.2, &Record::RankMoved { rank, from: NodeId(1), node: NodeId(2), pause });
    let moves = picture.moves.since(0);
    assert_eq!(moves.len(), 1);
    assert_eq!((moves[0].rounds.len(), moves[0].pause), (2, Some(0.02)));
    assert_eq!(doing(&picture)[3], Activity::Computes);
    assert_eq!(picture.place_of(rank), Some(NodeId(2)));
    // The next one is another one, and ends without having moved.
    picture.event(2.0, &Record::NodeDraining { node: NodeId(2), ranks: vec![rank] });
    assert_eq!(doing(&picture)[3], Activity::Moves);
    picture.event(2.5, &Record::RankFinished { rank, code: 0 });
    assert_eq!(doing(&picture)[3], Activity::Finished);
    let moves = picture.moves.since(0);
    assert_eq!((moves.len(), moves[1].ended, moves[1].pause), (2, Some(2.5), None));
}

#[test]
fn a_move_that_is_given_up_ends() {
    let mut picture = started();
    let rank = Rank(3);
    let round = |number| round_of(rank, number);
    picture.event(1.0, &round(1));
    picture.event(1.1, &round(2));
    // The rank fails on its way.
    let failed = Record::RankFailed { instance: instance(3, 1), node: NodeId(1), cause: cause() };
    picture.event(1.5, &failed);
    assert_eq!(doing(&picture)[3], Activity::Lost);
    let ends = |picture: &Picture| {
        let moves = picture.moves.since(0).into_iter();
        moves.map(|of| (of.began, of.ended, of.pause)).collect::<Vec<_>>()
    };
    assert_eq!(ends(&picture), [(1.0, Some(1.5), None)]);
    // A move that was cancelled has no event: the next one begins with its first round.
    picture.event(2.0, &round(1));
    picture.event(2.1, &round(2));
    picture.event(3.0, &round(1));
    let wanted = [(1.0, Some(1.5), None), (2.0, Some(3.0), None), (3.0, None, None)];
    assert_eq!(ends(&picture), wanted);
    // Its node is lost.
    let lost = Record::NodeLost { node: NodeId(1), cause: cause(), ranks: vec![rank] };
    picture.event(3.5, &lost);
    assert_eq!(ends(&picture)[2], (3.0, Some(3.5), None));
}

/// What a job says of itself that is as `started` makes it.
fn status(moves: Vec<MoveStatus>) -> Status {
    let ranks = (0..4).map(|rank| RankStatus {
        instance: instance(rank, 1),
        node: NodeId(rank / 2),
        state: "running".into(),
        image: Some(ImageStatus {
            number: ImageId(1),
            copies: 2,
            stores: vec![StoreId(0), StoreId(1)],
            bytes: 10,
            file_bytes: 0,
        }),
        overdue: None,
    });
    Status {
        job: "melt".into(),
        program: "./melt".into(),
        nodes_up: vec![true; 3],
        drained: vec![],
        hosts: ["a", "b", "c"].map(String::from).to_vec(),
        domain: None,
        domains: vec![],
        domain_moves: vec![],
        output: None,
        ranks: ranks.collect(),
        moves,
        roles: vec![RoleStatus { role: "router 0".into(), node: NodeId(2) }],
        journal: vec![NodeId(1)],
        cut_off: None,
        unprotected: vec![Rank(1)],
        copies_missing: vec![],
        logs: vec![],
        log_memory_bytes: 5,
        log_disk_bytes: 0,
        messages: 3,
        store_bytes: 4,
        checkpoint_interval: Some(30.0),
        checkpoint_cost: Some(0.25),
        summary: Summary { elapsed: Duration::from_secs(9), ranks: 4, ..Summary::default() },
    }
}

#[test]
fn a_job_whose_first_events_are_gone_is_known_by_its_status() {
    let mut picture = Picture::new("melt");
    let moving = MoveStatus { rank: Rank(2), to: None, rounds: 0, bytes: 0, took: 0.0, slowed: 20 };
    picture.status(&status(vec![moving]));
    let expected = [Activity::Computes, Activity::Computes, Activity::Moves, Activity::Computes];
    assert_eq!(doing(&picture), expected);
    let rank = picture.ranks[1].get();
    assert!(rank.unprotected && rank.image.as_ref().is_some_and(|image| image.copies == Some(2)));
    assert_eq!(picture.nodes[2].get().roles, ["router 0"]);
    assert!(picture.nodes[1].get().journal && !picture.nodes[0].get().journal);
    assert_eq!(picture.head().state, JobState::Running);
    assert_eq!(picture.time, 9.0);
    // It is still there, or has stopped.
    picture.status(&status(vec![]));
    assert_eq!(doing(&picture), [Activity::Computes; 4]);
    assert!(picture.moves.since(0)[0].is_over());
}

#[test]
fn only_what_has_changed_is_sent() {
    let mut picture = started();
    picture.status(&status(vec![]));
    let seen = picture.since(0);
    assert!(seen.whole && seen.ranks.len() == 4 && seen.nodes.len() == 3 && seen.head.is_some());
    let version = seen.version;
    picture.status(&status(vec![]));
    let same = picture.since(version);
    assert!(!same.whole && same.ranks.is_empty() && same.nodes.is_empty());
    assert!(same.head.is_none() && same.figures.is_none() && same.summary.is_none());
    let version = same.version;
    let failed = Record::RankFailed { instance: instance(3, 1), node: NodeId(1), cause: cause() };
    picture.event(10.0, &failed);
    let changed = picture.since(version);
    assert_eq!(changed.ranks.iter().map(|rank| rank.rank.0).collect::<Vec<_>>(), [3]);
    assert!(changed.nodes.is_empty() && changed.recoveries.len() == 1);
    // Another job in its place: all is sent, to one who has seen the old one, too.
    let version = changed.version;
    let anew = picture.begin_anew();
    assert!(anew.since(version).whole && anew.since(version).ranks.is_empty());
    assert!(!anew.since(anew.version()).whole);
}

#[test]
fn a_job_that_has_ended_stays_as_it_was() {
    let mut picture = started();
    let failed = Record::RankFailed { instance: instance(3, 1), node: NodeId(1), cause: cause() };
    picture.event(1.0, &failed);
    picture.event(1.5, &Record::Saved { dir: "/d".into(), bytes: 1 });
    let summary = Summary { ranks: 4, checkpoints: 7, ..Summary::default() };
    picture.event(2.0, &Record::JobEnded { code: 75, cause: None, summary });
    let saved = Some("/d".to_string());
    assert_eq!(picture.head().state, JobState::Ended { code: 75, cause: None, saved });
    assert_eq!(newest(&picture).phase, RecoveryPhase::Interrupted);
    assert_eq!(picture.summary.get().checkpoints, 7);
    // An answer that was on its way.
    picture.status(&status(vec![]));
    assert_eq!(doing(&picture)[3], Activity::Lost);
}

#[test]
fn a_status_that_is_older_than_an_event_does_not_take_it_back() {
    let mut picture = started();
    let failed = Record::RankFailed { instance: instance(3, 1), node: NodeId(1), cause: cause() };
    picture.event(9.5, &failed);
    picture.event(9.5, &Record::NodeDraining { node: NodeId(0), ranks: vec![Rank(0)] });
    // It is of 9 s.
    picture.status(&status(vec![]));
    assert_eq!(doing(&picture)[3], Activity::Lost);
    assert_eq!(doing(&picture)[0], Activity::Moves);
    assert!(picture.nodes[0].get().drained);
    assert_eq!(picture.figures.get().ranks_by_copies, [(2, 4)]);
    let mut newer = status(vec![]);
    newer.summary.elapsed = Duration::from_secs(10);
    picture.status(&newer);
    assert_eq!(doing(&picture), [Activity::Computes; 4]);
    assert_eq!(picture.moves.since(0).len(), 1);
    assert!(!picture.nodes[0].get().drained);
}

#[test]
fn numbers_of_damaged_lines_do_not_fill_the_memory() {
    let mut picture = Picture::new("x");
    let far = RankInstance { rank: Rank(u32::MAX), incarnation: Incarnation(1) };
    picture.event(0.0, &Record::Connected { instance: far });
    picture.event(0.0, &Record::NodeUp { node: NodeId(u32::MAX) });
    assert!(picture.ranks.len() <= MOST && picture.nodes.len() <= MOST);
}

/// What a job says of its first node, where rank 0 waits for so much of its time.
fn health(state: HealthState, waiting: f64) -> Health {
    let finding = FindingStatus {
        rule: "temperature".into(),
        what: "hwmon0".into(),
        state,
        said: "hot".into(),
        seconds: 2.0,
        muted: None,
    };
    let rank = RankSampled {
        rank: Rank(0),
        busy: Some(0.97),
        polling: None,
        waiting: Some(waiting),
        memory_bytes: 1_000_000,
    };
    let sampled = Sampled {
        seconds_ago: 0.1,
        sample: 7,
        moment_ns: 0,
        late_ns: 0,
        in_step: true,
        reader: "taskstats".into(),
        cost_ns: 0,
        busy: Some(0.52),
        memory_bytes: 16 << 30,
        available_bytes: 12 << 30,
        ranks: vec![rank],
    };
    let node = NodeHealth {
        node: NodeId(0),
        host: None,
        up: true,
        state,
        seconds: 2.0,
        findings: vec![finding],
        done: vec![DoneStatus { seconds_ago: 1.0, what: "images at once: ranks 0, 1".into() }],
        sampled: Some(sampled),
    };
    Health { job: "melt".into(), interval: Some(1.0), nodes: vec![node] }
}

#[test]
fn a_rank_computes_or_waits_for_messages() {
    let mut picture = started();
    for (waiting, expected) in [
        (0.5, Activity::Computes),
        (0.6, Activity::Waits),
        (0.42, Activity::Waits),
        (0.3, Activity::Computes),
    ] {
        picture.health(&health(HealthState::Ok, waiting), 9.0);
        assert_eq!(doing(&picture)[0], expected, "{waiting}");
    }
    let sample = picture.ranks[0].get().sample.unwrap();
    assert_eq!((sample.waiting, sample.busy), (Some(30), Some(100)));
    assert_eq!(picture.nodes[0].get().sample.as_ref().unwrap().busy, Some(50));
    // A rank that is imaged is imaged, whatever it waits for; what has failed does nothing.
    picture.health(&health(HealthState::Ok, 0.9), 9.0);
    picture.event(10.0, &Record::CheckpointStarted { rank: Rank(0), image: ImageId(1) });
    assert_eq!(doing(&picture)[0], Activity::Imaged);
    let failed = Record::RankFailed { instance: instance(0, 1), node: NodeId(0), cause: cause() };
    picture.event(11.0, &failed);
    assert_eq!(picture.ranks[0].get().sample, None);
}

#[test]
fn what_is_said_of_health_twice_is_no_news() {
    let mut picture = started();
    picture.health(&health(HealthState::Failing, 0.1), 9.0);
    let known = picture.nodes[0].get().health.clone();
    assert_eq!((known.state, known.since), (HealthState::Failing, 7.0));
    assert_eq!((known.findings[0].since, known.done[0].at), (7.0, 8.0));
    let version = picture.version();
    // Half a second has passed, and the times are rounded.
    picture.health(&health(HealthState::Failing, 0.1), 9.5);
    assert!(picture.since(version).nodes.is_empty() && picture.since(version).ranks.is_empty());
}

#[test]
fn health_is_known_by_events_alone() {
    let mut picture = started();
    let node = NodeId(1);
    let found = |state, node_state| Record::NodeHealth {
        node,
        rule: "disk".into(),
        what: "/".into(),
        state,
        node_state,
        said: "full".into(),
    };
    picture.event(3.0, &found(HealthState::Suspect, HealthState::Suspect));
    let ranks = vec![Rank(2), Rank(3)];
    picture.event(3.1, &Record::Precaution { node, ranks: ranks.clone(), cause: None });
    picture.event(4.0, &found(HealthState::Failing, HealthState::Failing));
    picture.event(4.1, &Record::NodeDraining { node, ranks });
    let within = Duration::from_secs(60);
    let muted_for = 10 * within;
    let rule = "disk".into();
    picture.event(4.2, &Record::RuleMuted { node, rule, times: 3, within, muted_for });
    let health = picture.nodes[1].get().health.clone();
    assert_eq!((health.state, health.since), (HealthState::Failing, 4.0));
    assert!(health.findings.len() == 1 && health.findings[0].muted, "{health:?}");
    let done: Vec<_> = health.done.iter().map(|done| done.what.as_str()).collect();
    assert_eq!(done, ["images at once: ranks 2, 3", "drained: ranks 2, 3"]);
    picture.event(9.0, &found(HealthState::Ok, HealthState::Ok));
    let health = &picture.nodes[1].get().health;
    assert_eq!((health.state, health.findings.len()), (HealthState::Ok, 0));
}
