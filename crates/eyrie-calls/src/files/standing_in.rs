//! Files that a rank has open which is executed again: their ends, as far as the rank is known to
//! have written, and shadow files for those that their names do not lead to any more. A known write
//! is in the file itself and is not repeated. A shadow file gets it once more. When the rank does
//! something that is not known, files lose what the lost execution wrote, and files that are found
//! take the place of their shadow files.

use super::buffers::Buffers;
use super::far;
use super::held_locks;
use super::kernel::{self, Identity};
use super::open_records::How;
use super::own_mapping;
use super::path::{self, Path};
use super::pending;
use super::saying;
use crate::observed::{stream, ObservedStream};
use std::cell::UnsafeCell;
use std::ffi::CStr;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Files that are remembered at a time.
const MOST: usize = 64;
/// Bytes that are compared at a time.
const STEP: usize = 16 << 10;
/// Milliseconds in which the rank's last process, or a child of it that writes an image, ends.
const PATIENCE_MS: usize = 250;
/// Files to which others have appended, too, that are looked through at a time.
const MOST_APPENDED: usize = 16;

/// How many of them are shadow files.
static STAND_INS: AtomicUsize = AtomicUsize::new(0);
/// Files of which the end is to be looked through before something is appended.
static LOOKED_THROUGH: AtomicUsize = AtomicUsize::new(0);

/// Whether an image would have to hold a shadow file. A rank of which nothing more is known, and
/// that only computes, does nothing new by which files would take their places: they do now. Not
/// those that are mapped: what the rank will store before messages that others have is there
/// already, and must not go.
///
/// # Safety
/// As [`crate::observed::stream`].
pub unsafe fn keep_images_away() -> bool {
    // SAFETY: the caller promises sole access to the stream and the table.
    unsafe {
        if stand_ins() && stream().knows_no_call() {
            table().put_files_into_effect();
        }
    }
    stand_ins() || own_mapping::any() || path::gone().is_some()
}

fn stand_ins() -> bool {
    STAND_INS.load(Ordering::Relaxed) > 0
}

/// A file that was opened.
#[derive(Clone, Copy)]
pub struct Entry {
    /// The file itself, and its path; none when it has lost its name.
    pub real: Identity,
    path: Path,
    how: How,
    /// The rank is known to have written as far as there.
    end: u64,
    /// Others have appended to it, too.
    shared: bool,
    /// The shadow file has all that the file had: it is a copy, or was empty when it was opened.
    whole: bool,
    /// Our descriptor of the shadow file; -1: the program has the file itself.
    kept: i32,
    /// The kernel's number of what the program has open.
    number: (u64, u64),
    is_used: bool,
}

const NONE: Entry = Entry {
    real: Identity { ino: 0, born_ns: 0 },
    path: Path::NONE,
    how: How::Empty,
    end: 0,
    shared: false,
    whole: false,
    kept: -1,
    number: (0, 0),
    is_used: false,
};

/// A file to which others may have appended behind what this rank is known to have.
#[derive(Clone, Copy)]
struct Appended {
    number: (u64, u64),
    from: u64,
}

/// All of them.
pub struct Table {
    entries: [Entry; MOST],
    /// The one that is taken next when there is no room.
    oldest: usize,
    appended: [Appended; MOST_APPENDED],
}

struct Shared(UnsafeCell<Table>);

// SAFETY: used as the stream is ([`crate::observed`]).
unsafe impl Sync for Shared {}

static TABLE: Shared = Shared(UnsafeCell::new(Table {
    entries: [NONE; MOST],
    oldest: 0,
    appended: [Appended { number: (0, 0), from: 0 }; MOST_APPENDED],
}));

/// The table.
///
/// # Safety
/// As [`crate::observed::stream`].
pub unsafe fn table() -> &'static mut Table {
    // SAFETY: the caller promises that its call is being recorded, of which there is one at a time.
    unsafe { &mut *TABLE.0.get() }
}

