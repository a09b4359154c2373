//! A stack of this library's own. Observations must leave nothing on the program's stack or in
//! registers. The reason: a rank that is executed again does not read the kernel's clocks, and MPI
//! libraries send structures with uninitialised padding, which must have the same bytes again. (The
//! dynamic linker saves registers on the stack when it binds a function.) One call at a time may
//! use it.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, Ordering};

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

/// Below the stack is a guard that cannot be used. A signal handler of the program may run there,
/// too.
const GUARD: usize = 64 << 10;
const BYTES: usize = 1 << 20;

/// Guard and stack, of which only pages have memory that are used. It is mapped with this library:
/// UCX changes mmap(2) while it reads a clock, and must not find itself called.
#[repr(align(4096))]
struct Stack(UnsafeCell<[u8; GUARD + BYTES]>);

// SAFETY: one call at a time may use it.
unsafe impl Sync for Stack {}

static STACK: Stack = Stack(UnsafeCell::new([0; GUARD + BYTES]));

/// The guard is one.
static GUARDED: AtomicBool = AtomicBool::new(false);

/// Makes the guard, once. False when that fails.
pub fn prepare() -> bool {
    if !GUARDED.load(Ordering::Relaxed) {
        // SAFETY: whole pages of memory that is ours, which nothing uses.
        let made = unsafe { libc::mprotect(STACK.0.get().cast(), GUARD, libc::PROT_NONE) };
        GUARDED.store(made == 0, Ordering::Relaxed);
    }
    GUARDED.load(Ordering::Relaxed)
}

/// Runs `f` there.
///
/// # Safety
/// [`prepare`] has succeeded, and nothing else runs there.
#[inline]
pub unsafe fn run(f: extern "C" fn(usize) -> i64, argument: usize) -> i64 {
    // SAFETY: the stack is free, as the caller vouches, and grows down from its end; a panic in `f`
    // ends the process at its C interface.
    unsafe { eyrie_calls_on_stack(STACK.0.get() as usize + GUARD + BYTES, f, argument) }
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
