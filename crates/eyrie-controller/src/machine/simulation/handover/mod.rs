//! Simulated jobs of three domains, of which one is left for another one and others join, while
//! ranks, gateways and controllers die, lines break, images fail and users change their minds, at
//! any moment and in any order that keeps what each peer says in order. The domain that shows the
//! job leaves it, too, and one that does not join changes nothing. Each rank is in one place at any
//! time, goes on in another domain from where it stood still, what it prints is shown whole and in
//! order by one domain after the other, and the job ends well.

mod disturbing;
mod joining;
mod peers;

use super::printing::{Words, WORD};
use super::*;
use eyrie_interface::record::MovePhase;
use eyrie_wire::control::StandardStream;
use eyrie_wire::domains::Domain;
use std::collections::VecDeque;

/// How far a rank computes: steps of it.
const STEPS: u64 = 400;
/// After so many steps all ranks meet at a barrier.
const BARRIER_EVERY: u64 = 40;
const ROUTERS: u32 = 2;
/// The nodes of a site: the gateway's, two with ranks, and two that only have roles.
const NODES: u32 = 5;

/// Who tells a machine something: what one of them says keeps its order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Says {
    Agent(NodeId),
    Router(u32),
    Store(u32),
    User,
    /// The controller finds out something itself.
    Itself,
}

/// A process of a rank.
#[derive(Clone, Copy, Debug)]
struct Process {
    site: usize,
    node: NodeId,
    incarnation: Incarnation,
    /// It stands still since this image.
    held: Option<ImageId>,
    /// It has told its agent that it is at this barrier.
    at_barrier: u64,
}

/// What the agent of a node knows of PMI.
#[derive(Default)]
struct Known {
    passed: u32,
    keys: BTreeSet<String>,
}

struct Site {
    machine: Machine,
    /// When its clock began.
    begun: Duration,
    /// It is a part of the job.
    is_member: bool,
    queues: BTreeMap<Says, VecDeque<Event>>,
    gateway: Option<Role>,
    /// The routers and stores that live.
    roles: BTreeMap<Role, NodeId>,
    nodes: BTreeMap<NodeId, Known>,
    /// Hosts of nodes that are lost.
    gone: Vec<String>,
    /// A store was lost while ranks come or go.
    lost_on_the_way: bool,
    /// A router was lost, and the one that takes over may not have heard all ranks.
    router_lost: bool,
    ended: Option<(i32, Option<String>)>,
    phases: Vec<MovePhase>,
    asked: u64,
    answered: u64,
}

impl Site {
    /// One whose controller begins now.
    fn new(config: Config, begun: Duration) -> Site {
        Site {
            is_member: !config.joins,
            machine: Machine::new(config),
            begun,
            queues: BTreeMap::new(),
            gateway: None,
            roles: BTreeMap::new(),
            nodes: NodeId::first(NODES).map(|node| (node, Known::default())).collect(),
            gone: Vec::new(),
            lost_on_the_way: false,
            router_lost: false,
            ended: None,
            phases: Vec::new(),
            asked: 0,
            answered: 0,
        }
    }

    /// When it wants to look at something, in the time of all.
    fn next_tick(&self) -> Option<Duration> {
        self.machine.next_tick().map(|at| at.saturating_add(self.begun))
    }
}

/// Events that wait at one connection, above which no time passes until some are handled.
const LONG_QUEUE: usize = 32;

struct World {
    random: SmallRng,
    now: Duration,
    sites: Vec<Site>,
    processes: BTreeMap<Rank, Process>,
    /// How far each rank has computed, and each of its images shows it, by site.
    progress: BTreeMap<Rank, u64>,
    images: BTreeMap<(usize, StoreId, Rank, ImageId), u64>,
    /// What waits at a site's nodes for ranks to come.
    prepared: BTreeSet<(usize, NodeId, RankInstance)>,
    /// A machine has moved a router of a rank that had died, which it had not heard: nothing can
    /// bring that rank back.
    died_unheard: bool,
    last_site: BTreeMap<Rank, usize>,
    finished: BTreeSet<Rank>,
    /// How many domains have ended while the job went on.
    gone: usize,
    /// How often ranks have come to a domain that they had left.
    back: usize,
    left: BTreeSet<(usize, Rank)>,
    /// Pairs of domains whose line is up, and until when one is broken.
    up: BTreeSet<(usize, usize)>,
    broken: BTreeMap<(usize, usize), Duration>,
    /// The domains that have shown what ranks print, one after the other, and what each has shown.
    showing: Vec<usize>,
    shown: BTreeMap<usize, Vec<u8>>,
    /// The domain that joins, once it was started.
    joining: Option<usize>,
    /// How many domains have joined, and how many that were to have not.
    joined: usize,
    stayed_out: usize,
    shown_elsewhere: bool,
    /// Controllers that have died, and how often the domain that shows the job has left it.
    resumed: usize,
}

