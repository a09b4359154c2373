//! Nodes: who is up, who answers its heartbeats, who is declared dead.

use super::io::Command;
use super::node::{NodeEntry, NodeState};
use super::rank::{Death, RankEntry};
use super::reactor::Machine;
use super::state::{NodeEvent, RankStateName};
use crate::record::Record;
use eyrie_placement::placement::JobNode;
use eyrie_units::time;
use eyrie_wire::{Node, Rank};
use std::time::Duration;

/// A node that is to be declared dead, and for how long nothing was heard of it.
pub struct LostNode {
    node: Node,
    event: NodeEvent,
    cause: String,
    unheard: Duration,
}

impl LostNode {
    /// One whose agent is gone, or counts as gone.
    pub(super) fn gone(node: Node, cause: String) -> LostNode {
        LostNode { node, event: NodeEvent::AgentGone, cause, unheard: Duration::ZERO }
    }

    fn by_silence(node: Node, unheard: Duration, timeout: Duration) -> LostNode {
        let (unheard_for, limit) = (time(unheard), time(timeout));
        let cause = format!(
            "it has not answered for {unheard_for} (--heartbeat-timeout is {limit}: give more if \
             it was only slow)"
        );
        LostNode { node, event: NodeEvent::HeartbeatMissed, cause, unheard }
    }
}

impl Machine {
    pub(super) fn heartbeat_interval(&self) -> Duration {
        self.config.heartbeat_timeout / 4
    }

    /// Time goes on. When this comes later than it should have, the controller itself was stopped,
    /// or had no processor: all deadlines move by as much. So they do while it stands aside.
    pub(super) fn pass_time(&mut self, now: Duration) {
        let due = self.next_tick().unwrap_or(now).max(self.now);
        let passed = now.saturating_sub(self.now);
        self.now = now;
        let late = match self.cut_off.is_some() {
            true => passed,
            false => now.saturating_sub(due),
        };
        if late > self.heartbeat_interval() / 8 || self.cut_off.is_some() {
            for heartbeat in self.nodes.iter_mut().filter_map(NodeEntry::heartbeat_mut) {
                heartbeat.asked_at += late;
                heartbeat.heard_at += late;
            }
            for r in &mut self.ranks {
                r.state.extend(late);
                r.imaged += late;
            }
            self.moves.extend(late);
            self.extend_roles(late);
            self.unreached.values_mut().for_each(|since| *since += late);
        }
    }

    pub(super) fn agent_up(&mut self, node: Node) {
        let now = self.now;
        let Some(entry) = self.nodes.get_mut(node as usize) else { return };
        if entry.advance(NodeEvent::AgentUp, now) {
            self.missing_nodes -= 1;
            if self.started {
                let before = self.pmi.so_far(Some(node));
                self.commands.extend(before);
                // It may have what is missing.
                self.look_at = now;
            }
            self.record(Record::NodeUp { node });
        }
    }

    /// One more node, which stays free until ranks need it.
    pub(super) fn joining(&mut self, host: String) {
        self.nodes.push(NodeEntry::new(true));
        self.missing_nodes += 1;
        self.config.spares += 1;
        self.config.hosts.push(host);
    }

    pub(super) fn agent_gone(&mut self, node: Node) {
        // The connection that it had before may be the one that ends.
        let returns = self.is_cut_off() && !self.home.contains(&node);
        if self.config.agents_come_back && returns || self.returning.contains(&node) {
            return;
        }
        self.declare_dead(vec![LostNode::gone(node, "its agent is gone".into())]);
    }

    /// Another controller goes on: what nodes were asked, and have answered, may be lost.
    pub(super) fn resumed(&mut self) {
        self.summary.resumes += 1;
        self.record(Record::Resumed);
        self.cut_off = None;
        self.give_up_saving("its controller has died meanwhile");
        self.forget_copies_to_archive();
        for heartbeat in self.nodes.iter_mut().filter_map(NodeEntry::heartbeat_mut) {
            heartbeat.answered = true;
            heartbeat.heard_at = self.now;
        }
    }

