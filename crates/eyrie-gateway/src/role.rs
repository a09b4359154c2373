//! A router in a process of its own, which is the gateway of its domain if its configuration says
//! so.

use crate::Gateway;
use eyrie_router::{Config, Router, RouterCommand};
use eyrie_transport::role::Follow;
use eyrie_transport::Stream;
use eyrie_wire::auth::Secret;
use eyrie_wire::role_address::Addr;
use std::io;

/// A router of either kind.
enum Started {
    Home(Router),
    Gateway(Gateway),
}

/// Serves until the connection to the controller ends and there is no other one to `follow`. The
/// first message is the router's [`Config`].
///
/// # Errors
/// When the router cannot be started, or the controller sends something that is no message.
pub fn serve(first: (Stream, Addr), follow: Option<Follow>, secret: Secret) -> io::Result<()> {
    eyrie_router::role::serve(first, follow, |config: Config, events| {
        let started = match config.gateway {
            Some(_) => Started::Gateway(Gateway::start(config, secret, events)?),
            None => Started::Home(Router::start(config, secret, events)?),
        };
        Ok(move |command: RouterCommand| match &started {
            Started::Home(router) => router.command(command),
            Started::Gateway(gateway) => gateway.command(command),
        })
    })
}
