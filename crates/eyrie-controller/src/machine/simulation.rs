//! Simulated clusters under random failures: the machine is driven through whole jobs, without a
//! process or a socket, and what it must never do is checked after each of its commands. A failing
//! schedule is named by its seed.

mod domains;
mod handover;
mod network;
mod printing;

use super::images::schedule::Interval;
use super::images::stores::SAVED;
use super::saving::contents::Saved;
use super::timeouts::FENCE_TIMEOUT;
use super::users::answer::{Answer, RequestId};
use super::{said, *};
use crate::inject::{Fault, Injection};
use crate::record::Record;
use eyrie_interface::options::Precaution;
use eyrie_interface::proposal::Goal;
use eyrie_interface::{IfSlow, Manner, Order, Way};
use eyrie_router::{RouterCommand, RouterEvent};
use eyrie_store::role::{StoreCommand, StoreEvent, Stored};
use eyrie_wire::control::{
    CheckpointMode, Ending, FromAgent, MpiStage, NodeUsage, RankReport, RankUsage, Role, RoleKind,
    StartFault, StartRank, StoreAt, ToAgent,
};
use eyrie_wire::directory::MessagePath;
use eyrie_wire::domains::{Domains, Letter, LineKey};
use eyrie_wire::entries::{Entries, Entry};
use eyrie_wire::health::{Finding, HealthState};
use eyrie_wire::role_address::Addr;
use eyrie_wire::{DomainId, ImageId, Incarnation, NodeId, Rank, RankInstance, RouterId, StoreId};
use printing::{Printing, Written};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::time::Duration;

/// Random schedules in one run of the tests; EYRIE_SCHEDULES asks for another number.
const SCHEDULES: u64 = 10_000;
/// A job that has not ended by then hangs.
const TOO_LONG: Duration = Duration::from_secs(6 * 3600);

/// A user who has asked for something that an image is needed for has an answer by then: also when
/// a rank never says whether it stands still.
const LONGEST_ANSWER: Duration = Duration::from_secs(900);

/// Why a user ends a job.
const STOPPED: &str = "interrupted";

/// What a rank says that had not read its whole log when its router was lost.
const NEEDS_ITS_LOG: &str = "the messages that it needs are lost";

/// Something that is going to happen.
#[derive(Clone, Debug)]
enum Happening {
    /// From an agent: kept back while its node is frozen, lost when it is dead.
    FromNode(NodeId, Event),
    /// From routers, the store or a user: nothing holds it back.
    Event(Event),
    /// A process comes to its end by itself, if it is still there.
    WorkDone(RankInstance),
    KillRank(Rank),
    KillNode(NodeId),
    KillRouter(RouterId),
    FreezeNode(NodeId),
    WakeNode(NodeId),
    KillStore(StoreId),
    /// No packet goes between the controller and any node, for so long.
    CutOff(Duration),
    /// The controller dies, and another one goes on.
    Resume,
    Plug,
    /// The image of a capture is whole in the store that it was sent to.
    Uploaded(StoreId, RankInstance, ImageId),
    /// A store has tried to copy an image from another.
    Copied(StoreId, StoreId, RankInstance, ImageId),
    /// A process prints something.
    Print(RankInstance),
    /// The printer of this controller has written something.
    Written {
        controller: u64,
        written: Written,
    },
}

/// The keys that a domain has in common with the others.
fn keys(own: usize, domains: usize) -> Vec<Option<LineKey>> {
    (0..domains).map(|other| (other != own).then(LineKey::new)).collect()
}

/// A happening at its time; the earliest is the greatest, ties go by order of making.
#[derive(Debug)]
struct Due(Duration, u64, Happening);