    /// The answer to a heartbeat.
    pub(super) fn heartbeat(&mut self, node: Node, n: u64) {
        let heartbeat = self.nodes.get_mut(node as usize).and_then(NodeEntry::heartbeat_mut);
        if heartbeat.is_some_and(|heartbeat| heartbeat.asked == n) {
            self.node_heard(node);
        }
    }

    /// An agent has another connection: what it was asked over the last one is lost.
    pub(super) fn agent_back(&mut self, node: Node) {
        self.node_heard(node);
    }

    /// A node that is up is there: the next heartbeat may be asked for.
    fn node_heard(&mut self, node: Node) {
        let now = self.now;
        let heartbeat = self.nodes.get_mut(node as usize).and_then(NodeEntry::heartbeat_mut);
        if let Some(heartbeat) = heartbeat {
            heartbeat.answered = true;
            heartbeat.heard_at = now;
            self.hear_again(node);
        }
    }

    pub(super) fn next_heartbeat(&self) -> Option<Duration> {
        let up = self.nodes.iter().filter_map(|n| match &n.state {
            NodeState::Up(heartbeat) => Some(heartbeat),
            _ => None,
        });
        // Never later than this: a longer sleep would look like a controller that was stopped.
        let soon = self.now + self.heartbeat_interval();
        up.map(|h| match h.answered {
            true => h.asked_at + self.heartbeat_interval(),
            false => (h.heard_at + self.config.heartbeat_timeout).min(soon),
        })
        .min()
    }

    /// Asks the nodes for a heartbeat; declares those dead that do not answer.
    pub(super) fn watch_nodes(&mut self) {
        let timeout = self.config.heartbeat_timeout;
        self.ask_nodes();
        let silent = self.silent_nodes();
        let overdue: Vec<LostNode> = silent
            .iter()
            .filter(|(_, unheard)| *unheard >= timeout)
            .map(|(node, unheard)| LostNode::by_silence(*node, *unheard, timeout))
            .collect();
        let all: Vec<Node> = silent.iter().map(|(node, _)| *node).collect();
        let late: Vec<Node> = overdue.iter().map(|lost| lost.node).collect();
        if self.is_cut_off() {
            if self.ends_waiting() {
                self.declare_dead(overdue);
            }
            return;
        }
        // When no other host answers, it may be this one that is cut off. That is known when each
        // has had its time.
        let all_silent = all.len() == self.nodes.iter().filter(|n| n.is_up()).count();
        if (all_silent || self.may_be_cut_off(&all)) && late.len() < all.len() {
            return;
        }
        if self.may_be_cut_off(&late) {
            return self.step_aside();
        }
        self.seek_silent(&late);
        self.declare_dead(overdue);
    }

    /// They may only be cut off, and have another controller.
    fn seek_silent(&mut self, lost: &[Node]) {
        let sought: Vec<Node> =
            lost.iter().copied().filter(|node| !self.home.contains(node)).collect();
        if self.config.agents_come_back && self.started && !sought.is_empty() {
            self.commands.push(Command::Seek(sought));
        }
    }

    fn ask_nodes(&mut self) {
        let (now, interval) = (self.now, self.heartbeat_interval());
        for (node, entry) in (0..).zip(&mut self.nodes) {
            let Some(heartbeat) = entry.heartbeat_mut() else { continue };
            if heartbeat.answered && now >= heartbeat.asked_at + interval {
                heartbeat.asked += 1;
                heartbeat.asked_at = now;
                heartbeat.answered = false;
                self.commands.push(Command::Heartbeat { node, n: heartbeat.asked });
            }
        }
    }

