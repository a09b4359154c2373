//! Ranks on their way to other nodes, and who waits for it. Decides nothing.

use crate::machine::timeouts::IMAGE_TIMEOUT;
use crate::machine::users::answer::RequestId;
use eyrie_wire::{ImageId, Node, Rank, RankInstance};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How a rank is to move.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Manner {
    /// The last round begins when one took no longer than this: the pause is shorter than a round.
    pub pause_budget: Duration,
    /// What becomes of a rank whose rounds do not get that short.
    pub if_slow: IfSlow,
    pub way: Way,
}

/// How the memory of a rank that moves goes over.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Way {
    /// In rounds, while it computes.
    Live,
    /// It stands still for all of it, as in systems that stop, copy and restart: for comparison.
    Stop,
}

impl Default for Manner {
    fn default() -> Manner {
        let (if_slow, way) = (IfSlow::Accept, Way::Live);
        Manner { pause_budget: Duration::from_millis(50), if_slow, way }
    }
}

/// What becomes of a rank that writes faster than its memory goes over.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum IfSlow {
    /// It moves all the same, and stands still for longer.
    Accept,
    /// It is slowed step by step, up to [`SLOWEST`], until its rounds are short enough; if they do
    /// not get so, it moves all the same.
    SlowDown,
    /// It stays.
    GiveUp,
}

/// The shares of time, in percent, for which a rank that is slowed stands still: at first, how much
/// more it is with each step, and the largest. Of QEMU's auto-converge, whose last one is 99.
const SLOWED_FIRST: u8 = 20;
const SLOWED_STEP: u8 = 10;
const SLOWEST: u8 = 80;

/// A rank that is to go to another node.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Move {
    pub from: Node,
    /// `None`: where the placement says.
    pub to: Option<Node>,
    /// An image that was asked for since then is the one that it goes with.
    pub since: Duration,
    /// When it last came nearer: it was begun, or a round was over.
    pub progress: Duration,
    /// When it was stopped for that.
    pub stopped: Option<Duration>,
    /// Since when it has stood still for its last image.
    pub still: Option<Duration>,
    pub manner: Manner,
    /// How far its memory is on the way; `None` while nothing is: it goes by its image alone.
    pub live: Option<Live>,
    /// Others of its node go first: it only has an image taken meanwhile.
    pub queued: bool,
    /// The share of time for which it is made to stand still, in percent.
    pub slowed: u8,
}

impl Move {
    /// One that was asked for now.
    pub fn new(from: Node, to: Option<Node>, since: Duration, manner: Manner) -> Move {
        let (stopped, still, live) = (None, None, None);
        Move {
            from,
            to,
            since,
            progress: since,
            stopped,
            still,
            manner,
            live,
            queued: false,
            slowed: 0,
        }
    }

    /// Where it is going, as far as that is known.
    pub fn goes_to(&self) -> Option<Node> {
        self.live.map(|live| live.node).or(self.to)
    }

    /// Whether it has not come nearer for too long, and is not about to.
    pub fn is_late(&self, now: Duration) -> bool {
        self.stopped.is_none() && !self.queued && now >= self.progress + IMAGE_TIMEOUT
    }

    /// One step more; `None` when it is slowed as much as can be.
    pub fn slow_down(&mut self) -> Option<u8> {
        let share = if self.slowed == 0 { SLOWED_FIRST } else { self.slowed + SLOWED_STEP };
        (share <= SLOWEST).then(|| {
            self.slowed = share;
            share
        })
    }
}

/// A rank whose memory is put in place where it is going while it computes.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Live {
    /// Where it most likely goes, and as which incarnation.
    pub node: Node,
    pub instance: RankInstance,
    /// The image that is on its way there, and since when.
    pub sent: Option<(ImageId, Duration)>,
    /// Images that are in place.
    pub rounds: u32,
    /// When this round began; how long the last one has taken, and what it brought.
    pub begun: Duration,
    pub took: Duration,
    pub bytes: u64,
    /// More rounds would not help, since then.
    pub ready: Option<Duration>,
    /// The next image is the last one: the rank stands still from then on.
    pub last: bool,
}

/// Most rounds of a rank that is not slowed. With one that writes faster than its memory goes over
/// the last one is long.
const ROUNDS_MAX: u32 = 8;
/// How long a rank that is ready waits for others of its node, so that all of them stand still at
/// the same time and their peers wait once.
const TOGETHER: Duration = Duration::from_secs(5);

