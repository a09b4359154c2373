//! Stand-ins: a rank that is executed again writes to files that it had opened before into others
//! without a name, since what it writes was written, and others may have gone on from there. When
//! it does what it has never done before as far as anybody knows, its files take their places, with
//! what is missing. What was written and closed before a moment of which is known that the rank had
//! come to it is in its file.

use super::kernel::{self, Identity};
use super::path::Path;
use crate::observed::{stream, ObservedStream};
use std::cell::UnsafeCell;
use std::ffi::CStr;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Files that have stand-ins at a time, also when they are closed.
const MOST: usize = 64;
/// Bytes that are compared and copied at a time.
const STEP: usize = 16 << 10;
/// Bytes at the end of what others have appended that are looked through.
const LOOKED_THROUGH: usize = 64 << 10;
/// Milliseconds in which the rank's last process, or a child of it that writes an image, ends.
const PATIENCE_MS: usize = 250;

/// How many there are.
static COUNT: AtomicUsize = AtomicUsize::new(0);

#[inline]
pub fn any() -> bool {
    COUNT.load(Ordering::Relaxed) > 0
}

pub fn count() -> *const usize {
    COUNT.as_ptr()
}

/// How a file was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum How {
    /// It was empty.
    Empty,
    /// To append to what was there.
    Append,
    /// It was open in an image, and written at its end.
    AtTheEnd,
    /// To write anywhere in what was there.
    Anywhere,
}

/// A file that has a stand-in.
#[derive(Clone, Copy)]
pub struct Entry {
    /// The file itself, and its path; none when it has lost its name.
    pub real: Identity,
    path: Path,
    pub how: How,
    /// From there on the stand-in has what the rank has written.
    base: u64,
    /// The rank had certainly written as much.
    known: u64,
    /// It was closed when something was known: what was written is in the file.
    settled: bool,
    /// The program's last descriptor of the stand-in, our own, and the kernel's number.
    fd: i32,
    kept: i32,
    number: (u64, u64),
    /// What it had before the program wrote to it; -1: nothing.
    before: i32,
    /// The program has it open: found out when it takes its file's place.
    is_open: bool,
}

const NONE: Entry = Entry {
    real: Identity { ino: 0, born_ns: 0 },
    path: Path::NONE,
    how: How::Empty,
    base: 0,
    known: 0,
    settled: true,
    fd: -1,
    kept: -1,
    number: (0, 0),
    before: -1,
    is_open: false,
};

/// All of them.
pub struct Table {
    entries: [Entry; MOST],
    /// The one that is taken next when there is no room.
    oldest: usize,
}

struct Shared(UnsafeCell<Table>);

// SAFETY: used as the stream is ([`crate::observed`]).
unsafe impl Sync for Shared {}

static TABLE: Shared = Shared(UnsafeCell::new(Table { entries: [NONE; MOST], oldest: 0 }));

/// The table.
///
/// # Safety
/// As [`crate::observed::stream`].
pub unsafe fn table() -> &'static mut Table {
    // SAFETY: handed on to the caller.
    unsafe { &mut *TABLE.0.get() }
}

/// Something is about to be observed: if it is new, files take their places before.
pub fn before_new_of(stream: &mut ObservedStream) {
    if any() && stream.is_new() {
        // SAFETY: who has the stream may use the table.
        unsafe { table() }.put_into_effect();
    }
}

/// The same, in a call on files.
pub fn before_new() {
    // SAFETY: in a call that is being written down.
    before_new_of(unsafe { stream() });
}

/// Something was observed again: all that the rank had done before was done.
#[inline]
pub fn known() {
    if any() {
        // SAFETY: who observes may use the table.
        unsafe { table() }.known();
    }
}

impl Table {
    pub fn find(&mut self, path: &Path) -> Option<&mut Entry> {
        self.entries.iter_mut().find(|e| e.kept >= 0 && !path.is_none() && e.path == *path)
    }

