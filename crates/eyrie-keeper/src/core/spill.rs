//! Messages that are taken out of full ledgers and written to disk: those that their receiver has
//! recorded, in the order in which it has received them. A receiver that is executed again reads
//! them from there, and all behind them from the ledgers. It must never release a message that is
//! not written, nor take one out that a process has yet to read from a ledger.

use super::regions::Regions;
use super::store::Store;
use eyrie_ledger::error::LedgerError;
use eyrie_ledger::layout::Channel;
use eyrie_ledger::memory::Memory;
use eyrie_ledger::order::OrderReader;
use eyrie_ledger::reader::Reader;
use eyrie_ledger::region;
use eyrie_ledger::spilled::{len_of, PayloadCheck, Spilled};
use eyrie_ledger::Entry;
use eyrie_wire::Rank;
use std::collections::VecDeque;
use std::io;

/// Bytes after which a step ends: the keeper has other things to do. A message is taken out whole.
const STEP: u64 = if cfg!(test) { 64 << 10 } else { 8 << 20 };
/// Bytes that are written or read at a time.
pub const PIECE: usize = if cfg!(test) { 4 << 10 } else { 1 << 20 };
/// A block is closed when it has so many bytes.
const BLOCK: u64 = PIECE as u64;

/// Why nothing more is taken out.
#[derive(Debug)]
pub enum Stop {
    /// The share of the disk is used up.
    Full,
    /// A file cannot be written.
    Failed(io::Error),
    /// The job must end, for this reason.
    Damaged(String),
}

impl From<LedgerError> for Stop {
    fn from(e: LedgerError) -> Stop {
        Stop::Damaged(e.to_string())
    }
}

/// The end of some of the messages of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Block {
    /// The clock of the receiver at the last one: an image from this clock on has all of them.
    pub clock: u64,
    /// The byte behind them.
    pub end: u64,
}

/// What was taken out of the messages to one rank.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Taken {
    /// All that it had received up to this clock is taken out, or in its image.
    pub clock: u64,
    /// At this clock so many messages, too.
    pub within: (u64, u64),
    /// Messages of each source that are taken out, or in its image.
    pub counts: Vec<u64>,
    pub blocks: VecDeque<Block>,
    /// The bytes of the file that are needed.
    pub begin: u64,
    pub end: u64,
    /// What the rank has received up to `clock` was released without an image, and no image since
    /// has it: what it receives need not be kept either.
    pub lost: bool,
    /// What lies before this was freed.
    freed: u64,
}

impl Taken {
    /// So much is taken out, or in an image, and nothing of it is in the file.
    pub fn nothing(clock: u64, counts: Vec<u64>) -> Taken {
        let blocks = VecDeque::new();
        Taken { clock, within: (0, 0), counts, blocks, begin: 0, end: 0, lost: false, freed: 0 }
    }

    /// An image of the rank counts.
    fn forget(&mut self, clock: u64, counts: &[u64]) {
        let had = self.blocks.iter().take_while(|block| block.clock <= clock).count();
        if let Some(last) = self.blocks.drain(..had).next_back() {
            self.begin = last.end;
        }
        self.lost &= clock < self.clock;
        self.clock = self.clock.max(clock);
        for (taken, imaged) in self.counts.iter_mut().zip(counts) {
            *taken = (*taken).max(*imaged);
        }
    }

    /// Gives the space of what is needed no more back. No process reads the file.
    fn free(&mut self, rank: Rank, store: &mut impl Store) {
        if self.begin == self.end && self.end > 0 {
            store.truncate(rank, 0);
            (self.begin, self.end, self.freed) = (0, 0, 0);
        } else if self.begin > self.freed {
            store.free(rank, self.freed, self.begin);
            self.freed = self.begin;
        }
    }
}

/// What was taken out of the messages to all ranks.
pub struct Spill {
    /// Most bytes of all files.
    bound: u64,
    all: Vec<Taken>,
}

impl Spill {
    /// Nothing was taken out yet. The files may have `bound` bytes.
    pub fn new(ranks: usize, bound: u64) -> Spill {
        Spill { bound, all: vec![Taken::nothing(0, vec![0; ranks]); ranks] }
    }

    pub fn of(&self, rank: Rank) -> &Taken {
        &self.all[rank.index()]
    }

