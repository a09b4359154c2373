//! Ranks on their way to other nodes, and who waits for it. Decides nothing.

use crate::machine::state::{next, MoveEvent, MoveName, MOVES};
use crate::machine::timeouts::IMAGE_TIMEOUT;
use crate::machine::users::answer::RequestId;
use eyrie_interface::{Manner, Way};
use eyrie_wire::{ImageId, Node, Rank, RankInstance};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The shares of time, in percent, for which a rank that is slowed stands still: at first, how much
/// more it is with each step, and the largest. Of QEMU's auto-converge, whose last one is 99.
const SLOWED_FIRST: u8 = 20;
const SLOWED_STEP: u8 = 10;
const SLOWEST: u8 = 80;

/// How far a move has come ([`MoveName`] says what each means), with what is known in it.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum MoveState {
    Queued,
    Alone,
    Rounds(Live),
    /// `since`: when more rounds would not have helped any more.
    Ready {
        live: Live,
        since: Duration,
    },
    Last {
        live: Live,
        since: Duration,
    },
    /// `at`: when it was stopped, or died.
    Stopped {
        at: Duration,
        live: Option<Live>,
    },
}

/// An event of the table with what comes with it.
#[derive(Clone, Copy, Debug)]
pub enum MoveStep {
    Begun(Live),
    BegunAlone,
    NotPrepared,
    Ready { since: Duration },
    SlowedDown,
    Departed,
    Stopped { at: Duration },
}

impl MoveStep {
    fn event(&self) -> MoveEvent {
        match self {
            MoveStep::Begun(_) => MoveEvent::Begun,
            MoveStep::BegunAlone => MoveEvent::BegunAlone,
            MoveStep::NotPrepared => MoveEvent::NotPrepared,
            MoveStep::Ready { .. } => MoveEvent::Ready,
            MoveStep::SlowedDown => MoveEvent::SlowedDown,
            MoveStep::Departed => MoveEvent::Departed,
            MoveStep::Stopped { .. } => MoveEvent::Stopped,
        }
    }
}

impl MoveState {
    fn name(&self) -> MoveName {
        match self {
            MoveState::Queued => MoveName::Queued,
            MoveState::Alone => MoveName::Alone,
            MoveState::Rounds(_) => MoveName::Rounds,
            MoveState::Ready { .. } => MoveName::Ready,
            MoveState::Last { .. } => MoveName::Last,
            MoveState::Stopped { .. } => MoveName::Stopped,
        }
    }

    fn live(&self) -> Option<&Live> {
        match self {
            MoveState::Rounds(live)
            | MoveState::Ready { live, .. }
            | MoveState::Last { live, .. } => Some(live),
            MoveState::Stopped { live, .. } => live.as_ref(),
            MoveState::Queued | MoveState::Alone => None,
        }
    }

    /// Since when more rounds would not have helped any more, unless it was stopped.
    fn ready_since(&self) -> Option<Duration> {
        match self {
            MoveState::Ready { since, .. } | MoveState::Last { since, .. } => Some(*since),
            _ => None,
        }
    }

    /// The state named `name`; `None` when the table leads there and nothing here does.
    fn enter(&self, name: MoveName, step: MoveStep) -> Option<MoveState> {
        let live = self.live().copied();
        Some(match (name, step) {
            (MoveName::Rounds, MoveStep::Begun(live)) => MoveState::Rounds(live),
            (MoveName::Rounds, _) => MoveState::Rounds(live?),
            (MoveName::Alone, _) => MoveState::Alone,
            (MoveName::Ready, MoveStep::Ready { since }) => MoveState::Ready { live: live?, since },
            (MoveName::Last, _) => MoveState::Last { live: live?, since: self.ready_since()? },
            (MoveName::Stopped, MoveStep::Stopped { at }) => MoveState::Stopped { at, live },
            (MoveName::Stopped, MoveStep::NotPrepared) => match self {
                MoveState::Stopped { at, .. } => MoveState::Stopped { at: *at, live: None },
                _ => return None,
            },
            _ => return None,
        })
    }
}

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
    /// Since when it has stood still for its last image.
    pub still: Option<Duration>,
    pub manner: Manner,
    /// The share of time for which it is made to stand still, in percent.
    pub slowed: u8,
    state: MoveState,
}

impl Move {
    /// One that was asked for now.
    pub fn new(from: Node, to: Option<Node>, since: Duration, manner: Manner) -> Move {
        let (progress, state) = (since, MoveState::Alone);
        Move { from, to, since, progress, still: None, manner, slowed: 0, state }
    }

    /// One that waits until others of its node have gone.
    pub fn queued(from: Node, to: Option<Node>, since: Duration, manner: Manner) -> Move {
        Move { state: MoveState::Queued, ..Move::new(from, to, since, manner) }
    }

