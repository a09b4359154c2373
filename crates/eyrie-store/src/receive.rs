//! Receiving an image: reads records up to the trailer, stores the new chunks and commits. It must
//! never read beyond the trailer, and leaves nothing behind when it fails.

use eyrie_wire::{Incarnation, Rank};
use std::io::{self, ErrorKind, Read};
use std::time::{Duration, Instant};

use eyrie_image_format::stream::{Kind, RecordHeader, MAX_PAYLOAD, RECORD_HEADER_LEN};
use eyrie_image_format::PAGES_SAME;

use crate::catalog::Catalog;
use crate::chunk::{is_fragmented, Cutter, ZeroRuns, MAX_CHUNK};
use crate::error::{Fault, ReceiveError, StreamError};
use crate::intake::Intake;
use crate::join::{same_pages, Base, Open};
use crate::manifest::{ChunkKey, ImageId, ImageInfo, Manifest, MAX_CHUNKS, MAX_META};
use crate::store::Store;
use crate::window::{length, pages_of, Pages};

/// A stored image, in figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Committed {
    /// Length of the stream.
    pub bytes: u64,
    /// Bytes that had to be written. Zero pages and known chunks need none.
    pub new_bytes: u64,
    pub chunks: u64,
    pub new_chunks: u64,
    /// From the call to the commit, including the wait for the sender.
    pub elapsed: Duration,
}

impl Store {
    /// Reads an image stream to its trailer, stores the chunks that are not here yet, and commits.
    /// An incremental image is joined with its base and then no longer needs it. The image does not
    /// count before this returns `Ok`; from then on the oldest images of the rank, beyond the
    /// number kept, are gone. Never reads a byte beyond the trailer. `stream` bounds its own waits:
    /// a reader that can block must have a timeout.
    pub fn receive(
        &self,
        rank: Rank,
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
        let of = (rank, image, info.incarnation);
        let mut receiving = Receiving::new(Intake::new(self), of);
        receiving.read(stream).map_err(|fault| fault.of(rank, image))?;
        let Receiving { intake, pages, sent: Length { bytes, records }, .. } = receiving;
        let new_bytes = intake.new_bytes;
        let new_chunks = intake.new_chunks;
        let chunks = intake.count() as u64;
        let incarnation = info.incarnation;
        let manifest = Manifest { rank, image, info, bytes, records, chunks: Vec::new(), pages };
        intake.commit(
            manifest,
            |catalog| refuse_superseded(catalog, rank, image, incarnation),
            |source| ReceiveError::Storage { rank, image, source },
        )?;
        if let Err(error) = self.prune(rank, self.keep) {
            tracing::warn!(%rank, %error, "older images stay until the next one");
        }
        let elapsed = started.elapsed();
        Ok(Committed { bytes, new_bytes, chunks, new_chunks, elapsed })
    }
}

/// Refuses an image or incarnation that is not newer than what the store has. A slow rank that was
/// replaced must not overwrite the images of its successor.
fn refuse_superseded(
    catalog: &Catalog,
    rank: Rank,
    image: ImageId,
    incarnation: Incarnation,
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

/// Length of a stream, trailer included.
#[derive(Clone, Copy, Default)]
struct Length {
    bytes: u64,
    records: u64,
}

impl Length {
    fn add(&mut self, (bytes, records): (u64, u64)) {
        self.bytes += bytes;
        self.records += records;
    }
}

/// An image that is being received.
struct Receiving<'a> {
    intake: Intake<'a>,
    /// The pages that come from each chunk of the intake.
    pages: Vec<Pages>,
    base: Option<Base<'a>>,
    /// Rank, image and incarnation.
    of: (Rank, ImageId, Incarnation),
    /// What has arrived, and what will be sent: an incremental image becomes longer.
    came: Length,
    sent: Length,
    /// The open chunk, with room for the header of the next record; its length and its records.
    buffer: Vec<u8>,
    filled: usize,
    records: u64,
    held: u64,
    cutter: Cutter,
    zeros: ZeroRuns,
    /// Room for the stored form of a chunk.
    scratch: Vec<u8>,
    /// The window whose chunks are arriving.
    open: Option<Open>,
    /// End of the last page.
    behind: u64,
}

impl<'a> Receiving<'a> {
    fn new(intake: Intake<'a>, of: (Rank, ImageId, Incarnation)) -> Self {
        Receiving {
            intake,
            pages: Vec::new(),
            base: None,
            of,
            came: Length::default(),
            sent: Length::default(),
            // Room for one whole chunk and the header of the next record.
            buffer: vec![0; MAX_CHUNK + RECORD_HEADER_LEN],
            filled: 0,
            records: 0,
            held: 0,
            cutter: Cutter::default(),
            zeros: ZeroRuns::default(),
            scratch: Vec::new(),
            open: None,
            behind: 0,
        }
    }

    /// Reads records until the trailer and stores their chunks.
    fn read(&mut self, mut stream: impl Read) -> Result<(), Fault> {
        loop {
            let header = read_header(&mut stream, &mut self.buffer[self.filled..], self.came)?;
            let record = (RECORD_HEADER_LEN as u64 + header.len, 1);
            match (header.kind, header.flags) {
                (Kind::Base, _) => self.build_on(&header)?,
                (Kind::Pages, PAGES_SAME) => self.keep(&header)?,
                _ => self.read_record(&header, &mut stream)?,
            }
            self.came.add(record);
            if header.kind == Kind::Trailer {
                return self.close_chunk();
            }
        }
    }

