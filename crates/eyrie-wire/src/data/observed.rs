//! What a rank has observed besides messages: the clocks that it read, and the results of calls
//! that must not be made twice. libeyrie-calls writes and reads it; for all others it is a stream
//! of bytes from the beginning of the rank on. It is sent and kept as determinants are.

use std::collections::VecDeque;

/// Longest part in bytes.
pub const MAX_PART: usize = 16 * 1024;
/// Bytes before a part that goes with a frame: its clock, and where it begins.
pub(super) const HEAD_LEN: usize = 16;

/// A part of the stream, as a rank has cut it. It owns its bytes, or they are in a frame or in
/// [`ObservedParts`].
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, serde::Serialize, serde::Deserialize,
)]
pub struct ObservedPart<B = Vec<u8>> {
    /// Start of the part in the stream, in bytes.
    pub from: u64,
    /// The rank's clock when it was cut. Its content was observed before the next progress call.
    pub clock: u64,
    /// At most [`MAX_PART`].
    pub bytes: B,
}

impl<B: AsRef<[u8]>> ObservedPart<B> {
    /// End of the part in the stream.
    pub fn end(&self) -> u64 {
        self.from + self.bytes.as_ref().len() as u64
    }

    pub fn borrowed(&self) -> ObservedPart<&[u8]> {
        ObservedPart { from: self.from, clock: self.clock, bytes: self.bytes.as_ref() }
    }

    pub fn to_owned(&self) -> ObservedPart {
        ObservedPart { from: self.from, clock: self.clock, bytes: self.bytes.as_ref().to_vec() }
    }
}

impl<'a> ObservedPart<&'a [u8]> {
    /// The bytes before the part in a frame.
    pub(super) fn head(&self) -> [u8; HEAD_LEN] {
        let mut out = [0; HEAD_LEN];
        out[..8].copy_from_slice(&self.clock.to_le_bytes());
        out[8..].copy_from_slice(&self.from.to_le_bytes());
        out
    }

    /// The part in bytes that begin with its head; `None` if there is none.
    pub(super) fn decode(bytes: &'a [u8]) -> Option<Self> {
        let (head, bytes) = bytes.split_first_chunk::<HEAD_LEN>()?;
        let mut r = super::bytes::Reader(head);
        Some(ObservedPart { clock: r.u64(), from: r.u64(), bytes })
    }

    /// Cuts what was observed up to this clock into parts.
    pub fn cut(clock: u64, from: u64, bytes: &'a [u8]) -> impl Iterator<Item = Self> {
        let part =
            move |(n, bytes)| ObservedPart { from: from + (n * MAX_PART) as u64, clock, bytes };
        bytes.chunks(MAX_PART).enumerate().map(part)
    }
}

impl ObservedPart {
    /// Merges the parts of several routers into one stream: each whole part once, in order.
    pub fn merge(mut parts: Vec<ObservedPart>) -> Vec<ObservedPart> {
        parts.sort_unstable();
        let mut merged: Vec<ObservedPart> = Vec::with_capacity(parts.len());
        for part in parts {
            if merged.last().is_none_or(|last| part.end() > last.end()) {
                merged.push(part);
            }
        }
        merged
    }
}

/// The start of a part of [`ObservedParts`] in the stream, the clock when it was cut, and its
/// length.
#[derive(Clone, Copy)]
struct Cut {
    from: u64,
    clock: u64,
    len: u32,
}

/// Parts in the order of the stream. A rank may have one for each message, so a part has no
/// allocation of its own.
#[derive(Clone, Default)]
pub struct ObservedParts {
    cuts: VecDeque<Cut>,
    /// Bytes of all parts, after `gone` bytes of parts that were dropped.
    bytes: Vec<u8>,
    gone: usize,
}

impl ObservedParts {
    /// Appends a part.
    pub fn push(&mut self, part: ObservedPart<&[u8]>) {
        let ObservedPart { from, clock, bytes } = part;
        self.cuts.push_back(Cut { from, clock, len: bytes.len() as u32 });
        self.bytes.extend_from_slice(bytes);
    }

    /// Drops parts at the front while `drops` returns true. Returns where the last of them ends in
    /// the stream.
    pub fn drop_while(&mut self, drops: impl Fn(ObservedPart<&[u8]>) -> bool) -> Option<u64> {
        let mut end = None;
        while let Some(part) = self.first().filter(|part| drops(*part)) {
            let len = part.bytes.len();
            end = Some(part.end());
            self.cuts.pop_front();
            self.gone += len;
        }
        // No more is moved than was dropped.
        if self.gone > 0 && self.gone >= self.bytes.len() - self.gone {
            self.bytes.drain(..self.gone);
            self.gone = 0;
        }
        end
    }

