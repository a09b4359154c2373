//! Writes pages: those of regions and of copied files, and the places of guard pages.

use super::super::output::Output;
use super::address_space::{ObjectEntry, Region};
use super::changes::Changes;
use super::contents::FileContent;
use super::own::{is_zero, protect};
use super::ranges::Range;
use super::scan::Scan;
use crate::carried::{self, Notes, Part, Version};
use eyrie_image_format::stream::MAX_PAYLOAD;
use eyrie_image_format::{map_flag, Mapping, NO_OBJECT, PAGES_GUARD, PAGES_OF_OBJECT, PAGES_SAME};
use eyrie_image_kernel::sys::{self, PAGE};

/// What an image has of the content of mapped files.
pub struct Carried {
    /// What the image has that this one builds on.
    pub known: &'static [Part],
    /// What this one has.
    pub notes: Notes,
}

/// Writes the pages of all regions, or which of them are unchanged.
///
/// # Safety
/// The regions must be the present ones of this process, and the objects theirs.
pub unsafe fn write_pages(
    (regions, objects): (&[Region], &[ObjectEntry]),
    changes: &Changes,
    carried: &mut Carried,
    scan: &mut Scan,
    out: &mut Output,
) -> Result<(), i32> {
    for region in regions.iter().filter(|r| r.record.flags & map_flag::HAS_PAGES != 0) {
        let m = &region.record;
        if region.data != 0 {
            // SAFETY: the caller passes this process's present regions, so the copy is still
            // mapped.
            unsafe { write_copy(region.data, region.len, (0, m.start, 0), scan, out)? };
            continue;
        }
        // Zero pages can be left out where the restore starts from zeros.
        let fresh = m.object == NO_OBJECT;
        let file = objects.get(m.object as usize).filter(|_| m.flags & map_flag::CARRIED != 0);
        let readable = m.prot & sys::PROT_READ != 0;
        if !readable {
            protect(m.start, m.end - m.start, m.prot | sys::PROT_READ)?;
        }
        let mut write_part = |part, known| {
            if known {
                // SAFETY: only private anonymous memory is tracked. The caller says that it is
                // mapped, and it was made readable above.
                return unsafe { write_changes(part, changes, out) };
            }
            scan.runs(part.0, part.1, |start, end| {
                // SAFETY: scanned runs are mapped and private, and the region was made readable
                // above.
                unsafe { write_run((0, start, 0), end - start, start as usize, fresh, out)? };
                Ok(true)
            })
        };
        let written = match file {
            // SAFETY: the region is mapped and private, and was made readable above.
            Some(file) => unsafe { write_carried(m, file, carried, scan, out) },
            None => changes.parts((m.start, m.end), &mut write_part),
        };
        if !readable {
            // Queued pages must be written before they become unreadable again.
            let flushed = out.flush();
            protect(m.start, m.end - m.start, m.prot)?;
            flushed?;
        }
        written?;
    }
    Ok(())
}

/// Writes what has changed in a part of a region, and which pages have not.
///
/// # Safety
/// The part must be mapped, private and readable.
unsafe fn write_changes(part: Range, changes: &Changes, out: &mut Output) -> Result<(), i32> {
    let mut same = Same::default();
    for run in changes.runs_in(part).filter(|run| !run.is_zero()) {
        let start = run.start;
        let len = run.end - run.start;
        if run.is_written() {
            // Windows must be written in order.
            same.write_before(run.end, out)?;
            // SAFETY: the caller guarantees that the part is mapped, private and readable.
            unsafe { write_run((0, start, 0), len, start as usize, true, out)? };
        } else {
            same.add(run.start, run.end, out)?;
        }
    }
    same.write(out)
}

/// Writes all of a mapping of a file: its own pages, and those that are as in the file unless the
/// image that this one builds on has them.
///
/// # Safety
/// The mapping must be there, private and readable.
unsafe fn write_carried(
    m: &Mapping,
    file: &ObjectEntry,
    carried: &mut Carried,
    scan: &mut Scan,
    out: &mut Output,
) -> Result<(), i32> {
    // Pages behind the end of the file cannot be read.
    let len = file.record.size.saturating_sub(m.offset).next_multiple_of(PAGE as u64);
    let all = Part {
        start: m.start,
        end: m.end.min(m.start.saturating_add(len)),
        offset: m.offset,
        version: Version::of(&file.record),
    };
    let Carried { known, notes } = carried;
    let mut same = Same::default();
    let mut at = m.start;
    let mut write_file = |to: u64, at: u64, same: &mut Same, out: &mut Output| {
        let part =
            Part { start: at, end: to.min(all.end), offset: m.offset + (at - m.start), ..all };
        if part.start >= part.end {
            return Ok(());
        }
        notes.push(part);
        carried::split(part, known, |part, is_known| {
            if is_known {
                return same.add(part.start, part.end, out);
            }
            same.write_before(part.end, out)?;
            let len = part.end - part.start;
            // SAFETY: the part is within the mapping, which the caller guarantees to be readable,
            // and no page of it lies behind the end of the file.
            unsafe { write_run((0, part.start, 0), len, part.start as usize, true, out) }
        })
    };
    scan.runs(m.start, m.end, |start, end| {
        write_file(start, at, &mut same, out)?;
        // Windows must be written in order.
        same.write_before(end, out)?;
        // SAFETY: scanned runs are mapped, and the caller guarantees the rest.
        unsafe { write_run((0, start, 0), end - start, start as usize, true, out)? };
        at = end;
        Ok(true)
    })?;
    write_file(m.end, at, &mut same, out)?;
    same.write(out)
}

