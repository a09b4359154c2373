//! Raw Linux system calls for x86_64. Nothing here may call a C library, allocate, take a lock or
//! access errno: it runs inside signal handlers and in a program without libc.

use core::arch::asm;
use eyrie_image_format::{Identity, SIGINFO_LEN};

/// System call numbers (arch/x86/entry/syscalls/syscall_64.tbl).
pub mod nr {
    pub const READ: usize = 0;
    pub const WRITE: usize = 1;
    pub const OPEN: usize = 2;
    pub const CLOSE: usize = 3;
    pub const STAT: usize = 4;
    pub const FSTAT: usize = 5;
    pub const POLL: usize = 7;
    pub const LSEEK: usize = 8;
    pub const MMAP: usize = 9;
    pub const MPROTECT: usize = 10;
    pub const MUNMAP: usize = 11;
    pub const BRK: usize = 12;
    pub const RT_SIGACTION: usize = 13;
    pub const RT_SIGPROCMASK: usize = 14;
    pub const IOCTL: usize = 16;
    pub const PREAD64: usize = 17;
    pub const PWRITE64: usize = 18;
    pub const READV: usize = 19;
    pub const WRITEV: usize = 20;
    pub const SCHED_YIELD: usize = 24;
    pub const MREMAP: usize = 25;
    pub const MINCORE: usize = 27;
    pub const MADVISE: usize = 28;
    pub const GETITIMER: usize = 36;
    pub const SETITIMER: usize = 38;
    pub const GETPID: usize = 39;
    pub const SOCKET: usize = 41;
    pub const SENDTO: usize = 44;
    pub const RECVMSG: usize = 47;
    pub const SHUTDOWN: usize = 48;
    pub const SOCKETPAIR: usize = 53;
    pub const SETSOCKOPT: usize = 54;
    pub const GETSOCKOPT: usize = 55;
    pub const CLONE: usize = 56;
    pub const WAIT4: usize = 61;
    pub const KILL: usize = 62;
    pub const UNAME: usize = 63;
    pub const FCNTL: usize = 72;
    pub const FLOCK: usize = 73;
    pub const FTRUNCATE: usize = 77;
    pub const CHDIR: usize = 80;
    pub const FCHDIR: usize = 81;
    pub const MKDIR: usize = 83;
    pub const RMDIR: usize = 84;
    pub const UNLINK: usize = 87;
    pub const READLINK: usize = 89;
    pub const UMASK: usize = 95;
    pub const SYSINFO: usize = 99;
    pub const GETEUID: usize = 107;
    pub const GETPPID: usize = 110;
    pub const RT_SIGPENDING: usize = 127;
    pub const RT_SIGTIMEDWAIT: usize = 128;
    pub const RT_SIGQUEUEINFO: usize = 129;
    pub const SIGALTSTACK: usize = 131;
    pub const PERSONALITY: usize = 135;
    pub const SCHED_SETSCHEDULER: usize = 144;
    pub const STATFS: usize = 137;
    pub const FSTATFS: usize = 138;
    pub const MLOCK: usize = 149;
    pub const MLOCKALL: usize = 151;
    pub const MODIFY_LDT: usize = 154;
    pub const PRCTL: usize = 157;
    pub const ARCH_PRCTL: usize = 158;
    pub const GETTID: usize = 186;
    pub const FUTEX: usize = 202;
    pub const SCHED_SETAFFINITY: usize = 203;
    pub const SCHED_GETAFFINITY: usize = 204;
    pub const GET_THREAD_AREA: usize = 211;
    pub const GETDENTS64: usize = 217;
    pub const SET_TID_ADDRESS: usize = 218;
    pub const CLOCK_GETTIME: usize = 228;
    pub const EXIT_GROUP: usize = 231;
    pub const EPOLL_CTL: usize = 233;
    pub const INOTIFY_ADD_WATCH: usize = 254;
    pub const INOTIFY_RM_WATCH: usize = 255;
    pub const INOTIFY_INIT1: usize = 294;
    pub const TGKILL: usize = 234;
    pub const MBIND: usize = 237;
    pub const SET_MEMPOLICY: usize = 238;
    pub const GET_MEMPOLICY: usize = 239;
    pub const WAITID: usize = 247;
    pub const KEYCTL: usize = 250;
    pub const IOPRIO_SET: usize = 251;
    pub const IOPRIO_GET: usize = 252;
    pub const OPENAT: usize = 257;
    pub const LINKAT: usize = 265;
    pub const SET_ROBUST_LIST: usize = 273;
    pub const GET_ROBUST_LIST: usize = 274;
    pub const TEE: usize = 276;
    pub const VMSPLICE: usize = 278;
    pub const TIMERFD_CREATE: usize = 283;
    pub const TIMERFD_SETTIME: usize = 286;
    pub const SIGNALFD4: usize = 289;
    pub const EPOLL_CREATE1: usize = 291;
    pub const RT_TGSIGQUEUEINFO: usize = 297;
    pub const DUP3: usize = 292;
    pub const PIPE2: usize = 293;
    pub const PRLIMIT64: usize = 302;
    pub const PROCESS_VM_READV: usize = 310;
    pub const KCMP: usize = 312;
    pub const SCHED_SETATTR: usize = 314;
    pub const SCHED_GETATTR: usize = 315;
    pub const RENAMEAT2: usize = 316;
    pub const MEMFD_CREATE: usize = 319;
    pub const EVENTFD2: usize = 290;
    pub const USERFAULTFD: usize = 323;
    pub const MEMBARRIER: usize = 324;
    pub const PKEY_ALLOC: usize = 330;
    pub const PKEY_FREE: usize = 331;
    pub const STATX: usize = 332;
    pub const RSEQ: usize = 334;
    pub const CLONE3: usize = 435;
    pub const CLOSE_RANGE: usize = 436;
    pub const MSEAL: usize = 462;
}

