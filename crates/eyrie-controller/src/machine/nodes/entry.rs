//! What the controller knows of one node: its state, which carries what holds only in it. The state
//! changes by the table of [`crate::machine::state`] and by nothing else.

use crate::machine::state::{next, NodeEvent, NodeStateName, NODES};
use eyrie_wire::NodeId;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The heartbeats of a node that is up: one is asked for when the last was answered.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Heartbeat {
    /// The last one that was asked for, and when the last answer came.
    asked: u64,
    asked_at: Duration,
    heard_at: Duration,
    answered: bool,
}

impl Heartbeat {
    /// Of a node that comes up now.
    fn new(now: Duration) -> Heartbeat {
        Heartbeat { asked: 0, asked_at: now, heard_at: now, answered: true }
    }

    /// Whether the node has answered, and is to be asked again.
    pub fn is_due(&self, now: Duration, interval: Duration) -> bool {
        self.answered && now >= self.asked_at + interval
    }

    /// The node is asked; the number of this heartbeat.
    pub fn ask(&mut self, now: Duration) -> u64 {
        self.asked += 1;
        self.asked_at = now;
        self.answered = false;
        self.asked
    }

    /// Whether this is the number of the last one that was asked for.
    pub fn is_last(&self, n: u64) -> bool {
        self.asked == n
    }

    /// The node says something: it may be asked again.
    pub fn hear(&mut self, now: Duration) {
        self.answered = true;
        self.heard_at = now;
    }

    /// The node has its time to answer from now on.
    pub fn give_time(&mut self, now: Duration) {
        self.heard_at = now;
    }

    /// For how long nothing was heard of the node; `None` when it has answered.
    pub fn silent_for(&self, now: Duration) -> Option<Duration> {
        (!self.answered).then(|| now.saturating_sub(self.heard_at))
    }

    /// When the node is to be asked again, or is late: it answers within `timeout`. Never later
    /// than an interval from now.
    pub fn next(&self, now: Duration, interval: Duration, timeout: Duration) -> Duration {
        if self.answered {
            self.asked_at + interval
        } else {
            // A longer sleep would look like a controller that was stopped.
            (self.heard_at + timeout).min(now + interval)
        }
    }

    /// The controller itself stood still for so long.
    pub fn extend(&mut self, gap: Duration) {
        self.asked_at += gap;
        self.heard_at += gap;
    }
}

/// The state of a node with what is known in it ([`NodeStateName`] says what each means).
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum NodeState {
    Expected,
    Up(Heartbeat),
    Dead,
}

/// One node.
#[derive(Debug, Serialize, Deserialize)]
pub struct NodeEntry {
    state: NodeState,
    /// Started without ranks and has had none.
    free_spare: bool,
    replaces: Option<NodeId>,
    /// Nothing is to be there: ranks leave it, and none comes.
    drained: bool,
    /// Since when a store could not work there: its disk is full.
    full: Option<Duration>,
    /// Its agent ends as soon as it is told to.
    leaves: bool,
}

impl NodeEntry {
    pub fn new(spare: bool) -> NodeEntry {
        NodeEntry {
            state: NodeState::Expected,
            free_spare: spare,
            replaces: None,
            drained: false,
            full: None,
            leaves: false,
        }
    }

    pub fn state(&self) -> NodeStateName {
        match self.state {
            NodeState::Expected => NodeStateName::Expected,
            NodeState::Up(_) => NodeStateName::Up,
            NodeState::Dead => NodeStateName::Dead,
        }
    }

    pub fn is_up(&self) -> bool {
        matches!(self.state, NodeState::Up(_))
    }

    /// Whether nothing is to be there: ranks leave it, and none comes.
    pub fn is_drained(&self) -> bool {
        self.drained
    }

    /// Whether it was started without ranks and has had none.
    pub fn is_free_spare(&self) -> bool {
        self.free_spare
    }

    /// The lost node that this spare replaces: its ranks come here.
    pub fn replaces(&self) -> Option<NodeId> {
        self.replaces
    }

    /// Since when a store could not work there.
    pub fn full_since(&self) -> Option<Duration> {
        self.full
    }

    /// Whether its agent ends as soon as it is told to.
    pub fn leaves(&self) -> bool {
        self.leaves
    }

    /// Nothing is to come to the node any more.
    pub fn close(&mut self) {
        (self.drained, self.free_spare) = (true, false);
    }

    /// Ranks may come to the node again; an `empty` one is a spare.
    pub fn reopen(&mut self, empty: bool) {
        (self.drained, self.free_spare) = (false, empty);
    }

