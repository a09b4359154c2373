//! The store that receives a copy of an image from another store. It trusts nothing that arrives:
//! the manifest has a checksum and bounds, and each chunk must match its hash. A copy that fails
//! leaves nothing behind.

use super::piece::{read_head, MAX_PIECE};
use crate::catalog::Catalog;
use crate::chunk::{is_fragmented, restore};
use crate::error::IoError;
use crate::intake::Intake;
use crate::manifest::{
    ChunkKey, ChunkRef, ImageId, Manifest, ManifestError, MAX_CHUNKS, MAX_MANIFEST,
};
use crate::store::{summary, ImageSummary, Store};
use eyrie_wire::{Incarnation, Rank};
use std::collections::hash_map::Entry;
use std::collections::HashMap;
use std::io::{self, Read, Write};

/// Chunks that are looked up at a time, so that other threads can use the catalog in between.
const LOOKED_UP: usize = 1024;

/// A copy that was received, in figures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copied {
    pub image: ImageSummary,
    /// Bytes and number of the chunks that were received.
    pub bytes: u64,
    pub chunks: u64,
}

/// Why an image was not copied. Earlier images stay as they were; what was written for this one is
/// freed.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// The other store gave this reason.
    #[error("{0}")]
    Refused(String),
    #[error("the connection to the other store broke: {0}")]
    Gone(io::Error),
    #[error("the other store sent no valid manifest: {0}")]
    Manifest(ManifestError),
    #[error(
        "the other store sent image {image} of rank {rank} (incarnation {incarnation}) instead"
    )]
    Other { rank: Rank, image: ImageId, incarnation: Incarnation },
    #[error("the manifest has {chunks} chunks in {bytes} bytes, more than an image can have")]
    Fragmented { chunks: usize, bytes: u64 },
    #[error("a piece of {len} bytes does not match the chunks that were asked for")]
    Piece { len: usize },
    #[error("chunk {chunk} arrived damaged: {reason}")]
    Damaged { chunk: usize, reason: &'static str },
    /// The store would have discarded the copy at once.
    #[error("the store already has {newer} newer images of the rank and keeps no more")]
    Superseded { newer: usize },
    /// Another receive or copy of this image was faster.
    #[error("the store already has it")]
    Present,
    #[error("{source}{}", source.remedy())]
    Storage { source: IoError },
}

impl Store {
    /// Receives an image from the store at the other end of `stream`, which must have it of this
    /// incarnation, and commits it as [`Store::receive`] does. It may be older than images that are
    /// already here. `stream` bounds its own waits.
    ///
    /// # Errors
    /// See [`CopyError`].
    pub fn copy_from(
        &self,
        rank: Rank,
        image: ImageId,
        incarnation: Incarnation,
        stream: &mut (impl Read + Write),
    ) -> Result<Copied, CopyError> {
        let admit = |catalog: &Catalog| self.admit_copy(catalog, rank, image);
        admit(&self.catalog())?;
        let mut manifest = read_manifest(stream)?;
        let found = (manifest.rank, manifest.image, manifest.info.incarnation);
        if found != (rank, image, incarnation) {
            let (rank, image, incarnation) = found;
            return Err(CopyError::Other { rank, image, incarnation });
        }
        let mut intake = Intake::new(self);
        let theirs = std::mem::take(&mut manifest.chunks);
        let (mut ours, wanted) = look_up(&mut intake, &theirs);
        ask_for(stream, &wanted, theirs.len())?;
        read_chunks(stream, &theirs, &wanted, |key, stored| {
            ours.insert(key, Some(intake.append(key, stored)?));
            Ok(())
        })?;
        // All chunks have arrived, so each key leads to a chunk.
        intake.arrange(theirs.iter().filter_map(|chunk| *ours.get(&chunk.key)?).collect());
        let copied = Copied {
            image: summary(&manifest),
            bytes: wanted.iter().map(|n| u64::from(theirs[*n].stored_len)).sum(),
            chunks: wanted.len() as u64,
        };
        intake.commit(manifest, admit, |source| CopyError::Storage { source })?;
        if let Err(error) = self.prune(rank, self.keep) {
            tracing::warn!(%rank, %error, "older images stay until the next one");
        }
        Ok(copied)
    }