pub const PAGE: usize = 4096;

pub const EPERM: i32 = 1;
pub const ENOENT: i32 = 2;
pub const ESRCH: i32 = 3;
pub const EINTR: i32 = 4;
pub const EIO: i32 = 5;
pub const ENXIO: i32 = 6;
pub const EBADF: i32 = 9;
pub const EAGAIN: i32 = 11;
pub const ENOMEM: i32 = 12;
pub const EACCES: i32 = 13;
pub const EFAULT: i32 = 14;
pub const EBUSY: i32 = 16;
pub const EINVAL: i32 = 22;
pub const EPIPE: i32 = 32;
pub const ENOSYS: i32 = 38;
pub const ETIMEDOUT: i32 = 110;

pub const O_RDONLY: u32 = 0;
pub const O_WRONLY: u32 = 1;
pub const O_RDWR: u32 = 2;
pub const O_ACCMODE: u32 = 3;
pub const O_NOCTTY: u32 = 0o400;
pub const O_APPEND: u32 = 0o2000;
pub const O_NONBLOCK: u32 = 0o4000;
pub const O_ASYNC: u32 = 0o20000;
pub const O_DIRECTORY: u32 = 0o200000;
pub const O_CLOEXEC: u32 = 0o2000000;
pub const O_NOFOLLOW: u32 = 0o400000;
pub const O_PATH: u32 = 0o10000000;
pub const O_TMPFILE: u32 = 0o20000000 | O_DIRECTORY;
pub const AT_FDCWD: i32 = -100;
pub const AT_SYMLINK_FOLLOW: usize = 0x400;

pub const AT_EMPTY_PATH: usize = 0x1000;

pub const S_IFMT: u32 = 0o170000;
pub const S_IFSOCK: u32 = 0o140000;
pub const S_IFREG: u32 = 0o100000;
pub const S_IFDIR: u32 = 0o040000;
pub const S_IFCHR: u32 = 0o020000;
pub const S_IFBLK: u32 = 0o060000;
pub const S_IFIFO: u32 = 0o010000;

pub const F_DUPFD_CLOEXEC: usize = 1030;
pub const F_GETFD: usize = 1;
pub const F_SETFD: usize = 2;
pub const F_GETFL: usize = 3;
pub const F_SETFL: usize = 4;
pub const F_SETLK: usize = 6;
pub const F_SETSIG: usize = 10;
pub const F_GETSIG: usize = 11;
pub const F_OFD_SETLK: usize = 37;
pub const F_SETLEASE: usize = 1024;
pub const F_GETLEASE: usize = 1025;
pub const F_SETPIPE_SZ: usize = 1031;
pub const F_GETPIPE_SZ: usize = 1032;
pub const F_ADD_SEALS: usize = 1033;
pub const F_GET_SEALS: usize = 1034;

