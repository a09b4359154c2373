//! Functions of other libraries in this process, by their names. It never loads one.

use std::ffi::{c_void, CStr};

/// The function of this name in a library, or in all that are loaded (`RTLD_DEFAULT`).
///
/// # Safety
/// `F` must be the type of a pointer to it; `library` a handle of dlopen(3), or the default one.
pub unsafe fn function<F: Copy>(library: *mut c_void, name: &CStr) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    // SAFETY: a C string; by the contract `F` is the type of the function and `library` a handle.
    unsafe {
        let found = libc::dlsym(library, name.as_ptr());
        (!found.is_null()).then(|| std::mem::transmute_copy(&found))
    }
}
