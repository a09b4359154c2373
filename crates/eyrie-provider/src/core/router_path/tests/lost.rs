//! Routers that are lost with all that they hold, alone or together with a rank on the same host.
//! An empty router replaces the lost one after some time. What the ranks compute must be the same.

use super::*;
use crate::core::error::RankError;
use crate::core::mutation;
use eyrie_wire::data::Header;
use eyrie_wire::{Incarnation, Rank};
use std::collections::BTreeSet;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicU64, Ordering};

/// How often a rank has got another primary router, in all runs of this process.
pub static MOVES: AtomicU64 = AtomicU64::new(0);

/// Where routers may be lost.
pub struct Loss {
    /// Bytes that a sender keeps for its receivers.
    most: u64,
    /// Each rank's host has a router, which is not the rank's primary router.
    beside: bool,
    /// When a lost router's successor can be reached.
    up_at: Vec<Duration>,
    /// Routers whose new address a rank has not heard of.
    changed: BTreeSet<(Rank, RouterId)>,
    /// Connections to lost routers of which no end comes.
    silent: BTreeSet<ConnId>,
    /// Ranks whose primary router holds messages that no other process has.
    exposed: BTreeSet<Rank>,
    /// Ranks whose primary router has been lost: whether they were adopted since.
    adrift: BTreeMap<Rank, bool>,
    /// Ranks that have another primary router, which does not know them yet.
    moving: BTreeSet<Rank>,
    lost: u64,
}

/// What the ranks have sent where routers may be lost: the hash of each message by source,
/// destination and number. It must always be the same.
#[derive(Clone, Default)]
pub struct Sent(Option<Rc<RefCell<Hashes>>>);

type Hashes = BTreeMap<(Rank, Rank, u64), u64>;

impl Sent {
    /// A frame has reached a router.
    pub fn note(&self, rank: Rank, frame: &Frame) {
        let Some(sent) = &self.0 else { return };
        let (destination, ssn, hash) = match frame.header {
            Header::Message(m) if m.place.is_none() => {
                (m.destination, m.ssn, data::content_hash(frame.payload))
            }
            Header::Repeat(r) if r.size <= data::MAX_INLINE as u64 => {
                (r.destination, r.ssn, r.hash)
            }
            _ => return,
        };
        let first = *sent.borrow_mut().entry((rank, destination, ssn)).or_insert(hash);
        assert_eq!(first, hash, "rank {rank} did not repeat itself: message {ssn}");
    }
}

impl Loss {
    /// Takes an event that only these routers send.
    pub fn hears(&mut self, _: usize, event: &RouterEvent) -> bool {
        match event {
            RouterEvent::Adopted { instance, .. } if self.moving.remove(&instance.rank) => {}
            RouterEvent::Adopted { instance, .. } => {
                let was = self.adrift.insert(instance.rank, true);
                assert_eq!(was, Some(false), "rank {} was not adrift", instance.rank);
            }
            RouterEvent::Exposed { rank } => assert!(self.exposed.insert(*rank), "told twice"),
            RouterEvent::Covered { rank } => assert!(self.exposed.remove(rank), "not exposed"),
            // Only together with its own host: see `lose_router`.
            RouterEvent::Unheard { .. } | RouterEvent::Heard { .. } => {}
            _ => return false,
        }
        true
    }
}

impl World {
    /// From now on routers may be lost.
    pub fn may_lose_routers(&mut self) {
        let routers = self.routers.len() as u32;
        let most = 1 << self.random.gen_range(12..22);
        let sent = Sent(Some(Rc::default()));
        // A single one is beside ranks whose primary router it is, as on a last host.
        let beside = self.random.gen_bool(0.5);
        for k in 0..routers {
            let with = |p: Protocol<MemoryStore>| p.keeping_until_received(most);
            self.routers[k as usize] =
                Router { sent: sent.clone(), ..Router::new(k, &self.primaries, with) };
        }
        self.loss = Some(Loss {
            most,
            beside,
            up_at: vec![Duration::ZERO; routers as usize],
            changed: BTreeSet::new(),
            silent: BTreeSet::new(),
            exposed: BTreeSet::new(),
            adrift: BTreeMap::new(),
            moving: BTreeSet::new(),
            lost: 0,
        });
    }

