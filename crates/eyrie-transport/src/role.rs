//! A role in a process of its own: its configuration and its commands come from the controller over
//! one connection, its events go back over the same. Without the controller it ends.

use crate::handshake::{self, HandshakeError, STEP_TIMEOUT};
use crate::{frame, Addr, Stream};
use eyrie_wire::auth::{Secret, SECRET_LEN};
use eyrie_wire::control::Claim;
use serde::{de::DeserializeOwned, Serialize};
use std::io::{self, BufReader, Read, Write};

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

/// Serves until the controller closes `stream`, which the role has been admitted on. The first
/// message is the configuration that `start` is called with; it returns what does a command, and
/// where the events come from.
///
/// # Errors
/// When the role cannot be started or the connection breaks.
pub fn serve<Config, Command, Event, Events, Do>(
    stream: Stream,
    start: impl FnOnce(Config) -> io::Result<(Do, Events)>,
) -> io::Result<()>
where
    Config: DeserializeOwned,
    Command: DeserializeOwned,
    Event: Serialize,
    Events: Iterator<Item = Event> + Send + 'static,
    Do: FnMut(Command),
{
    // The controller may have nothing to say for long.
    stream.set_timeout(None)?;
    let mut out = stream.try_clone()?;
    let mut input = BufReader::new(stream);
    let (mut command, events) = start(frame::read_long(&mut input)?)?;
    std::thread::spawn(move || {
        for event in events {
            let sent = frame::encode_long(&event).and_then(|bytes| out.write_all(&bytes));
            if sent.is_err() {
                // The reader finds the connection over, too.
                return;
            }
        }
    });
    loop {
        match frame::read_long(&mut input) {
            Ok(message) => command(message),
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(e) => return Err(e),
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