    /// A new stand-in of a file that had this size. `None`: there can be none.
    pub fn add(&mut self, path: &Path, real: Identity, how: How, size: u64) -> Option<&mut Entry> {
        if let Some(old) = self.find(path) {
            old.path = Path::NONE;
        }
        let place = self.room()?;
        let kept = nameless(path)?;
        kernel::set_size(kept, size);
        let number = kernel::number_of(kept)?.0;
        let (base, known) = (size, size);
        let entry = Entry { real, path: *path, how, base, known, kept, number, ..NONE };
        self.entries[place] = entry;
        COUNT.fetch_add(1, Ordering::Relaxed);
        Some(&mut self.entries[place])
    }

    /// A free place, or that of a file that was closed.
    fn room(&mut self) -> Option<usize> {
        if let Some(free) = self.entries.iter().position(|e| e.kept < 0) {
            return Some(free);
        }
        for _ in 0..MOST {
            let place = self.oldest;
            self.oldest = (place + 1) % MOST;
            let entry = &self.entries[place];
            let is_open = || kernel::descriptors().any(|fd| !self.is_ours(fd) && entry.is_at(fd));
            if entry.settled && !is_open() {
                self.entries[place].give_up();
                return Some(place);
            }
        }
        None
    }

    /// Whether a descriptor is one of those by which stand-ins are kept: several may be of one
    /// file.
    fn is_ours(&self, fd: i32) -> bool {
        self.entries.iter().any(|e| e.kept == fd || e.before == fd)
    }

    pub fn rename(&mut self, old: &Path, new: &Path) {
        if let Some(replaced) = self.find(new).filter(|_| old != new) {
            replaced.path = Path::NONE;
        }
        for entry in self.entries.iter_mut().filter(|e| e.kept >= 0) {
            if let Some(path) = entry.path.renamed(old, new) {
                entry.path = path;
            }
        }
    }

    pub fn link(&mut self, old: &Path, new: &Path) {
        let Some(entry) = self.find(old) else { return };
        let mut another = *entry;
        let Some(place) = self.room() else { return };
        (another.path, another.kept) = (*new, kernel::duplicate(another.kept));
        another.before = kernel::duplicate(another.before);
        if another.kept >= 0 {
            self.entries[place] = another;
            COUNT.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub fn unlink(&mut self, path: &Path) {
        if let Some(entry) = self.find(path) {
            entry.path = Path::NONE;
        }
    }

    pub fn cut(&mut self, path: &Path, size: u64) {
        if let Some(entry) = self.find(path) {
            kernel::set_size(entry.kept, size);
            entry.base = entry.base.min(size);
        }
    }

    /// The rank is where it is known to have been before.
    pub fn known(&mut self) {
        for entry in self.entries.iter_mut().filter(|e| e.kept >= 0 && !e.settled) {
            entry.settled = !entry.is_at(entry.fd);
            entry.known = entry.size();
        }
    }

    /// All files take their places.
    pub fn put_into_effect(&mut self) {
        for fd in kernel::descriptors() {
            if let Some(entry) = self.of_descriptor(fd) {
                entry.is_open = true;
            }
        }
        for place in 0..MOST {
            if self.entries[place].kept >= 0 {
                self.take_place(place);
            }
        }
    }

    /// The file whose stand-in the program has open so, rather one that has a name.
    pub fn of_descriptor(&mut self, fd: i32) -> Option<&mut Entry> {
        let (number, _) = kernel::number_of(fd)?;
        let is = |e: &Entry| e.kept >= 0 && e.number == number;
        if self.is_ours(fd) {
            return None;
        }
        let named = self.entries.iter().position(|e| is(e) && !e.path.is_none());
        let place = named.or_else(|| self.entries.iter().position(is))?;
        Some(&mut self.entries[place])
    }

    /// A file takes its place now, whatever is known.
    pub fn give_back(&mut self, fd: i32) {
        let Some(entry) = self.of_descriptor(fd) else { return };
        entry.is_open = true;
        let kept = entry.kept;
        if let Some(place) = self.entries.iter().position(|e| e.kept == kept) {
            self.take_place(place);
        }
    }

    fn take_place(&mut self, place: usize) {
        let entry = &self.entries[place];
        if let Some(real) = entry.open_real() {
            if entry.is_open || !entry.settled {
                entry.bring_up_to_date(real);
            }
            kernel::close(real);
            self.replace_descriptors(entry);
        }
        self.entries[place].give_up();
    }

    /// Every descriptor of a stand-in becomes one of its file, at the same place.
    fn replace_descriptors(&self, entry: &Entry) {
        let is = |fd| !self.is_ours(fd) && entry.is_at(fd);
        for fd in kernel::descriptors() {
            if is(fd) {
                replace(fd, entry.path.as_c(), is);
            }
        }
    }
}

/// A file without a name, where this one is or in memory.
fn nameless(path: &Path) -> Option<i32> {
    let flags = libc::O_RDWR | libc::O_CLOEXEC;
    let mut made = kernel::nameless(path.parent().as_c(), flags, 0o600);
    if made < 0 {
        made = kernel::in_memory();
    }
    Some(kernel::move_up(i32::try_from(made).ok().filter(|fd| *fd >= 0)?))
}

/// Copies the front of a file.
fn copy(from: i32, to: i32, size: u64) {
    let mut bytes = [0u8; STEP];
    let mut at = 0;
    while at < size {
        let step = STEP.min((size - at) as usize);
        let n = kernel::read_at(from, &mut bytes[..step], at);
        if n == 0 || !kernel::write_at(to, &bytes[..n], at) {
            break;
        }
        at += n as u64;
    }
}

impl Entry {
    /// A path that leads to it.
    pub fn link<'a>(&self, room: &'a mut [u8; 32]) -> &'a CStr {
        kernel::link_of(self.kept, room)
    }

