//! The store that takes a copy of an image from another. Of what comes nothing is believed: the
//! manifest has a checksum and bounds, each chunk must match the hash by which it is known. What
//! fails leaves nothing behind.

use super::piece::{read_head, MAX_PIECE};
use crate::catalog::Catalog;
use crate::chunk::{is_fragmented, restore};
use crate::error::IoError;
use crate::intake::Intake;
use crate::manifest::{
    ChunkKey, ChunkRef, ImageId, Manifest, ManifestError, MAX_CHUNKS, MAX_MANIFEST,
};
use crate::store::{summary, ImageSummary, Store};
use std::collections::hash_map::Entry;
use std::collections::HashMap;
use std::io::{self, Read, Write};

/// Chunks that are looked up at a time, so that others get at the catalog meanwhile.
const LOOKED_UP: usize = 1024;

/// A copy that was taken, in figures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copied {
    pub image: ImageSummary,
    /// Bytes and number of the chunks that came.
    pub bytes: u64,
    pub chunks: u64,
}

/// Why an image was not copied. Earlier images stay as they were; what was written for this one is
/// freed.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// The other store says why.
    #[error("{0}")]
    Refused(String),
    #[error("the other store went away: {0}")]
    Gone(io::Error),
    #[error("what came is no manifest: {0}")]
    Manifest(ManifestError),
    #[error("the manifest of image {image} of rank {rank} (incarnation {incarnation}) came")]
    Other { rank: u32, image: ImageId, incarnation: u64 },
    #[error("the manifest has {chunks} chunks within {bytes} bytes, which no image has")]
    Fragmented { chunks: usize, bytes: u64 },
    #[error("a piece of {len} bytes came where chunks of at most {MAX_PIECE} bytes are due")]
    Piece { len: usize },
    #[error("chunk {chunk} came damaged: {reason}")]
    Damaged { chunk: usize, reason: &'static str },
    /// The copy would not have stayed.
    #[error("{newer} newer images of the rank are there, and no more are kept")]
    Superseded { newer: usize },
    /// Another receive or copy of it was faster.
    #[error("it is there already")]
    Present,
    #[error("{source}{}", source.remedy())]
    Storage { source: IoError },
}

impl Store {
    /// Takes an image from the store at the other end of `stream`, which must have it of this
    /// incarnation, and commits it as [`Store::receive`] does. It may be older than images that are
    /// there. `stream` bounds its own waits.
    ///
    /// # Errors
    /// See [`CopyError`].
    pub fn copy_from(
        &self,
        rank: u32,
        image: ImageId,
        incarnation: u64,
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
        // All have come: each key leads to a chunk.
        intake.arrange(theirs.iter().filter_map(|chunk| *ours.get(&chunk.key)?).collect());
        let copied = Copied {
            image: summary(&manifest),
            bytes: wanted.iter().map(|n| u64::from(theirs[*n].stored_len)).sum(),
            chunks: wanted.len() as u64,
        };
        intake.commit(manifest, admit, |source| CopyError::Storage { source })?;
        if let Err(error) = self.prune(rank, self.keep) {
            tracing::warn!(rank, %error, "older images stay until the next one");
        }
        Ok(copied)
    }

    /// Whether a copy of this image is wanted, and would stay.
    fn admit_copy(&self, catalog: &Catalog, rank: u32, image: ImageId) -> Result<(), CopyError> {
        if catalog.image(rank, image).is_some() {
            return Err(CopyError::Present);
        }
        let newer = catalog.images_of(rank).take_while(|m| m.image > image).count();
        match newer < self.keep {
            true => Ok(()),
            false => Err(CopyError::Superseded { newer }),
        }
    }
}

fn read_manifest(stream: &mut impl Read) -> Result<Manifest, CopyError> {
    let len = read_head(stream).map_err(CopyError::Gone)?.map_err(CopyError::Refused)?;
    if len > MAX_MANIFEST {
        return Err(CopyError::Manifest(ManifestError::Length));
    }
    // Grows with what really arrives, not with what the length promises.
    let mut bytes = Vec::new();
    stream.take(len as u64).read_to_end(&mut bytes).map_err(CopyError::Gone)?;
    if bytes.len() < len {
        return Err(CopyError::Gone(io::ErrorKind::UnexpectedEof.into()));
    }
    let manifest = Manifest::decode(&bytes).map_err(CopyError::Manifest)?;
    let (chunks, bytes) = (manifest.chunks.len(), manifest.bytes);
    if chunks == 0 || is_fragmented(chunks - 1, bytes) {
        return Err(CopyError::Fragmented { chunks, bytes });
    }
    Ok(manifest)
}

/// The chunks that an image needs, by key: where they lie here, or `None` as long as they do not;
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

/// Says which of so many chunks are wanted.
fn ask_for(stream: &mut impl Write, wanted: &[usize], count: usize) -> Result<(), CopyError> {
    debug_assert!(count <= MAX_CHUNKS);
    let mut bits = vec![0; count.div_ceil(8)];
    wanted.iter().for_each(|number| bits[number / 8] |= 1u8 << (number % 8));
    stream.write_all(&bits).map_err(CopyError::Gone)
}

/// Reads the wanted chunks and hands them on, each verified, in their stored form.
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
                .ok_or_else(|| damaged("its table of zero pages is nonsense"))?;
            store(key, stored).map_err(|source| CopyError::Storage { source })?;
            rest = after;
        }
    }
    Ok(())
}
