//! Simulated jobs of three domains, of which one is left for another one, while ranks and gateways
//! die, lines break, images fail and users change their minds, at any moment and in any order that
//! keeps what each peer says in order. Each rank is in one place at any time, goes on in another
//! domain from where it stood still, and the job ends well.

use super::*;
use eyrie_interface::record::MovePhase;
use eyrie_wire::domains::{Domain, LineKey};
use std::collections::VecDeque;

/// How far a rank computes: steps of it.
const STEPS: u64 = 400;
const ROUTERS: u32 = 2;

/// Who tells a machine something: what one of them says keeps its order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Says {
    Agent(NodeId),
    Router(u32),
    Store(u32),
    User,
}

/// A process of a rank.
#[derive(Clone, Copy, Debug)]
struct Process {
    site: usize,
    node: NodeId,
    incarnation: Incarnation,
    /// It stands still since this image.
    held: Option<ImageId>,
}

struct Site {
    machine: Machine,
    queues: BTreeMap<Says, VecDeque<Event>>,
    gateway: Option<Role>,
    ended: Option<(i32, Option<String>)>,
    phases: Vec<MovePhase>,
    asked: u64,
    answered: u64,
}

struct World {
    random: SmallRng,
    now: Duration,
    sites: Vec<Site>,
    processes: BTreeMap<Rank, Process>,
    /// How far each rank has computed, and each of its images shows it, by site.
    progress: BTreeMap<Rank, u64>,
    images: BTreeMap<(usize, Rank, ImageId), u64>,
    last_site: BTreeMap<Rank, usize>,
    finished: BTreeSet<Rank>,
    /// Pairs of domains whose line is up, and until when one is broken.
    up: BTreeSet<(usize, usize)>,
    broken: BTreeMap<(usize, usize), Duration>,
}

fn config(own: usize, all: &[Domain], ranks: u32) -> Config {
    let domains = Domains {
        own: DomainId(own as u32),
        all: all.to_vec(),
        keys: vec![None::<LineKey>; all.len()],
    };
    let mut start = vec![NodeId(0); ranks as usize];
    for (n, rank) in (0..).zip(domains.own().ranks()) {
        start[rank.index()] = NodeId(1 + n % 2);
    }
    Config {
        ranks,
        start,
        slots: vec![Some(0), Some(8), Some(8)],
        hosts: (0..3).map(|n| format!("h{n}")).collect(),
        routers: ROUTERS,
        image_copies: 1,
        checkpoint_every: Interval::Every(ms(700)),
        domains: Some(domains),
        gateway: Some(NodeId(0)),
        ..Config::with_roles_on(3)
    }
}

impl World {
    fn new(seed: u64) -> World {
        let mut random = SmallRng::seed_from_u64(seed);
        let ranks = random.gen_range(3..8);
        let owner: Vec<usize> = (0..3).chain((3..ranks).map(|_| random.gen_range(0..3))).collect();
        let domain = |site: usize| {
            let of_it = owner.iter().enumerate().filter(|(_, owner)| **owner == site);
            let ranks = of_it.map(|(rank, _)| (Rank(rank as u32), Rank(rank as u32))).collect();
            Domain { name: format!("site-{site}"), ranks, gateway: format!("gw-{site}:7411") }
        };
        let all: Vec<Domain> = (0..3).map(domain).collect();
        let site = |own| Site {
            machine: Machine::new(config(own, &all, ranks as u32)),
            queues: BTreeMap::new(),
            gateway: None,
            ended: None,
            phases: Vec::new(),
            asked: 0,
            answered: 0,
        };
        let mut world = World {
            random,
            now: Duration::ZERO,
            sites: (0..3).map(site).collect(),
            processes: BTreeMap::new(),
            progress: BTreeMap::new(),
            images: BTreeMap::new(),
            last_site: BTreeMap::new(),
            finished: BTreeSet::new(),
            up: BTreeSet::new(),
            broken: BTreeMap::new(),
        };
        for site in 0..3 {
            for node in NodeId::first(3) {
                world.say(site, Says::Agent(node), said::joined(node));
            }
        }
        world
    }

    fn say(&mut self, site: usize, by: Says, event: Event) {
        self.sites[site].queues.entry(by).or_default().push_back(event);
    }

    /// What a rank's agent says.
    fn report(&mut self, process: Process, rank: Rank, report: RankReport) {
        let instance = RankInstance { rank, incarnation: process.incarnation };
        let Process { site, node, .. } = process;
        self.say(site, Says::Agent(node), said::rank(instance, report));
    }

