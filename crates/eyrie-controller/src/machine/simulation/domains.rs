//! Simulated jobs of three domains: three machines, each with a cluster under its own random
//! failures, and gateways between them whose lines break, lose, double and reorder letters.
//! Controllers die and go on from a snapshot. All domains must end with the same code, and no
//! barrier may be passed before every rank of every domain has arrived at it. One of them shows
//! what all ranks print, whole and in order.

use super::*;
use eyrie_wire::domains::Domain;

/// Random schedules in one run of the tests; EYRIE_SCHEDULES asks for another number, as
/// `scripts/test.sh more_unit` does.
const SCHEDULES: u64 = 1_000;

/// What a user says who sees that the job has ended at another site.
const ENDED_SOMEWHERE: &str = "domain somewhere has ended";

/// A domain's users see, and tell the others, that another one has ended, when nothing of it
/// arrives for so long: in life, `eyrie run` sees the end of each domain's controller.
const SEEN_AFTER: Duration = Duration::from_secs(30);

/// Something that happens between two domains.
enum Between {
    Letter {
        from: usize,
        to: usize,
        letter: Letter,
    },
    /// The line between two gateways comes up, if they are still these.
    Up {
        a: usize,
        b: usize,
        gateways: [Role; 2],
    },
    /// It breaks by itself.
    Break {
        a: usize,
        b: usize,
    },
}

struct Sites {
    clusters: Vec<Cluster>,
    random: SmallRng,
    now: Duration,
    /// Lines that are up, and between which gateways.
    lines: BTreeMap<(usize, usize), [Role; 2]>,
    /// Lines that are about to come up.
    dialled: BTreeSet<(usize, usize)>,
    /// Until then a line cannot come up.
    broken: BTreeMap<(usize, usize), Duration>,
    /// When a gateway last told its controller of a line: it tells everything in order.
    told: BTreeMap<(usize, usize), Duration>,
    due: BTreeMap<(Duration, u64), Between>,
    made: u64,
    /// When each domain has ended.
    ended: BTreeMap<usize, Duration>,
    letters: u64,
    /// The last barrier of each domain that was looked at.
    checked: [u32; 3],
}

/// Three domains with one to five ranks each, in runs.
fn domains_of(random: &mut SmallRng) -> Vec<Domains> {
    let owners: Vec<usize> = {
        let more = random.gen_range(0..10);
        (0..3).chain((0..more).map(|_| random.gen_range(0..3))).collect()
    };
    let domain = |own: usize| {
        let ranks = owners.iter().enumerate().filter(|(_, owner)| **owner == own);
        let ranks = ranks.map(|(rank, _)| (Rank(rank as u32), Rank(rank as u32))).collect();
        Domain { name: format!("site-{own}"), ranks, gateway: format!("gw-{own}:7411") }
    };
    let all: Vec<Domain> = (0..3).map(domain).collect();
    let shows = DomainId(random.gen_range(0..3));
    let of = |own| {
        let keys = keys(own, 3);
        Domains { own: DomainId(own as u32), all: all.clone(), keys, shows }
    };
    (0..3).map(of).collect()
}

impl Sites {
    fn new(seed: u64, journaled: bool) -> Sites {
        let mut random = SmallRng::seed_from_u64(seed);
        let domains = domains_of(&mut random);
        let cluster = |domains: Domains| {
            let seed = seed * 3 + u64::from(domains.own.0);
            Cluster::within(seed, journaled, Some(domains))
        };
        let mut clusters: Vec<Cluster> = domains.into_iter().map(cluster).collect();
        // Seldom as much as windows and letters hold.
        let piece = if seed % 10 == 0 { 64 << 10 } else { 8 * random.gen_range(1..100) };
        for cluster in &mut clusters {
            cluster.printing.piece = piece;
            cluster.plan();
            for _ in 0..cluster.random.gen_range(0..3) {
                cluster.after(0..30_000, Happening::Resume);
            }
        }
        let mut sites = Sites {
            clusters,
            random,
            now: Duration::ZERO,
            lines: BTreeMap::new(),
            dialled: BTreeSet::new(),
            broken: BTreeMap::new(),
            told: BTreeMap::new(),
            due: BTreeMap::new(),
            made: 0,
            ended: BTreeMap::new(),
            letters: 0,
            checked: [0; 3],
        };
        sites.plan();
        sites
    }

    /// Lines break, and a user may end the job.
    fn plan(&mut self) {
        for (a, b) in pairs() {
            for _ in 0..self.random.gen_range(0..4) {
                self.after(0..40_000, Between::Break { a, b });
            }
        }
        if self.random.gen_bool(0.1) {
            let site = self.random.gen_range(0..3);
            let cause = STOPPED.into();
            let stop = Happening::Event(Event::Stop { code: 130, cause });
            self.clusters[site].after(0..30_000, stop);
        }
    }