    /// Changes the state as the table says; false, and nothing else, when it has no row for it.
    pub fn advance(&mut self, step: MoveStep) -> bool {
        let entered =
            next(MOVES, self.name(), step.event()).and_then(|name| self.state.enter(name, step));
        entered.map(|state| self.state = state).is_some()
    }

    pub fn name(&self) -> MoveName {
        self.state.name()
    }

    pub fn is_queued(&self) -> bool {
        self.name() == MoveName::Queued
    }

    /// When it was stopped for its move, or died.
    pub fn stopped(&self) -> Option<Duration> {
        match self.state {
            MoveState::Stopped { at, .. } => Some(at),
            _ => None,
        }
    }

    /// How far its memory is on the way; `None` while nothing is: it goes by its image alone.
    pub fn live(&self) -> Option<&Live> {
        self.state.live()
    }

    /// As [`Move::live`].
    pub fn live_mut(&mut self) -> Option<&mut Live> {
        match &mut self.state {
            MoveState::Rounds(live)
            | MoveState::Ready { live, .. }
            | MoveState::Last { live, .. } => Some(live),
            MoveState::Stopped { live, .. } => live.as_mut(),
            MoveState::Queued | MoveState::Alone => None,
        }
    }

    /// Where it is going, as far as that is known.
    pub fn goes_to(&self) -> Option<Node> {
        self.live().map(|live| live.node).or(self.to)
    }

    /// Whether it has not come nearer for too long, and is not about to.
    pub fn is_late(&self, now: Duration) -> bool {
        let waits = matches!(self.state, MoveState::Queued | MoveState::Stopped { .. });
        !waits && now >= self.progress + IMAGE_TIMEOUT
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
        Live { node, instance, sent: None, rounds: 0, begun, took: Duration::ZERO, bytes: 0 }
    }

    /// A round is over. How long it has taken, and whether the next one should be the last. The
    /// first may have put an old image in place. A round that has not become a third shorter shows
    /// that more of them do not help.
    pub fn end_round(&mut self, now: Duration, pause_budget: Duration) -> (Duration, bool) {
        let took = now.saturating_sub(self.begun);
        let shrinks = self.rounds < 2 || took * 3 <= self.took * 2;
        self.rounds += 1;
        self.sent = None;
        let enough = took <= pause_budget || !shrinks || self.rounds >= ROUNDS_MAX;
        (self.took, self.begun) = (took, now);
        (took, self.rounds >= 2 && enough)
    }
}

