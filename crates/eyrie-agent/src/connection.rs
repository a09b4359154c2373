//! The agent's connection to the controller, without blocking: frames out, frames in.

use anyhow::Context;
use eyrie_transport::{frame, handshake, role, Addr, Stream};
use eyrie_wire::auth::{Secret, SECRET_LEN};
use eyrie_wire::control::{Claim, FromAgent, RankReport, ToAgent};
use eyrie_wire::RankInstance;
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Most bytes that wait for a controller that does not read before ranks are heard no more.
const FULL: usize = 8 << 20;
/// How long each step of [`knock`] may take.
const KNOCK_TIMEOUT: Duration = Duration::from_secs(2);

/// Reads the job's secret.
///
/// # Errors
/// When the file cannot be read or has another length.
pub fn read_secret(dir: &Path) -> anyhow::Result<Secret> {
    let path = dir.join("secret");
    let bytes = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let secret: [u8; SECRET_LEN] = bytes
        .try_into()
        .map_err(|_| anyhow::anyhow!("{} is no secret of a job", path.display()))?;
    Ok(Secret(secret))
}

/// Connects to the job's controller as `claim`; to its store with an image. The stream blocks, with
/// a timeout on each step.
///
/// # Errors
/// When nobody listens, or one side refuses the other.
pub fn connect(addr: &Addr, secret: &Secret, claim: &Claim) -> anyhow::Result<Stream> {
    let whom = match claim {
        Claim::ImageUpload { .. } | Claim::ImageFetch { .. } => "store",
        _ => "controller",
    };
    let connected = role::connect(addr, secret, claim);
    connected.with_context(|| format!("cannot connect to the {whom} at {addr}"))
}

/// Lets the controller know that this agent is still there, if it can be reached soon.
pub fn knock(addr: &Addr, secret: &Secret, claim: &Claim) {
    if let Ok(mut stream) = Stream::connect(addr, KNOCK_TIMEOUT) {
        // It is refused, or nobody hears it.
        let _ = handshake::connect(&mut stream, secret, claim);
    }
}

/// Where users reach the controller of the job in this directory.
pub fn user_socket(dir: &Path) -> PathBuf {
    dir.join("control.sock")
}

/// A framed, non-blocking control connection.
pub struct Connection {
    stream: Stream,
    inbox: Vec<u8>,
    outbox: VecDeque<u8>,
}

impl Connection {
    /// # Errors
    /// When the stream cannot be made non-blocking.
    pub fn new(stream: Stream) -> io::Result<Connection> {
        stream.set_nonblocking(true)?;
        Ok(Connection { stream, inbox: Vec::new(), outbox: VecDeque::new() })
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Whether something has come that the kernel does not know of any more: what was sent right
    /// behind the handshake was received with it.
    pub fn has_more(&self) -> bool {
        self.stream.has_more()
    }

    pub fn wants_to_write(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// Whether so much waits for the controller that nothing more should be taken from the ranks:
    /// they wait then, as for a pipe that nobody reads.
    pub fn is_full(&self) -> bool {
        self.outbox.len() >= FULL
    }

    /// Queues a message; [`Connection::flush`] sends it.
    pub fn send(&mut self, message: &FromAgent) {
        let mut bytes = Vec::new();
        frame::write(&mut bytes, message).expect("the agent's messages are bounded");
        self.outbox.extend(bytes);
    }

    /// Queues a report of a rank.
    pub fn report(&mut self, instance: RankInstance, report: RankReport) {
        tracing::debug!(%instance, ?report);
        self.send(&FromAgent::Rank(instance, report));
    }

    /// Sends what the socket takes.
    ///
    /// # Errors
    /// When the controller is gone.
    pub fn flush(&mut self) -> io::Result<()> {
        while !self.outbox.is_empty() {
            match self.stream.write(self.outbox.as_slices().0) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => drop(self.outbox.drain(..n)),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Reads what has arrived.
    ///
    /// # Errors
    /// `UnexpectedEof` when the controller is gone, `InvalidData` for what is no message.
    pub fn receive(&mut self) -> io::Result<Vec<ToAgent>> {
        let mut chunk = vec![0; 64 * 1024];
        loop {
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => self.inbox.extend_from_slice(&chunk[..n]),
                Err(e)
                    if matches!(
                        e.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                    ) => {}
                Err(e) => return Err(e),
            }
            // What has been received with the rest wakes nobody.
            if !self.stream.has_more() {
                break;
            }
        }
        let mut messages = Vec::new();
        let mut at = 0;
        while let Some((message, len)) = frame::parse(&self.inbox[at..])? {
            messages.push(message);
            at += len;
        }
        self.inbox.drain(..at);
        Ok(messages)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use eyrie_transport::{Bind, Listener};

    #[test]
    fn what_comes_right_behind_the_handshake_is_not_slept_over() {
        use eyrie_transport::{Interface, Ports, Security};
        let secret = Secret([7; SECRET_LEN]);
        let bind = Bind::Tcp {
            interface: Interface::LOOPBACK,
            ports: Ports::ANY,
            security: Security::Encrypted,
        };
        let listener = Listener::bind(&bind).unwrap();
        let addr = listener.addr().unwrap();
        for _ in 0..50 {
            let agent = std::thread::spawn({
                let (addr, secret) = (addr.clone(), secret.clone());
                move || {
                    let stream = connect(&addr, &secret, &Claim::User).unwrap();
                    let mut connection = Connection::new(stream).unwrap();
                    let readable = rustix::event::PollFlags::IN;
                    let mut fds =
                        [rustix::event::PollFd::from_borrowed_fd(connection.fd(), readable)];
                    let patience = rustix::event::Timespec { tv_sec: 20, tv_nsec: 0 };
                    if !connection.has_more() {
                        assert_eq!(rustix::event::poll(&mut fds, Some(&patience)).unwrap(), 1);
                    }
                    assert_eq!(connection.receive().unwrap(), [ToAgent::Shutdown]);
                }
            });
            let mut controller = listener.accept().unwrap();
            handshake::accept(&mut controller, &secret, |_| Ok(())).unwrap();
            frame::write(&mut controller, &ToAgent::Shutdown).unwrap();
            agent.join().unwrap();
        }
    }

    #[test]
    fn a_controller_that_does_not_read_fills_the_connection_and_one_that_does_empties_it() {
        let dir = tempfile::tempdir().unwrap();
        let listener = Listener::bind(&Bind::Unix(dir.path().join("socket"))).unwrap();
        let addr = listener.addr().unwrap();
        let ours = Stream::connect(&addr, Duration::from_secs(10)).unwrap();
        let mut controller = listener.accept().unwrap();
        let mut connection = Connection::new(ours).unwrap();
        let instance = RankInstance { rank: 0, incarnation: 1 };
        let mut sent = 0;
        while !connection.is_full() {
            let (key, value) = (format!("key-{sent}"), "v".repeat(1000));
            connection.report(instance, RankReport::PmiPut { key, value });
            connection.flush().unwrap();
            sent += 1;
            assert!(sent < 100_000, "it is never full");
        }
        let reader = std::thread::spawn(move || {
            (0..sent).for_each(|_| drop(frame::read::<FromAgent>(&mut controller).unwrap()));
        });
        while connection.wants_to_write() {
            connection.flush().unwrap();
            std::thread::yield_now();
        }
        reader.join().unwrap();
        assert!(!connection.is_full());
    }
}