    /// Goes on with what was saved.
    pub fn restore(&mut self, rank: Rank, saved: Taken) {
        self.all[rank.index()] = saved;
    }

    /// Most bytes of all files.
    pub const fn bound(&self) -> u64 {
        self.bound
    }

    /// Bytes of a rank's file that are needed: from the first to the second one.
    pub fn range(&self, rank: Rank) -> (u64, u64) {
        (self.of(rank).begin, self.of(rank).end)
    }

    /// Bytes of a rank's file.
    pub fn bytes_of(&self, rank: Rank) -> u64 {
        self.of(rank).end - self.of(rank).begin
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.all.iter().map(|taken| taken.end - taken.begin).sum()
    }

    /// An image of the rank counts, up to this clock, with so many messages of each source.
    pub fn image_counts(&mut self, rank: Rank, clock: u64, counts: &[u64]) {
        self.all[rank.index()].forget(clock, counts);
    }

    /// Gives back the space of what is needed no more. The rank's process must not read its file.
    pub fn free(&mut self, rank: Rank, store: &mut impl Store) {
        self.all[rank.index()].free(rank, store);
    }

    /// What the rank has received up to this clock was released without an image: what was taken
    /// out before is of no use.
    pub fn lose(&mut self, rank: Rank, clock: u64, counts: Vec<u64>, store: &mut impl Store) {
        store.truncate(rank, 0);
        self.all[rank.index()] = Taken { lost: true, ..Taken::nothing(clock, counts) };
    }

    /// Takes the next messages out that a rank has received, and releases them. Its process
    /// re-executes no more. Returns how many they are; 0: all that it has recorded is taken out.
    ///
    /// # Errors
    /// Why none can be taken out.
    pub fn step<M: Memory>(
        &mut self,
        regions: &Regions<M>,
        rank: Rank,
        store: &mut impl Store,
    ) -> Result<u64, Stop> {
        self.free(rank, store);
        let room = self.bound.saturating_sub(self.bytes());
        let taken = &mut self.all[rank.index()];
        let mut step = Step::new(regions, rank, taken, room, store);
        let mut done = step.run();
        // What came before a message for which there is no room is kept.
        if matches!(done, Ok(()) | Err(Stop::Full)) && step.messages > 0 {
            done = step.flush().map_err(Stop::Failed);
        }
        if let Err(stop) = done {
            store.truncate(rank, taken.end);
            return Err(stop);
        }
        let messages = step.messages;
        let clock = step.clock;
        let within = step.within;
        let end = step.at;
        let counts = step.counts;
        if messages > 0 {
            taken.add(Block { clock: within.0, end });
        }
        (taken.clock, taken.within) = (clock, within);
        for ((source, before), count) in regions.ranks().zip(&taken.counts).zip(&counts) {
            if count > before {
                let (memory, layout) = regions.of(source);
                region::release(memory, layout, Channel::Rank(rank.0), *count);
            }
        }
        taken.counts = counts;
        Ok(messages)
    }
}

impl Taken {
    /// Messages were written up to the end of this block.
    fn add(&mut self, block: Block) {
        let begin = self.blocks.iter().nth_back(1).map_or(self.begin, |before| before.end);
        match self.blocks.back_mut().filter(|last| last.end - begin < BLOCK) {
            Some(last) => *last = block,
            None => self.blocks.push_back(block),
        }
        self.end = block.end;
    }
}

/// Messages on their way from ledgers to a file. Nothing is changed but the file, behind its end.
struct Step<'a, M, S> {
    regions: &'a Regions<M>,
    rank: Rank,
    store: &'a mut S,
    /// Bytes that the file may grow by.
    room: u64,
    /// Those of the sources from which something was taken.
    readers: Vec<Option<Reader<&'a M>>>,
    counts: Vec<u64>,
    clock: u64,
    within: (u64, u64),
    messages: u64,
    /// Bytes of these messages.
    bytes: u64,
    /// What is not written yet, and the place where it goes.
    buffer: Vec<u8>,
    at: u64,
}

