//! MPI_Init_thread: a program that asks for MPI_THREAD_MULTIPLE gets MPI_THREAD_SERIALIZED. All its
//! threads may call MPI, one at a time. The order of simultaneous calls would not be the same when
//! the rank is executed again.

use libc::{c_char, c_int, c_void};
use std::ffi::CStr;

/// MPI_THREAD_SERIALIZED: the same number in MPICH, Open MPI and all that come from them.
const SERIALIZED: c_int = 2;

type InitThread =
    unsafe extern "C-unwind" fn(*mut c_int, *mut *mut *mut c_char, c_int, *mut c_int) -> c_int;

const NAME: &CStr = c"MPI_Init_thread";

/// At most so many loaded libraries are searched.
const LIBRARIES: usize = 1024;

/// The names of the loaded libraries.
struct Names {
    names: [*const c_char; LIBRARIES],
    n: usize,
}

/// The MPI library's function: the next one, or, where the library is loaded for a part of the
/// process only (a module of Python), the one that such a part finds.
fn behind_ours() -> Option<InitThread> {
    let mut all = Names { names: [std::ptr::null(); LIBRARIES], n: 0 };
    // SAFETY: the names are C strings; the callback gets what it casts. No library is unloaded
    // while a thread is in the start of MPI.
    let found = unsafe {
        let next = libc::dlsym(libc::RTLD_NEXT, NAME.as_ptr());
        libc::dl_iterate_phdr(Some(take_name), (&raw mut all).cast());
        let all = all.names[..all.n].iter();
        std::iter::once(next).chain(all.map(|name| found_in(*name))).find(|f| !f.is_null())
    };
    // SAFETY: the function of this name has this type (MPI 4.1, 11.2.1).
    found.map(|f| unsafe { std::mem::transmute::<*mut c_void, InitThread>(f) })
}

unsafe extern "C" fn take_name(info: *mut libc::dl_phdr_info, _: usize, to: *mut c_void) -> c_int {
    // SAFETY: dl_iterate_phdr(3) gives the structure; `to` is the variable of `behind_ours`.
    let (all, name) = unsafe { (&mut *to.cast::<Names>(), (*info).dlpi_name) };
    if all.n < LIBRARIES {
        all.names[all.n] = name;
        all.n += 1;
    }
    0
}

/// The function that a loaded library or what it needs has; null when that is none, or ours.
///
/// # Safety
/// `name` must be a C string.
unsafe fn found_in(name: *const c_char) -> *mut c_void {
    // SAFETY: handed on to the caller. The library stays loaded: others hold it.
    unsafe {
        let library = libc::dlopen(name, libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        if library.is_null() {
            return library;
        }
        let function = libc::dlsym(library, NAME.as_ptr());
        libc::dlclose(library);
        let ours = our_init_thread as InitThread as *mut c_void;
        if function == ours {
            return std::ptr::null_mut();
        }
        function
    }
}

/// # Safety
/// As MPI_Init_thread.
#[export_name = "MPI_Init_thread"]
pub unsafe extern "C-unwind" fn our_init_thread(
    argc: *mut c_int,
    argv: *mut *mut *mut c_char,
    required: c_int,
    provided: *mut c_int,
) -> c_int {
    let Some(next) = behind_ours() else {
        // The program has called it, so a library has it: this cannot happen.
        // SAFETY: abort(3) has no arguments and does not return.
        unsafe { libc::abort() };
    };
    // SAFETY: the caller keeps the contract of the C function, which gets the same arguments.
    unsafe { next(argc, argv, required.min(SERIALIZED), provided) }
}
