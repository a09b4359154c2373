//! Targets with threads in every state. They are captured in these states, and must do and see the
//! same afterwards in the restored process.

use super::target::{print, take_image, take_image_with, Random};
use eyrie_image::{capture, Holder, Hooks, Mode, Outcome, Request};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Number of threads that are in the state for the image.
static THERE: AtomicUsize = AtomicUsize::new(0);
static OVER: AtomicBool = AtomicBool::new(false);

fn there() {
    THERE.fetch_add(1, Ordering::SeqCst);
}

/// Runs `work` in a thread of this name. Returns the name and the thread, which ends with a text.
fn thread(
    name: &str,
    work: impl FnOnce() -> String + Send + 'static,
) -> (String, JoinHandle<String>) {
    let handle = std::thread::Builder::new().name(name.into()).spawn(work).unwrap();
    (name.to_string(), handle)
}

/// The state of a thread as the kernel reports it.
fn state_of(tid: i32) -> char {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{tid}/stat")).unwrap();
    stat.rsplit_once(") ").unwrap().1.chars().next().unwrap()
}

/// Waits until all but the calling thread and those that compute are asleep.
fn await_sleepers(computing: &[i32]) {
    // SAFETY: gettid takes no arguments and always succeeds.
    let own = unsafe { libc::gettid() };
    let all_sleep = || {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let ids = tasks.map(|t| t.unwrap().file_name().into_string().unwrap().parse().unwrap());
        let others = ids.filter(|tid| *tid != own && !computing.contains(tid));
        others.into_iter().all(|tid| state_of(tid) == 'S')
    };
    while !all_sleep() {
        std::thread::yield_now();
    }
}

/// One thread in each kind of wait, one that computes, and one that holds locks and has settings of
/// its own. The first thread captures, or ("other") another one.
pub fn of_every_kind(mode: Mode, who: &str) {
    let pair = Arc::new((Mutex::new(false), Condvar::new()));
    let told = pair.clone();
    let mut all = vec![
        thread("read", read_input),
        thread("poll", poll_input),
        thread("nanosleep", sleep_in_parts),
        thread("condition", move || {
            there();
            let over = told.1.wait_while(told.0.lock().unwrap(), |over| !*over);
            format!("told {}", *over.unwrap())
        }),
        thread("timed condition", timed_condition),
        thread("settings", settings_of_its_own),
    ];
    let computing = Arc::new(AtomicUsize::new(0));
    let id = computing.clone();
    all.push(thread("compute", move || compute(&id)));
    while THERE.load(Ordering::SeqCst) < all.len() {
        std::thread::yield_now();
    }
    await_sleepers(&[computing.load(Ordering::SeqCst) as i32]);
    let outcome = match who {
        "other" => std::thread::spawn(move || take_image(mode)).join().unwrap(),
        _ => take_image(mode),
    };
    if let Outcome::Refused(_) = outcome {
        std::process::exit(3);
    }
    OVER.store(true, Ordering::SeqCst);
    *pair.0.lock().unwrap() = true;
    pair.1.notify_all();
    for (name, handle) in all {
        println!("{name}: {}", handle.join().unwrap());
    }
    println!("a new thread: {}", std::thread::spawn(|| 5).join().unwrap());
}

/// Three generations of a process whose threads ask for the time without a pause. What they are
/// told must be right in each. It ends at the end of its input.
pub fn clocks(mode: Mode) {
    let all: Vec<_> = (0..3).map(|_| thread("clock", ask_for_the_time)).collect();
    while THERE.load(Ordering::SeqCst) < all.len() {
        std::thread::yield_now();
    }
    for _ in 0..3 {
        match take_image(mode) {
            Outcome::Restored => {}
            Outcome::Captured { .. } => loop {
                std::thread::park(); // the next generation goes on
            },
            Outcome::Refused(_) => std::process::exit(3),
        }
    }
    let mut byte = [0];
    // SAFETY: the kernel writes at most one byte into `byte`.
    while unsafe { libc::read(0, byte.as_mut_ptr().cast(), 1) } != 0 {}
    OVER.store(true, Ordering::SeqCst);
    for (name, handle) in all {
        println!("a {name}: {}", handle.join().unwrap());
    }
}

