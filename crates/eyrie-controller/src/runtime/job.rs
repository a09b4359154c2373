//! A running job: everything around its machine, and the loop that hands events to the machine.

use super::admission::Admission;
use super::agents::{Agents, Returns};
use super::alike::Alike;
use super::beside::{LineChange, NewSite};
use super::children::Children;
use super::clock::Clock;
use super::end::End;
use super::event_file::EventFile;
use super::images_dir::ImagesDir;
use super::inbound::Inbound;
use super::journal::{Beginning, Journal};
use super::journal_copies::Copies;
use super::measuring::Measuring;
use super::monitoring::Monitoring;
use super::outlet::{Outlet, PROGRESS_EVERY};
use super::places::RoleAddresses;
use super::refusals::Refusals;
use super::roles::figures::Figures;
use super::roles::peers::RolePeers;
use super::router_files::RouterFiles;
use super::running::Running;
use super::stdin::Stdin;
use super::waiting_users::Users;
use crate::machine::{Event, FromPeer, Machine};
use crossbeam_channel::{select, Receiver, Sender};
use eyrie_router::RouterEvent;
use eyrie_transport::role::Said;
use eyrie_wire::auth::Secret;
use eyrie_wire::control::{Role, RoleKind};
use eyrie_wire::{ImageId, Rank, RouterId};
use std::collections::{BTreeSet, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Most messages handled between two looks at everything else.
const BATCH: usize = 256;

/// A running job.
pub struct Job {
    /// What the job was made for, with the hosts that have joined.
    pub(super) beginning: Beginning,
    pub(super) machine: Machine,
    /// Events that commands have brought about, to be handled next.
    pub(super) events: VecDeque<Event>,
    pub(super) clock: Clock,
    pub(super) outlet: Outlet,
    pub(super) event_file: EventFile,
    pub(super) roles: RolePeers,
    pub(super) figures: Figures,
    pub(super) measuring: Measuring,
    pub(super) monitoring: Monitoring,
    pub(super) role_addresses: RoleAddresses,
    pub(super) end: End,
    pub(super) inbound: Sender<Inbound>,
    /// What all hosts are compared with.
    pub(super) alike: Alike,
    /// Where the images outlive the job.
    pub(super) images: Option<ImagesDir>,
    /// What routers on nodes save there, and go on with.
    pub(super) router_files: Arc<RouterFiles>,
    /// Those of a saved job, until the store has said what it has.
    pub(super) needed_images: Option<BTreeSet<(Rank, ImageId)>>,
    /// The job's directory.
    pub(super) dir: PathBuf,
    pub(super) admission: Arc<Admission>,
    pub(super) stdin: Stdin,
    pub(super) children: Children,
    pub(super) secret: Secret,
    pub(super) agents: Agents,
    pub(super) returns: Returns,
    pub(super) journal: Journal,
    pub(super) copies: Copies,
    /// What an earlier controller has heard is heard again: nothing is done.
    pub(super) is_replaying: bool,
    pub(super) users: Users,
    pub(super) refusals: Refusals,
    /// Who is told how the lines to other domains are.
    pub(super) lines: Option<std::sync::mpsc::Sender<LineChange>>,
    /// Who starts domains that join.
    pub(super) joins: Option<std::sync::mpsc::Sender<NewSite>>,
}

impl Job {
    /// What others need who are to ask it.
    pub fn running(&self) -> Running<'_> {
        let Job { dir, beginning, event_file, .. } = self;
        Running { dir, beginning, first_event: event_file.first() }
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
                    if let Ok(m) = message {
                        self.hear(m);
                    }
                }
                recv(router_events) -> event => {
                    self.clock.read();
                    if let Ok((router, e)) = event {
                        self.hear_router(router, e);
                    }
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
            self.answer_traffic();
            self.answer_node_traffic();
            self.measure_traffic();
            self.compare_nodes();
            self.say_waiting();
            self.tick_when_due();
            self.end_unless_saving();
            self.find_nodes_here();
            self.order_watches();
            self.report_copies();
            self.write_journal();
            if let Some(code) = self.end.code() {
                return code;
            }
            self.draw_progress();
        }
    }

    /// A router in this process says something.
    fn hear_router(&mut self, router: RouterId, event: RouterEvent) {
        let role = Role::first(RoleKind::Router, router.0);
        if event.is_passing() {
            self.hear_figures(role, event);
        } else {
            self.hear_peer(FromPeer::Router(role, event));
        }
    }

    /// The machine hears what nodes send each other, where that is measured.
    fn measure_traffic(&mut self) {
        let Job { measuring, figures, roles, clock, .. } = self;
        if let Some(traffic) = measuring.look(clock.elapsed(), figures, roles) {
            self.take(Event::Traffic(traffic));
        }
    }

    /// A controller that is there to save the job does nothing else with it.
    fn end_unless_saving(&mut self) {
        if self.outlet.kept().is_some() && !self.end.has_come() && !self.machine.is_saving() {
            let cause = "no controller has gone on with it, and it could not be saved".to_string();
            self.take(Event::Stop { code: 1, cause });
        }
    }

    /// Only then: each tick is in the journal.
    fn tick_when_due(&mut self) {
        let now = self.clock.elapsed();
        if self.machine.next_tick().is_some_and(|at| at <= now) {
            self.take(Event::Tick);
        }
    }

    fn wait(&self) -> Duration {
        let now = self.clock.elapsed();
        let tick = self.machine.next_tick().map(|at| at.saturating_sub(now));
        let draw = self.outlet.printer().has_terminal().then_some(PROGRESS_EVERY);
        tick.into_iter().chain(draw).min().unwrap_or(Duration::from_secs(1))
    }
}