    pub fn tick_routers(&mut self) {
        if self.loss.is_some() {
            self.now += Duration::from_micros(100);
            for router in &mut self.routers {
                router.protocol.tick(self.now, &mut router.said);
            }
        }
    }

    pub fn is_silent(&self, conn: ConnId) -> bool {
        self.loss.as_ref().is_some_and(|loss| loss.silent.contains(&conn))
    }

    pub fn is_down(&self, router: RouterId) -> bool {
        self.loss.as_ref().is_some_and(|loss| loss.up_at[router.index()] > self.now)
    }

    pub fn is_beside(&self, router: RouterId, rank: Rank) -> bool {
        let beside = self.loss.as_ref().is_some_and(|loss| loss.beside);
        beside && router == RouterId((rank.0 + 1) % self.routers.len() as u32)
    }

    pub fn changed_routers(&mut self, rank: Rank) -> Vec<RouterId> {
        let now = self.now;
        let Some(loss) = &mut self.loss else { return Vec::new() };
        let up = |k: RouterId| loss.up_at[k.index()] <= now;
        let of_rank = loss.changed.iter().filter(|(r, k)| *r == rank && up(*k));
        let changed: Vec<RouterId> = of_rank.map(|(_, k)| *k).collect();
        loss.changed.retain(|(r, k)| *r != rank || !changed.contains(k));
        changed
    }

    /// The next incarnation of a rank is told where all are.
    pub fn forget_changes(&mut self, rank: Rank) {
        let now = self.now;
        if let Some(loss) = &mut self.loss {
            loss.changed.retain(|(r, k)| *r != rank || loss.up_at[k.index()] > now);
        }
    }

    pub fn is_adopted(&self, rank: usize) -> bool {
        let adrift = |loss: &Loss| loss.adrift.get(&Rank(rank as u32)).copied();
        self.loss.as_ref().and_then(adrift).unwrap_or(true)
    }

    /// Whether an image counts: after its primary router was lost only one that was taken when the
    /// new one knew the rank, which is `adopted`.
    pub fn may_count(&mut self, r: usize, adopted: bool) -> bool {
        let Some(loss) = &mut self.loss else { return true };
        if adopted {
            loss.adrift.remove(&Rank(r as u32));
        }
        adopted
    }

    /// A router is lost; another one takes over, later.
    fn lose(&mut self, k: usize, incarnations: &[Incarnation]) {
        let silent = self.random.gen_bool(0.3);
        let pause = Duration::from_millis(self.random.gen_range(0..200));
        let Some(loss) = &mut self.loss else { return };
        let with = |p: Protocol<MemoryStore>| {
            p.keeping_until_received(loss.most).beginning_with(incarnations).taking_over()
        };
        let sent = self.routers[k].sent.clone();
        let new = Router { sent, ..Router::new(k as u32, &self.primaries, with) };
        let old = std::mem::replace(&mut self.routers[k], new);
        if silent {
            loss.silent.extend(old.wires.keys());
        }
        loss.lost += 1;
        loss.up_at[k] = self.now + pause;
        for rank in 0..RANKS {
            loss.changed.insert((Rank(rank), RouterId(k as u32)));
            if self.primaries[rank as usize].index() == k {
                loss.adrift.insert(Rank(rank), false);
                loss.exposed.remove(&Rank(rank));
            }
        }
    }
}

impl RouterJob {
    /// Whether a rank can come back when it dies now.
    pub fn may_die(&self, r: usize) -> bool {
        let world = self.world();
        let Some(loss) = &world.loss else { return true };
        let heard = |router: &Router| router.protocol.has_heard(Rank(r as u32));
        !loss.adrift.contains_key(&Rank(r as u32)) && world.routers.iter().all(heard)
    }

