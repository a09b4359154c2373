//! Keeps a copy of the controller's journal when the controller asks for one.

use crate::journal::Journal;
use crate::node::Agent;
use eyrie_wire::control::FromAgent;
use std::io::{self, ErrorKind};

impl Agent {
    /// Keeps a piece of the controller's journal.
    pub fn keep_journal(&mut self, at: u64, bytes: &[u8], begins: bool, whole: bool) {
        let kept = self.try_to_keep(at, bytes, begins, whole).map_err(|e| e.to_string());
        if kept.is_err() {
            self.journal = None;
        }
        self.connection.send_passing(&FromAgent::JournalKept(kept));
    }

    fn try_to_keep(&mut self, at: u64, bytes: &[u8], begins: bool, whole: bool) -> io::Result<u64> {
        if begins {
            let dir = self.dir.as_ref().ok_or(ErrorKind::NotFound)?;
            self.journal = Some(Journal::begin(dir.path(), self.node, &self.secret, at)?);
        }
        self.journal.as_mut().ok_or(ErrorKind::NotFound)?.add(at, bytes, whole)
    }
}
