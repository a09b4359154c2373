//! What reaches the job from agents, routers, users and its own threads, as events of the machine.

use super::children::Child;
use super::inbound::{Heard, Letter, Peer};
use super::job::Job;
use super::journal::{Entry, Journal};
use super::link::Session;
use super::output::OutputFailed;
use super::roles::kind::Hearing;
use super::roles::peers::THE_STORE;
use super::roles::registry;
use super::roles::said::RoleEvent;
use super::users;
use crate::machine::answer::RequestId;
use crate::machine::Event;
use eyrie_interface::answer::Traced;
use eyrie_interface::Request;
use eyrie_transport::Addr;
use eyrie_wire::control::{FromAgent, Role, StandardStream, TraceRecord};
use eyrie_wire::{Node, RankInstance};
use std::io;

/// Why a role is lost whose connection or process has ended.
const ENDED: &str = "its process has ended";

/// Who has said something over a connection, and what came with it.
fn sender(heard: &Heard) -> Option<(Peer, Letter)> {
    Some(match heard {
        Heard::Agent { node, letter, .. } => (Peer::Agent(*node), *letter),
        Heard::Role { role, letter, .. } => (Peer::Role(*role), *letter),
        _ => return None,
    })
}

impl Job {
    /// Hears something, once it is in the journal.
    pub fn take(&mut self, heard: Heard) {
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
        session.into_iter().for_each(|session| session.answer(progress));
        self.handle(entry.heard);
    }

