//! The message log of one rank: frames in their total order, in blocks, in memory or spilled to disk.
//! A block holds frames exactly as they go to the rank. It must never lose a frame that is not
//! discarded, and must hold only whole frames.

use crate::spill::Spill;
use eyrie_wire::data::{Frame, Header, HEADER_LEN, MAX_FRAME};
use eyrie_wire::Rank;
use std::collections::VecDeque;
use std::io;

/// A block is sealed when the next frame would take it beyond this, in bytes.
const BLOCK_BYTES: usize = 256 * 1024;

enum Place {
    Memory(Vec<u8>),
    Disk { offset: u64, len: usize },
}

struct Block {
    /// Position of the last frame in the block.
    last: u64,
    place: Place,
    /// How many frames of the block lie in which segment.
    segments: Vec<(u32, u32)>,
}

impl Block {
    fn len(&self) -> usize {
        match &self.place {
            Place::Memory(bytes) => bytes.len(),
            Place::Disk { len, .. } => *len,
        }
    }
}

/// A place between two frames of a log.
#[derive(Default)]
pub struct Cursor {
    /// Blocks are numbered from the start of the log; discarded ones keep their numbers.
    block: u64,
    offset: usize,
    /// The block of a spilled cursor position, read back.
    loaded: Option<(u64, Vec<u8>)>,
}

/// The log of one rank.
#[derive(Default)]
pub struct Log {
    blocks: VecDeque<Block>,
    /// Number of the first block in `blocks`.
    first_block: u64,
    /// Position of the newest message: 0 when there has been none.
    newest: u64,
    /// Position of the last message that is gone.
    floor: u64,
    /// Number of the newest message from each source.
    last_seq: Vec<u64>,
    /// Bytes of frames and of payloads in segments.
    bytes: u64,
    memory: u64,
}

/// What discarding gave back.
#[derive(Default)]
pub struct Freed {
    /// How many frames no longer lie in which segment.
    pub segments: Vec<(u32, u32)>,
}

impl Log {
    /// An empty log with room for `ranks` sources.
    pub fn new(ranks: u32) -> Log {
        Log { last_seq: vec![0; ranks as usize], ..Log::default() }
    }

    pub fn newest(&self) -> u64 {
        self.newest
    }

    pub fn floor(&self) -> u64 {
        self.floor
    }

    /// Number of the newest message from `source`, 0 when there is none.
    pub fn last_seq(&self, source: Rank) -> u64 {
        self.last_seq[source as usize]
    }

    /// Bytes of frames in the log, wherever they lie.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes of frames held in memory.
    pub fn memory(&self) -> u64 {
        self.memory
    }

    /// Gives a message its place and logs it. `header.seq` must be the next of its source.
    pub fn append(&mut self, mut header: Header, payload: &[u8]) -> u64 {
        debug_assert_eq!(header.seq, self.last_seq[header.peer as usize] + 1);
        self.last_seq[header.peer as usize] = header.seq;
        self.newest += 1;
        header.position = self.newest;
        header.determinants = 0;
        let len = HEADER_LEN + payload.len();
        let block = self.writable_block(len);
        let Place::Memory(bytes) = &mut block.place else { unreachable!("sealed block") };
        bytes.extend_from_slice(&header.encode());
        bytes.extend_from_slice(payload);
        block.last = header.position;
        if header.flags & eyrie_wire::data::IN_SEGMENT != 0 {
            match block.segments.iter_mut().find(|(id, _)| *id == header.segment) {
                Some((_, n)) => *n += 1,
                None => block.segments.push((header.segment, 1)),
            }
        }
        self.bytes += len as u64;
        self.memory += len as u64;
        self.newest
    }

    fn writable_block(&mut self, len: usize) -> &mut Block {
        let full = match self.blocks.back() {
            Some(Block { place: Place::Memory(bytes), .. }) => bytes.len() + len > BLOCK_BYTES,
            _ => true,
        };
        if full {
            let place = Place::Memory(Vec::new());
            self.blocks.push_back(Block { last: self.newest, place, segments: Vec::new() });
        }
        self.blocks.back_mut().unwrap()
    }

    /// A cursor before the first frame behind `position`.
    ///
    /// # Errors
    /// When a block cannot be read back.
    pub fn cursor_after(&self, position: u64, spill: &Spill) -> io::Result<Cursor> {
        let index = self.blocks.partition_point(|b| b.last <= position);
        // The last block may still grow: a cursor at its end stays in it.
        let index = index.min(self.blocks.len().saturating_sub(1));
        let mut cursor = Cursor { block: self.first_block + index as u64, ..Cursor::default() };
        while let Some((header, len)) = self.peek(&mut cursor, spill)? {
            if header.position > position {
                break;
            }
            cursor.offset += len;
        }
        Ok(cursor)
    }

    /// The frame behind the cursor, if there is one: its header and its length.
    fn peek(&self, cursor: &mut Cursor, spill: &Spill) -> io::Result<Option<(Header, usize)>> {
        Ok(self.frame(cursor, spill)?.map(|f| (f.header, f.len)))
    }

