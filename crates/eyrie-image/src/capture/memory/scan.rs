//! Finds the pages of private mappings that hold content of their own: by an ioctl, or on older
//! kernels by reading /proc/self/pagemap.

use super::super::scratch::Scratch;
use super::smaps::open_proc;
use crate::refusal::Refusal;
use eyrie_image_kernel::sys::{self, nr, PAGE};

/// A run of pages: `struct page_region` of the PAGEMAP_SCAN ioctl.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Found {
    pub start: u64,
    pub end: u64,
    categories: u64,
}

impl Found {
    pub fn pages(&self) -> u64 {
        (self.end - self.start) / PAGE as u64
    }

    /// Whether the pages had no mark.
    pub fn is_written(&self) -> bool {
        self.categories & IS_WRITTEN != 0
    }

    /// Whether the pages are the kernel's zero page.
    pub fn is_zero(&self) -> bool {
        self.categories & IS_ZERO_PAGE != 0
    }

    pub fn within(&self, from: u64, to: u64) -> Found {
        Found { start: self.start.max(from), end: self.end.min(to), ..*self }
    }
}

/// Finds the pages of private mappings that hold content of their own.
pub struct Scan {
    pagemap: i32,
    found: &'static mut [Found],
    entries: &'static mut [u64],
    /// Categories to leave out; 0 when the ioctl does not exist (kernels before 6.7).
    without: u64,
}

const IS_TRACKED: u64 = 1;
const IS_WRITTEN: u64 = 1 << 1;
const IS_FILE: u64 = 1 << 2;
const IS_PRESENT: u64 = 1 << 3;
const IS_SWAPPED: u64 = 1 << 4;
const IS_ZERO_PAGE: u64 = 1 << 5;
const IS_GUARD: u64 = 1 << 8;

impl Scan {
    /// # Safety
    /// Must not outlive the scratch.
    pub unsafe fn new(scratch: &mut Scratch) -> Result<Scan, Refusal> {
        // SAFETY: the caller does not use the result after the scratch is released.
        unsafe { Scan::of(scratch, b"/proc/thread-self/pagemap\0") }
    }

    /// A scan of the process with this pagemap file.
    ///
    /// # Safety
    /// Must not outlive the scratch.
    pub unsafe fn of(scratch: &mut Scratch, pagemap: &[u8]) -> Result<Scan, Refusal> {
        let pagemap = open_proc(pagemap)?;
        // SAFETY: the caller does not use the result after the scratch is released.
        let (found, entries) = unsafe { (scratch.take(1024)?, scratch.take(1024)?) };
        let mut scan = Scan { pagemap, found, entries, without: 0 };
        let (start, end) = scratch.range();
        for without in [IS_FILE | IS_ZERO_PAGE | IS_GUARD, IS_FILE | IS_ZERO_PAGE] {
            scan.without = without;
            if scan.ask_ioctl(start, end, 1).is_ok() {
                return Ok(scan);
            }
        }
        scan.without = 0;
        Ok(scan)
    }

    pub fn close(&self) {
        sys::close(self.pagemap);
    }

    /// Whether there is such a page between two addresses.
    pub fn any(&mut self, start: u64, end: u64) -> Result<bool, i32> {
        if self.without != 0 {
            return Ok(self.ask_ioctl(start, end, 1)?.0 > 0);
        }
        let mut any = false;
        self.runs(start, end, |_, _| {
            any = true;
            Ok(false)
        })?;
        Ok(any)
    }

    /// Calls `each` with every run of such pages between two addresses, until it returns false.
    pub fn runs(
        &mut self,
        start: u64,
        end: u64,
        mut each: impl FnMut(u64, u64) -> Result<bool, i32>,
    ) -> Result<(), i32> {
        let mut at = start;
        while at < end {
            let (count, next) = if self.without != 0 {
                self.ask_ioctl(at, end, 0)?
            } else {
                self.ask_file(at, end)?
            };
            for found in &self.found[..count] {
                if !each(found.start, found.end)? {
                    return Ok(());
                }
            }
            at = next;
        }
        Ok(())
    }

