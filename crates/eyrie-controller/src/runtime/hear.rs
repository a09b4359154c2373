//! What reaches the job from agents, routers, users and its own threads, as events of the machine.

use super::children::Child;
use super::inbound::{Heard, Letter};
use super::job::Job;
use super::journal::{Entry, Journal};
use super::output::OutputFailed;
use super::roles::kind::Hearing;
use super::roles::peers::THE_STORE;
use super::roles::registry;
use super::users;
use crate::machine::answer::RequestId;
use crate::machine::{Event, FromPeer, Peer};
use eyrie_interface::answer::Traced;
use eyrie_interface::Request;
use eyrie_router::RouterEvent;
use eyrie_store::role::StoreCommand;
use eyrie_wire::control::{FromAgent, Role, TraceRecord};
use eyrie_wire::{NodeId, RankInstance, RouterId};
use std::io;

/// Who has sent something over a connection, and what came with it.
fn sender(heard: &Heard) -> Option<(Peer, Letter)> {
    match heard {
        Heard::From(letter, message) => Some((message.peer(), *letter)),
        _ => None,
    }
}

/// The connection of a peer has ended.
pub fn gone(peer: Peer) -> Event {
    match peer {
        Peer::Agent(node) => Event::AgentGone(node),
        Peer::Role(role) => Event::RoleLost { role, cause: "its process has ended".into() },
    }
}

impl Job {
    /// Hears something, once it is in the journal.
    pub fn take(&mut self, heard: impl Into<Heard>) {
        let heard = heard.into();
        if !self.is_new(&heard) {
            return;
        }
        let entry = Entry { at: self.clock.read(), heard };
        if let Err(e) = self.journal.add(&entry) {
            self.lose_journal(&e);
        }
        // What is confirmed is not said again: it must be in the journal.
        let progress = self.journal.progress();
        let session = sender(&entry.heard).and_then(|(by, _)| self.session(by));
        if let Some(session) = session {
            session.answer(progress);
        }
        self.handle(entry.heard);
    }

    /// The journal is lost: no other controller can go on with this job.
    pub fn lose_journal(&mut self, error: &io::Error) {
        self.journal = Journal::default();
        self.let_out();
        let text = format!(
            "the journal cannot be written: {error}; the job runs on, but not without this controller"
        );
        self.take(Event::Note(text));
    }

    /// Hears what an earlier controller of the job has heard.
    pub fn hear_again(&mut self, entry: Entry) {
        self.clock.set(entry.at);
        if self.is_new(&entry.heard) {
            self.handle(entry.heard);
        }
    }

    /// Whether it is heard for the first time, and from a peer that still counts.
    fn is_new(&mut self, heard: &Heard) -> bool {
        let Some((by, letter)) = sender(heard) else { return true };
        let Some(session) = self.session(by) else {
            // A role in this process has none; the connection of a lost node is closed.
            return letter == Letter::NONE;
        };
        let new =
            session.confirm(letter.heard).and_then(|()| session.hear(letter.kind(), letter.bytes));
        self.must_fit(by, new).unwrap_or(false)
    }

    /// What an agent or a role says of letters must fit what is known of them here: else its
    /// connection ends.
    pub fn must_fit<T>(&mut self, by: Peer, result: io::Result<T>) -> Option<T> {
        result
            .map_err(|e| {
                if let Some(session) = self.session(by) {
                    session.disconnect();
                }
                self.take(Event::Note(format!("a connection is broken off: {e}")));
                self.hear_later([gone(by)]);
            })
            .ok()
    }

    /// Does what follows from something that was heard.
    fn handle(&mut self, heard: Heard) {
        match heard {
            Heard::Event(event) => self.hear_event(event),
            // The connection of a node that was declared dead is closed.
            Heard::From(_, FromPeer::Agent(node, _)) if !self.agents.is_up(node) => {}
            Heard::From(_, message) => self.hear_peer(message),
            Heard::AgentCame { node, peer } => {
                self.agents.come(node, peer);
                self.let_go_of_launchers(node);
                self.welcome(node);
            }
            Heard::Stdin { bytes, eof } => self.hear_stdin(&bytes, eof),
            Heard::User { request } => self.hear_user(request),
            Heard::ChildGone(child) => match child {
                // Also those that had never connected.
                Child::Agent(node) => self.handle_event(Event::AgentGone(node)),
                // The end of what it says is waited for.
                Child::Launcher(_) => {}
            },
            Heard::LauncherSaid { node, line } => self.launcher_said(node, line),
            Heard::LauncherGone { node } => self.launcher_ended(node),
        }
    }

    fn hear_event(&mut self, event: Event) {
        match &event {
            Event::AgentGone(node) if !self.agents.is_up(*node) => return,
            Event::Stop { .. } => self.end.hurry(),
            Event::DomainLost { domain, .. } if self.machine.is_member(*domain) => self.end.hurry(),
            Event::Replaced { .. } => self.end.replace(),
            _ => {}
        }
        self.handle_event(event);
    }

    fn hear_stdin(&mut self, bytes: &[u8], eof: bool) {
        if let Err(e) = self.stdin.take(bytes, eof) {
            let text = format!("standard input ends here for the program: cannot keep it: {e}");
            self.handle_event(Event::Note(text));
        }
        if let Some(bytes) = self.stdin.end() {
            self.handle_event(Event::InputEnds { bytes });
        }
        self.send_stdin();
    }

