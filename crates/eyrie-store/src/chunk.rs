//! How a stream is cut into chunks, and how a stored chunk omits zero pages. Pure, no I/O. Equal
//! memory must give equal chunks in the next image: the borders depend on the records alone, never
//! on earlier images.

use crate::window::pages_of;
use eyrie_image_format::stream::{Kind, RecordHeader, MAX_PAYLOAD, RECORD_HEADER_LEN};

/// Longest chunk in the stream: one record of the longest kind.
pub const MAX_CHUNK: usize = RECORD_HEADER_LEN + MAX_PAYLOAD;

/// A stream of whole pages, with the records between them, has at most one chunk for this many
/// bytes.
const MIN_BYTES_PER_CHUNK: u64 = 2048;
/// Chunks that a stream may have besides, however short it is.
const FREE_CHUNKS: u64 = 1024;

const PAGE: usize = 4096;

/// Whether so many chunks are too many for a stream of this length. No capture cuts so finely, and
/// a peer must not be able to make a store keep any number of chunks.
pub fn is_fragmented(chunks: usize, bytes: u64) -> bool {
    chunks as u64 > FREE_CHUNKS + bytes / MIN_BYTES_PER_CHUNK
}

/// Decides before which records a chunk ends.
#[derive(Default)]
pub struct Cutter {
    /// Length of the open chunk.
    len: usize,
    /// The 256 KiB window of addresses that the open chunk's pages lie in, and the flags of their
    /// records; `None` for other kinds.
    window: Option<(u32, u64)>,
}

impl Cutter {
    /// True when the open chunk ends before this record. Records of pages in one aligned window of
    /// [`MAX_PAYLOAD`] bytes share a chunk, and the records of other kinds between them share
    /// another. So a header that changes in every image does not change the chunks of pages.
    pub fn cut_before(&mut self, header: &RecordHeader) -> bool {
        let window = (header.kind == Kind::Pages).then(|| match header.flags {
            // A record that does not hold whole pages has a chunk of its own.
            0 => pages_of(header).map_or((u32::MAX, header.a), |(window, _)| (0, window)),
            flags => (flags, header.a / MAX_PAYLOAD as u64),
        });
        let record = RECORD_HEADER_LEN + header.len as usize;
        let cut = self.len > 0 && (window != self.window || self.len + record > MAX_CHUNK);
        self.window = window;
        self.len = if cut { record } else { self.len + record };
        cut
    }

    /// Ends the open chunk here.
    pub fn cut(&mut self) {
        *self = Cutter::default();
    }
}

/// Runs of zero pages in a chunk, as (first byte, length): ascending, with a gap between two.
#[derive(Default)]
pub struct ZeroRuns(Vec<(u32, u32)>);

impl ZeroRuns {
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Looks for zero pages in the payload of the record that lies at `start` of the chunk.
    pub fn scan(&mut self, chunk: &[u8], start: usize) {
        for at in (start..chunk.len()).step_by(PAGE) {
            let Some(page) = chunk.get(at..at + PAGE) else { return };
            if !is_zero(page) {
                continue;
            }
            match self.0.last_mut() {
                Some((first, len)) if (*first + *len) as usize == at => *len += PAGE as u32,
                _ => self.0.push((at as u32, PAGE as u32)),
            }
        }
    }

    /// The stored form. A chunk without zero pages is stored as it is. Otherwise `scratch` gets
    /// `count u32, (first u32, length u32)...` and then the bytes outside those runs.
    pub fn strip<'a>(&self, chunk: &'a [u8], scratch: &'a mut Vec<u8>) -> &'a [u8] {
        if self.0.is_empty() {
            return chunk;
        }
        scratch.clear();
        scratch.extend_from_slice(&(self.0.len() as u32).to_le_bytes());
        for (first, len) in &self.0 {
            scratch.extend_from_slice(&first.to_le_bytes());
            scratch.extend_from_slice(&len.to_le_bytes());
        }
        let mut from = 0;
        for &(first, len) in &self.0 {
            scratch.extend_from_slice(&chunk[from..first as usize]);
            from = (first + len) as usize;
        }
        scratch.extend_from_slice(&chunk[from..]);
        scratch
    }
}

