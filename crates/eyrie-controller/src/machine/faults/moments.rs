//! Injects failures when their moment has come. They go through the same detection as real ones.

use super::pending::{victim, Faults, What};
use crate::inject::{Fault, When};
use crate::machine::io::Command;
use crate::machine::nodes::Nodes;
use crate::machine::outbox::Outbox;
use crate::machine::ranks::entry::RankEntry;
use crate::machine::ranks::Ranks;
use crate::machine::state::RankStateName;
use crate::record::Record;
use eyrie_wire::Rank;

pub struct Injecting<'a> {
    pub out: &'a mut Outbox,
    pub nodes: &'a Nodes,
    pub ranks: &'a mut Ranks,
    pub faults: &'a mut Faults,
}

impl Injecting<'_> {
    /// The job is over: what was not injected never will be.
    pub fn miss_all(&mut self) {
        for fault in self.faults.take_left() {
            let cause = "the job ended before".into();
            self.out.record(Record::InjectionMissed { fault, cause });
        }
    }

    pub fn inject_due(&mut self) {
        for what in self.faults.take_due(self.out.now()) {
            match what {
                What::Fault(fault) => self.inject(fault),
                What::Random { left, seed } => {
                    let alive = self.ranks.iter().filter(|r| r.on_node().is_some());
                    let alive: Vec<Rank> = alive.map(RankEntry::rank).collect();
                    if !alive.is_empty() {
                        let victim = alive[victim(left, seed, alive.len())];
                        self.inject(Fault::KillRank(victim));
                    }
                    self.faults.add_random(left - 1, seed, self.out.now());
                }
            }
        }
    }

    /// A checkpoint of `rank` is in its middle.
    pub fn in_checkpoint(&mut self, rank: Rank) {
        let node = self.ranks[rank].node();
        self.of_moment(|fault, when| {
            when == When::Checkpoint
                && match fault {
                    Fault::KillRank(r) | Fault::DropConnection(r) => r == rank,
                    Fault::KillNode(n) | Fault::FreezeNode(n) => n == node,
                }
        });
    }

    /// A recovery of `rank` has begun (`restored`: its process is back). What is meant for the
    /// recovering rank itself waits until there is a process to hit.
    pub fn in_recovery(&mut self, rank: Rank, restored: bool) {
        let node = self.ranks[rank].node();
        self.of_moment(|fault, when| {
            let itself = match fault {
                Fault::KillRank(r) | Fault::DropConnection(r) => r == rank,
                Fault::KillNode(n) | Fault::FreezeNode(n) => n == node,
            };
            when == When::Recovery && itself == restored
        });
    }

    fn of_moment(&mut self, now: impl Fn(Fault, When) -> bool) {
        for fault in self.faults.take_of_moment(now) {
            self.inject(fault);
        }
    }

    fn inject(&mut self, fault: Fault) {
        let now = self.out.now();
        let missed = match fault {
            Fault::KillRank(r) | Fault::DropConnection(r) => match self.ranks.get(r) {
                Some(r) if r.on_node().is_some() => None,
                Some(r) if r.is(RankStateName::Finished) => Some("it has finished"),
                Some(r) if r.is_elsewhere() => Some("it is in another domain"),
                _ => Some("it is not running"),
            },
            Fault::KillNode(n) | Fault::FreezeNode(n) => {
                (!self.nodes.is_up(n)).then_some("it is not up")
            }
        };
        if let Some(cause) = missed {
            let fault = fault.to_string();
            return self.out.record(Record::InjectionMissed { fault, cause: cause.into() });
        }
        let hit = |r: &&mut RankEntry| match fault {
            Fault::KillRank(rank) => r.rank() == rank,
            Fault::KillNode(node) => r.node() == node && r.on_node().is_some(),
            Fault::FreezeNode(_) | Fault::DropConnection(_) => false,
        };
        for r in self.ranks.iter_mut().filter(hit) {
            if let Some(on_node) = r.on_node_mut() {
                on_node.hit(now);
            }
        }
        self.out.record(Record::Injected { fault: fault.to_string() });
        self.out.push(Command::Inject(fault));
    }
}
