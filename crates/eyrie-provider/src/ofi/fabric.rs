//! The fabric object: opens domains. It also opens event queues, because libraries want them; they
//! never have an event.

use super::{absent, base_ops, close_box, domain};
use eyrie_libfabric::abi::*;
use libc::{c_int, c_void, size_t, ssize_t};

static FABRIC_BASE: fi_ops = base_ops(close_box::<fid_fabric>);
static FABRIC_OPS: fi_ops_fabric = fi_ops_fabric {
    size: size_of::<fi_ops_fabric>(),
    domain: domain::open,
    passive_ep: absent,
    eq_open: open_eq,
    wait_open: absent,
    trywait: absent,
    domain2: domain::open2,
};

/// `fi_fabric`.
///
/// # Safety
/// As libfabric calls it.
pub unsafe extern "C" fn open(
    attr: *mut fi_fabric_attr,
    fabric: *mut *mut fid_fabric,
    context: *mut c_void,
) -> c_int {
    // SAFETY: libfabric gives whole attributes and a place for the result.
    unsafe {
        *fabric = Box::into_raw(Box::new(fid_fabric {
            fid: fid { fclass: FI_CLASS_FABRIC, context, ops: &FABRIC_BASE },
            ops: &FABRIC_OPS,
            api_version: (*attr).api_version,
        }));
    }
    0
}

static EQ_BASE: fi_ops = base_ops(close_box::<fid_eq>);
static EQ_OPS: fi_ops_eq = fi_ops_eq {
    size: size_of::<fi_ops_eq>(),
    read: read_eq,
    readerr: read_eq_error,
    write: absent,
    sread: absent,
    strerror: absent,
};

unsafe extern "C" fn open_eq(
    _fabric: *mut fid_fabric,
    _attr: *mut c_void,
    eq: *mut *mut fid_eq,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the library gives a place for the result.
    unsafe {
        *eq = Box::into_raw(Box::new(fid_eq {
            fid: fid { fclass: FI_CLASS_EQ, context, ops: &EQ_BASE },
            ops: &EQ_OPS,
        }));
    }
    0
}

unsafe extern "C" fn read_eq(
    _: *mut fid_eq,
    _: *mut u32,
    _: *mut c_void,
    _: size_t,
    _: u64,
) -> ssize_t {
    -(libc::EAGAIN as ssize_t)
}

unsafe extern "C" fn read_eq_error(_: *mut fid_eq, _: *mut c_void, _: u64) -> ssize_t {
    -(libc::EAGAIN as ssize_t)
}
