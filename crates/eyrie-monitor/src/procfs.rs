//! Reading /proc and /sys without allocating: paths on the stack, files kept open, numbers parsed
//! in place. Pure except for the reads.

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
        let (mut n, mut count) = (pid, 0);
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

/// The decimal number at the front, after blanks, and what follows it.
pub fn number(text: &[u8]) -> Option<(u64, &[u8])> {
    let start = text.iter().position(|b| *b != b' ' && *b != b'\t')?;
    let text = &text[start..];
    let end = text.iter().position(|b| !b.is_ascii_digit()).unwrap_or(text.len());
    if end == 0 {
        return None;
    }
    let value =
        text[..end].iter().fold(0u64, |n, b| n.wrapping_mul(10).wrapping_add(u64::from(b - b'0')));
    Some((value, &text[end..]))
}

/// The numbers at the front, at most `N`, and how many there are.
pub fn numbers<const N: usize>(mut text: &[u8]) -> ([u64; N], usize) {
    let mut all = [0; N];
    for (count, place) in all.iter_mut().enumerate() {
        match number(text) {
            Some((value, rest)) => (*place, text) = (value, rest),
            None => return (all, count),
        }
    }
    (all, N)
}

/// What follows `key` on the first line that begins with it.
pub fn after<'a>(text: &'a [u8], key: &[u8]) -> Option<&'a [u8]> {
    text.split(|b| *b == b'\n').find_map(|line| line.strip_prefix(key))
}

/// A line of /proc/PID/stat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    pub pid: u32,
    pub command: [u8; 16],
    pub state: u8,
    pub parent: u32,
    pub flags: u64,
    pub user_ticks: u64,
    pub system_ticks: u64,
    pub threads: u32,
    pub start_ticks: u64,
    pub rss_pages: u64,
}

/// `None` when it is not such a line. The command's name may contain anything, even parentheses and
/// blanks: it ends at the last `)`.
pub fn stat(text: &[u8]) -> Option<Stat> {
    let (pid, _) = number(text)?;
    let open = text.iter().position(|b| *b == b'(')?;
    let close = text.iter().rposition(|b| *b == b')')?;
    let name = text.get(open + 1..close)?;
    let mut fields = text.get(close + 2..)?.split(|b| *b == b' ');
    let state = *fields.next()?.first()?;
    let mut field = |skip: usize| fields.nth(skip).and_then(number).map(|(n, _)| n);
    let parent = field(0)?; // field 4 of proc(5)
    let flags = field(4)?; // 9
    let user_ticks = field(4)?; // 14
    let system_ticks = field(0)?; // 15
    let threads = field(4)?; // 20
    let start_ticks = field(1)?; // 22
    let rss_pages = field(1)?; // 24
    Some(Stat {
        pid: pid as u32,
        command: crate::sample::name_of(&name[..name.len().min(15)]),
        state,
        parent: parent as u32,
        flags,
        user_ticks,
        system_ticks,
        threads: threads as u32,
        start_ticks,
        rss_pages,
    })
}

/// Nanoseconds of a tick of /proc: a hundredth of a second on all Linux systems.
pub const TICK_NS: u64 = 10_000_000;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_stat_line_with_a_hostile_name() {
        let line = b"42 (a) R 1 (b) S 7 42 42 0 -1 4194560 100 0 0 0 12 34 0 0 20 0 3 0 5678 1000 \
                     99 18446744073709551615";
        let stat = stat(line).unwrap();
        assert_eq!((stat.pid, stat.state, stat.parent, stat.threads), (42, b'S', 7, 3));
        assert_eq!(
            (stat.user_ticks, stat.system_ticks, stat.start_ticks, stat.rss_pages),
            (12, 34, 5678, 99)
        );
        assert_eq!(crate::sample::text_of(&stat.command), "a) R 1 (b");
    }

    #[test]
    fn our_own_line_is_read() {
        let text = std::fs::read("/proc/self/stat").unwrap();
        let stat = stat(&text).unwrap();
        assert_eq!(stat.pid, std::process::id());
        assert_eq!(stat.parent, std::os::unix::process::parent_id());
        assert!(stat.rss_pages > 0 && stat.start_ticks > 0);
    }

    #[test]
    fn paths_are_made_on_the_stack() {
        assert_eq!(PidPath::new(0, "stat").as_c_str(), c"0/stat");
        assert_eq!(PidPath::new(4194304, "statm").as_c_str(), c"4194304/statm");
    }

    #[test]
    fn keys_and_numbers() {
        let text = b"MemTotal:   123 kB\nMemFree:\t45 kB\n";
        assert_eq!(after(text, b"MemFree:").and_then(number).map(|n| n.0), Some(45));
        assert_eq!(after(text, b"Nothing:"), None);
        assert_eq!(numbers::<3>(b" 1 22  333 4"), ([1, 22, 333], 3));
        assert_eq!(numbers::<3>(b"1 x"), ([1, 0, 0], 1));
    }

    proptest! {
        #[test]
        fn no_input_breaks_the_parsers(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = stat(&bytes);
            let _ = numbers::<8>(&bytes);
            let _ = after(&bytes, b"x");
        }
    }
}
