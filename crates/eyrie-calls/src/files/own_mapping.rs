//! Files that this rank alone maps to be written, when it is executed again. What it has stored
//! since its image is in the file already. The file itself must not go back, because other ranks
//! may have read it. So memory stands in for the file where it is mapped, with the content of then,
//! until the rank does something new. Then the file gets the content of the memory and takes its
//! place. What the rank has unmapped before, as far as is known, is all in the file. Other ranks
//! may have changed it since, so it must not be written again.

use super::address_space::{self, Mapped, Place};
use super::buffers::Buffers;
use super::held_locks;
use super::kernel::{self, Identity, HERE};
use super::path::Path;
use super::pending;
use super::saying;
use libc::{c_int, c_void};
use std::cell::{Cell, UnsafeCell};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Files that memory stands in for at a time.
const MOST_FILES: usize = 16;
/// Mappings that are followed, until they are gone.
const MOST_PARTS: usize = 256;
/// Most bytes of a mapping whose content memory stands in for. Above it a file without a name does,
/// which need not stay in memory, and what is mapped to be read only stays mapped.
const LARGE: u64 = 64 << 20;
/// Bytes that are compared at a time.
const STEP: usize = 32 << 10;
const PAGE: usize = 4096;

/// A file that memory stands in for; a place in one is the same in the other.
#[derive(Clone, Copy)]
struct File {
    /// Our descriptor of the memory; -1: none.
    memory: c_int,
    /// The kernel's number of what the program has open.
    number: (u64, u64),
    /// The file itself, and its path.
    real: Identity,
    path: Path,
    /// How long it is, as far as the rank is known to have come.
    size: u64,
}

impl File {
    fn cut(&mut self, size: u64) {
        // What lies behind it is zero when the file gets longer again.
        let whole = size_of(self.memory);
        if size < whole {
            kernel::set_size(self.memory, size);
            kernel::set_size(self.memory, whole);
        }
        self.size = size;
    }
}

const NO_FILE: File = File {
    memory: -1,
    number: (0, 0),
    real: Identity { ino: 0, born_ns: 0 },
    path: Path::NONE,
    size: 0,
};

/// A mapping to be written.
#[derive(Clone, Copy)]
pub struct Part {
    pub start: usize,
    pub len: usize,
    /// Where in its file it begins.
    pub from: u64,
    /// The kernel's number of the file.
    pub number: (u64, u64),
}

const NO_PART: Part = Part { start: 0, len: 0, from: 0, number: (0, 0) };

struct Shared<T>(UnsafeCell<T>);

// SAFETY: used in calls that are being recorded, of which there is one at a time, and for an image,
// while all threads stand still.
unsafe impl<T> Sync for Shared<T> {}

static FILES: Shared<[File; MOST_FILES]> = Shared(UnsafeCell::new([NO_FILE; MOST_FILES]));
static PARTS: Shared<[Part; MOST_PARTS]> = Shared(UnsafeCell::new([NO_PART; MOST_PARTS]));

/// How many files have a stand-in.
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// Mappings that are followed lie between these.
static LOWEST: AtomicUsize = AtomicUsize::new(usize::MAX);
static END: AtomicUsize = AtomicUsize::new(0);

fn files() -> &'static mut [File; MOST_FILES] {
    // SAFETY: only calls that are being recorded use it, one at a time, and an image, while all
    // threads stand still.
    unsafe { &mut *FILES.0.get() }
}

fn parts() -> &'static mut [Part; MOST_PARTS] {
    // SAFETY: as for `files`: one call or one image uses it at a time.
    unsafe { &mut *PARTS.0.get() }
}

/// Whether memory stands in for any file.
pub fn any() -> bool {
    COUNT.load(Ordering::Relaxed) > 0
}

fn of_number(number: (u64, u64)) -> impl Iterator<Item = &'static mut File> {
    let files = any().then(|| files().iter_mut());
    files.into_iter().flatten().filter(move |file| file.memory >= 0 && file.number == number)
}

// Which mappings there are.

/// Whether one more can be followed.
pub fn has_room() -> bool {
    parts().iter().any(|part| part.len == 0)
}