    pub fn descriptor(&self) -> i32 {
        self.kept
    }

    /// The program has opened it.
    pub fn opened(&mut self, fd: i32) {
        (self.fd, self.settled) = (fd, false);
    }

    /// It is emptied when it is opened.
    pub fn begin_anew(&mut self, how: How) {
        kernel::set_size(self.kept, 0);
        kernel::close(std::mem::replace(&mut self.before, -1));
        (self.how, self.base, self.known) = (how, 0, 0);
    }

    /// The file had this size when it was opened to append to it. Others may have appended to it
    /// since the rank did.
    pub fn begin_to_append(&mut self, size: u64) {
        if self.size() != size {
            kernel::set_size(self.kept, size);
            self.base = size;
        }
        (self.how, self.known) = (How::Append, size);
    }

    /// What was in it when an image was taken.
    pub fn goes_on(&mut self, fd: i32, ends: bool, appends: bool) {
        if ends {
            self.how = if appends { How::Append } else { How::AtTheEnd };
        }
        self.opened(fd);
    }

    /// What is in a file that is read as well.
    pub fn fill(&self, size: u64) {
        if let Some(real) = self.open_real() {
            self.copy(real, size);
            kernel::close(real);
        }
    }

    /// The same from an open file.
    pub fn copy(&self, real: i32, size: u64) {
        copy(real, self.kept, size);
    }

    /// What it has now is not the program's, which may write anywhere. False: that cannot be noted.
    pub fn note_before(&mut self) -> bool {
        kernel::close(self.before);
        let before = nameless(&self.path);
        self.before = before.unwrap_or(-1);
        kernel::set_size(self.before, self.size());
        copy(self.kept, self.before, self.size());
        self.base = 0;
        before.is_some()
    }

    /// It is opened again: what was written before it was closed is in the file.
    pub fn goes_on_anywhere(&mut self) {
        if self.settled && self.how == How::Anywhere && self.before >= 0 {
            self.note_before();
        }
    }

