//! What the machine's commands do.

use super::determinants::Told;
use super::inbound::{Heard, Inbound};
use super::job::Job;
use super::link::{encode, Session};
use super::output::Piece;
use super::roles::peers::THE_STORE;
use super::users;
use crate::inject::Fault;
use crate::machine::{Command, Source, StoreId};
use eyrie_router::RouterCommand;
use eyrie_store::role::StoreCommand;
use eyrie_transport::Addr;
use eyrie_wire::control::{ImageAt, Role, RoleKind, StandardStream, StartRank, ToAgent};
use eyrie_wire::{Node, RankInstance};
use std::sync::Arc;

impl Job {
    pub fn obey(&mut self, command: Command) {
        match &command {
            Command::Start { .. }
            | Command::StartRole { .. }
            | Command::StopRole { .. }
            | Command::Directory(_)
            | Command::Kill { .. }
            | Command::Disconnect(_)
            | Command::Release(_)
            | Command::Fence(_)
            | Command::Recover(_)
            | Command::Inject(_)
            | Command::End { .. } => tracing::info!(?command),
            Command::Heartbeat { .. } => tracing::trace!(?command),
            _ => tracing::debug!(?command),
        }
        match command {
            Command::Start { node, instance, from } => self.start(node, instance, from),
            Command::StartRole { node, role, takes_over } => {
                self.start_role(node, role, takes_over)
            }
            Command::StopRole { node, role } => self.send(node, &ToAgent::StopRole(role)),
            Command::Directory(directory) => self.publish(directory),
            Command::Kill { node, instance } => self.send(node, &ToAgent::Kill(instance)),
            Command::Capture { node, instance, image, store, mode, hold } => {
                let image = ImageAt { image, store: self.store_address(store) };
                self.send(node, &ToAgent::Capture { instance, image, mode, hold })
            }
            Command::GoOn { node, instance, image } => {
                self.send(node, &ToAgent::GoOn { instance, image })
            }
            Command::Slow { node, instance, share } => {
                self.send(node, &ToAgent::Slow { instance, share })
            }
            Command::Prepare { node, instance, from } => {
                let start = self.start_rank(instance, Some(from));
                self.send(node, &ToAgent::Prepare(Box::new(start)));
            }
            Command::Unprepare { node, instance } => self.send(node, &ToAgent::Unprepare(instance)),
            Command::Pmi { node: Some(node), entries, barriers } => {
                self.send(node, &ToAgent::Pmi { entries, barriers });
            }
            Command::Pmi { node: None, entries, barriers } => {
                let frame = encode(&ToAgent::Pmi { entries, barriers });
                let progress = self.journal.progress();
                self.links.values_mut().for_each(|session| session.send(progress, frame.clone()));
            }
            Command::Signal { n, signal } => {
                let frame = encode(&ToAgent::Signal { n, signal });
                let progress = self.journal.progress();
                self.links.values_mut().for_each(|session| session.send(progress, frame.clone()));
            }
            Command::Heartbeat { node, n } => {
                if let Some(session) = self.links.get(&node) {
                    session.send_passing(encode(&ToAgent::Heartbeat { n }));
                }
            }
            Command::Measure { node, n, over } => self.send(node, &ToAgent::Measure { n, over }),
            Command::Seek(nodes) => self.seek(nodes),
            Command::Release(node) => self.send(node, &ToAgent::Shutdown),
            Command::Disconnect(node) => {
                self.admission.refuse_node(node);
                // Dropping the link ends the connection.
                self.links.remove(&node);
                self.journal.lose(node);
            }
            Command::Fence(instance) => {
                for store in self.roles.stores() {
                    self.tell_store(store, StoreCommand::Present(instance));
                }
                self.determinants.begin(instance);
                self.roles.tell_routers(self.journal.progress(), &RouterCommand::Fence(instance));
            }
            Command::Recover(instance) => {
                let Told { determinants, observed } = self.determinants.take(instance);
                let home = self.directory.home(instance.rank);
                let recover = RouterCommand::Recover { instance, determinants, observed };
                self.roles.tell_router(self.journal.progress(), home, recover);
            }
            Command::Truncate { rank, clock, rsn, observed } => {
                self.roles.tell_routers(
                    self.journal.progress(),
                    &RouterCommand::Truncate { rank, clock, rsn, observed },
                );
            }
            Command::CopyImage { store, from, instance, image } => {
                // The machine names stores that have said where they listen.
                if let Ok(from) = self.store_address(from).parse() {
                    self.tell_store(store, StoreCommand::Copy { instance, image, from });
                }
            }
            Command::DiscardImage { store, rank, image } => {
                self.tell_store(store, StoreCommand::Discard { rank, image })
            }
            Command::SendStdin { node, instance, offset } => {
                self.stdin_wanted = Some((node, instance, offset));
                self.send_stdin();
            }
            Command::TruncateStdin(offset) => self.stdin.truncate(offset),
            Command::Show { instance, stream, known, end } => {
                self.show_output(instance, stream, known, end)
            }
            Command::Trace { node, request, instance } => {
                self.send(node, &ToAgent::Trace { request, instance })
            }
            Command::Inject(fault) => self.inject(fault),
            Command::SaveRouters => self.save_routers(),
            Command::SaveJob => self.save_job(),
            Command::Record(record) => self.record(record),
            Command::Answer { request, answer } => {
                if let Some(user) = self.users.waiting.remove(&request) {
                    // The user may have left.
                    let _ = user.send(users::in_json(&answer));
                }
            }
            Command::End { code } => self.end = Some(code),
        }
    }

