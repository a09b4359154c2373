//! Signal frames: the registers of code that a signal has interrupted, as the kernel leaves them on
//! a stack and takes them back. Which components of the register state are in use in a frame; and
//! how a frame of one processor becomes one that another takes. Must not allocate or call a C
//! library. Must never touch a frame of which it cannot tell that it is one.

use crate::processor::{Layout, LEGACY_LEN, PKRU, SIZES};
use crate::sys::{self, nr};
use core::ffi::c_void;
use eyrie_image_format::COMPONENTS;

/// FP_XSTATE_MAGIC1 and FP_XSTATE_MAGIC2 (asm/sigcontext.h): in front of and behind what XSAVE has
/// written.
const MAGIC1: u32 = 0x4650_5853;
const MAGIC2: u32 = 0x4650_5845;
/// Where `struct _fpx_sw_bytes` is in the register state: the magic number, bytes with the second
/// magic number, components, bytes without it.
const SOFTWARE: usize = 464;
const EXTENDED: usize = SOFTWARE + 4;
const FEATURES: usize = SOFTWARE + 8;
const SIZE: usize = SOFTWARE + 16;
/// Where the header of XSAVE says which components are in use.
const IN_USE: usize = 512;
/// The kernel has no larger register state, bytes.
const STATE_MAX: usize = 1 << 16;

/// The register state of a signal frame.
pub struct State<'a>(&'a mut [u8]);

