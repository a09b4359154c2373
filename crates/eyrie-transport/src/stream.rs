//! A connection, and a listener for connections, for every kind of address. A peer that disappears
//! without closing its connection is detected: connecting and waiting for the other host have
//! bounds.

use crate::seal::{Opening, Sealed, Sealing, MAX_RECORD};
use eyrie_wire::role_address::Security;
use eyrie_wire::role_address::{Addr, Bind};
use rustix::io::Errno;
use rustix::net::sockopt;
use rustix::pipe::{splice, SpliceFlags};
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// How long sent data may stay unacknowledged by the other host.
const USER_TIMEOUT: Duration = Duration::from_secs(20);
/// How long a connection may be idle before the kernel probes the other host, the time between
/// probes, and how many may fail.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
const KEEPALIVE_EVERY: Duration = Duration::from_secs(5);
const KEEPALIVE_PROBES: u32 = 3;
/// Longest time before unacknowledged data is sent again, in milliseconds. With the kernel's own
/// two minutes, a link that was down for seconds looks like a dead host.
const RETRANSMIT_MAX_MS: libc::c_int = 1000;
/// linux/tcp.h, since Linux 6.15.
const TCP_RTO_MAX_MS: libc::c_int = 44;

/// Bytes to splice at once. A pipe holds less.
const SPLICED_BYTES: usize = 1 << 30;

/// A connection.
#[derive(Debug)]
pub enum Stream {
    Unix(UnixStream),
    Tcp(Tcp),
}

/// What seals and opens. Streams with several descriptors of the same connection share it, because
/// each direction has one order of records.
#[derive(Clone)]
struct Halves {
    sealing: Arc<Mutex<Sealing>>,
    opening: Arc<Mutex<Opening>>,
}

/// A connection over TCP.
pub struct Tcp {
    socket: TcpStream,
    security: Security,
    /// Set at the end of the handshake, unless security is off.
    sealed: Option<Halves>,
}

impl std::fmt::Debug for Tcp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.socket.fmt(f)
    }
}

fn locked<T>(half: &Mutex<T>) -> MutexGuard<'_, T> {
    half.lock().unwrap_or_else(|e| e.into_inner())
}

impl Tcp {
    fn new(socket: TcpStream, security: Security) -> Tcp {
        Tcp { socket, security, sealed: None }
    }

    fn try_clone(&self) -> io::Result<Tcp> {
        let Tcp { security, ref sealed, .. } = *self;
        Ok(Tcp { socket: self.socket.try_clone()?, security, sealed: sealed.clone() })
    }

    fn read(&self, buf: &mut [u8]) -> io::Result<usize> {
        match &self.sealed {
            None => (&self.socket).read(buf),
            Some(halves) => locked(&halves.opening).read(buf, |into| (&self.socket).read(into)),
        }
    }

    fn write(&self, buf: &[u8]) -> io::Result<usize> {
        match &self.sealed {
            None => (&self.socket).write(buf),
            Some(halves) => locked(&halves.sealing).write(buf, |from| (&self.socket).write(from)),
        }
    }

    fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        if let (Shutdown::Write, Some(halves)) = (how, &self.sealed) {
            locked(&halves.sealing).end(|from| (&self.socket).write(from))?;
        }
        self.socket.shutdown(how)
    }
}