    fn after(&mut self, delay_ms: std::ops::Range<u64>, between: Between) {
        let at = self.now + ms(self.random.gen_range(delay_ms));
        self.made += 1;
        self.due.insert((at, self.made), between);
    }

    /// The job to its end.
    fn run(&mut self) {
        while self.ended.len() < 3 {
            let lives = |site: &usize| !self.ended.contains_key(site);
            let next = |site: usize| self.clusters[site].next().map(|at| (at, site));
            let cluster = (0..3).filter(lives).filter_map(next).min();
            let between = self.due.keys().next().map(|(at, _)| *at);
            match (cluster, between) {
                (Some((at, site)), between) if between.is_none_or(|other| at <= other) => {
                    self.now = at.max(self.now);
                    self.clusters[site].step();
                    self.stepped(site);
                }
                (_, Some(at)) => {
                    self.now = at.max(self.now);
                    let (_, between) = self.due.pop_first().unwrap();
                    self.happen(between);
                }
                (_, None) => panic!("nothing will ever happen again"),
            }
            self.look_at_lines();
            self.tell_of_ends();
        }
    }

    /// A domain has done something.
    fn stepped(&mut self, site: usize) {
        for (to, letter) in std::mem::take(&mut self.clusters[site].to_domains) {
            let to = to.index();
            let pair = (site.min(to), site.max(to));
            if !self.lines.contains_key(&pair) {
                continue;
            }
            for _ in 0..[0, 1, 1, 1, 1, 1, 1, 1, 2, 2][self.random.gen_range(0..10)] {
                self.letters += 1;
                let letter = letter.clone();
                self.after(1..500, Between::Letter { from: site, to, letter });
            }
        }
        self.check_barriers(site);
        let cluster = &self.clusters[site];
        if cluster.ended.is_some() {
            self.ended.insert(site, self.now);
        }
    }

    /// What a domain has passed, all ranks have arrived at, and what they had put is known.
    fn check_barriers(&mut self, site: usize) {
        let cluster = &self.clusters[site];
        if std::mem::replace(&mut self.checked[site], cluster.passed) == cluster.passed {
            return;
        }
        for other in &self.clusters {
            for rank in &other.own {
                let arrived = other.arrived.get(rank).copied().unwrap_or(0);
                assert!(arrived >= cluster.passed, "site {site} has not waited for rank {rank}");
                for barrier in 1..=cluster.passed {
                    let value = cluster.known.get(&format!("key-{rank}-{barrier}"));
                    assert_eq!(value.as_deref(), Some(rank.to_string().as_str()), "site {site}");
                }
            }
        }
    }

    fn happen(&mut self, between: Between) {
        match between {
            Between::Letter { from, to, letter } => {
                let domain = DomainId(from as u32);
                self.tell(to, RouterEvent::FromDomain { domain, letter }, None);
            }
            Between::Break { a, b } => {
                let long = ms(self.random.gen_range(0..30_000));
                self.broken.insert((a, b), self.now + long);
                self.line_down(a, b);
            }
            Between::Up { a, b, gateways } => {
                self.dialled.remove(&(a, b));
                let is_broken = self.broken.get(&(a, b)).is_some_and(|until| self.now < *until);
                if self.gateways(a, b) != Some(gateways) || is_broken {
                    return;
                }
                self.lines.insert((a, b), gateways);
                self.tell_line(a, b, true);
                self.tell_line(b, a, true);
            }
        }
    }

    fn gateways(&self, a: usize, b: usize) -> Option<[Role; 2]> {
        let of = |site: usize| self.clusters[site].gateway().map(|(role, _)| role);
        Some([of(a)?, of(b)?])
    }

    /// A line is down: the gateways find that out sooner or later.
    fn line_down(&mut self, a: usize, b: usize) {
        if self.lines.remove(&(a, b)).is_some() {
            self.tell_line(a, b, false);
            self.tell_line(b, a, false);
        }
    }

    /// The gateway of a site tells its controller of the line to another one.
    fn tell_line(&mut self, site: usize, other: usize, up: bool) {
        let domain = DomainId(other as u32);
        let delay = ms(self.random.gen_range(0..if up { 100 } else { 3000 }));
        let told = self.told.entry((site, other)).or_default();
        *told = (self.now + delay).max(*told);
        let at = *told;
        self.tell(site, RouterEvent::Line { domain, up }, Some(at));
    }

    /// The gateway of a site, if there is one, tells its controller something, at once or then.
    fn tell(&mut self, site: usize, event: RouterEvent, at: Option<Duration>) {
        let cluster = &mut self.clusters[site];
        let Some((role, node)) = cluster.gateway() else { return };
        cluster.made += 1;
        let happening = Happening::FromNode(node, Event::From(FromPeer::Router(role, event)));
        cluster.queue.push(Due(at.unwrap_or(self.now), cluster.made, happening));
    }