    /// Calls `each` with every run of guard pages between two addresses.
    pub fn guards(
        &mut self,
        start: u64,
        end: u64,
        mut each: impl FnMut(u64, u64) -> Result<(), i32>,
    ) -> Result<(), i32> {
        let mut at = start;
        while self.without & IS_GUARD != 0 && at < end {
            let (count, next) = self.scan(0, at, end, 0, [0, IS_GUARD, 0, IS_GUARD])?;
            for found in &self.found[..count] {
                each(found.start, found.end)?;
            }
            at = next;
        }
        Ok(())
    }

    /// Asks by the ioctl. Returns the number of runs found and where it stopped.
    fn ask_ioctl(&mut self, start: u64, end: u64, max_pages: u64) -> Result<(usize, u64), i32> {
        let wanted = [self.without, self.without, IS_PRESENT | IS_SWAPPED, IS_FILE];
        self.scan(0, start, end, max_pages, wanted)
    }

    /// Whether the kernel tracks the mapping of this page.
    pub fn is_tracked(&mut self, page: u64) -> Result<bool, i32> {
        let wanted = [0, IS_TRACKED, 0, IS_TRACKED];
        Ok(self.without != 0 && self.scan(0, page, page + PAGE as u64, 1, wanted)?.0 > 0)
    }

    /// Whether a page between two addresses has a mark.
    pub fn has_marks(&mut self, start: u64, end: u64) -> Result<bool, i32> {
        let wanted = [IS_WRITTEN, IS_WRITTEN, IS_PRESENT | IS_SWAPPED, 0];
        Ok(self.scan(0, start, end, 1, wanted)?.0 > 0)
    }

    /// Marks all present pages of a tracked mapping between two addresses, at most `max_pages` (0:
    /// all). Calls `each` with every run of them as it was before. Returns where it stopped.
    pub fn mark(
        &mut self,
        start: u64,
        end: u64,
        max_pages: u64,
        mut each: impl FnMut(Found) -> Result<(), i32>,
    ) -> Result<u64, i32> {
        const MARK: u64 = 1;
        const OR_FAIL: u64 = 2;
        let guard = self.without & IS_GUARD;
        // Unless only present pages are asked for, the kernel also marks absent pages.
        let wanted = [guard, guard, IS_PRESENT | IS_SWAPPED, IS_WRITTEN | IS_ZERO_PAGE];
        let mut at = start;
        let mut left = max_pages;
        while at < end {
            let (count, next) = self.scan(MARK | OR_FAIL, at, end, left, wanted)?;
            for n in 0..count {
                left = left.saturating_sub(self.found[n].pages());
                each(self.found[n])?;
            }
            at = next;
            if max_pages != 0 && left == 0 {
                break;
            }
        }
        Ok(at.min(end))
    }

    fn scan(
        &mut self,
        flags: u64,
        start: u64,
        end: u64,
        max_pages: u64,
        [inverted, mask, any_of, shown]: [u64; 4],
    ) -> Result<(usize, u64), i32> {
        const PAGEMAP_SCAN: usize = 0xc060_6610;
        // struct pm_scan_arg: size, flags, start, end, walk_end, vec, vec_len, max_pages,
        // category_inverted, category_mask, category_anyof_mask, return_mask.
        let mut arg = [
            96,
            flags,
            start,
            end,
            0,
            self.found.as_mut_ptr() as u64,
            self.found.len() as u64,
            max_pages,
            inverted,
            mask,
            any_of,
            shown,
        ];
        // SAFETY: the kernel reads and writes `arg`, and writes at most `found.len()` runs into
        // `found`, as `arg` says.
        let count = unsafe {
            sys::call3(nr::IOCTL, self.pagemap as usize, PAGEMAP_SCAN, arg.as_mut_ptr() as usize)?
        };
        let count = count.min(self.found.len());
        // The kernel fills the vector in steps of 512 runs. When the last step reaches the end,
        // Linux 6.18 still reports where the step before had stopped. Asking again from there would
        // return the same pages once more, and report as unchanged what was marked meanwhile.
        let behind = self.found[..count].last().map_or(0, |found| found.end);
        Ok((count, arg[4].max(behind).max(start + PAGE as u64)))
    }