/// Asks by all functions of the vDSO, and compares with what the kernel says.
fn ask_for_the_time() -> String {
    let mut turns = 0;
    let mut before = Instant::now();
    while !OVER.load(Ordering::Relaxed) || turns < 1000 {
        let now = Instant::now();
        let mut resolution = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let mut of_day = libc::timeval { tv_sec: 0, tv_usec: 0 };
        let mut from_kernel = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the calls write these three local variables.
        let (seconds, processor) = unsafe {
            libc::clock_getres(libc::CLOCK_MONOTONIC, &mut resolution);
            libc::gettimeofday(&mut of_day, std::ptr::null_mut());
            let clock = libc::CLOCK_REALTIME as libc::c_long;
            libc::syscall(libc::SYS_clock_gettime, clock, &raw mut from_kernel);
            (libc::time(std::ptr::null_mut()), libc::sched_getcpu())
        };
        let is_right = now >= before
            && (1..100_000_000).contains(&resolution.tv_nsec)
            && (0..5).contains(&(from_kernel.tv_sec - of_day.tv_sec))
            && (-1..5).contains(&(seconds - of_day.tv_sec))
            && processor >= 0;
        if !is_right {
            return format!("{seconds} {} {} {processor}", of_day.tv_sec, from_kernel.tv_sec);
        }
        before = now;
        turns += 1;
        if turns == 1 {
            there();
        }
    }
    "right".into()
}

fn read_input() -> String {
    let mut bytes = [0u8; 16];
    there();
    // SAFETY: the kernel writes at most 16 bytes into `bytes`.
    let got = unsafe { libc::read(0, bytes.as_mut_ptr().cast(), 16) };
    format!("{got} {}", String::from_utf8_lossy(&bytes))
}

fn poll_input() -> String {
    let mut poll = libc::pollfd { fd: 0, events: 0, revents: 0 };
    there();
    // SAFETY: one descriptor is passed, as the count says. It asks only for the end of input.
    while unsafe { libc::poll(&mut poll, 1, -1) } < 0 {}
    format!("{:x}", poll.revents)
}

fn sleep_in_parts() -> String {
    let begun = Instant::now();
    let mut left = libc::timespec { tv_sec: 0, tv_nsec: 300_000_000 };
    there();
    // SAFETY: both times are local variables that outlive the call.
    while unsafe { libc::nanosleep(&left, &mut left) } != 0 {}
    format!("whole: {}", begun.elapsed() >= Duration::from_millis(300))
}

fn timed_condition() -> String {
    let mutex = Mutex::new(());
    let condition = Condvar::new();
    let begun = Instant::now();
    there();
    let time = Duration::from_millis(300);
    let (_guard, result) =
        condition.wait_timeout_while(mutex.lock().unwrap(), time, |_| true).unwrap();
    format!("timed out: {}, whole: {}", result.timed_out(), begun.elapsed() >= time)
}

fn compute(id: &AtomicUsize) -> String {
    // SAFETY: gettid takes no arguments and always succeeds.
    id.store(unsafe { libc::gettid() } as usize, Ordering::SeqCst);
    there();
    let mut random = Random(3);
    let mut sum = 0.0f64;
    let mut turns = 0u64;
    while turns < 50_000_000 || !OVER.load(Ordering::Relaxed) {
        let number = random.next() as f64;
        if turns < 50_000_000 {
            sum = sum * 0.5 + number.sqrt();
        }
        turns += 1;
    }
    format!("{sum:.17e}")
}

thread_local! {
    static LOCAL: std::cell::Cell<u64> = const { std::cell::Cell::new(5) };
}

fn held_mutex(kind: i32) -> Box<libc::pthread_mutex_t> {
    // SAFETY: the mutex is initialised here before use, and is boxed, so it does not move.
    unsafe {
        let mut attributes = std::mem::zeroed();
        libc::pthread_mutexattr_init(&mut attributes);
        libc::pthread_mutexattr_settype(&mut attributes, kind);
        let mut mutex = Box::new(std::mem::zeroed());
        libc::pthread_mutex_init(&mut *mutex, &attributes);
        assert_eq!(libc::pthread_mutex_lock(&mut *mutex), 0);
        mutex
    }
}

