//! What is asked of the kernel about files, without the C library's functions in front of which
//! ours stand. Results are numbers, or negative errnos.

use crate::job_start::changed_in_job;
use libc::{c_char, c_int, c_long, c_void};
use std::ffi::CStr;

/// Our descriptors have numbers from here on, out of the program's way.
const FIRST_FD: usize = 600;
/// Where the open files of this process are. Not /proc/self: of a process whose first thread has
/// ended, while others go on, that tells of none.
const FD: &[u8] = b"/proc/thread-self/fd/";
/// Where paths begin that are not of a directory.
pub const HERE: c_int = libc::AT_FDCWD;

pub fn errno() -> c_int {
    // SAFETY: errno of this thread is valid while the thread runs, and no other thread uses it.
    unsafe { *libc::__errno_location() }
}

/// A system call that takes at most six numbers. Not by syscall(2) of the C library, in front of
/// which ours stands.
fn call_with_six(number: c_long, [a, b, c, d, e, f]: [usize; 6]) -> i64 {
    let result;
    // SAFETY: each caller below hands over what its system call takes.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") a,
            in("rsi") b,
            in("rdx") c,
            in("r10") d,
            in("r8") e,
            in("r9") f,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result
}

/// The same with five.
fn call(number: c_long, [a, b, c, d, e]: [usize; 5]) -> i64 {
    call_with_six(number, [a, b, c, d, e, 0])
}

/// What tells a file from all others on its host; all zero: none.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Identity {
    pub ino: u64,
    pub born_ns: i64,
}

/// What is there.
#[derive(Clone, Copy, Default)]
pub struct Found {
    pub id: Identity,
    pub size: u64,
    pub mode: u32,
    /// The job may have changed it.
    pub in_job: bool,
}

impl Found {
    pub fn is_regular(&self) -> bool {
        self.mode & libc::S_IFMT == libc::S_IFREG
    }

    pub fn is_directory(&self) -> bool {
        self.mode & libc::S_IFMT == libc::S_IFDIR
    }
}

/// A time of a file in nanoseconds.
pub fn ns(seconds: i64, rest: i64) -> i64 {
    seconds.wrapping_mul(1_000_000_000).wrapping_add(rest)
}

fn statx(dir: c_int, path: *const c_char, flags: c_int) -> Result<Found, i64> {
    // SAFETY: all zero is a valid structure.
    let mut st: libc::statx = unsafe { std::mem::zeroed() };
    let mask = (libc::STATX_BASIC_STATS | libc::STATX_BTIME) as usize;
    let to = &raw mut st as usize;
    let result = call(libc::SYS_statx, [dir as usize, path as usize, flags as usize, mask, to]);
    if result < 0 {
        return Err(result);
    }
    let born_ns = ns(st.stx_btime.tv_sec, st.stx_btime.tv_nsec.into());
    let id = Identity { ino: st.stx_ino, born_ns };
    let device = libc::makedev(st.stx_dev_major, st.stx_dev_minor);
    let is_fine = || match flags & libc::AT_EMPTY_PATH {
        0 => has_fine_times(dir, path, flags & libc::AT_SYMLINK_NOFOLLOW == 0, device),
        _ => keeps_nanoseconds(dir),
    };
    let in_job = changed_in_job(ns(st.stx_ctime.tv_sec, st.stx_ctime.tv_nsec.into()), is_fine);
    Ok(Found { id, size: st.stx_size, mode: st.stx_mode.into(), in_job })
}

/// The file that a path leads to; `follow`: through a last link.
pub fn look(dir: c_int, path: *const c_char, follow: bool) -> Result<Found, i64> {
    statx(dir, path, if follow { 0 } else { libc::AT_SYMLINK_NOFOLLOW })
}

/// An open file.
pub fn look_at(fd: c_int) -> Result<Found, i64> {
    statx(fd, c"".as_ptr(), libc::AT_EMPTY_PATH)
}

/// stat(2).
pub fn stat(path: &CStr, to: *mut c_void) -> i64 {
    let path = path.as_ptr() as usize;
    call(libc::SYS_newfstatat, [HERE as usize, path, to as usize, 0, 0])
}

