//! Routers that are lost with all that they hold: an empty router takes over, with what its ranks
//! have and what their senders keep.

use super::*;
use eyrie_wire::data::{Received, Shown};

/// The state of a world in which routers may be lost.
pub struct Loss {
    bounds: Bounds,
    most: u64,
    /// Senders ask for acknowledgements as if they were about to end.
    pub flushes: bool,
    /// The last message that each rank has ever seen from each source.
    seen: BTreeMap<(Rank, Rank), u64>,
    /// Ranks some of whose messages only their primary router keeps, now and ever.
    exposed: BTreeSet<Rank>,
    ever_exposed: BTreeSet<Rank>,
    /// Ranks whose primary router was lost and that have no image since: whether they were adopted.
    adrift: BTreeMap<Rank, bool>,
}

impl Loss {
    /// A message of `source` has been acknowledged.
    pub fn check_received(&self, source: Rank, m: &Message) {
        let seen = self.seen.get(&(m.destination, source)).copied().unwrap_or(0);
        let safe = seen >= m.ssn || self.ever_exposed.contains(&m.destination);
        assert!(safe, "acknowledged and not received: {m:?}");
    }

    pub fn shown(&mut self, rank: Rank, source: Rank, ssn: u64) {
        let last = self.seen.entry((rank, source)).or_default();
        *last = ssn.max(*last);
    }

    /// Handles an event that only these routers send.
    pub fn handle(&mut self, event: &RouterEvent) -> bool {
        match event {
            RouterEvent::Adopted { instance, .. } => {
                let was = self.adrift.insert(instance.rank, true);
                assert_eq!(was, Some(false), "rank {} needs no adoption", instance.rank);
            }
            RouterEvent::Exposed { rank } => {
                assert!(self.exposed.insert(*rank), "exposed twice");
                self.ever_exposed.insert(*rank);
            }
            RouterEvent::Covered { rank } => assert!(self.exposed.remove(rank), "not exposed"),
            _ => return false,
        }
        true
    }
}

impl Process {
    /// Whether it has received again all that the rank ever received, and observed all again.
    fn is_live(&self) -> bool {
        let Model { rsn, observed, clock, .. } = self.model;
        let again = |part: &ObservedPart| part.end() > observed && part.clock >= clock;
        self.has_reported && rsn >= self.received_before && !self.observed_script.iter().any(again)
    }
}

/// A rank comes from another domain with all that it has received, and the router that is to serve
/// it is lost before it has connected, with nothing that the rank needs.
fn a_rank_that_comes_needs_nothing_of_a_router_that_is_lost() {
    let bounds = Bounds { memory: 64 << 20, disk: 1 << 30 };
    let router = || Protocol::new(vec![false, true], bounds, MemoryStore::default());
    for is_told in [false, true] {
        let mut said = Said { room: 1000, ..Said::default() };
        let mut router = router().keeping_until_received(u64::MAX).taking_over();
        let comes = instance(Rank(1), 5);
        router.command(RouterCommand::Fence(comes), &mut said);
        if is_told {
            router.command(RouterCommand::Serve(vec![Rank(1)]), &mut said);
        }
        let determinants = Vec::new();
        let observed = Vec::new();
        let recover = RouterCommand::Recover { instance: comes, determinants, observed };
        router.command(recover, &mut said);
        router.connected(1, comes, StreamKind::Delivery, false, &mut said);
        say(&mut router, &mut said, 1, &Header::Received(Received { rsn: 7 }));
        let resume = Header::Resume(Resume { rsn: 7, clock: 90 });
        assert_eq!(say(&mut router, &mut said, 1, &resume), is_told);
    }
}

impl World {
    /// Lets routers be lost from now on.
    pub fn may_lose_routers(&mut self, bounds: Bounds) {
        let most = 1 << self.random.gen_range(9..20);
        let flushes = self.random.gen_bool(0.3);
        self.loss = Some(Loss {
            bounds,
            most,
            flushes,
            seen: BTreeMap::new(),
            exposed: BTreeSet::new(),
            ever_exposed: BTreeSet::new(),
            adrift: BTreeMap::new(),
        });
        for k in 0..self.routers.len() {
            self.routers[k] = self.empty_router(k);
        }
    }