fn settings_of_its_own() -> String {
    LOCAL.set(99);
    let kinds =
        [libc::PTHREAD_MUTEX_NORMAL, libc::PTHREAD_MUTEX_ERRORCHECK, libc::PTHREAD_MUTEX_RECURSIVE];
    let mut held = kinds.map(held_mutex);
    let stack = Box::leak(vec![0u8; 65536].into_boxed_slice());
    // Towards plus infinity, all masked.
    let mxcsr = 0x5f80u32;
    // SAFETY: the calls only change settings of this thread. The signal stack is leaked, so it
    // exists as long as the thread.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGWINCH);
        libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
        let alt =
            libc::stack_t { ss_sp: stack.as_mut_ptr().cast(), ss_flags: 0, ss_size: stack.len() };
        libc::sigaltstack(&alt, std::ptr::null_mut());
        let mut allowed: libc::cpu_set_t = std::mem::zeroed();
        libc::sched_getaffinity(0, size_of_val(&allowed), &mut allowed);
        let last = (0..1024).rev().find(|cpu| libc::CPU_ISSET(*cpu, &allowed)).unwrap();
        libc::CPU_ZERO(&mut allowed);
        libc::CPU_SET(last, &mut allowed);
        assert_eq!(libc::sched_setaffinity(0, size_of_val(&allowed), &allowed), 0);
        let nice = libc::getpriority(libc::PRIO_PROCESS, 0);
        assert_eq!(libc::setpriority(libc::PRIO_PROCESS, 0, nice + 3), 0);
        libc::prctl(libc::PR_SET_TIMERSLACK, 123_456);
        std::arch::asm!("ldmxcsr [{}]", in(reg) &mxcsr);
    }
    there();
    while !OVER.load(Ordering::SeqCst) {
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut seen = 0u32;
    // SAFETY: the mutexes were locked above. The other calls read settings into local variables.
    unsafe {
        std::arch::asm!("stmxcsr [{}]", in(reg) &mut seen);
        let unlocked = held.each_mut().map(|mutex| libc::pthread_mutex_unlock(&mut **mutex));
        let mut set: libc::sigset_t = std::mem::zeroed();
        let mut alt: libc::stack_t = std::mem::zeroed();
        libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &mut set);
        libc::sigaltstack(std::ptr::null(), &mut alt);
        let mut allowed: libc::cpu_set_t = std::mem::zeroed();
        libc::sched_getaffinity(0, size_of_val(&allowed), &mut allowed);
        let mut name = [0u8; 16];
        libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr());
        format!(
            "unlocked {unlocked:?} local {} mask {} altstack {} {} processors {} nice {} slack {} \
             rounding {:x} name {} cpu {}",
            LOCAL.get(),
            libc::sigismember(&set, libc::SIGWINCH),
            alt.ss_size,
            alt.ss_flags,
            libc::CPU_COUNT(&allowed),
            libc::getpriority(libc::PRIO_PROCESS, 0),
            libc::prctl(libc::PR_GET_TIMERSLACK),
            seen & !0x3f,
            String::from_utf8_lossy(&name),
            libc::CPU_ISSET(libc::sched_getcpu() as usize, &allowed),
        )
    }
}

/// Threads that compute in turns with the first one, which prints.
pub fn pool(steps: usize) {
    const THREADS: usize = 4;
    const PART: usize = 500;
    let barrier = Arc::new(Barrier::new(THREADS + 1));
    let parts: Vec<_> = (0..THREADS).map(|_| Arc::new(Mutex::new(vec![1.0f64; PART]))).collect();
    // The signals that ask for an image are for the first thread, which knows what it has printed.
    // SAFETY: the calls access a local signal set and change the mask of this thread, which its
    // threads inherit.
    let block = |how: i32| unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGUSR1);
        libc::sigaddset(&mut set, libc::SIGUSR2);
        libc::pthread_sigmask(how, &set, std::ptr::null_mut());
    };
    block(libc::SIG_BLOCK);
    let threads: Vec<_> = (0..THREADS)
        .map(|n| {
            let barrier = barrier.clone();
            let part = parts[n].clone();
            std::thread::spawn(move || {
                for step in 0..steps {
                    for (i, x) in part.lock().unwrap().iter_mut().enumerate() {
                        *x = (*x * 1.0000001 + (i * n + step) as f64).sqrt();
                    }
                    barrier.wait();
                    barrier.wait();
                }
                n
            })
        })
        .collect();
    block(libc::SIG_UNBLOCK);
    print("ready\n");
    for step in 0..steps {
        barrier.wait();
        let sums = parts.iter().map(|part| part.lock().unwrap().iter().sum::<f64>());
        let sum: f64 = sums.sum();
        if step % 50 == 0 {
            print(&format!("step {step} {sum:.17e}\n"));
        }
        barrier.wait();
    }
    let ended: usize = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
    print(&format!("done {ended}\n"));
}