/// The mode of a link itself, as lstat(2).
pub fn mode_of_link(path: &CStr) -> Option<u32> {
    // SAFETY: all zero is a valid structure.
    let mut st: libc::stat = unsafe { std::mem::zeroed() };
    let path = path.as_ptr() as usize;
    let to = &raw mut st as usize;
    let flags = libc::AT_SYMLINK_NOFOLLOW as usize;
    let found = call(libc::SYS_newfstatat, [HERE as usize, path, to, flags, 0]);
    (found == 0).then_some(st.st_mode)
}

/// fstat(2).
pub fn identify(fd: c_int, to: *mut c_void) -> i64 {
    call(libc::SYS_fstat, [fd as usize, to as usize, 0, 0, 0])
}

fn stat_of(fd: c_int) -> Option<libc::stat> {
    // SAFETY: all zero is a valid structure.
    let mut st: libc::stat = unsafe { std::mem::zeroed() };
    (identify(fd, (&raw mut st).cast()) == 0).then_some(st)
}

/// Number of an open file in the kernel, and its size; `None` for what is no regular file.
pub fn number_of(fd: c_int) -> Option<((u64, u64), u64)> {
    let st = stat_of(fd).filter(|st| st.st_mode & libc::S_IFMT == libc::S_IFREG)?;
    Some(((st.st_dev, st.st_ino), st.st_size as u64))
}

/// A regular file that is open.
#[derive(Clone, Copy)]
pub struct File {
    /// Device and number.
    pub number: (u64, u64),
    pub size: u64,
    /// When it was changed last, in nanoseconds of CLOCK_REALTIME.
    pub changed_ns: i64,
    /// The job may have changed it.
    pub in_job: bool,
    /// It has no name (any more).
    pub nameless: bool,
}

/// The regular file that is open there; `None`: a pipe, a socket, a device, a directory, or a file
/// of which the kernel makes the content when it is read (/proc, /sys).
pub fn file_at(fd: c_int) -> Option<File> {
    let st = stat_of(fd).filter(|st| st.st_mode & libc::S_IFMT == libc::S_IFREG)?;
    let made_when_read = st.st_blocks == 0 && matches!(st.st_size, 0 | 4096);
    let changed_ns = ns(st.st_ctime, st.st_ctime_nsec);
    (!made_when_read || !is_of_the_kernel(fd)).then(|| File {
        number: (st.st_dev, st.st_ino),
        size: st.st_size as u64,
        changed_ns,
        in_job: changed_in_job(changed_ns, || keeps_nanoseconds(fd)),
        nameless: st.st_nlink == 0,
    })
}

/// The content of an open file from a page on, to be read; given back by [`unmap`].
pub fn map<'a>(fd: c_int, from: u64, len: usize) -> Option<&'a [u8]> {
    if len == 0 {
        return None;
    }
    let access = libc::PROT_READ as usize;
    let flags = libc::MAP_PRIVATE as usize;
    let at = call_with_six(libc::SYS_mmap, [0, len, access, flags, fd as usize, from as usize]);
    // SAFETY: so many bytes are mapped there. A process that cuts the file meanwhile ends this one,
    // as it would while the dynamic linker maps it.
    (at > 0).then(|| unsafe { std::slice::from_raw_parts(at as *const u8, len) })
}

/// Gives back what [`map`] has given.
pub fn unmap(bytes: &[u8]) {
    call(libc::SYS_munmap, [bytes.as_ptr() as usize, bytes.len(), 0, 0, 0]);
}

/// Maps an open file in the place of what is mapped there, shared with others; false: it cannot be.
pub fn map_shared_at(at: *mut c_void, len: usize, access: c_int, fd: c_int, from: u64) -> bool {
    let flags = (libc::MAP_SHARED | libc::MAP_FIXED) as usize;
    let place = [at as usize, len, access as usize, flags, fd as usize, from as usize];
    call_with_six(libc::SYS_mmap, place) == at as i64
}

/// Lets mapped memory be read; what else it allowed is not any more.
pub fn let_read(at: *mut c_void, len: usize) -> bool {
    call(libc::SYS_mprotect, [at as usize, len, libc::PROT_READ as usize, 0, 0]) == 0
}

