//! The first look at the address space. The process itself takes it and waits meanwhile. It refuses
//! what cannot be restored and notes what must be copied.

use super::super::scratch::{List, Scratch};
use super::own::advise;
use super::ranges::{add_range, subtract, within, Range};
use super::scan::Scan;
use super::smaps::{for_each_line, read_flags, refused, Details};
use crate::refusal::{Refusal, Text};
use eyrie_image_format::{advice, map_flag, USER_END, WINDOW_END, WINDOW_START};
use eyrie_image_kernel::maps::{self, Line};
use eyrie_image_kernel::names::DELETED;
use eyrie_image_kernel::sys;

/// Most mappings; the kernel's own default limit is 65530.
pub const MAPPINGS_MAX: usize = 1 << 17;

/// A shared mapping whose content must be copied.
#[derive(Clone, Copy)]
pub struct SharedMapping {
    pub start: u64,
    pub end: u64,
    pub prot: u32,
    pub offset: u64,
    pub dev: u64,
    pub ino: u64,
    /// Ends in a NUL; empty if no path leads to the file.
    pub path: &'static [u8],
}

/// What the first look found.
pub struct FirstLook {
    /// All mapped ranges that the image needs, merged where they touch.
    pub mapped: List<Range>,
    /// Private anonymous mappings that hold pages of their own.
    pub held: List<Range>,
    pub shared: List<SharedMapping>,
    /// Some code cannot be read: for that the kernel uses a memory protection key.
    pub hidden_code: bool,
}

impl FirstLook {
    /// Looks at the mappings of this process and refuses what cannot be restored. `cuts` are the
    /// ranges that the image leaves out. `is_taken` says of a shared mapping of a file that is
    /// mapped to be read only, by its address, whether it is copied as well.
    ///
    /// # Safety
    /// Must not outlive the scratch.
    pub unsafe fn take(
        scratch: &mut Scratch,
        cuts: &[Range],
        is_taken: &dyn Fn(u64) -> bool,
    ) -> Result<FirstLook, Refusal> {
        // SAFETY: the caller does not use the result after the scratch is released.
        let (mut look, buf, mut scan) = unsafe {
            let look = FirstLook {
                mapped: scratch.list(MAPPINGS_MAX)?,
                held: scratch.list(MAPPINGS_MAX)?,
                shared: scratch.list(4096)?,
                hidden_code: false,
            };
            (look, scratch.take::<u8>(65536)?, Scan::new(scratch)?)
        };
        let looked = for_each_line(b"/proc/thread-self/maps\0", buf, |line| {
            let Some(line) = maps::parse(line) else { return Ok(()) };
            if within((line.start, line.end), cuts) {
                return Ok(());
            }
            add_range(&mut look.mapped, line.start, line.end)?;
            check(&line)?;
            look.hidden_code |= line.prot() == sys::PROT_EXEC && line.name != b"[vsyscall]";
            if !line.shared() && line.ino == 0 && scan.any(line.start, line.end).unwrap_or(false) {
                look.held.push((line.start, line.end))?;
            }
            let deleted = line.name.ends_with(DELETED);
            let is_written = line.prot() & sys::PROT_WRITE != 0;
            let is_taken = || line.name.starts_with(b"/") && is_taken(line.start);
            if line.shared() && (is_written || deleted || is_taken()) {
                // SAFETY: the caller does not use the result after the scratch is released.
                let path = unsafe { path_of(scratch, &line)? };
                look.shared.push(SharedMapping {
                    start: line.start,
                    end: line.end,
                    prot: line.prot(),
                    offset: line.offset,
                    dev: line.dev,
                    ino: line.ino,
                    path,
                })?;
            }
            Ok(())
        });
        scan.close();
        looked.map(|()| look)
    }

