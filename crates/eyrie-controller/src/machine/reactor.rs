//! The machine's core: its state, time, and which part of it handles which event.

use super::copies::Stores;
use super::faults::Faults;
use super::io::{Command, Event, Mark};
use super::measurements::Measurements;
use super::moves::Moves;
use super::node::{CutOff, NodeEntry};
use super::notes::Notes;
use super::output::Ledger;
use super::pmi::Pmi;
use super::rank::{KeptImage, RankEntry, Step};
use super::redundancy::Redundancy;
use super::requests::Requests;
use super::role::Roles;
use super::saving::Saving;
use super::schedule::{Interval, Order, Schedule};
use super::speed::Speed;
use super::state::{NodeStateName, RankStateName};
use super::timeouts::START_TIMEOUT;
use crate::inject::Injection;
use crate::record::{in_words, Record, Summary};
use eyrie_placement::{Placement, WithoutNetwork};
use eyrie_wire::control::{CheckpointMode, Library, RankReport, StandardStream};
use eyrie_wire::{ImageId, Node, Rank, RankInstance};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// What a job is to be.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Config {
    pub job: String,
    pub ranks: u32,
    /// Nodes that start with ranks.
    pub nodes: u32,
    pub spares: u32,
    /// For each rank the node that it starts on.
    pub start: Vec<Node>,
    /// Most ranks that a node may have, by node, where that was said.
    pub slots: Vec<Option<u32>>,
    /// Names of the nodes, where they have some.
    pub hosts: Vec<String>,
    pub routers: u32,
    /// Routers run on nodes; else beside the controller.
    pub roles_on_nodes: bool,
    /// Stores that are up when the job starts.
    pub stores: u32,
    /// Stores that must have an image before it counts.
    pub image_copies: u32,
    pub checkpoint_every: Interval,
    pub checkpoint_order: Order,
    pub checkpoint_mode: CheckpointMode,
    /// The images outlive the job, so that it can be saved.
    pub can_be_saved: bool,
    /// Stores on nodes have the images of the running job; when it is saved, they are copied to one
    /// beside the controller ([`super::saved::STORE`]).
    pub archive: bool,
    /// Nodes that are about to be taken away are drained.
    pub drain_on_notice: bool,
    /// A node that does not answer for so long is declared dead.
    pub heartbeat_timeout: Duration,
    /// How long all agents may take to come up.
    pub agents_timeout: Duration,
    /// After so long agents that have lost their controller have ended.
    pub alone_for: Duration,
    /// Until then they may come back to it.
    pub agents_come_back: bool,
    pub injections: Vec<Injection>,
}

#[cfg(test)]
impl Config {
    /// A job of one rank on so many nodes, which have its roles: two stores, each image in both.
    pub fn with_roles_on(nodes: u32) -> Config {
        let (roles_on_nodes, stores, image_copies) = (true, 2, 2);
        Config { nodes, roles_on_nodes, stores, image_copies, ..Config::of_one_rank() }
    }

    /// A job of one rank on one node.
    pub fn of_one_rank() -> Config {
        Config {
            job: "j".into(),
            ranks: 1,
            nodes: 1,
            spares: 0,
            start: vec![0],
            slots: vec![],
            hosts: vec![],
            routers: 1,
            roles_on_nodes: false,
            stores: 1,
            image_copies: 1,
            checkpoint_every: Interval::Off,
            checkpoint_order: Order::Sequential,
            checkpoint_mode: CheckpointMode::Async,
            can_be_saved: false,
            archive: false,
            drain_on_notice: true,
            heartbeat_timeout: Duration::from_secs(1_000_000),
            agents_timeout: Duration::from_secs(30),
            alone_for: Duration::from_secs(60),
            agents_come_back: true,
            injections: vec![],
        }
    }
}

