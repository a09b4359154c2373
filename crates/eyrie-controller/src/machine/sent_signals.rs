//! The signals that were sent to all ranks.

use super::io::{Command, ToPeer};
use super::outbox::Outbox;
use super::signal_names::in_words;
use eyrie_wire::control::{is_to_end, ToAgent};
use serde::{Deserialize, Serialize};

#[derive(Default, Serialize, Deserialize)]
pub struct Signals(Vec<u8>);

impl Signals {
    /// Of a job that goes on, to which these were sent.
    pub fn sent(sent: Vec<u8>) -> Signals {
        Signals(sent)
    }

    pub fn all(&self) -> &[u8] {
        &self.0
    }

    /// All ranks get a signal that `eyrie run` was sent, those that come back as well.
    pub fn send(&mut self, out: &mut Outbox, signal: u8) {
        if out.has_ended() {
            return;
        }
        let n = self.0.len() as u64;
        self.0.push(signal);
        if is_to_end(signal.into()) {
            let words = in_words(signal.into());
            out.note(format!(
                "all ranks get {words}; the job ends when they do, and by another one at once"
            ));
        }
        out.push(Command::Send(ToPeer::Agents(ToAgent::Signal { n, signal })));
    }

    /// Whether ranks were sent a signal that is to end them.
    pub fn are_to_end(&self) -> bool {
        self.0.iter().any(|signal| is_to_end((*signal).into()))
    }

    pub fn has_sent(&self, signal: i32) -> bool {
        self.0.iter().any(|sent| i32::from(*sent) == signal)
    }
}
