//! The observations of ranks: parts of a stream of bytes that only the rank reads. A router holds
//! the parts that came with what the rank has sent to it. The primary router must hold all of them,
//! like determinants, before a new incarnation is admitted.

use super::mutation::{active, Mutation};
use eyrie_wire::data::{ObservedPart, ObservedParts};

/// The parts that a router holds of one rank, in order.
#[derive(Default)]
pub struct ObservedLog {
    parts: ObservedParts,
    /// Bytes up to this one were held here. Now an image holds them, or they are lost.
    truncated: u64,
    /// Bytes received since the start.
    appended: u64,
}

impl ObservedLog {
    /// Where in the stream the last part ends, also when an image has replaced it: the rank may
    /// wait until it is stable.
    pub fn end(&self) -> u64 {
        self.parts.end().unwrap_or(self.truncated)
    }

    /// Adds a part, which may have come before.
    pub fn push(&mut self, part: ObservedPart<&[u8]>) {
        if part.end() > self.end() && !active(Mutation::DropObserved) {
            self.appended += part.bytes.len() as u64;
            self.parts.push(part);
        }
    }

    /// Bytes received since the start.
    pub fn appended(&self) -> u64 {
        self.appended
    }

    /// Loses all parts: the rank can no longer go on from an image that it has now.
    pub fn lose(&mut self) {
        self.truncated = self.end();
        self.parts = ObservedParts::default();
    }

    /// Adds what other routers hold.
    pub fn add(&mut self, mut parts: Vec<ObservedPart>) {
        parts.extend(self.all());
        self.parts = ObservedPart::merge(parts).iter().map(ObservedPart::borrowed).collect();
    }

    /// Truncates what an image holds, the observations up to the byte `end`. Parts that were cut
    /// before its clock, or end before that byte, are not needed any more. A part that ends with it
    /// is kept: at its clock the rank may go on to observe.
    pub fn truncate(&mut self, clock: u64, end: u64) {
        let before = |part: ObservedPart<&[u8]>| {
            if active(Mutation::TruncateObserved) {
                part.clock <= clock
            } else {
                part.clock < clock || part.end() < end
            }
        };
        self.truncated = self.parts.drop_while(before).unwrap_or(self.truncated);
    }

    /// The parts that a rank may need that goes on from this clock.
    pub fn since(&self, clock: u64) -> impl Iterator<Item = ObservedPart<&[u8]>> {
        self.parts.iter().filter(move |part| part.clock >= clock)
    }

    /// Bytes of memory that they take.
    pub fn memory(&self) -> u64 {
        self.parts.memory()
    }

    pub fn all(&self) -> Vec<ObservedPart> {
        self.parts.iter().map(|part| part.to_owned()).collect()
    }

    /// The first parts, of at least this many bytes.
    pub fn first(&self, bytes: u64) -> Vec<ObservedPart> {
        let from = self.parts.iter().next().map_or(0, |part| part.from);
        let parts = self.parts.iter().take_while(|part| part.from - from < bytes);
        parts.map(|part| part.to_owned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_truncated_with_an_image_is_still_stable() {
        let mut log = ObservedLog::default();
        log.push(ObservedPart { from: 0, clock: 4, bytes: &[1, 2, 3] });
        log.truncate(7, 3);
        assert_eq!((log.end(), log.all()), (3, vec![]));
        log.push(ObservedPart { from: 3, clock: 8, bytes: &[4] });
        assert_eq!(log.end(), 4);
    }

    #[test]
    fn what_comes_behind_lost_parts_is_held() {
        let mut log = ObservedLog::default();
        log.push(ObservedPart { from: 0, clock: 4, bytes: &[1, 2, 3] });
        log.lose();
        assert_eq!((log.end(), log.memory()), (3, 0));
        log.push(ObservedPart { from: 3, clock: 4, bytes: &[4] });
        assert_eq!((log.all().len(), log.end(), log.appended()), (1, 4, 4));
    }

    #[test]
    fn an_image_within_a_long_calculation_truncates_what_comes_before_it() {
        let mut log = ObservedLog::default();
        (0..9).for_each(|n| log.push(ObservedPart { from: 3 * n, clock: 5, bytes: &[1, 2, 3] }));
        log.truncate(5, 6);
        assert_eq!(log.all().first().map(|part| part.from), Some(3));
    }

    #[test]
    fn the_first_parts_can_be_had_alone() {
        let mut log = ObservedLog::default();
        (0..9).for_each(|n| log.push(ObservedPart { from: 3 * n, clock: n, bytes: &[1, 2, 3] }));
        assert_eq!(log.first(4).len(), 2);
        assert_eq!(log.first(1 << 20).len(), 9);
    }
}