/// The machine.
#[derive(Serialize, Deserialize)]
pub struct Machine {
    pub(super) config: Config,
    #[serde(skip, default = "without_network")]
    pub(super) placement: Box<dyn Placement>,
    pub(super) now: Duration,
    pub(super) nodes: Vec<NodeEntry>,
    /// Those on the controller's host.
    pub(super) home: BTreeSet<Node>,
    /// The controller stands aside.
    pub(super) cut_off: Option<CutOff>,
    /// Nodes that were not heard when it went on: they have a heartbeat timeout to come back.
    pub(super) returning: BTreeSet<Node>,
    /// Pairs of nodes of which the first does not reach the second, and since when that is known.
    pub(super) unreached: BTreeMap<(Node, Node), Duration>,
    pub(super) ranks: Vec<RankEntry>,
    pub(super) roles: Roles,
    pub(super) pmi: Pmi,
    pub(super) output: Ledger,
    pub(super) stores: Stores,
    pub(super) schedule: Schedule,
    pub(super) faults: Faults,
    /// Who waits is gone with the controller that had heard it.
    #[serde(skip)]
    pub(super) requests: Requests,
    pub(super) moves: Moves,
    pub(super) measurements: Measurements,
    pub(super) speed: Speed,
    /// The job is being saved.
    pub(super) saving: Option<Saving>,
    pub(super) notes: Notes,
    pub(super) redundancy: Redundancy,
    /// None between two events.
    #[serde(skip)]
    pub(super) commands: Vec<Command>,
    pub(super) summary: Summary,
    pub(super) started: bool,
    pub(super) ended: bool,
    /// When all ranks and nodes are to be looked at again ([`Machine::look`]): not at every event,
    /// or a large job would cost the square of its size.
    pub(super) look_at: Duration,
    /// Nodes that have not come.
    pub(super) missing_nodes: usize,
    pub(super) counts: Counts,
    /// Ranks that were asked for a checkpoint; some have come to its end.
    pub(super) asked: BTreeSet<Rank>,
    /// Signals that were sent to all ranks.
    pub(super) signals: Vec<u8>,
}

fn without_network() -> Box<dyn Placement> {
    Box::new(WithoutNetwork)
}

/// Ranks of a kind, so that nobody has to count them at every event.
#[derive(Default, Serialize, Deserialize)]
pub struct Counts {
    pub finished: u32,
    /// In any incarnation.
    pub spoke_pmi: u32,
    /// Finished without a word of PMI.
    pub finished_silent: u32,
}

impl Machine {
    pub fn new(config: Config) -> Machine {
        let nodes: Vec<NodeEntry> = (0..config.nodes + config.spares)
            .map(|node| NodeEntry::new(node >= config.nodes))
            .collect();
        let ranks = (config.start.iter().enumerate())
            .map(|(rank, node)| RankEntry::new(rank as Rank, *node))
            .collect();
        Machine {
            now: Duration::ZERO,
            look_at: Duration::ZERO,
            missing_nodes: nodes.len(),
            counts: Counts::default(),
            asked: BTreeSet::new(),
            signals: Vec::new(),
            nodes,
            home: BTreeSet::new(),
            cut_off: None,
            returning: BTreeSet::new(),
            unreached: BTreeMap::new(),
            ranks,
            roles: Roles::after(config.archive),
            pmi: Pmi::new(config.ranks),
            output: Ledger::new(config.ranks),
            // Those on nodes come later.
            stores: Stores::new(match config.roles_on_nodes {
                true => config.archive.into(),
                false => config.stores,
            }),
            schedule: Schedule::new(config.checkpoint_every, config.checkpoint_order, config.ranks),
            faults: Faults::new(&config.injections),
            requests: Requests::default(),
            moves: Moves::default(),
            measurements: Measurements::default(),
            speed: Speed::default(),
            saving: None,
            notes: Notes::default(),
            redundancy: Redundancy::default(),
            commands: Vec::new(),
            summary: Summary { ranks: config.ranks, ..Summary::default() },
            started: false,
            ended: false,
            placement: without_network(),
            config,
        }
    }