/// Whether a path leads to a file with the same content as an open one.
pub fn has_same(path: *const c_char, other: c_int) -> bool {
    // SAFETY: a C string, as the caller has looked.
    let fd = open(HERE, unsafe { CStr::from_ptr(path) }, libc::O_RDONLY | libc::O_CLOEXEC, 0);
    let Some(fd) = c_int::try_from(fd).ok().filter(|fd| *fd >= 0) else { return false };
    let size = |fd| stat_of(fd).map_or(0, |st| st.st_size as usize);
    let mapped =
        (size(fd) == size(other)).then(|| (map(fd, 0, size(fd)), map(other, 0, size(other))));
    close(fd);
    match mapped {
        Some((Some(a), Some(b))) => {
            let same = a == b;
            unmap(a);
            unmap(b);
            same
        }
        _ => false,
    }
}

/// The number of a pipe that is open there.
pub fn pipe_at(fd: c_int) -> Option<(u64, u64)> {
    let st = stat_of(fd).filter(|st| st.st_mode & libc::S_IFMT == libc::S_IFIFO)?;
    Some((st.st_dev, st.st_ino))
}

/// Reads so many bytes and forgets them: those that are there, or also those that will be.
pub fn discard(fd: c_int, n: i64, wait: bool) {
    let mut bytes = [0u8; 4096];
    let mut left = usize::try_from(n).unwrap_or(0);
    while left > 0 {
        let mut one = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let ms = if wait { usize::MAX } else { 0 };
        let ready = call(libc::SYS_poll, [&raw mut one as usize, 1, ms, 0, 0]);
        if ready == -i64::from(libc::EINTR) {
            continue;
        }
        let room = [bytes.as_mut_ptr() as usize, left.min(bytes.len())];
        match call(
            libc::SYS_read,
            [fd as usize, room[0], if ready == 1 { room[1] } else { 0 }, 0, 0],
        ) {
            n @ 1.. => left -= n as usize,
            _ => return,
        }
    }
}

/// The kind of an open file's file system (linux/magic.h).
pub fn file_system(fd: c_int) -> Option<i64> {
    // SAFETY: all zero is a valid structure.
    let mut fs: libc::statfs = unsafe { std::mem::zeroed() };
    let result = call(libc::SYS_fstatfs, [fd as usize, &raw mut fs as usize, 0, 0, 0]);
    (result == 0).then_some(fs.f_type)
}

/// Whether an open file is on a file system of this host that keeps times to the nanosecond: ext4,
/// xfs, btrfs, tmpfs, and overlayfs, which is only over such.
pub fn keeps_nanoseconds(fd: c_int) -> bool {
    const FINE: [i64; 5] = [0xef53, 0x5846_5342, 0x9123_683e, 0x0102_1994, 0x794c_7630];
    file_system(fd).is_some_and(|kind| FINE.contains(&kind))
}

/// The same of what a path leads to, which is on this device. Its descriptor is for the path only:
/// to close it releases no locks that the program has.
pub fn has_fine_times(dir: c_int, path: *const c_char, follow: bool, device: u64) -> bool {
    let flags = libc::O_PATH | libc::O_CLOEXEC | if follow { 0 } else { libc::O_NOFOLLOW };
    // SAFETY: a C string, as the caller has looked.
    let fd = open(dir, unsafe { CStr::from_ptr(path) }, flags, 0);
    let Some(fd) = c_int::try_from(fd).ok().filter(|fd| *fd >= 0) else { return false };
    let is_fine = stat_of(fd).is_some_and(|st| st.st_dev == device) && keeps_nanoseconds(fd);
    close(fd);
    is_fine
}

/// What the kernel says of a process (proc_pid_stat(5)): how many bytes.
pub fn stat_of_process(process: libc::pid_t, to: &mut [u8]) -> usize {
    let mut path = [0u8; 32];
    let mut len = 0;
    let mut room = [0; 10];
    for part in [&b"/proc/"[..], digits(process.unsigned_abs(), &mut room), b"/stat"] {
        path[len..len + part.len()].copy_from_slice(part);
        len += part.len();
    }
    content(CStr::from_bytes_until_nul(&path).unwrap_or(c""), to)
}

