//! The time of one iteration: messages are fluid flows that share links max-min fairly (Bertsekas
//! and Gallager, Data Networks, 6.5.2), each after its latency. When a flow starts or ends, the
//! shares are solved again. Phases follow each other.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use eyrie_topology::load::far_along;
use eyrie_topology::{Lines, LinkId, LinkLoads, NetworkNode, RouteError, Run};
use rayon::prelude::*;

use crate::bottleneck::Bottlenecks;
use crate::cost::{CostModel, Sharing};
use crate::evaluate::{place, Counted, Evaluator};
use crate::traffic::{Phase, RankMessage};

/// A message under way.
#[derive(Clone, Copy)]
struct Flow {
    /// Range in the shared list of (dense) links.
    first: u32,
    hops: u32,
    weight: f64,
    start_s: f64,
    remaining: f64,
    rate: f64,
}

impl Flow {
    fn hops<'h>(&self, all: &'h [u32]) -> &'h [u32] {
        &all[self.first as usize..(self.first + self.hops) as usize]
    }

    /// Fixes its rate: the rest of its links is left for the others.
    fn takes(&self, hops: &[u32], links: &mut [Link]) {
        for &l in self.hops(hops) {
            let link = &mut links[l as usize];
            link.capacity = (link.capacity - self.rate).max(0.0);
            link.weight -= self.weight;
            link.flows -= 1;
        }
    }
}

/// Seconds of one iteration at this placement.
pub fn step_time(
    evaluator: &Evaluator,
    counted: &Counted,
    machine: &CostModel,
) -> Result<f64, RouteError> {
    let phases = &evaluator.traffic.phases;
    let times: Vec<f64> = (0..phases.len())
        .into_par_iter()
        .map(|phase| phase_time(evaluator, counted, phase, machine))
        .collect::<Result<_, _>>()?;
    // From 0 on: the sum of no numbers is -0.
    Ok(phases
        .iter()
        .zip(times)
        .fold(0.0, |sum, (phase, time)| sum + f64::from(phase.repeat) * time))
}

/// A lower bound of [`step_time`]: in every phase the bytes of the busiest link must pass it. It is
/// a little less, because events close together are handled as one.
pub fn least_step_time(evaluator: &Evaluator, counted: &Counted, machine: &CostModel) -> f64 {
    let seconds = |(phase, load): (&Phase, &LinkLoads)| {
        // Divided by the bandwidth factor and rounded up to whole bytes.
        let bytes = load.busiest(evaluator.network).bytes.saturating_sub(1);
        f64::from(phase.repeat) * bytes as f64 / machine.bandwidth
    };
    0.98 * evaluator.traffic.phases.iter().zip(&counted.loads).map(seconds).sum::<f64>()
}

/// Most links of all flows together: 2 GiB, and as much again for the rows that list the flows of
/// each link.
const MOST_HOPS: usize = 1 << 29;

fn check_hops(hops: usize) -> Result<(), RouteError> {
    if hops > MOST_HOPS {
        return Err(RouteError::TooLong { most: MOST_HOPS });
    }
    Ok(())
}

/// Seconds of one phase. Messages that share no link are timed alone, the others together.
fn phase_time(
    evaluator: &Evaluator,
    counted: &Counted,
    phase: usize,
    machine: &CostModel,
) -> Result<f64, RouteError> {
    let mut timed = Timed::new(evaluator, machine);
    let messages = &evaluator.traffic.phases[phase].messages;
    let lines =
        far_along(evaluator.network, messages.len(), |i| place(&messages[i], &counted.placement));
    let shared_s = match lines {
        None => flows_of_routes(evaluator, counted, phase, &mut timed)?.run(),
        Some(lines) => flows_of_runs(evaluator, lines, counted, phase, &mut timed)?.run_apart(),
    };
    Ok(timed.latest_s.max(shared_s))
}

/// The messages that are timed alone so far, and how the others start.
struct Timed<'a> {
    machine: &'a CostModel,
    /// Messages that each node has begun to send, where they start one after the other.
    sent: Vec<u32>,
    latest_s: f64,
}

/// How a message shares links with others.
struct Start {
    weight: f64,
    start_s: f64,
    bytes: f64,
}

impl<'a> Timed<'a> {
    fn new(evaluator: &Evaluator, machine: &'a CostModel) -> Self {
        let nodes = if machine.stagger > 0.0 { evaluator.network.nodes() } else { 0 };
        Timed { machine, sent: vec![0; nodes], latest_s: 0.0 }
    }