fn config(domains: Domains, ranks: u32) -> Config {
    let mut start = vec![NodeId(0); ranks as usize];
    for (n, rank) in (0..).zip(domains.own().ranks()) {
        start[rank.index()] = NodeId(1 + n % 2);
    }
    Config {
        ranks,
        start,
        slots: vec![Some(0), Some(8), Some(8), Some(0), Some(0)],
        hosts: NodeId::first(NODES).map(|n| format!("h{n}")).collect(),
        routers: ROUTERS,
        checkpoint_every: Interval::Every(ms(700)),
        domains: Some(domains),
        gateway: Some(NodeId(0)),
        ..Config::with_roles_on(NODES)
    }
}

/// What a rank puts before it arrives at a barrier.
fn key(rank: Rank, barrier: u64) -> String {
    format!("{rank}-{barrier}")
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
        let shows = DomainId(0);
        let site = |own: usize| {
            let (keys, all) = (keys(own, 3), all.clone());
            let domains = Domains { own: DomainId(own as u32), all, keys, shows };
            Site::new(config(domains, ranks as u32), Duration::ZERO)
        };
        let mut world = World {
            random,
            now: Duration::ZERO,
            sites: (0..3).map(site).collect(),
            processes: BTreeMap::new(),
            progress: BTreeMap::new(),
            images: BTreeMap::new(),
            prepared: BTreeSet::new(),
            died_unheard: false,
            last_site: BTreeMap::new(),
            finished: BTreeSet::new(),
            gone: 0,
            back: 0,
            left: BTreeSet::new(),
            up: BTreeSet::new(),
            broken: BTreeMap::new(),
            showing: vec![0],
            shown: BTreeMap::new(),
            joining: None,
            joined: 0,
            stayed_out: 0,
            shown_elsewhere: false,
            resumed: 0,
        };
        (0..3).for_each(|site| world.start_agents(site));
        world
    }

    fn start_agents(&mut self, site: usize) {
        for node in NodeId::first(NODES) {
            self.say(site, Says::Agent(node), said::joined(node));
        }
    }

    /// All pairs of sites.
    fn pairs(&self) -> Vec<(usize, usize)> {
        let many = self.sites.len();
        (0..many).flat_map(|a| (a + 1..many).map(move |b| (a, b))).collect()
    }

    /// One of them.
    fn any_site(&mut self) -> usize {
        let many = self.sites.len();
        self.random.gen_range(0..many)
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
            let waiting: Vec<(usize, Says)> = (0..self.sites.len())
                .flat_map(|site| {
                    let queues = self.sites[site].queues.iter();
                    let full = queues.filter(|(_, queue)| !queue.is_empty());
                    full.map(move |(by, _)| (site, *by)).collect::<Vec<_>>()
                })
                .collect();
            // An event takes microseconds: a long queue is no time.
            let length = |(site, by): &(usize, Says)| self.sites[*site].queues[by].len();
            let is_long = waiting.iter().map(length).any(|length| length > LONG_QUEUE);
            if waiting.is_empty() || !is_long && self.random.gen_bool(0.1) {
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
        let ticks = self.sites.iter().filter(lives).filter_map(Site::next_tick);
        let mending = self.broken.values().copied().filter(|until| *until > self.now);
        let next = ticks.chain(mending).min().unwrap_or(self.now);
        self.now = next.clamp(self.now + ms(1), self.now + ms(200));
        for site in 0..self.sites.len() {
            let due = self.sites[site].next_tick().is_some_and(|at| at <= self.now);
            if due && self.sites[site].ended.is_none() {
                self.handle(site, Event::Tick);
            }
        }
    }

    /// Ranks compute, wait for each other at barriers, and come to their end.
    fn compute(&mut self) {
        let ranks: Vec<(Rank, Process)> = self.processes.iter().map(|(r, p)| (*r, *p)).collect();
        for (rank, process) in ranks {
            if process.held.is_some() || !self.random.gen_bool(0.3) {
                continue;
            }
            let progress = self.progress.get(&rank).copied().unwrap_or(0);
            let barrier = progress / BARRIER_EVERY;
            if barrier > 0 && progress % BARRIER_EVERY == 0 && !self.passes(rank, process, barrier)
            {
                continue;
            }
            self.progress.insert(rank, progress + 1);
            self.print(rank, process, progress);
            // The first ones to end would keep the others from being left.
            if progress + 1 >= STEPS {
                self.processes.remove(&rank);
                self.finished.insert(rank);
                let stage = MpiStage::After;
                let ended = RankReport::Exited { ending: Ending::Code(0), stage };
                self.report(process, rank, ended);
            }
        }
    }

    /// Each step prints a word.
    fn print(&mut self, rank: Rank, process: Process, progress: u64) {
        let instance = RankInstance { rank, incarnation: process.incarnation };
        let offset = progress * WORD;
        let bytes = Words::of(rank, offset, offset + WORD);
        let stream = StandardStream::Stdout;
        let output = FromAgent::Output { instance, stream, offset, bytes };
        let Process { site, node, .. } = process;
        self.say(site, Says::Agent(node), said::agent(node, output));
    }

    /// Whether a rank goes on from a barrier: its agent knows that all ranks have arrived, and what
    /// they had put.
    fn passes(&mut self, rank: Rank, process: Process, barrier: u64) -> bool {
        let number = barrier as u32;
        if process.at_barrier < barrier {
            self.processes.entry(rank).and_modify(|process| process.at_barrier = barrier);
            let key = key(rank, barrier);
            self.report(process, rank, RankReport::PmiPut { key, value: "v".into() });
            self.report(process, rank, RankReport::PmiBarrier { barrier: number });
            return false;
        }
        let known = &self.sites[process.site].nodes[&process.node];
        if known.passed < number {
            return false;
        }
        for other in Rank::first(self.sites[0].machine.ranks.len() as u32) {
            let progress = self.progress.get(&other).copied().unwrap_or(0);
            assert!(
                progress >= barrier * BARRIER_EVERY,
                "rank {other} has not arrived: {progress}"
            );
            let text = format!("what rank {other} has put for barrier {barrier} is not known");
            assert!(known.keys.contains(&key(other, barrier)), "{text} at {process:?}");
        }
        true
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
        let now = self.now - self.sites[site].begun;
        let commands = self.sites[site].machine.handle(now, event);
        commands.into_iter().for_each(|command| self.carry_out(site, command));
    }

    fn carry_out(&mut self, site: usize, command: Command) {
        match command {
            Command::StartRole { node, role, takes_over } => {
                self.start_role(site, node, role, takes_over)
            }
            Command::Send(ToPeer::Agent(node, message)) => self.agent_gets(site, node, message),
            Command::Send(ToPeer::Agents(message)) => {
                let nodes: Vec<NodeId> = self.sites[site].nodes.keys().copied().collect();
                nodes.into_iter().for_each(|node| self.agent_gets(site, node, message.clone()));
            }
            Command::Send(ToPeer::Store(store, message)) => self.store_gets(site, store, message),
            Command::Send(ToPeer::Router(_, message) | ToPeer::Routers(message)) => {
                self.router_gets(site, message)
            }
            Command::Record(Record::DomainMove { phase, .. }) => {
                self.sites[site].phases.push(phase);
                if self.random.gen_bool(0.1) {
                    let site = self.any_site();
                    self.fail(site);
                }
            }
            Command::StartDomain(start) => self.start_domain(start.0),
            Command::Record(Record::DomainJoined { .. }) if site == 0 => self.has_joined(),
            Command::Record(Record::DomainStaysOut { .. }) if site == 0 => self.has_stayed_out(),
            Command::Record(Record::JobEnded { code, cause, .. }) => {
                let at_it = self.processes.iter().find(|(_, process)| process.site == site);
                assert!(at_it.is_none() || code != 0, "site {site} ends with {at_it:?}");
                let goes_on = self.finished.len() < self.sites[0].machine.ranks.len();
                let shows = self.showing.last() == Some(&site);
                assert!(!goes_on || code != 0 || !shows, "the domain that shows the job ends");
                self.gone += usize::from(goes_on && code == 0 && self.sites[site].is_member);
                self.sites[site].ended = Some((code, cause));
                self.lose_lines(site);
                self.see_end(site);
            }
            Command::Answer { .. } => self.sites[site].answered += 1,
            Command::OpenOutput => {
                let opened = if self.random.gen_bool(0.9) {
                    Ok("/eyrie-j.out".to_string())
                } else {
                    Err("the disk is full".into())
                };
                self.say(site, Says::Itself, Event::OutputOpened(opened));
            }
            Command::TakeOutput => self.showing.push(site),
            // What was not confirmed when the job had ended where it is shown.
            Command::Print { from: None, .. } if !self.showing.contains(&site) => {
                let shows = *self.showing.last().unwrap();
                assert_eq!(self.sites[shows].ended, Some((0, None)), "it is not shown there");
            }
            Command::Show { bytes, .. } | Command::Print { bytes, .. } => {
                // A domain that ends badly shows what the others may not have heard.
                if self.showing.contains(&site) {
                    self.shown.entry(site).or_default().extend(bytes);
                } else {
                    self.shown_elsewhere |= !bytes.is_empty();
                }
            }
            _ => {}
        }
    }

    /// How many moves came to an end here, how many were cancelled, how many brought ranks back to
    /// a domain that they had left, how many domains ended before the job, how often another one
    /// went on to show what ranks print, and how many joined it or did not.
    fn check_end(&self) -> [usize; 7] {
        let passed = self.showing.len() - 1;
        let mut done = [0, 0, self.back, self.gone, passed, self.joined, self.stayed_out];
        let log_lost = |site: &Site| {
            let cause = site.ended.as_ref().and_then(|(_, cause)| cause.as_deref());
            cause.is_some_and(|cause| cause.contains("its log was lost with its router"))
        };
        if self.died_unheard && self.sites.iter().any(log_lost) {
            return [0; 7];
        }
        assert!(self.prepared.is_empty(), "it waits for ever: {:?}", self.prepared);
        for site in self.sites.iter().filter(|site| site.is_member) {
            assert_eq!(site.ended, Some((0, None)), "{:?}", self.states());
            let count = |wanted| site.phases.iter().filter(|phase| **phase == wanted).count();
            done[0] += count(MovePhase::Imaged).min(count(MovePhase::Resumed));
            done[1] += count(MovePhase::Cancelled);
        }
        assert_eq!(self.finished.len(), self.sites[0].machine.ranks.len());
        assert!(!self.shown_elsewhere, "another domain shows what ranks print");
        let mut words = Words::default();
        self.showing
            .iter()
            .filter_map(|site| self.shown.get(site))
            .for_each(|bytes| words.show(bytes));
        let is_whole = |rank: &Rank| words.bytes_of(*rank) == STEPS * WORD;
        assert!(self.finished.iter().all(is_whole), "{words:?} were shown");
        done
    }
}

