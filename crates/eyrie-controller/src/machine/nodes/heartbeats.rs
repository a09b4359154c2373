//! Nodes: which are up, which answer their heartbeats, which are declared dead. All nodes that are
//! declared dead at one time are known to be before anything is decided for one of them.

use super::entry::NodeEntry;
use super::watch::Watch;
use crate::machine::io::Command;
use crate::machine::outbox::consequence::{Consequence, LostNode};
use crate::machine::ranks::entry::RankEntry;
use crate::machine::state::{NodeEvent, RankStateName};
use crate::record::Record;
use eyrie_units::time;
use eyrie_wire::control::ToAgent;
use eyrie_wire::{NodeId, Rank};
use std::time::Duration;

fn is_silent(node: NodeId, unheard: Duration, timeout: Duration) -> LostNode {
    let (unheard_for, limit) = (time(unheard), time(timeout));
    let cause = format!(
        "it has not answered for {unheard_for} (--heartbeat-timeout is {limit}: give more if it was \
         only slow)"
    );
    LostNode { node, event: NodeEvent::HeartbeatMissed, cause, unheard }
}

impl Watch<'_> {
    /// The agent of a node has proven itself; false when it was there, or is declared dead.
    pub fn agent_up(&mut self, node: NodeId) -> bool {
        let now = self.out.now();
        let came = self.nodes.get_mut(node).is_some_and(|n| n.advance(NodeEvent::AgentUp, now));
        if came {
            self.nodes.no_longer_missing();
        }
        came
    }

    pub fn agent_gone(&mut self, node: NodeId) {
        // The connection that it had before may be the one that ends.
        let returns = self.contact.is_cut_off() && !self.contact.is_here(node);
        if self.config.agents_come_back && returns || self.contact.may_return(node) {
            return;
        }
        let lost = vec![LostNode::gone(node, "its agent is gone".into())];
        self.out.follows(Consequence::NodesLost(lost));
    }

    /// Another controller goes on: what nodes were asked, and have answered, may be lost.
    pub fn ask_again(&mut self) {
        let now = self.out.now();
        for (_, heartbeat) in self.nodes.heartbeats_mut() {
            heartbeat.hear(now);
        }
    }

    /// The answer to a heartbeat.
    pub fn heartbeat(&mut self, node: NodeId, n: u64) {
        let heartbeat = self.nodes.get_mut(node).and_then(NodeEntry::heartbeat_mut);
        if heartbeat.is_some_and(|heartbeat| heartbeat.is_last(n)) {
            self.node_heard(node);
        }
    }

    /// A node that is up is there: the next heartbeat may be asked for. When its agent has another
    /// connection, what it was asked over the last one is lost.
    pub fn node_heard(&mut self, node: NodeId) {
        let now = self.out.now();
        let heartbeat = self.nodes.get_mut(node).and_then(NodeEntry::heartbeat_mut);
        if let Some(heartbeat) = heartbeat {
            heartbeat.hear(now);
            self.hear_again(node);
        }
    }

    /// Asks the nodes for a heartbeat; declares those dead that do not answer.
    pub fn watch_nodes(&mut self) {
        let timeout = self.config.heartbeat_timeout;
        self.ask_nodes();
        let silent = self.nodes.silent(self.out.now());
        let overdue: Vec<LostNode> = silent
            .iter()
            .filter(|(_, unheard)| *unheard >= timeout)
            .map(|(node, unheard)| is_silent(*node, *unheard, timeout))
            .collect();
        let all: Vec<NodeId> = silent.iter().map(|(node, _)| *node).collect();
        let late: Vec<NodeId> = overdue.iter().map(|lost| lost.node).collect();
        if self.contact.is_cut_off() {
            if self.ends_waiting() {
                self.out.follows(Consequence::NodesLost(overdue));
            }
            return;
        }
        // When no other host answers, it may be this one that is cut off. That is known when each
        // has had its time.
        let all_silent = all.len() == self.nodes.up().count();
        if (all_silent || self.may_be_cut_off(&all)) && late.len() < all.len() {
            return;
        }
        if self.may_be_cut_off(&late) {
            return self.step_aside();
        }
        self.seek_silent(&late);
        self.out.follows(Consequence::NodesLost(overdue));
    }

    /// They may only be cut off, and have another controller.
    fn seek_silent(&mut self, lost: &[NodeId]) {
        let sought: Vec<NodeId> =
            lost.iter().copied().filter(|node| !self.contact.is_here(*node)).collect();
        if self.config.agents_come_back && self.out.has_started() && !sought.is_empty() {
            self.out.push(Command::Seek(sought));
        }
    }

    fn ask_nodes(&mut self) {
        let now = self.out.now();
        let interval = self.nodes.heartbeat_interval();
        for (node, heartbeat) in self.nodes.heartbeats_mut() {
            if heartbeat.is_due(now, interval) {
                let n = heartbeat.ask(now);
                self.out.send_agent(node, ToAgent::Heartbeat { n });
            }
        }
    }

    /// Declares nodes dead. Returns those that were not before, with the ranks that each had; none
    /// when the job ends by that.
    pub fn declare_dead(&mut self, lost: Vec<LostNode>) -> Vec<(LostNode, Vec<Rank>)> {
        let lost = lost.into_iter().filter_map(|lost| self.record_dead(lost));
        let lost: Vec<(LostNode, Vec<Rank>)> = lost.collect();
        let Some((LostNode { node, cause, .. }, _)) = lost.first() else { return lost };
        if !self.out.has_started() {
            let text = format!("node {node} was lost before the job started: {cause}");
            self.out.end(1, Some(text));
            return Vec::new();
        }
        if self.nodes.up().next().is_none() {
            self.out.end(1, Some("no node is left".into()));
            return Vec::new();
        }
        lost
    }

    /// Notes that a node is dead. The ranks that it had; `None` when that was known before.
    fn record_dead(&mut self, lost: LostNode) -> Option<(LostNode, Vec<Rank>)> {
        let now = self.out.now();
        let node = lost.node;
        let entry = self.nodes.get_mut(node)?;
        let was_up = entry.is_up();
        if !entry.advance(lost.event, now) {
            return None;
        }
        let leaves = entry.leaves();
        let drained = entry.is_drained();
        self.contact.forget(node);
        self.reach.forget(node);
        if !was_up {
            self.nodes.no_longer_missing();
        }
        self.out.push(Command::Disconnect(node));
        let gone = |r: &&RankEntry| r.node() == node && r.is_living() && !r.is(RankStateName::Lost);
        let ranks: Vec<Rank> = self.ranks.iter().filter(gone).map(RankEntry::rank).collect();
        let was_free = drained && self.roles.is_free(self.ranks, node);
        if was_free || (leaves && ranks.is_empty()) {
            self.out.record(Record::NodeLeft { node });
        } else if was_up || !self.out.has_started() {
            // One that was to join, and never came, is no loss; why it did not come is said.
            self.out.summary_mut().nodes_lost += 1;
            let cause = lost.cause.clone();
            self.out.record(Record::NodeLost { node, cause, ranks: ranks.clone() });
        }
        Some((lost, ranks))
    }

    /// The silent nodes in words that may follow on why the job ends: then it is this host that may
    /// be cut off.
    pub fn which_are_silent(&self) -> String {
        let silent = self.nodes.silent(self.out.now());
        let Some(least) = silent.iter().map(|(_, silent)| *silent).min() else {
            return String::new();
        };
        let (nodes, have) = match silent.len() {
            1 => (format!("node {}", silent[0].0), "has"),
            many => (format!("{many} other nodes"), "have"),
        };
        let least = time(least);
        format!("; {nodes} {have} not answered for {least} either: is this host cut off from them?")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::{said, Config, Event, Machine};

    fn machine_of_two_nodes() -> Machine {
        let heartbeat_timeout = Duration::from_millis(40);
        let config = Config { nodes: 2, heartbeat_timeout, ..Config::of_one_rank() };
        let mut machine = Machine::new(config);
        machine.handle(Duration::ZERO, Event::NodesHere(vec![NodeId(0), NodeId(1)]));
        machine
    }

    #[test]
    fn nodes_that_are_all_silent_are_lost_though_nothing_else_happens() {
        let mut machine = machine_of_two_nodes();
        let mut now = Duration::ZERO;
        machine.handle(now, said::joined(NodeId(0)));
        machine.handle(now, said::joined(NodeId(1)));
        for _ in 0..20 {
            // The runtime sleeps until then.
            now = machine.next_tick().map_or(now, |at| at.max(now));
            machine.handle(now, Event::Tick);
        }
        assert!(!machine.nodes_up().any(|up| up), "at {now:?}");
        assert!(now < Duration::from_millis(50), "only at {now:?}");
    }

    #[test]
    fn time_in_which_the_controller_had_no_processor_does_not_count() {
        let mut machine = machine_of_two_nodes();
        let mut now = Duration::ZERO;
        machine.handle(now, said::joined(NodeId(0)));
        machine.handle(now, said::joined(NodeId(1)));
        let mut on_time = Duration::ZERO;
        while machine.nodes_up().any(|up| up) {
            let due = machine.next_tick().expect("it goes on");
            on_time += due.saturating_sub(now);
            // Each time a bit later, though never by as much as a node has.
            now = due.max(now) + Duration::from_millis(9);
            machine.handle(now, Event::Tick);
            assert!(now < Duration::from_secs(1), "silent nodes are never lost");
        }
        assert!(on_time > Duration::from_millis(30), "lost after {on_time:?} of {now:?}");
    }

    #[test]
    fn a_job_that_ends_says_which_nodes_are_silent() {
        let mut machine = machine_of_two_nodes();
        machine.handle(Duration::ZERO, said::joined(NodeId(0)));
        machine.handle(Duration::ZERO, said::joined(NodeId(1)));
        machine.handle(Duration::from_millis(11), Event::Tick);
        machine.handle(Duration::from_millis(12), said::heartbeat(NodeId(0), 1));
        assert_eq!(machine.watch().which_are_silent(), "");
        machine.out.set_now(Duration::from_millis(25));
        let silent = "; node 1 has not answered for 25 ms either: is this host cut off from them?";
        assert_eq!(machine.watch().which_are_silent(), silent);
    }

    #[test]
    fn where_no_node_answers_none_is_lost_before_all_have_had_their_time() {
        let mut machine = machine_of_two_nodes();
        machine.handle(Duration::ZERO, said::joined(NodeId(0)));
        machine.handle(Duration::ZERO, said::joined(NodeId(1)));
        machine.handle(Duration::from_millis(11), Event::Tick);
        machine.handle(Duration::from_millis(19), said::heartbeat(NodeId(1), 1));
        let up_at = |machine: &mut Machine, ms| {
            // On time, since for a controller that comes late no node is late.
            while machine.next_tick().is_some_and(|due| due < Duration::from_millis(ms)) {
                machine.handle(machine.next_tick().unwrap(), Event::Tick);
            }
            machine.nodes_up().filter(|up| *up).count()
        };
        assert_eq!(up_at(&mut machine, 58), 2, "one was lost before it is known of the other");
        assert_eq!(up_at(&mut machine, 70), 0);
    }

    #[test]
    fn a_silent_node_is_lost_as_soon_as_another_one_has_answered() {
        let mut machine = machine_of_two_nodes();
        machine.handle(Duration::ZERO, said::joined(NodeId(0)));
        machine.handle(Duration::ZERO, said::joined(NodeId(1)));
        for at in 1..=44 {
            let now = Duration::from_millis(at);
            machine.handle(now, Event::Tick);
            if at % 11 == 0 {
                machine.handle(now, said::heartbeat(NodeId(1), at / 11));
            }
        }
        assert_eq!(machine.nodes_up().collect::<Vec<_>>(), [false, true]);
    }

    #[test]
    fn a_silent_node_is_lost_with_the_time_and_what_to_do_about_it() {
        let mut machine = machine_of_two_nodes();
        let mut lost = String::new();
        for (at, event) in [(0, said::joined(NodeId(0))), (0, said::joined(NodeId(1)))]
            .into_iter()
            .chain((1..60).map(|at| (at, Event::Tick)))
        {
            for command in machine.handle(Duration::from_millis(at), event) {
                if let Command::Record(Record::NodeLost { cause, .. }) = command {
                    lost = cause;
                }
            }
        }
        assert_eq!(
            lost,
            "it has not answered for 40 ms (--heartbeat-timeout is 40 ms: give more if it was only \
             slow)"
        );
    }

    /// The job with a rank on the first of two nodes runs.
    fn running() -> Machine {
        let mut machine = machine_of_two_nodes();
        for node in [0, 1] {
            machine.handle(Duration::ZERO, said::joined(NodeId(node)));
        }
        assert!(machine.has_started());
        machine
    }

    fn records(machine: &mut Machine, event: Event) -> Vec<Record> {
        let commands = machine.handle(Duration::ZERO, event);
        let record = |c| if let Command::Record(record) = c { Some(record) } else { None };
        commands.into_iter().filter_map(record).collect()
    }

    #[test]
    fn a_node_that_was_drained_and_one_that_never_came_are_no_losses() {
        let mut machine = running();
        machine.handle(Duration::ZERO, Event::Drain { request: Some(1), node: NodeId(1) });
        let told = records(&mut machine, Event::AgentGone(NodeId(1)));
        assert!(matches!(told[..], [Record::NodeLeft { node: NodeId(1) }]), "{told:?}");
        machine.handle(Duration::ZERO, Event::Joining { host: "c".into() });
        let told = records(&mut machine, Event::AgentGone(NodeId(2)));
        assert!(told.is_empty(), "{told:?}");
        assert_eq!(machine.summary().nodes_lost, 0);
        let told = records(&mut machine, Event::AgentGone(NodeId(0)));
        assert!(matches!(told[0], Record::NodeLost { node: NodeId(0), .. }), "{told:?}");
        assert_eq!(machine.summary().nodes_lost, 1);
    }
}
