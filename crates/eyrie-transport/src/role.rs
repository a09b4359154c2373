//! A role in a process of its own. Its configuration and its commands come from the controller over
//! one connection, and its events go back over the same. When the controller is gone the role ends,
//! unless another controller may follow: then no message is lost.

use crate::handshake::{self, HandshakeError, STEP_TIMEOUT};
use crate::session::{Frame, Header, Inbox, Kind, Outbox};
use crate::{frame, Stream};
use eyrie_wire::auth::{Secret, SECRET_LEN};
use eyrie_wire::control::Claim;
use eyrie_wire::role_address::Addr;
use serde::{de::DeserializeOwned, Serialize};
use std::io::{self, BufReader, Read, Write};
use std::net::Shutdown;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// How often a role that has lost its controller looks for another one.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// Most events that wait for a controller that does not read. With more, the role itself waits.
pub const MAX_EVENTS: usize = 65536;

/// The line that gives a new role the job's secret, on its standard input. Other users can read
/// command lines and environments.
pub fn secret_line(secret: &Secret) -> String {
    secret.0.iter().map(|byte| format!("{byte:02x}")).chain(["\n".into()]).collect()
}

/// Reads [`secret_line`].
///
/// # Errors
/// The reader's; `InvalidData` for another line.
pub fn read_secret(input: &mut impl Read) -> io::Result<Secret> {
    let none = || io::Error::new(io::ErrorKind::InvalidData, "not the secret of a job");
    let mut line = [0; 2 * SECRET_LEN + 1];
    input.read_exact(&mut line)?;
    let digits = line.strip_suffix(b"\n").ok_or_else(none)?;
    let mut secret = [0; SECRET_LEN];
    for (byte, pair) in secret.iter_mut().zip(digits.chunks_exact(2)) {
        let digit = |d: u8| char::from(d).to_digit(16).ok_or_else(none);
        *byte = (digit(pair[0])? << 4 | digit(pair[1])?) as u8;
    }
    Ok(Secret(secret))
}

/// Connects to another role and proves `claim`. The stream blocks, with a timeout on each step.
///
/// # Errors
/// When no role listens there, or one side refuses the other.
pub fn connect(addr: &Addr, secret: &Secret, claim: &Claim) -> Result<Stream, HandshakeError> {
    let mut stream = Stream::connect(addr, STEP_TIMEOUT)?;
    handshake::connect(&mut stream, secret, claim)?;
    Ok(stream)
}

/// What a role says to its controller.
pub trait Said: Serialize {
    /// Whether it is of this moment only: it is lost when the connection ends, and no controller
    /// keeps it for its successor. Otherwise it is a letter.
    fn is_passing(&self) -> bool {
        false
    }
}

/// Where a role finds another controller, which writes its address into a file. If none follows,
/// the process that started the role ends it.
pub struct Follow {
    pub file: PathBuf,
    pub secret: Secret,
    pub claim: Claim,
}

impl Follow {
    fn addr(&self) -> Option<Addr> {
        std::fs::read(&self.file).ok().and_then(|text| String::from_utf8(text).ok()?.parse().ok())
    }

    /// A connection to the present controller; `None` when it no longer wants the role.
    fn connect(&self) -> Option<(Stream, Addr)> {
        loop {
            let Some(addr) = self.addr() else {
                // If the file is gone, the agent has ended. If it is damaged, the next controller
                // writes it again.
                self.file.exists().then(|| std::thread::sleep(LOOK_INTERVAL))?;
                continue;
            };
            match connect(&addr, &self.secret, &self.claim) {
                Ok(stream) => return Some((stream, addr)),
                Err(HandshakeError::Refused(_)) => return None,
                Err(_) => std::thread::sleep(LOOK_INTERVAL),
            }
        }
    }

    /// Ends the connection to a controller that another one has replaced. If the old controller's
    /// host is lost, the connection itself does not show it.
    fn watch(&self, session: &Session) {
        loop {
            std::thread::sleep(LOOK_INTERVAL);
            let Some(addr) = self.addr() else { continue };
            let state = session.state();
            if let Some((out, _)) = state.out.as_ref().filter(|(_, at)| *at != addr) {
                // It may have ended meanwhile.
                let _ = out.shutdown(Shutdown::Both);
            }
        }
    }
}

/// Serves until the connection to the controller ends and there is no other controller to `follow`.
/// `first` is the connection on which the role was admitted, with its address. The first message is
/// the configuration, which is passed to `start`. That returns the function that carries out a
/// command, and the source of events.
///
/// # Errors
/// When the role cannot be started, or the controller sends an invalid message.
pub fn serve<Config, Command, Event, Events, Do>(
    first: (Stream, Addr),
    follow: Option<Follow>,
    start: impl FnOnce(Config) -> io::Result<(Do, Events)>,
) -> io::Result<()>
where
    Config: DeserializeOwned,
    Command: DeserializeOwned,
    Event: Said,
    Events: Iterator<Item = Event> + Send + 'static,
    Do: FnMut(Command),
{
    let session = Arc::new(Session::default());
    let follow = follow.map(Arc::new);
    if let Some(follow) = &follow {
        let follow = Arc::clone(follow);
        let session = Arc::clone(&session);
        std::thread::spawn(move || follow.watch(&session));
    }
    let mut messages =
        Messages { session: Arc::clone(&session), input: None, first: Some(first), follow };
    let Some(config) = messages.next()? else { return Ok(()) };
    let (mut command, events) = start(config)?;
    std::thread::spawn(move || {
        for event in events {
            // No event is longer than a long message may be.
            match frame::encode_long(&event) {
                Ok(frame) if event.is_passing() => session.state().write(Kind::Passing, &frame),
                Ok(frame) => session.write(frame.into()),
                Err(_) => {}
            }
        }
    });
    while let Some(message) = messages.next()? {
        command(message);
    }
    Ok(())
}