    fn empty_router(&self, k: usize) -> Protocol<MemoryStore> {
        let loss = self.loss.as_ref().expect("routers may be lost");
        let is_primary =
            (0..self.images.len()).map(|r| self.primary(Rank(r as u32)) == k).collect();
        let store = MemoryStore::new(self.disk.clone());
        Protocol::new(is_primary, loss.bounds, store).keeping_until_received(loss.most)
    }

    /// Loses a router, unless messages would be lost for good; an empty one takes over.
    pub fn lose_router(&mut self) {
        let Some(loss) = &self.loss else { return };
        let k = self.random.gen_range(0..self.routers.len());
        let served: Vec<usize> =
            (0..self.processes.len()).filter(|p| self.primary(Rank(*p as u32)) == k).collect();
        if !served
            .iter()
            .all(|p| self.processes[*p].is_live() && !loss.exposed.contains(&(Rank(*p as u32))))
        {
            return;
        }
        let router = self.empty_router(k).beginning_with(&self.incarnations).taking_over();
        self.routers[k] = router;
        let room = self.said[k].room;
        self.said[k] = Said { room, ..Said::default() };
        for p in 0..self.processes.len() {
            let process = &self.processes[p];
            let delivery = process.delivery.filter(|_| served.contains(&p));
            for conn in [delivery, process.links[k].conn].into_iter().flatten() {
                self.drop_conn(p, k, conn);
            }
            let model = &mut self.processes[p].model;
            let Model { clock, rsn, .. } = *model;
            if model.unstored.back().is_none_or(|d| d.clock < clock) {
                model.unstored.push_back(Determinant { clock, rsn });
            }
        }
        let Some(loss) = &mut self.loss else { return };
        for p in served {
            let rank = Rank(p as u32);
            let model = &self.processes[p].model;
            loss.adrift.insert(rank, false);
            // Messages that no rank has seen may come in another order.
            self.delivered.retain(|(r, rsn), _| *r != rank || *rsn <= model.rsn);
            for (source, sent) in (0..).zip(&model.shown) {
                self.came.insert((rank, Rank(source)), sent.messages);
            }
        }
    }

    /// Whether an image that is taken now is the first since the rank's primary router was lost;
    /// `None`: it must not count.
    pub fn ends_adrift(&mut self, rank: Rank) -> Option<bool> {
        let Some(loss) = &mut self.loss else { return Some(false) };
        match loss.adrift.get(&rank) {
            Some(false) => None,
            Some(true) => loss.adrift.remove(&rank),
            None => Some(false),
        }
    }

    /// Whether a rank can come back when it dies now.
    pub fn may_die(&self, rank: Rank) -> bool {
        let adrift = |loss: &Loss| loss.adrift.contains_key(&rank);
        !self.loss.as_ref().is_some_and(adrift) && self.routers.iter().all(|r| r.has_heard(rank))
    }

    /// Sends what goes before the frame that resumes a delivery stream.
    pub fn send_adoption(&mut self, p: usize, k: usize, conn: ConnId) {
        let process = &self.processes[p];
        if self.loss.is_none() || !process.is_live() {
            return;
        }
        let rsn = process.model.rsn;
        let table = (0..).map(Rank).zip(process.model.shown.clone());
        for (source, sent) in table.filter(|(_, sent)| sent.messages > 0).collect::<Vec<_>>() {
            self.put_on_wire(k, conn, &Header::Shown(Shown { source, sent }), &[]);
        }
        self.put_on_wire(k, conn, &Header::Received(Received { rsn }), &[]);
    }

    /// Reports to the primary router, now and then, what was received.
    pub fn send_received(&mut self, p: usize, now: bool) {
        if self.loss.is_none() || !now && self.random.gen_bool(0.6) {
            return;
        }
        let process = &self.processes[p];
        let k = self.primary(Rank(p as u32));
        let conn = process.delivery.expect("connected");
        let rsn = process.model.rsn;
        self.put_on_wire(k, conn, &Header::Received(Received { rsn }), &[]);
        if self.random.gen_bool(0.3) && self.processes[p].links[k].ready {
            self.send_determinants(p, k);
        }
    }

