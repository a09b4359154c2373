//! The message log of one rank: frames in their total order, in blocks, in memory or on disk. A
//! block holds frames exactly as they go to the rank. It must never lose a frame that is not
//! truncated, and it holds whole frames only.

use super::noted::note_logged;
use crate::space::{Space, Store};
use eyrie_wire::data::{head, Deliver, Frame, Header, Message, Place, MAX_FRAME};
use eyrie_wire::traffic::Sent;
use eyrie_wire::Rank;
use std::collections::VecDeque;
use std::io;

/// A block is sealed when the next frame would make it longer than this, in bytes.
const BLOCK_BYTES: usize = 256 * 1024;
// A frame always fits a block.
const _: () = assert!(MAX_FRAME <= BLOCK_BYTES);

/// A block is also sealed when its frames name this much payload in segments, in bytes. The log is
/// truncated by blocks: a block of small frames would retain gigabytes of payload.
const BLOCK_PAYLOAD_BYTES: u64 = 1 << 20;

enum Where {
    Memory(Vec<u8>),
    Disk { offset: u64, len: usize },
}

struct Block {
    /// Receive sequence number of the last frame in the block.
    last: u64,
    place: Where,
    /// Bytes of payload in segments.
    payload: u64,
    /// How many frames of the block name each segment.
    segments: Vec<(u32, u32)>,
}

impl Block {
    fn len(&self) -> usize {
        match &self.place {
            Where::Memory(bytes) => bytes.len(),
            Where::Disk { len, .. } => *len,
        }
    }
}

/// A place between two frames of a log.
#[derive(Default)]
pub struct Cursor {
    /// Blocks are numbered from the start of the log; truncated ones keep their numbers.
    block: u64,
    offset: usize,
    /// The block at the cursor, if it was read back from disk.
    loaded: Option<(u64, Vec<u8>)>,
}

/// A logged message.
pub struct Logged<'a> {
    pub deliver: Deliver,
    pub payload: &'a [u8],
    /// The whole frame, as it goes to the rank.
    pub frame: &'a [u8],
}

/// The log of one rank.
#[derive(Default)]
pub struct Log {
    blocks: VecDeque<Block>,
    /// Number of the first block in `blocks`.
    first_block: u64,
    /// Receive sequence number of the newest message: 0 when there has been none.
    newest: u64,
    /// Receive sequence number of the last message that was truncated.
    floor: u64,
    /// What each source has sent, up to its newest message.
    sent: Vec<Sent>,
    /// Bytes of frames.
    bytes: u64,
    /// Of these, in memory.
    memory: u64,
    /// Bytes of payloads in segments.
    payload: u64,
    /// Bytes of frames and payloads appended since the start.
    appended: u64,
}

impl Log {
    /// An empty log with room for `ranks` sources.
    pub fn new(ranks: u32) -> Log {
        Log { sent: vec![Sent::default(); ranks as usize], ..Log::default() }
    }

    /// Begins behind `rsn`, when each source has sent so much. Nothing has been appended yet.
    pub fn adopt(&mut self, rsn: u64, sent: &[Sent]) {
        (self.newest, self.floor) = (rsn, rsn);
        self.sent.copy_from_slice(sent);
    }

    /// The number of ranks that it may have messages from.
    pub fn sources(&self) -> usize {
        self.sent.len()
    }

    pub fn newest(&self) -> u64 {
        self.newest
    }

    pub fn floor(&self) -> u64 {
        self.floor
    }

    /// Send sequence number of the newest message from `source`, 0 when there is none.
    pub fn last_ssn(&self, source: Rank) -> u64 {
        self.sent[source.index()].messages
    }

    /// What each source has sent, up to its newest message.
    pub fn sent(&self) -> &[Sent] {
        &self.sent
    }

    /// No message of any source counts as the one before its next.
    pub fn forget_senders(&mut self) {
        self.sent.iter_mut().for_each(|sent| sent.messages = 0);
    }

    /// Bytes of frames and payloads in the log, in memory and on disk.
    pub fn held(&self) -> u64 {
        self.bytes + self.payload
    }

