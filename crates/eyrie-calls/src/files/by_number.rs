//! syscall(2): calls on files by number run the same functions of ours that stand in front of the C
//! library's. All other calls go on to the next library as if nothing was in between, because some
//! return twice or on another stack. It must never be used by this library itself: what we ask the
//! kernel is no call of the program.

use super::asking::counts;
use super::open_calls::opened_by;
use super::saying;
use libc::{c_char, c_int, c_long, c_void, size_t};
use std::ffi::CStr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The function behind ours.
static NEXT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

extern "C" fn find_next() {
    // SAFETY: the name is a C string.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, c"syscall".as_ptr()) };
    NEXT.store(found, Ordering::Relaxed);
}

#[used]
#[link_section = ".init_array"]
static FIND_NEXT: extern "C" fn() = find_next;

/// A call as syscall(2) is given it, with its number.
type Arguments = [usize; 6];

fn next(number: c_long, [a, b, c, d, e, f]: Arguments) -> c_long {
    type Function =
        unsafe extern "C-unwind" fn(c_long, usize, usize, usize, usize, usize, usize) -> c_long;
    if NEXT.load(Ordering::Relaxed).is_null() {
        find_next();
    }
    let found = NEXT.load(Ordering::Relaxed);
    if found.is_null() {
        // A program that was linked against the function has found it: this cannot be.
        // SAFETY: abort(3) ends the process and accesses no memory of ours.
        unsafe { libc::abort() };
    }
    // SAFETY: the function of this name has this type, and gets what the program has given.
    unsafe { std::mem::transmute::<*mut c_void, Function>(found)(number, a, b, c, d, e, f) }
}

/// Calls by their numbers and the functions that are the same: their names, what they return.
macro_rules! functions {
    ($($number:ident, $function:ident -> $result:ty;)*) => {
        /// By their names: a library of the user's that stands in front of ours sees them, too.
        /// Each is given as many arguments as a call can have, and uses those that it takes.
        #[allow(clashing_extern_declarations)]
        mod named {
            extern "C-unwind" {
                $(pub fn $function(
                    a: usize, b: usize, c: usize, d: usize, e: usize, f: usize
                ) -> $result;)*
            }
        }

        /// Numbers of calls that are made here.
        const NUMBERS: &[c_long] = &[
            $(libc::$number,)* libc::SYS_getcwd, libc::SYS_openat2, libc::SYS_io_uring_setup,
        ];

        /// Makes one by its function; `None`: there is none for it.
        ///
        /// # Safety
        /// As the function.
        unsafe fn by_function(number: c_long, [a, b, c, d, e, f]: Arguments) -> Option<c_long> {
            let (d, e) = match number {
                // The call has no flags.
                libc::SYS_fchmodat | libc::SYS_faccessat => (0, e),
                // A place has two arguments.
                libc::SYS_preadv2 | libc::SYS_pwritev2 => (d, f),
                _ => (d, e),
            };
            match number {
                // SAFETY: the program passes what the call of this number needs, which the function
                // of its name needs as well.
                $(libc::$number => Some(unsafe { named::$function(a, b, c, d, e, f) as c_long }),)*
                _ => None,
            }
        }
    };
}
functions! {
    SYS_read, read -> isize;
    SYS_write, write -> isize;
    SYS_open, open -> i32;
    SYS_close, close -> i32;
    SYS_stat, stat -> i32;
    SYS_fstat, fstat -> i32;
    SYS_lstat, lstat -> i32;
    SYS_lseek, lseek -> isize;
    SYS_pread64, pread64 -> isize;
    SYS_pwrite64, pwrite64 -> isize;
    SYS_readv, readv -> isize;
    SYS_writev, writev -> isize;
    SYS_access, access -> i32;
    SYS_sendfile, sendfile -> isize;
    SYS_uname, uname -> i32;
    SYS_fcntl, fcntl -> i32;
    SYS_flock, flock -> i32;
    SYS_truncate, truncate -> i32;
    SYS_ftruncate, ftruncate -> i32;
    SYS_getdents64, getdents64 -> isize;
    SYS_chdir, chdir -> i32;
    SYS_fchdir, fchdir -> i32;
    SYS_rename, rename -> i32;
    SYS_mkdir, mkdir -> i32;
    SYS_rmdir, rmdir -> i32;
    SYS_creat, creat -> i32;
    SYS_link, link -> i32;
    SYS_unlink, unlink -> i32;
    SYS_symlink, symlink -> i32;
    SYS_readlink, readlink -> isize;
    SYS_chmod, chmod -> i32;
    SYS_fchmod, fchmod -> i32;
    SYS_chown, chown -> i32;
    SYS_fchown, fchown -> i32;
    SYS_lchown, lchown -> i32;
    SYS_statfs, statfs -> i32;
    SYS_fstatfs, fstatfs -> i32;
    SYS_mknod, mknod -> i32;
    SYS_setxattr, setxattr -> i32;
    SYS_lsetxattr, lsetxattr -> i32;
    SYS_fsetxattr, fsetxattr -> i32;
    SYS_getxattr, getxattr -> isize;
    SYS_lgetxattr, lgetxattr -> isize;
    SYS_fgetxattr, fgetxattr -> isize;
    SYS_listxattr, listxattr -> isize;
    SYS_llistxattr, llistxattr -> isize;
    SYS_flistxattr, flistxattr -> isize;
    SYS_removexattr, removexattr -> i32;
    SYS_lremovexattr, lremovexattr -> i32;
    SYS_fremovexattr, fremovexattr -> i32;
    SYS_utime, utime -> i32;
    SYS_utimes, utimes -> i32;
    SYS_openat, openat -> i32;
    SYS_mkdirat, mkdirat -> i32;
    SYS_mknodat, mknodat -> i32;
    SYS_fchownat, fchownat -> i32;
    SYS_futimesat, futimesat -> i32;
    SYS_newfstatat, fstatat -> i32;
    SYS_unlinkat, unlinkat -> i32;
    SYS_renameat, renameat -> i32;
    SYS_linkat, linkat -> i32;
    SYS_symlinkat, symlinkat -> i32;
    SYS_readlinkat, readlinkat -> isize;
    SYS_fchmodat, fchmodat -> i32;
    SYS_faccessat, faccessat -> i32;
    SYS_splice, splice -> isize;
    SYS_utimensat, utimensat -> i32;
    SYS_fallocate, fallocate -> i32;
    SYS_preadv, preadv -> isize;
    SYS_pwritev, pwritev -> isize;
    SYS_preadv2, preadv2 -> isize;
    SYS_pwritev2, pwritev2 -> isize;
    SYS_renameat2, renameat2 -> i32;
    SYS_copy_file_range, copy_file_range -> isize;
    SYS_statx, statx -> i32;
}