    /// Loses a router, unless something would be lost for good.
    pub fn lose_router(&self, after: u32) {
        let routers = self.world().routers.len();
        let k = after as usize % routers;
        let primaries = self.world().primaries.clone();
        let served = || (0..RANKS as usize).filter(|r| primaries[*r].index() == k);
        let can = |r: usize| self.with(r, |p| p.rank.path.can_lose_its_router()) == Some(true);
        if !served().all(can) {
            return;
        }
        {
            let world = self.world();
            let Some(loss) = &world.loss else { return };
            if served().any(|r| loss.exposed.contains(&Rank(r as u32))) {
                return;
            }
        }
        for r in served() {
            self.images[r].borrow_mut().clear();
        }
        let incarnations = self.incarnations();
        self.world().lose(k, &incarnations);
        let beside = (0..RANKS)
            .filter(|r| primaries[*r as usize].index() != k)
            .find(|r| self.world().is_beside(RouterId(k as u32), Rank(*r)));
        if let Some(r) = beside.map(|r| r as usize) {
            let adrift = |loss: &Loss| loss.adrift.contains_key(&Rank(r as u32));
            let heard = |k: usize| self.world().routers[k].protocol.has_heard(Rank(r as u32));
            let others = (0..routers).filter(|other| *other != k).all(heard);
            let is_adrift = self.world().loss.as_ref().is_some_and(adrift);
            if others && !is_adrift && after % 3 != 0 {
                self.die(r);
                self.step(r);
            }
        }
    }

    /// A rank goes on from an image of this moment, and another router is its primary one from then
    /// on: nothing but the image goes there.
    pub fn move_rank(&self, r: usize) {
        let (rank, routers) = (Rank(r as u32), self.world().routers.len());
        let is_live = self.with(r, |p| p.rank.path.is_live()) == Some(true);
        let whole = |loss: &Loss| !loss.exposed.contains(&rank);
        let is_whole = self.world().loss.as_ref().is_some_and(whole);
        if routers == 1 || !is_live || !is_whole || !self.may_die(r) {
            return;
        }
        let before = self.images[r].borrow().len();
        self.take_image(r);
        if self.images[r].borrow().len() == before {
            return;
        }
        let image = self.images[r].borrow_mut().pop_back();
        self.images[r].replace(image.into_iter().collect());
        let old = {
            let mut world = self.world();
            let old = world.primaries[r];
            world.primaries[r] = RouterId((old.0 + 1) % routers as u32);
            let Some(loss) = &mut world.loss else { return };
            loss.moving.insert(rank);
            old
        };
        self.die(r);
        let mut world = self.world();
        let new = world.primaries[r];
        let Some(loss) = &mut world.loss else { return };
        for other in (0..RANKS).map(Rank) {
            loss.changed.extend([(other, old), (other, new)]);
        }
        MOVES.fetch_add(1, Ordering::Relaxed);
        let Router { protocol, said, .. } = &mut world.routers[old.index()];
        protocol.command(RouterCommand::Leave(vec![rank]), said);
        // What the old one alone had, the senders keep.
        world.hear();
        if let Some(loss) = &mut world.loss {
            loss.exposed.remove(&rank);
        }
    }

    pub fn routers_lost(&self) -> u64 {
        self.world().loss.as_ref().map_or(0, |loss| loss.lost)
    }
}

/// Two ranks that have found each other where routers may be lost.
fn pair_that_may_lose() -> (Shared, Vec<TestRank>) {
    pair_with(1, None)
}

/// The same with so many routers, which may be beside ranks.
fn pair_with(routers: u32, beside: Option<bool>) -> (Shared, Vec<TestRank>) {
    let mut world = World::new(SmallRng::seed_from_u64(1), routers, true, false);
    world.may_lose_routers();
    if let (Some(beside), Some(loss)) = (beside, &mut world.loss) {
        loss.beside = beside;
    }
    pair_in(world)
}

