//! Taking in an image: reads records up to the trailer, stores the chunks that are new, commits. It
//! must never read beyond the trailer, and leaves nothing behind when it fails.

use std::io::{self, ErrorKind, Read};
use std::time::{Duration, Instant};

use eyrie_image::stream::{Kind, RecordHeader, RECORD_HEADER_LEN};

use crate::catalog::Catalog;
use crate::chunk::{is_fragmented, Cutter, ZeroRuns, MAX_CHUNK};
use crate::error::{IoError, ReceiveError, StreamError};
use crate::intake::Intake;
use crate::manifest::{ChunkKey, ImageId, ImageInfo, Manifest, MAX_CHUNKS, MAX_META};
use crate::store::Store;

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
        let length = read(&mut intake, stream).map_err(|fault| fault.of(rank, image))?;
        let (new_bytes, new_chunks) = (intake.new_bytes, intake.new_chunks);
        let chunks = intake.count() as u64;
        let Length { bytes, records } = length;
        let incarnation = info.incarnation;
        let manifest = Manifest { rank, image, info, bytes, records, chunks: Vec::new() };
        intake.commit(
            manifest,
            |catalog| refuse_superseded(catalog, rank, image, incarnation),
            |source| ReceiveError::Storage { rank, image, source },
        )?;
        if let Err(error) = self.prune(rank, self.keep) {
            tracing::warn!(rank, %error, "older images stay until the next one");
        }
        let elapsed = started.elapsed();
        Ok(Committed { bytes, new_bytes, chunks, new_chunks, elapsed })
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

/// Reads records until the trailer and stores their chunks.
fn read(intake: &mut Intake, mut stream: impl Read) -> Result<Length, Fault> {
    // Room for one whole chunk and the header of the next record.
    let mut buffer = vec![0; MAX_CHUNK + RECORD_HEADER_LEN];
    // Where stored forms are put together.
    let mut scratch = Vec::new();
    let mut filled = 0;
    let (mut cutter, mut zeros, mut length) =
        (Cutter::default(), ZeroRuns::default(), Length::default());
    loop {
        let header = read_header(&mut stream, &mut buffer[filled..], length)?;
        if cutter.cut_before(&header) {
            take(intake, &buffer[..filled], &zeros, length, &mut scratch)?;
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
            take(intake, &buffer[..filled], &zeros, length, &mut scratch)?;
            return Ok(length);
        }
    }
}

/// Stores one chunk, or refers to it where it already is.
fn take(
    intake: &mut Intake,
    raw: &[u8],
    zeros: &ZeroRuns,
    length: Length,
    scratch: &mut Vec<u8>,
) -> Result<(), Fault> {
    let count = intake.count();
    if count >= MAX_CHUNKS {
        return Err(Fault::Stream(StreamError::TooLong));
    }
    if is_fragmented(count, length.bytes) {
        let error = StreamError::Fragmented { chunks: count, bytes: length.bytes };
        return Err(Fault::Stream(error));
    }
    let stored = zeros.strip(raw, scratch);
    let key = ChunkKey { hash: blake3::hash(stored).into(), raw_len: raw.len() as u32 };
    if intake.find(&[key]) == [None] {
        intake.append(key, stored).map_err(Fault::Storage)?;
    }
    Ok(())
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