    /// The job to its end.
    fn run(&mut self) {
        for step in 0.. {
            assert!(step < 400_000 && self.now < TOO_LONG, "it hangs: {:?}", self.states());
            if self.sites.iter().all(|site| site.ended.is_some()) {
                return;
            }
            self.compute();
            self.disturb();
            self.mend();
            let waiting: Vec<(usize, Says)> = (0..3)
                .flat_map(|site| {
                    let queues = self.sites[site].queues.iter();
                    let full = queues.filter(|(_, queue)| !queue.is_empty());
                    full.map(move |(by, _)| (site, *by)).collect::<Vec<_>>()
                })
                .collect();
            if waiting.is_empty() || self.random.gen_bool(0.1) {
                self.pass_time();
                continue;
            }
            let (site, by) = waiting[self.random.gen_range(0..waiting.len())];
            let event = self.sites[site].queues.get_mut(&by).and_then(VecDeque::pop_front);
            self.handle(site, event.unwrap());
        }
    }

    fn states(&self) -> Vec<Vec<(RankInstance, NodeId, RankStateName)>> {
        self.sites.iter().map(|site| site.machine.rank_states().collect()).collect()
    }

    /// Time passes until a machine wants to look at something.
    fn pass_time(&mut self) {
        let lives = |site: &&Site| site.ended.is_none();
        let ticks = self.sites.iter().filter(lives).filter_map(|site| site.machine.next_tick());
        let mending = self.broken.values().copied().filter(|until| *until > self.now);
        let next = ticks.chain(mending).min().unwrap_or(self.now);
        self.now = next.clamp(self.now + ms(1), self.now + ms(200));
        for site in 0..3 {
            let due = self.sites[site].machine.next_tick().is_some_and(|at| at <= self.now);
            if due && self.sites[site].ended.is_none() {
                self.handle(site, Event::Tick);
            }
        }
    }

    /// Ranks compute, and come to their end.
    fn compute(&mut self) {
        let ranks: Vec<(Rank, Process)> = self.processes.iter().map(|(r, p)| (*r, *p)).collect();
        for (rank, process) in ranks {
            if process.held.is_some() || !self.random.gen_bool(0.3) {
                continue;
            }
            let progress = self.progress.entry(rank).or_default();
            *progress += 1;
            // The first ones to end would keep the others from being left.
            if *progress >= STEPS {
                self.processes.remove(&rank);
                self.finished.insert(rank);
                let stage = MpiStage::After;
                let ended = RankReport::Exited { ending: Ending::Code(0), stage };
                self.report(process, rank, ended);
            }
        }
    }

    /// What fails, and what users ask.
    fn disturb(&mut self) {
        if !self.random.gen_bool(0.004) {
            return;
        }
        let site = self.random.gen_range(0..3);
        match self.random.gen_range(0..10) {
            0..=4 => {
                let to = Some(format!("site-{}", self.random.gen_range(0..3)));
                let way = if self.random.gen() { Way::Live } else { Way::Stop };
                self.sites[site].asked += 1;
                let request = self.sites[site].asked;
                self.say(site, Says::User, Event::MigrateDomain { request, to, way });
            }
            5 => {
                self.sites[site].asked += 1;
                let request = self.sites[site].asked;
                let way = Way::Live;
                self.say(site, Says::User, Event::MigrateDomain { request, to: None, way });
            }
            6 => {
                let ranks: Vec<Rank> = self.processes.keys().copied().collect();
                if ranks.is_empty() {
                    return;
                }
                let rank = ranks[self.random.gen_range(0..ranks.len())];
                let process = self.processes.remove(&rank).unwrap();
                let ending = Ending::Signal(libc::SIGKILL);
                let stage = MpiStage::Within;
                self.report(process, rank, RankReport::Exited { ending, stage });
            }
            7 => {
                let other = (site + 1) % 3;
                let pair = (site.min(other), site.max(other));
                let long = ms(self.random.gen_range(1..40_000));
                self.broken.insert(pair, self.now + long);
                self.set_line(pair, false);
            }
            8 => {
                let Some(role) = self.sites[site].gateway.take() else { return };
                let cause = "killed".into();
                self.lose_lines(site);
                self.say(site, Says::Agent(NodeId(0)), Event::RoleLost { role, cause });
            }
            _ => {
                let rank = Rank(self.random.gen_range(0..self.sites[0].machine.ranks.len()) as u32);
                let exposed = self.random.gen();
                let event = if exposed {
                    RouterEvent::Exposed { rank }
                } else {
                    RouterEvent::Covered { rank }
                };
                self.say(site, Says::Router(0), said::router(RouterId(0), event));
            }
        }
    }

