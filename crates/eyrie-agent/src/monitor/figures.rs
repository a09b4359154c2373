//! What the controller is sent of a sample: of the node, and of as many ranks as the bound on bytes
//! allows, in turns. Pure, but for the pages of the ranks.

use super::sample::Sample;
use crate::rank::process::Process;
use eyrie_wire::health::{NodeFigures, RankFigures};
use eyrie_wire::RankInstance;
use std::collections::HashMap;

/// Most bytes of figures that a node sends a second, on average.
const BYTES_A_SECOND: u64 = 4096;
/// What they take at most without ranks, and for each rank, with what goes around a message.
const NODE_BYTES: u64 = 160;
const RANK_BYTES: u64 = 72;
const SECOND_NS: u64 = 1_000_000_000;

/// What may be sent: it comes by time, and goes by bytes.
#[derive(Debug, Default)]
pub struct Share {
    bytes: u64,
    /// The rank after which the next turn begins.
    after: Option<RankInstance>,
}

impl Share {
    /// The ranks, in order, that are in the next figures, `passed_ns` after the last ones; `None`:
    /// nothing is sent this time.
    fn take(&mut self, all: &[RankInstance], passed_ns: u64) -> Option<Vec<RankInstance>> {
        // A pause is not made up for.
        let new = BYTES_A_SECOND.saturating_mul(passed_ns) / SECOND_NS;
        self.bytes = (self.bytes + new).min(BYTES_A_SECOND.max(new));
        let least = NODE_BYTES + RANK_BYTES * u64::from(!all.is_empty());
        if self.bytes < least {
            return None;
        }
        let room = ((self.bytes - NODE_BYTES) / RANK_BYTES) as usize;
        let begin = self.after.map_or(0, |after| all.partition_point(|rank| *rank <= after));
        let turn = all.iter().cycle().skip(begin).take(room.min(all.len()));
        let turn: Vec<RankInstance> = turn.copied().collect();
        self.after = turn.last().copied();
        self.bytes -= NODE_BYTES + RANK_BYTES * turn.len() as u64;
        Some(turn)
    }
}

/// The figures of a sample; `None`: enough was sent lately.
pub fn of<'a>(
    sample: &Sample,
    processes: impl Iterator<Item = &'a Process>,
    share: &mut Share,
) -> Option<NodeFigures> {
    let head = &sample.head;
    let living: Vec<(&Process, u32)> = processes
        .filter(|p| p.ending.is_none() && p.restore.is_none())
        .filter_map(|p| Some((p, p.mpi_pid?)))
        .collect();
    let all: Vec<RankInstance> = living.iter().map(|(p, _)| p.instance).collect();
    let turn = share.take(&all, head.interval_ns.saturating_mul(head.step.into()))?;
    let read: HashMap<u32, &eyrie_monitor::sample::Process> =
        sample.processes.iter().map(|p| (p.pid, p)).collect();
    let rank = |(process, pid): &(&Process, u32)| {
        let read = read.get(pid).filter(|_| turn.contains(&process.instance))?;
        Some(RankFigures {
            instance: process.instance,
            used_ns: read.cpu_ns,
            polled_ns: process.page.polled().as_nanos() as u64,
            waited_ns: process.page.waited().as_nanos() as u64,
            memory: read.rss_bytes,
            steps: process.page.steps(),
            at_ns: head.intended_ns,
        })
    };
    let node = &head.node;
    Some(NodeFigures {
        sample: head.number,
        moment_ns: head.intended_ns,
        late_ns: head.skew_ns.max(0) as u64,
        in_step: sample.in_step,
        reader: head.reader.name().into(),
        cost_ns: head.cost.whole_ns,
        busy_ns: node.cpu.busy_ns(),
        idle_ns: node.cpu.idle_ns + node.cpu.iowait_ns,
        memory: node.memory.total_bytes,
        available: node.memory.available_bytes,
        ranks: living.iter().filter_map(rank).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use eyrie_wire::{Incarnation, Rank};
    use proptest::prelude::*;

    fn rank(rank: u32) -> RankInstance {
        RankInstance { rank: Rank(rank), incarnation: Incarnation(1) }
    }

    #[test]
    fn many_ranks_take_turns_and_each_comes() {
        let all: Vec<RankInstance> = (0..200).map(rank).collect();
        let mut share = Share::default();
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..4 {
            let turn = share.take(&all, SECOND_NS).expect("a second's worth");
            assert_eq!(turn.len(), 54);
            seen.extend(turn);
        }
        assert_eq!(seen.len(), 200);
    }

    #[test]
    fn the_figures_of_a_rank_and_of_a_node_take_no_more_than_was_reckoned_with() {
        let most = u64::MAX;
        let one = RankFigures {
            instance: RankInstance { rank: Rank(u32::MAX), incarnation: Incarnation(u32::MAX) },
            used_ns: most,
            polled_ns: most,
            waited_ns: most,
            memory: most,
            steps: most,
            at_ns: most,
        };
        let figures = |ranks: Vec<RankFigures>| NodeFigures {
            sample: most,
            moment_ns: most,
            late_ns: most,
            in_step: true,
            reader: "bpf-open".into(),
            cost_ns: most,
            busy_ns: most,
            idle_ns: most,
            memory: most,
            available: most,
            ranks,
        };
        let bytes = |ranks| {
            let mut bytes = Vec::new();
            let message = eyrie_wire::control::FromAgent::Sampled(Box::new(figures(ranks)));
            eyrie_transport::frame::write(&mut bytes, &message).unwrap();
            bytes.len() as u64
        };
        assert!(bytes(vec![]) + 32 <= NODE_BYTES, "{}", bytes(vec![]));
        let more = bytes(vec![one; 100]) - bytes(vec![]);
        assert!(more <= 100 * RANK_BYTES, "{more}");
    }

    proptest! {
        /// However often samples are taken, no second's worth is exceeded by more than one other.
        #[test]
        fn the_bytes_of_a_time_are_bounded(
            ranks in 0..300_u32, steps in prop::collection::vec(1..3_000_u64, 1..200),
        ) {
            let all: Vec<RankInstance> = (0..ranks).map(rank).collect();
            let mut share = Share::default();
            let (mut sent, mut passed) = (0, 0);
            for ms in steps {
                passed += ms;
                if let Some(turn) = share.take(&all, ms * 1_000_000) {
                    sent += NODE_BYTES + RANK_BYTES * turn.len() as u64;
                }
                prop_assert!(sent <= BYTES_A_SECOND * passed / 1000);
            }
        }
    }
}
