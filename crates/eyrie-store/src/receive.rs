//! Taking in an image: reads records up to the trailer, stores the chunks that are new, commits. It
//! must never read beyond the trailer, and leaves nothing behind when it fails.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::{Duration, Instant};

use eyrie_image::stream::{Kind, RecordHeader, RECORD_HEADER_LEN};

use crate::catalog::Catalog;
use crate::chunk::{Cutter, ZeroRuns, MAX_CHUNK};
use crate::error::{IoError, ReceiveError, StreamError};
use crate::manifest::{
    ChunkKey, ChunkRef, ImageId, ImageInfo, Manifest, Place, MAX_CHUNKS, MAX_META,
};
use crate::store::{lock, Store};

/// Records of whole pages and the records between them never give more chunks than this many bytes
/// each.
const MIN_BYTES_PER_CHUNK: u64 = 2048;
/// Chunks that any stream may have, however short.
const FREE_CHUNKS: u64 = 1024;

/// A stored image, in figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Committed {
    /// Length of the stream.
    pub bytes: u64,
    /// Bytes of it that had to be written; zero pages and known chunks need none.
    pub new_bytes: u64,
    pub chunks: u64,
    pub new_chunks: u64,
    /// From the call to the commit, the wait for the sender included.
    pub elapsed: Duration,
}

impl Store {
    /// Reads an image stream to its trailer, stores what is not yet there and commits it. Nothing
    /// counts before this returns `Ok`; from then on images of the rank beyond the kept ones are
    /// gone. Not a byte beyond the trailer is read. `stream` bounds its own waits: a reader that
    /// can block must have a timeout.
    pub fn receive(
        &self,
        rank: u32,
        image: ImageId,
        info: ImageInfo,
        stream: impl Read,
    ) -> Result<Committed, ReceiveError> {
        let started = Instant::now();
        if info.meta.len() > MAX_META {
            return Err(ReceiveError::MetaTooLong {
                rank,
                image,
                len: info.meta.len(),
                max: MAX_META,
            });
        }
        refuse_superseded(&self.catalog(), rank, image, info.incarnation)?;
        let mut intake = Intake::new(self);
        let length = intake.read(stream).map_err(|fault| fault.of(rank, image))?;
        let (new_bytes, new_chunks) = (intake.new_bytes, intake.new_chunks);
        let chunks = intake.chunks.len() as u64;
        intake.commit(rank, image, info, length)?;
        if let Err(error) = self.prune(rank, self.keep) {
            tracing::warn!(rank, %error, "older images stay until the next one");
        }
        let elapsed = started.elapsed();
        Ok(Committed { bytes: length.bytes, new_bytes, chunks, new_chunks, elapsed })
    }
}

/// An image and an incarnation must be newer than what the store has: a rank that was replaced, and
/// only slow, must not overwrite the images of its successor.
fn refuse_superseded(
    catalog: &Catalog,
    rank: u32,
    image: ImageId,
    incarnation: u64,
) -> Result<(), ReceiveError> {
    let Some(newest) = catalog.images_of(rank).next() else { return Ok(()) };
    if image > newest.image && incarnation >= newest.info.incarnation {
        return Ok(());
    }
    Err(ReceiveError::Superseded {
        rank,
        image,
        incarnation,
        newest: newest.image,
        newest_incarnation: newest.info.incarnation,
    })
}

/// A failure before it is known whose image it is.
enum Fault {
    Stream(StreamError),
    Read(io::Error),
    Storage(IoError),
}

impl Fault {
    fn of(self, rank: u32, image: ImageId) -> ReceiveError {
        match self {
            Fault::Stream(source) => ReceiveError::Stream { rank, image, source },
            Fault::Read(source) => ReceiveError::Read { rank, image, source },
            Fault::Storage(source) => ReceiveError::Storage { rank, image, source },
        }
    }
}

/// Length of a stream, trailer included.
#[derive(Clone, Copy, Default)]
struct Length {
    bytes: u64,
    records: u64,
}

/// An image being received. Dropped before its commit, it gives back all it holds.
struct Intake<'a> {
    store: &'a Store,
    emptying: HashSet<u64>,
    /// Chunks so far, each with a reference in the catalog that this intake owns.
    chunks: Vec<ChunkRef>,
    /// The pack file for new chunks, made when the first one comes.
    pack: Option<OwnPack>,
    new_bytes: u64,
    new_chunks: u64,
    /// Where stored forms are put together.
    scratch: Vec<u8>,
}

struct OwnPack {
    id: u64,
    file: Arc<File>,
    len: u64,
}

impl<'a> Intake<'a> {
    fn new(store: &'a Store) -> Self {
        let emptying = store.catalog().packs_to_empty();
        Intake {
            store,
            emptying,
            chunks: Vec::new(),
            pack: None,
            new_bytes: 0,
            new_chunks: 0,
            scratch: Vec::new(),
        }
    }

