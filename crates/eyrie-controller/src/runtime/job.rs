//! A running job: everything around its machine, and the loop that hands events to the machine.

use super::admission::Admission;
use super::alike::Alike;
use super::children::Children;
use super::determinants::Gathered;
use super::event_file::EventFile;
use super::images_dir::ImagesDir;
use super::inbound::{Heard, Inbound, Peer};
use super::journal::Journal;
use super::link::Session;
use super::options::JobOptions;
use super::output::{Piece, Printer};
use super::places::Places;
use super::program::Provided;
use super::refusals::Refusals;
use super::roles::figures::Figures;
use super::roles::peers::RolePeers;
use super::roles::said::RoleEvent;
use super::router_files::RouterFiles;
use super::stdin::Stdin;
use super::unwritten::{SavedOutput, Unwritten};
use super::users::Unanswered;
use crate::machine::answer::RequestId;
use crate::machine::redundancy::JournalCopies;
use crate::machine::{Event, Machine};
use crossbeam_channel::{select, Receiver, Sender};
use eyrie_router::RouterEvent;
use eyrie_transport::{Addr, Directory, RouterId};
use eyrie_wire::auth::Secret;
use eyrie_wire::control::{Program, Role, RoleKind};
use eyrie_wire::{ImageId, Node, Rank, RankInstance};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often the progress line is drawn.
pub const PROGRESS_EVERY: Duration = Duration::from_millis(250);
/// Most messages handled between two looks at everything else.
const BATCH: usize = 256;

/// Users that wait for an answer.
#[derive(Default)]
pub struct Users {
    pub last: RequestId,
    pub waiting: BTreeMap<RequestId, Sender<String>>,
}

/// What follows from which hosts meet: the nodes with roles, and pairs of nodes of which one does
/// not reach the other.
#[derive(Clone, PartialEq, Eq)]
pub struct WhoMeets {
    pub roles: BTreeSet<Node>,
    pub unreached: Vec<(Node, Node)>,
}

/// A running job.
pub struct Job {
    pub options: JobOptions,
    pub name: String,
    pub kvsname: String,
    pub program: Program,
    pub machine: Machine,
    /// Events that commands have brought about, to be handled next.
    pub events: VecDeque<Event>,
    pub event_file: EventFile,
    pub printer: Printer,
    pub roles: RolePeers,
    pub figures: Figures,
    /// Until all roles beside the controller have said where they listen.
    pub places: Option<Places>,
    pub directory: Directory,
    /// Where the store beside the controller listens, when it has said it.
    pub store_addr: Option<Addr>,
    /// What ranks need in the job's directory.
    pub provided: Vec<Provided>,
    /// Nodes whose agents have come, though they may be lost by now.
    pub came: BTreeSet<Node>,
    /// The last words of who starts the agent of a node, or of all nodes, that nobody was told yet.
    pub launcher_words: BTreeMap<Option<Node>, String>,
    /// Users whose hosts are to join.
    pub joining: BTreeMap<Node, Sender<String>>,
    pub inbound: Sender<Inbound>,
    /// What all hosts are compared with.
    pub alike: Alike,
    /// Where the images outlive the job.
    pub images: Option<ImagesDir>,
    /// What routers on nodes save there, and go on with.
    pub router_files: Arc<RouterFiles>,
    /// Those of a saved job, until the store has said what it has.
    pub needed_images: Option<BTreeSet<(Rank, ImageId)>>,
    /// The job's directory.
    pub dir: PathBuf,
    /// What routers have told with the fences that they have confirmed.
    pub determinants: Gathered,
    pub admission: Arc<Admission>,
    /// The output that the machine is being told of, and the node that it has come from.
    pub output: Option<(Node, Vec<u8>)>,
    /// Output that this controller does not show: who goes on with the job it saves does.
    pub kept_output: Option<SavedOutput>,
    /// Output that waits for the journal, with its position in it.
    pub held_output: VecDeque<(u64, Piece)>,
    /// Output that may not have been written, where the journal must say it.
    pub unwritten: Unwritten,
    pub stdin: Stdin,
    /// Who waits for input, and from which offset on.
    pub stdin_wanted: Option<(Node, RankInstance, u64)>,
    pub children: Children,
    pub secret: Secret,
    /// Threads that look for agents go on until this is set.
    pub sought: Arc<AtomicBool>,
    /// Of how many nodes the machine was told whether they are on this host, and how many are.
    pub home: Option<(Node, usize)>,
    /// The hosts that agents were told to connect to, and what that follows from.
    pub watching: BTreeMap<Node, Vec<Node>>,
    pub watched: Option<WhoMeets>,
    /// Another controller goes on with the job.
    pub is_replaced: bool,
    /// What goes between the controller and the agents of nodes that are up.
    pub links: BTreeMap<Node, Session>,
    /// By which addresses agents reach the controller, where they have any.
    pub peers: BTreeMap<Node, IpAddr>,
    /// Where another controller reaches agents.
    pub reached_at: BTreeMap<Node, Addr>,
    /// Agents and roles that have connected to this controller.
    pub returned: BTreeSet<Peer>,
    /// Some of them have heard more than the journal says.
    pub is_behind: bool,
    pub journal: Journal,
    /// Nodes that cannot keep a copy of it, and since when.
    pub no_journal: BTreeMap<Node, Instant>,
    /// What the machine was told of its copies.
    pub journal_copies: JournalCopies,
    /// What an earlier controller has heard is heard again: nothing is done.
    pub is_replaying: bool,
    /// Files in /dev/shm, per rank.
    pub shared: Vec<BTreeSet<String>>,
    pub users: Users,
    /// The user whose request is being handled.
    pub asking: Option<Sender<String>>,
    /// Users whose answers are not written yet.
    pub unanswered: Unanswered,
    pub begun: Instant,
    /// When what is being handled was heard, since the job's start.
    pub time: Duration,
    pub drawn: Instant,
    /// When it was last said for whom the start waits.
    pub waiting_said: Duration,
    pub end: Option<i32>,
    /// The user has ended the job, and waits.
    pub quiet_end: bool,
    /// Nobody reads the job's output any more.
    pub reader_left: bool,
    pub refusals: Refusals,
}

