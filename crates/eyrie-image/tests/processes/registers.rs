//! A program that was started for a level, and keeps to it or does not: it computes in registers
//! when its image is taken, within a signal handler that has interrupted other code that does.

use super::target::{print, report};
use eyrie_image::processor::Level;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::OnceLock;

static LEVEL: OnceLock<Level> = OnceLock::new();
/// Ends the loops of [`hold`]: this is the restored process.
static GO_ON: AtomicBool = AtomicBool::new(false);

/// What the process was started for.
pub fn level() -> Option<&'static Level> {
    LEVEL.get()
}

/// `used` is what the process uses beyond x86-64-v2: "avx", "tiles", for which it only asks, or
/// "none".
pub fn run(level: &str, used: &str) {
    LEVEL.set(Level::named(level).unwrap()).unwrap();
    if used == "tiles" {
        const ARCH_REQ_XCOMP_PERM: i32 = 0x1023;
        const TILES: i32 = 18;
        // SAFETY: the call takes numbers and changes a setting of this process.
        let asked = unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILES) };
        assert_eq!(asked, 0);
    }
    // SAFETY: the handler has the type that the action asks for.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        let handler = if used == "avx" { with_avx } else { without };
        action.sa_sigaction = handler as *const () as usize;
        libc::sigaction(libc::SIGALRM, &action, std::ptr::null_mut());
    }
    std::thread::spawn(|| {
        // The signal that asks for an image is the other thread's: the signal stack of this one is
        // too small for that.
        // SAFETY: the set is filled before it is used.
        unsafe {
            let mut all = std::mem::zeroed();
            libc::sigfillset(&mut all);
            libc::pthread_sigmask(libc::SIG_BLOCK, &all, std::ptr::null_mut());
        }
        let mut byte = 0u8;
        // The input ends when the test has restored the process.
        // SAFETY: reads into a local variable.
        while unsafe { libc::read(0, (&raw mut byte).cast(), 1) } < 0 {}
        GO_ON.store(true, Ordering::Relaxed);
    });
    if used == "avx" {
        report_kept("the program", hold(0x11, Some(libc::SIGALRM)));
    } else {
        // SAFETY: the signal has a handler.
        unsafe { libc::raise(libc::SIGALRM) };
    }
    print("done\n");
}

fn report_kept(who: &str, kept: bool) {
    report(format_args!("{who} {} its registers", if kept { "kept" } else { "lost" }));
}

extern "C" fn with_avx(_: i32) {
    print("ready\n");
    report_kept("the handler", hold(0x22, None));
}

extern "C" fn without(_: i32) {
    print("ready\n");
    while !GO_ON.load(Ordering::Relaxed) {
        std::hint::spin_loop();
    }
}

/// Has a pattern in both halves of a vector register of AVX while this process is restored, or
/// until a signal that it sends itself is handled. Whether the pattern is there afterwards.
fn hold(byte: u8, signal: Option<i32>) -> bool {
    let pattern = [byte; 32];
    let mut after = [0u8; 32];
    // SAFETY: the instructions exist where the test runs this. The signal has a handler that
    // returns; the flag is a byte that another thread sets.
    unsafe {
        let tid = libc::syscall(libc::SYS_gettid);
        std::arch::asm!(
            "vmovdqu ymm9, [{pattern}]",
            "test edx, edx",
            "jz 2f",
            "syscall",
            "jmp 3f",
            "2:",
            "pause",
            "cmp byte ptr [{flag}], 0",
            "je 2b",
            "3:",
            "vmovdqu [{after}], ymm9",
            "vzeroupper",
            pattern = in(reg) pattern.as_ptr(),
            after = in(reg) after.as_mut_ptr(),
            flag = in(reg) GO_ON.as_ptr(),
            inlateout("rax") libc::SYS_tgkill => _,
            in("rdi") libc::getpid(),
            in("rsi") tid,
            in("rdx") signal.unwrap_or(0),
            lateout("rcx") _,
            lateout("r11") _,
            out("xmm9") _,
        );
    }
    after == pattern
}
