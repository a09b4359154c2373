//! Recoveries: from the last sign of life of a rank until it has caught up. Pure.

use super::trace::{attribute, number, Course, Trace};
use eyrie_interface::Record;
use eyrie_wire::{ImageId, NodeId, Rank, RankInstance};
use std::collections::BTreeMap;

/// The recoveries under way.
#[derive(Debug, Default)]
pub struct Recoveries(BTreeMap<Rank, Open>);

#[derive(Debug)]
struct Open {
    since: f64,
    cause: String,
    course: Course,
}

impl Recoveries {
    /// Takes an event; returns the recoveries that are over with it.
    pub fn hear(&mut self, time: f64, record: &Record) -> Vec<Trace> {
        match record {
            Record::RankFailed { instance, cause, .. } => self.fail(time, instance.rank, cause),
            Record::NodeLost { ranks, cause, .. } => {
                ranks.iter().for_each(|rank| self.fail(time, *rank, cause));
            }
            Record::RestoreFailed { instance, cause, .. } => {
                if let Some(open) = self.0.get_mut(&instance.rank) {
                    open.course.moment("restore_failed", time, cause);
                }
            }
            Record::RankFinished { rank, .. } => drop(self.0.remove(rank)),
            Record::Recovered { instance, node, image, messages, phases, total } => {
                // One that has not failed was moved, or goes on from what was saved.
                let Some(Open { cause, mut course, .. }) = self.0.remove(&instance.rank) else {
                    return Vec::new();
                };
                let start = time - total.as_secs_f64();
                course
                    .follow(start, &phases.named().map(|(name, took)| (name, took.as_secs_f64())));
                let mut attributes = attributes(instance, *node, *image, &cause);
                attributes.push(number("eyrie.replayed_messages", *messages));
                let (name, error) = ("recovery", None);
                return vec![Trace { name, start, end: time, attributes, error, course }];
            }
            Record::JobEnded { cause, .. } => {
                let ended = cause.as_deref().unwrap_or("the job has ended");
                let open = std::mem::take(&mut self.0).into_iter();
                return open.map(|(rank, open)| open.broken_off(rank, time, ended)).collect();
            }
            _ => {}
        }
        Vec::new()
    }

    fn fail(&mut self, time: f64, rank: Rank, cause: &str) {
        match self.0.get_mut(&rank) {
            Some(open) => open.course.moment("failed", time, cause),
            None => {
                let (cause, course) = (cause.to_string(), Course::default());
                self.0.insert(rank, Open { since: time, cause, course });
            }
        }
    }
}

impl Open {
    fn broken_off(self, rank: Rank, time: f64, why: &str) -> Trace {
        Trace {
            name: "recovery",
            start: self.since,
            end: time,
            attributes: vec![number("eyrie.rank", rank.0), attribute("eyrie.cause", self.cause)],
            error: Some(why.into()),
            course: self.course,
        }
    }
}

fn attributes(
    instance: &RankInstance,
    node: NodeId,
    image: Option<ImageId>,
    cause: &str,
) -> Vec<opentelemetry::KeyValue> {
    let RankInstance { rank, incarnation } = instance;
    let mut all = vec![
        number("eyrie.rank", rank.0),
        number("eyrie.incarnation", incarnation.0),
        number("eyrie.node", node.0),
        attribute("eyrie.cause", cause.to_string()),
    ];
    all.extend(image.map(|image| number("eyrie.image", image.0)));
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use eyrie_interface::record::Phases;
    use eyrie_interface::Summary;
    use eyrie_wire::Incarnation;
    use std::time::Duration;

    fn instance(rank: u32) -> RankInstance {
        RankInstance { rank: Rank(rank), incarnation: Incarnation(2) }
    }

    fn failed(rank: u32, cause: &str) -> Record {
        Record::RankFailed { instance: instance(rank), node: NodeId(0), cause: cause.into() }
    }

    #[test]
    fn a_recovery_has_its_phases_one_after_the_other() {
        let mut recoveries = Recoveries::default();
        assert!(recoveries.hear(10.0, &failed(1, "killed")).is_empty());
        let restore =
            Record::RestoreFailed { instance: instance(1), image: None, cause: "x".into() };
        recoveries.hear(10.5, &restore);
        recoveries.hear(10.6, &failed(1, "again"));
        let s = Duration::from_secs;
        let phases = Phases { detected: s(1), placed: s(2), replayed: s(3), ..Phases::default() };
        let recovered = Record::Recovered {
            instance: instance(1),
            node: NodeId(3),
            image: Some(ImageId(7)),
            messages: 66,
            phases,
            total: s(6),
        };
        let traces = recoveries.hear(16.0, &recovered);
        let [trace] = traces.as_slice() else { panic!("{traces:?}") };
        assert_eq!((trace.start, trace.end, &trace.error), (10.0, 16.0, &None));
        let phases: Vec<_> =
            trace.course.phases.iter().map(|p| (&*p.name, p.start, p.end)).collect();
        let wanted = [("detected", 10.0, 11.0), ("placed", 11.0, 13.0), ("replayed", 13.0, 16.0)];
        assert_eq!(phases, wanted);
        let moments: Vec<_> = trace.course.moments.iter().map(|m| (m.name, m.at)).collect();
        assert_eq!(moments, [("restore_failed", 10.5), ("failed", 10.6)]);
        for wanted in [
            number("eyrie.rank", 1),
            number("eyrie.node", 3),
            number("eyrie.image", 7u64),
            number("eyrie.replayed_messages", 66),
            attribute("eyrie.cause", "killed"),
        ] {
            assert!(trace.attributes.contains(&wanted), "{:?}", trace.attributes);
        }
        assert!(recoveries.hear(20.0, &recovered).is_empty(), "it was moved");
    }

    #[test]
    fn one_that_does_not_end_before_the_job_is_an_error() {
        let mut recoveries = Recoveries::default();
        let (ranks, cause) = (vec![Rank(4), Rank(5)], "its agent is gone".to_string());
        recoveries.hear(1.0, &Record::NodeLost { node: NodeId(0), cause, ranks });
        recoveries.hear(1.0, &failed(4, "its node is lost"));
        recoveries.hear(2.0, &Record::RankFinished { rank: Rank(5), code: 0 });
        let summary = Summary::default();
        let ended = Record::JobEnded { code: 1, cause: Some("no spare".into()), summary };
        let traces = recoveries.hear(3.0, &ended);
        let [trace] = traces.as_slice() else { panic!("{traces:?}") };
        assert_eq!((trace.start, trace.error.as_deref()), (1.0, Some("no spare")));
    }
}