    fn lose_lines(&mut self, site: usize) {
        for pair in [(0, 1), (0, 2), (1, 2)] {
            if pair.0 == site || pair.1 == site {
                self.set_line(pair, false);
            }
        }
    }

    /// Lines between gateways that are there come up, unless they are broken.
    fn mend(&mut self) {
        for pair in [(0, 1), (0, 2), (1, 2)] {
            let there = |site: usize| {
                self.sites[site].gateway.is_some() && self.sites[site].ended.is_none()
            };
            let is_broken = self.broken.get(&pair).is_some_and(|until| self.now < *until);
            if !is_broken && there(pair.0) && there(pair.1) && !self.up.contains(&pair) {
                self.set_line(pair, true);
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

    fn gateway_says(&mut self, site: usize, event: RouterEvent) {
        if let Some(role) = self.sites[site].gateway {
            let event = Event::From(FromPeer::Router(role, event));
            self.say(site, Says::Router(ROUTERS), event);
        }
    }

    fn handle(&mut self, site: usize, event: Event) {
        if self.sites[site].ended.is_some() {
            return;
        }
        self.now += Duration::from_micros(200);
        let commands = self.sites[site].machine.handle(self.now, event);
        commands.into_iter().for_each(|command| self.carry_out(site, command));
    }

    fn carry_out(&mut self, site: usize, command: Command) {
        match command {
            Command::StartRole { node, role, .. } => {
                let addr = Addr::Unix(format!("/{site}/{role}").into());
                let by = match role.kind {
                    RoleKind::Router => Says::Router(role.id),
                    RoleKind::Store => Says::Store(role.id),
                };
                self.say(site, by, said::listens(role, addr));
                if role.kind == RoleKind::Router && role.id == ROUTERS {
                    assert_eq!(node, NodeId(0), "the gateway moves");
                    self.sites[site].gateway = Some(role);
                    let at = Addr::Unix(format!("/{site}/images").into());
                    self.gateway_says(site, RouterEvent::ImagesAt(at));
                }
            }
            Command::Send(ToPeer::Agent(node, message)) => self.agent_gets(site, node, message),
            Command::Send(ToPeer::Store(store, message)) => self.store_gets(site, store, message),
            Command::Send(ToPeer::Router(_, message) | ToPeer::Routers(message)) => {
                self.router_gets(site, message)
            }
            Command::Record(Record::DomainMove { phase, .. }) => {
                self.sites[site].phases.push(phase)
            }
            Command::Record(Record::JobEnded { code, cause, .. }) => {
                self.sites[site].ended = Some((code, cause));
                self.lose_lines(site);
            }
            Command::Answer { .. } => self.sites[site].answered += 1,
            _ => {}
        }
    }

    fn agent_gets(&mut self, site: usize, node: NodeId, message: ToAgent) {
        match message {
            ToAgent::Heartbeat { n } => self.say(site, Says::Agent(node), said::heartbeat(node, n)),
            ToAgent::Start(start) => self.start(site, node, &start),
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
                }
            }
            _ => {}
        }
    }

    /// A rank comes up: there is no other process of it, anywhere.
    fn start(&mut self, site: usize, node: NodeId, start: &StartRank) {
        let instance = start.instance;
        let rank = instance.rank;
        let other = self.processes.get(&rank);
        assert!(other.is_none(), "rank {rank} starts at {site}, and is there: {other:?}");
        assert!(!self.finished.contains(&rank), "rank {rank} starts again");
        let image = start.image.as_ref().map(|image| image.image);
        let from = self.last_site.insert(rank, site);
        let known = image.map(|image| self.images.get(&(site, rank, image)).copied());
        if let Some(known) = known {
            assert!(known.is_some(), "rank {rank}: image {image:?} is not at site {site}");
        }
        if from.is_some_and(|from| from != site) {
            let progress = self.progress.get(&rank).copied();
            assert_eq!(known.flatten(), progress, "rank {rank} does not go on where it stood");
        }
        let process = Process { site, node, incarnation: instance.incarnation, held: None };
        self.processes.insert(rank, process);
        let fetched = Duration::ZERO;
        let restored = Duration::ZERO;
        self.report(process, rank, RankReport::Started { fetched, restored });
        self.report(process, rank, RankReport::ProviderLoaded);
        let router = self.sites[site].machine.roles.primary_of(rank).unwrap();
        assert!(router.0 < ROUTERS, "rank {rank} at {site} is served by the gateway");
        if instance.incarnation > Incarnation(1) {
            let replayed = RouterEvent::Replayed { instance, messages: 0 };
            self.say(site, Says::Router(router.0), said::router(router, replayed));
        }
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
        let is_it = |p: &&mut Process| p.site == site && p.incarnation == instance.incarnation;
        let Some(process) = self.processes.get_mut(&rank).filter(is_it) else { return };
        assert!(process.held.is_none(), "rank {rank} stands still, and is imaged");
        if self.random.gen_bool(0.02) {
            let process = *process;
            let reason = "simulated".into();
            let passing = self.random.gen_bool(0.8);
            return self.report(
                process,
                rank,
                RankReport::CaptureFailed { image, reason, passing },
            );
        }
        process.held = hold.then_some(image);
        let process = *process;
        self.store(site, store, instance, image, self.progress.get(&rank).copied().unwrap_or(0));
        let output = [0; 2];
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
        self.images.insert((site, instance.rank, image), progress);
        let n = 100 * image.0;
        let (clock, rsn) = (n, n);
        let stored =
            Stored { image, clock, rsn, observed: 0, stdin: 0, bytes: 1 << 20, file_bytes: 0 };
        self.say(site, Says::Store(store.0), said::stored(store, instance, stored));
    }

    fn store_gets(&mut self, site: usize, store: StoreId, message: StoreCommand) {
        match message {
            StoreCommand::Copy { instance, image, from } => {
                let at = from.addr.expect("no address");
                let is_far = at == Addr::Unix(format!("/{site}/images").into());
                let rank = instance.rank;
                let of = (0..3).find(|other| {
                    let pair = (site.min(*other), site.max(*other));
                    let reached = *other == site || self.up.contains(&pair);
                    (*other == site) != is_far
                        && reached
                        && self.images.contains_key(&(*other, rank, image))
                });
                let progress = of.map(|of| self.images[&(of, rank, image)]);
                match progress.filter(|_| !self.random.gen_bool(0.05)) {
                    Some(progress) => self.store(site, store, instance, image, progress),
                    None => {
                        let reason = "it cannot be fetched".into();
                        let failed = said::failed(store, instance, image, reason);
                        self.say(site, Says::Store(store.0), failed);
                    }
                }
            }
            // Another store here may have it still: what is started from it is looked at anyway.
            StoreCommand::Discard { .. } | StoreCommand::Heard { .. } => {}
            _ => {}
        }
    }

    fn router_gets(&mut self, site: usize, message: RouterCommand) {
        match message {
            RouterCommand::Fence(instance) => {
                for id in 0..=ROUTERS {
                    if id < ROUTERS {
                        let fenced = said::fenced(RouterId(id), instance, 0);
                        self.say(site, Says::Router(id), fenced);
                    } else {
                        let (determinants, observed) = Default::default();
                        let fenced = RouterEvent::Fenced { instance, determinants, observed };
                        self.gateway_says(site, fenced);
                    }
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

    /// How many moves came to an end here, and how many were cancelled.
    fn check_end(&self) -> (usize, usize) {
        let mut done = (0, 0);
        for site in &self.sites {
            assert_eq!(site.ended, Some((0, None)), "{:?}", self.states());
            let count = |wanted| site.phases.iter().filter(|phase| **phase == wanted).count();
            done.0 += count(MovePhase::Imaged).min(count(MovePhase::Resumed));
            done.1 += count(MovePhase::Cancelled);
        }
        assert_eq!(self.finished.len(), self.sites[0].machine.ranks.len());
        done
    }
}

#[test]
fn domains_are_left_under_random_failures_and_each_rank_is_in_one_place() {
    let schedules = std::env::var("EYRIE_SCHEDULES").ok().and_then(|n| n.parse().ok());
    let schedules = schedules.unwrap_or(1000);
    let first = std::env::var("EYRIE_SEED").ok().and_then(|n| n.parse().ok()).unwrap_or(0);
    let (mut moved, mut stayed) = (0, 0);
    for seed in first..first + schedules {
        let run = std::panic::catch_unwind(|| {
            let mut world = World::new(seed);
            world.run();
            world.check_end()
        });
        let Ok(done) = run else {
            panic!("schedule {seed} failed: EYRIE_SEED={seed} EYRIE_SCHEDULES=1 repeats it");
        };
        moved += done.0;
        stayed += done.1;
    }
    println!("{moved} moves of domains, {stayed} that were cancelled");
    assert!(schedules < 1000 || (moved > 500 && stayed > 50), "{moved} and {stayed}");
}
