//! Counters of one-sided operations that are done. Reading one and waiting for one are progress
//! calls.

use super::counter::Cntr;
use super::{base_ops, cq, ep};
use crate::core::rank::Unread;
use eyrie_libfabric::abi::*;
use libc::{c_int, c_void};

static BASE: fi_ops = base_ops(close);
static OPS: fi_ops_cntr =
    fi_ops_cntr { size: size_of::<fi_ops_cntr>(), read, readerr, add, set, wait, adderr, seterr };

unsafe extern "C" fn close(f: *mut fid) -> c_int {
    ep::forget(f);
    // SAFETY: opened by `open`, not used any more.
    drop(unsafe { Box::from_raw(f.cast::<Cntr>()) });
    0
}

/// `fi_cntr_open`.
///
/// # Safety
/// As libfabric calls it.
pub unsafe extern "C" fn open(
    _domain: *mut fid_domain,
    _attr: *mut c_void,
    cntr: *mut *mut fid_cntr,
    context: *mut c_void,
) -> c_int {
    let fid = fid_cntr { fid: fid { fclass: FI_CLASS_CNTR, context, ops: &BASE }, ops: &OPS };
    // SAFETY: the library gives a place for the result.
    unsafe { *cntr = Box::into_raw(Box::new(Cntr { fid, value: 0, errors: 0 })).cast() };
    0
}

/// # Safety
/// `cntr` was opened by [`open`].
unsafe fn ours<'a>(cntr: *mut fid_cntr) -> &'a mut Cntr {
    // SAFETY: `open` has made it, and calls do not overlap (FI_THREAD_DOMAIN).
    unsafe { &mut *cntr.cast() }
}

unsafe extern "C" fn read(cntr: *mut fid_cntr) -> u64 {
    cq::progress(Unread::Nothing);
    // SAFETY: the library passes a counter that we opened.
    unsafe { ours(cntr).value }
}

unsafe extern "C" fn readerr(cntr: *mut fid_cntr) -> u64 {
    // SAFETY: the library passes a counter that we opened.
    unsafe { ours(cntr).errors }
}

/// Waits until the counter has reached `threshold`. The time-out, in milliseconds, is counted in
/// progress calls, because time is not the same in a re-execution; a progress call that finds
/// nothing takes up to about a millisecond when there have been many.
unsafe extern "C" fn wait(cntr: *mut fid_cntr, threshold: u64, timeout_ms: c_int) -> c_int {
    let mut calls_left = u64::try_from(timeout_ms).map_or(u64::MAX, |ms| ms.saturating_add(1));
    loop {
        cq::progress(Unread::Nothing);
        // SAFETY: the library passes a counter that we opened.
        let (value, errors) = unsafe { (ours(cntr).value, ours(cntr).errors) };
        if value >= threshold {
            return 0;
        }
        if errors > 0 {
            return -FI_EAVAIL;
        }
        calls_left -= 1;
        if calls_left == 0 {
            return -libc::ETIMEDOUT;
        }
    }
}

unsafe extern "C" fn add(cntr: *mut fid_cntr, n: u64) -> c_int {
    // SAFETY: the library passes a counter that we opened.
    unsafe { ours(cntr).value += n };
    0
}

unsafe extern "C" fn set(cntr: *mut fid_cntr, n: u64) -> c_int {
    // SAFETY: the library passes a counter that we opened.
    unsafe { ours(cntr).value = n };
    0
}

unsafe extern "C" fn adderr(cntr: *mut fid_cntr, n: u64) -> c_int {
    // SAFETY: the library passes a counter that we opened.
    unsafe { ours(cntr).errors += n };
    0
}

unsafe extern "C" fn seterr(cntr: *mut fid_cntr, n: u64) -> c_int {
    // SAFETY: the library passes a counter that we opened.
    unsafe { ours(cntr).errors = n };
    0
}