    /// It had this content.
    pub fn had(&mut self, content: &[u8]) {
        kernel::write_at(self.kept, content, 0);
    }

    fn size(&self) -> u64 {
        kernel::number_of(self.kept).map_or(0, |(_, size)| size)
    }

    fn is_at(&self, fd: i32) -> bool {
        kernel::number_of(fd).is_some_and(|(number, _)| number == self.number)
    }

    fn give_up(&mut self) {
        kernel::close(self.kept);
        kernel::close(self.before);
        *self = NONE;
        COUNT.fetch_sub(1, Ordering::Relaxed);
    }

    /// The file itself, out of the program's way, when its path leads to it.
    fn open_real(&self) -> Option<i32> {
        if self.path.is_none() {
            return None;
        }
        let open = |how| {
            let flags = how | libc::O_NONBLOCK | libc::O_CLOEXEC;
            let fd = kernel::open(kernel::HERE, self.path.as_c(), flags, 0);
            i32::try_from(fd).ok().filter(|fd| *fd >= 0)
        };
        let fd = open(libc::O_RDWR).or_else(|| open(libc::O_WRONLY))?;
        let is = kernel::look_at(fd).is_ok_and(|found| found.id == self.real);
        if !is {
            kernel::close(fd);
            return None;
        }
        Some(kernel::move_up(fd))
    }

    /// The file gets what the stand-in has and it has not, and loses what the rank has written in a
    /// future that is lost, as far as that can be told.
    fn bring_up_to_date(&self, real: i32) {
        match self.how {
            How::Append => self.append_what_is_missing(real),
            How::Empty | How::AtTheEnd => {
                self.copy_what_differs(real);
                if self.writes_at_the_end() {
                    self.cut_real(real, self.size());
                }
            }
            How::Anywhere => self.copy_what_was_written(real),
        }
    }

    /// What the program has written anywhere in it; the rest may be newer by now.
    fn copy_what_was_written(&self, real: i32) {
        let [mut ours, mut before, mut theirs] = [[0u8; STEP]; 3];
        let size = self.size();
        let mut at = 0;
        while at < size {
            let n = kernel::read_at(self.kept, &mut ours, at);
            let m = kernel::read_at(self.before, &mut before[..n], at);
            before[m..n].fill(0);
            if n == 0 {
                break;
            }
            if ours[..n] != before[..n] || m < n {
                let there = kernel::read_at(real, &mut theirs[..n], at);
                let mut first = 0;
                // One piece that was written after the other.
                while let Some(from) = (first..n).find(|i| *i >= m || ours[*i] != before[*i]) {
                    let to = (from..n).find(|i| *i < m && ours[*i] == before[*i]).unwrap_or(n);
                    if to > there || ours[from..to] != theirs[from..to] {
                        kernel::write_at(real, &ours[from..to], at + from as u64);
                    }
                    first = to;
                }
            }
            at += n as u64;
        }
    }

    fn cut_real(&self, real: i32, size: u64) {
        let now = kernel::number_of(real).map_or(0, |(_, size)| size);
        if now > size && comes_to_be_alone(real) {
            kernel::set_size(real, size);
        }
    }

    /// Whether the program writes one thing behind another: its descriptor is at the end.
    fn writes_at_the_end(&self) -> bool {
        let flags = kernel::fcntl(self.fd, libc::F_GETFL, 0);
        let at = kernel::seek(self.fd, 0, libc::SEEK_CUR);
        self.is_at(self.fd) && (flags & i64::from(libc::O_APPEND) != 0 || at == self.size() as i64)
    }

