//! Files that are open in an image. When the rank goes back to the image, what the lost execution
//! has written since must go, and a file that has lost its name since becomes a shadow file. The
//! states of the files are noted while all threads stand still for the image.

use super::kernel::{self, link_of, look_at, Identity};
use super::mapping::is_shared;
use super::memory;
use super::open_records::How;
use super::own_mapping;
use super::path::Path;
use super::saying;
use super::standing_in::table;
use crate::observed::executed_again;
use std::cell::UnsafeCell;

/// Most files that are noted.
const MOST: usize = 64;

/// A file that the program has open.
#[derive(Clone, Copy)]
struct Note {
    fd: i32,
    real: Identity,
    size: u64,
    path: Path,
    how: How,
    /// It is memory that has a name.
    memory: bool,
}

const NONE: Note = Note {
    fd: -1,
    real: Identity { ino: 0, born_ns: 0 },
    size: 0,
    path: Path::NONE,
    how: How::AtTheEnd,
    memory: false,
};

/// Those that were noted come first.
struct Notes {
    all: [Note; MOST],
    count: usize,
    /// There were more.
    overflows: bool,
}

struct Shared(UnsafeCell<Notes>);

// SAFETY: used for an image only, while all threads stand still or before they go on.
unsafe impl Sync for Shared {}

static NOTES: Shared =
    Shared(UnsafeCell::new(Notes { all: [NONE; MOST], count: 0, overflows: false }));

/// Notes all open files; false: more is mapped to be written than an image can have.
///
/// # Safety
/// All other threads must stand still.
pub unsafe fn note() -> bool {
    // SAFETY: only these two functions use the notes, and the caller promises that no other thread
    // runs.
    let notes = unsafe { &mut *NOTES.0.get() };
    (notes.count, notes.overflows) = (0, false);
    // SAFETY: the caller keeps this contract, which is that of the function called.
    let fits = unsafe { own_mapping::note() };
    for fd in kernel::open_descriptors() {
        let Some((size, how)) = opened(fd) else { continue };
        let Ok(found) = look_at(fd) else { continue };
        let Some(note) = notes.all.get_mut(notes.count) else {
            notes.overflows = true;
            break;
        };
        let mut link = [0; 32];
        if let Some(path) = Path::of_link(link_of(fd, &mut link)) {
            let memory = kernel::file_at(fd).is_some_and(|file| memory::is_memory(file.number));
            *note = Note { fd, real: found.id, size, path, how, memory };
            notes.count += 1;
        }
    }
    fits
}

/// The size of a file that has a name, and how it is open.
fn opened(fd: i32) -> Option<(u64, How)> {
    let file = kernel::file_at(fd).filter(|file| !file.nameless)?;
    let flags = kernel::fcntl(fd, libc::F_GETFL, 0) as i32;
    let at_its_end = || kernel::seek(fd, 0, libc::SEEK_CUR) == file.size as i64;
    let how = match flags & (libc::O_ACCMODE | libc::O_APPEND | libc::O_PATH) {
        libc::O_RDONLY => How::Read,
        flags if flags & libc::O_PATH != 0 => return None,
        flags if flags & libc::O_APPEND != 0 => How::Append,
        _ if at_its_end() => How::AtTheEnd,
        _ => How::Anywhere,
    };
    Some((file.size, how))
}

/// This process has come back from the image.
///
/// # Safety
/// As [`note`].
pub unsafe fn come_back() {
    executed_again();
    // SAFETY: the caller keeps this contract, which is that of the function called.
    unsafe { own_mapping::come_back(&is_shared) };
    // SAFETY: as in `note`: no other code has a reference to the notes.
    let notes = unsafe { &mut *NOTES.0.get() };
    let count = std::mem::take(&mut notes.count);
    if notes.overflows {
        saying::too_many_open();
    }
    for note in &notes.all[..count] {
        if note.memory {
            if let Some(file) = kernel::file_at(note.fd) {
                memory::note(file.number);
            }
            continue;
        }
        let is_it = look_at(note.fd).is_ok_and(|found| found.id == note.real);
        let is_named = kernel::file_at(note.fd).is_some_and(|file| !file.nameless);
        // SAFETY: no call is being recorded while the process stands still for its image.
        let table = unsafe { table() };
        match (is_it && is_named, note.how) {
            (true, How::Append | How::AtTheEnd) => {
                table.add(&note.path, note.real, note.how, note.size, note.fd);
            }
            (true, _) => {}
            (false, _) => table.adopt(&note.path, note.real, note.how, note.size, note.fd),
        }
    }
}
