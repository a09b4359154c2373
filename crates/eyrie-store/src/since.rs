//! Sending what is new in an image since an earlier one, in the form of an incremental image, to a
//! receiver that has the earlier one. It must never declare a page unchanged unless both images use
//! the same verified content for it, in memory that both describe as private to the process.

use eyrie_wire::Rank;
use std::io::Write;

use eyrie_image_format::stream::{Kind, RecordHeader, MAX_PAYLOAD, RECORD_HEADER_LEN};
use eyrie_image_format::{take, Mapping, PAGES_SAME};

use crate::error::SendError;
use crate::manifest::{ChunkKey, ImageId, Manifest};
use crate::send::Reader;
use crate::store::Store;
use crate::window::{groups, Pages, Window, PAGE};

/// Why an image could not be sent: a chunk is damaged, or the receiver closed the connection.
enum Fault {
    Chunk(usize, String),
    Gone(std::io::Error),
}

impl Store {
    /// Writes to `out` what is new in an image since image `since` of its rank, or the whole image
    /// when the store does not have `since`. Returns the bytes written. Fails as [`Store::send`].
    pub fn send_since(
        &self,
        rank: Rank,
        image: ImageId,
        since: ImageId,
        mut out: impl Write,
    ) -> Result<u64, SendError> {
        let pin = self.pin(rank, image).ok_or(SendError::NoImage { rank, image })?;
        let Some(base) = self.pin(rank, since) else { return self.send(rank, image, out) };
        let mut reader = Reader::new(self);
        // Damage in the earlier image does not affect this one.
        let Ok(before) = own_memory(&mut reader, &base.manifest) else {
            return self.send(rank, image, out);
        };
        let own = own_memory(&mut reader, &pin.manifest)
            .map_err(|(number, reason)| self.damaged(&pin.manifest, number, reason))?;
        let settled = common(&own, &before);
        let mut to = Difference { out: &mut out, bytes: 0, records: 0 };
        let written = to.write(&mut reader, &pin.manifest, &base.manifest, &settled);
        written.map_err(|fault| match fault {
            Fault::Chunk(number, reason) => self.damaged(&pin.manifest, number, reason),
            Fault::Gone(source) => SendError::Write { rank, image, source },
        })?;
        Ok(to.bytes)
    }
}

/// The stream of a difference that is being written.
struct Difference<'a, W> {
    out: &'a mut W,
    bytes: u64,
    records: u64,
}

impl<W: Write> Difference<'_, W> {
    fn write(
        &mut self,
        reader: &mut Reader,
        image: &Manifest,
        base: &Manifest,
        settled: &[(u64, u64)],
    ) -> Result<(), Fault> {
        let mut older = Older::new(base);
        let mut records = Vec::new();
        for group in groups(&image.pages) {
            let first = image.pages[group.start];
            if first.is_none() {
                let raw = reader.read(&image.chunks[group.start]);
                let raw = raw.map_err(|reason| Fault::Chunk(group.start, reason))?;
                self.pass(raw, base.image).map_err(Fault::Gone)?;
                continue;
            }
            let chunks = group.clone().map(|n| (image.chunks[n].key, image.pages[n]));
            let same = older.same(first.window, chunks) & mask(settled, first.window);
            if same != 0 {
                let a = first.window * MAX_PAYLOAD as u64;
                let header =
                    RecordHeader { kind: Kind::Pages, flags: PAGES_SAME, a, b: same, len: 0 };
                self.record(&header, &[]).map_err(Fault::Gone)?;
            }
            let mut window = Window::new(first.window);
            for number in group {
                let wanted = image.pages[number].used & !same;
                if wanted != 0 {
                    let added = reader.add(&mut window, &image.chunks[number], wanted);
                    added.map_err(|reason| Fault::Chunk(number, reason))?;
                }
            }
            window.write(&mut records);
            self.pass(&records, base.image).map_err(Fault::Gone)?;
        }
        self.out.flush().map_err(Fault::Gone)
    }

    /// Passes whole records on. Adds, as the second record, the one that names the base, and
    /// corrects the counts in the trailer.
    fn pass(&mut self, mut raw: &[u8], base: ImageId) -> std::io::Result<()> {
        while let Some((mut header, payload, rest)) = next_record(raw) {
            if header.kind == Kind::Trailer {
                (header.a, header.b) = (self.bytes, self.records);
            }
            self.record(&header, payload)?;
            if header.kind == Kind::Header {
                let header = RecordHeader { kind: Kind::Base, flags: 0, a: base.0, b: 0, len: 0 };
                self.record(&header, &[])?;
            }
            raw = rest;
        }
        Ok(())
    }

    fn record(&mut self, header: &RecordHeader, payload: &[u8]) -> std::io::Result<()> {
        self.out.write_all(&header.encode())?;
        self.out.write_all(payload)?;
        self.bytes += (RECORD_HEADER_LEN + payload.len()) as u64;
        self.records += 1;
        Ok(())
    }
}