/// What a short file has: how many bytes.
pub fn content(path: &CStr, to: &mut [u8]) -> usize {
    let fd = open(HERE, path, libc::O_RDONLY | libc::O_CLOEXEC, 0);
    let Some(fd) = c_int::try_from(fd).ok().filter(|fd| *fd >= 0) else { return 0 };
    let n = read_at(fd, to, 0);
    close(fd);
    n
}

/// Returns when the content of a file is where a failure of this node does not take it.
pub fn write_back(fd: c_int) {
    call(libc::SYS_fdatasync, [fd as usize, 0, 0, 0, 0]);
}

/// Whether an open file is of a file system that shows the kernel's state: proc, sysfs, cgroup,
/// cgroup2, debugfs, tracefs (linux/magic.h).
fn is_of_the_kernel(fd: c_int) -> bool {
    const KERNELS: [i64; 6] =
        [0x9fa0, 0x6265_6572, 0x0027_e0eb, 0x6367_7270, 0x6462_6720, 0x7472_6163];
    file_system(fd).is_some_and(|kind| KERNELS.contains(&kind))
}

pub fn open(dir: c_int, path: &CStr, flags: c_int, mode: u32) -> i64 {
    let path = path.as_ptr() as usize;
    call(libc::SYS_openat, [dir as usize, path, flags as usize, mode as usize, 0])
}

/// Closes a descriptor, if there is one.
pub fn close(fd: c_int) {
    if fd < 0 {
        return;
    }
    call(libc::SYS_close, [fd as usize, 0, 0, 0, 0]);
}

/// The numbers that descriptors of this process have, and some between them.
pub fn descriptors() -> std::ops::RangeInclusive<c_int> {
    let mut highest = 0;
    let listed = for_each_descriptor(&mut |number| highest = highest.max(number));
    0..=if listed { highest } else { 4096 }
}

/// The numbers that descriptors of this process have; above 1023 some between them, too.
pub fn open_descriptors() -> impl Iterator<Item = c_int> {
    let mut highest = 0;
    let mut open = [0u64; 16];
    let listed = for_each_descriptor(&mut |number| {
        highest = highest.max(number);
        if let Some(word) = open.get_mut(number as usize / 64) {
            *word |= 1 << (number % 64);
        }
    });
    let may_be_open = move |number: &c_int| {
        !listed || open.get(*number as usize / 64).is_none_or(|word| word >> (number % 64) & 1 != 0)
    };
    (0..=if listed { highest } else { 4096 }).filter(may_be_open)
}

/// Tells the numbers of all descriptors; false: they cannot be listed.
fn for_each_descriptor(tell: &mut dyn FnMut(c_int)) -> bool {
    for_each_name(c"/proc/thread-self/fd", &mut |name| {
        let digits = name.iter().take_while(|byte| byte.is_ascii_digit());
        tell(digits.fold(0, |n, byte| n * 10 + c_int::from(byte - b'0')));
    })
}

/// Tells the names in a directory, without those of itself and of its parent; false: it cannot be
/// opened.
pub fn for_each_name(directory: &CStr, tell: &mut dyn FnMut(&[u8])) -> bool {
    const DIRECTORY: c_int = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
    let all = open(HERE, directory, DIRECTORY | libc::O_NOFOLLOW, 0);
    let Some(all) = c_int::try_from(all).ok().filter(|all| *all >= 0) else { return false };
    let mut room = [0u8; 4096];
    loop {
        let place = [all as usize, room.as_mut_ptr() as usize, room.len()];
        let n = call(libc::SYS_getdents64, [place[0], place[1], place[2], 0, 0]);
        let Some(entries) = usize::try_from(n).ok().and_then(|n| room.get(..n)) else { break };
        if entries.is_empty() {
            break;
        }
        // struct linux_dirent64: ino u64, off i64, reclen u16, type u8, name.
        let mut rest = entries;
        while let Some(len) =
            rest.get(16..18).map(|len| usize::from(len[0]) | usize::from(len[1]) << 8)
        {
            let name = rest.get(19..len).unwrap_or(&[]).split(|byte| *byte == 0).next();
            if let Some(name) = name.filter(|name| ![&b"."[..], b".."].contains(name)) {
                tell(name);
            }
            rest = rest.get(len..).unwrap_or(&[]);
        }
    }
    close(all);
    true
}

