//! Memory regions: memory of this process that others may read and write, known to them by a key
//! and an offset. The key is the MPI library's own choice, so that it is the same in each
//! incarnation.

use super::{absent, base_ops};
use crate::core::rma::Region;
use crate::process;
use eyrie_libfabric::abi::*;
use libc::{c_int, c_void, iovec, size_t};

pub static OPS: fi_ops_mr = fi_ops_mr { size: size_of::<fi_ops_mr>(), reg, regv: absent, regattr };
static BASE: fi_ops = fi_ops { bind: Some(bind), control: Some(control), ..base_ops(close) };

unsafe extern "C" fn bind(_: *mut fid, _: *mut fid, _: u64) -> c_int {
    0
}

unsafe extern "C" fn control(_: *mut fid, _: c_int, _: *mut c_void) -> c_int {
    0
}

unsafe extern "C" fn close(f: *mut fid) -> c_int {
    // SAFETY: registered below, not used any more.
    let mr = unsafe { Box::from_raw(f.cast::<fid_mr>()) };
    process::call(|rank| rank.regions.remove(mr.key));
    0
}

unsafe extern "C" fn reg(
    _domain: *mut fid,
    buf: *const c_void,
    len: size_t,
    _access: u64,
    _offset: u64,
    key: u64,
    _flags: u64,
    mr: *mut *mut fid_mr,
    context: *mut c_void,
) -> c_int {
    let region = Region { base: buf as usize, len };
    if !process::call(|rank| rank.regions.add(key, region)) {
        return -libc::ENOKEY;
    }
    let fid = fid { fclass: FI_CLASS_MR, context, ops: &BASE };
    let object = fid_mr { fid, mem_desc: std::ptr::null_mut(), key };
    // SAFETY: the library gives a place for the result.
    unsafe { *mr = Box::into_raw(Box::new(object)) };
    0
}

unsafe extern "C" fn regattr(
    domain: *mut fid,
    attr: *const fi_mr_attr,
    flags: u64,
    mr: *mut *mut fid_mr,
) -> c_int {
    // SAFETY: the library gives whole attributes, with `iov_count` entries.
    unsafe {
        let attr = &*attr;
        if attr.iov_count != 1 {
            return -libc::EINVAL;
        }
        let iovec { iov_base, iov_len } = *attr.mr_iov;
        let fi_mr_attr { access, offset, requested_key, context, .. } = *attr;
        reg(domain, iov_base, iov_len, access, offset, requested_key, flags, mr, context)
    }
}
