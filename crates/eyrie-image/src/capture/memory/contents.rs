//! Copies, while the process stands still, what would otherwise change while the image-writing
//! child reads it: shared memory, and files that no name leads to. Holes are neither read nor
//! copied: reading one through a mapping would fill it.

use super::super::descriptors::{Table, DELETED_LIMIT};
use super::super::helper;
use super::super::object::object_of;
use super::super::proc::PathBuf;
use super::super::scratch::{List, Scratch};
use super::first_look::{FirstLook, SharedMapping};
use super::own::{is_zero, protect, read_own};
use crate::mapped::{is_listed_as, number_in_maps, Number};
use crate::refusal::{Refusal, Text};
use eyrie_image_format::{object_kind, Identity, Object};
use eyrie_image_kernel::holes::data_runs;
use eyrie_image_kernel::sys::{self, nr, PAGE};

/// Bytes read at once where holes and content cannot be told apart.
const PIECE: usize = 256 << 10;
/// Pages asked about at once.
const PAGES_AT_ONCE: usize = 16 << 10;

const COPYING: &str = "copying shared memory";
const COPYING_FILE: &str = "copying a deleted file";

/// A sparse copy, with room for all of its original.
#[derive(Clone, Copy, Default)]
pub struct Copied {
    pub at: usize,
    /// Length up to the last byte that was copied.
    pub len: usize,
    room: usize,
}

impl Copied {
    pub fn new(room: usize) -> Result<Copied, i32> {
        let room = room.next_multiple_of(PAGE);
        let at = sys::map_anonymous(room.max(PAGE), sys::MAP_PRIVATE | sys::MAP_NORESERVE)?;
        Ok(Copied { at, len: 0, room: room.max(PAGE) })
    }

    pub fn range(&self) -> (u64, u64) {
        (self.at as u64, (self.at + self.room) as u64)
    }

    /// # Safety
    /// Nothing may use the copy any more.
    pub unsafe fn release(&mut self) {
        if self.at != 0 {
            // SAFETY: `new` mapped the range for this copy alone, and the caller no longer uses it.
            let _ = unsafe { sys::munmap(self.at, self.room) };
        }
        *self = Copied::default();
    }
}

/// A file whose whole content goes into the image.
#[derive(Clone, Copy)]
pub struct FileContent {
    pub object: Object,
    /// The path; for a file without a name, that of its directory; empty for memory.
    pub path: &'static [u8],
    pub copied: Copied,
    /// The number by which the kernel lists its mappings.
    pub listed: Number,
}

/// All copies of a capture.
pub struct Contents {
    /// Objects of the image, in this order: first the nameless ones of the file table.
    pub files: List<FileContent>,
    /// A copy for each shared mapping of the first look; empty where a file has the content.
    pub shared: List<Copied>,
    /// Bytes copied.
    pub bytes: u64,
}

impl Contents {
    /// # Safety
    /// Must not outlive the scratch. No other thread may run.
    pub unsafe fn take(
        scratch: &mut Scratch,
        table: &Table,
        look: &FirstLook,
    ) -> Result<Contents, Refusal> {
        let count = look.shared.as_slice().len();
        // SAFETY: the caller does not use the result after the scratch is released.
        let mut contents = unsafe {
            let files = scratch.list(table.nameless.as_slice().len() + count)?;
            Contents { files, shared: scratch.list(count)?, bytes: 0 }
        };
        if count == 0 && table.nameless.as_slice().is_empty() {
            return Ok(contents);
        }
        // SAFETY: the caller does not use the result after the scratch is released.
        let (mut copier, stack) = unsafe { (Copier::new(scratch)?, helper::stack(scratch)?) };
        let mut work = || {
            contents.copy_nameless(&mut copier, table, look)?;
            contents.copy_shared(&mut copier, look)
        };
        // Without POSIX locks, closing a file here loses nothing.
        let copied = if table.posix_locks {
            // SAFETY: the caller guarantees that no other thread runs.
            unsafe { helper::run(stack, &mut work) }
        } else {
            work()
        };
        contents.bytes = copier.bytes;
        if let Err(refusal) = copied {
            // SAFETY: the contents are not returned, so nothing refers to the copies.
            unsafe { contents.release() };
            return Err(refusal);
        }
        Ok(contents)
    }