/// Moves everything, at most [`MAX_RECORD`] bytes at a time.
fn copy(from: &mut impl Read, to: &mut impl Write) -> io::Result<u64> {
    let mut bytes = vec![0; MAX_RECORD];
    let mut moved = 0;
    loop {
        match from.read(&mut bytes) {
            Ok(0) => return Ok(moved),
            Ok(n) => {
                to.write_all(&bytes[..n])?;
                moved += n as u64;
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
}

/// Moves everything within the kernel, where one of the two is a pipe. `io::copy` would do so as
/// well, but it ends at a signal: on a socket with a timeout, the kernel returns `EINTR` even if
/// the handler asks for a restart.
fn copy_within(from: &mut (impl Read + AsFd), to: &mut (impl Write + AsFd)) -> io::Result<u64> {
    let mut moved = 0;
    loop {
        match splice(&*from, None, &*to, None, SPLICED_BYTES, SpliceFlags::empty()) {
            Ok(0) => return Ok(moved),
            Ok(n) => moved += n as u64,
            Err(Errno::INTR) => {}
            // Neither is a pipe.
            Err(Errno::INVAL) if moved == 0 => return copy(from, to),
            Err(e) => return Err(e.into()),
        }
    }
}

/// Sets the options that every TCP connection has, on both sides.
fn prepared(socket: TcpStream) -> io::Result<TcpStream> {
    sockopt::set_tcp_nodelay(&socket, true)?;
    sockopt::set_socket_keepalive(&socket, true)?;
    sockopt::set_tcp_keepidle(&socket, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(&socket, KEEPALIVE_EVERY)?;
    sockopt::set_tcp_keepcnt(&socket, KEEPALIVE_PROBES)?;
    sockopt::set_tcp_user_timeout(&socket, USER_TIMEOUT.as_millis() as u32)?;
    // An unstable link loses several retransmissions in a row. The next ones must follow soon,
    // where the kernel supports that.
    set_tcp(&socket, libc::TCP_THIN_LINEAR_TIMEOUTS, 1);
    set_tcp(&socket, TCP_RTO_MAX_MS, RETRANSMIT_MAX_MS);
    Ok(socket)
}

/// Sets an option that rustix does not have. A kernel that does not know it ignores the call.
fn set_tcp(socket: &TcpStream, option: libc::c_int, value: libc::c_int) {
    let bytes = size_of_val(&value) as libc::socklen_t;
    // SAFETY: the kernel reads `bytes` bytes of `value` during the call, and `value` is this
    // function's own. The descriptor is open because `socket` is borrowed.
    unsafe {
        let fd = socket.as_raw_fd();
        libc::setsockopt(fd, libc::IPPROTO_TCP, option, (&raw const value).cast(), bytes);
    }
}

fn connect_tcp(at: std::net::SocketAddr, timeout: Duration) -> io::Result<TcpStream> {
    let socket = TcpStream::connect_timeout(&at, timeout)?;
    // If no process listens there, the kernel may choose the same port for this end (a TCP
    // self-connect).
    if socket.local_addr()? == at {
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    prepared(socket)
}

impl Stream {
    /// Connects, within `timeout`. The stream blocks, for at most `timeout` at each step.
    ///
    /// # Errors
    /// When no process listens there.
    pub fn connect(addr: &Addr, timeout: Duration) -> io::Result<Stream> {
        let stream = match addr {
            Addr::Unix(path) => Stream::Unix(UnixStream::connect(path)?),
            Addr::Tcp { at, security } => {
                Stream::Tcp(Tcp::new(connect_tcp(*at, timeout)?, *security))
            }
        };
        stream.set_timeout(Some(timeout))?;
        Ok(stream)
    }

    /// The IP address of the other side, if it has one.
    pub fn peer(&self) -> Option<IpAddr> {
        match self {
            Stream::Unix(_) => None,
            Stream::Tcp(tcp) => tcp.socket.peer_addr().ok().map(|at| at.ip()),
        }
    }

    /// Whether descriptors can be sent over it.
    pub fn passes_files(&self) -> bool {
        matches!(self, Stream::Unix(_))
    }

    /// How its content must be protected. On the same host the kernel identifies the peer.
    pub fn security(&self) -> Security {
        match self {
            Stream::Unix(_) => Security::Off,
            Stream::Tcp(s) => s.security,
        }
    }

    /// Seals all content from now on. No other descriptor of the connection may be in use yet.
    pub fn seal(&mut self, sealed: Sealed) {
        if let Stream::Tcp(s) = self {
            let sealing = Mutex::new(sealed.sealing);
            let opening = Mutex::new(sealed.opening);
            s.sealed = Some(Halves { sealing: Arc::new(sealing), opening: Arc::new(opening) });
        }
    }

    /// Whether there is content to read that the kernel has already delivered.
    pub fn has_more(&self) -> bool {
        match self {
            Stream::Tcp(Tcp { sealed: Some(halves), .. }) => locked(&halves.opening).has_more(),
            _ => false,
        }
    }

    /// The descriptor and the sealing. No other descriptor of the connection may be in use by then.
    pub fn into_parts(self) -> (OwnedFd, Option<Sealed>) {
        match self {
            Stream::Unix(s) => (s.into(), None),
            Stream::Tcp(Tcp { socket, sealed, .. }) => {
                let sealed = sealed.and_then(|halves| {
                    let sealing = Arc::into_inner(halves.sealing)?.into_inner().ok()?;
                    let opening = Arc::into_inner(halves.opening)?.into_inner().ok()?;
                    Some(Sealed { sealing, opening })
                });
                (socket.into(), sealed)
            }
        }
    }

    /// Sets how long a read or a write may take.
    ///
    /// # Errors
    /// When the kernel refuses it.
    pub fn set_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        match self {
            Stream::Unix(s) => {
                s.set_read_timeout(timeout)?;
                s.set_write_timeout(timeout)
            }
            Stream::Tcp(s) => {
                s.socket.set_read_timeout(timeout)?;
                s.socket.set_write_timeout(timeout)
            }
        }
    }

    /// # Errors
    /// When the kernel refuses it.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        match self {
            Stream::Unix(s) => s.set_nonblocking(nonblocking),
            Stream::Tcp(s) => s.socket.set_nonblocking(nonblocking),
        }
    }

    /// The same connection with another descriptor.
    ///
    /// # Errors
    /// When no descriptor is free.
    pub fn try_clone(&self) -> io::Result<Stream> {
        Ok(match self {
            Stream::Unix(s) => Stream::Unix(s.try_clone()?),
            Stream::Tcp(s) => Stream::Tcp(s.try_clone()?),
        })
    }

    /// Ends one or both directions. On a sealed stream, the other side learns that nothing more
    /// follows only if writing is ended separately.
    ///
    /// # Errors
    /// When the connection is already closed.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        match self {
            Stream::Unix(s) => s.shutdown(how),
            Stream::Tcp(s) => s.shutdown(how),
        }
    }

    /// Sends all that `from` has to the other side, within the kernel where possible.
    ///
    /// # Errors
    /// When either end breaks.
    pub fn send_all(&mut self, from: &mut File) -> io::Result<u64> {
        match self {
            Stream::Unix(s) => copy_within(from, s),
            Stream::Tcp(s) if s.sealed.is_none() => copy_within(from, &mut s.socket),
            Stream::Tcp(_) => copy(from, self),
        }
    }

    /// Writes all that the other side sends to `to`, within the kernel where possible.
    ///
    /// # Errors
    /// When either end breaks.
    pub fn receive_all(&mut self, to: &mut File) -> io::Result<u64> {
        match self {
            Stream::Unix(s) => copy_within(s, to),
            Stream::Tcp(s) if s.sealed.is_none() => copy_within(&mut s.socket, to),
            Stream::Tcp(_) => copy(self, to),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Unix(s) => s.read(buf),
            Stream::Tcp(s) => s.read(buf),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Unix(s) => s.write(buf),
            Stream::Tcp(s) => s.write(buf),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Stream::Unix(s) => s.as_fd(),
            Stream::Tcp(s) => s.socket.as_fd(),
        }
    }
}

