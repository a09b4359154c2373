//! The libfabric interface: one file per object, as libfabric's own providers have it. Each
//! function must only translate; `core` does the work.

pub mod atomic;
pub mod av;
pub mod cntr;
pub mod counter;
pub mod cq;
pub mod domain;
pub mod endpoint;
pub mod ep;
pub mod fabric;
pub mod info;
pub mod mr;
pub mod msg;
pub mod queue;
pub mod rma;
pub mod tagged;

use eyrie_libfabric::abi::{fi_ops, fid};
use libc::{c_char, c_int, c_void, ssize_t};

/// Our provider's name, as in FI_PROVIDER.
pub const NAME: &std::ffi::CStr = c"eyrie";

/// The entry in tables for functions that this provider does not offer.
pub unsafe extern "C" fn absent() -> ssize_t {
    -(libc::ENOSYS as ssize_t)
}

unsafe extern "C" fn no_bind(_: *mut fid, _: *mut fid, _: u64) -> c_int {
    -libc::ENOSYS
}

unsafe extern "C" fn no_control(_: *mut fid, _: c_int, _: *mut c_void) -> c_int {
    -libc::ENOSYS
}

unsafe extern "C" fn no_ops_open(
    _: *mut fid,
    _: *const c_char,
    _: u64,
    _: *mut *mut c_void,
    _: *mut c_void,
) -> c_int {
    -libc::ENOSYS
}

unsafe extern "C" fn no_ops_set(
    _: *mut fid,
    _: *const c_char,
    _: u64,
    _: *mut c_void,
    _: *mut c_void,
) -> c_int {
    -libc::ENOSYS
}

/// The base operations of an object: closing it, and nothing else.
pub const fn base_ops(close: unsafe extern "C" fn(*mut fid) -> c_int) -> fi_ops {
    fi_ops {
        size: size_of::<fi_ops>(),
        close,
        bind: Some(no_bind),
        control: Some(no_control),
        ops_open: Some(no_ops_open),
        tostr: None,
        ops_set: Some(no_ops_set),
    }
}

/// Frees an object that was given out with `Box::into_raw`. To be used as `close` of `T`, whose
/// first field is its `fid`.
///
/// # Safety
/// `f` is such an object, and is not used any more.
pub unsafe extern "C" fn close_box<T>(f: *mut fid) -> c_int {
    // SAFETY: by contract, `f` is such an object, and is not used any more.
    drop(unsafe { Box::from_raw(f.cast::<T>()) });
    0
}

/// A buffer that a call gives. libfabric's empty buffers may be null.
///
/// # Safety
/// `start` is valid for `len` bytes as long as the result is used.
pub unsafe fn bytes<'a>(start: *const c_void, len: usize) -> &'a [u8] {
    if len == 0 {
        return &[];
    }
    // SAFETY: by contract, `start` is valid for `len` bytes as long as the result is used.
    unsafe { std::slice::from_raw_parts(start.cast(), len) }
}
