//! The address vector: an address is a rank's number behind a mark; `fi_addr_t` is an index into
//! the table.

use super::{absent, base_ops, close_box};
use eyrie_libfabric::abi::*;
use eyrie_wire::rank_address::{address, rank_of, ADDRESS_LEN};
use eyrie_wire::Rank;
use libc::{c_char, c_int, c_void, size_t};

/// The table.
#[repr(C)]
pub struct Av {
    fid: fid_av,
    ranks: Vec<Rank>,
}

impl Av {
    /// The rank with this `fi_addr_t`.
    pub fn rank(&self, addr: u64) -> Option<Rank> {
        self.ranks.get(usize::try_from(addr).ok()?).copied()
    }
}

static BASE: fi_ops = fi_ops { bind: Some(bind), ..base_ops(close_box::<Av>) };
static OPS: fi_ops_av = fi_ops_av {
    size: size_of::<fi_ops_av>(),
    insert,
    insertsvc: absent,
    insertsym: absent,
    remove,
    lookup,
    straddr,
    av_set: absent,
    later: [absent; 3],
};

unsafe extern "C" fn bind(_: *mut fid, _: *mut fid, _: u64) -> c_int {
    0
}

/// `fi_av_open`.
///
/// # Safety
/// As libfabric calls it.
pub unsafe extern "C" fn open(
    _domain: *mut fid_domain,
    attr: *mut fi_av_attr,
    av: *mut *mut fid_av,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the library gives null or whole attributes, and a place for the result.
    unsafe {
        if attr.as_ref().is_some_and(|a| !a.name.is_null()) {
            return -libc::ENOSYS;
        }
        let fid = fid_av { fid: fid { fclass: FI_CLASS_AV, context, ops: &BASE }, ops: &OPS };
        *av = Box::into_raw(Box::new(Av { fid, ranks: Vec::new() })).cast();
    }
    0
}

unsafe extern "C" fn insert(
    av: *mut fid_av,
    addr: *const c_void,
    count: size_t,
    fi_addr: *mut u64,
    _flags: u64,
    _context: *mut c_void,
) -> c_int {
    // SAFETY: `av` is ours; the library gives `count` addresses and as many places, or no places.
    unsafe {
        let av = &mut *av.cast::<Av>();
        let addresses = addr.cast::<[u8; ADDRESS_LEN]>();
        for i in 0..count {
            let Some(rank) = rank_of(&addresses.add(i).read_unaligned()) else {
                return i as c_int;
            };
            if !fi_addr.is_null() {
                *fi_addr.add(i) = av.ranks.len() as u64;
            }
            av.ranks.push(rank);
        }
    }
    count as c_int
}

unsafe extern "C" fn remove(_: *mut fid_av, _: *mut u64, _: size_t, _: u64) -> c_int {
    // Indices stay as they are: a removed one is not used again.
    0
}

unsafe extern "C" fn lookup(
    av: *mut fid_av,
    fi_addr: u64,
    addr: *mut c_void,
    len: *mut size_t,
) -> c_int {
    // SAFETY: `av` is ours; `addr` has room for `*len` bytes.
    unsafe {
        let Some(rank) = (*av.cast::<Av>()).rank(fi_addr) else { return -libc::EINVAL };
        copy_out(&address(rank), addr, len)
    }
}

/// Copies an address to a buffer of `*len` bytes, sets `*len` to the address's length.
///
/// # Safety
/// `to` has room for `*len` bytes.
pub unsafe fn copy_out(address: &[u8], to: *mut c_void, len: *mut size_t) -> c_int {
    // SAFETY: copies no more than there is room for.
    unsafe {
        let room = *len;
        *len = address.len();
        if room > 0 && !to.is_null() {
            let n = room.min(address.len());
            std::ptr::copy_nonoverlapping(address.as_ptr(), to.cast(), n);
        }
        if room < address.len() {
            return -257; // FI_ETOOSMALL
        }
    }
    0
}

unsafe extern "C" fn straddr(
    _av: *mut fid_av,
    addr: *const c_void,
    buf: *mut c_char,
    len: *mut size_t,
) -> *const c_char {
    // SAFETY: `addr` is an address; `buf` has room for `*len` bytes.
    unsafe {
        let rank =
            rank_of(&addr.cast::<[u8; ADDRESS_LEN]>().read_unaligned()).unwrap_or(Rank(u32::MAX));
        let text = format!("eyrie rank {rank}\0");
        let n = text.len().min(*len);
        std::ptr::copy_nonoverlapping(text.as_ptr(), buf.cast(), n);
        if n > 0 {
            *buf.add(n - 1) = 0;
        }
        *len = text.len();
    }
    buf
}
