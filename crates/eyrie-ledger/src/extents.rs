//! Extents: the pieces of a region that chains consist of. They lie one behind the other without a
//! gap, and each says its size in one sealed word; so they can be found again by walking, however
//! the process that cut them ended. Free ones are used again, the last freed first, before new
//! ones: a new page costs ten times a copy. A free extent must never be part of a chain.
//!
//! Sizes are 4 KiB · 4^k up to 1 MiB, then a little more than 4 MiB ([`LARGEST`]), or multiples of
//! that for one large message. A larger free extent is cut when no other fits. Free neighbours are
//! put together only when nothing else fits.

use crate::check::{seal, unseal, words};
use crate::error::LedgerError;
use crate::layout::{extent, own, Layout, LARGEST, LINE, PAGE};
use crate::memory::{Memory, View};
use crate::region;

/// Classes of free extents: at least 4 KiB · 4^k.
const CLASSES: usize = 6;
/// Of these, those whose extents all have what any size of theirs asks for.
const SMALL_CLASSES: u32 = 5;
/// Pages are made behind the end for so many bytes at most, before extents are taken there.
const MOST_AHEAD: u64 = 4 << 20;
/// Bytes of an extent of the last class at least.
const LAST_CLASS: u64 = PAGE << (2 * SMALL_CLASSES);

/// The smallest size of an extent that has so many bytes.
pub(crate) fn size_for(bytes: u64) -> u64 {
    let sizes = (0..SMALL_CLASSES).map(|k| PAGE << (2 * k));
    sizes.into_iter().find(|size| *size >= bytes).unwrap_or(bytes.next_multiple_of(LARGEST))
}

/// The class of free extents of this size.
fn class(size: u64) -> usize {
    (((size / PAGE).ilog2() / 2) as usize).min(CLASSES - 1)
}

/// An extent of a chain, as its head says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    pub at: u64,
    pub end: u64,
    pub first: u64,
    pub base: [u64; 2],
}

impl Extent {
    /// Where its content begins.
    pub const fn content(&self) -> u64 {
        self.at + LINE
    }

    /// Whether it may come behind this one: its numbers are larger. So chains have an end, whatever
    /// their links are.
    pub fn follows(&self, before: &Extent) -> bool {
        let (a, b) = ((before.first, before.base[0]), (self.first, self.base[0]));
        b.0 >= a.0 && b.1 >= a.1 && a != b
    }

    /// Reads the head of the extent at `at`, which is to be one of this channel. Any place may be
    /// asked for.
    pub fn read(
        view: &impl View,
        layout: &Layout,
        index: u32,
        at: u64,
    ) -> Result<Extent, &'static str> {
        let size = size(view, layout, at, layout.end())?;
        let word = |offset| view.load(at + offset);
        let first = word(extent::FIRST);
        let base = extent::BASE.map(word);
        let check = check(layout, index, at, size, first, base);
        if word(extent::CHANNEL) != u64::from(index) + 1 || word(extent::CHECK) != check {
            return Err("an extent is of another channel");
        }
        Ok(Extent { at, end: at + size, first, base })
    }

    /// Writes the head of an extent that was just taken.
    pub fn write(&self, memory: &impl Memory, layout: &Layout, index: u32) {
        let size = self.end - self.at;
        memory.store(self.at + extent::CHANNEL, u64::from(index) + 1);
        memory.store(self.at + extent::FIRST, self.first);
        memory.store(self.at + extent::BASE[0], self.base[0]);
        memory.store(self.at + extent::BASE[1], self.base[1]);
        let check = check(layout, index, self.at, size, self.first, self.base);
        memory.store(self.at + extent::CHECK, check);
        memory.store(self.at + extent::NEXT, 0);
    }
}

fn check(layout: &Layout, index: u32, at: u64, size: u64, first: u64, base: [u64; 2]) -> u64 {
    u64::from(words(layout.seed(index), &[at, size, first, base[0], base[1]]))
}

