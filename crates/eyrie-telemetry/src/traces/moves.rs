//! Moves of ranks: the rounds in which their memory is copied ahead, and then the pause in which
//! they stand still. Pure.

use super::trace::{attribute, number, Course, Phase, Trace};
use eyrie_interface::Record;
use eyrie_wire::{NodeId, Rank};
use std::collections::BTreeMap;
use std::time::Duration;

/// The moves under way.
#[derive(Debug, Default)]
pub struct Moves {
    open: BTreeMap<Rank, Course>,
    /// When ranks were restored last, and what that took.
    restored: BTreeMap<Rank, Restored>,
}

#[derive(Clone, Copy, Debug)]
struct Restored {
    at: f64,
    fetched: Duration,
    restored: Duration,
}

impl Moves {
    /// Takes an event; returns the moves that are over with it.
    pub fn hear(&mut self, time: f64, record: &Record) -> Vec<Trace> {
        match record {
            Record::MoveRound { rank, node, image, round, bytes, took } => {
                // The one before was cancelled, which has no event.
                let before = if *round == 1 { self.open.remove(rank) } else { None };
                let course = self.open.entry(*rank).or_default();
                course.phase(Phase {
                    name: format!("round {round}").into(),
                    start: time - took.as_secs_f64(),
                    end: time,
                    attributes: vec![
                        number("eyrie.bytes", *bytes),
                        number("eyrie.image", image.0),
                        number("eyrie.node", node.0),
                    ],
                });
                let cancelled = |course: Course| {
                    let end = course.phases.last().map_or(time, |phase| phase.end);
                    broken_off(*rank, course, end, "the move was cancelled")
                };
                return before.map(cancelled).into_iter().collect();
            }
            Record::MoveSlowed { rank, share } => {
                let text = format!("it stands still for {share} % of the time");
                self.open.entry(*rank).or_default().moment("slowed", time, text);
            }
            Record::MoveNotPrepared { rank, cause, .. } => {
                self.open.entry(*rank).or_default().moment("not_prepared", time, cause);
            }
            Record::Restored { instance, fetched, restored } => {
                let restored = Restored { at: time, fetched: *fetched, restored: *restored };
                self.restored.insert(instance.rank, restored);
            }
            Record::RankMoved { rank, from, node, pause } => {
                return vec![self.moved(time, *rank, *from, *node, *pause)];
            }
            Record::RankFailed { instance, cause, .. } => {
                return self.break_off(time, instance.rank, cause).into_iter().collect();
            }
            Record::NodeLost { ranks, cause, .. } => {
                let mut over = |rank: &Rank| self.break_off(time, *rank, cause);
                return ranks.iter().filter_map(&mut over).collect();
            }
            Record::RankFinished { rank, .. } => {
                self.restored.remove(rank);
                return self.break_off(time, *rank, "the rank has finished").into_iter().collect();
            }
            Record::JobEnded { .. } => {
                let open = std::mem::take(&mut self.open).into_iter();
                return open
                    .map(|(rank, of)| broken_off(rank, of, time, "the job ended"))
                    .collect();
            }
            _ => {}
        }
        Vec::new()
    }

    fn break_off(&mut self, time: f64, rank: Rank, why: &str) -> Option<Trace> {
        self.open.remove(&rank).map(|course| broken_off(rank, course, time, why))
    }

