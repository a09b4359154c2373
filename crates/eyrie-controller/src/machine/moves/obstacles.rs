//! Why ranks cannot move now, or not there, and why a node cannot be drained: in words for users,
//! with the remedy. What must not be asked for is refused before anything moves.

use super::Moves;
use crate::machine::nodes::Nodes;
use crate::machine::outbox::Outbox;
use crate::machine::ranks::Ranks;
use crate::machine::roles::Roles;
use crate::machine::saving::phase::Saving;
use crate::machine::state::RankStateName;
use eyrie_wire::{NodeId, Rank};
use std::collections::BTreeSet;

/// Why a node cannot be drained, and the remedy.
pub const NO_OTHER_NODE: &str =
    "no other node is up that could take its ranks; `eyrie join` adds one";
/// Why nothing moves.
const NOT_NOW: &str = "the job is starting, or being saved: nothing can move now";

/// Why nothing can move at present.
pub fn cannot_move_now(out: &Outbox, saving: &Saving) -> Option<String> {
    (!out.has_started() || saving.is_going_on()).then(|| NOT_NOW.into())
}

/// What may be in the way of moves, at a time when ranks can move at all.
#[derive(Clone, Copy)]
pub struct Obstacles<'a> {
    pub nodes: &'a Nodes,
    pub ranks: &'a Ranks,
    pub roles: &'a Roles,
    pub moves: &'a Moves,
}

impl Obstacles<'_> {
    /// Why these ranks cannot go there.
    pub fn cannot_migrate(self, ranks: &[Rank], to: Option<NodeId>) -> Option<String> {
        let mut seen = BTreeSet::new();
        if let Some(to) = to {
            match self.nodes.get(to) {
                None => {
                    let last = self.nodes.len() - 1;
                    return Some(format!("there is no node {to}: the job has nodes 0 to {last}"));
                }
                Some(node) if !node.is_up() => return Some(format!("node {to} is not up")),
                Some(node) if node.is_drained() => {
                    return Some(format!("node {to} is drained: `eyrie undrain` takes that back"));
                }
                Some(_) => {}
            }
        }
        for rank in ranks {
            let Some(r) = self.ranks.get(*rank) else {
                return Some(self.ranks.no_such(*rank));
            };
            let why = match r.state() {
                _ if !seen.insert(*rank) => "is named twice".into(),
                RankStateName::Finished => "has finished".into(),
                RankStateName::Elsewhere => "is in another domain".into(),
                RankStateName::Running | RankStateName::Replaying if r.on_node().is_some() => {
                    match to {
                        _ if self.moves.contains(*rank) || self.moves.is_planned(*rank) => {
                            "is moving already".into()
                        }
                        Some(to) if to == r.node() => format!("is on node {to} already"),
                        None if !self.nodes.has_other_than(&[r.node()]) => {
                            "cannot go anywhere: no other node is up; `eyrie join` adds one".into()
                        }
                        _ => continue,
                    }
                }
                _ => "is being recovered: try again when `eyrie status` shows that it runs".into(),
            };
            return Some(format!("rank {rank} {why}"));
        }
        None
    }

    /// Why a node cannot be drained.
    pub fn cannot_drain(self, node: NodeId) -> Option<String> {
        match self.nodes.get(node) {
            None => Some(format!("there is no node {node}")),
            Some(n) if !n.is_up() => Some(format!("node {node} is not up")),
            Some(n)
                if n.is_drained()
                    && (self.roles.is_free(self.ranks, node) || self.moves.is_draining(node)) =>
            {
                Some(format!("node {node} is drained, or being drained"))
            }
            Some(_) if self.roles.gateway().is_some_and(|(_, gateway)| gateway.node() == node) => {
                Some(format!(
                    "node {node} cannot be drained: it has the gateway to other domains, which does \
                     not move; `eyrie migrate` takes its ranks away"
                ))
            }
            Some(_) if !self.nodes.has_other_than(&[node]) => {
                Some(format!("node {node} cannot be drained: {NO_OTHER_NODE}"))
            }
            Some(_) => None,
        }
    }

    /// Why these ranks cannot go to these nodes while these nodes are drained.
    pub fn cannot_move_so(self, moves: &[(Rank, NodeId)], drains: &[NodeId]) -> Option<String> {
        let drained: BTreeSet<NodeId> = drains.iter().copied().collect();
        let mut seen = BTreeSet::new();
        let bad_move = |(rank, to): &(Rank, NodeId)| {
            if drained.contains(to) {
                return Some(format!("rank {rank} cannot go to node {to}, which is to be free"));
            }
            let twice = !seen.insert(*rank);
            let twice = twice.then(|| format!("rank {rank} is named twice"));
            twice.or_else(|| self.cannot_migrate(&[*rank], Some(*to)))
        };
        let bad_node = |node: &NodeId| self.cannot_drain(*node);
        if self.moves.has_plan() {
            return Some("ranks are being rearranged: ask again when they are there".into());
        }
        (drains.iter().find_map(bad_node))
            .or_else(|| (!self.nodes.has_other_than(drains)).then(|| NO_OTHER_NODE.to_string()))
            .or_else(|| moves.iter().find_map(bad_move))
    }
}
