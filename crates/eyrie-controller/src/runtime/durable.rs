//! The journal of a running job: written after each batch of what was heard, and copied to hosts of
//! other nodes. What follows from it goes out behind it.

use super::inbound::Heard;
use super::job::Job;
use super::journal::{Journal, COPIES};
use super::link::{encode, Session};
use super::output::Piece;
use crate::machine::redundancy::JournalCopies;
use eyrie_wire::Node;
use std::io;
use std::time::{Duration, Instant};

/// After so long a host that could not keep a copy may have room again.
const ROOM_AGAIN: Duration = Duration::from_secs(60);

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
        let Some(cluster) = &self.options.cluster else { return };
        if !self.journal.wants_copies() {
            return;
        }
        self.no_journal.retain(|_, since| since.elapsed() < ROOM_AGAIN);
        let mut nodes: Vec<(Node, u32)> = self.machine.nodes_up_with_ranks().collect();
        nodes.retain(|(node, _)| !cluster.is_here(*node) && !self.no_journal.contains_key(node));
        // A host that is drained may soon be switched off.
        let drained: Vec<Node> = self.machine.drained().collect();
        nodes.sort_by_key(|(node, ranks)| (drained.contains(node), *ranks > 0));
        self.journal.keep_on(nodes.into_iter().map(|(node, _)| node));
    }

    /// The machine hears when the number of copies changes.
    pub fn tell_of_copies(&mut self) {
        let Some(cluster) = self.options.cluster.as_ref().filter(|_| self.journal.is_kept()) else {
            return;
        };
        let here = self.home.map_or(0, |(_, here)| here);
        let nodes: Vec<Node> = self.journal.whole_copies().collect();
        let promised = cluster.hosts.len().saturating_sub(here).min(COPIES);
        let coming = self.journal.copies() - nodes.len();
        let copies = JournalCopies { promised, nodes, coming };
        if copies != self.journal_copies {
            self.journal_copies = copies.clone();
            self.take(Heard::JournalCopies(copies));
        }
    }

    fn send_pieces(&mut self) -> io::Result<()> {
        for (node, piece) in self.journal.pieces()? {
            if let Some(session) = self.links.get(&node) {
                session.send_passing(encode(&piece));
            }
        }
        Ok(())
    }

    /// So much of the journal is on the host of this node.
    pub fn journal_kept(&mut self, node: Node, kept: Result<u64, String>) {
        match kept {
            Ok(bytes) => {
                self.journal.kept(node, bytes);
                if let Err(e) = self.send_pieces() {
                    self.lose_journal(&e);
                }
            }
            Err(why) => {
                self.journal.lose(node);
                if self.no_journal.insert(node, Instant::now()).is_some() {
                    // Pieces that were on their way there.
                    return self.let_out();
                }
                let text = format!("node {node} cannot keep a copy of the journal: {why}");
                self.take(Heard::Note(text));
            }
        }
        self.let_out();
    }

    /// Nobody can go on with this job any more.
    pub fn lose_journal(&mut self, error: &io::Error) {
        self.journal = Journal::default();
        self.let_out();
        let text = format!(
            "the journal cannot be written: {error}; the job runs on, but not without this controller"
        );
        self.take(Heard::Note(text));
    }

    fn let_out(&mut self) {
        let durable = match self.journal.is_kept() {
            true => self.journal.progress().durable,
            false => u64::MAX,
        };
        self.sessions().for_each(|session| session.release(durable));
        self.let_output_out(durable);
        self.let_events_out(durable);
    }

    /// Hands output of ranks to the printer.
    pub fn let_output_out(&mut self, durable: u64) {
        while self.held_output.front().is_some_and(|(position, _)| *position <= durable) {
            if let Some((_, piece)) = self.held_output.pop_front() {
                self.let_piece_out(piece);
            }
        }
    }

    /// Hands a piece to the printer, unless somebody else is to show it.
    pub fn let_piece_out(&mut self, piece: Piece) {
        match &mut self.kept_output {
            Some(kept) => kept.take(piece),
            None => self.printer.output(piece),
        }
    }

    /// What goes between the controller and all others.
    pub fn sessions(&mut self) -> impl Iterator<Item = &mut Session> {
        self.links.values_mut().chain(self.roles.sessions())
    }
}
