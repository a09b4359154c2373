//! Pages of a process, by windows of its addresses: which pages a chunk holds, and which of those
//! an image uses. An incremental image shares chunks with its base and uses the pages that it has
//! not replaced. Pure, no I/O; accepts any bytes.

use std::ops::Range;

use eyrie_image_format::stream::{Kind, RecordHeader, MAX_PAYLOAD, RECORD_HEADER_LEN};

pub const PAGE: usize = 4096;
/// Pages of a window: one bit each, lowest address first.
const _: () = assert!(MAX_PAYLOAD / PAGE == 64);

/// Which pages an image takes from a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pages {
    /// First address divided by the window's length. [`Pages::NONE`] for chunks of other records,
    /// which are sent unchanged.
    pub window: u64,
    /// Pages in the chunk.
    pub held: u64,
    /// Pages of the chunk that the image uses.
    pub used: u64,
}

impl Pages {
    pub const NONE: Pages = Pages { window: u64::MAX, held: 0, used: 0 };

    pub fn is_none(&self) -> bool {
        self.window == u64::MAX
    }

    /// Whether the numbers fit each other and a chunk of this length.
    pub fn is_sound(&self, raw_len: u32) -> bool {
        if self.is_none() {
            return (self.held, self.used) == (0, 0);
        }
        let headers = u64::from(raw_len).checked_sub(pages_len(self.held));
        self.window <= u64::MAX / MAX_PAYLOAD as u64
            && self.used != 0
            && self.used & !self.held == 0
            && headers.is_some_and(|len| len > 0 && len % RECORD_HEADER_LEN as u64 == 0)
    }
}

fn pages_len(pages: u64) -> u64 {
    u64::from(pages.count_ones()) * PAGE as u64
}

/// Groups of chunks: consecutive chunks of one window, or a single chunk of another kind.
pub fn groups(pages: &[Pages]) -> impl Iterator<Item = Range<usize>> + '_ {
    let mut at = 0;
    std::iter::from_fn(move || {
        let first = pages.get(at)?;
        let same = |p: &&Pages| !first.is_none() && p.window == first.window;
        let count = 1 + pages[at + 1..].iter().take_while(same).count();
        at += count;
        Some(at - count..at)
    })
}

/// Whether the chunks of a group are sent unchanged.
pub fn is_verbatim(group: &[Pages]) -> bool {
    group.iter().all(|p| p.held == p.used)
}

/// All pages that a group uses; `None` when two chunks have the same page.
pub fn used(group: &[Pages]) -> Option<u64> {
    group.iter().try_fold(0, |all, p| (all & p.used == 0).then_some(all | p.used))
}

/// Bytes and records of a group in the stream, from the lengths of its chunks. For a chunk of
/// another kind the number of records is meaningless.
pub fn length(pages: &[Pages], raw_lens: impl Iterator<Item = u32>) -> (u64, u64) {
    if is_verbatim(pages) {
        let bytes: u64 = raw_lens.map(u64::from).sum();
        let content: u64 = pages.iter().map(|p| pages_len(p.held)).sum();
        return (bytes, (bytes - content) / RECORD_HEADER_LEN as u64);
    }
    let all = pages.iter().fold(0, |all, p| all | p.used);
    let records = runs(all).count() as u64;
    (records * RECORD_HEADER_LEN as u64 + pages_len(all), records)
}

/// Runs of pages, as ranges of page numbers.
fn runs(pages: u64) -> impl Iterator<Item = Range<usize>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let rest = pages.checked_shr(at)?;
        if rest == 0 {
            return None;
        }
        let first = at + rest.trailing_zeros();
        at = first + (pages >> first).trailing_ones();
        Some(first as usize..at as usize)
    })
}

/// The window and the pages of a record of pages; `None` unless these are whole pages of one
/// window.
pub fn pages_of(header: &RecordHeader) -> Option<(u64, u64)> {
    let first = header.a % MAX_PAYLOAD as u64;
    let len = header.len;
    let whole = (first | len) % PAGE as u64 == 0;
    if header.kind != Kind::Pages || header.flags != 0 || !whole {
        return None;
    }
    if len == 0 || first + len > MAX_PAYLOAD as u64 {
        return None;
    }
    let mask = u64::MAX >> (64 - len / PAGE as u64) << (first / PAGE as u64);
    Some((header.a / MAX_PAYLOAD as u64, mask))
}