/// A file is mapped there to be written.
pub fn follow(part: Part) {
    let Some(free) = parts().iter_mut().find(|part| part.len == 0) else { return };
    *free = Part { len: part.len.next_multiple_of(PAGE), ..part };
    LOWEST.fetch_min(free.start, Ordering::Relaxed);
    END.fetch_max(free.start + free.len, Ordering::Relaxed);
}

/// Whether something that is followed may lie there; in any thread.
#[inline]
pub fn may_touch(start: usize, len: usize) -> bool {
    start < END.load(Ordering::Relaxed)
        && start.saturating_add(len) > LOWEST.load(Ordering::Relaxed)
}

/// Whether something that is followed lies there.
pub fn touches(start: usize, len: usize) -> bool {
    let end = start.saturating_add(len.next_multiple_of(PAGE));
    parts().iter().any(|part| part.start < end && start < part.start + part.len)
}

/// Something lies there that is to be unmapped: what another thread has unmapped since, or a call
/// past all functions, is not followed any more.
pub fn forget_others(start: usize, len: usize) {
    if !touches(start, len) {
        return;
    }
    for n in 0..MOST_PARTS {
        let part = parts()[n];
        let end = part.start + part.len;
        let mut is_there =
            |mapped: &Mapped| mapped.shared && mapped.start < end && part.start < mapped.end;
        if part.len > 0 && !address_space::find_mapping(&mut is_there) {
            unfollow(part.start, part.len);
        }
    }
}

/// The mapping that begins there.
pub fn part_at(start: usize) -> Option<Part> {
    parts().iter().find(|part| part.len > 0 && part.start == start).copied()
}

/// Nothing of it is mapped there any more.
pub fn unfollow(start: usize, len: usize) {
    let end = start.saturating_add(len.next_multiple_of(PAGE));
    for n in 0..MOST_PARTS {
        let part = parts()[n];
        let part_end = part.start + part.len;
        if part.len == 0 || part.start >= end || start >= part_end {
            continue;
        }
        parts()[n] = NO_PART;
        if part.start < start {
            parts()[n] = Part { len: start - part.start, ..part };
        }
        if end < part_end {
            let from = part.from + (end - part.start) as u64;
            follow(Part { start: end, len: part_end - end, from, ..part });
        }
    }
    if parts().iter().all(|part| part.len == 0) {
        LOWEST.store(usize::MAX, Ordering::Relaxed);
        END.store(0, Ordering::Relaxed);
    }
}

// What stands in.

/// Memory that stands in for an open file, at least up to this place; `None`: there can be none.
/// `of`: what is open there stands in for this one itself, whose name leads to it no more.
pub fn stand_in(fd: c_int, of: Option<(Identity, Path)>, end: u64) -> Option<c_int> {
    let number = kernel::number_of(fd)?.0;
    let known = of_number(number).next();
    let memory = match known {
        Some(file) => file.memory,
        None => {
            let (real, path) = match of {
                Some(of) => of,
                None => {
                    let path = Path::of_link(kernel::link_of(fd, &mut [0; 32]))?;
                    (kernel::look_at(fd).ok()?.id, path)
                }
            };
            add(File { number, real, path, ..NO_FILE }, end)?
        }
    };
    reaches(memory, end).then_some(memory)
}

fn add(file: File, end: u64) -> Option<c_int> {
    let free = files().iter_mut().find(|file| file.memory < 0)?;
    let memory = if end > LARGE {
        file.path.nameless_beside()?
    } else {
        kernel::move_up(c_int::try_from(kernel::in_memory()).ok().filter(|fd| *fd >= 0)?)
    };
    *free = File { memory, ..file };
    COUNT.fetch_add(1, Ordering::Relaxed);
    pending::add();
    Some(memory)
}

/// Makes it long enough; false: it cannot be.
fn reaches(memory: c_int, end: u64) -> bool {
    let size = size_of(memory);
    let end = end.next_multiple_of(PAGE as u64);
    size >= end || kernel::set_size(memory, end) == 0
}

fn size_of(fd: c_int) -> u64 {
    kernel::number_of(fd).map_or(0, |(_, size)| size)
}

/// What stands in for the file of this number, which is needed up to this place.
pub fn standing_in_for(number: (u64, u64), end: u64) -> Option<c_int> {
    let memory = of_number(number).next()?.memory;
    reaches(memory, end).then_some(memory)
}

