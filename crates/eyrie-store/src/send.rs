//! Sending images, and looking for damage. It must never write a byte that it has not verified.

use eyrie_wire::Rank;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use crate::chunk::{restore, MAX_CHUNK};
use crate::error::{SendError, StoreError};
use crate::manifest::{ChunkRef, ImageId, Manifest, Place};
use crate::store::{lock, Store};
use crate::window::{groups, is_verbatim, Window};

/// What a check of all images found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifyReport {
    pub images: u64,
    /// Chunks read, each once.
    pub chunks: u64,
    pub damaged: Vec<Damage>,
}

/// A manifest or chunk that differs from what was stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    pub file: PathBuf,
    /// Byte in the file at which the damaged chunk begins; 0 for a manifest.
    pub offset: u64,
    pub reason: String,
    /// Rank and number of every image that needs it.
    pub images: Vec<(Rank, ImageId)>,
}

impl Store {
    /// Writes an image's stream to `out` and returns its length in bytes. Every chunk is verified
    /// before it is written. At the first damaged one this ends with [`SendError::Damaged`], and
    /// the caller tries again with the image before.
    pub fn send(&self, rank: Rank, image: ImageId, mut out: impl Write) -> Result<u64, SendError> {
        let pin = self.pin(rank, image).ok_or(SendError::NoImage { rank, image })?;
        let mut reader = Reader::new(self);
        let gone = |source| SendError::Write { rank, image, source };
        let manifest = &pin.manifest;
        let damaged = |number, reason| self.damaged(manifest, number, reason);
        let mut records = Vec::new();
        for group in groups(&manifest.pages) {
            if is_verbatim(&manifest.pages[group.clone()]) {
                for number in group {
                    let raw = reader.read(&manifest.chunks[number]);
                    out.write_all(raw.map_err(|reason| damaged(number, reason))?).map_err(gone)?;
                }
                continue;
            }
            let mut window = Window::new(manifest.pages[group.start].window);
            for number in group {
                let used = manifest.pages[number].used;
                let added = reader.add(&mut window, &manifest.chunks[number], used);
                added.map_err(|reason| damaged(number, reason))?;
            }
            window.write(&mut records);
            out.write_all(&records).map_err(gone)?;
        }
        out.flush().map_err(|source| SendError::Write { rank, image, source })?;
        Ok(pin.manifest.bytes)
    }

    /// Marks a chunk of an image as damaged and returns the error that says so.
    pub(crate) fn damaged(&self, of: &Manifest, number: usize, reason: String) -> SendError {
        let chunk = &of.chunks[number];
        self.catalog().mark_damaged(chunk.place);
        SendError::Damaged {
            rank: of.rank,
            image: of.image,
            chunk: number,
            hash: blake3::Hash::from_bytes(chunk.key.hash).to_hex().to_string(),
            file: self.disk.pack_path(chunk.place.pack),
            offset: chunk.place.offset,
            reason,
        }
    }

    /// Reads all manifests and chunks from disk and checks them. Damaged chunks are stored anew
    /// when a later image has them again.
    pub fn verify(&self) -> Result<VerifyReport, StoreError> {
        let names: Vec<_> = self.catalog().images().map(|m| (m.rank, m.image)).collect();
        let pins: Vec<_> = names.iter().filter_map(|&(rank, n)| self.pin(rank, n)).collect();
        let mut report = VerifyReport { images: pins.len() as u64, ..VerifyReport::default() };
        let mut users: BTreeMap<Place, (ChunkRef, Vec<(Rank, ImageId)>)> = BTreeMap::new();
        for pin in &pins {
            let name = (pin.manifest.rank, pin.manifest.image);
            report.damaged.extend(self.check_manifest(&pin.manifest));
            for chunk in &pin.manifest.chunks {
                let (_, images) = users.entry(chunk.place).or_insert((*chunk, Vec::new()));
                if images.last() != Some(&name) {
                    images.push(name);
                }
            }
        }
        let mut reader = Reader::new(self);
        for (place, (chunk, images)) in users {
            report.chunks += 1;
            if let Err(reason) = reader.read(&chunk) {
                self.catalog().mark_damaged(place);
                let file = self.disk.pack_path(place.pack);
                report.damaged.push(Damage { file, offset: place.offset, reason, images });
            }
        }
        Ok(report)
    }

    /// Compares a manifest on disk with the one in memory. A discarded image is not damaged.
    fn check_manifest(&self, manifest: &Manifest) -> Option<Damage> {
        let rank = manifest.rank;
        let image = manifest.image;
        let _publishing = lock(&self.publishing);
        self.catalog().image(rank, image)?;
        let reason = match self.disk.read_manifest(rank, image) {
            Ok(Some(bytes)) => match Manifest::decode(&bytes) {
                Ok(found) if found == *manifest => return None,
                Ok(_) => "it is another image's manifest".to_owned(),
                Err(error) => error.to_string(),
            },
            Ok(None) => "it is longer than a manifest can be".to_owned(),
            Err(error) => error.source.to_string(),
        };
        let file = self.disk.image_path(rank, image);
        Some(Damage { file, offset: 0, reason, images: vec![(rank, image)] })
    }
}

/// Reads chunks and keeps the file of the last pack open, because an image is in few packs.
pub(crate) struct Reader<'a> {
    store: &'a Store,
    open: Option<(u64, File)>,
    stored: Vec<u8>,
    raw: Vec<u8>,
}

impl<'a> Reader<'a> {
    pub fn new(store: &'a Store) -> Self {
        Reader { store, open: None, stored: vec![0; MAX_CHUNK], raw: Vec::new() }
    }

    /// Reads and verifies the stored form of a chunk. `Err` says what is wrong with it.
    pub fn read_stored(&mut self, chunk: &ChunkRef, stored: &mut [u8]) -> Result<(), String> {
        let pack = chunk.place.pack;
        if self.open.as_ref().is_none_or(|(open, _)| *open != pack) {
            let file = self.store.disk.open_pack(pack).map_err(|e| e.source.to_string())?;
            self.open = Some((pack, file));
        }
        let (_, file) = self.open.as_ref().expect("just opened");
        file.read_exact_at(stored, chunk.place.offset).map_err(|error| error.to_string())?;
        if blake3::hash(stored) == blake3::Hash::from_bytes(chunk.key.hash) {
            Ok(())
        } else {
            Err("its contents do not match its hash".into())
        }
    }

    /// Adds pages of a chunk to a window.
    pub fn add(&mut self, window: &mut Window, chunk: &ChunkRef, used: u64) -> Result<(), String> {
        let added = window.add(self.read(chunk)?, used);
        added.ok_or_else(|| "it lacks pages that the manifest says it has".into())
    }

    /// The chunk as it was in the stream, verified. `Err` says what is wrong with it.
    pub fn read(&mut self, chunk: &ChunkRef) -> Result<&[u8], String> {
        let mut stored = std::mem::take(&mut self.stored);
        let read = self.read_stored(chunk, &mut stored[..chunk.stored_len as usize]);
        self.stored = stored;
        read?;
        let stored = &self.stored[..chunk.stored_len as usize];
        restore(stored, chunk.key.raw_len as usize, &mut self.raw)
            .ok_or_else(|| "its table of zero pages is invalid".into())
    }
}
