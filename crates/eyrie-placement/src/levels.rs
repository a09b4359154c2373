//! The largest figures of links, and how many links have each: enough to find the largest one that
//! remains when some links change. Never guesses: where the kept figures do not suffice, it says
//! so.

#[derive(Debug, Clone, Default)]
pub(crate) struct Levels {
    /// Figure and number of links, the largest first.
    top: Vec<(u64, usize)>,
    /// Whether there are smaller figures that are not kept.
    more: bool,
}

/// Figures kept. If a change touches every link that has one of them, all links are checked.
const LEVELS: usize = 8;

impl Levels {
    /// Adds a link with this figure.
    pub fn add(&mut self, figure: u64) {
        let full = self.top.len() == LEVELS;
        if (full || self.more) && self.top.last().is_some_and(|&(least, _)| figure < least) {
            self.more = true;
            return;
        }
        match self.top.iter().position(|&(f, _)| f <= figure) {
            Some(at) if self.top[at].0 == figure => self.top[at].1 += 1,
            at => {
                self.top.insert(at.unwrap_or(self.top.len()), (figure, 1));
                self.more |= full;
                self.top.truncate(LEVELS);
            }
        }
    }

    /// Removes a link with this figure; `false` if no kept figure is left, so that all links must
    /// be added again.
    #[must_use]
    pub fn remove(&mut self, figure: u64) -> bool {
        if let Some(at) = self.top.iter().position(|&(f, _)| f == figure) {
            self.top[at].1 -= 1;
            if self.top[at].1 == 0 {
                self.top.remove(at);
            }
        }
        !self.top.is_empty() || !self.more
    }

    pub fn largest(&self) -> u64 {
        self.top.first().map_or(0, |&(figure, _)| figure)
    }

    /// The number of links that have the largest figure.
    pub fn with_largest(&self) -> usize {
        self.top.first().map_or(0, |&(_, links)| links)
    }

    /// The largest figure without some links; `without` counts those by figure. `None` if no kept
    /// figure is left.
    pub fn largest_without(&self, without: impl Fn(u64) -> usize) -> Option<u64> {
        let left = self.top.iter().find(|&&(figure, links)| without(figure) < links);
        left.map(|&(figure, _)| figure).or((!self.more).then_some(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Whatever is added and removed, the kept figures are right or say that they do not
        /// suffice.
        #[test]
        fn the_largest_is_right_as_long_as_it_is_known(
            start in prop::collection::vec(0u64..30, 1..60),
            changes in prop::collection::vec((any::<prop::sample::Index>(), 0u64..30), 0..80),
        ) {
            let mut figures = start;
            let mut levels = Levels::default();
            for &f in &figures {
                levels.add(f);
            }
            for (at, new) in changes {
                let at = at.index(figures.len());
                if !levels.remove(std::mem::replace(&mut figures[at], new)) {
                    break;
                }
                levels.add(new);
                let largest = *figures.iter().max().unwrap();
                prop_assert_eq!(levels.largest(), largest);
                let with = |figure| figures.iter().filter(|&&f| f == figure).count();
                prop_assert_eq!(levels.with_largest(), with(largest));
                let next = figures.iter().copied().filter(|&f| f < largest).max().unwrap_or(0);
                let without = levels.largest_without(|f| if f == largest { with(f) } else { 0 });
                prop_assert!(without.is_none_or(|w| w == next));
            }
        }
    }
}
