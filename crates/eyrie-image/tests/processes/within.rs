//! Targets with pipes, socket pairs and descriptors that wait for events, all within the process.
//! The original and the restored process must read the same from them.

use super::shapes::must_capture;
use eyrie_image::Mode;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// What can be read from a descriptor now.
fn there(fd: RawFd) -> String {
    // SAFETY: the calls take an open descriptor and a local buffer with its length.
    unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK);
        let mut all = Vec::new();
        let mut part = [0u8; 4096];
        let end = loop {
            match libc::read(fd, part.as_mut_ptr().cast(), part.len()) {
                0 => break "the end",
                n if n > 0 => all.extend_from_slice(&part[..n as usize]),
                _ => break "no more",
            }
        };
        libc::fcntl(fd, libc::F_SETFL, flags);
        let sum = all.iter().fold(7u64, |s, b| s.rotate_left(5) ^ u64::from(*b));
        let front = String::from_utf8_lossy(&all[..all.len().min(40)]);
        format!("{} bytes {sum:x} {front:?}, {end}, flags {flags:o}", all.len())
    }
}

fn pipe(flags: i32) -> (File, File) {
    let mut ends = [0; 2];
    // SAFETY: the kernel writes two descriptors into `ends`; nothing else owns them.
    unsafe {
        assert_eq!(libc::pipe2(ends.as_mut_ptr(), flags), 0);
        (File::from_raw_fd(ends[0]), File::from_raw_fd(ends[1]))
    }
}

fn file(fd: i32) -> File {
    assert!(fd >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: callers pass a new descriptor that nothing else owns.
    unsafe { File::from_raw_fd(fd) }
}

fn watch(epoll: &File, fd: RawFd, events: i32, data: u64) {
    let mut event = libc::epoll_event { events: events as u32, u64: data };
    // SAFETY: the kernel reads one event, a local variable.
    let added = unsafe { libc::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &mut event) };
    assert_eq!(added, 0);
}

/// The events that an epoll instance reports within some time: (data, events).
fn reported(epoll: &File, timeout_ms: i32) -> Vec<(u64, u32)> {
    // SAFETY: an all-zero event is valid, and the kernel writes at most sixteen.
    unsafe {
        let mut events: [libc::epoll_event; 16] = std::mem::zeroed();
        let n = libc::epoll_wait(epoll.as_raw_fd(), events.as_mut_ptr(), 16, timeout_ms);
        let mut all: Vec<_> =
            events[..n.max(0) as usize].iter().map(|e| (e.u64, e.events)).collect();
        all.sort_unstable();
        all
    }
}

fn timer(clock: i32, first_ns: i64, every_ns: i64) -> File {
    // SAFETY: the calls take a new descriptor and a local structure.
    unsafe {
        let made = file(libc::timerfd_create(clock, libc::TFD_NONBLOCK));
        let time = |ns| libc::timespec { tv_sec: ns / 1_000_000_000, tv_nsec: ns % 1_000_000_000 };
        let when = libc::itimerspec { it_interval: time(every_ns), it_value: time(first_ns) };
        let fd = made.as_raw_fd();
        assert_eq!(libc::timerfd_settime(fd, 0, &when, std::ptr::null_mut()), 0);
        made
    }
}

/// Waits until a timer has expired, and returns how often it has.
fn expired(timer: &File) -> u64 {
    let mut poll = libc::pollfd { fd: timer.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry is passed, as the count says.
    assert_eq!(unsafe { libc::poll(&mut poll, 1, 20_000) }, 1, "a timer does not expire");
    let mut count = [0; 8];
    (&*timer).read_exact(&mut count).unwrap();
    u64::from_ne_bytes(count)
}

fn signals_of(signal: i32) -> File {
    // SAFETY: the calls access a local signal set. The signal is blocked, so that it is read and
    // not delivered.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, signal);
        libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
        let made = file(libc::signalfd(-1, &set, libc::SFD_NONBLOCK | libc::SFD_CLOEXEC));
        libc::raise(signal);
        made
    }
}

/// The watched paths, in any order. A capture asks for them.
static WATCHED: OnceLock<Vec<CString>> = OnceLock::new();

pub fn watched(number: usize) -> Option<&'static CStr> {
    WATCHED.get()?.get(number).map(CString::as_c_str)
}

fn watch_path(notices: &File, path: &Path, events: u32) -> i32 {
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: the path is a C string that outlives the call.
    unsafe { libc::inotify_add_watch(notices.as_raw_fd(), path.as_ptr(), events) }
}