    /// Lines between gateways that are there come up; those of gateways that are gone break.
    fn look_at_lines(&mut self) {
        for (a, b) in pairs() {
            let now = self.gateways(a, b);
            let up = self.lines.get(&(a, b)).copied();
            if up.is_some() && up != now {
                self.line_down(a, b);
            } else if let (None, Some(gateways)) = (up, now) {
                if self.dialled.insert((a, b)) {
                    self.after(10..1000, Between::Up { a, b, gateways });
                }
            }
        }
    }

    /// Who has ended a job by an error, and could not tell the others, is seen by users there.
    fn tell_of_ends(&mut self) {
        let seen = |(_, at): &(&usize, &Duration)| self.now > **at + SEEN_AFTER;
        let failed = |(site, _): &(&usize, &Duration)| self.clusters[**site].cause.is_some();
        let end = self.ended.iter().filter(seen).find(failed);
        let Some(code) = end.and_then(|(site, _)| self.clusters[*site].ended) else { return };
        for site in 0..3 {
            let cluster = &mut self.clusters[site];
            if cluster.ended.is_none() && !cluster.machine.has_ended() {
                let cause = ENDED_SOMEWHERE.into();
                cluster.now = self.now;
                cluster.handle(Event::Stop { code, cause });
                self.stepped(site);
            }
        }
    }

    /// What must be so in the end; whether the job has come to a good end.
    fn check_end(&self) -> bool {
        // What another domain, or a user, has told has that in front of it.
        let of_other = |cause: &str| {
            let told = cause.strip_prefix("domain ").and_then(|rest| rest.split_once(' '));
            told.is_some_and(|(name, _)| name.ends_with(':')) || cause == ENDED_SOMEWHERE
        };
        let of_own =
            |cluster: &&Cluster| cluster.cause.as_deref().is_some_and(|cause| !of_other(cause));
        let failed = self.clusters.iter().filter(of_own).count();
        let codes: Vec<Option<i32>> = self.clusters.iter().map(|cluster| cluster.ended).collect();
        let is_good = failed == 0;
        if is_good {
            self.check_output();
        }
        // A user who ends a job in the moment in which it ends may be too late for others; two
        // domains that fail at once may each have a reason of their own.
        let too_late = self.clusters.iter().any(|cluster| cluster.cause.is_none());
        if is_good || (failed == 1 && !too_late) {
            assert!(codes.iter().all(|code| *code == codes[0]), "{codes:?}: {:?}", self.causes());
        }
        if too_late {
            let all = self.clusters.iter().all(|cluster| cluster.machine.has_finished());
            assert!(all, "a domain has ended well, and another not: {:?}", self.causes());
        }
        is_good
    }

    /// All that ranks have printed is shown.
    fn check_output(&self) {
        let shows = |cluster: &&Cluster| {
            cluster.config.domains.as_ref().is_some_and(|domains| domains.shown_by().is_none())
        };
        let cluster = self.clusters.iter().find(shows).expect("one domain shows it");
        let words = &cluster.printing.words;
        assert!(cluster.printing.is_whole(cluster.config.ranks), "{words:?} were shown");
    }

    fn causes(&self) -> Vec<Option<&str>> {
        self.clusters.iter().map(|cluster| cluster.cause.as_deref()).collect()
    }
}

fn pairs() -> [(usize, usize); 3] {
    [(0, 1), (0, 2), (1, 2)]
}

#[test]
fn jobs_of_three_domains_survive_random_failures() {
    let schedules = std::env::var("EYRIE_SCHEDULES").ok().and_then(|n| n.parse().ok());
    let schedules = schedules.unwrap_or(SCHEDULES);
    let first = std::env::var("EYRIE_SEED").ok().and_then(|n| n.parse().ok()).unwrap_or(0);
    println!("seeds {first} to {}", first + schedules - 1);
    let mut good = 0;
    let mut recoveries = 0;
    let mut letters = 0;
    for seed in first..first + schedules {
        let run = std::panic::catch_unwind(|| {
            let mut sites = Sites::new(seed, false);
            sites.run();
            let recovered: u64 = sites.clusters.iter().map(|cluster| cluster.recovered).sum();
            (sites.check_end(), recovered, sites.letters)
        });
        let Ok((is_good, recovered, sent)) = run else {
            panic!("schedule {seed} failed: EYRIE_SEED={seed} EYRIE_SCHEDULES=1 repeats it");
        };
        good += u64::from(is_good);
        recoveries += recovered;
        letters += sent;
    }
    println!("{good} jobs came to a good end, {recoveries} recoveries, {letters} letters");
    assert!(schedules < 1000 || (good > schedules / 4 && recoveries > schedules));
}
