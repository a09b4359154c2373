//! The locks of an open file, as /proc/self/fdinfo lists them. Only looks.

use super::proc::{read_file, PathBuf};
use crate::refusal::Refusal;
use eyrie_image_format::{lock_kind, Lock};
use eyrie_image_kernel::maps;
use eyrie_image_kernel::sys;

/// Calls `each` with every lock of a descriptor, or with what the file has that a restore cannot
/// give it again. `buf` is a buffer for the kernel's answer.
pub fn for_each(
    fd: i32,
    buf: &mut [u8],
    mut each: impl FnMut(Result<Lock, &'static str>) -> Result<(), Refusal>,
) -> Result<(), Refusal> {
    let path = PathBuf::new(b"/proc/thread-self/fdinfo/", fd as u64, b"");
    let len = read_file(path.as_c(), buf)
        .map_err(|errno| Refusal::Kernel { step: "looking for locks", errno })?;
    if len == buf.len() {
        return Err(Refusal::Kernel { step: "looking for locks", errno: sys::ENOMEM });
    }
    let lines = buf[..len].split(|b| *b == b'\n').filter_map(|l| l.strip_prefix(b"lock:"));
    for line in lines {
        each(parse(line))?;
    }
    Ok(())
}

/// Reads `1: FLOCK  ADVISORY  WRITE 4711 08:01:131 0 EOF`.
fn parse(line: &[u8]) -> Result<Lock, &'static str> {
    let mut words = line.split(|b| b.is_ascii_whitespace()).filter(|w| !w.is_empty()).skip(1);
    let unknown = Err("a file with a lock of an unknown kind");
    let kind = match words.next() {
        Some(b"FLOCK") => lock_kind::FLOCK,
        Some(b"POSIX") => lock_kind::POSIX,
        Some(b"OFDLCK") => lock_kind::OFD,
        Some(b"LEASE" | b"DELEG") => return Err("a file with a lease (F_SETLEASE)"),
        _ => return unknown,
    };
    let exclusive = match words.nth(1) {
        Some(b"WRITE") => 1,
        Some(b"READ") => 0,
        _ => return unknown,
    };
    let Some((start, _)) = words.nth(2).and_then(maps::decimal) else { return unknown };
    let len = match words.next() {
        Some(b"EOF") => 0,
        Some(last) => match maps::decimal(last) {
            Some((last, _)) if last >= start => last - start + 1,
            _ => return unknown,
        },
        None => return unknown,
    };
    Ok(Lock { kind, exclusive, start, len })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_are_read_as_the_kernel_writes_them() {
        let lock = |kind, exclusive, start, len| Ok(Lock { kind, exclusive, start, len });
        let flock = b"\t1: FLOCK  ADVISORY  WRITE 4711 08:01:131 0 EOF";
        assert_eq!(parse(flock), lock(lock_kind::FLOCK, 1, 0, 0));
        let posix = b"\t2: POSIX  ADVISORY  READ 4711 00:1b:131 100 199";
        assert_eq!(parse(posix), lock(lock_kind::POSIX, 0, 100, 100));
        let open_file = b"\t3: OFDLCK ADVISORY  WRITE -1 08:01:131 7 EOF";
        assert_eq!(parse(open_file), lock(lock_kind::OFD, 1, 7, 0));
        let lease = b"\t1: LEASE  ACTIVE    WRITE 4711 08:01:131 0 EOF";
        assert!(parse(lease).unwrap_err().contains("lease"));
        for bad in [
            &b""[..],
            b"1: OTHER  ADVISORY  WRITE 1 1:1:1 0 EOF",
            b"1: FLOCK",
            b"1: POSIX  X READ 1 1:1:1 9 3",
        ] {
            assert!(parse(bad).is_err());
        }
    }
}
