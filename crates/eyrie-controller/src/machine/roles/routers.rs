//! Routers on nodes: which node has which router, and what becomes of the ranks of a router that is
//! lost. A router never runs on the host of ranks that it serves while another host is left: one
//! failure would take a rank and its log. What a lost router held is gone: its ranks are imaged at
//! once, and until then their deaths cannot be recovered from.

use super::entry::{Entry, Step};
use super::hosting::{too_late, Hosting, ATTEMPTS};
use crate::machine::io::Command;
use crate::machine::outbox::consequence::Consequence;
use crate::machine::ranks::entry::{RankEntry, RankState};
use crate::machine::state::RankStateName;
use crate::machine::timeouts::{ROLE_TIMEOUT, WRITE_TIMEOUT};
use crate::record::Record;
use eyrie_transport::{Addr, Directory, KeptUntil, RouterId};
use eyrie_wire::control::Role;
use eyrie_wire::{Node, Rank, RankInstance};
use std::time::Duration;

/// For each rank the router that is its home. Ranks of one node have one home, so that there is
/// always another node for it; so have those of nodes in a row, so that the directory is short.
fn homes(start: &[Node], routers: u32) -> Vec<RouterId> {
    let nodes = start.iter().max().map_or(1, |last| u64::from(*last) + 1);
    let home = |node: &Node| u64::from(*node) * u64::from(routers) / nodes;
    start.iter().map(|node| home(node) as RouterId).collect()
}