/// The same in this world.
fn pair_in(world: World) -> (Shared, Vec<TestRank>) {
    let world = Rc::new(RefCell::new(world));
    let rank = |rank| {
        let instance = RankInstance { rank, incarnation: Incarnation(1) };
        RankCore::new(RouterPath::new(TestHost::new(&world, instance), rank, RANKS))
    };
    let mut ranks: Vec<_> = Rank::first(RANKS).map(rank).collect();
    ranks.iter_mut().for_each(|r| r.path.attach().unwrap());
    (world, ranks)
}

/// Messages that were not received are sent again to the router that takes over.
fn a_message_that_a_lost_router_alone_had_logged_is_not_lost() {
    let (world, mut ranks) = pair_that_may_lose();
    let content = vec![7; 100_000];
    for tag in 0..3 {
        ranks[0].send(Rank(1), tagged(tag), &content).unwrap();
    }
    world.borrow_mut().pump();
    world.borrow_mut().lose(0, &[Incarnation(1), Incarnation(1)]);
    let received = receive_all(&mut ranks, 1, 3);
    assert!(received == (0..3).map(|tag| (tag, content.clone())).collect::<Vec<_>>());
}

/// The host of a gateway may be away for hours. Any other router is replaced sooner.
fn who_needs_a_gateway_waits_for_it_however_long_that_takes() {
    for is_gateway in [true, false] {
        let (world, mut ranks) = pair_with(2, None);
        let away = Duration::from_secs(10_000);
        {
            let mut world = world.borrow_mut();
            world.gateway = is_gateway.then_some(RouterId(1));
            world.lose(1, &[Incarnation(1), Incarnation(1)]);
            let up_at = world.now + away;
            if let Some(loss) = &mut world.loss {
                loss.up_at[1] = up_at;
            }
        }
        let sent = ranks[0].send(Rank(1), tagged(1), b"late");
        match (is_gateway, sent) {
            (true, Ok(())) => assert!(world.borrow().now >= away),
            (false, Err(RankError::OutOfReach { router: RouterId(1), .. })) => {}
            (_, sent) => panic!("gateway: {is_gateway}: {sent:?}"),
        }
    }
}

/// A successor knows when a rank spoke last with the lost router: nothing may be shown to the next
/// incarnation before that.
fn what_was_seen_before_the_loss_is_known_after_it() {
    let (world, mut ranks) = pair_that_may_lose();
    for _ in 0..10 {
        ranks[0].progress(Unread::Nothing, |_| {}).unwrap();
    }
    ranks[0].send(Rank(1), tagged(5), b"hello").unwrap();
    assert_eq!(receive_all(&mut ranks, 1, 1).len(), 1);
    let spoke = 10;
    // Nothing is kept, so nothing is sent again.
    for r in [1, 0] {
        ranks[r].path.flush().unwrap();
    }
    world.borrow_mut().lose(0, &[Incarnation(1), Incarnation(1)]);
    world.borrow_mut().now += Duration::from_secs(1);
    for _ in 0..2000 {
        ranks[0].progress(Unread::Nothing, |_| {}).unwrap();
    }
    let mut world = world.borrow_mut();
    world.pump();
    assert!(world.routers[0].protocol.has_heard(Rank(0)), "it has not connected");
    let Router { protocol, said, .. } = &mut world.routers[0];
    let instance = RankInstance { rank: Rank(0), incarnation: Incarnation(2) };
    protocol.command(RouterCommand::Fence(instance), said);
    let Some(RouterEvent::Fenced { determinants, .. }) = said.events.pop() else { panic!() };
    assert!(determinants.iter().any(|d| d.clock >= spoke), "{determinants:?}");
}

