//! A directory that was removed while the process was in it, or had it open. It is made where it
//! was, opened and removed again, so that its `..` leads to the same place.

use crate::fail::Errno;
use crate::files::error;
use eyrie_image_kernel::names::{directory, Path};
use eyrie_image_kernel::sys::{self, nr};

/// At most so many directories above it may be gone as well: each takes a call with paths on the
/// stack.
const LEVELS_MAX: usize = 12;

/// Opens such a directory; `path` has no NUL. `flags` as for open(2).
pub fn open(path: &[u8], flags: u32) -> i32 {
    make(path, flags).unwrap_or_else(|e| {
        error(path, format_args!("the removed directory cannot be made again: {}", Errno(e)))
    })
}

fn make(path: &[u8], flags: u32) -> Result<i32, i32> {
    let mut there = directory(path);
    while !there.is_empty() && !is_directory(there) {
        there = directory(there);
    }
    // Under a new name: another directory may have got the old one.
    let pid = sys::getpid() as u64;
    let number = sys::clock_ns(1);
    let mut name = [0u8; 40];
    let name = unique(pid, number, &mut name);
    let top = Path::join(&[there, b"/", name]).ok_or(sys::EINVAL)?;
    make_directory(&top)?;
    let below = &path[there.len() + 1..];
    if below.iter().filter(|b| **b == b'/').count() > LEVELS_MAX {
        return Err(sys::EINVAL);
    }
    let made = match below.iter().position(|b| *b == b'/') {
        None => sys::open(top.as_c(), flags | sys::O_DIRECTORY, 0),
        // Directories above it are gone as well.
        Some(slash) => make_below(top.as_bytes(), &below[slash + 1..], flags),
    };
    remove_directory(&top);
    made
}

fn make_below(front: &[u8], names: &[u8], flags: u32) -> Result<i32, i32> {
    let end = names.iter().position(|b| *b == b'/').unwrap_or(names.len());
    let path = Path::join(&[front, b"/", &names[..end]]).ok_or(sys::EINVAL)?;
    make_directory(&path)?;
    let made = if end == names.len() {
        sys::open(path.as_c(), flags | sys::O_DIRECTORY, 0)
    } else {
        make_below(path.as_bytes(), &names[end + 1..], flags)
    };
    remove_directory(&path);
    made
}

fn is_directory(path: &[u8]) -> bool {
    let path = Path::join(&[path]);
    path.and_then(|p| sys::stat(p.as_c()).ok())
        .is_some_and(|st| st.mode & sys::S_IFMT == sys::S_IFDIR)
}

fn make_directory(path: &Path) -> Result<(), i32> {
    // SAFETY: the path ends in a NUL.
    unsafe { sys::call3(nr::MKDIR, path.as_c().as_ptr() as usize, 0o700, 0).map(|_| ()) }
}

fn remove_directory(path: &Path) {
    // SAFETY: the path ends in a NUL.
    let _ = unsafe { sys::call3(nr::RMDIR, path.as_c().as_ptr() as usize, 0, 0) };
}

/// `.eyrie-PID-NUMBER`.
fn unique(pid: u64, number: u64, room: &mut [u8; 40]) -> &[u8] {
    use core::fmt::Write;
    struct Text<'a>(&'a mut [u8], usize);
    impl Write for Text<'_> {
        fn write_str(&mut self, text: &str) -> core::fmt::Result {
            let end = self.1 + text.len();
            self.0.get_mut(self.1..end).ok_or(core::fmt::Error)?.copy_from_slice(text.as_bytes());
            self.1 = end;
            Ok(())
        }
    }
    let mut text = Text(room, 0);
    let _ = write!(text, ".eyrie-{pid}-{number}");
    let len = text.1;
    &room[..len]
}
