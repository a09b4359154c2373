//! Finds the present name of a file, in the directory where it was. Must not
//! allocate. Opens only directories and, with O_PATH, candidates: closing these drops no lock.

use crate::sys;
use eyrie_image_format::{Identity, PATH_LEN_MAX};

/// What the kernel appends to the path of a file that has lost its name.
pub const DELETED: &[u8] = b" (deleted)";

/// A path in place, followed by a NUL.
pub struct Path {
    bytes: [u8; PATH_LEN_MAX + 1],
    len: usize,
}

impl Path {
    /// `None` when it would be too long, or contains a NUL.
    pub fn join(parts: &[&[u8]]) -> Option<Path> {
        let mut path = Path { bytes: [0; PATH_LEN_MAX + 1], len: 0 };
        for part in parts {
            let end = path.len + part.len();
            path.bytes.get_mut(path.len..end).filter(|_| end <= PATH_LEN_MAX)?;
            path.bytes[path.len..end].copy_from_slice(part);
            path.len = end;
        }
        (!path.as_bytes().contains(&0)).then_some(path)
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// With its NUL.
    pub fn as_c(&self) -> &[u8] {
        &self.bytes[..self.len + 1]
    }
}

/// The directory of a path without its NUL, in the form that precedes a name: empty for `/`.
pub fn directory(path: &[u8]) -> &[u8] {
    &path[..path.iter().rposition(|b| *b == b'/').unwrap_or(0)]
}

/// A path without the mark that the kernel appends for a file that has lost its name.
pub fn without_mark(path: &[u8]) -> &[u8] {
    path.strip_suffix(DELETED).unwrap_or(path)
}

/// A name in the directory of `path` that leads to the file `wanted`. Looks at `most` entries.
pub fn find(path: &[u8], wanted: &Identity, same_boot: bool, most: usize) -> Option<Path> {
    let front = directory(path);
    let opened = Path::join(&[front, b"/"])?;
    let dir = sys::open(opened.as_c(), sys::O_DIRECTORY | sys::O_CLOEXEC, 0).ok()?;
    let mut buf = [0u8; 16384];
    let mut left = most;
    let found = 'read: loop {
        // SAFETY: the kernel writes at most `buf.len()` bytes into `buf`.
        let got = unsafe {
            sys::call3(sys::nr::GETDENTS64, dir as usize, buf.as_mut_ptr() as usize, buf.len())
        };
        let Some(entries) = got.ok().and_then(|n| buf.get(..n)).filter(|b| !b.is_empty()) else {
            break None;
        };
        let mut at = 0;
        // struct linux_dirent64: ino u64, off i64, reclen u16, type u8, name.
        while let Some(entry) = entries.get(at..) {
            let Some(head) = entry.get(..19) else { break };
            let number = |range: core::ops::Range<usize>| {
                head[range].iter().rev().fold(0u64, |n, b| n << 8 | u64::from(*b))
            };
            let ino = number(0..8);
            let len = number(16..18) as usize;
            let Some(name) = entry.get(19..len) else { break };
            let name = &name[..name.iter().position(|b| *b == 0).unwrap_or(name.len())];
            if ino == wanted.ino {
                let path = Path::join(&[front, b"/", name]);
                if let Some(path) = path.filter(|path| leads_to(path, wanted, same_boot)) {
                    break 'read Some(path);
                }
            }
            if left == 0 {
                break 'read None;
            }
            left -= 1;
            at += len;
        }
    };
    sys::close(dir);
    found
}

fn leads_to(path: &Path, wanted: &Identity, same_boot: bool) -> bool {
    let flags = sys::O_PATH | sys::O_NOFOLLOW | sys::O_CLOEXEC;
    let Ok(fd) = sys::open(path.as_c(), flags, 0) else { return false };
    let is = sys::identity(fd).is_ok_and(|here| here.is(wanted, same_boot));
    sys::close(fd);
    is
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn a_file_is_found_by_its_new_name_and_another_with_its_old_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let file = std::fs::File::create(path("old")).unwrap();
        let wanted = sys::identity(file.as_raw_fd()).unwrap();
        std::fs::rename(path("old"), path("new")).unwrap();
        std::fs::write(path("old"), b"another").unwrap();
        let old = path("old");
        let found = find(old.as_os_str().as_bytes(), &wanted, true, 100).unwrap();
        assert_eq!(found.as_bytes(), path("new").as_os_str().as_bytes());
        std::fs::remove_file(path("new")).unwrap();
        assert!(find(old.as_os_str().as_bytes(), &wanted, true, 100).is_none());
    }

    #[test]
    fn paths_have_a_directory_and_lose_the_kernels_mark() {
        assert_eq!(directory(b"/a/b"), b"/a");
        assert_eq!(directory(b"/a"), b"");
        assert_eq!(without_mark(b"/tmp/#12 (deleted)"), b"/tmp/#12");
        assert!(Path::join(&[&[b'a'; PATH_LEN_MAX], b"b"]).is_none());
        assert!(Path::join(&[b"a\0b"]).is_none());
    }
}