impl Job {
    /// When what is being handled was heard.
    pub fn now(&self) -> Duration {
        self.time
    }

    /// The loop; returns the exit code.
    pub fn run(
        &mut self,
        inbound: &Receiver<Inbound>,
        router_events: &Receiver<(RouterId, RouterEvent)>,
    ) -> i32 {
        loop {
            let wait = self.wait();
            select! {
                recv(inbound) -> message => {
                    message.into_iter().for_each(|m| self.hear(m));
                }
                recv(router_events) -> event => {
                    self.time = self.begun.elapsed();
                    event.into_iter().for_each(|(router, e)| self.hear_router(router, e));
                }
                default(wait) => {}
            }
            for _ in 0..BATCH {
                let Ok(message) = inbound.try_recv() else { break };
                self.hear(message);
            }
            while let Ok((router, event)) = router_events.try_recv() {
                self.hear_router(router, event);
            }
            self.watch_places();
            self.watch_output();
            self.answer_status();
            self.say_waiting();
            self.tick_when_due();
            self.end_unless_saving();
            self.tell_home();
            self.tell_whom_to_watch();
            self.tell_of_copies();
            self.write_journal();
            if let Some(code) = self.end {
                return code;
            }
            self.draw_progress();
        }
    }

    /// A router in this process says something.
    fn hear_router(&mut self, router: RouterId, event: RouterEvent) {
        self.hear_role(Role::first(RoleKind::Router, router), RoleEvent::Router(event));
    }

    /// A controller that is there to save the job does nothing else with it.
    fn end_unless_saving(&mut self) {
        if self.kept_output.is_some() && self.end.is_none() && !self.machine.is_saving() {
            let cause = "nobody has gone on with it, and it could not be saved".to_string();
            self.take(Heard::Stop { code: 1, cause });
        }
    }

    /// Only then: each tick is in the journal.
    fn tick_when_due(&mut self) {
        let now = self.begun.elapsed();
        if self.machine.next_tick().is_some_and(|at| at <= now) {
            self.take(Heard::Tick);
        }
    }

    fn wait(&self) -> Duration {
        let now = self.begun.elapsed();
        let tick = self.machine.next_tick().map(|at| at.saturating_sub(now));
        let draw = self.printer.has_terminal().then_some(PROGRESS_EVERY);
        tick.into_iter().chain(draw).min().unwrap_or(Duration::from_secs(1))
    }

    /// Hands an event to the machine and does what it says.
    pub fn tell(&mut self, event: Event) {
        self.events.push_back(event);
        while let Some(event) = self.events.pop_front() {
            match &event {
                Event::Tick | Event::Heartbeat { .. } => tracing::trace!(?event),
                _ => tracing::debug!(?event),
            }
            for command in self.machine.handle(self.now(), event) {
                self.obey(command);
            }
        }
    }
}
