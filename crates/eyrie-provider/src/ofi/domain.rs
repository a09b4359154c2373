//! The domain object: opens endpoints, queues and address vectors.

use super::{absent, atomic, av, base_ops, close_box, cntr, cq, endpoint, mr};
use eyrie_libfabric::abi::*;
use libc::{c_int, c_void};

static DOMAIN_BASE: fi_ops = fi_ops { bind: Some(bind), ..base_ops(close_box::<fid_domain>) };
static DOMAIN_OPS: fi_ops_domain = fi_ops_domain {
    size: size_of::<fi_ops_domain>(),
    av_open: av::open,
    cq_open: cq::open,
    endpoint: endpoint::open,
    scalable_ep: absent,
    cntr_open: cntr::open,
    poll_open: absent,
    stx_ctx: absent,
    srx_ctx: absent,
    query_atomic: atomic::query,
    query_collective: absent,
    endpoint2: endpoint::open2,
};
unsafe extern "C" fn bind(_: *mut fid, _: *mut fid, _: u64) -> c_int {
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
            mr: &mr::OPS,
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
    // SAFETY: the arguments are those of this call, unchanged.
    unsafe { open(fabric, info, domain, context) }
}