/// Whether an epoll instance waits for a descriptor of which `is_it` says so.
pub fn watches(epoll: c_int, is_it: &dyn Fn(c_int) -> bool) -> bool {
    const FRONT: &[u8] = b"/proc/thread-self/fdinfo/";
    let mut path = [0u8; 64];
    let mut room = [0u8; 32];
    let number = link_of(epoll, &mut room).to_bytes().strip_prefix(FD).unwrap_or(&[]);
    path[..FRONT.len()].copy_from_slice(FRONT);
    path[FRONT.len()..FRONT.len() + number.len()].copy_from_slice(number);
    let path = CStr::from_bytes_until_nul(&path).unwrap_or(c"");
    let file = open(HERE, path, libc::O_RDONLY | libc::O_CLOEXEC, 0);
    let Some(file) = c_int::try_from(file).ok().filter(|file| *file >= 0) else { return false };
    let mut bytes = [0u8; 16 << 10];
    let place = [file as usize, bytes.as_mut_ptr() as usize, bytes.len()];
    let n = call(libc::SYS_read, [place[0], place[1], place[2], 0, 0]);
    close(file);
    // tfd:        5 events:       19 data: ...
    let text = bytes.get(..usize::try_from(n).unwrap_or(0)).unwrap_or(&[]);
    let watched = text.split(|byte| *byte == b'\n').filter_map(|line| line.strip_prefix(b"tfd:"));
    let mut numbers = watched.map(|rest| {
        let digits = rest.iter().skip_while(|byte| **byte == b' ');
        let digits = digits.take_while(|byte| byte.is_ascii_digit());
        digits.fold(0, |n: c_int, byte| n.wrapping_mul(10).wrapping_add((byte - b'0').into()))
    });
    numbers.any(is_it)
}

/// Moves a descriptor out of the program's way.
pub fn move_up(fd: c_int) -> c_int {
    let high = duplicate(fd);
    if high < 0 {
        return fd;
    }
    close(fd);
    high
}

/// Another descriptor of the same open file, out of the program's way.
pub fn duplicate(fd: c_int) -> c_int {
    fcntl(fd, libc::F_DUPFD_CLOEXEC, FIRST_FD) as c_int
}

pub fn fcntl(fd: c_int, what: c_int, argument: usize) -> i64 {
    call(libc::SYS_fcntl, [fd as usize, what as usize, argument, 0, 0])
}

pub fn flock(fd: c_int, how: c_int) -> i64 {
    call(libc::SYS_flock, [fd as usize, how as usize, 0, 0, 0])
}

/// Puts an open file in the place of another one; what that is to exec(2) stays.
pub fn put_in_place(from: c_int, to: c_int) {
    let closes = fcntl(to, libc::F_GETFD, 0) & i64::from(libc::FD_CLOEXEC) != 0;
    let flags = if closes { libc::O_CLOEXEC } else { 0 };
    call(libc::SYS_dup3, [from as usize, to as usize, flags as usize, 0, 0]);
}

/// Whether two descriptors are of the same open file, so that they share its position.
pub fn is_same(a: c_int, b: c_int) -> bool {
    const FILE: usize = 0;
    let process = call(libc::SYS_getpid, [0; 5]) as usize;
    call(libc::SYS_kcmp, [process, process, FILE, a as usize, b as usize]) == 0
}

pub fn seek(fd: c_int, to: i64, whence: c_int) -> i64 {
    call(libc::SYS_lseek, [fd as usize, to as usize, whence as usize, 0, 0])
}