/// Something is about to be observed: if it is new, files take their places before.
pub fn before_new_of(stream: &mut ObservedStream) {
    if pending::any() && stream.is_new() {
        // SAFETY: who has the stream may use the table.
        unsafe { table() }.put_into_effect();
    }
}

/// The same, in a call on files.
pub fn before_new() {
    // SAFETY: this call is being recorded, of which there is one at a time.
    before_new_of(unsafe { stream() });
}

/// What is known of a file of this number, by each way it was opened.
fn of_number(number: (u64, u64)) -> impl Iterator<Item = &'static mut Entry> {
    // SAFETY: this call is being recorded, of which there is one at a time.
    let entries = pending::any().then(|| unsafe { table() }.entries.iter_mut());
    entries.into_iter().flatten().filter(move |e| e.is_used && e.number == number)
}

/// The file of this number is known to have been written as far as there.
pub fn written(number: (u64, u64), end: u64) {
    of_number(number).for_each(|e| e.end = e.end.max(end));
}

/// So many bytes are known to have been appended to it, and it ended there then.
pub fn appended(number: (u64, u64), n: u64, end: u64) {
    for entry in of_number(number) {
        entry.shared |= end - n > entry.end;
        entry.end = end;
    }
}

/// The file of this number is known to have been cut there.
pub fn cut(number: (u64, u64), size: u64) {
    own_mapping::cut(number, size);
    of_number(number).for_each(|e| e.end = size);
}

/// Whether what is about to be appended is there already, of the rank's last process; the next one
/// is looked for behind it. What of it was begun is completed by the caller, who is told `false`.
pub fn is_there(fd: i32, number: (u64, u64), bytes: &Buffers) -> bool {
    if LOOKED_THROUGH.load(Ordering::Relaxed) == 0 {
        return false;
    }
    // SAFETY: this call is being recorded, of which there is one at a time.
    let table = unsafe { table() };
    let count = LOOKED_THROUGH.load(Ordering::Relaxed);
    let Some(place) = table.appended[..count].iter().position(|a| a.number == number) else {
        return false;
    };
    let mut room = [0; 32];
    let link = kernel::link_of(fd, &mut room);
    let real = kernel::open(kernel::HERE, link, libc::O_RDONLY | libc::O_CLOEXEC, 0);
    let found = i32::try_from(real).ok().filter(|real| *real >= 0).and_then(|real| {
        let found = find(real, table.appended[place].from, bytes);
        kernel::close(real);
        found
    });
    match found {
        Some(end) => table.appended[place].from = end,
        None => {
            table.appended[place] = table.appended[count - 1];
            LOOKED_THROUGH.store(count - 1, Ordering::Relaxed);
        }
    }
    found.is_some()
}

/// Where these bytes end, if a file has them from this place on.
fn find(real: i32, from: u64, bytes: &Buffers) -> Option<u64> {
    // SAFETY: the program gives them to be written.
    let first = unsafe { bytes.bytes(0, STEP) };
    let mut room = [0u8; 2 * STEP];
    let mut at = from;
    while !first.is_empty() {
        let n = kernel::read_at(real, &mut room, at);
        let there = &room[..n];
        let mut begun = there.windows(first.len()).enumerate().filter(|(_, it)| *it == first);
        if let Some(end) = begun.find_map(|(i, _)| ends(real, at + i as u64, bytes)) {
            return Some(end);
        }
        if n < room.len() {
            return None;
        }
        at += (n - STEP) as u64;
    }
    None
}

/// Where these bytes end, if a file has them at this place.
fn ends(real: i32, at: u64, bytes: &Buffers) -> Option<u64> {
    let mut there = [0u8; STEP];
    let mut done = 0;
    while done < bytes.len() {
        // SAFETY: the program gives them to be written.
        let ours = unsafe { bytes.bytes(done, STEP) };
        let n = kernel::read_at(real, &mut there[..ours.len()], at + done as u64);
        if there[..n] != *ours {
            return None;
        }
        done += n;
    }
    Some(at + done as u64)
}

impl Table {
    pub fn find(&mut self, path: &Path) -> Option<&mut Entry> {
        self.entries.iter_mut().find(|e| e.is_used && !path.is_none() && e.path == *path)
    }