    /// The journal is lost: no other controller can go on with this job.
    pub fn lose_journal(&mut self, error: &io::Error) {
        self.journal = Journal::default();
        self.let_out();
        let text = format!(
            "the journal cannot be written: {error}; the job runs on, but not without this controller"
        );
        self.take(Heard::Note(text));
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
                self.session(by).into_iter().for_each(Session::disconnect);
                self.take(Heard::Note(format!("a connection is broken off: {e}")));
                self.hear_later([match by {
                    Peer::Agent(node) => Heard::AgentGone { node },
                    Peer::Role(role) => Heard::RoleGone { role },
                }]);
            })
            .ok()
    }

    /// Does what follows from something that was heard.
    fn handle(&mut self, heard: Heard) {
        match heard {
            Heard::Tick => self.tell(Event::Tick),
            Heard::AgentUp { node, peer } => {
                self.agents.come(node, peer);
                self.let_go_of_launchers(node);
                self.welcome(node);
            }
            Heard::Agent { node, message, .. } => {
                // The connection of a node that was declared dead is closed.
                if self.agents.is_up(node) {
                    self.hear_agent(node, message);
                }
            }
            Heard::AgentGone { node } => {
                if self.agents.is_up(node) {
                    self.tell(Event::AgentGone(node));
                }
            }
            Heard::RoleGone { role } => {
                self.tell(Event::RoleLost { role, cause: ENDED.into() });
            }
            Heard::Role { role, event, .. } => self.hear_role(role, event),
            Heard::AgentWoke { node } => self.tell(Event::AgentWoke(node)),
            Heard::Stdin { bytes, eof } => self.hear_stdin(&bytes, eof),
            Heard::User { request } => self.hear_user(&request),
            Heard::ChildGone(child) => match child {
                // Also those that had never connected.
                Child::Agent(node) => self.tell(Event::AgentGone(node)),
                // The end of what it says is waited for.
                Child::Launcher(_) => {}
            },
            Heard::Stop { code, cause } => {
                self.end.hurry();
                self.tell(Event::Stop { code, cause });
            }
            Heard::Note(text) => self.tell(Event::Note(text)),
            Heard::Signal(signal) => self.tell(Event::Signal(signal)),
            Heard::Save => self.tell(Event::Save { request: None }),
            Heard::RouterNotSaved { router, reason } => {
                self.tell(Event::RouterSaved { router, saved: Err(reason) });
            }
            Heard::JobSaved(saved) => self.tell(Event::JobSaved(saved)),
            Heard::ArchiveLost => self.tell(Event::StoreLost { store: THE_STORE }),
            Heard::LauncherSaid { node, line } => self.launcher_said(node, line),
            Heard::LauncherGone { node } => self.launcher_ended(node),
            Heard::Resumed => self.tell(Event::Resumed),
            Heard::AgentBack { node } => self.tell(Event::AgentBack(node)),
            Heard::Home(nodes) => self.tell(Event::Home(nodes)),
            Heard::Replaced { by } => {
                self.end.replace();
                self.tell(Event::Replaced { by });
            }
            Heard::JournalCopies(copies) => self.tell(Event::JournalCopies(copies)),
        }
    }

    fn hear_stdin(&mut self, bytes: &[u8], eof: bool) {
        if let Err(e) = self.stdin.take(bytes, eof) {
            let text = format!("standard input ends here for the program: cannot keep it: {e}");
            self.tell(Event::Note(text));
        }
        self.send_stdin();
    }

    /// A role says something.
    pub fn hear_role(&mut self, role: Role, event: RoleEvent) {
        let mut hearing = Hearing {
            options: &self.beginning.options,
            figures: &mut self.figures,
            determinants: &mut self.determinants,
            whereabouts: &mut self.whereabouts,
            needed_images: &mut self.needed_images,
            events: Vec::new(),
            commands: Vec::new(),
        };
        registry::of(role.kind).hear(&mut hearing, role, event);
        let Hearing { events, commands, .. } = hearing;
        self.welcome_all();
        events.into_iter().for_each(|event| self.tell(event));
        commands.into_iter().for_each(|(store, command)| self.tell_store(store, command));
    }

    /// Ends the job when a role does not say where it listens.
    pub fn watch_places(&mut self) {
        if let Some(late) = self.whereabouts.late() {
            self.tell(Event::Stop { code: 1, cause: late });
        }
    }

    /// Ends the job when what the ranks write cannot be passed on.
    pub fn watch_output(&mut self) {
        if self.end.has_come() {
            return;
        }
        if let Some(OutputFailed { code, cause, .. }) = self.outlet.failed() {
            self.take(Heard::Stop { code, cause });
        }
    }

    fn hear_agent(&mut self, node: Node, message: FromAgent) {
        match message {
            FromAgent::Joined(joined) => self.joined(node, joined),
            FromAgent::Rank(instance, report) => self.tell(Event::Rank(instance, report)),
            FromAgent::Output { instance, stream, offset, bytes } => {
                self.hear_output(node, instance, stream, offset, bytes);
            }
            FromAgent::Shared { rank, path } => {
                if let Some(paths) = self.shared.get_mut(rank as usize) {
                    paths.insert(path);
                }
            }
            FromAgent::Note { text } => self.tell(Event::Note(text)),
            FromAgent::Trace { request, instance, records } => {
                self.hear_trace(request, instance, records)
            }
            FromAgent::Prepared { instance, image, result } => {
                self.tell(Event::Prepared { node, instance, image, result });
            }
            FromAgent::Heartbeat { n } => self.tell(Event::Heartbeat { node, n }),
            FromAgent::Reached { node: to, reached } => {
                self.tell(Event::Reached { from: node, to, reached });
            }
            FromAgent::Measured { n, used } => self.tell(Event::Measured { node, n, used }),
            FromAgent::Reachable { addr } => {
                if let Ok(addr) = addr.parse::<Addr>() {
                    self.agents.listens(node, addr);
                }
            }
            // The main thread has heard it.
            FromAgent::JournalKept(_) => {}
            FromAgent::RoleEnded { role, cause } => self.tell(Event::RoleLost { role, cause }),
            FromAgent::Notice { cause, leaves } => {
                self.tell(Event::Notice { node, cause, leaves });
            }
        }
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
            return self.tell(Event::Note(text));
        };
        self.users.answer(request, users::written(&Traced { instance, trace: records }));
    }

    /// The machine says how much of it is new; the bytes stay here.
    pub fn hear_output(
        &mut self,
        node: Node,
        instance: RankInstance,
        stream: StandardStream,
        offset: u64,
        bytes: Vec<u8>,
    ) {
        let len = bytes.len() as u64;
        self.outlet.arrive(node, bytes);
        self.tell(Event::Output { instance, stream, offset, bytes: len });
        // What is not new is not shown.
        drop(self.outlet.take_arrived());
    }

    fn hear_user(&mut self, request: &str) {
        let injection = |spec: String| spec.parse().map_err(|e| format!("{e}"));
        let id = self.users.next();
        let event = match users::parse(request) {
            Ok(Request::Status) => return,
            Ok(Request::Inject { spec }) => injection(spec)
                .map(|injection| Event::Inject { request: id, injection })
                .map_err(|e| users::error(&e)),
            Ok(Request::Join { host, allocation }) => return self.join(host, allocation),
            Ok(Request::Stop) => Ok(Event::Save { request: Some(id) }),
            Ok(Request::Migrate { ranks, to, manner }) => {
                Ok(Event::Migrate { request: Some(id), ranks, to, manner })
            }
            Ok(Request::Measure { over, goal }) => Ok(Event::Measure { request: id, over, goal }),
            Ok(Request::Rearrange { moves, drains, manner }) => {
                Ok(Event::Rearrange { request: Some(id), moves, drains, manner })
            }
            Ok(Request::Drain { node }) => Ok(Event::Drain { request: Some(id), node }),
            Ok(Request::Undrain { node }) => Ok(Event::Undrain { request: id, node }),
            Ok(Request::Trace { rank }) => Ok(Event::Trace { request: id, rank }),
            Ok(Request::Checkpoint { rank }) => Ok(Event::Checkpoint { request: id, rank }),
            Err(e) => Err(users::error(&e)),
        };
        match event {
            Ok(event) => {
                self.users.wait();
                self.tell(event);
            }
            Err(text) => self.users.answer_now(&text),
        }
    }
}
