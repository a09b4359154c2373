//! Other stacks: work is called on one, and a restored thread returns from that call once more.
//! Nothing here may touch memory but the stacks it is given.

use core::arch::global_asm;
use core::ffi::c_void;

// `enter` calls `work(job, stack pointer)` on another stack, with all callee-saved registers on
// this one. A restored process comes in at `resume` with this stack pointer and the restorer's
// stretch of addresses in rdi and rsi; it unmaps the stretch and returns from the same call with 1.
// `clone` makes a system call that begins a thread with such a stack pointer: that thread returns
// from its own call of `enter` with 1. To the compiler each is one call that returns once,
// whichever way it went.
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
    /// 0 when `work` has returned, 1 in what was restored.
    pub fn eyrie_image_enter(
        work: unsafe extern "C" fn(*mut c_void, u64),
        job: *mut c_void,
        stack_top: usize,
    ) -> u64;
    /// Not to be called: where a restored process begins.
    pub fn eyrie_image_resume();
    /// The system call `number`, one of those that begin a thread, with its arguments; gives what
    /// it gives in the calling thread.
    pub fn eyrie_image_clone(
        number: usize,
        a: usize,
        b: usize,
        c: usize,
        d: usize,
        e: usize,
    ) -> isize;
}