impl<'a, M: Memory, S: Store> Step<'a, M, S> {
    fn new(
        regions: &'a Regions<M>,
        rank: Rank,
        taken: &Taken,
        room: u64,
        store: &'a mut S,
    ) -> Step<'a, M, S> {
        let Taken { clock, within, ref counts, end, .. } = *taken;
        let readers = regions.ranks().map(|_| None).collect();
        let counts = counts.clone();
        let buffer = Vec::with_capacity(PIECE);
        let messages = 0;
        let bytes = 0;
        Step {
            regions,
            rank,
            store,
            room,
            readers,
            counts,
            clock,
            within,
            messages,
            bytes,
            buffer,
            at: end,
        }
    }

    /// Takes messages until the step is long enough, or there are no more.
    fn run(&mut self) -> Result<(), Stop> {
        let regions = self.regions;
        let (memory, layout) = regions.of(self.rank);
        let mut order = OrderReader::open(memory, *layout, self.clock)?;
        while let Some(determinant) = order.next()? {
            let done = if self.within.0 == determinant.clock { self.within.1 } else { 0 };
            let mut number = 0;
            for (source, count) in determinant.shown {
                for _ in 0..*count {
                    number += 1;
                    if number <= done {
                        continue;
                    }
                    if self.bytes >= STEP {
                        return Ok(());
                    }
                    self.take(Rank(*source))?;
                    self.within = (determinant.clock, number);
                }
            }
            self.clock = determinant.clock;
        }
        Ok(())
    }

    /// Takes the next message of a source.
    fn take(&mut self, source: Rank) -> Result<(), Stop> {
        let regions = self.regions;
        let (memory, layout) = regions.of(source);
        let count = self.counts[source.index()];
        let reader = self.readers[source.index()]
            .get_or_insert_with(|| Reader::new(memory, *layout, self.rank.0, count));
        let entry = reader.look()?;
        let whole = match &entry {
            Some(entry) => reader.filled(entry)? == entry.len,
            None => false,
        };
        let Some(entry) = entry.filter(|_| whole) else {
            reader.look_for_lost()?;
            return Err(missing(self.rank, source, count + 1));
        };
        let bytes = len_of(entry.len);
        if self.bytes + bytes > self.room {
            return Err(Stop::Full);
        }
        reader.pass(&entry);
        self.put(source, &entry).map_err(Stop::Failed)?;
        self.counts[source.index()] = entry.ssn;
        self.messages += 1;
        self.bytes += bytes;
        Ok(())
    }

    fn put(&mut self, source: Rank, entry: &Entry) -> io::Result<()> {
        let mut check = PayloadCheck::default();
        let mut piece = vec![0; entry.len.min(PIECE as u64) as usize];
        // The head comes first and has the check: a long payload is read twice.
        self.each_piece(source, entry, &mut piece, |_, piece| {
            check.add(piece);
            Ok(())
        })?;
        let Entry { ssn, envelope, len, .. } = *entry;
        let head = Spilled { source: source.0, ssn, envelope, len, check }.head();
        self.append(&head)?;
        if entry.len <= PIECE as u64 {
            self.append(&piece)?;
        } else {
            self.each_piece(source, entry, &mut piece, |step, piece| step.append(piece))?;
        }
        self.append(&[0; 8][..(entry.len.next_multiple_of(8) - entry.len) as usize])
    }

    /// Reads the payload of a message piece by piece.
    fn each_piece(
        &mut self,
        source: Rank,
        entry: &Entry,
        piece: &mut [u8],
        mut each: impl FnMut(&mut Step<'a, M, S>, &[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        for from in (0..entry.len).step_by(PIECE) {
            let piece = &mut piece[..(entry.len - from).min(PIECE as u64) as usize];
            if let Some(reader) = &self.readers[source.index()] {
                reader.read(entry, from, piece);
            }
            each(self, piece)?;
        }
        Ok(())
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.buffer.len() + bytes.len() > PIECE {
            self.flush()?;
        }
        self.buffer.extend_from_slice(bytes);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.store.write(self.rank, self.at, &self.buffer)?;
        self.at += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }
}

/// What a rank has recorded is not in the ledger of its source.
fn missing(rank: Rank, source: Rank, ssn: u64) -> Stop {
    Stop::Damaged(format!(
        "rank {rank} has received message {ssn} of rank {source}, whose ledger does not have all \
         of it"
    ))
}
