//! Functions of the C library that hosts with an older one than ours do not have, so that the
//! command needs none that is newer than docs/install.md says. They take the place of the C
//! library's, everywhere in the command.

use std::ffi::{c_char, c_int, c_long, c_uint};

/// The system call, which glibc has a function for since 2.34.
///
/// # Safety
/// That of close_range(2).
#[no_mangle]
unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    // SAFETY: the caller's; the numbers are widened as the kernel expects them.
    let done = unsafe {
        libc::syscall(
            libc::SYS_close_range,
            c_long::from(first),
            c_long::from(last),
            c_long::from(flags),
        )
    };
    done as c_int
}

/// The system call, which glibc has a function for since 2.27.
///
/// # Safety
/// That of memfd_create(2): `name` is a C string.
#[no_mangle]
unsafe extern "C" fn memfd_create(name: *const c_char, flags: c_uint) -> c_int {
    // SAFETY: the caller's.
    let done = unsafe { libc::syscall(libc::SYS_memfd_create, name, c_long::from(flags)) };
    done as c_int
}
