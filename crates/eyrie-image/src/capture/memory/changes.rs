//! What was written since an earlier image. It is found, and marked anew, while the process stands
//! still. A page counts as unchanged only if its mark was set for that very image.

use super::super::scratch::{List, Scratch};
use super::first_look::MAPPINGS_MAX;
use super::ranges::{add_range, Range};
use super::scan::{Found, Scan};
use crate::refusal::Refusal;
use crate::request::Track;

/// Most runs of pages that are remembered. With more, the image is a full one.
const RUNS_MAX: usize = 1 << 20;
/// Most pages of new mappings that are marked while the process stands still. The image-writing
/// process marks the others, and the next image has them whole as well.
const MARKED_AT_ONCE: u64 = 4096;

/// Which memory has changed.
pub struct Changes {
    /// The image that this one builds on; 0: this is a full one.
    pub base: u64,
    /// Memory in which [`Changes::runs_in`] knows all present pages.
    settled: List<Range>,
    runs: List<Found>,
    /// Memory that is settled from this image on.
    pub marked: List<Range>,
    /// New mappings whose pages are to be marked while the process computes.
    pub unmarked: List<Range>,
    budget: u64,
}

impl Changes {
    /// Changes of a full image: nothing is known.
    ///
    /// # Safety
    /// Must not outlive the scratch.
    pub unsafe fn none(scratch: &mut Scratch) -> Result<Changes, Refusal> {
        // SAFETY: the caller does not use the result after the scratch is released.
        unsafe {
            Ok(Changes {
                base: 0,
                settled: scratch.list(MAPPINGS_MAX)?,
                runs: scratch.list(RUNS_MAX)?,
                marked: scratch.list(MAPPINGS_MAX)?,
                unmarked: scratch.list(MAPPINGS_MAX)?,
                budget: MARKED_AT_ONCE,
            })
        }
    }

    /// Looks at the anonymous mappings that hold pages. If something cannot be determined, the
    /// image becomes a full one and is not refused.
    ///
    /// # Safety
    /// Must not outlive the scratch. No other thread may run.
    pub unsafe fn take(
        scratch: &mut Scratch,
        held: &[Range],
        track: &Track,
    ) -> Result<Changes, Refusal> {
        // SAFETY: the caller does not use the result after the scratch is released.
        let (mut changes, mut scan) = unsafe { (Changes::none(scratch)?, Scan::new(scratch)?) };
        let tracker = track.tracker;
        if track.base != 0 && track.base == tracker.image() {
            changes.base = track.base;
        }
        let mut mark = |range: &Range| changes.mark(&mut scan, *range, track);
        let marked = held.iter().try_for_each(&mut mark);
        scan.close();
        tracker.unsettle();
        if marked.is_err() {
            changes.base = 0;
            changes.marked.clear();
            changes.unmarked.clear();
        }
        if changes.base == 0 {
            changes.settled.clear();
            changes.runs.clear();
        }
        let pages = |written: bool| {
            let runs = changes.runs.as_slice().iter().filter(|run| run.is_written() | !written);
            runs.map(Found::pages).sum()
        };
        tracker.learn(pages(true), pages(false));
        Ok(changes)
    }

    fn mark(&mut self, scan: &mut Scan, range: Range, track: &Track) -> Result<(), Refusal> {
        let failed = |errno| Refusal::Kernel { step: "finding what was written", errno };
        if !scan.is_tracked(range.0).map_err(failed)? {
            return self.begin(scan, range, track);
        }
        let mut at = range.0;
        let settled = if self.base == 0 { &[] } else { track.tracker.settled() };
        let first = settled.partition_point(|s| s.1 <= range.0);
        for &(start, end) in settled[first..].iter().take_while(|s| s.0 < range.1) {
            let start = start.max(at);
            let end = end.min(range.1);
            scan.mark(at, start, 0, |_| Ok(())).map_err(failed)?;
            let mut kept = Ok(());
            scan.mark(start, end, 0, |run| {
                kept = self.runs.push(run);
                kept.map_err(|_| eyrie_image_kernel::sys::ENOMEM)
            })
            .map_err(failed)?;
            self.settled.push((start, end))?;
            at = end;
        }
        scan.mark(at, range.1, 0, |_| Ok(())).map_err(failed)?;
        add_range(&mut self.marked, range.0, range.1)
    }

    /// Begins to track a mapping that is new since the last image or was moved. A mapping that
    /// cannot be tracked is read whole each time.
    fn begin(&mut self, scan: &mut Scan, range: Range, track: &Track) -> Result<(), Refusal> {
        let failed = |errno| Refusal::Kernel { step: "tracking new memory", errno };
        if track.tracker.register(range).is_err() {
            return Ok(());
        }
        // Marks may be left from before the mapping was moved here. A write would not remove them.
        if scan.has_marks(range.0, range.1).map_err(failed)? {
            track.tracker.take_marks_off(range).map_err(failed)?;
        }
        let mut pages = 0;
        let stopped = match self.budget {
            0 => range.0,
            budget => scan
                .mark(range.0, range.1, budget, |run| {
                    pages += run.pages();
                    Ok(())
                })
                .map_err(failed)?,
        };
        self.budget = self.budget.saturating_sub(pages);
        if stopped < range.1 {
            self.unmarked.push(range)
        } else {
            add_range(&mut self.marked, range.0, range.1)
        }
    }

    /// Calls `each` with every part of a range, in order, and whether its pages are known.
    pub fn parts(
        &self,
        (from, to): Range,
        mut each: impl FnMut(Range, bool) -> Result<(), i32>,
    ) -> Result<(), i32> {
        let mut at = from;
        let first = self.settled.as_slice().partition_point(|s| s.1 <= from);
        for &(start, end) in self.settled.as_slice()[first..].iter().take_while(|s| s.0 < to) {
            let start = start.max(from);
            let end = end.min(to);
            if at < start {
                each((at, start), false)?;
            }
            each((start, end), true)?;
            at = end;
        }
        if at < to {
            each((at, to), false)?;
        }
        Ok(())
    }

    /// The runs of pages that are as they were, and are not the kernel's zero page.
    pub fn unchanged(&self) -> impl Iterator<Item = Range> + '_ {
        let runs = self.runs.as_slice().iter();
        runs.filter(|run| !run.is_written() && !run.is_zero()).map(|run| (run.start, run.end))
    }

    /// The runs of pages in a part in which all pages are known.
    pub fn runs_in(&self, (from, to): Range) -> impl Iterator<Item = Found> + '_ {
        let first = self.runs.as_slice().partition_point(|r| r.end <= from);
        let within = self.runs.as_slice()[first..].iter().take_while(move |r| r.start < to);
        within.map(move |r| r.within(from, to))
    }
}

/// Marks the pages of new mappings of another process while that computes. What it writes
/// afterwards has no mark again.
pub fn mark_meanwhile(scan: &mut Scan, unmarked: &[Range]) -> Result<(), i32> {
    unmarked.iter().try_for_each(|&(start, end)| scan.mark(start, end, 0, |_| Ok(())).map(drop))
}