pub const PROT_READ: u32 = 1;
pub const PROT_WRITE: u32 = 2;
pub const PROT_EXEC: u32 = 4;
pub const MAP_SHARED: u32 = 0x01;
pub const MAP_PRIVATE: u32 = 0x02;
pub const MAP_DROPPABLE: u32 = 0x08;
pub const MAP_FIXED: u32 = 0x10;
pub const MAP_ANONYMOUS: u32 = 0x20;
pub const MAP_GROWSDOWN: u32 = 0x100;
pub const MAP_NORESERVE: u32 = 0x4000;
pub const MAP_STACK: u32 = 0x20000;
pub const MAP_HUGETLB: u32 = 0x40000;
pub const MAP_FIXED_NOREPLACE: u32 = 0x100000;
pub const MREMAP_MAYMOVE: usize = 1;
pub const MREMAP_FIXED: usize = 2;

pub const MADV_RANDOM: usize = 1;
pub const MADV_SEQUENTIAL: usize = 2;
pub const MADV_DONTFORK: usize = 10;
pub const MADV_DOFORK: usize = 11;
pub const MADV_MERGEABLE: usize = 12;
pub const MADV_DONTNEED: usize = 4;
pub const MADV_HUGEPAGE: usize = 14;
pub const MADV_NOHUGEPAGE: usize = 15;
pub const MADV_DONTDUMP: usize = 16;
pub const MADV_DODUMP: usize = 17;
pub const MADV_WIPEONFORK: usize = 18;
pub const MADV_KEEPONFORK: usize = 19;
pub const MADV_GUARD_INSTALL: usize = 102;

pub const SIG_BLOCK: usize = 0;
pub const SIG_SETMASK: usize = 2;
pub const SIGKILL: i32 = 9;
pub const SIGSTOP: i32 = 19;
pub const SIGCHLD: usize = 17;
pub const CLONE_VM: usize = 0x100;
pub const CLONE_VFORK: usize = 0x4000;
pub const CLONE_PARENT: usize = 0x8000;
/// CLONE_VM, FS, FILES, SIGHAND, THREAD, SYSVSEM, SETTLS and CHILD_CLEARTID: a thread as C
/// libraries make it.
pub const CLONE_AS_THREAD: usize =
    CLONE_VM | 0x200 | 0x400 | 0x800 | 0x10000 | 0x40000 | 0x80000 | 0x20_0000;

pub const PR_SET_PDEATHSIG: usize = 1;
pub const PR_GET_PDEATHSIG: usize = 2;
pub const PR_GET_DUMPABLE: usize = 3;
pub const PR_SET_DUMPABLE: usize = 4;
pub const PR_SET_NAME: usize = 15;
pub const PR_GET_NAME: usize = 16;
pub const PR_GET_SECCOMP: usize = 21;
pub const PR_GET_TSC: usize = 25;
pub const PR_SET_TSC: usize = 26;
pub const PR_GET_SECUREBITS: usize = 27;
pub const PR_SET_TIMERSLACK: usize = 29;
pub const PR_GET_TIMERSLACK: usize = 30;
pub const PR_MCE_KILL: usize = 33;
pub const PR_MCE_KILL_GET: usize = 34;
pub const PR_SET_MM: usize = 35;
pub const PR_SET_MM_MAP: usize = 14;
pub const PR_SET_CHILD_SUBREAPER: usize = 36;
pub const PR_GET_CHILD_SUBREAPER: usize = 37;
pub const PR_SET_NO_NEW_PRIVS: usize = 38;
pub const PR_GET_NO_NEW_PRIVS: usize = 39;
pub const PR_GET_TID_ADDRESS: usize = 40;
pub const PR_SET_THP_DISABLE: usize = 41;
pub const PR_GET_THP_DISABLE: usize = 42;
pub const PR_GET_SPECULATION_CTRL: usize = 52;
pub const PR_SET_SPECULATION_CTRL: usize = 53;
pub const PR_SCHED_CORE: usize = 62;
pub const PR_SET_MDWE: usize = 65;
pub const PR_GET_MDWE: usize = 66;
pub const ARCH_SET_GS: usize = 0x1001;
pub const ARCH_SET_FS: usize = 0x1002;
pub const ARCH_GET_FS: usize = 0x1003;
pub const ARCH_GET_GS: usize = 0x1004;
pub const ARCH_GET_CPUID: usize = 0x1011;
pub const ARCH_GET_XCOMP_PERM: usize = 0x1022;
pub const ARCH_REQ_XCOMP_PERM: usize = 0x1023;
pub const ARCH_GET_UNTAG_MASK: usize = 0x4001;
pub const ARCH_SHSTK_STATUS: usize = 0x5005;

