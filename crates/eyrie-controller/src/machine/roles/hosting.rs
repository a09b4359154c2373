//! What may be changed, and what is asked, when roles on nodes are started, moved or lost.

use super::places::Places;
use super::Roles;
use crate::machine::config::Config;
use crate::machine::images::schedule::Schedule;
use crate::machine::nodes::reach::Reach;
use crate::machine::nodes::Nodes;
use crate::machine::outbox::Outbox;
use crate::machine::ranks::Ranks;
use crate::machine::timeouts::ROLE_TIMEOUT;
use eyrie_wire::control::Role;

/// Why a role is lost that has not come up.
pub fn too_late() -> String {
    let limit = eyrie_units::time(ROLE_TIMEOUT);
    format!("it has not said within {limit} where it listens")
}

/// Starts of one role in a row that may fail.
pub const ATTEMPTS: u32 = 3;

pub struct Hosting<'a> {
    pub config: &'a Config,
    pub out: &'a mut Outbox,
    pub nodes: &'a mut Nodes,
    pub reach: &'a Reach,
    pub ranks: &'a mut Ranks,
    pub roles: &'a mut Roles,
    pub schedule: &'a mut Schedule,
}

impl Hosting<'_> {
    pub fn places(&self) -> Places<'_> {
        let now = self.out.now();
        let reach = self.reach;
        Places { now, nodes: self.nodes, reach, ranks: self.ranks, roles: self.roles }
    }

    /// Whether a role is the last of its kind.
    pub fn is_current(&self, role: Role) -> bool {
        self.roles.is_current(self.config, role)
    }
}