    /// A rank comes to it: it is no free spare any more.
    pub fn receive(&mut self) {
        self.free_spare = false;
    }

    /// A rank comes to it whose node is lost, and to which it was assigned as a spare: it replaces
    /// that node from now on. Returns whether that is new. It may have taken another rank since.
    pub fn replace(&mut self, lost: NodeId) -> bool {
        let was_free = std::mem::replace(&mut self.free_spare, false);
        let is_new = was_free || self.replaces.is_none();
        if is_new {
            self.replaces = Some(lost);
        }
        is_new
    }

    /// A store cannot work there: its disk is full. Returns whether that is new.
    pub fn note_full(&mut self, now: Duration) -> bool {
        self.full.replace(now).is_none()
    }

    /// Its agent ends as soon as it is told to.
    pub fn is_to_leave(&mut self) {
        self.leaves = true;
    }

    /// The heartbeats, while it is up.
    pub fn heartbeat(&self) -> Option<&Heartbeat> {
        match &self.state {
            NodeState::Up(heartbeat) => Some(heartbeat),
            _ => None,
        }
    }

    /// As [`NodeEntry::heartbeat`].
    pub fn heartbeat_mut(&mut self) -> Option<&mut Heartbeat> {
        match &mut self.state {
            NodeState::Up(heartbeat) => Some(heartbeat),
            _ => None,
        }
    }

    /// Changes the state as the table says; false, and nothing else, when it has no row for it.
    pub fn advance(&mut self, event: NodeEvent, now: Duration) -> bool {
        let Some(name) = next(NODES, self.state(), event) else { return false };
        self.state = match name {
            NodeStateName::Expected => NodeState::Expected,
            NodeStateName::Up => NodeState::Up(Heartbeat::new(now)),
            NodeStateName::Dead => NodeState::Dead,
        };
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// One that has come to this state by rows of the table.
    fn node_in(state: NodeStateName) -> NodeEntry {
        let way: &[NodeEvent] = match state {
            NodeStateName::Expected => &[],
            NodeStateName::Up => &[NodeEvent::AgentUp],
            NodeStateName::Dead => &[NodeEvent::AgentUp, NodeEvent::AgentGone],
        };
        let mut node = NodeEntry::new(false);
        way.iter().for_each(|event| assert!(node.advance(*event, s(1)), "{state:?}: {event:?}"));
        node
    }

    #[test]
    fn a_node_changes_its_state_by_every_row_of_the_table_and_by_nothing_else() {
        use NodeEvent::*;
        use NodeStateName::*;
        for state in [Expected, Up, Dead] {
            for event in [AgentUp, AgentGone, HeartbeatMissed] {
                let mut node = node_in(state);
                let wanted = next(NODES, state, event);
                assert_eq!(node.advance(event, s(2)), wanted.is_some(), "{state:?}: {event:?}");
                assert_eq!(node.state(), wanted.unwrap_or(state));
                assert_eq!(node.heartbeat().is_some(), node.is_up());
            }
        }
    }

    #[test]
    fn a_spare_replaces_the_first_node_whose_rank_it_takes() {
        let mut spare = NodeEntry::new(true);
        assert!(spare.replace(NodeId(4)) && !spare.replace(NodeId(5)));
        assert_eq!((spare.replaces(), spare.is_free_spare()), (Some(NodeId(4)), false));
        spare.close();
        assert!(spare.is_drained());
        spare.reopen(true);
        assert!(spare.is_free_spare() && !spare.is_drained());
        spare.close();
        assert!(!spare.is_free_spare(), "a drained node is no spare");
    }

    #[test]
    fn a_node_is_silent_from_its_last_word_on_while_it_is_asked() {
        let (interval, timeout) = (s(1), s(4));
        let mut beat = Heartbeat::new(s(10));
        assert_eq!((beat.silent_for(s(20)), beat.next(s(10), interval, timeout)), (None, s(11)));
        assert!(!beat.is_due(s(10), interval) && beat.is_due(s(11), interval));
        assert_eq!((beat.ask(s(11)), beat.is_due(s(20), interval)), (1, false));
        assert_eq!(beat.silent_for(s(12)), Some(s(2)));
        assert_eq!(beat.next(s(11), interval, timeout), s(12), "never later than an interval");
        assert_eq!(beat.next(s(13) + s(1), interval, timeout), s(14), "when it is late");
        assert!(beat.is_last(1) && !beat.is_last(2));
        beat.extend(s(5));
        assert_eq!(beat.silent_for(s(17)), Some(s(2)));
        beat.hear(s(18));
        assert_eq!(beat.silent_for(s(30)), None);
    }
}
