//! What arrives from the threads around the main thread: messages for the journal, connections that
//! begin and end, signals.

use super::inbound::{Heard, Inbound};
use super::job::Job;
use super::link::{encode, Link};
use super::network;
use crate::machine::signal_names::in_words;
use crate::machine::{Event, FromPeer, Peer};
use eyrie_interface::answer::refusal;
use eyrie_interface::Request;
use eyrie_transport::role::Said;
use eyrie_wire::control::{is_to_end, FromAgent, Role, StandardStream, ToAgent};
use eyrie_wire::NodeId;
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGTERM, SIGUSR1};

impl Job {
    pub fn hear(&mut self, message: Inbound) {
        match message {
            Inbound::Heard(Heard::From(_, FromPeer::Router(role, told))) if told.is_passing() => {
                self.hear_figures(role, told);
            }
            Inbound::Heard(Heard::From(_, FromPeer::Agent(node, FromAgent::Sampled(figures)))) => {
                self.sampled(node, *figures);
            }
            Inbound::Heard(heard) => self.take(heard),
            Inbound::AgentUp { node, link, heard } => self.agent_connected(node, link, heard),
            Inbound::RoleUp { role, link, heard } => self.role_connected(role, link, heard),
            Inbound::Gone { by, link, silent } => self.link_ended(by, link, silent),
            Inbound::Confirmed { by, heard } => {
                let confirmed = self.session(by).map_or(Ok(()), |session| session.confirm(heard));
                self.must_fit(by, confirmed);
            }
            Inbound::User { request, answer } => match request {
                // They change nothing.
                Request::Status => self.figures.wait_for_status(&self.roles, answer),
                Request::Traffic => self.figures.wait_for_traffic(&self.roles, answer),
                Request::NodeTraffic => {
                    self.figures.wait_for_node_traffic(&self.roles, answer);
                }
                Request::Health => {
                    // The user may have left.
                    let _ = answer.send(self.health());
                }
                Request::Network => {
                    // The user may have left.
                    let _ = answer.send(network::network(&self.machine));
                }
                Request::Routes { pairs } => {
                    // The user may have left.
                    let _ = answer.send(network::routes(&self.machine, &pairs));
                }
                Request::WayTo { domain } => {
                    // The user may have left.
                    let _ = answer.send(self.way_to(&domain));
                }
                request => {
                    if let Some(why) = self.cannot_start_domain(&request) {
                        // The user may have left.
                        let _ = answer.send(refusal(why));
                        return;
                    }
                    let request = self.with_keys(request);
                    self.users.begin(answer);
                    self.take(Heard::User { request });
                    self.users.end();
                }
            },
            Inbound::JournalKept { node, kept } => self.journal_kept(node, kept),
            // The loop looks at the printer.
            Inbound::OutputFailed => {}
            Inbound::Signal(SIGCHLD) => {
                let ended = self.children.reap();
                for child in ended {
                    self.take(Heard::ChildGone(child));
                }
            }
            Inbound::Signal(signal) => self.signalled(signal),
        }
    }

    /// This process was sent a signal: by some the job is saved, if it can be; its ranks get all
    /// others, as with mpiexec, but that of a terminal that is gone (UCX, within MPICH, takes it
    /// for a request to debug). A second one that is to end them ends the job at once.
    fn signalled(&mut self, signal: i32) {
        let saves = self.images.is_some() && matches!(signal, SIGUSR1 | SIGTERM);
        let is_saving = self.machine.is_saving();
        if saves && !(is_saving && is_to_end(signal)) {
            return self.take(Event::Save { request: None });
        }
        let begun = self.machine.has_started() && !is_saving && signal != SIGHUP;
        let at_once = !begun || self.machine.is_told_to_end();
        if is_to_end(signal) && at_once {
            let cause = format!("ended by {}", in_words(signal));
            return self.take(Event::Stop { code: 128 + signal, cause });
        }
        self.take(Event::Signal(signal as u8));
    }

    /// A connection has ended. Of an agent that means its end, unless the other host is only
    /// silent: heartbeats tell. That a role on a node has ended its agent says.
    fn link_ended(&mut self, by: Peer, link: u64, silent: bool) {
        if !self.is_present(by, link) {
            return;
        }
        if let Some(session) = self.session(by) {
            session.disconnect();
        }
        match by {
            Peer::Agent(_) if silent => {}
            Peer::Agent(node) => self.take(Event::AgentGone(node)),
            Peer::Role(_) => {}
        }
    }

    fn agent_connected(&mut self, node: NodeId, link: Link, heard: u64) {
        let returns = self.agents.is_up(node);
        if !returns && self.agents.has_come(node) {
            // It was declared dead while it connected: dropping the link ends the connection.
            return;
        }
        let again = self.returns.has(Peer::Agent(node));
        if !returns {
            self.take(Heard::AgentCame { node, peer: link.peer() });
        }
        let progress = self.journal.progress();
        let Some(session) = self.agents.session(node) else { return };
        let connected = session.connect(progress, link, heard);
        self.has_returned(Peer::Agent(node), connected);
        if returns {
            self.open_windows(node);
        }
        self.agents.watches_none(node);
        self.conduct(node);
        if again {
            self.journal.send_anew(node);
            self.take(Event::AgentBack(node));
        }
    }

    /// What an earlier controller had shown of the ranks on a node it may not have said.
    fn open_windows(&mut self, node: NodeId) {
        for (instance, _, _) in self.machine.rank_states().filter(|(_, on, _)| *on == node) {
            let taken = self.machine.output_taken(instance.rank);
            for (stream, offset) in
                [StandardStream::Stdout, StandardStream::Stderr].into_iter().zip(taken)
            {
                let shown = ToAgent::OutputShown { instance, stream, offset };
                self.agents.send_passing(node, encode(&shown));
            }
        }
    }

    fn role_connected(&mut self, role: Role, link: Link, heard: u64) {
        let progress = self.journal.progress();
        match self.session(Peer::Role(role)) {
            Some(session) => {
                let connected = session.connect(progress, link, heard);
                self.has_returned(Peer::Role(role), connected);
            }
            // Another one has its place.
            None => self.admission.refuse_role(role),
        }
    }

    /// An agent or a role has connected to this controller.
    fn has_returned(&mut self, by: Peer, connected: std::io::Result<()>) {
        // Else it has heard more than the journal says that it was told.
        self.returns.add(by, connected.is_ok());
        self.must_fit(by, connected);
    }
}