/// Where the content of an open file ends that lies between two places: behind that are holes. It
/// stands where it stood.
pub fn end_of_content(fd: c_int, from: u64, to: u64) -> u64 {
    let here = seek(fd, 0, libc::SEEK_CUR);
    let mut at = from;
    let mut end = from;
    while at < to {
        let next = match seek(fd, at as i64, libc::SEEK_DATA) {
            next @ 0.. if (next as u64) < to => next,
            none if none >= 0 || none == -i64::from(libc::ENXIO) => break,
            _ => {
                // It cannot be known.
                end = to;
                break;
            }
        };
        at = seek(fd, next, libc::SEEK_HOLE).max(next + 1) as u64;
        end = at.min(to);
    }
    seek(fd, here, libc::SEEK_SET);
    end
}

pub fn set_size(fd: c_int, size: u64) -> i64 {
    call(libc::SYS_ftruncate, [fd as usize, size as usize, 0, 0, 0])
}

/// Reads on.
pub fn read(fd: c_int, to: &mut [u8]) -> i64 {
    call(libc::SYS_read, [fd as usize, to.as_mut_ptr() as usize, to.len(), 0, 0])
}

/// Reads as much as there is, at most the length of `to`.
pub fn read_at(fd: c_int, to: &mut [u8], at: u64) -> usize {
    let mut done = 0;
    while done < to.len() {
        let rest = &mut to[done..];
        let place = [fd as usize, rest.as_mut_ptr() as usize, rest.len()];
        match call(libc::SYS_pread64, [place[0], place[1], place[2], at as usize + done, 0]) {
            n @ 1.. => done += n as usize,
            e if e == -i64::from(libc::EINTR) => {}
            _ => break,
        }
    }
    done
}

/// Writes what can be written.
pub fn write(fd: c_int, bytes: &[u8]) {
    call(libc::SYS_write, [fd as usize, bytes.as_ptr() as usize, bytes.len(), 0, 0]);
}

/// Writes all; false when that fails.
pub fn write_at(fd: c_int, bytes: &[u8], at: u64) -> bool {
    let mut done = 0;
    while done < bytes.len() {
        let rest = &bytes[done..];
        let place = [fd as usize, rest.as_ptr() as usize, rest.len()];
        match call(libc::SYS_pwrite64, [place[0], place[1], place[2], at as usize + done, 0]) {
            n @ 1.. => done += n as usize,
            e if e == -i64::from(libc::EINTR) => {}
            _ => return false,
        }
    }
    true
}

/// Gives an open file that has no name one; not in the place of another.
pub fn give_name(fd: c_int, dir: c_int, path: *const c_char) -> i64 {
    let mut room = [0; 32];
    let of = link_of(fd, &mut room).as_ptr() as usize;
    let here = HERE as usize;
    let flags = libc::AT_SYMLINK_FOLLOW as usize;
    call(libc::SYS_linkat, [here, of, dir as usize, path as usize, flags])
}

/// Gives a file another name.
pub fn link(old: &CStr, new: &CStr) -> i64 {
    call(libc::SYS_link, [old.as_ptr() as usize, new.as_ptr() as usize, 0, 0, 0])
}

pub fn unlink(path: &CStr) -> i64 {
    call(libc::SYS_unlink, [path.as_ptr() as usize, 0, 0, 0, 0])
}

/// Lets a file share the content of another one, where the file system can (ioctl_ficlone(2)).
pub fn share_content(from: c_int, to: c_int) -> bool {
    const FICLONE: usize = 0x4004_9409;
    call(libc::SYS_ioctl, [to as usize, FICLONE, from as usize, 0, 0]) == 0
}

/// Gives a file the time at which the content of another one was changed.
pub fn copy_time(from: c_int, to: c_int) {
    let Some(st) = stat_of(from) else { return };
    let keep = libc::timespec { tv_sec: 0, tv_nsec: libc::UTIME_OMIT };
    let times = [keep, libc::timespec { tv_sec: st.st_mtime, tv_nsec: st.st_mtime_nsec }];
    call(libc::SYS_utimensat, [to as usize, 0, times.as_ptr() as usize, 0, 0]);
}

/// A new file that has no name, in this directory; or in memory, when that may be.
pub fn nameless(directory: &CStr, flags: c_int, mode: u32) -> i64 {
    open(HERE, directory, flags | libc::O_TMPFILE, mode)
}

