//! Descriptors that are not files: pipes and socket pairs within the process, with the bytes in
//! them, and descriptors that wait for events (epoll, timerfd, signalfd, eventfd, inotify). Only
//! looks: bytes are copied, never taken.

use super::proc::{read_file, PathBuf};
use super::scratch::Scratch;
use crate::refusal::Refusal;
use core::ffi::CStr;
use eyrie_image_format::{
    bytes_of, fd_kind, Descriptor, Socket, TimerState, Watch, WatchedPath, CONTENT_MAX,
};
use eyrie_image_kernel::maps;
use eyrie_image_kernel::sys::{self, nr};

/// A Unix socket that is not one end of a pair within the process.
pub const UNIX: &str = "a Unix socket";

/// Why a descriptor cannot be restored, in words, or the step that the kernel refused.
pub enum No {
    What(&'static str),
    Kernel(&'static str, i32),
}

/// The kernel's information about a descriptor (/proc/self/fdinfo), in a buffer.
pub struct Info<'a>(&'a [u8]);

impl<'a> Info<'a> {
    pub fn read(fd: i32, room: &'a mut [u8]) -> Result<Info<'a>, No> {
        let path = PathBuf::new(b"/proc/thread-self/fdinfo/", fd as u64, b"");
        let step = "looking at a descriptor";
        let len = read_file(path.as_c(), room).map_err(|errno| No::Kernel(step, errno))?;
        if len == room.len() {
            return Err(No::Kernel(step, sys::ENOMEM));
        }
        Ok(Info(&room[..len]))
    }

    fn lines(&self) -> impl Iterator<Item = &'a [u8]> {
        self.0.split(|b| *b == b'\n')
    }

    /// The text after `name`, without the space in front of it.
    fn field(&self, name: &[u8]) -> Option<&'a [u8]> {
        self.lines().find_map(|line| line.strip_prefix(name)).map(<[u8]>::trim_ascii_start)
    }

    fn number(&self, name: &[u8]) -> Option<u64> {
        self.field(name).and_then(maps::decimal).map(|(n, _)| n)
    }

    /// Reads `(seconds, nanoseconds)`.
    fn time(&self, name: &[u8]) -> Option<[u64; 2]> {
        let (seconds, rest) = maps::decimal(self.field(name)?.strip_prefix(b"(")?)?;
        let (ns, _) = maps::decimal(rest.strip_prefix(b",")?.trim_ascii_start())?;
        Some([seconds, ns])
    }
}

const UNKNOWN: No = No::What("a descriptor of a kind that cannot be restored");

/// An eventfd with its counter and flags.
pub fn event_counter(record: &mut Descriptor, info: &Info) {
    record.kind = fd_kind::EVENT;
    // The counter is printed in hexadecimal.
    record.offset = info.field(b"eventfd-count:").and_then(maps::hex).map_or(0, |(n, _)| n);
    // EFD_SEMAPHORE is 1.
    record.arg = u32::from(info.number(b"eventfd-semaphore:") == Some(1));
}

/// A signalfd with its signals.
pub fn signals(record: &mut Descriptor, info: &Info) -> Result<(), No> {
    record.kind = fd_kind::SIGNALS;
    record.size = info.field(b"sigmask:").and_then(maps::hex).ok_or(UNKNOWN)?.0;
    Ok(())
}

/// A timerfd with its remaining time.
pub fn timer(record: &mut Descriptor, info: &Info) -> Result<TimerState, No> {
    record.kind = fd_kind::TIMER;
    let state = || {
        Some(TimerState {
            clock: info.number(b"clockid:")?,
            ticks: info.number(b"ticks:")?,
            value: info.time(b"it_value:")?,
            interval: info.time(b"it_interval:")?,
        })
    };
    state().ok_or(UNKNOWN)
}

