//! The host of the controller may be cut off: no node on another host answers, and the controller
//! cannot tell whether they are lost or its own host is. It steps aside as if it had died:
//! the nodes go on by themselves, for as long as they do without a controller, and it decides
//! nothing about them. It goes on when it hears of half of the nodes again, and ends when they have
//! another controller. No node is declared dead meanwhile.

use super::contact::CutOff;
use super::watch::Watch;
use crate::machine::io::Command;
use crate::record::{in_words, Record};
use eyrie_wire::NodeId;

impl Watch<'_> {
    /// The nodes that are up on other hosts.
    fn nodes_elsewhere(&self) -> Vec<NodeId> {
        self.nodes.up().filter(|node| !self.contact.is_here(*node)).collect()
    }

    /// Whether it may be this host that is cut off: all nodes elsewhere are among these. With one
    /// node elsewhere and some here that one counts as lost, or a job on two hosts would survive
    /// the loss of neither.
    pub fn may_be_cut_off(&self, silent: &[NodeId]) -> bool {
        let elsewhere = self.nodes_elsewhere();
        let enough = elsewhere.len() > 1 || !self.contact.has_some_here() && elsewhere.len() == 1;
        self.out.has_started() && enough && elsewhere.iter().all(|node| silent.contains(node))
    }

    pub fn step_aside(&mut self) {
        self.contact.step_aside(self.out.now());
        let silent = self.config.heartbeat_timeout;
        let names = |node: &NodeId| in_words(*node, self.nodes.hosts());
        let journal = self.redundancy.journal_nodes().iter().map(names).collect();
        let job = self.config.job.clone();
        let alone_for = self.config.alone_for;
        self.out.record(Record::CutOff { job, silent, alone_for, journal });
        let nodes = self.nodes_elsewhere();
        self.out.push(Command::Seek(nodes));
    }

    /// A node says something again.
    pub fn hear_again(&mut self, node: NodeId) {
        let Some(heard) = self.contact.hear(node).cloned() else { return };
        let is_back = |node: &NodeId| self.contact.is_here(*node) || heard.contains(node);
        let back = self.nodes.up().filter(is_back).count();
        if back * 2 >= self.nodes.up().count() {
            self.come_back();
        }
    }

    /// The others have their time from now on.
    fn come_back(&mut self) {
        let Some(CutOff { since, heard }) = self.contact.go_on() else { return };
        let now = self.out.now();
        for (_, heartbeat) in self.nodes.heartbeats_mut() {
            heartbeat.give_time(now);
        }
        let missing = self.nodes_elsewhere().into_iter().filter(|node| !heard.contains(node));
        let missing: Vec<NodeId> = missing.collect();
        self.contact.await_return(missing.iter().copied());
        // What this host did not reach meanwhile it may reach now.
        self.reach.begin_again(now);
        self.out.push(Command::Seek(missing.clone()));
        self.out.record(Record::Reconnected { after: now - since, missing });
        self.out.look_now();
    }

    /// While it stands aside: when agents end by themselves, nodes that were not heard are lost.
    pub fn ends_waiting(&mut self) -> bool {
        let aside = self.contact.cut_off_for(self.out.now());
        let over = aside.is_some_and(|aside| aside >= self.config.alone_for);
        if over {
            self.contact.go_on();
            self.out.push(Command::Seek(Vec::new()));
        }
        over
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::said;
    use crate::machine::{Config, Event, Machine};
    use eyrie_wire::control::ToAgent;
    use std::time::Duration;

    /// A machine of so many nodes, and the time; these are on its own host.
    struct Job {
        machine: Machine,
        now: Duration,
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    impl Job {
        fn new(nodes: u32, here: &[NodeId]) -> Job {
            let (heartbeat_timeout, alone_for) = (ms(40), ms(1000));
            let config = Config { nodes, heartbeat_timeout, alone_for, ..Config::of_one_rank() };
            let mut job = Job { machine: Machine::new(config), now: Duration::ZERO };
            job.handle(Event::NodesHere(here.to_vec()));
            (0..nodes).for_each(|node| drop(job.handle(said::joined(NodeId(node)))));
            job
        }

        fn handle(&mut self, event: Event) -> Vec<Command> {
            self.machine.handle(self.now, event)
        }

        /// What is said of nodes after this; these answer.
        fn handle_and_answer(&mut self, event: Event, answer: &[NodeId]) -> Vec<String> {
            let mut commands = self.handle(event);
            let asked = |c: &Command| match said::to_agent(c) {
                Some((node, ToAgent::Heartbeat { n })) if answer.contains(&node) => {
                    Some((node, *n))
                }
                _ => None,
            };
            for (node, n) in commands.iter().filter_map(asked).collect::<Vec<_>>() {
                commands.extend(self.handle(said::heartbeat(node, n)));
            }
            in_short(&commands)
        }

        /// So much time passes, in which these nodes answer; what is said of nodes.
        fn pass(&mut self, time: Duration, answer: &[NodeId]) -> Vec<String> {
            let until = self.now + time;
            let mut said = Vec::new();
            while self.now < until && !self.machine.has_ended() {
                let next = self.machine.next_tick().map_or(until, |at| at.max(self.now));
                self.now = next.min(until) + Duration::from_micros(1);
                said.extend(self.handle_and_answer(Event::Tick, answer));
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
    fn a_controller_that_hears_no_other_host_stands_aside_and_goes_on_with_half_of_the_nodes() {
        let mut job = Job::new(3, &[]);
        assert_eq!(job.pass(ms(200), &[NodeId(0), NodeId(1), NodeId(2)]), [""; 0]);
        assert_eq!(job.pass(ms(60), &[]), ["cut off", "seek [0, 1, 2]"]);
        assert_eq!(job.pass(ms(800), &[]), [""; 0]);
        // What ends meanwhile is an old connection.
        assert!(in_short(&job.handle(Event::AgentGone(NodeId(1)))).is_empty());
        assert!(in_short(&job.handle(Event::AgentBack(NodeId(2)))).is_empty(), "one of three");
        let back = job.handle_and_answer(Event::AgentBack(NodeId(0)), &[NodeId(0), NodeId(2)]);
        assert_eq!(back, ["seek [1]", "back without [1]"]);
        assert!(in_short(&job.handle(Event::AgentGone(NodeId(1)))).is_empty(), "it may come back");
        assert_eq!(job.pass(ms(30), &[NodeId(0), NodeId(2)]), [""; 0]);
        assert_eq!(job.pass(ms(30), &[NodeId(0), NodeId(2)]), ["seek [1]", "lost 1"]);
        assert_eq!(job.pass(ms(200), &[NodeId(0), NodeId(2)]), [""; 0]);
    }

    #[test]
    fn when_the_nodes_have_ended_by_themselves_they_are_lost() {
        let mut job = Job::new(2, &[]);
        assert_eq!(job.pass(ms(60), &[]), ["cut off", "seek [0, 1]"]);
        assert_eq!(job.pass(ms(2000), &[]), ["seek []", "lost 0", "lost 1", "end 1"]);
    }

    #[test]
    fn with_one_other_host_that_one_counts_as_lost() {
        let mut job = Job::new(2, &[NodeId(0)]);
        assert_eq!(job.pass(ms(60), &[NodeId(0)]), ["seek [1]", "lost 1"]);
        let mut job = Job::new(3, &[NodeId(0)]);
        assert_eq!(job.pass(ms(60), &[NodeId(0)]), ["cut off", "seek [1, 2]"]);
        let back = in_short(&job.handle(Event::AgentBack(NodeId(1))));
        assert_eq!(back, ["seek [2]", "back without [2]"]);
    }

    #[test]
    fn a_controller_that_was_replaced_ends() {
        let mut job = Job::new(2, &[]);
        job.pass(ms(60), &[]);
        let ended = in_short(&job.handle(Event::Replaced { by: "tcp:there".into() }));
        assert_eq!(ended, ["end 1"]);
    }
}
