//! The programs that are captured, killed and restored. They are run as `processes target NAME DIR
//! [ARGS...]`. On SIGUSR1 they capture asynchronously, on SIGUSR2 synchronously, into the named
//! pipe DIR/image. On standard error they report how it ended.

use eyrie_image::{capture, Claim, Holder, Hooks, Mode, Outcome, Request};
use std::ffi::c_void;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU64, Ordering};

/// Bytes written to standard output, the `rsn` of the images.
static WRITTEN: AtomicU64 = AtomicU64::new(0);
static CAPTURES: AtomicU64 = AtomicU64::new(0);
static mut PIPE: [u8; 256] = [0; 256];
pub static SLOT_FD: AtomicI32 = AtomicI32::new(-1);
pub static STARTER_PID: AtomicI32 = AtomicI32::new(0);
/// Whether images are those of a rank whose calls on files are recorded.
pub static NAMES_STAY: AtomicBool = AtomicBool::new(false);
/// Whether images have the content of mapped files.
pub static SELF_CONTAINED: AtomicBool = AtomicBool::new(false);
/// Whether what is mapped to be read only is in such images.
pub static MAPS_AGAIN: AtomicBool = AtomicBool::new(false);
/// The first of [`CONNECTIONS`] descriptors that are dropped.
pub static DROPPED_FD: AtomicI32 = AtomicI32::new(-1);
/// What the kernel has passed to the handler that takes an image.
static CONTEXT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
/// More than an image once held; the restorer opens each twice, below a limit of 1024.
pub const CONNECTIONS: i32 = 300;

/// Text that is built on the stack, for use in a signal handler.
struct Line([u8; 400], usize);

impl std::fmt::Write for Line {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        for &b in text.as_bytes() {
            if self.1 < self.0.len() {
                self.0[self.1] = b;
                self.1 += 1;
            }
        }
        Ok(())
    }
}

pub fn report(what: std::fmt::Arguments) {
    let mut line = Line([0; 400], 0);
    let _ = std::fmt::Write::write_fmt(&mut line, what);
    let _ = std::fmt::Write::write_str(&mut line, "\n");
    // SAFETY: the line has `line.1` initialised bytes.
    unsafe { libc::write(2, line.0.as_ptr().cast(), line.1) };
}

pub fn take_image(mode: Mode) -> Outcome {
    take_image_with(mode, &[&Descriptors])
}

/// The descriptors of the target that an image cannot describe.
struct Descriptors;

impl Holder for Descriptors {
    fn claim(&self, fd: i32) -> Option<Claim> {
        let dropped = DROPPED_FD.load(Ordering::Relaxed);
        if dropped >= 0 && (dropped..dropped + CONNECTIONS).contains(&fd) {
            return Some(Claim::Dropped);
        }
        (fd == SLOT_FD.load(Ordering::Relaxed)).then_some(Claim::Slot(3))
    }

    /// As a rank does whose calls on files are recorded.
    fn maps_again(&self, _start: usize) -> bool {
        MAPS_AGAIN.load(Ordering::Relaxed)
    }
}

/// Takes an image into the named pipe, with these holders.
pub fn take_image_with(mode: Mode, holders: &[&dyn Holder]) -> Outcome {
    // SAFETY: `install` wrote PIPE, which ends in a NUL, before any capture, and nothing writes it
    // later.
    let out_fd = unsafe { libc::open((&raw const PIPE).cast(), libc::O_WRONLY | libc::O_CLOEXEC) };
    let outcome = {
        let request = Request {
            out_fd,
            mode,
            rank: 7,
            incarnation: 2,
            clock: CAPTURES.fetch_add(1, Ordering::Relaxed),
            rsn: WRITTEN.load(Ordering::Relaxed),
            exclude: &[],
            holders,
            drop_sockets: false,
            names_stay: NAMES_STAY.load(Ordering::Relaxed),
            self_contained: SELF_CONTAINED.load(Ordering::Relaxed),
            watched: Some(super::within::watched),
            meta: b"a test",
            starter_pid: STARTER_PID.load(Ordering::Relaxed),
            written: None,
            hooks: Hooks { interrupted: None, clock_jumped: None },
            level: super::registers::level(),
            context: CONTEXT.load(Ordering::Relaxed),
            track: None,
        };
        // SAFETY: captures are made in signal handlers that mask each other, or by the only thread.
        // The program can continue in another process.
        unsafe { capture(&request) }
    };
    if !matches!(outcome, Outcome::Restored) {
        // SAFETY: this function opened the descriptor. A restored process does not have it.
        unsafe { libc::close(out_fd) };
    }
    match outcome {
        Outcome::Captured { pause_ns, shared_bytes, child_pid, image_bytes } => {
            report(format_args!(
                "captured pause_us={} shared={shared_bytes} child={child_pid} bytes={image_bytes}",
                pause_ns / 1000
            ))
        }
        Outcome::Restored => report(format_args!("restored")),
        Outcome::Refused(refusal) => report(format_args!("refused: {refusal}")),
    }
    outcome
}

extern "C" fn on_signal(signal: i32, _: *mut libc::siginfo_t, context: *mut c_void) {
    CONTEXT.store(context, Ordering::Relaxed);
    take_image(if signal == libc::SIGUSR1 { Mode::Async } else { Mode::Sync });
    CONTEXT.store(std::ptr::null_mut(), Ordering::Relaxed);
}