    /// The frame behind the cursor, if there is one.
    pub fn frame<'a>(
        &'a self,
        cursor: &'a mut Cursor,
        spill: &Spill,
    ) -> io::Result<Option<Frame<'a>>> {
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
            Place::Memory(bytes) => bytes,
            Place::Disk { offset, len } => {
                if cursor.loaded.as_ref().map(|(n, _)| *n) != Some(cursor.block) {
                    cursor.loaded = Some((cursor.block, spill.read(*offset, *len)?));
                }
                &cursor.loaded.as_ref().unwrap().1
            }
        };
        let rest = &bytes[cursor.offset..];
        match Frame::parse(rest) {
            Ok(Some(frame)) => Ok(Some(frame)),
            _ => Err(io::Error::new(io::ErrorKind::InvalidData, "damaged log block")),
        }
    }

    /// Moves the cursor behind a frame of this length.
    pub fn advance(&self, cursor: &mut Cursor, frame_len: usize) {
        cursor.offset += frame_len;
    }

    /// Forgets whole blocks up to `position`.
    pub fn discard(&mut self, position: u64, spill: &mut Spill) -> Freed {
        let mut freed = Freed::default();
        while self.blocks.front().is_some_and(|b| b.last <= position && b.last > 0) {
            let block = self.blocks.pop_front().unwrap();
            self.first_block += 1;
            self.floor = block.last;
            self.bytes -= block.len() as u64;
            match block.place {
                Place::Memory(bytes) => self.memory -= bytes.len() as u64,
                Place::Disk { offset, len } => spill.free(offset, len),
            }
            freed.segments.extend(block.segments);
        }
        freed
    }

    /// Spills the oldest block in memory that is not written to any more. Returns the bytes moved, 0 when
    /// there is no such block.
    ///
    /// # Errors
    /// When the disk does not take it; the block stays in memory then.
    pub fn spill_one(&mut self, spill: &mut Spill) -> io::Result<u64> {
        let sealed = self.blocks.len().saturating_sub(1);
        for block in self.blocks.iter_mut().take(sealed) {
            if let Place::Memory(bytes) = &block.place {
                let (offset, len) = (spill.write(bytes)?, bytes.len());
                block.place = Place::Disk { offset, len };
                self.memory -= len as u64;
                return Ok(len as u64);
            }
        }
        Ok(0)
    }

    /// Position up to which the cursor has passed.
    pub fn passed(&self, cursor: &Cursor) -> u64 {
        let index = cursor.block.saturating_sub(self.first_block) as usize;
        match index.checked_sub(1).and_then(|i| self.blocks.get(i)) {
            Some(block) => block.last,
            None => self.floor,
        }
    }
}

// A frame always fits a block.
const _: () = assert!(MAX_FRAME <= BLOCK_BYTES);

#[cfg(test)]
mod tests {
    use super::*;
    use eyrie_wire::data::Kind;

    fn message(source: Rank, seq: u64, len: usize) -> (Header, Vec<u8>) {
        let h = Header {
            peer: source,
            seq,
            size: len as u64,
            inline: len as u32,
            ..Header::new(Kind::Deliver)
        };
        (h, vec![seq as u8; len])
    }

    fn read_all(log: &Log, cursor: &mut Cursor, spill: &Spill) -> Vec<(u64, u64, usize)> {
        let mut out = Vec::new();
        while let Some(f) = log.frame(cursor, spill).unwrap() {
            assert!(f.payload.iter().all(|b| *b == f.header.seq as u8));
            out.push((f.header.position, f.header.seq, f.payload.len()));
            let len = f.len;
            log.advance(cursor, len);
        }
        out
    }

    #[test]
    fn frames_come_back_in_order_from_any_position_also_from_disk() {
        let dir = tempfile::tempdir().unwrap();
        let mut spill = Spill::create(dir.path()).unwrap();
        let mut log = Log::new(2);
        for seq in 1..=500u64 {
            let (h, payload) =
                message((seq % 2) as u32, seq.div_ceil(2), (seq as usize * 37) % 9000);
            assert_eq!(log.append(h, &payload), seq);
        }
        let before = read_all(&log, &mut log.cursor_after(0, &spill).unwrap(), &spill);
        assert_eq!(before.len(), 500);
        while log.spill_one(&mut spill).unwrap() > 0 {}
        assert!(log.memory() <= BLOCK_BYTES as u64 && spill.bytes() > 0);
        for position in [0, 1, 77, 250, 499, 500] {
            let got = read_all(&log, &mut log.cursor_after(position, &spill).unwrap(), &spill);
            assert_eq!(got, before[position as usize..]);
        }
        log.discard(250, &mut spill);
        assert!(log.floor() <= 250 && log.floor() > 150);
        let got = read_all(&log, &mut log.cursor_after(250, &spill).unwrap(), &spill);
        assert_eq!(got, before[250..]);
        log.discard(500, &mut spill);
        assert_eq!((log.bytes(), log.memory(), spill.bytes()), (0, 0, 0));
        let (h, payload) = message(0, log.last_seq(0) + 1, 5);
        assert_eq!(log.append(h, &payload), 501);
    }

    #[test]
    fn a_cursor_at_the_end_sees_what_is_appended_later() {
        let dir = tempfile::tempdir().unwrap();
        let spill = Spill::create(dir.path()).unwrap();
        let mut log = Log::new(1);
        let mut cursor = log.cursor_after(0, &spill).unwrap();
        assert!(log.frame(&mut cursor, &spill).unwrap().is_none());
        for seq in 1..=100 {
            // Also one that is set there anew, in the middle of a block.
            let mut anew = log.cursor_after(seq - 1, &spill).unwrap();
            let (h, payload) = message(0, seq, 8000);
            log.append(h, &payload);
            assert_eq!(read_all(&log, &mut cursor, &spill), [(seq, seq, 8000)]);
            assert_eq!(read_all(&log, &mut anew, &spill), [(seq, seq, 8000)]);
        }
    }
}
