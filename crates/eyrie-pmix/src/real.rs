//! The functions of the real PMIx library, for a process that is no rank of a job: a program that a
//! rank starts, or `eyrie check`. Nothing is loaded that was not.

use std::ffi::{c_void, CStr, CString};

/// The function of this name behind ours, where there is one.
pub fn find(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: a C string.
    let next = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    if !next.is_null() {
        return Some(next);
    }
    // Loaded with dlopen, for its MPI library alone.
    let mut files: Vec<CString> = Vec::new();
    // SAFETY: `note` gets back what is given here, while this call lasts.
    unsafe { libc::dl_iterate_phdr(Some(note), (&raw mut files).cast()) };
    files.iter().find_map(|file| {
        // SAFETY: C strings; nothing is loaded that was not.
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
    // SAFETY: the linker gives one whole entry, whose name is null or a C string; `files` is
    // `find`'s list.
    unsafe {
        let (name, files) = ((*info).dlpi_name, &mut *files.cast::<Vec<CString>>());
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