/// Makes three directories and an instance that watches two of them, by numbers other than the
/// lowest.
fn notices(dir: &Path) -> (File, [PathBuf; 3]) {
    let dirs = ["first", "second", "third"].map(|name| dir.join(name));
    for dir in &dirs {
        std::fs::create_dir(dir).unwrap();
    }
    // SAFETY: inotify_init1 takes a number and returns a new descriptor.
    let notices = file(unsafe { libc::inotify_init1(libc::IN_NONBLOCK) });
    let numbers = dirs.each_ref().map(|dir| watch_path(&notices, dir, libc::IN_CREATE));
    let events = libc::IN_DELETE | libc::IN_CREATE | libc::IN_ONLYDIR;
    assert_eq!(watch_path(&notices, &dirs[2], events), numbers[2]);
    // SAFETY: the call takes a descriptor and a number.
    unsafe { libc::inotify_rm_watch(notices.as_raw_fd(), numbers[0]) };
    let told = there(notices.as_raw_fd());
    assert!(told.starts_with("16 bytes"), "{told}");
    let c_string = |dir: &PathBuf| CString::new(dir.as_os_str().as_bytes()).unwrap();
    WATCHED.set(dirs.iter().rev().map(c_string).collect()).unwrap();
    (notices, dirs)
}

/// The events that an instance reports when a file is created and removed in each of the
/// directories: (number, events).
fn noticed(notices: &File, dirs: &[PathBuf]) -> Vec<(i32, u32)> {
    for dir in dirs {
        File::create(dir.join("file")).unwrap();
        std::fs::remove_file(dir.join("file")).unwrap();
    }
    let mut room = [0u8; 4096];
    let len = (&*notices).read(&mut room).unwrap_or(0);
    let word = |at: usize| u32::from_ne_bytes(room[at..at + 4].try_into().unwrap());
    let mut all = Vec::new();
    let mut at = 0;
    while at < len {
        all.push((word(at) as i32, word(at + 4)));
        at += 16 + word(at + 12) as usize;
    }
    all
}

