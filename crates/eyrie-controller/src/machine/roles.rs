//! Roles on nodes: which node has which router, and what becomes of the ranks of a router that is
//! lost (where the stores are: [`super::store_nodes`]). A router never runs on the host of ranks
//! that it serves while another host is left: one failure would take a rank and its log. What a
//! lost router held is gone: its ranks are imaged at once, and until then their deaths cannot be
//! recovered from.

use super::io::{Command, StoreId};
use super::rank::{RankEntry, RankState};
use super::reactor::Machine;
use super::role::Entry;
use super::save::WRITE_TIMEOUT;
use super::state::RankStateName;
use super::timeouts::LEAVE_TIMEOUT;
use crate::record::Record;
use eyrie_transport::{Addr, Directory, RouterId};
use eyrie_wire::control::Role;
use eyrie_wire::{Incarnation, Node, Rank, RankInstance};
use std::time::Duration;

/// How long a role may take to say where it listens.
pub(super) const ROLE_TIMEOUT: Duration = Duration::from_secs(25);
/// Starts of one role in a row that may fail.
pub(super) const ATTEMPTS: u32 = 3;

/// For each rank the router that is its home. Ranks of one node have one home, so that there is
/// always another node for it; so have those of nodes in a row, so that the directory is short.
fn homes(start: &[Node], routers: u32) -> Vec<RouterId> {
    let nodes = start.iter().max().map_or(1, |last| u64::from(*last) + 1);
    let home = |node: &Node| u64::from(*node) * u64::from(routers) / nodes;
    start.iter().map(|node| home(node) as RouterId).collect()
}

impl Machine {
    /// Starts routers and stores, once all agents are there. True: they all listen, or run
    /// elsewhere.
    pub(super) fn roles_are_ready(&mut self) -> bool {
        if !self.config.roles_on_nodes {
            return true;
        }
        if self.roles.routers.is_empty() {
            if self.roles.home.is_empty() {
                self.roles.home = homes(&self.config.start, self.config.routers);
            }
            let patience = self.router_patience();
            for id in 0..self.config.routers {
                let Some(node) = self.node_for_router(id) else { return false };
                let until = self.now + patience;
                let entry =
                    Entry { generation: 0, node, before: None, addr: None, until, failed: 0 };
                self.roles.routers.push(entry);
                self.order_router(id, false);
            }
            self.start_missing_stores();
        }
        self.roles.all().all(|role| role.addr.is_some())
    }

    /// How long a router may take to say where it listens. At the start of a job that was saved it
    /// reads first what another one held.
    fn router_patience(&self) -> Duration {
        let saved = |r: &RankEntry| r.is(RankStateName::Lost);
        match !self.started && self.ranks.iter().any(saved) {
            true => WRITE_TIMEOUT,
            false => ROLE_TIMEOUT,
        }
    }

    /// The node that a router is to run on: one without its ranks, rather one without any, rather
    /// one with few routers. None when no node is up.
    pub(super) fn node_for_router(&self, id: RouterId) -> Option<Node> {
        let served = self.nodes_served(id);
        self.nodes_up_with_ranks()
            .min_by_key(|(node, ranks)| {
                let routers = self.roles.routers.iter().enumerate();
                let others =
                    routers.clone().filter(|(other, r)| *other as u32 != id && r.node == *node);
                let failed = routers
                    .clone()
                    .any(|(of, r)| of as u32 == id && r.failed > 0 && r.node == *node);
                let drained = self.nodes[*node as usize].drained;
                let far = self.rank_that_cannot_meet(*node).is_some();
                let served = served[*node as usize];
                (drained, failed, far, served, *ranks > 0, others.count(), *node)
            })
            .map(|(node, _)| node)
    }

    /// The nodes that are up, and how many ranks each has or is to have.
    pub fn nodes_up_with_ranks(&self) -> impl Iterator<Item = (Node, u32)> {
        let mut ranks = vec![0; self.nodes.len()];
        for r in self.ranks.iter().filter(|r| !r.is(RankStateName::Finished)) {
            ranks[r.node as usize] += 1;
        }
        let nodes: Vec<_> = self.nodes_up().zip(ranks).collect();
        (0..).zip(nodes).filter(|(_, (up, _))| *up).map(|(node, (_, ranks))| (node, ranks))
    }

