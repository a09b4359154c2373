//! Stores records before the calls that they describe: the provider sends them to the rank's
//! primary router and waits until the router has them. Before this process is a rank, no router can
//! have them.

use crate::observed::{pause, rest, stream, ROOM};
use std::ffi::c_void;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// Bytes that a call may find in the recorder when it begins: a small part of its room, so that
/// what the call itself records fits behind it.
const MUCH: usize = ROOM / 16;

/// A function of the provider.
static STORE: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// How many times something was.
static TIMES: AtomicU64 = AtomicU64::new(0);

/// How many times something was stored.
pub fn times() -> u64 {
    TIMES.load(Ordering::Relaxed)
}

pub fn store_by(store: extern "C" fn()) {
    STORE.store(store as *mut c_void, Ordering::Relaxed);
}

/// The function of the provider, once there is one.
fn provider() -> Option<extern "C" fn()> {
    let store = STORE.load(Ordering::Relaxed);
    // SAFETY: `store_by` has it from a function of this type.
    (!store.is_null())
        .then(|| unsafe { std::mem::transmute::<*mut c_void, extern "C" fn()>(store) })
}

/// Returns when all that was recorded is safe.
///
/// # Safety
/// In a call that is being recorded.
pub unsafe fn store() {
    if let Some(store) = provider() {
        // SAFETY: the caller keeps this contract, which is that of the function called.
        unsafe { pause(|| store()) };
        TIMES.fetch_add(1, Ordering::Relaxed);
    }
}

/// Stores what was recorded when it has become much. Before a call, because an image may be taken
/// while this waits, which may be what makes room; within one, none may be taken.
///
/// # Safety
/// In a call that is to be recorded, before it has done anything.
pub unsafe fn store_much() {
    // SAFETY: the caller keeps other users of the stream out.
    if unsafe { stream() }.waiting() < MUCH {
        return;
    }
    if let Some(store) = provider() {
        // SAFETY: the caller keeps this contract, which is that of the function called.
        unsafe { rest(|| store()) };
    }
}
