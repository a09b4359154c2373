//! Switching stacks. A function is called on another stack, and a restored thread returns from that
//! call a second time. Nothing here may access memory other than the stacks it is given.

use core::arch::global_asm;
use core::ffi::c_void;

// `enter` calls `work(job, stack pointer)` on another stack, with all callee-saved registers saved
// on this one. A restored process begins at `resume` with this stack pointer and the restorer's
// range of addresses in rdi and rsi. It unmaps that range and returns from the same call with 1.
// `clone` makes a system call that starts a thread with such a stack pointer, and that thread
// returns from its own call of `enter` with 1. To the compiler each is one call that returns once,
// on whichever way.
global_asm!(
    ".pushsection .text.eyrie_image_enter,\"ax\",@progbits",
    ".globl eyrie_image_enter",
    ".hidden eyrie_image_enter",
    ".type eyrie_image_enter,@function",
    "eyrie_image_enter:",
    "push rbp",
    "push rbx",
    "push r12",
    "push r13",
    "push r14",
    "push r15",
    "sub rsp, 8",
    "stmxcsr [rsp]",
    "fnstcw [rsp + 4]",
    "mov rax, rdi",
    "mov rdi, rsi",
    "mov rsi, rsp",
    "mov rbx, rsp",
    "mov rsp, rdx",
    "call rax",
    "mov rsp, rbx",
    "xor eax, eax",
    "jmp 2f",
    ".globl eyrie_image_resume",
    ".hidden eyrie_image_resume",
    "eyrie_image_resume:",
    "mov eax, 11",
    "syscall",
    "3:",
    "cld",
    "mov eax, 1",
    "2:",
    "fldcw [rsp + 4]",
    "ldmxcsr [rsp]",
    "add rsp, 8",
    "pop r15",
    "pop r14",
    "pop r13",
    "pop r12",
    "pop rbx",
    "pop rbp",
    "ret",
    ".size eyrie_image_enter, . - eyrie_image_enter",
    ".globl eyrie_image_clone",
    ".hidden eyrie_image_clone",
    ".type eyrie_image_clone,@function",
    "eyrie_image_clone:",
    "mov rax, rdi",
    "mov rdi, rsi",
    "mov rsi, rdx",
    "mov rdx, rcx",
    "mov r10, r8",
    "mov r8, r9",
    "syscall",
    "test rax, rax",
    "jz 3b",
    "ret",
    ".size eyrie_image_clone, . - eyrie_image_clone",
    ".popsection",
);

extern "C" {
    /// Returns 0 when `work` has returned, and 1 in a restored process.
    pub fn eyrie_image_enter(
        work: unsafe extern "C" fn(*mut c_void, u64),
        job: *mut c_void,
        stack_top: usize,
    ) -> u64;
    /// Where a restored process begins. Must not be called.
    pub fn eyrie_image_resume();
    /// Makes the system call `number`, one of those that start a thread, with its arguments.
    /// Returns what it returns in the calling thread.
    pub fn eyrie_image_clone(
        number: usize,
        a: usize,
        b: usize,
        c: usize,
        d: usize,
        e: usize,
    ) -> isize;
}
