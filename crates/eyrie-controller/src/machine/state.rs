//! The tables of states: which event takes a rank, a node, a checkpoint, a role, a move or the
//! saving of the job from which state to which. The machine changes a state only by a row of them;
//! what has no row changes nothing.

use std::fmt::Debug;

/// One row: in `state`, `event` leads to `next`.
#[derive(Clone, Copy, Debug)]
pub struct Row<S, E> {
    pub state: S,
    pub event: E,
    pub next: S,
}

/// The state that follows, when the table has a row for it.
pub fn next<S: Copy + PartialEq, E: PartialEq>(
    table: &[Row<S, E>],
    state: S,
    event: E,
) -> Option<S> {
    table.iter().find(|row| row.state == state && row.event == event).map(|row| row.next)
}

const fn row<S, E>(state: S, event: E, next: S) -> Row<S, E> {
    Row { state, event, next }
}

/// Where a rank stands.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum RankStateName {
    /// The nodes are not up yet.
    Waiting,
    /// Its agent was told to start the program.
    Starting,
    Running,
    /// It died; the routers are told to let only its next incarnation speak.
    Lost,
    /// Its agent was told to bring it back, from an image or from the program's beginning.
    Restoring,
    /// It runs, and re-executes what earlier incarnations had done.
    Replaying,
    /// It has ended well.
    Finished,
    /// It is a rank of another domain: it takes no part in anything here.
    Elsewhere,
}

/// What changes the state of a rank.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum RankEvent {
    /// All agents are up: the job starts.
    JobStarted,
    /// Its agent says that the process runs, or goes on from its image.
    Started,
    /// It was killed, could not be started or restored, or its node was declared dead.
    Died,
    /// Every router lets only the new incarnation speak.
    Fenced,
    /// It has followed its last determinant.
    Replayed,
    /// The program has ended by itself.
    Exited,
    /// It is a rank of another domain from now on.
    Left,
    /// It is no rank of another domain any more; the routers are told to let only its next
    /// incarnation speak.
    Came,
    /// The same, of one that has ended.
    CameFinished,
}

/// The life cycle of a rank.
pub const RANKS: &[Row<RankStateName, RankEvent>] = {
    use RankEvent::*;
    use RankStateName::*;
    &[
        row(Waiting, JobStarted, Starting),
        row(Starting, Started, Running),
        row(Starting, Died, Lost),
        row(Starting, Exited, Finished),
        row(Running, Died, Lost),
        row(Running, Exited, Finished),
        row(Lost, Fenced, Restoring),
        row(Restoring, Started, Replaying),
        row(Restoring, Died, Lost),
        row(Restoring, Exited, Finished),
        row(Replaying, Replayed, Running),
        row(Replaying, Died, Lost),
        row(Replaying, Exited, Finished),
        row(Lost, Left, Elsewhere),
        row(Finished, Left, Elsewhere),
        row(Elsewhere, Came, Lost),
        row(Elsewhere, CameFinished, Finished),
    ]
};

/// Where a node stands.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum NodeStateName {
    /// Its agent has not come up yet.
    Expected,
    Up,
    /// Declared dead, for good: it is refused when it comes back.
    Dead,
}

/// What changes the state of a node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum NodeEvent {
    /// Its agent has proven itself.
    AgentUp,
    /// Its agent's process or connection has ended.
    AgentGone,
    /// A heartbeat was not answered within the heartbeat timeout.
    HeartbeatMissed,
}

/// The life cycle of a node.
pub const NODES: &[Row<NodeStateName, NodeEvent>] = {
    use NodeEvent::*;
    use NodeStateName::*;
    &[
        row(Expected, AgentUp, Up),
        row(Expected, AgentGone, Dead),
        row(Up, AgentGone, Dead),
        row(Up, HeartbeatMissed, Dead),
    ]
};

/// Where a checkpoint under way stands.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum CaptureName {
    /// Its agent was told to capture the rank.
    Asked,
    /// Its image has begun to arrive at the store.
    Arriving,
    /// The store has it whole.
    Stored,
    /// Its agent has found all files that it needs; the store does not have it whole yet.
    Checked,
    /// Both: it counts when as many stores have it as are promised.
    Usable,
}

/// What changes the state of a checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum CaptureEvent {
    Begun,
    Stored,
    Checked,
}

/// A checkpoint from its beginning until its image counts, or fails, which it can in every state.
pub const CAPTURES: &[Row<CaptureName, CaptureEvent>] = {
    use CaptureEvent as E;
    use CaptureName::*;
    &[
        row(Asked, E::Begun, Arriving),
        row(Asked, E::Stored, Stored),
        row(Asked, E::Checked, Checked),
        row(Arriving, E::Stored, Stored),
        row(Arriving, E::Checked, Checked),
        row(Stored, E::Checked, Usable),
        row(Checked, E::Stored, Usable),
    ]
};

/// How far the move of a rank has come.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum MoveName {
    /// Others of its node go first: it only has an image taken meanwhile.
    Queued,
    /// It goes by its next image alone.
    Alone,
    /// Image after image is put in place where it is going.
    Rounds,
    /// More rounds would not help: it waits for others of its node.
    Ready,
    /// The next image is the last one: the rank stands still from then on.
    Last,
    /// It was stopped for its move, or died, and comes back elsewhere.
    Stopped,
}

/// What brings a move further, or back.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum MoveEvent {
    /// It is known where it is going.
    Begun,
    /// It is not.
    BegunAlone,
    /// Its memory cannot be put in place there.
    NotPrepared,
    /// A round was short enough, or not shorter than the one before.
    Ready,
    /// It was too long for the pause that is allowed, and the rank is slowed.
    SlowedDown,
    /// It need not wait for others any more.
    Departed,
    Stopped,
}

