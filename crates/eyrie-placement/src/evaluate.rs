//! Link loads of a placement, and of placements that differ from it by a few moves without counting
//! all again: only the messages of moved ranks are routed.

use rayon::prelude::*;

use eyrie_topology::load::{scaled, Message};
use eyrie_topology::{Busiest, LinkId, LinkLoads, Network, NetworkNode, RouteError};

use crate::levels::Levels;
use crate::traffic::{Rank, RankMessage, Traffic};

/// How good the link loads of a placement are, in this order: the busiest link by messages, the sum
/// of squared loads (how crowded the other links are), the busiest link by bytes.
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

/// A placement with its loads, from which similar placements are scored.
#[derive(Debug, Clone)]
pub struct Counted {
    pub placement: Vec<NetworkNode>,
    /// One per phase.
    pub loads: Vec<LinkLoads>,
    pub score: Score,
    message_levels: Levels,
    byte_levels: Levels,
    /// Messages on all links together: the steps of a full count where routes are walked.
    hops: u64,
}

impl Counted {
    /// The first phase and link with the most messages.
    pub fn busiest_link(&self, network: &dyn Network) -> Option<(usize, LinkId)> {
        let most = Some(self.score.messages).filter(|&most| most > 0)?;
        self.loads.iter().enumerate().find_map(|(phase, load)| {
            let mut links = 0..load.messages.len() as LinkId;
            let link = links.find(|&link| load.of_link(network, link).messages == most);
            link.map(|link| (phase, link))
        })
    }
}

/// Scratch for [`Evaluator::score_moves`], one per thread, reused for all candidates.
pub struct Scratch {
    /// One for each link of each phase: slot = phase × links + link.
    changes: Vec<Change>,
    /// Slots that changed, phase after phase.
    touched: Vec<u32>,
    /// Where each phase ends in `touched`.
    ends: Vec<usize>,
    /// What the routes of one rank at its new node add: slot, messages, bytes.
    added: Vec<(u32, u32, u64)>,
    moved_to: Vec<NetworkNode>,
    route: Vec<LinkId>,
}

/// By how much a link has more than before in one phase; together, so that a hop costs one cache
/// line.
#[derive(Clone, Copy, Default)]
struct Change {
    bytes: i64,
    messages: i32,
    touched: bool,
}

const NOT_MOVED: NetworkNode = NetworkNode::MAX;

impl<'a> Evaluator<'a> {
    /// Counts all messages of a placement.
    pub fn count(&self, placement: Vec<NetworkNode>) -> Result<Counted, RouteError> {
        let loads = self.loads(&placement)?;
        Ok(self.counted(placement, loads))
    }

    fn loads(&self, placement: &[NetworkNode]) -> Result<Vec<LinkLoads>, RouteError> {
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

    /// The score of these loads, without what scoring similar placements needs.
    fn score(&self, loads: &[LinkLoads]) -> Score {
        let of_phase = |load: &LinkLoads| {
            let squares = load.messages.iter().map(|&m| u64::from(m) * u64::from(m)).sum();
            let Busiest { messages, bytes } = load.busiest(self.network);
            Score { messages, squares, bytes }
        };
        loads.iter().map(of_phase).fold(Score::default(), |a, b| Score {
            messages: a.messages.max(b.messages),
            squares: a.squares + b.squares,
            bytes: a.bytes.max(b.bytes),
        })
    }

    fn counted(&self, placement: Vec<NetworkNode>, loads: Vec<LinkLoads>) -> Counted {
        let figure = self.figure();
        let mut message_levels = Levels::default();
        let mut byte_levels = Levels::default();
        let mut squares = 0;
        let mut hops = 0;
        for load in &loads {
            for (link, (&messages, &bytes)) in load.messages.iter().zip(&load.bytes).enumerate() {
                if messages == 0 {
                    continue;
                }
                hops += u64::from(messages);
                squares += u64::from(messages) * u64::from(messages);
                let now = figure(link as LinkId, u64::from(messages), bytes);
                message_levels.add(now.messages);
                byte_levels.add(now.bytes);
            }
        }
        let score =
            Score { messages: message_levels.largest(), squares, bytes: byte_levels.largest() };
        Counted { placement, loads, score, message_levels, byte_levels, hops }
    }

    /// A link's messages and bytes as [`Busiest`] counts them.
    fn figure(&self) -> impl Fn(LinkId, u64, u64) -> Busiest + 'a {
        let network = self.network;
        let uniform = self.network.uniform_bandwidth();
        move |link, messages, bytes| {
            if uniform {
                Busiest { messages, bytes }
            } else {
                scaled(network, link, messages, bytes)
            }
        }
    }

