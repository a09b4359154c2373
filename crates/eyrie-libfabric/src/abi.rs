//! The part of libfabric's binary interface that Eyrie uses: names, layouts and numbers as in
//! `rdma/fabric.h` and its companions, version 1.17. Later versions only add fields at the end of
//! the structures, so the provider allocates what it returns zeroed and padded. Nothing here may
//! need a symbol of libfabric.

#![allow(non_camel_case_types)]

use libc::{iovec, size_t, ssize_t};
use std::ffi::{c_char, c_int, c_void};

pub const FI_MSG: u64 = 1 << 1;
pub const FI_RMA: u64 = 1 << 2;
pub const FI_TAGGED: u64 = 1 << 3;
pub const FI_ATOMIC: u64 = 1 << 4;
pub const FI_READ: u64 = 1 << 8;
pub const FI_WRITE: u64 = 1 << 9;
pub const FI_RECV: u64 = 1 << 10;
pub const FI_SEND: u64 = 1 << 11;
pub const FI_REMOTE_READ: u64 = 1 << 12;
pub const FI_REMOTE_WRITE: u64 = 1 << 13;
pub const FI_MULTI_RECV: u64 = 1 << 16;
pub const FI_REMOTE_CQ_DATA: u64 = 1 << 17;
pub const FI_PEEK: u64 = 1 << 19;
pub const FI_COMPLETION: u64 = 1 << 24;
/// With `fi_getinfo`: the given address is this side's own.
pub const FI_SOURCE: u64 = 1 << 57;
pub const FI_LOCAL_COMM: u64 = 1 << 51;
pub const FI_REMOTE_COMM: u64 = 1 << 52;
pub const FI_DIRECTED_RECV: u64 = 1 << 59;
/// With [`FI_PEEK`]: keep the found message for the receive with the same context.
pub const FI_CLAIM: u64 = 1 << 59;
/// With [`FI_PEEK`] or [`FI_CLAIM`]: drop the message.
pub const FI_DISCARD: u64 = 1 << 58;
/// On binding a completion queue: only operations with [`FI_COMPLETION`] are reported.
pub const FI_SELECTIVE_COMPLETION: u64 = 1 << 59;
/// With `query_atomic`: an operation that compares.
pub const FI_COMPARE_ATOMIC: u64 = 1 << 59;
/// `FI_ORDER_RAR` to `FI_ORDER_SAS`: reads, writes and sends stay in order with each other.
pub const FI_ORDER_ALL: u64 = 0x1ff;
/// `FI_ORDER_RMA_*` and `FI_ORDER_ATOMIC_*`.
pub const FI_ORDER_RMA_ALL: u64 = 0xf << 32;
pub const FI_ORDER_ATOMIC_ALL: u64 = 0xf << 36;

pub const FI_ADDR_UNSPEC: u64 = u64::MAX;
pub const FI_FORMAT_UNSPEC: u32 = 0;
pub const FI_EP_UNSPEC: c_int = 0;
pub const FI_EP_RDM: c_int = 3;
pub const FI_AV_TABLE: c_int = 2;
pub const FI_PROGRESS_MANUAL: c_int = 2;
pub const FI_THREAD_DOMAIN: c_int = 3;
pub const FI_RM_ENABLED: c_int = 2;
/// What a domain may require when memory is registered: local buffers too, addresses of memory
/// instead of offsets, memory that is allocated, keys that the provider chooses.
pub const FI_MR_LOCAL: c_int = 1 << 2;
pub const FI_MR_VIRT_ADDR: c_int = 1 << 4;
pub const FI_MR_ALLOCATED: c_int = 1 << 5;
pub const FI_MR_PROV_KEY: c_int = 1 << 6;
pub const FI_WAIT_UNSPEC: c_int = 1;
pub const FI_CQ_FORMAT_CONTEXT: c_int = 1;
pub const FI_CQ_FORMAT_MSG: c_int = 2;
pub const FI_CQ_FORMAT_DATA: c_int = 3;
pub const FI_CQ_FORMAT_TAGGED: c_int = 4;
pub const FI_OPT_ENDPOINT: c_int = 0;
pub const FI_OPT_MIN_MULTI_RECV: c_int = 0;

