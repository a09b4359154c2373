//! What this process has mapped, as the kernel lists it (proc_pid_maps(5)). Must not allocate: it
//! is asked for images, too.

use super::kernel::{self, HERE};
use libc::{c_int, c_void};
use std::ffi::CStr;
use std::io::Write;

/// Mappings that are told of at a time.
const MOST: usize = 64;

/// A mapping.
#[derive(Clone, Copy)]
pub struct Mapped<'a> {
    pub start: usize,
    pub end: usize,
    /// As mprotect(2) takes it.
    pub access: c_int,
    pub shared: bool,
    /// Where in its file it begins.
    pub offset: u64,
    /// The number of its file; 0: it has none.
    pub number: u64,
    /// Empty: it has none.
    pub path: &'a [u8],
}

impl Mapped<'_> {
    /// Its bytes.
    pub fn len(&self) -> u64 {
        (self.end - self.start) as u64
    }

    pub fn is_written(&self) -> bool {
        self.shared && self.access & libc::PROT_WRITE != 0
    }

    /// Whether the program may change it: there, or by write(2), because it was mapped by a
    /// descriptor that can write. The kernel says so by the mode of its link to the mapped file.
    pub fn may_be_changed(&self) -> bool {
        self.is_written() || self.shared && self.has_a_writer().unwrap_or(false)
    }

    fn has_a_writer(&self) -> Option<bool> {
        let mut link = [0u8; 64];
        write!(&mut link[..], "/proc/self/map_files/{:x}-{:x}\0", self.start, self.end).ok()?;
        let mode = kernel::mode_of_link(CStr::from_bytes_until_nul(&link).ok()?)?;
        Some(mode & 0o200 != 0)
    }

    /// Whether it is of a file that has a path.
    pub fn is_of_file(&self) -> bool {
        const OTHERS: [&[u8]; 3] = [b"/memfd:", b"/dev/", b"/SYSV"];
        self.path.starts_with(b"/")
            && !self.path.ends_with(b" (deleted)")
            && !OTHERS.iter().any(|other| self.path.starts_with(other))
    }
}

/// Tells of all mappings, lowest first, until one is the one: whether one was.
pub fn find_mapping(is_it: &mut dyn FnMut(&Mapped) -> bool) -> bool {
    let maps = kernel::open(HERE, c"/proc/thread-self/maps", libc::O_RDONLY | libc::O_CLOEXEC, 0);
    let Some(maps) = c_int::try_from(maps).ok().filter(|maps| *maps >= 0) else { return false };
    let mut bytes = [0u8; 8192];
    let mut len = 0;
    let mut found = false;
    while !found {
        let n = kernel::read(maps, &mut bytes[len..]);
        let Some(n) = usize::try_from(n).ok().filter(|n| *n > 0) else { break };
        len += n;
        let mut from = 0;
        while let Some(end) = bytes[from..len].iter().position(|byte| *byte == b'\n') {
            found = mapped(&bytes[from..from + end]).is_some_and(|mapped| is_it(&mapped));
            from += end + 1;
            if found {
                break;
            }
        }
        bytes.copy_within(from..len, 0);
        len -= from;
    }
    kernel::close(maps);
    found
}

/// What a line tells of: `7f..-7f.. rw-s 00000000 fe:00 1234     /path`.
fn mapped(line: &[u8]) -> Option<Mapped<'_>> {
    let digits = |text: &[u8], base: u64| {
        text.iter().try_fold(0u64, |n, byte| {
            Some(n.checked_mul(base)? + u64::from((*byte as char).to_digit(base as u32)?))
        })
    };
    let mut fields = line.split(|byte| *byte == b' ');
    let range = fields.next()?;
    let access = fields.next()?;
    let offset = digits(fields.next()?, 16)?;
    let number = digits(fields.nth(1)?, 10)?;
    let dash = range.iter().position(|byte| *byte == b'-')?;
    let start = digits(&range[..dash], 16)?;
    let end = digits(&range[dash + 1..], 16)?;
    let may =
        |at: usize, letter: u8, what: c_int| if access.get(at) == Some(&letter) { what } else { 0 };
    let path = line.iter().position(|byte| *byte == b'/').map_or(&[][..], |at| &line[at..]);
    Some(Mapped {
        start: start as usize,
        end: end as usize,
        access: may(0, b'r', libc::PROT_READ)
            | may(1, b'w', libc::PROT_WRITE)
            | may(2, b'x', libc::PROT_EXEC),
        shared: access.get(3) == Some(&b's'),
        offset,
        number,
        path,
    })
}