/// A path of a file that memory stands in for.
pub fn a_path() -> Option<&'static Path> {
    files().iter().find(|file| file.memory >= 0).map(|file| &file.path)
}

/// The file that memory stands in for had this size then.
pub fn had_size(memory: c_int, size: u64) {
    files().iter_mut().filter(|file| file.memory == memory).for_each(|file| file.size = size);
}

/// The file of this number is known to have been written there: the memory shows that, too.
pub fn written(number: (u64, u64), from: &Buffers, at: u64, n: usize) {
    for file in of_number(number) {
        file.size = file.size.max(at + n as u64);
        let room = (size_of(file.memory).saturating_sub(at) as usize).min(n);
        let mut done = 0;
        while done < room {
            // SAFETY: the program gives them to be written.
            let part = unsafe { from.bytes(done, room - done) };
            if part.is_empty() || !kernel::write_at(file.memory, part, at + done as u64) {
                break;
            }
            done += part.len();
        }
    }
}

/// Something is known to have been copied to an open file, up to this place: the memory gets what
/// is there.
pub fn copied(fd: c_int, number: (u64, u64), end: u64, n: u64) {
    for file in of_number(number) {
        file.size = file.size.max(end);
        let mut at = end.saturating_sub(n);
        let mut bytes = [0; STEP];
        let end = end.min(size_of(file.memory));
        while at < end {
            let len = STEP.min((end - at) as usize);
            let n = kernel::read_at(fd, &mut bytes[..len], at);
            if n == 0 || !kernel::write_at(file.memory, &bytes[..n], at) {
                return saying::mapped_before(file.path.as_bytes());
            }
            at += n as u64;
        }
    }
}

/// The file of this number is known to have been cut there, or made longer.
pub fn cut(number: (u64, u64), size: u64) {
    of_number(number).for_each(|file| file.cut(size));
}

/// The same of the file that has this path.
pub fn cut_at(path: &Path, size: u64) {
    if any() {
        of_path(path).for_each(|file| file.cut(size));
    }
}

/// The file of this number is known to have got room there, or to have lost it: fallocate(2).
pub fn allocated(number: (u64, u64), how: c_int, at: u64, len: u64) {
    const ZEROS: c_int = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE;
    let zeros = [0; STEP];
    for file in of_number(number) {
        if how & libc::FALLOC_FL_KEEP_SIZE == 0 {
            file.size = file.size.max(at.saturating_add(len));
        }
        if how & !(ZEROS | libc::FALLOC_FL_KEEP_SIZE) != 0 {
            saying::mapped_before(file.path.as_bytes());
        }
        if how & ZEROS == 0 {
            continue;
        }
        let end = at.saturating_add(len).min(size_of(file.memory));
        let mut at = at;
        while at < end {
            let n = STEP.min((end - at) as usize);
            kernel::write_at(file.memory, &zeros[..n], at);
            at += n as u64;
        }
    }
}

fn of_path<'a>(path: &'a Path) -> impl Iterator<Item = &'static mut File> + 'a {
    files().iter_mut().filter(move |file| file.memory >= 0 && file.path == *path)
}

/// What has this path is known to have got another one.
pub fn renamed(old: &Path, new: &Path) {
    if !any() || old == new {
        return;
    }
    of_path(new).for_each(|file| file.path = Path::NONE);
    for file in files().iter_mut().filter(|file| file.memory >= 0) {
        if let Some(path) = file.path.renamed(old, new) {
            file.path = path;
        }
    }
}

/// What has this path is known to have lost it.
pub fn removed(path: &Path) {
    if any() {
        of_path(path).for_each(|file| file.path = Path::NONE);
    }
}

/// The rank does something new: files get what the memory has, and take its place.
/// `kept` gives our descriptor of what stands in for a file without a name, by its number.
pub fn put_into_effect(kept: &dyn Fn((u64, u64)) -> Option<c_int>) {
    if !any() {
        return;
    }
    for file in files().iter_mut().filter(|file| file.memory >= 0) {
        take_place(file, kept);
        kernel::close(file.memory);
        *file = NO_FILE;
        COUNT.fetch_sub(1, Ordering::Relaxed);
        pending::remove();
    }
}

