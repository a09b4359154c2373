//! Reads the lines of /proc/self/maps and /proc/self/smaps through a buffer of the caller. Must
//! not allocate.

use crate::sys;

/// One line of maps, borrowed from the buffer.
#[derive(Clone, Copy)]
pub struct Line<'a> {
    pub start: u64,
    pub end: u64,
    /// `rwxp`, `r--s` and so on.
    pub perms: [u8; 4],
    pub offset: u64,
    /// Device number as st_dev has it.
    pub dev: u64,
    pub ino: u64,
    /// Path or `[name]`, empty for anonymous memory.
    pub name: &'a [u8],
}

impl Line<'_> {
    pub fn shared(&self) -> bool {
        self.perms[3] == b's'
    }

    pub fn prot(&self) -> u32 {
        (self.perms[0] == b'r') as u32
            | ((self.perms[1] == b'w') as u32) << 1
            | ((self.perms[2] == b'x') as u32) << 2
    }
}

/// Parses a line of maps; `None` for any other line.
pub fn parse(line: &[u8]) -> Option<Line<'_>> {
    let (start, rest) = hex(line)?;
    let rest = rest.strip_prefix(b"-")?;
    let (end, rest) = hex(rest)?;
    let rest = rest.strip_prefix(b" ")?;
    let perms: [u8; 4] = rest.get(..4)?.try_into().ok()?;
    let (offset, rest) = hex(rest.get(5..)?)?;
    let (major, rest) = hex(rest.strip_prefix(b" ")?)?;
    let (minor, rest) = hex(rest.strip_prefix(b":")?)?;
    let (ino, mut rest) = decimal(rest.strip_prefix(b" ")?)?;
    while let Some(r) = rest.strip_prefix(b" ") {
        rest = r;
    }
    let dev = (minor & 0xff) | (major & 0xfff) << 8 | (minor & !0xff) << 12;
    Some(Line { start, end, perms, offset, dev, ino, name: rest })
}

/// A hexadecimal number at the beginning, and the text after it.
pub fn hex(text: &[u8]) -> Option<(u64, &[u8])> {
    number(text, 16)
}

/// A decimal number at the beginning, and the text after it.
pub fn decimal(text: &[u8]) -> Option<(u64, &[u8])> {
    number(text, 10)
}

fn number(text: &[u8], base: u32) -> Option<(u64, &[u8])> {
    let mut value = 0u64;
    let mut n = 0;
    while let Some(digit) = text.get(n).and_then(|c| (*c as char).to_digit(base)) {
        value = value.checked_mul(base as u64)?.checked_add(digit as u64)?;
        n += 1;
    }
    (n > 0).then(|| (value, &text[n..]))
}

/// Calls `each` with every line of the open file `fd` (without its newline) until it returns false.
/// A line longer than `buf` gives ENOMEM.
pub fn for_each_line(
    fd: i32,
    buf: &mut [u8],
    mut each: impl FnMut(&[u8]) -> bool,
) -> Result<(), i32> {
    let mut held = 0;
    loop {
        if held == buf.len() {
            return Err(sys::ENOMEM);
        }
        let got = sys::read(fd, &mut buf[held..])?;
        if got == 0 {
            return Ok(());
        }
        held += got;
        let mut at = 0;
        while let Some(n) = buf[at..held].iter().position(|c| *c == b'\n') {
            if !each(&buf[at..at + n]) {
                return Ok(());
            }
            at += n + 1;
        }
        buf.copy_within(at..held, 0);
        held -= at;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_maps_is_read_with_its_device_as_stat_has_it() {
        let line =
            parse(b"7f68f9b89000-7f68f9be0000 r--p 00001000 103:1a 316526     /a b").unwrap();
        assert_eq!((line.start, line.end), (0x7f68f9b89000, 0x7f68f9be0000));
        assert_eq!((line.offset, line.ino, line.name), (0x1000, 316526, &b"/a b"[..]));
        assert_eq!(line.dev, 0x1031a);
        assert!(!line.shared());
        assert!(parse(b"VmFlags: rd mr").is_none());
    }

    #[test]
    fn the_lines_of_this_process_are_all_read_through_a_small_buffer() {
        let fd = sys::open(b"/proc/thread-self/maps\0", 0, 0).unwrap();
        let mut count = 0;
        for_each_line(fd, &mut [0; 512], |line| {
            assert!(parse(line).is_some(), "{}", String::from_utf8_lossy(line));
            count += 1;
            true
        })
        .unwrap();
        sys::close(fd);
        assert!(count > 5);
    }
}
