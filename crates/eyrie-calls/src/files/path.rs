//! Paths without `.` and `..`, and with whole directories, so that names can be compared. Symbolic
//! links stay as they are.

use super::kernel::{self, link_of, read_link, working_directory};
use libc::{c_char, c_int};
use std::cell::UnsafeCell;
use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, Ordering};

pub const MOST: usize = 4096;

/// A path in place, with a NUL behind it; empty: none.
#[derive(Clone, Copy)]
pub struct Path {
    bytes: [u8; MOST],
    len: usize,
}

/// The directory in which relative paths begin, while it is gone.
struct Gone(UnsafeCell<Path>);

// SAFETY: used in calls that are being recorded, of which there is one at a time.
unsafe impl Sync for Gone {}

static GONE: Gone = Gone(UnsafeCell::new(Path::NONE));
static IS_GONE: AtomicBool = AtomicBool::new(false);

/// It, if it is.
pub fn gone() -> Option<&'static Path> {
    // SAFETY: it is said that there is one, and it changes in calls only that are recorded.
    IS_GONE.load(Ordering::Relaxed).then(|| unsafe { &*GONE.0.get() })
}

/// Relative paths begin there, where nothing is any more; `None`: where the kernel says.
pub fn set_gone(there: Option<Path>) {
    IS_GONE.store(there.is_some(), Ordering::Relaxed);
    if let Some(there) = there {
        // SAFETY: this call is being recorded, of which there is one at a time.
        unsafe { *GONE.0.get() = there };
    }
}

impl Path {
    pub const NONE: Path = Path { bytes: [0; MOST], len: 0 };

    /// The path that a call names. `None`: it is too long, or its directory is unknown.
    ///
    /// # Safety
    /// `path` must be a C string.
    pub unsafe fn of(dir: c_int, path: *const c_char) -> Option<Path> {
        let mut whole = Path::NONE;
        // SAFETY: the caller passes a C string, as its contract says.
        let given = unsafe { CStr::from_ptr(path) }.to_bytes();
        let gone = gone().filter(|_| dir == libc::AT_FDCWD && given.first() != Some(&b'/'));
        if let Some(here) = gone {
            whole = *here;
        } else if given.first() != Some(&b'/') {
            let mut room = [0u8; MOST];
            let mut link = [0; 32];
            let len = match dir {
                libc::AT_FDCWD => working_directory(&mut room) - 1,
                _ => read_link(libc::AT_FDCWD, link_of(dir, &mut link).as_ptr(), &mut room),
            };
            whole.add(room.get(..usize::try_from(len).ok()?)?)?;
        }
        whole.add(given)?;
        Some(whole)
    }

    /// A path that begins at the root.
    pub fn of_absolute(bytes: &[u8]) -> Option<Path> {
        let mut path = Path::NONE;
        path.add(bytes)?;
        Some(path)
    }

    /// The path that a link leads to.
    pub fn of_link(link: &CStr) -> Option<Path> {
        let mut room = [0u8; MOST];
        let len = usize::try_from(read_link(libc::AT_FDCWD, link.as_ptr(), &mut room)).ok()?;
        Path::of_absolute(room.get(..len).filter(|path| path.starts_with(b"/"))?)
    }

    fn add(&mut self, names: &[u8]) -> Option<()> {
        for name in names.split(|byte| *byte == b'/') {
            match name {
                b"" | b"." => {}
                b".." => self.len = self.directory().len(),
                _ => {
                    let end = self.len + 1 + name.len();
                    self.bytes.get_mut(self.len..end).filter(|_| end < MOST)?[0] = b'/';
                    self.bytes[self.len + 1..end].copy_from_slice(name);
                    self.len = end;
                }
            }
        }
        self.bytes[self.len] = 0;
        Some(())
    }

    /// The names in front of the last one.
    fn directory(&self) -> &[u8] {
        let last = self.as_bytes().iter().rposition(|byte| *byte == b'/');
        &self.bytes[..last.unwrap_or(0)]
    }

    /// The last name; empty: it is the root.
    pub fn name(&self) -> &[u8] {
        self.as_bytes().rsplit(|byte| *byte == b'/').next().unwrap_or(&[])
    }

    /// The directory that it is in.
    pub fn parent(&self) -> Path {
        let mut parent = Path::NONE;
        let front = self.directory();
        parent.bytes[..front.len()].copy_from_slice(front);
        parent.len = front.len();
        if front.is_empty() {
            (parent.bytes[0], parent.len) = (b'/', 1);
        }
        parent
    }

    /// A name in this directory.
    pub fn below(&self, name: &[u8]) -> Option<Path> {
        let mut path = *self;
        if path.as_bytes() == b"/" {
            path.len = 0;
        }
        path.add(name)?;
        Some(path)
    }

    /// A new file without a name, where this one is or in memory.
    pub fn nameless_beside(&self) -> Option<c_int> {
        let flags = libc::O_RDWR | libc::O_CLOEXEC;
        let mut made = kernel::nameless(self.parent().as_c(), flags, 0o600);
        if made < 0 {
            made = kernel::in_memory();
        }
        Some(kernel::move_up(c_int::try_from(made).ok().filter(|fd| *fd >= 0)?))
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    pub fn as_c(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.bytes).unwrap_or(c"")
    }

    pub fn is_none(&self) -> bool {
        self.len == 0
    }

    /// Where it is when `old`, which may be a directory above it, is called `new`.
    pub fn renamed(&self, old: &Path, new: &Path) -> Option<Path> {
        let rest = self.as_bytes().strip_prefix(old.as_bytes())?;
        if !(rest.is_empty() || rest[0] == b'/') || old.is_none() {
            return None;
        }
        let mut path = *new;
        path.add(rest)?;
        Some(path)
    }
}

impl PartialEq for Path {
    fn eq(&self, other: &Path) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &CStr) -> Path {
        // SAFETY: the path is a C string, which outlives the call.
        unsafe { Path::of(libc::AT_FDCWD, text.as_ptr()) }.unwrap()
    }

    #[test]
    fn one_file_has_one_path() {
        assert_eq!(path(c"/a/./b//c/../d/").as_bytes(), b"/a/b/d");
        assert_eq!(path(c"/..").as_bytes(), b"");
        let here = std::env::current_dir().unwrap();
        assert_eq!(path(c"x/../y").as_c().to_str().unwrap(), here.join("y").to_str().unwrap());
        assert_eq!(path(c"/a/b").parent().as_bytes(), b"/a");
        assert_eq!(path(c"/a").parent().as_bytes(), b"/");
    }

    #[test]
    fn what_is_below_a_directory_moves_with_it() {
        let old = path(c"/a/b");
        let new = path(c"/c");
        assert_eq!(path(c"/a/b/x").renamed(&old, &new).unwrap().as_bytes(), b"/c/x");
        assert_eq!(path(c"/a/b").renamed(&old, &new).unwrap().as_bytes(), b"/c");
        assert!(path(c"/a/bc").renamed(&old, &new).is_none());
    }
}