    /// Handles a message from this node over so many links. `None`: it stays on its node, where it
    /// takes no time, or is alone on all of them (`slowest` is their lowest bandwidth factor), so
    /// that its time is known.
    fn message(
        &mut self,
        m: &RankMessage,
        from: NetworkNode,
        hops: usize,
        alone: bool,
        slowest: impl Fn() -> f64,
    ) -> Option<Start> {
        if hops == 0 {
            return None;
        }
        let machine = self.machine;
        let mut start_s =
            machine.overhead_s * f64::from(m.count) + machine.hop_latency_s * hops as f64;
        if machine.stagger > 0.0 {
            let turn = &mut self.sent[from as usize];
            start_s += f64::from(*turn) * machine.stagger * m.bytes as f64 / machine.bandwidth;
            *turn += m.count;
        }
        let bytes = m.bytes as f64;
        if alone || m.bytes == 0 {
            let seconds = bytes / (machine.bandwidth * slowest());
            self.latest_s = self.latest_s.max(start_s + seconds);
            return None;
        }
        let weight = match machine.sharing {
            Sharing::Fair => f64::from(m.count),
            Sharing::Path => f64::from(m.count) / hops as f64,
        };
        Some(Start { weight, start_s, bytes })
    }
}

fn flows_of_routes(
    evaluator: &Evaluator,
    counted: &Counted,
    phase: usize,
    timed: &mut Timed,
) -> Result<Simulation, RouteError> {
    let network = evaluator.network;
    let loads = &counted.loads[phase];
    let bandwidth = timed.machine.bandwidth;
    let mut sim = Simulation::new(timed.machine.crowding);
    let mut dense = vec![NOT_DENSE; network.links()];
    let mut route: Vec<LinkId> = Vec::new();
    for m in &evaluator.traffic.phases[phase].messages {
        let placed = place(m, &counted.placement);
        route.clear();
        network.route(placed.from, placed.to, &mut route)?;
        let alone = route.iter().all(|&l| loads.messages[l as usize] == m.count);
        let slowest =
            || route.iter().map(|&l| network.bandwidth_factor(l)).fold(f64::MAX, f64::min);
        let Some(start) = timed.message(m, placed.from, route.len(), alone, slowest) else {
            continue;
        };
        for &link in &route {
            let dense = &mut dense[link as usize];
            if *dense == NOT_DENSE {
                *dense = sim.link(bandwidth * network.bandwidth_factor(link));
            }
        }
        sim.add(route.iter().map(|&link| dense[link as usize]), start);
        check_hops(sim.hops.len())?;
    }
    Ok(sim)
}

/// The same where routes are long: only links that can limit flows are considered.
fn flows_of_runs(
    evaluator: &Evaluator,
    lines: &dyn Lines,
    counted: &Counted,
    phase: usize,
    timed: &mut Timed,
) -> Result<Simulation, RouteError> {
    let network = evaluator.network;
    let loads = &counted.loads[phase];
    let mut carried = Vec::with_capacity(network.links() + 1);
    carried.push(0u64);
    for place in 0..network.links() as u32 {
        let here = loads.messages[lines.link_at(place) as usize];
        carried.push(carried[place as usize] + u64::from(here));
    }
    // Runs of the messages that share links, one after the other, and where those of each end.
    let mut runs: Vec<Run> = Vec::new();
    let mut starts: Vec<(usize, Start)> = Vec::new();
    for m in &evaluator.traffic.phases[phase].messages {
        let placed = place(m, &counted.placement);
        let first = runs.len();
        lines.runs(placed.from, placed.to, &mut runs)?;
        let hops: usize = runs[first..].iter().map(Run::len).sum();
        let on = |run: &Run| carried[run.end as usize] - carried[run.start as usize];
        let alone = runs[first..].iter().map(on).sum::<u64>() == hops as u64 * u64::from(m.count);
        match timed.message(m, placed.from, hops, alone, || 1.0) {
            Some(start) => starts.push((runs.len(), start)),
            None => runs.truncate(first),
        }
    }
    let bottlenecks = Bottlenecks::of(network.links(), &runs);
    check_hops(runs.iter().map(|run| bottlenecks.on(run).len()).sum())?;
    let mut sim = Simulation::new(timed.machine.crowding);
    for _ in 0..bottlenecks.count() {
        sim.link(timed.machine.bandwidth);
    }
    let mut first = 0;
    for (end, start) in starts {
        sim.add(runs[first..end].iter().flat_map(|run| bottlenecks.on(run)), start);
        first = end;
    }
    Ok(sim)
}

