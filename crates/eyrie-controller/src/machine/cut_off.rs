//! The host of the controller may be cut off: no node on another host answers, and the controller
//! cannot tell whether they are lost or its own host is. It steps aside as if it had died:
//! the nodes go on by themselves, for as long as they do without a controller, and it decides
//! nothing about them. It goes on when it hears of half of the nodes again, and ends when they have
//! another controller. No node is declared dead meanwhile.

use super::io::Command;
use super::node::{CutOff, NodeEntry};
use super::reactor::Machine;
use crate::record::{in_words, Record};
use eyrie_wire::Node;
use std::collections::BTreeSet;
use std::time::Duration;

impl Machine {
    /// These nodes are on the controller's own host.
    pub(super) fn are_here(&mut self, nodes: Vec<Node>) {
        self.home = nodes.into_iter().collect();
    }

    /// For how long the controller has stood aside, if it does.
    pub fn cut_off_for(&self) -> Option<Duration> {
        self.cut_off.as_ref().map(|cut_off| self.now.saturating_sub(cut_off.since))
    }

    pub(super) fn is_cut_off(&self) -> bool {
        self.cut_off.is_some()
    }

    /// The nodes that are up on other hosts.
    fn nodes_elsewhere(&self) -> Vec<Node> {
        let up = (0..).zip(&self.nodes).filter(|(_, node)| node.is_up());
        up.map(|(node, _)| node).filter(|node| !self.home.contains(node)).collect()
    }

    /// Whether it may be this host that is cut off: all nodes elsewhere are among these. With one
    /// node elsewhere and some here that one counts as lost, or a job on two hosts would survive
    /// the loss of neither.
    pub(super) fn may_be_cut_off(&self, silent: &[Node]) -> bool {
        let elsewhere = self.nodes_elsewhere();
        let enough = elsewhere.len() > 1 || self.home.is_empty() && elsewhere.len() == 1;
        self.started && enough && elsewhere.iter().all(|node| silent.contains(node))
    }

    pub(super) fn step_aside(&mut self) {
        self.cut_off = Some(CutOff { since: self.now, heard: BTreeSet::new() });
        let silent = self.config.heartbeat_timeout;
        let names = |node: &Node| in_words(*node, &self.config.hosts);
        let journal = self.redundancy.journal.nodes.iter().map(names).collect();
        let (job, alone_for) = (self.config.job.clone(), self.config.alone_for);
        self.record(Record::CutOff { job, silent, alone_for, journal });
        let nodes = self.nodes_elsewhere();
        self.commands.push(Command::Seek(nodes));
    }

    /// A node says something again.
    pub(super) fn hear_again(&mut self, node: Node) {
        self.returning.remove(&node);
        let Some(cut_off) = &mut self.cut_off else { return };
        cut_off.heard.insert(node);
        let up = self.nodes.iter().filter(|n| n.is_up()).count();
        let heard = |node: &Node| self.home.contains(node) || cut_off.heard.contains(node);
        let is_up = |(_, n): &(Node, &NodeEntry)| n.is_up();
        let back = (0..).zip(&self.nodes).filter(is_up).filter(|(node, _)| heard(node)).count();
        if back * 2 >= up {
            self.come_back();
        }
    }

    /// The others have their time from now on.
    fn come_back(&mut self) {
        let Some(CutOff { since, heard }) = self.cut_off.take() else { return };
        let now = self.now;
        for heartbeat in self.nodes.iter_mut().filter_map(NodeEntry::heartbeat_mut) {
            heartbeat.heard_at = now;
        }
        let missing = self.nodes_elsewhere().into_iter().filter(|node| !heard.contains(node));
        let missing: Vec<Node> = missing.collect();
        self.returning = missing.iter().copied().collect();
        // What this host did not reach meanwhile it may reach now.
        self.unreached.values_mut().for_each(|since| *since = now);
        self.commands.push(Command::Seek(missing.clone()));
        self.record(Record::Reconnected { after: now - since, missing });
        self.look_at = now;
    }

    /// While it stands aside: when agents end by themselves, nodes that were not heard are lost.
    pub(super) fn ends_waiting(&mut self) -> bool {
        let over = self.cut_off_for().is_some_and(|aside| aside >= self.config.alone_for);
        if over {
            self.cut_off = None;
            self.commands.push(Command::Seek(Vec::new()));
        }
        over
    }