pub fn in_memory() -> i64 {
    let name = c"eyrie".as_ptr() as usize;
    call(libc::SYS_memfd_create, [name, libc::MFD_CLOEXEC as usize, 0, 0, 0])
}

fn make_directory(path: &CStr, mode: u32) -> i64 {
    call(libc::SYS_mkdir, [path.as_ptr() as usize, mode as usize, 0, 0, 0])
}

pub fn remove_directory(path: &CStr) {
    call(libc::SYS_rmdir, [path.as_ptr() as usize, 0, 0, 0, 0]);
}

/// Makes what has a name but no content: a directory, a pipe, a device.
pub fn make_node(path: &CStr, mode: u32, device: u64) -> i64 {
    if mode & libc::S_IFMT == libc::S_IFDIR {
        return make_directory(path, mode & !libc::S_IFMT);
    }
    call(libc::SYS_mknod, [path.as_ptr() as usize, mode as usize, device as usize, 0, 0])
}

/// Removes what [`make_node`] has made.
pub fn remove_node(path: &CStr, mode: u32) {
    match mode & libc::S_IFMT {
        libc::S_IFDIR => remove_directory(path),
        _ => _ = unlink(path),
    }
}

/// Makes a directory the one in which relative paths begin.
pub fn go_to(path: &CStr) -> i64 {
    call(libc::SYS_chdir, [path.as_ptr() as usize, 0, 0, 0, 0])
}

/// Renames, but not in the place of another file.
pub fn rename_to_free(old: &CStr, dir: c_int, new: *const c_char) -> i64 {
    let here = HERE as usize;
    let old = old.as_ptr() as usize;
    let only_free = libc::RENAME_NOREPLACE as usize;
    call(libc::SYS_renameat2, [here, old, dir as usize, new as usize, only_free])
}

/// A number in decimal.
fn digits(number: u32, room: &mut [u8; 10]) -> &[u8] {
    let mut first = room.len();
    let mut rest = number;
    loop {
        first -= 1;
        room[first] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            return &room[first..];
        }
    }
}

/// A path that leads to an open file.
pub fn link_of(fd: c_int, room: &mut [u8; 32]) -> &CStr {
    room[..FD.len()].copy_from_slice(FD);
    let mut digits_room = [0; 10];
    let digits = digits(fd.unsigned_abs(), &mut digits_room);
    room[FD.len()..FD.len() + digits.len()].copy_from_slice(digits);
    room[FD.len() + digits.len()] = 0;
    CStr::from_bytes_until_nul(room).unwrap_or(c"")
}

pub fn read_link(dir: c_int, path: *const c_char, to: &mut [u8]) -> i64 {
    let place = [to.as_mut_ptr() as usize, to.len()];
    call(libc::SYS_readlinkat, [dir as usize, path as usize, place[0], place[1], 0])
}

/// The working directory with its NUL: how many bytes.
pub fn working_directory(to: &mut [u8]) -> i64 {
    call(libc::SYS_getcwd, [to.as_mut_ptr() as usize, to.len(), 0, 0, 0])
}

/// Whether no other process has this file open: only then does the kernel grant a write lease
/// (fcntl(2)), which is given back at once. `None`: the file system has no leases, as NFS.
pub fn alone(fd: c_int) -> Option<bool> {
    const SETSIG: c_int = 10;
    const GETSIG: c_int = 11;
    // If another process opens the file at this very moment, the kernel signals this process. This
    // chooses a signal that is ignored by default.
    let signal = fcntl(fd, GETSIG, 0);
    fcntl(fd, SETSIG, libc::SIGURG as usize);
    let alone = match fcntl(fd, libc::F_SETLEASE, libc::F_WRLCK as usize) {
        0 => {
            fcntl(fd, libc::F_SETLEASE, libc::F_UNLCK as usize);
            Some(true)
        }
        e if e == -i64::from(libc::EAGAIN) => Some(false),
        _ => None,
    };
    fcntl(fd, SETSIG, signal as usize);
    alone
}

