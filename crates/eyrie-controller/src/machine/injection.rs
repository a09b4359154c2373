//! Injects failures when their moment has come. They go through the same detection as real ones.

use super::faults::{victim, What};
use super::io::Command;
use super::node::NodeEntry;
use super::rank::RankEntry;
use super::reactor::Machine;
use super::state::RankStateName;
use crate::inject::{Fault, When};
use crate::record::Record;
use eyrie_wire::Rank;

impl Machine {
    /// The job is over: what was not injected never will be.
    pub(super) fn miss_all_faults(&mut self) {
        for fault in self.faults.take_left() {
            let cause = "the job ended before".into();
            self.record(Record::InjectionMissed { fault, cause });
        }
    }

    pub(super) fn inject_due(&mut self) {
        for what in self.faults.take_due(self.now) {
            match what {
                What::Fault(fault) => self.inject(fault),
                What::Random { left, seed } => {
                    let alive: Vec<Rank> = (self.ranks.iter())
                        .filter(|r| r.on_node().is_some())
                        .map(|r| r.rank)
                        .collect();
                    if !alive.is_empty() {
                        let victim = alive[victim(left, seed, alive.len())];
                        self.inject(Fault::KillRank(victim));
                    }
                    self.faults.add_random(left - 1, seed, self.now);
                }
            }
        }
    }

    /// A checkpoint of `rank` is in its middle.
    pub(super) fn faults_in_checkpoint(&mut self, rank: Rank) {
        let node = self.ranks[rank as usize].node;
        self.faults_of_moment(|fault, when| {
            when == When::Checkpoint
                && match fault {
                    Fault::KillRank(r) | Fault::DropConnection(r) => r == rank,
                    Fault::KillNode(n) | Fault::FreezeNode(n) => n == node,
                }
        });
    }

    /// A recovery of `rank` has begun (`restored`: its process is back). What is meant for the
    /// recovering rank itself waits until there is a process to hit.
    pub(super) fn faults_in_recovery(&mut self, rank: Rank, restored: bool) {
        let node = self.ranks[rank as usize].node;
        self.faults_of_moment(|fault, when| {
            let itself = match fault {
                Fault::KillRank(r) | Fault::DropConnection(r) => r == rank,
                Fault::KillNode(n) | Fault::FreezeNode(n) => n == node,
            };
            when == When::Recovery && itself == restored
        });
    }

    fn faults_of_moment(&mut self, now: impl Fn(Fault, When) -> bool) {
        let moments = std::mem::take(&mut self.faults.moments);
        let (hit, later): (Vec<_>, Vec<_>) = moments.into_iter().partition(|m| now(m.0, m.1));
        self.faults.moments = later;
        for (fault, _) in hit {
            self.inject(fault);
        }
    }

    fn inject(&mut self, fault: Fault) {
        let now = self.now;
        let up = |node: u32| self.nodes.get(node as usize).is_some_and(NodeEntry::is_up);
        let missed = match fault {
            Fault::KillRank(r) | Fault::DropConnection(r) => match self.ranks.get(r as usize) {
                Some(r) if r.on_node().is_some() => None,
                Some(r) if r.is(RankStateName::Finished) => Some("it has finished"),
                _ => Some("it is not running"),
            },
            Fault::KillNode(n) | Fault::FreezeNode(n) => (!up(n)).then_some("it is not up"),
        };
        if let Some(cause) = missed {
            let fault = fault.to_string();
            return self.record(Record::InjectionMissed { fault, cause: cause.into() });
        }
        let hit = |r: &&mut RankEntry| match fault {
            Fault::KillRank(rank) => r.rank == rank,
            Fault::KillNode(node) => r.node == node && r.on_node().is_some(),
            Fault::FreezeNode(_) | Fault::DropConnection(_) => false,
        };
        for r in self.ranks.iter_mut().filter(hit) {
            if let Some(on_node) = r.on_node_mut() {
                on_node.hit_at = Some(now);
            }
        }
        self.record(Record::Injected { fault: fault.to_string() });
        self.commands.push(Command::Inject(fault));
    }
}
