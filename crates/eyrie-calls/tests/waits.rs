//! Every wait goes on when it is interrupted as an image interrupts it, again and again: it takes
//! its whole time and ends as it would have ended. A signal of the program's own ends it as ever.
//! This program has our functions linked in instead of preloaded.

use eyrie_calls::interruption::{eyrie_calls_clock_jumped, eyrie_calls_interrupted};
use eyrie_calls::rank_start::eyrie_calls_begin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What stands for images in this test, a real-time signal as the provider's; SIGUSR2 is the
/// program's own.
const IMAGE: i32 = 59;
/// How long the waits are that end by themselves, and when the others are ended.
const MS: i64 = 60;

static IMAGES: AtomicU64 = AtomicU64::new(0);
static OWN: AtomicU64 = AtomicU64::new(0);

/// What the provider's handler does.
extern "C" fn on_image(_: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel gives the context that was interrupted.
    let registers = unsafe { &(*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    let failed = registers[libc::REG_RAX as usize] == -i64::from(libc::EINTR);
    // SAFETY: both sets live through the calls. A signal that runs its handler next is not to be
    // overlooked.
    let alone = unsafe {
        let mut pending: libc::sigset_t = std::mem::zeroed();
        libc::sigpending(&mut pending);
        let blocked = &(*context.cast::<libc::ucontext_t>()).uc_sigmask;
        libc::sigismember(&pending, libc::SIGUSR2) == 0
            || libc::sigismember(blocked, libc::SIGUSR2) == 1
    };
    if failed && alone && eyrie_calls_interrupted(registers[libc::REG_RSP as usize] as usize) == 1 {
        IMAGES.fetch_add(1, Ordering::Relaxed);
    }
}

extern "C" fn on_own(_: i32) {
    OWN.fetch_add(1, Ordering::Relaxed);
}

fn install() {
    // SAFETY: handlers of the types that their flags ask for.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_image as *const () as usize;
        action.sa_flags = libc::SA_RESTART | libc::SA_SIGINFO;
        libc::sigfillset(&mut action.sa_mask);
        libc::sigaction(IMAGE, &action, std::ptr::null_mut());
        action.sa_sigaction = on_own as *const () as usize;
        action.sa_flags = libc::SA_RESTART;
        libc::sigemptyset(&mut action.sa_mask);
        libc::sigaction(libc::SIGUSR2, &action, std::ptr::null_mut());
    }
}

/// Does `wait` while images come; `after` is done after a while, by another thread.
fn pestered(
    wait: impl FnOnce() -> i64,
    after: impl FnOnce(libc::pthread_t) + Send + 'static,
) -> i64 {
    // SAFETY: pthread_self(3) takes no argument and always succeeds.
    let me = unsafe { libc::pthread_self() };
    let done = Arc::new(AtomicBool::new(false));
    let over = Arc::clone(&done);
    let pester = std::thread::spawn(move || {
        let begun = Instant::now();
        let mut after = Some(after);
        while !over.load(Ordering::Relaxed) {
            // SAFETY: that thread waits for this one.
            unsafe { libc::pthread_kill(me, IMAGE) };
            std::thread::yield_now();
            let pause = Instant::now();
            while pause.elapsed() < Duration::from_millis(3) {
                std::hint::spin_loop();
            }
            if begun.elapsed() > Duration::from_millis(MS as u64) {
                if let Some(after) = after.take() {
                    after(me);
                }
            }
        }
    });
    let result = wait();
    done.store(true, Ordering::Relaxed);
    pester.join().unwrap();
    result
}

struct Seen {
    result: i64,
    errno: i32,
    took: Duration,
    images: u64,
}

fn measure(
    wait: impl FnOnce() -> i64,
    after: impl FnOnce(libc::pthread_t) + Send + 'static,
) -> Seen {
    let before = IMAGES.load(Ordering::Relaxed);
    let mut errno = 0;
    let begun = Instant::now();
    let result = pestered(
        || {
            // SAFETY: errno is this thread's own.
            unsafe { *libc::__errno_location() = 0 };
            let result = wait();
            errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
            result
        },
        after,
    );
    let images = IMAGES.load(Ordering::Relaxed) - before;
    Seen { result, errno, took: begun.elapsed(), images }
}

/// A wait that ends by itself takes its whole time and gives `result`. On a busy machine it may be
/// over before an image has come: then it waits once more.
fn takes_its_time(name: &str, result: i64, mut wait: impl FnMut() -> i64) {
    for _ in 0..100 {
        let seen = measure(&mut wait, |_| {});
        assert_eq!(seen.result, result, "{name}: errno {}", seen.errno);
        // CPython's poll(2) waits again when it finds that, and only in the execution that an image
        // has interrupted.
        assert!(seen.result < 0 || seen.errno != libc::EINTR, "{name} leaves EINTR behind");
        assert!(seen.took >= Duration::from_millis(MS as u64), "{name}: {:?}", seen.took);
        if seen.images > 0 {
            println!("test {name} ... ok");
            return;
        }
    }
    panic!("{name} was never interrupted");
}

/// A wait that never ends by itself is ended by a signal of the program's own, and by that only.
fn ends_by_its_own_signal(name: &str, mut wait: impl FnMut() -> i64) {
    for _ in 0..100 {
        let own = OWN.load(Ordering::Relaxed);
        let seen = measure(&mut wait, |who| {
            // SAFETY: that thread waits for this one.
            unsafe { libc::pthread_kill(who, libc::SIGUSR2) };
        });
        assert_eq!((seen.result, seen.errno), (-1, libc::EINTR), "{name}");
        assert_eq!(OWN.load(Ordering::Relaxed), own + 1, "{name}: the handler has run");
        assert!(seen.took >= Duration::from_millis(MS as u64), "{name}: {:?}", seen.took);
        if seen.images > 0 {
            println!("test {name} ... ok");
            return;
        }
    }
    panic!("{name} was never interrupted");
}

const TIME: libc::timespec = libc::timespec { tv_sec: 0, tv_nsec: MS * 1_000_000 };
const NULL: *mut libc::fd_set = std::ptr::null_mut();

fn main() {
    install();
    let mut pipe = [0; 2];
    let mut set = [0u64; 16];
    let mut one = libc::pollfd { fd: 0, events: 1, revents: 0 };
    let (mut event, epoll);
    // SAFETY: plain calls on structures of this frame.
    unsafe {
        assert_eq!(libc::pipe(pipe.as_mut_ptr()), 0);
        one.fd = pipe[0];
        epoll = libc::epoll_create1(0);
        event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
        libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, pipe[0], &mut event);
    }
    let read = set.as_mut_ptr().cast::<libc::fd_set>();
    let none: *const libc::sigset_t = std::ptr::null();
    // SAFETY: plain calls on structures of this frame, which live to the end of main.
    unsafe {
        // Outside a rank nothing is changed.
        let hour = libc::timespec { tv_sec: 3600, tv_nsec: 0 };
        let seen = measure(|| libc::nanosleep(&hour, std::ptr::null_mut()).into(), |_| {});
        assert_eq!((seen.result, seen.errno), (-1, libc::EINTR));
        assert_eq!(eyrie_calls_interrupted(0), 0, "no wait is under way");
        eyrie_calls_begin(IMAGE);

        takes_its_time("usleep", 0, || libc::usleep(MS as u32 * 1000).into());
        takes_its_time("nanosleep", 0, || libc::nanosleep(&TIME, std::ptr::null_mut()).into());
        takes_its_time("clock_nanosleep", 0, || {
            libc::clock_nanosleep(libc::CLOCK_REALTIME, 0, &TIME, std::ptr::null_mut()).into()
        });
        takes_its_time("clock_nanosleep until", 0, || {
            let mut at: libc::timespec = std::mem::zeroed();
            libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut at);
            at.tv_sec += (at.tv_nsec + TIME.tv_nsec) / 1_000_000_000;
            at.tv_nsec = (at.tv_nsec + TIME.tv_nsec) % 1_000_000_000;
            let absolute = libc::TIMER_ABSTIME;
            libc::clock_nanosleep(libc::CLOCK_MONOTONIC, absolute, &at, std::ptr::null_mut()).into()
        });
        takes_its_time("sleep", 0, || libc::sleep(1).into());
        takes_its_time("poll", 0, || libc::poll(&mut one, 1, MS as i32).into());
        takes_its_time("ppoll", 0, || libc::ppoll(&mut one, 1, &TIME, none).into());
        takes_its_time("select", 0, || {
            let mut time = libc::timeval { tv_sec: 0, tv_usec: MS * 1000 };
            libc::FD_SET(pipe[0], read);
            libc::select(pipe[0] + 1, read, NULL, NULL, &mut time).into()
        });
        takes_its_time("pselect", 0, || {
            libc::FD_SET(pipe[0], read);
            libc::pselect(pipe[0] + 1, read, NULL, NULL, &TIME, none).into()
        });
        takes_its_time("epoll_wait", 0, || {
            libc::epoll_wait(epoll, &mut event, 1, MS as i32).into()
        });
        takes_its_time("epoll_pwait", 0, || {
            libc::epoll_pwait(epoll, &mut event, 1, MS as i32, none).into()
        });
        let mut never_sent: libc::sigset_t = std::mem::zeroed();
        libc::sigaddset(&mut never_sent, libc::SIGWINCH);
        takes_its_time("sigtimedwait", -1, || {
            libc::sigtimedwait(&never_sent, std::ptr::null_mut(), &TIME).into()
        });
        assert_eq!(*libc::__errno_location(), libc::EAGAIN);

        ends_by_its_own_signal("pause", || libc::pause().into());
        let mut no_signal: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut no_signal);
        ends_by_its_own_signal("sigsuspend", || libc::sigsuspend(&no_signal).into());
        ends_by_its_own_signal("sigwaitinfo", || {
            libc::sigwaitinfo(&never_sent, std::ptr::null_mut()).into()
        });
        ends_by_its_own_signal("poll for ever", || libc::poll(&mut one, 1, -1).into());
        ends_by_its_own_signal("select for ever", || {
            libc::FD_SET(pipe[0], read);
            libc::select(pipe[0] + 1, read, NULL, NULL, std::ptr::null_mut()).into()
        });
        ends_by_its_own_signal("epoll_wait for ever", || {
            libc::epoll_wait(epoll, &mut event, 1, -1).into()
        });
        ends_by_its_own_signal("nanosleep of an hour", || {
            let hour = libc::timespec { tv_sec: 3600, tv_nsec: 0 };
            let mut rest: libc::timespec = std::mem::zeroed();
            let result = libc::nanosleep(&hour, &mut rest);
            assert!((3590..3600).contains(&rest.tv_sec), "{} s are left", rest.tv_sec);
            result.into()
        });

        // What is waited for still ends the wait.
        let fd = pipe[1];
        let seen = measure(
            || libc::poll(&mut one, 1, -1).into(),
            move |_| assert_eq!(libc::write(fd, [0u8].as_ptr().cast(), 1), 1),
        );
        assert_eq!((seen.result, one.revents), (1, libc::POLLIN));

        // Who waits for all signals does not get the one that asks for images.
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::sigprocmask(libc::SIG_BLOCK, &all, std::ptr::null_mut());
        libc::raise(IMAGE);
        assert_eq!(libc::sigtimedwait(&all, std::ptr::null_mut(), &TIME), -1);
        libc::raise(libc::SIGWINCH);
        assert_eq!(libc::sigwaitinfo(&all, std::ptr::null_mut()), libc::SIGWINCH);
        libc::sigprocmask(libc::SIG_UNBLOCK, &all, std::ptr::null_mut());

        // Time that passed between an image and its restore is not slept.
        let begun = Instant::now();
        let seen = measure(
            || {
                let jump = std::thread::spawn(|| {
                    std::thread::sleep(Duration::from_millis(1));
                    eyrie_calls_clock_jumped(MS * 1_000_000);
                });
                let result = libc::nanosleep(&TIME, std::ptr::null_mut()).into();
                jump.join().unwrap();
                result
            },
            |_| {},
        );
        assert_eq!(seen.result, 0);
        assert!(begun.elapsed() >= Duration::from_millis(2 * MS as u64), "{:?}", begun.elapsed());
    }
    println!("test result: ok.");
}
