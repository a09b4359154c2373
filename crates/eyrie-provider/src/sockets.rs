//! The real world around the core: sockets to the routers, files that come over them, the
//! processor's clock. All of it must work on descriptors that a restored process finds dead.

use crate::core::asking::Asked;
use crate::core::router_path::host::{ConnectError, File, Host, Interest, RouterStream};
use crate::core::world::World;
use crate::descriptors::{move_up, receive_message};
use crate::ending::fatal;
use crate::identity::Identity;
use crate::windows::Ledger;
use crate::{memory, observing};
use eyrie_transport::handshake::HandshakeError;
use eyrie_transport::role;
use eyrie_transport::seal::Sealed;
use eyrie_wire::control::Claim;
use eyrie_wire::directory::KeptUntil;
use eyrie_wire::page::{Record, What};
use eyrie_wire::{data, RouterId};
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

/// Longest single wait of a receive that may wait.
const RECEIVE_WAIT: Duration = Duration::from_millis(1);
/// Buffer asked of the kernel for a stream, in bytes.
const SOCKET_BUFFER: i32 = 1 << 20;

/// This process.
pub struct Sockets {
    pub identity: Identity,
    begun: Instant,
    /// The time stamp counter as it was last read.
    last_ticks: std::cell::Cell<u64>,
    /// What the program observes again: libeyrie-calls reads it here.
    again: Vec<u8>,
    /// The ledgers of this host, where messages go straight.
    pub ledger: Ledger,
}

impl Sockets {
    pub fn new(identity: Identity) -> Sockets {
        Sockets {
            identity,
            begun: Instant::now(),
            last_ticks: 0.into(),
            again: Vec::new(),
            ledger: Ledger::default(),
        }
    }
}

/// A connection to a router.
pub struct Socket {
    fd: OwnedFd,
    passes_files: bool,
    /// What seals and opens all that goes over it, between hosts. Its keys die with the connection:
    /// a restored rank agrees on new ones.
    sealed: Option<Box<Sealed>>,
}

/// A file that came over a connection.
pub struct Passed(OwnedFd);

fn set_option<T>(fd: &OwnedFd, option: i32, value: &T) {
    // SAFETY: the option takes such a value, whose address and size are given. Failure costs speed
    // only.
    unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            (&raw const *value).cast(),
            size_of::<T>() as u32,
        )
    };
}

impl Host for Sockets {
    type File = Passed;
    type RouterStream = Socket;

    fn connect(
        &mut self,
        router: RouterId,
        stream: data::StreamKind,
    ) -> Result<Socket, ConnectError> {
        let Identity { instance, directory, .. } = &self.identity;
        let addr = directory.routers.get(router.index());
        let addr = addr.ok_or_else(|| ConnectError::Refused(format!("no router {router}")))?;
        let claim = Claim::Rank { instance: *instance, stream };
        let secret = eyrie_wire::auth::Secret(memory::page().secret());
        let socket = role::connect(addr, &secret, &claim).map_err(|e| match e {
            HandshakeError::Io(e) => ConnectError::Unreachable(e),
            HandshakeError::Silent => ConnectError::Unreachable(ErrorKind::ConnectionReset.into()),
            HandshakeError::Secret => ConnectError::Secret,
            other => ConnectError::Refused(other.to_string()),
        })?;
        let passes_files = socket.passes_files();
        let (fd, sealed) = socket.into_parts();
        let fd = move_up(fd);
        let sealed = sealed.map(Box::new);
        for option in [libc::SO_SNDBUF, libc::SO_RCVBUF] {
            set_option(&fd, option, &SOCKET_BUFFER);
        }
        let tv_usec = RECEIVE_WAIT.as_micros() as i64;
        set_option(&fd, libc::SO_RCVTIMEO, &libc::timeval { tv_sec: 0, tv_usec });
        Ok(Socket { fd, passes_files, sealed })
    }

    fn primary_router(&self, rank: eyrie_wire::Rank) -> RouterId {
        self.identity.directory.primary(rank)
    }

    fn routers(&self) -> u32 {
        self.identity.directory.routers.len() as u32
    }

    fn kept_until(&self) -> KeptUntil {
        self.identity.directory.kept_until
    }

    fn is_gateway(&self, router: RouterId) -> bool {
        self.identity.directory.gateway == Some(router)
    }

    fn is_beside(&self, router: RouterId) -> bool {
        self.identity.directory.beside.contains(&router)
    }

    #[inline]
    fn changed_routers(&mut self) -> Vec<RouterId> {
        if memory::page().directory() == self.identity.directory.epoch {
            return Vec::new();
        }
        self.identity.take_directory()
    }

    fn wait<'a>(
        &mut self,
        streams: impl Iterator<Item = (&'a Socket, Interest)>,
        timeout: Duration,
    ) {
        let polled = |(stream, interest): (&Socket, Interest)| {
            let events = match interest {
                Interest::Read => libc::POLLIN,
                Interest::Write => libc::POLLOUT | libc::POLLIN,
            };
            libc::pollfd { fd: stream.fd.as_raw_fd(), events, revents: 0 }
        };
        let mut polled: Vec<libc::pollfd> = streams.map(polled).collect();
        let count = polled.len() as libc::nfds_t;
        // SAFETY: so many, which live through the call.
        unsafe { libc::poll(polled.as_mut_ptr(), count, timeout.as_millis() as i32) };
    }

    fn pause(&mut self, time: Duration) {
        std::thread::sleep(time);
    }
}

impl World for Sockets {
    #[inline]
    fn signal(&mut self, clock: u64, is_new: bool) -> Option<i32> {
        self.identity.signals.at(clock, is_new)
    }

