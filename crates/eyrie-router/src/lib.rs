//! The router: gives each message to its ranks a place in one total order, logs it, then delivers
//! it. It also holds determinants. A message must never reach a rank before it is logged.

mod config;
pub mod conn;
mod event_loop;
pub mod hashed;
pub mod protocol;
pub mod role;
mod saved;
pub mod space;
pub mod spin;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod trunk;

pub use config::{Config, Gateway};
use conn::Accepted;
use crossbeam_channel::Sender;
use event_loop::{Loop, Mailbox, Order};
use eyrie_wire::auth::Secret;
use eyrie_wire::RouterId;
pub use protocol::{LineFigures, RouterCommand, RouterEvent, SavedAt, Stats, BEGINNING};
pub use saved::verify;
use std::io;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// A running router, a thread of its own. Dropping it stops it.
pub struct Router {
    mailbox: Arc<Mailbox>,
    thread: Option<JoinHandle<()>>,
}

impl Router {
    /// Binds the address and starts.
    ///
    /// # Errors
    /// When the address is not available or the spill directory cannot be written.
    pub fn start(
        config: Config,
        secret: Secret,
        events: Sender<(RouterId, RouterEvent)>,
    ) -> io::Result<Router> {
        let flags = rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK;
        let wake = rustix::event::eventfd(0, flags)?;
        let mailbox = Arc::new(Mailbox { orders: Mutex::new(Vec::new()), wake });
        let name = format!("router-{}", config.id);
        let router = Loop::new(config, secret, events, mailbox.clone())?;
        let thread = std::thread::Builder::new().name(name).spawn(move || router.run())?;
        Ok(Router { mailbox, thread: Some(thread) })
    }

    fn order(&self, order: Order) {
        if let Ok(mut orders) = self.mailbox.orders.lock() {
            orders.push(order);
        }
        // The counter cannot overflow: the loop resets it.
        let _ = rustix::io::write(&self.mailbox.wake, &1u64.to_ne_bytes());
    }

    /// Gives the router a connection from another domain that was accepted elsewhere.
    pub fn accept(&self, accepted: Accepted) {
        self.order(Order::Accept(accepted));
    }

    /// Gives the router a command; its results are events.
    pub fn command(&self, command: RouterCommand) {
        self.order(Order::Command(command));
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        self.order(Order::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
