//! Waiting until ranks have moved, and how far they are meanwhile. Never decides anything: who does
//! not look at it loses nothing.

use eyrie_cli::progress::Progress;
use eyrie_controller::runtime::users::{ask, Subscription};
use eyrie_interface::answer::Accepted;
use eyrie_interface::record::Line;
use eyrie_interface::status::MoveStatus;
use eyrie_interface::{FirstEvent, Record, Request};
use eyrie_wire::{NodeId, Rank};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::mpsc::channel;
use std::time::Duration;

/// Asks a job to move ranks, and shows on a terminal how far they are until they have moved.
///
/// # Errors
/// As [`ask`].
pub fn ask_and_show(dir: &Path, request: &Request) -> anyhow::Result<()> {
    let progress = Progress::start(false, "waiting for the first round");
    if !progress.is_shown() {
        return ask::<Accepted>(dir, request).map(drop);
    }
    // Before the request: no event that follows from it is missed.
    let Ok(events) = Subscription::begin(dir, FirstEvent::New) else {
        drop(progress);
        return ask::<Accepted>(dir, request).map(drop);
    };
    let (sender, updates) = channel();
    let event_sender = sender.clone();
    // It ends with this process.
    std::thread::spawn(move || {
        let heard = events.hear(&mut |line| {
            // An event of a newer job is not known here.
            let event = serde_json::from_str(line).ok().map(|Line { record, .. }| record);
            Ok(event.is_none_or(|record| event_sender.send(Update::Event(record)).is_ok()))
        });
        if heard.is_err() {
            // The command has its answer, perhaps.
            let _ = event_sender.send(Update::NoMore);
        }
    });
    std::thread::scope(|scope| {
        scope.spawn(move || drop(sender.send(Update::Answer(ask::<Accepted>(dir, request)))));
        let mut moves = Moves::of(request);
        for update in updates {
            match update {
                Update::Event(record) => {
                    moves.hear(&record);
                    progress.now(moves.shown());
                }
                Update::NoMore => progress.now("waiting for the job's answer".into()),
                Update::Answer(answer) => return answer.map(drop),
            }
        }
        anyhow::bail!("the job was not asked")
    })
}

/// What is heard of the job meanwhile.
enum Update {
    Event(Record),
    /// The events have broken off.
    NoMore,
    Answer(anyhow::Result<Accepted>),
}

/// The moves that are waited for, as far as they are known.
#[derive(Default)]
struct Moves(BTreeMap<Rank, MoveStatus>);

impl Moves {
    fn of(request: &Request) -> Moves {
        let mut moves = Moves::default();
        match request {
            Request::Migrate { ranks, to, .. } => {
                for rank in ranks {
                    moves.begin(*rank, *to);
                }
            }
            Request::Rearrange { moves: all, .. } => {
                for (rank, to) in all {
                    moves.begin(*rank, Some(*to));
                }
            }
            _ => {}
        }
        moves
    }

    fn begin(&mut self, rank: Rank, to: Option<NodeId>) -> &mut MoveStatus {
        let moving = MoveStatus { rank, to, rounds: 0, bytes: 0, took: 0.0, slowed: 0 };
        self.0.entry(rank).or_insert(moving)
    }

    fn hear(&mut self, record: &Record) {
        match record {
            Record::NodeDraining { ranks, .. } => {
                for rank in ranks {
                    self.begin(*rank, None);
                }
            }
            Record::MoveRound { rank, node, round, bytes, took, .. } => {
                let moving = self.begin(*rank, Some(*node));
                (moving.to, moving.rounds, moving.bytes) = (Some(*node), *round, *bytes);
                moving.took = took.as_secs_f64();
            }
            Record::MoveSlowed { rank, share } => self.begin(*rank, None).slowed = *share,
            Record::RankMoved { rank, .. } | Record::RankFinished { rank, .. } => {
                self.0.remove(rank);
            }
            Record::Rearranged { ranks, .. } => self.0.retain(|rank, _| !ranks.contains(rank)),
            _ => {}
        }
    }

    /// One line for all moves.
    fn shown(&self) -> String {
        let lines: Vec<String> = self.0.values().map(of_one).collect();
        if lines.is_empty() {
            return "waiting until nothing needs the node".into();
        }
        lines.join("; ")
    }
}

/// A rank that moves: its rounds, what the last one brought, how fast, and how long it would stand
/// still if that was the last.
pub fn of_one(moving: &MoveStatus) -> String {
    let MoveStatus { rank, to, rounds, bytes, took, slowed } = *moving;
    let to = to.map_or("another node".into(), |node| format!("node {node}"));
    let slowed = match slowed {
        0 => String::new(),
        share => format!(", slowed by {share} %"),
    };
    if rounds == 0 {
        return format!("rank {rank} moves to {to}");
    }
    let rate = eyrie_units::bytes((bytes as f64 / took.max(1e-3)) as u64);
    let bytes = eyrie_units::bytes(bytes);
    let took = eyrie_units::time(Duration::from_secs_f64(took.max(0.0)));
    format!(
        "rank {rank} moves to {to}: round {rounds} brought {bytes} in {took} ({rate}/s){slowed}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use eyrie_wire::ImageId;

    #[test]
    fn each_move_in_words() {
        let moving = MoveStatus {
            rank: Rank(3),
            to: Some(NodeId(2)),
            rounds: 4,
            bytes: 1 << 20,
            took: 0.5,
            slowed: 20,
        };
        let line = of_one(&moving);
        assert_eq!(
            line,
            "rank 3 moves to node 2: round 4 brought 1 MiB in 500 ms (2 MiB/s), slowed by 20 %"
        );
        let begun =
            MoveStatus { rank: Rank(3), to: None, rounds: 0, bytes: 0, took: 0.0, slowed: 0 };
        assert_eq!(of_one(&begun), "rank 3 moves to another node");
        let mut moves = Moves::default();
        moves.hear(&Record::NodeDraining { node: NodeId(0), ranks: vec![Rank(3)] });
        assert_eq!(moves.shown(), of_one(&begun));
        let took = Duration::from_millis(500);
        let rank = 3;
        let node = 2;
        let round = Record::MoveRound {
            rank: Rank(rank),
            node: NodeId(node),
            image: ImageId(7),
            round: 4,
            bytes: 1 << 20,
            took,
        };
        let slowed = Record::MoveSlowed { rank: Rank(rank), share: 20 };
        for record in [&round, &slowed] {
            moves.hear(record);
        }
        assert_eq!(moves.shown(), line);
        // Where no event has named the rank before.
        for records in [[&round, &slowed], [&slowed, &round]] {
            let mut unknown = Moves::default();
            for record in records {
                unknown.hear(record);
            }
            assert_eq!(unknown.shown(), line);
        }
        moves.hear(&Record::RankMoved {
            rank: Rank(rank),
            from: NodeId(0),
            node: NodeId(node),
            pause: took,
        });
        assert_eq!(moves.shown(), "waiting until nothing needs the node");
    }
}