struct Simulation {
    flows: Vec<Flow>,
    /// Dense link numbers of all flows, one after another.
    hops: Vec<u32>,
    links: Vec<Link>,
    crowding: f64,
}

/// A link with its active flows and, while shares are solved, those without a rate yet.
#[derive(Clone, Copy)]
struct Link {
    capacity: f64,
    weight: f64,
    flows: u32,
}

impl Link {
    /// The share of a flow of weight 1 if this link is its bottleneck.
    fn share(&self) -> f64 {
        self.capacity / self.weight.max(1e-12)
    }
}

/// A candidate for the bottleneck: its share when it was last computed, and the link. Ties are
/// broken by link, so that results are repeatable.
#[derive(PartialEq)]
struct Bottleneck(f64, u32);

impl Eq for Bottleneck {}

impl Ord for Bottleneck {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0).then(self.1.cmp(&other.1))
    }
}

impl PartialOrd for Bottleneck {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// Which flows use each link (compressed rows), and what every solution of the shares reuses.
struct Rows {
    first: Vec<u32>,
    users: Vec<u32>,
    links: Vec<Link>,
    /// The share of every link of `links`, [`STALE`] where it must be computed again: most links
    /// are asked far more often than they change.
    shares: Vec<f64>,
    open: Vec<u32>,
    /// Flows in the order in which the last solution fixed them, the end of each of its rounds in
    /// that list, and each flow's round.
    fixed: Vec<u32>,
    ends: Vec<usize>,
    round_of: Vec<u32>,
    /// The number of first rounds of the last solution that the next one has, too: those before the
    /// first flow was fixed that has ended since. In these rounds the links of such a flow were not
    /// the tightest, and without the flow they are less tight.
    same: usize,
}

/// A share that must be computed again. Shares are never negative.
const STALE: f64 = -1.0;

impl Rows {
    /// Notes that flow `i` has ended.
    fn ended(&mut self, i: u32) {
        self.same = self.same.min(self.round_of[i as usize] as usize);
    }

    fn share(&mut self, l: u32) -> f64 {
        let share = &mut self.shares[l as usize];
        if *share == STALE {
            *share = self.links[l as usize].share();
        }
        *share
    }
}

const NOT_DENSE: u32 = u32::MAX;
/// The rate of a flow without a share yet.
const UNKNOWN: f64 = 0.0;
/// Rounds over all links before the rest is taken from a heap: most solutions have few different
/// shares.
const ROUNDS: usize = 24;

impl Simulation {
    fn new(crowding: f64) -> Self {
        Simulation { flows: Vec::new(), hops: Vec::new(), links: Vec::new(), crowding }
    }

    /// Adds a link; returns its dense number.
    fn link(&mut self, capacity: f64) -> u32 {
        self.links.push(Link { capacity, weight: 0.0, flows: 0 });
        self.links.len() as u32 - 1
    }

    /// Adds a flow over these (dense) links.
    fn add(&mut self, links: impl Iterator<Item = u32>, start: Start) {
        let first = self.hops.len();
        self.hops.extend(links);
        let hops = (self.hops.len() - first) as u32;
        let first = first as u32;
        let Start { weight, start_s, bytes } = start;
        self.flows.push(Flow { first, hops, weight, start_s, remaining: bytes, rate: 1.0 });
    }

    /// The time when the last flow ends. Events that are closer together than a fraction of the
    /// time so far are handled as one: otherwise larger simulations would solve the shares again
    /// for every difference in latency.
    fn run(self) -> f64 {
        let tolerance = match self.flows.len() {
            0..=500 => 1e-9,
            501..=5_000 => 1e-4,
            _ => 1e-3,
        };
        self.run_to(tolerance)
    }

