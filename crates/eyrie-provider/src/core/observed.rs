//! What a rank observes besides messages: clocks, what became of calls that are not made twice.
//! [`super::host::Host`] records it as a stream of bytes that means nothing here. It must be with a
//! router before anything leaves the rank that may depend on it; a rank that re-executes is given
//! it back.

use super::rank::{ImagePoint, Rank};
use eyrie_wire::data::ObservedPart;
use std::collections::VecDeque;

/// Bytes that are sent by themselves when nothing else is; tests are short.
const MOST_WAITING: usize = if cfg!(test) { 8 } else { 16 << 10 };

/// What is observed again: the ends of its parts, each with the clock at which it was cut.
#[derive(Clone, Default)]
pub struct Again(VecDeque<(u64, u64)>);

impl Again {
    /// The end of the last part that was observed before this clock, if there is a new one.
    fn end_before(&mut self, clock: u64) -> Option<u64> {
        let mut end = None;
        while self.0.front().is_some_and(|(cut, _)| *cut < clock) {
            end = self.0.pop_front().map(|(_, end)| end);
        }
        end
    }
}

/// The bytes behind `from`, as far as none is missing, and where parts end.
fn behind(mut from: u64, parts: Vec<ObservedPart>) -> (Vec<u8>, Again) {
    let (mut bytes, mut again) = (Vec::new(), Again::default());
    for part in parts {
        let Some(known) = from.checked_sub(part.from) else { break };
        if part.end() <= from {
            continue;
        }
        bytes.extend_from_slice(&part.bytes[known as usize..]);
        from = part.end();
        again.0.push_back((part.clock, from));
    }
    (bytes, again)
}

impl<H: ImagePoint> Rank<H> {
    /// What was observed until now goes before whatever is sent next.
    pub(super) fn cut_observed(&mut self) {
        let (clock, unstored) = (self.replay.clock(), &mut self.unstored);
        self.host.take_observed(&mut |from, bytes| {
            unstored.push_observed(ObservedPart::cut(clock, from, bytes));
        });
    }

    /// These are to be observed again.
    pub(super) fn observe_again(&mut self, parts: Vec<ObservedPart>) {
        let (bytes, again) = behind(self.host.observed(), parts);
        self.again = again;
        self.host.observe_again(bytes);
    }

    /// The clock has ticked: what was observed before has been observed again, or never will be.
    pub(super) fn end_observed(&mut self) {
        if let Some(end) = self.again.end_before(self.replay.clock()) {
            self.host.skip_observed(end);
        }
    }

    /// Sends what was observed when it has become much.
    pub(super) fn send_much_observed(&mut self) -> Result<(), super::error::RankError> {
        match self.host.observed_waiting() >= MOST_WAITING {
            true => self.send_determinants(),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_joined_behind_what_an_image_holds_up_to_the_first_gap() {
        let part = |from, clock, bytes: &[u8]| ObservedPart { from, clock, bytes: bytes.to_vec() };
        let parts = vec![part(0, 1, b"abc"), part(3, 4, b"de"), part(5, 4, b"f"), part(7, 9, b"x")];
        let (bytes, mut again) = behind(2, parts);
        assert_eq!(bytes, b"cdef");
        assert_eq!((again.end_before(1), again.end_before(2)), (None, Some(3)));
        assert_eq!((again.end_before(4), again.end_before(5)), (None, Some(6)));
    }
}