/// How the move of a rank is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MoveEnd<'a> {
    /// It is on another node.
    Moved,
    /// Its program has ended before it had moved.
    Finished,
    /// It is where it was, for this reason.
    Stays(&'a str),
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
            Way::Live => moving.name() == MoveName::Last,
            Way::Stop => moving.stopped().is_none(),
        })
    }

    /// Whether this node is to become free.
    pub fn is_draining(&self, node: Node) -> bool {
        self.pending.iter().any(|pending| pending.drains.contains(&node))
    }

    /// Ranks of this node whose next image is to be their last one: all that are ready, when all
    /// are, or when one has waited for long.
    pub fn depart(&mut self, from: Node, now: Duration) -> Vec<Rank> {
        let leaving = || self.ranks.values().filter(|moving| moving.from == from);
        let all_ready = leaving().all(|moving| moving.name() != MoveName::Rounds);
        let is_late =
            |moving: &Move| moving.state.ready_since().is_some_and(|t| now >= t + TOGETHER);
        if !all_ready && !leaving().any(is_late) {
            return Vec::new();
        }
        let here = self.ranks.iter_mut().filter(|(_, moving)| moving.from == from);
        let departed =
            here.filter_map(|(rank, moving)| moving.advance(MoveStep::Departed).then_some(*rank));
        departed.collect()
    }

    /// Ranks may come to the node again: who waits for it to be free does not any more.
    pub fn no_longer_drains(&mut self, node: Node) {
        for pending in self.pending.iter_mut().filter(|p| p.drains.contains(&node)) {
            pending.drains.remove(&node);
            let asked = pending.request.is_some();
            pending.stayed.extend(asked.then(|| format!("node {node} was undrained meanwhile")));
        }
    }

    /// The move is over.
    pub fn end(&mut self, rank: Rank, how: MoveEnd) -> Option<Move> {
        let ended = self.ranks.remove(&rank)?;
        for pending in self.pending.iter_mut().filter(|p| p.ranks.contains(&rank)) {
            pending.ranks.remove(&rank);
            let stayed = match how {
                MoveEnd::Moved => None,
                // Its node is free of it all the same.
                MoveEnd::Finished if !pending.drains.is_empty() => None,
                MoveEnd::Finished => Some("it has come to its end before"),
                MoveEnd::Stays(why) => Some(why),
            };
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

    fn live(rank: Rank) -> Live {
        Live::new(9, RankInstance { rank, incarnation: 2 }, ms(0))
    }

    /// A rank that leaves this node, and its move.
    fn leaving(moves: &mut Moves, rank: Rank, from: Node) -> &mut Move {
        let mut moving = Move::new(from, None, ms(0), Manner::default());
        moving.advance(MoveStep::Begun(live(rank)));
        moves.ranks.entry(rank).or_insert(moving)
    }

    fn ready(moves: &mut Moves, rank: Rank, from: Node, since: Duration) {
        assert!(leaving(moves, rank, from).advance(MoveStep::Ready { since }));
    }

    fn step(event: MoveEvent) -> MoveStep {
        match event {
            MoveEvent::Begun => MoveStep::Begun(live(0)),
            MoveEvent::BegunAlone => MoveStep::BegunAlone,
            MoveEvent::NotPrepared => MoveStep::NotPrepared,
            MoveEvent::Ready => MoveStep::Ready { since: ms(1) },
            MoveEvent::SlowedDown => MoveStep::SlowedDown,
            MoveEvent::Departed => MoveStep::Departed,
            MoveEvent::Stopped => MoveStep::Stopped { at: ms(2) },
        }
    }

    /// One that has come to this state by rows of the table.
    fn move_in(state: MoveName) -> Move {
        use MoveEvent::{Begun, BegunAlone, Departed, Ready, Stopped};
        let way: &[MoveEvent] = match state {
            MoveName::Queued => &[],
            MoveName::Alone => &[BegunAlone],
            MoveName::Rounds => &[Begun],
            MoveName::Ready => &[Begun, Ready],
            MoveName::Last => &[Begun, Ready, Departed],
            MoveName::Stopped => &[Begun, Stopped],
        };
        let mut moving = Move::queued(0, None, ms(0), Manner::default());
        way.iter().for_each(|event| assert!(moving.advance(step(*event)), "{state:?}: {event:?}"));
        moving
    }

    #[test]
    fn a_move_changes_its_state_by_every_row_of_the_table_and_by_nothing_else() {
        use MoveEvent as E;
        use MoveName::*;
        let events = [
            E::Begun,
            E::BegunAlone,
            E::NotPrepared,
            E::Ready,
            E::SlowedDown,
            E::Departed,
            E::Stopped,
        ];
        for state in [Queued, Alone, Rounds, Ready, Last, Stopped] {
            for event in events {
                let mut moving = move_in(state);
                let wanted = next(MOVES, state, event);
                assert_eq!(moving.advance(step(event)), wanted.is_some(), "{state:?}: {event:?}");
                assert_eq!(moving.name(), wanted.unwrap_or(state));
            }
        }
    }

    #[test]
    fn a_rank_is_ready_when_a_round_is_short_or_does_not_shrink() {
        let (mut live, budget) = (live(0), ms(50));
        let mut is_ready_at = |at| live.end_round(ms(at), budget).1;
        assert!(!is_ready_at(10), "the first may have put an old image in place");
        assert!(!is_ready_at(1010));
        assert!(!is_ready_at(1310), "300 ms after 1000 ms");
        assert!(is_ready_at(1590), "280 ms after 300 ms");
        // It stays so, though a later round may be longer.
        let mut moves = Moves::default();
        ready(&mut moves, 0, 0, ms(1590));
        assert!(!leaving(&mut moves, 0, 0).advance(MoveStep::Ready { since: ms(9000) }));
        assert_eq!(leaving(&mut moves, 0, 0).state.ready_since(), Some(ms(1590)));
    }

    #[test]
    fn ranks_of_a_node_depart_together() {
        let mut moves = Moves::default();
        ready(&mut moves, 0, 7, ms(100));
        leaving(&mut moves, 1, 7);
        leaving(&mut moves, 2, 8);
        assert!(moves.depart(7, ms(200)).is_empty(), "rank 1 is not ready");
        ready(&mut moves, 1, 7, ms(300));
        assert_eq!(moves.depart(7, ms(300)), [0, 1], "rank 2 is on another node");
        assert!(moves.depart(7, ms(301)).is_empty(), "each is told once");
        assert!(moves.holds(0) && moves.holds(1) && !moves.holds(2));
    }

    #[test]
    fn no_rank_waits_for_the_others_forever() {
        let mut moves = Moves::default();
        ready(&mut moves, 0, 7, ms(100));
        leaving(&mut moves, 1, 7);
        assert_eq!(moves.depart(7, ms(100) + TOGETHER), [0]);
        // One that was stopped is not waited for.
        ready(&mut moves, 2, 7, ms(6000));
        assert!(leaving(&mut moves, 1, 7).advance(MoveStep::Stopped { at: ms(6000) }));
        assert_eq!(moves.depart(7, ms(6000)), [2]);
    }

    #[test]
    fn a_rank_is_slowed_up_to_a_bound() {
        let mut moving = Move::new(0, None, ms(0), Manner::default());
        let shares: Vec<u8> = std::iter::from_fn(|| moving.slow_down()).collect();
        assert_eq!(shares, [20, 30, 40, 50, 60, 70, 80]);
    }
}