impl Hosting<'_> {
    /// Starts the routers; false when no node is up for them.
    pub fn start_routers(&mut self) -> bool {
        if self.roles.home.is_empty() {
            self.roles.home = homes(&self.config.start, self.config.routers);
        }
        let patience = self.router_patience();
        for id in 0..self.config.routers {
            let Some(node) = self.view().node_for_router(id) else { return false };
            let until = self.out.now() + patience;
            self.roles.routers.push(Entry::new(node, until));
            self.order_router(id, false);
        }
        true
    }

    /// How long a router may take to say where it listens. At the start of a job that was saved it
    /// reads first what another one held.
    fn router_patience(&self) -> Duration {
        let saved = |r: &RankEntry| r.is(RankStateName::Lost);
        if !self.out.has_started() && self.ranks.iter().any(saved) {
            WRITE_TIMEOUT
        } else {
            ROLE_TIMEOUT
        }
    }

    fn order_router(&mut self, id: RouterId, takes_over: bool) {
        let Entry { node, generation, .. } = self.roles.routers[id as usize];
        let role = Role::Router { id, generation };
        self.out.push(Command::StartRole { node, role, takes_over });
    }

    /// A router says where it listens.
    pub fn router_listens(&mut self, id: RouterId, addr: Addr) {
        let Some(entry) = self.roles.routers.get_mut(id as usize) else { return };
        entry.advance(Step::Listens { addr });
        let node = entry.node;
        let role = Role::Router { id, generation: entry.generation }.to_string();
        self.out.record(Record::RoleStarted { role, node });
        let addrs = self.roles.routers.iter().map(|router| router.addr().cloned());
        // Until all are there, no rank needs it: at the start none runs, and later a router that is
        // not there cannot be connected to.
        let Some(routers) = addrs.collect::<Option<Vec<Addr>>>() else { return };
        self.roles.epoch += 1;
        let (epoch, home) = (self.roles.epoch, self.roles.home.clone());
        let beside = Vec::new();
        let directory = Directory { epoch, home, routers, beside, kept_until: KeptUntil::Received };
        self.out.push(Command::Directory(directory));
    }

    /// A router is gone with all that it held: another one begins with nothing. `by_itself`: its
    /// node is still there.
    pub fn router_lost(&mut self, id: RouterId, cause: String, by_itself: bool) {
        let entry = &mut self.roles.routers[id as usize];
        let listened = entry.is_up();
        entry.advance(Step::Gone { failed: !listened && by_itself });
        let (old, failed) = (entry.node, entry.failed());
        if failed >= ATTEMPTS {
            return self.out.end(1, Some(format!("router {id} cannot be started: {cause}")));
        }
        let ranks: Vec<Rank> = self.roles.ranks_at(id).collect();
        if listened && self.out.has_started() {
            self.out.summary_mut().roles_lost += 1;
            let imaged = |rank: &Rank| !self.ranks[*rank].is(RankStateName::Finished);
            let imaged = ranks.iter().copied().filter(imaged).collect();
            let role = format!("router {id}");
            self.out.record(Record::RoleLost { role, node: old, cause, ranks: imaged });
            ranks.iter().for_each(|rank| self.lose_log(*rank, id));
            self.roles.unheard.extend(self.ranks.numbers().map(|rank| (rank, id)));
        }
        if self.out.has_ended() {
            return;
        }
        let Some(node) = self.view().node_for_router(id) else { return };
        let until = self.out.now() + self.router_patience();
        self.roles.routers[id as usize].replace(node, until, listened);
        let takes_over = self.out.has_started();
        self.order_router(id, takes_over);
        self.forget_fences(id);
    }

    /// The log of a rank is gone with its router: the rank can be recovered again when an image of
    /// it exists that was taken after its new router has taken it up. One that has died just now
    /// cannot be recovered; one that re-executes reads all that it needs before it goes on, or
    /// its new router refuses it.
    fn lose_log(&mut self, rank: Rank, router: RouterId) {
        let r = &mut self.ranks[rank];
        if r.is(RankStateName::Finished) {
            return;
        }
        let exposed = std::mem::take(&mut r.exposed);
        // An image that was asked for before does not help any more.
        (r.log_lost, r.unprotected) = (true, None);
        let what = match r.state.name() {
            RankStateName::Lost => {
                "after that rank had died and before it was brought back, with what it had received \
                 since its image"
            }
            _ if exposed => "with messages to that rank that nobody else had any more",
            _ => return,
        };
        let text = format!("rank {rank} cannot go on: router {router} was lost {what}");
        self.out.end(1, Some(text));
    }

    /// A new router refuses all but the present incarnations: it was given them at its start.
    fn forget_fences(&mut self, id: RouterId) {
        let waits = |state: &RankState| match state {
            RankState::Lost { fence, .. } => fence.waiting.contains(&id),
            _ => false,
        };
        let waiting: Vec<RankInstance> =
            self.ranks.iter().filter(|r| waits(&r.state)).map(|r| r.instance()).collect();
        for instance in waiting {
            self.unheard_at(id, instance);
            if !self.out.has_ended() {
                let (router, rsn) = (id, 0);
                self.out.follows(Consequence::RouterFenced { router, instance, rsn });
            }
        }
    }

    /// A new router has not heard a rank before that rank died.
    pub fn unheard(&mut self, role: Role, instance: RankInstance) {
        if let (Role::Router { id, .. }, true) = (role, self.is_current(role)) {
            self.unheard_at(id, instance);
        }
    }

    /// What a rank told a router died with both. That is no loss where they shared a host: such a
    /// rank tells its own home router first. Else it is not known when it spoke, and it might not
    /// do again what others saw it do.
    fn unheard_at(&mut self, id: RouterId, instance: RankInstance) {
        let r = &self.ranks[instance.rank];
        let lost = r.is(RankStateName::Lost) && r.instance() == instance;
        if lost && self.roles.routers[id as usize].before != Some(r.node) {
            let rank = instance.rank;
            let text = format!(
                "rank {rank} cannot be recovered: router {id} was lost with what that rank had told it, just \
                 before the rank itself"
            );
            self.out.end(1, Some(text));
        }
    }

    /// A rank has told its new router what it has: it is whole again when an image of it exists
    /// that was asked for after this.
    pub fn adopted(&mut self, role: Role, instance: RankInstance) {
        let now = self.out.now();
        if !self.is_current(role) {
            return;
        }
        let Some(r) = self.ranks.current(instance) else { return };
        if std::mem::take(&mut r.log_lost) {
            r.unprotected = Some(now);
            self.schedule.want(instance.rank, now);
        }
    }

    /// Messages to a rank lie at its router alone, or no longer do.
    pub fn exposed(&mut self, rank: Rank, exposed: bool) {
        if let Some(r) = self.ranks.get_mut(rank) {
            r.exposed = exposed;
        }
    }

    /// A router that took over has heard the rank.
    pub fn heard(&mut self, role: Role, instance: RankInstance) {
        if let (Role::Router { id, .. }, true) = (role, self.is_current(role)) {
            self.roles.unheard.remove(&(instance.rank, id));
        }
    }

    /// Routers that did not come up in time, and those that are to move.
    pub fn watch_routers(&mut self) {
        let now = self.out.now();
        for id in 0..self.roles.routers.len() as RouterId {
            if self.out.has_ended() {
                return;
            }
            let entry = &self.roles.routers[id as usize];
            let Entry { node, generation, .. } = *entry;
            if !entry.is_up() {
                if entry.until().is_some_and(|until| until <= now) {
                    self.router_lost(id, too_late(), true);
                }
            } else if self.view().should_move(id) {
                let role = Role::Router { id, generation };
                self.out.push(Command::StopRole { node, role });
                let cause = if self.nodes.is_drained(node) {
                    format!("node {node} is drained")
                } else {
                    "its host has taken ranks that it serves".to_string()
                };
                self.router_lost(id, cause, false);
            }
        }
    }
}
