//! The guard of stack frames, by which compiled code finds overflows. It remains in memory that is
//! not used any more, which MPI libraries send as padding, so a rank that is executed again must
//! have the same guard. The C library makes it from random bytes of the kernel (AT_RANDOM of
//! getauxval(3)). The agent replaces these in the program that it starts, but not in those that
//! this one starts. So each process takes bytes that the rank's key gives when this library is
//! loaded. Functions that run then have put the old guard on the stack and compare it when they
//! return: it must be replaced there, too.

use crate::level;
use crate::own_stack;
use crate::random;
use libc::c_void;

/// At most so many bytes of the stack are looked at: arguments, environment, the frames in use, and
/// those of earlier calls below them.
const MOST: usize = 16 << 20;
const PAGE: usize = 4096;
const WORD: usize = size_of::<usize>();

/// Replaces the guard and the random bytes of this process.
///
/// # Safety
/// The process has one thread, which is in no other call on the stack of [`own_stack`], and
/// [`own_stack::prepare`] has succeeded.
pub unsafe fn replace() {
    // The guard is hashed, before the rank has begun.
    level::keep();
    // SAFETY: as the caller promises.
    unsafe { own_stack::run(replace_there, 0) };
}

/// Runs on another stack than the one that it changes.
extern "C" fn replace_there(_: usize) -> i64 {
    let Some(bytes) = random::guards() else { return 0 };
    // SAFETY: getauxval(3) has no preconditions.
    let random = unsafe { libc::getauxval(libc::AT_RANDOM) } as usize;
    if random == 0 {
        return 0;
    }
    let old: usize;
    // As the C library does: a string that runs over a frame ends at the zero.
    let new = u128::from_le_bytes(bytes) as usize & !0xff;
    // SAFETY: the psABI has the guard in the thread's control block. The kernel has put the bytes
    // at the end of the stack, of which only pages are changed that are mapped, and in these only
    // words that are equal to the guard.
    unsafe {
        std::arch::asm!("mov {}, fs:0x28", out(reg) old, options(nostack, preserves_flags));
        std::ptr::with_exposed_provenance_mut::<[u8; 16]>(random).write_unaligned(bytes);
        replace_on_stack(random & !(WORD - 1), old, new);
        std::arch::asm!("mov fs:0x28, {}", in(reg) new, options(nostack, preserves_flags));
    }
    0
}

/// Replaces a word wherever it is on the stack, from its end at `top` down to where nothing is
/// mapped.
///
/// # Safety
/// It is the stack of the process's only thread, which runs on another one.
unsafe fn replace_on_stack(top: usize, old: usize, new: usize) {
    let mut page = top & !(PAGE - 1);
    while top - page < MOST && is_mapped(page) {
        for at in (page..(page + PAGE).min(top)).step_by(WORD) {
            let word = std::ptr::with_exposed_provenance_mut::<usize>(at);
            // SAFETY: an aligned word of a page that is mapped, which nothing else uses now.
            unsafe {
                if word.read() == old {
                    word.write(new);
                }
            }
        }
        page -= PAGE;
    }
}

fn is_mapped(page: usize) -> bool {
    let mut present = 0u8;
    let at = std::ptr::with_exposed_provenance_mut::<c_void>(page);
    // SAFETY: mincore(2) fails where nothing is mapped, and writes one byte for a page.
    unsafe { libc::mincore(at, PAGE, &mut present) == 0 }
}
