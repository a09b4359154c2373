//! Checkpoints that users have asked for and wait for. A request is answered when every rank it
//! names has its image in the store, or cannot have one. It must never take an image for the answer
//! that was begun before it was asked for.

use crate::machine::io::Command;
use crate::machine::users::answer::{Answer, RequestId};
use crate::record::Record;
use eyrie_interface::answer::Outcome;
use eyrie_wire::{ImageId, Rank};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Most requests that wait at a time.
const MAX_PENDING: usize = 1024;

/// A request that waits for checkpoints.
#[derive(Debug)]
struct Pending {
    request: RequestId,
    /// When it was asked for.
    since: Duration,
    /// Ranks still awaited, with the image that was begun since.
    awaited: BTreeMap<Rank, Option<ImageId>>,
    outcomes: Vec<Outcome>,
}

/// All requests that wait.
#[derive(Debug, Default)]
pub struct Requests {
    pending: Vec<Pending>,
}

impl Requests {
    /// Takes a request for checkpoints of `ranks`, at `now`; before any of them is begun for it.
    ///
    /// # Errors
    /// A text for the user, when too many wait already.
    pub fn add(
        &mut self,
        request: RequestId,
        ranks: impl IntoIterator<Item = Rank>,
        now: Duration,
    ) -> Result<(), String> {
        if self.pending.len() >= MAX_PENDING {
            return Err(format!("{MAX_PENDING} requests wait for checkpoints already"));
        }
        let awaited = ranks.into_iter().map(|rank| (rank, None)).collect();
        self.pending.push(Pending { request, since: now, awaited, outcomes: vec![] });
        Ok(())
    }

    /// Takes note of what happens in the job.
    pub fn note(&mut self, record: &Record) {
        self.pending.iter_mut().for_each(|pending| pending.note(record));
    }

    /// Ranks of which no image was begun for who has waited for so long.
    pub fn not_begun(&self, now: Duration, patience: Duration) -> BTreeSet<Rank> {
        let late = self.pending.iter().filter(|pending| now >= pending.since + patience);
        let not_begun = |pending: &Pending| {
            let ranks = pending.awaited.iter().filter(|(_, begun)| begun.is_none());
            ranks.map(|(rank, _)| *rank).collect::<Vec<_>>()
        };
        late.flat_map(not_begun).collect()
    }

    /// Who has waited for so long for an image of the rank that was not begun does not any more.
    pub fn give_up(&mut self, rank: Rank, why: &str, now: Duration, patience: Duration) {
        let late = self.pending.iter_mut().filter(|pending| now >= pending.since + patience);
        for pending in late.filter(|pending| pending.awaited.get(&rank) == Some(&None)) {
            pending.over(Outcome::Failed { rank, failed: why.into() }, rank);
        }
    }

    /// The answers to those whose wait is over.
    pub fn take_answers(&mut self) -> Vec<Command> {
        let mut answers = Vec::new();
        self.pending.retain_mut(|pending| {
            let waits = !pending.awaited.is_empty();
            if !waits {
                let answer = Answer::Checkpoints(std::mem::take(&mut pending.outcomes));
                answers.push(Command::Answer { request: pending.request, answer });
            }
            waits
        });
        answers
    }
}

impl Pending {
    fn note(&mut self, record: &Record) {
        let ms = |d: &Duration| d.as_secs_f64() * 1e3;
        match record {
            Record::CheckpointStarted { rank, image } => {
                if let Some(begun @ None) = self.awaited.get_mut(rank) {
                    *begun = Some(*image);
                }
            }
            Record::Checkpoint { rank, image, bytes, pause, total, .. }
                if self.begun(*rank, *image) =>
            {
                let rank = *rank;
                let image = *image;
                let bytes = *bytes;
                let (pause_ms, total_ms) = (ms(pause), ms(total));
                self.over(Outcome::Stored { rank, image, bytes, pause_ms, total_ms }, rank);
            }
            Record::CheckpointFailed { rank, image, cause, .. } if self.begun(*rank, *image) => {
                self.over(Outcome::Failed { rank: *rank, failed: cause.clone() }, *rank);
            }
            Record::RankFailed { instance, cause, .. } => {
                let failed = format!("it failed: {cause}");
                self.over(Outcome::Failed { rank: instance.rank, failed }, instance.rank);
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

    #[test]
    fn an_answer_waits_for_images_begun_since_and_for_every_rank() {
        let mut requests = Requests::default();
        requests.add(7, [0, 1].map(Rank), Duration::ZERO).unwrap();
        let stored = |rank, image| Record::Checkpoint {
            rank,
            image,
            bytes: 7,
            file_bytes: 0,
            pause: Duration::from_millis(1),
            total: Duration::from_millis(2),
        };
        requests.note(&stored(Rank(0), ImageId(3))); // begun before it was asked for
        assert!(requests.take_answers().is_empty());
        requests.note(&Record::CheckpointStarted { rank: Rank(0), image: ImageId(4) });
        requests.note(&stored(Rank(0), ImageId(4)));
        assert!(requests.take_answers().is_empty());
        requests.note(&Record::RankFinished { rank: Rank(1), code: 0 });
        let answers = requests.take_answers();
        let [Command::Answer { request: 7, answer }] = &answers[..] else { panic!("{answers:?}") };
        let text = serde_json::to_string(answer).unwrap();
        assert!(text.contains("\"image\":4") && text.contains("it has finished"), "{text}");
        assert!(requests.pending.is_empty());
        let at = Duration::ZERO;
        (0..MAX_PENDING as u64).for_each(|n| requests.add(n, [Rank(0)], at).unwrap());
        assert!(requests.add(9, [Rank(0)], at).is_err(), "there is a bound");
    }
}