    /// Sends a router the determinants that it does not have.
    pub fn send_determinants(&mut self, p: usize, k: usize) {
        if self.loss.is_none() {
            return;
        }
        let observed = self.send_observed(p, k);
        let Process { model, links, .. } = &mut self.processes[p];
        let Some(conn) = links[k].conn else { return };
        links[k].unacknowledged.push_back(false);
        let from = links[k].determinants_sent;
        let list: Vec<Determinant> =
            model.unstored.iter().filter(|d| d.clock > from).copied().collect();
        links[k].determinants_sent = list.last().map_or(from, |d| d.clock);
        let mut bytes = Vec::new();
        let observed = observed.as_ref().map(ObservedPart::borrowed);
        put(&mut bytes, &Header::Determinants, list.into_iter(), observed, &[]);
        self.wires.entry((k, conn)).or_default().push_back(bytes);
    }

    /// A router holds determinants up to this clock, and observations up to this byte.
    pub fn stored(&mut self, p: usize, k: usize, clock: u64, observed: u64) {
        if self.loss.is_none() || self.primary(Rank(p as u32)) == k {
            let model = &mut self.processes[p].model;
            model.unstored.retain(|d| d.clock > clock);
            model.unstored_observed.retain(|part| part.end() > observed);
        }
    }
}

// Single rules, each by itself.

/// A router that has taken over, two ranks, and a connection on which rank 0 sends.
fn successor() -> (Protocol<MemoryStore>, Said) {
    let (router, mut said) = one_router();
    let mut router = router.keeping_until_received(1 << 20).taking_over();
    router.connected(1, instance(Rank(0), 1), StreamKind::Send, true, &mut said);
    (router, said)
}

/// Rank 1 connects and says what it has: `rsn` messages, all of rank 0.
fn resume(router: &mut Protocol<MemoryStore>, said: &mut Said, incarnation: u32, rsn: u64) -> bool {
    let conn = 10 + rsn;
    router.connected(conn, instance(Rank(1), incarnation), StreamKind::Delivery, true, said);
    say(router, said, conn, &Header::Shown(Shown { source: Rank(0), sent: sent(rsn) }));
    say(router, said, conn, &Header::Received(Received { rsn }));
    say(router, said, conn, &Header::Resume(Resume { rsn, clock: 9 }))
}

fn acknowledged(said: &Said) -> u64 {
    let mut acks = said.frames[&1].iter().filter_map(|(bytes, _)| {
        match Frame::parse(bytes).unwrap().unwrap().header {
            Header::Ack(ack) => Some(ack.frames),
            _ => None,
        }
    });
    acks.next_back().unwrap_or(0)
}

fn a_log_goes_on_behind_what_its_rank_has() {
    let (mut router, mut said) = successor();
    for ssn in 2..=5 {
        assert!(say(&mut router, &mut said, 1, &message(ssn, 5, ssn)));
    }
    assert!(resume(&mut router, &mut said, 1, 3));
    let adopted = RouterEvent::Adopted { instance: instance(Rank(1), 1), rsn: 3 };
    assert_eq!(said.events.iter().filter(|e| **e == adopted).count(), 1);
    assert_eq!((router.kept.log(Rank(1)).floor(), router.kept.log(Rank(1)).newest()), (3, 5));
    assert_eq!(router.kept.log(Rank(1)).last_ssn(Rank(0)), 5);
    assert_eq!(traffic(&mut router, &mut said), [(Rank(0), Rank(1), sent(5))]);
    say(&mut router, &mut said, 1, &Header::Determinants);
    assert_eq!(acknowledged(&said), 2, "two were received before");
    // On another connection it goes on in the log.
    assert!(resume(&mut router, &mut said, 1, 4));
    assert_eq!(said.events.iter().filter(|e| matches!(e, RouterEvent::Adopted { .. })).count(), 1);
    assert_eq!(router.kept.log(Rank(1)).newest(), 5);
}