impl Live {
    /// Its first round begins.
    pub fn new(node: Node, instance: RankInstance, begun: Duration) -> Live {
        let (sent, took, ready) = (None, Duration::ZERO, None);
        Live { node, instance, sent, rounds: 0, begun, took, bytes: 0, ready, last: false }
    }

    /// A round is over. Should the next one be the last? The first may have put an old image in
    /// place. A round that has not become a third shorter shows that more of them do not help.
    pub fn end_round(&mut self, now: Duration, pause_budget: Duration) -> Duration {
        let took = now.saturating_sub(self.begun);
        let shrinks = self.rounds < 2 || took * 3 <= self.took * 2;
        self.rounds += 1;
        self.sent = None;
        let enough = took <= pause_budget || !shrinks || self.rounds >= ROUNDS_MAX;
        if self.rounds >= 2 && enough {
            self.ready.get_or_insert(now);
        }
        (self.took, self.begun) = (took, now);
        took
    }
}

/// Moves that were asked for together.
#[derive(Debug, Serialize, Deserialize)]
pub struct Pending {
    /// A user who waits for them.
    pub request: Option<RequestId>,
    pub ranks: BTreeSet<Rank>,
    /// The nodes that become free by them.
    pub drains: BTreeSet<Node>,
    /// Ranks that could not move, and why.
    pub stayed: Vec<String>,
    /// Since when only roles are left on the nodes, and how many.
    pub roles_left: Option<(usize, Duration)>,
}

impl Pending {
    pub fn new(
        request: Option<RequestId>,
        ranks: BTreeSet<Rank>,
        drains: BTreeSet<Node>,
    ) -> Pending {
        Pending { request, ranks, drains, stayed: Vec::new(), roles_left: None }
    }
}

/// All moves of a job.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Moves {
    pub(super) ranks: BTreeMap<Rank, Move>,
    pub(super) pending: Vec<Pending>,
}

