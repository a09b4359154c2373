//! What ranks have observed besides messages: parts of a stream of bytes that only the rank reads. A
//! router holds those that came with what the rank has sent here; at its home router it must hold
//! all, like determinants, before a new incarnation is let in.

use super::mutation::{active, Mutation};
use eyrie_wire::data::ObservedPart;
use std::collections::VecDeque;

/// The parts that a router holds of one rank, in order.
#[derive(Default)]
pub struct ObservedLog(VecDeque<ObservedPart>);

impl ObservedLog {
    /// Where in the stream the last part ends.
    pub fn end(&self) -> u64 {
        self.0.back().map_or(0, ObservedPart::end)
    }

    /// A part has come, perhaps again.
    pub fn push(&mut self, part: ObservedPart) {
        if part.end() > self.end() && !active(Mutation::DropObserved) {
            self.0.push_back(part);
        }
    }

    /// Takes in what other routers hold.
    pub fn add(&mut self, mut parts: Vec<ObservedPart>) {
        parts.extend(self.0.drain(..));
        self.0 = ObservedPart::merge(parts).into();
    }

    /// Parts that were cut before this clock are not needed any more.
    pub fn truncate(&mut self, clock: u64) {
        let before = |part: &ObservedPart| match active(Mutation::TruncateObserved) {
            true => part.clock <= clock,
            false => part.clock < clock,
        };
        while self.0.front().is_some_and(before) {
            self.0.pop_front();
        }
    }

    /// The parts that a rank may need which goes on from this clock.
    pub fn since(&self, clock: u64) -> impl Iterator<Item = &ObservedPart> {
        self.0.iter().filter(move |part| part.clock >= clock)
    }

    /// Bytes that it takes.
    pub fn memory(&self) -> u64 {
        self.0.iter().map(|part| (size_of::<ObservedPart>() + part.bytes.len()) as u64).sum()
    }

    pub fn all(&self) -> Vec<ObservedPart> {
        self.0.iter().cloned().collect()
    }
}