fn take_place(file: &File, kept: &dyn Fn((u64, u64)) -> Option<c_int>) {
    let mut is_mapped = false;
    address_space::places_of(file.memory, &mut |_| is_mapped = true);
    if !is_mapped {
        return;
    }
    let stand_in = || kept(file.number).map(|fd| Reached { fd, is_ours: false });
    let Some(there) = file.reach().or_else(stand_in) else {
        if !file.path.is_none() {
            saying::lost_its_name(file.path.as_bytes());
        }
        // No other process can read what is stored there.
        return;
    };
    if size_of(there.fd) < file.size {
        kernel::set_size(there.fd, file.size);
    }
    let size = size_of(there.fd);
    address_space::places_of(file.memory, &mut |place| {
        let end = (place.offset + place.len as u64).min(size);
        copy(file.memory, there.fd, place.offset, end);
        if !address_space::map_in_place(place, there.fd) {
            saying::not_mapped(file.path.as_bytes());
        }
    });
}

/// A file that is open to be read and written. A descriptor of the program's is taken where there
/// is one: to close another one of the same file would release the locks that it has there by
/// fcntl(2).
pub struct Reached {
    pub fd: c_int,
    is_ours: bool,
}

impl Drop for Reached {
    fn drop(&mut self) {
        if self.is_ours {
            kernel::close(self.fd);
        }
    }
}

/// The file of this number, by a descriptor of the program's or by a path that leads to what
/// `is_it` says so of.
fn reach(number: (u64, u64), path: &Path, is_it: &dyn Fn(c_int) -> bool) -> Option<Reached> {
    let is_open = |fd: &c_int| {
        // One that appends writes at the end, whatever place it is told.
        let how =
            kernel::fcntl(*fd, libc::F_GETFL, 0) as c_int & (libc::O_ACCMODE | libc::O_APPEND);
        let is_number = || kernel::number_of(*fd).is_some_and(|(it, _)| it == number);
        how == libc::O_RDWR && is_number() && is_it(*fd)
    };
    if let Some(fd) = kernel::descriptors().find(is_open) {
        return Some(Reached { fd, is_ours: false });
    }
    if path.is_none() {
        return None;
    }
    let flags = libc::O_RDWR | libc::O_CLOEXEC | libc::O_NONBLOCK;
    let fd = kernel::open(HERE, path.as_c(), flags, 0);
    let fd = c_int::try_from(fd).ok().filter(|fd| *fd >= 0)?;
    let is_ours = !held_locks::is_locked(number);
    let reached = Reached { fd: if is_ours { kernel::move_up(fd) } else { fd }, is_ours };
    is_it(reached.fd).then_some(reached)
}

/// What is mapped there of files that are followed is mapped once more, so that it may be written.
pub fn let_write(start: usize, len: usize) {
    let end = start.saturating_add(len);
    for part in parts().iter().filter(|part| part.start < end && start < part.start + part.len) {
        let access = libc::PROT_READ;
        let offset = part.from;
        let place = Place { start: part.start, len: part.len, access, offset };
        if let Some(there) = part.reach() {
            address_space::map_in_place(&place, there.fd);
        }
    }
}

impl File {
    /// The file itself.
    fn reach(&self) -> Option<Reached> {
        let is_it = |fd| kernel::look_at(fd).is_ok_and(|found| found.id == self.real);
        reach(self.number, &self.path, &is_it)
    }
}

impl Part {
    /// The file that is mapped there.
    pub fn reach(&self) -> Option<Reached> {
        let mut path = Path::NONE;
        address_space::find_mapping(&mut |mapped| {
            let is_it = (mapped.start..mapped.end).contains(&self.start);
            if is_it && mapped.is_of_file() {
                path = Path::of_absolute(mapped.path).unwrap_or(Path::NONE);
            }
            is_it
        });
        let is_it = |fd| kernel::number_of(fd).is_some_and(|(it, _)| it == self.number);
        reach(self.number, &path, &is_it)
    }
}