pub fn of_every_kind(mode: Mode, dir: &Path) {
    let (notices, dirs) = notices(dir);
    let (read, mut write) = pipe(libc::O_CLOEXEC);
    let write_twin = write.try_clone().unwrap();
    // SAFETY: the call takes a descriptor and numbers.
    unsafe { libc::fcntl(write.as_raw_fd(), libc::F_SETPIPE_SZ, 8192) };
    write.write_all(b"in the pipe").unwrap();
    let (full, mut fill) = pipe(libc::O_NONBLOCK);
    while fill.write(&[b'f'; 1000]).is_ok() {}
    let (left, mut closed) = pipe(0);
    closed.write_all(b"left behind").unwrap();
    drop(closed);
    let (reader_gone, unread) = pipe(0);
    drop(reader_gone);
    let (mut near, mut far) = UnixStream::pair().unwrap();
    near.write_all(b"to the far end").unwrap();
    far.write_all(&[b'n'; 100_000]).unwrap();
    far.shutdown(std::net::Shutdown::Write).unwrap();
    let (one, other) = UnixDatagram::pair().unwrap();
    let (orphan, gone) = UnixStream::pair().unwrap();
    drop(gone);
    // SAFETY: the calls take numbers and return new descriptors, or fail and the assertions say so.
    let (counter, outer, inner) = unsafe {
        let epoll = || file(libc::epoll_create1(libc::EPOLL_CLOEXEC));
        (file(libc::eventfd(3, libc::EFD_SEMAPHORE)), epoll(), epoll())
    };
    let soon = timer(libc::CLOCK_MONOTONIC, 30_000_000, 0);
    let over = timer(libc::CLOCK_REALTIME, 1, 0);
    let often = timer(libc::CLOCK_BOOTTIME, 10_000_000, 10_000_000_000);
    let never = timer(libc::CLOCK_MONOTONIC, 0, 0);
    let signals = signals_of(libc::SIGUSR1);
    watch(&inner, counter.as_raw_fd(), libc::EPOLLIN | libc::EPOLLET, 1);
    watch(&inner, read.as_raw_fd(), libc::EPOLLIN, u64::MAX - 1);
    watch(&outer, inner.as_raw_fd(), libc::EPOLLIN, 3);
    watch(&outer, left.as_raw_fd(), libc::EPOLLIN, 4);
    watch(&outer, near.as_raw_fd(), libc::EPOLLIN | libc::EPOLLRDHUP, 5);
    watch(&outer, never.as_raw_fd(), libc::EPOLLIN, 6);
    watch(&outer, signals.as_raw_fd(), libc::EPOLLIN, 7);
    watch(&outer, fill.as_raw_fd(), libc::EPOLLOUT, 8);
    let mut poll = libc::pollfd { fd: over.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry is passed, as the count says.
    assert_eq!(unsafe { libc::poll(&mut poll, 1, 20_000) }, 1);

    watch(&outer, notices.as_raw_fd(), libc::EPOLLIN, 9);

    must_capture(mode);

    println!("notices {:x?}", noticed(&notices, &dirs));
    println!("number {}", watch_path(&notices, &dirs[0], libc::IN_CREATE));
    println!("outer {:x?}", reported(&outer, 0));
    println!("inner {:x?}", reported(&inner, 0));
    write.write_all(b", and more").unwrap();
    (&write_twin).write_all(b" from its twin").unwrap();
    // SAFETY: the call takes a descriptor and numbers.
    println!("room {}", unsafe { libc::fcntl(read.as_raw_fd(), libc::F_GETPIPE_SZ) });
    println!("pipe {}", there(read.as_raw_fd()));
    println!("full {}", there(full.as_raw_fd()));
    println!("left {}", there(left.as_raw_fd()));
    println!("reader gone {:?}", (&unread).write(b"x").map_err(|e| e.kind()));
    println!("outer {:x?}", reported(&outer, 0));
    println!("near {}", there(near.as_raw_fd()));
    println!("far {}", there(far.as_raw_fd()));
    println!("shut {:?}", far.write(b"x").map_err(|e| e.kind()));
    near.write_all(b"once more").unwrap();
    println!("far {}", there(far.as_raw_fd()));
    one.send(b"a datagram").unwrap();
    println!("datagram {}", there(other.as_raw_fd()));
    println!("orphan {}", there(orphan.as_raw_fd()));
    println!("counter {}", there(counter.as_raw_fd()));
    println!("timers {} {} {}", expired(&soon), expired(&over), expired(&often));
    println!("never {}", there(never.as_raw_fd()));
    // SAFETY: the signal is blocked, so no handler runs.
    unsafe { libc::raise(libc::SIGUSR1) };
    let mut info = [0u8; 128];
    (&signals).read_exact(&mut info).unwrap();
    println!("signal {}", info[0]);
    drop((write, write_twin));
    println!("inner {:x?}", reported(&inner, 0));
    println!("pipe {}", there(read.as_raw_fd()));
}

/// Gets the process into a state that cannot be captured. Returns false when it is not one of
/// these.
pub fn refused(what: &str, dir: &Path, keep: &mut Vec<File>) -> bool {
    // SAFETY: the calls take new descriptors, numbers and complete messages in local variables.
    unsafe {
        match what {
            "pipe" => {
                // The other end belongs to a process that is not a child.
                let (read, write) = pipe(0);
                let child = libc::fork();
                if child == 0 {
                    if libc::fork() != 0 {
                        libc::_exit(0);
                    }
                    drop(read);
                    // Until the target has ended; its output must not stay open here.
                    libc::close_range(0, 2, 0);
                    let mut poll = libc::pollfd { fd: write.as_raw_fd(), events: 0, revents: 0 };
                    libc::poll(&mut poll, 1, 20_000);
                    libc::_exit(0);
                }
                libc::waitpid(child, std::ptr::null_mut(), 0);
                keep.push(read);
                drop(write);
            }
            "epoll" => {
                let epoll = file(libc::epoll_create1(0));
                let watched = file(libc::eventfd(0, 0));
                watch(&epoll, watched.as_raw_fd(), libc::EPOLLIN, 0);
                // Another descriptor of the file stays open, so that it is still watched.
                keep.extend([watched.try_clone().unwrap(), epoll]);
                drop(watched);
            }
            "notices" | "unread notices" => {
                let notices = file(libc::inotify_init1(libc::IN_NONBLOCK));
                assert!(watch_path(&notices, dir, libc::IN_CREATE) > 0);
                if what == "unread notices" {
                    File::create(dir.join("file")).unwrap();
                }
                keep.push(notices);
            }
            "datagrams" => {
                let (one, other) = UnixDatagram::pair().unwrap();
                one.send(b"unread").unwrap();
                keep.extend([one, other].map(|s| File::from(std::os::fd::OwnedFd::from(s))));
            }
            "passing" => {
                let (one, other) = UnixStream::pair().unwrap();
                let mut control = [0u64; 3];
                let mut byte = *b"x";
                let header = control.as_mut_ptr().cast::<libc::cmsghdr>();
                (*header).cmsg_len = libc::CMSG_LEN(4) as usize;
                (*header).cmsg_level = libc::SOL_SOCKET;
                (*header).cmsg_type = libc::SCM_RIGHTS;
                libc::CMSG_DATA(header).cast::<i32>().write(1);
                let mut piece = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
                let mut message: libc::msghdr = std::mem::zeroed();
                (message.msg_iov, message.msg_iovlen) = (&mut piece, 1);
                message.msg_control = control.as_mut_ptr().cast();
                message.msg_controllen = libc::CMSG_SPACE(4) as usize;
                assert_eq!(libc::sendmsg(one.as_raw_fd(), &message, 0), 1);
                keep.extend([one, other].map(|s| File::from(std::os::fd::OwnedFd::from(s))));
            }
            _ => return false,
        }
    }
    true
}
