//! An image that is being stored, from a rank or from another store: its chunks so far, the pack
//! for new chunks, and the commit. An intake that is dropped before its commit frees all that it
//! holds.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;
use std::sync::Arc;

use crate::catalog::Catalog;
use crate::error::IoError;
use crate::manifest::{ChunkKey, ChunkRef, Manifest, Place};
use crate::store::{lock, Store};

/// An image that is being stored.
pub struct Intake<'a> {
    store: &'a Store,
    emptying: HashSet<u64>,
    /// Chunks so far, each with a reference in the catalog that this intake owns.
    chunks: Vec<ChunkRef>,
    /// The pack file for new chunks, created with the first one.
    pack: Option<OwnPack>,
    pub new_bytes: u64,
    pub new_chunks: u64,
}

struct OwnPack {
    id: u64,
    file: Arc<File>,
    len: u64,
}

impl<'a> Intake<'a> {
    pub fn new(store: &'a Store) -> Self {
        let emptying = store.catalog().packs_to_empty();
        Intake { store, emptying, chunks: Vec::new(), pack: None, new_bytes: 0, new_chunks: 0 }
    }

    /// Chunks so far.
    pub fn count(&self) -> usize {
        self.chunks.len()
    }

    /// Refers to those of these chunks that the store has, and returns where they are.
    pub fn find(&mut self, keys: &[ChunkKey]) -> Vec<Option<ChunkRef>> {
        let mut catalog = self.store.catalog();
        let found: Vec<_> = keys.iter().map(|key| catalog.find(key, &self.emptying)).collect();
        self.chunks.extend(found.iter().flatten());
        found
    }

    /// Refers to chunks of an image that is pinned; false when one of them is known to be damaged.
    pub fn share(&mut self, chunks: &[ChunkRef]) -> bool {
        let shared = self.store.catalog().share(chunks);
        if shared {
            self.chunks.extend_from_slice(chunks);
        }
        shared
    }

    /// Releases the last `count` chunks, which are not needed after all.
    pub fn give_back(&mut self, count: usize) {
        let gone = self.chunks.split_off(self.chunks.len() - count);
        let work = self.store.catalog().release(&gone);
        self.store.disk.reclaim(&work);
    }

    /// Whether a chunk is in a pack that is to be emptied.
    pub fn must_move(&self, chunk: &ChunkRef) -> bool {
        self.emptying.contains(&chunk.place.pack)
    }