    /// Reads a record of the image itself.
    fn read_record(&mut self, header: &RecordHeader, stream: &mut impl Read) -> Result<(), Fault> {
        let pages = pages_of(header);
        if header.kind == Kind::Pages && header.flags == 0 {
            self.ascend(header.a, header.a.saturating_add(header.len))?;
        }
        self.enter(pages.map(|(window, _)| window), Some(header))?;
        let payload = self.filled + RECORD_HEADER_LEN;
        let end = payload + header.len as usize;
        if header.kind == Kind::Trailer {
            let bytes = self.filled as u64 + self.sent.bytes;
            let records = self.records;
            let a = bytes;
            let header = RecordHeader { a, b: self.sent.records + records, ..*header };
            self.buffer[self.filled..payload].copy_from_slice(&header.encode());
        }
        let got = stream.read_exact(&mut self.buffer[payload..end]);
        got.map_err(|error| broken_off(error, self.came.bytes))?;
        self.filled = end;
        self.records += 1;
        if header.kind == Kind::Pages {
            self.zeros.scan(&self.buffer[..end], payload);
        }
        self.held |= pages.map_or(0, |(_, mask)| mask);
        Ok(())
    }

    /// Prepares for a record of this window, or of none. `header` is that of a record to store.
    fn enter(&mut self, window: Option<u64>, header: Option<&RecordHeader>) -> Result<(), Fault> {
        let changes = self.open.as_ref().map(|open| open.window) != window;
        let cut = header.is_some_and(|header| self.cutter.cut_before(header));
        if cut || changes {
            let next = self.filled;
            self.close_chunk()?;
            self.buffer.copy_within(next..next + RECORD_HEADER_LEN, 0);
            if !cut {
                self.cutter.cut();
                if let Some(header) = header {
                    self.cutter.cut_before(header);
                }
            }
        }
        if changes {
            self.close_window()?;
            self.open = window.map(|window| Open::new(window, self.intake.count()));
        }
        Ok(())
    }

    /// Checks that pages ascend, so that each has one place. The next ones begin at `from`.
    fn ascend(&mut self, from: u64, behind: u64) -> Result<(), Fault> {
        if from < self.behind {
            let Length { bytes, records } = self.came;
            return Err(Fault::Stream(StreamError::Descending { record: records, bytes }));
        }
        self.behind = behind;
        Ok(())
    }

    fn misplaced(&self) -> Fault {
        let Length { bytes, records } = self.came;
        Fault::Stream(StreamError::Misplaced { record: records, bytes })
    }

    /// Handles the record that says on which image this one builds.
    fn build_on(&mut self, header: &RecordHeader) -> Result<(), Fault> {
        let (rank, image, incarnation) = self.of;
        if self.came.records != 1 || header.len != 0 || header.a >= image.0 {
            return Err(self.misplaced());
        }
        let base = Base::find(self.intake.store(), rank, ImageId(header.a), incarnation);
        self.base =
            Some(base.ok_or(Fault::Stream(StreamError::NoBase { base: ImageId(header.a) }))?);
        Ok(())
    }

    /// Handles a record that declares pages unchanged.
    fn keep(&mut self, header: &RecordHeader) -> Result<(), Fault> {
        let Some((window, pages)) = same_pages(header).filter(|_| self.base.is_some()) else {
            return Err(self.misplaced());
        };
        self.enter(Some(window), None)?;
        // This record may follow pages of its own window.
        self.ascend(header.a + MAX_PAYLOAD as u64, self.behind.max(header.a))?;
        let kept = self.open.as_mut().is_some_and(|open| open.keep(pages));
        kept.then_some(()).ok_or_else(|| self.misplaced())
    }

    /// Stores the open chunk, or refers to it if the store already has it.
    fn close_chunk(&mut self) -> Result<(), Fault> {
        if self.filled == 0 {
            return Ok(());
        }
        self.check_length()?;
        let raw = &self.buffer[..self.filled];
        let stored = self.zeros.strip(raw, &mut self.scratch);
        let raw_len = raw.len() as u32;
        let key = ChunkKey { hash: blake3::hash(stored).into(), raw_len };
        if self.intake.find(&[key]) == [None] {
            self.intake.append(key, stored).map_err(Fault::Storage)?;
        }
        let held = std::mem::take(&mut self.held);
        match &mut self.open {
            Some(open) => {
                self.pages.push(Pages { window: open.window, held, used: held });
                if !open.add_new(held) {
                    return Err(self.misplaced());
                }
            }
            None => {
                self.pages.push(Pages::NONE);
                self.sent.add((u64::from(raw_len), self.records));
            }
        }
        (self.filled, self.records) = (0, 0);
        self.zeros.clear();
        Ok(())
    }

    fn check_length(&self) -> Result<(), Fault> {
        let count = self.intake.count();
        let bytes = self.sent.bytes + self.filled as u64;
        if count >= MAX_CHUNKS {
            return Err(Fault::Stream(StreamError::TooLong));
        }
        if is_fragmented(count, bytes) {
            return Err(Fault::Stream(StreamError::Fragmented { chunks: count, bytes }));
        }
        Ok(())
    }

    /// Completes the open window: its unchanged pages are taken from the base.
    fn close_window(&mut self) -> Result<(), Fault> {
        let Some(open) = self.open.take() else { return Ok(()) };
        if let Some(base) = &mut self.base {
            base.join(&open, self.of.1, &mut self.intake, &mut self.pages)?;
        }
        let lens = self.intake.chunks()[open.first..].iter().map(|chunk| chunk.key.raw_len);
        self.sent.add(length(&self.pages[open.first..], lens));
        Ok(())
    }
}

/// Reads a record header into the beginning of `room` and checks that it may be at this place.
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