impl PartialEq for Due {
    fn eq(&self, other: &Due) -> bool {
        (self.0, self.1) == (other.0, other.1)
    }
}
impl Eq for Due {}
impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Due) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Due {
    fn cmp(&self, other: &Due) -> std::cmp::Ordering {
        (other.0, other.1).cmp(&(self.0, self.1))
    }
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Health {
    Up,
    Frozen,
    Dead,
}

struct SimNode {
    health: Health,
    /// The controller has given it up.
    refused: bool,
    /// It was told of, and has not come yet.
    joining: bool,
    held: Vec<Event>,
    processes: BTreeMap<Rank, Incarnation>,
    store: Option<StoreId>,
}

impl SimNode {
    fn new() -> SimNode {
        SimNode {
            health: Health::Up,
            refused: false,
            joining: false,
            held: Vec::new(),
            processes: BTreeMap::new(),
            store: None,
        }
    }
}

#[derive(Default)]
struct SimRank {
    /// The only incarnation that routers let speak.
    fenced: Incarnation,
    started: BTreeSet<Incarnation>,
    /// What stores have of the rank, and what of it is damaged.
    stored: BTreeSet<(StoreId, ImageId)>,
    damaged: BTreeSet<(StoreId, ImageId)>,
    /// Images that counted, in order, and the stores that have them as far as was told; at most
    /// two.
    counted: Vec<(ImageId, BTreeSet<StoreId>)>,
    truncated_to: Option<u64>,
    unprotected: bool,
    /// Its router was lost, and no image was asked for since the new one took it up.
    log_lost: bool,
    adopted: bool,
    /// Whether it had been taken up when the last image was asked for.
    adopted_before: bool,
    capture: Option<SimCapture>,
    /// It stands still since it was captured as this image, until it is stopped or goes on.
    still: Option<(RankInstance, ImageId)>,
    /// It is made to stand still for this share of time.
    slowed: Option<(RankInstance, u8)>,
    /// Routers that have confirmed the newest fence.
    confirmed: BTreeSet<RouterId>,
    /// The incarnation that is being restored from an image.
    restoring: Option<Incarnation>,
}

/// A router on a node.
struct SimRouter {
    node: NodeId,
    generation: u32,
    up: bool,
}

/// A capture under way, as far as the machine was told of it.
#[derive(PartialEq, Debug)]
struct SimCapture {
    instance: RankInstance,
    image: ImageId,
    stores: BTreeSet<StoreId>,
    checked: bool,
}

impl SimCapture {
    fn is(&self, instance: RankInstance, image: ImageId) -> bool {
        (self.instance, self.image) == (instance, image)
    }
}

struct Cluster {
    config: Config,
    seed: u64,
    /// Its ranks; those of other domains are only counted.
    own: Vec<Rank>,
    /// Barriers that the ranks come to, that were passed, and that each rank has arrived at.
    barriers_to_pass: u32,
    passed: u32,
    arrived: BTreeMap<Rank, u32>,
    /// What ranks can read that others have put.
    known: Entries,
    /// Letters to other domains that the machine has sent just now.
    to_domains: Vec<(DomainId, Letter)>,
    /// Why the job has ended, if that was no good end.
    cause: Option<String>,
    /// There was a good reason for such an end when it came.
    had_to_end: bool,
    /// The job has been saved.
    was_saved: bool,
    /// Stores that live, and those that the machine was told are lost.
    stores: BTreeSet<StoreId>,
    lost_stores: BTreeSet<StoreId>,
    next_store: StoreId,
    /// They run on nodes.
    stores_on_nodes: bool,
    started_on: BTreeMap<StoreId, NodeId>,
    /// Since when a rank cannot reach a router.
    apart: Option<Duration>,
    /// Since when the controller is cut off from all nodes, and what waits for it there.
    cut: Option<Duration>,
    letters: Vec<Happening>,
    /// When it went on after it had stood aside.
    reconnected: Option<Duration>,
    /// Since when a store is missing that a node could have.
    store_missing: Option<Duration>,
    copies: usize,
    copied: u64,
    /// Kept when it is asked for: the events with their times as they are recorded, and the
    /// commands that the machine gave.
    journal: Option<(Vec<Vec<u8>>, Vec<Command>)>,
    routers: u32,
    /// Those that run on nodes.
    on_nodes: BTreeMap<RouterId, SimRouter>,
    /// The last start of a router failed.
    start_failed: bool,
    /// The job has ended because a router was lost with a rank that needed it.
    two_lost: bool,
    /// No image of this rank is ever taken, for a reason that passes: it computes for long.
    stubborn: Option<Rank>,
    /// What users wait for, and since when.
    asked: BTreeMap<RequestId, Duration>,
    /// Ranks that were told of as overdue, until they have an image again.
    overdue: BTreeSet<Rank>,
    /// A router that does not answer any more, and since when a fence waits for it.
    hung: Option<(RouterId, Option<Duration>)>,
    random: SmallRng,
    now: Duration,
    queue: BinaryHeap<Due>,
    made: u64,
    nodes: Vec<SimNode>,
    ranks: Vec<SimRank>,
    machine: Machine,
    barriers: Vec<(Rank, NodeId, Incarnation)>,
    ended: Option<i32>,
    recovered: u64,
    /// Plans of moves that were carried out, and that were turned back.
    plans: [u64; 2],
    printing: Printing,
    /// What health rules are going to find, in milliseconds from the start.
    findings: Vec<(u64, NodeId, Finding)>,
}

fn is_recovering(state: RankStateName) -> bool {
    matches!(state, RankStateName::Restoring | RankStateName::Replaying)
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// What health rules find on these nodes in one job of two: it comes and goes.
fn findings(random: &mut SmallRng, nodes: u32) -> Vec<(u64, NodeId, Finding)> {
    let number = if random.gen() { random.gen_range(1..30) } else { 0 };
    let states = [HealthState::Ok, HealthState::Ok, HealthState::Suspect, HealthState::Failing];
    let finding = |_| {
        let rule = ["heat", "disk", "link"][random.gen_range(0..3)].into();
        let state = states[random.gen_range(0..4)];
        let finding = Finding { rule, what: "it".into(), state, said: "so".into() };
        (random.gen_range(100..15_000), NodeId(random.gen_range(0..nodes)), finding)
    };
    (0..number).map(finding).collect()
}

impl Cluster {
    fn new(seed: u64, journaled: bool) -> Cluster {
        Cluster::within(seed, journaled, None)
    }

    /// A domain of a job, or all of it.
    fn within(seed: u64, journaled: bool, domains: Option<Domains>) -> Cluster {
        let mut random = SmallRng::seed_from_u64(seed);
        let nodes = random.gen_range(1 + u32::from(domains.is_some())..5);
        let spares = random.gen_range(0..3);
        let ranks = random.gen_range(1..9);
        let own: Vec<Rank> = match &domains {
            None => Rank::first(ranks).collect(),
            Some(domains) => domains.own().ranks().collect(),
        };
        let all = domains.iter().flat_map(|domains| &domains.all);
        let all: u32 = all.map(|domain| domain.ranks().count() as u32).sum();
        let ranks = all.max(own.len() as u32);
        let interval = match random.gen_range(0..4) {
            0 => Interval::Off,
            1 => Interval::Auto { mtbf: Duration::from_secs(60), log_share: 100 << 20 },
            _ => Interval::Every(ms(random.gen_range(200..5000))),
        };
        let orders = [Order::Batch, Order::Sequential, Order::SelfTimed];
        let injections = match random.gen_range(0..4) {
            0 => vec![Injection::RandomRanks { count: 3, seed }],
            1 => ["kill-rank=0@recovery", "kill-rank=0@checkpoint", "kill-rank=0@1s"]
                .map(|s| s.parse().unwrap())
                .to_vec(),
            _ => Vec::new(),
        };
        let routers = random.gen_range(1..4);
        let roles_on_nodes = domains.is_some() || nodes + spares > 1 && random.gen_bool(0.5);
        let hung = random.gen_bool(0.02) && !roles_on_nodes;
        let hung = hung.then(|| (RouterId(random.gen_range(0..routers)), None));
        let stores_on_nodes = roles_on_nodes && random.gen();
        let stores = if stores_on_nodes { 2 } else { random.gen_range(1..4) };
        let copies = if stores_on_nodes { 2 } else { random.gen_range(1..=stores.min(2)) };
        let mut start = vec![NodeId(0); ranks as usize];
        let spread = eyrie_placement::assign::spread(own.len() as u32, nodes).map(NodeId);
        own.iter().zip(spread).for_each(|(rank, node)| start[rank.index()] = node);
        let named = domains.iter().flat_map(|_| 0..nodes + spares);
        let hosts = named.map(|node| format!("h{node}")).collect();
        let gateway = domains.as_ref().map(|_| NodeId(0));
        let barriers_to_pass = if domains.is_some() { 3 } else { 1 };
        let just_enough = domains.is_none() && random.gen_bool(0.3);
        let slots = if just_enough { ranks.div_ceil(nodes) } else { ranks };
        let config = Config {
            job: "simulated".into(),
            ranks,
            nodes,
            spares,
            start,
            slots: vec![Some(slots); (nodes + spares) as usize],
            hosts,
            routers,
            path: MessagePath::Router,
            roles_on_nodes,
            // Else those of simulated jobs run elsewhere.
            stores: if roles_on_nodes && !stores_on_nodes { 0 } else { stores },
            image_copies: copies,
            checkpoint_every: interval,
            checkpoint_order: orders[random.gen_range(0..3)],
            checkpoint_mode: CheckpointMode::Async,
            self_contained: false,
            can_be_saved: !roles_on_nodes,
            archive: false,
            drain_on_notice: true,
            run_time: Duration::from_secs(3600),
            on_suspect: Precaution::Image,
            on_failing: Precaution::Drain,
            heartbeat_timeout: ms(2000),
            agents_timeout: Duration::from_secs(30),
            alone_for: Duration::from_secs(if domains.is_some() { 3600 } else { 60 }),
            agents_come_back: true,
            injections,
            domains,
            gateway,
            joins: false,
        };
        // Of its own choices, so that all else is as it would be without.
        let mut choices = SmallRng::seed_from_u64(!seed);
        let findings = findings(&mut choices, nodes + spares);
        let machine = Cluster::machine(&config, seed);
        let stubborn = random.gen_bool(0.05).then(|| own[random.gen_range(0..own.len())]);
        Cluster {
            config: config.clone(),
            seed,
            own,
            barriers_to_pass,
            passed: 0,
            arrived: BTreeMap::new(),
            known: Entries::default(),
            to_domains: Vec::new(),
            cause: None,
            had_to_end: false,
            was_saved: false,
            stores: StoreId::first(if stores_on_nodes { 0 } else { stores }).collect(),
            lost_stores: BTreeSet::new(),
            next_store: StoreId(if stores_on_nodes { 0 } else { stores }),
            stores_on_nodes,
            started_on: BTreeMap::new(),
            apart: None,
            cut: None,
            letters: Vec::new(),
            reconnected: None,
            store_missing: None,
            copies: copies as usize,
            copied: 0,
            journal: journaled.then(Default::default),
            routers: routers + u32::from(gateway.is_some()),
            on_nodes: BTreeMap::new(),
            start_failed: false,
            two_lost: false,
            stubborn,
            asked: BTreeMap::new(),
            overdue: BTreeSet::new(),
            hung,
            now: Duration::ZERO,
            queue: BinaryHeap::new(),
            made: 0,
            nodes: (0..nodes + spares).map(|_| SimNode::new()).collect(),
            ranks: (0..ranks)
                .map(|_| SimRank { fenced: Incarnation(1), ..SimRank::default() })
                .collect(),
            machine,
            barriers: Vec::new(),
            ended: None,
            recovered: 0,
            plans: [0; 2],
            printing: Printing::default(),
            findings,
            random,
        }
    }

    /// The machine of such a job, which has not begun.
    fn machine(config: &Config, seed: u64) -> Machine {
        Machine::new(config.clone()).place_by(network::placement(config, seed))
    }

    fn after(&mut self, delay_ms: std::ops::Range<u64>, happening: Happening) {
        let at = self.now
            + Duration::from_micros(
                self.random.gen_range(delay_ms.start * 1000..delay_ms.end * 1000),
            );
        self.made += 1;
        self.queue.push(Due(at, self.made, happening));
    }

    fn any_rank(&mut self) -> Rank {
        self.own[self.random.gen_range(0..self.own.len())]
    }

    /// Everything that happens by itself, from the start on.
    fn plan(&mut self) {
        self.plan_start();
        self.plan_failures();
        self.plan_requests();
        self.plan_losses();
        self.plan_traffic();
        for (at, node, finding) in std::mem::take(&mut self.findings) {
            self.made += 1;
            let found = Happening::FromNode(node, said::agent(node, FromAgent::Found(finding)));
            self.queue.push(Due(ms(at), self.made, found));
        }
    }

    /// The stores and the agents come up.
    fn plan_start(&mut self) {
        for store in StoreId::first(self.next_store.0) {
            self.handle(said::store_up(store));
        }
        for node in NodeId::first(self.nodes.len() as u32) {
            self.after(0..500, Happening::FromNode(node, said::joined(node)));
        }
    }

    /// What fails in this job, and hosts that join; it may be saved.
    fn plan_failures(&mut self) {
        // Of three domains one fails more easily.
        let is_one = self.config.domains.is_none();
        for _ in 0..self.random.gen_range(0..if is_one { 8 } else { 5 }) {
            let rank = self.any_rank();
            let node = self.random.gen_range(0..self.nodes.len() as u32);
            let what = match self.random.gen_range(0..if is_one { 10 } else { 9 }) {
                0..=5 => Happening::KillRank(rank),
                6..=7 => Happening::KillNode(NodeId(node)),
                8 => Happening::FreezeNode(NodeId(node)),
                _ => Happening::Event(said::unprotected(rank, "disk full".into())),
            };
            self.after(600..15_000, what);
        }
        for _ in 0..self.random.gen_range(0..2) {
            let router = self.random.gen_range(0..self.routers);
            self.after(600..15_000, Happening::KillRouter(RouterId(router)));
        }
        for _ in 0..self.random.gen_range(0..3) {
            self.after(600..15_000, Happening::Event(Event::Joining { host: "late".into() }));
        }
        if self.random.gen_bool(0.1) {
            self.after(600..15_000, Happening::Event(Event::Save { request: None }));
        }
        for _ in 0..self.random.gen_range(0..3) {
            let [from, to] = [(); 2].map(|()| self.random.gen_range(0..self.nodes.len() as u32));
            let part = |reached| {
                Happening::FromNode(NodeId(from), said::reached(NodeId(from), NodeId(to), reached))
            };
            let parted = part(false);
            let met = part(true);
            self.after(1000..10_000, parted);
            self.after(10_000..20_000, met);
        }
        if self.random.gen_bool(0.2) {
            let long = ms(self.random.gen_range(300..12_000));
            self.after(1000..15_000, Happening::CutOff(long));
        }
    }

    /// What users ask, and a host that is about to be taken away.
    fn plan_requests(&mut self) {
        for _ in 0..self.random.gen_range(0..3) {
            let node = self.random.gen_range(0..self.nodes.len() as u32);
            self.after(
                600..20_000,
                Happening::Event(Event::Undrain { request: 0, node: NodeId(node) }),
            );
        }
        for number in 1..self.random.gen_range(1..5) {
            let request = Some(number);
            let rank = self.any_rank();
            let node = self.random.gen_range(0..self.nodes.len() as u32);
            let pause_budget = ms([0, 50, 100_000][self.random.gen_range(0..3)]);
            let if_slow = [IfSlow::Accept, IfSlow::SlowDown, IfSlow::GiveUp];
            let if_slow = if_slow[self.random.gen_range(0..3)];
            let way = if self.random.gen_bool(0.2) { Way::Stop } else { Way::Live };
            let manner = Manner { pause_budget, if_slow, way };
            let event = match self.random.gen_range(0..5) {
                3 => {
                    let goal = if self.random.gen() {
                        Goal::Consolidate { nodes: self.random.gen_range(1..3) }
                    } else {
                        Goal::Balance { payback: Duration::from_secs(600) }
                    };
                    Event::Measure { request: 0, over: ms(100), goal }
                }
                0 => Event::Migrate { request, ranks: vec![rank], to: None, manner },
                1 => Event::Migrate { request, ranks: vec![rank], to: Some(NodeId(node)), manner },
                2 => Event::Checkpoint { request: number, rank: Some(rank) },
                _ => Event::Drain { request, node: NodeId(node) },
            };
            self.after(600..15_000, Happening::Event(event));
        }
        if self.random.gen_bool(0.1) {
            let node = self.random.gen_range(0..self.nodes.len() as u32);
            let at = self.random.gen_range(600..15_000);
            let leaves = self.random.gen();
            let notice = said::notice(NodeId(node), "it goes".into(), leaves);
            self.after(at..at + 1, Happening::FromNode(NodeId(node), notice));
            if leaves {
                // At the latest after its grace.
                self.after(at + 3000..at + 3001, Happening::KillNode(NodeId(node)));
            }
        }
    }

    /// Stores that are lost, and logs that grow.
    fn plan_losses(&mut self) {
        // With one copy of each image the loss of a store is the end of many jobs.
        let losses = if self.copies > 1 { self.random.gen_range(0..4) } else { 0 };
        for _ in 0..losses + usize::from(self.random.gen_bool(0.02)) {
            let store = self.random.gen_range(0..self.next_store.0 + 2);
            self.after(600..15_000, Happening::KillStore(StoreId(store)));
        }
        for _ in 0..self.random.gen_range(0..20) {
            let rank = self.any_rank();
            let event = match self.random.gen_range(0..5) {
                0 => said::log_scarce(rank),
                _ => said::log_grown(rank, self.random.gen_range(0..1 << 30)),
            };
            self.after(0..15_000, Happening::Event(event));
        }
    }

    /// The job from its start to its end; panics when an invariant breaks.
    fn run(&mut self) -> (Option<i32>, u64) {
        self.plan();
        while self.ended.is_none() {
            self.step();
        }
        (self.ended, self.recovered)
    }

    /// When the next thing happens.
    fn next(&self) -> Option<Duration> {
        let tick = self.machine.next_tick().map(|t| t.max(self.now));
        let next = self.queue.peek().map(|due| due.0);
        tick.into_iter().chain(next).min()
    }

    /// The next thing happens.
    fn step(&mut self) {
        assert!(self.now < TOO_LONG, "the job hangs: {:?}", self.states());
        // Where a store is missing for good an image is under way for as long as one may be.
        let can_count = self.stores.len() >= self.copies;
        let is_late = |since: Duration| can_count && self.now > since + LONGEST_ANSWER;
        let late = self.asked.iter().find(|(_, since)| is_late(**since));
        assert_eq!(late, None, "a user is not answered: {:?}", self.states());
        let tick = self.machine.next_tick().map(|t| t.max(self.now));
        let next = self.queue.peek().map(|due| due.0);
        match (tick, next) {
            (Some(t), Some(n)) if t < n => self.handle_at(t, Event::Tick),
            (_, Some(at)) => {
                let Due(_, _, happening) = self.queue.pop().unwrap();
                self.now = at;
                self.happen(happening);
            }
            (Some(t), None) => self.handle_at(t, Event::Tick),
            (None, None) => panic!("nothing will ever happen again: {:?}", self.states()),
        }
    }

    fn states(&self) -> Vec<(RankInstance, NodeId, RankStateName)> {
        self.machine.rank_states().collect()
    }

    fn handle_at(&mut self, at: Duration, event: Event) {
        // A tick that finds nothing to do must not come again at once.
        self.now = if at > self.now { at } else { self.now + Duration::from_micros(100) };
        self.handle(event);
    }

    /// Whether something comes from a node, or of a connection to one.
    fn is_from_elsewhere(&self, happening: &Happening) -> bool {
        use Event as E;
        match happening {
            Happening::FromNode(..) | Happening::Event(E::AgentGone(_)) => true,
            Happening::Event(E::From(
                FromPeer::Router(
                    _,
                    RouterEvent::Fenced { .. }
                    | RouterEvent::Connected(_)
                    | RouterEvent::Replayed { .. }
                    | RouterEvent::Adopted { .. }
                    | RouterEvent::Heard { .. }
                    | RouterEvent::Line { .. }
                    | RouterEvent::FromDomain { .. },
                )
                | FromPeer::Store(_, StoreEvent::Begun { .. }),
            )) => self.config.roles_on_nodes,
            Happening::Uploaded(..) | Happening::Copied(..) => self.stores_on_nodes,
            _ => false,
        }
    }

    /// What waited for the controller comes, to where the nodes have connected once more when it
    /// took long.
    fn plug(&mut self) {
        let Some(since) = self.cut.take() else { return };
        let again = self.now > since + ms(1500);
        let letters = std::mem::take(&mut self.letters);
        if again {
            for node in NodeId::first(self.nodes.len() as u32) {
                let n = &self.nodes[node.index()];
                if n.health != Health::Dead && !n.refused && !n.joining {
                    self.after(0..300, Happening::FromNode(node, Event::AgentBack(node)));
                }
            }
        }
        for letter in letters {
            match letter {
                // A host that is off says nothing.
                Happening::Event(Event::AgentGone(_)) if again => {}
                Happening::FromNode(
                    _,
                    Event::From(FromPeer::Agent(_, FromAgent::Heartbeat { .. })),
                ) if again => {}
                // What one role says keeps its order.
                Happening::FromNode(
                    _,
                    Event::From(FromPeer::Router(_, RouterEvent::Line { .. })),
                ) => self.happen(letter),
                // Before the end of its rank, which may be on its way already.
                Happening::FromNode(
                    _,
                    Event::From(FromPeer::Agent(_, FromAgent::Output { .. })),
                ) => {
                    self.made += 1;
                    self.queue.push(Due(self.now, self.made, letter));
                }
                // In order: an agent's letters come as it has sent them.
                letter => {
                    self.made += 1;
                    self.queue.push(Due(self.now + ms(300), self.made, letter));
                }
            }
        }
    }

    fn happen(&mut self, happening: Happening) {
        if self.cut.is_some() && self.is_from_elsewhere(&happening) {
            return self.letters.push(happening);
        }
        match happening {
            Happening::CutOff(long) if self.machine.has_started() => {
                self.cut = Some(self.now);
                let long = long.as_millis() as u64;
                self.after(long..long + 1, Happening::Plug);
            }
            Happening::CutOff(_) => {}
            Happening::Resume => self.resume(),
            Happening::Plug => self.plug(),
            Happening::Event(event) => {
                match &event {
                    Event::Migrate { request: Some(request), .. }
                    | Event::Drain { request: Some(request), .. }
                    | Event::Rearrange { request: Some(request), .. }
                    | Event::Checkpoint { request, .. } => {
                        self.asked.entry(*request).or_insert(self.now);
                    }
                    Event::Joining { host } => self.join(host),
                    Event::From(FromPeer::Router(role, message)) => {
                        self.router_says(*role, message)
                    }
                    _ => {}
                }
                self.handle(event);
            }
            Happening::FromNode(node, event) => self.hear_node(node, event),
            Happening::WorkDone(instance) => self.work_done(instance),
            Happening::Print(instance) => self.print(instance),
            Happening::Written { controller, written } => self.written(controller, written),
            Happening::KillRank(rank) => self.kill_rank(rank),
            Happening::KillNode(node) => self.kill_node(node),
            Happening::KillRouter(id) => self.kill_router(id),
            Happening::FreezeNode(node) => {
                let n = &mut self.nodes[node.index()];
                if n.health == Health::Up {
                    n.health = Health::Frozen;
                    // For shorter or longer than the heartbeat allows.
                    self.after(100..6000, Happening::WakeNode(node));
                }
            }
            Happening::WakeNode(node) => self.wake(node),
            Happening::KillStore(store) => self.kill_store(store),
            Happening::Uploaded(store, ..) | Happening::Copied(store, ..)
                if self.is_frozen(store) =>
            {
                self.after(50..500, happening);
            }
            Happening::Uploaded(store, instance, image) => {
                if self.stores.contains(&store) {
                    self.store(store, instance, image, 0.1);
                }
            }
            Happening::Copied(store, from, instance, image) => {
                self.copied(store, from, instance, image);
            }
        }
    }

    /// What is known of what a router says.
    fn router_says(&mut self, role: Role, message: &RouterEvent) {
        match message {
            RouterEvent::Unprotected { rank, .. } => {
                self.ranks[rank.index()].unprotected = true;
            }
            RouterEvent::Fenced { instance, .. } => {
                let r = &mut self.ranks[instance.rank.index()];
                if r.fenced == instance.incarnation {
                    r.confirmed.insert(RouterId(role.id));
                }
            }
            RouterEvent::Adopted { instance, .. } => {
                let r = &mut self.ranks[instance.rank.index()];
                let is_it = r.fenced == instance.incarnation;
                r.adopted |= is_it && self.machine.is_current(role);
            }
            _ => {}
        }
    }

    fn node_of_store(&self, store: StoreId) -> Option<NodeId> {
        let on = self.nodes.iter().position(|n| n.store == Some(store));
        on.map(|node| NodeId(node as u32))
    }

    fn is_frozen(&self, store: StoreId) -> bool {
        let node = self.node_of_store(store);
        node.is_some_and(|node| self.nodes[node.index()].health == Health::Frozen)
    }

    fn start_store(&mut self, node: NodeId, id: StoreId) {
        let n = &mut self.nodes[node.index()];
        assert_eq!(n.store, None, "two stores on node {node}");
        assert!(id >= self.next_store, "store {id} is started again");
        assert!(!self.machine.nodes[node].is_drained(), "a store on drained node {node}");
        self.next_store = id.next();
        self.started_on.insert(id, node);
        if n.health == Health::Dead {
            return;
        }
        let role = Role::first(RoleKind::Store, id.0);
        if self.random.gen_bool(0.05) {
            let cause = "no space".into();
            return self.after(5..200, Happening::FromNode(node, Event::RoleLost { role, cause }));
        }
        self.nodes[node.index()].store = Some(id);
        self.stores.insert(id);
        let addr = Addr::Unix(format!("/{role}").into());
        self.after(5..200, Happening::FromNode(node, said::listens(role, addr)));
    }

    /// A store leaves a node that is drained, say: each image must be elsewhere, too.
    fn stop_role(&mut self, node: NodeId, role: Role) {
        let Role { kind: RoleKind::Store, id, .. } = role else { return };
        for r in self.ranks.iter().filter(|r| !r.counted.is_empty()) {
            let elsewhere = |(_, stores): &(_, BTreeSet<StoreId>)| stores.iter().any(|s| s.0 != id);
            assert!(r.counted.iter().all(elsewhere), "{role} has the only copy: {:?}", r.counted);
        }
        self.nodes[node.index()].store = None;
        self.stores.remove(&StoreId(id));
    }

    /// The machine declares a node dead. It may only be frozen: its store is used no more.
    fn lose_stores_on(&mut self, node: NodeId) {
        let on_it = self.started_on.iter().filter(|(_, on)| **on == node);
        let gone: Vec<StoreId> = on_it.map(|(store, _)| *store).collect();
        self.nodes[node.index()].store = None;
        self.stores.retain(|store| !gone.contains(store));
        for store in gone {
            self.store_is_lost(store);
        }
    }

    /// No router stays where a rank cannot reach it, unless one of both does not answer.
    fn watch_reach(&mut self) {
        let machine = &self.machine;
        let silent: Vec<NodeId> =
            machine.nodes.silent(machine.out.now()).into_iter().map(|(node, _)| node).collect();
        let mut routers = machine.roles.home_routers();
        let apart = routers.find_map(|(_, router)| {
            let far =
                machine.places().rank_that_cannot_meet(router.node()).filter(|_| router.is_up());
            far.filter(|far| !silent.contains(far) && !silent.contains(&router.node()))
        });
        let runs = machine.has_started() && !machine.has_ended() && !machine.contact.is_cut_off();
        if apart.is_none() || !runs {
            return self.apart = None;
        }
        let since = *self.apart.get_or_insert(self.now);
        assert!(self.now < since + ms(4000), "{apart:?} cannot reach a router since {since:?}");
    }

    /// The machine knows that a store on a node is lost, and what was there with it.
    fn store_is_lost(&mut self, store: StoreId) {
        self.lost_stores.insert(store);
        for r in &mut self.ranks {
            r.counted.iter_mut().for_each(|(_, stores)| stores.retain(|s| *s != store));
            r.counted.retain(|(_, stores)| !stores.is_empty());
            if let Some(capture) = &mut r.capture {
                capture.stores.retain(|s| *s != store);
            }
        }
    }

    /// A store that is missing is started as soon as a node can have it.
    fn watch_stores(&mut self) {
        let stores = self.machine.roles.of(RoleKind::Store);
        let stores: Vec<NodeId> = stores.map(|(_, s)| s.node()).collect();
        let can = |(node, n): (NodeId, &super::nodes::entry::NodeEntry)| {
            let has = stores.contains(&node);
            n.is_up() && !n.is_drained() && n.full_since().is_none() && !has
        };
        let free = self.machine.nodes.iter().any(can);
        let machine = &self.machine;
        let runs = machine.has_started() && !machine.has_ended() && !machine.contact.is_cut_off();
        if !self.stores_on_nodes || stores.len() >= 2 || !free || !runs {
            return self.store_missing = None;
        }
        let since = *self.store_missing.get_or_insert(self.now);
        assert!(self.now < since + ms(2000), "one store, and nodes: {stores:?} since {since:?}");
    }

    /// A store dies; mostly another takes its place.
    fn kill_store(&mut self, store: StoreId) {
        if let Some(node) = self.node_of_store(store) {
            self.nodes[node.index()].store = None;
            self.stores.remove(&store);
            let role = Role::first(RoleKind::Store, store.0);
            let cause = "killed".into();
            return self.after(0..5, Happening::FromNode(node, Event::RoleLost { role, cause }));
        }
        if !self.stores.remove(&store) {
            return;
        }
        self.after(0..5, Happening::Event(Event::StoreLost { store }));
        if self.random.gen_bool(0.9) {
            let store = self.next_store;
            self.next_store = store.next();
            self.stores.insert(store);
            self.after(5..3000, Happening::Event(said::store_up(store)));
        }
    }

    /// A store has an image whole, and says so.
    fn store(&mut self, store: StoreId, instance: RankInstance, image: ImageId, bad: f64) {
        let damaged = self.random.gen_bool(bad);
        let r = &mut self.ranks[instance.rank.index()];
        r.stored.insert((store, image));
        r.damaged.remove(&(store, image));
        if damaged {
            r.damaged.insert((store, image));
        }
        let position = 100 * image.0;
        let image = Stored {
            image,
            clock: position,
            rsn: position,
            observed: 0,
            stdin: 0,
            bytes: 1 << 20,
            file_bytes: 0,
        };
        self.handle(said::stored(store, instance, image));
    }

    fn copied(&mut self, store: StoreId, from: StoreId, instance: RankInstance, image: ImageId) {
        if !self.stores.contains(&store) {
            return;
        }
        let r = &self.ranks[instance.rank.index()];
        let there = self.stores.contains(&from) && r.stored.contains(&(from, image));
        // The source finds damage, or it is of a kind that goes over unnoticed.
        let damaged = r.damaged.contains(&(from, image));
        if !there || (damaged && self.random.gen()) || self.random.gen_bool(0.05) {
            let reason = "it cannot be copied".into();
            return self.handle(said::failed(store, instance, image, reason));
        }
        self.copied += 1;
        self.store(store, instance, image, if damaged { 1.0 } else { 0.05 });
    }

    /// The host of the gateway comes back when it is lost.
    fn bring_gateway_back(&mut self, record: &Record) {
        let (Record::NodeLost { node, .. } | Record::NodeLeft { node }) = record else { return };
        let host = self.machine.hosts().get(node.index()).filter(|host| *host == "h0").cloned();
        if let Some(host) = host.filter(|_| self.config.domains.is_some()) {
            self.after(500..20_000, Happening::Event(Event::Joining { host }));
        }
    }

    /// A host that may come, or not; that of the gateway does.
    fn join(&mut self, host: &str) {
        let node = NodeId(self.nodes.len() as u32);
        self.nodes.push(SimNode { joining: true, ..SimNode::new() });
        let event = if host == "h0" || self.random.gen_bool(0.8) {
            said::joined(node)
        } else {
            Event::AgentGone(node)
        };
        self.after(5..3000, Happening::FromNode(node, event));
    }

    fn hear_node(&mut self, node: NodeId, event: Event) {
        let n = &mut self.nodes[node.index()];
        match n.health {
            Health::Dead => {}
            Health::Frozen => n.held.push(event),
            Health::Up if n.refused => {}
            Health::Up => {
                let message = match &event {
                    Event::From(FromPeer::Agent(_, message)) => Some(message),
                    _ => None,
                };
                match message {
                    Some(FromAgent::Joined(_)) => n.joining = false,
                    // A process that has ended is not on the node any more.
                    Some(FromAgent::Rank(
                        instance,
                        RankReport::Exited { .. } | RankReport::StartFailed { .. },
                    )) if n.processes.get(&instance.rank) == Some(&instance.incarnation) => {
                        n.processes.remove(&instance.rank);
                    }
                    Some(FromAgent::Rank(instance, RankReport::Started { .. })) => {
                        if n.processes.get(&instance.rank) != Some(&instance.incarnation) {
                            return; // Killed before it could say so.
                        }
                        self.ranks[instance.rank.index()].restoring = None;
                    }
                    _ => {}
                }
                self.handle(event);
            }
        }
    }

    fn wake(&mut self, node: NodeId) {
        let n = &mut self.nodes[node.index()];
        if n.health != Health::Frozen {
            return;
        }
        n.health = Health::Up;
        let held = std::mem::take(&mut n.held);
        if n.refused {
            let ranks: Vec<_> = std::mem::take(&mut n.processes).into_iter().collect();
            self.handle(Event::AgentWoke(node));
            for (rank, incarnation) in ranks {
                let reason = "older incarnation".to_string();
                let instance = Some(RankInstance { rank, incarnation });
                self.handle(said::refused(instance, reason));
            }
        } else {
            for event in held {
                self.hear_node(node, event);
            }
        }
    }

    /// The node and the present process of a rank.
    fn process(&self, rank: Rank) -> Option<(NodeId, Incarnation)> {
        let fenced = self.ranks[rank.index()].fenced;
        (self.nodes.iter().enumerate()).find_map(|(node, n)| {
            let there = n.processes.get(&rank) == Some(&fenced) && n.health != Health::Dead;
            there.then_some((NodeId(node as u32), fenced))
        })
    }

    fn kill_rank(&mut self, rank: Rank) {
        let Some((node, incarnation)) = self.process(rank) else { return };
        self.nodes[node.index()].processes.remove(&rank);
        let instance = RankInstance { rank, incarnation };
        let stage = MpiStage::Within;
        let event = if self.ranks[rank.index()].restoring == Some(incarnation) {
            let reason = "killed".into();
            let fault = StartFault::Killed(libc::SIGKILL);
            said::rank(instance, RankReport::StartFailed { reason, fault })
        } else {
            said::rank(
                instance,
                RankReport::Exited { ending: Ending::Signal(libc::SIGKILL), stage },
            )
        };
        self.after(0..20, Happening::FromNode(node, event));
    }

    fn kill_node(&mut self, node: NodeId) {
        let n = &mut self.nodes[node.index()];
        if n.health != Health::Dead {
            n.health = Health::Dead;
            n.processes.clear();
            let store = n.store.take();
            self.stores.retain(|id| Some(*id) != store);
            self.after(0..50, Happening::Event(Event::AgentGone(node)));
        }
    }

    /// The process of a router dies alone.
    fn kill_router(&mut self, id: RouterId) {
        let Some(router) = self.on_nodes.get_mut(&id).filter(|r| r.up) else { return };
        router.up &= !self.machine.roles.is_gateway(id);
        let role = Role { kind: RoleKind::Router, id: id.0, generation: router.generation };
        let node = router.node;
        let cause = "killed".to_string();
        self.after(0..30, Happening::FromNode(node, Event::RoleLost { role, cause }));
    }

    fn start_router(&mut self, node: NodeId, role: Role, takes_over: bool) {
        let Role { id, generation, .. } = role;
        assert_eq!(takes_over, self.machine.has_started(), "{role:?}");
        assert!(self.machine.is_current(role), "{role:?}");
        let router = SimRouter { node, generation, up: false };
        if let Some(earlier) = self.on_nodes.insert(RouterId(id), router) {
            assert!(earlier.generation < generation, "{role:?}");
        }
        if takes_over {
            let is_gateway = self.machine.roles.is_gateway(RouterId(id));
            for (rank, here) in self.machine.is_primary_of(RouterId(id)).into_iter().enumerate() {
                let r = &mut self.ranks[rank];
                // It is told who may speak.
                r.confirmed.insert(RouterId(id));
                if here && !is_gateway {
                    (r.log_lost, r.adopted, r.adopted_before) = (true, false, false);
                }
            }
        }
        let fails = self.random.gen_bool(0.05) && !std::mem::take(&mut self.start_failed);
        self.start_failed |= fails;
        let event = if fails {
            Event::RoleLost { role, cause: "no port is free".into() }
        } else {
            let addr = Addr::Unix(format!("/{id}.{generation}").into());
            said::listens(role, addr)
        };
        self.after(5..200, Happening::FromNode(node, event));
    }

    /// Ranks hear where their routers are, and tell new ones what they have.
    fn publish(&mut self) {
        for id in RouterId::first(self.routers) {
            if self.machine.roles.addr(RoleKind::Router, id.0).is_none() {
                continue;
            }
            let Some(router) = self.on_nodes.get_mut(&id) else { continue };
            if std::mem::replace(&mut router.up, true) || router.generation == 0 {
                continue;
            }
            let role = Role { kind: RoleKind::Router, id: id.0, generation: router.generation };
            for (rank, here) in self.machine.is_primary_of(id).into_iter().enumerate() {
                if let Some((_, incarnation)) = self.process(Rank(rank as u32)) {
                    let instance = RankInstance { rank: Rank(rank as u32), incarnation };
                    self.after(1..500, Happening::Event(said::heard(role, instance)));
                }
                let process = self.process(Rank(rank as u32)).filter(|_| here);
                if let Some((node, incarnation)) = process {
                    let instance = RankInstance { rank: Rank(rank as u32), incarnation };
                    let recovers = is_recovering(self.machine.ranks[Rank(rank as u32)].state());
                    let event = if recovers && self.random.gen_bool(0.3) {
                        // It had not read all that it is to see again.
                        let reason = NEEDS_ITS_LOG.into();
                        let fatal = said::rank(instance, RankReport::Fatal { reason });
                        Happening::FromNode(node, fatal)
                    } else {
                        Happening::Event(said::adopted(role, instance))
                    };
                    self.after(1..500, event);
                }
            }
        }
    }

    fn work_done(&mut self, instance: RankInstance) {
        let Some((node, incarnation)) = self.process(instance.rank) else { return };
        if incarnation != instance.incarnation {
            return;
        }
        let r = &self.ranks[instance.rank.index()];
        let still = r.still.is_some_and(|(of, _)| of == instance);
        // Also a slowed one comes to its end, but must not be forgotten.
        let moves = self.machine.moves().any(|(rank, _)| rank == instance.rank);
        assert!(r.slowed.is_none() || moves, "it is slowed for nothing: {instance:?}");
        let printed = self.has_printed(instance.rank);
        let is_frozen = self.nodes[node.index()].health == Health::Frozen;
        let Some(printed) = printed.filter(|_| !still && !is_frozen) else {
            return self.after(50..500, Happening::WorkDone(instance));
        };
        self.hear_node(node, said::rank(instance, RankReport::PmiFinalized));
        let ending = Ending::Code(self.exit_code(instance.rank));
        let exited = RankReport::Exited { ending, stage: MpiStage::After };
        let exited = Happening::FromNode(node, said::rank(instance, exited));
        match printed.saturating_sub(self.now).as_millis() as u64 {
            0 => self.after(0..30, exited),
            // What it has printed comes first.
            until => self.after(until + 1..until + 30, exited),
        }
    }

    fn handle(&mut self, event: Event) {
        self.expect_of(&event);
        let of_store = matches!(
            event,
            Event::From(FromPeer::Store(_, StoreEvent::Stored { .. } | StoreEvent::Failed { .. }))
        );
        let of_line = matches!(
            event,
            Event::From(FromPeer::Router(_, RouterEvent::Line { .. }))
                | Event::Stop { .. }
                | Event::Line { .. }
                | Event::Shown { .. }
        );
        if !of_store && !of_line && self.random.gen_bool(0.05) {
            // Whatever concerns a incarnation may be heard of again when the incarnation is long
            // over.
            self.after(1..3000, Happening::Event(event.clone()));
        }
        if let Some((journal, _)) = &mut self.journal {
            journal.push(postcard::to_stdvec(&(self.now, &event)).unwrap());
        }
        let before = self.machine.has_ended();
        let commands = self.machine.handle(self.now, event);
        if let Some((_, given)) = &mut self.journal {
            given.extend(commands.iter().cloned());
        }
        for command in commands {
            assert!(self.ended.is_none(), "a command after the end: {command:?}");
            self.carry_out(command);
        }
        if self.machine.has_ended() && !before {
            self.had_to_end = self.must_end();
        }
        self.watch_stores();
        self.watch_reach();
    }

    /// What the machine should make of what it hears of images and stores.
    fn expect_of(&mut self, event: &Event) {
        match *event {
            Event::From(FromPeer::Agent(
                _,
                FromAgent::Rank(instance, RankReport::PmiBarrier { barrier }),
            )) => {
                let arrived = self.arrived.entry(instance.rank).or_default();
                *arrived = barrier.max(*arrived);
            }
            Event::From(FromPeer::Agent(
                _,
                FromAgent::Rank(instance, RankReport::ImageUsable { image, .. }),
            )) => {
                if let Some(capture) = self.sim_capture(instance, image) {
                    capture.checked = true;
                    self.count_image(instance, image);
                }
            }
            Event::From(FromPeer::Store(
                role,
                StoreEvent::Stored { instance, stored: Stored { image, .. }, .. },
            )) if !self.lost_stores.contains(&StoreId(role.id)) => {
                let store = role.id;
                let r = &mut self.ranks[instance.rank.index()];
                if let Some((_, stores)) = r.counted.iter_mut().find(|(i, _)| *i == image) {
                    stores.insert(StoreId(store));
                }
                if let Some(capture) = self.sim_capture(instance, image) {
                    capture.stores.insert(StoreId(store));
                    self.count_image(instance, image);
                }
            }
            Event::StoreLost { store } if !self.lost_stores.contains(&store) => {
                self.store_is_lost(store);
            }
            _ => {}
        }
    }

    fn sim_capture(&mut self, of: RankInstance, image: ImageId) -> Option<&mut SimCapture> {
        let finished = self.machine.ranks[of.rank].is(RankStateName::Finished);
        let r = &mut self.ranks[of.rank.index()];
        let present = r.fenced == of.incarnation && !finished;
        r.capture.as_mut().filter(|c| present && c.is(of, image))
    }

    /// A capture counts when its image was checked, and is in as many stores as promised. Where
    /// stores are on nodes, so many may not be there: then the machine says when it counts.
    fn count_image(&mut self, instance: RankInstance, image: ImageId) {
        if !self.stores_on_nodes {
            self.count_if(instance, image, self.copies);
        }
    }

    fn count_if(&mut self, instance: RankInstance, image: ImageId, copies: usize) {
        let r = &mut self.ranks[instance.rank.index()];
        let whole = |c: &SimCapture| c.is(instance, image) && c.checked && c.stores.len() >= copies;
        if !r.capture.as_ref().is_some_and(whole) {
            return;
        }
        r.log_lost &= !r.adopted_before;
        let stores = r.capture.take().map(|c| c.stores).unwrap_or_default();
        r.counted.push((image, stores));
        if r.counted.len() > 2 {
            r.counted.remove(0);
        }
    }

    /// No command may go to a store that the machine knows is lost.
    fn check_store(&self, store: StoreId, command: &impl std::fmt::Debug) {
        assert!(!self.lost_stores.contains(&store), "to a lost store: {command:?}");
        assert!(store < self.next_store, "to a store that there is not: {command:?}");
    }

    /// No command may go to a node that was declared dead.
    fn check_node(&self, node: NodeId, command: &Command) {
        assert!(!self.nodes[node.index()].refused, "to a lost node: {command:?}");
    }

    fn barriers_passed(&mut self, entries: &[Entry], barriers: u32) {
        entries.iter().for_each(|entry| self.known.add(entry.clone()));
        // A node that comes later is told of them again.
        if barriers <= self.passed {
            return;
        }
        assert_eq!(barriers, self.passed + 1, "barriers are passed one after the other");
        self.passed = barriers;
        let waiting = std::mem::take(&mut self.barriers);
        for (rank, node, incarnation) in waiting {
            self.go_on(RankInstance { rank, incarnation }, node);
        }
    }

    /// A rank comes to its next barrier, or computes when it has passed all.
    fn go_on(&mut self, instance: RankInstance, node: NodeId) {
        let RankInstance { rank, incarnation } = instance;
        self.barriers.retain(|(r, _, _)| *r != rank);
        if self.passed >= self.barriers_to_pass {
            return self.work(instance);
        }
        self.barriers.push((rank, node, incarnation));
        let barrier = self.passed + 1;
        let key = format!("key-{rank}-{barrier}");
        let put = RankReport::PmiPut { key, value: rank.to_string() };
        let put = said::rank(instance, put);
        self.after(70..71, Happening::FromNode(node, put));
        let arrived = said::rank(instance, RankReport::PmiBarrier { barrier });
        self.after(71..90, Happening::FromNode(node, arrived));
    }

    /// The exit code of a rank's program.
    fn exit_code(&self, rank: Rank) -> i32 {
        let several = self.config.domains.is_some();
        if several && rank.0 % 3 == 2 {
            1 << (rank.0 % 6)
        } else {
            0
        }
    }

    /// The exit code of a job whose programs all come to their end.
    fn good_code(&self) -> i32 {
        Rank::first(self.config.ranks).fold(0, |code, rank| code | self.exit_code(rank))
    }

    /// The controller dies. Another one goes on from a snapshot; users who have asked for something
    /// hear nothing of it any more.
    fn resume(&mut self) {
        if self.cut.is_some() {
            return;
        }
        let snapshot = self.machine.snapshot().unwrap();
        self.machine = Cluster::machine(&self.config, self.seed);
        self.machine.restore(&snapshot).unwrap();
        self.asked.clear();
        self.handle(Event::Resumed);
        self.resume_printing();
    }

    /// The gateway to other domains, while it listens.
    fn gateway(&self) -> Option<(Role, NodeId)> {
        let gateway = self.config.gateway_router()?;
        let router = self.on_nodes.get(&gateway).filter(|router| router.up)?;
        let node = &self.nodes[router.node.index()];
        let is_there = node.health != Health::Dead && !node.refused && self.ended.is_none();
        let generation = router.generation;
        let role = Role { kind: RoleKind::Router, id: gateway.0, generation };
        is_there.then_some((role, router.node))
    }

    fn agent_gets(&mut self, node: NodeId, message: &ToAgent) {
        match *message {
            ToAgent::Start(ref start) => {
                let StartRank { instance, ref image, .. } = **start;
                self.start(node, instance, image.as_ref().map(said::source));
            }
            ToAgent::StopRole(role) => self.stop_role(node, role),
            ToAgent::Kill(instance) => {
                let n = &mut self.nodes[node.index()];
                if n.processes.get(&instance.rank) == Some(&instance.incarnation) {
                    n.processes.remove(&instance.rank);
                }
            }
            ToAgent::Capture { instance, image: ref to, hold, .. } => {
                let Source { image, store } = said::source(to);
                self.check_store(store, message);
                self.capture(node, instance, image, store);
                self.ranks[instance.rank.index()].still = hold.then_some((instance, image));
            }
            ToAgent::GoOn { instance, image } => {
                let r = &mut self.ranks[instance.rank.index()];
                r.still = r.still.filter(|still| *still != (instance, image));
            }
            ToAgent::Unprepare(_) => {}
            ToAgent::OutputShown { instance, offset, .. } => self.open_window(instance, offset),
            ToAgent::Slow { instance, share } => {
                let r = &mut self.ranks[instance.rank.index()];
                assert_eq!(instance.incarnation, r.fenced, "an older one is slowed: {message:?}");
                assert_ne!(r.slowed.map_or(0, |(_, s)| s), share, "twice: {message:?}");
                r.slowed = (share > 0).then_some((instance, share));
            }
            ToAgent::Prepare(ref start) => self.prepare(node, start),
            ToAgent::Heartbeat { n } => {
                self.after(0..200, Happening::FromNode(node, said::heartbeat(node, n)));
            }
            ToAgent::Pmi { ref entries, barriers } => self.barriers_passed(entries, barriers),
            ToAgent::Shutdown => {
                let all_go = self.machine.nodes.up().all(|node| self.machine.nodes[node].leaves());
                let empty = self.nodes[node.index()].processes.is_empty();
                assert!(all_go || empty || !self.machine.has_started(), "ranks are on node {node}");
                self.after(1..50, Happening::KillNode(node));
            }
            ToAgent::Measure { n, .. } => {
                let used = self.usage(node);
                let measured = said::measured(node, n, used);
                self.after(100..2000, Happening::FromNode(node, measured));
            }
            _ => panic!("it was not asked for: {message:?}"),
        }
    }

    fn prepare(&mut self, node: NodeId, start: &StartRank) {
        let StartRank { instance, image: Some(ref from), .. } = *start else {
            panic!("without an image: {start:?}")
        };
        let Source { image, store } = said::source(from);
        self.check_store(store, start);
        let r = &self.ranks[instance.rank.index()];
        assert!(instance.incarnation > r.fenced, "it is not about to come: {start:?}");
        let there = !self.stores.contains(&store) || r.stored.contains(&(store, image));
        assert!(there, "the store does not have it: {start:?}");
        let result = if self.random.gen_bool(0.1) { Err("simulated".into()) } else { Ok(4096) };
        let prepared = said::prepared(node, instance, image, result);
        if self.random.gen_bool(0.98) {
            self.after(5..500, Happening::FromNode(node, prepared));
        }
    }

    fn store_gets(&mut self, store: StoreId, message: &StoreCommand) {
        match *message {
            StoreCommand::Copy { instance, image, from: StoreAt { store: from, .. } } => {
                self.check_store(from, message);
                assert_ne!(store, from, "from itself: {message:?}");
                let r = &self.ranks[instance.rank.index()];
                let there = !self.stores.contains(&from) || r.stored.contains(&(from, image));
                assert!(there, "the source does not have it: {message:?}");
                self.after(5..500, Happening::Copied(store, from, instance, image));
            }
            StoreCommand::Discard { rank, image } => {
                let alive = self.stores.contains(&store);
                let r = &mut self.ranks[rank.index()];
                let counted =
                    |(i, stores): &(ImageId, BTreeSet<_>)| *i == image && stores.contains(&store);
                let counts = r.counted.iter().any(counted);
                let newest = r.counted.last().is_some_and(|(i, _)| *i == image);
                // An image from before a hole of the log is of no use once there is a newer one.
                let damaged = r.damaged.contains(&(store, image));
                let of_no_use = !alive || damaged || (r.unprotected && !newest);
                assert!(!counts || of_no_use, "a good image is thrown away");
                r.stored.remove(&(store, image));
                let of_it = r.counted.iter_mut().filter(|(i, _)| *i == image);
                of_it.for_each(|(_, stores)| stores.retain(|s| *s != store));
                r.counted.retain(|(_, stores)| !stores.is_empty());
            }
            StoreCommand::Heard { .. } => {}
            _ => panic!("it was not asked for: {message:?}"),
        }
    }

    fn router_gets(&mut self, message: &RouterCommand) {
        match *message {
            RouterCommand::Fence(instance) => self.fence(instance),
            RouterCommand::Recover { instance, .. } => {
                let r = &self.ranks[instance.rank.index()];
                assert_eq!(instance.incarnation, r.fenced, "an older incarnation is let in");
                let gateway = self.machine.roles.gateway();
                let is_gone = gateway.is_some_and(|(_, g)| g.is(state::RoleStateName::Down));
                let home = RouterId::first(self.config.routers);
                let mut wanted = home.chain(self.config.gateway_router().filter(|_| !is_gone));
                assert!(wanted.all(|router| r.confirmed.contains(&router)), "not all have fenced");
            }
            RouterCommand::Truncate { rank, rsn: position, .. } => {
                let r = &mut self.ranks[rank.index()];
                let oldest = r.counted.first().map(|(image, _)| 100 * image.0);
                let newest = r.counted.last().map_or(0, |(_, stores)| stores.len());
                let copies = if self.stores_on_nodes { 1 } else { self.copies };
                assert!(newest >= copies, "rank {rank}: truncates before all copies are there");
                assert!(
                    oldest.is_some_and(|p| position <= p),
                    "rank {rank}: truncates to {position}, but {:?} may be needed",
                    r.counted
                );
                r.truncated_to = Some(position);
            }
            RouterCommand::Stores { .. } => {}
            RouterCommand::Directory(ref directory) => {
                assert_eq!(directory.routers.len() as u32, self.routers);
            }
            RouterCommand::ToDomain { domain, ref letter } => {
                self.to_domains.push((domain, letter.clone()))
            }
            _ => panic!("it was not asked for: {message:?}"),
        }
    }

    fn fence(&mut self, instance: RankInstance) {
        let healthy =
            self.process(instance.rank).filter(|(n, _)| !self.nodes[(*n).index()].refused);
        assert_eq!(
            healthy, None,
            "a healthy incarnation of rank {} is declared dead",
            instance.rank
        );
        let r = &mut self.ranks[instance.rank.index()];
        assert_eq!(instance.incarnation, r.fenced.next(), "incarnations are counted one by one");
        r.fenced = instance.incarnation;
        r.capture = None;
        r.slowed = None;
        r.confirmed.clear();
        self.overdue.remove(&instance.rank);
        for router in 0..self.routers {
            match &mut self.hung {
                Some((hung, since)) if *hung == RouterId(router) => {
                    since.get_or_insert(self.now);
                }
                _ => {
                    let event = said::fenced(RouterId(router), instance, 0);
                    self.after(0..5, Happening::Event(event));
                }
            }
        }
    }

    fn carry_out(&mut self, command: Command) {
        match command {
            Command::Send(ToPeer::Agent(node, ref message)) => {
                // One that goes is not looked at: it may be dead.
                if !matches!(message, ToAgent::Shutdown | ToAgent::Pmi { .. }) {
                    self.check_node(node, &command);
                }
                self.agent_gets(node, message);
            }
            Command::Send(ToPeer::Agents(ToAgent::Pmi { ref entries, barriers })) => {
                self.barriers_passed(entries, barriers)
            }
            Command::Send(ToPeer::Agents(_)) => panic!("it was not asked for: {command:?}"),
            Command::Send(ToPeer::Store(store, ref message)) => {
                self.check_store(store, &command);
                self.store_gets(store, message);
            }
            Command::Send(ToPeer::Stores(_)) => {}
            Command::Send(ToPeer::Router(_, ref message) | ToPeer::Routers(ref message)) => {
                self.router_gets(message)
            }
            Command::StartRole { node, role: Role { kind: RoleKind::Store, id, .. }, .. } => {
                self.check_node(node, &command);
                self.start_store(node, StoreId(id));
            }
            Command::StartRole { node, role, takes_over } => {
                self.check_node(node, &command);
                self.start_router(node, role, takes_over);
            }
            Command::Directory(directory) => {
                assert_eq!(directory.routers.len() as u32, self.routers);
                self.publish();
            }
            Command::Seek(_) => {}
            Command::StartDomain(_) => panic!("no domain joins these"),
            Command::Disconnect(node) => self.nodes[node.index()].refused = true,
            Command::TruncateStdin(_) | Command::SendStdin { .. } => {}
            Command::OpenOutput | Command::TakeOutput => {
                panic!("it was not asked for: {command:?}")
            }
            // What is heard twice is answered twice.
            Command::Answer { request: request @ 1.., answer } => {
                assert!(!matches!(answer, Answer::Proposal(_)), "it was not asked for");
                self.asked.remove(&request);
            }
            Command::Answer { answer: Answer::Proposal(found), .. } => {
                let moves = found.ranks.iter().filter_map(|r| Some((r.rank, r.to?))).collect();
                let request = None;
                let drains = found.left;
                let manner = Manner::default();
                let whole = drains.is_empty() && self.random.gen();
                let event = Event::Rearrange { request, moves, drains, whole, manner };
                self.after(0..500, Happening::Event(event));
            }
            Command::Answer { answer: Answer::Arrangement(found), .. } => {
                self.rearrange(found.moves.iter().map(|(rank, _, to)| (*rank, *to)).collect());
            }
            // Who asked what should move may be told that nothing can.
            Command::Answer { answer: Answer::Refused(_), .. } => {}
            Command::Answer { request: 0, answer: Answer::Accepted } => {}
            Command::Answer { .. } => panic!("it was not asked for: {command:?}"),
            Command::Show { node, instance, bytes, end, .. } => {
                self.show(Some(Written::Here(node, instance, end)), &bytes);
            }
            Command::Print { from, bytes, .. } => {
                let written = from.map(|(domain, end)| Written::Elsewhere(domain, end));
                self.show(written, &bytes);
            }
            Command::Line { text, .. } => self.show_line(&text),
            Command::SaveRouters => {
                for rank in Rank::first(self.ranks.len() as u32) {
                    assert_eq!(self.process(rank), None, "rank {rank} runs while it is saved");
                }
                let fails = self.random.gen_bool(0.2);
                for router in 0..self.routers {
                    let saved = if fails { Err("disk full".into()) } else { Ok(7) };
                    self.after(5..500, Happening::Event(said::saved(RouterId(router), saved)));
                }
            }
            Command::SaveJob => {
                self.goes_on_from(self.machine.saved());
                let fails = self.random.gen_bool(0.2);
                let saved = if fails { Err("disk full".into()) } else { Ok("/d".into()) };
                self.was_saved = !fails;
                self.after(5..500, Happening::Event(Event::JobSaved(saved)));
            }
            Command::Inject(Fault::KillRank(rank)) => self.after(0..5, Happening::KillRank(rank)),
            Command::Inject(fault) => panic!("it was not asked for: {fault}"),
            Command::Record(record) => self.note(&record),
            Command::End { code } => {
                self.ended = Some(code);
                assert!(
                    code == self.good_code() && self.cause.is_none()
                        || self.ends_from_outside()
                        || self.was_saved
                        || self.had_to_end
                        || self.must_end()
                        || self.two_lost
                        // Then all nodes that were asked for must be there.
                        || !self.machine.has_started(),
                    "ended with {code} although it could go on: {:?}, {:?}",
                    self.cause,
                    self.states()
                );
            }
        }
    }

    /// What the ranks on a node are said to have used.
    fn usage(&mut self, node: NodeId) -> NodeUsage {
        let processes = self.nodes[node.index()].processes.clone();
        let random = &mut self.random;
        let rank = |(rank, incarnation)| RankUsage {
            instance: RankInstance { rank, incarnation },
            used: ms(random.gen_range(0..100)),
            polled: Duration::ZERO,
            memory: 1 << 20,
        };
        NodeUsage {
            over: ms(100),
            kernel: "k".into(),
            processors: vec![node.0],
            limit: 1,
            busy: ms(100),
            ranks: processes.into_iter().map(rank).collect(),
        }
    }

    /// Another machine brings all ranks back from what was saved.
    fn goes_on_from(&self, saved: Saved) {
        let finished: Vec<bool> = saved.ranks.iter().map(|r| r.code.is_some()).collect();
        let mut machine = Machine::go_on(self.config.clone(), saved);
        let nodes = self.config.nodes + self.config.spares;
        let commands: Vec<Command> = (0..nodes)
            .flat_map(|node| machine.handle(Duration::ZERO, said::joined(NodeId(node))))
            .collect();
        for (r, finished) in (0..).zip(finished) {
            let starts = commands.iter().filter_map(said::start);
            let starts = starts.filter(|(_, instance, _)| instance.rank == Rank(r));
            let starts = starts.map(|(_, instance, from)| {
                (instance.incarnation, from.map(|from| (from.store, from.image)))
            });
            let known = &self.ranks[r as usize];
            let newest = known.counted.last().map(|(image, _)| (SAVED, *image));
            let wanted = (!finished).then_some((known.fenced, newest));
            assert_eq!(starts.collect::<Vec<_>>(), Vec::from_iter(wanted), "rank {r}");
        }
    }

    /// Whether the job cannot go on.
    fn must_end(&self) -> bool {
        let usable = self.nodes.iter().any(|n| !n.refused && !n.joining);
        !usable || self.a_rank_has_no_way_back() || self.a_router_is_late()
    }

    /// Whether a failure was simulated that no system could survive.
    fn a_rank_has_no_way_back(&self) -> bool {
        self.machine.rank_states().any(|(instance, _, state)| {
            let r = &self.ranks[instance.rank.index()];
            let no_image = r.counted.is_empty() && r.truncated_to.is_some();
            let no_log = r.unprotected || r.log_lost || no_image;
            no_log && matches!(state, RankStateName::Lost)
        })
    }

    /// Whether a fence has waited too long for a router: from the first fence that it did not
    /// confirm.
    fn a_router_is_late(&self) -> bool {
        let since = self.hung.and_then(|(_, since)| since);
        since.is_some_and(|since| self.now >= since + FENCE_TIMEOUT)
    }

    /// Whether another domain has ended the job, or a user.
    fn ends_from_outside(&self) -> bool {
        let cause = self.cause.as_deref().unwrap_or("");
        // Its controller was cut off from its nodes for as long.
        let waited = self.now >= Duration::from_secs(3600)
            && cause.starts_with("there was no line to domain ");
        waited || cause.starts_with("domain ") || cause.starts_with(STOPPED)
    }

    fn note(&mut self, record: &Record) {
        if let Record::JobEnded { cause, .. } = record {
            self.cause.clone_from(cause);
        }
        self.bring_gateway_back(record);
        self.say_line();
        match record {
            Record::Protected { rank } => {
                let r = &mut self.ranks[rank.index()];
                r.unprotected = false;
                // Images from before the hole are of no use.
                let newest = r.counted.pop();
                r.counted = newest.into_iter().collect();
            }
            Record::Recovered { .. } => self.recovered += 1,
            Record::Rearranged { cause, .. } => self.plans[usize::from(cause.is_some())] += 1,
            Record::JobEnded { cause: Some(cause), .. } if self.a_router_is_late() => {
                let Some((router, _)) = self.hung else { unreachable!() };
                let named = format!("router {router} has not answered for 60");
                assert!(cause.starts_with(&named) || cause == "no node is left", "{cause}");
            }
            Record::JobEnded { cause: Some(cause), .. } => {
                let lost = self.on_nodes.values().any(|router| router.generation > 0);
                let unheard = lost && cause.contains("just before the rank itself");
                let died = |(_, _, state): (RankInstance, NodeId, RankStateName)| {
                    state == RankStateName::Lost
                };
                let both =
                    cause.contains("after that rank had died and before it was brought back");
                let both = both && self.machine.rank_states().any(died);
                self.two_lost = unheard || both || lost && cause.contains(NEEDS_ITS_LOG);
            }
            Record::CheckpointFailed { rank, .. } => self.ranks[rank.index()].capture = None,
            Record::Checkpoint { rank, image, .. } if self.stores_on_nodes => {
                let incarnation = self.ranks[rank.index()].fenced;
                let instance = RankInstance { rank: *rank, incarnation };
                self.count_if(instance, *image, self.stores.len().clamp(1, 2));
                let counts = self.ranks[rank.index()].counted.last();
                assert!(counts.is_some_and(|(i, _)| i == image), "{record:?}: {counts:?}");
            }
            Record::Reconnected { .. } => self.reconnected = Some(self.now),
            Record::NodeLost { node, cause, .. } if cause.contains("do not reach each other") => {
                self.lose_stores_on(*node);
            }
            Record::NodeLost { node, .. } | Record::NodeLeft { node } => {
                let n = &self.nodes[node.index()];
                let lives = n.health == Health::Up && !n.joining;
                let back = self.reconnected.is_some_and(|at| self.now < at + ms(1900));
                let aside = self.cut.is_some_and(|since| self.now > since + ms(2600));
                assert!(!aside, "node {node} is declared dead by one that is cut off");
                assert!(!(lives && back), "node {node} is declared dead though it comes back");
                self.lose_stores_on(*node);
            }
            Record::RoleLost { role, .. } => {
                let store = role.strip_prefix("store ").and_then(|id| id.parse().ok());
                if let Some(store) = store {
                    self.store_is_lost(store);
                }
            }
            Record::ImagesOverdue { ranks, .. } => {
                let again = ranks.iter().find(|rank| !self.overdue.insert(**rank));
                assert_eq!(again, None, "it was told of already");
            }
            Record::ImagesAgain { ranks } => {
                let other = ranks.iter().find(|rank| !self.overdue.remove(rank));
                assert_eq!(other, None, "it was not told of");
            }
            Record::RankFinished { rank, .. } => {
                self.overdue.remove(rank);
            }
            _ => {}
        }
        if std::env::var_os("EYRIE_TRACE_SCHEDULE").is_some() {
            let domain = self.config.domains.as_ref().map_or("", |of| &of.own().name);
            println!("{:?} {domain} {record:?}", self.now);
        }
        // Every line for people can be made.
        let _ = record.line(&[]);
    }

    fn start(&mut self, node: NodeId, instance: RankInstance, from: Option<Source>) {
        let RankInstance { rank, incarnation } = instance;
        let r = &mut self.ranks[rank.index()];
        assert_eq!(incarnation, r.fenced, "an older incarnation is started");
        assert!(r.started.insert(incarnation), "{instance:?} is started twice");
        let whole = !r.unprotected && !r.log_lost;
        assert!(whole || incarnation == Incarnation(1), "the log of rank {rank} has a hole");
        let alive = from.is_none_or(|from| self.stores.contains(&from.store));
        match from {
            None => assert_eq!(r.truncated_to, None, "the log does not reach back to the start"),
            Some(Source { image, store }) => {
                assert!(r.counted.iter().any(|(i, _)| *i == image), "image {image} does not count");
                let there = r.stored.contains(&(store, image));
                assert!(there || !alive, "store {store} has no image {image}");
            }
        }
        if !alive || from.is_some_and(|from| r.damaged.contains(&(from.store, from.image))) {
            // What is damaged is found by the store, or by the process that comes of it.
            let (fault, reason) = match (alive, self.random.gen()) {
                (false, _) => (StartFault::Attempt, "nothing listens"),
                (true, true) => (StartFault::Image, "damaged"),
                (true, false) => (StartFault::Killed(libc::SIGABRT), "damaged"),
            };
            let reason = reason.to_string();
            let failed = said::rank(instance, RankReport::StartFailed { reason, fault });
            self.nodes[node.index()].processes.insert(rank, incarnation);
            return self.after(5..100, Happening::FromNode(node, failed));
        }
        if self.nodes[node.index()].health == Health::Dead {
            return;
        }
        self.nodes[node.index()].processes.insert(rank, incarnation);
        self.ranks[rank.index()].restoring = from.map(|_| incarnation);
        let started = said::rank(instance, RankReport::Started { fetched: ms(1), restored: ms(1) });
        self.after(1..50, Happening::FromNode(node, started));
        // Agents and routers speak over different connections: any order.
        self.after(30..60, Happening::Event(said::connected(instance)));
        self.after(
            51..70,
            Happening::FromNode(node, said::rank(instance, RankReport::ProviderLoaded)),
        );
        if incarnation > Incarnation(1) {
            self.after(61..400, Happening::Event(said::replayed(instance, 1)));
        }
        self.begin_printing(instance, from);
        self.go_on(instance, node);
    }

    /// The rank computes to its end.
    fn work(&mut self, instance: RankInstance) {
        let long = if self.config.domains.is_none() { 1_000_000 } else { 100_000 };
        let is_stubborn = self.stubborn == Some(instance.rank);
        let took = if is_stubborn { long..long * 11 / 10 } else { 500..20_000 };
        self.after(took, Happening::WorkDone(instance));
    }

    fn capture(&mut self, node: NodeId, instance: RankInstance, image: ImageId, store: StoreId) {
        let r = &mut self.ranks[instance.rank.index()];
        assert_eq!(r.capture, None, "two checkpoints of one rank at a time");
        assert_eq!(instance.incarnation, r.fenced);
        let state = self.machine.ranks[instance.rank].state();
        assert!(matches!(state, RankStateName::Running | RankStateName::Replaying), "{state:?}");
        let stores = BTreeSet::new();
        let checked = false;
        r.capture = Some(SimCapture { instance, image, stores, checked });
        r.adopted_before = r.adopted;
        let output = self.printed_in(instance.rank, image);
        if self.stubborn == Some(instance.rank) {
            let reason = "it is stubborn".to_string();
            let passing = true;
            let refused = RankReport::CaptureFailed { image, reason, passing };
            return self.refused(said::rank(instance, refused), node, instance, image);
        }
        match self.random.gen_range(0..10) {
            // No answer ever comes.
            0 => {}
            1 => {
                let reason = "a foreign socket".to_string();
                let event = said::rank(
                    instance,
                    RankReport::CaptureFailed { image, reason, passing: false },
                );
                self.refused(event, node, instance, image);
            }
            n => {
                let pause = ms(2);
                self.after(
                    1..20,
                    Happening::FromNode(
                        node,
                        said::rank(instance, RankReport::Captured { image, pause }),
                    ),
                );
                self.after(1..20, Happening::Event(said::begun(instance, image)));
                if n == 2 {
                    let reason = "disk full".to_string();
                    let event = said::rank(
                        instance,
                        RankReport::CaptureFailed { image, reason, passing: false },
                    );
                    return self.refused(event, node, instance, image);
                }
                self.after(20..800, Happening::Uploaded(store, instance, image));
                // The agent hears of it after the controller, looks for the files, and may die over
                // it.
                let reason = "a file is gone".to_string();
                let checked = match self.random.gen_range(0..8) {
                    0 => said::rank(instance, RankReport::ImageUnusable { image, reason }),
                    _ => said::rank(instance, RankReport::ImageUsable { image, output }),
                };
                self.after(800..900, Happening::FromNode(node, checked));
                if self.random.gen_bool(0.2) {
                    let reason = "a log was turned over".to_string();
                    let wanted = said::rank(instance, RankReport::ImageWanted { reason });
                    self.after(900..3000, Happening::FromNode(node, wanted));
                }
            }
        }
    }

    fn refused(&mut self, event: Event, node: NodeId, instance: RankInstance, image: ImageId) {
        let r = &mut self.ranks[instance.rank.index()];
        if r.capture.as_ref().is_some_and(|c| c.is(instance, image)) {
            r.capture = None;
        }
        // The machine must not ask again before it has heard of this.
        self.after(0..1, Happening::FromNode(node, event));
    }
}

#[test]
fn jobs_survive_random_failures() {
    let schedules = std::env::var("EYRIE_SCHEDULES").ok().and_then(|n| n.parse().ok());
    let schedules = schedules.unwrap_or(SCHEDULES);
    let first = std::env::var("EYRIE_SEED").ok().and_then(|n| n.parse().ok()).unwrap_or(0);
    println!("seeds {first} to {}", first + schedules - 1);
    let mut done = 0;
    let mut ended = 0;
    let mut recoveries = 0;
    let mut copies = 0;
    let mut plans = [0; 2];
    for seed in first..first + schedules {
        let run = std::panic::catch_unwind(|| {
            let mut cluster = Cluster::new(seed, false);
            let (code, recovered) = cluster.run();
            (code, recovered, cluster.copied, cluster.plans)
        });
        let Ok((code, recovered, copied, of_job)) = run else {
            panic!("schedule {seed} failed: EYRIE_SEED={seed} EYRIE_SCHEDULES=1 repeats it");
        };
        recoveries += recovered;
        copies += copied;
        plans.iter_mut().zip(of_job).for_each(|(sum, of_job)| *sum += of_job);
        match code {
            Some(0 | SAVED_CODE) => done += 1,
            _ => ended += 1,
        }
    }
    println!(
        "{done} jobs done, {ended} ended for good reason, {recoveries} recoveries, {copies} \
         copies, {} plans of moves carried out and {} turned back",
        plans[0], plans[1]
    );
    assert!(schedules < 1000 || (done > schedules * 7 / 10 && recoveries > schedules));
    assert!(schedules < 1000 || plans.iter().all(|plans| plans * 250 > schedules));
}

#[test]
fn a_journal_gives_the_same_commands() {
    for seed in 0..300 {
        let mut cluster = Cluster::new(seed, true);
        cluster.run();
        let (journal, given) = cluster.journal.take().unwrap();
        let mut machine = Cluster::machine(&cluster.config, seed);
        let again = journal.iter().flat_map(|bytes| {
            let (at, event) = postcard::from_bytes(bytes).unwrap();
            machine.handle(at, event)
        });
        assert_eq!(again.collect::<Vec<_>>(), given, "schedule {seed}");
    }
}

/// Before every event or before few of them: another machine goes on from the state of the last.
#[test]
fn a_machine_goes_on_from_a_snapshot_as_if_nothing_had_been() {
    for seed in 0..600 {
        let mut cluster = Cluster::new(seed, true);
        cluster.run();
        let (journal, given) = cluster.journal.take().unwrap();
        let mut machine = Cluster::machine(&cluster.config, seed);
        let mut again = Vec::new();
        let every = 1 + seed as usize % 50;
        for (n, bytes) in journal.iter().enumerate() {
            if n % every == 0 {
                let snapshot = machine.snapshot().unwrap();
                machine = Cluster::machine(&cluster.config, seed);
                machine.restore(&snapshot).unwrap();
            }
            let (at, event) = postcard::from_bytes(bytes).unwrap();
            again.extend(machine.handle(at, event));
        }
        // Users who ask for checkpoints wait for the controller that they have asked.
        let of_one =
            |c: &Command| matches!(c, Command::Answer { answer: Answer::Checkpoints(_), .. });
        let given: Vec<Command> = given.into_iter().filter(|c| !of_one(c)).collect();
        again.retain(|c| !of_one(c));
        let first = again.iter().zip(&given).find(|(a, b)| a != b);
        assert!(first.is_none(), "schedule {seed}: {first:?}");
        assert_eq!(again.len(), given.len(), "schedule {seed}");
    }
}

#[test]
fn a_router_that_never_answers_ends_the_job_with_its_name() {
    let mut late = 0;
    for seed in 0..2_000 {
        let mut cluster = Cluster::new(seed, false);
        let (code, _) = cluster.run();
        if cluster.a_router_is_late() {
            assert_eq!(code, Some(1), "schedule {seed}");
            late += 1;
        }
    }
    assert!(late > 10, "{late} jobs had a router that did not answer");
}

/// For changes that must not change what the machine does: writes two hashes of the commands of
/// each schedule to the file that EYRIE_COMMANDS names, of all in order, and of those of each event
/// in any order. Run it before the change and after it, and compare the files.
#[test]
fn commands_of_schedules_are_recorded_for_comparison() {
    use std::hash::{DefaultHasher, Hash, Hasher};
    use std::io::Write;
    let Some(path) = std::env::var_os("EYRIE_COMMANDS") else { return };
    let mut file = std::fs::File::create(path).unwrap();
    let schedules = std::env::var("EYRIE_SCHEDULES").ok().and_then(|n| n.parse().ok());
    for seed in 0..schedules.unwrap_or(SCHEDULES) {
        let mut cluster = Cluster::new(seed, true);
        cluster.run();
        let (journal, _) = cluster.journal.take().unwrap();
        let mut machine = Machine::new(cluster.config.clone());
        let [mut in_order, mut in_any] = [(); 2].map(|()| DefaultHasher::new());
        for bytes in journal {
            let (at, event) = postcard::from_bytes(&bytes).unwrap();
            let commands = machine.handle(at, event);
            let mut commands: Vec<String> = commands.iter().map(|c| format!("{c:?}")).collect();
            commands.hash(&mut in_order);
            commands.sort();
            commands.hash(&mut in_any);
        }
        let (in_order, in_any) = (in_order.finish(), in_any.finish());
        writeln!(file, "{seed} {in_order:x} {in_any:x}").unwrap();
    }
}
