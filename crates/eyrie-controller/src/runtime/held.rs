//! What waits until the journal is safe: letters, output of ranks and events. It goes out here, in
//! order.

use super::job::Job;
use super::output::{Piece, Shown};
use eyrie_wire::control::{StandardStream, ToAgent};
use eyrie_wire::{DomainId, NodeId, RankInstance};
use std::sync::Arc;

impl Job {
    /// Lets out what waited until the journal was safe so far.
    pub fn let_out(&mut self) {
        let durable =
            if self.journal.is_kept() { self.journal.progress().durable } else { u64::MAX };
        self.sessions().for_each(|session| session.release(durable));
        self.outlet.let_out(durable);
        self.let_events_out(durable);
    }

    /// Shows what the machine says is new of the output that has arrived.
    pub fn show_output(
        &mut self,
        node: NodeId,
        instance: RankInstance,
        stream: StandardStream,
        bytes: Vec<u8>,
        end: u64,
    ) {
        let shown = ToAgent::OutputShown { instance, stream, offset: end };
        let link = self.agents.session(node).and_then(|session| session.link()).cloned();
        let bytes: Arc<[u8]> = bytes.into();
        let shown = link.map(|link| Shown::Agent(link, shown));
        self.print(Piece { stream, bytes, shown });
    }

    /// Shows output of another domain, or what another one was to show.
    pub fn print_of_domain(
        &mut self,
        from: Option<(DomainId, u64)>,
        stream: StandardStream,
        bytes: Vec<u8>,
    ) {
        let shown = from.map(|(domain, end)| self.outlet.shown_of(domain, end));
        self.print(Piece { stream, bytes: bytes.into(), shown });
    }

    fn print(&mut self, piece: Piece) {
        let position = self.journal.progress().position;
        let is_kept = self.journal.is_kept();
        // Another controller must write the same in the same order.
        self.outlet.hold(position, piece, self.is_replaying || is_kept);
        if self.is_replaying || !is_kept {
            self.outlet.let_out(u64::MAX);
        }
    }
}