    /// The rank has opened this file, and has the file itself.
    pub fn add(&mut self, path: &Path, real: Identity, how: How, end: u64, fd: i32) {
        let Some(file) = kernel::file_at(fd) else { return };
        let Some(place) = self.place_of(path, real) else { return };
        self.put(place, Entry { real, path: *path, how, end, number: file.number, ..NONE });
    }

    /// The rank has opened a file that its name does not lead to. `None`: there can be no shadow
    /// file.
    pub fn add_stand_in(
        &mut self,
        path: &Path,
        real: Identity,
        how: How,
        end: u64,
    ) -> Option<&mut Entry> {
        let place = self.place_of(path, real)?;
        let old = &self.entries[place];
        if how == How::Read && old.is_used && old.kept >= 0 && old.real == real {
            return Some(&mut self.entries[place]);
        }
        let kept = if old.is_used && old.kept >= 0 && old.real == real {
            kernel::duplicate(old.kept)
        } else {
            path.nameless_beside()?
        };
        match how {
            How::Empty => kernel::set_size(kept, 0),
            _ if kernel::file_at(kept).is_some_and(|file| file.size < end) => {
                kernel::set_size(kept, end)
            }
            _ => 0,
        };
        let number = kernel::file_at(kept).map_or((0, 0), |file| file.number);
        let whole = how == How::Empty;
        self.put(place, Entry { real, path: *path, how, end, whole, kept, number, ..NONE });
        Some(&mut self.entries[place])
    }

    /// What an image has given back at this descriptor is not the file that was open there, but a
    /// copy of it: it stands in for it.
    pub fn adopt(&mut self, path: &Path, real: Identity, how: How, end: u64, fd: i32) {
        let Some(file) = kernel::file_at(fd) else { return };
        let Some(place) = self.place_of(path, real) else { return };
        let kept = kernel::duplicate(fd);
        let number = file.number;
        let whole = true;
        self.put(place, Entry { real, path: *path, how, end, whole, kept, number, ..NONE });
    }

    fn put(&mut self, place: usize, entry: Entry) {
        self.forget(place);
        STAND_INS.fetch_add(usize::from(entry.kept >= 0), Ordering::Relaxed);
        pending::add();
        self.entries[place] = Entry { is_used: true, ..entry };
    }

    fn forget(&mut self, place: usize) {
        let entry = std::mem::replace(&mut self.entries[place], NONE);
        if entry.is_used {
            kernel::close(entry.kept);
            STAND_INS.fetch_sub(usize::from(entry.kept >= 0), Ordering::Relaxed);
            pending::remove();
        }
    }

    /// The place of this file, a free one, or that of a file that is closed. Another file that had
    /// this path has lost it.
    fn place_of(&mut self, path: &Path, real: Identity) -> Option<usize> {
        let known = |e: &Entry| e.is_used && e.path == *path && e.real == real;
        if let Some(place) = self.entries.iter().position(known) {
            return Some(place);
        }
        if let Some(old) = self.find(path) {
            old.path = Path::NONE;
        }
        if let Some(free) = self.entries.iter().position(|e| !e.is_used) {
            return Some(free);
        }
        for _ in 0..MOST {
            let place = self.oldest;
            self.oldest = (place + 1) % MOST;
            if !self.is_open(place) {
                return Some(place);
            }
        }
        saying::too_many_open();
        None
    }

    fn is_open(&self, place: usize) -> bool {
        kernel::descriptors().any(|fd| !self.is_ours(fd) && is_at(&self.entries[place], fd))
    }

    /// Whether a descriptor is one of those by which shadow files are kept: several may be of one
    /// file.
    fn is_ours(&self, fd: i32) -> bool {
        self.entries.iter().any(|e| e.is_used && e.kept == fd)
    }

    /// Whether the program has a shadow file open there.
    pub fn stands_in(&self, fd: i32) -> bool {
        stand_ins() && self.entries.iter().any(|e| e.kept >= 0 && e.is_used && is_at(e, fd))
    }

