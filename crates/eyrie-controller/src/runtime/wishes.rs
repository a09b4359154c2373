//! Checkpoints that users asked for and wait for: each is answered when every rank it names has its image in the store, or
//! cannot have one. It must never take an image for the answer that was begun before it was asked for.

use super::users;
use crate::record::Record;
use crossbeam_channel::Sender;
use eyrie_wire::{ImageId, Rank};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// What became of one rank's checkpoint.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Outcome {
    Stored { rank: Rank, image: ImageId, bytes: u64, pause_ms: f64, total_ms: f64 },
    Failed { rank: Rank, failed: String },
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Stored { rank, image, bytes, pause_ms, total_ms } => write!(
                f,
                "rank {rank}: image {image}, {}, stood still {}, stored after {}",
                eyrie_units::bytes(*bytes),
                eyrie_units::nanoseconds(pause_ms * 1e6),
                eyrie_units::nanoseconds(total_ms * 1e6)
            ),
            Outcome::Failed { rank, failed } => write!(f, "rank {rank}: no checkpoint: {failed}"),
        }
    }
}

/// One request.
struct Wish {
    answer: Sender<String>,
    /// Ranks still awaited, with the image that was begun since.
    awaited: BTreeMap<Rank, Option<ImageId>>,
    outcomes: Vec<Outcome>,
}

/// All requests that wait.
#[derive(Default)]
pub struct Wishes {
    list: Vec<Wish>,
}

impl Wishes {
    /// Takes a request for checkpoints of `ranks`; before the machine hears of it.
    pub fn add(&mut self, ranks: impl IntoIterator<Item = Rank>, answer: Sender<String>) {
        let awaited = ranks.into_iter().map(|rank| (rank, None)).collect();
        self.list.push(Wish { answer, awaited, outcomes: vec![] });
        self.reply();
    }

    /// Hears what happens in the job, and answers those whose wait is over.
    pub fn hear(&mut self, record: &Record) {
        if self.list.is_empty() {
            return;
        }
        self.list.iter_mut().for_each(|wish| wish.hear(record));
        self.reply();
    }

    fn reply(&mut self) {
        self.list.retain(|wish| {
            let waits = !wish.awaited.is_empty();
            if !waits {
                let text =
                    serde_json::to_string(&serde_json::json!({ "checkpoints": wish.outcomes }));
                // The user may have left.
                let _ = wish.answer.send(text.unwrap_or_else(|e| users::error(&e.to_string())));
            }
            waits
        });
    }
}

impl Wish {
    fn hear(&mut self, record: &Record) {
        let ms = |d: &Duration| d.as_secs_f64() * 1e3;
        match record {
            Record::CheckpointStarted { rank, image } => {
                if let Some(begun @ None) = self.awaited.get_mut(rank) {
                    *begun = Some(*image);
                }
            }
            Record::Checkpoint { rank, image, bytes, pause, total }
                if self.begun(*rank, *image) =>
            {
                let (rank, image, bytes) = (*rank, *image, *bytes);
                let (pause_ms, total_ms) = (ms(pause), ms(total));
                self.over(Outcome::Stored { rank, image, bytes, pause_ms, total_ms }, rank);
            }
            Record::CheckpointFailed { rank, image, cause, .. } if self.begun(*rank, *image) => {
                self.over(Outcome::Failed { rank: *rank, failed: cause.clone() }, *rank);
            }
            Record::RankFailed { rank, cause, .. } => {
                self.over(
                    Outcome::Failed { rank: *rank, failed: format!("it failed: {cause}") },
                    *rank,
                );
            }
            Record::NodeLost { node, ranks, .. } => {
                for rank in ranks {
                    let failed = format!("its node {node} was lost");
                    self.over(Outcome::Failed { rank: *rank, failed }, *rank);
                }
            }
            Record::RankFinished { rank, .. } => {
                self.over(Outcome::Failed { rank: *rank, failed: "it has finished".into() }, *rank);
            }
            _ => {}
        }
    }

    fn begun(&self, rank: Rank, image: ImageId) -> bool {
        self.awaited.get(&rank) == Some(&Some(image))
    }

    fn over(&mut self, outcome: Outcome, rank: Rank) {
        if self.awaited.remove(&rank).is_some() {
            self.outcomes.push(outcome);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossbeam_channel::bounded;

    #[test]
    fn an_answer_waits_for_images_begun_since_and_for_every_rank() {
        let (answer, answered) = bounded(1);
        let mut wishes = Wishes::default();
        wishes.add([0, 1], answer);
        let stored = |rank, image| Record::Checkpoint {
            rank,
            image,
            bytes: 7,
            pause: Duration::from_millis(1),
            total: Duration::from_millis(2),
        };
        wishes.hear(&stored(0, 3)); // begun before it was asked for
        assert!(answered.is_empty());
        wishes.hear(&Record::CheckpointStarted { rank: 0, image: 4 });
        wishes.hear(&stored(0, 4));
        assert!(answered.is_empty());
        wishes.hear(&Record::RankFinished { rank: 1, code: 0 });
        let text = answered.try_recv().unwrap();
        assert!(text.contains("\"image\":4") && text.contains("it has finished"), "{text}");
        assert!(wishes.list.is_empty());
    }
}
