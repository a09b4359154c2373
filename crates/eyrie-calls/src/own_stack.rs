//! A stack of this library's own. Observations must leave nothing on the program's stack or in
//! registers. The reason: a rank that is executed again does not read the kernel's clocks, and MPI
//! libraries send structures with uninitialised padding, which must have the same bytes again. (The
//! dynamic linker saves registers on the stack when it binds a function.) One call at a time may
//! use it.

use std::sync::atomic::{AtomicUsize, Ordering};

core::arch::global_asm!(
    ".pushsection .text.eyrie_calls_on_stack,\"ax\",@progbits",
    ".globl eyrie_calls_on_stack",
    ".hidden eyrie_calls_on_stack",
    ".type eyrie_calls_on_stack,@function",
    "eyrie_calls_on_stack:",
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
    "xor ecx, ecx",
    "xor edx, edx",
    "xor esi, esi",
    "xor edi, edi",
    "xor r8d, r8d",
    "xor r9d, r9d",
    "xor r10d, r10d",
    "xor r11d, r11d",
    // What no function needs to preserve; nothing here uses more of the vectors than this.
    "pxor xmm0, xmm0",
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
    ".size eyrie_calls_on_stack, . - eyrie_calls_on_stack",
    ".popsection",
);

extern "C" {
    fn eyrie_calls_on_stack(top: usize, f: extern "C" fn(usize) -> i64, argument: usize) -> i64;
}

/// Below the stack is a guard that is never mapped. A signal handler of the program may run there,
/// too.
const GUARD: usize = 64 << 10;
const BYTES: usize = 1 << 20;

/// Where it begins; it grows down. 0: there is none.
static TOP: AtomicUsize = AtomicUsize::new(0);

/// Makes the stack, once. False when there is no memory for it.
pub fn prepare() -> bool {
    if TOP.load(Ordering::Relaxed) != 0 {
        return true;
    }
    // SAFETY: a new mapping wherever there is room for it, whose pages come when they are used.
    unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let at = libc::mmap(std::ptr::null_mut(), GUARD + BYTES, libc::PROT_NONE, flags, -1, 0);
        if at == libc::MAP_FAILED {
            return false;
        }
        let stack = at.byte_add(GUARD);
        if libc::mprotect(stack, BYTES, libc::PROT_READ | libc::PROT_WRITE) != 0 {
            return false;
        }
        TOP.store(stack as usize + BYTES, Ordering::Relaxed);
    }
    true
}

/// Runs `f` there.
///
/// # Safety
/// [`prepare`] has succeeded, and nothing else runs there.
#[inline]
pub unsafe fn run(f: extern "C" fn(usize) -> i64, argument: usize) -> i64 {
    // SAFETY: the stack is there and free, as the caller vouches; a panic in `f` ends the process
    // at its C interface.
    unsafe { eyrie_calls_on_stack(TOP.load(Ordering::Relaxed), f, argument) }
}

/// A system call that uses no stack at all.
///
/// # Safety
/// As the system call.
pub unsafe fn system_call(number: libc::c_long, arguments: [usize; 3]) -> isize {
    let [first, second, third] = arguments;
    let result;
    // SAFETY: the caller keeps the contract of the system call, which gets the same arguments.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") first,
            in("rsi") second,
            in("rdx") third,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result
}