/// The result of `read`, `mmap` and other calls: the value, or the error number.
pub type SysResult = Result<usize, i32>;

/// Makes a system call with up to six arguments.
///
/// # Safety
/// As for the call itself: the arguments must be what the kernel expects for `n`.
#[inline(always)]
pub unsafe fn call6(
    n: usize,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> SysResult {
    let ret: isize;
    // SAFETY: this is the x86_64 system call convention; the instruction overwrites rcx and r11.
    // The caller guarantees that the arguments are valid for the call.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") n as isize => ret,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _,
            options(nostack)
        );
    }
    if (-4095..0).contains(&ret) {
        Err(-ret as i32)
    } else {
        Ok(ret as usize)
    }
}

/// [`call6`] with fewer arguments.
///
/// # Safety
/// As [`call6`].
#[inline(always)]
pub unsafe fn call3(n: usize, a: usize, b: usize, c: usize) -> SysResult {
    // SAFETY: the caller guarantees that the arguments are valid for the call.
    unsafe { call6(n, a, b, c, 0, 0, 0) }
}

/// `struct stat` of the kernel.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Stat {
    pub dev: u64,
    pub ino: u64,
    pub nlink: u64,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub pad: u32,
    pub rdev: u64,
    pub size: i64,
    pub blksize: i64,
    pub blocks: i64,
    pub atime: [i64; 2],
    pub mtime: [i64; 2],
    pub ctime: [i64; 2],
    pub unused: [i64; 3],
}

/// One piece of a vectored read or write.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct IoVec {
    pub base: usize,
    pub len: usize,
}

pub fn fstat(fd: i32) -> Result<Stat, i32> {
    let mut st = core::mem::MaybeUninit::<Stat>::zeroed();
    // SAFETY: the kernel writes a struct stat into `st`, of which all zeros is also a valid value.
    unsafe {
        call3(nr::FSTAT, fd as usize, st.as_mut_ptr() as usize, 0)?;
        Ok(st.assume_init())
    }
}

/// When an open file was created, nanoseconds since 1970; 0 if the file system does not know.
pub fn born_ns(fd: i32) -> u64 {
    const STATX_BTIME: u32 = 0x800;
    // struct statx: the mask comes first, the time of birth (s i64, ns u32) is at byte 80.
    let mut stx = [0u64; 32];
    let mask = STATX_BTIME as usize;
    let path = c"".as_ptr() as usize;
    // SAFETY: the path ends in a NUL, and the kernel writes a struct statx of 256 bytes into `stx`.
    let known = unsafe {
        call6(nr::STATX, fd as usize, path, AT_EMPTY_PATH, mask, stx.as_mut_ptr() as usize, 0)
    };
    if known.is_err() || stx[0] as u32 & STATX_BTIME == 0 {
        return 0;
    }
    stx[10].wrapping_mul(1_000_000_000).wrapping_add(stx[11] & 0xffff_ffff)
}

/// Looks up the file at `path`, which must end in a NUL byte.
pub fn stat(path: &[u8]) -> Result<Stat, i32> {
    debug_assert!(path.last() == Some(&0));
    let mut st = core::mem::MaybeUninit::<Stat>::zeroed();
    // SAFETY: the path is NUL-terminated, and the kernel writes a struct stat into `st`.
    unsafe {
        call3(nr::STAT, path.as_ptr() as usize, st.as_mut_ptr() as usize, 0)?;
        Ok(st.assume_init())
    }
}

