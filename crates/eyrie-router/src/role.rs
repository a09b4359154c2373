//! A router in a process of its own.

use crate::{Config, RouterCommand, RouterEvent};
use crossbeam_channel::{bounded, Sender};
use eyrie_transport::role::{self, Follow};
use eyrie_transport::Stream;
use eyrie_wire::role_address::Addr;
use eyrie_wire::RouterId;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;

/// Serves until the connection to the controller ends and there is no other one to `follow`. The
/// first message is the router's [`Config`]; `start` starts it, and returns what carries out its
/// commands.
///
/// # Errors
/// When the router cannot be started, or the controller sends something that is no message.
pub fn serve<Do: FnMut(RouterCommand)>(
    first: (Stream, Addr),
    follow: Option<Follow>,
    start: impl FnOnce(Config, Sender<(RouterId, RouterEvent)>) -> io::Result<Do>,
) -> io::Result<()> {
    role::serve(first, follow, |config: Config| {
        // On the host of a node the directory does not exist yet.
        let mut dir = DirBuilder::new();
        dir.recursive(true).mode(0o700).create(&config.spill_dir)?;
        let (events, received) = bounded(role::MAX_EVENTS);
        Ok((start(config, events)?, received.into_iter().map(|(_, event)| event)))
    })
}
