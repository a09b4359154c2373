//! The values of a rank's clocks are recorded, replayed, and go on from there. Reads by other
//! threads, the provider and forked processes are not recorded. This program has our functions
//! linked in instead of preloaded, and is the provider, too.

use eyrie_calls::first_observations::BEGINNING;
use eyrie_calls::for_provider::*;
use eyrie_calls::host_clocks;
use eyrie_calls::interruption::eyrie_calls_clock_jumped;
use eyrie_calls::rank_start::eyrie_calls_begin;
use libc::{c_int, clockid_t, timespec};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::Instant;

/// Clocks in the order in which they are asked.
const CLOCKS: [clockid_t; 7] = [0, 1, 1, 2, 3, 7, 0];

fn read(clock: clockid_t) -> i128 {
    let mut time = timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes one structure, which is ours.
    assert_eq!(unsafe { libc::clock_gettime(clock, &mut time) }, 0);
    i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec)
}

fn micros(time: libc::timeval) -> i128 {
    i128::from(time.tv_sec) * 1_000_000 + i128::from(time.tv_usec)
}

fn read_all() -> Vec<i128> {
    let mut values: Vec<i128> = CLOCKS.iter().map(|clock| read(*clock)).collect();
    // SAFETY: the calls write one structure each, which is ours, or none.
    unsafe {
        let mut time = libc::timeval { tv_sec: 0, tv_usec: 0 };
        let mut zone = [0i32; 2];
        assert_eq!(libc::gettimeofday(&mut time, zone.as_mut_ptr().cast()), 0);
        values.push(micros(time));
        values.push(libc::time(std::ptr::null_mut()).into());
        values.push(eyrie_calls::our_clock().into());
        for who in [libc::RUSAGE_SELF, libc::RUSAGE_CHILDREN, libc::RUSAGE_THREAD] {
            let mut usage: libc::rusage = std::mem::zeroed();
            assert_eq!(libc::getrusage(who, &mut usage), 0);
            values.extend([usage.ru_utime, usage.ru_stime].map(micros));
        }
        let mut used = libc::tms { tms_utime: 0, tms_stime: 0, tms_cutime: 0, tms_cstime: 0 };
        values.extend([libc::times(&mut used), used.tms_utime, used.tms_stime].map(i128::from));
    }
    values
}

/// What was recorded since the last time, and where that begins.
fn take() -> (u64, Vec<u8>) {
    let entered = eyrie_calls_enter();
    let mut bytes = std::ptr::null();
    let mut from = 0;
    // SAFETY: in a call of the provider; the bytes are copied at once.
    let taken = unsafe {
        let len = eyrie_calls_take(&mut bytes, &mut from);
        if len == 0 {
            Vec::new()
        } else {
            std::slice::from_raw_parts(bytes, len).to_vec()
        }
    };
    eyrie_calls_leave(entered);
    (from, taken)
}

fn again(bytes: &[u8]) {
    // SAFETY: the bytes stay as long as the process.
    unsafe { eyrie_calls_again(bytes.to_vec().leak().as_ptr(), bytes.len()) };
}

/// What a process of a rank reads, and what it records.
#[derive(PartialEq, Debug)]
struct Life {
    pid: i128,
    /// The values of all clocks, again and again.
    values: Vec<i128>,
    bytes: Vec<u8>,
    from: u64,
}

const ROUNDS: usize = 50;

/// Runs this program as a rank, which is to observe `before` again.
fn live(before: &[u8]) -> Life {
    let exe = std::env::current_exe().unwrap();
    let lines = run(Command::new(exe).arg("rank"), before);
    let [first, values, bytes] = lines.try_into().unwrap();
    Life { pid: first[0], values, bytes: as_bytes(&bytes), from: first[1] as u64 }
}

fn as_bytes(numbers: &[i128]) -> Vec<u8> {
    numbers.iter().map(|byte| *byte as u8).collect()
}