/// Opens `path`, which must end in a NUL byte.
pub fn open(path: &[u8], flags: u32, mode: u32) -> Result<i32, i32> {
    debug_assert!(path.last() == Some(&0));
    // SAFETY: the path is NUL-terminated, and the kernel only reads it.
    unsafe {
        call6(
            nr::OPENAT,
            AT_FDCWD as usize,
            path.as_ptr() as usize,
            flags as usize,
            mode as usize,
            0,
            0,
        )
        .map(|fd| fd as i32)
    }
}

pub fn close(fd: i32) {
    // SAFETY: the argument is a number; the kernel accesses no memory.
    let _ = unsafe { call3(nr::CLOSE, fd as usize, 0, 0) };
}

pub fn read(fd: i32, buf: &mut [u8]) -> SysResult {
    loop {
        // SAFETY: the kernel writes at most `buf.len()` bytes into `buf`.
        match unsafe { call3(nr::READ, fd as usize, buf.as_mut_ptr() as usize, buf.len()) } {
            Err(EINTR) => continue,
            other => return other,
        }
    }
}

pub fn pread(fd: i32, buf: &mut [u8], offset: u64) -> SysResult {
    // SAFETY: the kernel writes at most `buf.len()` bytes into `buf`.
    unsafe {
        call6(nr::PREAD64, fd as usize, buf.as_mut_ptr() as usize, buf.len(), offset as usize, 0, 0)
    }
}

pub fn write(fd: i32, buf: &[u8]) -> SysResult {
    // SAFETY: the kernel reads at most `buf.len()` bytes of `buf`.
    unsafe { call3(nr::WRITE, fd as usize, buf.as_ptr() as usize, buf.len()) }
}

/// Writes all of `bytes` at `offset`.
pub fn pwrite_all(fd: i32, bytes: &[u8], offset: u64) -> Result<(), i32> {
    let mut done = 0;
    while done < bytes.len() {
        let from = bytes.as_ptr() as usize + done;
        let len = bytes.len() - done;
        let at = offset as usize + done;
        // SAFETY: the kernel reads at most `len` bytes from `from` on, which are within `bytes`.
        done += unsafe { call6(nr::PWRITE64, fd as usize, from, len, at, 0, 0)? };
    }
    Ok(())
}

pub fn lseek(fd: i32, offset: i64, whence: usize) -> SysResult {
    // SAFETY: the arguments are numbers; the kernel accesses no memory.
    unsafe { call3(nr::LSEEK, fd as usize, offset as usize, whence) }
}

pub fn fcntl(fd: i32, op: usize, arg: usize) -> SysResult {
    // SAFETY: callers only use operations whose argument is a number.
    unsafe { call3(nr::FCNTL, fd as usize, op, arg) }
}

/// Magic number of the file system of an open file (statfs(2)); 0 if it is not known.
pub fn file_system_of(fd: i32) -> u64 {
    let mut fs = [0u64; 16];
    // SAFETY: the kernel writes a struct statfs of 120 bytes, which `fs` holds.
    let known = unsafe { call3(nr::FSTATFS, fd as usize, fs.as_mut_ptr() as usize, 0) };
    known.map_or(0, |_| fs[0])
}

/// Whether no other process has this file open, as far as can be known: see [`alone`].
pub fn is_alone(fd: i32) -> bool {
    alone(fd) == Some(true)
}

/// Whether no other process has this file open. Only then does the kernel grant a write lease
/// (fcntl(2)), and only to the file's owner. The lease is released at once. `None` if the file
/// system has no leases, or the program has a lease of its own.
pub fn alone(fd: i32) -> Option<bool> {
    const F_WRLCK: usize = 1;
    const F_UNLCK: usize = 2;
    // If another process opens the file at this very moment, the kernel signals the holder of the
    // lease. This chooses a signal that is ignored by default.
    const SIGURG: usize = 23;
    if fcntl(fd, F_GETLEASE, 0) != Ok(F_UNLCK) {
        return None;
    }
    let signal = fcntl(fd, F_GETSIG, 0).ok()?;
    fcntl(fd, F_SETSIG, SIGURG).ok()?;
    let alone = match fcntl(fd, F_SETLEASE, F_WRLCK) {
        Ok(_) => {
            let _ = fcntl(fd, F_SETLEASE, F_UNLCK);
            Some(true)
        }
        Err(EAGAIN) => Some(false),
        Err(_) => None,
    };
    let _ = fcntl(fd, F_SETSIG, signal);
    alone
}

