//! The provider's own stack. Its calls leave nothing on the program's stack that depends on messages
//! or on replay: MPI libraries send structures with uninitialised padding, which a re-executed rank
//! must send with the same bytes again. One call at a time may use it.

use crate::memory;
use std::ffi::c_void;

core::arch::global_asm!(
    ".pushsection .text.eyrie_call_on_stack,\"ax\",@progbits",
    ".globl eyrie_call_on_stack",
    ".hidden eyrie_call_on_stack",
    ".type eyrie_call_on_stack,@function",
    "eyrie_call_on_stack:",
    ".cfi_startproc",
    "push rbp",
    ".cfi_def_cfa_offset 16",
    ".cfi_offset rbp, -16",
    "mov rbp, rsp",
    ".cfi_def_cfa_register rbp",
    "mov rsp, rdi",
    "mov rdi, rdx",
    "call rsi",
    "mov rsp, rbp",
    "pop rbp",
    ".cfi_def_cfa rsp, 8",
    "ret",
    ".cfi_endproc",
    ".size eyrie_call_on_stack, . - eyrie_call_on_stack",
    ".popsection",
);

extern "C" {
    fn eyrie_call_on_stack(top: usize, f: extern "C" fn(*mut c_void), argument: *mut c_void);
}

/// Runs `f` on the provider's stack.
///
/// # Safety
/// [`memory::reserve`] has succeeded, and nothing else runs on that stack.
pub unsafe fn run<R>(f: impl FnOnce() -> R) -> R {
    struct Work<F, R> {
        f: Option<F>,
        result: Option<R>,
    }
    extern "C" fn work<F: FnOnce() -> R, R>(argument: *mut c_void) {
        // SAFETY: `run` below passes its own work, which outlives the call.
        let work = unsafe { &mut *argument.cast::<Work<F, R>>() };
        work.result = work.f.take().map(|f| f());
    }
    fn call<F: FnOnce() -> R, R>(work_item: &mut Work<F, R>) {
        // SAFETY: the stack is there and free, as the caller of `run` vouches. A panic in `work` ends the
        // process at its C interface.
        unsafe {
            eyrie_call_on_stack(memory::STACK_TOP, work::<F, R>, (&raw mut *work_item).cast())
        }
    }
    let mut item = Work { f: Some(f), result: None };
    call(&mut item);
    item.result.expect("the work has run")
}

/// Gives this thread a stack for signal handlers, if it has none: the frame of a capture's signal must
/// not lie on the program's stack either.
pub fn for_signals() {
    // SAFETY: plain calls; the memory stays for as long as the process lives.
    unsafe {
        let mut present: libc::stack_t = std::mem::zeroed();
        libc::sigaltstack(std::ptr::null(), &mut present);
        if present.ss_flags & libc::SS_DISABLE != 0 {
            let stack = libc::stack_t {
                ss_sp: memory::SIGNAL_STACK as *mut c_void,
                ss_flags: 0,
                ss_size: memory::SIGNAL_STACK_BYTES,
            };
            libc::sigaltstack(&stack, std::ptr::null_mut());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_runs_there_and_comes_back_with_its_result() {
        memory::reserve().unwrap();
        let mut seen = Vec::new();
        for n in 0..3u64 {
            // SAFETY: no other test uses the stack.
            let text = unsafe {
                run(|| {
                    let here = 0u8;
                    seen.push(&raw const here as usize);
                    format!("{n}")
                })
            };
            assert_eq!(text, n.to_string());
        }
        assert!(seen
            .iter()
            .all(|at| (memory::STACK_TOP - (1 << 16)..memory::STACK_TOP).contains(at)));
    }
}
