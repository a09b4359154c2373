//! What handlers may ask without changing anything: the machine's state, borrowed to be read. The
//! questions stand with what they are about (`roles/places.rs`, `images/why.rs`,
//! `moves/obstacles.rs`).

use super::config::Config;
use super::images::schedule::Schedule;
use super::images::stores::Stores;
use super::moves::entry::Moves;
use super::nodes::reach::Reach;
use super::nodes::Nodes;
use super::outbox::Outbox;
use super::ranks::Ranks;
use super::roles::entry::Roles;
use super::saving::phase::Saving;

#[derive(Clone, Copy)]
pub struct View<'a> {
    pub config: &'a Config,
    pub out: &'a Outbox,
    pub nodes: &'a Nodes,
    pub reach: &'a Reach,
    pub ranks: &'a Ranks,
    pub roles: &'a Roles,
    pub stores: &'a Stores,
    pub schedule: &'a Schedule,
    pub moves: &'a Moves,
    pub saving: &'a Saving,
}

/// The view of a handler that has borrowed these fields, to be changed or not.
macro_rules! view_of {
    ($handler:expr) => {
        $crate::machine::view::View {
            config: &*$handler.config,
            out: &*$handler.out,
            nodes: &*$handler.nodes,
            reach: &*$handler.reach,
            ranks: &*$handler.ranks,
            roles: &*$handler.roles,
            stores: &*$handler.stores,
            schedule: &*$handler.schedule,
            moves: &*$handler.moves,
            saving: &*$handler.saving,
        }
    };
}

pub(super) use view_of;