pub const FI_CLASS_FABRIC: size_t = 1;
pub const FI_CLASS_DOMAIN: size_t = 2;
pub const FI_CLASS_EP: size_t = 3;
pub const FI_CLASS_AV: size_t = 11;
pub const FI_CLASS_MR: size_t = 12;
pub const FI_CLASS_EQ: size_t = 13;
pub const FI_CLASS_CQ: size_t = 14;
pub const FI_CLASS_CNTR: size_t = 15;

/// `fi_control` command that enables an endpoint.
pub const FI_ENABLE: c_int = 6;

pub const FI_EAVAIL: c_int = 259;
pub const FI_ETRUNC: c_int = 265;

/// `FI_VERSION(major, minor)`.
pub const fn fi_version(major: u32, minor: u32) -> u32 {
    major << 16 | minor
}

#[repr(C)]
pub struct fid {
    pub fclass: size_t,
    pub context: *mut c_void,
    pub ops: *const fi_ops,
}

#[repr(C)]
pub struct fi_ops {
    pub size: size_t,
    pub close: unsafe extern "C" fn(*mut fid) -> c_int,
    pub bind: Option<unsafe extern "C" fn(*mut fid, *mut fid, u64) -> c_int>,
    pub control: Option<unsafe extern "C" fn(*mut fid, c_int, *mut c_void) -> c_int>,
    pub ops_open: Option<
        unsafe extern "C" fn(*mut fid, *const c_char, u64, *mut *mut c_void, *mut c_void) -> c_int,
    >,
    pub tostr: Option<unsafe extern "C" fn(*const fid, *mut c_char, size_t) -> c_int>,
    pub ops_set: Option<
        unsafe extern "C" fn(*mut fid, *const c_char, u64, *mut c_void, *mut c_void) -> c_int,
    >,
}

#[repr(C)]
pub struct fi_tx_attr {
    pub caps: u64,
    pub mode: u64,
    pub op_flags: u64,
    pub msg_order: u64,
    pub comp_order: u64,
    pub inject_size: size_t,
    pub size: size_t,
    pub iov_limit: size_t,
    pub rma_iov_limit: size_t,
    pub tclass: u32,
}

#[repr(C)]
pub struct fi_rx_attr {
    pub caps: u64,
    pub mode: u64,
    pub op_flags: u64,
    pub msg_order: u64,
    pub comp_order: u64,
    pub total_buffered_recv: size_t,
    pub size: size_t,
    pub iov_limit: size_t,
}

#[repr(C)]
pub struct fi_ep_attr {
    pub type_: c_int,
    pub protocol: u32,
    pub protocol_version: u32,
    pub max_msg_size: size_t,
    pub msg_prefix_size: size_t,
    pub max_order_raw_size: size_t,
    pub max_order_war_size: size_t,
    pub max_order_waw_size: size_t,
    pub mem_tag_format: u64,
    pub tx_ctx_cnt: size_t,
    pub rx_ctx_cnt: size_t,
    pub auth_key_size: size_t,
    pub auth_key: *mut u8,
}

#[repr(C)]
pub struct fi_domain_attr {
    pub domain: *mut c_void,
    pub name: *mut c_char,
    pub threading: c_int,
    pub control_progress: c_int,
    pub data_progress: c_int,
    pub resource_mgmt: c_int,
    pub av_type: c_int,
    pub mr_mode: c_int,
    pub mr_key_size: size_t,
    pub cq_data_size: size_t,
    pub cq_cnt: size_t,
    pub ep_cnt: size_t,
    pub tx_ctx_cnt: size_t,
    pub rx_ctx_cnt: size_t,
    pub max_ep_tx_ctx: size_t,
    pub max_ep_rx_ctx: size_t,
    pub max_ep_stx_ctx: size_t,
    pub max_ep_srx_ctx: size_t,
    pub cntr_cnt: size_t,
    pub mr_iov_limit: size_t,
    pub caps: u64,
    pub mode: u64,
    pub auth_key: *mut u8,
    pub auth_key_size: size_t,
    pub max_err_data: size_t,
    pub mr_cnt: size_t,
    pub tclass: u32,
}

