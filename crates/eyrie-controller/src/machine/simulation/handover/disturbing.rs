//! What goes wrong in simulated handovers, and what users ask for meanwhile.

use super::*;
use crate::machine::ranks::entry::RankEntry;

impl World {
    /// What fails, and what users ask.
    pub(super) fn disturb(&mut self) {
        if self.joining.is_some() && self.random.gen_bool(0.01) {
            let site = self.any_site();
            self.fail(site);
        }
        let site = self.any_site();
        // To the domain that shows the job ranks come back without that it joins again.
        let shows = *self.showing.last().expect("one shows it");
        if self.sites[shows].machine.ranks.here() == 0 && self.random.gen_bool(0.01) {
            return self.ask_to_move(site, shows);
        }
        if !self.random.gen_bool(0.004) {
            return;
        }
        match self.random.gen_range(0..16) {
            0..=4 => {
                let to = self.random.gen_range(0..5);
                self.ask_to_move(site, to);
            }
            5 => {
                self.sites[site].asked += 1;
                let request = self.sites[site].asked;
                let way = Way::Live;
                let stay = Event::MigrateDomain { request, to: None, way, leave: false };
                self.say(site, Says::User, stay);
            }
            6 => self.lose_rank(),
            7..=10 => self.fail(site),
            11..=12 => self.ask_to_join(),
            _ => {
                let rank = Rank(self.random.gen_range(0..self.sites[0].machine.ranks.len()) as u32);
                // Else the machine might hear it before it hears that a router is lost.
                let exposed = self.random.gen() && !self.sites[site].router_lost;
                let event = if exposed {
                    RouterEvent::Exposed { rank }
                } else {
                    RouterEvent::Covered { rank }
                };
                self.say(site, Says::Router(0), said::router(RouterId(0), event));
            }
        }
    }

    fn ask_to_move(&mut self, site: usize, to: usize) {
        let to = Some(format!("site-{to}"));
        let way = if self.random.gen() { Way::Live } else { Way::Stop };
        self.sites[site].asked += 1;
        let request = self.sites[site].asked;
        let leave = self.random.gen();
        self.say(site, Says::User, Event::MigrateDomain { request, to, way, leave });
    }

    /// Something of a site fails.
    pub(super) fn fail(&mut self, site: usize) {
        match self.random.gen_range(0..7) {
            0 => {
                let other = (site + 1) % self.sites.len();
                let pair = (site.min(other), site.max(other));
                let long = ms(self.random.gen_range(1..40_000));
                self.broken.insert(pair, self.now + long);
                self.set_line(pair, false);
            }
            1 => {
                let Some(role) = self.sites[site].gateway.take() else { return };
                let cause = "killed".into();
                self.sites[site].roles.remove(&role);
                self.lose_lines(site);
                self.say(site, Says::Agent(NodeId(0)), Event::RoleLost { role, cause });
            }
            2 => self.lose_rank(),
            3 => self.lose_store(site),
            4 => self.lose_node(site),
            5 => self.replace_controller(site),
            _ => self.lose_router(site),
        }
    }

    fn lose_rank(&mut self) {
        let ranks: Vec<Rank> = self.processes.keys().copied().collect();
        if ranks.is_empty() {
            return;
        }
        let rank = ranks[self.random.gen_range(0..ranks.len())];
        let process = self.processes[&rank];
        if !self.has_heard_all(process.site) {
            return;
        }
        self.processes.remove(&rank);
        let ending = Ending::Signal(libc::SIGKILL);
        let stage = MpiStage::Within;
        self.report(process, rank, RankReport::Exited { ending, stage });
    }

    /// A router is lost, where no rank needs it: all live, or are on their way with all that they
    /// have received.
    fn lose_router(&mut self, site: usize) {
        let id = self.random.gen_range(0..ROUTERS);
        let machine = &self.sites[site].machine;
        let lives = |r: &RankEntry| {
            let instance = (site, r.instance().incarnation);
            let process = self.processes.get(&r.rank());
            let is_it = |process: &Process| (process.site, process.incarnation) == instance;
            r.is(RankStateName::Running) && process.is_some_and(is_it)
        };
        let can = |r: &RankEntry| lives(r) && !r.log().is_only_copy() || r.log().is_needless();
        let is_it = |role: &Role| role.kind == RoleKind::Router && role.id == id;
        let role = self.sites[site].roles.keys().copied().find(is_it);
        let can = machine.has_started() && machine.ranks.living().all(can);
        // What it has of ranks was said before.
        let is_waiting = |by: &Says| self.sites[site].queues.get(by).is_some_and(|q| !q.is_empty());
        let can = can && !is_waiting(&Says::Router(0));
        let Some(role) = role.filter(|_| can && self.has_heard_all(site)) else { return };
        let node = self.lose_role(site, role);
        self.sites[site].router_lost = true;
        let cause = "killed".into();
        self.say(site, Says::Agent(node), Event::RoleLost { role, cause });
    }

    /// Whether no router has been lost of late: those that took over have heard all ranks.
    fn has_heard_all(&mut self, site: usize) -> bool {
        let Site { machine, roles, router_lost, .. } = &mut self.sites[site];
        let is_router = |role: &&Role| role.kind == RoleKind::Router && role.id < ROUTERS;
        let are_there = roles.keys().filter(is_router).count() as u32 == ROUTERS;
        let mut living = machine.ranks.living();
        let is_whole = |r: &RankEntry| r.log().is_whole() && !machine.roles.is_unheard(r);
        *router_lost &= !are_there || !living.all(is_whole);
        !*router_lost
    }

