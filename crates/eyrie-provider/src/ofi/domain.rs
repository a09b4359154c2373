//! The domain object: opens endpoints, queues and address vectors. Memory registration succeeds and means nothing.

use super::abi::*;
use super::{absent, av, base_ops, close_box, cntr, cq, ep};
use libc::{c_int, c_void, size_t};

static DOMAIN_BASE: fi_ops = fi_ops { bind: Some(bind), ..base_ops(close_box::<fid_domain>) };
static DOMAIN_OPS: fi_ops_domain = fi_ops_domain {
    size: size_of::<fi_ops_domain>(),
    av_open: av::open,
    cq_open: cq::open,
    endpoint: ep::open,
    scalable_ep: absent,
    cntr_open: cntr::open,
    poll_open: absent,
    stx_ctx: absent,
    srx_ctx: absent,
    query_atomic: absent,
    query_collective: absent,
    endpoint2: ep::open2,
};
static MR_OPS: fi_ops_mr =
    fi_ops_mr { size: size_of::<fi_ops_mr>(), reg: register, regv: absent, regattr: register_attr };
static MR_BASE: fi_ops =
    fi_ops { bind: Some(bind), control: Some(accept_control), ..base_ops(close_box::<fid_mr>) };

unsafe extern "C" fn bind(_: *mut fid, _: *mut fid, _: u64) -> c_int {
    0
}

unsafe extern "C" fn accept_control(_: *mut fid, _: c_int, _: *mut c_void) -> c_int {
    0
}

/// `fi_domain`.
///
/// # Safety
/// As libfabric calls it.
pub unsafe extern "C" fn open(
    _fabric: *mut fid_fabric,
    _info: *mut fi_info,
    domain: *mut *mut fid_domain,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the library gives a place for the result.
    unsafe {
        *domain = Box::into_raw(Box::new(fid_domain {
            fid: fid { fclass: FI_CLASS_DOMAIN, context, ops: &DOMAIN_BASE },
            ops: &DOMAIN_OPS,
            mr: &MR_OPS,
        }));
    }
    0
}

/// `fi_domain2`: no flag means anything here.
///
/// # Safety
/// As [`open`].
pub unsafe extern "C" fn open2(
    fabric: *mut fid_fabric,
    info: *mut fi_info,
    domain: *mut *mut fid_domain,
    _flags: u64,
    context: *mut c_void,
) -> c_int {
    // SAFETY: handed through.
    unsafe { open(fabric, info, domain, context) }
}

unsafe fn registered(mr: *mut *mut fid_mr, key: u64, context: *mut c_void) -> c_int {
    let object = fid_mr {
        fid: fid { fclass: FI_CLASS_MR, context, ops: &MR_BASE },
        mem_desc: std::ptr::null_mut(),
        key,
    };
    // SAFETY: the library gives a place for the result.
    unsafe { *mr = Box::into_raw(Box::new(object)) };
    0
}

unsafe extern "C" fn register(
    _domain: *mut fid,
    _buf: *const c_void,
    _len: size_t,
    _access: u64,
    _offset: u64,
    key: u64,
    _flags: u64,
    mr: *mut *mut fid_mr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: handed through.
    unsafe { registered(mr, key, context) }
}

unsafe extern "C" fn register_attr(
    _domain: *mut fid,
    attr: *const fi_mr_attr,
    _flags: u64,
    mr: *mut *mut fid_mr,
) -> c_int {
    // SAFETY: the library gives whole attributes.
    unsafe { registered(mr, (*attr).requested_key, (*attr).context) }
}