#[repr(C)]
pub struct fi_fabric_attr {
    pub fabric: *mut c_void,
    pub name: *mut c_char,
    pub prov_name: *mut c_char,
    pub prov_version: u32,
    pub api_version: u32,
}

#[repr(C)]
pub struct fi_info {
    pub next: *mut fi_info,
    pub caps: u64,
    pub mode: u64,
    pub addr_format: u32,
    pub src_addrlen: size_t,
    pub dest_addrlen: size_t,
    pub src_addr: *mut c_void,
    pub dest_addr: *mut c_void,
    pub handle: *mut fid,
    pub tx_attr: *mut fi_tx_attr,
    pub rx_attr: *mut fi_rx_attr,
    pub ep_attr: *mut fi_ep_attr,
    pub domain_attr: *mut fi_domain_attr,
    pub fabric_attr: *mut fi_fabric_attr,
    pub nic: *mut c_void,
}

#[repr(C)]
pub struct fi_provider {
    pub version: u32,
    pub fi_version: u32,
    /// `struct fi_context`: used by libfabric's core.
    pub context: [*mut c_void; 4],
    pub name: *const c_char,
    pub getinfo: unsafe extern "C" fn(
        u32,
        *const c_char,
        *const c_char,
        u64,
        *const fi_info,
        *mut *mut fi_info,
    ) -> c_int,
    pub fabric:
        unsafe extern "C" fn(*mut fi_fabric_attr, *mut *mut fid_fabric, *mut c_void) -> c_int,
    pub cleanup: unsafe extern "C" fn(),
    /// Later versions may read further fields.
    pub padding: [usize; 16],
}

/// A function that this provider does not offer: the pointer in the table returns `-FI_ENOSYS`.
pub type absent = unsafe extern "C" fn() -> ssize_t;

#[repr(C)]
pub struct fi_ops_fabric {
    pub size: size_t,
    pub domain: unsafe extern "C" fn(
        *mut fid_fabric,
        *mut fi_info,
        *mut *mut fid_domain,
        *mut c_void,
    ) -> c_int,
    pub passive_ep: absent,
    pub eq_open:
        unsafe extern "C" fn(*mut fid_fabric, *mut c_void, *mut *mut fid_eq, *mut c_void) -> c_int,
    pub wait_open: absent,
    pub trywait: absent,
    pub domain2: unsafe extern "C" fn(
        *mut fid_fabric,
        *mut fi_info,
        *mut *mut fid_domain,
        u64,
        *mut c_void,
    ) -> c_int,
}

#[repr(C)]
pub struct fid_fabric {
    pub fid: fid,
    pub ops: *const fi_ops_fabric,
    pub api_version: u32,
}

#[repr(C)]
pub struct fi_ops_domain {
    pub size: size_t,
    pub av_open: unsafe extern "C" fn(
        *mut fid_domain,
        *mut fi_av_attr,
        *mut *mut fid_av,
        *mut c_void,
    ) -> c_int,
    pub cq_open: unsafe extern "C" fn(
        *mut fid_domain,
        *mut fi_cq_attr,
        *mut *mut fid_cq,
        *mut c_void,
    ) -> c_int,
    pub endpoint:
        unsafe extern "C" fn(*mut fid_domain, *mut fi_info, *mut *mut fid_ep, *mut c_void) -> c_int,
    pub scalable_ep: absent,
    pub cntr_open: unsafe extern "C" fn(
        *mut fid_domain,
        *mut c_void,
        *mut *mut fid_cntr,
        *mut c_void,
    ) -> c_int,
    pub poll_open: absent,
    pub stx_ctx: absent,
    pub srx_ctx: absent,
    pub query_atomic:
        unsafe extern "C" fn(*mut fid_domain, c_int, c_int, *mut fi_atomic_attr, u64) -> c_int,
    pub query_collective: absent,
    pub endpoint2: unsafe extern "C" fn(
        *mut fid_domain,
        *mut fi_info,
        *mut *mut fid_ep,
        u64,
        *mut c_void,
    ) -> c_int,
}

