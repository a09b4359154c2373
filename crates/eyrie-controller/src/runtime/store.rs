//! The job's stores: threads of this process, or processes of their own.

use super::link::{encode_long, JournalProgress, Session};
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
    Apart(Session),
}

impl JobStore {
    /// Asks the store to do something; what comes of it is an event.
    ///
    /// # Errors
    /// What could not be done, for users, where it is known at once.
    pub fn command(
        &mut self,
        progress: JournalProgress,
        command: StoreCommand,
    ) -> Result<(), String> {
        match self {
            JobStore::Here(role) => role.command(command),
            JobStore::Apart(session) => {
                session.send(progress, encode_long(&command));
                Ok(())
            }
        }
    }

    /// What goes between the controller and a store in a process of its own.
    pub fn session(&mut self) -> Option<&mut Session> {
        match self {
            JobStore::Apart(session) => Some(session),
            JobStore::Here(_) => None,
        }
    }
}
