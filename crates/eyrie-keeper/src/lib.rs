//! The keeper of the ledgers of a job on one host. It takes the place of a router: the same
//! configuration, commands and events. It makes the file through which ranks send each other
//! messages, gives it to the ranks that may have it, says how much each may use, and releases what
//! no image needs. It is not on the way of any message: a rank needs it to start, and when its
//! ledger is full. It must never let two processes write one region.

mod core;
mod files;
mod huge_pages;
mod mailbox;
mod owner;
mod process;
mod saved;
mod server;
mod spill_files;

use crate::core::{Core, Head};
use crossbeam_channel::Sender;
use eyrie_router::space::Bounds;
use eyrie_router::{Config, RouterCommand, RouterEvent, SavedAt};
use eyrie_transport::server::listen;
use eyrie_wire::auth::Secret;
use eyrie_wire::keeper::Ledgers;
use eyrie_wire::role_address::Bind;
use eyrie_wire::{Incarnation, RouterId};
use files::{Files, Mapping};
use mailbox::{Input, Mailbox};
use owner::Owner;
pub use saved::verify;
use saved::Saved;
use server::Server;
use spill_files::SpillFiles;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

/// Whether a job of so many ranks can have ledgers here, which together use `log_memory` bytes.
///
/// # Errors
/// Why not, in words for users.
pub fn check(ranks: u32, log_memory: u64) -> io::Result<()> {
    files::check_addresses()?;
    let ledgers = files::lie(ranks, log_memory, 0).map_err(io::Error::other)?;
    let files = Files::create(ledgers)?;
    Mapping::new(&files.writable, ledgers).map(drop)
}

/// A running keeper, a thread of its own. Dropping it stops it: ranks keep what they have mapped.
pub struct Keeper {
    mailbox: Arc<Mailbox>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    /// Makes the ledgers, binds the address and starts. The first event is
    /// [`RouterEvent::Listening`].
    ///
    /// # Errors
    /// In words for users, when ledgers cannot be had here: the address is not one of this host's,
    /// there is no memfd, or there are too few addresses. When what was saved cannot be read. The
    /// caller adds how to do without ledgers.
    pub fn start(
        config: Config,
        secret: Secret,
        events: Sender<(RouterId, RouterEvent)>,
    ) -> io::Result<Keeper> {
        if !matches!(config.listen, Bind::Unix(_)) {
            let text = "ledgers need a Unix socket, because descriptors go over it";
            return Err(io::Error::new(io::ErrorKind::Unsupported, text));
        }
        let saved = match &config.saved {
            None => None,
            Some(SavedAt::File(path)) => Some(Saved::open(path)?),
            Some(SavedAt::Controller(_)) => {
                let text = "saved ledgers are read from a file of this host";
                return Err(io::Error::new(io::ErrorKind::Unsupported, text));
            }
        };
        let ledgers = lie(&config, saved.as_ref().map(|saved| saved.head))?;
        let files = Files::create(ledgers)?;
        let mapping = Mapping::new(&files.writable, ledgers)?;
        // SAFETY: the owner has the core that uses the regions, and drops it before the mapping.
        // Where there is no core because of an error, they are gone as well.
        let regions = unsafe { mapping.regions() };
        let incarnations = incarnations(&config);
        let mut spilled = SpillFiles::new(config.spill_dir.clone(), ledgers.ranks);
        let bytes = ledgers.region_bytes;
        let log = Bounds { memory: config.log_memory, disk: config.log_disk };
        let core = match saved {
            None => Core::new(regions, bytes, log, &incarnations),
            Some(saved) => saved.read(|mut from| {
                Core::restored(regions, bytes, log, &incarnations, &mut from, &mut spilled)
            })?,
        };
        let mailbox = Arc::new(Mailbox::new()?);
        let addr = listen(&config.listen, Arc::new(Server::new(secret, Arc::clone(&mailbox))))?;
        // The thread that starts the keeper has the other end.
        let _ = events.send((config.id, RouterEvent::Listening(addr)));
        let owned = Arc::clone(&mailbox);
        let owner =
            Owner::new((core, mapping), (files, ledgers, spilled), owned, (config.id, events));
        let thread = std::thread::Builder::new().name("keeper".into());
        let thread = thread.spawn(move || owner.run())?;
        Ok(Keeper { mailbox, thread: Some(thread) })
    }

    /// Gives the keeper a command; its results are events.
    pub fn command(&self, command: RouterCommand) {
        self.mailbox.put(Input::Command(command));
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.mailbox.put(Input::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// How the ledgers lie in their file. Regions are as large as those that were saved, or larger.
fn lie(config: &Config, saved: Option<Head>) -> io::Result<Ledgers> {
    let ranks = config.is_primary.len() as u32;
    let invalid = |what| io::Error::new(io::ErrorKind::InvalidInput, what);
    if let Some(head) = saved.filter(|head| head.ranks != u64::from(ranks)) {
        return Err(invalid(format!("{} ledgers were saved, and the job has {ranks}", head.ranks)));
    }
    let least = saved.map_or(0, |head| head.region_bytes);
    files::lie(ranks, config.log_memory, least).map_err(invalid)
}

/// For each rank the incarnation that may connect: the first where none is given.
fn incarnations(config: &Config) -> Vec<Incarnation> {
    let mut all = config.incarnations.clone();
    all.resize(config.is_primary.len(), Incarnation(1));
    all
}
