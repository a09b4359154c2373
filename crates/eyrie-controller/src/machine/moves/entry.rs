//! A rank on its way to another node. Its state changes by the table of [`crate::machine::state`]
//! and by nothing else.

use super::live::Live;
use crate::machine::state::{next, MoveEvent, MoveName, MOVES};
use crate::machine::timeouts::IMAGE_TIMEOUT;
use eyrie_interface::{Manner, Way};
use eyrie_wire::NodeId;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// How long a rank that is ready waits for others of its node, so that all of them stand still at
/// the same time and their peers wait once.
const TOGETHER: Duration = Duration::from_secs(5);

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
enum MoveStep {
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
    from: NodeId,
    /// `None`: where the placement says.
    to: Option<NodeId>,
    /// An image that was asked for since then is the one that it goes with.
    since: Duration,
    /// When it last came nearer: it was begun, or a round was over.
    progress: Duration,
    /// Since when it has stood still for its last image.
    still: Option<Duration>,
    manner: Manner,
    /// The share of time for which it is made to stand still, in percent.
    slowed: u8,
    state: MoveState,
}

impl Move {
    /// One that was asked for now.
    pub fn new(from: NodeId, to: Option<NodeId>, since: Duration, manner: Manner) -> Move {
        let progress = since;
        let state = MoveState::Alone;
        Move { from, to, since, progress, still: None, manner, slowed: 0, state }
    }

    /// One that waits until others of its node have gone.
    pub fn queued(from: NodeId, to: Option<NodeId>, since: Duration, manner: Manner) -> Move {
        Move { state: MoveState::Queued, ..Move::new(from, to, since, manner) }
    }

    /// The node that it is to leave.
    pub fn from(&self) -> NodeId {
        self.from
    }

    /// The node that it was asked to go to; `None`: where the placement says.
    pub fn asked_for(&self) -> Option<NodeId> {
        self.to
    }

    pub fn manner(&self) -> Manner {
        self.manner
    }

    /// The share of time for which it is made to stand still, in percent.
    pub fn slowed(&self) -> u8 {
        self.slowed
    }

    /// It begins, by rounds where it is known where it is going.
    pub fn begin(&mut self, live: Option<Live>, now: Duration) {
        self.advance(live.map_or(MoveStep::BegunAlone, MoveStep::Begun));
        self.progress = now;
    }

    /// A round is over that brought so many bytes; `None` when there are no rounds.
    pub fn end_round(&mut self, now: Duration, bytes: u64) -> Option<Round> {
        let budget = self.manner.pause_budget;
        let live = self.live_mut()?;
        let (took, enough) = live.end_round(now, bytes, budget);
        let n = live.rounds();
        self.progress = now;
        let is_ready = enough && self.advance(MoveStep::Ready { since: now });
        Some(Round { n, took, is_too_slow: is_ready && took > budget })
    }

    /// Its memory cannot be put in place there: it goes by its image alone.
    pub fn go_alone(&mut self) {
        self.advance(MoveStep::NotPrepared);
    }

    /// It need not wait for others any more: its next image is the last one. False: it does not
    /// wait.
    pub fn depart(&mut self) -> bool {
        self.advance(MoveStep::Departed)
    }

    /// It stands still for its last image.
    pub fn stand_still(&mut self, since: Duration) {
        self.still = Some(since);
    }

    /// Whether it goes with an image that was asked for then.
    pub fn goes_with(&self, asked: Duration) -> bool {
        self.stopped().is_none() && asked >= self.since
    }

    /// It could not go with its last image, and computes on: another one is needed.
    pub fn compute_on(&mut self, now: Duration) {
        (self.since, self.still) = (now, None);
    }

    /// It is stopped for its move.
    pub fn stop(&mut self, now: Duration) {
        self.advance(MoveStep::Stopped { at: now });
    }

    /// It has died. Its new process is not slowed.
    pub fn die(&mut self, now: Duration) {
        self.stop(now);
        self.slowed = 0;
    }

    /// For how long it has stood still until now; `None` when it was not stopped.
    pub fn pause(&self, now: Duration) -> Option<Duration> {
        self.stopped().map(|stopped| now - self.still.unwrap_or(stopped))
    }