    /// Bytes of frames in memory.
    pub fn memory(&self) -> u64 {
        self.memory
    }

    /// Bytes of frames and of payloads in segments appended since the start.
    pub fn appended(&self) -> u64 {
        self.appended
    }

    /// Gives a message its place in the order and logs it. Its ssn must be the next of its source.
    pub fn append(&mut self, source: Rank, message: &Message, payload: &[u8]) {
        note_logged(source, message);
        self.sent[source.index()] = message.sent();
        self.newest += 1;
        let rsn = self.newest;
        let Message { ssn, envelope, size, sent_bytes, place, .. } = *message;
        let deliver = Deliver { source, ssn, rsn, envelope, size, sent_bytes, place };
        let header = Header::Deliver(deliver);
        let head = head(&header, payload);
        let len = head.written().len() + payload.len();
        let block = self.writable_block(len);
        let Where::Memory(bytes) = &mut block.place else { unreachable!("a sealed block") };
        bytes.extend_from_slice(head.written());
        bytes.extend_from_slice(payload);
        block.last = rsn;
        if let Some(Place { segment, .. }) = place {
            block.payload += size;
            match block.segments.iter_mut().find(|(id, _)| *id == segment) {
                Some((_, n)) => *n += 1,
                None => block.segments.push((segment, 1)),
            }
        }
        self.bytes += len as u64;
        self.memory += len as u64;
        let payload = place.map_or(0, |_| size);
        self.payload += payload;
        self.appended += len as u64 + payload;
    }

    fn writable_block(&mut self, len: usize) -> &mut Block {
        let full = match self.blocks.back() {
            Some(Block { place: Where::Memory(bytes), payload, .. }) => {
                bytes.len() + len > BLOCK_BYTES || *payload >= BLOCK_PAYLOAD_BYTES
            }
            _ => true,
        };
        if full {
            // Where one block was filled, the next is likely to be: it need not grow in steps.
            let filled = self.blocks.back().is_some_and(|block| block.len() > BLOCK_BYTES / 2);
            let bytes = Vec::with_capacity(if filled { BLOCK_BYTES } else { 0 });
            let place = Where::Memory(bytes);
            let segments = Vec::new();
            self.blocks.push_back(Block { last: self.newest, place, payload: 0, segments });
        }
        self.blocks.back_mut().expect("a block was pushed if there was none")
    }

    /// A cursor before the first frame behind `rsn`.
    ///
    /// # Errors
    /// When a block cannot be read back.
    pub fn cursor_after<S: Store>(&self, rsn: u64, space: &Space<S>) -> io::Result<Cursor> {
        let index = self.blocks.partition_point(|b| b.last <= rsn);
        // The last block may still grow: a cursor at its end stays in it.
        let index = index.min(self.blocks.len().saturating_sub(1));
        let mut cursor = Cursor { block: self.first_block + index as u64, ..Cursor::default() };
        while let Some(logged) = self.next(&mut cursor, space)? {
            if logged.deliver.rsn > rsn {
                break;
            }
            let len = logged.frame.len();
            cursor.offset += len;
        }
        Ok(cursor)
    }