    /// Declares nodes dead. All of them are known to be before anything is decided for one of them.
    pub(super) fn declare_dead(&mut self, lost: Vec<LostNode>) {
        let lost: Vec<(LostNode, Vec<Rank>)> =
            lost.into_iter().filter_map(|lost| self.record_dead(lost)).collect();
        let Some((LostNode { node, cause, .. }, _)) = lost.first() else { return };
        if !self.started {
            self.end(1, Some(format!("node {node} was lost before the job started: {cause}")));
            return;
        }
        if !self.nodes.iter().any(NodeEntry::is_up) {
            self.end(1, Some("no node is left".into()));
            return;
        }
        // What is lost with any of them is known before ranks are brought back, or moves begin
        // anew.
        lost.iter().for_each(|(lost, _)| self.roles_of_lost_node(lost.node));
        if !self.ended {
            lost.iter().for_each(|(lost, _)| self.live_on_lost_node(lost.node));
        }
        for (LostNode { node, unheard, .. }, ranks) in lost {
            for rank in ranks {
                if self.ended {
                    return;
                }
                let cause = format!("node {node} is lost");
                self.fail(rank, Death::Outside, cause, Some(unheard));
            }
        }
    }

    /// Notes that a node is dead. The ranks that it had; `None` when that was known before.
    fn record_dead(&mut self, lost: LostNode) -> Option<(LostNode, Vec<Rank>)> {
        let (now, node) = (self.now, lost.node);
        let entry = self.nodes.get_mut(node as usize)?;
        let was_up = entry.is_up();
        if !entry.advance(lost.event, now) {
            return None;
        }
        let (leaves, drained) = (entry.leaves, entry.drained);
        self.returning.remove(&node);
        self.forget_reach(node);
        self.missing_nodes -= usize::from(!was_up);
        self.commands.push(Command::Disconnect(node));
        let gone = |r: &&RankEntry| {
            r.node == node && !r.is(RankStateName::Finished) && !r.is(RankStateName::Lost)
        };
        let ranks: Vec<Rank> = self.ranks.iter().filter(gone).map(|r| r.rank).collect();
        let was_free = drained && self.is_free(node);
        if was_free || (leaves && ranks.is_empty()) {
            self.record(Record::NodeLeft { node });
        } else if was_up || !self.started {
            // One that was to join, and never came, is no loss; why it did not come is said.
            self.summary.nodes_lost += 1;
            let cause = lost.cause.clone();
            self.record(Record::NodeLost { node, cause, ranks: ranks.clone() });
        }
        Some((lost, ranks))
    }

    /// Nodes that have missed two heartbeats or more, and for how long nothing was heard of each.
    pub(super) fn silent_nodes(&self) -> Vec<(Node, Duration)> {
        let (now, long) = (self.now, self.heartbeat_interval() * 2);
        let silent_for = |node: &NodeEntry| match &node.state {
            NodeState::Up(heartbeat) if !heartbeat.answered => {
                Some(now.saturating_sub(heartbeat.heard_at)).filter(|silent| *silent > long)
            }
            _ => None,
        };
        (0..).zip(&self.nodes).filter_map(|(n, entry)| Some((n, silent_for(entry)?))).collect()
    }