/// Looks for a file that is mapped to be written and shared, and of which `is_it` says so: `room`
/// has its path then.
pub fn written_mapping(room: &mut [u8; 4096], is_it: &mut dyn FnMut(&CStr) -> bool) -> bool {
    find_mapping(&mut |mapped| {
        if !mapped.is_written() || mapped.path.is_empty() || mapped.path.len() >= room.len() {
            return false;
        }
        room[..mapped.path.len()].copy_from_slice(mapped.path);
        room[mapped.path.len()] = 0;
        CStr::from_bytes_until_nul(room).is_ok_and(&mut *is_it)
    })
}

/// Where something is mapped, and from which place of it on.
#[derive(Clone, Copy)]
pub struct Place {
    pub start: usize,
    pub len: usize,
    pub access: c_int,
    pub offset: u64,
}

/// Where an open file is mapped, shared: each place, however many there are.
pub fn places_of(fd: c_int, each: &mut dyn FnMut(&Place)) {
    let mut room = [0u8; 4096];
    let link = kernel::link_of(fd, &mut [0; 32]).as_ptr();
    let n = usize::try_from(kernel::read_link(HERE, link, &mut room)).unwrap_or(0);
    let path = &room[..n];
    let Some(((_, number), _)) = kernel::number_of(fd) else { return };
    // Memory all has one path; other files without a name have a number in theirs.
    let by_number = path.starts_with(b"/memfd:");
    let mut behind = 0;
    loop {
        let mut all = [const { Place { start: 0, len: 0, access: 0, offset: 0 } }; MOST];
        let mut count = 0;
        find_mapping(&mut |mapped| {
            let is_it = mapped.shared && mapped.path == path && mapped.start >= behind;
            if is_it && (mapped.number == number || !by_number) {
                let start = mapped.start;
                let access = mapped.access;
                let offset = mapped.offset;
                all[count] = Place { start, len: mapped.end - start, access, offset };
                count += 1;
            }
            count == MOST
        });
        // Not while the kernel tells of what is changed.
        for place in &all[..count] {
            behind = place.start + place.len;
            each(place);
        }
        if count < MOST {
            return;
        }
    }
}

/// Whether nothing but memory of this process's own is mapped there.
pub fn is_own_memory(start: usize) -> bool {
    find_mapping(&mut |mapped| {
        mapped.number == 0 && !mapped.shared && (mapped.start..mapped.end).contains(&start)
    })
}

/// Maps an open file in the place of what is mapped there, shared with others; false: it cannot be.
pub fn map_in_place(place: &Place, fd: c_int) -> bool {
    let at = std::ptr::with_exposed_provenance_mut::<c_void>(place.start);
    kernel::map_shared_at(at, place.len, place.access, fd, place.offset)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_what_is_mapped() {
        let line = b"7f01000-7f03000 r--s 0001f000 fe:00 4711     /a dir/b";
        let mapped = mapped(line).unwrap();
        assert_eq!((mapped.start, mapped.end, mapped.offset), (0x7f0_1000, 0x7f0_3000, 0x1_f000));
        assert_eq!((mapped.access, mapped.number), (libc::PROT_READ, 4711));
        assert!(mapped.shared && !mapped.is_written() && mapped.is_of_file());
        assert_eq!(mapped.path, b"/a dir/b");
    }

    #[test]
    fn memory_is_no_file() {
        for path in ["", "/memfd:x (deleted)", "/dev/shm/x", "/tmp/x (deleted)", "/SYSV00000000"] {
            let line = format!("1000-2000 rw-s 00000000 00:01 7     {path}");
            let mapped = mapped(line.as_bytes()).unwrap();
            assert!(mapped.is_written() && !mapped.is_of_file(), "{path}");
        }
    }
}
