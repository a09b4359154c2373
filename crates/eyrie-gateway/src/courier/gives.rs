//! The streams to the routers of this domain, and which of them may have something that is not
//! acknowledged: only these are looked at when time passes, however many ranks there are.

use super::give::Give;
use super::output::Output;
use super::ranks::Ranks;
use std::time::Duration;

/// One for each router and each other rank: those of router 0 first.
#[derive(Default)]
pub struct Gives {
    all: Vec<Give>,
    /// Those that were changed and not found to be idle since: each once.
    listed: Vec<usize>,
    is_listed: Vec<bool>,
}

impl Gives {
    /// There are so many at least.
    pub fn grow(&mut self, streams: usize) {
        if self.all.len() < streams {
            self.all.resize_with(streams, Give::default);
            self.is_listed.resize(streams, false);
        }
    }

    /// The stream with this place, to be changed.
    pub fn at(&mut self, stream: usize) -> &mut Give {
        if !std::mem::replace(&mut self.is_listed[stream], true) {
            self.listed.push(stream);
        }
        &mut self.all[stream]
    }

    /// Whether something may not be acknowledged.
    pub fn are_busy(&self) -> bool {
        !self.listed.is_empty()
    }

    /// Asks routers for acknowledgements that they owe.
    pub fn ask(&mut self, now: Duration, ranks: &Ranks, out: &mut impl Output) {
        let Gives { all, listed, is_listed } = self;
        listed.retain(|stream| {
            let give = &mut all[*stream];
            give.ask(now, ranks.link(*stream), out);
            is_listed[*stream] = give.is_busy();
            is_listed[*stream]
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::courier::Link;
    use eyrie_wire::data::Header;
    use eyrie_wire::{Rank, RouterId};

    /// Notes which streams say something.
    #[derive(Default)]
    struct Said(Vec<Link>);

    impl Output for Said {
        fn frame(&mut self, link: Link, _: &Header, _: &[u8]) {
            self.0.push(link);
        }

        fn has_room(&self, _: Link) -> bool {
            true
        }
    }

    #[test]
    fn only_what_is_not_acknowledged_is_asked_for() {
        let others: Vec<Rank> = (1..4).map(Rank).collect();
        let ranks = Ranks::new(vec![Rank(0)], others, 4);
        let mut gives = Gives::default();
        gives.grow(6);
        assert!(!gives.are_busy());
        let mut said = Said::default();
        for stream in [4, 1, 4] {
            gives.at(stream).greet();
            gives.at(stream).gave(0, 1, Duration::ZERO);
        }
        gives.ask(Duration::from_secs(1), &ranks, &mut said);
        let link = |source, router| Link::Give { source: Rank(source), router: RouterId(router) };
        assert_eq!(said.0, [link(2, 1), link(2, 0)]);
        // Two messages and the question; one message and the question.
        gives.at(4).acknowledge(3, Duration::ZERO, |_, _| {}).unwrap();
        gives.at(1).acknowledge(1, Duration::ZERO, |_, _| {}).unwrap();
        said.0.clear();
        gives.ask(Duration::from_secs(2), &ranks, &mut said);
        assert_eq!(said.0, [link(2, 0)]);
        assert_eq!(gives.listed, [1]);
        gives.at(1).acknowledge(3, Duration::ZERO, |_, _| {}).unwrap();
        gives.ask(Duration::from_secs(3), &ranks, &mut said);
        assert!(!gives.are_busy());
    }
}
