//! Nodes: who is up, who answers, who is given up.

use super::rank::Death;
use super::{Command, Machine, State};
use crate::record::Record;
use eyrie_placement::placement::JobNode;
use eyrie_units::time;
use eyrie_wire::{Node, Rank};
use std::time::Duration;

/// Whether a node can be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// Its agent has not come up yet.
    Expected,
    Up,
    /// Given up, for good.
    Lost,
}

#[derive(Debug)]
pub struct NodeState {
    pub standing: Standing,
    /// Started without ranks and has had none.
    pub free_spare: bool,
    pub stands_for: Option<Node>,
    /// The last pulse that was asked for, and when the last answer came.
    asked: u64,
    asked_at: Duration,
    heard_at: Duration,
    answered: bool,
}

impl NodeState {
    pub fn new(spare: bool) -> NodeState {
        NodeState {
            standing: Standing::Expected,
            free_spare: spare,
            stands_for: None,
            asked: 0,
            asked_at: Duration::ZERO,
            heard_at: Duration::ZERO,
            answered: true,
        }
    }
}

impl Machine {
    fn beat(&self) -> Duration {
        self.config.heartbeat_timeout / 4
    }

    /// Time goes on. When it jumped, it was the controller itself that was stopped: nobody else is to blame.
    pub(super) fn pass_time(&mut self, now: Duration) {
        let gap = now - self.now;
        self.now = now;
        if gap > self.config.heartbeat_timeout / 2 {
            for node in &mut self.nodes {
                node.asked_at += gap;
                node.heard_at += gap;
            }
        }
    }

    pub(super) fn agent_up(&mut self, node: Node) {
        let now = self.now;
        let Some(state) = self.nodes.get_mut(node as usize) else { return };
        if state.standing == Standing::Expected {
            state.standing = Standing::Up;
            state.heard_at = now;
            state.asked_at = now;
            self.record(Record::NodeUp { node });
        }
    }

    pub(super) fn pulse(&mut self, node: Node, n: u64) {
        let now = self.now;
        if let Some(state) = self.nodes.get_mut(node as usize) {
            if state.asked == n {
                state.answered = true;
                state.heard_at = now;
            }
        }
    }

    pub(super) fn next_heartbeat(&self) -> Option<Duration> {
        let up = self.nodes.iter().filter(|n| n.standing == Standing::Up);
        up.map(|n| match n.answered {
            true => n.asked_at + self.beat(),
            false => n.heard_at + self.config.heartbeat_timeout,
        })
        .min()
    }

    /// Asks the nodes for a sign of life; gives up those that do not answer.
    pub(super) fn watch_nodes(&mut self) {
        let (beat, timeout) = (self.beat(), self.config.heartbeat_timeout);
        for node in 0..self.nodes.len() {
            if self.ended {
                return;
            }
            let now = self.now;
            let state = &mut self.nodes[node];
            if state.standing != Standing::Up {
                continue;
            }
            if state.answered && now >= state.asked_at + beat {
                state.asked += 1;
                state.asked_at = now;
                state.answered = false;
                let n = state.asked;
                self.commands.push(Command::Pulse { node: node as Node, n });
            } else if !state.answered && now >= state.heard_at + timeout {
                let silent = now - state.heard_at;
                let (silent_for, limit) = (time(silent), time(timeout));
                let cause = format!(
                    "it has not answered for {silent_for} (--heartbeat-timeout is {limit}: give more if \
                     it was only slow)"
                );
                self.lose_node(node as Node, cause, silent);
            }
        }
    }

    /// Gives a node up. `silent`: for how long nothing was heard of it.
    pub(super) fn lose_node(&mut self, node: Node, cause: String, silent: Duration) {
        let Some(state) = self.nodes.get_mut(node as usize) else { return };
        if state.standing == Standing::Lost {
            return;
        }
        state.standing = Standing::Lost;
        self.summary.nodes_lost += 1;
        self.commands.push(Command::Disconnect(node));
        let ranks: Vec<Rank> = (self.ranks.iter())
            .filter(|r| r.node == node && !matches!(r.state, State::Finished | State::Lost))
            .map(|r| r.rank)
            .collect();
        self.record(Record::NodeLost { node, cause: cause.clone(), ranks: ranks.clone() });
        if !self.started {
            self.end(1, Some(format!("node {node} was lost before the job started: {cause}")));
            return;
        }
        if !self.nodes.iter().any(|n| n.standing == Standing::Up) {
            self.end(1, Some("no node is left".into()));
            return;
        }
        for rank in ranks {
            let cause = format!("node {node} is lost");
            self.fail(rank, Death::Outside, cause, Some(silent));
        }
    }

    /// What placement knows of the nodes.
    pub(super) fn job_nodes(&self) -> Vec<JobNode> {
        let load = |node| {
            let there = |r: &&super::RankState| r.node == node && r.is_on_a_node();
            self.ranks.iter().filter(there).count() as u32
        };
        (self.nodes.iter().enumerate())
            .map(|(node, n)| JobNode {
                up: n.standing == Standing::Up,
                free_spare: n.free_spare,
                ranks: load(node as Node),
                stands_for: n.stands_for,
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::schedule::{Interval, Order};
    use crate::machine::{Config, Event};
    use eyrie_wire::control::CheckpointMode;

    #[test]
    fn a_silent_node_is_lost_with_the_time_and_what_to_do_about_it() {
        let mut machine = Machine::new(Config {
            job: "j".into(),
            ranks: 1,
            nodes: 2,
            spares: 0,
            routers: 1,
            checkpoint_every: Interval::Off,
            checkpoint_order: Order::Sequential,
            checkpoint_mode: CheckpointMode::Async,
            heartbeat_timeout: Duration::from_millis(40),
            injections: vec![],
        });
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
}
