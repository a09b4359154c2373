//! What the controller knows of one rank: its state, which carries what holds only in it, and what
//! outlives its incarnations. The state changes by the table of [`crate::machine::state`] and by
//! nothing else.

use super::capture::Capture;
use super::crash::{Again, Crashes};
use super::log::RankLog;
use crate::machine::images::copies::Copies;
use crate::machine::io::{Image, Mark, Source, StoreId};
use crate::machine::state::{next, RankEvent, RankStateName, RANKS};
use crate::machine::timeouts::FENCE_TIMEOUT;
use crate::record::{Cause, Phases};
use eyrie_transport::RouterId;
use eyrie_wire::{ImageId, Incarnation, Node, Rank, RankInstance};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::time::Duration;

/// Later than any job ends.
const NEVER: Duration = Duration::from_secs(u32::MAX as u64);

/// Restores of one image in a row that may fail, by no fault that is known to be the image's,
/// before it is discarded.
pub const RESTORE_ATTEMPTS: u32 = 3;

/// How a death is counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Death {
    Signal(i32),
    /// By no fault of the rank: its node, its restore.
    Outside,
}

/// An image that counts.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct KeptImage {
    pub image: Image,
    /// The incarnation that it shows.
    pub instance: RankInstance,
    /// When it was asked for; zero when the job went on from it.
    pub asked: Duration,
    pub copies: Copies,
    /// The job was saved with it: it is not discarded for a newer one, so that the job can
    /// be gone on with from there again.
    pub saved: bool,
}

/// A recovery under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Recovery {
    pub death: Death,
    /// The image that the dead incarnation was started from, and the one that this one is.
    pub died_from: Option<ImageId>,
    pub from: Option<Source>,
    /// The store from which an image could not be fetched last.
    pub avoid: Option<StoreId>,
    pub phases: Phases,
    /// End of the last phase that is done.
    pub mark: Duration,
    /// Restores of the image that failed, in a row.
    pub failed_attempts: u32,
}

/// The routers are told to refuse older incarnations; each of them has to confirm it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Fence {
    /// Routers that have not confirmed.
    pub waiting: BTreeSet<RouterId>,
    /// Highest receive sequence number of the rank's determinants that routers have told of.
    pub rsn: u64,
    pub since: Duration,
    pub until: Duration,
}

impl Fence {
    /// A fence of so many routers that is asked for now.
    pub fn new(routers: u32, now: Duration) -> Fence {
        let waiting = (0..routers).collect();
        Fence { waiting, rsn: 0, since: now, until: now + FENCE_TIMEOUT }
    }
}

/// What is known of an incarnation while a process of it may be on a node.
#[derive(Clone, Default, Debug, Serialize, Deserialize)]
pub struct OnNode {
    /// Its MPI library has come through the provider.
    pub loaded: bool,
    /// It has said that it is through with MPI.
    pub finalized: bool,
    /// The image that it was started from.
    pub started_from: Option<ImageId>,
    /// When an injected failure hit it.
    pub hit_at: Option<Duration>,
    pub capture: Option<Capture>,
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
        recovery: Recovery,
    },
    /// `replayed_early`: it has caught up (with so many messages) before its agent has
    /// said that it runs.
    Restoring {
        on_node: OnNode,
        recovery: Recovery,
        until: Duration,
        replayed_early: Option<u64>,
    },
    Replaying {
        on_node: OnNode,
        recovery: Recovery,
    },
    Finished {
        code: i32,
    },
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
        }
    }
}

