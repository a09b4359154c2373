//! The job's stores: threads of this process, or processes of their own.

use super::link::{Link, Remote};
use crate::machine::StoreId;
use eyrie_store::role::{StoreCommand, StoreRole};
use std::sync::Arc;

/// The number of the store that runs beside the controller.
pub const THE_STORE: StoreId = 0;

/// The store from the controller's side.
pub enum JobStore {
    /// Threads of this process.
    Here(Arc<StoreRole>),
    /// A process.
    Apart(Remote),
}

impl JobStore {
    /// Asks the store to do something; what comes of it is an event.
    ///
    /// # Errors
    /// What could not be done, for users, where it is known at once.
    pub fn command(&mut self, command: StoreCommand) -> Result<(), String> {
        match self {
            JobStore::Here(role) => role.command(command),
            JobStore::Apart(remote) => {
                remote.send(&command);
                Ok(())
            }
        }
    }

    /// The process of the store has connected.
    pub fn connected(&mut self, link: Link) {
        if let JobStore::Apart(remote) = self {
            remote.connected(link);
        }
    }
}