/// Runs a rank's command as its agent does. Returns the numbers of each line that it prints.
fn run(command: &mut Command, before: &[u8]) -> Vec<Vec<i128>> {
    // Each process reads later times than the one before, in the coarsest unit.
    // SAFETY: times(2) gives a number where there is no structure.
    let ticks = || unsafe { libc::times(std::ptr::null_mut()) };
    let begun = ticks();
    while ticks() == begun {
        std::thread::yield_now();
    }
    let (ours, theirs) = UnixStream::pair().unwrap();
    if !before.is_empty() {
        send_beginning(&ours, before);
    }
    // SAFETY: the descriptor stays open in the child alone.
    unsafe { libc::fcntl(theirs.as_raw_fd(), libc::F_SETFD, 0) };
    let output = command
        .env("EYRIE_AGENT_FD", theirs.as_raw_fd().to_string())
        .env("EYRIE_RANK", "0")
        .env("EYRIE_RANDOM", "5a".repeat(32))
        .stderr(Stdio::inherit())
        .output()
        .unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    let numbers = |line: &str| line.split_whitespace().map(|n| n.parse().unwrap()).collect();
    text.lines().map(numbers).collect()
}

/// The number that it has been told is this process's, whatever the kernel's is.
fn look_at_oneself() {
    let number = std::process::id();
    // SAFETY: getpid(2) takes no argument and always succeeds.
    let kernels = unsafe { libc::syscall(libc::SYS_getpid) };
    let status = std::fs::read_to_string(format!("/proc/{number}/status")).unwrap();
    assert!(status.contains(&format!("\nPid:\t{kernels}\n")), "{status}");
    assert_eq!(std::fs::read_dir(format!("/proc/{number}/task")).unwrap().count(), 1);
    let program = std::fs::read_link(format!("/proc/{number}/exe")).unwrap();
    assert_eq!(program, std::env::current_exe().unwrap());
    // SAFETY: the set is as long as said; the same processors are set again.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        let len = size_of_val(&set);
        assert_eq!(libc::sched_getaffinity(number as i32, len, &mut set), 0);
        assert_eq!(libc::sched_setaffinity(number as i32, len, &set), 0);
    }
}

/// The rank.
fn be_a_rank() {
    look_at_oneself();
    let values: Vec<i128> = (0..ROUNDS).flat_map(|_| read_all()).collect();
    let (from, bytes) = take();
    line(&[std::process::id().into(), from.into()]);
    line(&values);
    line(&bytes.iter().map(|byte| i128::from(*byte)).collect::<Vec<_>>());
}

/// A rank that a script has started: what it reads from clocks before it is one, the guard of stack
/// frames, and what is recorded.
fn be_a_rank_of_a_script() {
    let early: Vec<i128> = [1, 0, 1, 1].map(read).into();
    // SAFETY: reads a word of the thread's control block, where the psABI has the guard.
    let guard: u64 = unsafe {
        let guard;
        std::arch::asm!("mov {}, fs:0x28", out(reg) guard, options(nostack, readonly));
        guard
    };
    eyrie_calls_begin(libc::SIGUSR2);
    let (_, bytes) = take();
    line(&early);
    line(&[guard.into()]);
    line(&bytes.iter().map(|byte| i128::from(*byte)).collect::<Vec<_>>());
}

fn line(numbers: &[i128]) {
    let words: Vec<String> = numbers.iter().map(i128::to_string).collect();
    println!("{}", words.join(" "));
}