impl RankState {
    /// A rank of a saved job: no incarnation of it can speak.
    pub fn saved() -> RankState {
        let zero = Duration::ZERO;
        RankState::Lost {
            fence: Fence { waiting: BTreeSet::new(), rsn: 0, since: zero, until: NEVER },
            recovery: Recovery {
                death: Death::Outside,
                died_from: None,
                from: None,
                avoid: None,
                phases: Phases::default(),
                mark: zero,
                failed_attempts: 0,
            },
        }
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

    fn on_node(&self) -> Option<&OnNode> {
        match self {
            RankState::Starting { on_node, .. }
            | RankState::Running { on_node }
            | RankState::Restoring { on_node, .. }
            | RankState::Replaying { on_node, .. } => Some(on_node),
            _ => None,
        }
    }

    fn on_node_mut(&mut self) -> Option<&mut OnNode> {
        match self {
            RankState::Starting { on_node, .. }
            | RankState::Running { on_node }
            | RankState::Restoring { on_node, .. }
            | RankState::Replaying { on_node, .. } => Some(on_node),
            _ => None,
        }
    }

    pub fn recovery(&self) -> Option<&Recovery> {
        match self {
            RankState::Lost { recovery, .. }
            | RankState::Restoring { recovery, .. }
            | RankState::Replaying { recovery, .. } => Some(recovery),
            _ => None,
        }
    }

    pub fn recovery_mut(&mut self) -> Option<&mut Recovery> {
        match self {
            RankState::Lost { recovery, .. }
            | RankState::Restoring { recovery, .. }
            | RankState::Replaying { recovery, .. } => Some(recovery),
            _ => None,
        }
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
                let recovery = self.recovery_after(now, death, unheard, &on_node);
                RankState::Lost { fence, recovery }
            }
            (RankStateName::Restoring, Step::Fenced { now, from, until }) => {
                let mut recovery = *self.recovery()?;
                recovery.from = from;
                recovery.phases.placed = now - recovery.mark;
                recovery.mark = now;
                let on_node = OnNode { started_from: from.map(|f| f.image), ..OnNode::default() };
                RankState::Restoring { on_node, recovery, until, replayed_early: None }
            }
            (RankStateName::Replaying, _) => {
                RankState::Replaying { on_node, recovery: *self.recovery()? }
            }
            (RankStateName::Finished, Step::Exited { code }) => RankState::Finished { code },
            _ => return None,
        })
    }

    /// The recovery that begins with a death. One that failed goes on under the same clock: what it
    /// took so far was detection.
    fn recovery_after(
        &self,
        now: Duration,
        death: Death,
        unheard: Option<Duration>,
        dead: &OnNode,
    ) -> Recovery {
        let failed = self.recovery();
        let before =
            failed.map_or(Duration::ZERO, |v| v.phases.total() + now.saturating_sub(v.mark));
        let since_hit = dead.hit_at.map(|at| now - at);
        let detected = before + unheard.or(since_hit).unwrap_or(Duration::ZERO);
        Recovery {
            death,
            died_from: dead.started_from,
            from: None,
            avoid: failed.and_then(|v| v.avoid),
            phases: Phases { detected, ..Phases::default() },
            mark: now,
            failed_attempts: failed.map_or(0, |v| v.failed_attempts),
        }
    }
}

/// One rank.
#[derive(Debug, Serialize, Deserialize)]
pub struct RankEntry {
    pub rank: Rank,
    pub incarnation: Incarnation,
    pub node: Node,
    pub state: RankState,
    /// In any incarnation.
    pub spoke_pmi: bool,
    /// At most two, older first.
    pub images: Vec<KeptImage>,
    pub next_image: ImageId,
    pub log: RankLog,
    /// Images in a row that could not count because a file of theirs was gone.
    pub unusable: u32,
    /// Since when there is no newer image: one counted then, or its process began.
    pub imaged: Duration,
    /// Why the last image since then failed.
    pub refused: Option<Cause>,
    pub crashes: Crashes,
}

impl RankEntry {
    pub fn new(rank: Rank, node: Node) -> RankEntry {
        RankEntry {
            rank,
            incarnation: 1,
            node,
            state: RankState::Waiting,
            spoke_pmi: false,
            images: Vec::new(),
            next_image: 1,
            log: RankLog::default(),
            unusable: 0,
            imaged: Duration::ZERO,
            refused: None,
            crashes: Crashes::default(),
        }
    }

    pub fn instance(&self) -> RankInstance {
        RankInstance { rank: self.rank, incarnation: self.incarnation }
    }

    /// Changes the state as the table says; false, and nothing else, when it has no row for it.
    pub fn advance(&mut self, step: Step) -> bool {
        let entered = next(RANKS, self.state.name(), step.event())
            .and_then(|name| self.state.enter(name, step));
        entered.map(|state| self.state = state).is_some()
    }

    /// The exit code of its program, once that has ended.
    pub fn code(&self) -> Option<i32> {
        match self.state {
            RankState::Finished { code } => Some(code),
            _ => None,
        }
    }

    pub fn is(&self, name: RankStateName) -> bool {
        self.state.name() == name
    }

    /// What is known of the present incarnation, when a process of it may be there.
    pub fn on_node(&self) -> Option<&OnNode> {
        self.state.on_node()
    }

    /// As [`RankEntry::on_node`].
    pub fn on_node_mut(&mut self) -> Option<&mut OnNode> {
        self.state.on_node_mut()
    }

    /// The checkpoint under way.
    pub fn capture(&self) -> Option<&Capture> {
        self.on_node()?.capture.as_ref()
    }

    /// As [`RankEntry::capture`].
    pub fn capture_mut(&mut self) -> Option<&mut Capture> {
        self.on_node_mut()?.capture.as_mut()
    }

    /// A checkpoint begins.
    pub fn begin_capture(&mut self, capture: Capture) {
        if let Some(on_node) = self.on_node_mut() {
            on_node.capture = Some(capture);
        }
    }

    /// A checkpoint has come to its end, a good one or a bad one.
    pub fn end_capture(&mut self) -> Option<Capture> {
        self.on_node_mut()?.capture.take()
    }

