//! Which MPI library this provider serves. It asks the library itself, once MPI_Init is over. It
//! must only call functions that MPI allows at any time and from anywhere, and must never load
//! anything.

use crate::{channel, symbol};
use eyrie_wire::agent::FromRank;
use std::ffi::{CStr, CString};
use std::sync::atomic::{AtomicBool, Ordering};

/// Room for what MPI_Get_library_version writes: more than any library's
/// MPI_MAX_LIBRARY_VERSION_STRING (MPICH has 8192, Open MPI 256).
const VERSION_LEN: usize = 1 << 14;

/// Whether the agent has been told, or there is nothing to tell.
static REPORTED: AtomicBool = AtomicBool::new(false);

type Version = unsafe extern "C" fn(*mut libc::c_char, *mut libc::c_int) -> libc::c_int;
type Number = unsafe extern "C" fn(*mut libc::c_int) -> libc::c_int;

/// Functions of MPI that may be called before MPI_Init, and within other functions of MPI.
struct Mpi {
    version: Version,
    initialized: Number,
    thread_level: Number,
}

/// Tells the agent what the library is, in the first progress call after MPI_Init.
pub fn report_once() {
    if REPORTED.load(Ordering::Relaxed) {
        return;
    }
    let Some(mpi) = find() else {
        REPORTED.store(true, Ordering::Relaxed);
        return;
    };
    if !is_initialized(&mpi) {
        return;
    }
    REPORTED.store(true, Ordering::Relaxed);
    let mut threads = -1;
    let mut text = vec![0u8; VERSION_LEN];
    let mut len = 0;
    // SAFETY: there is room for whatever the library writes, and MPI_Init is over.
    unsafe {
        (mpi.thread_level)(&mut threads);
        (mpi.version)(text.as_mut_ptr().cast(), &mut len);
    }
    text.truncate(len.clamp(0, VERSION_LEN as i32 - 1) as usize);
    let text = String::from_utf8_lossy(&text);
    channel::send(&FromRank::Library { threads: threads as u32, text: &text });
}

fn is_initialized(mpi: &Mpi) -> bool {
    let mut yes = 0;
    // SAFETY: the function writes one number, which is ours.
    unsafe { (mpi.initialized)(&mut yes) };
    yes != 0
}

/// The library's functions, if it is loaded: with the program, or by a dlopen that keeps its
/// symbols local.
fn find() -> Option<Mpi> {
    functions(libc::RTLD_DEFAULT).or_else(|| {
        let mut files: Vec<CString> = Vec::new();
        // SAFETY: `note` gets back what is given here, while this call lasts.
        unsafe { libc::dl_iterate_phdr(Some(note), (&raw mut files).cast()) };
        files.iter().find_map(|file| {
            let flags = libc::RTLD_NOLOAD | libc::RTLD_LAZY;
            // SAFETY: a C string; RTLD_NOLOAD loads nothing.
            let handle = unsafe { libc::dlopen(file.as_ptr(), flags) };
            (!handle.is_null()).then(|| functions(handle)).flatten()
        })
    })
}

/// Notes the files that may be MPI libraries.
unsafe extern "C" fn note(
    info: *mut libc::dl_phdr_info,
    _len: libc::size_t,
    files: *mut libc::c_void,
) -> libc::c_int {
    // SAFETY: the linker gives one whole entry; `files` is `find`'s list.
    let (name, files) = unsafe { ((*info).dlpi_name, &mut *files.cast::<Vec<CString>>()) };
    if !name.is_null() {
        // SAFETY: names of loaded files are C strings.
        let name = unsafe { CStr::from_ptr(name) };
        let file = name.to_bytes().rsplit(|b| *b == b'/').next().unwrap_or_default();
        if file.starts_with(b"libmpi") {
            files.push(name.to_owned());
        }
    }
    0
}

fn functions(handle: *mut libc::c_void) -> Option<Mpi> {
    // SAFETY: a handle of dlopen, or the default one; MPI's standard says of which types these
    // functions are.
    unsafe {
        Some(Mpi {
            version: symbol::function::<Version>(handle, c"MPI_Get_library_version")?,
            initialized: symbol::function::<Number>(handle, c"MPI_Initialized")?,
            thread_level: symbol::function::<Number>(handle, c"MPI_Query_thread")?,
        })
    }
}
