//! inotify_add_watch(2): which paths the process has watched. The kernel only says which file a
//! watch is for. An image must know a path, so that a restored process can watch it again.

use crate::files::path::Path;
use crate::next::next;
use libc::{c_char, c_int};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

next! {
    inotify_add_watch: fn(c_int, *const c_char, u32) -> c_int;
}

/// So many different paths are kept. Beyond that the oldest is dropped.
const MOST: usize = 64;

struct Kept {
    path: UnsafeCell<Path>,
    whole: AtomicBool,
}

// SAFETY: a thread writes to a place only after it has taken it. Readers read only whole paths.
unsafe impl Sync for Kept {}

static KEPT: [Kept; MOST] =
    [const { Kept { path: UnsafeCell::new(Path::NONE), whole: AtomicBool::new(false) } }; MOST];
static NEXT: AtomicUsize = AtomicUsize::new(0);

fn kept() -> impl Iterator<Item = &'static Path> {
    let whole = KEPT.iter().filter(|kept| kept.whole.load(Ordering::Acquire));
    // SAFETY: the path is whole. A thread that overwrites it first marks it as not whole.
    whole.map(|kept| unsafe { &*kept.path.get() })
}

fn keep(path: &Path) {
    if kept().any(|other| other == path) {
        return;
    }
    let place = &KEPT[NEXT.fetch_add(1, Ordering::Relaxed) % MOST];
    place.whole.store(false, Ordering::Release);
    // SAFETY: this thread has taken the place, and no reader reads a path that is not whole.
    unsafe { *place.path.get() = *path };
    place.whole.store(true, Ordering::Release);
}

/// # Safety
/// As inotify_add_watch(2).
#[export_name = "inotify_add_watch"]
pub unsafe extern "C-unwind" fn our_inotify_add_watch(
    fd: c_int,
    path: *const c_char,
    mask: u32,
) -> c_int {
    // SAFETY: handed on to the caller; the kernel has read the path.
    unsafe {
        let watch = inotify_add_watch.get()(fd, path, mask);
        if watch >= 0 {
            if let Some(path) = Path::of(libc::AT_FDCWD, path) {
                keep(&path);
            }
        }
        watch
    }
}

/// The `number`th path that was watched; null: there are no more. Async-signal-safe.
pub extern "C" fn eyrie_calls_watched(number: usize) -> *const c_char {
    // The root has no names.
    let path = |path: &'static Path| if path.is_none() { c"/" } else { path.as_c() };
    kept().nth(number).map_or(std::ptr::null(), |kept| path(kept).as_ptr())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::{CStr, CString};
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn paths_are_kept_once_and_whole() {
        let here = std::env::current_dir().unwrap();
        let path = CString::new(here.as_os_str().as_bytes()).unwrap();
        // SAFETY: C strings, and descriptors of our own.
        unsafe {
            let fd = libc::inotify_init1(libc::IN_CLOEXEC);
            for path in [path.as_c_str(), c"/", path.as_c_str()] {
                assert!(our_inotify_add_watch(fd, path.as_ptr(), libc::IN_CREATE) > 0);
            }
            let none = c"/nothing/of/this/name";
            assert_eq!(our_inotify_add_watch(fd, none.as_ptr(), libc::IN_CREATE), -1);
            libc::close(fd);
        }
        let all =
            (0..).map(|number| eyrie_calls_watched(number)).take_while(|path| !path.is_null());
        // SAFETY: C strings in tables that are never freed.
        let all: Vec<_> = all.map(|path| unsafe { CStr::from_ptr(path) }).collect();
        assert_eq!(all, [path.as_c_str(), c"/"]);
    }
}