    /// Reads records until the trailer and stores their chunks.
    fn read(&mut self, mut stream: impl Read) -> Result<Length, Fault> {
        // Room for one whole chunk and the header of the next record.
        let mut buffer = vec![0; MAX_CHUNK + RECORD_HEADER_LEN];
        let mut filled = 0;
        let (mut cutter, mut zeros, mut length) =
            (Cutter::default(), ZeroRuns::default(), Length::default());
        loop {
            let header = read_header(&mut stream, &mut buffer[filled..], length)?;
            if cutter.cut_before(&header) {
                self.take(&buffer[..filled], &zeros, length)?;
                buffer.copy_within(filled..filled + RECORD_HEADER_LEN, 0);
                filled = 0;
                zeros.clear();
            }
            let payload = filled + RECORD_HEADER_LEN;
            filled = payload + header.len as usize;
            let got = stream.read_exact(&mut buffer[payload..filled]);
            got.map_err(|error| broken_off(error, length.bytes))?;
            length.bytes += RECORD_HEADER_LEN as u64 + header.len;
            length.records += 1;
            if header.kind == Kind::Pages {
                zeros.scan(&buffer[..filled], payload);
            }
            if header.kind == Kind::Trailer {
                self.take(&buffer[..filled], &zeros, length)?;
                return Ok(length);
            }
        }
    }

    /// Stores one chunk, or refers to it where it already is.
    fn take(&mut self, raw: &[u8], zeros: &ZeroRuns, length: Length) -> Result<(), Fault> {
        let count = self.chunks.len();
        if count >= MAX_CHUNKS {
            return Err(Fault::Stream(StreamError::TooLong));
        }
        if count as u64 > FREE_CHUNKS + length.bytes / MIN_BYTES_PER_CHUNK {
            let error = StreamError::Fragmented { chunks: count, bytes: length.bytes };
            return Err(Fault::Stream(error));
        }
        let mut scratch = std::mem::take(&mut self.scratch);
        let stored = zeros.strip(raw, &mut scratch);
        let key = ChunkKey { hash: blake3::hash(stored).into(), raw_len: raw.len() as u32 };
        let found = self.store.catalog().find(&key, &self.emptying);
        let chunk = match found {
            Some(chunk) => chunk,
            None => self.append(key, stored).map_err(Fault::Storage)?,
        };
        self.chunks.push(chunk);
        self.scratch = scratch;
        Ok(())
    }

    fn append(&mut self, key: ChunkKey, stored: &[u8]) -> Result<ChunkRef, IoError> {
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
        Ok(entered)
    }

    /// Makes the image count: its packs first, then its manifest under a temporary name, then the
    /// rename.
    fn commit(
        mut self,
        rank: u32,
        image: ImageId,
        info: ImageInfo,
        length: Length,
    ) -> Result<(), ReceiveError> {
        let storage = |source| ReceiveError::Storage { rank, image, source };
        let store = self.store;
        self.trim().map_err(storage)?;
        self.sync_packs().map_err(storage)?;
        let Length { bytes, records } = length;
        let incarnation = info.incarnation;
        let chunks = self.chunks.clone();
        let manifest = Manifest { rank, image, info, bytes, records, chunks };
        let attempt = store.attempts.fetch_add(1, Ordering::Relaxed);
        let encoded = manifest.encode();
        let temp = store.disk.write_manifest(rank, image, attempt, &encoded).map_err(storage)?;
        let _publishing = lock(&store.publishing);
        refuse_superseded(&store.catalog(), rank, image, incarnation)
            .inspect_err(|_| drop(std::fs::remove_file(&temp)))?;
        store.disk.publish(&temp, rank, image).map_err(storage)?;
        store.catalog().commit(Arc::new(manifest));
        // The image owns the references from here on.
        self.chunks.clear();
        Ok(())
    }

    /// Cuts off what a chunk left that another receive stored at the same time.
    fn trim(&self) -> Result<(), IoError> {
        let Some(pack) = &self.pack else { return Ok(()) };
        let path = self.store.disk.pack_path(pack.id);
        pack.file.set_len(pack.len).map_err(IoError::at("cut the end of", &path))
    }

    /// Brings every pack that the image needs to stable storage, also those that other receives
    /// write.
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
        match names_changed {
            true => self.store.disk.sync_pack_names(),
            false => Ok(()),
        }
    }

    /// Syncs a pack up to `end`; false when it was already. A failed sync is told to the kernel's
    /// caller once only, so it is remembered for everybody who relies on the pack.
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
                tracing::warn!(%error, "a pack keeps a useless end");
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

/// Reads a record header to the beginning of `room` and checks that it may stand at this place.
fn read_header(
    stream: &mut impl Read,
    room: &mut [u8],
    length: Length,
) -> Result<RecordHeader, Fault> {
    let bytes: &mut [u8; RECORD_HEADER_LEN] =
        room.first_chunk_mut().expect("the buffer has room for a header");
    stream.read_exact(bytes).map_err(|error| broken_off(error, length.bytes))?;
    let refuse = |error| Err(Fault::Stream(error));
    let Length { bytes: so_far, records } = length;
    let Some(header) = RecordHeader::decode(bytes) else {
        return refuse(StreamError::BadRecord { record: records, bytes: so_far });
    };
    match header.kind {
        Kind::Header if records > 0 => refuse(StreamError::SecondHeader { record: records }),
        Kind::Header => Ok(header),
        _ if records == 0 => refuse(StreamError::NoHeader),
        Kind::Trailer if (header.a, header.b) != (so_far, records) => {
            refuse(StreamError::BadTrailer {
                said_bytes: header.a,
                said_records: header.b,
                bytes: so_far,
                records,
            })
        }
        _ => Ok(header),
    }
}

fn broken_off(error: io::Error, bytes: u64) -> Fault {
    match error.kind() {
        ErrorKind::UnexpectedEof => Fault::Stream(StreamError::Truncated { bytes }),
        _ => Fault::Read(error),
    }
}
