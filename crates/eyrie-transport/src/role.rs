//! A role in a process of its own: its configuration and its commands come from the controller over
//! one connection, its events go back over the same. Without the controller it ends.

use crate::{frame, Stream};
use serde::{de::DeserializeOwned, Serialize};
use std::io::{self, BufReader, Write};

/// Most events that wait for a controller that does not read; then the role waits for it.
pub const MAX_EVENTS: usize = 65536;

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
