//! Small questions to /proc about this process. No allocation: paths are built in place, and
//! answers are read into buffers of the scratch.

use super::scratch::Scratch;
use crate::refusal::Refusal;
use eyrie_image_kernel::maps;
use eyrie_image_kernel::sys;

/// A path such as `/proc/self/fd/7`, built without allocation and NUL-terminated.
pub struct PathBuf {
    bytes: [u8; 64],
    len: usize,
}

impl PathBuf {
    /// `prefix`, the number, `suffix`.
    pub fn new(prefix: &[u8], number: u64, suffix: &[u8]) -> PathBuf {
        let mut path = PathBuf { bytes: [0; 64], len: 0 };
        path.push(prefix);
        path.push_number(number, 10);
        path.push(suffix);
        path
    }

    /// `prefix`, the number, all of `rest`.
    pub fn of(prefix: &[u8], number: u64, rest: &[&[u8]]) -> PathBuf {
        let mut path = PathBuf::new(prefix, number, b"");
        for part in rest {
            path.push(part);
        }
        path
    }

    /// All `parts`.
    pub fn join(parts: &[&[u8]]) -> PathBuf {
        let mut path = PathBuf { bytes: [0; 64], len: 0 };
        for part in parts {
            path.push(part);
        }
        path
    }

    /// The kernel's name of a file mapping of this process.
    pub fn of_mapping(start: u64, end: u64) -> PathBuf {
        let mut path = PathBuf { bytes: [0; 64], len: 0 };
        path.push(b"/proc/self/map_files/");
        path.push_number(start, 16);
        path.push(b"-");
        path.push_number(end, 16);
        path
    }

    fn push_number(&mut self, number: u64, base: u64) {
        let mut digits = [0u8; 20];
        let mut n = number;
        let mut at = 20;
        loop {
            at -= 1;
            digits[at] = b"0123456789abcdef"[(n % base) as usize];
            n /= base;
            if n == 0 {
                break;
            }
        }
        self.push(&digits[at..]);
    }

    fn push(&mut self, bytes: &[u8]) {
        for &b in bytes {
            if self.len < 63 {
                self.bytes[self.len] = b;
                self.len += 1;
            }
        }
    }

    /// With its NUL.
    pub fn as_c(&self) -> &[u8] {
        &self.bytes[..self.len + 1]
    }
}

/// Reads a whole small file of /proc into `buf` and returns its length (cut at the buffer's).
pub fn read_file(path: &[u8], buf: &mut [u8]) -> Result<usize, i32> {
    let fd = sys::open(path, sys::O_CLOEXEC, 0)?;
    let mut len = 0;
    while len < buf.len() {
        match sys::read(fd, &mut buf[len..]) {
            Ok(0) => break,
            Ok(n) => len += n,
            Err(errno) => {
                sys::close(fd);
                return Err(errno);
            }
        }
    }
    sys::close(fd);
    Ok(len)
}

/// The target of the symbolic link `path` (NUL-terminated), in `buf`.
pub fn read_link<'a>(path: &[u8], buf: &'a mut [u8]) -> Result<&'a [u8], i32> {
    // SAFETY: the path is NUL-terminated, and the kernel writes at most `buf.len()` bytes into
    // `buf`.
    let len = unsafe {
        sys::call3(sys::nr::READLINK, path.as_ptr() as usize, buf.as_mut_ptr() as usize, buf.len())?
    };
    Ok(&buf[..len])
}

/// Calls `each` with every numeric entry of the directory `path` until it fails. `buf` is a buffer
/// for the kernel's answers.
pub fn for_each_number(
    path: &[u8],
    buf: &mut [u8],
    mut each: impl FnMut(u64, i32) -> Result<(), Refusal>,
) -> Result<(), Refusal> {
    let failed = |errno| Refusal::Kernel { step: "listing a directory of /proc", errno };
    let dir = sys::open(path, sys::O_DIRECTORY | sys::O_CLOEXEC, 0).map_err(failed)?;
    let result = (|| loop {
        // SAFETY: the kernel writes at most `buf.len()` bytes into `buf`.
        let got = unsafe {
            sys::call3(sys::nr::GETDENTS64, dir as usize, buf.as_mut_ptr() as usize, buf.len())
        }
        .map_err(failed)?;
        if got == 0 {
            return Ok(());
        }
        let mut at = 0;
        // struct linux_dirent64: ino u64, off i64, reclen u16, type u8, name.
        while let Some(reclen) = buf.get(at + 16..at + 18) {
            let reclen = u16::from_le_bytes([reclen[0], reclen[1]]) as usize;
            if at >= got || reclen < 20 {
                break;
            }
            if let Some((n, [0, ..])) = buf.get(at + 19..got).and_then(maps::decimal) {
                each(n, dir)?;
            }
            at += reclen;
        }
    })();
    sys::close(dir);
    result
}