    /// Changes the state as the table says; false, and nothing else, when it has no row for it.
    fn advance(&mut self, step: MoveStep) -> bool {
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
    pub fn goes_to(&self) -> Option<NodeId> {
        self.live().map(Live::node).or(self.to)
    }

    /// Whether its next image is the last one of its move.
    pub fn holds(&self) -> bool {
        match self.manner.way {
            Way::Live => self.name() == MoveName::Last,
            Way::Stop => self.stopped().is_none(),
        }
    }

    /// Whether others of its node may have to wait for it.
    pub fn is_getting_ready(&self) -> bool {
        self.name() == MoveName::Rounds
    }

    /// Whether it has waited for others of its node for too long.
    pub fn has_waited(&self, now: Duration) -> bool {
        self.state.ready_since().is_some_and(|since| now >= since + TOGETHER)
    }

    /// Whether it has not come nearer for too long, and is not about to.
    pub fn is_late(&self, now: Duration) -> bool {
        let waits = matches!(self.state, MoveState::Queued | MoveState::Stopped { .. });
        !waits && now >= self.progress + IMAGE_TIMEOUT
    }

    /// It is slowed one step more, and goes on with rounds: the share of time for which it is made
    /// to stand still. `None` when it is slowed as much as can be.
    pub fn slow_down(&mut self) -> Option<u8> {
        let share = if self.slowed == 0 { SLOWED_FIRST } else { self.slowed + SLOWED_STEP };
        (share <= SLOWEST).then(|| {
            self.slowed = share;
            self.advance(MoveStep::SlowedDown);
            share
        })
    }

    /// It is not slowed any more. False: it was not.
    pub fn end_slowing(&mut self) -> bool {
        std::mem::take(&mut self.slowed) != 0
    }

    /// The controller itself stood still for so long.
    pub fn extend(&mut self, gap: Duration) {
        self.progress += gap;
    }
}

/// A round that is over.
#[derive(Clone, Copy, Debug)]
pub struct Round {
    pub n: u32,
    pub took: Duration,
    /// More rounds would not help, and its last one is longer than its pause may be.
    pub is_too_slow: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use eyrie_wire::RankInstance;
    use eyrie_wire::{Incarnation, Rank};

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn live() -> Live {
        Live::new(NodeId(9), RankInstance { rank: Rank(0), incarnation: Incarnation(2) }, ms(0))
    }

    fn step(event: MoveEvent) -> MoveStep {
        match event {
            MoveEvent::Begun => MoveStep::Begun(live()),
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
        let mut moving = Move::queued(NodeId(0), None, ms(0), Manner::default());
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
    fn a_rank_is_slowed_up_to_a_bound() {
        let mut moving = Move::new(NodeId(0), None, ms(0), Manner::default());
        let shares: Vec<u8> = std::iter::from_fn(|| moving.slow_down()).collect();
        assert_eq!(shares, [20, 30, 40, 50, 60, 70, 80]);
    }

    #[test]
    fn a_rank_that_is_ready_stays_so_though_a_later_round_may_be_longer() {
        let manner = Manner { pause_budget: ms(50), ..Manner::default() };
        let mut moving = Move::new(NodeId(0), None, ms(0), manner);
        assert!(moving.end_round(ms(0), 1).is_none(), "it has not begun");
        moving.begin(Some(live()), ms(0));
        for at in [10, 1010] {
            assert!(!moving.end_round(ms(at), 1).unwrap().is_too_slow);
        }
        let round = moving.end_round(ms(2010), 1).unwrap();
        assert!((round.n, round.took, round.is_too_slow) == (3, ms(1000), true));
        assert_eq!((moving.name(), moving.state.ready_since()), (MoveName::Ready, Some(ms(2010))));
        assert!(!moving.end_round(ms(9000), 1).unwrap().is_too_slow, "it is said once");
        assert_eq!(moving.state.ready_since(), Some(ms(2010)));
        assert!(moving.has_waited(ms(2010) + TOGETHER) && !moving.has_waited(ms(2010)));
        assert_eq!((moving.slow_down(), moving.name()), (Some(20), MoveName::Rounds));
        assert!(moving.end_slowing() && !moving.end_slowing());
    }

    #[test]
    fn its_pause_begins_when_it_stands_still_or_dies() {
        let mut moving = Move::new(NodeId(0), None, ms(5), Manner::default());
        assert!(!moving.goes_with(ms(4)) && moving.goes_with(ms(5)));
        moving.stand_still(ms(10));
        moving.compute_on(ms(20));
        assert!(!moving.goes_with(ms(19)) && moving.pause(ms(50)).is_none());
        moving.stand_still(ms(30));
        moving.stop(ms(40));
        assert_eq!((moving.pause(ms(50)), moving.goes_with(ms(20))), (Some(ms(20)), false));
        let mut moving = Move::new(NodeId(0), None, ms(5), Manner::default());
        moving.die(ms(40));
        assert_eq!(moving.pause(ms(50)), Some(ms(10)));
    }
}
