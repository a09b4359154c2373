//! What events add up to: counters, which never go back as long as this process runs. Pure.

use super::histogram::Histogram;
use crate::follow::Event;
use crate::job_time::JobTime;
use eyrie_interface::record::Phases;
use eyrie_interface::Record;
use eyrie_wire::Rank;
use std::collections::{BTreeMap, BTreeSet};

/// The counts over all events.
#[derive(Clone, Debug)]
pub struct Counts {
    pub time: JobTime,
    /// How many events of each name there were.
    pub events: BTreeMap<String, u64>,
    /// For how long ranks stood still for images, and how long it took until these counted.
    pub pauses: Histogram,
    pub checkpoints: Histogram,
    pub recoveries: Histogram,
    pub phases: Phases,
    /// Messages that were delivered again.
    pub replayed: u64,
    pub move_pauses: Histogram,
    pub move_bytes: u64,
    /// When the newest image of each rank began to count, in seconds of the job.
    pub images: BTreeMap<Rank, f64>,
    /// Ranks that have failed and have not recovered.
    failed: BTreeSet<Rank>,
}

impl Counts {
    pub fn new() -> Counts {
        Counts {
            time: JobTime::new(),
            events: BTreeMap::new(),
            pauses: Histogram::default(),
            checkpoints: Histogram::default(),
            recoveries: Histogram::default(),
            phases: Phases::default(),
            replayed: 0,
            move_pauses: Histogram::default(),
            move_bytes: 0,
            images: BTreeMap::new(),
            failed: BTreeSet::new(),
        }
    }

    /// How many events of this name there were.
    pub fn of(&self, name: &str) -> u64 {
        self.events.get(name).copied().unwrap_or(0)
    }

    /// Adds an event.
    pub fn hear(&mut self, event: &Event) {
        self.time.hear(event.time);
        *self.events.entry(event.name.clone()).or_default() += 1;
        match &event.record {
            Record::Checkpoint { rank, pause, total, .. } => {
                self.pauses.add(*pause);
                self.checkpoints.add(*total);
                self.images.insert(*rank, event.time);
            }
            Record::RankFailed { instance, .. } => drop(self.failed.insert(instance.rank)),
            Record::Recovered { instance, messages, phases, total, .. } => {
                self.replayed += messages;
                // Moves end with the same event, and are no recoveries.
                if self.failed.remove(&instance.rank) {
                    self.recoveries.add(*total);
                    self.phases = sum(self.phases, *phases);
                }
            }
            Record::MoveRound { bytes, .. } => self.move_bytes += bytes,
            Record::RankMoved { pause, .. } => self.move_pauses.add(*pause),
            Record::RankFinished { rank, .. } => drop(self.images.remove(rank)),
            _ => {}
        }
    }
}

fn sum(a: Phases, b: Phases) -> Phases {
    Phases {
        detected: a.detected + b.detected,
        placed: a.placed + b.placed,
        fetched: a.fetched + b.fetched,
        restored: a.restored + b.restored,
        replayed: a.replayed + b.replayed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use eyrie_wire::{ImageId, Incarnation, NodeId, RankInstance};
    use std::time::Duration;

    fn hear(counts: &mut Counts, time: f64, record: Record) {
        let value = serde_json::to_value(&record).unwrap();
        let name = value["event"].as_str().unwrap().to_string();
        counts.hear(&Event { name, time, record, is_new: true });
    }

    #[test]
    fn phases_of_all_recoveries_add_up_and_images_are_the_newest() {
        let mut counts = Counts::new();
        let ms = Duration::from_millis;
        let instance = RankInstance { rank: Rank(1), incarnation: Incarnation(2) };
        for (time, placed, has_failed) in [(1.0, 10, true), (2.0, 30, true), (3.0, 50, false)] {
            let checkpoint = Record::Checkpoint {
                rank: Rank(1),
                image: ImageId(1),
                bytes: 5,
                file_bytes: 0,
                pause: ms(2),
                total: ms(placed),
            };
            hear(&mut counts, time, checkpoint);
            if has_failed {
                let cause = "killed".into();
                hear(&mut counts, time, Record::RankFailed { instance, node: NodeId(0), cause });
            }
            let phases = Phases { placed: ms(placed), replayed: ms(1), ..Phases::default() };
            let (node, image, total) = (NodeId(0), None, phases.total());
            let recovered = Record::Recovered { instance, node, image, messages: 7, phases, total };
            hear(&mut counts, time, recovered);
        }
        assert_eq!((counts.phases.placed, counts.phases.replayed), (ms(40), ms(2)));
        assert_eq!((counts.replayed, counts.of("recovered"), counts.of("note")), (21, 3, 0));
        assert!((counts.recoveries.sum() - 0.042).abs() < 1e-9);
        assert_eq!(counts.images, [(Rank(1), 3.0)].into());
        hear(&mut counts, 3.0, Record::RankFinished { rank: Rank(1), code: 0 });
        assert!(counts.images.is_empty());
    }
}