    /// A store is lost, where each image is in another one, too.
    fn lose_store(&mut self, site: usize) {
        let is_store = |role: &Role| role.kind == RoleKind::Store;
        let stores: Vec<Role> = self.sites[site].roles.keys().copied().filter(is_store).collect();
        if stores.len() < 2 || !self.can_lose_a_store(site) {
            return;
        }
        let role = stores[self.random.gen_range(0..stores.len())];
        let node = self.lose_role(site, role);
        let cause = "killed".into();
        self.say(site, Says::Agent(node), Event::RoleLost { role, cause });
    }

    /// Whether the loss of one store loses no image that a rank needs. Of ranks on their way only
    /// one may be lost: what becomes of the copies is not seen here.
    fn can_lose_a_store(&mut self, site: usize) -> bool {
        let Site { machine, lost_on_the_way, .. } = &mut self.sites[site];
        *lost_on_the_way &=
            machine.handover.may_bring_ranks() || machine.handover.ranks_stay_fenced();
        let images = &self.images;
        let copies = |rank: Rank, image: ImageId| {
            images.keys().filter(|(at, _, r, i)| (*at, *r, *i) == (site, rank, image)).count()
        };
        let is_safe = |r: &RankEntry| {
            r.images().newest().is_none_or(|kept| copies(r.rank(), kept.image.image) > 1)
        };
        machine.ranks.living().all(is_safe) && !*lost_on_the_way
    }

    /// A host with ranks dies, and its node comes back later under another number.
    fn lose_node(&mut self, site: usize) {
        let users = self.sites[site].queues.get(&Says::User);
        if !self.sites[site].machine.has_started() || users.is_some_and(|queue| !queue.is_empty()) {
            return;
        }
        if let Some(host) = self.sites[site].gone.pop() {
            let node = NodeId(self.sites[site].machine.nodes.len() as u32);
            self.say(site, Says::User, Event::Joining { host });
            self.sites[site].nodes.insert(node, Known::default());
            return self.say(site, Says::User, said::joined(node));
        }
        let has_ranks = |node: &NodeId| {
            self.sites[site].machine.config.slots.get(node.index()) == Some(&Some(8))
        };
        let nodes: Vec<NodeId> = self.sites[site].nodes.keys().copied().filter(has_ranks).collect();
        let Some(node) = nodes.get(self.random.gen_range(0..2)).copied() else { return };
        // What it has said of ranks that have ended would be lost.
        let said = self.sites[site].queues.get(&Says::Agent(node));
        if said.is_some_and(|queue| !queue.is_empty()) {
            return;
        }
        let on_it = self.sites[site].roles.iter().filter(|(_, at)| **at == node);
        let on_it: Vec<Role> = on_it.map(|(role, _)| *role).collect();
        if !self.has_heard_all(site) {
            return;
        }
        let has_router = on_it.iter().any(|role| role.kind == RoleKind::Router);
        if has_router || !on_it.is_empty() && !self.can_lose_a_store(site) {
            return;
        }
        for role in on_it {
            self.lose_role(site, role);
        }
        self.processes.retain(|_, process| (process.site, process.node) != (site, node));
        self.sites[site].queues.remove(&Says::Agent(node));
        self.sites[site].nodes.remove(&node);
        self.prepared.retain(|(at, on, _)| (*at, *on) != (site, node));
        let host = self.sites[site].machine.config.hosts[node.index()].clone();
        self.sites[site].gone.push(host);
        self.say(site, Says::User, Event::AgentGone(node));
    }

    /// The process of a role is gone. The node that it was on.
    fn lose_role(&mut self, site: usize, role: Role) -> NodeId {
        if role.kind == RoleKind::Router {
            self.sites[site].queues.remove(&Says::Router(role.id));
        } else {
            self.sites[site].lost_on_the_way = true;
            self.images.retain(|(at, store, ..), _| (*at, store.0) != (site, role.id));
            self.sites[site].queues.remove(&Says::Store(role.id));
        }
        self.sites[site].roles.remove(&role).expect("it lives")
    }

    pub(super) fn lose_lines(&mut self, site: usize) {
        for pair in self.pairs() {
            if pair.0 == site || pair.1 == site {
                self.set_line(pair, false);
            }
        }
    }

    /// Lines between gateways that are there come up, unless they are broken.
    pub(super) fn mend(&mut self) {
        for pair in self.pairs() {
            // A gateway knows the domains that its controller knows.
            let there = |site: usize, other: usize| {
                let Site { machine, gateway, ended, .. } = &self.sites[site];
                let other = DomainId(other as u32);
                let knows = machine.domains().is_some_and(|domains| domains.key(other).is_some());
                gateway.is_some() && ended.is_none() && knows
            };
            let are_there = there(pair.0, pair.1) && there(pair.1, pair.0);
            let is_broken = self.broken.get(&pair).is_some_and(|until| self.now < *until);
            let is_up = self.up.contains(&pair);
            if !is_broken && are_there && !is_up || is_up && !are_there {
                self.set_line(pair, are_there);
            }
        }
    }

    fn set_line(&mut self, pair: (usize, usize), up: bool) {
        if up != self.up.contains(&pair) {
            if up {
                self.up.insert(pair);
            } else {
                self.up.remove(&pair);
            }
            for (site, other) in [pair, (pair.1, pair.0)] {
                let domain = DomainId(other as u32);
                self.gateway_says(site, RouterEvent::Line { domain, up });
            }
        }
    }
}
