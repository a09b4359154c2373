//! The gateway of a domain: the router that has what ranks of this domain send to ranks of others
//! (`eyrie-router`), the port at which the gateways of other domains fetch that, and the couriers
//! that fetch what those have for the ranks of this one. It must never hand a message to anyone who
//! has not proven to be of the receiver's domain.

mod courier;
mod dial;
mod event_loop;
mod letters;
mod preamble;
pub mod role;
mod sockets;

use crossbeam_channel::Sender;
use event_loop::{Input, Loop, Mailbox};
use eyrie_router::{Config, Router, RouterCommand, RouterEvent};
use eyrie_wire::auth::Secret;
use eyrie_wire::role_address::Addr;
use eyrie_wire::RouterId;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

/// A running gateway. Dropping it stops it.
pub struct Gateway {
    router: Arc<Router>,
    mailbox: Arc<Mailbox>,
    port: u16,
    thread: Option<JoinHandle<()>>,
}

impl Gateway {
    /// Binds its addresses and starts. Its events are those of a router, and what comes from other
    /// domains.
    ///
    /// # Errors
    /// When an address is not available, the spill directory cannot be written, or `config` is not
    /// that of a gateway.
    pub fn start(
        config: Config,
        secret: Secret,
        events: Sender<(RouterId, RouterEvent)>,
    ) -> io::Result<Gateway> {
        let id = config.id;
        let ranks = config.is_primary.len();
        let Some(gateway) = config.gateway.clone() else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "this is no gateway"));
        };
        let listener = event_loop::bind(gateway.port)?;
        let port = match listener.addr()? {
            Addr::Tcp { at, .. } => at.port(),
            Addr::Unix(_) => gateway.port,
        };
        let router = Arc::new(Router::start(config, secret.clone(), events.clone())?);
        let mailbox = Arc::new(Mailbox::new()?);
        let out = event_loop::Out { router: Arc::clone(&router), id, events };
        let own = Loop::new(gateway.domains, ranks, listener, secret, out, Arc::clone(&mailbox))?;
        let thread = std::thread::Builder::new().name("gateway".into()).spawn(move || own.run())?;
        Ok(Gateway { router, mailbox, port, thread: Some(thread) })
    }

    /// The port at which it listens for other domains.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Gives the gateway a command; its results are events.
    pub fn command(&self, command: RouterCommand) {
        match command {
            RouterCommand::Directory(directory) => self.mailbox.put(Input::Directory(directory)),
            RouterCommand::ToDomain { domain, letter } => {
                self.mailbox.put(Input::Letter { domain, letter });
            }
            command => self.router.command(command),
        }
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.mailbox.put(Input::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