    /// The same, for flows most of which share no link with most others: each group that does is
    /// simulated by itself.
    fn run_apart(self) -> f64 {
        // For each flow the first link of its group, found by joining the links of every flow.
        let mut group: Vec<u32> = (0..self.links.len() as u32).collect();
        for flow in &self.flows {
            let hops = flow.hops(&self.hops);
            hops.windows(2).for_each(|pair| join(&mut group, pair[0], pair[1]));
        }
        let of_flow = |flow: &Flow| flow.hops(&self.hops).first().map_or(0, |&l| root(&group, l));
        let mut order: Vec<(u32, u32)> =
            self.flows.iter().enumerate().map(|(i, flow)| (of_flow(flow), i as u32)).collect();
        order.sort_unstable();
        let mut dense = vec![NOT_DENSE; self.links.len()];
        let mut latest = 0.0f64;
        for together in order.chunk_by(|a, b| a.0 == b.0) {
            let mut sim = Simulation::new(self.crowding);
            for &(_, i) in together {
                let flow = &self.flows[i as usize];
                let first = sim.hops.len() as u32;
                for &link in flow.hops(&self.hops) {
                    let dense = &mut dense[link as usize];
                    if *dense == NOT_DENSE {
                        *dense = sim.link(self.links[link as usize].capacity);
                    }
                    sim.hops.push(*dense);
                }
                sim.flows.push(Flow { first, ..*flow });
            }
            latest = latest.max(sim.run());
        }
        latest
    }

    fn run_to(mut self, tolerance: f64) -> f64 {
        let mut waiting: Vec<u32> = (0..self.flows.len() as u32).collect();
        let start = |flows: &[Flow], i: u32| flows[i as usize].start_s;
        waiting.sort_by(|&a, &b| start(&self.flows, b).total_cmp(&start(&self.flows, a)));
        let mut active: Vec<u32> = Vec::new();
        let mut rows = self.rows();
        let mut latest = 0.0f64;
        let mut now = waiting.last().map_or(0.0, |&i| start(&self.flows, i));
        loop {
            while let Some(&i) = waiting.last() {
                if start(&self.flows, i) > now * (1.0 + tolerance) {
                    break;
                }
                waiting.pop();
                self.enters(i);
                active.push(i);
                rows.same = 0;
            }
            if active.is_empty() {
                match waiting.last() {
                    Some(&i) => now = start(&self.flows, i),
                    None => return latest,
                }
                continue;
            }
            self.solve(&active, &mut rows);
            let ends = |f: &Flow| f.remaining / f.rate;
            let first_end =
                active.iter().map(|&i| ends(&self.flows[i as usize])).fold(f64::MAX, f64::min);
            let first_start = waiting.last().map_or(f64::MAX, |&i| start(&self.flows, i) - now);
            let step = first_start.min(first_end);
            now += step;
            active.retain(|&i| {
                let flow = &mut self.flows[i as usize];
                flow.remaining = (flow.remaining - flow.rate * step).max(0.0);
                let left_s = flow.remaining / flow.rate;
                let goes_on = left_s > tolerance * now;
                if !goes_on {
                    latest = latest.max(now + left_s);
                    leaves(flow, &self.hops, &mut self.links);
                    rows.ended(i);
                }
                goes_on
            });
        }
    }

    fn enters(&mut self, i: u32) {
        let flow = &self.flows[i as usize];
        for &l in flow.hops(&self.hops) {
            self.links[l as usize].weight += flow.weight;
            self.links[l as usize].flows += 1;
        }
    }

    fn rows(&self) -> Rows {
        let mut first = vec![0u32; self.links.len() + 1];
        self.hops.iter().for_each(|&l| first[l as usize + 1] += 1);
        for l in 0..self.links.len() {
            first[l + 1] += first[l];
        }
        let mut next = first.clone();
        let mut users = vec![0; self.hops.len()];
        for (i, flow) in self.flows.iter().enumerate() {
            for &l in flow.hops(&self.hops) {
                users[next[l as usize] as usize] = i as u32;
                next[l as usize] += 1;
            }
        }
        Rows {
            first,
            users,
            links: Vec::new(),
            shares: Vec::new(),
            open: Vec::new(),
            fixed: Vec::new(),
            ends: Vec::new(),
            round_of: vec![0; self.flows.len()],
            same: 0,
        }
    }

