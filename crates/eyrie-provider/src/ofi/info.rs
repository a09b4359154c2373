//! `fi_getinfo`: what this provider offers. It must refuse everything outside `eyrie run`, and
//! hints that would make libfabric layer another provider above it.

use super::NAME;
use crate::ending::{say, say_without_memory};
use crate::{memory, process};
use eyrie_libfabric::abi::*;
use libc::{c_char, c_int, c_void};
use std::ffi::CStr;

/// What we can do.
const CAPS: u64 = FI_MSG
    | FI_TAGGED
    | FI_SEND
    | FI_RECV
    | FI_MULTI_RECV
    | FI_DIRECTED_RECV
    | RMA
    | FI_READ
    | FI_WRITE
    | FI_REMOTE_READ
    | FI_REMOTE_WRITE
    | FI_LOCAL_COMM
    | FI_REMOTE_COMM;

/// One-sided communication.
const RMA: u64 = FI_RMA | FI_ATOMIC;
/// Everything between two ranks happens in the order in which it was asked for.
const ORDER: u64 = FI_ORDER_ALL | FI_ORDER_RMA_ALL | FI_ORDER_ATOMIC_ALL;

/// Later versions of libfabric have longer structures: what we hand out is zeroed this far behind
/// ours.
const PADDING: usize = 256;
/// Longest message in bytes: large ones lie in files, so there is no limit of ours.
const MAX_MSG_SIZE: usize = 1 << 40;
/// `FI_TAG_GENERIC`: all 64 bits of the tag count.
const TAG_FORMAT: u64 = 0xaaaa_aaaa_aaaa_aaaa;
/// Operations that may be under way; nothing of ours depends on it.
const QUEUE_SIZE: usize = 65536;
const OBJECTS: usize = 65536;

/// Zeroed memory that libfabric may free with `free`.
unsafe fn zeroed<T>() -> *mut T {
    // SAFETY: calloc(3) takes any two numbers, and gives new memory or null.
    unsafe { libc::calloc(1, size_of::<T>() + PADDING).cast() }
}

/// # Safety
/// `hints` is null or a whole `fi_info`.
unsafe fn refused(hints: *const fi_info) -> bool {
    // SAFETY: the caller gives null or a valid pointer, whose attributes are null or valid.
    unsafe {
        let Some(hints) = hints.as_ref() else { return false };
        if hints.caps & !CAPS != 0 {
            return true;
        }
        if let Some(ep) = hints.ep_attr.as_ref() {
            if ep.type_ != FI_EP_UNSPEC && ep.type_ != FI_EP_RDM {
                return true;
            }
        }
        if let Some(fabric) = hints.fabric_attr.as_ref() {
            // libfabric writes a chain of names separated by semicolons.
            let chain = fabric.prov_name;
            let names_us = chain.is_null()
                || CStr::from_ptr(chain)
                    .to_bytes()
                    .split(|b| *b == b';')
                    .all(|n| n == NAME.to_bytes());
            if !names_us {
                return true;
            }
        }
        hints.addr_format != FI_FORMAT_UNSPEC
    }
}

/// `getinfo` of the provider.
///
/// # Safety
/// As libfabric calls it.
pub unsafe extern "C" fn getinfo(
    version: u32,
    _node: *const c_char,
    _service: *const c_char,
    _flags: u64,
    hints: *const fi_info,
    info: *mut *mut fi_info,
) -> c_int {
    // SAFETY: libfabric gives null or whole hints.
    if unsafe { refused(hints) } {
        return -libc::ENODATA;
    }
    if let Err(shortage) = memory::reserve() {
        say_without_memory(format_args!("{shortage}"));
        return -libc::ENODATA;
    }
    if let Err(e) = process::join() {
        say(&e);
        return -libc::ENODATA;
    }
    // SAFETY: `info` is where libfabric wants the result; `hints` are null or whole.
    unsafe {
        let offer = offer(version, hints);
        if offer.is_null() {
            return -libc::ENOMEM;
        }
        *info = offer;
    }
    0
}

/// # Safety
/// `hints` is null or a whole `fi_info`.
unsafe fn offer(version: u32, hints: *const fi_info) -> *mut fi_info {
    // SAFETY: every pointer is checked after its allocation, before it is written to.
    unsafe {
        let info = zeroed::<fi_info>();
        if info.is_null() {
            return info;
        }
        let tx = zeroed::<fi_tx_attr>();
        let rx = zeroed::<fi_rx_attr>();
        let ep = zeroed::<fi_ep_attr>();
        let domain = zeroed::<fi_domain_attr>();
        let fabric = zeroed::<fi_fabric_attr>();
        let any_null =
            tx.is_null() || rx.is_null() || ep.is_null() || domain.is_null() || fabric.is_null();
        if any_null {
            return std::ptr::null_mut();
        }
        let asked = hints.as_ref().map_or(0, |h| h.caps);
        let caps = if asked == 0 { CAPS } else { asked | FI_LOCAL_COMM | FI_REMOTE_COMM };
        (*info).caps = caps;
        (*info).addr_format = FI_FORMAT_UNSPEC;
        (*info).tx_attr = tx;
        (*info).rx_attr = rx;
        (*info).ep_attr = ep;
        (*info).domain_attr = domain;
        (*info).fabric_attr = fabric;
        fill_context_attributes(&mut *tx, &mut *rx, caps, hints);
        fill_endpoint(&mut *ep);
        fill_domain(&mut *domain);
        (*fabric).name = libc::strdup(NAME.as_ptr());
        (*fabric).prov_name = libc::strdup(NAME.as_ptr());
        (*fabric).prov_version = fi_version(1, 0);
        (*fabric).api_version = version;
        info
    }
}

