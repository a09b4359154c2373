//! The agent's connection to the controller, without blocking: frames out, frames in. What is sent
//! outlives the connection.

use anyhow::Context;
use eyrie_transport::handshake::HandshakeError;
use eyrie_transport::session::{Frame, Header, Inbox, Kind, Outbox};
use eyrie_transport::{frame, handshake, role, Addr, Stream};
use eyrie_wire::auth::Secret;
use eyrie_wire::control::{Claim, FromAgent, RankReport, ToAgent};
use eyrie_wire::RankInstance;
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Most bytes that wait for a controller that does not read before ranks are heard no more.
const FULL: usize = 8 << 20;
/// How long each step of [`knock`] may take.
const KNOCK_TIMEOUT: Duration = Duration::from_secs(2);

/// Reads the job's secret.
///
/// # Errors
/// When the file cannot be read, or is damaged.
pub fn read_secret(dir: &Path) -> anyhow::Result<Secret> {
    let path = dir.join("secret");
    let bytes = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    Secret::of_kept(&bytes).with_context(|| {
        let shown = path.display();
        format!("{shown} is damaged, or no secret of a job: each host with a copy of the job's journal has one, too")
    })
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

/// What comes of [`knock`].
pub enum Knocked {
    /// The controller lives, and has refused the agent.
    Refused,
    /// It lives, and the agent is one of its own.
    Known,
    /// It cannot be reached.
    InVain,
}

/// Lets the controller know that this agent is still there, if it can be reached soon.
pub fn knock(addr: &Addr, secret: &Secret, claim: &Claim) -> Knocked {
    let Ok(mut stream) = Stream::connect(addr, KNOCK_TIMEOUT) else { return Knocked::InVain };
    match handshake::connect(&mut stream, secret, claim) {
        Ok(_) => Knocked::Known,
        Err(HandshakeError::Refused(_)) => Knocked::Refused,
        Err(_) => Knocked::InVain,
    }
}

/// Where users reach the controller of the job in this directory.
pub fn user_socket(dir: &Path) -> PathBuf {
    dir.join("control.sock")
}

/// The agent's side of what goes between it and the controller, over one connection after another,
/// without blocking.
pub struct Connection {
    /// While there is one.
    stream: Option<Stream>,
    /// The one before, until the controller has said something on this one: its end would be taken
    /// for that of the agent.
    before: Option<Stream>,
    inbox: Inbox,
    outbox: Outbox,
    /// The controller has said what it has heard: what it has not can be written.
    greeted: bool,
    received: Vec<u8>,
    written: VecDeque<u8>,
}

impl Connection {
    /// # Errors
    /// When the stream cannot be made non-blocking.
    pub fn new(stream: Stream) -> io::Result<Connection> {
        let mut connection = Connection {
            stream: None,
            before: None,
            inbox: Inbox::default(),
            outbox: Outbox::default(),
            greeted: false,
            received: Vec::new(),
            written: VecDeque::new(),
        };
        connection.go_on(stream)?;
        Ok(connection)
    }

    /// Goes on over another connection, where the last one has ended.
    ///
    /// # Errors
    /// When the stream cannot be made non-blocking.
    pub fn go_on(&mut self, stream: Stream) -> io::Result<()> {
        stream.set_nonblocking(true)?;
        let before = self.stream.take();
        self.lose();
        self.before = before;
        self.stream = Some(stream);
        self.write(Kind::Nothing, &[]);
        Ok(())
    }

    /// The connection is over. What is sent waits for another one.
    pub fn lose(&mut self) {
        self.stream = None;
        self.before = None;
        self.greeted = false;
        self.received.clear();
        self.written.clear();
    }

    /// The descriptor, while there is a connection.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.stream.as_ref().map(AsFd::as_fd)
    }

    /// Whether something has come that the kernel does not know of any more: what was sent right
    /// behind the handshake was received with it.
    pub fn has_more(&self) -> bool {
        self.stream.as_ref().is_some_and(Stream::has_more)
    }

    pub fn wants_to_write(&self) -> bool {
        !self.written.is_empty()
    }

    /// Whether so much waits for the controller that nothing more should be taken from the ranks:
    /// they wait then, as for a pipe that nobody reads.
    pub fn is_full(&self) -> bool {
        self.outbox.bytes() >= FULL
    }

    fn write(&mut self, kind: Kind, frame: &[u8]) {
        self.written.extend(Header { kind, heard: self.inbox.confirm() }.encode());
        self.written.extend(frame);
    }

    /// Queues a message, which outlives the connection; [`Connection::flush`] sends it.
    pub fn send(&mut self, message: &FromAgent) {
        let frame = encode(message);
        let number = self.outbox.put(Arc::clone(&frame));
        if self.greeted {
            self.write(Kind::Letter(number), &frame);
        }
    }

    /// Queues a message that means nothing to another controller.
    pub fn send_passing(&mut self, message: &FromAgent) {
        if self.greeted {
            self.write(Kind::Passing, &encode(message));
        }
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
        let Some(stream) = &mut self.stream else { return Ok(()) };
        while !self.written.is_empty() {
            match stream.write(self.written.as_slices().0) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => drop(self.written.drain(..n)),
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
        let Some(stream) = &mut self.stream else { return Ok(Vec::new()) };
        let mut chunk = vec![0; 64 * 1024];
        loop {
            match stream.read(&mut chunk) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => self.received.extend_from_slice(&chunk[..n]),
                Err(e)
                    if matches!(
                        e.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                    ) => {}
                Err(e) => return Err(e),
            }
            // What has been received with the rest wakes nobody.
            if !stream.has_more() {
                break;
            }
        }
        let received = std::mem::take(&mut self.received);
        let mut messages = Vec::new();
        let mut rest = &received[..];
        while let Some(len) = self.hear(rest, &mut messages)? {
            rest = &rest[len..];
        }
        self.received = rest.to_vec();
        Ok(messages)
    }

    /// Hears what `bytes` begin with; returns its length, or `None` when it is not whole yet.
    fn hear(&mut self, bytes: &[u8], messages: &mut Vec<ToAgent>) -> io::Result<Option<usize>> {
        let Some((header, rest)) = bytes.split_first_chunk::<{ Header::LEN }>() else {
            return Ok(None);
        };
        let header = Header::decode(header);
        let message = match header.kind {
            Kind::Nothing => None,
            Kind::Letter(_) | Kind::Passing => match frame::parse(rest)? {
                None => return Ok(None),
                message => message,
            },
        };
        self.confirmed(header.heard)?;
        let len = message.as_ref().map_or(0, |(_, len)| *len);
        if self.inbox.hear(header.kind, len)? {
            messages.extend(message.map(|(message, _)| message));
        }
        Ok(Some(Header::LEN + len))
    }

    /// The controller has heard so many letters. Its first word on a connection brings those that
    /// it has not.
    fn confirmed(&mut self, heard: u64) -> io::Result<()> {
        self.outbox.confirm(heard)?;
        if !self.greeted {
            self.greeted = true;
            self.before = None;
            let kept: Vec<_> =
                self.outbox.kept().map(|(number, frame)| (number, Arc::clone(frame))).collect();
            kept.iter().for_each(|(number, frame)| self.write(Kind::Letter(*number), frame));
        }
        Ok(())
    }
}