    /// What tells the file that is stood in for there from others, and its path.
    pub fn of_stand_in(&self, fd: i32) -> Option<(Identity, Path)> {
        let is_it = |e: &&Entry| e.is_used && e.kept >= 0 && is_at(e, fd);
        self.entries.iter().find(is_it).map(|e| (e.real, e.path))
    }

    /// Our descriptor of the shadow file of this number.
    pub fn kept_of(&self, number: (u64, u64)) -> Option<i32> {
        let is_it = |e: &&Entry| e.is_used && e.kept >= 0 && e.number == number;
        self.entries.iter().find(is_it).map(|e| e.kept)
    }

    pub fn rename(&mut self, old: &Path, new: &Path) {
        own_mapping::renamed(old, new);
        if let Some(replaced) = self.find(new).filter(|_| old != new) {
            replaced.path = Path::NONE;
        }
        for entry in self.entries.iter_mut().filter(|e| e.is_used) {
            if let Some(path) = entry.path.renamed(old, new) {
                entry.path = path;
                entry.complete();
            }
        }
    }

    pub fn link(&mut self, old: &Path, new: &Path) {
        let Some(entry) = self.find(old) else { return };
        let mut another = *entry;
        let real = entry.real;
        let Some(place) = self.place_of(new, real) else { return };
        (another.path, another.kept) = (*new, kernel::duplicate(another.kept));
        self.put(place, another);
    }

    pub fn unlink(&mut self, path: &Path) {
        own_mapping::removed(path);
        if let Some(entry) = self.find(path) {
            entry.path = Path::NONE;
        }
    }

    pub fn cut(&mut self, path: &Path, size: u64) {
        own_mapping::cut_at(path, size);
        if let Some(entry) = self.find(path) {
            kernel::set_size(entry.kept, size);
            entry.end = size;
        }
    }

    /// All files take their places, and locks are taken again.
    pub fn put_into_effect(&mut self) {
        own_mapping::put_into_effect(&|number| self.kept_of(number));
        self.put_files_into_effect();
    }

    /// The same but for those that are mapped to be written.
    fn put_files_into_effect(&mut self) {
        let highest = *kernel::descriptors().end();
        for place in 0..MOST {
            if self.entries[place].is_used {
                self.take_place(place, highest);
                self.forget(place);
            }
        }
        held_locks::take_again();
    }

    /// A file takes its place now, whatever is known, if it has a shadow file.
    pub fn give_back(&mut self, fd: i32) {
        let of = |e: &Entry| e.is_used && e.kept >= 0 && is_at(e, fd);
        if let Some(place) = self.entries.iter().position(of) {
            self.take_place(place, *kernel::descriptors().end());
            self.forget(place);
        }
    }

    fn take_place(&mut self, place: usize, highest: i32) {
        let entry = self.entries[place];
        let mut open = (0..=highest).filter(|fd| is_at(&entry, *fd) && !self.is_ours(*fd));
        let Some(fd) = open.next() else { return };
        if entry.kept >= 0 {
            let Some(real) = entry.open_real() else {
                if !entry.path.is_none() && !entry.whole {
                    saying::lost_its_name(entry.path.as_bytes());
                }
                return;
            };
            kernel::close(real);
            replace(fd, entry.path.as_c(), |fd| !self.is_ours(fd) && is_at(&entry, fd));
            open.for_each(|fd| {
                if is_at(&entry, fd) {
                    replace(fd, entry.path.as_c(), |fd| !self.is_ours(fd) && is_at(&entry, fd));
                }
            });
        }
        self.lose_future(&entry, fd);
    }