/// As an agent does.
fn send_beginning(channel: &UnixStream, bytes: &[u8]) {
    // SAFETY: structures and buffers live through the calls; the control buffer has room for one
    // descriptor.
    unsafe {
        let file = libc::memfd_create(c"beginning".as_ptr(), 0);
        assert_eq!(libc::write(file, bytes.as_ptr().cast(), bytes.len()), bytes.len() as isize);
        let mut kind = BEGINNING;
        let mut iov = libc::iovec { iov_base: (&raw mut kind).cast(), iov_len: 1 };
        let mut control = [0u64; 8];
        let mut message: libc::msghdr = std::mem::zeroed();
        (message.msg_iov, message.msg_iovlen) = (&mut iov, 1);
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = libc::CMSG_SPACE(size_of::<c_int>() as u32) as usize;
        let header = libc::CMSG_FIRSTHDR(&message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(size_of::<c_int>() as u32) as usize;
        libc::CMSG_DATA(header).cast::<c_int>().write_unaligned(file);
        assert_eq!(libc::sendmsg(channel.as_raw_fd(), &message, 0), 1);
        libc::close(file);
    }
}

fn what_was_read_is_read_again_and_goes_on_from_there() {
    let first = live(&[]);
    assert_eq!((first.from, first.values.len()), (0, ROUNDS * read_all().len()));
    let second = live(&first.bytes);
    assert_eq!((second.pid, &second.values), (first.pid, &first.values));
    assert_eq!((second.from, second.bytes.len()), (first.bytes.len() as u64, 0));
    // It died in the middle: what is new goes on from what is known, a value that is cut off is
    // not.
    let third = live(&first.bytes[..first.bytes.len() / 2]);
    let width = first.values.len() / ROUNDS;
    let known = first.values.iter().zip(&third.values).take_while(|(a, b)| a == b).count();
    assert!((width..first.values.len()).contains(&known), "{known} values are known");
    assert!(third.pid == first.pid && !third.bytes.is_empty());
    assert!(third.from <= first.bytes.len() as u64 / 2);
    for clock in 0..width {
        let mut values = third.values.iter().skip(clock).step_by(width);
        let mut last = values.next().unwrap();
        assert!(values.all(|now| *now >= *std::mem::replace(&mut last, now)), "{third:?}");
    }
}

/// A shell starts the program, as a script does.
fn what_a_program_of_a_script_reads_before_it_is_a_rank_is_read_again() {
    let exe = std::env::current_exe().unwrap();
    let live = |word: &str, before: &[u8]| {
        let script = format!("'{}' early {word}; true", exe.display());
        let lines = run(Command::new("sh").args(["-c", &script]), before);
        let [early, guard, bytes] = lines.try_into().unwrap();
        (early, guard, as_bytes(&bytes))
    };
    let (early, guard, bytes) = live("one", &[]);
    let second = live("one", &bytes);
    assert_eq!((&second.0, &second.1), (&early, &guard));
    assert_eq!(second.2, []);
    // Another program of the script reads its own clocks.
    assert_ne!(live("another", &bytes).0, early);
}

fn what_is_asked_otherwise_does_not_harm_what_comes_later() {
    read(0);
    take();
    let first = {
        for _ in 0..9 {
            read(1);
        }
        take().1
    };
    read(0);
    let (from, second) = take();
    let end = from + second.len() as u64;
    again(&[first.clone(), second.clone()].concat());
    read(1);
    // A clock that was not read: it goes on, and is not recorded.
    let before = read(7);
    assert!(read(7) >= before);
    // SAFETY: this program is no rank and has no other user of the stream.
    unsafe {
        eyrie_calls_skip(end + first.len() as u64);
        assert_eq!(eyrie_calls_passed(), end + first.len() as u64);
        read(0);
        assert_eq!(eyrie_calls_passed(), end + (first.len() + second.len()) as u64);
        assert_eq!(eyrie_calls_waiting(), 0);
    }
    read(0);
    assert!(!take().1.is_empty());
}

fn only_the_owner_s_program_is_recorded() {
    take();
    std::thread::spawn(|| {
        (0..100).for_each(|_| {
            std::hint::black_box(read_all());
        })
    })
    .join()
    .unwrap();
    let entered = eyrie_calls_enter();
    assert_eq!(entered, 1);
    read_all();
    eyrie_calls_leave(entered);
    assert_eq!(take().1, []);
    // SAFETY: the child reads, and ends at once.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            read_all();
            let written = eyrie_calls_waiting();
            libc::_exit((written > 0 || libc::getpid() == libc::getppid()).into());
        }
        let mut status = 0;
        libc::waitpid(child, &mut status, 0);
        assert_eq!(status, 0);
    }
    // That it was started and how it ended is: a record each (0xf3 and its length).
    let mut records = take().1;
    let mut used = 0;
    while let Some([0xf3, len]) = records.get(used..used + 2) {
        used += 2 + usize::from(*len);
    }
    assert_eq!(records.split_off(used), []);
}