    /// A peer says something. What the runtime itself must know (where peers are reached, figures
    /// for users) is taken from it; then the machine gets it.
    pub fn hear_peer(&mut self, message: FromPeer) {
        let message = match message {
            FromPeer::Agent(node, message) => self.hear_agent(node, message),
            FromPeer::Router(..) | FromPeer::Store(..) => {
                self.hear_role(&message);
                Some(message)
            }
        };
        if let Some(message) = message {
            self.handle_event(Event::From(message));
        }
    }

    /// A router tells figures. They are in no journal: a successor of this controller asks again.
    pub fn hear_figures(&mut self, role: Role, told: RouterEvent) {
        self.figures.add(RouterId(role.id), told);
    }

    fn hear_role(&mut self, message: &FromPeer) {
        let Peer::Role(Role { kind, .. }) = message.peer() else { return };
        let mut hearing = Hearing {
            options: &self.beginning.options,
            figures: &mut self.figures,
            role_addresses: &mut self.role_addresses,
            needed_images: &mut self.needed_images,
            notes: Vec::new(),
            needless: Vec::new(),
        };
        registry::of(kind).hear(&mut hearing, message);
        let Hearing { notes, needless, .. } = hearing;
        self.welcome_all();
        for text in notes {
            self.handle_event(Event::Note(text));
        }
        for (rank, image) in needless {
            self.send_store(THE_STORE, StoreCommand::Discard { rank, image });
        }
    }

    /// Ends the job when a role does not say where it listens.
    pub fn watch_places(&mut self) {
        if let Some(late) = self.role_addresses.late() {
            self.handle_event(Event::Stop { code: 1, cause: late });
        }
    }

    /// Ends the job when what the ranks write cannot be passed on; tells other domains how much of
    /// their output is written.
    pub fn watch_output(&mut self) {
        if self.end.has_come() {
            return;
        }
        for (domain, bytes) in self.outlet.take_shown() {
            self.take(Event::Shown { domain, bytes });
        }
        if let Some(OutputFailed { code, cause, .. }) = self.outlet.failed() {
            self.take(Event::Stop { code, cause });
        }
    }

    /// An agent says something: returns what the machine is to take of it.
    fn hear_agent(&mut self, node: NodeId, message: FromAgent) -> Option<FromPeer> {
        match message {
            FromAgent::Joined(joined) => {
                let joined = self.joined(node, joined);
                return Some(FromPeer::Agent(node, FromAgent::Joined(joined)));
            }
            FromAgent::Trace { request, instance, records } => {
                self.hear_trace(request, instance, records);
                return None;
            }
            FromAgent::Reachable { ref addr } => self.agents.listens(node, addr.clone()),
            _ => {}
        }
        Some(FromPeer::Agent(node, message))
    }

    /// A trace goes to the user who asked for it; one of a rank that ends by an error is kept.
    fn hear_trace(
        &mut self,
        request: Option<RequestId>,
        instance: RankInstance,
        records: Vec<TraceRecord>,
    ) {
        let Some(request) = request else {
            // That a replaced incarnation could not go on is as it should be.
            if !self.machine.rank_states().any(|(present, ..)| present == instance) {
                return;
            }
            let file = format!("eyrie-trace-{}-rank{}.txt", self.beginning.name, instance.rank);
            let lines: String = records.iter().map(|record| format!("{record}\n")).collect();
            let text = match std::fs::write(&file, lines) {
                Ok(()) => format!("what rank {} did last is in {file}", instance.rank),
                Err(e) => format!("what rank {} did last cannot be kept: {e}", instance.rank),
            };
            return self.handle_event(Event::Note(text));
        };
        self.users.answer(request, users::written(&Traced { instance, trace: records }));
    }

    fn hear_user(&mut self, request: Request) {
        let id = self.users.next();
        let event = match request {
            // They change nothing: they are answered where they arrive.
            Request::Status
            | Request::Traffic
            | Request::NodeTraffic
            | Request::Health
            | Request::Network
            | Request::Routes { .. }
            | Request::Output
            | Request::Subscribe { .. }
            | Request::WayTo { .. } => return,
            Request::Inject { injection } => Event::Inject { request: id, injection },
            Request::Join { host, allocation } => return self.join(host, allocation),
            Request::Stop => Event::Save { request: Some(id) },
            Request::Migrate { ranks, to, manner } => {
                Event::Migrate { request: Some(id), ranks, to, manner }
            }
            Request::Measure { over, goal } => Event::Measure { request: id, over, goal },
            Request::Propose { left } => Event::Propose { request: id, left },
            Request::Rearrange { moves, drains, whole, manner } => {
                Event::Rearrange { request: Some(id), moves, drains, whole, manner }
            }
            Request::Drain { node } => Event::Drain { request: Some(id), node },
            Request::JoinDomain { domain, keys } => {
                Event::JoinDomain { request: id, new: *domain, keys }
            }
            Request::MigrateDomain { to, way, leave } => {
                Event::MigrateDomain { request: id, to, way, leave }
            }
            Request::Undrain { node } => Event::Undrain { request: id, node },
            Request::Trace { rank } => Event::Trace { request: id, rank },
            Request::Checkpoint { rank } => Event::Checkpoint { request: id, rank },
        };
        self.users.wait();
        self.handle_event(event);
    }
}