    /// The same machine, asking `placement` for the nodes of displaced ranks.
    pub fn place_by(self, placement: Box<dyn Placement>) -> Machine {
        Machine { placement, ..self }
    }

    /// Handles one event at `now` (since the job's start, never going back) and returns what to do,
    /// in order.
    pub fn handle(&mut self, now: Duration, event: Event) -> Vec<Command> {
        if self.ended {
            if let Event::Output { instance, stream, offset, bytes } = event {
                self.output_arrived(instance, stream, offset, bytes);
            }
            return std::mem::take(&mut self.commands);
        }
        self.pass_time(now.max(self.now));
        let tick = event == Event::Tick;
        self.dispatch(event);
        self.begin_when_all_are_up();
        if tick || self.now >= self.look_at {
            self.look();
        }
        if self.started && !self.ended && !self.is_cut_off() {
            self.inject_due();
            self.go_on_saving();
            self.capture_due();
        }
        std::mem::take(&mut self.commands)
    }

    /// When [`Event::Tick`] is due at the latest.
    pub fn next_tick(&self) -> Option<Duration> {
        if self.ended {
            return None;
        }
        if !self.started {
            return Some(self.look_at);
        }
        let soon = [self.schedule.next_after(self.now), self.faults.next()];
        soon.into_iter().flatten().chain([self.look_at]).min()
    }

    /// Names of the hosts that the nodes are; empty on one machine.
    pub fn hosts(&self) -> &[String] {
        &self.config.hosts
    }

    /// Whether all nodes were up and the ranks were started.
    pub fn has_started(&self) -> bool {
        self.started
    }

    /// Whether [`Command::End`] was given.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// Whether the programs of all ranks have ended by themselves.
    pub fn has_finished(&self) -> bool {
        self.counts.finished == self.config.ranks
    }

    /// What the job has been through so far.
    pub fn summary(&self) -> Summary {
        Summary { elapsed: self.now, ..self.summary.clone() }
    }

    /// A rank of a saved job comes back, unless it has finished.
    fn begin_again(&mut self, rank: Rank) {
        let now = self.now;
        let r = &mut self.ranks[rank as usize];
        if let Some(recovery) = r.state.recovery_mut().filter(|_| !self.ended) {
            recovery.mark = now;
            let instance = r.instance();
            self.bring_back(instance, Mark::default());
        }
    }

