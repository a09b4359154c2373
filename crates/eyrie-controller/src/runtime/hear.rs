//! What reaches the job from agents, routers, users and its own threads, as events of the machine.

use super::children::Child;
use super::inbound::Inbound;
use super::job::Job;
use super::link::Link;
use super::options::RolesAt;
use super::output::OutputFailed;
use super::places::Places;
use super::users::{self, Request};
use crate::machine::answer::RequestId;
use crate::machine::signal::in_words;
use crate::machine::{Event, Image, StoreId};
use crossbeam_channel::Sender;
use eyrie_router::RouterEvent;
use eyrie_store::role::{StoreCommand, StoreEvent, Stored};
use eyrie_transport::RouterId;
use eyrie_wire::control::{FromAgent, Role, Stream, TraceRecord};
use eyrie_wire::{Node, RankInstance};
use signal_hook::consts::SIGCHLD;

/// Why a role is lost whose connection or process has ended.
const ENDED: &str = "its process has ended";

impl Job {
    pub fn hear(&mut self, message: Inbound) {
        match message {
            Inbound::AgentUp { node, link } => {
                self.links.insert(node, link);
                self.came.insert(node);
                self.welcome(node);
            }
            Inbound::Agent { node, message } => {
                // The connection of a node that was declared dead is closed.
                if self.links.contains_key(&node) {
                    self.hear_agent(node, message);
                }
            }
            Inbound::AgentGone { node } => {
                if self.links.contains_key(&node) {
                    self.tell(Event::AgentGone(node));
                }
            }
            Inbound::RoleUp { role, link } => self.role_connected(role, link),
            Inbound::RoleGone { role } => self.lose_role(role, ENDED),
            Inbound::Router { id, generation, event } => {
                // What one says that was replaced meanwhile counts no more.
                if self.machine.is_current(Role::Router { id, generation }) {
                    self.hear_router(id, generation, event);
                }
            }
            Inbound::AgentWoke { node } => self.tell(Event::AgentWoke(node)),
            Inbound::Store { id, event } => self.hear_store(id, event),
            Inbound::Stdin => self.send_stdin(),
            Inbound::User { request, answer } => self.hear_user(&request, answer),
            // The loop looks at the printer.
            Inbound::OutputFailed => {}
            Inbound::Signal(SIGCHLD) => {
                // Also those that had never connected.
                for child in self.children.reap() {
                    match child {
                        Child::Agent(node) => self.tell(Event::AgentGone(node)),
                        // The end of what it says is waited for.
                        Child::Launcher(_) => {}
                        Child::Role(role) => self.lose_role(role, ENDED),
                    }
                }
            }
            Inbound::Signal(signal) => {
                self.stop(128 + signal, format!("ended by {}", in_words(signal)))
            }
            Inbound::Note(text) => self.tell(Event::Note(text)),
            Inbound::LauncherSaid { node, line } => self.launcher_said(node, line),
            Inbound::LauncherGone { node } => self.launcher_ended(node),
        }
    }

    fn role_connected(&mut self, role: Role, link: Link) {
        match role {
            Role::Router { id, .. } if self.machine.is_current(role) => {
                self.routers.connected(id, link);
            }
            Role::Router { .. } => {}
            Role::Store { id } => {
                self.stores.get_mut(&id).into_iter().for_each(|store| store.connected(link.clone()))
            }
        }
    }

    /// The process of a role is gone.
    fn lose_role(&mut self, role: Role, cause: &str) {
        self.tell(match role {
            _ if self.options.roles == RolesAt::Nodes => {
                Event::RoleLost { role, cause: cause.into() }
            }
            Role::Router { .. } => Event::RouterFailed(format!("{role}: {cause}")),
            Role::Store { .. } => Event::StoreFailed(cause.into()),
        });
    }

    fn hear_store(&mut self, store: StoreId, event: StoreEvent) {
        match event {
            StoreEvent::Listening(addr) => {
                if self.options.roles == RolesAt::Nodes {
                    return self.tell(Event::RoleUp { role: Role::Store { id: store }, addr });
                }
                self.places.iter_mut().for_each(|places| places.store(addr.clone()));
                self.welcome_all();
            }
            StoreEvent::Begun { instance, image } => {
                self.tell(Event::ImageBegun { instance, image })
            }
            StoreEvent::Stored { instance, stored, live_bytes } => {
                let Stored { image, clock, rsn, stdin, bytes } = stored;
                self.store_bytes = live_bytes;
                let stored = Image { image, clock, rsn, stdin, bytes };
                self.tell(Event::ImageStored { store, instance, image: stored });
                self.tell_store(store, StoreCommand::Heard { instance, image });
            }
            StoreEvent::Failed { instance, image, reason } => {
                self.tell(Event::ImageFailed { store, instance, image, reason })
            }
            // Nobody asks for it yet.
            StoreEvent::Inventory { .. } => {}
            StoreEvent::Note(text) => self.tell(Event::Note(text)),
        }
    }

