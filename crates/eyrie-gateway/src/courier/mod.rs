//! The courier: fetches what the gateway of another domain holds for the ranks of this one, and
//! gives it to their routers, as their senders would. It has no socket, no clock and no thread of
//! its own.
//!
//! - It has one connection to the other gateway for each rank of this domain, as a rank has one to
//!   its primary router; and one to each router of this domain for each rank of the other one, as
//!   that rank would have.
//! - It keeps no message. What a router has not acknowledged when its connection breaks is fetched
//!   again, because the other gateway keeps it until then.
//! - It must never tell the other gateway that a message is safe before a router of this domain has
//!   said so: until then its sender, or that gateway, is the only one that has it.

mod fetch;
mod give;
mod mutation;
#[cfg(test)]
mod tests;

use eyrie_wire::data::{Frame, Header, Resume};
use eyrie_wire::{Rank, RouterId};
use fetch::Fetch;
use give::Give;
pub use give::Taken;
use std::time::Duration;

/// A connection of a courier.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Link {
    /// To the gateway of the other domain: what that has for this rank of this domain.
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

/// How far the messages of a rank of the other domain to one of this domain have come.
#[derive(Clone, Copy, Default)]
struct Pair {
    /// Send sequence number of the last message that was given to the present connection, or is
    /// safe.
    given: u64,
    /// That of the last message that the router has acknowledged.
    safe: u64,
}

/// Where a rank stands in the lists.
#[derive(Clone, Copy)]
enum Place {
    Own(usize),
    Other(usize),
    Neither,
}

/// The pairs of all ranks of the other domain with all of this one.
struct Pairs {
    own: usize,
    all: Vec<Pair>,
}

impl Pairs {
    fn of(&mut self, other: usize, own: usize) -> &mut Pair {
        &mut self.all[other * self.own + own]
    }
}

/// The courier from one other domain.
pub struct Courier {
    own: Vec<Rank>,
    others: Vec<Rank>,
    places: Vec<Place>,
    /// The primary router of each own rank.
    primaries: Vec<RouterId>,
    pairs: Pairs,
    /// One for each own rank.
    fetches: Vec<Fetch>,
    /// One for each router and each other rank: those of router 0 first.
    gives: Vec<Give>,
    now: Duration,
    /// Own ranks for which something became safe just now: a buffer.
    touched: Vec<usize>,
}

impl Courier {
    /// One that knows no router yet; `ranks`: how many the job has.
    pub fn new(own: Vec<Rank>, others: Vec<Rank>, ranks: usize) -> Courier {
        let mut places = vec![Place::Neither; ranks];
        own.iter().enumerate().for_each(|(at, rank)| places[rank.index()] = Place::Own(at));
        others.iter().enumerate().for_each(|(at, rank)| places[rank.index()] = Place::Other(at));
        Courier {
            primaries: Vec::new(),
            pairs: Pairs { own: own.len(), all: vec![Pair::default(); own.len() * others.len()] },
            fetches: own.iter().map(|_| Fetch::default()).collect(),
            gives: Vec::new(),
            now: Duration::ZERO,
            touched: Vec::new(),
            own,
            others,
            places,
        }
    }

    /// The primary router of each rank of the job, as the directory has it.
    pub fn set_primaries(&mut self, all: &[RouterId], out: &mut impl Output) {
        let of = |rank: &Rank| all.get(rank.index()).copied().unwrap_or_default();
        let primaries: Vec<RouterId> = self.own.iter().map(of).collect();
        let routers = primaries.iter().map(|router| router.index() + 1).max().unwrap_or(0);
        if self.gives.len() < routers * self.others.len() {
            self.gives.resize_with(routers * self.others.len(), Give::default);
        }
        if self.primaries.is_empty() {
            self.primaries = primaries;
            return;
        }
        for (own, primary) in primaries.into_iter().enumerate() {
            if self.primaries[own] != primary {
                self.abandon(own, out);
                self.primaries[own] = primary;
                self.forget_given(own);
                self.fetch_again(own, out);
            }
        }
    }

    /// The connections that it needs.
    pub fn links(&self) -> Vec<Link> {
        let mut routers = self.primaries.clone();
        routers.sort_unstable();
        routers.dedup();
        let give =
            |router| self.others.iter().map(move |source| Link::Give { source: *source, router });
        let fetches = self.own.iter().filter(|_| !routers.is_empty());
        routers
            .iter()
            .flat_map(|router| give(*router))
            .chain(fetches.map(|r| Link::Fetch(*r)))
            .collect()
    }

