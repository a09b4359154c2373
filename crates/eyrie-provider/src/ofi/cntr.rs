//! Counters: MPICH opens and binds one and never waits for it.

use super::abi::*;
use super::{absent, base_ops, close_box};
use libc::{c_int, c_void};

#[repr(C)]
struct Cntr {
    fid: fid_cntr,
    value: u64,
    errors: u64,
}

static BASE: fi_ops = base_ops(close_box::<Cntr>);
static OPS: fi_ops_cntr = fi_ops_cntr {
    size: size_of::<fi_ops_cntr>(),
    read,
    readerr,
    add,
    set,
    wait: absent,
    adderr,
    seterr,
};

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
    // SAFETY: as above; calls do not overlap (FI_THREAD_DOMAIN).
    unsafe { &mut *cntr.cast() }
}

unsafe extern "C" fn read(cntr: *mut fid_cntr) -> u64 {
    // SAFETY: the library gives back what we opened; so in all functions below.
    unsafe { ours(cntr).value }
}

unsafe extern "C" fn readerr(cntr: *mut fid_cntr) -> u64 {
    // SAFETY: as in `read`.
    unsafe { ours(cntr).errors }
}

unsafe extern "C" fn add(cntr: *mut fid_cntr, n: u64) -> c_int {
    // SAFETY: as in `read`.
    unsafe { ours(cntr).value += n };
    0
}

unsafe extern "C" fn set(cntr: *mut fid_cntr, n: u64) -> c_int {
    // SAFETY: as in `read`.
    unsafe { ours(cntr).value = n };
    0
}

unsafe extern "C" fn adderr(cntr: *mut fid_cntr, n: u64) -> c_int {
    // SAFETY: as in `read`.
    unsafe { ours(cntr).errors += n };
    0
}

unsafe extern "C" fn seterr(cntr: *mut fid_cntr, n: u64) -> c_int {
    // SAFETY: as in `read`.
    unsafe { ours(cntr).errors = n };
    0
}