    /// Whether a checkpoint may be asked for. A rank that re-executes is captured as well: one that
    /// computes for longer than the time between two failures would never get on otherwise.
    pub fn can_be_captured(&self) -> bool {
        match &self.state {
            RankState::Running { on_node } | RankState::Replaying { on_node, .. } => {
                on_node.loaded && !on_node.finalized && on_node.capture.is_none()
            }
            _ => false,
        }
    }

    /// Whether images of it are expected.
    pub fn can_be_overdue(&self) -> bool {
        self.is(RankStateName::Running) || self.is(RankStateName::Replaying)
    }

    /// The image to come back from; an error when neither an image nor the whole log is left.
    pub fn way_back(&self) -> Result<Option<&KeptImage>, String> {
        if self.log.is_lost() {
            return Err("its log was lost with its router, and no checkpoint has followed".into());
        }
        if self.log.has_hole() {
            return Err("its log could not be kept, or began anew with another router, and no \
                        checkpoint has followed"
                .into());
        }
        match self.images.last() {
            Some(kept) => Ok(Some(kept)),
            None if self.log.is_truncated() => {
                Err("no whole image is left, and its log no longer reaches back to the start"
                    .into())
            }
            None => Ok(None),
        }
    }

    /// Whether all but the last of the attempts to bring it up on its node have failed. That one is
    /// made on another node, as the node may be at fault: one with too little memory, say.
    pub fn node_may_be_at_fault(&self) -> bool {
        let restores = self.state.recovery().map_or(0, |v| v.failed_attempts);
        restores + 1 >= RESTORE_ATTEMPTS || self.crashes.next_is_last()
    }

    /// Whether only an image to come can bring it back, should it die.
    pub fn is_exposed(&self) -> bool {
        self.log.has_hole() || (self.images.is_empty() && self.log.is_truncated())
    }

    /// Counts a death at what is known of it; returns what is known of all without progress when
    /// they are too many.
    pub fn count_death(&mut self, mark: Mark) -> Option<(i32, Again)> {
        let recovery = self.state.recovery()?;
        let signal = match recovery.death {
            Death::Signal(signal) => Some(signal),
            Death::Outside => None,
        };
        let again = self.crashes.note(signal, mark, recovery.died_from)?;
        signal.map(|s| (s, again))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(event: RankEvent) -> Step {
        let at = Duration::from_secs(1);
        let fence = Fence { waiting: BTreeSet::new(), rsn: 0, since: at, until: at };
        match event {
            RankEvent::JobStarted => Step::JobStarted { until: at },
            RankEvent::Started => Step::Started,
            RankEvent::Died => Step::Died { now: at, death: Death::Outside, unheard: None, fence },
            RankEvent::Fenced => Step::Fenced { now: at, from: None, until: at },
            RankEvent::Replayed => Step::Replayed,
            RankEvent::Exited => Step::Exited { code: 0 },
        }
    }

    /// A rank in this state, come there by rows of the table.
    fn rank_in(state: RankStateName) -> RankEntry {
        use RankEvent::{Died, Exited, Fenced, JobStarted, Started};
        let way: &[RankEvent] = match state {
            RankStateName::Waiting => &[],
            RankStateName::Starting => &[JobStarted],
            RankStateName::Running => &[JobStarted, Started],
            RankStateName::Lost => &[JobStarted, Died],
            RankStateName::Restoring => &[JobStarted, Died, Fenced],
            RankStateName::Replaying => &[JobStarted, Died, Fenced, Started],
            RankStateName::Finished => &[JobStarted, Exited],
        };
        let mut rank = RankEntry::new(0, 0);
        way.iter().for_each(|event| assert!(rank.advance(step(*event)), "{state:?}: {event:?}"));
        rank
    }

    #[test]
    fn a_rank_changes_its_state_by_every_row_of_the_table_and_by_nothing_else() {
        use RankEvent::*;
        use RankStateName::*;
        for state in [Waiting, Starting, Running, Lost, Restoring, Replaying, Finished] {
            for event in [JobStarted, Started, Died, Fenced, Replayed, Exited] {
                let mut rank = rank_in(state);
                let wanted = next(RANKS, state, event);
                assert_eq!(rank.advance(step(event)), wanted.is_some(), "{state:?}: {event:?}");
                assert_eq!(rank.state.name(), wanted.unwrap_or(state));
            }
        }
    }

    #[test]
    fn nothing_of_a_dead_incarnation_is_left_in_the_next() {
        let mut rank = rank_in(RankStateName::Running);
        if let Some(on_node) = rank.on_node_mut() {
            (on_node.loaded, on_node.finalized) = (true, true);
            (on_node.hit_at, on_node.started_from) = (Some(Duration::ZERO), Some(7));
        }
        for event in [RankEvent::Died, RankEvent::Fenced] {
            assert!(rank.advance(step(event)));
        }
        let left = rank.on_node().unwrap();
        assert!(!left.loaded && !left.finalized && left.hit_at.is_none());
        assert_eq!((left.started_from, rank.state.recovery().unwrap().died_from), (None, Some(7)));
    }
}