    fn copy_nameless(
        &mut self,
        copier: &mut Copier,
        table: &Table,
        look: &FirstLook,
    ) -> Result<(), Refusal> {
        let failed = |errno| Refusal::Kernel { step: COPYING_FILE, errno };
        let mut unmapped_bytes = 0;
        for nameless in table.nameless.as_slice() {
            let object = nameless.object;
            let path = nameless.directory;
            // Opens the file anew, because the program's open file must keep its offset.
            let link = PathBuf::new(b"/proc/thread-self/fd/", nameless.fd as u64, b"");
            let again = sys::open(link.as_c(), sys::O_RDONLY | sys::O_CLOEXEC, 0);
            let listed = look.number_of_nameless(&object.identity, again);
            let copied = Copied::default();
            self.files.push(FileContent { object, path, copied, listed })?;
            let file = self.files.as_mut_slice().last_mut().unwrap_or_else(|| unreachable!());
            let mapped = look.shared.as_slice().iter().any(|m| m.listed() == listed);
            if !mapped {
                unmapped_bytes += again.map_or(object.size, |fd| content_len(fd, object.size));
            }
            const SEALED_WRITES: u32 = 0x8 | 0x10;
            let copied = if mapped && object.seals & SEALED_WRITES != 0 {
                let what = "a memory file that is mapped and sealed against writing";
                Err(Refusal::Descriptor { fd: nameless.fd, what, name: Text::new(b"") })
            } else if unmapped_bytes > DELETED_LIMIT {
                let fd = nameless.fd;
                let size = unmapped_bytes;
                let limit = DELETED_LIMIT;
                Err(Refusal::DeletedFile { fd, size, limit })
            } else {
                Copied::new(object.size as usize)
                    .and_then(|room| {
                        file.copied = room;
                        match again {
                            Ok(fd) => copier.file(fd, 0, object.size, &mut file.copied),
                            Err(_) => {
                                copier.all(Source::File(nameless.fd), object.size, &mut file.copied)
                            }
                        }
                    })
                    .map_err(failed)
            };
            if let Ok(fd) = again {
                sys::close(fd);
            }
            copied?;
        }
        Ok(())
    }

    fn copy_shared(&mut self, copier: &mut Copier, look: &FirstLook) -> Result<(), Refusal> {
        let failed = |errno| Refusal::Kernel { step: COPYING, errno };
        for (i, m) in look.shared.as_slice().iter().enumerate() {
            self.shared.push(Copied::default())?;
            let mut whole = self.files.as_slice().iter();
            let mut covered = whole.any(|file| file.listed == m.listed());
            covered |= look.shared.as_slice()[..i].iter().any(|earlier| earlier.covers(m));
            if covered {
                continue;
            }
            let copied = match m.open() {
                Some((fd, st)) => {
                    let copied = self.copy_named(copier, m, i, fd, &st);
                    sys::close(fd);
                    copied
                }
                None => self.room(i, m).and_then(|room| {
                    copier.memory(m.start, m.end - m.start, m.prot, m.dev, room).map_err(failed)
                }),
            };
            copied?;
        }
        Ok(())
    }

    /// Copies the content of a shared mapping whose file is open as `fd`. A file in /dev/shm comes
    /// back as a new file, so it is copied whole; of others, the mapped range.
    fn copy_named(
        &mut self,
        copier: &mut Copier,
        m: &SharedMapping,
        index: usize,
        fd: i32,
        st: &sys::Stat,
    ) -> Result<(), Refusal> {
        let failed = |errno| Refusal::Kernel { step: COPYING, errno };
        if !m.path.starts_with(b"/dev/shm/") {
            let room = self.room(index, m)?;
            return copier.file(fd, m.offset, m.end - m.start, room).map_err(failed);
        }
        let path = &m.path[..m.path.len() - 1];
        let object = object_of(object_kind::SHM_FILE, (fd, st), path.len());
        let copied = Copied::new(object.size as usize).map_err(failed)?;
        self.files.push(FileContent { object, path, copied, listed: m.listed() })?;
        let last = self.files.as_slice().len() - 1;
        let room = &mut self.files.as_mut_slice()[last].copied;
        copier.file(fd, 0, object.size, room).map_err(failed)
    }

    /// Makes the copy of a shared mapping, still empty.
    fn room(&mut self, index: usize, m: &SharedMapping) -> Result<&mut Copied, Refusal> {
        let room = &mut self.shared.as_mut_slice()[index];
        *room = Copied::new((m.end - m.start) as usize)
            .map_err(|errno| Refusal::Kernel { step: COPYING, errno })?;
        Ok(room)
    }

    /// The ranges that the copies take up.
    pub fn ranges(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let files = self.files.as_slice().iter().map(|f| f.copied);
        files.chain(self.shared.as_slice().iter().copied()).filter(|c| c.at != 0).map(|c| c.range())
    }

    /// Unmaps the copies.
    ///
    /// # Safety
    /// Nothing may use the copies any more.
    pub unsafe fn release(&mut self) {
        for file in self.files.as_mut_slice() {
            // SAFETY: the caller no longer uses the copies.
            unsafe { file.copied.release() };
        }
        for copied in self.shared.as_mut_slice() {
            // SAFETY: the caller no longer uses the copies.
            unsafe { copied.release() };
        }
    }
}