/// A bit for each number that is made here.
static OURS: [u64; 8] = {
    let mut bits = [0u64; 8];
    let mut i = 0;
    while i < NUMBERS.len() {
        bits[NUMBERS[i] as usize / 64] |= 1 << (NUMBERS[i] % 64);
        i += 1;
    }
    bits
};

/// # Safety
/// As syscall(2).
#[export_name = "syscall"]
#[unsafe(naked)]
pub unsafe extern "C" fn our_syscall(number: c_long) -> c_long {
    core::arch::naked_asm!(
        "cmp rdi, 512",
        "jae 2f",
        "lea rax, [rip + {ours}]",
        "bt qword ptr [rax], rdi",
        "jc {call}",
        "2:",
        "mov rax, [rip + {next}]",
        "test rax, rax",
        "jz {call}",
        "jmp rax",
        ours = sym OURS,
        next = sym NEXT,
        call = sym call,
    )
}

/// # Safety
/// As syscall(2).
unsafe extern "C-unwind" fn call(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    let all = [a, b, c, d, e, f];
    if !counts() {
        return next(number, all);
    }
    // SAFETY: the program passes what the call of this number needs.
    let made = unsafe {
        match number {
            libc::SYS_getcwd => Some(working_directory(a, b)),
            libc::SYS_openat2 => opens(all),
            libc::SYS_io_uring_setup => {
                saying::no_ring();
                None
            }
            _ => by_function(number, all),
        }
    };
    made.unwrap_or_else(|| next(number, all))
}

/// getcwd(2), which says how many bytes the path has with its NUL.
///
/// # Safety
/// As getcwd(2).
unsafe fn working_directory(to: usize, room: size_t) -> c_long {
    let to = std::ptr::with_exposed_provenance_mut::<c_char>(to);
    // SAFETY: the caller passes room for so many bytes; getcwd(3) ends what it writes with a NUL.
    unsafe {
        if libc::getcwd(to, room).is_null() {
            -1
        } else {
            CStr::from_ptr(to).to_bytes_with_nul().len() as c_long
        }
    }
}

/// openat2(2), whose third argument says how.
///
/// # Safety
/// As openat2(2).
unsafe fn opens([dir, path, how, len, ..]: Arguments) -> Option<c_long> {
    // SAFETY: the caller passes null, or what is valid for this call.
    let it = unsafe { std::ptr::with_exposed_provenance::<libc::open_how>(how).as_ref() }?;
    if len < size_of::<libc::open_how>() {
        return None;
    }
    let path = std::ptr::with_exposed_provenance::<c_char>(path);
    let flags = it.flags as c_int;
    let mode = it.mode as libc::mode_t;
    let resolve = it.resolve;
    let make = |at: c_int, other: *const c_char, flags: c_int| {
        // SAFETY: all zero is a valid structure.
        let mut how: libc::open_how = unsafe { std::mem::zeroed() };
        how.flags = flags as u32 as u64;
        how.mode = if flags & (libc::O_CREAT | libc::O_TMPFILE) == 0 { 0 } else { mode.into() };
        // What leads to another file than the program has named is not restricted by it.
        how.resolve = if other == path { resolve } else { 0 };
        let all = [at as usize, other as usize, &raw const how as usize, size_of_val(&how), 0, 0];
        next(libc::SYS_openat2, all) as c_int
    };
    // SAFETY: the caller keeps this contract, which is that of the function called.
    unsafe { opened_by(dir as c_int, path, (flags, mode), &make) }
}