/// Calls `each` with everything that an epoll instance watches.
pub fn watches(
    record: &mut Descriptor,
    info: &Info,
    mut each: impl FnMut(Watch) -> Result<(), Refusal>,
) -> Result<Result<(), Refusal>, No> {
    record.kind = fd_kind::EPOLL;
    for (i, line) in info.lines().enumerate() {
        let Some(watch) = line.strip_prefix(b"tfd:") else { continue };
        let watch = parse_watch(watch).ok_or(UNKNOWN)?;
        let earlier = info.lines().take(i).filter_map(|l| parse_watch(l.strip_prefix(b"tfd:")?));
        let turn = earlier.filter(|e| e.fd == watch.fd).count();
        if !watches_open_file(record.fd, watch.fd, turn) {
            return Err(No::What("an epoll instance that watches a descriptor closed since"));
        }
        if let Err(refusal) = each(watch) {
            return Ok(Err(refusal));
        }
    }
    Ok(Ok(()))
}

/// Reads `        5 events:       19 data:         ffffffff  pos:0 ino:61af sdev:7`.
fn parse_watch(line: &[u8]) -> Option<Watch> {
    let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let (fd, _) = maps::decimal(words.next()?)?;
    let mut number = |name: &[u8]| {
        let word = words.next()?.strip_prefix(name)?;
        let word = if word.is_empty() { words.next()? } else { word };
        Some(maps::hex(word)?.0)
    };
    let events = number(b"events:")?;
    let data = number(b"data:")?;
    Some(Watch { fd: fd as i32, events: events as u32, data })
}

/// Whether the open file that an epoll instance watches by this number, the `turn`th of them, is
/// the one that is open with that number now.
fn watches_open_file(epoll: i32, fd: i32, turn: usize) -> bool {
    const KCMP_EPOLL_TFD: usize = 7;
    let slot = [epoll as u32, fd as u32, turn as u32];
    let me = sys::gettid() as usize;
    let at = slot.as_ptr() as usize;
    // SAFETY: the kernel reads struct kcmp_epoll_slot, three words, from a local variable.
    let same = unsafe { sys::call6(nr::KCMP, me, me, KCMP_EPOLL_TFD, fd as usize, at, 0) };
    match same {
        Ok(order) => order == 0,
        Err(sys::EBADF | sys::ENOENT) => false,
        // The kernel cannot compare them: then any open file with that number must do.
        Err(_) => sys::fcntl(fd, sys::F_GETFD, 0).is_ok(),
    }
}

/// Returns the n-th path that the process has watched.
pub type WatchedPaths = fn(usize) -> Option<&'static CStr>;

/// An inotify instance with everything that it watches, by paths that the process has watched.
///
/// # Safety
/// The result must not outlive the scratch.
pub unsafe fn notices(
    record: &mut Descriptor,
    info: &Info,
    paths: Option<WatchedPaths>,
    scratch: &mut Scratch,
) -> Result<Result<&'static [u8], Refusal>, No> {
    if unread(record.fd)? > 0 {
        return Err(No::What("an inotify instance with unread events"));
    }
    record.kind = fd_kind::INOTIFY;
    let found = || {
        info.lines().filter_map(|line| line.strip_prefix(b"inotify wd:")).map(|line| {
            let watched = parse_inotify(line).ok_or(UNKNOWN)?;
            let path = watched.path(paths).ok_or(NAMELESS)?;
            let path_len = path.to_bytes_with_nul().len() as u32;
            Ok((WatchedPath { watch: watched.watch, events: watched.events, path_len }, path))
        })
    };
    let len = |watched: &WatchedPath| size_of::<WatchedPath>() + watched.path_len as usize;
    let mut all = 0;
    for watched in found() {
        all += len(&watched?.0);
    }
    if all > CONTENT_MAX {
        return Err(No::What("an inotify instance that watches very many files"));
    }
    // SAFETY: the caller does not use the result after the scratch is released.
    let room = match unsafe { scratch.take::<u8>(all) } {
        Ok(room) => room,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let mut at = 0;
    for (watched, path) in found().flatten() {
        let (front, rest) = room[at..][..len(&watched)].split_at_mut(size_of::<WatchedPath>());
        front.copy_from_slice(bytes_of(&watched));
        rest.copy_from_slice(path.to_bytes_with_nul());
        at += len(&watched);
    }
    Ok(Ok(room))
}