/// Makes a file have what the memory has, from a place on to another one; where it has that already
/// it is not touched.
fn copy(memory: c_int, fd: c_int, from: u64, to: u64) {
    let mut new = [0u8; STEP];
    let mut old = [0u8; STEP];
    let mut at = from;
    while at < to {
        // What is a hole in both is zero in both.
        let data = |fd| match kernel::seek(fd, at as i64, libc::SEEK_DATA) {
            next @ 0.. => next as u64,
            none if none == -i64::from(libc::ENXIO) => u64::MAX,
            _ => at,
        };
        at = data(memory).min(data(fd)).max(at);
        if at >= to {
            return;
        }
        let n = STEP.min((to - at) as usize);
        for (fd, bytes) in [(memory, &mut new), (fd, &mut old)] {
            let there = kernel::read_at(fd, &mut bytes[..n], at);
            bytes[there..n].fill(0);
        }
        if new[..n] != old[..n] {
            kernel::write_at(fd, &new[..n], at);
        }
        at += n as u64;
    }
}

// In an image.

/// Mappings that an image can have.
const MOST_NOTED: usize = 128;

/// A mapping of a file, as it is in an image.
#[derive(Clone, Copy)]
struct Noted {
    place: Place,
    number: (u64, u64),
    real: Identity,
    path: Path,
    size: u64,
}

impl Noted {
    fn file(&self) -> File {
        let number = self.number;
        let real = self.real;
        let path = self.path;
        let size = self.size;
        File { number, real, path, size, ..NO_FILE }
    }
}

struct Notes {
    all: [Noted; MOST_NOTED],
    count: usize,
}

impl Notes {
    /// Adds shared mappings of files of which `is_it` says so; false: they are too many.
    fn add(&mut self, is_it: &dyn Fn(&Mapped, &[Noted]) -> bool) -> bool {
        let is_full = address_space::find_mapping(&mut |mapped| {
            let is_it =
                mapped.shared && mapped.is_of_file() && is_it(mapped, &self.all[..self.count]);
            let path = is_it.then(|| Path::of_absolute(mapped.path)).flatten();
            let Some(path) = path else { return false };
            let Some(note) = self.all.get_mut(self.count) else { return true };
            let start = mapped.start;
            let access = mapped.access;
            let offset = mapped.offset;
            note.place = Place { start, len: mapped.end - start, access, offset };
            note.path = path;
            self.count += 1;
            false
        });
        !is_full
    }

    /// Adds files that are mapped to be read only, by a descriptor that can write: the rank may
    /// change them by write(2). A file is added with all its mappings. If one of them is too long,
    /// or there is no room, it is not added at all, and stays mapped.
    fn add_read(&mut self) {
        let written = self.count;
        let others = |n: &usize| self.all[..*n].iter().all(|it| it.path != self.all[*n].path);
        let files = (0..written).filter(others).count() + COUNT.load(Ordering::Relaxed);
        let room = Cell::new(MOST_FILES.saturating_sub(files));
        self.add(&|mapped, noted| {
            if mapped.len() > LARGE || has_file(&noted[..written], mapped) {
                return false;
            }
            let is_new = !has_file(&noted[written..], mapped);
            if is_new && room.get() > 0 && mapped.may_be_changed() {
                room.set(room.get() - 1);
                return true;
            }
            !is_new
        });
        address_space::find_mapping(&mut |mapped| {
            let noted = &mut self.all[written..self.count];
            let is_noted = noted.iter().any(|it| it.place.start == mapped.start);
            if mapped.shared && !is_noted && has_file(noted, mapped) {
                let path = Path::of_absolute(mapped.path);
                let of_file = noted.iter_mut().filter(|it| path == Some(it.path));
                of_file.for_each(|it| it.path = Path::NONE);
            }
            false
        });
        let mut kept = written;
        for n in written..self.count {
            if !self.all[n].path.is_none() {
                self.all[kept] = self.all[n];
                kept += 1;
            }
        }
        self.count = kept;
    }
}

/// Whether the file of a mapping is among those that are noted.
fn has_file(noted: &[Noted], mapped: &Mapped) -> bool {
    let path = (!noted.is_empty()).then(|| Path::of_absolute(mapped.path)).flatten();
    path.is_some_and(|path| noted.iter().any(|it| it.path == path))
}

const NOT_NOTED: Noted = Noted {
    place: Place { start: 0, len: 0, access: 0, offset: 0 },
    number: (0, 0),
    real: Identity { ino: 0, born_ns: 0 },
    path: Path::NONE,
    size: 0,
};

static NOTES: Shared<Notes> =
    Shared(UnsafeCell::new(Notes { all: [NOT_NOTED; MOST_NOTED], count: 0 }));