#[repr(C)]
pub struct fi_ops_mr {
    pub size: size_t,
    pub reg: unsafe extern "C" fn(
        *mut fid,
        *const c_void,
        size_t,
        u64,
        u64,
        u64,
        u64,
        *mut *mut fid_mr,
        *mut c_void,
    ) -> c_int,
    pub regv: absent,
    pub regattr: unsafe extern "C" fn(*mut fid, *const fi_mr_attr, u64, *mut *mut fid_mr) -> c_int,
}

#[repr(C)]
pub struct fid_domain {
    pub fid: fid,
    pub ops: *const fi_ops_domain,
    pub mr: *const fi_ops_mr,
}

#[repr(C)]
pub struct fi_mr_attr {
    pub mr_iov: *const iovec,
    pub iov_count: size_t,
    pub access: u64,
    pub offset: u64,
    pub requested_key: u64,
    pub context: *mut c_void,
}

#[repr(C)]
pub struct fid_mr {
    pub fid: fid,
    pub mem_desc: *mut c_void,
    pub key: u64,
}

#[repr(C)]
pub struct fi_av_attr {
    pub type_: c_int,
    pub rx_ctx_bits: c_int,
    pub count: size_t,
    pub ep_per_node: size_t,
    pub name: *const c_char,
    pub map_addr: *mut c_void,
    pub flags: u64,
}

#[repr(C)]
pub struct fi_ops_av {
    pub size: size_t,
    pub insert: unsafe extern "C" fn(
        *mut fid_av,
        *const c_void,
        size_t,
        *mut u64,
        u64,
        *mut c_void,
    ) -> c_int,
    pub insertsvc: absent,
    pub insertsym: absent,
    pub remove: unsafe extern "C" fn(*mut fid_av, *mut u64, size_t, u64) -> c_int,
    pub lookup: unsafe extern "C" fn(*mut fid_av, u64, *mut c_void, *mut size_t) -> c_int,
    pub straddr:
        unsafe extern "C" fn(*mut fid_av, *const c_void, *mut c_char, *mut size_t) -> *const c_char,
    pub av_set: absent,
    /// `insert_auth_key`, `lookup_auth_key`, `set_user_id` of later versions.
    pub later: [absent; 3],
}

#[repr(C)]
pub struct fid_av {
    pub fid: fid,
    pub ops: *const fi_ops_av,
}

