//! Continues a system call that only the request for an image has interrupted. libeyrie-calls does
//! this for the functions of the C library that it interposes. Other system calls are repeated if
//! that does not lengthen their wait. Runs in a signal handler: it must not allocate or lock.

use crate::calls::functions;
use libc::{c_int, c_void};

/// Tells libeyrie-calls, in a restored process, how far the monotonic clock is ahead of where it
/// was when the image was taken, in nanoseconds.
pub fn clock_jumped(ns: i64) {
    if let Some(f) = functions() {
        (f.clock_jumped)(ns);
    }
}

/// Whether a signal that the program handles comes next: it ends the call.
fn another_signal_waits(blocked: &libc::sigset_t) -> bool {
    // SAFETY: sets and action are of this frame.
    unsafe {
        let mut pending: libc::sigset_t = std::mem::zeroed();
        libc::sigpending(&mut pending);
        (1..=libc::SIGRTMAX()).any(|signal| {
            let mut action: libc::sigaction = std::mem::zeroed();
            libc::sigismember(&pending, signal) == 1
                && libc::sigismember(blocked, signal) == 0
                && libc::sigaction(signal, std::ptr::null(), &mut action) == 0
                && action.sa_sigaction != libc::SIG_IGN
                && action.sa_sigaction != libc::SIG_DFL
        })
    }
}

/// Where the stack of the interrupted thread ends.
///
/// # Safety
/// `context` must be the one that the kernel has given to the handler.
pub unsafe fn stack_pointer(context: *mut c_void) -> usize {
    // SAFETY: by the contract this is the context that the kernel has given to the handler.
    let context = unsafe { &*context.cast::<libc::ucontext_t>() };
    context.uc_mcontext.gregs[libc::REG_RSP as usize] as usize
}

/// To be called in the handler of a signal that asks for an image or stops a thread for one, with
/// all signals blocked.
///
/// # Safety
/// `context` must be the one that the kernel has given to the handler.
pub unsafe fn go_on(context: *mut c_void) {
    // SAFETY: by the contract this is the kernel's context, and no other reference to it exists.
    let context = unsafe { &mut *context.cast::<libc::ucontext_t>() };
    let registers = &mut context.uc_mcontext.gregs;
    let next = registers[libc::REG_RIP as usize] as usize;
    let result = registers[libc::REG_RAX as usize];
    // Else it was not interrupted; a write may have been in its middle.
    if result != -i64::from(libc::EINTR) && result <= 0 {
        return;
    }
    // SAFETY: what was just executed can be read: when it was a system call, these are its two
    // bytes. In a page of its own there may be nothing in front of `next`.
    let behind_a_call = next & 0xfff >= 2
        && unsafe { std::ptr::read_unaligned((next - 2) as *const [u8; 2]) } == [0x0f, 0x05];
    if !behind_a_call || another_signal_waits(&context.uc_sigmask) {
        return;
    }
    let stack_pointer = registers[libc::REG_RSP as usize] as usize;
    if functions().is_some_and(|f| (f.interrupted)(stack_pointer) == 1) {
        return;
    }
    if result < 0 {
        make_again(registers);
    }
}

/// Makes a raw system call again, where that is the same as to go on: one without an end, one until
/// a point in time, and one of which the kernel has noted what is left.
fn make_again(registers: &mut [i64; 23]) {
    let next = registers[libc::REG_RIP as usize] as usize;
    if next & 0xfff < 7 {
        return;
    }
    // SAFETY: on the page of the call that was just executed.
    let code = unsafe { std::ptr::read_unaligned((next - 7) as *const [u8; 7]) };
    // mov eax, NUMBER; syscall: then nothing else can tell the number.
    let [0xb8, a, b, c, d, _, _] = code else { return };
    let number = i64::from(i32::from_le_bytes([a, b, c, d]));
    let arg = |n: usize| {
        let names = [libc::REG_RDI, libc::REG_RSI, libc::REG_RDX, libc::REG_R10, libc::REG_R8];
        registers[names[n] as usize]
    };
    const WAIT_UNTIL: [i64; 2] = [9, 11]; // FUTEX_WAIT_BITSET, FUTEX_WAIT_REQUEUE_PI
    let goes_on = match number {
        libc::SYS_pause | libc::SYS_rt_sigsuspend => true,
        // The kernel counts their times down in memory.
        libc::SYS_select | libc::SYS_pselect6 | libc::SYS_ppoll => true,
        libc::SYS_poll => (arg(2) as c_int) < 0,
        libc::SYS_epoll_wait | libc::SYS_epoll_pwait => (arg(3) as c_int) < 0,
        libc::SYS_epoll_pwait2 => arg(3) == 0,
        libc::SYS_rt_sigtimedwait => arg(2) == 0,
        libc::SYS_futex => WAIT_UNTIL.contains(&(arg(1) & 127)),
        libc::SYS_semop | libc::SYS_msgrcv | libc::SYS_msgsnd => true,
        libc::SYS_semtimedop => arg(3) == 0,
        libc::SYS_nanosleep if arg(1) != 0 => {
            // What is left was written there.
            registers[libc::REG_RDI as usize] = arg(1);
            true
        }
        libc::SYS_clock_nanosleep if arg(1) & i64::from(libc::TIMER_ABSTIME) != 0 => true,
        libc::SYS_clock_nanosleep if arg(3) != 0 => {
            registers[libc::REG_RDX as usize] = arg(3);
            true
        }
        _ => false,
    };
    if goes_on {
        registers[libc::REG_RIP as usize] -= 7;
    }
}
