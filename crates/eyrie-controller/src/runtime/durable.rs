//! The journal of a running job: written after each batch of what was heard, and copied to hosts of
//! other nodes. What follows from it goes out behind it.

use super::job::Job;
use super::journal::COPIES;
use super::link::encode;
use crate::machine::redundancy::JournalCopies;
use crate::machine::Event;
use eyrie_wire::NodeId;
use std::io;

impl Job {
    /// Writes what was heard, and lets out what follows from it.
    pub fn write_journal(&mut self) {
        if !self.journal.is_kept() {
            return;
        }
        self.keep_copies();
        let flushed = self.journal.flush();
        self.shorten_journal();
        if let Err(e) = flushed.and_then(|()| self.send_pieces()) {
            self.lose_journal(&e);
        }
        self.let_out();
    }

    /// Copies are on other hosts than the controller: first on those without ranks.
    fn keep_copies(&mut self) {
        let Some(cluster) = &self.beginning.options.cluster else { return };
        if !self.journal.wants_copies() {
            return;
        }
        let elsewhere = self.machine.nodes_up_with_ranks();
        let elsewhere = elsewhere.filter(|(node, _)| !cluster.is_here(*node));
        let mut nodes = self.copies.possible(elsewhere);
        // A host that is drained may soon be switched off.
        let drained: Vec<NodeId> = self.machine.drained().collect();
        nodes.sort_by_key(|(node, ranks)| (drained.contains(node), *ranks > 0));
        self.journal.keep_on(nodes.into_iter().map(|(node, _)| node));
    }

    /// The machine hears when the number of copies changes.
    pub fn report_copies(&mut self) {
        let Some(cluster) =
            self.beginning.options.cluster.as_ref().filter(|_| self.journal.is_kept())
        else {
            return;
        };
        let here = self.agents.count_here();
        let nodes: Vec<NodeId> = self.journal.whole_copies().collect();
        let promised = cluster.hosts.len().saturating_sub(here).min(COPIES);
        let coming = self.journal.copies() - nodes.len();
        let copies = JournalCopies { promised, nodes, coming };
        if self.copies.is_new(&copies) {
            self.take(Event::JournalCopies(copies));
        }
    }

    fn send_pieces(&mut self) -> io::Result<()> {
        for (node, piece) in self.journal.pieces()? {
            self.agents.send_passing(node, encode(&piece));
        }
        Ok(())
    }

    /// So much of the journal is on the host of this node.
    pub fn journal_kept(&mut self, node: NodeId, kept: Result<u64, String>) {
        match kept {
            Ok(bytes) => {
                self.journal.kept(node, bytes);
                if let Err(e) = self.send_pieces() {
                    self.lose_journal(&e);
                }
            }
            Err(why) => {
                self.journal.lose(node);
                if !self.copies.refuse(node) {
                    // Pieces that were on their way there.
                    return self.let_out();
                }
                let text = format!("node {node} cannot keep a copy of the journal: {why}");
                self.take(Event::Note(text));
            }
        }
        self.let_out();
    }
}