fn install(dir: &Path) {
    use std::os::unix::ffi::OsStrExt;
    let path = dir.join("image");
    let bytes = path.as_os_str().as_bytes();
    // SAFETY: no signal handler is set yet, so nothing else uses PIPE; the path fits into it with
    // its NUL.
    unsafe {
        let pipe = &raw mut PIPE;
        (&mut *pipe)[..bytes.len()].copy_from_slice(bytes);
        // A small signal stack with a guard page below it: captures must work with 16 KiB.
        let len = 16384 + 4096;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let rw = libc::PROT_READ | libc::PROT_WRITE;
        let stack = libc::mmap(std::ptr::null_mut(), len, rw, flags, -1, 0);
        libc::mprotect(stack, 4096, libc::PROT_NONE);
        let stack = libc::stack_t { ss_sp: stack.byte_add(4096), ss_flags: 0, ss_size: 16384 };
        assert_eq!(libc::sigaltstack(&stack, std::ptr::null_mut()), 0);
        for signal in [libc::SIGUSR1, libc::SIGUSR2] {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_signal as *const () as usize;
            action.sa_flags = libc::SA_RESTART | libc::SA_ONSTACK | libc::SA_SIGINFO;
            libc::sigemptyset(&mut action.sa_mask);
            libc::sigaddset(&mut action.sa_mask, libc::SIGUSR1);
            libc::sigaddset(&mut action.sa_mask, libc::SIGUSR2);
            libc::sigaction(signal, &action, std::ptr::null_mut());
        }
        // The target must not survive a test that failed.
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
    }
}

/// Prints with signals blocked, so that [`WRITTEN`] is correct at any capture.
pub fn print(text: &str) {
    // SAFETY: the calls access local variables and `text`, for its length.
    unsafe {
        let mut all = std::mem::zeroed();
        let mut old = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::sigprocmask(libc::SIG_BLOCK, &all, &mut old);
        let mut rest = text.as_bytes();
        while !rest.is_empty() {
            let n = libc::write(1, rest.as_ptr().cast(), rest.len());
            assert!(n > 0, "standard output is gone");
            WRITTEN.fetch_add(n as u64, Ordering::Relaxed);
            rest = &rest[n as usize..];
        }
        libc::sigprocmask(libc::SIG_SETMASK, &old, std::ptr::null_mut());
    }
}

/// A small deterministic generator (Knuth's MMIX constants).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        self.0 >> 20
    }
}

pub fn run(args: &[String]) -> i32 {
    let dir = PathBuf::from(&args[1]);
    install(&dir);
    match args[0].as_str() {
        "walk" => walk(&dir, args[2].parse().unwrap()),
        "pool" => super::threads::pool(args[2].parse().unwrap()),
        "registers" => super::registers::run(args[2].as_str(), &args[3]),
        "tracked" => super::tracked::run(&dir, args[2].parse().unwrap()),
        name => super::shapes::run(name, &dir, &args[2..]),
    }
    0
}

/// A random walk over memory and files. Its output and its files depend only on the arguments.
fn walk(dir: &Path, steps: u64) {
    let mut random = Random(42);
    let mut input = File::open(dir.join("input")).unwrap();
    let mut log = OpenOptions::new().append(true).create(true).open(dir.join("log")).unwrap();
    // Written at random offsets and never read back: its content is not rolled back.
    let table = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(dir.join("table"))
        .unwrap();
    let sequence = File::create(dir.join("sequence")).unwrap();
    let mut twin = sequence.try_clone().unwrap();
    let mut sequence = sequence;
    let mut heap: Vec<Vec<u64>> = (0..64).map(|_| Vec::new()).collect();
    let mut sum = 0u64;
    print("ready\n");
    for step in 0..steps {
        let r = random.next();
        let slot = &mut heap[(r % 64) as usize];
        match r >> 8 & 7 {
            // Sizes on both sides of malloc's mmap threshold.
            0 => *slot = vec![r; (r >> 16 & 0xffff) as usize],
            1 => *slot = Vec::new(),
            2 => slot.push(sum),
            3 => {
                let mut piece = [0; 16];
                if input.read(&mut piece).unwrap() < 16 {
                    input.rewind().unwrap();
                }
                sum = piece.iter().fold(sum, |s, b| s.wrapping_mul(31).wrapping_add(*b as u64));
            }
            4 => table.write_all_at(&sum.to_le_bytes(), (r >> 16 & 0xfff) * 8).unwrap(),
            5 => {
                input.seek(SeekFrom::Start(r >> 16 & 0xffff)).unwrap();
                let mut word = [0; 8];
                let n = input.read(&mut word).unwrap();
                sum = sum.wrapping_add(u64::from_le_bytes(word)).wrapping_add(n as u64);
            }
            6 => {
                let to = if r & 1 << 40 == 0 { &mut sequence } else { &mut twin };
                to.write_all(&sum.to_le_bytes()).unwrap();
            }
            _ => sum = slot.iter().fold(sum, |s, v| s.rotate_left(7) ^ v),
        }
        sum = sum.wrapping_add(slot_sum(&heap, r));
        if step % 512 == 0 {
            writeln!(log, "{step} {sum:016x}").unwrap();
            print(&format!("step {step} {sum:016x}\n"));
        }
    }
    let kept = table.metadata().unwrap().len();
    print(&format!("done {sum:016x} {kept} fd={}\n", table.as_raw_fd()));
}

fn slot_sum(heap: &[Vec<u64>], r: u64) -> u64 {
    heap[(r >> 33 & 63) as usize].iter().step_by(61).fold(0, |s, v| s ^ v.rotate_left(3))
}
