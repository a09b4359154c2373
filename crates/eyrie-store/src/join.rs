//! Joins an incremental image with the image that it builds on (its base). It takes unchanged pages
//! from the base's chunks, so that the image is whole by itself as soon as it counts. An unchanged
//! page must never come from a chunk that is known to be damaged.

use eyrie_wire::{Incarnation, Rank};
use std::ops::Range;

use eyrie_image_format::stream::{RecordHeader, MAX_PAYLOAD};

use crate::error::{Fault, StreamError};
use crate::intake::Intake;
use crate::manifest::{ChunkKey, ChunkRef, ImageId};
use crate::send::Reader;
use crate::store::{Pin, Store};
use crate::window::{groups, Pages, Window};

/// Chunks that a window may have before it is rewritten as one. Some windows may have up to
/// `SPREAD` more, so that not all windows reach the bound with the same image.
const CHUNKS_MAX: usize = 5;
const SPREAD: u64 = 4;
/// Pages that the chunks of a window may hold beyond twice the pages that are used.
const WASTE_MAX: u32 = 32;
/// One in so many windows is read and verified with each image, and other windows with the next.
const VERIFIED: u64 = 32;

/// The window of addresses whose records are arriving.
pub struct Open {
    pub window: u64,
    /// Its first chunk in the intake.
    pub first: usize,
    /// Pages that have arrived, and pages that are unchanged.
    arrived: u64,
    kept: u64,
}

impl Open {
    pub fn new(window: u64, first: usize) -> Open {
        Open { window, first, arrived: 0, kept: 0 }
    }

    /// Adds pages that have arrived; false when the window already has one of them.
    pub fn add_new(&mut self, pages: u64) -> bool {
        let fresh = (self.arrived | self.kept) & pages == 0;
        self.arrived |= pages;
        fresh
    }

    /// Adds pages that are unchanged; false when the window already has one of them.
    pub fn keep(&mut self, pages: u64) -> bool {
        let fresh = (self.arrived | self.kept) & pages == 0;
        self.kept |= pages;
        fresh
    }
}

/// The window and the pages that a record declares unchanged; `None` when the record is invalid.
pub fn same_pages(header: &RecordHeader) -> Option<(u64, u64)> {
    let sound = header.a % MAX_PAYLOAD as u64 == 0 && header.len == 0 && header.b != 0;
    let window = header.a / MAX_PAYLOAD as u64;
    (sound && header.a <= u64::MAX >> 1).then_some((window, header.b))
}

/// The image that another one builds on, pinned until that one is whole.
pub struct Base<'a> {
    store: &'a Store,
    pin: Pin<'a>,
    reader: Reader<'a>,
    /// Where the chunks of each window are in its manifest, ascending.
    windows: Vec<(u64, Range<usize>)>,
}

impl<'a> Base<'a> {
    /// Finds a base of the same incarnation: only the process itself knows what it has changed.
    pub fn find(
        store: &'a Store,
        rank: Rank,
        image: ImageId,
        incarnation: Incarnation,
    ) -> Option<Base<'a>> {
        let pin = store.pin(rank, image)?;
        if pin.manifest.info.incarnation != incarnation {
            return None;
        }
        let pages = &pin.manifest.pages;
        let windows = groups(pages).filter(|group| !pages[group.start].is_none());
        let windows = windows.map(|group| (pages[group.start].window, group)).collect();
        Some(Base { store, pin, reader: Reader::new(store), windows })
    }

    /// Completes a window of the intake with the pages that it keeps from this image.
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
        if needs_rewrite(open, &older, intake, pages) {
            return self.rewrite(open, &older, intake, pages);
        }
        if (open.window + image.0) % VERIFIED == 0 {
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

    /// The chunks whose pages a window keeps. An unchanged page that is in no chunk is zero.
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
    fn rewrite(
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
        let hash = blake3::hash(&records).into();
        let raw_len = records.len() as u32;
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

/// Whether a window has too many chunks, or too many unused pages in them, or a chunk in a pack
/// that is to be emptied.
fn needs_rewrite(
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
        || older.iter().any(|(chunk, _)| intake.must_move(chunk))
}
