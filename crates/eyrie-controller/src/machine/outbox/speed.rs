//! How fast ranks of this job move, and for how long they stand still, by what was seen so far:
//! what a move is likely to cost. Until something was seen it is a guess on the careful side.

use crate::record::Record;
use eyrie_interface::Manner;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Bytes per second as long as nothing was seen.
const ASSUMED: f64 = 100e6;
/// What is smaller says more of the ways than of their width.
const TELLING: u64 = 1 << 20;

#[derive(Clone, Copy, Default, Debug, Serialize, Deserialize)]
pub struct Speed {
    /// Of rounds of moves.
    moved: Sum,
    /// Of checkpoints.
    stored: Sum,
    /// How long the last rank that has moved stood still.
    pause: Option<Duration>,
}

#[derive(Clone, Copy, Default, Debug, Serialize, Deserialize)]
struct Sum {
    bytes: u64,
    took: Duration,
}

impl Sum {
    fn add(&mut self, bytes: u64, took: Duration) {
        if bytes >= TELLING {
            self.bytes = self.bytes.saturating_add(bytes);
            self.took += took;
        }
    }

    fn bandwidth(&self) -> Option<f64> {
        (self.bytes > 0).then(|| self.bytes as f64 / self.took.as_secs_f64().max(1e-6))
    }
}

impl Speed {
    pub fn note(&mut self, record: &Record) {
        match record {
            Record::MoveRound { bytes, took, .. } => self.moved.add(*bytes, *took),
            Record::Checkpoint { bytes, total, .. } => self.stored.add(*bytes, *total),
            Record::RankMoved { pause, .. } => self.pause = Some(*pause),
            _ => {}
        }
    }

    /// What the move of a rank with so much memory may cost the job: no more than if no
    /// rank computed while its memory goes over, and then while it stands still.
    pub fn cost(&self, memory: u64) -> Duration {
        let bandwidth = self.moved.bandwidth().or(self.stored.bandwidth()).unwrap_or(ASSUMED);
        let pause = self.pause.unwrap_or(Manner::default().pause_budget);
        Duration::try_from_secs_f64(memory as f64 / bandwidth).unwrap_or(Duration::MAX / 2) + pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use eyrie_wire::{ImageId, NodeId, Rank};

    #[test]
    fn what_was_seen_counts_more_than_what_is_assumed() {
        let mut speed = Speed::default();
        let s = Duration::from_secs;
        assert_eq!(speed.cost(100_000_000), s(1) + Manner::default().pause_budget);
        let rank = 0;
        let node = 1;
        let image = 2;
        let round = 1;
        let stored = Record::Checkpoint {
            rank: Rank(rank),
            image: ImageId(image),
            bytes: 400_000_000,
            file_bytes: 0,
            pause: s(0),
            total: s(2),
        };
        speed.note(&stored);
        assert_eq!(speed.cost(200_000_000), s(1) + Manner::default().pause_budget);
        // A last round says nothing of how fast all of it goes.
        for (bytes, took) in [(40_000_000, s(1)), (4096, s(1))] {
            speed.note(&Record::MoveRound {
                rank: Rank(rank),
                node: NodeId(node),
                image: ImageId(image),
                round,
                bytes,
                took,
            });
        }
        speed.note(&Record::RankMoved {
            rank: Rank(rank),
            from: NodeId(0),
            node: NodeId(node),
            pause: s(3),
        });
        assert_eq!(speed.cost(40_000_000), s(4));
    }
}
