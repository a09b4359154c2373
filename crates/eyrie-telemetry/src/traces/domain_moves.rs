//! Moves of all ranks of a domain to another one, phase by phase. Pure.

use super::trace::{attribute, Course, Phase, Trace};
use eyrie_interface::record::MovePhase;
use eyrie_interface::Record;
use std::collections::BTreeMap;
use std::time::Duration;

/// The moves under way, by the names of both domains.
#[derive(Debug, Default)]
pub struct DomainMoves(BTreeMap<(String, String), Open>);

#[derive(Debug, Default)]
struct Open {
    course: Course,
    /// How long it took to the last phase that was reached.
    took: Duration,
}

impl DomainMoves {
    /// Takes an event; returns the move that is over with it.
    pub fn hear(&mut self, time: f64, record: &Record) -> Vec<Trace> {
        let Record::DomainMove { from, to, phase, took, cause } = record else { return Vec::new() };
        let way = (from.clone(), to.clone());
        if *phase == MovePhase::Requested {
            self.0.insert(way, Open::default());
            return Vec::new();
        }
        let start = time - took.as_secs_f64();
        let open = self.0.entry(way.clone()).or_default();
        let before = std::mem::replace(&mut open.took, *took);
        open.course.phase(Phase {
            name: name(*phase).into(),
            start: start + before.min(*took).as_secs_f64(),
            end: time,
            attributes: vec![],
        });
        if !matches!(phase, MovePhase::Resumed | MovePhase::Cancelled) {
            return Vec::new();
        }
        let course = self.0.remove(&way).unwrap_or_default().course;
        let attributes = vec![
            attribute("eyrie.from_domain", from.clone()),
            attribute("eyrie.to_domain", to.clone()),
        ];
        let error = cause.clone();
        vec![Trace { name: "domain move", start, end: time, attributes, error, course }]
    }
}

/// The phase that ends when this one is reached is called like it.
fn name(phase: MovePhase) -> &'static str {
    match phase {
        MovePhase::Requested => "requested",
        MovePhase::Flushed => "flushed",
        MovePhase::Imaged => "imaged",
        MovePhase::Moved => "moved",
        MovePhase::Resumed => "resumed",
        MovePhase::Cancelled => "cancelled",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hear(moves: &mut DomainMoves, phase: MovePhase, seconds: u64) -> Vec<Trace> {
        let cause = (phase == MovePhase::Cancelled).then(|| "asked".to_string());
        let took = Duration::from_secs(seconds);
        let (from, to) = ("a".to_string(), "b".to_string());
        let record = Record::DomainMove { from, to, phase, took, cause };
        moves.hear(100.0 + seconds as f64, &record)
    }

    #[test]
    fn its_phases_follow_each_other() {
        let mut moves = DomainMoves::default();
        for (phase, at) in
            [(MovePhase::Requested, 0), (MovePhase::Flushed, 2), (MovePhase::Imaged, 3)]
        {
            assert!(hear(&mut moves, phase, at).is_empty());
        }
        assert!(hear(&mut moves, MovePhase::Moved, 7).is_empty());
        let traces = hear(&mut moves, MovePhase::Resumed, 8);
        let [trace] = traces.as_slice() else { panic!("{traces:?}") };
        let phases: Vec<_> =
            trace.course.phases.iter().map(|p| (&*p.name, p.start, p.end)).collect();
        let wanted = [
            ("flushed", 100.0, 102.0),
            ("imaged", 102.0, 103.0),
            ("moved", 103.0, 107.0),
            ("resumed", 107.0, 108.0),
        ];
        assert_eq!((phases.as_slice(), trace.start, trace.end), (&wanted[..], 100.0, 108.0));
        hear(&mut moves, MovePhase::Requested, 0);
        let traces = hear(&mut moves, MovePhase::Cancelled, 4);
        assert_eq!(traces[0].error.as_deref(), Some("asked"));
    }
}