    /// Whether the store lacks this image and would keep a copy of it.
    fn admit_copy(&self, catalog: &Catalog, rank: Rank, image: ImageId) -> Result<(), CopyError> {
        if catalog.image(rank, image).is_some() {
            return Err(CopyError::Present);
        }
        let newer = catalog.images_of(rank).take_while(|m| m.image > image).count();
        if newer < self.keep {
            Ok(())
        } else {
            Err(CopyError::Superseded { newer })
        }
    }
}

fn read_manifest(stream: &mut impl Read) -> Result<Manifest, CopyError> {
    let len = read_head(stream).map_err(CopyError::Gone)?.map_err(CopyError::Refused)?;
    if len > MAX_MANIFEST {
        return Err(CopyError::Manifest(ManifestError::Length));
    }
    // Grows with what arrives, not with what the length promises.
    let mut bytes = Vec::new();
    stream.take(len as u64).read_to_end(&mut bytes).map_err(CopyError::Gone)?;
    if bytes.len() < len {
        return Err(CopyError::Gone(io::ErrorKind::UnexpectedEof.into()));
    }
    let manifest = Manifest::decode(&bytes).map_err(CopyError::Manifest)?;
    let chunks = manifest.chunks.len();
    let bytes = manifest.bytes;
    if chunks == 0 || is_fragmented(chunks - 1, bytes) {
        return Err(CopyError::Fragmented { chunks, bytes });
    }
    Ok(manifest)
}

/// The chunks that an image needs, by key: where they are here, or `None` while they are not here;
/// and the numbers of those that are wanted, each chunk once.
type Ours = HashMap<ChunkKey, Option<ChunkRef>>;
fn look_up(intake: &mut Intake, theirs: &[ChunkRef]) -> (Ours, Vec<usize>) {
    let mut ours = Ours::new();
    let mut wanted = Vec::new();
    for (batch, chunks) in theirs.chunks(LOOKED_UP).enumerate() {
        let mut new = Vec::new();
        for (at, chunk) in chunks.iter().enumerate() {
            if let Entry::Vacant(entry) = ours.entry(chunk.key) {
                entry.insert(None);
                new.push((batch * LOOKED_UP + at, chunk.key));
            }
        }
        let keys: Vec<_> = new.iter().map(|(_, key)| *key).collect();
        for ((number, key), found) in new.into_iter().zip(intake.find(&keys)) {
            match found {
                Some(_) => drop(ours.insert(key, found)),
                None => wanted.push(number),
            }
        }
    }
    (ours, wanted)
}

/// Tells the other store which of `count` chunks are wanted.
fn ask_for(stream: &mut impl Write, wanted: &[usize], count: usize) -> Result<(), CopyError> {
    debug_assert!(count <= MAX_CHUNKS);
    let mut bits = vec![0; count.div_ceil(8)];
    for number in wanted {
        bits[number / 8] |= 1u8 << (number % 8);
    }
    stream.write_all(&bits).map_err(CopyError::Gone)
}

/// Reads the wanted chunks, verifies each and passes its stored form to `store`.
fn read_chunks(
    stream: &mut impl Read,
    theirs: &[ChunkRef],
    wanted: &[usize],
    mut store: impl FnMut(ChunkKey, &[u8]) -> Result<(), IoError>,
) -> Result<(), CopyError> {
    let mut piece = vec![0; MAX_PIECE];
    let mut scratch = Vec::new();
    let mut wanted = wanted.iter();
    while !wanted.as_slice().is_empty() {
        let len = read_head(stream).map_err(CopyError::Gone)?.map_err(CopyError::Refused)?;
        let room = piece.get_mut(..len).ok_or(CopyError::Piece { len })?;
        stream.read_exact(room).map_err(CopyError::Gone)?;
        let mut rest = &*room;
        while !rest.is_empty() {
            let number = *wanted.next().ok_or(CopyError::Piece { len })?;
            let ChunkRef { key, stored_len, .. } = theirs[number];
            let split = rest.split_at_checked(stored_len as usize);
            let (stored, after) = split.ok_or(CopyError::Piece { len })?;
            let damaged = |reason| CopyError::Damaged { chunk: number, reason };
            if blake3::hash(stored) != blake3::Hash::from_bytes(key.hash) {
                return Err(damaged("its contents do not match its hash"));
            }
            restore(stored, key.raw_len as usize, &mut scratch)
                .ok_or_else(|| damaged("its table of zero pages is invalid"))?;
            store(key, stored).map_err(|source| CopyError::Storage { source })?;
            rest = after;
        }
    }
    Ok(())
}