fn a_dead_rank_is_not_adopted() {
    let (mut router, mut said) = successor();
    router.command(RouterCommand::Fence(instance(Rank(1), 2)), &mut said);
    assert_eq!(said.events[0], RouterEvent::Unheard { instance: instance(Rank(1), 2) });
    let recover = RouterCommand::Recover {
        instance: instance(Rank(1), 2),
        determinants: Vec::new(),
        observed: Vec::new(),
    };
    router.command(recover, &mut said);
    assert!(!resume(&mut router, &mut said, 2, 3), "its log began without what it needs");
}

fn a_partial_report_does_not_count() {
    let (mut router, mut said) = successor();
    say(&mut router, &mut said, 1, &Header::DeterminantsPart);
    assert!(!router.has_heard(Rank(0)), "the connection may break before the rest has come");
    say(&mut router, &mut said, 1, &message(1, 5, 1));
    assert!(router.has_heard(Rank(0)));
}

fn a_rank_that_re_executes_is_not_adopted() {
    let (mut router, mut said) = successor();
    router.connected(2, instance(Rank(1), 1), StreamKind::Delivery, true, &mut said);
    assert!(!say(&mut router, &mut said, 2, &Header::Resume(Resume { rsn: 3, clock: 9 })));
}

fn a_lost_message_is_reported() {
    let fatal = |said: &Said| said.events.iter().any(|e| matches!(e, RouterEvent::Fatal { .. }));
    let (mut router, mut said) = successor();
    say(&mut router, &mut said, 1, &message(5, 5, 1));
    resume(&mut router, &mut said, 1, 3);
    assert!(fatal(&said), "message 4 is lost");
    let (mut router, mut said) = successor();
    resume(&mut router, &mut said, 1, 3);
    say(&mut router, &mut said, 1, &message(5, 5, 1));
    assert!(fatal(&said), "message 4 is lost");
}

fn a_message_is_acknowledged_when_it_was_received_or_its_rank_is_exposed() {
    let (router, mut said) = one_router();
    let mut router = router.keeping_until_received(1000);
    router.connected(1, instance(Rank(0), 1), StreamKind::Send, true, &mut said);
    router.connected(2, instance(Rank(1), 1), StreamKind::Delivery, true, &mut said);
    assert!(say(&mut router, &mut said, 2, &Header::Resume(Resume { rsn: 0, clock: 0 })));
    for ssn in 1..=3 {
        say(&mut router, &mut said, 1, &message(ssn, 5, ssn));
    }
    say(&mut router, &mut said, 1, &Header::Flush);
    assert_eq!(acknowledged(&said), 0);
    say(&mut router, &mut said, 2, &Header::Received(Received { rsn: 2 }));
    assert_eq!(acknowledged(&said), 2);
    assert!(!said.events.contains(&RouterEvent::Exposed { rank: Rank(1) }));
    router.tick(Duration::from_secs(2), &mut said);
    assert_eq!(acknowledged(&said), 4, "it has waited long enough");
    assert_eq!(said.events.pop(), Some(RouterEvent::Exposed { rank: Rank(1) }));
    say(&mut router, &mut said, 2, &Header::Received(Received { rsn: 3 }));
    assert_eq!(said.events.pop(), Some(RouterEvent::Covered { rank: Rank(1) }));
    // A sender keeps no more than its bound.
    for ssn in 4..40 {
        say(&mut router, &mut said, 1, &message(ssn, 5, ssn));
    }
    assert_eq!(said.events.pop(), Some(RouterEvent::Exposed { rank: Rank(1) }));
    assert!(!say(&mut router, &mut said, 2, &Header::Received(Received { rsn: 99 })));
}

pub fn single_rules() {
    a_rank_that_comes_needs_nothing_of_a_router_that_is_lost();
    a_log_goes_on_behind_what_its_rank_has();
    a_dead_rank_is_not_adopted();
    a_partial_report_does_not_count();
    a_rank_that_re_executes_is_not_adopted();
    a_lost_message_is_reported();
    a_message_is_acknowledged_when_it_was_received_or_its_rank_is_exposed();
}
