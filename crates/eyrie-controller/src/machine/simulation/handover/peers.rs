//! The agents, stores and routers of simulated handovers: what they do with commands, and what they
//! say.

use super::*;
use crate::machine::ranks::entry::RankEntry;

impl World {
    pub(super) fn start_role(&mut self, site: usize, node: NodeId, role: Role, takes_over: bool) {
        if !self.sites[site].nodes.contains_key(&node) {
            // The machine does not know yet that the node is lost.
            return;
        }
        let addr = Addr::Unix(format!("/{site}/{role}").into());
        let by = match role.kind {
            RoleKind::Router => Says::Router(role.id),
            RoleKind::Store => Says::Store(role.id),
        };
        self.say(site, by, said::listens(role, addr));
        self.sites[site].roles.insert(role, node);
        if role.kind == RoleKind::Router && role.id == ROUTERS {
            assert_eq!(node, NodeId(0), "the gateway moves");
            self.sites[site].gateway = Some(role);
            let at = Addr::Unix(format!("/{site}/images").into());
            self.gateway_says(site, RouterEvent::ImagesAt(at));
        } else if takes_over && role.kind == RoleKind::Router {
            self.sites[site].router_lost = true;
            let is_there = |rank: Rank| self.processes.get(&rank).is_some_and(|p| p.site == site);
            let is_gone = |r: &RankEntry| r.is(RankStateName::Running) && !is_there(r.rank());
            let died_unheard = self.sites[site].machine.ranks.living().any(is_gone);
            self.died_unheard |= died_unheard;
            let living: Vec<Rank> = self.processes.keys().copied().collect();
            living.into_iter().for_each(|rank| self.tell_router(role, rank));
        }
    }

    /// A rank tells a router that has taken over what it has. One that stands still does that when
    /// it goes on.
    fn tell_router(&mut self, role: Role, rank: Rank) {
        let Some(process) = self.processes.get(&rank).copied() else { return };
        let Process { site, incarnation, held: None, .. } = process else { return };
        if self.sites[site].roles.contains_key(&role) {
            let instance = RankInstance { rank, incarnation };
            self.say(site, Says::Router(role.id), said::adopted(role, instance));
            self.say(site, Says::Router(role.id), said::heard(role, instance));
        }
    }

    /// The router of this number says this, if it lives.
    fn router_says(&mut self, site: usize, id: u32, event: RouterEvent) {
        let is_it = |role: &Role| role.kind == RoleKind::Router && role.id == id;
        if let Some(role) = self.sites[site].roles.keys().copied().find(is_it) {
            self.say(site, Says::Router(id), Event::From(FromPeer::Router(role, event)));
        }
    }

    fn tell_routers(&mut self, rank: Rank) {
        let Some(process) = self.processes.get(&rank) else { return };
        let roles = self.sites[process.site].roles.keys().copied();
        let routers: Vec<Role> = roles.filter(|role| role.kind == RoleKind::Router).collect();
        routers.into_iter().for_each(|role| self.tell_router(role, rank));
    }

    pub(super) fn agent_gets(&mut self, site: usize, node: NodeId, message: ToAgent) {
        if !self.sites[site].nodes.contains_key(&node) {
            // The machine does not know yet that the node is lost.
            return;
        }
        match message {
            ToAgent::Heartbeat { n } => self.say(site, Says::Agent(node), said::heartbeat(node, n)),
            ToAgent::Start(start) => self.start(site, node, &start),
            ToAgent::Prepare(start) => self.prepare(site, node, &start),
            ToAgent::Unprepare(instance) => {
                self.prepared.remove(&(site, node, instance));
            }
            ToAgent::Kill(instance) => {
                let is_it = |p: &Process| p.site == site && p.incarnation == instance.incarnation;
                if self.processes.get(&instance.rank).is_some_and(is_it) {
                    self.processes.remove(&instance.rank);
                }
            }
            ToAgent::Capture { instance, image, hold, .. } => {
                let store = image.store.store;
                self.capture(site, instance, image.image, store, hold);
            }
            ToAgent::GoOn { instance, image } => {
                if let Some(process) = self.processes.get_mut(&instance.rank) {
                    let is_it = process.site == site && process.held == Some(image);
                    process.held = process.held.filter(|_| !is_it);
                    self.tell_routers(instance.rank);
                }
            }
            ToAgent::Pmi { entries, barriers } => {
                let Some(known) = self.sites[site].nodes.get_mut(&node) else { return };
                let texts = entries.iter().flat_map(Entry::texts);
                known.keys.extend(texts.map(|(key, _)| key));
                known.passed = known.passed.max(barriers);
            }
            _ => {}
        }
    }