    /// Ends the job when a role does not say where it listens.
    pub fn watch_places(&mut self) {
        if let Some(late) = self.places.as_ref().and_then(Places::late) {
            self.places = None;
            self.tell(Event::Stop { code: 1, cause: late });
        }
    }

    /// Ends the job when what the ranks write cannot be passed on.
    pub fn watch_output(&mut self) {
        if self.end.is_some() || self.reader_left {
            return;
        }
        if let Some(OutputFailed { code, cause, reader_left }) = self.printer.failed() {
            self.reader_left = reader_left;
            self.stop(code, cause);
        }
    }

    fn stop(&mut self, code: i32, cause: String) {
        self.quiet_end = true;
        self.tell(Event::Stop { code, cause });
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
            FromAgent::Heartbeat { n } => self.tell(Event::Heartbeat { node, n }),
            FromAgent::RoleEnded { role, cause } => self.lose_role(role, &cause),
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
            let file = format!("eyrie-trace-{}-rank{}.txt", self.name, instance.rank);
            let lines: String = records.iter().map(|record| format!("{record}\n")).collect();
            let text = match std::fs::write(&file, lines) {
                Ok(()) => format!("what rank {} did last is in {file}", instance.rank),
                Err(e) => format!("what rank {} did last cannot be kept: {e}", instance.rank),
            };
            return self.tell(Event::Note(text));
        };
        if let Some(user) = self.users.waiting.remove(&request) {
            let answer = serde_json::json!({ "instance": instance, "trace": records });
            // The user may have left.
            let _ = user.send(answer.to_string());
        }
    }

    /// The machine says how much of it is new; the bytes stay here.
    pub fn hear_output(
        &mut self,
        node: Node,
        instance: RankInstance,
        stream: Stream,
        offset: u64,
        bytes: Vec<u8>,
    ) {
        let len = bytes.len() as u64;
        self.output = Some((node, bytes));
        self.tell(Event::Output { instance, stream, offset, bytes: len });
        self.output = None;
    }

    pub fn hear_router(&mut self, router: RouterId, generation: u32, event: RouterEvent) {
        use RouterEvent as R;
        let event = match event {
            R::Listening(addr) if self.options.roles == RolesAt::Nodes => {
                Event::RoleUp { role: Role::Router { id: router, generation }, addr }
            }
            R::Listening(addr) => {
                self.places.iter_mut().for_each(|places| places.router(router, addr.clone()));
                return self.welcome_all();
            }
            R::Fenced { instance, determinants } => {
                let rsn = determinants.iter().map(|d| d.rsn).max().unwrap_or(0);
                self.determinants.add(instance, determinants);
                Event::Fenced { router, instance, rsn }
            }
            R::Connected(instance) => Event::Connected(instance),
            R::Disconnected(instance) => Event::Disconnected(instance),
            R::Replayed { instance, messages } => Event::Replayed { instance, messages },
            R::Refused { instance, reason } => Event::Refused { instance, reason },
            R::Divergence { rank, reason } => Event::Divergence { rank, reason },
            R::ContentDiffers { rank, reason } => Event::ContentDiffers { rank, reason },
            R::Unprotected { rank, reason } => Event::Unprotected { rank, reason },
            R::LogGrown { rank, bytes } => Event::LogGrown { rank, bytes },
            R::LogScarce { rank } => Event::LogScarce { rank },
            R::HeldBack { reason } => Event::Note(format!("ranks are held back: {reason}")),
            R::Stats(stats) => return self.routers.told(router, stats),
            R::Adopted { instance, .. } => {
                Event::Adopted { role: Role::Router { id: router, generation }, instance }
            }
            R::Unheard { instance } => {
                Event::Unheard { role: Role::Router { id: router, generation }, instance }
            }
            R::Exposed { rank } => Event::Exposed { rank, exposed: true },
            R::Covered { rank } => Event::Exposed { rank, exposed: false },
            R::Fatal { reason } => {
                return self.lose_role(Role::Router { id: router, generation }, &reason)
            }
        };
        self.tell(event);
    }

    fn hear_user(&mut self, request: &str, answer: Sender<String>) {
        let injection = |spec: String| spec.parse().map_err(|e| format!("{e}"));
        let id = self.users.last + 1;
        let event = match users::parse(request) {
            Ok(Request::Status) => return self.routers.await_stats(answer),
            Ok(Request::Inject { spec }) => injection(spec)
                .map(|injection| Event::Inject { request: id, injection })
                .map_err(|e| users::error(&e)),
            Ok(Request::Join { host, allocation }) => return self.join(host, allocation, answer),
            Ok(Request::Trace { rank }) => Ok(Event::Trace { request: id, rank }),
            Ok(Request::Checkpoint { rank }) => Ok(Event::Checkpoint { request: id, rank }),
            Err(e) => Err(users::error(&e)),
        };
        match event {
            Ok(event) => {
                self.users.last = id;
                self.users.waiting.insert(id, answer);
                self.tell(event);
            }
            // The user may have left.
            Err(text) => drop(answer.send(text)),
        }
    }
}