/// A window that is assembled from pages of several chunks.
pub struct Window {
    number: u64,
    pages: u64,
    content: Vec<u8>,
}

impl Window {
    pub fn new(number: u64) -> Window {
        Window { number, pages: 0, content: vec![0; MAX_PAYLOAD] }
    }

    /// Copies these pages from a chunk; `None` when the chunk does not hold them.
    pub fn add(&mut self, chunk: &[u8], wanted: u64) -> Option<()> {
        let mut at = 0;
        let mut found = 0;
        while at < chunk.len() {
            let header = chunk.get(at..at + RECORD_HEADER_LEN)?;
            let header = RecordHeader::decode(header.try_into().ok()?)?;
            at += RECORD_HEADER_LEN;
            let payload = chunk.get(at..at + header.len as usize)?;
            at += payload.len();
            let Some((window, mask)) = pages_of(&header) else { continue };
            if window != self.number {
                return None;
            }
            let first = mask.trailing_zeros() as usize;
            for run in runs(mask & wanted) {
                let from = &payload[(run.start - first) * PAGE..(run.end - first) * PAGE];
                self.content[run.start * PAGE..run.end * PAGE].copy_from_slice(from);
            }
            found |= mask & wanted;
        }
        self.pages |= found;
        (found == wanted).then_some(())
    }

    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// Writes the records of all pages to `out`.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.clear();
        for run in runs(self.pages) {
            let content = &self.content[run.start * PAGE..run.end * PAGE];
            let a = self.number * MAX_PAYLOAD as u64 + (run.start * PAGE) as u64;
            let len = content.len() as u64;
            let header = RecordHeader { kind: Kind::Pages, flags: 0, a, b: 0, len };
            out.extend_from_slice(&header.encode());
            out.extend_from_slice(content);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A chunk with these pages of a window, each filled with `byte` and its number.
    fn chunk(number: u64, pages: u64, byte: u8) -> Vec<u8> {
        let mut window = Window::new(number);
        window.pages = pages;
        for (n, page) in window.content.chunks_mut(PAGE).enumerate() {
            page.fill(byte ^ n as u8);
        }
        let mut out = Vec::new();
        window.write(&mut out);
        out
    }

    #[test]
    fn runs_are_found_at_both_ends_of_a_window() {
        let all = |pages| runs(pages).map(|run| (run.start, run.end)).collect::<Vec<_>>();
        assert_eq!(all(0), []);
        assert_eq!(all(u64::MAX), [(0, 64)]);
        assert_eq!(all(1 << 63 | 0b1011), [(0, 2), (3, 4), (63, 64)]);
    }

    proptest! {
        #[test]
        fn pages_of_several_chunks_make_one_window(older: u64, newer: u64, kept: u64) {
            let used = older & !newer & kept;
            let mut window = Window::new(7);
            prop_assert!(window.add(&chunk(7, older, 0x40), used).is_some());
            prop_assert!(window.add(&chunk(7, newer, 0x80), newer).is_some());
            let mut out = Vec::new();
            window.write(&mut out);
            let group = [Pages { window: 7, held: u64::MAX, used: used | newer }];
            if group[0].used != u64::MAX {
                let records = runs(used | newer).count() as u64;
                let found = length(&group, [0].into_iter());
                prop_assert_eq!(found, (out.len() as u64, records));
            }
            for n in (0..64).filter(|n| (used | newer) >> n & 1 != 0) {
                let byte = if newer >> n & 1 != 0 { 0x80 } else { 0x40 } ^ n as u8;
                let page = &window.content[n as usize * PAGE..][..PAGE];
                prop_assert!(page.iter().all(|b| *b == byte));
            }
            prop_assert!(Window::new(8).add(&chunk(7, older | 1, 0), 1).is_none());
            prop_assert!(Window::new(7).add(&chunk(7, older & !1, 0), 1).is_none());
        }

        #[test]
        fn no_chunk_makes_it_panic(bytes: Vec<u8>, wanted: u64) {
            let _ = Window::new(0).add(&bytes, wanted);
        }
    }
}
