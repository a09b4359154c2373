//! What is saved of the ledgers, and how a keeper goes on with it: for each rank its incarnation,
//! what its images have, and its region as far as anything was written; then for each rank what was
//! taken out of the messages to it. The bytes around it, their hash and the file are above.
//!
//! All numbers have 64 bits, little endian. A region is a list of pieces, each its place, its
//! length and its bytes; a piece without bytes ends the list. Pages of zeros are left out.

use super::images::{Imaged, Images};
use super::ranks::Ranks;
use super::regions::Regions;
use super::spill::{Block, Spill, Taken, PIECE as SPILLED_PIECE};
use super::store::Store;
use eyrie_ledger::layout::{Layout, PAGE};
use eyrie_ledger::memory::Memory;
use eyrie_wire::{Incarnation, RankInstance};
use std::io::{self, Read, Write};

/// Version of this format.
const VERSION: u64 = 2;
/// Longest piece in bytes.
const PIECE: u64 = 1 << 20;

/// How the saved ledgers lay in their file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Head {
    pub ranks: u64,
    pub region_bytes: u64,
}

impl Head {
    /// # Errors
    /// Those of the reader; when this is another version.
    pub fn read(from: &mut impl Read) -> io::Result<Head> {
        match number(from)? {
            VERSION => Ok(Head { ranks: number(from)?, region_bytes: number(from)? }),
            other => Err(invalid(format!("it is of version {other}, not {VERSION}"))),
        }
    }

    fn write(self, to: &mut impl Write) -> io::Result<()> {
        [VERSION, self.ranks, self.region_bytes].iter().try_for_each(|n| put(to, *n))
    }
}

/// Writes all that is needed to go on.
///
/// # Errors
/// Those of the writer.
pub fn save<M: Memory>(
    regions: &Regions<M>,
    ranks: &Ranks,
    images: &Images,
    to: &mut impl Write,
) -> io::Result<()> {
    let region_bytes = regions.ranks().map(|rank| regions.of(rank).1.end()).max().unwrap_or(0);
    Head { ranks: regions.count() as u64, region_bytes }.write(to)?;
    for rank in regions.ranks() {
        let RankInstance { incarnation, .. } = ranks.instance(rank);
        let Imaged { clock, observed, counts } = images.of(rank);
        [u64::from(incarnation.0), *clock, *observed].iter().try_for_each(|n| put(to, *n))?;
        counts.iter().try_for_each(|n| put(to, *n))?;
        let (memory, layout) = regions.of(rank);
        save_region(memory, layout.extents() + regions.used(rank), to)?;
    }
    Ok(())
}

/// Writes the pages of a region up to `end` that are not zero.
fn save_region(memory: &impl Memory, end: u64, to: &mut impl Write) -> io::Result<()> {
    let mut bytes = vec![0; PIECE as usize];
    for at in (0..end).step_by(PIECE as usize) {
        let bytes = &mut bytes[..PIECE.min(end - at) as usize];
        memory.read(at, bytes);
        let mut begin = 0;
        while begin < bytes.len() {
            let pages = bytes[begin..].chunks(PAGE as usize);
            let zero =
                pages.clone().take_while(|page| is_zero(page)).map(<[u8]>::len).sum::<usize>();
            begin += zero;
            let pages = bytes[begin..].chunks(PAGE as usize);
            let len = pages.take_while(|page| !is_zero(page)).map(<[u8]>::len).sum::<usize>();
            if len > 0 {
                put(to, at + begin as u64)?;
                put(to, len as u64)?;
                to.write_all(&bytes[begin..begin + len])?;
            }
            begin += len;
        }
    }
    put(to, 0)?;
    put(to, 0)
}

fn is_zero(page: &[u8]) -> bool {
    page.iter().all(|byte| *byte == 0)
}

