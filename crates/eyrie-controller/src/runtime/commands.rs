//! What the machine's commands do.

use super::determinants::Told;
use super::job::Job;
use super::link::encode;
use super::users;
use crate::inject::Fault;
use crate::machine::{Command, Event, Source};
use eyrie_router::RouterCommand;
use eyrie_store::role::StoreCommand;
use eyrie_wire::control::{ImageAt, StartRank, ToAgent};
use eyrie_wire::{Node, RankInstance};

impl Job {
    /// Hands an event to the machine and does what it says.
    pub fn tell(&mut self, event: Event) {
        self.events.push_back(event);
        while let Some(event) = self.events.pop_front() {
            match &event {
                Event::Tick | Event::Heartbeat { .. } => tracing::trace!(?event),
                _ => tracing::debug!(?event),
            }
            for command in self.machine.handle(self.clock.time(), event) {
                self.carry_out(command);
            }
        }
    }

    fn carry_out(&mut self, command: Command) {
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
                self.agents.send_all(progress, &frame);
            }
            Command::Signal { n, signal } => {
                let frame = encode(&ToAgent::Signal { n, signal });
                let progress = self.journal.progress();
                self.agents.send_all(progress, &frame);
            }
            Command::Heartbeat { node, n } => {
                self.agents.send_passing(node, encode(&ToAgent::Heartbeat { n }));
            }
            Command::Measure { node, n, over } => self.send(node, &ToAgent::Measure { n, over }),
            Command::Seek(nodes) => self.seek(nodes),
            Command::Release(node) => self.send(node, &ToAgent::Shutdown),
            Command::Disconnect(node) => {
                self.admission.refuse_node(node);
                // Dropping the link ends the connection.
                self.agents.remove(node);
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
                let home = self.whereabouts.directory().home(instance.rank);
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
                self.stdin.want(node, instance, offset);
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
                self.users.answer(request, users::in_json(&answer));
            }
            Command::End { code } => self.end.come(code),
        }
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

    /// Sends a piece of standard input to the rank that waits for it, when there is one.
    pub fn send_stdin(&mut self) {
        if let Some(((node, instance, offset), (bytes, eof))) = self.stdin.wanted_piece() {
            self.send(node, &ToAgent::Stdin { instance, offset, bytes, eof });
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