    pub fn scratch(&self) -> Scratch {
        let slots = self.network.links() * self.traffic.phases.len();
        Scratch {
            changes: vec![Change::default(); slots],
            touched: Vec::new(),
            ends: Vec::new(),
            added: Vec::new(),
            moved_to: vec![NOT_MOVED; self.traffic.ranks],
            route: Vec::new(),
        }
    }

    /// Whether so many ranks move that counting all again is cheaper. On long lines a full count
    /// does not walk along the routes.
    fn count_again(&self, base: &Counted, moves: &[(Rank, NetworkNode)]) -> bool {
        let again = match self.network.lines() {
            None => base.hops,
            Some(_) => {
                let links = self.network.links() * self.traffic.phases.len();
                base.hops.min((self.traffic.messages() + links) as u64)
            }
        };
        let moved = moves.len() as f64 / self.traffic.ranks as f64;
        4.0 * moved * base.hops as f64 > again as f64
    }

    /// The score after `moves`; `base` is unchanged.
    pub fn score_moves(
        &self,
        base: &Counted,
        moves: &[(Rank, NetworkNode)],
        scratch: &mut Scratch,
    ) -> Result<Score, RouteError> {
        if self.count_again(base, moves) {
            let loads = self.loads(&moved(&base.placement, moves))?;
            return Ok(self.score(&loads));
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
        moves: &[(Rank, NetworkNode)],
        scratch: &mut Scratch,
    ) -> Result<Counted, RouteError> {
        let placement = moved(&base.placement, moves);
        if self.count_again(base, moves) {
            return self.count(placement);
        }
        if let Err(error) = self.delta(base, moves, scratch) {
            scratch.clear(moves);
            return Err(error);
        }
        let score = self.score_delta(base, scratch);
        let mut counted = Counted { placement, score, ..base.clone() };
        let figure = self.figure();
        let messages = &mut counted.message_levels;
        let bytes = &mut counted.byte_levels;
        let mut known = true;
        for (first, load, slots) in scratch.by_phase(self.network.links(), &mut counted.loads) {
            for &slot in slots {
                let link = (slot - first) as usize;
                let m = &mut load.messages[link];
                let b = &mut load.bytes[link];
                let was = figure(link as LinkId, u64::from(*m), *b);
                if *m > 0 {
                    known &= messages.remove(was.messages) & bytes.remove(was.bytes);
                }
                let change = &scratch.changes[slot as usize];
                counted.hops = counted.hops.wrapping_add_signed(i64::from(change.messages));
                *m = (i64::from(*m) + i64::from(change.messages)) as u32;
                *b = (*b as i64 + change.bytes) as u64;
                if *m > 0 {
                    let now = figure(link as LinkId, u64::from(*m), *b);
                    messages.add(now.messages);
                    bytes.add(now.bytes);
                }
            }
        }
        scratch.clear(moves);
        Ok(if known { counted } else { self.counted(counted.placement, counted.loads) })
    }

    /// Fills the scratch with the differences that `moves` make.
    fn delta(
        &self,
        base: &Counted,
        moves: &[(Rank, NetworkNode)],
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
                    // A message between two moved ranks is found twice; the sender's turn counts.
                    if m.to == rank
                        && m.from != rank
                        && scratch.moved_to[m.from as usize] != NOT_MOVED
                    {
                        continue;
                    }
                    let old = place(m, &base.placement);
                    let new_end = |r: Rank, old: NetworkNode| match scratch.moved_to[r as usize] {
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
            scratch.ends.push(scratch.touched.len());
        }
        Ok(())
    }

    /// Fills the scratch with what is missing without the messages of `rank`.
    fn without(&self, base: &Counted, rank: Rank, s: &mut Scratch) -> Result<(), RouteError> {
        for (p, phase) in self.traffic.phases.iter().enumerate() {
            for &i in phase.of_rank(rank) {
                let old = place(&phase.messages[i as usize], &base.placement);
                self.add(old, -1, p * self.network.links(), s)?;
            }
            s.ends.push(s.touched.len());
        }
        Ok(())
    }

    /// The score with the messages of `rank` from and to node `at`. `score` is that of the scratch,
    /// which is without them.
    fn score_with(
        &self,
        base: &Counted,
        mut score: Score,
        (rank, at): (Rank, NetworkNode),
        s: &mut Scratch,
    ) -> Result<Score, RouteError> {
        let links = self.network.links();
        let figure = self.figure();
        for (p, phase) in self.traffic.phases.iter().enumerate() {
            let load = &base.loads[p];
            for &i in phase.of_rank(rank) {
                let m = &phase.messages[i as usize];
                let end = |r: Rank| if r == rank { at } else { base.placement[r as usize] };
                s.route.clear();
                self.network.route(end(m.from), end(m.to), &mut s.route)?;
                for &link in &s.route {
                    let slot = p * links + link as usize;
                    let change = &mut s.changes[slot];
                    let before =
                        i64::from(load.messages[link as usize]) + i64::from(change.messages);
                    change.messages += m.count as i32;
                    change.bytes += m.bytes as i64;
                    s.added.push((slot as u32, m.count, m.bytes));
                    let before = before as u64;
                    let more = u64::from(m.count);
                    score.squares += more * (2 * before + more);
                    let bytes = load.bytes[link as usize] as i64 + change.bytes;
                    let now = figure(link, before + more, bytes as u64);
                    score.messages = score.messages.max(now.messages);
                    score.bytes = score.bytes.max(now.bytes);
                }
            }
        }
        Ok(score)
    }

    fn add(&self, m: Message, sign: i32, first: usize, s: &mut Scratch) -> Result<(), RouteError> {
        s.route.clear();
        self.network.route(m.from, m.to, &mut s.route)?;
        for &link in &s.route {
            let slot = first + link as usize;
            let change = &mut s.changes[slot];
            if !change.touched {
                change.touched = true;
                s.touched.push(slot as u32);
            }
            change.messages += sign * m.count as i32;
            change.bytes += i64::from(sign) * m.bytes as i64;
        }
        Ok(())
    }

    fn score_delta(&self, base: &Counted, s: &Scratch) -> Score {
        let figure = self.figure();
        let mut score = Score { squares: base.score.squares, ..Score::default() };
        // The number of touched links that had the largest figures.
        let mut had = (0, 0);
        for (first, load, slots) in s.by_phase(self.network.links(), &base.loads) {
            for &slot in slots {
                let link = (slot - first) as usize;
                let change = &s.changes[slot as usize];
                let old = u64::from(load.messages[link]);
                let old_bytes = load.bytes[link];
                let new = (old as i64 + i64::from(change.messages)) as u64;
                score.squares = score.squares + new * new - old * old;
                let now = figure(link as LinkId, new, (old_bytes as i64 + change.bytes) as u64);
                score.messages = score.messages.max(now.messages);
                score.bytes = score.bytes.max(now.bytes);
                let was = figure(link as LinkId, old, old_bytes);
                had.0 += usize::from(was.messages == base.score.messages);
                had.1 += usize::from(was.bytes == base.score.bytes);
            }
        }
        if score.messages < base.score.messages {
            let rest = self.rest(base, s, had.0, &base.message_levels, |b| b.messages);
            score.messages = score.messages.max(rest);
        }
        if score.bytes < base.score.bytes {
            let rest = self.rest(base, s, had.1, &base.byte_levels, |b| b.bytes);
            score.bytes = score.bytes.max(rest);
        }
        score
    }

    /// The largest figure in `base` of links that are not touched; `had` touched links had the
    /// largest of all.
    fn rest(
        &self,
        base: &Counted,
        s: &Scratch,
        had: usize,
        levels: &Levels,
        of: impl Fn(Busiest) -> u64 + Copy,
    ) -> u64 {
        if had < levels.with_largest() {
            return levels.largest();
        }
        let links = self.network.links();
        let with = |figure| {
            let phases = s.by_phase(links, &base.loads);
            let had = phases.flat_map(|(first, load, slots)| {
                slots.iter().map(move |&slot| of(load.of_link(self.network, slot - first)))
            });
            had.filter(|&f| f == figure).count()
        };
        levels.largest_without(with).unwrap_or_else(|| {
            // Every link with a kept figure has changed: all others are checked.
            let phases = base.loads.iter().enumerate();
            phases
                .flat_map(|(p, l)| (0..links as LinkId).map(move |k| (p, l, k)))
                .filter(|&(p, _, k)| !s.changes[p * links + k as usize].touched)
                .map(|(_, l, k)| of(l.of_link(self.network, k)))
                .max()
                .unwrap_or(0)
        })
    }

    /// Scores many candidates, in parallel where there are many; `None` where dead routers cut
    /// ranks off.
    pub fn score_all(
        &self,
        base: &Counted,
        candidates: &[Vec<(Rank, NetworkNode)>],
        scratch: &mut Scratch,
    ) -> Vec<Option<Score>> {
        const PARALLEL_FROM: usize = 256;
        const CHUNK: usize = 64;
        if candidates.len() < PARALLEL_FROM || rayon::current_num_threads() == 1 {
            return self.score_each(base, candidates, scratch);
        }
        candidates
            .par_chunks(CHUNK)
            .map_init(|| self.scratch(), |scratch, some| self.score_each(base, some, scratch))
            .flatten_iter()
            .collect()
    }

    /// Scores candidates in turn. Consecutive candidates that move the same single rank share the
    /// work of removing it.
    fn score_each(
        &self,
        base: &Counted,
        candidates: &[Vec<(Rank, NetworkNode)>],
        s: &mut Scratch,
    ) -> Vec<Option<Score>> {
        type Moves = Vec<(Rank, NetworkNode)>;
        let same_rank = |a: &Moves, b: &Moves| match (&a[..], &b[..]) {
            ([a], [b]) => a.0 == b.0,
            _ => false,
        };
        let mut scores = Vec::with_capacity(candidates.len());
        for alike in candidates.chunk_by(same_rank) {
            if let [moves] = alike {
                scores.push(self.score_moves(base, moves, s).ok());
                continue;
            }
            let without = self.without(base, alike[0][0].0, s).map(|()| self.score_delta(base, s));
            for moves in alike {
                let with = |&score| self.score_with(base, score, moves[0], s).ok();
                scores.push(without.as_ref().ok().and_then(with));
                s.take_back();
            }
            s.clear(&[]);
        }
        scores
    }
}

impl Scratch {
    /// The touched slots of each phase, with the phase's first slot and its item of `loads`.
    fn by_phase<L>(
        &self,
        links: usize,
        loads: impl IntoIterator<Item = L>,
    ) -> impl Iterator<Item = (u32, L, &[u32])> {
        let begins = std::iter::once(0).chain(self.ends.iter().copied());
        let slots = begins.zip(&self.ends).map(|(begin, &end)| &self.touched[begin..end]);
        loads
            .into_iter()
            .zip(slots)
            .enumerate()
            .map(move |(p, (load, slots))| ((p * links) as u32, load, slots))
    }

