//! What the machine's commands do.

use super::job::Job;
use super::users;
use crate::inject::Fault;
use crate::machine::{Command, Event};
use eyrie_router::RouterCommand;
use eyrie_store::role::StoreCommand;
use eyrie_wire::control::{StartRank, Stream, ToAgent};
use eyrie_wire::{ImageId, Node, RankInstance};

impl Job {
    pub fn obey(&mut self, command: Command) {
        match &command {
            Command::Start { .. }
            | Command::StartRole { .. }
            | Command::StopRole { .. }
            | Command::Directory(_)
            | Command::Kill { .. }
            | Command::Disconnect(_)
            | Command::Fence(_)
            | Command::Recover(_)
            | Command::Inject(_)
            | Command::End { .. } => tracing::info!(?command),
            Command::Heartbeat { .. } => tracing::trace!(?command),
            _ => tracing::debug!(?command),
        }
        match command {
            Command::Start { node, instance, image } => self.start(node, instance, image),
            Command::StartRole { node, role, takes_over } => {
                self.start_role(node, role, takes_over)
            }
            Command::StopRole { node, role } => self.send(node, &ToAgent::StopRole(role)),
            Command::Directory(directory) => self.publish(directory),
            Command::Kill { node, instance } => self.send(node, &ToAgent::Kill(instance)),
            Command::Capture { node, instance, image, mode } => {
                self.send(node, &ToAgent::Capture { instance, image, mode })
            }
            Command::Pmi { entries, barriers } => {
                let frame = super::link::encode(&ToAgent::Pmi { entries, barriers });
                self.links.values().for_each(|link| link.send_frame(frame.clone()));
            }
            Command::Heartbeat { node, n } => self.send(node, &ToAgent::Heartbeat { n }),
            Command::Disconnect(node) => {
                self.admission.refuse_node(node);
                // Dropping the link ends the connection.
                self.links.remove(&node);
            }
            Command::Fence(instance) => {
                self.tell_store(StoreCommand::Present(instance));
                self.determinants.begin(instance);
                self.routers.command_all(&RouterCommand::Fence(instance));
            }
            Command::Recover(instance) => {
                let determinants = self.determinants.take(instance);
                let home = self.directory.home(instance.rank);
                self.routers.command(home, RouterCommand::Recover { instance, determinants });
            }
            Command::Truncate { rank, clock, rsn } => {
                self.routers.command_all(&RouterCommand::Truncate { rank, clock, rsn });
            }
            Command::DiscardImage { rank, image } => {
                self.tell_store(StoreCommand::Discard { rank, image })
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

    pub fn send(&self, node: Node, message: &ToAgent) {
        if let Some(link) = self.links.get(&node) {
            link.send(message);
        }
    }

    pub fn tell_store(&mut self, command: StoreCommand) {
        if let Err(text) = self.store.command(command) {
            self.events.push_back(Event::Note(text));
        }
    }

    fn start(&self, node: Node, instance: RankInstance, image: Option<ImageId>) {
        let start = StartRank {
            instance,
            size: self.options.ranks,
            directory: self.directory_of(node),
            kvsname: self.kvsname.clone(),
            program: self.program.clone(),
            image,
            stdin: instance.rank == 0,
            leftovers: self.shared[instance.rank as usize].iter().cloned().collect(),
        };
        self.send(node, &ToAgent::Start(Box::new(start)));
    }

    /// Sends a piece of standard input to whoever waits for it, when there is one.
    pub fn send_stdin(&mut self) {
        let Some((node, instance, offset)) = self.stdin_wanted else { return };
        let Some((bytes, eof)) = self.stdin.piece(offset) else { return };
        self.send(node, &ToAgent::Stdin { instance, offset, bytes, eof });
        self.stdin_wanted = None;
    }

    fn show_output(&mut self, instance: RankInstance, stream: Stream, known: u64, end: u64) {
        let Some((node, mut bytes)) = self.output.take() else { return };
        bytes.drain(..(known as usize).min(bytes.len()));
        let shown = ToAgent::OutputShown { instance, stream, offset: end };
        let link = self.links.get(&node).cloned();
        self.printer.output(stream, bytes, link.map(|l| (l, shown)));
    }

    fn inject(&mut self, fault: Fault) {
        match fault {
            Fault::KillRank(rank) => {
                if let Some((instance, node, _)) = self.machine.rank_states().nth(rank as usize) {
                    self.send(node, &ToAgent::Kill(instance));
                }
            }
            Fault::KillNode(node) => {
                if !self.children.kill(node) {
                    self.send(node, &ToAgent::Die);
                }
            }
            Fault::FreezeNode(node) => self.send(node, &ToAgent::Freeze),
            Fault::DropConnection(rank) => {
                self.routers.command_all(&RouterCommand::BreakConnections(rank));
            }
        }
    }
}
