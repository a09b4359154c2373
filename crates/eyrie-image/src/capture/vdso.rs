//! The vDSO of this kernel, for an image that another kernel restores; and whether a thread is
//! within its code, which no other kernel could go on with.

use super::holder_records::Described;
use super::scratch::Scratch;
use crate::refusal::Refusal;
use core::sync::atomic::{AtomicU64, Ordering};
use eyrie_image_format::named::{Named, VDSO, VDSO_MAX};
use eyrie_image_format::{map_flag, Mapping};
use eyrie_image_kernel::fingerprint;

/// Where it lies in this process; 0: not known yet.
static START: AtomicU64 = AtomicU64::new(0);
static LEN: AtomicU64 = AtomicU64::new(0);

/// Finds out where it lies, once in a process.
pub fn find() {
    if START.load(Ordering::Relaxed) != 0 {
        return;
    }
    let Ok((_, specials)) = fingerprint::of_this_process() else { return };
    for special in specials.iter().filter(|special| special.flag == map_flag::VDSO) {
        LEN.store(special.len, Ordering::Relaxed);
        START.store(special.start, Ordering::Relaxed);
    }
}

/// In a restored process it may lie elsewhere.
pub fn forget() {
    START.store(0, Ordering::Relaxed);
}

/// Whether this address is in it.
pub fn has(address: u64) -> bool {
    let start = START.load(Ordering::Relaxed);
    start != 0 && address.wrapping_sub(start) < LEN.load(Ordering::Relaxed)
}

/// The record that has it. `None`: it is longer than any that is known.
///
/// # Safety
/// The mapping must be that of the vDSO in this process, and the result must not outlive the
/// scratch.
pub unsafe fn describe(
    scratch: &mut Scratch,
    mapping: &Mapping,
) -> Result<Option<Described>, Refusal> {
    let len = (mapping.end - mapping.start) as usize;
    if len > VDSO_MAX {
        return Ok(None);
    }
    // SAFETY: the kernel maps the vDSO readable, and the caller promises that this is it.
    let content = unsafe { core::slice::from_raw_parts(mapping.start as *const u8, len) };
    let named = Named { name: VDSO, content, is_optional: true };
    let Some(header) = named.header() else { return Ok(None) };
    // SAFETY: the caller does not use the result after the scratch is released.
    let payload = unsafe { scratch.take::<u8>(header.len as usize)? };
    let (name, copy) = payload.split_at_mut(VDSO.len());
    name.copy_from_slice(VDSO.as_bytes());
    copy.copy_from_slice(content);
    Ok(Some(Described { header, payload }))
}