/// /proc/PID/status, read once, because the kernel takes long to write it.
#[derive(Clone, Copy)]
pub struct Status(&'static [u8]);

impl Status {
    /// # Safety
    /// Must not outlive the scratch.
    pub unsafe fn read(scratch: &mut Scratch, path: &[u8]) -> Result<Status, Refusal> {
        let failed = |errno| Refusal::Kernel { step: "reading /proc/thread-self/status", errno };
        // SAFETY: the caller does not use the result after the scratch is released.
        let room = unsafe { scratch.take::<u8>(8192)? };
        let len = read_file(path, room).map_err(failed)?;
        Ok(Status(&room[..len]))
    }

    /// The text after `name` (with its colon), without the space around it.
    pub fn line(&self, name: &[u8]) -> Option<&'static [u8]> {
        let mut lines = self.0.split(|b| *b == b'\n');
        lines.find_map(|line| line.strip_prefix(name)).map(|rest| rest.trim_ascii())
    }

    /// The number that follows `name`.
    pub fn number(&self, name: &[u8]) -> Option<u64> {
        Some(maps::decimal(self.line(name)?)?.0)
    }
}

/// Refuses a process with children, POSIX timers, a tracer or a shadow stack.
pub fn check_alone(status: &Status, buf: &mut [u8]) -> Result<(), Refusal> {
    check_children(buf)?;
    if let Some(pid) = status.number(b"TracerPid:").filter(|pid| *pid != 0) {
        return Err(Refusal::Traced { pid: pid as i32 });
    }
    // A kernel without the file cannot list timers. Such kernels are built for small devices.
    if let Ok(1..) = read_file(b"/proc/self/timers\0", buf) {
        return Err(Refusal::Timer);
    }
    let mut features = 0u64;
    // SAFETY: the kernel writes one word into `features`. Kernels without shadow stacks return
    // EINVAL.
    let asked = unsafe {
        sys::call3(sys::nr::ARCH_PRCTL, sys::ARCH_SHSTK_STATUS, &raw mut features as usize, 0)
    };
    if asked.is_ok() && features != 0 {
        return Err(Refusal::ShadowStack);
    }
    Ok(())
}

/// Refuses a process that has a child, even one that has ended.
fn check_children(buf: &mut [u8]) -> Result<(), Refusal> {
    const P_ALL: usize = 0;
    // WNOHANG | WEXITED | WNOWAIT | __WALL: look, change nothing.
    const LOOK: usize = 1 | 4 | 0x0100_0000 | 0x4000_0000;
    let mut info = [0u64; 16];
    // SAFETY: the kernel writes a siginfo_t of 128 bytes, which `info` holds.
    let looked =
        unsafe { sys::call6(sys::nr::WAITID, P_ALL, 0, info.as_mut_ptr() as usize, LOOK, 0, 0) };
    if looked.is_err() {
        return Ok(()); // ECHILD
    }
    let path = PathBuf::new(b"/proc/self/task/", sys::gettid() as u64, b"/children");
    let len = read_file(path.as_c(), buf).unwrap_or(0);
    let pid = maps::decimal(&buf[..len]).map_or(0, |(pid, _)| pid);
    Err(Refusal::Child { pid: pid as i32 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_put_together_with_their_nul() {
        assert_eq!(
            PathBuf::new(b"/proc/thread-self/fd/", 0, b"").as_c(),
            b"/proc/thread-self/fd/0\0"
        );
        assert_eq!(PathBuf::new(b"/t/", 1234, b"/comm").as_c(), b"/t/1234/comm\0");
        let mapping = PathBuf::of_mapping(0x7fff_1234_0000, 0xffff_ffff_ffff_f000);
        assert_eq!(mapping.as_c(), b"/proc/self/map_files/7fff12340000-fffffffffffff000\0");
    }
}