    /// Max-min fair rates of the active flows: the tightest link fixes its flows, again and again.
    /// It does not search again for the rounds that it shares with the last solution.
    fn solve(&mut self, active: &[u32], rows: &mut Rows) {
        rows.links.clone_from(&self.links);
        rows.open.clear();
        for (i, link) in rows.links.iter_mut().enumerate() {
            if link.flows > 0 {
                link.capacity /= 1.0 + self.crowding * f64::from(link.flows.saturating_sub(2));
                rows.open.push(i as u32);
            }
        }
        rows.ends.truncate(rows.same);
        rows.fixed.truncate(rows.ends.last().copied().unwrap_or(0));
        for &i in &rows.fixed {
            self.flows[i as usize].takes(&self.hops, &mut rows.links);
        }
        for &i in active.iter().filter(|&&i| rows.round_of[i as usize] as usize >= rows.same) {
            self.flows[i as usize].rate = UNKNOWN;
        }
        rows.shares.clear();
        rows.shares.resize(rows.links.len(), STALE);
        while rows.ends.len() < ROUNDS {
            let mut least = f64::MAX;
            let mut kept = 0;
            for at in 0..rows.open.len() {
                let l = rows.open[at];
                if rows.links[l as usize].flows > 0 {
                    rows.open[kept] = l;
                    kept += 1;
                    least = least.min(rows.share(l));
                }
            }
            rows.open.truncate(kept);
            for at in 0..rows.open.len() {
                let l = rows.open[at];
                if rows.share(l) <= least * (1.0 + 1e-12) && rows.links[l as usize].flows > 0 {
                    self.fix(l, least, rows);
                }
            }
            rows.ends.push(rows.fixed.len());
        }
        rows.same = ROUNDS;
        let share = |l: u32| rows.links[l as usize].share();
        let left = rows.open.iter().filter(|&&l| rows.links[l as usize].flows > 0);
        let mut heap: BinaryHeap<_> = left.map(|&l| Reverse(Bottleneck(share(l), l))).collect();
        while let Some(Reverse(Bottleneck(share, l))) = heap.pop() {
            let link = rows.links[l as usize];
            // A share never falls when flows of tighter links are fixed: the heap has a lower
            // bound.
            if link.flows > 0 && link.share() > share {
                heap.push(Reverse(Bottleneck(link.share(), l)));
            } else if link.flows > 0 {
                self.fix(l, share, rows);
            }
        }
    }

