//! The old state of files from before the job that a rank is about to change. The records of ranks
//! that have read such a file only refer to it, so these ranks read it again when they are executed
//! again. The old state is kept beside the file under a name of its own, by a link or a copy, until
//! the rank that kept it ends. A directory that is removed while it has only old states is itself
//! kept in the same way.

use super::buffers::Buffers;
use super::kernel::{self, link_of, HERE};
use super::path::Path;
use super::saying;
use crate::environment::variable;
use std::cell::UnsafeCell;
use std::ffi::CStr;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What the name of an old state begins with.
const FRONT: &[u8] = b".eyrie-was-";
/// As in `eyrie_wire::agent`, like the front above.
const ENV_DIR: &CStr = c"EYRIE_JOB_DIR";
const LIST: &[u8] = b"old-states";
/// Most bytes that are copied where the file system cannot share them.
const MOST_COPIED: u64 = 16 << 20;
/// Bytes that are copied at a time.
const STEP: usize = 64 << 10;
/// Bytes of the names of old states that a rank removes when it ends.
const MOST: usize = 4 << 20;
/// How deep a directory may lie below one that was removed.
const DEEPEST: usize = 64;

/// Paths, each with its NUL.
struct Kept(UnsafeCell<[u8; MOST]>);

// SAFETY: used in calls that are being recorded, of which there is one at a time, and when the
// process ends.
unsafe impl Sync for Kept {}

static KEPT: Kept = Kept(UnsafeCell::new([0; MOST]));
static LEN: AtomicUsize = AtomicUsize::new(0);

/// How a file is about to be changed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// It loses this name.
    Name,
    /// Its content is changed.
    Content,
}

/// Where the old state of a file is kept.
fn place(path: &Path) -> Option<Path> {
    let mut name = [0u8; 256];
    let own = path.name();
    let room = name.get_mut(..FRONT.len() + own.len())?;
    room[..FRONT.len()].copy_from_slice(FRONT);
    room[FRONT.len()..].copy_from_slice(own);
    path.parent().below(&name[..FRONT.len() + own.len()])
}

/// Whether an old state has this name.
pub fn is_old_state(name: &[u8]) -> bool {
    name.starts_with(FRONT)
}

fn is_of_this_job(place: &Path) -> bool {
    let found = kernel::look(HERE, place.as_c().as_ptr(), false);
    found.is_ok_and(|found| found.in_job)
}

/// The file that has this path is about to be changed.
pub fn before(path: &Path, change: Change) {
    let Ok(found) = kernel::look(HERE, path.as_c().as_ptr(), change == Change::Content) else {
        return;
    };
    if !found.is_regular() || found.in_job {
        return;
    }
    let Some(place) = place(path) else { return };
    match kernel::look(HERE, place.as_c().as_ptr(), false) {
        Ok(there) if there.in_job => return,
        // One of an earlier job.
        Ok(_) => _ = kernel::unlink(place.as_c()),
        // Another rank may just make it.
        Err(_) => {}
    }
    list(&place);
    let kept = match change {
        Change::Name => kernel::link(path.as_c(), place.as_c()) == 0,
        Change::Content => copy(path, &place, found.size),
    };
    if kept {
        note(&place);
    }
}

/// The rank has changed this file before, in a process that has ended.
pub fn again(path: &Path) {
    if let Some(place) = place(path).filter(is_of_this_job) {
        note(&place);
    }
}

/// Lists it for who cleans up behind the job, should the rank not come to that.
fn list(place: &Path) {
    let Some(dir) = variable(ENV_DIR) else { return };
    // SAFETY: the path is a C string, which outlives the call.
    let list = unsafe { Path::of(HERE, dir.as_ptr()) }.and_then(|dir| dir.below(LIST));
    let Some(list) = list else { return };
    let flags = libc::O_WRONLY | libc::O_APPEND | libc::O_CREAT | libc::O_CLOEXEC;
    let fd = kernel::open(HERE, list.as_c(), flags, 0o600);
    if let Some(fd) = i32::try_from(fd).ok().filter(|fd| *fd >= 0) {
        kernel::write(fd, place.as_c().to_bytes_with_nul());
        kernel::close(fd);
    }
}

fn note(place: &Path) {
    // SAFETY: this call is being recorded, of which there is one at a time.
    let kept = unsafe { &mut *KEPT.0.get() };
    let len = LEN.load(Ordering::Relaxed);
    let path = place.as_c().to_bytes_with_nul();
    match kept.get_mut(len..len + path.len()) {
        Some(room) => {
            room.copy_from_slice(path);
            LEN.store(len + path.len(), Ordering::Relaxed);
        }
        None => saying::left(place.as_bytes()),
    }
}

/// The process ends.
pub fn end() {
    // SAFETY: nothing is recorded any more.
    let kept = unsafe { &*KEPT.0.get() };
    let mut rest = &kept[..LEN.swap(0, Ordering::Relaxed)];
    while let Ok(place) = CStr::from_bytes_until_nul(rest) {
        rest = &rest[place.count_bytes() + 1..];
        if kernel::unlink(place) == -i64::from(libc::EISDIR) {
            remove_all(place, 0);
        }
    }
}

