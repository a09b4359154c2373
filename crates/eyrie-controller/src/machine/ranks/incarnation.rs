//! What is known of the present incarnation of a rank: its state, which carries what holds only in
//! it. The state changes by the table of [`crate::machine::state`] and by nothing else.

use super::capture::Capture;
use super::phases::{Death, RankRecovery};
use crate::machine::io::Source;
use crate::machine::state::{next, RankEvent, RankStateName, RANKS};
use crate::machine::timeouts::FENCE_TIMEOUT;
use eyrie_wire::{ImageId, RouterId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::time::Duration;

/// Later than any job ends.
const NEVER: Duration = Duration::from_secs(u32::MAX as u64);

/// The routers are told to refuse older incarnations; each of them has to confirm it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Fence {
    /// Routers that have not confirmed.
    waiting: BTreeSet<RouterId>,
    /// Highest receive sequence number of the rank's determinants that routers have told of.
    rsn: u64,
    since: Duration,
    until: Duration,
}

impl Fence {
    /// A fence of these routers that is asked for now.
    pub fn new(routers: impl IntoIterator<Item = RouterId>, now: Duration) -> Fence {
        let waiting = routers.into_iter().collect();
        Fence { waiting, rsn: 0, since: now, until: now + FENCE_TIMEOUT }
    }

    /// That of a rank of a saved job: no incarnation of it can speak.
    fn of_saved_job() -> Fence {
        Fence { until: NEVER, ..Fence::new([], Duration::ZERO) }
    }

    /// A router lets only the new incarnation speak. The highest receive sequence number that
    /// routers have told of, when it was the last one.
    pub fn confirm(&mut self, router: RouterId, rsn: u64) -> Option<u64> {
        if !self.waiting.remove(&router) {
            return None;
        }
        self.rsn = self.rsn.max(rsn);
        self.is_whole().then_some(self.rsn)
    }

    /// Whether every router has confirmed it.
    pub fn is_whole(&self) -> bool {
        self.waiting.is_empty()
    }

    pub fn waits_for(&self, router: RouterId) -> bool {
        self.waiting.contains(&router)
    }

    /// A router that has not confirmed it.
    pub fn first_missing(&self) -> Option<RouterId> {
        self.waiting.first().copied()
    }

    /// When it was asked for.
    pub fn since(&self) -> Duration {
        self.since
    }
}

/// What is known of an incarnation while a process of it may be on a node.
#[derive(Clone, Default, Debug, Serialize, Deserialize)]
pub struct OnNode {
    /// Its MPI library has come through the provider.
    loaded: bool,
    /// It has said that it is through with MPI.
    finalized: bool,
    /// The image that it was started from.
    started_from: Option<ImageId>,
    /// When an injected failure hit it.
    hit_at: Option<Duration>,
    /// Since when its primary router has no connection to it, which was not said yet.
    disconnected: Option<Duration>,
    capture: Option<Capture>,
}

impl OnNode {
    /// Whether its MPI library has come through the provider.
    pub fn has_loaded(&self) -> bool {
        self.loaded
    }

    /// Whether it has said that it is through with MPI.
    pub fn has_finalized(&self) -> bool {
        self.finalized
    }

    /// The checkpoint under way.
    pub fn capture(&self) -> Option<&Capture> {
        self.capture.as_ref()
    }

    /// As [`OnNode::capture`].
    pub fn capture_mut(&mut self) -> Option<&mut Capture> {
        self.capture.as_mut()
    }

    /// Its MPI library has come through the provider.
    pub fn load(&mut self) {
        self.loaded = true;
    }

    /// It is through with MPI.
    pub fn finalize(&mut self) {
        self.finalized = true;
        self.disconnected = None;
    }

    /// Its primary router has no connection to it any more.
    pub fn disconnect(&mut self, now: Duration) {
        if !self.finalized {
            self.disconnected = Some(now);
        }
    }

    /// Its primary router has a connection to it. Whether one was lost before, which was not said
    /// yet.
    pub fn reconnect(&mut self) -> bool {
        self.disconnected.take().is_some()
    }