impl<'a> State<'a> {
    /// Takes the first bytes as a register state; `None`: they are none that XSAVE has written.
    pub fn of(bytes: &'a mut [u8]) -> Option<State<'a>> {
        let size = number(bytes, SIZE)? as usize;
        let is_one = number(bytes, SOFTWARE)? == MAGIC1
            && (LEGACY_LEN as usize..STATE_MAX).contains(&size)
            && number(bytes, size)? == MAGIC2;
        is_one.then(|| State(&mut bytes[..size + 4]))
    }

    /// The components that it has.
    fn features(&self) -> u64 {
        long(self.0, FEATURES)
    }

    /// The components that have a content. Those of all zeros have none, whatever the processor has
    /// noted: some note more than is in use.
    pub fn in_use(&self, places: &[u32; COMPONENTS]) -> u64 {
        content_in_use(self.0, self.features() & long(self.0, IN_USE), places)
    }

    /// Makes it one that the kernel of a processor with the layout `here` and the components `xcr0`
    /// takes, from one of a processor with components at `places`. Components that cannot be taken
    /// over are dropped: they must not be in use.
    pub fn fit(&mut self, places: &[u32; COMPONENTS], (xcr0, here): (u64, &Layout)) {
        let stays = |part: &usize| here.places[*part] == places[*part];
        let same = (2..COMPONENTS).filter(stays).fold(3, |all, part| all | 1 << part);
        let keep = self.features() & xcr0 & same;
        let size = self.0.len() - 4;
        if xcr0 == 0 {
            // Its kernel takes what FXSAVE has written.
            return set(self.0, SOFTWARE, &0u32.to_le_bytes());
        }
        if keep == self.features() && size as u64 <= here.len {
            return;
        }
        let end = |part: usize| match keep & 1 << part {
            0 => LEGACY_LEN,
            _ => places[part] + SIZES[part],
        };
        let len = (2..COMPONENTS).map(end).max().unwrap_or(LEGACY_LEN);
        // A frame that would have to be longer than it was is none of the kernel's.
        if len as usize > size {
            return;
        }
        let noted = long(self.0, IN_USE) & keep;
        set(self.0, IN_USE, &noted.to_le_bytes());
        set(self.0, FEATURES, &keep.to_le_bytes());
        set(self.0, SIZE, &len.to_le_bytes());
        set(self.0, EXTENDED, &(len + 4).to_le_bytes());
        set(self.0, len as usize, &MAGIC2.to_le_bytes());
    }
}

/// The components of a register state that have a content, of those that the processor has noted to
/// be in use. The first two, which all processors have, do not count.
pub fn content_in_use(state: &[u8], noted: u64, places: &[u32; COMPONENTS]) -> u64 {
    let noted = noted & !PKRU;
    let is_in_use = |part: &usize| {
        let from = places[*part] as usize;
        let content = state.get(from..from + SIZES[*part] as usize).unwrap_or_default();
        noted & 1 << part != 0 && from != 0 && content.iter().any(|byte| *byte != 0)
    };
    (2..COMPONENTS).filter(is_in_use).fold(0, |all, part| all | 1 << part)
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// A number of 8 bytes within the first [`LEGACY_LEN`], which each state has.
fn long(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |b| u64::from_le_bytes(*b))
}

fn set(bytes: &mut [u8], at: usize, value: &[u8]) {
    if let Some(place) = bytes.get_mut(at..at + value.len()) {
        place.copy_from_slice(value);
    }
}

/// How far a stack is looked through for the next frame, bytes.
const STACK_MAX: usize = 16 << 20;
/// A frame has its register state within this distance, bytes.
const NEAR: usize = 1 << 16;
/// Deepest chain of handlers that interrupted each other.
const DEPTH_MAX: usize = 64;

/// Words of `ucontext_t`: flags, link, stack (3), then registers.
const LINK: usize = 1;
const RSP: usize = 5 + 15;
const SEGMENTS: usize = 5 + 18;
const STATE: usize = 5 + 23;
const WORDS: usize = STATE + 1;
/// The code and stack segments of 64-bit programs, at both ends of [`SEGMENTS`].
const USER_CODE: u64 = 0x33;
const USER_STACK: u64 = 0x2b;

/// Calls `each` with the register state of the frame whose `ucontext_t` is `context`, and with
/// those of the frames that it has interrupted: of handlers that were running.
///
/// # Safety
/// `context` must be what the kernel has passed to a signal handler of this thread that has not
/// returned yet, and nothing else may access the states meanwhile.
pub unsafe fn for_each_state(context: *const c_void, mut each: impl FnMut(State)) {
    let mut at = context as usize;
    for _ in 0..DEPTH_MAX {
        // SAFETY: the caller vouches for the first one, and `next_above` has read the others.
        let words = unsafe { &*(at as *const [u64; WORDS]) };
        // SAFETY: as above; the state is the frame's own, and is checked to be readable.
        unsafe {
            if let Some(state) = state_at(words[STATE] as usize) {
                each(state);
            }
        }
        match next_above(words[RSP] as usize) {
            Some(next) => at = next,
            None => return,
        }
    }
}

/// The register state at an address, if it is one.
///
/// # Safety
/// Nothing else may access it meanwhile.
unsafe fn state_at<'a>(at: usize) -> Option<State<'a>> {
    if at == 0 || at % 64 != 0 || !is_readable(at, LEGACY_LEN as usize) {
        return None;
    }
    // SAFETY: the bytes are readable, as the kernel has just said.
    let size = unsafe { (at as *const u8).add(SIZE).cast::<u32>().read() } as usize;
    if size >= STATE_MAX || !is_readable(at, size + 4) {
        return None;
    }
    // SAFETY: as above, and the caller promises that nothing else accesses them.
    State::of(unsafe { core::slice::from_raw_parts_mut(at as *mut u8, size + 4) })
}

/// The `ucontext_t` of the next frame above `from` on the same stack.
fn next_above(from: usize) -> Option<usize> {
    const WORD: usize = 8;
    // The kernel aligns the state to 64 bytes and puts the frame below it, 8 beyond 16 bytes; the
    // context follows the address to which the handler returns.
    let first = from.next_multiple_of(16);
    let mut readable_to = 0;
    for at in (first..first.checked_add(STACK_MAX)?).step_by(16) {
        let end = at + WORDS * WORD;
        if end > readable_to {
            let page = end.next_multiple_of(sys::PAGE);
            let start = readable_to.max(at);
            if !is_readable(start, page - start) {
                return None;
            }
            readable_to = page;
        }
        // SAFETY: the kernel has just said that these words are readable, and a stack of this
        // thread does not vanish while the thread is here.
        let words = unsafe { &*(at as *const [u64; WORDS]) };
        if is_context(at, words) {
            return Some(at);
        }
    }
    None
}

/// Whether these words at an address are a `ucontext_t` of the kernel's.
fn is_context(at: usize, words: &[u64; WORDS]) -> bool {
    const KNOWN_FLAGS: u64 = 7;
    let segments = words[SEGMENTS];
    let state = words[STATE] as usize;
    words[0] & 1 == 1
        && words[0] & !KNOWN_FLAGS == 0
        && words[LINK] == 0
        && segments & 0xffff == USER_CODE
        && [0, USER_STACK].contains(&(segments >> 48))
        && state % 64 == 0
        && (at..at + NEAR).contains(&state)
        // SAFETY: it is only looked at whether the kernel's numbers are there.
        && unsafe { state_at(state) }.is_some()
}

/// Whether memory can be read, asked of the kernel: page by page, it fails to read a signal set
/// there before it refuses the request itself, which is none.
fn is_readable(at: usize, len: usize) -> bool {
    const NO_REQUEST: usize = 77;
    const SET_LEN: usize = 8;
    let Some(last) = at.checked_add(len.max(SET_LEN) - SET_LEN) else { return false };
    let pages = (at & !(sys::PAGE - 1)..=last).step_by(sys::PAGE);
    pages.map(|page| page.max(at)).chain([last]).all(|word| {
        // SAFETY: the kernel reads eight bytes or refuses to; it changes nothing.
        let asked = unsafe { sys::call6(nr::RT_SIGPROCMASK, NO_REQUEST, word, 0, SET_LEN, 0, 0) };
        asked == Err(sys::EINVAL)
    })
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::processor::{self, frame_len};
    use std::vec;
    use std::vec::Vec;

    /// Of an Intel processor with AVX-512 and protection keys.
    fn rich() -> Layout {
        let mut layout = Layout::EMPTY;
        for (part, place) in [(2, 576), (5, 1088), (6, 1152), (7, 1664), (9, 2688)] {
            layout.places[part] = place;
        }
        layout.len = frame_len(RICH, &layout.places);
        layout
    }
    const RICH: u64 = 0x2e7;

    /// Of one with AVX.
    fn poor() -> Layout {
        let mut layout = Layout::EMPTY;
        layout.places[2] = 576;
        layout.len = frame_len(POOR, &layout.places);
        layout
    }
    const POOR: u64 = 7;

    /// A state of these components, those `in_use` with a content.
    fn made(layout: &Layout, features: u64, in_use: u64) -> Vec<u8> {
        let len = layout.len as usize;
        let mut bytes = vec![0; len + 4];
        set(&mut bytes, SOFTWARE, &MAGIC1.to_le_bytes());
        set(&mut bytes, EXTENDED, &(len as u32 + 4).to_le_bytes());
        set(&mut bytes, FEATURES, &features.to_le_bytes());
        set(&mut bytes, SIZE, &(len as u32).to_le_bytes());
        set(&mut bytes, IN_USE, &(in_use | 3).to_le_bytes());
        set(&mut bytes, len, &MAGIC2.to_le_bytes());
        for part in (2..COMPONENTS).filter(|part| in_use & 1 << part != 0) {
            bytes[layout.places[part] as usize + 5] = part as u8;
        }
        bytes
    }

    /// What the kernel compares (`check_xstate_in_sigframe`), and the instruction XRSTOR.
    fn is_taken(bytes: &[u8], xcr0: u64, len: u64) -> bool {
        let size = number(bytes, SIZE).unwrap();
        number(bytes, SOFTWARE) == Some(MAGIC1)
            && size >= LEGACY_LEN
            && u64::from(size) <= len
            && size <= number(bytes, EXTENDED).unwrap()
            && number(bytes, size as usize) == Some(MAGIC2)
            && long(bytes, IN_USE) & !xcr0 == 0
    }

    #[test]
    fn a_frame_of_a_rich_processor_is_cut_for_a_poor_one() {
        let rich = rich();
        let mut bytes = made(&rich, RICH, 1 << 2 | 1 << 9);
        assert!(is_taken(&bytes, RICH, rich.len) && !is_taken(&bytes, POOR, poor().len));
        let content = bytes[576..832].to_vec();
        State::of(&mut bytes).unwrap().fit(&rich.places, (POOR, &poor()));
        assert!(is_taken(&bytes, POOR, poor().len));
        assert_eq!(bytes[576..832], content, "what is in use stays");
        assert_eq!((number(&bytes, SIZE), long(&bytes, FEATURES)), (Some(832), POOR));
        // It is a frame again, which the next node cuts further, or takes as it is.
        let before = bytes.clone();
        State::of(&mut bytes).unwrap().fit(&rich.places, (RICH, &rich));
        assert_eq!(bytes, before);
    }

    #[test]
    fn a_frame_that_fits_stays_as_it_is() {
        let layout = poor();
        let mut bytes = made(&layout, POOR, 1 << 2);
        let before = bytes.clone();
        State::of(&mut bytes).unwrap().fit(&layout.places, (RICH, &rich()));
        assert_eq!(bytes, before);
        assert!(is_taken(&bytes, RICH, rich().len));
    }

    #[test]
    fn a_component_in_another_place_is_dropped() {
        let rich = rich();
        let mut other = rich;
        other.places[9] = 2432;
        let mut bytes = made(&rich, RICH, 1 << 9);
        State::of(&mut bytes).unwrap().fit(&rich.places, (RICH, &other));
        assert_eq!(long(&bytes, FEATURES), RICH & !PKRU);
        assert_eq!(long(&bytes, IN_USE), 3);
    }

    #[test]
    fn a_processor_without_xsave_takes_what_fxsave_has_written() {
        let mut bytes = made(&rich(), RICH, 0);
        State::of(&mut bytes).unwrap().fit(&rich().places, (0, &Layout::EMPTY));
        assert_eq!(number(&bytes, SOFTWARE), Some(0));
    }

    #[test]
    fn only_components_with_a_content_are_in_use() {
        let rich = rich();
        let mut bytes = made(&rich, RICH, 1 << 2 | 1 << 6 | 1 << 9);
        let in_use = |bytes: &mut [u8]| State::of(bytes).unwrap().in_use(&rich.places);
        assert_eq!(in_use(&mut bytes), 1 << 2 | 1 << 6, "keys do not count");
        bytes[1152..1664].fill(0);
        assert_eq!(in_use(&mut bytes), 1 << 2, "noted, and all zeros");
    }

    #[test]
    fn what_is_no_frame_is_none() {
        let good = made(&rich(), RICH, 0);
        assert!(State::of(&mut good.clone()).is_some());
        for (at, byte) in [(SOFTWARE, 0), (SIZE, 1), (SIZE + 3, 0xff), (rich().len as usize, 1)] {
            let mut bad = good.clone();
            bad[at] = byte;
            assert!(State::of(&mut bad).is_none(), "{at}");
        }
        assert!(State::of(&mut good[..600].to_vec()).is_none());
        assert!(State::of(&mut []).is_none());
    }

    /// The components that were found in use by a handler, frame by frame.
    static FOUND: std::sync::Mutex<Vec<u64>> = std::sync::Mutex::new(Vec::new());

    extern "C" {
        fn raise(signal: i32) -> i32;
        fn sigaction(signal: i32, action: *const Action, before: *mut Action) -> i32;
    }
    #[repr(C)]
    struct Action {
        handler: usize,
        mask: [u64; 16],
        flags: i32,
        restorer: usize,
    }

    unsafe extern "C" fn inner(_: i32, _: *mut c_void, context: *mut c_void) {
        let layout = Layout::of_this_node();
        let xcr0 = processor::of_this_node().xcr0;
        // SAFETY: the kernel passes the context to this handler.
        unsafe {
            for_each_state(context, |mut state| {
                FOUND.lock().unwrap().push(state.in_use(&layout.places));
                // The interrupted code goes on from what is cut down to AVX.
                let mut narrow = layout;
                narrow.len = frame_len(7, &layout.places);
                state.fit(&layout.places, (xcr0 & 7, &narrow));
            });
        }
    }

    unsafe extern "C" fn outer(_: i32, _: *mut c_void, _: *mut c_void) {
        // SAFETY: raises a signal that has a handler.
        unsafe { raise(INNER) };
    }
    const OUTER: i32 = 10;
    const INNER: i32 = 12;

    #[test]
    fn handlers_within_handlers_are_found_and_go_on_from_frames_that_were_cut() {
        if !std::is_x86_feature_detected!("avx") {
            return std::println!("skipped: this processor has no AVX");
        }
        for (signal, handler) in [(OUTER, outer as *const ()), (INNER, inner as *const ())] {
            let action = Action { handler: handler as usize, mask: [0; 16], flags: 4, restorer: 0 };
            // SAFETY: the structure is that of the C library; the handler has the type that its
            // flag SA_SIGINFO asks for.
            assert_eq!(unsafe { sigaction(signal, &action, std::ptr::null_mut()) }, 0);
        }
        let pid = std::process::id() as usize;
        let tid = sys::gettid() as usize;
        let pattern = [0x5au8; 32];
        let mut after = [0u8; 32];
        // SAFETY: the signal goes to this thread, whose handler returns; upper halves of the
        // registers are what the frames must keep. The instructions exist, as was asked above.
        unsafe {
            core::arch::asm!(
                "vmovdqu ymm7, [{pattern}]",
                "syscall",
                "vmovdqu [{after}], ymm7",
                "vzeroupper",
                pattern = in(reg) pattern.as_ptr(),
                after = in(reg) after.as_mut_ptr(),
                inlateout("rax") nr::TGKILL => _,
                in("rdi") pid,
                in("rsi") tid,
                in("rdx") OUTER as usize,
                lateout("rcx") _,
                lateout("r11") _,
                out("xmm7") _,
            );
        }
        assert_eq!(after, pattern);
        let found = FOUND.lock().unwrap();
        assert_eq!(found.len(), 2, "{found:x?}");
        assert_eq!(found[1] & 4, 4, "the code that was interrupted first used AVX: {found:x?}");
    }
}