/// Ends this process.
pub fn end(code: c_int) -> ! {
    loop {
        call(libc::SYS_exit_group, [code as usize, 0, 0, 0, 0]);
    }
}

/// Sends this process the signal of an aio call that is over, with a value.
pub fn signal_self(signal: c_int, value: libc::sigval) {
    // siginfo_t: si_signo, si_errno, si_code; then pid, uid and value.
    let mut info = [0u64; 16];
    let code = libc::SI_ASYNCIO as u32 as u64;
    let (process, user) = (call(libc::SYS_getpid, [0; 5]), call(libc::SYS_getuid, [0; 5]));
    (info[0], info[1]) = (signal as u64, code);
    (info[2], info[3]) = (process as u64 | (user as u64) << 32, value.sival_ptr as u64);
    let to = info.as_ptr() as usize;
    call(libc::SYS_rt_sigqueueinfo, [process as usize, signal as usize, to, 0, 0]);
}

/// Lets a millisecond pass.
pub fn pass_time() {
    call(libc::SYS_poll, [0, 0, 1, 0, 0]);
}

/// Who maps a file to write it.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Mark {
    pub job: u64,
    pub who: u64,
}

const MAPPED: &CStr = c"user.eyrie.mapped";

/// The mark of an open file; `None`: it has none.
///
/// # Errors
/// A negative errno, where files cannot have any.
pub fn mark(fd: c_int) -> Result<Option<Mark>, i64> {
    let mut mark = Mark { job: 0, who: 0 };
    let name = MAPPED.as_ptr() as usize;
    let to = &raw mut mark as usize;
    match call(libc::SYS_fgetxattr, [fd as usize, name, to, size_of::<Mark>(), 0]) {
        0.. => Ok(Some(mark)),
        e if e == -i64::from(libc::ENODATA) => Ok(None),
        e => Err(e),
    }
}

/// The same of a path.
pub fn mark_of(path: &CStr) -> Option<Mark> {
    let mut mark = Mark { job: 0, who: 0 };
    let path = path.as_ptr() as usize;
    let name = MAPPED.as_ptr() as usize;
    let to = &raw mut mark as usize;
    let n = call(libc::SYS_getxattr, [path, name, to, size_of::<Mark>(), 0]);
    (n == size_of::<Mark>() as i64).then_some(mark)
}

/// Gives an open file a mark: its first one, or another one, by the flags of setxattr(2).
pub fn set_mark(fd: c_int, mark: Mark, flags: c_int) -> i64 {
    let name = MAPPED.as_ptr() as usize;
    let from = &raw const mark as usize;
    call(libc::SYS_fsetxattr, [fd as usize, name, from, size_of::<Mark>(), flags as usize])
}

/// An attribute of an open file.
pub fn attribute<'a>(fd: c_int, name: &CStr, room: &'a mut [u8]) -> Option<&'a [u8]> {
    let to = [name.as_ptr() as usize, room.as_mut_ptr() as usize, room.len()];
    let n = call(libc::SYS_fgetxattr, [fd as usize, to[0], to[1], to[2], 0]);
    usize::try_from(n).ok().and_then(|n| room.get(..n))
}

/// Gives an open file an attribute; false: it cannot have it.
pub fn set_attribute(fd: c_int, name: &CStr, value: &[u8]) -> bool {
    let from = [name.as_ptr() as usize, value.as_ptr() as usize, value.len()];
    call(libc::SYS_fsetxattr, [fd as usize, from[0], from[1], from[2], 0]) == 0
}

const WRITER: &CStr = c"user.eyrie.rank";

/// Which rank has last opened this file to append to it or to change it; 0: unknown.
pub fn writer(fd: c_int) -> u64 {
    let mut who = 0u64;
    let name = WRITER.as_ptr() as usize;
    let to = &raw mut who as usize;
    call(libc::SYS_fgetxattr, [fd as usize, name, to, size_of::<u64>(), 0]);
    who
}

pub fn set_writer(fd: c_int, who: u64) {
    let name = WRITER.as_ptr() as usize;
    let from = &raw const who as usize;
    call(libc::SYS_fsetxattr, [fd as usize, name, from, size_of::<u64>(), 0]);
}