    /// For the progress line and `eyrie status`.
    pub fn rank_states(&self) -> impl Iterator<Item = (RankInstance, Node, RankStateName)> + '_ {
        self.ranks.iter().map(|r| (r.instance(), r.node, r.state.name()))
    }

    /// The newest image of each rank, and in how many stores it is.
    pub fn newest_images(&self) -> impl Iterator<Item = Option<(ImageId, usize)>> + '_ {
        let of = |kept: &KeptImage| (kept.image.image, kept.copies.stores.len());
        self.ranks.iter().map(move |r| r.images.last().map(of))
    }

    /// Whether each node is up, in order; spares included.
    pub fn nodes_up(&self) -> impl Iterator<Item = bool> + '_ {
        self.nodes.iter().map(NodeEntry::is_up)
    }

    /// The nodes that were declared dead.
    pub fn dead_nodes(&self) -> impl Iterator<Item = Node> + '_ {
        let all = self.nodes.iter().enumerate();
        let dead = all.filter(|(_, node)| node.state.name() == NodeStateName::Dead);
        dead.map(|(node, _)| node as Node)
    }

    fn dispatch(&mut self, event: Event) {
        match event {
            Event::Tick => {}
            Event::AgentUp(node) => self.agent_up(node),
            Event::Joining { host } => self.joining(host),
            Event::AgentGone(node) => self.agent_gone(node),
            Event::AgentBack(node) => self.agent_back(node),
            Event::Home(nodes) => self.are_here(nodes),
            Event::Reached { from, to, reached } => self.reached(from, to, reached),
            Event::Replaced { by } => self.replaced(&by),
            Event::AgentWoke(node) => self.record(Record::NodeRefused { node }),
            Event::Heartbeat { node, n } => self.heartbeat(node, n),
            Event::Rank(instance, report) => self.rank_reported(instance, report),
            Event::Prepared { node, instance, image, result } => {
                self.prepared(node, instance, image, result)
            }
            Event::Output { instance, stream, offset, bytes } => {
                self.output_arrived(instance, stream, offset, bytes)
            }
            Event::Note(text) => self.note(text),
            Event::ImageBegun { instance, image } => self.image_begun(instance, image),
            Event::ImageFailed { store, instance, image, reason } => {
                self.image_failed(store, instance, image, reason)
            }
            Event::ImageStored { store, instance, image } => {
                self.image_stored(store, instance, image)
            }
            Event::StoreUp { store } => self.store_up(store),
            Event::StoreLost { store } => self.store_lost(store),
            Event::StoreFull { store, reason } => self.store_full(store, &reason),
            Event::Fenced { router, instance, rsn } => self.router_fenced(router, instance, rsn),
            Event::Connected(instance) => self.connected(instance),
            Event::Disconnected(instance) => self.disconnected(instance),
            Event::Replayed { instance, messages } => self.replayed(instance, messages),
            Event::Refused { instance, reason } => self.refused(instance, reason),
            Event::Divergence { rank, reason } => self.end(
                1,
                Some(format!(
                    "rank {rank} did not repeat itself, so that it cannot be recovered: {reason}; does the program \
                     depend on clocks or random devices?"
                )),
            ),
            Event::ContentDiffers { rank, reason } => {
                self.record(Record::ContentDiffers { rank, cause: reason })
            }
            Event::LogGrown { rank, bytes } => self.log_grown(rank, bytes),
            Event::LogScarce { rank } => self.schedule.log_scarce(rank),
            Event::Unprotected { rank, reason } => self.unprotected(rank, reason),
            Event::StoreFailed(reason) => self.end(1, Some(format!("the store failed: {reason}"))),
            Event::RouterFailed(reason) => self.end(1, Some(format!("a router failed: {reason}"))),
            Event::Inject { request, injection } => self.injection_asked(request, injection),
            Event::Trace { request, rank } => self.trace_asked(request, rank),
            Event::Checkpoint { request, rank } => self.checkpoint_asked(request, rank),
            Event::RoleUp { role, addr } => self.role_up(role, addr),
            Event::RoleLost { role, cause } => self.role_lost(role, cause),
            Event::Adopted { role, instance } => self.adopted(role, instance),
            Event::Unheard { role, instance } => self.unheard(role, instance),
            Event::Heard { role, instance } => self.heard(role, instance),
            Event::Exposed { rank, exposed } => self.exposed(rank, exposed),
            Event::Resumed => self.resumed(),
            Event::JournalCopies(copies) => self.journal_copies(copies),
            Event::Migrate { request, ranks, to, manner } => {
                self.migrate_asked(request, &ranks, to, manner)
            }
            Event::Drain { request, node } => self.drain_asked(request, node, usize::MAX),
            Event::Measure { request, over, goal } => self.measurement_asked(request, over, goal),
            Event::Measured { node, n, used } => self.measured(node, n, used),
            Event::Rearrange { request, moves, drains, manner } => {
                self.rearrangement_asked(request, &moves, &drains, manner)
            }
            Event::Notice { node, cause, leaves } => self.notice(node, cause, leaves),
            Event::Undrain { request, node } => self.undrain_asked(request, node),
            Event::Save { request } => self.save_asked(request),
            Event::RouterSaved { router, saved } => self.router_saved(router, saved),
            Event::JobSaved(saved) => self.job_saved(saved),
            Event::Signal(signal) => self.send_signal(signal),
            Event::Stop { code, cause } => self.end(code, Some(cause)),
        }
    }

    /// What an agent says of a rank; only of its present incarnation.
    fn rank_reported(&mut self, instance: RankInstance, report: RankReport) {
        use RankReport as R;
        let Some(r) = self.current(instance) else { return };
        match report {
            R::Started { fetched, restored } => self.rank_started(instance, fetched, restored),
            R::StartFailed { reason, fault } => self.start_failed(instance, reason, fault),
            R::ProviderLoaded => {
                if let Some(on_node) = r.on_node_mut() {
                    on_node.loaded = true;
                }
                self.spoke_pmi(instance.rank);
                self.end_if_somebody_never_joined();
            }
            R::Library(library) => self.found(library),
            R::NotOurs { library, remedy } => self.end_for_library(&library, &remedy),
            R::Alone { library, remedy } => self.end_for_lonely_ranks(&library, &remedy),
            R::StdinWanted { offset } => {
                let node = r.node;
                if instance.rank == 0 {
                    self.commands.push(Command::SendStdin { node, instance, offset });
                }
            }
            R::PmiPut { key, value } => self.pmi.put(instance.rank, key, value),
            R::PmiBarrier { barrier } => {
                self.spoke_pmi(instance.rank);
                self.end_if_somebody_never_joined();
                let released = self.pmi.arrive(instance.rank, barrier);
                self.commands.extend(released);
            }
            R::PmiFinalized => {
                if let Some(on_node) = r.on_node_mut() {
                    on_node.finalized = true;
                }
                self.spoke_pmi(instance.rank);
            }
            R::PmiAbort { code } => {
                let text = format!("rank {} called MPI_Abort with code {code}", instance.rank);
                self.end(code & 0xff, Some(text));
            }
            R::Captured { image, pause } => self.captured(instance, image, pause),
            R::CaptureFailed { image, reason, passing } => {
                self.capture_failed(instance, image, reason, passing)
            }
            R::ImageUsable { image, output } => self.image_checked(instance, image, output),
            R::ImageUnusable { image, reason } => self.image_unusable(instance, image, reason),
            R::ImageWanted { reason } => self.image_wanted(instance, reason),
            R::Fatal { reason } => {
                self.end(1, Some(format!("rank {} cannot go on: {reason}", instance.rank)))
            }
            R::Exited { ending, stage } => self.exited(instance, ending, stage),
        }
    }

    /// Output of a rank: only of its present incarnation, and only what was not shown before. Also
    /// when the job has ended: what its ranks wrote until then is on the way.
    fn output_arrived(
        &mut self,
        instance: RankInstance,
        stream: StandardStream,
        offset: u64,
        bytes: u64,
    ) {
        let Some(r) = self.ranks.get(instance.rank as usize) else { return };
        if r.instance() != instance {
            return;
        }
        let known = self.output.take(instance.rank, stream, offset, bytes);
        let end = offset.saturating_add(bytes);
        self.commands.push(Command::Show { instance, stream, known, end });
    }

    /// Bytes of (standard output, standard error) of a rank that were taken to be shown.
    pub fn output_taken(&self, rank: Rank) -> [u64; 2] {
        self.output.taken(rank)
    }

    pub(super) fn note(&mut self, text: String) {
        if self.notes.is_new(&text) {
            self.record(Record::Note { text });
        }
    }

    /// What the first rank has found is told; and what another finds, if that is different.
    fn found(&mut self, library: Library) {
        let record = Record::Library { library };
        let line = record.line(&[]).map_or(String::new(), |(_, line)| line);
        if self.notes.is_new(&line) {
            self.record(record);
        }
    }

    /// An older incarnation of a rank, or somebody else, was refused by a router.
    fn refused(&mut self, instance: Option<RankInstance>, cause: String) {
        if self.notes.is_first_refusal(instance) {
            let rank = instance.map(|i| i.rank);
            let incarnation = instance.map_or(0, |i| i.incarnation);
            self.record(Record::Refused { rank, incarnation, cause });
        }
    }

    /// Looks at all nodes, ranks and roles, whether somebody is late: when the first of them may
    /// be, and at least as often as nodes are asked for heartbeats.
    fn look(&mut self) {
        if self.ended {
            return;
        }
        self.watch_nodes();
        if self.is_cut_off() {
            self.look_at = self.now + self.heartbeat_interval();
            return;
        }
        self.watch_reach();
        self.watch_ranks();
        self.watch_roles();
        if self.started && !self.ended {
            self.watch_captures();
            self.watch_overdue();
            self.watch_requests();
            self.watch_live();
            self.watch_stuck_moves();
            self.watch_moves();
            self.watch_measurements();
            self.watch_redundancy();
        }
        let ranks = (self.ranks.iter())
            .flat_map(|r| [r.state.until(), r.capture().map(|c| c.until)].into_iter().flatten());
        let begin = (!self.started).then_some(self.config.agents_timeout);
        let due = ranks.chain(begin).chain(self.next_heartbeat()).chain(self.next_role());
        let due = due.chain(self.next_overdue().filter(|_| self.started));
        // Whoever is asked for something after this is looked at in time all the same. Nodes that
        // are due one shortly after another are looked at together.
        let interval = self.heartbeat_interval();
        let due = due.min().unwrap_or(Duration::MAX);
        self.look_at = due.clamp(self.now + interval / 16, self.now + interval);
    }

    /// The rank, when `instance` is its present one and a process of it may be on a node.
    pub(super) fn current(&mut self, instance: RankInstance) -> Option<&mut RankEntry> {
        let r = self.ranks.get_mut(instance.rank as usize)?;
        (r.instance() == instance && r.on_node().is_some()).then_some(r)
    }

    pub(super) fn record(&mut self, record: Record) {
        self.requests.hear(&record);
        self.speed.hear(&record);
        self.commands.push(Command::Record(record));
        self.commands.extend(self.requests.take_answers());
    }

    /// The nodes whose agents have not come, in words.
    pub fn missing(&self) -> Vec<String> {
        let missing = self.nodes.iter().enumerate().filter(|(_, n)| !n.is_up());
        missing.map(|(node, _)| in_words(node as Node, &self.config.hosts)).collect()
    }

    /// Starts the ranks once every agent is there.
    fn begin_when_all_are_up(&mut self) {
        if self.started || self.ended {
            return;
        }
        if self.missing_nodes > 0 {
            if self.now >= self.config.agents_timeout {
                let text = format!(
                    "the agents of {} did not come up within {}",
                    self.missing().join(", "),
                    eyrie_units::time(self.config.agents_timeout)
                );
                self.end(1, Some(text));
            }
            return;
        }
        if !self.roles_are_ready() {
            return;
        }
        self.started = true;
        let Config { ranks, nodes, spares, routers, .. } = self.config;
        let (job, hosts) = (self.config.job.clone(), self.config.hosts.clone());
        self.record(Record::JobStarted { job, ranks, nodes, spares, hosts, routers });
        self.schedule.begin(self.now);
        self.faults.begin(self.now);
        let before = self.pmi.so_far(None);
        self.commands.extend(before);
        for rank in 0..self.ranks.len() {
            let r = &mut self.ranks[rank];
            if !r.is(RankStateName::Waiting) {
                self.begin_again(rank as Rank);
                continue;
            }
            r.advance(Step::JobStarted { until: self.now + START_TIMEOUT });
            let (instance, node) = (r.instance(), r.node);
            self.commands.push(Command::Start { node, instance, from: None });
            self.record(Record::RankStarted { instance, node, image: None });
        }
    }
}