const NAMELESS: No = No::What(
    "an inotify instance that watches a file of which no path is known (renamed since, or watched \
     past the C library)",
);

/// The kernel's information about a file that an inotify instance watches.
#[derive(Debug, PartialEq, Eq)]
struct Watched {
    watch: u32,
    ino: u64,
    /// In the form of stat(2).
    dev: u64,
    events: u32,
}

impl Watched {
    /// The path that leads to it, out of those that the process has watched.
    fn path(&self, paths: Option<WatchedPaths>) -> Option<&'static CStr> {
        let paths = paths?;
        let mut all = (0..).map_while(paths);
        all.find(|path| {
            sys::stat(path.to_bytes_with_nul()).is_ok_and(|st| {
                // File systems without a device of their own report several numbers.
                let same_device = st.dev == self.dev || major(st.dev) == 0 && major(self.dev) == 0;
                st.ino == self.ino && same_device
            })
        })
    }
}

/// The major number of a device in the form of stat(2).
fn major(dev: u64) -> u64 {
    dev >> 8 & 0xfff
}

/// Reads `1 ino:2c01 sdev:fe00001 mask:3c0 ignored_mask:0 fhandle-bytes:8 ...`.
fn parse_inotify(line: &[u8]) -> Option<Watched> {
    // What a program can ask for: the events, IN_EXCL_UNLINK, IN_ONESHOT.
    const ASKED: u32 = 0xfff | 1 << 26 | 1 << 31;
    let mut words = line.split(u8::is_ascii_whitespace);
    let (watch, _) = maps::hex(words.next()?)?;
    let mut number = |name: &[u8]| Some(maps::hex(words.next()?.strip_prefix(name)?)?.0);
    let ino = number(b"ino:")?;
    let sdev = number(b"sdev:")?;
    let mask = number(b"mask:")?;
    // The kernel's own form has 20 bits for the minor number.
    let major = sdev >> 20;
    let minor = sdev & 0xf_ffff;
    let dev = minor & 0xff | major << 8 | (minor & !0xff) << 12;
    Some(Watched { watch: watch as u32, ino, dev, events: mask as u32 & ASKED })
}

/// The poll(2) events that a descriptor has now.
fn polled(fd: i32) -> u64 {
    let mut poll = fd as u32 as u64;
    // SAFETY: struct pollfd is one word, a local variable; the timeout is 0.
    let _ = unsafe { sys::call3(nr::POLL, &raw mut poll as usize, 1, 0) };
    poll >> 48
}

const POLLERR: u64 = 8;
const POLLHUP: u64 = 16;

/// How many bytes can be read from a pipe or a socket.
fn unread(fd: i32) -> Result<usize, No> {
    const FIONREAD: usize = 0x541b;
    let mut count = 0u32;
    // SAFETY: the kernel writes one number into `count`.
    let asked = unsafe { sys::call3(nr::IOCTL, fd as usize, FIONREAD, &raw mut count as usize) };
    asked.map_err(|errno| No::Kernel("counting the bytes in a pipe or socket", errno))?;
    match count as usize {
        many if many > CONTENT_MAX => Err(No::What("a pipe or socket with very many bytes in it")),
        few => Ok(few),
    }
}

/// An end of a pipe, with the bytes in it if they can be read here. Whether the process also has
/// the other end is known only after all descriptors.
///
/// # Safety
/// The result must not outlive the scratch.
pub unsafe fn pipe(
    record: &mut Descriptor,
    scratch: &mut Scratch,
) -> Result<Result<&'static [u8], Refusal>, No> {
    const O_DIRECT: u32 = 0o40000;
    if record.open_flags & O_DIRECT != 0 {
        return Err(No::What("a pipe of packets (O_DIRECT)"));
    }
    let kernel = |errno| No::Kernel("looking at a pipe", errno);
    record.kind = fd_kind::PIPE;
    record.offset = sys::fcntl(record.fd, sys::F_GETPIPE_SZ, 0).map_err(kernel)? as u64;
    record.arg = u32::from(polled(record.fd) & (POLLERR | POLLHUP) != 0);
    if record.open_flags & sys::O_ACCMODE == sys::O_WRONLY {
        return Ok(Ok(&[]));
    }
    let len = unread(record.fd)?;
    // SAFETY: the caller does not use the result after the scratch is released.
    let room = match unsafe { scratch.take::<u8>(len) } {
        Ok(room) => room,
        Err(refusal) => return Ok(Err(refusal)),
    };
    copy_pipe(record.fd, record.offset as usize, room).map_err(kernel)?;
    Ok(Ok(room))
}