/// Puts the zero pages back: `stored` becomes `raw_len` bytes in `raw`. `None` when the table of
/// runs is not one that [`ZeroRuns::strip`] writes; `raw` never grows beyond `raw_len`.
pub fn restore<'a>(stored: &'a [u8], raw_len: usize, raw: &'a mut Vec<u8>) -> Option<&'a [u8]> {
    if stored.len() == raw_len {
        return Some(stored);
    }
    let number = |at: usize| {
        let bytes = stored.get(at..at + 4)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?) as usize)
    };
    let runs = number(0)?;
    let mut rest = stored.get(4 + runs.checked_mul(8)?..)?;
    raw.clear();
    for run in 0..runs {
        let first = number(4 + run * 8)?;
        let len = number(8 + run * 8)?;
        let (bytes, after) = rest.split_at_checked(first.checked_sub(raw.len())?)?;
        if first + len > raw_len {
            return None;
        }
        rest = after;
        raw.extend_from_slice(bytes);
        raw.resize(first + len, 0);
    }
    if raw.len() + rest.len() != raw_len {
        return None;
    }
    raw.extend_from_slice(rest);
    Some(raw)
}

/// Looks at 64 bytes at a time. Most pages with content end the search at once.
fn is_zero(page: &[u8]) -> bool {
    page.chunks_exact(64).all(|part| part.iter().fold(0, |all, byte| all | byte) == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn header(kind: Kind, a: u64, len: usize) -> RecordHeader {
        RecordHeader { kind, flags: 0, a, b: 0, len: len as u64 }
    }

    #[test]
    fn pages_of_one_window_stay_together_and_apart_from_all_else() {
        let mut cutter = Cutter::default();
        let window = MAX_PAYLOAD as u64;
        let cuts = [
            (header(Kind::Header, 0, 100), false),
            (header(Kind::Mapping, 0, 100), false),
            (header(Kind::Pages, 0, PAGE), true),
            (header(Kind::Pages, window - 4096, PAGE), false),
            (header(Kind::Pages, window, MAX_PAYLOAD), true),
            (header(Kind::Pages, 2 * window, MAX_PAYLOAD), true),
            (header(Kind::Context, 0, MAX_PAYLOAD), true),
            (header(Kind::Trailer, 0, 0), true),
        ];
        for (record, cut) in cuts {
            assert_eq!(cutter.cut_before(&record), cut, "{record:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn zero_pages_come_back(
            pages in prop::collection::vec(0u8..3, 0..64), start in 0usize..100, tail in 0usize..50,
        ) {
            let mut chunk = vec![5; start];
            for page in &pages {
                chunk.extend_from_slice(&[page / 2; PAGE]);
                *chunk.last_mut().unwrap() |= page % 2;
            }
            chunk.resize(chunk.len() + tail, 0);
            let mut runs = ZeroRuns::default();
            runs.scan(&chunk, start);
            let mut scratch = Vec::new();
            let mut raw = Vec::new();
            let stored = runs.strip(&chunk, &mut scratch);
            let zeros = pages.iter().filter(|p| **p == 0).count();
            prop_assert!(stored.len() <= chunk.len() - zeros * (PAGE - 8) + 4 * zeros.min(1));
            prop_assert_eq!(restore(stored, chunk.len(), &mut raw), Some(chunk.as_slice()));
        }

        #[test]
        fn a_cutter_never_lets_a_chunk_outgrow_its_bound(
            records in prop::collection::vec((2u32..6, 0u64..4, 0..=MAX_PAYLOAD), 1..50),
        ) {
            let mut cutter = Cutter::default();
            let mut open = 0;
            for (kind, window, len) in records {
                let kind = Kind::from_u32(kind).unwrap();
                let record = header(kind, window * MAX_PAYLOAD as u64, len);
                let cut = cutter.cut_before(&record);
                open = RECORD_HEADER_LEN + len + if cut { 0 } else { open };
                prop_assert!(open <= MAX_CHUNK);
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(100_000))]

        #[test]
        fn any_table_of_runs_stays_within_the_length(
            runs in 0u32..5, numbers in prop::collection::vec(0u32..20_000, 0..10),
            rest in 0usize..100, raw_len in 0usize..30_000,
        ) {
            let mut stored = runs.to_le_bytes().to_vec();
            for n in &numbers {
                stored.extend_from_slice(&n.to_le_bytes());
            }
            stored.resize(stored.len() + rest, 1);
            let mut raw = Vec::new();
            if let Some(bytes) = restore(&stored, raw_len, &mut raw) {
                prop_assert_eq!(bytes.len(), raw_len);
            }
            prop_assert!(raw.len() <= raw_len);
        }
    }
}