    fn take_observed(&mut self, take: &mut dyn FnMut(u64, &[u8])) {
        observing::take(take);
    }

    fn observed(&self) -> u64 {
        observing::passed()
    }

    fn observed_waiting(&self) -> usize {
        observing::waiting()
    }

    fn observe_again(&mut self, bytes: Vec<u8>) {
        // SAFETY: the bytes stay until others take their place there, too.
        unsafe { observing::again(&bytes) };
        self.again = bytes;
    }

    fn skip_observed(&mut self, to: u64) {
        observing::skip(to);
    }

    #[inline]
    fn before_new(&mut self) {
        observing::new();
    }

    fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    fn ticks(&self) -> u64 {
        // SAFETY: reads the time stamp counter.
        let ticks = unsafe { std::arch::x86_64::_rdtsc() };
        self.last_ticks.set(ticks);
        ticks
    }

    fn processor_time_ns(&self) -> u64 {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the kernel writes the time.
        unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
        time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
    }

    #[inline]
    fn asked(&mut self, asked: Asked) {
        memory::page().add_asked(asked.polled, asked.waited);
    }

    #[inline]
    fn trace(&mut self, what: What, clock: u64, peer: u32, number: u64) {
        let time = self.last_ticks.get();
        memory::page().add(Record { time, clock, number, peer, what: what as u32 });
    }
}

impl RouterStream for Socket {
    type File = Passed;

    fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.sealed {
            None => send(&self.fd, bytes),
            Some(sealed) => sealed.sealing.write(bytes, |bytes| send(&self.fd, bytes)),
        }
    }

    fn receive(
        &mut self,
        into: &mut [u8],
        wait: bool,
        files: &mut dyn FnMut(Passed),
    ) -> io::Result<Option<usize>> {
        let Some(sealed) = &mut self.sealed else { return receive(&self.fd, into, wait, files) };
        let receive = |into: &mut [u8]| {
            let received = receive(&self.fd, into, wait, &mut *files)?;
            received.ok_or_else(|| ErrorKind::WouldBlock.into())
        };
        match sealed.opening.read(into, receive) {
            Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
            Err(e) if e.kind() == ErrorKind::WouldBlock => Ok(None),
            read => read.map(Some),
        }
    }

    fn passes_files(&self) -> bool {
        self.passes_files
    }

    fn descriptor(&self) -> Option<RawFd> {
        Some(self.fd.as_raw_fd())
    }
}

/// Gives the kernel what it takes at once.
fn send(fd: &OwnedFd, bytes: &[u8]) -> io::Result<usize> {
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    // SAFETY: the buffer is as long as said.
    let n = unsafe { libc::send(fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags) };
    if n < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(n as usize)
}

/// Takes what the kernel has, and the files that came with it. `None`: it has nothing.
fn receive(
    fd: &OwnedFd,
    into: &mut [u8],
    wait: bool,
    files: &mut dyn FnMut(Passed),
) -> io::Result<Option<usize>> {
    receive_message(fd.as_raw_fd(), into, wait, &mut |fd| files(Passed(move_up(fd))))
}

impl File for Passed {
    unsafe fn read_to(&self, offset: u64, to: *mut u8, len: usize) -> io::Result<()> {
        let mut done = 0;
        while done < len {
            let at = (offset as usize + done) as libc::off_t;
            // SAFETY: the caller vouches for `len` bytes at `to`, of which `done` are written.
            let n = unsafe { libc::pread(self.0.as_raw_fd(), to.add(done).cast(), len - done, at) };
            match n {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                n if n > 0 => done += n as usize,
                _ => again_if_interrupted()?,
            }
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let _lifted = AnySize::up_to(offset + bytes.len() as u64);
        let mut done = 0;
        while done < bytes.len() {
            let rest = &bytes[done..];
            let at = (offset as usize + done) as libc::off_t;
            // SAFETY: reads from the rest of `bytes`.
            let n =
                unsafe { libc::pwrite(self.0.as_raw_fd(), rest.as_ptr().cast(), rest.len(), at) };
            match n {
                n if n > 0 => done += n as usize,
                _ => again_if_interrupted()?,
            }
        }
        Ok(())
    }

    fn descriptor(&self) -> Option<RawFd> {
        Some(self.0.as_raw_fd())
    }
}

/// As long as this lives this process may write a file up to some end: the limit on the size of the
/// program's files is none on what Eyrie keeps of its messages.
struct AnySize(Option<libc::rlimit>);

impl AnySize {
    fn up_to(end: u64) -> AnySize {
        let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: 0 };
        // SAFETY: the kernel writes one rlimit structure, which is ours.
        unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit) };
        if limit.rlim_cur >= end {
            return AnySize(None);
        }
        let lifted = libc::rlimit { rlim_cur: limit.rlim_max, ..limit };
        // SAFETY: the kernel reads one rlimit structure, which is ours.
        if limit.rlim_max < end || unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &lifted) } != 0 {
            fatal(&format!(
                "the limit on the size of files is {} KiB, and Eyrie keeps {} KiB of messages in one: \
                 raise it (`ulimit -f`)",
                limit.rlim_max >> 10,
                end.div_ceil(1024)
            ));
        }
        AnySize(Some(limit))
    }
}

impl Drop for AnySize {
    fn drop(&mut self) {
        if let Some(limit) = &self.0 {
            // SAFETY: the kernel reads one rlimit structure, which is ours.
            unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, limit) };
        }
    }
}

fn again_if_interrupted() -> io::Result<()> {
    match io::Error::last_os_error() {
        e if e.kind() == ErrorKind::Interrupted => Ok(()),
        e => Err(e),
    }
}