    /// Where others write to the file, too, and below `base`, zeros are theirs.
    fn copy_what_differs(&self, real: i32) {
        let (mut ours, mut theirs) = ([0u8; STEP], [0u8; STEP]);
        let mut at = kernel::seek(self.kept, 0, libc::SEEK_DATA);
        let all = at >= 0 && comes_to_be_alone(real);
        while at >= 0 {
            let n = kernel::read_at(self.kept, &mut ours, at as u64);
            let m = kernel::read_at(real, &mut theirs[..n], at as u64);
            theirs[m..n].fill(0);
            let below = match all {
                true => self.base.saturating_sub(at as u64).min(n as u64) as usize,
                false => n,
            };
            let zeros = ours[..below].iter_mut().zip(&theirs).filter(|(byte, _)| **byte == 0);
            zeros.for_each(|(byte, other)| *byte = *other);
            if n == 0 || ours[..n] != theirs[..n] && !kernel::write_at(real, &ours[..n], at as u64)
            {
                break;
            }
            if m < n && (at as u64 + n as u64) > kernel::number_of(real).map_or(0, |(_, len)| len) {
                kernel::write_at(real, &ours[..n], at as u64);
            }
            at = kernel::seek(self.kept, at + n as i64, libc::SEEK_DATA);
        }
    }

    /// Of a file to which others may append, too: what the rank is known to have written is there.
    fn append_what_is_missing(&self, real: i32) {
        let (size, len) = (self.size(), kernel::number_of(real).map_or(0, |(_, len)| len));
        let who = kernel::writer(real);
        let ours = who == 0 || who == crate::random::name();
        if ours && len > self.known && self.is_same(real, self.base, self.known) {
            let differs = len < size || !self.is_same(real, self.known, size);
            if differs && comes_to_be_alone(real) {
                kernel::set_size(real, self.known);
            } else if !differs {
                return self.cut_real(real, size);
            }
        }
        self.append_unless_there(real, size);
    }

    /// Whether file and stand-in have the same from one place to another.
    fn is_same(&self, real: i32, mut from: u64, to: u64) -> bool {
        let (mut ours, mut theirs) = ([0u8; STEP], [0u8; STEP]);
        while from < to {
            let step = STEP.min((to - from) as usize);
            let n = kernel::read_at(self.kept, &mut ours[..step], from);
            if n == 0
                || kernel::read_at(real, &mut theirs[..n], from) != n
                || ours[..n] != theirs[..n]
            {
                return false;
            }
            from += n as u64;
        }
        true
    }

    /// Appends what comes behind what is known, as far as it is not at the end of the file.
    fn append_unless_there(&self, real: i32, size: u64) {
        let mut end = [0u8; LOOKED_THROUGH];
        let len = kernel::number_of(real).map_or(0, |(_, len)| len);
        // The same lines may have been there before.
        let before = match self.is_same(real, self.base, self.known) {
            true => self.known,
            false => self.base,
        };
        let from = len.saturating_sub(end.len() as u64).max(before.min(len));
        let n = kernel::read_at(real, &mut end, from);
        let mut ours = [0u8; STEP];
        let n_ours = kernel::read_at(self.kept, &mut ours, self.known);
        let (end, first) = (&end[..n], &ours[..n_ours]);
        let is_there = (size - self.known) as usize == n_ours
            && (first.is_empty() || end.windows(n_ours).any(|window| window == first));
        if is_there {
            return;
        }
        let is_begun = |n: &usize| end.ends_with(&first[..*n]);
        let mut from = self.known + (0..=n_ours).rev().find(is_begun).unwrap_or(0) as u64;
        let mut to = len;
        while from < size {
            let n = kernel::read_at(self.kept, &mut ours, from);
            if n == 0 || !kernel::write_at(real, &ours[..n], to) {
                break;
            }
            (from, to) = (from + n as u64, to + n as u64);
        }
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

/// Whether nobody else has the file open, or soon nobody has.
fn comes_to_be_alone(fd: i32) -> bool {
    for _ in 0..PATIENCE_MS {
        match kernel::alone(fd) {
            Some(false) => kernel::pass_time(),
            alone => return alone == Some(true),
        }
    }
    false
}