    pub fn send(&mut self, node: Node, message: &ToAgent) {
        if let Some(session) = self.links.get_mut(&node) {
            session.send(self.journal.progress(), encode(message));
        }
    }

    /// Tells a store. A store that is lost is told nothing: its session would keep it for ever.
    pub fn tell_store(&mut self, store: StoreId, command: StoreCommand) {
        let is_lost = !self.machine.is_current(Role::first(RoleKind::Store, store));
        let archives = self.is_archive(store);
        // What an earlier controller has had done here is done.
        if is_lost && !archives || self.is_replaying && archives {
            return;
        }
        let told = self.roles.tell_store(self.journal.progress(), store, command);
        if let Err(text) = told {
            self.hear_later(Heard::Note(text));
        }
    }

    /// Whether it is the store beside the controller of a job whose other stores are on nodes.
    pub fn is_archive(&self, store: StoreId) -> bool {
        store == THE_STORE && self.options.has_archive()
    }

    /// Has something heard that comes of what this controller itself does: by way of the journal,
    /// as all else.
    pub fn hear_later(&self, heard: Heard) {
        let inbound = self.inbound.clone();
        // The main thread must not wait for itself. Nobody listens any more only while the job
        // ends.
        std::thread::spawn(move || drop(inbound.send(Inbound::Heard(heard))));
    }

    /// Where a store listens. The machine names none that has not said it.
    fn store_address(&self, store: StoreId) -> String {
        let addr = self.machine.store_on_node(store).or(self.store_addr.as_ref());
        addr.map_or(String::new(), Addr::to_string)
    }

    fn start(&mut self, node: Node, instance: RankInstance, from: Option<Source>) {
        let start = self.start_rank(instance, from);
        self.send(node, &ToAgent::Start(Box::new(start)));
    }

    fn start_rank(&self, instance: RankInstance, from: Option<Source>) -> StartRank {
        let at = |Source { image, store }| ImageAt { image, store: self.store_address(store) };
        StartRank {
            instance,
            beginning: match from {
                None => self.determinants.beginning(instance.rank),
                Some(_) => Vec::new(),
            },
            image: from.map(at),
            stdin: instance.rank == 0,
            leftovers: self.shared[instance.rank as usize].iter().cloned().collect(),
            signals: self.machine.signals().to_vec(),
        }
    }

    /// Sends a piece of standard input to whoever waits for it, when there is one.
    pub fn send_stdin(&mut self) {
        let Some((node, instance, offset)) = self.stdin_wanted else { return };
        let Some((bytes, eof)) = self.stdin.piece(offset) else { return };
        self.send(node, &ToAgent::Stdin { instance, offset, bytes, eof });
        self.stdin_wanted = None;
    }

    fn show_output(
        &mut self,
        instance: RankInstance,
        stream: StandardStream,
        known: u64,
        end: u64,
    ) {
        let Some((node, mut bytes)) = self.output.take() else { return };
        bytes.drain(..(known as usize).min(bytes.len()));
        let shown = ToAgent::OutputShown { instance, stream, offset: end };
        let link = self.links.get(&node).and_then(Session::link).cloned();
        let bytes: Arc<[u8]> = bytes.into();
        if self.is_replaying || self.journal.is_kept() {
            self.unwritten.add(stream, &bytes);
        }
        let piece = Piece { stream, bytes, shown: link.map(|link| (link, shown)) };
        // Another controller must write the same in the same order.
        self.held_output.push_back((self.journal.progress().position, piece));
        if self.is_replaying || !self.journal.is_kept() {
            self.let_output_out(u64::MAX);
        }
    }

    fn inject(&mut self, fault: Fault) {
        match fault {
            Fault::KillRank(rank) => {
                let state = self.machine.rank_states().nth(rank as usize);
                if let Some((instance, node, _)) = state {
                    self.send(node, &ToAgent::Kill(instance));
                }
            }
            Fault::KillNode(node) => {
                // Another controller, whose child it is not, must come to the same letters.
                if !self.children.kill(node) || self.journal.is_kept() {
                    self.send(node, &ToAgent::Die);
                }
            }
            Fault::FreezeNode(node) => self.send(node, &ToAgent::Freeze),
            Fault::DropConnection(rank) => {
                let breaking = RouterCommand::BreakConnections(rank);
                self.roles.tell_routers(self.journal.progress(), &breaking);
            }
        }
    }
}