    /// Puts into `missing` the ranges that were mapped in the process and are not mapped in this
    /// one, its child (MADV_DONTFORK). `here` is room for the mappings of this one.
    pub fn missing_here(
        &self,
        buf: &mut [u8],
        here: &mut List<Range>,
        missing: &mut List<Range>,
    ) -> Result<(), Refusal> {
        for_each_line(b"/proc/thread-self/maps\0", buf, |line| match maps::parse(line) {
            Some(line) => add_range(here, line.start, line.end),
            None => Ok(()),
        })?;
        subtract(self.mapped.as_slice(), here.as_slice(), |start, end| missing.push((start, end)))
    }

    /// Puts into `wiped` the ranges that are wiped in this process, a child (MADV_WIPEONFORK).
    /// Returns whether it had to look: it reads /proc/self/smaps, which costs more than the clone,
    /// only if memory that held pages is empty here. If it looked, this process cannot write the
    /// image, because the question has changed what the memory tells a core dump.
    pub fn wiped_here(
        &self,
        buf: &mut [u8],
        scan: &mut Scan,
        wiped: &mut List<Range>,
    ) -> Result<bool, Refusal> {
        let mut look = false;
        for &range in self.held.as_slice() {
            let held = scan.any(range.0, range.1).map_err(refused("finding the pages in use"))?;
            // Only memory that the kernel may drop at any time (MAP_DROPPABLE) refuses this advice.
            look |= !held && advise(range, sys::MADV_DODUMP).is_ok();
        }
        if !look {
            return Ok(false);
        }
        let mut range = (0, 0);
        for_each_line(b"/proc/thread-self/smaps\0", buf, |text| {
            if let Some(line) = maps::parse(text) {
                range = (line.start, line.end);
            } else if let Some(flags) = text.strip_prefix(b"VmFlags:") {
                let mut details = Details::default();
                read_flags(flags, &mut details);
                let droppable = details.flags & map_flag::DROPPABLE != 0;
                if details.advice & advice::WIPE_ON_FORK != 0 && !droppable {
                    wiped.push(range)?;
                }
            }
            Ok(())
        })?;
        Ok(true)
    }
}

/// The path of a mapped file with its NUL; empty if it has none.
///
/// # Safety
/// Must not outlive the scratch.
unsafe fn path_of(scratch: &mut Scratch, line: &Line) -> Result<&'static [u8], Refusal> {
    if line.name.first() != Some(&b'/') || line.name.ends_with(DELETED) {
        return Ok(&[]);
    }
    // SAFETY: the caller does not use the result after the scratch is released.
    let path = unsafe { scratch.take::<u8>(line.name.len() + 1)? };
    path[..line.name.len()].copy_from_slice(line.name);
    Ok(path)
}

/// Refuses mappings that no restore can make again.
fn check(line: &Line) -> Result<(), Refusal> {
    let refuse =
        |what| Err(Refusal::Mapping { start: line.start, what, name: Text::new(line.name) });
    if line.name == b"[vsyscall]" {
        return Ok(());
    }
    if line.end > USER_END {
        return refuse("beyond the addresses of four-level page tables");
    }
    if line.start < WINDOW_END && line.end > WINDOW_START {
        return refuse("where the restorer works");
    }
    let name = line.name;
    if name.starts_with(b"[uprobes]") {
        return refuse("a probe of a tracer");
    }
    if name.starts_with(b"anon_inode:") || name.starts_with(b"/anon_inode:") {
        return refuse("a mapping of a kernel object");
    }
    if name.starts_with(b"/[aio]") {
        return refuse("an asynchronous I/O context (io_setup)");
    }
    if name.starts_with(b"/secretmem") {
        return refuse("secret memory (memfd_secret)");
    }
    if name.starts_with(b"/sys/") || name.starts_with(b"/proc/") {
        return refuse("a mapping of a kernel object");
    }
    if name.starts_with(b"/SYSV") {
        return refuse("a System V shared memory segment");
    }
    let device = name.starts_with(b"/dev/")
        && ![&b"/dev/shm/"[..], b"/dev/zero", b"/dev/hugepages/"]
            .iter()
            .any(|p| name.starts_with(p));
    if device {
        return refuse("a mapping of a device");
    }
    Ok(())
}