    /// Whether something was given and is not acknowledged: then it needs [`Courier::tick`] often.
    pub fn is_busy(&self) -> bool {
        self.gives.iter().any(Give::is_busy)
    }

    fn own(&self, rank: Rank) -> Option<usize> {
        match self.places.get(rank.index()) {
            Some(Place::Own(at)) => Some(*at),
            _ => None,
        }
    }

    fn other(&self, rank: Rank) -> Option<usize> {
        match self.places.get(rank.index()) {
            Some(Place::Other(at)) => Some(*at),
            _ => None,
        }
    }

    fn give_at(&self, other: usize, router: RouterId) -> usize {
        router.index() * self.others.len() + other
    }

    /// A connection stands; the other side has admitted it.
    pub fn connected(&mut self, link: Link, out: &mut impl Output) {
        match link {
            Link::Fetch(rank) => {
                let Some(own) = self.own(rank) else { return };
                self.fetches[own].up = true;
                self.fetch_again(own, out);
            }
            Link::Give { source, router } => {
                let Some(other) = self.other(source) else { return };
                let at = self.give_at(other, router);
                self.gives[at].begin();
            }
        }
    }

    /// A connection is lost.
    pub fn lost(&mut self, link: Link, out: &mut impl Output) {
        match link {
            Link::Fetch(rank) => {
                let Some(own) = self.own(rank) else { return };
                self.abandon(own, out);
                self.fetches[own].lost();
            }
            Link::Give { source, router } => {
                let Some(other) = self.other(source) else { return };
                let at = self.give_at(other, router);
                self.gives[at].lost();
                for own in 0..self.own.len() {
                    if self.primaries[own] != router {
                        continue;
                    }
                    let pair = self.pairs.of(other, own);
                    let safe = pair.safe;
                    pair.given = safe;
                    if self.fetches[own].depends_on(source, safe) {
                        self.fetch_again(own, out);
                    }
                }
            }
        }
    }

    /// What was given for an own rank and is not safe must be given again.
    fn forget_given(&mut self, own: usize) {
        for other in 0..self.others.len() {
            let pair = self.pairs.of(other, own);
            pair.given = pair.safe;
        }
    }

    /// Fetches again all that is not known to be safe.
    fn fetch_again(&mut self, own: usize, out: &mut impl Output) {
        self.abandon(own, out);
        if self.fetches[own].begin() {
            let resume = Resume { rsn: 0, clock: 0 };
            out.frame(Link::Fetch(self.own[own]), &Header::Resume(resume), &[]);
        }
    }

    /// The payload that is coming for an own rank does not come to its end.
    fn abandon(&mut self, own: usize, out: &mut impl Output) {
        let Some(incoming) = self.fetches[own].incoming.take() else { return };
        let source = incoming.message.source;
        if let (Some(place), Some(other)) = (incoming.place, self.other(source)) {
            let router = self.primaries[own];
            let at = self.give_at(other, router);
            let link = Link::Give { source, router };
            self.gives[at].end_writing(place.segment, link, out);
        }
    }

    /// Handles a frame of a connection.
    ///
    /// # Errors
    /// Why the connection is to be closed.
    pub fn frame(
        &mut self,
        link: Link,
        frame: &Frame,
        out: &mut impl Output,
    ) -> Result<Taken, String> {
        match link {
            Link::Fetch(rank) => match self.own(rank) {
                Some(own) => self.fetched(own, frame, out),
                None => Err("no rank of this domain".into()),
            },
            Link::Give { source, router } => match self.other(source) {
                Some(other) => self.answered(other, router, frame, out).map(|()| Taken::Yes),
                None => Err("no rank of the other domain".into()),
            },
        }
    }

    /// Does what is due at `now`: asks routers for acknowledgements that they owe.
    pub fn tick(&mut self, now: Duration, out: &mut impl Output) {
        self.now = now;
        for (at, give) in self.gives.iter_mut().enumerate() {
            let source = self.others[at % self.others.len()];
            let router = RouterId((at / self.others.len()) as u32);
            give.ask(now, Link::Give { source, router }, out);
        }
    }
}