    /// For each node whether ranks of this router are there, or are to come back there.
    pub(super) fn nodes_served(&self, id: RouterId) -> Vec<bool> {
        let mut served = vec![false; self.nodes.len()];
        let ranks = self.ranks_at(id).map(|rank| &self.ranks[rank as usize]);
        for r in ranks.filter(|r| !r.is(RankStateName::Finished)) {
            served[r.node as usize] = true;
        }
        served
    }

    /// The ranks that are at home at this router.
    pub(super) fn ranks_at(&self, id: RouterId) -> impl Iterator<Item = Rank> + '_ {
        let home = self.roles.home.iter().enumerate();
        home.filter(move |(_, home)| **home == id).map(|(rank, _)| rank as Rank)
    }

    fn order_router(&mut self, id: RouterId, takes_over: bool) {
        let Entry { node, generation, .. } = self.roles.routers[id as usize];
        let role = Role::Router { id, generation };
        self.commands.push(Command::StartRole { node, role, takes_over });
    }

    /// Whether it is the last of its kind. Those beside the controller always are.
    pub fn is_current(&self, role: Role) -> bool {
        match role {
            Role::Router { id, generation } if self.config.roles_on_nodes => {
                let entry = self.roles.routers.get(id as usize);
                entry.is_some_and(|entry| entry.generation == generation)
            }
            Role::Store { id } if self.config.roles_on_nodes => self.roles.stores.contains_key(&id),
            _ => true,
        }
    }

    /// Routers and stores on nodes, and their nodes; none where they run beside the controller.
    pub fn roles(&self) -> impl Iterator<Item = (Role, Node)> + '_ {
        let routers = self.roles.routers.iter().enumerate().map(|(id, router)| {
            let Entry { generation, node, .. } = *router;
            (Role::Router { id: id as RouterId, generation }, node)
        });
        let stores = self.roles.stores.iter();
        routers.chain(stores.map(|(id, store)| (Role::Store { id: *id }, store.node)))
    }

    /// Those of them that have said where they listen.
    pub fn roles_up(&self) -> impl Iterator<Item = Role> + '_ {
        self.roles().map(|(role, _)| role).filter(|role| match role {
            Role::Router { id, .. } => self.roles.routers[*id as usize].addr.is_some(),
            Role::Store { id } => self.store_on_node(*id).is_some(),
        })
    }

    /// Where a store on a node listens.
    pub fn store_on_node(&self, id: StoreId) -> Option<&Addr> {
        self.roles.stores.get(&id)?.addr.as_ref()
    }

    /// Ranks whose death, with or without their node, cannot be recovered from at present.
    pub fn unprotected_ranks(&self) -> impl Iterator<Item = Rank> + '_ {
        let living = self.ranks.iter().filter(|r| !r.is(RankStateName::Finished));
        living
            .filter(|r| {
                let lost = r.log_lost || r.unprotected.is_some();
                lost || self.is_beside(r) || self.is_unheard(r) || self.is_imaged_beside(r)
            })
            .map(|r| r.rank)
    }

    /// Whether a rank's own router is on its host.
    fn is_beside(&self, r: &RankEntry) -> bool {
        let home = self.roles.home.get(r.rank as usize);
        let router = home.and_then(|home| self.roles.routers.get(*home as usize));
        router.is_some_and(|router| router.node == r.node)
    }

    /// Whether all images that could bring a rank back are on its own host.
    fn is_imaged_beside(&self, r: &RankEntry) -> bool {
        let elsewhere =
            |store: &StoreId| self.roles.stores.get(store).is_none_or(|store| store.node != r.node);
        let mut stores = r.images.iter().flat_map(|kept| &kept.copies.stores);
        r.truncated && !stores.any(elsewhere)
    }

    /// For each rank whether it is at home at this router.
    pub fn at_home(&self, id: RouterId) -> Vec<bool> {
        self.roles.home.iter().map(|home| *home == id).collect()
    }

    /// For each rank who may speak.
    pub fn incarnations(&self) -> Vec<Incarnation> {
        self.ranks.iter().map(|r| r.incarnation).collect()
    }

    /// The routers on this node.
    pub fn routers_on(&self, node: Node) -> Vec<RouterId> {
        let routers = self.roles.routers.iter().enumerate();
        routers.filter(|(_, r)| r.node == node).map(|(id, _)| id as RouterId).collect()
    }

    /// A role says where it listens.
    pub(super) fn role_up(&mut self, role: Role, addr: Addr) {
        if !self.is_current(role) {
            return;
        }
        let id = match role {
            Role::Router { id, .. } => id,
            Role::Store { id } => return self.store_listens(id, addr),
        };
        let Some(entry) = self.roles.routers.get_mut(id as usize) else { return };
        (entry.addr, entry.failed) = (Some(addr), 0);
        let node = entry.node;
        self.record(Record::RoleStarted { role: role.to_string(), node });
        let addrs = self.roles.routers.iter().map(|router| router.addr.clone());
        // Until all are there, nobody needs it: at the start no rank runs, and later one that is
        // not there cannot be connected to.
        let Some(routers) = addrs.collect::<Option<Vec<Addr>>>() else { return };
        self.roles.epoch += 1;
        let (epoch, home) = (self.roles.epoch, self.roles.home.clone());
        let beside = Vec::new();
        let directory = Directory { epoch, home, routers, beside, until_received: true };
        self.commands.push(Command::Directory(directory));
    }

    /// A role is gone, or could not be started.
    pub(super) fn role_lost(&mut self, role: Role, cause: String) {
        match role {
            _ if !self.is_current(role) => {}
            Role::Router { id, .. } => self.router_lost(id, cause, true),
            Role::Store { id } => self.store_on_node_lost(id, cause, true),
        }
    }

    /// The routers and the store that a lost node had.
    pub(super) fn roles_of_lost_node(&mut self, node: Node) {
        let cause = format!("node {node} is lost");
        for id in self.routers_on(node) {
            if !self.ended {
                self.router_lost(id, cause.clone(), false);
            }
        }
        let there = self.roles.stores.iter().filter(|(_, store)| store.node == node);
        for id in there.map(|(id, _)| *id).collect::<Vec<_>>() {
            if !self.ended {
                self.store_on_node_lost(id, cause.clone(), false);
            }
        }
    }

    /// A router is gone with all that it held: another one begins with nothing. `by_itself`: its
    /// node is still there.
    pub(super) fn router_lost(&mut self, id: RouterId, cause: String, by_itself: bool) {
        let entry = &mut self.roles.routers[id as usize];
        let listened = entry.addr.take().is_some();
        entry.failed += u32::from(!listened && by_itself);
        let (old, failed) = (entry.node, entry.failed);
        if failed >= ATTEMPTS {
            return self.end(1, Some(format!("router {id} cannot be started: {cause}")));
        }
        let ranks: Vec<Rank> = self.ranks_at(id).collect();
        if listened && self.started {
            self.summary.roles_lost += 1;
            let imaged = |rank: &Rank| !self.ranks[*rank as usize].is(RankStateName::Finished);
            let imaged = ranks.iter().copied().filter(imaged).collect();
            let role = format!("router {id}");
            self.record(Record::RoleLost { role, node: old, cause, ranks: imaged });
            ranks.iter().for_each(|rank| self.lose_log(*rank, id));
            self.roles.unheard.extend((0..self.ranks.len() as Rank).map(|rank| (rank, id)));
        }
        if self.ended {
            return;
        }
        let Some(node) = self.node_for_router(id) else { return };
        let until = self.now + self.router_patience();
        let entry = &mut self.roles.routers[id as usize];
        (entry.generation, entry.node, entry.until) = (entry.generation + 1, node, until);
        entry.before = listened.then_some(old).or(entry.before);
        self.order_router(id, self.started);
        self.forget_fences(id);
    }

    /// The log of a rank is gone with its router: the rank can be recovered again when an image of
    /// it exists that was taken after its new router has taken it up. One that has died just now
    /// cannot be recovered; one that re-executes reads all that it needs before it goes on, or
    /// its new router refuses it.
    fn lose_log(&mut self, rank: Rank, router: RouterId) {
        let r = &mut self.ranks[rank as usize];
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
        self.end(1, Some(text));
    }

    /// A new router lets nobody speak but the present incarnations: it was told them at its start.
    fn forget_fences(&mut self, id: RouterId) {
        let waits = |state: &RankState| match state {
            RankState::Lost { fence, .. } => fence.waiting.contains(&id),
            _ => false,
        };
        let waiting: Vec<RankInstance> =
            self.ranks.iter().filter(|r| waits(&r.state)).map(|r| r.instance()).collect();
        for instance in waiting {
            self.unheard_at(id, instance);
            if !self.ended {
                self.router_fenced(id, instance, 0);
            }
        }
    }

    /// A new router has not heard a rank before that rank died.
    pub(super) fn unheard(&mut self, role: Role, instance: RankInstance) {
        if let (Role::Router { id, .. }, true) = (role, self.is_current(role)) {
            self.unheard_at(id, instance);
        }
    }

    /// What a rank told a router died with both. That is no loss where they shared a host: such a
    /// rank tells its own home router first. Else nobody knows when it spoke, and it might not do
    /// again what others saw it do.
    fn unheard_at(&mut self, id: RouterId, instance: RankInstance) {
        let r = &self.ranks[instance.rank as usize];
        let lost = r.is(RankStateName::Lost) && r.instance() == instance;
        if lost && self.roles.routers[id as usize].before != Some(r.node) {
            let rank = instance.rank;
            let text = format!(
                "rank {rank} cannot be recovered: router {id} was lost with what that rank had told it, just \
                 before the rank itself"
            );
            self.end(1, Some(text));
        }
    }

    /// A rank has told its new router what it has: it is whole again when an image of it exists
    /// that was asked for after this.
    pub(super) fn adopted(&mut self, role: Role, instance: RankInstance) {
        let now = self.now;
        if !self.is_current(role) {
            return;
        }
        let Some(r) = self.current(instance) else { return };
        if std::mem::take(&mut r.log_lost) {
            r.unprotected = Some(now);
            self.schedule.want(instance.rank, now);
        }
    }

    /// Messages to a rank lie at its router alone, or no longer do.
    pub(super) fn exposed(&mut self, rank: Rank, exposed: bool) {
        if let Some(r) = self.ranks.get_mut(rank as usize) {
            r.exposed = exposed;
        }
    }

    /// The controller itself stood still for so long.
    pub(super) fn extend_roles(&mut self, gap: Duration) {
        let stores = self.roles.stores.values_mut();
        self.roles.routers.iter_mut().chain(stores).for_each(|role| role.until += gap);
    }

    /// When a router must have said where it listens.
    pub(super) fn next_role(&self) -> Option<Duration> {
        let starting = self.roles.all().filter(|r| r.addr.is_none());
        starting.map(|r| r.until).min()
    }

    /// Routers that did not come up in time, and those whose host has taken ranks that they serve.
    pub(super) fn watch_roles(&mut self) {
        let now = self.now;
        let limit = eyrie_units::time(ROLE_TIMEOUT);
        let late = format!("it has not said within {limit} where it listens");
        let stores = self.roles.stores.iter();
        let late_stores = stores.filter(|(_, store)| store.addr.is_none() && store.until <= now);
        for id in late_stores.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.store_on_node_lost(id, late.clone(), true);
        }
        if self.ended {
            return;
        }
        self.move_stores();
        if self.started && self.config.roles_on_nodes {
            self.start_missing_stores();
        }
        for id in 0..self.roles.routers.len() as RouterId {
            if self.ended {
                return;
            }
            let entry = &self.roles.routers[id as usize];
            if entry.addr.is_none() {
                if entry.until <= now {
                    self.router_lost(id, late.clone(), true);
                }
            } else if self.should_move(id) {
                let Entry { node, generation, .. } = *entry;
                let role = Role::Router { id, generation };
                self.commands.push(Command::StopRole { node, role });
                let cause = match self.nodes[node as usize].drained {
                    true => format!("node {node} is drained"),
                    false => "its host has taken ranks that it serves".to_string(),
                };
                self.router_lost(id, cause, false);
            }
        }
    }

    /// Whether a router that took over has not heard a rank that can still speak.
    fn is_unheard(&self, r: &RankEntry) -> bool {
        let speaks = !r.on_node().is_some_and(|on_node| on_node.finalized);
        speaks && self.roles.unheard.range((r.rank, 0)..=(r.rank, RouterId::MAX)).next().is_some()
    }

    /// A router that took over has heard the rank.
    pub(super) fn heard(&mut self, role: Role, instance: RankInstance) {
        if let (Role::Router { id, .. }, true) = (role, self.is_current(role)) {
            self.roles.unheard.remove(&(instance.rank, id));
        }
    }

    /// Whether ranks can be stopped without need: every router has heard all of them.
    pub(super) fn ranks_can_stop(&self) -> bool {
        let all = || self.ranks.iter().filter(|r| !r.is(RankStateName::Finished));
        !self.config.roles_on_nodes
            || (self.roles.routers.iter().all(|router| router.addr.is_some())
                && all().all(|r| !r.log_lost && r.unprotected.is_none() && !self.is_unheard(r)))
    }

    /// Why ranks cannot be stopped without need.
    pub(super) fn why_ranks_cannot_stop(&self) -> String {
        let mut routers = self.roles.routers.iter();
        if let Some(id) = routers.position(|router| router.addr.is_none()) {
            return format!("router {id} is being started");
        }
        let broken = |r: &&RankEntry| {
            !r.is(RankStateName::Finished)
                && (r.log_lost || r.unprotected.is_some() || self.is_unheard(r))
        };
        match self.ranks.iter().find(broken) {
            Some(r) => format!(
                "no rank is stopped while a router is new to rank {}: {}",
                r.rank,
                self.why_no_image(r.rank)
            ),
            None => "a router was new to a rank".into(),
        }
    }

    /// The roles on a drained node.
    pub(super) fn roles_that_stay(&self, node: Node) -> impl Iterator<Item = Role> + '_ {
        self.roles().filter(move |(_, on)| *on == node).map(|(role, _)| role)
    }

    /// How long a drained node may have roles: while images are copied, as long as one may take.
    pub(super) fn patience_with_roles(&self) -> Duration {
        let mut kept = self.ranks.iter().flat_map(|r| &r.images);
        match kept.any(|kept| !kept.copies.coming.is_empty()) {
            true => WRITE_TIMEOUT,
            false => LEAVE_TIMEOUT,
        }
    }

    /// Why a role does not leave a drained node.
    pub(super) fn why_role_stays(&self, role: Role) -> String {
        let living = || self.ranks.iter().filter(|r| !r.is(RankStateName::Finished));
        let why = match role {
            Role::Router { id, .. } => {
                let runs = |r: &&RankEntry| r.is(RankStateName::Running) && r.can_be_captured();
                let at_home = self.at_home(id);
                let broken = |r: &&RankEntry| {
                    let is_whole = r.unprotected.is_none() && !r.log_lost && !r.exposed;
                    !runs(r) || at_home[r.rank as usize] && !is_whole
                };
                living().find(broken).map(|r| (r.rank, self.why_no_image(r.rank)))
            }
            Role::Store { id } => {
                let has_only = |r: &&RankEntry| {
                    r.images.iter().any(|kept| !kept.copies.stores.iter().any(|s| *s != id))
                };
                let why = "no other store has its images";
                living().find(has_only).map(|r| (r.rank, why.to_string()))
            }
        };
        match why {
            Some((rank, why)) => format!("{role} did not leave it, because of rank {rank}: {why}"),
            None => format!("{role} did not leave it: no other node can have it"),
        }
    }

    /// Whether a router shares its host with ranks that it serves, there is a better one, and all
    /// ranks are whole: those that it serves will be imaged once more, and the others must tell the
    /// new router themselves what they told the old one.
    fn should_move(&self, id: RouterId) -> bool {
        let node = self.roles.routers[id as usize].node;
        let served = self.nodes_served(id);
        let drained = |node: Node| self.nodes[node as usize].drained;
        if !drained(node) && !served[node as usize] {
            return false;
        }
        let whole = |rank: Rank| {
            let r = &self.ranks[rank as usize];
            let runs = r.is(RankStateName::Running) && r.can_be_captured() && !r.exposed;
            r.is(RankStateName::Finished) || runs && r.unprotected.is_none() && !r.log_lost
        };
        let runs = |r: &RankEntry| r.is(RankStateName::Running) || r.is(RankStateName::Finished);
        let can = self.ranks.iter().all(runs) && self.ranks_at(id).all(whole);
        let better = self.node_for_router(id).filter(|_| can);
        let better = better.filter(|better| self.rank_that_cannot_meet(*better).is_none());
        better.is_some_and(|better| match drained(node) {
            true => !drained(better),
            false => !served[better as usize],
        })
    }
}
