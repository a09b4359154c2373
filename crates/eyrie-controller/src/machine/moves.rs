//! Ranks on their way to other nodes, and who waits for it. Decides nothing.

use super::answer::RequestId;
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
}

impl Default for Manner {
    fn default() -> Manner {
        Manner { pause_budget: Duration::from_millis(50), if_slow: IfSlow::Accept }
    }
}

/// What becomes of a rank that writes faster than its memory goes over.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum IfSlow {
    /// It moves all the same, and stands still for longer.
    Accept,
    /// It stays.
    GiveUp,
}

/// A rank that is to go to another node.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Move {
    pub from: Node,
    /// `None`: where the placement says.
    pub to: Option<Node>,
    /// An image that was asked for since then is the one that it goes with.
    pub since: Duration,
    /// When it was stopped for that.
    pub stopped: Option<Duration>,
    /// Since when it has stood still for its last image.
    pub still: Option<Duration>,
    pub manner: Manner,
    /// How far its memory is on the way; `None` while nothing is: it goes by its image alone.
    pub live: Option<Live>,
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
    /// When this round began, and how long the last one has taken.
    pub begun: Duration,
    pub took: Duration,
    /// The next image is the last one: the rank stands still from then on.
    pub last: bool,
}

/// Most rounds. With a rank that writes faster than its memory goes over the last one is long.
const ROUNDS_MAX: u32 = 8;

impl Live {
    /// A round is over. Is the next one the last? The first may have put an old image in place. A
    /// round that has not become a third shorter shows that more of them do not help.
    pub fn end_round(&mut self, now: Duration, pause_budget: Duration) -> Duration {
        let took = now.saturating_sub(self.begun);
        let shrinks = self.rounds < 2 || took * 3 <= self.took * 2;
        self.rounds += 1;
        self.sent = None;
        let enough = took <= pause_budget || !shrinks || self.rounds >= ROUNDS_MAX;
        self.last = self.rounds >= 2 && enough;
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
}

/// All moves of a job.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Moves {
    pub ranks: BTreeMap<Rank, Move>,
    pub pending: Vec<Pending>,
}

impl Moves {
    /// Whether the next image of a rank is the last one of its move.
    pub fn holds(&self, rank: Rank) -> bool {
        self.ranks.get(&rank).and_then(|moving| moving.live).is_some_and(|live| live.last)
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