fn encode(message: &FromAgent) -> Frame {
    let mut bytes = Vec::new();
    frame::write(&mut bytes, message).expect("the agent's messages are bounded");
    bytes.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use eyrie_transport::{Bind, Listener};
    use eyrie_wire::auth::SECRET_LEN;

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
                    let mut fds = [rustix::event::PollFd::from_borrowed_fd(
                        connection.fd().unwrap(),
                        readable,
                    )];
                    let patience = rustix::event::Timespec { tv_sec: 20, tv_nsec: 0 };
                    if !connection.has_more() {
                        assert_eq!(rustix::event::poll(&mut fds, Some(&patience)).unwrap(), 1);
                    }
                    assert_eq!(connection.receive().unwrap(), [ToAgent::Shutdown]);
                }
            });
            let mut controller = listener.accept().unwrap();
            handshake::accept(&mut controller, &secret, |_| Ok(())).unwrap();
            let mut bytes = Header { kind: Kind::Passing, heard: 0 }.encode().to_vec();
            frame::write(&mut bytes, &ToAgent::Shutdown).unwrap();
            controller.write_all(&bytes).unwrap();
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
            let word = |heard| Header { kind: Kind::Nothing, heard }.encode();
            controller.write_all(&word(0)).unwrap();
            assert_eq!(Header::read_first(&mut controller).unwrap(), 0);
            for number in 1..=sent {
                assert_eq!(Header::read(&mut controller).unwrap().kind, Kind::Letter(number));
                frame::read::<FromAgent>(&mut controller).unwrap();
            }
            controller.write_all(&word(sent)).unwrap();
            controller
        });
        while connection.is_full() {
            assert_eq!(connection.receive().unwrap(), []);
            connection.flush().unwrap();
            std::thread::yield_now();
        }
        reader.join().unwrap();
    }
}
