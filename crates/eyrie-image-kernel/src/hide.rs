//! Has code find less of the processor than there is: for libraries that ask it once, note the
//! answer, and cannot be told otherwise. Works where the kernel can make cpuid fault: on most
//! processors of Intel, and in guests of KVM. Must not allocate or call a C library, and must leave
//! the signal actions and the instruction as they were.

use crate::processor::Level;
use crate::sys::{self, nr};
use core::arch::x86_64::__cpuid_count;
use core::ffi::c_void;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use eyrie_image_format::SigAction;

const SIGSEGV: usize = 11;
const ARCH_SET_CPUID: usize = 0x1012;
const SIG_UNBLOCK: usize = 1;
/// The instruction.
const CPUID: [u8; 2] = [0x0f, 0xa2];

/// What is masked of each word, as in [`Level::masked`].
static MASKED: [AtomicU32; 8] = [const { AtomicU32::new(0) }; 8];
/// The thread in which the instruction faults; 0: none.
static THREAD: AtomicUsize = AtomicUsize::new(0);

/// Runs `detect` in this thread, in which cpuid shows nothing beyond the level. False: that cannot
/// be had here, and `detect` did not run.
///
/// # Safety
/// One thread at a time, and no other one may set the action of SIGSEGV meanwhile.
pub unsafe fn hidden(level: &Level, detect: impl FnOnce()) -> bool {
    const SA_SIGINFO: u64 = 4;
    const SA_RESTORER: u64 = 0x0400_0000;
    for (to, masked) in MASKED.iter().zip(level.masked()) {
        to.store(masked, Ordering::Relaxed);
    }
    let action = SigAction {
        handler: on_fault as *const () as u64,
        flags: SA_SIGINFO | SA_RESTORER,
        restorer: eyrie_image_end_fault as *const () as u64,
        mask: u64::MAX,
    };
    let mut before = SigAction::default();
    let signals = (1u64 << (SIGSEGV - 1)).to_ne_bytes();
    let mut blocked = [0u8; 8];
    THREAD.store(sys::gettid() as usize, Ordering::Relaxed);
    // SAFETY: the actions have the kernel's form. The handler has the type that the flags ask for,
    // and the caller promises that the action is not set meanwhile.
    unsafe {
        if act(&action, Some(&mut before)).is_err() {
            return false;
        }
        // A fault whose signal is blocked would end the process.
        let _ = mask(SIG_UNBLOCK, &signals, Some(&mut blocked));
        let faults = sys::call3(nr::ARCH_PRCTL, ARCH_SET_CPUID, 0, 0).is_ok();
        if faults {
            detect();
            let _ = sys::call3(nr::ARCH_PRCTL, ARCH_SET_CPUID, 1, 0);
        }
        let _ = mask(sys::SIG_SETMASK, &blocked, None);
        let _ = act(&before, None);
        THREAD.store(0, Ordering::Relaxed);
        faults
    }
}

/// # Safety
/// As rt_sigaction(2).
unsafe fn act(action: &SigAction, before: Option<&mut SigAction>) -> sys::SysResult {
    let before = before.map_or(0, |before| &raw mut *before as usize);
    // SAFETY: the kernel reads and writes one action of 32 bytes each, the size of SigAction.
    unsafe { sys::call6(nr::RT_SIGACTION, SIGSEGV, &raw const *action as usize, before, 8, 0, 0) }
}

/// # Safety
/// As rt_sigprocmask(2).
unsafe fn mask(how: usize, set: &[u8; 8], before: Option<&mut [u8; 8]>) -> sys::SysResult {
    let before = before.map_or(0, |before| before.as_mut_ptr() as usize);
    // SAFETY: the kernel reads and writes sets of 8 bytes.
    unsafe { sys::call6(nr::RT_SIGPROCMASK, how, set.as_ptr() as usize, before, 8, 0, 0) }
}

core::arch::global_asm!(
    ".pushsection .text.eyrie_image_end_fault,\"ax\",@progbits",
    ".globl eyrie_image_end_fault",
    ".hidden eyrie_image_end_fault",
    ".type eyrie_image_end_fault,@function",
    "eyrie_image_end_fault:",
    "mov eax, 15",
    "syscall",
    "ud2",
    ".size eyrie_image_end_fault, . - eyrie_image_end_fault",
    ".popsection",
);

extern "C" {
    /// The return address of the handler: rt_sigreturn(2).
    fn eyrie_image_end_fault();
}