    /// Asks by reading /proc/self/pagemap, which has a word for each page.
    fn ask_file(&mut self, start: u64, end: u64) -> Result<(usize, u64), i32> {
        const FILE_OR_SHARED: u64 = 1 << 61;
        const SWAPPED: u64 = 1 << 62;
        const PRESENT: u64 = 1 << 63;
        let pages = ((end - start) / PAGE as u64).min(self.entries.len() as u64) as usize;
        let at = self.entries.as_mut_ptr().cast::<u8>();
        // SAFETY: `entries` has at least `pages` words, and any bytes are valid entries.
        let bytes = unsafe { core::slice::from_raw_parts_mut(at, pages * 8) };
        let got = sys::pread(self.pagemap, bytes, start / PAGE as u64 * 8)? / 8;
        if got == 0 {
            return Err(sys::EFAULT);
        }
        let mut count = 0;
        for (i, &word) in self.entries[..got].iter().enumerate() {
            if word & (PRESENT | SWAPPED) == 0 || word & FILE_OR_SHARED != 0 {
                continue;
            }
            let page = start + (i * PAGE) as u64;
            match self.found[..count].last_mut() {
                Some(last) if last.end == page => last.end += PAGE as u64,
                _ => {
                    let end = page + PAGE as u64;
                    self.found[count] = Found { start: page, end, categories: 0 };
                    count += 1;
                }
            }
        }
        Ok((count, start + (got * PAGE) as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Maps so many pages, writes to some of them, and calls `look` with a scan, the start and end
    /// of the mapping and the pages with content.
    fn with_pages(
        pages: usize,
        holds: impl Fn(usize) -> bool,
        look: impl FnOnce(&mut Scan, u64, u64, Vec<u64>),
    ) {
        let at = sys::map_anonymous(pages * PAGE, sys::MAP_PRIVATE).unwrap();
        // SAFETY: the range is the mapping made above, which nothing else uses.
        unsafe { sys::madvise(at, pages * PAGE, sys::MADV_NOHUGEPAGE) }.unwrap();
        let mut expected = Vec::new();
        for page in (0..pages).filter(|page| holds(*page)) {
            // SAFETY: `page` is less than `pages`, so the address is within the mapping.
            unsafe { ((at + page * PAGE) as *mut u64).write(page as u64 + 1) };
            expected.push((at + page * PAGE) as u64);
        }
        let mut scratch = Scratch::new().unwrap();
        // SAFETY: the scan is used only before the scratch is released below.
        let mut scan = unsafe { Scan::new(&mut scratch) }.unwrap();
        look(&mut scan, at as u64, (at + pages * PAGE) as u64, expected);
        scan.close();
        // SAFETY: neither the scratch nor the mapping is used after this.
        unsafe {
            scratch.release();
            sys::munmap(at, pages * PAGE).unwrap();
        }
    }

    fn found(scan: &mut Scan, start: u64, end: u64) -> Vec<u64> {
        let mut pages: Vec<u64> = Vec::new();
        scan.runs(start, end, |start, end| {
            pages.extend((start..end).step_by(PAGE));
            Ok(true)
        })
        .unwrap();
        pages
    }

    /// More runs than the kernel finds in one step, but fewer than the vector holds.
    #[test]
    fn every_page_is_found_once() {
        with_pages(
            1400,
            |page| page % 2 == 0,
            |scan, start, end, expected| assert_eq!(found(scan, start, end), expected),
        );
    }

    /// Kernels before 6.7 have no PAGEMAP_SCAN. Both ways must find the same pages.
    #[test]
    fn both_ways_of_finding_pages_agree() {
        with_pages(
            3000,
            |page| page % 7 < 3 || (1000..2500).contains(&page),
            |scan, start, end, expected| {
                assert_eq!(found(scan, start, end), expected);
                scan.without = 0;
                assert_eq!(found(scan, start, end), expected);
            },
        );
    }
}
