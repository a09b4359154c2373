//! What may be changed, and what is asked, when ranks move.

use super::obstacles::{cannot_move_now, Obstacles};
use super::Moves;
use crate::machine::config::Config;
use crate::machine::images::overdue::Overdue;
use crate::machine::images::schedule::Schedule;
use crate::machine::images::stores::Stores;
use crate::machine::images::why::ImageAges;
use crate::machine::nodes::Nodes;
use crate::machine::outbox::Outbox;
use crate::machine::placement::Destinations;
use crate::machine::ranks::Ranks;
use crate::machine::recovery::stop::{stop_of, Stop};
use crate::machine::roles::Roles;
use crate::machine::saving::phase::Saving;
use eyrie_placement::Placement;

pub struct Mover<'a> {
    pub config: &'a Config,
    pub placement: &'a Placement,
    pub out: &'a mut Outbox,
    pub nodes: &'a mut Nodes,
    pub ranks: &'a mut Ranks,
    pub roles: &'a Roles,
    pub stores: &'a Stores,
    pub schedule: &'a mut Schedule,
    pub overdue: &'a mut Overdue,
    pub moves: &'a mut Moves,
    pub saving: &'a Saving,
}

impl Mover<'_> {
    pub fn destinations(&self) -> Destinations<'_> {
        let config = self.config;
        Destinations { config, nodes: self.nodes, ranks: self.ranks, moves: self.moves }
    }

    pub fn ages(&self) -> ImageAges<'_> {
        let now = self.out.now();
        ImageAges { now, ranks: self.ranks, schedule: self.schedule, stores: self.stores }
    }

    /// Why something cannot be done that moves ranks: nothing can move now, or what `obstacle`
    /// finds.
    pub fn refusal(
        &self,
        obstacle: impl FnOnce(Obstacles<'_>) -> Option<String>,
    ) -> Option<String> {
        let nodes = &*self.nodes;
        let ranks = &*self.ranks;
        let roles = self.roles;
        let moves = &*self.moves;
        cannot_move_now(self.out, self.saving)
            .or_else(|| obstacle(Obstacles { nodes, ranks, roles, moves }))
    }

    /// For a rank that goes: its present incarnation ends.
    pub fn stop(&mut self) -> Stop<'_> {
        stop_of!(self)
    }
}