impl Moves {
    /// Ranks that move.
    pub fn iter(&self) -> impl Iterator<Item = (Rank, &Move)> + '_ {
        self.ranks.iter().map(|(rank, moving)| (*rank, moving))
    }

    pub fn get(&self, rank: Rank) -> Option<&Move> {
        self.ranks.get(&rank)
    }

    pub fn get_mut(&mut self, rank: Rank) -> Option<&mut Move> {
        self.ranks.get_mut(&rank)
    }

    /// Whether the rank moves.
    pub fn contains(&self, rank: Rank) -> bool {
        self.ranks.contains_key(&rank)
    }

    /// The rank stands still for its last image.
    pub fn stands_still(&mut self, rank: Rank, since: Duration) {
        if let Some(moving) = self.ranks.get_mut(&rank) {
            moving.still = Some(since);
        }
    }

    /// Takes what was asked for and is over.
    pub(super) fn take_pending(&mut self, is_over: impl Fn(&Pending) -> bool) -> Vec<Pending> {
        let (over, rest) = std::mem::take(&mut self.pending).into_iter().partition(is_over);
        self.pending = rest;
        over
    }

    /// The controller itself stood still for so long.
    pub fn extend(&mut self, gap: Duration) {
        self.ranks.values_mut().for_each(|moving| moving.progress += gap);
        let left = self.pending.iter_mut().filter_map(|pending| pending.roles_left.as_mut());
        left.for_each(|(_, since)| *since += gap);
    }

    /// Whether the next image of a rank is the last one of its move.
    pub fn holds(&self, rank: Rank) -> bool {
        self.ranks.get(&rank).is_some_and(|moving| match moving.manner.way {
            Way::Live => moving.live.is_some_and(|live| live.last),
            Way::Stop => moving.stopped.is_none(),
        })
    }

    /// Whether this node is to become free.
    pub fn is_draining(&self, node: Node) -> bool {
        self.pending.iter().any(|pending| pending.drains.contains(&node))
    }

    /// Ranks that leave this node live, and have not been stopped yet.
    fn leaving(&self, from: Node) -> impl Iterator<Item = (Rank, Live)> + '_ {
        let live = move |moving: &Move| {
            moving.live.filter(|_| moving.from == from && moving.stopped.is_none())
        };
        self.ranks.iter().filter_map(move |(rank, moving)| Some((*rank, live(moving)?)))
    }

    /// Ranks of this node whose next image is to be their last one: all that are ready, when all
    /// are, or when one has waited for long.
    pub fn depart(&mut self, from: Node, now: Duration) -> Vec<Rank> {
        let waits = |(_, live): &(Rank, Live)| live.ready.is_some() && !live.last;
        let all_ready = self.leaving(from).all(|(_, live)| live.ready.is_some());
        let late = |live: &Live| live.ready.is_some_and(|since| now >= since + TOGETHER);
        if !all_ready && !self.leaving(from).any(|(_, live)| late(&live)) {
            return Vec::new();
        }
        let ranks: Vec<Rank> = self.leaving(from).filter(waits).map(|(rank, _)| rank).collect();
        for rank in &ranks {
            if let Some(live) = self.ranks.get_mut(rank).and_then(|moving| moving.live.as_mut()) {
                live.last = true;
            }
        }
        ranks
    }

    /// Ranks may come to the node again: who waits for it to be free does not any more.
    pub fn no_longer_drains(&mut self, node: Node) {
        for pending in self.pending.iter_mut().filter(|p| p.drains.contains(&node)) {
            pending.drains.remove(&node);
            let asked = pending.request.is_some();
            pending.stayed.extend(asked.then(|| format!("node {node} was undrained meanwhile")));
        }
    }

    /// The move is over; `stayed`: why it did not take place.
    pub fn end(&mut self, rank: Rank, stayed: Option<&str>) -> Option<Move> {
        let ended = self.ranks.remove(&rank)?;
        for pending in self.pending.iter_mut().filter(|p| p.ranks.contains(&rank)) {
            pending.ranks.remove(&rank);
            pending.stayed.extend(stayed.map(|why| format!("rank {rank} did not move: {why}")));
        }
        Some(ended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn leaving(moves: &mut Moves, rank: Rank, from: Node) -> &mut Live {
        let live = Live::new(9, RankInstance { rank, incarnation: 2 }, ms(0));
        let moving = Move::new(from, None, ms(0), Manner::default());
        let moving = Move { live: Some(live), ..moving };
        moves.ranks.entry(rank).or_insert(moving).live.as_mut().unwrap()
    }

    #[test]
    fn a_rank_is_ready_when_a_round_is_short_or_does_not_shrink() {
        let mut moves = Moves::default();
        let budget = ms(50);
        let live = leaving(&mut moves, 0, 0);
        live.end_round(ms(10), budget);
        assert_eq!(live.ready, None, "the first may have put an old image in place");
        live.end_round(ms(1010), budget);
        live.end_round(ms(1310), budget);
        assert_eq!(live.ready, None, "300 ms after 1000 ms");
        live.end_round(ms(1590), budget);
        assert_eq!(live.ready, Some(ms(1590)), "280 ms after 300 ms");
        live.end_round(ms(9000), budget);
        assert_eq!(live.ready, Some(ms(1590)), "it stays so");
    }

    #[test]
    fn ranks_of_a_node_depart_together() {
        let mut moves = Moves::default();
        leaving(&mut moves, 0, 7).ready = Some(ms(100));
        leaving(&mut moves, 1, 7);
        leaving(&mut moves, 2, 8);
        assert!(moves.depart(7, ms(200)).is_empty(), "rank 1 is not ready");
        leaving(&mut moves, 1, 7).ready = Some(ms(300));
        assert_eq!(moves.depart(7, ms(300)), [0, 1], "rank 2 is on another node");
        assert!(moves.depart(7, ms(301)).is_empty(), "each is told once");
        assert!(moves.holds(0) && moves.holds(1) && !moves.holds(2));
    }

    #[test]
    fn no_rank_waits_for_the_others_forever() {
        let mut moves = Moves::default();
        leaving(&mut moves, 0, 7).ready = Some(ms(100));
        leaving(&mut moves, 1, 7);
        assert_eq!(moves.depart(7, ms(100) + TOGETHER), [0]);
        // One that was stopped is not waited for.
        leaving(&mut moves, 2, 7).ready = Some(ms(6000));
        moves.ranks.get_mut(&1).unwrap().stopped = Some(ms(6000));
        assert_eq!(moves.depart(7, ms(6000)), [2]);
    }

    #[test]
    fn a_rank_is_slowed_up_to_a_bound() {
        let mut moving = Move::new(0, None, ms(0), Manner::default());
        let shares: Vec<u8> = std::iter::from_fn(|| moving.slow_down()).collect();
        assert_eq!(shares, [20, 30, 40, 50, 60, 70, 80]);
    }
}
