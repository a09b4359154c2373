//! Hosts that cannot reach each other, though the controller reaches both: a rank there waits for
//! ever for its router, and an image never comes to its store. Each kind of role moves to where all
//! can reach it. Where there is no such place, one of the two nodes counts as lost.

use super::hosting::Hosting;
use crate::machine::outbox::consequence::{Consequence, LostNode};
use eyrie_wire::NodeId;

impl Hosting<'_> {
    /// One of two nodes counts as lost: the one with the fewer ranks, but not the one with a role
    /// that has what ranks still need. `is_needed`: that is so with `near`.
    pub fn part_with_one(&mut self, far: NodeId, near: NodeId, is_needed: bool, cause: String) {
        let ranks =
            |node| self.ranks.unfinished().filter(|r| self.ranks[*r].node() == node).count();
        let node = if is_needed || ranks(far) < ranks(near) { far } else { near };
        let cause = format!("{cause}, and no other node can do what one of them does");
        let lost = vec![LostNode::gone(node, cause)];
        self.out.follows(Consequence::NodesLost(lost));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::said;
    use crate::machine::ToPeer;
    use crate::machine::{Command, Config, Event, Machine};
    use crate::record::Record;
    use eyrie_wire::control::RankReport;
    use eyrie_wire::control::ToAgent;
    use eyrie_wire::role_address::Addr;
    use eyrie_wire::RankInstance;
    use eyrie_wire::{Incarnation, Rank};
    use std::time::Duration;

    /// A machine of so many nodes whose ranks run; and the time.
    struct Job {
        machine: Machine,
        now: Duration,
    }

    impl Job {
        /// The ranks are on these nodes; each node with ranks has a router of its own.
        fn new(nodes: u32, start: &[NodeId]) -> Job {
            let ranks = start.len() as u32;
            let config = Config {
                ranks,
                routers: ranks,
                start: start.to_vec(),
                heartbeat_timeout: Duration::from_secs(4),
                ..Config::with_roles_on(nodes)
            };
            let mut job = Job { machine: Machine::new(config), now: Duration::ZERO };
            (0..nodes).for_each(|node| drop(job.handle(said::joined(NodeId(node)))));
            for rank in 0..ranks {
                let instance = RankInstance { rank: Rank(rank), incarnation: Incarnation(1) };
                let fetched = Duration::ZERO;
                let restored = Duration::ZERO;
                job.handle(said::rank(instance, RankReport::Started { fetched, restored }));
                job.handle(said::rank(instance, RankReport::ProviderLoaded));
            }
            job
        }

        /// What is lost after this; roles that are started listen, and nodes answer.
        fn handle(&mut self, event: Event) -> Vec<String> {
            let mut lost = Vec::new();
            for command in self.machine.handle(self.now, event) {
                match command {
                    Command::StartRole { role, .. } => {
                        let addr = Addr::Unix(format!("/{role}").into());
                        lost.extend(self.handle(said::listens(role, addr)));
                    }
                    Command::Send(ToPeer::Agent(node, ToAgent::Heartbeat { n })) => {
                        lost.extend(self.handle(said::heartbeat(node, n)));
                    }
                    Command::Record(Record::RoleLost { role, node, .. }) => {
                        lost.push(format!("{role} on {node}"));
                    }
                    Command::Record(Record::NodeLost { node, .. }) => {
                        lost.push(format!("node {node}"));
                    }
                    _ => {}
                }
            }
            lost
        }

        fn parted(&mut self, from: NodeId, to: NodeId) -> Vec<String> {
            self.handle(said::reached(from, to, false))
        }

        /// So many seconds pass; what is lost in them.
        fn pass(&mut self, seconds: u64) -> Vec<String> {
            let mut lost = Vec::new();
            for _ in 0..seconds * 10 {
                self.now += Duration::from_millis(100);
                lost.extend(self.handle(Event::Tick));
            }
            lost
        }

        fn on(&self, role: &str) -> Vec<NodeId> {
            let roles = self.machine.roles().filter(|(r, _)| r.to_string().starts_with(role));
            roles.map(|(_, node)| node).collect()
        }
    }

    #[test]
    fn routers_and_stores_move_to_where_ranks_reach_them() {
        let mut job = Job::new(4, &[NodeId(0)]);
        assert_eq!(
            (job.on("router"), job.on("store")),
            ([1].map(NodeId).to_vec(), [1, 2].map(NodeId).to_vec())
        );
        assert!(job.parted(NodeId(1), NodeId(0)).is_empty(), "it may last for a moment only");
        assert_eq!(job.pass(3), ["router 0 on 1", "store 0 on 1"]);
        assert_eq!(
            (job.on("router"), job.on("store")),
            ([2].map(NodeId).to_vec(), [2, 3].map(NodeId).to_vec())
        );
        // What heals is no reason to move back.
        job.handle(said::reached(NodeId(1), NodeId(0), true));
        assert!(job.pass(5).is_empty());
    }

    #[test]
    fn a_moment_of_silence_moves_nothing() {
        let mut job = Job::new(4, &[NodeId(0)]);
        job.parted(NodeId(1), NodeId(0));
        job.pass(1);
        job.handle(said::reached(NodeId(1), NodeId(0), true));
        assert!(job.pass(5).is_empty());
    }

    #[test]
    fn where_no_other_node_is_left_one_of_both_counts_as_lost() {
        let mut job = Job::new(2, &[NodeId(0), NodeId(1)]);
        job.parted(NodeId(0), NodeId(1));
        assert_eq!(job.pass(3)[0], "node 1");
        // The router has what only it has: then its node must stay, and the rank goes there.
        let mut job = Job::new(2, &[NodeId(0), NodeId(1)]);
        job.handle(said::exposed(Rank(0)));
        job.parted(NodeId(0), NodeId(1));
        assert_eq!(job.pass(3)[0], "node 0");
    }
}
