//! What is the same for every router on a node, that of the gateway included: its process, and the
//! ranks that wait for it. Decides nothing about where one runs.

use super::entry::RoleEntry;
use super::hosting::Hosting;
use crate::machine::io::Command;
use crate::machine::outbox::consequence::Consequence;
use crate::machine::ranks::entry::RankEntry;
use crate::machine::state::RankStateName;
use crate::machine::timeouts::{ROLE_TIMEOUT, WRITE_TIMEOUT};
use eyrie_wire::control::{Role, RoleKind};
use eyrie_wire::{RankInstance, RouterId};
use std::time::Duration;

/// The router with this number, as it is named outside.
pub fn router(id: RouterId, entry: &RoleEntry) -> Role {
    Role { kind: RoleKind::Router, id: id.0, generation: entry.generation() }
}

impl Hosting<'_> {
    /// How long a router may take to say where it listens. At the start of a job that was saved it
    /// reads first what another one held.
    pub fn router_patience(&self) -> Duration {
        let saved = |r: &RankEntry| r.is(RankStateName::Lost);
        if !self.out.has_started() && self.ranks.iter().any(saved) {
            WRITE_TIMEOUT
        } else {
            ROLE_TIMEOUT
        }
    }

    /// The router's process is started, in the place of a lost one or as the first.
    pub fn order_router(&mut self, id: RouterId, takes_over: bool) {
        let Some(entry) = self.roles.get(RoleKind::Router, id.0) else { return };
        let node = entry.node();
        let role = router(id, entry);
        self.out.push(Command::StartRole { node, role, takes_over });
    }

    /// A router as users know it.
    pub fn router_in_words(&self, id: RouterId) -> String {
        if self.roles.is_gateway(id) {
            "gateway".into()
        } else {
            format!("router {id}")
        }
    }

    /// The ranks that come back when this router has confirmed their fence.
    pub fn waiting_for(&self, id: RouterId) -> Vec<RankInstance> {
        let waits = |r: &&RankEntry| r.fence().is_some_and(|fence| fence.waits_for(id));
        self.ranks.iter().filter(waits).map(RankEntry::instance).collect()
    }

    /// No rank waits any more until this router has confirmed its fence.
    pub fn end_waiting_for(&mut self, router: RouterId) {
        for instance in self.waiting_for(router) {
            let rsn = 0;
            self.out.follows(Consequence::RouterFenced { router, instance, rsn });
        }
    }
}
