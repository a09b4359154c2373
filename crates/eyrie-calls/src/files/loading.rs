//! dlopen(3) of libraries that were made or changed since the job began: a rank that is executed
//! again loads what it had loaded, whatever has become of the file.

use super::calling::recorded;
use super::keeping;
use super::kernel::{self, HERE};
use super::path::Path;
use super::records::{is_new_change, Call};
use super::saying;
use super::standing_in;
use crate::next::next;
use libc::{c_char, c_int, c_void};
use std::cell::UnsafeCell;
use std::ffi::CStr;

next! {
    dlopen: fn(*const c_char, c_int) -> *mut c_void;
}

/// Number of the function, in what is recorded.
const LOAD: u8 = 102;
/// Most bytes of a library that are recorded.
const MOST: u64 = 64 << 20;
/// Libraries that are loaded from what was recorded, at a time.
const PLACES: usize = 16;

/// Paths to libraries in memory: they stay, because a library has the path it was loaded by.
struct Paths(UnsafeCell<[[u8; 32]; PLACES]>);

// SAFETY: used in calls that are being recorded, of which there is one at a time.
unsafe impl Sync for Paths {}

static PATHS: Paths = Paths(UnsafeCell::new([[0; 32]; PLACES]));

/// Where a library is loaded from, and the function behind ours.
#[repr(C)]
struct Load {
    path: *const c_char,
    next: *mut c_void,
}

/// The C library looks for a name without a directory where its caller does, and so it must be
/// called as from there: this is its caller's call, with another path perhaps.
///
/// # Safety
/// As dlopen(3).
#[export_name = "dlopen"]
#[unsafe(naked)]
pub unsafe extern "C" fn our_dlopen(path: *const c_char, flags: c_int) -> *mut c_void {
    core::arch::naked_asm!(
        ".cfi_startproc",
        "push rsi",
        ".cfi_adjust_cfa_offset 8",
        "call {library}",
        "pop rsi",
        ".cfi_adjust_cfa_offset -8",
        "mov rdi, rax",
        "jmp rdx",
        ".cfi_endproc",
        library = sym library,
    )
}

/// # Safety
/// As dlopen(3).
unsafe extern "C" fn library(path: *const c_char) -> Load {
    // SAFETY: the caller keeps this contract, which is that of the function called.
    let other = unsafe { loaded_from(path) };
    Load { path: other.unwrap_or(path), next: dlopen.get() as *const () as *mut c_void }
}

/// Another path than this one, if it is to be loaded from there.
///
/// # Safety
/// As dlopen(3).
unsafe fn loaded_from(path: *const c_char) -> Option<*const c_char> {
    // SAFETY: the caller passes a C string, as its contract says.
    let name = (!path.is_null()).then(|| unsafe { CStr::from_ptr(path) }.to_bytes());
    if !name.is_some_and(|name| name.contains(&b'/') && !is_ours(name)) {
        return None;
    }
    // SAFETY: the path is not null, so it is a C string, as the caller promises.
    let call = unsafe { Call::new(LOAD, path) };
    let mut other = None;
    recorded(&mut || {
        if call.done_again() {
            other = unchanged(path);
            return 0;
        }
        let memory = kernel::in_memory() as c_int;
        let replayed = call.content_again(&mut |at, bytes| {
            kernel::write_at(memory, bytes, at as u64);
        });
        match replayed {
            Some(_) => other = keep(path, memory),
            None => kernel::close(memory),
        }
        if replayed.is_none() && is_new_change() {
            standing_in::before_new();
            note(call, path);
        }
        0
    });
    other
}

/// Whether a library is Eyrie's: one that was installed a moment ago is no other one for that, and
/// would fill the room for what is observed before MPI_Init.
fn is_ours(path: &[u8]) -> bool {
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(&[]);
    name.starts_with(b"libeyrie-") || name.starts_with(b"libeyrie_")
}

/// Where a library is that was there before the job: at another place when it was replaced since.
fn unchanged(path: *const c_char) -> Option<*const c_char> {
    let now = kernel::look(HERE, path, true).ok();
    let is_same = now.is_some_and(|now| !now.in_job);
    // SAFETY: a C string, as the caller has looked.
    let path = unsafe { Path::of(HERE, path) }.filter(|_| !is_same)?;
    let Some(old) = keeping::of(&path) else {
        // Where there is none, there may never have been one.
        if now.is_some_and(|now| now.is_regular() && now.size <= MOST) {
            saying::changed_since(path.as_bytes());
        }
        return None;
    };
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    let fd = kernel::open(HERE, old.as_c(), flags, 0);
    c_int::try_from(fd).ok().filter(|fd| *fd >= 0).and_then(kept)
}

/// Records what a library has, if it may change.
fn note(call: Call, path: *const c_char) {
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    // SAFETY: a C string, as the caller has looked.
    let fd = kernel::open(HERE, unsafe { CStr::from_ptr(path) }, flags, 0) as c_int;
    let file = kernel::file_at(fd).filter(|f| f.in_job && f.size <= MOST);
    match file.and_then(|file| kernel::map(fd, 0, file.size as usize)) {
        Some(bytes) => {
            call.write_content(bytes.len() as i64, &mut |at, most| &bytes[at..at + most]);
            kernel::unmap(bytes);
        }
        None => call.write_done(),
    }
    kernel::close(fd);
}

/// Where it is loaded from: the file, if it still is the same, or what was recorded.
fn keep(path: *const c_char, memory: c_int) -> Option<*const c_char> {
    if kernel::has_same(path, memory) {
        kernel::close(memory);
        return None;
    }
    kept(memory)
}

/// A path that leads to an open file, as long as the process.
fn kept(fd: c_int) -> Option<*const c_char> {
    let high = kernel::move_up(fd);
    // SAFETY: this call is being recorded, of which there is one at a time.
    let paths = unsafe { &mut *PATHS.0.get() };
    let mut room = [0; 32];
    let free = paths.iter_mut().find(|path| path[0] == 0)?;
    free.copy_from_slice({
        kernel::link_of(high, &mut room);
        &room
    });
    Some(free.as_ptr().cast())
}
