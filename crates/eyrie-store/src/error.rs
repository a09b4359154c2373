//! What can fail in a store, by operation. A message must name the file and say what is still
//! valid.

use eyrie_wire::{Incarnation, Rank};
use std::io;
use std::path::{Path, PathBuf};

use crate::manifest::ImageId;

/// A failed file operation: what was done, to which file, and the kernel's reason.
#[derive(Debug, thiserror::Error)]
#[error("cannot {doing} {}: {source}", path.display())]
pub struct IoError {
    pub doing: &'static str,
    pub path: PathBuf,
    pub source: io::Error,
}

impl IoError {
    /// For `map_err`: wraps the kernel's reason.
    pub(crate) fn at(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> IoError {
        let path = path.to_owned();
        move |source| IoError { doing, path, source }
    }

    /// True when the disk, the quota or the file size limit is used up.
    pub fn is_full(&self) -> bool {
        use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
        matches!(self.source.kind(), StorageFull | QuotaExceeded | FileTooLarge)
    }

    /// What the user can do about it; follows the error.
    pub(crate) fn remedy(&self) -> &'static str {
        if self.is_full() {
            " (free space under the store or give it another directory)"
        } else {
            ""
        }
    }
}

/// Why a store cannot be created, opened or changed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error(transparent)]
    Io(#[from] IoError),
    #[error("{}: not empty; give the store a directory of its own", .0.display())]
    NotEmpty(PathBuf),
    #[error("{}: not a checkpoint store ({reason})", path.display())]
    NotAStore { path: PathBuf, reason: String },
    #[error("{}: in use by another process", .0.display())]
    InUse(PathBuf),
    #[error(
        "{}: other users have access; images hold all memory of a rank, so run chmod 700 on it",
        .0.display()
    )]
    Exposed(PathBuf),
    #[error(
        "{}: it holds the images of another job, {job}; give this one a directory of its own",
        path.display()
    )]
    OtherJob { path: PathBuf, job: String },
    #[error("the name of a job is one line of at most {} bytes", crate::options::MAX_JOB)]
    JobName,
    #[error("keep must be at least 1, or there is nothing to recover from")]
    KeepNothing,
}

/// What is wrong with an image stream.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    #[error("it ends after {bytes} bytes, before its trailer")]
    Truncated { bytes: u64 },
    #[error("record {record} at byte {bytes} has an unknown kind or is too long")]
    BadRecord { record: u64, bytes: u64 },
    #[error("it does not begin with a header record")]
    NoHeader,
    #[error("record {record} is a second header record")]
    SecondHeader { record: u64 },
    #[error(
        "its trailer counts {said_bytes} bytes in {said_records} records, but {bytes} bytes in \
         {records} records were received"
    )]
    BadTrailer { said_bytes: u64, said_records: u64, bytes: u64, records: u64 },
    #[error("it has {chunks} chunks in {bytes} bytes, more than whole pages can have")]
    Fragmented { chunks: usize, bytes: u64 },
    #[error("it is longer than {} chunks", crate::manifest::MAX_CHUNKS)]
    TooLong,
    #[error(
        "record {record} at byte {bytes} is not allowed at this place of an incremental image"
    )]
    Misplaced { record: u64, bytes: u64 },
    #[error("record {record} at byte {bytes} holds pages before those of an earlier record")]
    Descending { record: u64, bytes: u64 },
    #[error("it builds on image {base}, which is not here")]
    NoBase { base: ImageId },
    #[error("it builds on image {base}, which is damaged")]
    DamagedBase { base: ImageId },
}

/// Why an image was not committed. Earlier images stay as they were; what was written for this one
/// is freed.
#[derive(Debug, thiserror::Error)]
pub enum ReceiveError {
    #[error("rank {rank}, image {image}: the stream is refused: {source}")]
    Stream { rank: Rank, image: ImageId, source: StreamError },
    #[error("rank {rank}, image {image}: the stream broke off: {source}")]
    Read { rank: Rank, image: ImageId, source: io::Error },
    #[error(
        "rank {rank}, image {image}, incarnation {incarnation}: the store already has image \
         {newest} of incarnation {newest_incarnation}"
    )]
    Superseded {
        rank: Rank,
        image: ImageId,
        incarnation: Incarnation,
        newest: ImageId,
        newest_incarnation: Incarnation,
    },
    #[error("rank {rank}, image {image}: {len} bytes of metadata, at most {max} are allowed")]
    MetaTooLong { rank: Rank, image: ImageId, len: usize, max: usize },
    #[error(
        "rank {rank}, image {image}: not stored, earlier images stay valid: {source}{}",
        source.remedy()
    )]
    Storage { rank: Rank, image: ImageId, source: IoError },
}

impl ReceiveError {
    /// True when the image cannot be joined with the image that it builds on.
    pub fn is_of_base(&self) -> bool {
        use StreamError::{DamagedBase, NoBase};
        let ReceiveError::Stream { source, .. } = self else { return false };
        matches!(source, NoBase { .. } | DamagedBase { .. })
    }

    /// True when the image failed for lack of space: the job continues with its earlier images.
    pub fn is_full(&self) -> bool {
        matches!(self, ReceiveError::Storage { source, .. } if source.is_full())
    }
}

/// A failure where it is not yet known to which image it belongs.
pub(crate) enum Fault {
    Stream(StreamError),
    Read(io::Error),
    Storage(IoError),
}

impl Fault {
    pub fn of(self, rank: Rank, image: ImageId) -> ReceiveError {
        match self {
            Fault::Stream(source) => ReceiveError::Stream { rank, image, source },
            Fault::Read(source) => ReceiveError::Read { rank, image, source },
            Fault::Storage(source) => ReceiveError::Storage { rank, image, source },
        }
    }
}

/// Why an image could not be sent whole. All bytes written before the error are correct.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    #[error("there is no image {image} of rank {rank}")]
    NoImage { rank: Rank, image: ImageId },
    /// The image is damaged on disk: the caller falls back to the image before it.
    #[error(
        "rank {rank}, image {image}: chunk {chunk} ({hash}) at byte {offset} of {} is damaged: {reason}",
        file.display()
    )]
    Damaged {
        rank: Rank,
        image: ImageId,
        chunk: usize,
        hash: String,
        file: PathBuf,
        offset: u64,
        reason: String,
    },
    /// The receiver closed the connection; the image is not at fault.
    #[error("rank {rank}, image {image}: the receiver does not accept it: {source}")]
    Write { rank: Rank, image: ImageId, source: io::Error },
}