#[test]
fn domains_are_left_under_random_failures_and_each_rank_is_in_one_place() {
    let schedules = std::env::var("EYRIE_SCHEDULES").ok().and_then(|n| n.parse().ok());
    let schedules = schedules.unwrap_or(1000);
    let first = std::env::var("EYRIE_SEED").ok().and_then(|n| n.parse().ok()).unwrap_or(0);
    let mut all = [0; 7];
    for seed in first..first + schedules {
        let run = std::panic::catch_unwind(|| {
            let mut world = World::new(seed);
            world.run();
            world.check_end()
        });
        let Ok(done) = run else {
            panic!("schedule {seed} failed: EYRIE_SEED={seed} EYRIE_SCHEDULES=1 repeats it");
        };
        all.iter_mut().zip(done).for_each(|(all, of_one)| *all += of_one);
    }
    let [moved, stayed, back, gone, passed, joined, stayed_out] = all;
    println!(
        "{moved} moves of domains, {stayed} cancelled, {back} ranks back, {gone} domains gone, \
         {passed} after they had shown the job, {joined} joined, {stayed_out} stayed out"
    );
    let enough = moved > 500 && stayed > 50 && back > 15 && gone > 100 && passed > 20;
    let enough = enough && joined > 100 && stayed_out > 100;
    assert!(schedules < 1000 || enough, "{all:?}");
}
