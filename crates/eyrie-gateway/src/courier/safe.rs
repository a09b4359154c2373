//! What is safe in this domain, for the other one's gateway. It must never call a message safe
//! before a router of this domain has acknowledged it.

use super::fetch::Fetch;
use super::mutation::{active, Mutation};
use super::output::{Link, Output};
use super::ranks::{Pairs, Ranks};
use eyrie_wire::data::{Header, Received};

/// Notes and reports what is safe.
pub struct Safe<'a> {
    pub ranks: &'a Ranks,
    pub pairs: &'a Pairs,
    pub fetches: &'a mut [Fetch],
}

impl Safe<'_> {
    /// Notes what is safe of the messages of an own rank: all up to the first one that is not.
    pub fn advance(&mut self, own: usize) {
        let fetch = &mut self.fetches[own];
        let is_safe = |other, ssn| {
            let pair = self.pairs.of(other, own);
            let up_to = if active(Mutation::SafeWhenGiven) { pair.given } else { pair.safe };
            ssn <= up_to
        };
        while let Some(first) = fetch.awaited.front() {
            let skips = active(Mutation::SkipAwaited)
                && fetch.awaited.iter().any(|a| is_safe(a.other, a.ssn));
            if !is_safe(first.other, first.ssn) && !skips {
                return;
            }
            fetch.safe = fetch.awaited.pop_front().map_or(fetch.safe, |a| a.rsn);
        }
    }

    /// Tells the gateway what is safe, if it does not know.
    pub fn report(&mut self, own: usize, out: &mut impl Output) {
        let fetch = &mut self.fetches[own];
        if fetch.up && fetch.unbegun == 0 && fetch.safe > fetch.reported {
            fetch.reported = fetch.safe;
            let received = Received { rsn: fetch.safe };
            out.frame(Link::Fetch(self.ranks.own()[own]), &Header::Received(received), &[]);
        }
    }
}
