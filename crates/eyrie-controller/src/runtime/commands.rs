//! What the machine's commands do.

use super::job::Job;
use super::users;
use crate::inject::Fault;
use crate::machine::{Command, Event, FromPeer, ToPeer};
use crate::record::LogLevel;
use eyrie_router::{RouterCommand, RouterEvent};
use eyrie_wire::control::{FromAgent, ToAgent};

/// Logs a message: what decides about ranks and roles at a level that is always there.
fn log(to: &ToPeer) {
    match to {
        ToPeer::Agent(node, ToAgent::Start(start)) => {
            tracing::info!(%node, instance = %start.instance, image = ?start.image, "Start")
        }
        ToPeer::Agent(_, ToAgent::StopRole(_) | ToAgent::Kill(_) | ToAgent::Shutdown)
        | ToPeer::Routers(RouterCommand::Fence(_)) => tracing::info!(?to),
        ToPeer::Router(router, RouterCommand::Recover { instance, .. }) => {
            tracing::info!(%router, %instance, "Recover")
        }
        ToPeer::Agent(_, ToAgent::Heartbeat { .. }) => tracing::trace!(?to),
        // Its entries are many.
        ToPeer::Agent(_, ToAgent::Pmi { .. }) | ToPeer::Agents(ToAgent::Pmi { .. }) => {}
        ToPeer::Router(_, RouterCommand::ToDomain { domain, letter }) => {
            tracing::debug!(%domain, letter = letter.number, "ToDomain")
        }
        _ => tracing::debug!(?to),
    }
}

impl Job {
    /// Hands an event to the machine and does what it says.
    pub fn handle_event(&mut self, event: Event) {
        self.events.push_back(event);
        while let Some(event) = self.events.pop_front() {
            match &event {
                Event::Tick => tracing::trace!(?event),
                Event::From(FromPeer::Agent(_, FromAgent::Heartbeat { .. })) => {
                    tracing::trace!(?event)
                }
                // Not its bytes.
                Event::From(FromPeer::Agent(node, FromAgent::Output { instance, bytes, .. })) => {
                    tracing::trace!(%node, %instance, bytes = bytes.len(), "output")
                }
                Event::From(FromPeer::Router(_, RouterEvent::FromDomain { domain, letter })) => {
                    tracing::debug!(%domain, letter = letter.number, "FromDomain")
                }
                // Nor all that a router holds of a rank.
                Event::From(FromPeer::Router(role, RouterEvent::Fenced { instance, .. })) => {
                    tracing::debug!(%role, %instance, "fenced")
                }
                _ => tracing::debug!(?event),
            }
            for command in self.machine.handle(self.clock.time(), event) {
                self.carry_out(command);
            }
        }
    }

    fn carry_out(&mut self, command: Command) {
        match &command {
            Command::StartRole { .. }
            | Command::Directory(_)
            | Command::Disconnect(_)
            | Command::StartDomain(_)
            | Command::Inject(_)
            | Command::End { .. } => tracing::info!(?command),
            Command::Send(to) => log(to),
            // Not its bytes.
            Command::Show { .. } | Command::Print { .. } => {}
            _ => tracing::debug!(?command),
        }
        match command {
            Command::Send(to) => self.send_to(to),
            Command::StartRole { node, role, takes_over } => {
                self.start_role(node, role, takes_over)
            }
            Command::Directory(directory) => self.publish(directory),
            Command::Seek(nodes) => self.seek(nodes),
            Command::Disconnect(node) => {
                self.admission.refuse_node(node);
                // Dropping the link ends the connection.
                self.agents.remove(node);
                self.journal.lose(node);
            }
            Command::SendStdin { node, instance, offset } => {
                self.stdin.want(node, instance, offset);
                self.send_stdin();
            }
            Command::TruncateStdin(offset) => self.stdin.truncate(offset),
            Command::Show { node, instance, stream, bytes, end } => {
                self.show_output(node, instance, stream, bytes, end)
            }
            Command::Print { from, stream, bytes } => self.print_of_domain(from, stream, bytes),
            Command::Line { is_error, text } => {
                let level = if is_error { LogLevel::Error } else { LogLevel::Normal };
                self.show_here(level, &text);
            }
            Command::OpenOutput => self.open_output(),
            Command::TakeOutput => self.take_output(),
            Command::StartDomain(start) => self.start_domain(*start),
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

    /// Sends a piece of standard input to the rank that waits for it, when there is one.
    pub fn send_stdin(&mut self) {
        if let Some(((node, instance, offset), (bytes, eof))) = self.stdin.wanted_piece() {
            self.send(node, &ToAgent::Stdin { instance, offset, bytes, eof });
        }
    }

    fn inject(&mut self, fault: Fault) {
        match fault {
            Fault::KillRank(rank) => {
                let state = self.machine.rank_states().find(|(of, ..)| of.rank == rank);
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
                self.send_to(ToPeer::Routers(breaking));
            }
        }
    }
}