    /// Where the last part ends in the stream.
    pub fn end(&self) -> Option<u64> {
        self.cuts.back().map(|cut| cut.from + u64::from(cut.len))
    }

    pub fn is_empty(&self) -> bool {
        self.cuts.is_empty()
    }

    fn first(&self) -> Option<ObservedPart<&[u8]>> {
        self.iter().next()
    }

    pub fn iter(&self) -> impl Iterator<Item = ObservedPart<&[u8]>> {
        self.beginning_with(0, self.gone)
    }

    /// The parts that end after this byte of the stream. There are few.
    pub fn after(&self, end: u64) -> impl Iterator<Item = ObservedPart<&[u8]>> {
        let mut first = self.cuts.len();
        let mut at = self.bytes.len();
        for cut in self.cuts.iter().rev().take_while(|cut| cut.from + u64::from(cut.len) > end) {
            first -= 1;
            at -= cut.len as usize;
        }
        self.beginning_with(first, at)
    }

    /// The parts from the `first` one on, whose bytes begin at `at`.
    fn beginning_with(
        &self,
        first: usize,
        mut at: usize,
    ) -> impl Iterator<Item = ObservedPart<&[u8]>> {
        self.cuts.range(first..).map(move |&Cut { from, clock, len }| {
            let bytes = &self.bytes[at..at + len as usize];
            at += bytes.len();
            ObservedPart { from, clock, bytes }
        })
    }

    /// Bytes of memory that the parts take.
    pub fn memory(&self) -> u64 {
        (self.cuts.len() * size_of::<Cut>() + self.bytes.len()) as u64
    }
}

impl<'a> FromIterator<ObservedPart<&'a [u8]>> for ObservedParts {
    fn from_iter<I: IntoIterator<Item = ObservedPart<&'a [u8]>>>(parts: I) -> Self {
        let mut all = ObservedParts::default();
        for part in parts {
            all.push(part);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_cut_is_whole_when_it_is_merged() {
        let bytes: Vec<u8> = (0..2 * MAX_PART + 5).map(|n| n as u8).collect();
        let parts: Vec<_> = ObservedPart::cut(7, 100, &bytes).map(|part| part.to_owned()).collect();
        assert_eq!(parts.len(), 3);
        let twice = parts.iter().rev().chain(&parts).cloned().collect();
        let merged = ObservedPart::merge(twice);
        assert_eq!(merged, parts);
        assert_eq!(merged.iter().map(|p| p.from).collect::<Vec<_>>(), [100, 16484, 32868]);
        assert_eq!(merged.concat_bytes(), bytes);
    }

    proptest! {
        /// Compares with a list of parts that own their bytes.
        #[test]
        fn parts_are_what_was_pushed_and_not_dropped(
            steps in prop::collection::vec((0..40usize, 0..12u64, 0..3u64), 0..200)
        ) {
            let mut parts = ObservedParts::default();
            let mut list = VecDeque::new();
            let mut at = 0;
            let mut dropped = 0;
            for (n, (len, back, kind)) in steps.into_iter().enumerate() {
                if kind > 0 {
                    let bytes: Vec<u8> = (0..len as u8).map(|byte| byte ^ n as u8).collect();
                    let part = ObservedPart { from: at + back, clock: n as u64, bytes };
                    at = part.end();
                    parts.push(part.borrowed());
                    list.push_back(part);
                } else {
                    let clock = n as u64 - back.min(n as u64);
                    let end = parts.drop_while(|part| part.clock < clock);
                    let mut wanted = None;
                    while list.front().is_some_and(|part| part.clock < clock) {
                        wanted = list.pop_front().map(|part| part.end());
                        dropped += 1;
                    }
                    prop_assert_eq!(end, wanted);
                }
                let own = |part: ObservedPart<&[u8]>| part.to_owned();
                prop_assert_eq!(&parts.iter().map(own).collect::<VecDeque<_>>(), &list);
                prop_assert_eq!(parts.end(), list.back().map(ObservedPart::end));
                let after = at.saturating_sub(back * 5);
                let behind: Vec<_> = list.iter().filter(|p| p.end() > after).cloned().collect();
                prop_assert_eq!(parts.after(after).map(own).collect::<Vec<_>>(), behind);
                prop_assert_eq!(parts.is_empty(), list.is_empty());
            }
            prop_assert!(dropped == 0 || parts.gone * 2 <= parts.bytes.len());
        }
    }

    trait Concat {
        fn concat_bytes(&self) -> Vec<u8>;
    }

    impl Concat for Vec<ObservedPart> {
        fn concat_bytes(&self) -> Vec<u8> {
            self.iter().flat_map(|p| p.bytes.iter().copied()).collect()
        }
    }
}
