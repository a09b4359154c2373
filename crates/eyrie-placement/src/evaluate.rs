//! Link loads of a placement, and of a placement that differs by a few moves without counting all
//! again: only the messages of moved ranks are routed.

use rayon::prelude::*;

use eyrie_topology::load::{scaled, Message};
use eyrie_topology::{Busiest, LinkId, LinkLoads, Network, NodeId, RouteError};

use crate::job::Rank;
use crate::traffic::{RankMessage, Traffic};

/// How good a placement's link loads are, best first: busiest link by messages, then the sum of squared loads
/// (how much is crowded elsewhere), then the busiest link by bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Score {
    pub messages: u64,
    pub squares: u64,
    pub bytes: u64,
}

/// Counts loads for one network and traffic.
#[derive(Clone, Copy)]
pub struct Evaluator<'a> {
    pub network: &'a dyn Network,
    pub traffic: &'a Traffic,
}

/// A placement with its loads, from which near placements are scored.
#[derive(Debug, Clone)]
pub struct Counted {
    pub placement: Vec<NodeId>,
    /// One per phase.
    pub loads: Vec<LinkLoads>,
    pub score: Score,
    busiest: Option<(usize, LinkId)>,
    message_levels: Levels,
    byte_levels: Levels,
}

impl Counted {
    /// Phase and link with the most messages.
    pub fn busiest_link(&self) -> Option<(usize, LinkId)> {
        self.busiest
    }
}

/// The largest figures that links have, and how many links have each: enough to say what is left as the largest when
/// some links change.
#[derive(Debug, Clone, Default)]
struct Levels {
    /// Figure and number of links, the largest first.
    top: Vec<(u64, usize)>,
    /// There are smaller figures that are not kept.
    more: bool,
}

/// Figures kept; if a change touches every link that has one of them, all links are looked at.
const LEVELS: usize = 8;

impl Levels {
    fn add(&mut self, figure: u64) {
        let full = self.top.len() == LEVELS;
        if full && figure < self.top[LEVELS - 1].0 {
            self.more = true;
            return;
        }
        match self.top.iter().position(|&(f, _)| f <= figure) {
            Some(at) if self.top[at].0 == figure => self.top[at].1 += 1,
            at => {
                self.top.insert(at.unwrap_or(self.top.len()), (figure, 1));
                self.more |= full;
                self.top.truncate(LEVELS);
            }
        }
    }

    fn largest(&self) -> u64 {
        self.top.first().map_or(0, |&(figure, _)| figure)
    }

    /// The largest figure without some links, whose figures `without` counts; `None` if no kept figure is left.
    fn largest_without(&self, without: impl Fn(u64) -> usize) -> Option<u64> {
        let left = self.top.iter().find(|&&(figure, links)| without(figure) < links);
        left.map(|&(figure, _)| figure).or((!self.more).then_some(0))
    }
}

/// Scratch for [`Evaluator::score_moves`], one per thread, reused between candidates.
pub struct Scratch {
    messages: Vec<i32>,
    bytes: Vec<i64>,
    touched: Vec<u32>,
    is_touched: Vec<bool>,
    /// What the touched links had before.
    old: Vec<Busiest>,
    moved_to: Vec<NodeId>,
    route: Vec<LinkId>,
}

const NOT_MOVED: NodeId = NodeId::MAX;

impl<'a> Evaluator<'a> {
    /// Counts all messages of a placement.
    pub fn count(&self, placement: Vec<NodeId>) -> Result<Counted, RouteError> {
        let loads = self.loads(&placement)?;
        Ok(self.counted(placement, loads))
    }

    fn loads(&self, placement: &[NodeId]) -> Result<Vec<LinkLoads>, RouteError> {
        self.traffic
            .phases
            .iter()
            .map(|phase| {
                LinkLoads::count(self.network, phase.messages.len(), |i| {
                    place(&phase.messages[i], placement)
                })
            })
            .collect()
    }

    fn counted(&self, placement: Vec<NodeId>, loads: Vec<LinkLoads>) -> Counted {
        let figure = self.figure();
        let (mut message_levels, mut byte_levels) = (Levels::default(), Levels::default());
        let (mut squares, mut busiest) = (0, None);
        for (phase, load) in loads.iter().enumerate() {
            for (link, (&messages, &bytes)) in load.messages.iter().zip(&load.bytes).enumerate() {
                if messages == 0 {
                    continue;
                }
                squares += u64::from(messages) * u64::from(messages);
                let now = figure(link as LinkId, u64::from(messages), bytes);
                if now.messages > message_levels.largest() {
                    busiest = Some((phase, link as LinkId));
                }
                message_levels.add(now.messages);
                byte_levels.add(now.bytes);
            }
        }
        let score =
            Score { messages: message_levels.largest(), squares, bytes: byte_levels.largest() };
        Counted { placement, loads, score, busiest, message_levels, byte_levels }
    }

