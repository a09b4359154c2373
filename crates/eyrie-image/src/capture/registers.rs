//! The register state of all threads: which components the process uses, what an image therefore
//! demands of a processor, and signal frames that another processor takes. Must not touch the stack
//! of a thread that runs.

use super::holder_records::Described;
use super::scratch::Scratch;
use crate::refusal::Refusal;
use core::cell::UnsafeCell;
use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use eyrie_image_format::named::{Named, PROCESSOR};
use eyrie_image_format::{bytes_of, Demand, COMPONENTS};
use eyrie_image_kernel::frame::{content_in_use, for_each_state};
use eyrie_image_kernel::processor::{self, Layout, Level, ASKED_FOR, PKRU};
use eyrie_image_kernel::sys::{self, nr};

/// Components that were found in use beyond the level, in any capture of this process. Code that
/// has used them once will again.
static BEYOND: AtomicU64 = AtomicU64::new(0);

/// Where the processor that the process is on saves registers, as the last capture has found it: in
/// a restored process where its frames have them.
struct Places(UnsafeCell<[u32; COMPONENTS]>);
// SAFETY: it is written and read only by a capture, of which one at a time is under way, and by the
// only thread of a restored process.
unsafe impl Sync for Places {}
static PLACES: Places = Places(UnsafeCell::new([0; COMPONENTS]));
/// The process demands a level, so its frames may come to another processor.
static IS_HELD: AtomicBool = AtomicBool::new(false);

/// The components that the process was found to use though it was started to use less; 0: none.
pub fn beyond() -> u64 {
    BEYOND.load(Ordering::Relaxed)
}

/// The record of what the image demands of a processor: the level, or all that this one has if the
/// process uses registers beyond it. `signal_stack`: bytes of the smallest one of a thread.
///
/// # Safety
/// As [`in_use`]. No other thread of the process may run, one capture at a time may be under way,
/// and the result must not outlive the scratch.
pub unsafe fn describe(
    scratch: &mut Scratch,
    level: &Level,
    contexts: impl Iterator<Item = usize>,
    signal_stack: u64,
) -> Result<Described, Refusal> {
    let here = processor::of_this_node();
    let layout = Layout::of_this_node();
    // SAFETY: the caller guarantees that one capture at a time is under way.
    unsafe { *PLACES.0.get() = layout.places };
    IS_HELD.store(true, Ordering::Relaxed);
    // SAFETY: the caller does not use the room after the scratch is released.
    let own = unsafe { of_this_thread(&mut scratch.take::<Area>(1)?[0], here.xcr0, &layout) };
    // SAFETY: the caller keeps this contract.
    let used = unsafe { in_use(contexts, &layout.places) | own | asked_for() } & !level.xcr0;
    let beyond = BEYOND.fetch_or(used, Ordering::Relaxed) | used;
    let demanded = Demand {
        features: if beyond == 0 {
            Level::of(&here).in_common(level).features
        } else {
            here.features
        },
        xcr0: (level.xcr0 & here.xcr0 | beyond) & !PKRU,
        signal_stack,
        places: layout.places,
    };
    let named = Named { name: PROCESSOR, content: bytes_of(&demanded), is_optional: false };
    let header = named.header().ok_or(Refusal::Request("a name or its content is too long"))?;
    // SAFETY: the caller does not use the result after the scratch is released.
    let payload = unsafe { scratch.take::<u8>(header.len as usize)? };
    let (name, content) = payload.split_at_mut(PROCESSOR.len());
    name.copy_from_slice(PROCESSOR.as_bytes());
    content.copy_from_slice(named.content);
    Ok(Described { header, payload })
}

/// The component that the process may use because it has asked for it; 0: it has not. Who asks for
/// it will use it, and a processor without it refuses to be asked.
fn asked_for() -> u64 {
    let mut may_use = 0u64;
    let at = &raw mut may_use as usize;
    // SAFETY: the kernel writes one word, which is ours, or fails: before 5.16 there is none.
    let _ = unsafe { sys::call3(nr::ARCH_PRCTL, sys::ARCH_GET_XCOMP_PERM, at, 0) };
    may_use & 1 << ASKED_FOR
}

/// What XSAVE writes into.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
struct Area([u8; AREA_LEN]);
const AREA_LEN: usize = 4096;

/// Components that this thread has a content in. What code leaves in them behind a call is of no
/// use to it, but shows that it uses them.
fn of_this_thread(area: &mut Area, xcr0: u64, layout: &Layout) -> u64 {
    const XCOMP: u64 = !(3 << 17);
    if xcr0 == 0 || layout.len as usize > AREA_LEN {
        return 0;
    }
    area.0.fill(0);
    // Not what a process must ask for: it would be too large, and its use is in the frames.
    let wanted = xcr0 & XCOMP;
    // SAFETY: the processor has XSAVE, since its kernel has enabled components, and writes at most
    // `layout.len` bytes, which the area has and is aligned for.
    unsafe {
        core::arch::asm!(
            "xsave64 [{area}]",
            area = in(reg) area.0.as_mut_ptr(),
            in("eax") wanted as u32,
            in("edx") (wanted >> 32) as u32,
            options(nostack)
        );
    }
    let noted = area.0[512..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    content_in_use(&area.0, noted, &layout.places)
}

/// Components with a content in the frames of these contexts, and in those that they have
/// interrupted.
///
/// # Safety
/// The threads must stand still in the handlers to which the kernel has passed the contexts; 0 is
/// none.
unsafe fn in_use(contexts: impl Iterator<Item = usize>, places: &[u32; COMPONENTS]) -> u64 {
    let mut all = 0;
    for context in contexts.filter(|context| *context != 0) {
        // SAFETY: the caller keeps this contract.
        unsafe { for_each_state(context as *const c_void, |state| all |= state.in_use(places)) };
    }
    all
}

/// In a restored process: makes frames ones that this processor takes.
///
/// # Safety
/// As [`in_use`], and no other thread may run.
pub unsafe fn fit(contexts: impl Iterator<Item = usize>) {
    if !IS_HELD.load(Ordering::Relaxed) {
        return;
    }
    let xcr0 = processor::of_this_node().xcr0;
    let here = Layout::of_this_node();
    // SAFETY: the caller guarantees that this is the only thread.
    let places = unsafe { *PLACES.0.get() };
    for context in contexts.filter(|context| *context != 0) {
        // SAFETY: the caller keeps this contract.
        unsafe {
            for_each_state(context as *const c_void, |mut state| {
                state.fit(&places, (xcr0, &here));
            });
        }
    }
}