/// Gets a second thread into a state that cannot be captured, and keeps it there. Returns false
/// when `what` is not the state of a thread.
pub fn refused(what: &str) -> bool {
    let work: fn() = match what {
        "deaf thread" => || {
            let all = u64::MAX;
            // SAFETY: the kernel reads a local signal set. The C library would not block this
            // signal.
            unsafe { libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_BLOCK, &all, 0, 8) };
        },
        "thread with rights" => || {
            // SAFETY: the call takes numbers and only changes this thread.
            unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
        },
        "thread with files" => || {
            // SAFETY: the call takes a number and only gives this thread a descriptor table of its
            // own.
            assert_eq!(unsafe { libc::unshare(libc::CLONE_FILES) }, 0);
        },
        // SAFETY: the calls access a local signal set and only block and signal this thread.
        "thread with signals" => || unsafe {
            let mut set = std::mem::zeroed();
            libc::sigemptyset(&mut set);
            libc::sigaddset(&mut set, libc::SIGUSR2);
            libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
            libc::pthread_kill(libc::pthread_self(), libc::SIGUSR2);
        },
        "raw thread" => return raw_thread(),
        _ => return false,
    };
    let (tell, told) = std::sync::mpsc::channel();
    let rest = move || {
        work();
        tell.send(()).unwrap();
        loop {
            // SAFETY: the call takes no arguments and waits for a signal.
            unsafe { libc::syscall(libc::SYS_pause) };
        }
    };
    std::thread::Builder::new().name("helper".into()).spawn(rest).unwrap();
    told.recv().unwrap();
    true
}

/// Starts a thread of which the C library has no record.
fn raw_thread() -> bool {
    extern "C" fn rest(_: *mut libc::c_void) -> i32 {
        loop {
            // SAFETY: the instructions only make the system call pause, again and again.
            unsafe {
                std::arch::asm!(
                    "syscall",
                    inlateout("rax") libc::SYS_pause => _,
                    lateout("rcx") _, lateout("r11") _,
                )
            };
        }
    }
    let stack = Box::leak(vec![0u8; 1 << 20].into_boxed_slice());
    let flags = libc::CLONE_VM
        | libc::CLONE_FS
        | libc::CLONE_FILES
        | libc::CLONE_SIGHAND
        | libc::CLONE_THREAD
        | libc::CLONE_SYSVSEM;
    // SAFETY: the stack is leaked and used by this thread only, and `rest` uses nothing of the C
    // library.
    let tid = unsafe {
        let top = stack.as_mut_ptr().add(stack.len()).cast();
        libc::clone(rest, top, flags, std::ptr::null_mut())
    };
    assert!(tid > 0);
    true
}

/// Repeatedly tries to capture a process with a thread that does not stop: only the first attempt
/// waits for that thread. Before each attempt it waits until the reader of the last one has closed
/// the pipe.
pub fn deaf(dir: &Path) {
    refused("deaf thread");
    for attempt in 0..3 {
        while !dir.join(format!("attempt {attempt}")).exists() {
            std::thread::yield_now();
        }
        let begun = Instant::now();
        take_image(Mode::Async);
        println!("waited for: {}", begun.elapsed() >= Duration::from_secs(1));
    }
}