    /// Memory of a rank is put in place for when it comes. An agent may be slow for very long.
    fn prepare(&mut self, site: usize, node: NodeId, start: &StartRank) {
        let instance = start.instance;
        let Some(eyrie_wire::control::ImageAt { image, store }) = &start.image else {
            panic!("no image: {start:?}")
        };
        let rank = instance.rank;
        if self.has_store(site, store.store) {
            let key = (site, store.store, rank, *image);
            assert!(self.images.contains_key(&key), "rank {rank}: {image} is not at site {site}");
        }
        let is_at_site = |process: &Process| process.site == site;
        let there = self.processes.get(&rank).is_some_and(is_at_site);
        assert!(!there, "rank {rank} is at site {site} already");
        self.prepared.insert((site, node, instance));
        if self.random.gen_bool(0.01) {
            return;
        }
        let result = if self.random.gen_bool(0.1) { Err("simulated".into()) } else { Ok(4096) };
        self.say(site, Says::Agent(node), said::prepared(node, instance, *image, result));
    }

    /// A rank comes up: there is no other process of it, anywhere.
    fn start(&mut self, site: usize, node: NodeId, start: &StartRank) {
        let instance = start.instance;
        let rank = instance.rank;
        self.prepared.retain(|(s, n, other)| (*s, *n, other.rank) != (site, node, rank));
        let other = self.processes.get(&rank);
        assert!(other.is_none(), "rank {rank} starts at {site}, and is there: {other:?}");
        assert!(!self.finished.contains(&rank), "rank {rank} starts again");
        let image = start.image.as_ref().map(|image| (image.store.store, image.image));
        let incarnation = instance.incarnation;
        let process = Process { site, node, incarnation, held: None, at_barrier: 0 };
        if image.is_some_and(|(store, _)| !self.has_store(site, store)) {
            let reason = "the store does not answer".into();
            let fault = StartFault::Attempt;
            return self.report(process, rank, RankReport::StartFailed { reason, fault });
        }
        let from = self.last_site.insert(rank, site);
        if let Some(from) = from.filter(|from| *from != site) {
            self.left.insert((from, rank));
            self.back += usize::from(self.left.contains(&(site, rank)));
        }
        let known =
            image.map(|(store, image)| self.images.get(&(site, store, rank, image)).copied());
        if let Some(known) = known {
            assert!(known.is_some(), "rank {rank}: image {image:?} is not at site {site}");
        }
        if from.is_some_and(|from| from != site) {
            let progress = self.progress.get(&rank).copied();
            assert_eq!(known.flatten(), progress, "rank {rank} does not go on where it stood");
        }
        self.processes.insert(rank, process);
        let fetched = Duration::ZERO;
        let restored = Duration::ZERO;
        self.report(process, rank, RankReport::Started { fetched, restored });
        self.report(process, rank, RankReport::ProviderLoaded);
        self.tell_routers(rank);
        let router = self.sites[site].machine.roles.primary_of(rank).unwrap();
        assert!(router.0 < ROUTERS, "rank {rank} at {site} is served by the gateway");
        if instance.incarnation > Incarnation(1) {
            let replayed = RouterEvent::Replayed { instance, messages: 0 };
            self.router_says(site, router.0, replayed);
        }
    }