/// Accepts connections.
#[derive(Debug)]
pub enum Listener {
    Unix(UnixListener, PathBuf),
    Tcp(TcpListener, Security),
}

impl Listener {
    /// # Errors
    /// When the address is taken or cannot be used; of several ports, the error of the last one.
    pub fn bind(at: &Bind) -> io::Result<Listener> {
        let (interface, ports, security) = match at {
            Bind::Unix(path) => return Ok(Listener::Unix(UnixListener::bind(path)?, path.clone())),
            Bind::Tcp { interface, ports, security } => (interface, ports, *security),
        };
        let ip = crate::interface::ip(interface)?;
        let mut last = io::ErrorKind::AddrInUse.into();
        for port in ports.each() {
            match TcpListener::bind((ip, port)) {
                Ok(listener) => return Ok(Listener::Tcp(listener, security)),
                Err(e) => last = e,
            }
        }
        Err(io::Error::new(last.kind(), format!("cannot listen at {at}: {last}")))
    }

    /// Where it listens.
    ///
    /// # Errors
    /// When the kernel cannot report it.
    pub fn addr(&self) -> io::Result<Addr> {
        Ok(match self {
            Listener::Unix(_, path) => Addr::Unix(path.clone()),
            Listener::Tcp(l, security) => Addr::Tcp { at: l.local_addr()?, security: *security },
        })
    }

