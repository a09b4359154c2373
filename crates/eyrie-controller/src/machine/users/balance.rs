//! Users ask what should move: the agents measure what their ranks use, and when all have answered
//! a proposal is made. Nothing moves by it.

use super::answer::{Answer, RequestId};
use super::measurements::{Measurement, Measurements};
use super::propose::{propose, Seen};
use crate::machine::config::Config;
use crate::machine::moves::Moves;
use crate::machine::nodes::Nodes;
use crate::machine::outbox::Outbox;
use crate::machine::placement::Destinations;
use crate::machine::ranks::Ranks;
use eyrie_interface::proposal::{Goal, Proposal};
use eyrie_placement::Placement;
use eyrie_units::time;
use eyrie_wire::control::{NodeUsage, RankUsage, ToAgent};
use eyrie_wire::{NodeId, Rank};
use std::collections::BTreeMap;
use std::time::Duration;

/// The shortest and the longest time that is measured.
const SHORTEST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(600);
/// How much later an agent may answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// What is measured for users, and proposed to them.
pub struct Balancing<'a> {
    pub config: &'a Config,
    pub placement: &'a Placement,
    pub out: &'a mut Outbox,
    pub nodes: &'a Nodes,
    pub ranks: &'a Ranks,
    pub moves: &'a Moves,
    pub measurements: &'a mut Measurements,
}

impl Balancing<'_> {
    /// A user asks what should move, by what is measured over this time. `not_now`: why nothing can
    /// move at present.
    pub fn measurement_asked(
        &mut self,
        request: RequestId,
        over: Duration,
        goal: Goal,
        not_now: Option<String>,
    ) {
        let bad = match goal {
            Goal::Consolidate { nodes: 0 } => Some("ranks need a node: --nodes 1 or more".into()),
            _ if !(SHORTEST..=LONGEST).contains(&over) => Some(format!(
                "{} cannot be measured over: from {} to {}",
                time(over),
                time(SHORTEST),
                time(LONGEST)
            )),
            _ => not_now,
        };
        if let Some(why) = bad {
            return self.out.answer(request, Answer::Refused(why));
        }
        let until = self.out.now() + over + ANSWER_TIMEOUT;
        let n = self.measurements.begin(request, goal, self.nodes.up().collect(), until);
        for node in self.nodes.up() {
            self.out.send_agent(node, ToAgent::Measure { n, over });
        }
    }

    /// A node has measured.
    pub fn measured(&mut self, node: NodeId, n: u64, used: NodeUsage) {
        if self.measurements.hear(node, n, used) {
            self.watch_measurements();
        }
    }

    /// Answers those for whom all nodes have measured that are still up, or one is late.
    pub fn watch_measurements(&mut self) {
        let nodes = self.nodes;
        for over in self.measurements.take_over(self.out.now(), |node| nodes.is_up(node)) {
            let late = over.first_missing();
            let Measurement { request, goal, heard, .. } = over;
            let answer = match late {
                Some(late) => Err(format!("node {late} does not say what its ranks use")),
                None => self.proposal(goal, &heard),
            };
            let answer = answer.map_or_else(Answer::Refused, |p| Answer::Proposal(Box::new(p)));
            self.out.answer(request, answer);
        }
    }

    fn proposal(
        &self,
        goal: Goal,
        heard: &BTreeMap<NodeId, NodeUsage>,
    ) -> Result<Proposal, String> {
        for r in self.ranks.living() {
            if self.usage_of(r.rank(), heard).is_none() {
                return Err(format!(
                    "rank {} was not there all the time, or moves: try again when `eyrie status` \
                     shows that it runs",
                    r.rank()
                ));
            }
        }
        let seen: Vec<Seen<'_>> = heard.iter().map(|(node, used)| self.seen(*node, used)).collect();
        let destinations = Destinations {
            config: self.config,
            nodes: self.nodes,
            ranks: self.ranks,
            moves: self.moves,
        };
        let occupied = destinations.occupied(&[]);
        let speed = self.out.speed();
        self.placement.with_links(occupied.cluster(), |links| propose(goal, &seen, speed, links))
    }

    /// What a rank has used on its node, all the time as the same process.
    fn usage_of<'a>(
        &self,
        rank: Rank,
        heard: &'a BTreeMap<NodeId, NodeUsage>,
    ) -> Option<&'a RankUsage> {
        let r = &self.ranks[rank];
        let runs = r.on_node().is_some() && !self.moves.contains(rank);
        let used = heard.get(&r.node()).filter(|_| runs)?;
        used.ranks.iter().find(|usage| usage.instance == r.instance())
    }

    fn seen<'a>(&self, node: NodeId, usage: &'a NodeUsage) -> Seen<'a> {
        let entry = &self.nodes[node];
        let runs = |usage: &&RankUsage| {
            let r = self.ranks.get(usage.instance.rank);
            r.is_some_and(|r| r.node() == node && r.instance() == usage.instance && r.is_living())
        };
        Seen {
            node,
            usage,
            open: entry.is_up() && !entry.is_drained(),
            slots: self.config.slots.get(node.index()).copied().flatten().unwrap_or(u32::MAX),
            ranks: usage.ranks.iter().filter(runs).collect(),
        }
    }
}