    /// Whether it has been without a connection for so long, which was not said yet.
    pub fn stays_disconnected(&mut self, now: Duration, so_long: Duration) -> bool {
        self.disconnected.take_if(|since| now >= *since + so_long).is_some()
    }

    /// An injected failure hits it.
    pub fn hit(&mut self, now: Duration) {
        self.hit_at = Some(now);
    }

    /// A checkpoint begins.
    pub fn begin_capture(&mut self, capture: Capture) {
        self.capture = Some(capture);
    }

    /// The checkpoint under way has come to its end, a good one or a bad one.
    pub fn end_capture(&mut self) -> Option<Capture> {
        self.capture.take()
    }

    /// Whether a checkpoint may be asked for.
    fn can_be_captured(&self) -> bool {
        self.loaded && !self.finalized && self.capture.is_none()
    }

    /// How long ago it was hit by an injected failure.
    fn hit_for(&self, now: Duration) -> Option<Duration> {
        self.hit_at.map(|at| now - at)
    }
}

/// The state of a rank with what is known in it ([`RankStateName`] says what each means).
#[derive(Debug, Serialize, Deserialize)]
pub enum RankState {
    Waiting,
    /// `until`: when its agent must have started it.
    Starting {
        on_node: OnNode,
        until: Duration,
    },
    Running {
        on_node: OnNode,
    },
    Lost {
        fence: Fence,
        recovery: RankRecovery,
    },
    /// `replayed_early`: it has caught up (with so many messages) before its agent has
    /// said that it runs.
    Restoring {
        on_node: OnNode,
        recovery: RankRecovery,
        until: Duration,
        replayed_early: Option<u64>,
    },
    Replaying {
        on_node: OnNode,
        recovery: RankRecovery,
    },
    Finished {
        code: i32,
    },
    Elsewhere,
}

/// An event of the table with what comes with it.
#[derive(Debug)]
pub enum Step {
    JobStarted {
        until: Duration,
    },
    Started,
    /// `unheard`: how long ago the last sign of it was, if that is known.
    Died {
        now: Duration,
        death: Death,
        unheard: Option<Duration>,
        fence: Fence,
    },
    Fenced {
        now: Duration,
        from: Option<Source>,
        until: Duration,
    },
    Replayed,
    Exited {
        code: i32,
    },
    Left,
    Came {
        now: Duration,
        fence: Fence,
    },
    CameFinished {
        code: i32,
    },
}

impl Step {
    fn event(&self) -> RankEvent {
        match self {
            Step::JobStarted { .. } => RankEvent::JobStarted,
            Step::Started => RankEvent::Started,
            Step::Died { .. } => RankEvent::Died,
            Step::Fenced { .. } => RankEvent::Fenced,
            Step::Replayed => RankEvent::Replayed,
            Step::Exited { .. } => RankEvent::Exited,
            Step::Left => RankEvent::Left,
            Step::Came { .. } => RankEvent::Came,
            Step::CameFinished { .. } => RankEvent::CameFinished,
        }
    }
}

impl RankState {
    /// A rank of a saved job, which comes back.
    pub fn saved() -> RankState {
        let fence = Fence::of_saved_job();
        let recovery = RankRecovery::of_saved_job();
        RankState::Lost { fence, recovery }
    }

    pub fn name(&self) -> RankStateName {
        match self {
            RankState::Waiting => RankStateName::Waiting,
            RankState::Starting { .. } => RankStateName::Starting,
            RankState::Running { .. } => RankStateName::Running,
            RankState::Lost { .. } => RankStateName::Lost,
            RankState::Restoring { .. } => RankStateName::Restoring,
            RankState::Replaying { .. } => RankStateName::Replaying,
            RankState::Finished { .. } => RankStateName::Finished,
            RankState::Elsewhere => RankStateName::Elsewhere,
        }
    }

    /// When something must have happened, in the states that wait for others.
    pub fn until(&self) -> Option<Duration> {
        match self {
            RankState::Starting { until, .. } | RankState::Restoring { until, .. } => Some(*until),
            RankState::Lost { fence, .. } => Some(fence.until),
            _ => None,
        }
    }