#[repr(C)]
pub struct fi_cq_attr {
    pub size: size_t,
    pub flags: u64,
    pub format: c_int,
    pub wait_obj: c_int,
    pub signaling_vector: c_int,
    pub wait_cond: c_int,
    pub wait_set: *mut c_void,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_cq_tagged_entry {
    pub op_context: *mut c_void,
    pub flags: u64,
    pub len: size_t,
    pub buf: *mut c_void,
    pub data: u64,
    pub tag: u64,
}

#[repr(C)]
pub struct fi_cq_err_entry {
    pub op_context: *mut c_void,
    pub flags: u64,
    pub len: size_t,
    pub buf: *mut c_void,
    pub data: u64,
    pub tag: u64,
    pub olen: size_t,
    pub err: c_int,
    pub prov_errno: c_int,
    pub err_data: *mut c_void,
    pub err_data_size: size_t,
}

#[repr(C)]
pub struct fi_ops_cq {
    pub size: size_t,
    pub read: unsafe extern "C" fn(*mut fid_cq, *mut c_void, size_t) -> ssize_t,
    pub readfrom: unsafe extern "C" fn(*mut fid_cq, *mut c_void, size_t, *mut u64) -> ssize_t,
    pub readerr: unsafe extern "C" fn(*mut fid_cq, *mut fi_cq_err_entry, u64) -> ssize_t,
    pub sread:
        unsafe extern "C" fn(*mut fid_cq, *mut c_void, size_t, *const c_void, c_int) -> ssize_t,
    pub sreadfrom: absent,
    pub signal: absent,
    pub strerror: unsafe extern "C" fn(
        *mut fid_cq,
        c_int,
        *const c_void,
        *mut c_char,
        size_t,
    ) -> *const c_char,
}

#[repr(C)]
pub struct fid_cq {
    pub fid: fid,
    pub ops: *const fi_ops_cq,
}

#[repr(C)]
pub struct fi_ops_cntr {
    pub size: size_t,
    pub read: unsafe extern "C" fn(*mut fid_cntr) -> u64,
    pub readerr: unsafe extern "C" fn(*mut fid_cntr) -> u64,
    pub add: unsafe extern "C" fn(*mut fid_cntr, u64) -> c_int,
    pub set: unsafe extern "C" fn(*mut fid_cntr, u64) -> c_int,
    pub wait: unsafe extern "C" fn(*mut fid_cntr, u64, c_int) -> c_int,
    pub adderr: unsafe extern "C" fn(*mut fid_cntr, u64) -> c_int,
    pub seterr: unsafe extern "C" fn(*mut fid_cntr, u64) -> c_int,
}

#[repr(C)]
pub struct fid_cntr {
    pub fid: fid,
    pub ops: *const fi_ops_cntr,
}

#[repr(C)]
pub struct fid_eq {
    pub fid: fid,
    pub ops: *const fi_ops_eq,
}

#[repr(C)]
pub struct fi_ops_eq {
    pub size: size_t,
    pub read: unsafe extern "C" fn(*mut fid_eq, *mut u32, *mut c_void, size_t, u64) -> ssize_t,
    pub readerr: unsafe extern "C" fn(*mut fid_eq, *mut c_void, u64) -> ssize_t,
    pub write: absent,
    pub sread: absent,
    pub strerror: absent,
}

#[repr(C)]
pub struct fi_msg {
    pub msg_iov: *const iovec,
    pub desc: *mut *mut c_void,
    pub iov_count: size_t,
    pub addr: u64,
    pub context: *mut c_void,
    pub data: u64,
}

#[repr(C)]
pub struct fi_msg_tagged {
    pub msg_iov: *const iovec,
    pub desc: *mut *mut c_void,
    pub iov_count: size_t,
    pub addr: u64,
    pub tag: u64,
    pub ignore: u64,
    pub context: *mut c_void,
    pub data: u64,
}

#[repr(C)]
pub struct fi_ops_ep {
    pub size: size_t,
    pub cancel: unsafe extern "C" fn(*mut fid, *mut c_void) -> ssize_t,
    pub getopt: unsafe extern "C" fn(*mut fid, c_int, c_int, *mut c_void, *mut size_t) -> c_int,
    pub setopt: unsafe extern "C" fn(*mut fid, c_int, c_int, *const c_void, size_t) -> c_int,
    pub tx_ctx: absent,
    pub rx_ctx: absent,
    pub rx_size_left: absent,
    pub tx_size_left: absent,
}

#[repr(C)]
pub struct fi_ops_cm {
    pub size: size_t,
    pub setname: absent,
    pub getname: unsafe extern "C" fn(*mut fid, *mut c_void, *mut size_t) -> c_int,
    pub getpeer: absent,
    pub connect: absent,
    pub listen: absent,
    pub accept: absent,
    pub reject: absent,
    pub shutdown: absent,
    pub join: absent,
}

#[repr(C)]
pub struct fi_ops_msg {
    pub size: size_t,
    pub recv: unsafe extern "C" fn(
        *mut fid_ep,
        *mut c_void,
        size_t,
        *mut c_void,
        u64,
        *mut c_void,
    ) -> ssize_t,
    pub recvv: unsafe extern "C" fn(
        *mut fid_ep,
        *const iovec,
        *mut *mut c_void,
        size_t,
        u64,
        *mut c_void,
    ) -> ssize_t,
    pub recvmsg: unsafe extern "C" fn(*mut fid_ep, *const fi_msg, u64) -> ssize_t,
    pub send: unsafe extern "C" fn(
        *mut fid_ep,
        *const c_void,
        size_t,
        *mut c_void,
        u64,
        *mut c_void,
    ) -> ssize_t,
    pub sendv: unsafe extern "C" fn(
        *mut fid_ep,
        *const iovec,
        *mut *mut c_void,
        size_t,
        u64,
        *mut c_void,
    ) -> ssize_t,
    pub sendmsg: unsafe extern "C" fn(*mut fid_ep, *const fi_msg, u64) -> ssize_t,
    pub inject: unsafe extern "C" fn(*mut fid_ep, *const c_void, size_t, u64) -> ssize_t,
    pub senddata: unsafe extern "C" fn(
        *mut fid_ep,
        *const c_void,
        size_t,
        *mut c_void,
        u64,
        u64,
        *mut c_void,
    ) -> ssize_t,
    pub injectdata: unsafe extern "C" fn(*mut fid_ep, *const c_void, size_t, u64, u64) -> ssize_t,
}

#[repr(C)]
pub struct fi_ops_tagged {
    pub size: size_t,
    pub recv: unsafe extern "C" fn(
        *mut fid_ep,
        *mut c_void,
        size_t,
        *mut c_void,
        u64,
        u64,
        u64,
        *mut c_void,
    ) -> ssize_t,
    pub recvv: unsafe extern "C" fn(
        *mut fid_ep,
        *const iovec,
        *mut *mut c_void,
        size_t,
        u64,
        u64,
        u64,
        *mut c_void,
    ) -> ssize_t,
    pub recvmsg: unsafe extern "C" fn(*mut fid_ep, *const fi_msg_tagged, u64) -> ssize_t,
    pub send: unsafe extern "C" fn(
        *mut fid_ep,
        *const c_void,
        size_t,
        *mut c_void,
        u64,
        u64,
        *mut c_void,
    ) -> ssize_t,
    pub sendv: unsafe extern "C" fn(
        *mut fid_ep,
        *const iovec,
        *mut *mut c_void,
        size_t,
        u64,
        u64,
        *mut c_void,
    ) -> ssize_t,
    pub sendmsg: unsafe extern "C" fn(*mut fid_ep, *const fi_msg_tagged, u64) -> ssize_t,
    pub inject: unsafe extern "C" fn(*mut fid_ep, *const c_void, size_t, u64, u64) -> ssize_t,
    pub senddata: unsafe extern "C" fn(
        *mut fid_ep,
        *const c_void,
        size_t,
        *mut c_void,
        u64,
        u64,
        u64,
        *mut c_void,
    ) -> ssize_t,
    pub injectdata:
        unsafe extern "C" fn(*mut fid_ep, *const c_void, size_t, u64, u64, u64) -> ssize_t,
}

#[repr(C)]
pub struct fi_rma_iov {
    pub addr: u64,
    pub len: size_t,
    pub key: u64,
}

#[repr(C)]
pub struct fi_msg_rma {
    pub msg_iov: *const iovec,
    pub desc: *mut *mut c_void,
    pub iov_count: size_t,
    pub addr: u64,
    pub rma_iov: *const fi_rma_iov,
    pub rma_iov_count: size_t,
    pub context: *mut c_void,
    pub data: u64,
}

#[repr(C)]
pub struct fi_ops_rma {
    pub size: size_t,
    pub read: unsafe extern "C" fn(
        *mut fid_ep,
        *mut c_void,
        size_t,
        *mut c_void,
        u64,
        u64,
        u64,
        *mut c_void,
    ) -> ssize_t,
    pub readv: unsafe extern "C" fn(
        *mut fid_ep,
        *const iovec,
        *mut *mut c_void,
        size_t,
        u64,
        u64,
        u64,
        *mut c_void,
    ) -> ssize_t,
    pub readmsg: unsafe extern "C" fn(*mut fid_ep, *const fi_msg_rma, u64) -> ssize_t,
    pub write: unsafe extern "C" fn(
        *mut fid_ep,
        *const c_void,
        size_t,
        *mut c_void,
        u64,
        u64,
        u64,
        *mut c_void,
    ) -> ssize_t,
    pub writev: unsafe extern "C" fn(
        *mut fid_ep,
        *const iovec,
        *mut *mut c_void,
        size_t,
        u64,
        u64,
        u64,
        *mut c_void,
    ) -> ssize_t,
    pub writemsg: unsafe extern "C" fn(*mut fid_ep, *const fi_msg_rma, u64) -> ssize_t,
    pub inject: unsafe extern "C" fn(*mut fid_ep, *const c_void, size_t, u64, u64, u64) -> ssize_t,
    pub writedata: absent,
    pub injectdata: absent,
}

/// A list entry of an atomic operation: elements, not bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_ioc {
    pub addr: *mut c_void,
    pub count: size_t,
}