    /// The message behind the cursor, if there is one.
    ///
    /// # Errors
    /// When a block cannot be read back.
    pub fn next<'a, S: Store>(
        &'a self,
        cursor: &'a mut Cursor,
        space: &Space<S>,
    ) -> io::Result<Option<Logged<'a>>> {
        if cursor.block < self.first_block {
            (cursor.block, cursor.offset) = (self.first_block, 0);
        }
        loop {
            let index = (cursor.block - self.first_block) as usize;
            let Some(block) = self.blocks.get(index) else { return Ok(None) };
            if cursor.offset < block.len() {
                break;
            }
            if index + 1 == self.blocks.len() {
                return Ok(None);
            }
            cursor.block += 1;
            cursor.offset = 0;
        }
        let block = &self.blocks[(cursor.block - self.first_block) as usize];
        let bytes: &[u8] = match &block.place {
            Where::Memory(bytes) => bytes,
            Where::Disk { offset, len } => {
                if cursor.loaded.as_ref().map(|(n, _)| *n) != Some(cursor.block) {
                    cursor.loaded = Some((cursor.block, space.store.read_block(*offset, *len)?));
                }
                &cursor.loaded.as_ref().expect("just loaded").1
            }
        };
        let rest = &bytes[cursor.offset..];
        match Frame::parse(rest) {
            Ok(Some(Frame { header: Header::Deliver(deliver), payload, len, .. })) => {
                Ok(Some(Logged { deliver, payload, frame: &rest[..len] }))
            }
            _ => Err(io::Error::new(io::ErrorKind::InvalidData, "damaged log block")),
        }
    }

    /// Moves the cursor beyond a frame of this length.
    pub fn advance(cursor: &mut Cursor, frame_len: usize) {
        cursor.offset += frame_len;
    }

    /// The segments that whole blocks up to `rsn` name.
    pub fn segments_up_to(&self, rsn: u64) -> impl Iterator<Item = u32> + '_ {
        let whole = self.blocks.iter().take_while(move |b| b.last <= rsn);
        whole.flat_map(|b| b.segments.iter().map(|(id, _)| *id))
    }

    /// Truncates: removes whole blocks up to `rsn`. Returns how many frames no longer name each
    /// segment.
    pub fn truncate<S: Store>(&mut self, rsn: u64, space: &mut Space<S>) -> Vec<(u32, u32)> {
        let mut freed = Vec::new();
        while self.blocks.front().is_some_and(|b| b.last <= rsn && b.last > 0) {
            let block = self.blocks.pop_front().expect("looked at above");
            self.first_block += 1;
            self.floor = block.last;
            self.bytes -= block.len() as u64;
            self.payload -= block.payload;
            match block.place {
                Where::Memory(bytes) => self.memory -= bytes.len() as u64,
                Where::Disk { offset, len } => space.free_block(offset, len),
            }
            freed.extend(block.segments);
        }
        freed
    }

    /// Moves the oldest block in memory to disk; the block that is still written only with
    /// `also_last`. Returns the bytes moved, 0 when there is no such block.
    ///
    /// # Errors
    /// When the disk cannot be written; then the block stays in memory.
    pub fn spill_one<S: Store>(
        &mut self,
        space: &mut Space<S>,
        also_last: bool,
    ) -> io::Result<u64> {
        let count = self.blocks.len().saturating_sub(usize::from(!also_last));
        for block in self.blocks.iter_mut().take(count) {
            if let Where::Memory(bytes) = &block.place {
                let offset = space.write_block(bytes)?;
                let len = bytes.len();
                block.place = Where::Disk { offset, len };
                self.memory -= len as u64;
                return Ok(len as u64);
            }
        }
        Ok(0)
    }

    /// Receive sequence number of the last message in the blocks that the cursor has passed.
    pub fn passed(&self, cursor: &Cursor) -> u64 {
        let index = cursor.block.saturating_sub(self.first_block) as usize;
        let whole = match self.blocks.get(index) {
            Some(block) if cursor.offset >= block.len() => Some(block),
            _ => index.checked_sub(1).and_then(|i| self.blocks.get(i)),
        };
        whole.map_or(self.floor, |block| block.last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::space::{Bounds, Files};
    use eyrie_wire::data::Envelope;

    fn space() -> (tempfile::TempDir, Space<Files>) {
        let dir = tempfile::tempdir().unwrap();
        let bounds = Bounds { memory: 1 << 30, disk: 1 << 30 };
        let files = Files::create(dir.path()).unwrap();
        (dir, Space::new(bounds, 2, files))
    }

    fn message(ssn: u64, len: usize) -> (Message, Vec<u8>) {
        let envelope = Envelope::Untagged { data: None };
        let size = len as u64;
        let destination = Rank(0);
        let sent_bytes = ssn * size;
        let m = Message { destination, ssn, clock: 0, envelope, size, sent_bytes, place: None };
        (m, vec![ssn as u8; len])
    }

    fn read_all(log: &Log, cursor: &mut Cursor, space: &Space<Files>) -> Vec<(u64, u64, usize)> {
        let mut out = Vec::new();
        while let Some(Logged { deliver: d, payload, frame }) = log.next(cursor, space).unwrap() {
            assert!(payload.iter().all(|b| *b == d.ssn as u8));
            out.push((d.rsn, d.ssn, payload.len()));
            let len = frame.len();
            Log::advance(cursor, len);
        }
        out
    }

    #[test]
    fn frames_are_read_in_order_from_any_place_also_from_disk() {
        let (_dir, mut space) = space();
        let mut log = Log::new(2);
        for n in 1..=500u64 {
            let (m, payload) = message(n.div_ceil(2), (n as usize * 37) % 9000);
            log.append(Rank((n % 2) as u32), &m, &payload);
            assert_eq!(log.newest(), n);
        }
        let before = read_all(&log, &mut log.cursor_after(0, &space).unwrap(), &space);
        assert_eq!(before.len(), 500);
        while log.spill_one(&mut space, false).unwrap() > 0 {}
        assert!((1..=BLOCK_BYTES as u64).contains(&log.memory()) && space.disk() > 0);
        let at_end = &mut log.cursor_after(500, &space).unwrap();
        assert!(log.spill_one(&mut space, true).unwrap() > 0);
        assert_eq!((log.memory(), read_all(&log, at_end, &space)), (0, vec![]));
        for rsn in [0, 1, 77, 250, 499, 500] {
            let got = read_all(&log, &mut log.cursor_after(rsn, &space).unwrap(), &space);
            assert_eq!(got, before[rsn as usize..]);
        }
        log.truncate(250, &mut space);
        assert!(log.floor() <= 250 && log.floor() > 150);
        let got = read_all(&log, &mut log.cursor_after(250, &space).unwrap(), &space);
        assert_eq!(got, before[250..]);
        log.truncate(500, &mut space);
        assert_eq!((log.held(), log.memory(), space.disk()), (0, 0, 0));
        let (m, payload) = message(log.last_ssn(Rank(0)) + 1, 5);
        log.append(Rank(0), &m, &payload);
        assert_eq!(read_all(&log, at_end, &space), [(501, m.ssn, 5)]);
    }

    #[test]
    fn a_cursor_at_the_end_finds_what_is_appended_later() {
        let (_dir, space) = space();
        let mut log = Log::new(1);
        let mut cursor = log.cursor_after(0, &space).unwrap();
        assert!(log.next(&mut cursor, &space).unwrap().is_none());
        for ssn in 1..=100 {
            // Also one that is made there now, in the middle of a block.
            let mut anew = log.cursor_after(ssn - 1, &space).unwrap();
            let (m, payload) = message(ssn, 8000);
            log.append(Rank(0), &m, &payload);
            assert_eq!(read_all(&log, &mut cursor, &space), [(ssn, ssn, 8000)]);
            assert_eq!(read_all(&log, &mut anew, &space), [(ssn, ssn, 8000)]);
        }
    }

    #[test]
    fn large_payloads_are_truncated_as_soon_as_their_frames_may_be() {
        let (_dir, mut space) = space();
        let mut log = Log::new(2);
        for ssn in 1..=8 {
            let place = Some(Place { segment: ssn as u32, offset: 0 });
            let m = Message { size: 1 << 20, place, ..message(ssn, 0).0 };
            log.append(Rank(1), &m, &[]);
        }
        assert!(log.appended() > 8 << 20);
        let freed = log.truncate(5, &mut space);
        assert_eq!(freed, (1..=5).map(|s| (s, 1)).collect::<Vec<_>>());
        // All that a cursor at the end has passed can be truncated, even the last block.
        let mut cursor = log.cursor_after(8, &space).unwrap();
        assert_eq!(log.passed(&cursor), 8);
        log.truncate(8, &mut space);
        assert_eq!(log.held(), 0);
        assert!(log.next(&mut cursor, &space).unwrap().is_none());
        let (m, payload) = message(1, 10);
        log.append(Rank(0), &m, &payload);
        assert_eq!(log.next(&mut cursor, &space).unwrap().unwrap().deliver.rsn, 9);
    }
}
