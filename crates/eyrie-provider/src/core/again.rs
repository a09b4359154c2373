//! What a rank that re-executes observes again: the parts that it is given, joined. Pure.

use eyrie_wire::data::ObservedPart;
use std::collections::VecDeque;

/// What is observed again: the ends of its parts, each with the clock at which it was cut.
#[derive(Clone, Default)]
pub struct Again(VecDeque<(u64, u64)>);

impl Again {
    /// Whether nothing is left to observe again, when so many bytes were observed.
    pub fn is_over(&self, observed: u64) -> bool {
        self.0.back().is_none_or(|(_, end)| *end <= observed)
    }

    /// The end of the last part that was observed before this clock, if there is a new one.
    pub fn end_before(&mut self, clock: u64) -> Option<u64> {
        let mut end = None;
        while self.0.front().is_some_and(|(cut, _)| *cut < clock) {
            end = self.0.pop_front().map(|(_, end)| end);
        }
        end
    }
}

/// The bytes behind `from`, as far as none is missing, and where parts end.
pub fn behind(mut from: u64, parts: Vec<ObservedPart>) -> (Vec<u8>, Again) {
    let mut bytes = Vec::new();
    let mut again = Again::default();
    for part in parts {
        let Some(known) = from.checked_sub(part.from) else { break };
        if part.end() < from {
            continue;
        }
        // Of a part that has been read to its end, something may be left to observe.
        bytes.extend_from_slice(&part.bytes[known as usize..]);
        from = part.end();
        again.0.push_back((part.clock, from));
    }
    (bytes, again)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_that_an_image_has_read_ends_when_it_was_cut() {
        let part = |from, clock, bytes: &[u8]| ObservedPart { from, clock, bytes: bytes.to_vec() };
        let (bytes, mut again) = behind(3, vec![part(0, 1, b"ab"), part(2, 4, b"c")]);
        assert_eq!((bytes, again.end_before(5)), (vec![], Some(3)));
    }

    #[test]
    fn parts_are_joined_behind_what_an_image_holds_up_to_the_first_gap() {
        let part = |from, clock, bytes: &[u8]| ObservedPart { from, clock, bytes: bytes.to_vec() };
        let parts = vec![part(0, 1, b"abc"), part(3, 4, b"de"), part(5, 4, b"f"), part(7, 9, b"x")];
        let (bytes, mut again) = behind(2, parts);
        assert_eq!(bytes, b"cdef");
        assert!(!again.is_over(5) && again.is_over(6));
        assert_eq!((again.end_before(1), again.end_before(2)), (None, Some(3)));
        assert_eq!((again.end_before(4), again.end_before(5)), (None, Some(6)));
    }
}
