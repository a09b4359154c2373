//! What happens to ranks one after another: recoveries or moves, of which a rank has at most one at
//! a time. The newest are kept.

use super::part::{Part, Version};
use std::collections::VecDeque;

/// How many are kept.
const KEPT: usize = 400;

/// What happens to ranks.
#[derive(Debug)]
pub struct Courses<T> {
    kept: VecDeque<Part<T>>,
    /// How many there have been.
    begun: u32,
}

impl<T> Default for Courses<T> {
    fn default() -> Courses<T> {
        Courses { kept: VecDeque::new(), begun: 0 }
    }
}

impl<T: Clone + PartialEq> Courses<T> {
    /// Another one begins, which `make` makes from its number.
    pub fn begin(&mut self, version: Version, make: impl FnOnce(u32) -> T) {
        if self.kept.len() == KEPT {
            self.kept.pop_front();
        }
        self.kept.push_back(Part::new(make(self.begun), version));
        self.begun += 1;
    }

    /// Lets `edit` change the newest one for which this is so; returns whether there is one.
    pub fn edit(
        &mut self,
        version: Version,
        is: impl Fn(&T) -> bool,
        edit: impl FnOnce(&mut T),
    ) -> bool {
        let found = self.kept.iter_mut().rev().find(|part| is(part.get()));
        let there = found.is_some();
        if let Some(part) = found {
            part.edit(version, edit);
        }
        there
    }

    /// Lets `edit` change all for which this is so.
    pub fn edit_all(&mut self, version: Version, is: impl Fn(&T) -> bool, edit: impl Fn(&mut T)) {
        for part in self.kept.iter_mut().filter(|part| is(part.get())) {
            part.edit(version, &edit);
        }
    }

    pub fn has(&self, is: impl Fn(&T) -> bool) -> bool {
        self.kept.iter().rev().any(|part| is(part.get()))
    }

    /// Those that have changed after this version, oldest first.
    pub fn since(&self, version: Version) -> Vec<&T> {
        self.kept.iter().filter_map(|part| part.since(version)).collect()
    }
}