/// Bytes of a file that are not in holes, as far as the file system can tell.
fn content_len(fd: i32, size: u64) -> u64 {
    let mut sum = 0;
    let counted = data_runs(fd, 0, size, |from, to| {
        sum += to - from;
        Ok(())
    });
    counted.map_or(size, |()| sum)
}

/// What the kernel can tell about pages.
struct Kernel {
    /// Devices of the memory file systems: the kernel's own (memfd, shared anonymous memory) and
    /// that of /dev/shm.
    memory_devices: [u64; 2],
    /// Memory may be swapped out: a page that is not in memory may still have content.
    swaps: bool,
}

impl Kernel {
    fn look() -> Kernel {
        // SAFETY: the name ends in a NUL and outlives the call.
        let made = unsafe { sys::call3(nr::MEMFD_CREATE, c"eyrie".as_ptr() as usize, 1, 0) };
        let own = made.map_or(0, |fd| {
            let dev = sys::fstat(fd as i32).map_or(0, |st| st.dev);
            sys::close(fd as i32);
            dev
        });
        const TMPFS_MAGIC: u64 = 0x0102_1994;
        let mut fs = [0u64; 16];
        let path = b"/dev/shm\0";
        // SAFETY: the path ends in a NUL. The kernel writes a struct statfs of 120 bytes, which
        // `fs` holds.
        let known =
            unsafe { sys::call3(nr::STATFS, path.as_ptr() as usize, fs.as_mut_ptr() as usize, 0) };
        let tmpfs = known.is_ok() && fs[0] == TMPFS_MAGIC;
        let shm = if tmpfs { sys::stat(path).map_or(0, |st| st.dev) } else { 0 };
        let mut info = [0u64; 16];
        // SAFETY: the kernel writes a struct sysinfo of 112 bytes, which `info` holds. Words 8 and
        // 9 are total and free swap.
        let known = unsafe { sys::call3(nr::SYSINFO, info.as_mut_ptr() as usize, 0, 0) };
        Kernel { memory_devices: [own, shm], swaps: known.is_err() || info[8] != info[9] }
    }

    /// Whether a page of such a file is empty if it is not in memory.
    fn knows_absent_pages(&self, dev: u64) -> bool {
        dev != 0 && !self.swaps && self.memory_devices.contains(&dev)
    }
}

#[derive(Clone, Copy)]
enum Source {
    Memory(u64),
    File(i32),
}

/// Copies content, and counts the bytes copied.
pub struct Copier {
    kernel: Kernel,
    vector: &'static mut [u8],
    piece: &'static mut [u64],
    bytes: u64,
}

impl Copier {
    /// # Safety
    /// Must not outlive the scratch.
    pub unsafe fn new(scratch: &mut Scratch) -> Result<Copier, Refusal> {
        // SAFETY: the caller does not use the result after the scratch is released.
        let (vector, piece) = unsafe { (scratch.take(PAGES_AT_ONCE)?, scratch.take(PIECE / 8)?) };
        Ok(Copier { kernel: Kernel::look(), vector, piece, bytes: 0 })
    }

    /// Copies `len` bytes of a file from `offset` on, where it has content.
    fn file(&mut self, fd: i32, offset: u64, len: u64, to: &mut Copied) -> Result<(), i32> {
        data_runs(fd, offset, offset + len, |from, end| {
            let mut at = from;
            while at < end {
                let place = to.at + (at - offset) as usize;
                // SAFETY: the range is within the copy, which has room for all of its original.
                let room = unsafe {
                    core::slice::from_raw_parts_mut(place as *mut u8, (end - at) as usize)
                };
                match sys::pread(fd, room, at) {
                    Ok(0) => return Ok(()), // shorter than it said: the rest is zero
                    Ok(n) => at += n as u64,
                    Err(sys::EINTR) => {}
                    Err(errno) => return Err(errno),
                }
                to.len = (at - offset) as usize;
            }
            self.bytes += end - from;
            Ok(())
        })
    }

    /// Copies memory of this process, as far as it can be read: beyond the end of a mapped file
    /// there is nothing. `dev` is the device of the file.
    pub fn memory(
        &mut self,
        start: u64,
        len: u64,
        prot: u32,
        dev: u64,
        to: &mut Copied,
    ) -> Result<(), i32> {
        let readable = prot & sys::PROT_READ != 0;
        if !readable {
            protect(start, len, prot | sys::PROT_READ)?;
        }
        let copied = if self.kernel.knows_absent_pages(dev) {
            self.resident(start, len, to)
        } else {
            self.all(Source::Memory(start), len, to)
        };
        if !readable {
            protect(start, len, prot)?;
        }
        copied
    }