/// Copies the bytes in a pipe by way of another pipe (tee(2)), so that none are taken from it.
fn copy_pipe(fd: i32, capacity: usize, room: &mut [u8]) -> Result<(), i32> {
    const SPLICE_F_NONBLOCK: usize = 2;
    if room.is_empty() {
        return Ok(());
    }
    let mut ends = [-1i32; 2];
    let flags = (sys::O_CLOEXEC | sys::O_NONBLOCK) as usize;
    // SAFETY: the kernel writes two descriptors into `ends`.
    unsafe { sys::call3(nr::PIPE2, ends.as_mut_ptr() as usize, flags, 0)? };
    let copied = (|| {
        sys::fcntl(ends[1], sys::F_SETPIPE_SZ, capacity)?;
        let to = ends[1] as usize;
        let len = room.len();
        // SAFETY: the arguments are descriptors and numbers; the kernel accesses no memory.
        let len = unsafe { sys::call6(nr::TEE, fd as usize, to, len, SPLICE_F_NONBLOCK, 0, 0)? };
        let mut done = 0;
        while done < len.min(room.len()) {
            done += sys::read(ends[0], &mut room[done..])?;
        }
        if done == room.len() {
            Ok(())
        } else {
            Err(sys::EAGAIN)
        }
    })();
    for fd in ends {
        sys::close(fd);
    }
    copied
}

/// What is known of a Unix socket.
struct Known {
    kind: u32,
    peer: u32,
    shutdown: u32,
    named: bool,
}

/// A Unix socket without a name, with the unread bytes in it. Whether the process also has the
/// other end is known only after all descriptors.
///
/// # Safety
/// The result must not outlive the scratch.
pub unsafe fn socket(
    record: &mut Descriptor,
    scratch: &mut Scratch,
) -> Result<Result<&'static [u8], Refusal>, No> {
    const SOCK_STREAM: u32 = 1;
    const BOTH_WAYS: u32 = 3;
    let unix = No::What(UNIX);
    let Some(known) = ask_of_socket(record.identity.ino as u32).filter(|known| !known.named) else {
        return Err(unix);
    };
    let len = unread(record.fd)?;
    match (known.kind, known.peer, len) {
        // Its other end is closed. (poll(2) would say the same of a socket that was never
        // connected.)
        (_, 0, 0) if known.shutdown == BOTH_WAYS => {
            record.kind = fd_kind::DROPPED;
            return Ok(Ok(&[]));
        }
        (_, 0, _) => return Err(unix),
        (SOCK_STREAM, ..) | (_, _, 0) => {}
        _ => return Err(No::What("a socket pair with unread datagrams")),
    }
    record.kind = fd_kind::SOCKET;
    record.offset = known.peer.into();
    let option = |name: usize| number_option(record.fd, name);
    let state = Socket {
        kind: known.kind,
        shutdown: known.shutdown,
        send_room: option(SO_SNDBUF),
        receive_room: option(SO_RCVBUF),
    };
    // SAFETY: the caller does not use the result after the scratch is released.
    let room = match unsafe { scratch.take::<u8>(size_of::<Socket>() + len) } {
        Ok(room) => room,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let (front, bytes) = room.split_at_mut(size_of::<Socket>());
    front.copy_from_slice(eyrie_image_format::bytes_of(&state));
    peek_all(record.fd, bytes)?;
    Ok(Ok(room))
}

const SOL_SOCKET: usize = 1;
const SO_SNDBUF: usize = 7;
const SO_RCVBUF: usize = 8;
const SO_PEEK_OFF: usize = 42;

