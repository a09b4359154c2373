//! What may be changed, and what is asked, when ranks move.

use super::entry::Moves;
use crate::machine::config::Config;
use crate::machine::images::overdue::Overdue;
use crate::machine::images::schedule::Schedule;
use crate::machine::images::stores::Stores;
use crate::machine::nodes::reach::Reach;
use crate::machine::nodes::Nodes;
use crate::machine::outbox::Outbox;
use crate::machine::ranks::Ranks;
use crate::machine::recovery::stop::{stop_of, Stop};
use crate::machine::roles::entry::Roles;
use crate::machine::saving::phase::Saving;
use crate::machine::view::{view_of, View};
use eyrie_placement::Placement;

pub struct Mover<'a> {
    pub config: &'a Config,
    pub placement: &'a dyn Placement,
    pub out: &'a mut Outbox,
    pub nodes: &'a mut Nodes,
    pub reach: &'a Reach,
    pub ranks: &'a mut Ranks,
    pub roles: &'a Roles,
    pub stores: &'a Stores,
    pub schedule: &'a mut Schedule,
    pub overdue: &'a mut Overdue,
    pub moves: &'a mut Moves,
    pub saving: &'a Saving,
}

impl Mover<'_> {
    pub fn view(&self) -> View<'_> {
        view_of!(self)
    }

    /// For a rank that goes: its present incarnation ends.
    pub fn stop(&mut self) -> Stop<'_> {
        stop_of!(self)
    }
}
