//! The connections of a courier, and where its output goes.

use eyrie_wire::data::Header;
use eyrie_wire::{Rank, RouterId};

/// A stream of a courier.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Link {
    /// From the gateway of the other domain: what that has for this rank of this domain.
    Fetch(Rank),
    /// To a router of this domain: what this rank of the other domain has sent.
    Give { source: Rank, router: RouterId },
}

/// Where the courier's output goes.
pub trait Output {
    /// Queues a frame.
    fn frame(&mut self, link: Link, header: &Header, payload: &[u8]);
    /// Whether more may be queued at present.
    fn has_room(&self, link: Link) -> bool;
}

/// What happened to a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Taken {
    Yes,
    /// It must be offered again: there is no room for it at present.
    Later,
}