/// The first record of a chunk, its payload, and the bytes after it.
fn next_record(raw: &[u8]) -> Option<(RecordHeader, &[u8], &[u8])> {
    let (header, rest) = raw.split_first_chunk::<RECORD_HEADER_LEN>()?;
    let header = RecordHeader::decode(header)?;
    let (payload, rest) = rest.split_at_checked(header.len as usize)?;
    Some((header, payload, rest))
}

/// Goes through the windows of an earlier image, in order.
struct Older<'a> {
    manifest: &'a Manifest,
    at: usize,
}

impl<'a> Older<'a> {
    fn new(manifest: &'a Manifest) -> Older<'a> {
        Older { manifest, at: 0 }
    }

    /// Pages of a window that come from the same chunks in the earlier image.
    fn same(&mut self, window: u64, chunks: impl Iterator<Item = (ChunkKey, Pages)>) -> u64 {
        let pages = &self.manifest.pages;
        while pages.get(self.at).is_some_and(|p| p.is_none() || p.window < window) {
            self.at += 1;
        }
        let count = pages[self.at..].iter().take_while(|p| p.window == window).count();
        let there = self.at..self.at + count;
        let same = |(key, p): (ChunkKey, Pages)| {
            let older = there.clone().filter(|n| self.manifest.chunks[*n].key == key);
            older.fold(0, |same, n| same | pages[n].used & p.used)
        };
        chunks.map(same).fold(0, |all, same| all | same)
    }
}

/// The private anonymous memory that an image describes: ranges, ascending. `Err`: which chunk is
/// damaged, and how.
fn own_memory(
    reader: &mut Reader,
    manifest: &Manifest,
) -> Result<Vec<(u64, u64)>, (usize, String)> {
    let mut own: Vec<(u64, u64)> = Vec::new();
    for number in (0..manifest.chunks.len()).take_while(|n| manifest.pages[*n].is_none()) {
        let mut raw = reader.read(&manifest.chunks[number]).map_err(|reason| (number, reason))?;
        while let Some((header, payload, rest)) = next_record(raw) {
            raw = rest;
            let mapping = (header.kind == Kind::Mapping).then(|| take::<Mapping>(payload));
            let Some((m, _)) = mapping.flatten().filter(|(m, _)| m.is_own()) else { continue };
            match own.last_mut() {
                Some(last) if last.1 == m.start => last.1 = m.end,
                _ => own.push((m.start, m.end)),
            }
        }
    }
    Ok(own)
}

/// What is in both of two ascending lists of ranges.
fn common(one: &[(u64, u64)], other: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let mut both = Vec::new();
    let mut i = 0;
    let mut j = 0;
    while let (Some(a), Some(b)) = (one.get(i), other.get(j)) {
        let start = a.0.max(b.0);
        let end = a.1.min(b.1);
        if start < end {
            both.push((start, end));
        }
        if a.1 < b.1 {
            i += 1
        } else {
            j += 1
        }
    }
    both
}

/// The pages of a window that are in one of these ranges.
fn mask(ranges: &[(u64, u64)], window: u64) -> u64 {
    let from = window * MAX_PAYLOAD as u64;
    let to = (window + 1) * MAX_PAYLOAD as u64;
    let first = ranges.partition_point(|s| s.1 <= from);
    let within = ranges[first..].iter().take_while(|s| s.0 < to);
    within.fold(0, |pages, &(start, end)| {
        let page = PAGE as u64;
        let first = (start.max(from) - from) / page;
        let last = (end.min(to) - from) / page;
        pages | (u64::MAX >> (64 - (last - first))) << first
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_meet_and_become_pages() {
        let one = [(0, 10), (20, 30)];
        let other = [(5, 25), (29, 40)];
        assert_eq!(common(&one, &other), [(5, 10), (20, 25), (29, 30)]);
        let window = MAX_PAYLOAD as u64;
        let page = PAGE as u64;
        assert_eq!(mask(&[(0, 3 * window)], 1), u64::MAX);
        assert_eq!(mask(&[(window - page, window + page)], 0), 1 << 63);
        assert_eq!(mask(&[(window - page, window + page)], 1), 1);
        assert_eq!(mask(&[(window, 2 * window)], 2), 0);
    }
}