    /// The nodes have another controller.
    pub(super) fn replaced(&mut self, by: &str) {
        let text = format!("another controller has taken over the job ({by}): this one ends");
        self.end(1, Some(text));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::{Config, Event};

    /// A machine of so many nodes, and the time; these are on its own host.
    struct Job {
        machine: Machine,
        now: Duration,
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    impl Job {
        fn new(nodes: u32, home: &[Node]) -> Job {
            let (heartbeat_timeout, alone_for) = (ms(40), ms(1000));
            let config = Config { nodes, heartbeat_timeout, alone_for, ..Config::of_one_rank() };
            let mut job = Job { machine: Machine::new(config), now: Duration::ZERO };
            job.tell(Event::Home(home.to_vec()));
            (0..nodes).for_each(|node| drop(job.tell(Event::AgentUp(node))));
            job
        }

        fn tell(&mut self, event: Event) -> Vec<Command> {
            self.machine.handle(self.now, event)
        }

        /// What is said of nodes after this; these answer.
        fn tell_and_answer(&mut self, event: Event, answer: &[Node]) -> Vec<String> {
            let mut commands = self.tell(event);
            let asked = |c: &Command| match *c {
                Command::Heartbeat { node, n } if answer.contains(&node) => Some((node, n)),
                _ => None,
            };
            for (node, n) in commands.iter().filter_map(asked).collect::<Vec<_>>() {
                commands.extend(self.tell(Event::Heartbeat { node, n }));
            }
            in_short(&commands)
        }

        /// So much time passes, in which these nodes answer; what is said of nodes.
        fn pass(&mut self, time: Duration, answer: &[Node]) -> Vec<String> {
            let (until, mut said) = (self.now + time, Vec::new());
            while self.now < until && !self.machine.has_ended() {
                let next = self.machine.next_tick().map_or(until, |at| at.max(self.now));
                self.now = next.min(until) + Duration::from_micros(1);
                said.extend(self.tell_and_answer(Event::Tick, answer));
            }
            said
        }
    }

    fn in_short(commands: &[Command]) -> Vec<String> {
        let short = |c: &Command| match c {
            Command::Seek(nodes) => Some(format!("seek {nodes:?}")),
            Command::Record(Record::NodeLost { node, .. }) => Some(format!("lost {node}")),
            Command::Record(Record::CutOff { .. }) => Some("cut off".into()),
            Command::Record(Record::Reconnected { missing, .. }) => {
                Some(format!("back without {missing:?}"))
            }
            Command::End { code } => Some(format!("end {code}")),
            _ => None,
        };
        commands.iter().filter_map(short).collect()
    }

    #[test]
    fn who_hears_of_no_other_host_stands_aside_and_goes_on_with_half_of_the_nodes() {
        let mut job = Job::new(3, &[]);
        assert_eq!(job.pass(ms(200), &[0, 1, 2]), [""; 0]);
        assert_eq!(job.pass(ms(60), &[]), ["cut off", "seek [0, 1, 2]"]);
        assert_eq!(job.pass(ms(800), &[]), [""; 0]);
        // What ends meanwhile is an old connection.
        assert!(in_short(&job.tell(Event::AgentGone(1))).is_empty());
        assert!(in_short(&job.tell(Event::AgentBack(2))).is_empty(), "one of three");
        let back = job.tell_and_answer(Event::AgentBack(0), &[0, 2]);
        assert_eq!(back, ["seek [1]", "back without [1]"]);
        assert!(in_short(&job.tell(Event::AgentGone(1))).is_empty(), "it may come back");
        assert_eq!(job.pass(ms(30), &[0, 2]), [""; 0]);
        assert_eq!(job.pass(ms(30), &[0, 2]), ["seek [1]", "lost 1"]);
        assert_eq!(job.pass(ms(200), &[0, 2]), [""; 0]);
    }

    #[test]
    fn when_the_nodes_have_ended_by_themselves_they_are_lost() {
        let mut job = Job::new(2, &[]);
        assert_eq!(job.pass(ms(60), &[]), ["cut off", "seek [0, 1]"]);
        assert_eq!(job.pass(ms(2000), &[]), ["seek []", "lost 0", "lost 1", "end 1"]);
    }

    #[test]
    fn with_one_other_host_that_one_counts_as_lost() {
        let mut job = Job::new(2, &[0]);
        assert_eq!(job.pass(ms(60), &[0]), ["seek [1]", "lost 1"]);
        let mut job = Job::new(3, &[0]);
        assert_eq!(job.pass(ms(60), &[0]), ["cut off", "seek [1, 2]"]);
        let back = in_short(&job.tell(Event::AgentBack(1)));
        assert_eq!(back, ["seek [2]", "back without [2]"]);
    }

    #[test]
    fn whoever_was_replaced_ends() {
        let mut job = Job::new(2, &[]);
        job.pass(ms(60), &[]);
        let ended = in_short(&job.tell(Event::Replaced { by: "tcp:there".into() }));
        assert_eq!(ended, ["end 1"]);
    }
}
