//! Runs a call that is recorded, so that it leaves nothing behind on the stack of the program.

use super::kernel::{errno, file_at, File};
use super::memory;
use super::pending;
use super::standing_in;
use super::storing;
use crate::observed::Observing;
use libc::c_int;

/// What a call does on the stack on which nothing is left behind.
type Body<'a> = &'a mut dyn FnMut() -> i64;

/// Runs `body`, which gives what the C library's function would or a negative errno, as a call that
/// is recorded; `None` in a thread whose calls are not.
pub fn recorded(mut body: Body) -> Option<i64> {
    let mut observing = Observing::begin()?;
    let value = observing.run(on_own_stack, (&raw mut body).expose_provenance());
    Some(value)
}

extern "C" fn on_own_stack(body: usize) -> i64 {
    // SAFETY: the variable of `recorded`, which waits for this.
    let body = unsafe { &mut *std::ptr::with_exposed_provenance_mut::<Body>(body) };
    let before = errno();
    // SAFETY: this call is to be recorded, of which there is one at a time.
    unsafe { storing::store_much() };
    let value = body();
    // SAFETY: errno of this thread is valid while the thread runs, and no other thread uses it.
    unsafe { *libc::__errno_location() = if value < 0 { -value as i32 } else { before } };
    value.max(-1)
}

/// Runs `body` for a regular file that is open, as a call that is recorded. `None`: it is none, or
/// a file without a name, which images hold and no other process has; or in a thread whose calls
/// are not recorded.
pub fn of_file(fd: c_int, body: &mut dyn FnMut(&File) -> i64) -> Option<i64> {
    let mut counts = false;
    let value = recorded(&mut || {
        // SAFETY: this call is being recorded, of which there is one at a time.
        let stands_in = || pending::any() && unsafe { standing_in::table() }.stands_in(fd);
        let counts_as = |file: &File| !memory::is_memory(file.number);
        let is_named = |file: &File| !file.nameless || stands_in();
        let Some(file) = file_at(fd).filter(is_named).filter(counts_as) else { return 0 };
        counts = true;
        body(&file)
    });
    value.filter(|_| counts)
}

/// What a function of the C library returns for what a [`Body`] says: -1 with errno.
pub fn or_errno(value: i64) -> isize {
    if value < 0 {
        // SAFETY: errno of this thread is valid while the thread runs, and no other thread uses it.
        unsafe { *libc::__errno_location() = -value as c_int };
        return -1;
    }
    value as isize
}

/// What a function of the C library has returned, as a [`Body`] says it.
pub fn outcome(value: impl Into<i64>) -> i64 {
    match value.into() {
        value @ 0.. => value,
        _ => -i64::from(errno()),
    }
}