    pub fn store(&self) -> &'a Store {
        self.store
    }

    /// The chunks so far.
    pub fn chunks(&self) -> &[ChunkRef] {
        &self.chunks
    }

    /// Writes a chunk that was not found, in its stored form, and refers to it.
    pub fn append(&mut self, key: ChunkKey, stored: &[u8]) -> Result<ChunkRef, IoError> {
        let disk = &self.store.disk;
        let pack = match &mut self.pack {
            Some(pack) => pack,
            none => none.insert(OwnPack::create(self.store)?),
        };
        let written = pack.file.write_all_at(stored, pack.len);
        written.map_err(IoError::at("write to", &disk.pack_path(pack.id)))?;
        let place = Place { pack: pack.id, offset: pack.len };
        let chunk = ChunkRef { key, place, stored_len: stored.len() as u32 };
        let entered = self.store.catalog().add(chunk, &self.emptying);
        if entered == chunk {
            pack.len = chunk.end();
            self.new_bytes += stored.len() as u64;
            self.new_chunks += 1;
        }
        self.chunks.push(entered);
        Ok(entered)
    }

    /// Sets the chunks of the image. Each of them was found or appended once.
    pub fn arrange(&mut self, chunks: Vec<ChunkRef>) {
        self.store.catalog().hold(&chunks);
        let once = std::mem::replace(&mut self.chunks, chunks);
        let work = self.store.catalog().release(&once);
        self.store.disk.reclaim(&work);
    }

    /// Makes the image count: syncs its packs, writes its manifest under a temporary name, renames
    /// it. This fills in the chunks of `manifest`. `admit` decides at the last moment whether the
    /// image may count.
    pub fn commit<E>(
        mut self,
        mut manifest: Manifest,
        admit: impl FnOnce(&Catalog) -> Result<(), E>,
        storage: impl Fn(IoError) -> E,
    ) -> Result<(), E> {
        let store = self.store;
        self.trim().map_err(&storage)?;
        self.sync_packs().map_err(&storage)?;
        manifest.chunks = self.chunks.clone();
        let rank = manifest.rank;
        let image = manifest.image;
        let attempt = store.attempts.fetch_add(1, Ordering::Relaxed);
        let encoded = manifest.encode();
        let temp = store.disk.write_manifest(rank, image, attempt, &encoded).map_err(&storage)?;
        let _publishing = lock(&store.publishing);
        admit(&store.catalog()).inspect_err(|_| drop(std::fs::remove_file(&temp)))?;
        store.disk.publish(&temp, rank, image).map_err(&storage)?;
        store.catalog().commit(Arc::new(manifest));
        // The image owns the references from here on.
        self.chunks.clear();
        Ok(())
    }

    /// Cuts off the end of the pack: a chunk that another receive stored at the same time.
    fn trim(&self) -> Result<(), IoError> {
        let Some(pack) = &self.pack else { return Ok(()) };
        let path = self.store.disk.pack_path(pack.id);
        pack.file.set_len(pack.len).map_err(IoError::at("cut the end of", &path))
    }

    /// Syncs every pack that the image needs, also packs that other receives write.
    fn sync_packs(&self) -> Result<(), IoError> {
        let mut needed = BTreeMap::new();
        for chunk in &self.chunks {
            let end: &mut u64 = needed.entry(chunk.place.pack).or_default();
            *end = chunk.end().max(*end);
        }
        let mut names_changed = false;
        for (pack, end) in needed {
            names_changed |= self.sync_pack(pack, end)?;
        }
        if names_changed {
            self.store.disk.sync_pack_names()
        } else {
            Ok(())
        }
    }

    /// Syncs a pack up to `end`; false when it already was. The kernel reports a failed sync only
    /// once, so the catalog remembers it for all images that rely on the pack.
    fn sync_pack(&self, id: u64, end: u64) -> Result<bool, IoError> {
        let disk = &self.store.disk;
        let uncertain = || {
            let source = io::Error::other("an earlier sync of it failed");
            IoError::at("rely on", &disk.pack_path(id))(source)
        };
        let (written, writer) = match self.store.catalog().pack(id) {
            Some(pack) if pack.broken => return Err(uncertain()),
            Some(pack) if pack.synced >= end => return Ok(false),
            Some(pack) => (pack.len, pack.writer.clone()),
            None => return Err(uncertain()),
        };
        let file = match writer {
            Some(file) => file,
            None => Arc::new(disk.open_pack(id)?),
        };
        let outcome = disk.sync_pack(id, &file);
        let mut catalog = self.store.catalog();
        let pack = catalog.pack(id).ok_or_else(uncertain)?;
        pack.broken |= outcome.is_err();
        outcome?;
        if pack.broken {
            return Err(uncertain());
        }
        pack.synced = pack.synced.max(written);
        Ok(true)
    }
}

impl Drop for Intake<'_> {
    fn drop(&mut self) {
        let mut work = self.store.catalog().release(&self.chunks);
        if let Some(pack) = &self.pack {
            if let Err(error) = self.trim() {
                tracing::warn!(%error, "cannot cut off the unused end of a pack");
            }
            work.extend(self.store.catalog().end_pack(pack.id, pack.len));
        }
        self.store.disk.reclaim(&work);
    }
}

impl OwnPack {
    fn create(store: &Store) -> Result<OwnPack, IoError> {
        let id = store.catalog().begin_pack();
        let file = Arc::new(store.disk.create_pack(id)?);
        store.catalog().open_pack(id, Arc::clone(&file));
        Ok(OwnPack { id, file, len: 0 })
    }
}