    fn has_store(&self, site: usize, store: StoreId) -> bool {
        self.sites[site].roles.contains_key(&Role::first(RoleKind::Store, store.0))
    }

    fn capture(
        &mut self,
        site: usize,
        instance: RankInstance,
        image: ImageId,
        store: StoreId,
        hold: bool,
    ) {
        let rank = instance.rank;
        let has_store = self.has_store(site, store);
        let is_it = |p: &&mut Process| p.site == site && p.incarnation == instance.incarnation;
        let Some(process) = self.processes.get_mut(&rank).filter(is_it) else { return };
        assert!(process.held.is_none(), "rank {rank} stands still, and is imaged");
        if self.random.gen_bool(0.02) || !has_store {
            let process = *process;
            let reason = "simulated".into();
            let passing = !has_store || self.random.gen_bool(0.8);
            return self.report(
                process,
                rank,
                RankReport::CaptureFailed { image, reason, passing },
            );
        }
        process.held = hold.then_some(image);
        let process = *process;
        self.store(site, store, instance, image, self.progress.get(&rank).copied().unwrap_or(0));
        let output = [self.progress.get(&rank).copied().unwrap_or(0) * WORD, 0];
        self.report(process, rank, RankReport::ImageUsable { image, output });
    }

    fn store(
        &mut self,
        site: usize,
        store: StoreId,
        instance: RankInstance,
        image: ImageId,
        progress: u64,
    ) {
        self.images.insert((site, store, instance.rank, image), progress);
        let n = 100 * image.0;
        let (clock, rsn) = (n, n);
        let stored =
            Stored { image, clock, rsn, observed: 0, stdin: 0, bytes: 1 << 20, file_bytes: 0 };
        self.say(site, Says::Store(store.0), said::stored(store, instance, stored));
    }

    pub(super) fn store_gets(&mut self, site: usize, store: StoreId, message: StoreCommand) {
        if !self.has_store(site, store) {
            return;
        }
        match message {
            StoreCommand::Copy { instance, image, from } => {
                let at = from.addr.expect("no address");
                let is_far = at == Addr::Unix(format!("/{site}/images").into());
                let rank = instance.rank;
                let has = |other: &usize| {
                    let pair = (site.min(*other), site.max(*other));
                    let reached = *other == site || self.up.contains(&pair);
                    (*other == site) != is_far
                        && reached
                        && self.images.contains_key(&(*other, from.store, rank, image))
                };
                let of = (0..self.sites.len()).find(has);
                let progress = of.map(|of| self.images[&(of, from.store, rank, image)]);
                match progress.filter(|_| !self.random.gen_bool(0.05)) {
                    Some(progress) => self.store(site, store, instance, image, progress),
                    None => {
                        let reason = "it cannot be fetched".into();
                        let failed = said::failed(store, instance, image, reason);
                        self.say(site, Says::Store(store.0), failed);
                    }
                }
            }
            StoreCommand::Discard { rank, image } => {
                self.images.remove(&(site, store, rank, image));
            }
            _ => {}
        }
    }

    pub(super) fn router_gets(&mut self, site: usize, message: RouterCommand) {
        match message {
            RouterCommand::Fence(instance) => {
                for id in 0..=ROUTERS {
                    let (determinants, observed) = Default::default();
                    let fenced = RouterEvent::Fenced { instance, determinants, observed };
                    self.router_says(site, id, fenced);
                }
            }
            RouterCommand::Fetch(fetch) => self.gateway_says(site, RouterEvent::Fetches(fetch)),
            RouterCommand::ToDomain { domain, letter } => {
                let other = domain.index();
                let pair = (site.min(other), site.max(other));
                if self.up.contains(&pair) {
                    let domain = DomainId(site as u32);
                    self.gateway_says(other, RouterEvent::FromDomain { domain, letter });
                }
            }
            _ => {}
        }
    }
}