/// Which file is open as `fd`.
pub fn identity(fd: i32) -> Result<Identity, i32> {
    let st = fstat(fd)?;
    Ok(Identity { dev: st.dev, ino: st.ino, born_ns: born_ns(fd) })
}

pub fn getpid() -> i32 {
    // SAFETY: the call has no arguments.
    unsafe { call3(nr::GETPID, 0, 0, 0) }.unwrap_or(0) as i32
}

pub fn gettid() -> i32 {
    // SAFETY: the call has no arguments.
    unsafe { call3(nr::GETTID, 0, 0, 0) }.unwrap_or(0) as i32
}

/// Nanoseconds of a clock (0 is wall-clock time, 1 monotonic).
pub fn clock_ns(clock: usize) -> u64 {
    let mut ts = [0i64; 2];
    // SAFETY: the kernel writes the two words of `ts`.
    let _ = unsafe { call3(nr::CLOCK_GETTIME, clock, ts.as_mut_ptr() as usize, 0) };
    (ts[0] as u64).wrapping_mul(1_000_000_000).wrapping_add(ts[1] as u64)
}

/// Ends the whole process.
pub fn exit(code: i32) -> ! {
    loop {
        // SAFETY: the call takes a number and does not return.
        let _ = unsafe { call3(nr::EXIT_GROUP, code as usize, 0, 0) };
    }
}

/// Maps anonymous memory wherever the kernel likes.
pub fn map_anonymous(len: usize, flags: u32) -> SysResult {
    // SAFETY: a new mapping at an address that the kernel chooses changes no existing one.
    unsafe {
        call6(
            nr::MMAP,
            0,
            len,
            (PROT_READ | PROT_WRITE) as usize,
            (flags | MAP_ANONYMOUS) as usize,
            usize::MAX,
            0,
        )
    }
}

/// Maps the first page of an open file, so that nothing can be read there.
pub fn map_unreadable(fd: i32) -> SysResult {
    // SAFETY: a new mapping at an address that the kernel chooses changes no existing one.
    unsafe { call6(nr::MMAP, 0, PAGE, 0, MAP_PRIVATE as usize, fd as usize, 0) }
}

/// # Safety
/// Nothing may use the range any more.
pub unsafe fn munmap(addr: usize, len: usize) -> SysResult {
    // SAFETY: the caller guarantees that nothing uses the range any more.
    unsafe { call3(nr::MUNMAP, addr, len, 0) }
}

/// # Safety
/// As for madvise(2): some advice drops memory.
pub unsafe fn madvise(addr: usize, len: usize, advice: usize) -> SysResult {
    // SAFETY: the caller guarantees that losing content, if the advice implies that, is acceptable.
    unsafe { call3(nr::MADVISE, addr, len, advice) }
}

/// Blocks every signal that can be blocked and returns the previous mask.
pub fn block_all_signals() -> u64 {
    let all = u64::MAX;
    let mut old = 0u64;
    // SAFETY: the kernel reads one word and writes another, local variables; 8 is its size of a
    // signal set.
    let _ = unsafe {
        call6(
            nr::RT_SIGPROCMASK,
            SIG_SETMASK,
            &raw const all as usize,
            &raw mut old as usize,
            8,
            0,
            0,
        )
    };
    old
}

/// Queues a signal for this process, with this `siginfo_t`. The id of the calling thread names the
/// process: the kernel lets a thread send a signal that looks like one of kill(2) or of the kernel
/// only to its own id. The signal is still for the whole process.
pub fn queue_signal(info: &[u8; SIGINFO_LEN]) -> Result<(), i32> {
    let signal = i32::from_ne_bytes([info[0], info[1], info[2], info[3]]);
    let tid = gettid() as usize;
    let at = info.as_ptr() as usize;
    // SAFETY: the kernel reads a siginfo_t of 128 bytes, the length of `info`.
    unsafe { call3(nr::RT_SIGQUEUEINFO, tid, signal as usize, at).map(|_| ()) }
}

pub fn set_signal_mask(mask: u64) {
    // SAFETY: the kernel reads one word, the parameter.
    let _ = unsafe { call6(nr::RT_SIGPROCMASK, SIG_SETMASK, &raw const mask as usize, 0, 8, 0, 0) };
}
