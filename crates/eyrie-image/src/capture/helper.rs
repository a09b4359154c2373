//! A helper for a capture in the process itself: it shares the memory, but has a table of
//! descriptors of its own. Whoever closes a descriptor of a file drops all POSIX locks that the
//! process holds on it, so the process itself must never open a file of the program.

use super::scratch::Scratch;
use crate::refusal::Refusal;
use crate::sys::{self, nr};
use core::arch::global_asm;
use core::ffi::c_void;

const STACK_LEN: usize = 256 << 10;

// Clones, and calls `work(order)` in the child on its own stack; gives the child's id.
global_asm!(
    ".pushsection .text.eyrie_image_help,\"ax\",@progbits",
    ".globl eyrie_image_help",
    ".hidden eyrie_image_help",
    ".type eyrie_image_help,@function",
    "eyrie_image_help:",
    "sub rsi, 16",
    "mov [rsi], rdx",
    "mov [rsi + 8], rcx",
    "xor edx, edx",
    "xor r10d, r10d",
    "xor r8d, r8d",
    "mov eax, 56",
    "syscall",
    "test rax, rax",
    "jnz 2f",
    "xor ebp, ebp",
    "pop rax",
    "pop rdi",
    "call rax",
    "xor edi, edi",
    "mov eax, 60",
    "syscall",
    "ud2",
    "2:",
    "ret",
    ".size eyrie_image_help, . - eyrie_image_help",
    ".popsection",
);

extern "C" {
    fn eyrie_image_help(
        flags: usize,
        stack_top: usize,
        work: unsafe extern "C" fn(*mut c_void),
        order: *mut c_void,
    ) -> isize;
}

type Work<'a> = &'a mut dyn FnMut() -> Result<(), Refusal>;

struct Order<'a> {
    work: Work<'a>,
    result: Result<(), Refusal>,
}

const STEP: &str = "letting a helper of the capture work";

/// What a helper has for a stack.
///
/// # Safety
/// Must not outlive the scratch.
pub unsafe fn stack(scratch: &mut Scratch) -> Result<&'static mut [u8], Refusal> {
    // SAFETY: handed on to the caller.
    unsafe { scratch.take(STACK_LEN) }
}

/// Does `work` in a helper and waits for its end.
///
/// # Safety
/// Nothing but this thread may run.
pub unsafe fn run(stack: &mut [u8], work: Work) -> Result<(), Refusal> {
    let failed = |errno| Refusal::Kernel { step: STEP, errno };
    let mut order = Order { work, result: Err(failed(sys::EINTR)) };
    let top = stack.as_mut_ptr() as usize + stack.len() / 16 * 16;
    // Without a signal at its end: the program has no child.
    let flags = sys::CLONE_VM | sys::CLONE_VFORK;
    // SAFETY: the stack is the helper's own; this thread goes on when the helper has ended.
    let pid = unsafe { eyrie_image_help(flags, top, do_it, (&raw mut order).cast()) };
    if pid < 0 {
        return Err(failed(-pid as i32));
    }
    const WALL: usize = 0x4000_0000;
    // SAFETY: our own child; its status is not asked for.
    unsafe { sys::call6(nr::WAIT4, pid as usize, 0, WALL, 0, 0, 0) }.map_err(failed)?;
    order.result
}

/// # Safety
/// `order` must be an [`Order`] used by nobody else.
unsafe extern "C" fn do_it(order: *mut c_void) {
    // SAFETY: only a number; whatever becomes of the process, its helper does not outlive it.
    let _ = unsafe { sys::call3(nr::PRCTL, sys::PR_SET_PDEATHSIG, sys::SIGKILL as usize, 0) };
    // SAFETY: handed on to the caller.
    let order = unsafe { &mut *order.cast::<Order>() };
    order.result = (order.work)();
}