/// A rank has read the messages that it must receive again, and that only the lost router had,
/// before it goes on.
fn a_rank_that_re_executes_goes_on_without_its_router() {
    let (world, mut ranks) = pair_that_may_lose();
    let content = vec![7; 100_000];
    let expected: Vec<_> = (0..20).map(|tag| (tag, content.clone())).collect();
    for tag in 0..20 {
        ranks[0].send(Rank(1), tagged(tag), &content).unwrap();
    }
    assert!(receive_all(&mut ranks, 1, 20) == expected);
    // Nothing is kept, so nothing is sent again.
    for r in [1, 0] {
        ranks[r].path.flush().unwrap();
    }
    let instance = RankInstance { rank: Rank(1), incarnation: Incarnation(2) };
    world.borrow_mut().recover(instance);
    ranks[1] = RankCore::new(RouterPath::new(TestHost::new(&world, instance), Rank(1), RANKS));
    ranks[1].path.attach().unwrap();
    assert!(!ranks[1].path.is_live() && ranks[1].path.can_lose_its_router());
    world.borrow_mut().lose(0, &[Incarnation(1), Incarnation(2)]);
    assert!(receive_all(&mut ranks, 1, 20) == expected);
    world.borrow_mut().now += Duration::from_secs(1);
    ranks[0].send(Rank(1), tagged(20), b"more").unwrap();
    assert_eq!(receive_all(&mut ranks, 1, 1), [(20, b"more".to_vec())]);
    world.borrow_mut().pump();
    assert!(world.borrow().is_adopted(1) && world.borrow().replayed.contains(&instance));
}

/// A rank that has followed all determinants, but has something to observe again, needs no router
/// for that, and is not taken for one that does not re-execute: an image of it would not hold what
/// only the lost router had.
fn who_observes_again_re_executes() {
    let (world, mut ranks) = pair_that_may_lose();
    ranks[0].progress(Unread::Nothing, |_| {}).unwrap();
    let observed = ranks[0].path.host.observing.borrow_mut().observe(7, 1);
    ranks[0].send(Rank(1), tagged(1), &[observed]).unwrap();
    assert_eq!(receive_all(&mut ranks, 1, 1), [(1, vec![7])]);
    ranks[0].path.flush().unwrap();
    let instance = RankInstance { rank: Rank(0), incarnation: Incarnation(2) };
    world.borrow_mut().recover(instance);
    ranks[0] = RankCore::new(RouterPath::new(TestHost::new(&world, instance), Rank(0), RANKS));
    ranks[0].path.attach().unwrap();
    while ranks[0].path.follows() {
        ranks[0].progress(Unread::Nothing, |_| {}).unwrap();
    }
    assert!(!ranks[0].path.is_live() && ranks[0].path.can_lose_its_router());
    world.borrow_mut().lose(0, &[Incarnation(2), Incarnation(1)]);
    world.borrow_mut().now += Duration::from_secs(1);
    ranks[0].path.attach().unwrap();
    assert!(!world.borrow().is_adopted(0));
    assert_eq!(ranks[0].path.host.observing.borrow_mut().observe(8, 1), 7);
    ranks[0].progress(Unread::Nothing, |_| {}).unwrap();
    ranks[0].progress(Unread::Nothing, |_| {}).unwrap();
    world.borrow_mut().pump();
    assert!(world.borrow().is_adopted(0));
}

/// A rank that waits until what it has seen is safe is told so, also when an image of that moment
/// counts already: its primary router has truncated what it holds then.
fn what_an_image_holds_is_safe() {
    let (world, mut ranks) = pair_with(2, Some(true));
    ranks[1].send(Rank(0), tagged(1), b"seen").unwrap();
    assert_eq!(receive_all(&mut ranks, 0, 1).len(), 1);
    // To its own primary router, which hears of what it has seen, and answers later.
    ranks[0].send(Rank(0), tagged(2), b"to itself").unwrap();
    world.borrow_mut().pump();
    let clock = ranks[0].path.clock();
    let rsn = ranks[0].path.rsn();
    let observed = ranks[0].path.host.observed();
    for Router { protocol, said, .. } in &mut world.borrow_mut().routers {
        protocol.command(RouterCommand::Truncate { rank: Rank(0), clock, rsn, observed }, said);
    }
    // By the router beside it.
    ranks[0].send(Rank(1), tagged(3), b"later").unwrap();
    assert_eq!(receive_all(&mut ranks, 1, 1), [(3, b"later".to_vec())]);
}

