//! Files that are open in an image, and written at their end or small: the rank goes back, and
//! writes again to stand-ins what it has written since. What they were is noted when all threads
//! stand still for the image.

use super::in_place;
use super::kernel::{self, link_of, look_at, Identity};
use super::path::Path;
use super::standing_in::{replace, table, How};
use std::cell::UnsafeCell;

/// Most files that are noted.
const MOST: usize = 64;
/// Most bytes of a file that is read as well that are copied.
const MOST_COPIED: u64 = 64 << 20;

/// Most bytes of all files that may be changed in place.
const ROOM: usize = 1 << 20;

/// A file that the program writes.
#[derive(Clone, Copy)]
struct Note {
    fd: i32,
    real: Identity,
    size: u64,
    path: Path,
    /// Whether it writes at the end.
    ends: bool,
    /// Where its content is, when that is noted.
    content: Option<usize>,
}

const NONE: Note = Note {
    fd: -1,
    real: Identity { ino: 0, born_ns: 0 },
    size: 0,
    path: Path::NONE,
    ends: false,
    content: None,
};

/// Those that were noted come first.
struct Notes {
    all: [Note; MOST],
    count: usize,
    contents: [u8; ROOM],
}

struct Shared(UnsafeCell<Notes>);

// SAFETY: used for an image only, while all threads stand still or before they go on.
unsafe impl Sync for Shared {}

static NOTES: Shared =
    Shared(UnsafeCell::new(Notes { all: [NONE; MOST], count: 0, contents: [0; ROOM] }));

/// Notes them.
///
/// # Safety
/// All other threads must stand still.
pub unsafe fn note() {
    // SAFETY: nobody else refers to them.
    let notes = unsafe { &mut *NOTES.0.get() };
    let mut used = 0;
    notes.count = 0;
    for fd in kernel::descriptors() {
        let Some((size, ends)) = written(fd) else { continue };
        let room =
            notes.contents.get_mut(used..used + size as usize).filter(|_| is_small(fd, size));
        if !ends && room.is_none() {
            continue;
        }
        let Ok(found) = look_at(fd) else { continue };
        let Some(note) = notes.all.get_mut(notes.count) else { return };
        let mut link = [0; 32];
        if let Some(path) = Path::of_link(link_of(fd, &mut link)) {
            let content = room.map(|room| {
                kernel::read_at(fd, room, 0);
                used += size as usize;
                used - size as usize
            });
            *note = Note { fd, real: found.id, size, path, ends, content };
            notes.count += 1;
        }
    }
}

/// Whether a file may be changed in place, and by nobody else.
fn is_small(fd: i32, size: u64) -> bool {
    let flags = kernel::fcntl(fd, libc::F_GETFL, 0) as i32;
    in_place::may_change(flags, size) && in_place::is_ours_alone(fd)
}

/// The size of a file that is written, and whether it is at its end.
fn written(fd: i32) -> Option<(u64, bool)> {
    let (_, size) = kernel::number_of(fd)?;
    let flags = kernel::fcntl(fd, libc::F_GETFL, 0) as i32;
    let writes = flags & libc::O_ACCMODE != libc::O_RDONLY && flags & libc::O_PATH == 0;
    let at_its_end = || kernel::seek(fd, 0, libc::SEEK_CUR) == size as i64;
    writes.then(|| (size, flags & libc::O_APPEND != 0 || at_its_end()))
}

/// This process has come back from the image: the files that were noted get stand-ins.
///
/// # Safety
/// As [`note`].
pub unsafe fn come_back() {
    // SAFETY: nobody else refers to them.
    let notes = unsafe { &mut *NOTES.0.get() };
    let count = std::mem::take(&mut notes.count);
    for note in &notes.all[..count] {
        let is_it = look_at(note.fd).is_ok_and(|found| found.id == note.real);
        // SAFETY: handed on to the caller.
        if is_it && !unsafe { stand_in(note, &notes.contents) } && note.ends {
            cut(note);
        }
    }
}

/// There is no stand-in for it: it loses what was written since.
fn cut(note: &Note) {
    if kernel::number_of(note.fd).is_some_and(|(_, size)| size > note.size) {
        kernel::set_size(note.fd, note.size);
    }
}

/// # Safety
/// As [`note`].
unsafe fn stand_in(note: &Note, contents: &[u8]) -> bool {
    let flags = kernel::fcntl(note.fd, libc::F_GETFL, 0) as i32;
    let reads = flags & libc::O_ACCMODE == libc::O_RDWR;
    if kernel::names(note.fd) == 0 || kernel::is_locked(note.fd) || reads && note.size > MOST_COPIED
    {
        return false;
    }
    // SAFETY: handed on to the caller.
    let table = unsafe { table() };
    let number = kernel::number_of(note.fd).map(|(number, _)| number);
    let how = if note.ends { How::AtTheEnd } else { How::Anywhere };
    let known = table.find(&note.path).is_some_and(|entry| entry.real == note.real);
    let entry = match known {
        true => table.find(&note.path),
        false => table.add(&note.path, note.real, how, note.size),
    };
    let Some(entry) = entry else { return false };
    if let Some(at) = note.content {
        entry.had(&contents[at..at + note.size as usize]);
    } else if reads {
        let mut room = [0; 32];
        let real = kernel::open(kernel::HERE, link_of(note.fd, &mut room), libc::O_RDONLY, 0);
        if let Some(real) = i32::try_from(real).ok().filter(|real| *real >= 0) {
            entry.copy(real, note.size);
            kernel::close(real);
        }
    }
    if !note.ends && !entry.note_before() {
        return false;
    }
    let mut room = [0; 32];
    let is = |fd| kernel::number_of(fd).map(|(number, _)| number) == number;
    replace(note.fd, entry.link(&mut room), is);
    entry.goes_on(note.fd, note.ends, flags & libc::O_APPEND != 0);
    true
}