/// Words of `ucontext_t` with the registers that the instruction reads and writes.
mod word {
    const REGISTERS: usize = 5;
    pub const RBX: usize = REGISTERS + 11;
    pub const RDX: usize = REGISTERS + 12;
    pub const RAX: usize = REGISTERS + 13;
    pub const RCX: usize = REGISTERS + 14;
    pub const RIP: usize = REGISTERS + 16;
    pub const END: usize = RIP + 1;
}

/// Does what the instruction does, but for what is masked.
///
/// # Safety
/// Only the kernel may call it.
unsafe extern "C" fn on_fault(_: i32, _: *mut c_void, context: *mut c_void) {
    // SAFETY: the kernel passes a ucontext_t, which has so many words and more.
    let words = unsafe { &mut *context.cast::<[u64; word::END]>() };
    let here = sys::gettid() as usize == THREAD.load(Ordering::Relaxed);
    // SAFETY: the instruction at which the thread has faulted was fetched, so it can be read, where
    // code may be read at all; a fault here would end the process as the first one would.
    let is_it = here && unsafe { (words[word::RIP] as *const [u8; 2]).read() } == CPUID;
    if !is_it {
        // Some other fault: it happens again with the action that the kernel has without one.
        // SAFETY: all zeros is the default action.
        let _ = unsafe { act(&SigAction::default(), None) };
        return;
    }
    let leaf = words[word::RAX] as u32;
    let part = words[word::RCX] as u32;
    // SAFETY: switches the instruction on and off for this thread only.
    let found = unsafe {
        let _ = sys::call3(nr::ARCH_PRCTL, ARCH_SET_CPUID, 1, 0);
        let found = __cpuid_count(leaf, part);
        let _ = sys::call3(nr::ARCH_PRCTL, ARCH_SET_CPUID, 0, 0);
        found
    };
    let [eax, ebx, ecx, edx] = shown([found.eax, found.ebx, found.ecx, found.edx], leaf, part);
    words[word::RAX] = eax.into();
    words[word::RBX] = ebx.into();
    words[word::RCX] = ecx.into();
    words[word::RDX] = edx.into();
    words[word::RIP] += CPUID.len() as u64;
}

/// What is shown of eax, ebx, ecx and edx.
fn shown(mut found: [u32; 4], leaf: u32, part: u32) -> [u32; 4] {
    const EAX: usize = 0;
    const EBX: usize = 1;
    const ECX: usize = 2;
    const EDX: usize = 3;
    let mut mask = |register: usize, word: usize| {
        found[register] &= !MASKED[word].load(Ordering::Relaxed);
    };
    match (leaf, part) {
        (1, _) => {
            mask(ECX, 0);
            mask(EDX, 1);
        }
        (7, 0) => {
            mask(EBX, 2);
            mask(ECX, 3);
            mask(EDX, 4);
        }
        (7, 1) => mask(EAX, 5),
        (0x8000_0001, _) => {
            mask(ECX, 6);
            mask(EDX, 7);
        }
        _ => {}
    }
    found
}

/// Whether cpuid can be made to fault for a thread of this process.
pub fn is_possible() -> bool {
    // SAFETY: one call that switches the instruction off for this thread, and one that switches it
    // on again; none is executed in between.
    unsafe {
        let off = sys::call3(nr::ARCH_PRCTL, ARCH_SET_CPUID, 0, 0).is_ok();
        off && sys::call3(nr::ARCH_PRCTL, ARCH_SET_CPUID, 1, 0).is_ok()
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::processor::{self, MASKS};

    #[test]
    fn code_finds_what_the_level_has_and_no_more() {
        let all = processor::of_this_node();
        let v2 = Level::named("x86-64-v2").unwrap();
        let mut found = None;
        // SAFETY: no other test of this crate uses it or the signal.
        let done = unsafe { hidden(&v2, || found = Some(processor::of_this_node())) };
        assert_eq!(done, is_possible());
        let Some(found) = found else {
            return std::println!("skipped: cpuid cannot be made to fault here");
        };
        assert_eq!(found.vendor, all.vendor);
        assert_eq!(found.features, Level::of(&all).in_common(&v2).features);
        assert_ne!(found.features, all.features);
        assert_eq!(processor::of_this_node(), all, "afterwards it is as before");
    }

    #[test]
    fn only_words_with_instructions_are_masked() {
        for (to, mask) in MASKED.iter().zip(MASKS) {
            assert_eq!(to.load(Ordering::Relaxed) & !mask, 0);
        }
        let found = [1, 2, 3, 4];
        assert_eq!(shown(found, 0xd, 1), found);
        assert_eq!(shown(found, 0, 0), found);
    }
}