    /// The file loses what the rank has written behind its end in a future that is lost, as far as
    /// that can be told.
    fn lose_future(&mut self, entry: &Entry, fd: i32) {
        let Some(file) = kernel::file_at(fd).filter(|_| entry.how != How::Read) else { return };
        if file.size < entry.end && entry.how != How::Anywhere {
            saying::not_there(entry.path.as_bytes());
        }
        if file.size <= entry.end {
            return;
        }
        let flags = kernel::fcntl(fd, libc::F_GETFL, 0);
        let appends = entry.how == How::Append || flags & i64::from(libc::O_APPEND) != 0;
        let at_its_end = || kernel::seek(fd, 0, libc::SEEK_CUR) == entry.end as i64;
        if !appends && (entry.how == How::Anywhere || !at_its_end()) {
            return;
        }
        let writer = kernel::writer(fd);
        let ours = !appends || !entry.shared && (writer == 0 || writer == crate::random::name());
        if ours && comes_to_be_alone(fd) {
            kernel::set_size(fd, entry.end);
        } else if appends {
            let count = LOOKED_THROUGH.load(Ordering::Relaxed);
            if let Some(place) = self.appended.get_mut(count) {
                *place = Appended { number: file.number, from: entry.end };
                LOOKED_THROUGH.store(count + 1, Ordering::Relaxed);
            }
        }
    }
}

fn is_at(entry: &Entry, fd: i32) -> bool {
    kernel::number_of(fd).is_some_and(|(number, _)| number == entry.number)
}

impl Entry {
    /// A path that leads to the shadow file; `None`: it has none.
    pub fn link<'a>(&self, room: &'a mut [u8; 32]) -> Option<&'a CStr> {
        (self.kept >= 0).then(|| kernel::link_of(self.kept, room))
    }

    /// The file itself, out of the program's way, when its path leads to it.
    /// What a node had not written back of the file is written again.
    fn complete(&self) {
        if self.kept < 0 || !self.whole {
            return;
        }
        if let Some(real) = self.open_by(&[libc::O_RDWR]) {
            far::renamed(real, self.kept);
            kernel::close(real);
        }
    }

    fn open_real(&self) -> Option<i32> {
        self.open_by(&[libc::O_RDONLY, libc::O_WRONLY])
    }

    /// The file itself, if its path leads to it, opened in the first of these ways that it may be.
    fn open_by(&self, ways: &[i32]) -> Option<i32> {
        if self.path.is_none() {
            return None;
        }
        let open = |how: &i32| {
            let flags = *how | libc::O_NONBLOCK | libc::O_CLOEXEC;
            let fd = kernel::open(kernel::HERE, self.path.as_c(), flags, 0);
            i32::try_from(fd).ok().filter(|fd| *fd >= 0)
        };
        let fd = ways.iter().find_map(open)?;
        let is = kernel::look_at(fd).is_ok_and(|found| found.id == self.real);
        if !is {
            kernel::close(fd);
            return None;
        }
        Some(kernel::move_up(fd))
    }
}

/// A descriptor becomes one of the file that a path leads to, at the same place and with the same
/// flags, and so do all that are of the same open file.
pub fn replace(fd: i32, path: &CStr, may_be: impl Fn(i32) -> bool) {
    const MAKES: i32 = libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC | libc::O_TMPFILE;
    let flags = kernel::fcntl(fd, libc::F_GETFL, 0) as i32 & !MAKES;
    let new = kernel::open(kernel::HERE, path, flags | libc::O_CLOEXEC, 0);
    let Some(new) = i32::try_from(new).ok().filter(|new| *new >= 0).map(kernel::move_up) else {
        return;
    };
    let old = kernel::duplicate(fd);
    match flags & libc::O_APPEND {
        0 => kernel::seek(new, kernel::seek(fd, 0, libc::SEEK_CUR), libc::SEEK_SET),
        _ => kernel::seek(new, 0, libc::SEEK_END),
    };
    for other in fd..=*kernel::descriptors().end() {
        if other != old && other != new && may_be(other) {
            let same = other == fd || kernel::is_same(old, other);
            if same {
                kernel::put_in_place(new, other);
            }
        }
    }
    kernel::close(old);
    kernel::close(new);
}

/// Whether no other process has the file open, now or soon.
fn comes_to_be_alone(fd: i32) -> bool {
    for _ in 0..PATIENCE_MS {
        match kernel::alone(fd) {
            Some(false) => kernel::pass_time(),
            alone => return alone == Some(true),
        }
    }
    false
}
