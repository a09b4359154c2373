//! Runs a call that is written down where it leaves nothing behind.

use super::kernel::errno;
use crate::observed::Observing;

/// What a call does on the stack on which nothing is left behind.
type Body<'a> = &'a mut dyn FnMut() -> i64;

/// Runs `body`, which gives what the C library's function would or a negative errno, as a call that
/// is written down; `None` in a thread whose calls are not.
pub fn written_down(mut body: Body) -> Option<i64> {
    let mut observing = Observing::begin()?;
    let value = observing.run(on_own_stack, (&raw mut body).expose_provenance());
    Some(value)
}

extern "C" fn on_own_stack(body: usize) -> i64 {
    // SAFETY: the variable of `written_down`, which waits for this.
    let body = unsafe { &mut *std::ptr::with_exposed_provenance_mut::<Body>(body) };
    let before = errno();
    let value = body();
    // SAFETY: this thread's own.
    unsafe { *libc::__errno_location() = if value < 0 { -value as i32 } else { before } };
    value.max(-1)
}

/// What a function of the C library has returned, as a [`Body`] says it.
pub fn outcome(value: libc::c_int) -> i64 {
    match value {
        0.. => value.into(),
        _ => -i64::from(errno()),
    }
}
