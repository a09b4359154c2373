//! A router in a process of its own.

use crate::{Config, Router};
use crossbeam_channel::bounded;
use eyrie_transport::{role, Stream};
use eyrie_wire::auth::Secret;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;

/// Serves until the controller closes `stream`; the first message is the router's
/// [`Config`].
///
/// # Errors
/// When the router cannot be started or the connection breaks.
pub fn serve(stream: Stream, secret: Secret) -> io::Result<()> {
    role::serve(stream, |config: Config| {
        // On the host of a node nobody has made it.
        let mut dir = DirBuilder::new();
        dir.recursive(true).mode(0o700).create(&config.spill_dir)?;
        let (events, told) = bounded(role::MAX_EVENTS);
        let router = Router::start(config, secret, events)?;
        Ok((move |command| router.command(command), told.into_iter().map(|(_, event)| event)))
    })
}
