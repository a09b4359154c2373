//! What ranks have observed besides messages: parts of a stream of bytes that only the rank reads.
//! A router holds those that came with what the rank has sent here; at its home router it must hold
//! all, like determinants, before a new incarnation is let in.

use super::mutation::{active, Mutation};
use eyrie_wire::data::{ObservedPart, ObservedParts};

/// The parts that a router holds of one rank, in order.
#[derive(Default)]
pub struct ObservedLog {
    parts: ObservedParts,
    /// Bytes up to this one were held here; an image holds them.
    truncated: u64,
}

impl ObservedLog {
    /// Where in the stream the last part ends, also when an image has taken its place: its rank may
    /// wait to hear that it is held.
    pub fn end(&self) -> u64 {
        self.parts.end().unwrap_or(self.truncated)
    }

    /// A part has come, perhaps again.
    pub fn push(&mut self, part: ObservedPart<&[u8]>) {
        if part.end() > self.end() && !active(Mutation::DropObserved) {
            self.parts.push(part);
        }
    }

    /// Takes in what other routers hold.
    pub fn add(&mut self, mut parts: Vec<ObservedPart>) {
        parts.extend(self.all());
        self.parts = ObservedPart::merge(parts).iter().map(ObservedPart::borrowed).collect();
    }

    /// Parts that were cut before this clock are not needed any more.
    pub fn truncate(&mut self, clock: u64) {
        let before = |part: ObservedPart<&[u8]>| match active(Mutation::TruncateObserved) {
            true => part.clock <= clock,
            false => part.clock < clock,
        };
        self.truncated = self.parts.drop_while(before).unwrap_or(self.truncated);
    }

    /// The parts that a rank may need which goes on from this clock.
    pub fn since(&self, clock: u64) -> impl Iterator<Item = ObservedPart<&[u8]>> {
        self.parts.iter().filter(move |part| part.clock >= clock)
    }

    /// Bytes that it takes.
    pub fn memory(&self) -> u64 {
        self.parts.memory()
    }

    pub fn all(&self) -> Vec<ObservedPart> {
        self.parts.iter().map(|part| part.to_owned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_image_holds_is_still_held() {
        let mut log = ObservedLog::default();
        log.push(ObservedPart { from: 0, clock: 4, bytes: &[1, 2, 3] });
        log.truncate(7);
        assert_eq!((log.end(), log.all()), (3, vec![]));
        log.push(ObservedPart { from: 3, clock: 8, bytes: &[4] });
        assert_eq!(log.end(), 4);
    }
}
