//! The courier: fetches what the gateway of another domain holds for the ranks of this one, and
//! gives it to their routers, as their senders would. It has no socket, no clock and no thread of
//! its own.
//!
//! - It has one stream from the other gateway for each rank of this domain, as a rank has one from
//!   its primary router; and one to each router of this domain for each rank of the other one, as
//!   that rank would have.
//! - It keeps no message. What a router has not acknowledged when its connection breaks is fetched
//!   again, because the other gateway keeps it until then.
//! - It must never tell the other gateway that a message is safe before a router of this domain has
//!   said so: until then its sender, or that gateway, is the only one that has it.

mod answered;
mod fetch;
mod fetched;
mod give;
mod gives;
mod mutation;
mod output;
mod ranks;
mod safe;
#[cfg(test)]
mod tests;

use answered::Answered;
use eyrie_wire::data::{Frame, Header, Resume};
use eyrie_wire::{Rank, RouterId};
use fetch::Fetch;
use fetched::Fetched;
use gives::Gives;
pub use output::{Link, Output, Taken};
use ranks::{Pairs, Ranks};
use std::time::Duration;

/// The courier from one other domain.
pub struct Courier {
    ranks: Ranks,
    pairs: Pairs,
    /// One for each own rank.
    fetches: Vec<Fetch>,
    gives: Gives,
    now: Duration,
    /// Something was given since, or not acknowledged at, the last tick.
    busy: bool,
    /// A buffer of [`Answered`].
    touched: Vec<usize>,
}

impl Courier {
    /// One that knows no router yet; `count`: how many ranks the job has.
    pub fn new(own: Vec<Rank>, others: Vec<Rank>, count: usize) -> Courier {
        let fetches = own.iter().map(|_| Fetch::default()).collect();
        let ranks = Ranks::new(own, others, count);
        Courier {
            pairs: Pairs::new(&ranks),
            ranks,
            fetches,
            gives: Gives::default(),
            now: Duration::ZERO,
            busy: false,
            touched: Vec::new(),
        }
    }

    /// The primary router of each rank of the job, as the directory has it.
    pub fn set_primaries(&mut self, all: &[RouterId], out: &mut impl Output) {
        let of = |rank: &Rank| all.get(rank.index()).copied().unwrap_or_default();
        let primaries: Vec<RouterId> = self.ranks.own().iter().map(of).collect();
        let routers = primaries.iter().map(|router| router.index() + 1).max().unwrap_or(0);
        self.gives.grow(routers * self.ranks.others().len());
        if self.ranks.primaries.is_empty() {
            self.ranks.primaries = primaries;
            return;
        }
        for (own, primary) in primaries.into_iter().enumerate() {
            if self.ranks.primaries[own] != primary {
                self.abandon(own, out);
                self.ranks.primaries[own] = primary;
                self.forget_given(own);
                self.fetch_again(own, out);
            }
        }
    }

    /// The connections that it needs.
    pub fn links(&self) -> Vec<Link> {
        let mut routers = self.ranks.primaries.clone();
        routers.sort_unstable();
        routers.dedup();
        let others = self.ranks.others();
        let give = |router| others.iter().map(move |source| Link::Give { source: *source, router });
        let fetches = self.ranks.own().iter().filter(|_| !routers.is_empty());
        let gives = routers.iter().flat_map(|router| give(*router));
        gives.chain(fetches.map(|rank| Link::Fetch(*rank))).collect()
    }

    /// The ranks of this domain.
    pub fn own(&self) -> &[Rank] {
        self.ranks.own()
    }

    /// The place of a rank among those of this domain.
    pub fn place_of(&self, rank: Rank) -> Option<usize> {
        self.ranks.place_of_own(rank)
    }

    /// Whether it needs [`Courier::tick`] often: something may not be acknowledged yet.
    pub fn is_busy(&self) -> bool {
        self.busy
    }

    /// A connection stands; the other side has admitted it.
    pub fn connected(&mut self, link: Link, out: &mut impl Output) {
        match link {
            Link::Fetch(rank) => {
                let Some(own) = self.ranks.place_of_own(rank) else { return };
                self.fetches[own].up = true;
                self.fetch_again(own, out);
            }
            Link::Give { source, router } => {
                let Some(other) = self.ranks.place_of_other(source) else { return };
                self.gives.at(self.ranks.stream(other, router)).begin();
            }
        }
    }

    /// A connection is lost.
    pub fn lost(&mut self, link: Link, out: &mut impl Output) {
        match link {
            Link::Fetch(rank) => {
                let Some(own) = self.ranks.place_of_own(rank) else { return };
                self.abandon(own, out);
                self.fetches[own].lost();
            }
            Link::Give { source, router } => {
                let Some(other) = self.ranks.place_of_other(source) else { return };
                self.gives.at(self.ranks.stream(other, router)).lost();
                for own in 0..self.fetches.len() {
                    if self.ranks.primaries[own] != router {
                        continue;
                    }
                    let pair = self.pairs.of_mut(other, own);
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
        for other in 0..self.ranks.others().len() {
            let pair = self.pairs.of_mut(other, own);
            pair.given = pair.safe;
        }
    }

    /// Fetches again all that is not known to be safe.
    fn fetch_again(&mut self, own: usize, out: &mut impl Output) {
        self.abandon(own, out);
        if self.fetches[own].begin() {
            let resume = Resume { rsn: 0, clock: 0 };
            out.frame(Link::Fetch(self.ranks.own()[own]), &Header::Resume(resume), &[]);
        }
    }

    /// The payload that is coming for an own rank does not come to its end.
    fn abandon(&mut self, own: usize, out: &mut impl Output) {
        let Some(incoming) = self.fetches[own].incoming.take() else { return };
        let other = self.ranks.place_of_other(incoming.message.source);
        if let (Some(place), Some(other)) = (incoming.place, other) {
            let stream = self.ranks.stream(other, self.ranks.primaries[own]);
            self.gives.at(stream).end_writing(place.segment, self.ranks.link(stream), out);
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
        let Courier { ranks, pairs, fetches, gives, touched, .. } = self;
        let now = self.now;
        match link {
            Link::Fetch(rank) => {
                let own = ranks.place_of_own(rank).ok_or("no rank of this domain")?;
                // It may be given on; then the router is to be asked whether it is safe.
                self.busy = true;
                Fetched { ranks, pairs, fetches, gives, now }.frame(own, frame, out)
            }
            Link::Give { source, router } => {
                let other = ranks.place_of_other(source).ok_or("no rank of the other domain")?;
                let mut answered = Answered { ranks, pairs, fetches, gives, touched, now };
                answered.frame(other, router, frame, out).map(|()| Taken::Yes)
            }
        }
    }

    /// Does what is due at `now`: asks routers for acknowledgements that they owe.
    pub fn tick(&mut self, now: Duration, out: &mut impl Output) {
        self.now = now;
        self.gives.ask(now, &self.ranks, out);
        self.busy = self.gives.are_busy();
    }
}
