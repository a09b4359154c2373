//! Many names, each once and with a number. They are in one text and one table of numbers, so that
//! millions of them need no more memory than their letters and a few bytes each.

use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;

/// Names by number and numbers by name.
#[derive(Debug, Clone, Default)]
pub(crate) struct Names {
    text: String,
    /// Where each name ends in `text`.
    ends: Vec<u32>,
    numbers: HashTable<u32>,
    hasher: RandomState,
}

impl Names {
    /// Adds a name, which gets the next number; `false` if it exists already.
    #[must_use]
    pub fn add(&mut self, name: &str) -> bool {
        if self.get(name).is_some() {
            return false;
        }
        let Names { text, ends, numbers, hasher } = self;
        text.push_str(name);
        ends.push(text.len() as u32);
        let hash = |number: &u32| hasher.hash_one(nth(text, ends, *number));
        let number = ends.len() as u32 - 1;
        numbers.insert_unique(hash(&number), number, hash);
        true
    }

    pub fn get(&self, name: &str) -> Option<u32> {
        let is_it = |number: &u32| self.name(*number) == name;
        self.numbers.find(self.hasher.hash_one(name), is_it).copied()
    }

    pub fn name(&self, number: u32) -> &str {
        nth(&self.text, &self.ends, number)
    }

    pub fn len(&self) -> usize {
        self.ends.len()
    }
}

fn nth<'t>(text: &'t str, ends: &[u32], number: u32) -> &'t str {
    let first = (number as usize).checked_sub(1).map_or(0, |before| ends[before]);
    &text[first as usize..ends[number as usize] as usize]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_numbered_in_order_and_unique() {
        let mut names = Names::default();
        for i in 0..1000 {
            assert!(names.add(&format!("n{i}")));
        }
        assert!(!names.add("n7") && names.len() == 1000);
        assert_eq!((names.get("n999"), names.get("n1000"), names.name(7)), (Some(999), None, "n7"));
    }
}
