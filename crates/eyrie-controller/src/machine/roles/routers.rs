//! Routers on nodes: which node has which router, and what becomes of the ranks of a router that is
//! lost. A router never runs on the host of ranks that it serves while another host is left: one
//! failure would take a rank and its log. What a lost router held is gone: its ranks are imaged at
//! once, and until then their deaths cannot be recovered from.

use super::entry::RoleEntry;
use super::hosting::{Hosting, ATTEMPTS};
use super::kind::{Kind, Look};
use super::places::Places;
use super::redundancy::{Missing, NO_OTHER_HOST};
use super::router_process::router;
use super::Roles;
use crate::machine::config::Config;
use crate::machine::images::why::ImageAges;
use crate::machine::io::{Command, ToPeer};
use crate::machine::outbox::consequence::Consequence;
use crate::machine::ranks::entry::RankEntry;
use crate::machine::state::RankStateName;
use crate::record::{in_words, Record};
use eyrie_interface::status::Kept;
use eyrie_router::RouterCommand;
use eyrie_wire::control::{Role, RoleKind, ToAgent};
use eyrie_wire::directory::{Directory, KeptUntil};
use eyrie_wire::role_address::Addr;
use eyrie_wire::{NodeId, Rank, RankInstance, RouterId};

/// For each rank its primary router. Ranks of one node have one primary router, so that there is
/// always another node for it; so have those of nodes in a row, so that the directory is short.
/// That of ranks of other domains is the gateway.
fn primaries(config: &Config) -> Vec<RouterId> {
    let start = &config.start;
    let nodes = start.iter().max().map_or(1, |last| u64::from(last.0) + 1);
    let primary = |node: &NodeId| u64::from(node.0) * u64::from(config.routers) / nodes;
    let of_rank = |(rank, node): (Rank, &NodeId)| {
        let gateway = config.gateway_router().filter(|_| config.is_elsewhere(rank));
        gateway.unwrap_or(RouterId(primary(node) as u32))
    };
    (0..).map(Rank).zip(start).map(of_rank).collect()
}

