//! A role in a process of its own: its configuration and its commands come from the controller over
//! one connection, its events go back over the same. Without the controller it ends, unless another
//! one may come: then nothing of what was said is lost.

use crate::handshake::{self, HandshakeError, STEP_TIMEOUT};
use crate::session::{Frame, Header, Inbox, Kind, Outbox};
use crate::{frame, Addr, Stream};
use eyrie_wire::auth::{Secret, SECRET_LEN};
use eyrie_wire::control::Claim;
use serde::{de::DeserializeOwned, Serialize};
use std::io::{self, BufReader, Read, Write};
use std::net::Shutdown;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// How often a role that has lost its controller looks for another one.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Most events that wait for a controller that does not read; then the role waits for it.
pub const MAX_EVENTS: usize = 65536;

/// The line by which whoever starts a role tells it the job's secret, on its standard input:
/// command lines and environments can be read by others.
pub fn secret_line(secret: &Secret) -> String {
    secret.0.iter().map(|byte| format!("{byte:02x}")).chain(["\n".into()]).collect()
}

/// Reads [`secret_line`].
///
/// # Errors
/// The reader's; `InvalidData` for another line.
pub fn read_secret(input: &mut impl Read) -> io::Result<Secret> {
    let none = || io::Error::new(io::ErrorKind::InvalidData, "that is no secret of a job");
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

/// Connects to another role as `claim`. The stream blocks, with a timeout on each step.
///
/// # Errors
/// When nobody listens there, or one side refuses the other.
pub fn connect(addr: &Addr, secret: &Secret, claim: &Claim) -> Result<Stream, HandshakeError> {
    let mut stream = Stream::connect(addr, STEP_TIMEOUT)?;
    handshake::connect(&mut stream, secret, claim)?;
    Ok(stream)
}

/// Where a role finds another controller, which writes its address into a file. Whoever started the
/// role ends it when nobody comes.
pub struct Follow {
    pub file: PathBuf,
    pub secret: Secret,
    pub claim: Claim,
}

impl Follow {
    fn addr(&self) -> Option<Addr> {
        std::fs::read(&self.file).ok().and_then(|text| String::from_utf8(text).ok()?.parse().ok())
    }

    /// A connection to the controller that is there now; `None` when it does not want the role any
    /// more.
    fn connect(&self) -> Option<(Stream, Addr)> {
        loop {
            let Some(addr) = self.addr() else {
                // The agent has ended; or the file is damaged, and written again with the next
                // controller.
                self.file.exists().then(|| std::thread::sleep(LOOK_EVERY))?;
                continue;
            };
            match connect(&addr, &self.secret, &self.claim) {
                Ok(stream) => return Some((stream, addr)),
                Err(HandshakeError::Refused(_)) => return None,
                Err(_) => std::thread::sleep(LOOK_EVERY),
            }
        }
    }

    /// Ends the connection to a controller that another one has replaced: of a host that is lost
    /// nobody hears that it is.
    fn watch(&self, line: &Line) {
        loop {
            std::thread::sleep(LOOK_EVERY);
            let Some(addr) = self.addr() else { continue };
            let ends = line.ends();
            if let Some((out, _)) = ends.out.as_ref().filter(|(_, at)| *at != addr) {
                // It may have ended meanwhile.
                let _ = out.shutdown(Shutdown::Both);
            }
        }
    }
}

/// Serves until the connection to the controller ends and there is no other one to `follow`.
/// `first`, with its address, is what the role has been admitted on. The first message is the
/// configuration that `start` is called with; it returns what does a command, and where the events
/// come from.
///
/// # Errors
/// When the role cannot be started, or the controller says what cannot be.
pub fn serve<Config, Command, Event, Events, Do>(
    first: (Stream, Addr),
    follow: Option<Follow>,
    start: impl FnOnce(Config) -> io::Result<(Do, Events)>,
) -> io::Result<()>
where
    Config: DeserializeOwned,
    Command: DeserializeOwned,
    Event: Serialize,
    Events: Iterator<Item = Event> + Send + 'static,
    Do: FnMut(Command),
{
    let line = Arc::new(Line::default());
    let follow = follow.map(Arc::new);
    if let Some(follow) = &follow {
        let (follow, line) = (Arc::clone(follow), Arc::clone(&line));
        std::thread::spawn(move || follow.watch(&line));
    }
    let mut letters = Letters { line: Arc::clone(&line), input: None, first: Some(first), follow };
    let Some(config) = letters.next()? else { return Ok(()) };
    let (mut command, events) = start(config)?;
    std::thread::spawn(move || {
        for event in events {
            // None is that long.
            frame::encode_long(&event).iter().for_each(|frame| line.write(frame[..].into()));
        }
    });
    while let Some(message) = letters.next()? {
        command(message);
    }
    Ok(())
}

/// A role's side of what goes between it and the controller, over one connection after another.
#[derive(Default)]
struct Line(Mutex<Ends>);

#[derive(Default)]
struct Ends {
    outbox: Outbox,
    inbox: Inbox,
    /// While there is a connection, and to where.
    out: Option<(Stream, Addr)>,
}

impl Ends {
    /// Writes to the connection, if there is one. Where it breaks, the reader finds out, too.
    fn write(&mut self, kind: Kind, frame: &[u8]) {
        let header = Header { kind, heard: self.inbox.confirm() }.encode();
        let Some((out, _)) = &mut self.out else { return };
        if out.write_all(&header).and_then(|()| out.write_all(frame)).is_err() {
            self.out = None;
        }
    }
}

impl Line {
    fn ends(&self) -> MutexGuard<'_, Ends> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn write(&self, frame: Frame) {
        let mut ends = self.ends();
        let number = ends.outbox.put(Arc::clone(&frame));
        ends.write(Kind::Letter(number), &frame);
    }

    /// Both sides say what they have heard; what the other one has not is written again.
    fn greet(&self, stream: &Stream, addr: Addr) -> io::Result<BufReader<Stream>> {
        let mut ends = self.ends();
        stream.set_timeout(Some(STEP_TIMEOUT))?;
        ends.out = Some((stream.try_clone()?, addr));
        ends.write(Kind::Nothing, &[]);
        let mut input = BufReader::new(stream.try_clone()?);
        let heard = Header::read_first(&mut input)?;
        ends.outbox.confirm(heard)?;
        // The controller may have nothing to say for long.
        stream.set_timeout(None)?;
        let kept: Vec<_> = ends.outbox.kept().map(|(n, frame)| (n, Arc::clone(frame))).collect();
        kept.iter().for_each(|(number, frame)| ends.write(Kind::Letter(*number), frame));
        Ok(input)
    }

    /// Whether a message is new; the other side hears of many that it still keeps.
    fn hear(&self, header: Header, bytes: usize) -> io::Result<bool> {
        let mut ends = self.ends();
        ends.outbox.confirm(header.heard)?;
        let new = ends.inbox.hear(header.kind, bytes)?;
        if ends.inbox.is_due() {
            ends.write(Kind::Nothing, &[]);
        }
        Ok(new)
    }
}

