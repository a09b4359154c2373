//! A node that is not well: its ranks are imaged at once, or leave it.

use crate::machine::moves::mover::Mover;
use crate::record::list;
use eyrie_interface::options::Precaution;
use eyrie_wire::{NodeId, Rank};

/// Ranks of a failing node that move at a time: as when it is about to be taken away.
const AT_ONCE: usize = 2;

/// What is wanted about a node.
#[derive(Debug)]
pub struct Wanted {
    pub precaution: Precaution,
    /// Why it is not to be drained, for the sake of others.
    pub cannot_drain: Option<String>,
    /// Its ranks were imaged for its health before.
    pub imaged: bool,
}

/// What was done about a node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Taken {
    /// These ranks are imaged at once. `cause`: why they do not leave, where they should.
    Imaged { ranks: Vec<Rank>, cause: Option<String> },
    /// These ranks leave it.
    Drained { ranks: Vec<Rank> },
}

impl Taken {
    pub fn precaution(&self) -> Precaution {
        match self {
            Taken::Imaged { .. } => Precaution::Image,
            Taken::Drained { .. } => Precaution::Drain,
        }
    }

    /// The ranks that are imaged, and why they do not leave, where they should.
    pub fn images(self) -> Option<(Vec<Rank>, Option<String>)> {
        match self {
            Taken::Imaged { ranks, cause } => Some((ranks, cause)),
            Taken::Drained { .. } => None,
        }
    }

    /// For users.
    pub fn in_words(&self) -> String {
        match self {
            Taken::Imaged { ranks, cause: None } => format!("images at once: {}", list(ranks)),
            Taken::Imaged { ranks, cause: Some(cause) } => {
                format!("images at once: {}; not drained: {cause}", list(ranks))
            }
            Taken::Drained { ranks } => format!("drained: {}", list(ranks)),
        }
    }
}

impl Mover<'_> {
    /// Does what is wanted about a node. `forbidden`: why nothing moves. Returns what was done, if
    /// anything.
    pub fn take_precaution(
        &mut self,
        node: NodeId,
        wanted: Wanted,
        forbidden: Option<String>,
    ) -> Option<Taken> {
        let Wanted { precaution, cannot_drain, imaged } = wanted;
        let ranks = self.ranks.on(node);
        let mut cause = None;
        if precaution == Precaution::Drain {
            cause = cannot_drain.or(forbidden);
            cause = cause.or_else(|| self.refusal(|so| so.cannot_drain(node)));
            if cause.is_none() {
                self.drain_asked(None, node, AT_ONCE);
                return Some(Taken::Drained { ranks });
            }
        }
        if imaged {
            return None;
        }
        let now = self.out.now();
        for rank in &ranks {
            self.schedule.want(*rank, now);
        }
        Some(Taken::Imaged { ranks, cause })
    }
}