impl Hosting<'_> {
    /// Starts the routers; false when no node is up for them.
    pub fn start_routers(&mut self) -> bool {
        if self.roles.primaries().is_empty() {
            self.roles.set_primaries(primaries(self.config));
        }
        // First, so that the others are rather where it is not.
        if !self.start_gateway() {
            return false;
        }
        let patience = self.router_patience();
        for id in 0..self.config.routers {
            let Some(node) = self.places().node_for_router(RouterId(id)) else { return false };
            let until = self.out.now() + patience;
            self.roles.add(RoleKind::Router, id, node, until);
            self.order_router(RouterId(id), false);
        }
        true
    }

    /// A router says where it listens.
    pub fn router_listens(&mut self, id: RouterId, addr: Addr) {
        let Some(entry) = self.roles.get_mut(RoleKind::Router, id.0) else { return };
        entry.listen(addr);
        let node = entry.node();
        let role = self.router_in_words(id);
        self.out.record(Record::RoleStarted { role, node });
        let of_it = self.roles.ranks_at(id);
        let still: Vec<Rank> = of_it.filter(|rank| self.ranks[*rank].log().is_needless()).collect();
        if !still.is_empty() {
            // It may have taken over from one that is lost: they need nothing that this one had.
            let serve = RouterCommand::Serve(still);
            self.out.push(Command::Send(ToPeer::Router(id, serve)));
        }
        self.publish_directory();
    }

    /// Says where all routers are, and which is the primary one of each rank.
    pub fn publish_directory(&mut self) {
        // One that waits for its host to come back keeps no other one from being found.
        let addr = |(id, router): (u32, &RoleEntry)| {
            let is_gateway = self.roles.is_gateway(RouterId(id));
            (if is_gateway { router.last_addr() } else { router.addr() }).cloned()
        };
        let addrs = self.roles.of(RoleKind::Router).map(addr);
        // Until all are there, no rank needs it: at the start none runs, and later a router that is
        // not there cannot be connected to.
        let Some(routers) = addrs.collect::<Option<Vec<Addr>>>() else { return };
        let epoch = self.roles.next_epoch();
        let primaries = self.roles.primaries().to_vec();
        let kept_until = KeptUntil::Received;
        let gateway = self.config.gateway_router();
        let most = Directory { epoch, primaries, routers, kept_until, ..Directory::default() };
        let directory = Directory { gateway, ..most };
        self.tell_gateway(&directory);
        self.out.push(Command::Directory(directory));
    }

    /// A router is gone with all that it held: another one begins with nothing. `by_itself`: its
    /// node is still there.
    pub fn router_lost(&mut self, id: RouterId, cause: String, by_itself: bool) {
        let Some(entry) = self.roles.get_mut(RoleKind::Router, id.0) else { return };
        let listened = entry.lose(by_itself);
        let old = entry.node();
        let failed = entry.failed();
        if failed >= ATTEMPTS {
            return self.out.end(1, Some(format!("router {id} cannot be started: {cause}")));
        }
        let ranks: Vec<Rank> = self.roles.ranks_at(id).collect();
        if listened && self.out.has_started() {
            self.out.summary_mut().roles_lost += 1;
            let imaged = |rank: &Rank| self.ranks[*rank].is_living();
            let imaged = ranks.iter().copied().filter(imaged).collect();
            let role = self.router_in_words(id);
            self.out.record(Record::RoleLost { role, node: old, cause, ranks: imaged });
            ranks.iter().for_each(|rank| self.lose_log(*rank, id));
            self.roles.not_heard(id, self.ranks.numbers());
            self.out.follows(Consequence::RouterLost);
        }
        if self.out.has_ended() {
            return;
        }
        let Some(node) = self.places().node_for_router(id) else { return };
        let until = self.out.now() + self.router_patience();
        if let Some(entry) = self.roles.get_mut(RoleKind::Router, id.0) {
            entry.replace(node, until);
        }
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
        if !r.is_living() || r.log().is_needless() {
            return;
        }
        let lost_messages = r.log_mut().lose();
        let what = match r.state() {
            RankStateName::Lost => {
                "after that rank had died and before it was brought back, with what it had received \
                 since its image"
            }
            _ if lost_messages => "with messages to that rank that no other process had any more",
            _ => return,
        };
        let text = format!("rank {rank} cannot go on: router {router} was lost {what}");
        self.out.end(1, Some(text));
    }

    /// A new router refuses all but the present incarnations: it was given them at its start.
    fn forget_fences(&mut self, id: RouterId) {
        for instance in self.waiting_for(id) {
            self.unheard_at(id, instance);
        }
        if !self.out.has_ended() {
            self.end_waiting_for(id);
        }
    }

    /// A new router has not heard a rank before that rank died.
    pub fn unheard(&mut self, role: Role, instance: RankInstance) {
        if self.is_current(role) && !self.roles.is_gateway(RouterId(role.id)) {
            self.unheard_at(RouterId(role.id), instance);
        }
    }

    /// What a rank told a router died with both. That is no loss where they shared a host: such a
    /// rank tells its own primary router first. Else it is not known when it spoke, and it might
    /// not do again what others saw it do.
    fn unheard_at(&mut self, id: RouterId, instance: RankInstance) {
        let r = &self.ranks[instance.rank];
        let lost = r.is(RankStateName::Lost) && r.instance() == instance;
        let before = self.roles.get(RoleKind::Router, id.0).and_then(RoleEntry::before);
        if lost && !r.log().is_needless() && before != Some(r.node()) {
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
        if r.log_mut().adopt(now) {
            self.schedule.want(instance.rank, now);
        }
    }

    /// Messages to a rank lie at its router alone, or no longer do.
    pub fn exposed(&mut self, rank: Rank, exposed: bool) {
        if let Some(r) = self.ranks.get_mut(rank).filter(|r| r.is_living()) {
            r.log_mut().set_only_copy(exposed);
        }
    }

    /// A router that took over has heard the rank.
    pub fn heard(&mut self, role: Role, instance: RankInstance) {
        if self.is_current(role) {
            self.roles.hear(RouterId(role.id), instance.rank);
        }
    }

    /// Moves routers away from nodes that ranks cannot reach, or parts with one of two nodes.
    /// Nothing is decided while the controller does not hear one of them: heartbeats tell what that
    /// means.
    fn move_unreached_routers(&mut self) {
        let silent = self.nodes.silent(self.out.now());
        let silent: Vec<NodeId> = silent.into_iter().map(|(node, _)| node).collect();
        let mut has_moved = false;
        for id in 0..self.config.routers {
            let Some(entry) = self.roles.get(RoleKind::Router, id) else { continue };
            let node = entry.node();
            let role = router(RouterId(id), entry);
            let places = self.places();
            let Some(far) = places.rank_that_cannot_meet(node).filter(|_| entry.is_up()) else {
                continue;
            };
            if silent.contains(&node) || silent.contains(&far) || !places.lasts(far, node) {
                continue;
            }
            let hosts = self.nodes.hosts();
            let (near, away) = (in_words(far, hosts), in_words(node, hosts));
            let cause = format!("{near} and {away} do not reach each other");
            let better = places.node_for_router(RouterId(id));
            let better = better.filter(|better| places.rank_that_cannot_meet(*better).is_none());
            if better.is_some() && places.can_lose_log(RouterId(id)) {
                self.out.send_agent(node, ToAgent::StopRole(role));
                self.router_lost(RouterId(id), cause, false);
                has_moved = true;
            } else if has_moved {
                // It may have moved to the node that would be given up: the next look decides.
                return;
            } else {
                let here = self.roles.of_kind_on(RoleKind::Router, node);
                let is_needed = here.into_iter().any(|id| !places.can_lose_log(RouterId(id)));
                return self.part_with_one(far, node, is_needed, cause);
            }
            if self.out.has_ended() {
                return;
            }
        }
    }

    /// Moves routers whose nodes are drained, or have taken ranks that they serve.
    fn move_routers(&mut self) {
        for id in 0..self.config.routers {
            if self.out.has_ended() {
                return;
            }
            let Some(entry) = self.roles.get(RoleKind::Router, id) else { continue };
            if entry.is_up() && self.places().should_move(RouterId(id)) {
                let node = entry.node();
                let role = router(RouterId(id), entry);
                self.out.send_agent(node, ToAgent::StopRole(role));
                let cause = if self.nodes.is_drained(node) {
                    format!("node {node} is drained")
                } else {
                    "its host has taken ranks that it serves".to_string()
                };
                self.router_lost(RouterId(id), cause, false);
            }
        }
    }
}

