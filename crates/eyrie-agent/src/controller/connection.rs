//! The agent's connection to the controller, without blocking: frames out, frames in. Messages
//! outlive a connection: the next one carries those that were not confirmed.

use anyhow::Context;
use eyrie_transport::handshake::{self, HandshakeError};
use eyrie_transport::session::{Frame, Header, Inbox, Kind, Outbox};
use eyrie_transport::{frame, role, Stream};
use eyrie_wire::auth::Secret;
use eyrie_wire::control::{Claim, FromAgent, RankReport, ToAgent};
use eyrie_wire::role_address::Addr;
use eyrie_wire::RankInstance;
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// How many bytes may be queued for the controller before the agent stops reading from ranks.
const FULL: usize = 8 << 20;
/// How long each step of [`probe`] may take.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// Reads the job's secret.
///
/// # Errors
/// When the file cannot be read, or is damaged.
pub fn read_secret(dir: &Path) -> anyhow::Result<Secret> {
    let path = dir.join("secret");
    let bytes = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    Secret::of_kept(&bytes).with_context(|| {
        let shown = path.display();
        format!(
            "{shown} is damaged, or not the secret of a job: each host with a copy of the job's \
             journal has one, too"
        )
    })
}

/// Connects to the job's controller as `claim`, or to its store for an image. The stream blocks,
/// with a timeout on each step.
///
/// # Errors
/// When nothing listens there, or one side refuses the other.
pub fn connect(addr: &Addr, secret: &Secret, claim: &Claim) -> anyhow::Result<Stream> {
    let service = match claim {
        Claim::ImageUpload { .. } | Claim::ImageFetch { .. } => "store",
        _ => "controller",
    };
    let connected = role::connect(addr, secret, claim);
    connected.with_context(|| format!("cannot connect to the {service} at {addr}"))
}

/// The result of [`probe`].
pub enum Probed {
    /// The controller lives, and has refused the agent.
    Refused,
    /// It lives, and the agent is one of its own.
    Known,
    /// It cannot be reached.
    Unreachable,
}

/// Finds out whether the controller can be reached, and lets it know that this agent still runs.
pub fn probe(addr: &Addr, secret: &Secret, claim: &Claim) -> Probed {
    let Ok(mut stream) = Stream::connect(addr, PROBE_TIMEOUT) else { return Probed::Unreachable };
    match handshake::connect(&mut stream, secret, claim) {
        Ok(_) => Probed::Known,
        Err(HandshakeError::Refused(_)) => Probed::Refused,
        Err(_) => Probed::Unreachable,
    }
}

/// The socket for users of the controller whose job has this directory.
pub fn user_socket(dir: &Path) -> PathBuf {
    dir.join("control.sock")
}

/// The agent's side of its session with the controller, over one connection after another, without
/// blocking.
pub struct Connection {
    /// While there is one.
    stream: Option<Stream>,
    /// The previous one. It stays open until the controller has sent something on this one, because
    /// its end would count as the end of the agent.
    before: Option<Stream>,
    inbox: Inbox,
    outbox: Outbox,
    /// The controller has confirmed what it received: the rest can be written.
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

    /// Goes on over another connection after the last one has ended.
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

    /// Ends the connection. Queued messages wait for the next one.
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

    /// Whether something has arrived that poll(2) does not report: what was sent right behind the
    /// handshake was received with it.
    pub fn has_more(&self) -> bool {
        self.stream.as_ref().is_some_and(Stream::has_more)
    }

    pub fn wants_to_write(&self) -> bool {
        !self.written.is_empty()
    }

    /// Whether so much is queued for the controller that nothing more should be read from the
    /// ranks. They wait then, as for a full pipe.
    pub fn is_full(&self) -> bool {
        self.outbox.bytes() >= FULL
    }

    fn write(&mut self, kind: Kind, frame: &[u8]) {
        self.written.extend(Header { kind, heard: self.inbox.confirm() }.encode());
        self.written.extend(frame);
    }

    /// Queues a message that outlives the connection; [`Connection::flush`] sends it.
    pub fn send(&mut self, message: &FromAgent) {
        let frame = encode(message);
        let number = self.outbox.put(Arc::clone(&frame));
        if self.greeted {
            self.write(Kind::Letter(number), &frame);
        }
    }

    /// Queues a message that is of no use to another controller.
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

    /// Sends as much as the socket accepts.
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
    /// `UnexpectedEof` when the controller is gone, `InvalidData` when something is not a message.
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
            // The descriptor does not become readable for what the stream has in its buffer.
            if !stream.has_more() {
                break;
            }
        }
        let received = std::mem::take(&mut self.received);
        let mut messages = Vec::new();
        let mut rest = &received[..];
        while let Some(len) = self.handle(rest, &mut messages)? {
            rest = &rest[len..];
        }
        self.received = rest.to_vec();
        Ok(messages)
    }

    /// Handles what `bytes` begin with; returns its length, or `None` when it is not whole yet.
    fn handle(&mut self, bytes: &[u8], messages: &mut Vec<ToAgent>) -> io::Result<Option<usize>> {
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

    /// The controller has received so many messages. After its first header on a connection, those
    /// that it has not received are sent again.
    fn confirmed(&mut self, heard: u64) -> io::Result<()> {
        self.outbox.confirm(heard)?;
        if !self.greeted {
            self.greeted = true;
            self.before = None;
            let kept: Vec<_> =
                self.outbox.kept().map(|(number, frame)| (number, Arc::clone(frame))).collect();
            for (number, frame) in &kept {
                self.write(Kind::Letter(*number), frame);
            }
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
    use eyrie_transport::Listener;
    use eyrie_wire::auth::SECRET_LEN;
    use eyrie_wire::role_address::Bind;
    use eyrie_wire::{Incarnation, Rank};

    #[test]
    fn a_message_right_behind_the_handshake_is_received() {
        use eyrie_wire::role_address::{Interface, Ports, Security};
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
                let addr = addr.clone();
                let secret = secret.clone();
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
    fn the_connection_is_full_while_the_controller_does_not_read() {
        let dir = tempfile::tempdir().unwrap();
        let listener = Listener::bind(&Bind::Unix(dir.path().join("socket"))).unwrap();
        let addr = listener.addr().unwrap();
        let ours = Stream::connect(&addr, Duration::from_secs(10)).unwrap();
        let mut controller = listener.accept().unwrap();
        let mut connection = Connection::new(ours).unwrap();
        let instance = RankInstance { rank: Rank(0), incarnation: Incarnation(1) };
        let mut sent = 0;
        while !connection.is_full() {
            let key = format!("key-{sent}");
            let value = "v".repeat(1000);
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
