//! The provider's own stack. Its calls must leave nothing on the program's stack or in registers
//! that depends on messages or on replay. The reason: MPI libraries send structures with
//! uninitialised padding, and a re-executed rank must send the same bytes again. (The dynamic
//! linker saves all registers on the program's stack when it binds a function.) One call at a time
//! may use it.

use crate::{level, memory};
use std::ffi::c_void;
use std::sync::atomic::{AtomicU8, Ordering};

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
    "xor eax, eax",
    "xor ecx, ecx",
    "xor edx, edx",
    "xor esi, esi",
    "xor edi, edi",
    "xor r8d, r8d",
    "xor r9d, r9d",
    "xor r10d, r10d",
    "xor r11d, r11d",
    // What no function needs to preserve: the vectors, as far as this processor has them.
    "cmp byte ptr [rip + {vectors}], 1",
    "jb 2f",
    "vzeroall",
    "je 3f",
    "vpxord zmm16, zmm16, zmm16",
    "vpxord zmm17, zmm17, zmm17",
    "vpxord zmm18, zmm18, zmm18",
    "vpxord zmm19, zmm19, zmm19",
    "vpxord zmm20, zmm20, zmm20",
    "vpxord zmm21, zmm21, zmm21",
    "vpxord zmm22, zmm22, zmm22",
    "vpxord zmm23, zmm23, zmm23",
    "vpxord zmm24, zmm24, zmm24",
    "vpxord zmm25, zmm25, zmm25",
    "vpxord zmm26, zmm26, zmm26",
    "vpxord zmm27, zmm27, zmm27",
    "vpxord zmm28, zmm28, zmm28",
    "vpxord zmm29, zmm29, zmm29",
    "vpxord zmm30, zmm30, zmm30",
    "vpxord zmm31, zmm31, zmm31",
    "kxorw k0, k0, k0",
    "kxorw k1, k1, k1",
    "kxorw k2, k2, k2",
    "kxorw k3, k3, k3",
    "kxorw k4, k4, k4",
    "kxorw k5, k5, k5",
    "kxorw k6, k6, k6",
    "kxorw k7, k7, k7",
    "3: ret",
    "2: pxor xmm0, xmm0",
    "pxor xmm1, xmm1",
    "pxor xmm2, xmm2",
    "pxor xmm3, xmm3",
    "pxor xmm4, xmm4",
    "pxor xmm5, xmm5",
    "pxor xmm6, xmm6",
    "pxor xmm7, xmm7",
    "pxor xmm8, xmm8",
    "pxor xmm9, xmm9",
    "pxor xmm10, xmm10",
    "pxor xmm11, xmm11",
    "pxor xmm12, xmm12",
    "pxor xmm13, xmm13",
    "pxor xmm14, xmm14",
    "pxor xmm15, xmm15",
    "ret",
    ".cfi_endproc",
    ".size eyrie_call_on_stack, . - eyrie_call_on_stack",
    ".popsection",
    vectors = sym VECTORS,
);

/// What vectors this processor has, as far as the rank may use them: 0 those of SSE, 1 those of
/// AVX, 2 those of AVX-512.
static VECTORS: AtomicU8 = AtomicU8::new(0);

/// Finds out what vectors there are; to be called before the first [`run`].
pub fn prepare() {
    let may_use = |name: &str| level::level().is_none_or(|level| level.has(name));
    let wide = is_x86_feature_detected!("avx512f") && may_use("avx512f");
    let has = match (wide, is_x86_feature_detected!("avx") && may_use("avx")) {
        (true, _) => 2,
        (_, true) => 1,
        _ => 0,
    };
    VECTORS.store(has, Ordering::Relaxed);
}

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
        // SAFETY: the stack is there and free, as the caller of `run` vouches. A panic in `work`
        // ends the process at its C interface.
        unsafe {
            eyrie_call_on_stack(memory::STACK_TOP, work::<F, R>, (&raw mut *work_item).cast())
        }
    }
    let mut item = Work { f: Some(f), result: None };
    call(&mut item);
    item.result.expect("the work has run")
}

/// Whether a thread with this stack pointer is in a call.
pub fn is_on_it(stack_pointer: usize) -> bool {
    (memory::STACK_TOP - memory::STACK_BYTES..memory::STACK_TOP).contains(&stack_pointer)
}

/// Gives this thread a stack for signal handlers, if it has none: the frame of a capture's signal
/// must not lie on the program's stack either.
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
    use std::sync::Mutex;

    /// The stack is for one at a time.
    static ALONE: Mutex<()> = Mutex::new(());

    #[test]
    fn nothing_is_left_in_vectors() {
        memory::reserve().unwrap();
        prepare();
        let mut found = [1u8; 32];
        // SAFETY: no other test uses the stack at the same time. Reads the registers as the call
        // has left them.
        unsafe {
            let _alone = ALONE.lock().unwrap();
            run(|| {
                core::arch::asm!("pcmpeqd xmm7, xmm7", "pcmpeqd xmm15, xmm15", out("xmm7") _, out("xmm15") _);
            });
            core::arch::asm!(
                "movdqu [{0}], xmm7", "movdqu [{0} + 16], xmm15", in(reg) found.as_mut_ptr()
            );
        }
        assert_eq!(found, [0; 32]);
    }

    #[test]
    fn work_runs_there_and_comes_back_with_its_result() {
        memory::reserve().unwrap();
        let _alone = ALONE.lock().unwrap();
        let mut seen = Vec::new();
        for n in 0..3u64 {
            // SAFETY: no other test uses the stack at the same time.
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