    /// # Errors
    /// When the kernel refuses it.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        match self {
            Listener::Unix(l, _) => l.set_nonblocking(nonblocking),
            Listener::Tcp(l, _) => l.set_nonblocking(nonblocking),
        }
    }

    /// The next connection.
    ///
    /// # Errors
    /// Those of the listener; `WouldBlock` when it does not block and no connection is pending.
    pub fn accept(&self) -> io::Result<Stream> {
        match self {
            Listener::Unix(l, _) => Ok(Stream::Unix(l.accept()?.0)),
            Listener::Tcp(l, security) => {
                Ok(Stream::Tcp(Tcp::new(prepared(l.accept()?.0)?, *security)))
            }
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Unix(l, _) => l.as_fd(),
            Listener::Tcp(l, _) => l.as_fd(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use eyrie_wire::role_address::Interface;
    use eyrie_wire::role_address::Ports;

    const TIMEOUT: Duration = Duration::from_secs(5);

    fn any(interface: Interface) -> Bind {
        Bind::Tcp { interface, ports: Ports::ANY, security: Security::Off }
    }

    /// Most signals arrive while the thread waits in the kernel for the next byte.
    #[test]
    fn signals_do_not_end_what_is_moved_within_the_kernel() {
        use std::os::unix::thread::JoinHandleExt;
        extern "C" fn nothing(_: libc::c_int) {}
        // SAFETY: an all-zero sigaction is valid, and the handler does nothing, so that it may run
        // at any point of any thread.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = nothing as *const () as usize;
            action.sa_flags = libc::SA_RESTART;
            libc::sigaction(libc::SIGUSR2, &action, std::ptr::null_mut());
        }
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let (out, into) = rustix::pipe::pipe().unwrap();
        let mut theirs = Stream::Unix(theirs);
        theirs.set_timeout(Some(TIMEOUT)).unwrap();
        let receiver = std::thread::spawn(move || theirs.receive_all(&mut File::from(into)));
        let moved = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            File::from(out).read_to_end(&mut bytes).map(|_| bytes)
        });
        let sent: Vec<u8> = (0..2000).map(|n| n as u8).collect();
        for byte in &sent {
            // SAFETY: `receiver` is joined only below, so its pthread handle is valid.
            unsafe { libc::pthread_kill(receiver.as_pthread_t(), libc::SIGUSR2) };
            // Fails if the receiver has ended; the assertions below find that.
            let _ = ours.write_all(std::slice::from_ref(byte));
            std::thread::yield_now();
        }
        drop(ours);
        assert_eq!(receiver.join().unwrap().unwrap(), sent.len() as u64);
        assert_eq!(moved.join().unwrap().unwrap(), sent);
    }

    #[test]
    fn both_families_of_addresses_carry_bytes_both_ways() {
        for ip in ["127.0.0.1", "::1"] {
            let interface: Interface = ip.parse().unwrap();
            let listener = Listener::bind(&any(interface)).unwrap();
            let addr: Addr = listener.addr().unwrap().to_string().parse().unwrap();
            let mut ours = Stream::connect(&addr, TIMEOUT).unwrap();
            let mut theirs = listener.accept().unwrap();
            theirs.set_timeout(Some(TIMEOUT)).unwrap();
            assert!(!ours.passes_files() && !theirs.passes_files());
            for (from, to) in [(0, 1), (1, 0)] {
                let ends = [&mut ours, &mut theirs];
                let mut bytes = [0; 5];
                for (end, stream) in ends.into_iter().enumerate() {
                    if end == from {
                        stream.write_all(b"hello").unwrap();
                    }
                }
                let ends = [&mut ours, &mut theirs];
                for (end, stream) in ends.into_iter().enumerate() {
                    if end == to {
                        stream.read_exact(&mut bytes).unwrap();
                    }
                }
                assert_eq!(&bytes, b"hello");
            }
        }
    }

    #[test]
    fn ports_of_a_range_are_tried_in_turn_and_the_error_names_them() {
        let taken = Listener::bind(&any(Interface::LOOPBACK)).unwrap();
        let addr = taken.addr().unwrap();
        let Addr::Tcp { at, security } = addr else { panic!("{taken:?}") };
        let ports = format!("{}-{}", at.port(), at.port()).parse().unwrap();
        let same = Bind::Tcp { interface: Interface::LOOPBACK, ports, security };
        let said = Listener::bind(&same).unwrap_err().to_string();
        assert!(said.contains(&at.port().to_string()), "{said}");
        drop(taken);
        assert_eq!(Listener::bind(&same).unwrap().addr().unwrap(), addr);
    }

    #[test]
    fn connecting_to_an_address_without_a_listener_fails_at_once() {
        let addr = Listener::bind(&any(Interface::LOOPBACK)).unwrap().addr().unwrap();
        assert!(Stream::connect(&addr, TIMEOUT).is_err());
    }
}
