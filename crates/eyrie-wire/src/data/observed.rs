//! What a rank has observed besides messages: the clocks that it read, what became of calls that
//! are not to be made twice. For all but libeyrie-calls, which writes and reads it, a stream of
//! bytes from the beginning of the rank on. It travels as determinants do.

/// Longest part in bytes.
pub const MAX_PART: usize = 16 * 1024;
/// Bytes in front of a part that goes with a frame: its clock, and where it begins.
pub(super) const HEAD_LEN: usize = 16;

/// A part of the stream, as a rank has cut it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, serde::Serialize, serde::Deserialize)]
pub struct ObservedPart {
    /// Where in the stream it begins, in bytes.
    pub from: u64,
    /// The rank's clock when it was cut: what is in it was observed before the next progress call.
    pub clock: u64,
    /// At most [`MAX_PART`].
    pub bytes: Vec<u8>,
}

impl ObservedPart {
    /// Where in the stream it ends.
    pub fn end(&self) -> u64 {
        self.from + self.bytes.len() as u64
    }

    /// What stands in front of it where it goes with a frame.
    pub(super) fn head(&self) -> [u8; HEAD_LEN] {
        let mut out = [0; HEAD_LEN];
        out[..8].copy_from_slice(&self.clock.to_le_bytes());
        out[8..].copy_from_slice(&self.from.to_le_bytes());
        out
    }

    /// The part with its head in front; `None` where there is none.
    pub(super) fn decode(bytes: &[u8]) -> Option<ObservedPart> {
        let (head, bytes) = bytes.split_first_chunk::<HEAD_LEN>()?;
        let mut r = super::bytes::Reader(head);
        Some(ObservedPart { clock: r.u64(), from: r.u64(), bytes: bytes.to_vec() })
    }

    /// Cuts what was observed up to this clock into parts.
    pub fn cut(clock: u64, from: u64, bytes: &[u8]) -> impl Iterator<Item = ObservedPart> + '_ {
        let part = move |(n, bytes): (usize, &[u8])| {
            let from = from + (n * MAX_PART) as u64;
            ObservedPart { from, clock, bytes: bytes.to_vec() }
        };
        bytes.chunks(MAX_PART).enumerate().map(part)
    }

    /// One stream out of the parts of several routers, each whole one once and in order.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_cut_is_whole_when_it_is_merged() {
        let bytes: Vec<u8> = (0..2 * MAX_PART + 5).map(|n| n as u8).collect();
        let parts: Vec<_> = ObservedPart::cut(7, 100, &bytes).collect();
        assert_eq!(parts.len(), 3);
        let twice = parts.iter().rev().chain(&parts).cloned().collect();
        let merged = ObservedPart::merge(twice);
        assert_eq!(merged, parts);
        assert_eq!(merged.iter().map(|p| p.from).collect::<Vec<_>>(), [100, 16484, 32868]);
        assert_eq!(merged.concat_bytes(), bytes);
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