#[repr(C)]
pub struct fi_rma_ioc {
    pub addr: u64,
    pub count: size_t,
    pub key: u64,
}

#[repr(C)]
pub struct fi_msg_atomic {
    pub msg_iov: *const fi_ioc,
    pub desc: *mut *mut c_void,
    pub iov_count: size_t,
    pub addr: u64,
    pub rma_iov: *const fi_rma_ioc,
    pub rma_iov_count: size_t,
    pub datatype: c_int,
    pub op: c_int,
    pub context: *mut c_void,
    pub data: u64,
}

#[repr(C)]
pub struct fi_atomic_attr {
    pub count: size_t,
    pub size: size_t,
}

/// `writevalid` and similar functions.
pub type atomic_valid = unsafe extern "C" fn(*mut fid_ep, c_int, c_int, *mut size_t) -> c_int;

#[repr(C)]
pub struct fi_ops_atomic {
    pub size: size_t,
    pub write: unsafe extern "C" fn(
        *mut fid_ep,
        *const c_void,
        size_t,
        *mut c_void,
        u64,
        u64,
        u64,
        c_int,
        c_int,
        *mut c_void,
    ) -> ssize_t,
    pub writev: absent,
    pub writemsg: unsafe extern "C" fn(*mut fid_ep, *const fi_msg_atomic, u64) -> ssize_t,
    pub inject: unsafe extern "C" fn(
        *mut fid_ep,
        *const c_void,
        size_t,
        u64,
        u64,
        u64,
        c_int,
        c_int,
    ) -> ssize_t,
    pub readwrite: unsafe extern "C" fn(
        *mut fid_ep,
        *const c_void,
        size_t,
        *mut c_void,
        *mut c_void,
        *mut c_void,
        u64,
        u64,
        u64,
        c_int,
        c_int,
        *mut c_void,
    ) -> ssize_t,
    pub readwritev: absent,
    pub readwritemsg: unsafe extern "C" fn(
        *mut fid_ep,
        *const fi_msg_atomic,
        *mut fi_ioc,
        *mut *mut c_void,
        size_t,
        u64,
    ) -> ssize_t,
    pub compwrite: unsafe extern "C" fn(
        *mut fid_ep,
        *const c_void,
        size_t,
        *mut c_void,
        *const c_void,
        *mut c_void,
        *mut c_void,
        *mut c_void,
        u64,
        u64,
        u64,
        c_int,
        c_int,
        *mut c_void,
    ) -> ssize_t,
    pub compwritev: absent,
    pub compwritemsg: unsafe extern "C" fn(
        *mut fid_ep,
        *const fi_msg_atomic,
        *const fi_ioc,
        *mut *mut c_void,
        size_t,
        *mut fi_ioc,
        *mut *mut c_void,
        size_t,
        u64,
    ) -> ssize_t,
    pub writevalid: atomic_valid,
    pub readwritevalid: atomic_valid,
    pub compwritevalid: atomic_valid,
}

#[repr(C)]
pub struct fid_ep {
    pub fid: fid,
    pub ops: *const fi_ops_ep,
    pub cm: *const fi_ops_cm,
    pub msg: *const fi_ops_msg,
    pub rma: *const fi_ops_rma,
    pub tagged: *const fi_ops_tagged,
    pub atomic: *const fi_ops_atomic,
    pub collective: *const c_void,
}

#[cfg(test)]
mod tests;
