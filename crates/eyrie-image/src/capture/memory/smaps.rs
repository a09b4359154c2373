//! Reads the kernel's description of this process's mappings, line by line: /proc/self/maps and
//! smaps.

use crate::refusal::Refusal;
use eyrie_image_format::{advice, map_flag};
use eyrie_image_kernel::maps;
use eyrie_image_kernel::sys;

pub fn refused(step: &'static str) -> impl Fn(i32) -> Refusal {
    move |errno| Refusal::Kernel { step, errno }
}

pub fn open_proc(path: &[u8]) -> Result<i32, Refusal> {
    sys::open(path, sys::O_RDONLY | sys::O_CLOEXEC, 0).map_err(refused("reading the mappings"))
}

/// Calls `each` with every line of a file like /proc/self/maps.
pub fn for_each_line(
    path: &[u8],
    buf: &mut [u8],
    mut each: impl FnMut(&[u8]) -> Result<(), Refusal>,
) -> Result<(), Refusal> {
    let fd = open_proc(path)?;
    let mut result = Ok(());
    let read = maps::for_each_line(fd, buf, |line| {
        result = each(line);
        result.is_ok()
    });
    sys::close(fd);
    result?;
    read.map_err(refused("reading the mappings"))
}

/// What smaps says about a mapping in the lines after its first.
#[derive(Clone, Copy, Default)]
pub struct Details {
    pub flags: u32,
    pub advice: u32,
    /// The process may make it writable. A shared mapping of a file: its descriptor could write.
    pub may_write: bool,
}

/// Two-letter flags of smaps (Documentation/filesystems/proc.rst).
pub fn read_flags(text: &[u8], details: &mut Details) {
    let mut hugetlb = false;
    for flag in text.split(|c| *c == b' ').filter(|f| f.len() == 2) {
        match flag {
            b"gd" => details.flags |= map_flag::GROWS_DOWN,
            b"nr" => details.flags |= map_flag::NO_RESERVE,
            b"mw" => details.may_write = true,
            b"dp" => details.flags |= map_flag::DROPPABLE,
            b"ht" => hugetlb = true,
            b"hg" => details.advice |= advice::HUGE_PAGE,
            b"nh" => details.advice |= advice::NO_HUGE_PAGE,
            b"dc" => details.advice |= advice::DONT_FORK,
            b"wf" => details.advice |= advice::WIPE_ON_FORK,
            b"dd" => details.advice |= advice::DONT_DUMP,
            b"mg" => details.advice |= advice::MERGEABLE,
            b"sr" => details.advice |= advice::SEQUENTIAL,
            b"rr" => details.advice |= advice::RANDOM,
            b"lo" => details.advice |= advice::LOCKED,
            b"sl" => details.flags |= map_flag::SEALED,
            _ => {}
        }
    }
    if hugetlb {
        details.flags |= map_flag::HUGETLB;
    } else {
        details.flags &= !(0xff << map_flag::HUGETLB_SHIFT);
    }
}