impl Places<'_> {
    /// The node that a router is to run on: one without its ranks, rather one without any, rather
    /// one with few routers. None when no node is up.
    pub fn node_for_router(self, id: RouterId) -> Option<NodeId> {
        let served = self.nodes_served(id);
        self.nodes_up_with_ranks()
            .min_by_key(|(node, ranks)| {
                let others = self.roles.of_kind_on(RoleKind::Router, *node);
                let others = others.into_iter().filter(|other| *other != id.0).count();
                let itself = self.roles.get(RoleKind::Router, id.0);
                let failed = itself.is_some_and(|r| r.failed() > 0 && r.node() == *node);
                let drained = self.nodes.is_drained(*node);
                let far = self.rank_that_cannot_meet(*node).is_some();
                let served = served[node.index()];
                (drained, failed, far, served, *ranks > 0, others, *node)
            })
            .map(|(node, _)| node)
    }

    /// For each node whether ranks of this router are there, or are to come back there.
    pub fn nodes_served(self, id: RouterId) -> Vec<bool> {
        let mut served = vec![false; self.nodes.len()];
        let ranks = self.roles.ranks_at(id).map(|rank| &self.ranks[rank]);
        for r in ranks.filter(|r| r.is_living()) {
            served[r.node().index()] = true;
        }
        served
    }

    /// Whether a router shares its host with ranks that it serves, there is a better one, and all
    /// ranks are whole: those that it serves will be imaged once more, and the others must tell the
    /// new router themselves what they told the old one.
    pub fn should_move(self, id: RouterId) -> bool {
        let Some(node) = self.roles.node(RoleKind::Router, id.0) else { return false };
        let served = self.nodes_served(id);
        let drained = |node: NodeId| self.nodes.is_drained(node);
        if !drained(node) && !served[node.index()] {
            return false;
        }
        let whole = |rank: Rank| {
            let r = &self.ranks[rank];
            let runs =
                r.is(RankStateName::Running) && r.can_be_captured() && !r.log().is_only_copy();
            !r.is_living() || runs && r.log().is_whole()
        };
        let runs = |r: &RankEntry| r.is(RankStateName::Running) || !r.is_living();
        let can = self.ranks.iter().all(runs) && self.roles.ranks_at(id).all(whole);
        let better = self.node_for_router(id).filter(|_| can);
        let better = better.filter(|better| self.rank_that_cannot_meet(*better).is_none());
        let is_better = |to: NodeId| if drained(node) { !drained(to) } else { !served[to.index()] };
        better.is_some_and(is_better)
    }

    /// Whether all ranks of a router live, and nothing for them is at that router alone.
    pub fn can_lose_log(self, id: RouterId) -> bool {
        let lives =
            |r: &RankEntry| !r.is_living() || r.on_node().is_some() && !r.log().is_only_copy();
        self.roles.ranks_at(id).all(|rank| lives(&self.ranks[rank]))
    }

    fn missing_logs(self) -> Option<Missing> {
        let beside = |(id, router): &(u32, &RoleEntry)| {
            self.nodes_served(RouterId(*id))[router.node().index()]
        };
        let mut routers = self.roles.of(RoleKind::Router).filter(beside).map(|(id, _)| id);
        let first = routers.next()?;
        let names = match routers.count() {
            0 => format!("router {first}"),
            others => format!("router {first} and {others} more"),
        };
        let better = |id: RouterId| {
            let node = self.node_for_router(id);
            node.is_some_and(|node| !self.nodes_served(id)[node.index()])
        };
        let comes = better(RouterId(first));
        let why = if comes { "that ends when all ranks are whole" } else { NO_OTHER_HOST };
        let cause = format!("messages are logged on their receivers' own host, by {names}: {why}");
        Some(Missing { what: Kept::Logs, cause, comes })
    }
}