/// Goes on with what [`save`] wrote, behind its [`Head`]. The regions are zero.
///
/// # Errors
/// Those of the reader; when what is read does not fit the job; when there is no memory.
pub fn restore<M: Memory>(
    regions: &Regions<M>,
    (ranks, images): (&mut Ranks, &mut Images),
    from: &mut impl Read,
) -> io::Result<()> {
    for rank in regions.ranks() {
        let incarnation = u32::try_from(number(from)?);
        let incarnation = Incarnation(incarnation.map_err(|_| invalid("an incarnation"))?);
        ranks.restore(RankInstance { rank, incarnation });
        let clock = number(from)?;
        let observed = number(from)?;
        let counts = (0..regions.count()).map(|_| number(from)).collect::<io::Result<_>>()?;
        images.restore(rank, Imaged { clock, observed, counts });
        let (memory, layout) = regions.of(rank);
        restore_region(memory, layout, from)?;
    }
    Ok(())
}

fn restore_region(memory: &impl Memory, layout: &Layout, from: &mut impl Read) -> io::Result<()> {
    let mut bytes = vec![0; PIECE as usize];
    loop {
        let at = number(from)?;
        let len = number(from)?;
        if len == 0 {
            return Ok(());
        }
        if len > PIECE || at % PAGE != 0 || at > layout.end() || len > layout.end() - at {
            return Err(invalid("a piece lies outside its region"));
        }
        let bytes = &mut bytes[..len as usize];
        from.read_exact(bytes)?;
        if !memory.populate(at, len.next_multiple_of(PAGE)) {
            return Err(io::Error::new(
                io::ErrorKind::OutOfMemory,
                "there is no memory for the ledgers",
            ));
        }
        memory.write(at, bytes);
    }
}

/// Writes what was taken out of the messages to each rank, and the messages.
///
/// # Errors
/// Those of the writer and of the store.
pub fn save_spilled<M: Memory>(
    regions: &Regions<M>,
    spill: &Spill,
    store: &impl Store,
    to: &mut impl Write,
) -> io::Result<()> {
    let mut bytes = vec![0; SPILLED_PIECE];
    for rank in regions.ranks() {
        let Taken { clock, within, counts, blocks, begin, end, lost, .. } = spill.of(rank);
        [*clock, within.0, within.1, u64::from(*lost)]
            .iter()
            .chain(counts)
            .try_for_each(|n| put(to, *n))?;
        put(to, blocks.len() as u64)?;
        for block in blocks {
            put(to, block.clock)?;
            put(to, block.end - begin)?;
        }
        for at in (*begin..*end).step_by(SPILLED_PIECE) {
            let bytes = &mut bytes[..(end - at).min(SPILLED_PIECE as u64) as usize];
            store.read(rank, at, bytes)?;
            to.write_all(bytes)?;
        }
    }
    Ok(())
}

/// Goes on with what [`save_spilled`] wrote. The files are empty.
///
/// # Errors
/// Those of the reader and of the store; when what is read is nonsense.
pub fn restore_spilled<M: Memory>(
    regions: &Regions<M>,
    spill: &mut Spill,
    from: &mut impl Read,
    store: &mut impl Store,
) -> io::Result<()> {
    let mut bytes = vec![0; SPILLED_PIECE];
    for rank in regions.ranks() {
        let clock = number(from)?;
        let within = (number(from)?, number(from)?);
        let lost = number(from)? != 0;
        let counts = (0..regions.count()).map(|_| number(from)).collect::<io::Result<_>>()?;
        let mut taken = Taken::nothing(clock, counts);
        (taken.within, taken.lost) = (within, lost);
        for _ in 0..number(from)? {
            let block = Block { clock: number(from)?, end: number(from)? };
            if block.end <= taken.end {
                return Err(invalid("a block of spilled messages"));
            }
            taken.end = block.end;
            taken.blocks.push_back(block);
        }
        for at in (0..taken.end).step_by(SPILLED_PIECE) {
            let bytes = &mut bytes[..(taken.end - at).min(SPILLED_PIECE as u64) as usize];
            from.read_exact(bytes)?;
            store.write(rank, at, bytes)?;
        }
        spill.restore(rank, taken);
    }
    Ok(())
}

fn put(to: &mut impl Write, n: u64) -> io::Result<()> {
    to.write_all(&n.to_le_bytes())
}

fn number(from: &mut impl Read) -> io::Result<u64> {
    let mut bytes = [0; 8];
    from.read_exact(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

fn invalid(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.into())
}
