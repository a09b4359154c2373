//! A helper for a capture in the process itself. It shares the memory but has a descriptor table of
//! its own. Closing any descriptor of a file drops all POSIX locks that the process has on it. So
//! the process itself must never open a file of the program.

use super::scratch::Scratch;
use crate::refusal::Refusal;
use core::arch::global_asm;
use core::ffi::c_void;
use eyrie_image_kernel::sys::{self, nr};

const STACK_LEN: usize = 256 << 10;

// Clones, and calls `work(order)` in the child on its own stack. Returns the child's id.
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

/// The stack for a helper.
///
/// # Safety
/// Must not outlive the scratch.
pub unsafe fn stack(scratch: &mut Scratch) -> Result<&'static mut [u8], Refusal> {
    // SAFETY: the caller does not use the result after the scratch is released.
    unsafe { scratch.take(STACK_LEN) }
}

/// Runs `work` in a helper and waits for its end.
///
/// # Safety
/// No other thread may run.
pub unsafe fn run(stack: &mut [u8], work: Work) -> Result<(), Refusal> {
    let failed = |errno| Refusal::Kernel { step: STEP, errno };
    let mut order = Order { work, result: Err(failed(sys::EINTR)) };
    let top = stack.as_mut_ptr() as usize + stack.len() / 16 * 16;
    // The helper sends no signal at its end, because the program does not know of this child.
    let flags = sys::CLONE_VM | sys::CLONE_VFORK;
    // SAFETY: the stack is the helper's own. CLONE_VFORK stops this thread until the helper has
    // ended, so `order` and `work` outlive it.
    let pid = unsafe { eyrie_image_help(flags, top, do_it, (&raw mut order).cast()) };
    if pid < 0 {
        return Err(failed(-pid as i32));
    }
    const WALL: usize = 0x4000_0000;
    // SAFETY: `pid` is this process's own child; the call takes no pointer to its status.
    unsafe { sys::call6(nr::WAIT4, pid as usize, 0, WALL, 0, 0, 0) }.map_err(failed)?;
    order.result
}

/// # Safety
/// `order` must be the only reference to an [`Order`].
unsafe extern "C" fn do_it(order: *mut c_void) {
    // SAFETY: the arguments are numbers. The helper dies with the process.
    let _ = unsafe { sys::call3(nr::PRCTL, sys::PR_SET_PDEATHSIG, sys::SIGKILL as usize, 0) };
    // SAFETY: the caller passes the only reference to an `Order`.
    let order = unsafe { &mut *order.cast::<Order>() };
    order.result = (order.work)();
}