    /// A link's messages and bytes as [`Busiest`] counts them.
    fn figure(&self) -> impl Fn(LinkId, u64, u64) -> Busiest + 'a {
        let (network, uniform) = (self.network, self.network.uniform_bandwidth());
        move |link, messages, bytes| match uniform {
            true => Busiest { messages, bytes },
            false => scaled(network, link, messages, bytes),
        }
    }

    pub fn scratch(&self) -> Scratch {
        let slots = self.network.links() * self.traffic.phases.len();
        Scratch {
            messages: vec![0; slots],
            bytes: vec![0; slots],
            touched: Vec::new(),
            is_touched: vec![false; slots],
            old: Vec::new(),
            moved_to: vec![NOT_MOVED; self.traffic.ranks],
            route: Vec::new(),
        }
    }

    /// Whether so many ranks move that counting all again is cheaper.
    fn count_again(&self, moves: &[(Rank, NodeId)]) -> bool {
        4 * moves.len() > self.traffic.ranks
    }

    /// Score after `moves`, leaving `base` as it is.
    pub fn score_moves(
        &self,
        base: &Counted,
        moves: &[(Rank, NodeId)],
        scratch: &mut Scratch,
    ) -> Result<Score, RouteError> {
        if self.count_again(moves) {
            let loads = self.loads(&moved(&base.placement, moves))?;
            return Ok(self.counted(Vec::new(), loads).score);
        }
        let result = self.delta(base, moves, scratch);
        let score = result.map(|()| self.score_delta(base, scratch));
        scratch.clear(moves);
        score
    }

    /// `base` after `moves`, counted incrementally.
    pub fn apply(
        &self,
        base: &Counted,
        moves: &[(Rank, NodeId)],
        scratch: &mut Scratch,
    ) -> Result<Counted, RouteError> {
        let placement = moved(&base.placement, moves);
        if self.count_again(moves) {
            return self.count(placement);
        }
        let mut loads = base.loads.clone();
        let result = self.delta(base, moves, scratch);
        let links = self.network.links();
        for &slot in &scratch.touched {
            let (phase, link) = (slot as usize / links, slot as usize % links);
            let load = &mut loads[phase];
            load.messages[link] = (i64::from(load.messages[link])
                + i64::from(scratch.messages[slot as usize]))
                as u32;
            load.bytes[link] = (load.bytes[link] as i64 + scratch.bytes[slot as usize]) as u64;
        }
        scratch.clear(moves);
        result.map(|()| self.counted(placement, loads))
    }

    /// Fills the scratch with the differences that `moves` make.
    fn delta(
        &self,
        base: &Counted,
        moves: &[(Rank, NodeId)],
        scratch: &mut Scratch,
    ) -> Result<(), RouteError> {
        for &(rank, to) in moves {
            scratch.moved_to[rank as usize] = to;
        }
        let links = self.network.links();
        for (p, phase) in self.traffic.phases.iter().enumerate() {
            for &(rank, _) in moves {
                for &i in phase.of_rank(rank) {
                    let m = &phase.messages[i as usize];
                    // A message between two moved ranks is met twice; the sender's turn counts.
                    if m.to == rank
                        && m.from != rank
                        && scratch.moved_to[m.from as usize] != NOT_MOVED
                    {
                        continue;
                    }
                    let old = place(m, &base.placement);
                    let new_end = |r: Rank, old: NodeId| match scratch.moved_to[r as usize] {
                        NOT_MOVED => old,
                        to => to,
                    };
                    let new = Message {
                        from: new_end(m.from, old.from),
                        to: new_end(m.to, old.to),
                        ..old
                    };
                    self.add(old, -1, p * links, scratch)?;
                    self.add(new, 1, p * links, scratch)?;
                }
            }
        }
        Ok(())
    }

    fn add(&self, m: Message, sign: i32, first: usize, s: &mut Scratch) -> Result<(), RouteError> {
        s.route.clear();
        self.network.route(m.from, m.to, &mut s.route)?;
        for &link in &s.route {
            let slot = first + link as usize;
            if !s.is_touched[slot] {
                s.is_touched[slot] = true;
                s.touched.push(slot as u32);
            }
            s.messages[slot] += sign * m.count as i32;
            s.bytes[slot] += i64::from(sign) * m.bytes as i64;
        }
        Ok(())
    }

    fn score_delta(&self, base: &Counted, s: &mut Scratch) -> Score {
        let (links, figure) = (self.network.links(), self.figure());
        let mut score = Score { squares: base.score.squares, ..Score::default() };
        s.old.clear();
        for &slot in &s.touched {
            let (phase, link) = (slot as usize / links, slot as usize % links);
            let old = i64::from(base.loads[phase].messages[link]);
            let old_bytes = base.loads[phase].bytes[link] as i64;
            let new = old + i64::from(s.messages[slot as usize]);
            let bytes = old_bytes + s.bytes[slot as usize];
            score.squares = (score.squares as i64 + new * new - old * old) as u64;
            let now = figure(link as LinkId, new as u64, bytes as u64);
            score.messages = score.messages.max(now.messages);
            score.bytes = score.bytes.max(now.bytes);
            s.old.push(figure(link as LinkId, old as u64, old_bytes as u64));
        }
        let rest = |levels: &Levels, of: &dyn Fn(Busiest) -> u64| {
            levels
                .largest_without(|figure| s.old.iter().filter(|&&b| of(b) == figure).count())
                .unwrap_or_else(|| {
                    // Every link with a kept figure changed: look at all the others.
                    let phases = base.loads.iter().enumerate();
                    phases
                        .flat_map(|(p, l)| (0..links as LinkId).map(move |k| (p, l, k)))
                        .filter(|&(p, _, k)| !s.is_touched[p * links + k as usize])
                        .map(|(_, l, k)| of(l.of_link(self.network, k)))
                        .max()
                        .unwrap_or(0)
                })
        };
        if score.messages < base.score.messages {
            score.messages = score.messages.max(rest(&base.message_levels, &|b| b.messages));
        }
        if score.bytes < base.score.bytes {
            score.bytes = score.bytes.max(rest(&base.byte_levels, &|b| b.bytes));
        }
        score
    }

    /// Scores many candidates, in parallel where there are many; `None` for one that dead routers cut off.
    pub fn score_all(
        &self,
        base: &Counted,
        candidates: &[Vec<(Rank, NodeId)>],
    ) -> Vec<Option<Score>> {
        const PARALLEL_FROM: usize = 256;
        if candidates.len() < PARALLEL_FROM {
            let mut scratch = self.scratch();
            let score = |m: &Vec<_>| self.score_moves(base, m, &mut scratch).ok();
            return candidates.iter().map(score).collect();
        }
        candidates
            .par_iter()
            .with_min_len(64)
            .map_init(|| self.scratch(), |scratch, m| self.score_moves(base, m, scratch).ok())
            .collect()
    }
}