/// What the controller says, over one connection after another.
struct Letters {
    line: Arc<Line>,
    input: Option<BufReader<Stream>>,
    first: Option<(Stream, Addr)>,
    follow: Option<Arc<Follow>>,
}

impl Letters {
    /// The next message; `None` when the last connection has ended.
    fn next<Message: DeserializeOwned>(&mut self) -> io::Result<Option<Message>> {
        loop {
            let Some(input) = &mut self.input else {
                let another = || self.follow.as_ref()?.connect();
                let Some((stream, addr)) = self.first.take().or_else(another) else {
                    return Ok(None);
                };
                self.input = self.line.greet(&stream, addr).ok();
                if self.input.is_none() {
                    self.line.ends().out = None;
                }
                continue;
            };
            match Letters::read(&self.line, input) {
                Ok(None) => {}
                Ok(message) => return Ok(message),
                Err(e) if e.kind() == io::ErrorKind::InvalidData => return Err(e),
                Err(_) => {
                    self.input = None;
                    self.line.ends().out = None;
                }
            }
        }
    }

    /// A message that is new.
    fn read<Message: DeserializeOwned>(
        line: &Line,
        input: &mut BufReader<Stream>,
    ) -> io::Result<Option<Message>> {
        let header = Header::read(input)?;
        if header.kind == Kind::Nothing {
            return line.hear(header, 0).map(|_| None);
        }
        let payload = frame::read_long_payload(input)?;
        match line.hear(header, payload.len())? {
            true => frame::decode(&payload).map(Some),
            false => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_goes_over_as_a_line_and_nothing_else_is_one() {
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