/// Routers: they log, order and deliver messages.
pub struct RouterKind;

impl Kind for RouterKind {
    fn start(&self, hosting: &mut Hosting<'_>) -> bool {
        hosting.start_routers()
    }

    fn listens(&self, hosting: &mut Hosting<'_>, id: u32, addr: Addr) {
        hosting.router_listens(RouterId(id), addr);
    }

    fn lost(&self, hosting: &mut Hosting<'_>, id: u32, cause: String, by_itself: bool) {
        let id = RouterId(id);
        if hosting.roles.is_gateway(id) {
            hosting.gateway_lost(id, cause, by_itself);
        } else {
            hosting.router_lost(id, cause, by_itself);
        }
    }

    fn looks(&self) -> &'static [Look] {
        &[|hosting| hosting.move_routers()]
    }

    fn watch_reach(&self, hosting: &mut Hosting<'_>) {
        hosting.move_unreached_routers();
    }

    fn missing(&self, _: &Config, places: Places<'_>) -> Option<Missing> {
        places.missing_logs()
    }

    fn why_it_stays(&self, roles: &Roles, ages: ImageAges<'_>, id: u32) -> Option<(Rank, String)> {
        let is_primary = roles.is_primary_of(RouterId(id));
        let broken = |r: &&RankEntry| {
            let runs = r.is(RankStateName::Running) && r.can_be_captured();
            let is_whole = r.log().is_whole() && !r.log().is_only_copy();
            !runs || is_primary[r.rank().index()] && !is_whole
        };
        ages.ranks.living().find(broken).map(|r| (r.rank(), ages.why_no_image(r.rank())))
    }
}
