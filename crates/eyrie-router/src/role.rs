//! A router in a process of its own.

use crate::Router;
use crossbeam_channel::bounded;
use eyrie_transport::{role, Stream};
use eyrie_wire::auth::Secret;
use std::io;

/// Serves until the controller closes `stream`; the first message is the router's
/// [`Config`](crate::Config).
///
/// # Errors
/// When the router cannot be started or the connection breaks.
pub fn serve(stream: Stream, secret: Secret) -> io::Result<()> {
    role::serve(stream, |config| {
        let (events, told) = bounded(role::MAX_EVENTS);
        let router = Router::start(config, secret, events)?;
        Ok((move |command| router.command(command), told.into_iter().map(|(_, event)| event)))
    })
}
