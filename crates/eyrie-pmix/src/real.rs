//! The functions of the real PMIx library, for a process that is not a rank of a job: a program
//! that a rank starts, or `eyrie check`. Loads no library that was not loaded.

use std::ffi::{c_void, CStr, CString};

/// The next function of this name after ours, if there is one.
pub fn find(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: `name` is a C string.
    let next = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    if !next.is_null() {
        return Some(next);
    }
    // The library may have been loaded with dlopen, only for its MPI library.
    let mut files: Vec<CString> = Vec::new();
    // SAFETY: `note` gets `files` as its last argument, and only during this call.
    unsafe { libc::dl_iterate_phdr(Some(note), (&raw mut files).cast()) };
    files.iter().find_map(|file| {
        // SAFETY: the names are C strings, and RTLD_NOLOAD loads nothing.
        let found = unsafe {
            let library = libc::dlopen(file.as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_LAZY);
            if library.is_null() {
                return None;
            }
            libc::dlsym(library, name.as_ptr())
        };
        (!found.is_null()).then_some(found)
    })
}

/// Notes the files that are PMIx libraries.
unsafe extern "C" fn note(
    info: *mut libc::dl_phdr_info,
    _len: libc::size_t,
    files: *mut c_void,
) -> libc::c_int {
    // SAFETY: the linker passes one whole entry, whose name is null or a C string, and `find`
    // passes its list as `files`.
    unsafe {
        let name = (*info).dlpi_name;
        let files = &mut *files.cast::<Vec<CString>>();
        if !name.is_null() {
            let name = CStr::from_ptr(name);
            let file = name.to_bytes().rsplit(|b| *b == b'/').next().unwrap_or_default();
            if file.starts_with(b"libpmix.so") {
                files.push(name.to_owned());
            }
        }
    }
    0
}