/// A role's side of the session with the controller, over one connection after another.
#[derive(Default)]
struct Session(Mutex<SessionState>);

#[derive(Default)]
struct SessionState {
    outbox: Outbox,
    inbox: Inbox,
    /// The connection and its address, while there is one.
    out: Option<(Stream, Addr)>,
}

impl SessionState {
    /// Writes to the connection, if there is one. If it breaks, the reader notices as well.
    fn write(&mut self, kind: Kind, frame: &[u8]) {
        let header = Header { kind, heard: self.inbox.confirm() }.encode();
        let Some((out, _)) = &mut self.out else { return };
        if out.write_all(&header).and_then(|()| out.write_all(frame)).is_err() {
            self.out = None;
        }
    }
}

impl Session {
    fn state(&self) -> MutexGuard<'_, SessionState> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn write(&self, frame: Frame) {
        let mut state = self.state();
        let number = state.outbox.put(Arc::clone(&frame));
        state.write(Kind::Letter(number), &frame);
    }

    /// Both sides say what they have received. This side writes again what the other one has not.
    fn greet(&self, stream: &Stream, addr: Addr) -> io::Result<BufReader<Stream>> {
        let mut state = self.state();
        stream.set_timeout(Some(STEP_TIMEOUT))?;
        state.out = Some((stream.try_clone()?, addr));
        state.write(Kind::Nothing, &[]);
        let mut input = BufReader::new(stream.try_clone()?);
        let heard = Header::read_first(&mut input)?;
        state.outbox.confirm(heard)?;
        // The controller may send nothing for a long time.
        stream.set_timeout(None)?;
        let kept: Vec<_> = state.outbox.kept().map(|(n, frame)| (n, Arc::clone(frame))).collect();
        for (number, frame) in &kept {
            state.write(Kind::Letter(*number), frame);
        }
        Ok(input)
    }

    /// Records a message and returns whether it is new. Confirms when the other side keeps many.
    fn receive(&self, header: Header, bytes: usize) -> io::Result<bool> {
        let mut state = self.state();
        state.outbox.confirm(header.heard)?;
        let new = state.inbox.hear(header.kind, bytes)?;
        if state.inbox.is_due() {
            state.write(Kind::Nothing, &[]);
        }
        Ok(new)
    }
}

/// The messages of the controller, over one connection after another.
struct Messages {
    session: Arc<Session>,
    input: Option<BufReader<Stream>>,
    first: Option<(Stream, Addr)>,
    follow: Option<Arc<Follow>>,
}

impl Messages {
    /// The next message; `None` when the last connection has ended.
    fn next<Message: DeserializeOwned>(&mut self) -> io::Result<Option<Message>> {
        loop {
            let Some(input) = &mut self.input else {
                let another = || self.follow.as_ref()?.connect();
                let Some((stream, addr)) = self.first.take().or_else(another) else {
                    return Ok(None);
                };
                self.input = self.session.greet(&stream, addr).ok();
                if self.input.is_none() {
                    self.session.state().out = None;
                }
                continue;
            };
            match Messages::read(&self.session, input) {
                Ok(None) => {}
                Ok(message) => return Ok(message),
                Err(e) if e.kind() == io::ErrorKind::InvalidData => return Err(e),
                Err(_) => {
                    self.input = None;
                    self.session.state().out = None;
                }
            }
        }
    }

    /// Reads a message; `None` when it is not new.
    fn read<Message: DeserializeOwned>(
        session: &Session,
        input: &mut BufReader<Stream>,
    ) -> io::Result<Option<Message>> {
        let header = Header::read(input)?;
        if header.kind == Kind::Nothing {
            return session.receive(header, 0).map(|_| None);
        }
        let payload = frame::read_long_payload(input)?;
        if session.receive(header, payload.len())? {
            frame::decode(&payload).map(Some)
        } else {
            Ok(None)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_read_from_its_line_and_other_lines_are_refused() {
        let secret = Secret(std::array::from_fn(|i| (i * 37) as u8));
        let line = secret_line(&secret);
        let mut input = line.as_bytes();
        assert_eq!(read_secret(&mut input).unwrap(), secret);
        assert!(input.is_empty());
        for wrong in [&line[1..], &line.replace('4', "g"), &line.replace('\n', "0"), ""] {
            assert!(read_secret(&mut wrong.as_bytes()).is_err(), "{wrong:?}");
        }
    }
}