    /// Undoes what [`Evaluator::score_with`] added.
    fn take_back(&mut self) {
        for &(slot, messages, bytes) in &self.added {
            let change = &mut self.changes[slot as usize];
            change.messages -= messages as i32;
            change.bytes -= bytes as i64;
        }
        self.added.clear();
    }

    fn clear(&mut self, moves: &[(Rank, NetworkNode)]) {
        for &slot in &self.touched {
            self.changes[slot as usize] = Change::default();
        }
        self.touched.clear();
        self.ends.clear();
        for &(rank, _) in moves {
            self.moved_to[rank as usize] = NOT_MOVED;
        }
    }
}

/// A rank message as a node message.
pub fn place(m: &RankMessage, placement: &[NetworkNode]) -> Message {
    Message {
        from: placement[m.from as usize],
        to: placement[m.to as usize],
        bytes: m.bytes,
        count: m.count,
    }
}

/// `placement` after `moves`.
pub fn moved(placement: &[NetworkNode], moves: &[(Rank, NetworkNode)]) -> Vec<NetworkNode> {
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

    fn agree(network: &dyn Network, traffic: &Traffic, moves: &[(Rank, NetworkNode)]) {
        let evaluator = Evaluator { network, traffic };
        let base = evaluator.count((0..traffic.ranks as NetworkNode).collect()).unwrap();
        let mut scratch = evaluator.scratch();
        let full = evaluator.count(moved(&base.placement, moves)).unwrap();
        let score = evaluator.score_moves(&base, moves, &mut scratch).unwrap();
        assert_eq!(score, full.score);
        // Twice, so that a scratch that was not cleaned is found out.
        assert_eq!(evaluator.score_moves(&base, moves, &mut scratch).unwrap(), full.score);
        let applied = evaluator.apply(&base, moves, &mut scratch).unwrap();
        assert_eq!(applied.loads, full.loads);
        assert_eq!(applied.hops, full.hops);
        assert_eq!(applied.score, full.score);
        assert_eq!(applied.busiest_link(network), full.busiest_link(network));
        // One after another, each from the result of the one before.
        let mut step = base.clone();
        for &one in moves {
            step = evaluator.apply(&step, &[one], &mut scratch).unwrap();
            let again = evaluator.count(step.placement.clone()).unwrap();
            assert_eq!((step.score, &step.loads), (again.score, &again.loads));
            let others: Vec<_> = moves.iter().map(|&(_, to)| vec![(one.0, to)]).collect();
            let scores = evaluator.score_all(&step, &others, &mut scratch);
            for (other, score) in others.iter().zip(scores) {
                let full = evaluator.count(moved(&step.placement, other)).unwrap();
                assert_eq!(score, Some(full.score));
            }
        }
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
            let mut moves: Vec<(Rank, NetworkNode)> = Vec::new();
            for (rank, to) in targets {
                if moves.iter().all(|m| m.0 != rank && m.1 != to) {
                    moves.push((rank, to));
                }
            }
            agree(network.as_ref(), &traffic, &moves);
        }
    }
}
