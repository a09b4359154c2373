//! What a capture does to memory of its own process: it changes protection and advice, and reads
//! it. Each caller must undo its changes.

use super::ranges::Range;
use eyrie_image_kernel::sys::{self, nr, IoVec};

/// Changes the protection of memory of this process.
pub fn protect(start: u64, len: u64, prot: u32) -> Result<(), i32> {
    // SAFETY: changing the protection accesses no memory. Callers only add the right to read, or
    // remove it again.
    unsafe { sys::call3(nr::MPROTECT, start as usize, len as usize, prot as usize).map(|_| ()) }
}

pub fn advise((start, end): Range, what: usize) -> sys::SysResult {
    // SAFETY: callers only pass advice about forks and core dumps, which does not change content.
    unsafe { sys::madvise(start as usize, (end - start) as usize, what) }
}

/// # Safety
/// `len` bytes at `at`, a multiple of 8, must be readable.
pub unsafe fn is_zero(at: usize, len: usize) -> bool {
    // SAFETY: the caller guarantees that `len` bytes at `at` are readable. Callers pass addresses
    // in pages or in the aligned piece.
    let words = unsafe { core::slice::from_raw_parts(at as *const u64, len / 8) };
    words.chunks(32).all(|chunk| chunk.iter().fold(0, |a, b| a | b) == 0)
}

/// Copies memory of this process without risking a fault. Stops at the first byte that cannot be
/// read and returns the number of bytes copied.
pub fn read_own(from: usize, to: usize, len: usize) -> Result<usize, i32> {
    let mut done = 0;
    while done < len {
        let step = (len - done).min(16 << 20);
        let local = IoVec { base: to + done, len: step };
        let remote = IoVec { base: from + done, len: step };
        // SAFETY: callers pass `to` with room for `len` bytes. The kernel checks `from`.
        let got = unsafe {
            sys::call6(
                nr::PROCESS_VM_READV,
                sys::gettid() as usize,
                &raw const local as usize,
                1,
                &raw const remote as usize,
                1,
                0,
            )
        };
        match got {
            Ok(0) | Err(sys::EFAULT) => break,
            Ok(n) => done += n,
            Err(errno) => return Err(errno),
        }
    }
    Ok(done)
}
