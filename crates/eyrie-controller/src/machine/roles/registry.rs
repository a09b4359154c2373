//! The list of the kinds of role, and what is the same for all of them. Decides nothing: it asks
//! the kind.

use super::hosting::{too_late, Hosting};
use super::kind::{Kind, Look};
use super::places::Places;
use super::redundancy::Missing;
use super::routers::RouterKind;
use super::stores::StoreKind;
use super::Roles;
use crate::machine::config::Config;
use crate::machine::images::why::ImageAges;
use eyrie_wire::control::{Role, RoleKind};
use eyrie_wire::role_address::Addr;
use eyrie_wire::NodeId;

/// The list of kinds.
fn of(kind: RoleKind) -> &'static dyn Kind {
    match kind {
        RoleKind::Router => &RouterKind,
        RoleKind::Store => &StoreKind,
    }
}

/// What every kind looks at when time has passed.
pub fn looks(kind: RoleKind) -> &'static [Look] {
    of(kind).looks()
}

impl Hosting<'_> {
    /// Starts the roles, once all agents are there. True: they all listen, or run elsewhere.
    pub fn are_ready(&mut self) -> bool {
        if !self.config.roles_on_nodes {
            return true;
        }
        if self.roles.is_empty() && !RoleKind::ALL.into_iter().all(|kind| of(kind).start(self)) {
            return false;
        }
        self.roles.are_up()
    }

    /// A role says where it listens.
    pub fn role_up(&mut self, role: Role, addr: Addr) {
        if self.is_current(role) {
            of(role.kind).listens(self, role.id, addr);
        }
    }

    /// A role is gone, or could not be started.
    pub fn role_lost(&mut self, role: Role, cause: String) {
        if self.is_current(role) {
            of(role.kind).lost(self, role.id, cause, true);
        }
    }

    /// The roles of a kind that a lost node had.
    pub fn lose_roles_on(&mut self, kind: RoleKind, node: NodeId) {
        for id in self.roles.of_kind_on(kind, node) {
            if !self.out.has_ended() {
                of(kind).lost(self, id, format!("node {node} is lost"), false);
            }
        }
    }

    /// Those of a kind that have not said in time where they listen.
    pub fn lose_late(&mut self, kind: RoleKind) {
        let now = self.out.now();
        let late = self.roles.of(kind);
        let late = late.filter(|(_, entry)| entry.until().is_some_and(|until| until <= now));
        for id in late.map(|(id, _)| id).collect::<Vec<_>>() {
            if !self.out.has_ended() {
                of(kind).lost(self, id, too_late(), true);
            }
        }
    }

    /// Moves roles that ranks cannot reach.
    pub fn watch_reach(&mut self) {
        if !self.reach.is_whole() && self.out.has_started() {
            for kind in RoleKind::ALL {
                if !self.out.has_ended() {
                    of(kind).watch_reach(self);
                }
            }
        }
    }
}

/// What the roles were promised to keep twice, and do not: images before logs.
pub fn missing(config: &Config, places: Places<'_>) -> impl Iterator<Item = Missing> {
    let missing = RoleKind::ALL.map(|kind| of(kind).missing(config, places));
    missing.into_iter().rev().flatten()
}

/// Why a role does not leave a drained node.
pub fn why_role_stays(role: Role, roles: &Roles, ages: ImageAges<'_>) -> String {
    match of(role.kind).why_it_stays(roles, ages, role.id) {
        Some((rank, why)) => format!("{role} did not leave it, because of rank {rank}: {why}"),
        None => format!("{role} did not leave it: no other node can have it"),
    }
}
