//! Memory that the image-writing child is spared: pages that the reader of the image has already,
//! because nothing was written to them since an earlier image. To copy the page tables of all
//! memory is most of a large process's pause. Advice keeps these pages from the child while it is
//! cloned, and must always be taken off again. Advice that is the program's own must stay.

use super::super::scratch::{List, Scratch};
use super::own::advise;
use super::ranges::Range;
use super::smaps::open_proc;
use crate::refusal::Refusal;
use eyrie_image_kernel::sys::{self, nr, PAGE};

/// Most ranges that are spared. Each is a mapping of its own for the moment of the clone.
pub const SPARED_MAX: usize = 512;
/// Ranges begin and end at its multiples, bytes: no huge page is split, and whole page tables are
/// left out.
const HUGE_PAGE: u64 = 2 << 20;

/// Memory that the child is spared.
pub struct Spared {
    ranges: List<Range>,
}

impl Spared {
    /// # Safety
    /// Must not outlive the scratch.
    pub unsafe fn none(scratch: &mut Scratch) -> Result<Spared, Refusal> {
        // SAFETY: the caller does not use the result after the scratch is released.
        Ok(Spared { ranges: unsafe { scratch.list(SPARED_MAX)? } })
    }

    /// Keeps unchanged pages from a child that is cloned next. Where the kernel does not say where
    /// a mapping begins (before Linux 6.11) nothing is spared.
    pub fn spare(&mut self, unchanged: impl Iterator<Item = Range>) {
        let mut unchanged = unchanged.filter_map(within_huge_pages).peekable();
        if unchanged.peek().is_none() {
            return;
        }
        let Ok(maps) = open_proc(b"/proc/thread-self/maps\0") else { return };
        for range in unchanged.take(SPARED_MAX) {
            let known = start_of_mapping(maps, range.0).is_ok();
            if !known || advise(range, sys::MADV_WIPEONFORK).is_err() {
                break;
            }
            // The page in front of it is of the same mapping. If they are still one, the advice was
            // the program's.
            if start_of_mapping(maps, range.0) == Ok(range.0) {
                // There is room for as many.
                let _ = self.ranges.push(range);
            }
        }
        sys::close(maps);
    }

    /// The child is cloned: takes the advice off again.
    pub fn end(&self) {
        for range in self.ranges.as_slice() {
            let _ = advise(*range, sys::MADV_KEEPONFORK);
        }
    }

    pub fn ranges(&self) -> &[Range] {
        self.ranges.as_slice()
    }
}

/// The part of a run of pages that can be spared, if there is one. The first page always stays with
/// the child: it shows that its mapping was not kept from the child for another reason.
fn within_huge_pages((start, end): Range) -> Option<Range> {
    let start = (start + PAGE as u64).next_multiple_of(HUGE_PAGE);
    let end = end / HUGE_PAGE * HUGE_PAGE;
    (start < end).then_some((start, end))
}

/// Where the mapping of this address begins.
fn start_of_mapping(maps: i32, address: u64) -> Result<u64, i32> {
    const PROCMAP_QUERY: usize = 0xc068_6611;
    // struct procmap_query: size, flags, address; the kernel adds start, end and more.
    let mut query = [0u64; 13];
    (query[0], query[2]) = (size_of_val(&query) as u64, address);
    // SAFETY: the kernel reads and writes `query`, which has the size that it says. No room is
    // passed for a name.
    unsafe { sys::call3(nr::IOCTL, maps as usize, PROCMAP_QUERY, query.as_mut_ptr() as usize)? };
    Ok(query[3])
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: u64 = 16 << 20;

    /// Spares a child most of a mapping, part of which the program keeps from children itself.
    /// Returns which of its pieces have the advice while a child would be cloned, and afterwards.
    fn advised(own: Option<Range>) -> [Vec<Range>; 2] {
        let at = sys::map_anonymous(LEN as usize + (2 << 20), sys::MAP_PRIVATE).unwrap() as u64;
        let at = at.next_multiple_of(HUGE_PAGE);
        if let Some((start, end)) = own {
            advise((at + start, at + end), sys::MADV_WIPEONFORK).unwrap();
        }
        let pieces = || {
            let smaps = std::fs::read_to_string("/proc/thread-self/smaps").unwrap();
            let mut found = Vec::new();
            let mut range = (0, 0);
            for line in smaps.lines() {
                if let Some(line) = eyrie_image_kernel::maps::parse(line.as_bytes()) {
                    range = (line.start, line.end);
                }
                let is_wiped = line.starts_with("VmFlags:") && line.contains(" wf");
                if is_wiped && range.0 < at + LEN && range.1 > at {
                    found.push((range.0 - at, range.1 - at));
                }
            }
            found
        };
        let mut scratch = Scratch::new().unwrap();
        // SAFETY: it is used only before the scratch is released below.
        let mut spared = unsafe { Spared::none(&mut scratch) }.unwrap();
        spared.spare([(at, at + (5 << 20)), (at + (8 << 20), at + LEN)].into_iter());
        let meanwhile = pieces();
        spared.end();
        let afterwards = pieces();
        // SAFETY: neither is used after this.
        unsafe {
            scratch.release();
            sys::munmap(at as usize, LEN as usize).unwrap();
        }
        [meanwhile, afterwards]
    }

    #[test]
    fn only_advice_that_is_not_the_programs_is_taken_off() {
        const MIB: u64 = 1 << 20;
        let [meanwhile, afterwards] = advised(None);
        if meanwhile.is_empty() {
            eprintln!("skipped: this kernel does not say where a mapping begins");
            return;
        }
        assert_eq!(meanwhile, [(2 * MIB, 4 * MIB), (10 * MIB, 16 * MIB)]);
        assert_eq!(afterwards, []);
        let own = (7 * MIB, 17 * MIB);
        let [meanwhile, afterwards] = advised(Some(own));
        assert_eq!(meanwhile, [(2 * MIB, 4 * MIB), own]);
        assert_eq!(afterwards, [own]);
    }
}