    /// Copies the pages that are in memory.
    fn resident(&mut self, start: u64, len: u64, to: &mut Copied) -> Result<(), i32> {
        let mut done = 0;
        while done < len {
            let pages = ((len - done) / PAGE as u64).min(self.vector.len() as u64) as usize;
            let at = (start + done) as usize;
            let room = self.vector.as_mut_ptr() as usize;
            // SAFETY: the kernel writes one byte for each page, and the vector has PAGES_AT_ONCE
            // bytes, at least `pages`.
            unsafe { sys::call3(nr::MINCORE, at, pages * PAGE, room)? };
            let mut page = 0;
            while page < pages {
                let there = |p: &usize| self.vector[*p] & 1 != 0;
                let first = (page..pages).find(there).unwrap_or(pages);
                let end = (first..pages).find(|p| !there(p)).unwrap_or(pages);
                let mut at = done as usize + first * PAGE;
                let run_end = done as usize + end * PAGE;
                while at < run_end {
                    let got = read_own(start as usize + at, to.at + at, run_end - at)?;
                    self.bytes += got as u64;
                    to.len = at + got;
                    // It stopped at a page that cannot be read: a guard page.
                    at += got.next_multiple_of(PAGE) + if at + got < run_end { PAGE } else { 0 };
                }
                page = end.max(page + 1);
            }
            done += (pages * PAGE) as u64;
        }
        Ok(())
    }

    /// Copies everything, piece by piece, except zeros.
    fn all(&mut self, source: Source, len: u64, to: &mut Copied) -> Result<(), i32> {
        let room = self.piece.as_mut_ptr() as usize;
        let mut done = 0;
        while done < len as usize {
            let step = (len as usize - done).min(PIECE);
            // SAFETY: `room` is `self.piece`, which is PIECE bytes long and not used otherwise
            // meanwhile. Any bytes are valid words.
            let bytes = unsafe { core::slice::from_raw_parts_mut(room as *mut u8, PIECE) };
            let got = match source {
                Source::Memory(start) => read_own(start as usize + done, room, step)?,
                Source::File(fd) => sys::pread(fd, &mut bytes[..step], done as u64)?,
            };
            bytes[got..got.next_multiple_of(8)].fill(0);
            for page in (0..got).step_by(PAGE) {
                let n = (got - page).min(PAGE);
                // SAFETY: the source is within the piece, and the copy has room for all of its
                // original.
                unsafe {
                    if !is_zero(room + page, n.next_multiple_of(8)) {
                        let place = to.at + done + page;
                        core::ptr::copy_nonoverlapping(
                            (room + page) as *const u8,
                            place as *mut u8,
                            n,
                        );
                        to.len = done + page + n;
                        self.bytes += n as u64;
                    }
                }
            }
            done += got.next_multiple_of(PAGE);
            match source {
                // It stopped at a guard page or beyond the end of the file.
                Source::Memory(_) if got < step => done += PAGE,
                Source::File(_) if got == 0 => break,
                _ => {}
            }
        }
        Ok(())
    }
}

impl FirstLook {
    /// The number by which the kernel lists mappings of a file without a name. `again` is a
    /// readable descriptor of it.
    fn number_of_nameless(&self, identity: &Identity, again: Result<i32, i32>) -> Number {
        let number = (identity.dev, identity.ino);
        let without_name = |m: &SharedMapping| m.path.is_empty() && m.listed() != number;
        if !self.shared.as_slice().iter().any(without_name) {
            return number;
        }
        again.and_then(number_in_maps).unwrap_or(number)
    }
}

impl SharedMapping {
    /// Device and inode as /proc/PID/maps lists them.
    fn listed(&self) -> Number {
        (self.dev, self.ino)
    }

    /// Whether copying this mapping copies all that another mapping shows.
    fn covers(&self, other: &SharedMapping) -> bool {
        self.listed() == other.listed()
            && self.offset <= other.offset
            && other.offset + (other.end - other.start) <= self.offset + (self.end - self.start)
    }

    /// Opens its file by its path, if that leads to it, and says what it is. If no path does, the
    /// kernel's own name of the mapping may; only privileged processes can use that.
    fn open(&self) -> Option<(i32, sys::Stat)> {
        let flags = sys::O_RDONLY | sys::O_CLOEXEC | sys::O_NONBLOCK | sys::O_NOCTTY;
        let by_name = if self.path.is_empty() { None } else { sys::open(self.path, flags, 0).ok() };
        let by_mapping = || {
            let link = PathBuf::of_mapping(self.start, self.end);
            sys::open(link.as_c(), flags, 0).ok()
        };
        self.if_same(by_name).or_else(|| self.if_same(by_mapping()))
    }

    fn if_same(&self, opened: Option<i32>) -> Option<(i32, sys::Stat)> {
        let fd = opened?;
        match sys::fstat(fd) {
            Ok(st) if is_listed_as(fd, &st, self.listed()) => Some((fd, st)),
            _ => {
                sys::close(fd);
                None
            }
        }
    }
}
