//! One mapping: makes it, makes it writable so that its pages can be read in, and gives advice.
//! Must never touch its surroundings.

use crate::fail;
use eyrie_image_format::{advice, exit, map_flag, Mapping};
use eyrie_image_kernel::sys::{self, nr};

/// Protection while pages are read in.
pub fn working_prot(m: &Mapping) -> u32 {
    if m.flags & (map_flag::HAS_PAGES | map_flag::WHOLE) != 0 {
        m.prot | sys::PROT_READ | sys::PROT_WRITE
    } else {
        m.prot
    }
}

pub fn mmap(start: u64, len: u64, prot: u32, flags: u32, fd: i32, offset: u64) -> Result<(), i32> {
    // SAFETY: only free stretches of our own, or of the emptied address space, are mapped.
    let mapped = unsafe {
        sys::call6(
            nr::MMAP,
            start as usize,
            len as usize,
            prot as usize,
            (flags | sys::MAP_FIXED) as usize,
            fd as usize,
            offset as usize,
        )?
    };
    if mapped as u64 == start {
        Ok(())
    } else {
        Err(sys::EINVAL)
    }
}

pub fn optional(m: &Mapping, flag: u32, value: u32) -> u32 {
    match m.flags & flag {
        0 => 0,
        _ => value,
    }
}

pub fn own_flags(m: &Mapping) -> u32 {
    sys::MAP_PRIVATE
        | sys::MAP_ANONYMOUS
        | optional(m, map_flag::NO_RESERVE, sys::MAP_NORESERVE)
        | optional(m, map_flag::GROWS_DOWN, sys::MAP_GROWSDOWN)
}

pub fn not_mapped((start, end): (u64, u64), errno: i32) -> ! {
    let e = fail::Errno(errno);
    fail::now(exit::KERNEL, format_args!("mapping memory {start:#x}-{end:#x} failed: {e}"))
}

/// Maps a part of the process's own memory.
pub fn map_own(m: &Mapping, (start, end): (u64, u64)) {
    mmap(start, end - start, working_prot(m), own_flags(m), -1, 0)
        .unwrap_or_else(|e| not_mapped((start, end), e));
}

/// Makes a mapped part of the process's own memory writable, so that its pages can be read in.
pub fn open_own(m: &Mapping, (start, end): (u64, u64)) {
    let at = start as usize;
    let len = (end - start) as usize;
    let prot = working_prot(m) as usize;
    // SAFETY: the range is memory that this program has mapped, without a reference into it.
    if let Err(errno) = unsafe { sys::call3(nr::MPROTECT, at, len, prot) } {
        fail::kernel("protecting memory", errno);
    }
}

/// Before the pages come: huge pages are made at the first touch.
pub fn advise_early(m: &Mapping) {
    for (bit, what) in
        [(advice::HUGE_PAGE, sys::MADV_HUGEPAGE), (advice::NO_HUGE_PAGE, sys::MADV_NOHUGEPAGE)]
    {
        advise(m, bit, what);
    }
}

pub fn advise(m: &Mapping, bit: u32, what: usize) {
    if m.advice & bit != 0 {
        // SAFETY: none of this advice drops content. A kernel that does not know one ignores it.
        let _ = unsafe { sys::madvise(m.start as usize, (m.end - m.start) as usize, what) };
    }
}