    /// The controller itself stood still for so long: nothing else is late.
    pub fn extend(&mut self, gap: Duration) {
        match self {
            RankState::Starting { until, .. } | RankState::Restoring { until, .. } => *until += gap,
            RankState::Lost { fence, .. } => {
                fence.since += gap;
                fence.until += gap;
            }
            _ => {}
        }
    }

    /// What is known of the present incarnation, when a process of it may be there.
    pub fn on_node(&self) -> Option<&OnNode> {
        match self {
            RankState::Starting { on_node, .. }
            | RankState::Running { on_node }
            | RankState::Restoring { on_node, .. }
            | RankState::Replaying { on_node, .. } => Some(on_node),
            _ => None,
        }
    }

    /// As [`RankState::on_node`].
    pub fn on_node_mut(&mut self) -> Option<&mut OnNode> {
        match self {
            RankState::Starting { on_node, .. }
            | RankState::Running { on_node }
            | RankState::Restoring { on_node, .. }
            | RankState::Replaying { on_node, .. } => Some(on_node),
            _ => None,
        }
    }

    pub fn recovery(&self) -> Option<&RankRecovery> {
        match self {
            RankState::Lost { recovery, .. }
            | RankState::Restoring { recovery, .. }
            | RankState::Replaying { recovery, .. } => Some(recovery),
            _ => None,
        }
    }

    pub fn recovery_mut(&mut self) -> Option<&mut RankRecovery> {
        match self {
            RankState::Lost { recovery, .. }
            | RankState::Restoring { recovery, .. }
            | RankState::Replaying { recovery, .. } => Some(recovery),
            _ => None,
        }
    }

    /// The fence that the routers are told of, while it is lost.
    pub fn fence(&self) -> Option<&Fence> {
        match self {
            RankState::Lost { fence, .. } => Some(fence),
            _ => None,
        }
    }

    /// As [`RankState::fence`].
    pub fn fence_mut(&mut self) -> Option<&mut Fence> {
        match self {
            RankState::Lost { fence, .. } => Some(fence),
            _ => None,
        }
    }

    /// Whether a checkpoint may be asked for. A rank that re-executes is captured as well: one that
    /// computes for longer than the time between two failures would never get on otherwise.
    pub fn can_be_captured(&self) -> bool {
        match self {
            RankState::Running { on_node } | RankState::Replaying { on_node, .. } => {
                on_node.can_be_captured()
            }
            _ => false,
        }
    }

    /// Changes the state as the table says; false, and nothing else, when it has no row for it.
    pub fn advance(&mut self, step: Step) -> bool {
        let entered =
            next(RANKS, self.name(), step.event()).and_then(|name| self.enter(name, step));
        entered.map(|state| *self = state).is_some()
    }