fn number_option(fd: i32, name: usize) -> u32 {
    let mut value = 0u32;
    let mut len = 4u32;
    let at = &raw mut value as usize;
    let len = &raw mut len as usize;
    // SAFETY: the kernel writes two words, local variables that outlive the call.
    let _ = unsafe { sys::call6(nr::GETSOCKOPT, fd as usize, SOL_SOCKET, name, at, len, 0) };
    value
}

fn set_option(fd: i32, name: usize, value: u32) -> Result<(), i32> {
    let at = &raw const value as usize;
    // SAFETY: the kernel reads one number of 4 bytes, a local variable.
    unsafe { sys::call6(nr::SETSOCKOPT, fd as usize, SOL_SOCKET, name, at, 4, 0).map(|_| ()) }
}

/// Copies the unread bytes of a stream socket. Descriptors that are passed with them cannot be
/// copied.
fn peek_all(fd: i32, room: &mut [u8]) -> Result<(), No> {
    if room.is_empty() {
        return Ok(());
    }
    let kernel = |errno| No::Kernel("looking into a socket", errno);
    let before = number_option(fd, SO_PEEK_OFF);
    set_option(fd, SO_PEEK_OFF, 0).map_err(kernel)?;
    let mut done = 0;
    let peeked = loop {
        if done == room.len() {
            break Ok(());
        }
        match peek(fd, &mut room[done..]) {
            Ok((0, _)) => break Err(kernel(sys::EAGAIN)),
            Ok((_, true)) => break Err(No::What("a socket pair with descriptors on their way")),
            Ok((n, _)) => done += n,
            Err(errno) => break Err(kernel(errno)),
        }
    };
    set_option(fd, SO_PEEK_OFF, before).map_err(kernel)?;
    peeked
}

/// Copies some of the unread bytes, and returns whether descriptors came with them.
fn peek(fd: i32, room: &mut [u8]) -> Result<(usize, bool), i32> {
    const MSG_PEEK_DONTWAIT: usize = 2 | 0x40;
    const MSG_CTRUNC: usize = 8;
    let piece = sys::IoVec { base: room.as_mut_ptr() as usize, len: room.len() };
    // struct msghdr: name, its length, pieces, their number, control, its length, flags.
    let mut message = [0usize; 7];
    (message[2], message[3]) = (&raw const piece as usize, 1);
    let at = message.as_mut_ptr() as usize;
    // SAFETY: the message describes `room`, which is writable for its length.
    let n = unsafe { sys::call3(nr::RECVMSG, fd as usize, at, MSG_PEEK_DONTWAIT)? };
    Ok((n, message[6] as u32 as usize & MSG_CTRUNC != 0))
}

/// Asks the kernel about a Unix socket (sock_diag(7)); `None` if it does not answer.
fn ask_of_socket(ino: u32) -> Option<Known> {
    const AF_NETLINK: usize = 16;
    const SOCK_RAW: usize = 3;
    const NETLINK_SOCK_DIAG: usize = 4;
    let kind = SOCK_RAW | sys::O_CLOEXEC as usize;
    // SAFETY: the arguments are numbers; the kernel accesses no memory.
    let fd = unsafe { sys::call3(nr::SOCKET, AF_NETLINK, kind, NETLINK_SOCK_DIAG) }.ok()? as i32;
    let known = ask_on(fd, ino);
    sys::close(fd);
    known
}

fn ask_on(fd: i32, ino: u32) -> Option<Known> {
    // struct nlmsghdr (length, SOCK_DIAG_BY_FAMILY with NLM_F_REQUEST, sequence, port), then struct
    // unix_diag_req (AF_UNIX, all states, inode, UDIAG_SHOW_NAME | UDIAG_SHOW_PEER, no cookie).
    let request = [40, 20 | 1 << 16, 0, 0, 1, u32::MAX, ino, 1 | 4, u32::MAX, u32::MAX];
    let mut bytes = [0u8; 40];
    for (to, word) in bytes.chunks_exact_mut(4).zip(request) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    sys::write(fd, &bytes).ok()?;
    let mut answer = [0u8; 1024];
    let len = sys::read(fd, &mut answer).ok()?;
    parse_answer(&answer[..len])
}

