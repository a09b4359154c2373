//! Taking in an image: reads records up to the trailer, stores the chunks that are new, commits. It
//! must never read beyond the trailer, and leaves nothing behind when it fails.

use std::io::{self, ErrorKind, Read};
use std::time::{Duration, Instant};

use eyrie_image::format::PAGES_SAME;
use eyrie_image::stream::{Kind, RecordHeader, MAX_PAYLOAD, RECORD_HEADER_LEN};

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
    /// Bytes of it that had to be written; zero pages and known chunks need none.
    pub new_bytes: u64,
    pub chunks: u64,
    pub new_chunks: u64,
    /// From the call to the commit, the wait for the sender included.
    pub elapsed: Duration,
}

impl Store {
    /// Reads an image stream to its trailer, stores what is not yet there and commits it. One that
    /// builds on an earlier image is joined with that, and needs it no more. Nothing counts before
    /// this returns `Ok`; from then on images of the rank beyond the kept ones are gone. Not a byte
    /// beyond the trailer is read. `stream` bounds its own waits: a reader that can block must have
    /// a timeout.
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
        let of = (rank, image, info.incarnation);
        let mut taking = Taking::new(Intake::new(self), of);
        taking.read(stream).map_err(|fault| fault.of(rank, image))?;
        let Taking { intake, pages, sent: Length { bytes, records }, .. } = taking;
        let (new_bytes, new_chunks) = (intake.new_bytes, intake.new_chunks);
        let chunks = intake.count() as u64;
        let incarnation = info.incarnation;
        let manifest = Manifest { rank, image, info, bytes, records, chunks: Vec::new(), pages };
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

/// An image that is being taken in.
struct Taking<'a> {
    intake: Intake<'a>,
    /// What each chunk of the intake gives.
    pages: Vec<Pages>,
    base: Option<Base<'a>>,
    /// Rank, image and incarnation.
    of: (u32, ImageId, u64),
    /// What has come, and what it will be when it is sent: that is more where it builds on another.
    came: Length,
    sent: Length,
    /// The open chunk, with room for the next record's header, and the records in it.
    buffer: Vec<u8>,
    filled: usize,
    records: u64,
    held: u64,
    cutter: Cutter,
    zeros: ZeroRuns,
    /// Where stored forms are put together.
    scratch: Vec<u8>,
    /// The window whose chunks come.
    open: Option<Open>,
    /// Behind the last page.
    behind: u64,
}

impl<'a> Taking<'a> {
    fn new(intake: Intake<'a>, of: (u32, ImageId, u64)) -> Self {
        Taking {
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
                _ => self.take(&header, &mut stream)?,
            }
            self.came.add(record);
            if header.kind == Kind::Trailer {
                return self.close_chunk();
            }
        }
    }

    /// A record of the image itself.
    fn take(&mut self, header: &RecordHeader, stream: &mut impl Read) -> Result<(), Fault> {
        let pages = pages_of(header);
        if header.kind == Kind::Pages && header.flags == 0 {
            self.ascend(header.a, header.a.saturating_add(header.len))?;
        }
        self.enter(pages.map(|(window, _)| window), Some(header))?;
        let payload = self.filled + RECORD_HEADER_LEN;
        let end = payload + header.len as usize;
        if header.kind == Kind::Trailer {
            let (bytes, records) = (self.filled as u64 + self.sent.bytes, self.records);
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

    /// The next record is of this window, or of none; `header` is that of one to store.
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

    /// Pages ascend, so that each has one place: these begin `from` here.
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

    /// The stream builds on an earlier image.
    fn build_on(&mut self, header: &RecordHeader) -> Result<(), Fault> {
        let (rank, image, incarnation) = self.of;
        if self.came.records != 1 || header.len != 0 || header.a >= image {
            return Err(self.misplaced());
        }
        let base = Base::find(self.intake.store(), rank, header.a, incarnation);
        self.base = Some(base.ok_or(Fault::Stream(StreamError::NoBase { base: header.a }))?);
        Ok(())
    }

    /// Pages are as they were.
    fn keep(&mut self, header: &RecordHeader) -> Result<(), Fault> {
        let Some((window, pages)) = same_pages(header).filter(|_| self.base.is_some()) else {
            return Err(self.misplaced());
        };
        self.enter(Some(window), None)?;
        // It may stand behind pages of its own window.
        self.ascend(header.a + MAX_PAYLOAD as u64, self.behind.max(header.a))?;
        let kept = self.open.as_mut().is_some_and(|open| open.keep(pages));
        kept.then_some(()).ok_or_else(|| self.misplaced())
    }

    /// Stores the open chunk, or refers to it where it already is.
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
                if !open.bring(held) {
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
        let (count, bytes) = (self.intake.count(), self.sent.bytes + self.filled as u64);
        if count >= MAX_CHUNKS {
            return Err(Fault::Stream(StreamError::TooLong));
        }
        if is_fragmented(count, bytes) {
            return Err(Fault::Stream(StreamError::Fragmented { chunks: count, bytes }));
        }
        Ok(())
    }

    /// All of the open window has come: what is as it was is taken from the earlier image.
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
