//! Functions that an older C library of a host may lack. With them the command needs no C library
//! newer than docs/install.md says. They replace the C library's functions everywhere in the
//! command.

use std::ffi::{c_char, c_int, c_long, c_uint};

/// Makes the system call. glibc has a function for it since 2.34.
///
/// # Safety
/// As for close_range(2).
#[no_mangle]
unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    // SAFETY: the caller keeps the contract of close_range(2). The numbers are widened as the
    // kernel expects them.
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

/// Makes the system call. glibc has a function for it since 2.27.
///
/// # Safety
/// As for memfd_create(2): `name` is a C string.
#[no_mangle]
unsafe extern "C" fn memfd_create(name: *const c_char, flags: c_uint) -> c_int {
    // SAFETY: the caller guarantees that `name` is a C string.
    let done = unsafe { libc::syscall(libc::SYS_memfd_create, name, c_long::from(flags)) };
    done as c_int
}