/// The size of the extent at `at`, which ends by `end`.
fn size(view: &impl View, layout: &Layout, at: u64, end: u64) -> Result<u64, &'static str> {
    if at < layout.extents() || at % PAGE != 0 || at >= end {
        return Err("an extent lies outside");
    }
    let size = unseal(view.load(at + extent::SIZE), layout.salt(at)).ok_or("a size is nonsense")?;
    if size == 0 || size % PAGE != 0 || size > end - at {
        return Err("a size is nonsense");
    }
    Ok(size)
}

/// What the writer of a region knows of its extents.
#[derive(Debug)]
pub(crate) struct Extents {
    /// The first free extent of each class, 0 for none; the others follow in their heads.
    free: [u64; CLASSES],
    /// End of the extents that were ever used.
    end: u64,
    /// Something was freed since neighbours were last put together.
    freed: bool,
    /// Behind the end there are pages up to here.
    made: u64,
    /// The last extent that was taken had never been used.
    is_fresh: bool,
}

/// An extent without a head of a chain yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub at: u64,
    pub size: u64,
    /// It has pages up to here.
    pub ready: u64,
}

impl Extents {
    /// Finds the extents of a region again. All that are not `used` (in order) are free.
    pub fn open(
        memory: &impl Memory,
        layout: &Layout,
        used: &[u64],
    ) -> Result<Extents, &'static str> {
        let word = memory.load(own::END);
        let end = match word {
            0 => layout.extents(),
            _ => unseal(word, layout.salt(own::END)).ok_or("the end of its extents is nonsense")?,
        };
        if end < layout.extents() || end > layout.end() {
            return Err("the end of its extents is nonsense");
        }
        let mut extents =
            Extents { free: [0; CLASSES], end, freed: false, made: 0, is_fresh: false };
        let mut at = layout.extents();
        let mut used = used.iter().peekable();
        while at < end {
            let size = size(memory, layout, at, end)?;
            match used.next_if_eq(&&at) {
                Some(_) => {}
                None => extents.push(memory, at, size),
            }
            at += size;
        }
        match used.next() {
            Some(_) => Err("a chain leads into the middle of an extent"),
            None => Ok(extents),
        }
    }

    /// Takes an extent that was in use before, of just this size.
    pub fn reuse(&mut self, memory: &impl Memory, layout: &Layout, wanted: u64) -> Option<Piece> {
        let (at, size) = if wanted < LARGEST {
            (class(wanted)..CLASSES).find_map(|class| self.pop(memory, layout, class))?
        } else {
            self.fitting(memory, layout, wanted)?
        };
        if size > wanted {
            let rest = at + wanted;
            memory.store(rest + extent::SIZE, seal(size - wanted, layout.salt(rest)));
            self.push(memory, rest, size - wanted);
            memory.store_release(at + extent::SIZE, seal(wanted, layout.salt(at)));
        }
        self.is_fresh = false;
        Some(Piece { at, size: wanted, ready: at + wanted })
    }

    /// Takes an extent that was never in use.
    pub fn fresh(
        &mut self,
        memory: &impl Memory,
        layout: &Layout,
        size: u64,
    ) -> Result<Piece, LedgerError> {
        let granted = region::granted(memory, layout);
        let limit = layout.extents().saturating_add(granted).min(layout.end());
        if self.end > limit || size > limit - self.end {
            if layout.extents() + size > layout.end() {
                return Err(LedgerError::TooLong { rank: layout.rank(), bytes: size });
            }
            return Err(LedgerError::Full { rank: layout.rank(), bytes: size, granted });
        }
        let at = self.end;
        if self.made < at + PAGE && !memory.populate(at, PAGE) {
            return Err(LedgerError::NoMemory { rank: layout.rank(), bytes: size });
        }
        memory.store(at + extent::CHANNEL, 0);
        memory.store(at + extent::SIZE, seal(size, layout.salt(at)));
        self.end += size;
        memory.store_release(own::END, seal(self.end, layout.salt(own::END)));
        self.made = self.made.max(at + PAGE);
        self.is_fresh = true;
        Ok(Piece { at, size, ready: self.made.min(self.end) })
    }

    /// Makes some pages behind the end, when the last extent was one that had none, and no more
    /// than are granted. False: there are enough.
    pub fn make_ahead(&mut self, memory: &impl Memory, layout: &Layout, bytes: u64) -> bool {
        let granted = region::granted(memory, layout);
        let limit = layout.extents().saturating_add(granted).min(layout.end());
        let from = self.made.max(self.end);
        let most = (self.end + (self.bytes(layout) / 8).min(MOST_AHEAD)).min(limit) / PAGE * PAGE;
        if !self.is_fresh || from >= most {
            return false;
        }
        let bytes = bytes.min(most - from);
        // Where there is no memory, whatever needs some says so.
        self.is_fresh = memory.populate(from, bytes);
        if self.is_fresh {
            self.made = from + bytes;
        }
        self.is_fresh
    }

    /// Gives an extent back that is in no chain any more.
    pub fn give(&mut self, memory: &impl Memory, extent: Extent) {
        self.push(memory, extent.at, extent.end - extent.at);
        self.freed = true;
    }

    /// Puts free neighbours together. True: some were, so trying again may help.
    pub fn merge(&mut self, memory: &impl Memory, layout: &Layout) -> Result<bool, &'static str> {
        if !std::mem::take(&mut self.freed) {
            return Ok(false);
        }
        self.free = [0; CLASSES];
        let mut at = layout.extents();
        let mut merged = false;
        while at < self.end {
            let mut whole = size(memory, layout, at, self.end)?;
            let free = memory.load(at + extent::CHANNEL) == 0;
            while free && at + whole < self.end {
                let next = at + whole;
                if memory.load(next + extent::CHANNEL) != 0 {
                    break;
                }
                whole += size(memory, layout, next, self.end)?;
                merged = true;
            }
            if free {
                memory.store_release(at + extent::SIZE, seal(whole, layout.salt(at)));
                self.push(memory, at, whole);
            }
            at += whole;
        }
        Ok(merged)
    }

    /// Bytes of all extents that were ever used.
    pub fn bytes(&self, layout: &Layout) -> u64 {
        self.end - layout.extents()
    }

    fn push(&mut self, memory: &impl Memory, at: u64, size: u64) {
        let first = &mut self.free[class(size)];
        memory.store(at + extent::CHANNEL, 0);
        memory.store(at + extent::NEXT, *first);
        *first = at;
    }

    /// The first free extent of a class. A list whose links are nonsense is left: the memory is
    /// lost until the region is opened again, and nothing else.
    fn pop(&mut self, memory: &impl Memory, layout: &Layout, class: usize) -> Option<(u64, u64)> {
        let at = std::mem::take(&mut self.free[class]);
        let size = self.free_size(memory, layout, at, class)?;
        self.free[class] = memory.load(at + extent::NEXT);
        Some((at, size))
    }

    /// The first one of the largest class that has so many bytes.
    fn fitting(
        &mut self,
        memory: &impl Memory,
        layout: &Layout,
        wanted: u64,
    ) -> Option<(u64, u64)> {
        let most = self.bytes(layout) / LAST_CLASS;
        let mut before = 0;
        let mut at = self.free[CLASSES - 1];
        for _ in 0..most {
            let size = self.free_size(memory, layout, at, CLASSES - 1)?;
            let next = memory.load(at + extent::NEXT);
            if size >= wanted {
                match before {
                    0 => self.free[CLASSES - 1] = next,
                    _ => memory.store(before + extent::NEXT, next),
                }
                return Some((at, size));
            }
            (before, at) = (at, next);
        }
        None
    }

    /// The size of the free extent at `at`; `None` if there is none of this class.
    fn free_size(&self, memory: &impl Memory, layout: &Layout, at: u64, of: usize) -> Option<u64> {
        let size = size(memory, layout, at, self.end).ok()?;
        let free = memory.load(at + extent::CHANNEL) == 0 && class(size) == of;
        free.then_some(size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::heap::Heap;

    const MIB: u64 = 1 << 20;

    fn region(granted: u64) -> (Heap, Layout, Extents) {
        let memory = Heap::new(32 * MIB);
        let layout = Layout::new(0, 2, 32 * MIB);
        region::prepare(&memory, &layout, 1, granted);
        let extents = Extents::open(&memory, &layout, &[]).unwrap();
        (memory, layout, extents)
    }

    fn extent(piece: Piece) -> Extent {
        Extent { at: piece.at, end: piece.at + piece.size, first: 1, base: [0; 2] }
    }

    #[test]
    fn sizes_are_four_kib_by_powers_of_four_and_then_multiples_of_the_largest() {
        let sizes = [1, 4096, 4097, 16 << 10, MIB, MIB + 1, LARGEST, LARGEST + 1, 9 * MIB];
        let (two, three) = (2 * LARGEST, 3 * LARGEST);
        let expected = [4096, 4096, 16 << 10, 16 << 10, MIB, LARGEST, LARGEST, two, three];
        assert_eq!(sizes.map(size_for), expected);
    }

    #[test]
    fn the_last_freed_is_used_first_and_larger_ones_are_cut() {
        let (m, l, mut e) = region(32 * MIB);
        let [a, b, big] = [PAGE, PAGE, 64 << 10].map(|n| e.fresh(&m, &l, n).unwrap());
        assert_eq!(e.reuse(&m, &l, PAGE), None);
        for piece in [big, a, b] {
            e.give(&m, extent(piece));
        }
        let next = e.reuse(&m, &l, PAGE).unwrap();
        assert_eq!((next.at, next.ready), (b.at, b.at + PAGE));
        assert_eq!(e.reuse(&m, &l, PAGE).unwrap().at, a.at);
        assert_eq!(e.reuse(&m, &l, PAGE).unwrap().at, big.at, "cut from the larger one");
        assert_eq!(e.reuse(&m, &l, 16 << 10).unwrap().at, big.at + PAGE);
    }

    #[test]
    fn free_neighbours_are_put_together_when_nothing_else_fits() {
        let (m, l, mut e) = region(8 * MIB);
        let pieces: Vec<_> = (0..8).map(|_| e.fresh(&m, &l, MIB).unwrap()).collect();
        pieces.iter().for_each(|piece| extent(*piece).write(&m, &l, 1));
        assert_eq!(
            e.fresh(&m, &l, PAGE),
            Err(LedgerError::Full { rank: 0, bytes: PAGE, granted: 8 * MIB })
        );
        for piece in &pieces[1..6] {
            e.give(&m, extent(*piece));
        }
        assert_eq!(e.reuse(&m, &l, 4 * MIB), None);
        assert_eq!(e.merge(&m, &l), Ok(true));
        assert_eq!(e.merge(&m, &l), Ok(false), "nothing was freed meanwhile");
        assert_eq!(e.reuse(&m, &l, 4 * MIB).unwrap().at, pieces[1].at);
        assert_eq!(e.reuse(&m, &l, MIB).unwrap().at, pieces[5].at);
    }

    /// What is made ahead stays within what is granted. None is made while free extents are used.
    #[test]
    fn pages_are_made_behind_the_end_when_new_extents_are_taken() {
        let (m, l, mut e) = region(8 * MIB);
        assert!(!e.make_ahead(&m, &l, MIB), "nothing was ever used");
        let first = e.fresh(&m, &l, 4 * MIB).unwrap();
        assert_eq!(first.ready, first.at + PAGE);
        assert!(e.make_ahead(&m, &l, 64 << 10));
        let next = e.fresh(&m, &l, MIB).unwrap();
        assert_eq!(next.ready, next.at + (64 << 10));
        while e.make_ahead(&m, &l, 64 << 10) {}
        assert_eq!(e.made - e.end, 5 * MIB / 8);
        assert_eq!(e.fresh(&m, &l, PAGE).unwrap().ready, e.end);
        e.fresh(&m, &l, 3 * MIB - PAGE).unwrap();
        assert!(!e.make_ahead(&m, &l, MIB), "no more is granted");
        e.give(&m, extent(next));
        region::grant(&m, &l, 32 * MIB);
        assert!(e.reuse(&m, &l, MIB).is_some() && !e.make_ahead(&m, &l, MIB));
        e.fresh(&m, &l, MIB).unwrap();
        m.set_full(true);
        assert!(!e.make_ahead(&m, &l, MIB) && !e.is_fresh, "it does not try again and again");
    }

    #[test]
    fn a_free_extent_is_of_no_channel() {
        let (m, l, mut e) = region(MIB);
        let extent = extent(e.fresh(&m, &l, PAGE).unwrap());
        extent.write(&m, &l, 1);
        assert!(Extent::read(&m, &l, 1, extent.at).is_ok());
        assert!(Extent::read(&m, &l, 2, extent.at).is_err());
        e.give(&m, extent);
        assert!(Extent::read(&m, &l, 1, extent.at).is_err());
    }

    #[test]
    fn large_ones_are_searched_for_and_taken_out_of_the_middle() {
        let (m, l, mut e) = region(32 * MIB);
        let pieces = [4 * MIB, 12 * MIB, 4 * MIB].map(|n| e.fresh(&m, &l, n).unwrap());
        pieces.iter().for_each(|piece| e.give(&m, extent(*piece)));
        assert_eq!(e.reuse(&m, &l, 8 * MIB).unwrap().at, pieces[1].at);
        assert_eq!(e.reuse(&m, &l, 8 * MIB), None);
        let rest: Vec<_> = (0..3).map(|_| e.reuse(&m, &l, 4 * MIB).unwrap().at).collect();
        assert_eq!(rest, [pieces[1].at + 8 * MIB, pieces[2].at, pieces[0].at]);
        assert_eq!(
            e.fresh(&m, &l, 64 * MIB),
            Err(LedgerError::TooLong { rank: 0, bytes: 64 * MIB })
        );
    }

    /// Random takes and gives against a model: no two extents in use overlap, and a region that is
    /// opened again has the same free bytes.
    #[test]
    fn extents_in_use_never_overlap() {
        let (m, l, mut e) = region(24 * MIB);
        let mut used: Vec<Piece> = Vec::new();
        let mut random = 12345u64;
        for round in 0..20_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let n = random >> 33;
            if n % 3 == 0 && !used.is_empty() {
                e.give(&m, extent(used.swap_remove((n / 3) as usize % used.len())));
                continue;
            }
            let size = size_for(1 << (n / 3 % 24));
            let mut piece = e.reuse(&m, &l, size).or_else(|| e.fresh(&m, &l, size).ok());
            if piece.is_none() && e.merge(&m, &l).unwrap() {
                piece = e.reuse(&m, &l, size);
            }
            let Some(piece) = piece else { continue };
            m.store(piece.at + extent::CHANNEL, 1);
            let overlaps = |u: &Piece| u.at < piece.at + piece.size && piece.at < u.at + u.size;
            assert!(!used.iter().any(overlaps), "round {round}");
            used.push(piece);
            if round % 1000 == 0 {
                let mut at: Vec<_> = used.iter().map(|u| u.at).collect();
                at.sort_unstable();
                e = Extents::open(&m, &l, &at).unwrap();
            }
        }
    }
}