/// Removes a directory of old states.
fn remove_all(directory: &CStr, depth: usize) {
    if depth < DEEPEST {
        kernel::for_each_name(directory, &mut |name| {
            // SAFETY: the path is a C string, which outlives the call.
            let at = unsafe { Path::of(HERE, directory.as_ptr()) };
            let Some(at) = at.and_then(|at| at.below(name)).filter(|_| is_old_state(name)) else {
                return;
            };
            if kernel::unlink(at.as_c()) == -i64::from(libc::EISDIR) {
                remove_all(at.as_c(), depth + 1);
            }
        });
    }
    kernel::remove_directory(directory);
}

/// A directory could not be removed because it is not empty: if all that it has are old states, it
/// loses its name. Whether it has.
pub fn put_away(path: &Path) -> bool {
    let mut only_ours = true;
    let listed = kernel::for_each_name(path.as_c(), &mut |name| only_ours &= is_old_state(name));
    let Some(place) = place(path).filter(|_| listed && only_ours) else { return false };
    if !is_of_this_job(&place) {
        remove_all(place.as_c(), 0);
    }
    let done = kernel::rename_to_free(path.as_c(), HERE, place.as_c().as_ptr()) == 0;
    if done {
        note(&place);
    }
    done
}

/// Makes a copy and gives it its name when it is whole.
fn copy(path: &Path, place: &Path, size: u64) -> bool {
    let open = |fd: i64| i32::try_from(fd).ok().filter(|fd| *fd >= 0);
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    let Some(from) = open(kernel::open(HERE, path.as_c(), flags, 0)) else { return false };
    let to = kernel::nameless(place.parent().as_c(), libc::O_RDWR | libc::O_CLOEXEC, 0o600);
    let done = open(to).is_some_and(|to| {
        let shared = kernel::share_content(from, to);
        let whole = shared || size <= MOST_COPIED && copy_content(from, to);
        kernel::copy_time(from, to);
        let named = whole && kernel::give_name(to, HERE, place.as_c().as_ptr()) == 0;
        kernel::close(to);
        named
    });
    kernel::close(from);
    done
}

fn copy_content(from: i32, to: i32) -> bool {
    let mut bytes = [0u8; STEP];
    let mut at = 0;
    loop {
        match kernel::read_at(from, &mut bytes, at) {
            0 => return true,
            n if !kernel::write_at(to, &bytes[..n], at) => return false,
            n => at += n as u64,
        }
    }
}

/// Reads what an open file had before it was changed; `None`: there is nothing of it any more,
/// which is said, or this is the old state.
pub fn read(fd: i32, to: Buffers, at: Option<i64>) -> Option<i64> {
    let mut room = [0; 32];
    let path = Path::of_link(link_of(fd, &mut room))?;
    if is_old_state(path.name()) {
        return None;
    }
    let Some(old) = opened(&path, libc::O_RDONLY) else {
        saying::changed_since(path.as_bytes());
        return None;
    };
    let stands = at.is_none().then(|| kernel::seek(fd, 0, libc::SEEK_CUR));
    let from = stands.or(at).unwrap_or(0) as u64;
    let mut done = 0;
    let mut bytes = [0u8; STEP];
    while done < to.len() {
        let most = STEP.min(to.len() - done);
        let n = kernel::read_at(old, &mut bytes[..most], from + done as u64);
        // SAFETY: the buffers are to be read into.
        unsafe { to.put(done, &bytes[..n]) };
        done += n;
        if n < most {
            break;
        }
    }
    kernel::close(old);
    if stands.is_some() {
        kernel::seek(fd, done as i64, libc::SEEK_CUR);
    }
    Some(done as i64)
}

/// Opens the old state of a file.
pub fn opened(path: &Path, flags: i32) -> Option<i32> {
    let place = of(path)?;
    let fd = kernel::open(HERE, place.as_c(), flags | libc::O_CLOEXEC, 0);
    i32::try_from(fd).ok().filter(|fd| *fd >= 0)
}

/// Where the old state of a file is, if there is one: beside where it was, or in what is kept of a
/// directory that was removed.
pub fn of(path: &Path) -> Option<Path> {
    let mut at = place(path)?;
    for depth in 1..DEEPEST {
        if is_of_this_job(&at) {
            return Some(at);
        }
        at = put_away_at(&at, depth)?;
    }
    None
}

/// Where a path leads when the directory that it has at this depth from its end was put away.
fn put_away_at(path: &Path, depth: usize) -> Option<Path> {
    let mut directory = path.parent();
    for _ in 1..depth {
        directory = directory.parent();
    }
    let rest = path.as_bytes().get(directory.as_bytes().len() + 1..)?;
    if directory.name().is_empty() {
        return None;
    }
    place(&directory)?.below(rest)
}
