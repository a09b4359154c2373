//! What agents have sampled goes to who must know it: agents hear where they are told when to
//! sample, the machine which nodes are slow, and users all of it, with what rules find and what was
//! done.

use super::job::Job;
use super::link::encode;
use super::users;
use crate::machine::health::entry::{Found, NodeHealth as Known};
use crate::machine::health::equals::NodeTime;
use crate::machine::Event;
use eyrie_interface::health::{DoneStatus, FindingStatus, Health, NodeHealth, Sampled};
use eyrie_wire::control::ToAgent;
use eyrie_wire::health::NodeFigures;
use eyrie_wire::NodeId;
use std::time::Duration;

impl Job {
    /// The answer to a user who asks for it.
    pub fn health(&self) -> String {
        let monitoring = self.beginning.options.monitoring.as_ref();
        let up = (0..).map(NodeId).zip(self.machine.nodes_up());
        let mut sampled = self.monitoring.of_all(self.clock.elapsed());
        users::written(&Health {
            job: self.beginning.name.clone(),
            interval: monitoring.map(|how| how.interval.as_secs_f64()),
            nodes: up.map(|(node, up)| self.health_of(node, up, sampled.remove(&node))).collect(),
        })
    }

    /// An agent hears where it is told when to sample. That ends with its connection.
    pub fn conduct(&self, node: NodeId) {
        if let Some(port) = self.monitoring.port() {
            self.agents.send_passing(node, encode(&ToAgent::Conduct { port }));
        }
    }

    /// The machine hears of nodes whose ranks take long for the same work, and of those that did.
    pub fn compare_nodes(&mut self) {
        let Some(times) = self.monitoring.compare(self.clock.elapsed()) else { return };
        let matters = |time: &NodeTime| {
            let known = self.machine.health_of(time.node);
            Known::is_slow(time.permille) || known.is_some_and(Known::is_compared)
        };
        let times: Vec<NodeTime> = times.into_iter().filter(matters).collect();
        if !times.is_empty() && self.machine.has_started() {
            self.take(Event::Compared(times));
        }
    }

    /// A node has said what it has sampled.
    pub fn sampled(&mut self, node: NodeId, figures: NodeFigures) {
        if self.agents.is_up(node) {
            let now = self.clock.elapsed();
            self.monitoring.add(node, figures, now);
        }
    }

    fn health_of(&self, node: NodeId, up: bool, sampled: Option<Sampled>) -> NodeHealth {
        let now = self.clock.time();
        let known = self.machine.health_of(node);
        let done = known.into_iter().flat_map(Known::done);
        NodeHealth {
            node,
            host: self.machine.hosts().get(node.index()).cloned(),
            up,
            state: known.map(Known::state).unwrap_or_default(),
            seconds: since(now, known.map(Known::since).unwrap_or_default()),
            findings: known.map_or(Vec::new(), |known| findings(known, now)),
            done: done
                .map(|(at, what)| DoneStatus { seconds_ago: since(now, at), what: what.into() })
                .collect(),
            sampled,
        }
    }
}

fn since(now: Duration, then: Duration) -> f64 {
    now.saturating_sub(then).as_secs_f64()
}

fn findings(known: &Known, now: Duration) -> Vec<FindingStatus> {
    let finding = |(rule, what, found): (&str, &str, &Found)| FindingStatus {
        rule: rule.into(),
        what: what.into(),
        state: found.state,
        said: found.said.clone(),
        seconds: since(now, found.since),
        muted: known.muted(rule, now).map(|until| since(until, now)),
    };
    known.found().map(finding).collect()
}