    /// Fixes the flows without a rate whose bottleneck is link `l`: `share` for each unit of
    /// weight.
    fn fix(&mut self, l: u32, share: f64, rows: &mut Rows) {
        for &i in &rows.users[rows.first[l as usize] as usize..rows.first[l as usize + 1] as usize]
        {
            let flow = &mut self.flows[i as usize];
            // Flows that wait or have ended have a rate, too.
            if flow.rate == UNKNOWN {
                flow.rate = (share * flow.weight).max(1e-3);
                flow.takes(&self.hops, &mut rows.links);
                flow.hops(&self.hops).iter().for_each(|&h| rows.shares[h as usize] = STALE);
                rows.fixed.push(i);
                rows.round_of[i as usize] = rows.ends.len() as u32;
            }
        }
    }
}

/// The smallest member of a link's group.
fn root(group: &[u32], mut link: u32) -> u32 {
    while group[link as usize] != link {
        link = group[link as usize];
    }
    link
}

/// Joins two groups; on the way every second step to the root is skipped.
fn join(group: &mut [u32], a: u32, b: u32) {
    let mut ends = [a, b];
    for link in &mut ends {
        while group[*link as usize] != *link {
            let next = group[*link as usize];
            group[*link as usize] = group[next as usize];
            *link = next;
        }
    }
    let [a, b] = ends;
    group[a.max(b) as usize] = a.min(b);
}

fn leaves(flow: &Flow, hops: &[u32], links: &mut [Link]) {
    for &l in flow.hops(hops) {
        let link = &mut links[l as usize];
        link.flows -= 1;
        link.weight = if link.flows == 0 { 0.0 } else { link.weight - flow.weight };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::traffic::Traffic;
    use eyrie_topology::cartesian::Cartesian;
    use eyrie_topology::Network;

    fn seconds(matrix: &str, machine: &CostModel) -> f64 {
        let mesh = Cartesian::mesh(&[6]);
        let traffic = Traffic::from_matrix(matrix, 6).unwrap();
        let evaluator = Evaluator { network: &mesh, traffic: &traffic };
        let counted = evaluator.count((0..6).collect()).unwrap();
        step_time(&evaluator, &counted, machine).unwrap()
    }

    fn plain() -> CostModel {
        CostModel { bandwidth: 100.0, hop_latency_s: 0.0, ..CostModel::default() }
    }

    fn close(a: f64, b: f64) {
        assert!((a - b).abs() < 1e-6 * b.abs().max(1.0), "{a} is not {b}");
    }

    #[test]
    fn one_message_takes_latency_and_transfer() {
        let machine = CostModel { hop_latency_s: 0.5, overhead_s: 0.25, ..plain() };
        close(seconds("0 3 100 1", &machine), 0.25 + 1.5 + 1.0);
    }

    #[test]
    fn messages_on_one_link_share_it() {
        close(seconds("0 1 100 1\n0 2 100 1", &plain()), 2.0);
        close(seconds("0 1 100 1\n0 2 300 1", &plain()), 4.0);
    }

    #[test]
    fn a_flow_limited_elsewhere_leaves_its_share_to_others() {
        // Link 2->3 has three flows (33 each); 0->3 and the short 0->1 share link 0->1: 33 and 67.
        let t = seconds("0 3 100 1\n2 3 100 1\n2 4 100 1\n0 1 100 1", &plain());
        close(t, 3.0);
        let only_short = seconds("0 3 100 1\n2 3 100 1\n2 4 100 1\n0 1 200 1", &plain());
        close(only_short, 3.0);
    }

    #[test]
    fn path_sharing_gives_long_paths_less() {
        let machine = CostModel { sharing: Sharing::Path, ..plain() };
        // 0->1 has weight 1, 0->2 weight 1/2: 0->1 ends at 1.5, then 0->2 has 50 left.
        close(seconds("0 1 100 1\n0 2 100 1", &machine), 2.0);
        close(seconds("0 1 200 1\n0 2 100 1", &machine), 3.0);
    }

    /// On random flows on a line of links, the tolerance of larger simulations changes little.
    #[test]
    fn handling_close_events_as_one_changes_little() {
        use rand::rngs::SmallRng;
        use rand::{Rng, SeedableRng};
        let mut worst = 0.0f64;
        for seed in 0..200 {
            let run = |tolerance| {
                let mut rng = SmallRng::seed_from_u64(seed);
                let mut sim = Simulation::new(0.0);
                (0..40).for_each(|_| _ = sim.link(100.0));
                for _ in 0..200 {
                    let first = rng.gen_range(0..36);
                    let route = first..first + rng.gen_range(1..5);
                    let start_s = 1e-3 * f64::from(rng.gen_range(0..9u32));
                    let bytes = rng.gen_range(90.0..110.0);
                    sim.add(route, Start { weight: 1.0, start_s, bytes });
                }
                sim.run_to(tolerance)
            };
            let exact = run(1e-12);
            worst = worst.max((run(1e-3) - exact).abs() / exact);
        }
        assert!(worst < 2e-3, "{worst}");
    }

    /// Rounds that are reused from the last solution give every flow exactly the rate of a solution
    /// from the beginning.
    #[test]
    fn solving_again_gives_the_same_rates_to_the_last_bit() {
        use rand::rngs::SmallRng;
        use rand::seq::SliceRandom;
        use rand::{Rng, SeedableRng};
        let mut taken_over = 0;
        for seed in 0..100 {
            let mut rng = SmallRng::seed_from_u64(seed);
            let mut sim = Simulation::new(0.08 * f64::from(seed as u32 % 2));
            (0..60).for_each(|l| _ = sim.link(90.0 + f64::from(l % 7)));
            for _ in 0..150 {
                let first = rng.gen_range(0..50);
                let route = first..first + rng.gen_range(1..9);
                let weight = f64::from(rng.gen_range(1..4u32));
                sim.add(route, Start { weight, start_s: 0.0, bytes: 100.0 });
            }
            let mut active: Vec<u32> = (0..150).collect();
            active.iter().for_each(|&i| sim.enters(i));
            let mut rows = sim.rows();
            sim.solve(&active, &mut rows);
            active.shuffle(&mut rng);
            while active.len() > 20 {
                for i in active.split_off(active.len() - rng.gen_range(1..5)) {
                    leaves(&sim.flows[i as usize], &sim.hops, &mut sim.links);
                    rows.ended(i);
                }
                taken_over += rows.same;
                sim.solve(&active, &mut rows);
                let rates = |sim: &Simulation| -> Vec<u64> {
                    active.iter().map(|&i| sim.flows[i as usize].rate.to_bits()).collect()
                };
                let again = rates(&sim);
                sim.solve(&active, &mut sim.rows());
                assert_eq!(again, rates(&sim), "seed {seed}, {} flows", active.len());
            }
        }
        assert!(taken_over > 1000, "{taken_over}");
    }

    #[test]
    fn no_step_is_shorter_than_the_least() {
        use rand::rngs::SmallRng;
        use rand::{Rng, SeedableRng};
        let mesh = Cartesian::mesh(&[5, 6]);
        for seed in 0..100 {
            let mut rng = SmallRng::seed_from_u64(seed);
            let most = [3, 1000, 1 << 22][seed as usize % 3];
            let mut matrix = String::new();
            for _ in 0..rng.gen_range(1..900) {
                let from = rng.gen_range(0..30);
                let to = rng.gen_range(0..30);
                matrix +=
                    &format!("{from} {to} {} {}\n", rng.gen_range(0..most), rng.gen_range(1..3));
            }
            let Ok(traffic) = Traffic::from_matrix(&matrix, 30) else { continue };
            let evaluator = Evaluator { network: &mesh, traffic: &traffic };
            let counted = evaluator.count((0..30).collect()).unwrap();
            let machine = CostModel { stagger: 0.5, crowding: 0.05, ..plain() };
            for machine in [plain(), machine] {
                let step_s = step_time(&evaluator, &counted, &machine).unwrap();
                let least_s = least_step_time(&evaluator, &counted, &machine);
                assert!(least_s <= step_s, "seed {seed}: {step_s} is less than {least_s}");
            }
        }
    }

    /// Leaving out links that cannot limit flows changes no step.
    #[test]
    fn long_lines_give_the_times_of_their_routes() {
        use rand::rngs::SmallRng;
        use rand::{Rng, SeedableRng};
        for seed in 0..18 {
            let mut rng = SmallRng::seed_from_u64(seed);
            let torus = match seed % 3 {
                0 => Cartesian::mesh(&[90]),
                1 => Cartesian::torus(&[90]),
                _ => Cartesian::torus(&[2, 70]),
            };
            let ranks = 40;
            let traffic = ["allreduce", "alltoall", "barrier"][seed as usize / 3 % 3];
            let traffic = Traffic::parse(traffic, &[ranks], 1 << 20).unwrap();
            let mut nodes: Vec<u32> = (0..torus.nodes() as u32).collect();
            for _ in 0..rng.gen_range(0..4) {
                let a = rng.gen_range(0..ranks);
                let b = rng.gen_range(0..nodes.len());
                nodes.swap(a, b);
            }
            nodes.truncate(ranks);
            let evaluator = Evaluator { network: &torus, traffic: &traffic };
            let counted = evaluator.count(nodes).unwrap();
            let sharing = [Sharing::Fair, Sharing::Path][seed as usize % 2];
            let staggered =
                CostModel { stagger: 0.5, crowding: 0.05, sharing, ..CostModel::default() };
            for machine in [CostModel::default(), staggered] {
                for phase in 0..traffic.phases.len() {
                    let mut timed = Timed::new(&evaluator, &machine);
                    let flows = flows_of_routes(&evaluator, &counted, phase, &mut timed).unwrap();
                    let walked = timed.latest_s.max(flows.run_to(1e-12));
                    let mut timed = Timed::new(&evaluator, &machine);
                    let lines = torus.lines().unwrap();
                    let flows = flows_of_runs(&evaluator, lines, &counted, phase, &mut timed);
                    let runs = flows.unwrap().run_to(1e-12).max(timed.latest_s);
                    assert!(
                        (runs - walked).abs() < 1e-9 * walked,
                        "{seed} {phase}: {runs} {walked}"
                    );
                    // By groups, and with their tolerances.
                    let groups = phase_time(&evaluator, &counted, phase, &machine).unwrap();
                    assert!((groups - walked).abs() < 2e-4 * walked, "{groups} {walked}");
                }
            }
        }
    }

    #[test]
    fn staggered_engines_start_one_after_another() {
        let machine = CostModel { stagger: 0.5, ..plain() };
        close(seconds("2 3 100 1\n2 1 100 1", &machine), 1.5);
    }

    #[test]
    fn crowding_costs_beyond_two() {
        let machine = CostModel { crowding: 0.1, ..plain() };
        close(seconds("0 1 100 1\n0 2 100 1", &machine), 2.0);
        assert!(seconds("0 1 100 1\n0 2 100 1\n0 3 100 1", &machine) > 3.05);
    }
}
