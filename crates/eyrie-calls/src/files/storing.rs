//! Stores records before the calls that they describe: the provider sends them to the rank's
//! primary router and waits until the router has them. Before this process is a rank, no router can
//! have them.

use crate::observed::pause;
use std::ffi::c_void;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

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

/// Returns when all that was recorded is safe.
///
/// # Safety In a call that is being recorded.
pub unsafe fn store() {
    let store = STORE.load(Ordering::Relaxed);
    if !store.is_null() {
        // SAFETY: `store_by` has it from a function of this type.
        let store = unsafe { std::mem::transmute::<*mut c_void, extern "C" fn()>(store) };
        // SAFETY: the caller keeps this contract, which is that of the function called.
        unsafe { pause(|| store()) };
        TIMES.fetch_add(1, Ordering::Relaxed);
    }
}