    /// The silent nodes in words that may follow on why the job ends: then it is this host that may
    /// be cut off.
    pub(super) fn who_is_silent(&self) -> String {
        let silent = self.silent_nodes();
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

    /// What placement knows of the nodes.
    pub(super) fn job_nodes(&self) -> Vec<JobNode> {
        let known = |n: &NodeEntry| JobNode {
            up: n.is_up(),
            free_spare: n.free_spare,
            ranks: 0,
            stands_for: n.stands_for,
        };
        let mut nodes: Vec<JobNode> = self.nodes.iter().map(known).collect();
        for r in self.ranks.iter().filter(|r| r.on_node().is_some()) {
            nodes[r.node as usize].ranks += 1;
        }
        nodes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::{Config, Event};

    fn machine_of_two_nodes() -> Machine {
        let heartbeat_timeout = Duration::from_millis(40);
        let config = Config { nodes: 2, heartbeat_timeout, ..Config::of_one_rank() };
        let mut machine = Machine::new(config);
        machine.handle(Duration::ZERO, Event::Home(vec![0, 1]));
        machine
    }

    #[test]
    fn nodes_that_are_all_silent_are_lost_though_nothing_else_happens() {
        let mut machine = machine_of_two_nodes();
        let mut now = Duration::ZERO;
        machine.handle(now, Event::AgentUp(0));
        machine.handle(now, Event::AgentUp(1));
        for _ in 0..20 {
            // Whoever runs the machine sleeps until then.
            now = machine.next_tick().map_or(now, |at| at.max(now));
            machine.handle(now, Event::Tick);
        }
        assert!(!machine.nodes_up().any(|up| up), "at {now:?}");
        assert!(now < Duration::from_millis(50), "only at {now:?}");
    }

    #[test]
    fn time_in_which_the_controller_had_no_processor_is_nobodys_fault() {
        let mut machine = machine_of_two_nodes();
        let mut now = Duration::ZERO;
        machine.handle(now, Event::AgentUp(0));
        machine.handle(now, Event::AgentUp(1));
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
        machine.handle(Duration::ZERO, Event::AgentUp(0));
        machine.handle(Duration::ZERO, Event::AgentUp(1));
        machine.handle(Duration::from_millis(11), Event::Tick);
        machine.handle(Duration::from_millis(12), Event::Heartbeat { node: 0, n: 1 });
        assert_eq!(machine.who_is_silent(), "");
        machine.now = Duration::from_millis(25);
        let silent = "; node 1 has not answered for 25 ms either: is this host cut off from them?";
        assert_eq!(machine.who_is_silent(), silent);
    }

    #[test]
    fn who_hears_of_nobody_loses_no_node_before_all_have_had_their_time() {
        let mut machine = machine_of_two_nodes();
        machine.handle(Duration::ZERO, Event::AgentUp(0));
        machine.handle(Duration::ZERO, Event::AgentUp(1));
        machine.handle(Duration::from_millis(11), Event::Tick);
        machine.handle(Duration::from_millis(19), Event::Heartbeat { node: 1, n: 1 });
        let up_at = |machine: &mut Machine, ms| {
            // On time, since a controller that comes late blames nobody.
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
        machine.handle(Duration::ZERO, Event::AgentUp(0));
        machine.handle(Duration::ZERO, Event::AgentUp(1));
        for at in 1..=44 {
            let now = Duration::from_millis(at);
            machine.handle(now, Event::Tick);
            if at % 11 == 0 {
                machine.handle(now, Event::Heartbeat { node: 1, n: at / 11 });
            }
        }
        assert_eq!(machine.nodes_up().collect::<Vec<_>>(), [false, true]);
    }

    #[test]
    fn a_silent_node_is_lost_with_the_time_and_what_to_do_about_it() {
        let mut machine = machine_of_two_nodes();
        let mut lost = String::new();
        for (at, event) in [(0, Event::AgentUp(0)), (0, Event::AgentUp(1))]
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
            machine.handle(Duration::ZERO, Event::AgentUp(node));
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
        machine.handle(Duration::ZERO, Event::Drain { request: Some(1), node: 1 });
        let told = records(&mut machine, Event::AgentGone(1));
        assert!(matches!(told[..], [Record::NodeLeft { node: 1 }]), "{told:?}");
        machine.handle(Duration::ZERO, Event::Joining { host: "c".into() });
        let told = records(&mut machine, Event::AgentGone(2));
        assert!(told.is_empty(), "{told:?}");
        assert_eq!(machine.summary().nodes_lost, 0);
        let told = records(&mut machine, Event::AgentGone(0));
        assert!(matches!(told[0], Record::NodeLost { node: 0, .. }), "{told:?}");
        assert_eq!(machine.summary().nodes_lost, 1);
    }
}