/// Bytes up to which a message may be injected. MPICH injects every message up to this length, but
/// its receives have no room for more than its own limit for eager messages, if the user sets one.
fn inject_size() -> usize {
    let threshold = std::env::var("MPIR_CVAR_CH4_OFI_EAGER_THRESHOLD").ok();
    let eager = threshold.and_then(|bytes| bytes.trim().parse().ok());
    eager.unwrap_or(usize::MAX).min(eyrie_wire::data::MAX_INLINE)
}

/// # Safety
/// `hints` is null or a whole `fi_info`.
unsafe fn fill_context_attributes(
    tx: &mut fi_tx_attr,
    rx: &mut fi_rx_attr,
    caps: u64,
    hints: *const fi_info,
) {
    tx.caps = caps & (FI_MSG | FI_TAGGED | RMA | FI_SEND | FI_READ | FI_WRITE);
    tx.msg_order = ORDER;
    tx.inject_size = inject_size();
    tx.size = QUEUE_SIZE;
    tx.iov_limit = 1;
    tx.rma_iov_limit = 1;
    let receives = FI_MSG | FI_TAGGED | FI_RECV | FI_MULTI_RECV | FI_DIRECTED_RECV;
    rx.caps = caps & (receives | RMA | FI_REMOTE_READ | FI_REMOTE_WRITE);
    rx.msg_order = ORDER;
    rx.size = QUEUE_SIZE;
    rx.iov_limit = 1;
    // SAFETY: the caller gives null or whole hints, whose attributes are null or whole.
    unsafe {
        if let Some(hints) = hints.as_ref() {
            tx.op_flags = hints.tx_attr.as_ref().map_or(0, |t| t.op_flags);
            rx.op_flags = hints.rx_attr.as_ref().map_or(0, |r| r.op_flags);
        }
    }
}

fn fill_endpoint(ep: &mut fi_ep_attr) {
    ep.type_ = FI_EP_RDM;
    ep.protocol_version = 1;
    ep.max_msg_size = MAX_MSG_SIZE;
    ep.max_order_raw_size = MAX_MSG_SIZE;
    ep.max_order_war_size = MAX_MSG_SIZE;
    ep.max_order_waw_size = MAX_MSG_SIZE;
    ep.mem_tag_format = TAG_FORMAT;
    ep.tx_ctx_cnt = 1;
    ep.rx_ctx_cnt = 1;
}

fn fill_domain(domain: &mut fi_domain_attr) {
    // SAFETY: strdup(3) copies a constant, which is a C string.
    domain.name = unsafe { libc::strdup(NAME.as_ptr()) };
    domain.threading = FI_THREAD_DOMAIN;
    domain.control_progress = FI_PROGRESS_MANUAL;
    domain.data_progress = FI_PROGRESS_MANUAL;
    domain.resource_mgmt = FI_RM_ENABLED;
    domain.av_type = FI_AV_TABLE;
    domain.mr_key_size = size_of::<u64>();
    domain.cq_data_size = size_of::<u64>();
    domain.cq_cnt = OBJECTS;
    domain.ep_cnt = OBJECTS;
    domain.tx_ctx_cnt = OBJECTS;
    domain.rx_ctx_cnt = OBJECTS;
    domain.max_ep_tx_ctx = 1;
    domain.max_ep_rx_ctx = 1;
    domain.cntr_cnt = OBJECTS;
    domain.mr_iov_limit = 1;
    domain.mr_cnt = OBJECTS;
    domain.caps = FI_LOCAL_COMM | FI_REMOTE_COMM;
}

/// `cleanup` of the provider.
///
/// # Safety
/// None needed.
pub unsafe extern "C" fn cleanup() {}

/// What libfabric asks for by name when it loads the library.
pub struct Provider(pub std::cell::UnsafeCell<fi_provider>);

// SAFETY: libfabric writes `context` before any use, from the one thread that initializes it.
unsafe impl Sync for Provider {}

/// The provider's description.
pub static PROVIDER: Provider = Provider(std::cell::UnsafeCell::new(fi_provider {
    version: fi_version(1, 0),
    // At least that of the library that loads us (facts: 2.0 is rejected by 2.5).
    fi_version: fi_version(2, 99),
    context: [std::ptr::null_mut::<c_void>(); 4],
    name: NAME.as_ptr(),
    getinfo,
    fabric: super::fabric::open,
    cleanup,
    padding: [0; 16],
}));