/// Reads struct nlmsghdr, struct unix_diag_msg (family, type, ...; 16 bytes) and the attributes.
fn parse_answer(answer: &[u8]) -> Option<Known> {
    const SOCK_DIAG_BY_FAMILY: u16 = 20;
    const NAME: u16 = 0;
    const PEER: u16 = 2;
    const SHUTDOWN: u16 = 6;
    let short = |at: usize| Some(u16::from_le_bytes(answer.get(at..at + 2)?.try_into().ok()?));
    if short(4)? != SOCK_DIAG_BY_FAMILY {
        return None;
    }
    let kind = u32::from(*answer.get(17)?);
    let mut known = Known { kind, peer: 0, shutdown: 0, named: false };
    let mut at = 32;
    while let (Some(len), Some(name)) = (short(at), short(at + 2)) {
        let value = answer.get(at + 4..at + usize::from(len).max(4))?;
        match name {
            NAME => known.named = true,
            PEER => known.peer = u32::from_le_bytes(value.get(..4)?.try_into().ok()?),
            SHUTDOWN => known.shutdown = u32::from(*value.first()?),
            _ => {}
        }
        at += usize::from(len).max(4).next_multiple_of(4);
    }
    Some(known)
}

/// Whether both ends of a pipe or a socket pair are in the process, or its other end is closed.
pub fn is_within(record: &Descriptor, all: impl Iterator<Item = Descriptor>) -> bool {
    let access = |d: &Descriptor| d.open_flags & sys::O_ACCMODE;
    let mut others = all.filter(|other| other.kind == record.kind && other.fd != record.fd);
    match record.kind {
        fd_kind::PIPE => {
            let other_end = |other: Descriptor| {
                other.identity == record.identity && access(&other) != access(record)
            };
            record.arg == 1 || access(record) == sys::O_RDWR || others.any(other_end)
        }
        fd_kind::SOCKET => others.any(|other| other.identity.ino == record.offset),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_information_about_descriptors_is_parsed() {
        let line = b"        5 events:       19 data:         ffffffff  pos:0 ino:61af sdev:7";
        let watch = parse_watch(line).unwrap();
        assert_eq!((watch.fd, watch.events, watch.data), (5, 0x19, 0xffff_ffff));
        assert!(parse_watch(b" x events: 19").is_none() && parse_watch(b"").is_none());
        let line = b"1f ino:2c01 sdev:fe00101 mask:800003c0 ignored_mask:0 fhandle-bytes:8";
        let watched = Watched { watch: 0x1f, ino: 0x2c01, dev: 0x10fe01, events: 0x8000_03c0 };
        assert_eq!(parse_inotify(line), Some(watched));
        assert!(parse_inotify(b"1 ino:2c01 mask:1").is_none());
        let text = b"clockid: 1\nticks: 3\nsettime flags: 01\n\
                     it_value: (7, 49406829)\nit_interval: (1, 0)\n";
        let info = Info(text);
        assert_eq!(info.time(b"it_value:"), Some([7, 49_406_829]));
        assert_eq!((info.number(b"ticks:"), info.number(b"none:")), (Some(3), None));
    }

    #[test]
    fn a_socket_pair_is_distinguished_from_a_socket_with_a_name() {
        use std::os::fd::AsRawFd;
        use std::os::unix::net::{UnixListener, UnixStream};
        let ino = |fd: i32| sys::fstat(fd).unwrap().ino as u32;
        let (a, b) = UnixStream::pair().unwrap();
        let known = ask_of_socket(ino(a.as_raw_fd())).unwrap();
        assert_eq!((known.peer, known.kind, known.named), (ino(b.as_raw_fd()), 1, false));
        let dir = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(dir.path().join("socket")).unwrap();
        let known = ask_of_socket(ino(listener.as_raw_fd())).unwrap();
        assert!(known.named && known.peer == 0);
    }
}