/// Notes what is mapped and shared, for an image; false: it is more than an image can have.
///
/// # Safety
/// All other threads must stand still.
pub unsafe fn note() -> bool {
    // SAFETY: no other code refers to these pages.
    let notes = unsafe { &mut *NOTES.0.get() };
    notes.count = 0;
    let some_are_read = Cell::new(false);
    let mut fits = notes.add(&|mapped, _| {
        some_are_read.set(some_are_read.get() || !mapped.is_written());
        mapped.is_written()
    });
    if some_are_read.get() {
        // The same file may be mapped to be read, too.
        fits &= notes.add(&|mapped, noted| !mapped.is_written() && has_file(noted, mapped));
        if fits {
            notes.add_read();
        }
    }
    for note in &mut notes.all[..notes.count] {
        (note.real, note.number, note.size) = found(&note.path).unwrap_or_default();
    }
    fits
}

/// Whether the image is to have the content of the mapping that begins there and that is mapped to
/// be read only.
///
/// # Safety
/// As [`note`], which was called before.
pub unsafe fn takes(start: usize) -> bool {
    // SAFETY: no other code refers to these pages.
    let notes = unsafe { &*NOTES.0.get() };
    let mut noted = notes.all[..notes.count].iter().map(|it| &it.place);
    noted.any(|place| place.start == start && place.len as u64 <= LARGE)
}

/// The file that a path leads to: what tells it from others, its number, its size.
fn found(path: &Path) -> Option<(Identity, (u64, u64), u64)> {
    let found = kernel::look(HERE, path.as_c().as_ptr(), true).ok()?;
    // SAFETY: all zero is a valid structure.
    let mut st: libc::stat = unsafe { std::mem::zeroed() };
    let is_there = kernel::stat(path.as_c(), (&raw mut st).cast()) == 0;
    is_there.then_some((found.id, (st.st_dev, st.st_ino), found.size))
}

/// This process has come back from the image, with memory of its own where files were mapped: that
/// stands in for them, unless another rank has come to use the file, which `is_shared` says of a
/// path; then what is there now counts.
///
/// # Safety
/// As [`note`].
pub unsafe fn come_back(is_shared: &dyn Fn(&Path) -> bool) {
    // SAFETY: no other code refers to these pages.
    let notes = unsafe { &mut *NOTES.0.get() };
    let count = std::mem::take(&mut notes.count);
    for note in &mut notes.all[..count] {
        if !address_space::is_own_memory(note.place.start) {
            continue;
        }
        // On another node its file system may have another number.
        if let Some((_, number, _)) = found(&note.path).filter(|(real, ..)| *real == note.real) {
            let was = std::mem::replace(&mut note.number, number);
            let of_it = parts().iter_mut().filter(|part| part.number == was);
            of_it.for_each(|part| part.number = number);
        }
        let in_place = if is_shared(&note.path) {
            maps_itself(note)
        } else {
            stands_in_there(&note.place, &note.file())
        };
        if !in_place {
            saying::not_mapped(note.path.as_bytes());
        }
    }
}

/// The file itself is mapped there.
fn maps_itself(note: &Noted) -> bool {
    saying::mapped_before(note.path.as_bytes());
    note.file().reach().is_some_and(|there| address_space::map_in_place(&note.place, there.fd))
}

/// Memory that is mapped there, with what is there now, stands in for a file.
fn stands_in_there(place: &Place, file: &File) -> bool {
    let end = place.offset + place.len as u64;
    let known = of_number(file.number).next().map(|file| file.memory);
    let Some(memory) = known.or_else(|| add(*file, end)).filter(|memory| reaches(*memory, end))
    else {
        return false;
    };
    if !kernel::let_read(std::ptr::with_exposed_provenance_mut::<c_void>(place.start), place.len) {
        return false;
    }
    // SAFETY: so much is mapped there, and can be read now.
    let bytes = unsafe {
        let at = std::ptr::with_exposed_provenance::<u8>(place.start);
        std::slice::from_raw_parts(at, place.len)
    };
    for (n, page) in bytes.chunks(PAGE).enumerate() {
        if page.iter().any(|byte| *byte != 0) {
            kernel::write_at(memory, page, place.offset + (n * PAGE) as u64);
        }
    }
    address_space::map_in_place(place, memory)
}
