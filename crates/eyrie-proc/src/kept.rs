//! Reads files of /proc and /sys again and again without allocating: paths on the stack, files kept
//! open.

use rustix::fd::OwnedFd;
use rustix::fs::{openat, Mode, OFlags, CWD};
use rustix::io::{pread, Errno};
use rustix::path::Arg;

/// Bytes of a page of memory.
pub fn page_size() -> u64 {
    rustix::param::page_size() as u64
}

/// A path below /proc, relative to it: `123/stat`, zero-terminated, on the stack.
pub struct PidPath {
    text: [u8; 32],
}

impl PidPath {
    pub fn new(pid: u32, file: &str) -> PidPath {
        let mut text = [0; 32];
        let mut digits = [0; 10];
        let mut n = pid;
        let mut count = 0;
        loop {
            digits[count] = b'0' + (n % 10) as u8;
            n /= 10;
            count += 1;
            if n == 0 {
                break;
            }
        }
        for (to, digit) in text.iter_mut().zip(digits[..count].iter().rev()) {
            *to = *digit;
        }
        text[count] = b'/';
        let end = count + 1 + file.len();
        assert!(end < text.len(), "file names here are short");
        text[count + 1..end].copy_from_slice(file.as_bytes());
        PidPath { text }
    }

    fn as_c_str(&self) -> &std::ffi::CStr {
        std::ffi::CStr::from_bytes_until_nul(&self.text).expect("zeros behind")
    }
}

/// Opens for reading.
pub fn open(dir: impl rustix::fd::AsFd, path: &PidPath) -> Result<OwnedFd, Errno> {
    openat(dir, path.as_c_str(), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

/// Opens a file of /proc or /sys to keep it open; `None` when it does not exist or is not readable.
pub fn keep(path: impl Arg) -> Option<OwnedFd> {
    openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()
}

/// Reads a kept-open file from its beginning.
pub fn again<'a>(file: &OwnedFd, buffer: &'a mut [u8]) -> Result<&'a [u8], Errno> {
    let read = pread(file, &mut *buffer, 0)?;
    Ok(&buffer[..read])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_made_on_the_stack() {
        assert_eq!(PidPath::new(0, "stat").as_c_str(), c"0/stat");
        assert_eq!(PidPath::new(4194304, "statm").as_c_str(), c"4194304/statm");
    }
}
