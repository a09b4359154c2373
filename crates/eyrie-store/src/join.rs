//! Joins an incremental image with the one that it builds on: what has not changed is taken from
//! that one's chunks, so that the image is whole by itself as soon as it counts. A page that is to
//! be as it was must never come from a chunk that is known to be damaged.

use std::ops::Range;

use eyrie_image::stream::{RecordHeader, MAX_PAYLOAD};

use crate::error::{Fault, StreamError};
use crate::intake::Intake;
use crate::manifest::{ChunkKey, ChunkRef, ImageId};
use crate::send::Reader;
use crate::store::{Pin, Store};
use crate::window::{groups, Pages, Window};

/// Chunks that a window may consist of before they are put together; up to so many more for some
/// windows, so that not all reach the bound with the same image.
const CHUNKS_MAX: usize = 5;
const SPREAD: u64 = 4;
/// Pages that the chunks of a window may hold beyond twice those that are used.
const WASTE_MAX: u32 = 32;
/// One in so many windows is read and verified, others with the next image.
const VERIFIED: u64 = 32;

/// A window of addresses whose records come.
pub struct Open {
    pub window: u64,
    /// Its first chunk in the intake.
    pub first: usize,
    /// Pages that have come, and pages that are as they were.
    brought: u64,
    kept: u64,
}

impl Open {
    pub fn new(window: u64, first: usize) -> Open {
        Open { window, first, brought: 0, kept: 0 }
    }

    /// False when one of these pages has come already.
    pub fn bring(&mut self, pages: u64) -> bool {
        let fresh = (self.brought | self.kept) & pages == 0;
        self.brought |= pages;
        fresh
    }

    /// False when one of these pages has come already.
    pub fn keep(&mut self, pages: u64) -> bool {
        let fresh = (self.brought | self.kept) & pages == 0;
        self.kept |= pages;
        fresh
    }
}

/// The window and pages that a record says are as they were; `None` when it says nonsense.
pub fn same_pages(header: &RecordHeader) -> Option<(u64, u64)> {
    let sound = header.a % MAX_PAYLOAD as u64 == 0 && header.len == 0 && header.b != 0;
    let window = header.a / MAX_PAYLOAD as u64;
    (sound && header.a <= u64::MAX >> 1).then_some((window, header.b))
}

/// The image that another builds on, held until that one is whole.
pub struct Base<'a> {
    store: &'a Store,
    pin: Pin<'a>,
    reader: Reader<'a>,
    /// Where the chunks of each window are in its manifest; ascending.
    windows: Vec<(u64, Range<usize>)>,
}

impl<'a> Base<'a> {
    /// Only of the same incarnation: the process that says what has changed must be the same.
    pub fn find(store: &'a Store, rank: u32, image: ImageId, incarnation: u64) -> Option<Base<'a>> {
        let pin = store.pin(rank, image)?;
        if pin.manifest.info.incarnation != incarnation {
            return None;
        }
        let pages = &pin.manifest.pages;
        let windows = groups(pages).filter(|group| !pages[group.start].is_none());
        let windows = windows.map(|group| (pages[group.start].window, group)).collect();
        Some(Base { store, pin, reader: Reader::new(store), windows })
    }

    /// Completes a window of the intake with what it keeps of this image.
    pub fn join(
        &mut self,
        open: &Open,
        image: ImageId,
        intake: &mut Intake,
        pages: &mut Vec<Pages>,
    ) -> Result<(), Fault> {
        let older = self.kept(open);
        if older.is_empty() {
            return Ok(());
        }
        if is_to_be_put_together(open, &older, intake, pages) {
            return self.put_together(open, &older, intake, pages);
        }
        if (open.window + image) % VERIFIED == 0 {
            for (chunk, _) in &older {
                self.read(chunk)?;
            }
        }
        let (chunks, kept): (Vec<_>, Vec<_>) = older.into_iter().unzip();
        if !intake.share(&chunks) {
            return Err(self.damaged());
        }
        pages.extend(kept);
        Ok(())
    }

    /// The chunks of which a window keeps pages. What is as it was and is in none was zero.
    fn kept(&self, open: &Open) -> Vec<(ChunkRef, Pages)> {
        let manifest = &self.pin.manifest;
        let first = self.windows.partition_point(|(window, _)| *window < open.window);
        let groups = self.windows[first..].iter().take_while(|(window, _)| *window == open.window);
        let all = groups.flat_map(|(_, group)| group.clone());
        let all = all.map(|n| (manifest.chunks[n], manifest.pages[n]));
        let kept = all.map(|(chunk, p)| (chunk, Pages { used: p.used & open.kept, ..p }));
        kept.filter(|(_, p)| p.used != 0).collect()
    }

    /// Writes a window as one chunk.
    fn put_together(
        &mut self,
        open: &Open,
        older: &[(ChunkRef, Pages)],
        intake: &mut Intake,
        pages: &mut Vec<Pages>,
    ) -> Result<(), Fault> {
        let newer = intake.chunks()[open.first..].iter().copied();
        let newer: Vec<_> = newer.zip(pages[open.first..].iter().copied()).collect();
        let mut window = Window::new(open.window);
        for (chunk, p) in newer.iter().chain(older) {
            let raw = self.read(chunk)?;
            if window.add(raw, p.used).is_none() {
                return Err(self.damaged());
            }
        }
        intake.give_back(newer.len());
        pages.truncate(open.first);
        let mut records = Vec::new();
        window.write(&mut records);
        let (hash, raw_len) = (blake3::hash(&records).into(), records.len() as u32);
        let key = ChunkKey { hash, raw_len };
        if intake.find(&[key]) == [None] {
            intake.append(key, &records).map_err(Fault::Storage)?;
        }
        let all = window.pages();
        pages.push(Pages { window: open.window, held: all, used: all });
        Ok(())
    }

    fn read(&mut self, chunk: &ChunkRef) -> Result<&[u8], Fault> {
        let base = self.pin.manifest.image;
        self.reader.read(chunk).map_err(|reason| {
            let offset = chunk.place.offset;
            let file = self.store.disk.pack_path(chunk.place.pack);
            tracing::warn!(file = %file.display(), offset, reason, "a chunk is damaged");
            self.store.catalog().mark_damaged(chunk.place);
            Fault::Stream(StreamError::DamagedBase { base })
        })
    }

    fn damaged(&self) -> Fault {
        Fault::Stream(StreamError::DamagedBase { base: self.pin.manifest.image })
    }
}

/// Whether a window has become too many chunks, or too much of them is not used, or one lies in a
/// pack that is to run empty.
fn is_to_be_put_together(
    open: &Open,
    older: &[(ChunkRef, Pages)],
    intake: &Intake,
    pages: &[Pages],
) -> bool {
    let newer = &pages[open.first..];
    let all = || newer.iter().chain(older.iter().map(|(_, p)| p));
    let held: u32 = all().map(|p| p.held.count_ones()).sum();
    let used: u32 = all().map(|p| p.used.count_ones()).sum();
    newer.len() + older.len() > CHUNKS_MAX + (open.window % SPREAD) as usize
        || held > 2 * used + WASTE_MAX
        || older.iter().any(|(chunk, _)| intake.is_to_move(chunk))
}