/// A rank that is about to end waits for the receivers of all routers at once.
fn receivers_that_do_not_receive_are_waited_for_at_once() {
    let (world, mut ranks) = pair_with(2, Some(false));
    (0..RANKS).for_each(|to| ranks[0].send(Rank(to), tagged(1), b"hello").unwrap());
    let begun = world.borrow().now;
    ranks[0].path.flush().unwrap();
    let waited = world.borrow().now - begun;
    let one = Duration::from_secs(1);
    assert!(waited > one && waited < one * 3 / 2, "two routers, waited for {waited:?}");
}

/// What a sender keeps for a rank goes to the router that serves it by now, and comes in order.
fn what_waits_for_a_rank_goes_where_it_is_served() {
    let (world, mut ranks) = pair_with(2, Some(false));
    let content = vec![7; 100_000];
    for tag in 0..3 {
        ranks[0].send(Rank(1), tagged(tag), &content).unwrap();
    }
    {
        let world = &mut *world.borrow_mut();
        world.pump();
        let [old, new] = &mut world.routers[..] else { panic!() };
        let [old, new] = if world.primaries[1].0 == 0 { [old, new] } else { [new, old] };
        world.primaries[1] = RouterId(1 - world.primaries[1].0);
        new.protocol.command(RouterCommand::Serve(vec![Rank(1)]), &mut new.said);
        old.protocol.command(RouterCommand::Leave(vec![Rank(1)]), &mut old.said);
        let loss = world.loss.as_mut().unwrap();
        loss.moving.insert(Rank(1));
        for rank in [0, 1].map(Rank) {
            loss.changed.extend([0, 1].map(|k| (rank, RouterId(k))));
        }
    }
    ranks[0].send(Rank(1), tagged(3), &content).unwrap();
    let received = receive_all(&mut ranks, 1, 4);
    assert!(received == (0..4).map(|tag| (tag, content.clone())).collect::<Vec<_>>());
    ranks[0].path.flush().unwrap();
}

/// The line to another domain may be broken for long: a sender waits as long as its gateway lives.
#[test]
fn a_sender_waits_for_another_domain_as_long_as_its_gateway_lives() {
    let mut world = World::new(SmallRng::seed_from_u64(1), 2, true, false);
    world.may_lose_routers();
    world.loss.as_mut().unwrap().beside = false;
    world.routers[1].protocol = Router::new(1, &world.primaries, Protocol::as_gateway).protocol;
    let (world, mut ranks) = pair_in(world);
    ranks[0].send(Rank(1), tagged(1), b"hello").unwrap();
    // It is killed after so many steps, some of which are pauses of a millisecond, and must wait
    // until then.
    world.borrow_mut().dies_in = Some(2_000_000);
    let waited = catch_unwind(AssertUnwindSafe(|| ranks[0].path.flush()));
    assert!(waited.is_err(), "it has ended by {:?}", waited.map(|r| r.err()));
    assert!(world.borrow().now > Duration::from_secs(300));
}

fn single_rules() {
    what_waits_for_a_rank_goes_where_it_is_served();
    receivers_that_do_not_receive_are_waited_for_at_once();
    what_an_image_holds_is_safe();
    who_observes_again_re_executes();
    a_rank_that_re_executes_goes_on_without_its_router();
    a_message_that_a_lost_router_alone_had_logged_is_not_lost();
    who_needs_a_gateway_waits_for_it_however_long_that_takes();
    what_was_seen_before_the_loss_is_known_after_it();
}

#[test]
fn each_rule_holds_when_a_router_is_lost() {
    single_rules();
}

/// Each error of `mutation.rs` is found by a single rule or by some schedule.
#[test]
fn every_error_of_a_rank_is_found() {
    schedules::expect_panics();
    let fails = |seed| catch_unwind(|| compare(seed)).is_err();
    let mut missed = Vec::new();
    for mutation in mutation::OF_ROUTER_PATH {
        mutation::activate(Some(mutation));
        if catch_unwind(single_rules).is_ok() && !(1..6000).step_by(2).any(fails) {
            missed.push(mutation);
        }
        mutation::activate(None);
    }
    assert!(missed.is_empty(), "not caught: {missed:?}");
}