fn a_loop_that_polls_a_clock_is_cheap() {
    const READS: usize = 2_000_000;
    let cost = |read: &dyn Fn()| {
        let begun = Instant::now();
        (0..READS).for_each(|_| read());
        begun.elapsed().as_nanos() as f64 / READS as f64
    };
    let entered = eyrie_calls_enter();
    let plain = (0..5)
        .map(|_| {
            cost(&|| {
                std::hint::black_box(read(1));
            })
        })
        .fold(f64::MAX, f64::min);
    eyrie_calls_leave(entered);
    take();
    let mut recorded = f64::MAX;
    let mut bytes = 0;
    for _ in 0..5 {
        recorded = recorded.min(cost(&|| {
            std::hint::black_box(read(1));
        }));
        bytes = take().1.len();
    }
    let each = bytes as f64 / READS as f64;
    println!("{plain:.1} ns a read, recorded {recorded:.1} ns and {each:.3} bytes");
    assert!(each < 1.0);
}

/// An image that is asked for while another thread may be recording something.
fn nothing_is_recorded_while_an_image_is_taken() {
    const IMAGES: usize = 30;
    let over = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let ends = over.clone();
    let pid = std::process::id();
    let imager = std::thread::spawn(move || {
        let mut held = 0;
        while held < IMAGES {
            if eyrie_calls_hold(libc::SIGUSR2) == 1 {
                held += 1;
                // SAFETY: the owner is held, so that nothing else uses the stream.
                let passed = unsafe { (eyrie_calls_passed(), eyrie_calls_waiting()) };
                std::thread::yield_now();
                // SAFETY: the owner is still held, so that nothing else uses the stream.
                assert_eq!(passed, unsafe { (eyrie_calls_passed(), eyrie_calls_waiting()) });
                eyrie_calls_release();
            }
        }
        ends.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    while !over.load(std::sync::atomic::Ordering::Relaxed) && !imager.is_finished() {
        read(1);
    }
    imager.join().unwrap();
    assert_eq!(std::process::id(), pid);
    take();
}

/// The rank's clocks began an hour before those of this host.
fn clocks_of_another_host_go_on_and_are_waited_for() {
    const HOUR: i128 = 3_600_000_000_000;
    // What the owner reads may be a little ahead, since it never goes back.
    let others = || std::thread::spawn(|| read(1)).join().unwrap();
    let before = read(1);
    let others_before = others();
    host_clocks::set_began(host_clocks::began_ns() - HOUR as i64);
    eyrie_calls_clock_jumped(0);
    let after = read(1);
    assert!((HOUR..2 * HOUR).contains(&(after - before)), "{before} {after}");
    assert!((HOUR..2 * HOUR).contains(&(others() - others_before)));
    let day = read(0);
    let soon = || {
        let at = read(1) + 20_000_000;
        timespec { tv_sec: (at / 1_000_000_000) as i64, tv_nsec: (at % 1_000_000_000) as i64 }
    };
    // SAFETY: all structures are ours, and live through the calls.
    unsafe {
        let at = soon();
        let until = libc::TIMER_ABSTIME;
        assert_eq!(libc::clock_nanosleep(1, until, &at, std::ptr::null_mut()), 0);
        let mut attributes: libc::pthread_condattr_t = std::mem::zeroed();
        libc::pthread_condattr_init(&mut attributes);
        libc::pthread_condattr_setclock(&mut attributes, libc::CLOCK_MONOTONIC);
        let mut condition: libc::pthread_cond_t = std::mem::zeroed();
        libc::pthread_cond_init(&mut condition, &attributes);
        let mut mutex = libc::PTHREAD_MUTEX_INITIALIZER;
        libc::pthread_mutex_lock(&mut mutex);
        let at = soon();
        let waited = libc::pthread_cond_timedwait(&mut condition, &mut mutex, &at);
        assert_eq!(waited, libc::ETIMEDOUT);
    }
    let waited = read(0) - day;
    assert!((40_000_000..60_000_000_000).contains(&waited), "it has waited for {waited} ns");
}

/// Words of the stack below a call that are looked at, and registers behind them.
const WORDS: usize = 1024;
const REGISTERS: usize = 8;

/// Where they are put: always the same place.
static LEFT: Mutex<[u64; WORDS + REGISTERS]> = Mutex::new([0; WORDS + REGISTERS]);
static TIME: Mutex<timespec> = Mutex::new(timespec { tv_sec: 0, tv_nsec: 0 });

/// Reads a clock. Returns what that leaves on the stack and in caller-saved registers.
#[inline(never)]
fn left_behind() -> ((i64, i64), Vec<u64>) {
    let (mut time, mut left) = (TIME.lock().unwrap(), LEFT.lock().unwrap());
    // SAFETY: fills and copies memory below the stack pointer, which is not in use, and calls a
    // function of this type. The registers that it preserves are the same each time.
    unsafe {
        std::arch::asm!(
            "push rbx",
            "push rbp",
            "xor ebx, ebx",
            "xor ebp, ebp",
            "lea rdi, [rsp - 8192]",
            "mov ecx, 1024",
            "mov rax, -1",
            "rep stosq",
            "mov edi, 4",
            "mov rsi, r13",
            "call r12",
            "mov [r14 + 8192], rcx",
            "mov [r14 + 8200], rdx",
            "mov [r14 + 8208], rsi",
            "mov [r14 + 8216], rdi",
            "mov [r14 + 8224], r8",
            "mov [r14 + 8232], r9",
            "mov [r14 + 8240], r10",
            "mov [r14 + 8248], r11",
            "lea rsi, [rsp - 8192]",
            "mov rdi, r14",
            "mov ecx, 1024",
            "rep movsq",
            "pop rbp",
            "pop rbx",
            in("r12") eyrie_calls::our_clock_gettime as *const (),
            in("r13") &raw mut *time,
            in("r14") left.as_mut_ptr(),
            in("r15") 0,
            clobber_abi("sysv64"),
        );
    }
    ((time.tv_sec, time.tv_nsec), left.to_vec())
}

/// MPI libraries send what was left on the stack, as padding.
fn a_clock_that_is_read_again_leaves_behind_what_it_left() {
    // CLOCK_MONOTONIC_RAW, by which nothing waits, is a minute ahead: until then it stands still.
    read(4);
    take();
    again(&[0xf1, 0x80, 0x9c, 0x9c, 0x39]);
    read(4);
    take();
    let (time, left) = left_behind();
    again(&take().1);
    let (time_again, left_again) = left_behind();
    assert_eq!(time, time_again);
    let each = (left.iter().zip(&left_again).enumerate()).filter(|(_, (a, b))| a != b);
    let differ: Vec<_> = each.map(|(at, words)| (WORDS as isize - at as isize, words)).collect();
    assert!(differ.is_empty(), "something else is left behind, so many words below: {differ:x?}");
    assert_eq!(take().1, []);
}

extern "C" fn on_signal(_: c_int) {}

fn main() {
    match std::env::args().nth(1).as_deref() {
        Some("rank") => return be_a_rank(),
        Some("early") => return be_a_rank_of_a_script(),
        _ => {}
    }
    // SAFETY: a handler that does nothing, for the signal that would ask for an image.
    unsafe { libc::signal(libc::SIGUSR2, on_signal as extern "C" fn(c_int) as usize) };
    // SAFETY: who waits by the wrong clock waits for an hour.
    unsafe { libc::alarm(120) };
    eyrie_calls_begin(libc::SIGUSR2);
    assert_eq!(BEGINNING, eyrie_wire::agent::BEGINNING);
    what_was_read_is_read_again_and_goes_on_from_there();
    what_a_program_of_a_script_reads_before_it_is_a_rank_is_read_again();
    what_is_asked_otherwise_does_not_harm_what_comes_later();
    only_the_owner_s_program_is_recorded();
    a_clock_that_is_read_again_leaves_behind_what_it_left();
    nothing_is_recorded_while_an_image_is_taken();
    a_loop_that_polls_a_clock_is_cheap();
    clocks_of_another_host_go_on_and_are_waited_for();
    println!("ok");
}