    fn moved(
        &mut self,
        time: f64,
        rank: Rank,
        from: NodeId,
        node: NodeId,
        pause: Duration,
    ) -> Trace {
        let mut course = self.open.remove(&rank).unwrap_or_default();
        let still = time - pause.as_secs_f64();
        let start = course.phases.iter().map(|phase| phase.start).fold(still, f64::min);
        let restored = self.restored.get(&rank).filter(|of| (still..=time).contains(&of.at));
        match restored {
            None => drop(course.follow(still, &[("pause", time - still)])),
            Some(Restored { at, fetched, restored }) => {
                let (fetched, restored) = (fetched.as_secs_f64(), restored.as_secs_f64());
                let stopped = (at - restored - fetched - still).max(0.0);
                let end = course.follow(
                    still,
                    &[("stopped", stopped), ("fetched", fetched), ("restored", restored)],
                );
                course.follow(end, &[("replayed", (time - end).max(0.0))]);
            }
        }
        Trace {
            name: "move",
            start,
            end: time,
            attributes: vec![
                number("eyrie.rank", rank.0),
                number("eyrie.from", from.0),
                number("eyrie.node", node.0),
                attribute("eyrie.pause_seconds", pause.as_secs_f64()),
            ],
            error: None,
            course,
        }
    }
}

fn broken_off(rank: Rank, course: Course, time: f64, why: &str) -> Trace {
    let began = course.phases.iter().map(|phase| phase.start);
    let start = began.chain(course.moments.iter().map(|moment| moment.at)).fold(time, f64::min);
    Trace {
        name: "move",
        start,
        end: time,
        attributes: vec![number("eyrie.rank", rank.0)],
        error: Some(why.into()),
        course,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use eyrie_wire::{ImageId, Incarnation, RankInstance};

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn round(round: u32, took: u64) -> Record {
        let (rank, node, image, took) = (Rank(1), NodeId(2), ImageId(u64::from(round)), ms(took));
        Record::MoveRound { rank, node, image, round, bytes: 100, took }
    }

    fn names(trace: &Trace) -> Vec<(&str, f64, f64)> {
        trace.course.phases.iter().map(|p| (&*p.name, p.start, p.end)).collect()
    }

    #[test]
    fn a_move_has_its_rounds_and_the_phases_of_its_pause() {
        let mut moves = Moves::default();
        moves.hear(11.0, &round(1, 1000));
        moves.hear(11.5, &round(2, 500));
        let instance = RankInstance { rank: Rank(1), incarnation: Incarnation(3) };
        moves.hear(12.75, &Record::Restored { instance, fetched: ms(500), restored: ms(125) });
        let (rank, from, node) = (Rank(1), NodeId(0), NodeId(2));
        let traces = moves.hear(13.0, &Record::RankMoved { rank, from, node, pause: ms(1000) });
        let [trace] = traces.as_slice() else { panic!("{traces:?}") };
        assert_eq!((trace.start, trace.end), (10.0, 13.0));
        let wanted = [
            ("round 1", 10.0, 11.0),
            ("round 2", 11.0, 11.5),
            ("stopped", 12.0, 12.125),
            ("fetched", 12.125, 12.625),
            ("restored", 12.625, 12.75),
            ("replayed", 12.75, 13.0),
        ];
        assert_eq!(names(trace), wanted);
        // What was restored before its pause is another affair.
        let traces = moves.hear(20.0, &Record::RankMoved { rank, from, node, pause: ms(500) });
        assert_eq!(names(&traces[0]), [("pause", 19.5, 20.0)]);
    }

    #[test]
    fn one_that_does_not_come_to_its_end_says_why() {
        let mut moves = Moves::default();
        moves.hear(1.0, &round(1, 500));
        let again = moves.hear(3.0, &round(1, 500));
        let of = |traces: &[Trace]| {
            traces.iter().map(|t| (t.start, t.end, t.error.clone())).collect::<Vec<_>>()
        };
        assert_eq!(of(&again), [(0.5, 1.0, Some("the move was cancelled".into()))]);
        let (ranks, cause) = (vec![Rank(0), Rank(1)], "power".to_string());
        let lost = moves.hear(4.0, &Record::NodeLost { node: NodeId(0), cause, ranks });
        assert_eq!(of(&lost), [(2.5, 4.0, Some("power".into()))]);
        assert!(moves.hear(5.0, &Record::RankFinished { rank: Rank(1), code: 0 }).is_empty());
    }
}
