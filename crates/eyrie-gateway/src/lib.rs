//! The gateway of a domain: the router that has what ranks of this domain send to ranks of others
//! (`eyrie-router`), the port at which the gateways of other domains fetch that, and the couriers
//! that fetch what those have for the ranks of this one. It must never hand a message to anyone who
//! has not proven to be of the receiver's domain.

mod blocks;
mod courier;
mod dial;
mod event_loop;
mod figures;
mod images;
mod letters;
mod line;
mod links;
mod listener;
mod mailbox;
mod preamble;
pub mod role;
mod sockets;
mod stalled;
mod strangers;
pub mod trial;
mod trunks;

use crossbeam_channel::Sender;
use event_loop::Loop;
use eyrie_router::{Config, Router, RouterCommand, RouterEvent};
use eyrie_transport::server;
use eyrie_wire::auth::Secret;
use eyrie_wire::role_address::Bind;
use eyrie_wire::RouterId;
use images::{ForStores, Images};
use mailbox::{Input, Mailbox};
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

/// A running gateway. Dropping it stops it.
pub struct Gateway {
    router: Arc<Router>,
    mailbox: Arc<Mailbox>,
    images: Arc<Images>,
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
        let listener = listener::bind(gateway.port)?;
        let port = listener::port_of(&listener)?.unwrap_or(gateway.port);
        let for_stores = beside(&config.listen);
        let router = Arc::new(Router::start(config, secret.clone(), events.clone())?);
        let images = Arc::new(Images::new(secret.clone(), gateway.domains.clone()));
        let at = server::listen(&for_stores, Arc::new(ForStores(Arc::clone(&images))))?;
        // The thread that starts this gateway has the other end.
        let _ = events.send((id, RouterEvent::ImagesAt(at)));
        let mailbox = Arc::new(Mailbox::new()?);
        let out = event_loop::Out {
            router: Arc::clone(&router),
            images: Arc::clone(&images),
            id,
            events,
        };
        let own = Loop::new(gateway.domains, ranks, listener, secret, out, Arc::clone(&mailbox))?;
        let thread = std::thread::Builder::new().name("gateway".into()).spawn(move || own.run())?;
        Ok(Gateway { router, mailbox, images, port, thread: Some(thread) })
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
            RouterCommand::Stores { stores, to } => self.images.set_stores(stores, to),
            RouterCommand::Domains(domains) => {
                self.images.set_domains(domains.clone());
                self.mailbox.put(Input::Domains(domains));
            }
            // The loop asks the router, after it has told its own.
            RouterCommand::Stats => self.mailbox.put(Input::Figures),
            RouterCommand::Fetch(on) => self.mailbox.put(Input::Fetch(on)),
            command => self.router.command(command),
        }
    }
}

/// Where stores fetch images, beside where ranks connect.
fn beside(ranks: &Bind) -> Bind {
    match ranks {
        Bind::Unix(path) => Bind::Unix(path.with_extension("images")),
        tcp @ Bind::Tcp { .. } => tcp.clone(),
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