/// A second thread waits for a signal. Code that repeats its call must be told only when the thread
/// continues: a signal that arrives while it stands still interrupts the call.
pub fn hooks(dir: &Path) {
    static STOOD: AtomicBool = AtomicBool::new(false);
    static TOLD: Mutex<Option<bool>> = Mutex::new(None);
    unsafe fn interrupted(_: *mut libc::c_void) {
        *TOLD.lock().unwrap() = Some(STOOD.load(Ordering::SeqCst));
    }
    struct Stands;
    impl Holder for Stands {
        fn before_capture(&self) -> Result<(), &'static str> {
            STOOD.store(true, Ordering::SeqCst);
            Ok(())
        }
    }
    let waiting = |tid: i32| state_of(tid) == 'S';
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || loop {
        // SAFETY: gettid takes no arguments and always succeeds.
        let _ = tell.send(unsafe { libc::gettid() });
        // SAFETY: pause takes no arguments and waits for a signal.
        unsafe { libc::pause() };
    });
    let tid = told.recv().unwrap();
    while !waiting(tid) {
        std::thread::yield_now();
    }
    let out = std::fs::File::options().write(true).open(dir.join("image")).unwrap();
    let hooks = Hooks { interrupted: Some(interrupted), clock_jumped: None };
    let plain = Request::plain(out.as_raw_fd(), Mode::Async);
    let request = Request { holders: &[&Stands], hooks, ..plain };
    // SAFETY: this is the only capture, and no process is restored from the image.
    let outcome = unsafe { capture(&request) };
    assert!(matches!(outcome, Outcome::Captured { .. }), "not captured");
    drop(out);
    loop {
        if let Some(told) = *TOLD.lock().unwrap() {
            return println!("told when all had stood still: {told}");
        }
        std::thread::yield_now();
    }
}

/// A holder restores its state while another thread would run: that thread must stand still. The
/// first thread captures, or ("other") another one.
pub fn holder_first(who: &str) {
    static RESTORES: AtomicBool = AtomicBool::new(false);
    static RAN: AtomicBool = AtomicBool::new(false);
    struct Restores;
    impl Holder for Restores {
        fn restore(&self) {
            RESTORES.store(true, Ordering::SeqCst);
            let begun = Instant::now();
            while !RAN.load(Ordering::SeqCst) && begun.elapsed() < Duration::from_millis(300) {
                std::hint::spin_loop();
            }
            RESTORES.store(false, Ordering::SeqCst);
        }
    }
    let runs = std::thread::spawn(|| {
        there();
        while !OVER.load(Ordering::SeqCst) {
            RAN.fetch_or(RESTORES.load(Ordering::SeqCst), Ordering::SeqCst);
        }
    });
    while THERE.load(Ordering::SeqCst) == 0 {
        std::thread::yield_now();
    }
    let take = || take_image_with(Mode::Async, &[&Restores]);
    let outcome = match who {
        "other" => std::thread::spawn(take).join().unwrap(),
        _ => take(),
    };
    if let Outcome::Refused(_) = outcome {
        std::process::exit(3);
    }
    OVER.store(true, Ordering::SeqCst);
    runs.join().unwrap();
    println!("another thread ran: {}", RAN.load(Ordering::SeqCst));
}

/// The first thread ends. Another one takes the image, while a third one waits and a signal of
/// kill(2) is pending for the process.
pub fn without_the_first(mode: Mode) {
    // SAFETY: getpid takes no arguments, and an all-zero signal set is valid.
    let (first, mut hangup) = unsafe { (libc::getpid(), std::mem::zeroed::<libc::sigset_t>()) };
    // SAFETY: the calls access a local signal set. The threads below inherit the mask, so the
    // signal is blocked in all of them.
    unsafe {
        libc::sigemptyset(&mut hangup);
        libc::sigaddset(&mut hangup, libc::SIGHUP);
        libc::pthread_sigmask(libc::SIG_BLOCK, &hangup, std::ptr::null_mut());
        libc::kill(first, libc::SIGHUP);
    }
    std::thread::spawn(move || {
        while state_of(first) != 'Z' {
            std::thread::yield_now();
        }
        let (_, waits) = thread("read", read_input);
        while THERE.load(Ordering::SeqCst) < 1 {
            std::thread::yield_now();
        }
        take_image(mode);
        // SAFETY: set, time and info are local variables, and an all-zero siginfo_t is valid.
        let (signal, info) = unsafe {
            let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            let mut info: libc::siginfo_t = std::mem::zeroed();
            (libc::sigtimedwait(&hangup, &mut info, &at_once), info)
        };
        println!("pending: {signal} with code {}", info.si_code);
        println!("another thread: {}", waits.join().unwrap());
        println!("a new thread: {}", std::thread::spawn(|| 5).join().unwrap());
        // SAFETY: _exit(2) takes a number and does not return.
        unsafe { libc::_exit(0) };
    });
    // SAFETY: the call ends this thread only; nothing on its stack is used by others.
    unsafe { libc::syscall(libc::SYS_exit, 0) };
}