/// Pages of one window that are unchanged.
#[derive(Default)]
struct Same {
    window: u64,
    pages: u64,
}

impl Same {
    fn add(&mut self, start: u64, end: u64, out: &mut Output) -> Result<(), i32> {
        let mut at = start;
        while at < end {
            let window = at / MAX_PAYLOAD as u64 * MAX_PAYLOAD as u64;
            if window != self.window {
                self.write(out)?;
                self.window = window;
            }
            let stop = end.min(window + MAX_PAYLOAD as u64);
            let first = (at - window) / PAGE as u64;
            let count = (stop - at) / PAGE as u64;
            self.pages |= (u64::MAX >> (64 - count)) << first;
            at = stop;
        }
        Ok(())
    }

    fn write_before(&mut self, end: u64, out: &mut Output) -> Result<(), i32> {
        if end > self.window + MAX_PAYLOAD as u64 {
            self.write(out)
        } else {
            Ok(())
        }
    }

    fn write(&mut self, out: &mut Output) -> Result<(), i32> {
        let pages = core::mem::take(&mut self.pages);
        if pages == 0 {
            return Ok(());
        }
        // SAFETY: the length is 0, so no memory is read.
        unsafe { out.pages(PAGES_SAME, self.window, pages, 0, 0) }
    }
}

/// Writes the files whose whole content was copied.
///
/// # Safety
/// The copies must still be mapped.
pub unsafe fn write_files(
    files: &[FileContent],
    scan: &mut Scan,
    out: &mut Output,
) -> Result<(), i32> {
    for (index, file) in files.iter().enumerate().filter(|(_, f)| f.copied.len > 0) {
        let first = (PAGES_OF_OBJECT, 0, index as u64);
        // SAFETY: the caller guarantees that the copies are still mapped.
        unsafe { write_copy(file.copied.at, file.copied.len, first, scan, out)? };
    }
    Ok(())
}

/// Writes the places of guard pages.
///
/// # Safety
/// The regions must be the present ones of this process.
pub unsafe fn write_guards(
    regions: &[Region],
    scan: &mut Scan,
    out: &mut Output,
) -> Result<(), i32> {
    let own = regions.iter().filter(|r| r.record.flags & map_flag::SPECIAL == 0);
    own.map(|r| &r.record).try_for_each(|m| {
        scan.guards(m.start, m.end, |start, end| {
            // SAFETY: the length is 0, so no memory is read.
            unsafe { out.pages(PAGES_GUARD, start, end - start, 0, 0) }
        })
    })
}

/// Writes what a copy of `len` bytes at `data` holds. `first` has the flags and both numbers of the
/// record for its first byte.
///
/// # Safety
/// The copy must still be mapped.
unsafe fn write_copy(
    data: usize,
    len: usize,
    (flags, base, object): (u32, u64, u64),
    scan: &mut Scan,
    out: &mut Output,
) -> Result<(), i32> {
    let end = (data + len) as u64;
    scan.runs(data as u64, end.next_multiple_of(PAGE as u64), |from, to| {
        let place = (flags, base + (from - data as u64), object);
        // SAFETY: `from` to `to.min(end)` is within the copy, which the caller keeps mapped.
        unsafe { write_run(place, to.min(end) - from, from as usize, true, out)? };
        Ok(true)
    })
}

/// Writes a run of `len` bytes as records with these flags and numbers. The first number advances
/// with the content. Records are cut at aligned addresses and at zero pages.
///
/// # Safety
/// The content at `data` must be readable.
unsafe fn write_run(
    (flags, start, object): (u32, u64, u64),
    len: u64,
    data: usize,
    skip_zeros: bool,
    out: &mut Output,
) -> Result<(), i32> {
    let end = start + len;
    let mut at = start;
    while at < end {
        let border = (at / MAX_PAYLOAD as u64 + 1) * MAX_PAYLOAD as u64;
        let stop = border.min(end);
        let mut from = at;
        while from < stop {
            let page_end = |a: u64| ((a / PAGE as u64 + 1) * PAGE as u64).min(stop);
            let zero = |a: u64| {
                // The last page of a file may end anywhere; the rest of it is zero.
                let len = ((page_end(a) - a) as usize).next_multiple_of(8);
                // SAFETY: the page is within the run or is its last page, which is mapped whole.
                skip_zeros && unsafe { is_zero(data + (a - start) as usize, len) }
            };
            if zero(from) {
                from = page_end(from);
                continue;
            }
            let mut to = page_end(from);
            while to < stop && !zero(to) {
                to = page_end(to);
            }
            let source = data + (from - start) as usize;
            // SAFETY: `from` to `to` is within the run, which the caller guarantees to be readable.
            unsafe { out.pages(flags, from, object, source, (to - from) as usize)? };
            from = to;
        }
        at = stop;
    }
    Ok(())
}