impl Scratch {
    fn clear(&mut self, moves: &[(Rank, NodeId)]) {
        for &slot in &self.touched {
            self.messages[slot as usize] = 0;
            self.bytes[slot as usize] = 0;
            self.is_touched[slot as usize] = false;
        }
        self.touched.clear();
        for &(rank, _) in moves {
            self.moved_to[rank as usize] = NOT_MOVED;
        }
    }
}

/// A rank message as a node message.
pub fn place(m: &RankMessage, placement: &[NodeId]) -> Message {
    Message {
        from: placement[m.from as usize],
        to: placement[m.to as usize],
        bytes: m.bytes,
        count: m.count,
    }
}

/// `placement` after `moves`.
pub fn moved(placement: &[NodeId], moves: &[(Rank, NodeId)]) -> Vec<NodeId> {
    let mut placement = placement.to_vec();
    moves.iter().for_each(|&(rank, to)| placement[rank as usize] = to);
    placement
}

#[cfg(test)]
mod tests {
    use super::*;
    use eyrie_topology::cartesian::Cartesian;
    use eyrie_topology::spec;
    use proptest::prelude::*;

    fn agree(network: &dyn Network, traffic: &Traffic, moves: &[(Rank, NodeId)]) {
        let evaluator = Evaluator { network, traffic };
        let base = evaluator.count((0..traffic.ranks as NodeId).collect()).unwrap();
        let mut scratch = evaluator.scratch();
        let full = evaluator.count(moved(&base.placement, moves)).unwrap();
        let score = evaluator.score_moves(&base, moves, &mut scratch).unwrap();
        assert_eq!(score, full.score);
        // Twice, so that a scratch that was not cleaned shows.
        assert_eq!(evaluator.score_moves(&base, moves, &mut scratch).unwrap(), full.score);
        let applied = evaluator.apply(&base, moves, &mut scratch).unwrap();
        assert_eq!(applied.loads, full.loads);
        assert_eq!(applied.score, full.score);
    }

    #[test]
    fn moving_one_rank_counts_as_counting_all_again() {
        let network = Cartesian::torus(&[9, 9]);
        let traffic = Traffic::parse("stencil5", &[8, 9], 100).unwrap();
        agree(&network, &traffic, &[(30, 75)]);
        agree(&network, &traffic, &[(30, 75), (31, 80), (39, 30)]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]
        #[test]
        fn incremental_and_full_counts_agree(
            network in prop::sample::select(vec![
                "torus:6x7", "mesh:42", "fattree:7^2", "xgft:7,6;1,3:rails=2", "dragonfly:7x3x2", "tofu:2x2x1x2x3x2",
            ]),
            traffic in prop::sample::select(vec![
                "stencil5", "stencil9:periodic", "allreduce", "allreduce:rabenseifner", "alltoall", "barrier",
            ]),
            targets in prop::collection::vec((0u32..30, 30u32..42), 0..6),
        ) {
            let network = spec::parse(network).unwrap().network;
            let traffic = Traffic::parse(traffic, &[5, 6], 64).unwrap();
            let mut moves: Vec<(Rank, NodeId)> = Vec::new();
            for (rank, to) in targets {
                if moves.iter().all(|m| m.0 != rank && m.1 != to) {
                    moves.push((rank, to));
                }
            }
            agree(network.as_ref(), &traffic, &moves);
        }
    }
}
