//! Hosts that cannot reach each other, though the controller reaches both: a rank there waits for
//! ever for its router, and an image never comes to its store. Routers and stores move to where all
//! can reach them. Where there is no such place, one of the two nodes counts as lost. Nothing is
//! decided while the controller does not hear one of them: heartbeats tell what that means.

use super::io::{Command, StoreId};
use super::nodes::LostNode;
use super::reactor::Machine;
use super::role::Entry;
use super::state::RankStateName;
use crate::record::in_words;
use eyrie_transport::RouterId;
use eyrie_wire::control::Role;
use eyrie_wire::Node;

impl Machine {
    /// A node reaches another one again, or not any more.
    pub(super) fn reached(&mut self, from: Node, to: Node, reached: bool) {
        if from == to || [from, to].iter().any(|n| *n as usize >= self.nodes.len()) {
            return;
        }
        if reached {
            self.unreached.remove(&(from, to));
        } else {
            self.unreached.entry((from, to)).or_insert(self.now);
        }
        self.look_at = self.now;
    }

    /// Nothing is known any more of a node that is lost.
    pub(super) fn forget_reach(&mut self, node: Node) {
        self.unreached.retain(|(from, to), _| *from != node && *to != node);
    }

    /// Pairs of nodes of which one does not reach the other.
    pub fn unreached(&self) -> impl Iterator<Item = (Node, Node)> + '_ {
        self.unreached.keys().copied()
    }

    pub(super) fn cannot_meet(&self, one: Node, other: Node) -> bool {
        self.unreached.contains_key(&(one, other)) || self.unreached.contains_key(&(other, one))
    }

    /// Whether that is so for a while: a host that was cut off for a moment says it late.
    pub(super) fn lasts(&self, one: Node, other: Node) -> bool {
        let since = [(one, other), (other, one)].into_iter().filter_map(|p| self.unreached.get(&p));
        since.min().is_some_and(|since| self.now >= *since + self.heartbeat_interval() * 2)
    }

    /// A node with ranks that cannot meet this one.
    pub(super) fn rank_that_cannot_meet(&self, node: Node) -> Option<Node> {
        let living = self.ranks.iter().filter(|r| !r.is(RankStateName::Finished));
        living.map(|r| r.node).find(|of_rank| self.cannot_meet(*of_rank, node))
    }

    /// A node with ranks or another store that cannot meet this store's.
    pub(super) fn cannot_meet_store(&self, id: StoreId, node: Node) -> Option<Node> {
        let others = self.roles.stores.iter().filter(|(other, _)| **other != id);
        let other = others.map(|(_, s)| s.node).find(|other| self.cannot_meet(*other, node));
        other.or_else(|| self.rank_that_cannot_meet(node))
    }

    /// Moves routers away from nodes that ranks cannot reach, or parts with one of two nodes.
    pub(super) fn watch_reach(&mut self) {
        if self.unreached.is_empty() || !self.started || self.ended {
            return;
        }
        let silent: Vec<Node> = self.silent_nodes().into_iter().map(|(node, _)| node).collect();
        for id in 0..self.roles.routers.len() as RouterId {
            let Entry { node, generation, ref addr, .. } = self.roles.routers[id as usize];
            let Some(far) = self.rank_that_cannot_meet(node).filter(|_| addr.is_some()) else {
                continue;
            };
            if silent.contains(&node) || silent.contains(&far) || !self.lasts(far, node) {
                continue;
            }
            let (near, away) = (self.in_words(far), self.in_words(node));
            let cause = format!("{near} and {away} do not reach each other");
            let better = self.node_for_router(id);
            let better = better.filter(|better| self.rank_that_cannot_meet(*better).is_none());
            if better.is_some() && self.can_lose_log(id) {
                let role = Role::Router { id, generation };
                self.commands.push(Command::StopRole { node, role });
                self.router_lost(id, cause, false);
            } else {
                return self.part_with_one(far, node, cause);
            }
            if self.ended {
                return;
            }
        }
    }

    fn in_words(&self, node: Node) -> String {
        in_words(node, &self.config.hosts)
    }

    /// Whether all ranks of a router live, and nothing for them is at that router alone.
    fn can_lose_log(&self, id: RouterId) -> bool {
        let lives = |r: &super::rank::RankEntry| {
            r.is(RankStateName::Finished) || r.on_node().is_some() && !r.exposed
        };
        self.ranks_at(id).all(|rank| lives(&self.ranks[rank as usize]))
    }

    /// One of two nodes counts as lost: the one with the fewer ranks, but not the one whose router
    /// has what ranks still need.
    fn part_with_one(&mut self, far: Node, near: Node, cause: String) {
        let ranks =
            |node| self.unfinished().filter(|r| self.ranks[*r as usize].node == node).count();
        let needed = self.routers_on(near).into_iter().any(|id| !self.can_lose_log(id));
        let node = if needed || ranks(far) < ranks(near) { far } else { near };
        let cause = format!("{cause}, and no other node can do what one of them does");
        self.declare_dead(vec![LostNode::gone(node, cause)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::{Config, Event};
    use crate::record::Record;
    use eyrie_transport::Addr;
    use eyrie_wire::control::RankReport;
    use eyrie_wire::RankInstance;
    use std::time::Duration;

    /// A machine of so many nodes whose ranks run; and the time.
    struct Job {
        machine: Machine,
        now: Duration,
    }

    impl Job {
        /// The ranks are on these nodes; each node with ranks has a router of its own.
        fn new(nodes: u32, start: &[Node]) -> Job {
            let ranks = start.len() as u32;
            let config = Config {
                ranks,
                routers: ranks,
                start: start.to_vec(),
                heartbeat_timeout: Duration::from_secs(4),
                ..Config::with_roles_on(nodes)
            };
            let mut job = Job { machine: Machine::new(config), now: Duration::ZERO };
            (0..nodes).for_each(|node| drop(job.tell(Event::AgentUp(node))));
            for rank in 0..ranks {
                let instance = RankInstance { rank, incarnation: 1 };
                let (fetched, restored) = (Duration::ZERO, Duration::ZERO);
                job.tell(Event::Rank(instance, RankReport::Started { fetched, restored }));
                job.tell(Event::Rank(instance, RankReport::ProviderLoaded));
            }
            job
        }

        /// What is lost after this; roles that are started listen, and nodes answer.
        fn tell(&mut self, event: Event) -> Vec<String> {
            let mut lost = Vec::new();
            for command in self.machine.handle(self.now, event) {
                match command {
                    Command::StartRole { role, .. } => {
                        let addr = Addr::Unix(format!("/{role}").into());
                        lost.extend(self.tell(Event::RoleUp { role, addr }));
                    }
                    Command::Heartbeat { node, n } => {
                        lost.extend(self.tell(Event::Heartbeat { node, n }));
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

        fn parted(&mut self, from: Node, to: Node) -> Vec<String> {
            self.tell(Event::Reached { from, to, reached: false })
        }

        /// So many seconds pass; what is lost in them.
        fn pass(&mut self, seconds: u64) -> Vec<String> {
            let mut lost = Vec::new();
            for _ in 0..seconds * 10 {
                self.now += Duration::from_millis(100);
                lost.extend(self.tell(Event::Tick));
            }
            lost
        }

        fn on(&self, role: &str) -> Vec<Node> {
            let roles = self.machine.roles().filter(|(r, _)| r.to_string().starts_with(role));
            roles.map(|(_, node)| node).collect()
        }
    }

    #[test]
    fn routers_and_stores_move_to_where_ranks_reach_them() {
        let mut job = Job::new(4, &[0]);
        assert_eq!((job.on("router"), job.on("store")), (vec![1], vec![1, 2]));
        assert!(job.parted(1, 0).is_empty(), "it may last for a moment only");
        assert_eq!(job.pass(3), ["router 0 on 1", "store 0 on 1"]);
        assert_eq!((job.on("router"), job.on("store")), (vec![2], vec![2, 3]));
        // What heals is no reason to move back.
        job.tell(Event::Reached { from: 1, to: 0, reached: true });
        assert!(job.pass(5).is_empty());
    }

    #[test]
    fn a_moment_of_silence_moves_nothing() {
        let mut job = Job::new(4, &[0]);
        job.parted(1, 0);
        job.pass(1);
        job.tell(Event::Reached { from: 1, to: 0, reached: true });
        assert!(job.pass(5).is_empty());
    }

    #[test]
    fn where_no_other_node_is_left_one_of_both_counts_as_lost() {
        let mut job = Job::new(2, &[0, 1]);
        job.parted(0, 1);
        assert_eq!(job.pass(3)[0], "node 1");
        // The router has what only it has: then its node must stay, and the rank goes there.
        let mut job = Job::new(2, &[0, 1]);
        job.tell(Event::Exposed { rank: 0, exposed: true });
        job.parted(0, 1);
        assert_eq!(job.pass(3)[0], "node 0");
    }
}