    /// The state named `name`, with what it takes over from this one and what has come with `step`;
    /// `None` when the table leads there and nothing here does.
    fn enter(&self, name: RankStateName, step: Step) -> Option<RankState> {
        let on_node = self.on_node().cloned().unwrap_or_default();
        Some(match (name, step) {
            (RankStateName::Starting, Step::JobStarted { until }) => {
                RankState::Starting { on_node, until }
            }
            (RankStateName::Running, _) => RankState::Running { on_node },
            (RankStateName::Lost, Step::Died { now, death, unheard, fence }) => {
                let detected = unheard.or(on_node.hit_for(now)).unwrap_or(Duration::ZERO);
                let failed = self.recovery();
                let from = on_node.started_from;
                let recovery = RankRecovery::after(failed, now, death, detected, from);
                RankState::Lost { fence, recovery }
            }
            (RankStateName::Restoring, Step::Fenced { now, from, until }) => {
                let mut recovery = *self.recovery()?;
                recovery.place(now, from);
                let on_node = OnNode { started_from: from.map(|f| f.image), ..OnNode::default() };
                RankState::Restoring { on_node, recovery, until, replayed_early: None }
            }
            (RankStateName::Replaying, _) => {
                RankState::Replaying { on_node, recovery: *self.recovery()? }
            }
            (RankStateName::Lost, Step::Came { now, fence }) => {
                let none = Duration::ZERO;
                let recovery = RankRecovery::after(None, now, Death::Stopped, none, None);
                RankState::Lost { fence, recovery }
            }
            (RankStateName::Finished, Step::Exited { code } | Step::CameFinished { code }) => {
                RankState::Finished { code }
            }
            (RankStateName::Elsewhere, _) => RankState::Elsewhere,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(event: RankEvent) -> Step {
        let at = Duration::from_secs(1);
        let fence = Fence::new([], at);
        match event {
            RankEvent::JobStarted => Step::JobStarted { until: at },
            RankEvent::Started => Step::Started,
            RankEvent::Died => Step::Died { now: at, death: Death::Outside, unheard: None, fence },
            RankEvent::Fenced => Step::Fenced { now: at, from: None, until: at },
            RankEvent::Replayed => Step::Replayed,
            RankEvent::Exited => Step::Exited { code: 0 },
            RankEvent::Left => Step::Left,
            RankEvent::Came => Step::Came { now: at, fence },
            RankEvent::CameFinished => Step::CameFinished { code: 0 },
        }
    }

    /// A rank in this state, come there by rows of the table.
    fn rank_in(state: RankStateName) -> RankState {
        use RankEvent::{Died, Exited, Fenced, JobStarted, Started};
        let way: &[RankEvent] = match state {
            RankStateName::Waiting => &[],
            RankStateName::Starting => &[JobStarted],
            RankStateName::Running => &[JobStarted, Started],
            RankStateName::Lost => &[JobStarted, Died],
            RankStateName::Restoring => &[JobStarted, Died, Fenced],
            RankStateName::Replaying => &[JobStarted, Died, Fenced, Started],
            RankStateName::Finished => &[JobStarted, Exited],
            RankStateName::Elsewhere => return RankState::Elsewhere,
        };
        let mut rank = RankState::Waiting;
        way.iter().for_each(|event| assert!(rank.advance(step(*event)), "{state:?}: {event:?}"));
        rank
    }

    #[test]
    fn a_rank_changes_its_state_by_every_row_of_the_table_and_by_nothing_else() {
        use RankEvent::*;
        use RankStateName::*;
        for state in [Waiting, Starting, Running, Lost, Restoring, Replaying, Finished, Elsewhere] {
            let of_domains = [Left, Came, CameFinished];
            let events = [JobStarted, Started, Died, Fenced, Replayed, Exited];
            for event in events.into_iter().chain(of_domains) {
                let mut rank = rank_in(state);
                let wanted = next(RANKS, state, event);
                assert_eq!(rank.advance(step(event)), wanted.is_some(), "{state:?}: {event:?}");
                assert_eq!(rank.name(), wanted.unwrap_or(state));
            }
        }
    }

    #[test]
    fn nothing_of_a_dead_incarnation_is_left_in_the_next() {
        let mut rank = rank_in(RankStateName::Running);
        if let Some(on_node) = rank.on_node_mut() {
            (on_node.loaded, on_node.finalized) = (true, true);
            (on_node.hit_at, on_node.started_from) = (Some(Duration::ZERO), Some(ImageId(7)));
        }
        for event in [RankEvent::Died, RankEvent::Fenced] {
            assert!(rank.advance(step(event)));
        }
        let left = rank.on_node().unwrap();
        assert!(!left.has_loaded() && !left.has_finalized() && left.hit_at.is_none());
        assert_eq!(
            (left.started_from, rank.recovery().unwrap().died_from()),
            (None, Some(ImageId(7)))
        );
    }

    #[test]
    fn a_fence_is_whole_when_every_router_has_confirmed_it() {
        let mut fence = Fence::new(RouterId::first(2), Duration::ZERO);
        assert_eq!(
            (fence.confirm(RouterId(1), 7), fence.first_missing()),
            (None, Some(RouterId(0)))
        );
        assert_eq!(fence.confirm(RouterId(1), 9), None, "it is counted once");
        assert!(fence.waits_for(RouterId(0)) && !fence.is_whole());
        assert_eq!(fence.confirm(RouterId(0), 3), Some(7), "the highest of all routers");
        assert!(fence.is_whole() && Fence::of_saved_job().is_whole());
    }
}