/// The move of a rank, until the rank has arrived or stays, which it can in every state.
pub const MOVES: &[Row<MoveName, MoveEvent>] = {
    use MoveEvent as E;
    use MoveName::*;
    &[
        row(Queued, E::Begun, Rounds),
        row(Queued, E::BegunAlone, Alone),
        row(Queued, E::Stopped, Stopped),
        row(Alone, E::Begun, Rounds),
        row(Alone, E::BegunAlone, Alone),
        row(Alone, E::Stopped, Stopped),
        row(Rounds, E::Begun, Rounds),
        row(Rounds, E::BegunAlone, Alone),
        row(Rounds, E::NotPrepared, Alone),
        row(Rounds, E::Ready, Ready),
        row(Rounds, E::Stopped, Stopped),
        row(Ready, E::Begun, Rounds),
        row(Ready, E::BegunAlone, Alone),
        row(Ready, E::NotPrepared, Alone),
        row(Ready, E::SlowedDown, Rounds),
        row(Ready, E::Departed, Last),
        row(Ready, E::Stopped, Stopped),
        row(Last, E::Begun, Rounds),
        row(Last, E::BegunAlone, Alone),
        row(Last, E::NotPrepared, Alone),
        row(Last, E::Stopped, Stopped),
        row(Stopped, E::NotPrepared, Stopped),
    ]
};

/// How far saving the job has come.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum SavingName {
    /// It is not being saved.
    Running,
    /// Ranks are imaged.
    Images,
    /// Images are copied to the archive.
    Copies,
    /// Ranks are fenced, and stay so.
    Fences,
    /// Routers write what they hold.
    Routers,
    /// The controller writes the rest.
    Rest,
    /// It is saved, and ends.
    Saved,
}

/// What brings saving further.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum SavingEvent {
    Asked,
    /// Every rank has its image, and some are not in the archive.
    ImagesMissing,
    /// Every rank has its image, in the archive if there is one: the ranks are stopped.
    Stopped,
    /// Every router lets only the next incarnations speak.
    Fenced,
    /// All routers have written what they hold.
    RoutersSaved,
    Written,
    /// It is not possible, or takes too long.
    GivenUp,
}

/// How a job is saved.
pub const SAVING: &[Row<SavingName, SavingEvent>] = {
    use SavingEvent::*;
    use SavingName::*;
    &[
        row(Running, Asked, Images),
        row(Images, ImagesMissing, Copies),
        row(Images, Stopped, Fences),
        row(Images, GivenUp, Running),
        row(Copies, ImagesMissing, Copies),
        row(Copies, Stopped, Fences),
        row(Copies, GivenUp, Running),
        row(Fences, Fenced, Routers),
        row(Fences, GivenUp, Running),
        row(Routers, RoutersSaved, Rest),
        row(Routers, GivenUp, Running),
        row(Rest, Written, Saved),
        row(Rest, GivenUp, Running),
    ]
};

/// Where a role on a node stands: a router, or a store.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum RoleStateName {
    /// Its agent was told to start it.
    Starting,
    /// It has said where it listens.
    Up,
    /// Its process is gone, or was given up, and no node is up that could have it.
    Down,
}

/// What changes the state of a role.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum RoleEvent {
    Listens,
    /// Its node or its process is lost, it did not come up in time, or it is to be elsewhere.
    Gone,
    /// A node was found for another one in its place.
    Replaced,
}

/// The life cycle of a role. A store that is gone is not replaced under its number.
pub const ROLES: &[Row<RoleStateName, RoleEvent>] = {
    use RoleEvent::*;
    use RoleStateName::*;
    &[
        row(Starting, Listens, Up),
        row(Starting, Gone, Down),
        row(Up, Listens, Up),
        row(Up, Gone, Down),
        row(Down, Gone, Down),
        row(Down, Replaced, Starting),
    ]
};

/// A table as Markdown, for docs/internals/control.md.
pub fn markdown<S: Debug, E: Debug>(table: &[Row<S, E>]) -> String {
    let lower = |name: &dyn Debug| format!("{name:?}").to_lowercase();
    let mut text = "| state | event | next state |\n|---|---|---|\n".to_string();
    for Row { state, event, next } in table {
        text += &format!("| {} | `{event:?}` | {} |\n", lower(state), lower(next));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_page_shows_the_tables_that_the_machine_runs_by() {
        let page = include_str!("../../../../docs/internals/control.md");
        let tables = [
            ("ranks", markdown(RANKS)),
            ("nodes", markdown(NODES)),
            ("captures", markdown(CAPTURES)),
            ("roles", markdown(ROLES)),
            ("moves", markdown(MOVES)),
            ("saving", markdown(SAVING)),
        ];
        for (name, table) in tables {
            let begin = format!("<!-- states of {name} -->\n");
            let end = "<!-- end -->";
            let shown = page.split(&begin).nth(1).and_then(|rest| rest.split(end).next());
            assert_eq!(shown, Some(table.as_str()), "{name}: copy the right side to the page");
        }
    }

    fn is_deterministic<S: Ord + Copy, E: Ord + Copy>(table: &[Row<S, E>]) -> bool {
        let mut seen = BTreeSet::new();
        table.iter().all(|row| seen.insert((row.state, row.event)))
    }

    #[test]
    fn a_state_and_an_event_have_one_next_state() {
        assert!(is_deterministic(RANKS) && is_deterministic(NODES));
        assert!(is_deterministic(CAPTURES) && is_deterministic(ROLES));
        assert!(is_deterministic(MOVES) && is_deterministic(SAVING));
    }
}
