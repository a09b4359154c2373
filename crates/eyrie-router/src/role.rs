//! A router in a process of its own: what the controller asks comes over a connection, and what it
//! is to hear goes back over the same. Without the controller the router ends.

use crate::{Config, Router, RouterCommand, RouterEvent};
use crossbeam_channel::bounded;
use eyrie_transport::{frame, Stream};
use eyrie_wire::auth::Secret;
use std::io::{self, BufReader, Write};

/// Most events that wait for a controller that does not read; then the router waits for it.
const MAX_EVENTS: usize = 65536;

/// Serves until the controller closes `stream`, which it has been admitted on. The first message is
/// the router's [`Config`].
///
/// # Errors
/// When the router cannot be started or the connection breaks.
pub fn serve(stream: Stream, secret: Secret) -> io::Result<()> {
    let mut out = stream.try_clone()?;
    let mut input = BufReader::new(stream);
    let config: Config = frame::read_long(&mut input)?;
    let (events, told) = bounded(MAX_EVENTS);
    let router = Router::start(config, secret, events)?;
    std::thread::spawn(move || {
        for (_, event) in told {
            let event: RouterEvent = event;
            let sent = frame::encode_long(&event).and_then(|bytes| out.write_all(&bytes));
            if sent.is_err() {
                // The reader finds the connection over, too.
                return;
            }
        }
    });
    loop {
        match frame::read_long::<RouterCommand>(&mut input) {
            Ok(command) => router.command(command),
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(e) => return Err(e),
        }
    }
}
