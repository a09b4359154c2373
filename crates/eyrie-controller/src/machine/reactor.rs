//! The machine: its components, time, which handler takes which event, and what follows from what a
//! handler has found. It knows all of them, and decides nothing itself.

use super::config::Config;
use super::ending::EndOfRanks;
use super::faults::injecting::Injecting;
use super::faults::pending::Faults;
use super::images::captures::Captures;
use super::images::overdue::Overdue;
use super::images::schedule::Schedule;
use super::images::stores::Stores;
use super::io::{Command, Event, Mark};
use super::moves::entry::Moves;
use super::moves::mover::Mover;
use super::nodes::contact::Contact;
use super::nodes::reach::Reach;
use super::nodes::watch::Watch;
use super::nodes::Nodes;
use super::outbox::consequence::{Consequence, LostNode};
use super::outbox::Outbox;
use super::output::Ledger;
use super::pmi::Pmi;
use super::ranks::entry::{Death, Step};
use super::ranks::Ranks;
use super::recovery::recovering::Recovery;
use super::roles::entry::Roles;
use super::roles::hosting::Hosting;
use super::roles::redundancy::Redundancy;
use super::saving::phase::Saving;
use super::saving::saved::{self, Saved};
use super::saving::steps::Saver;
use super::signals::Signals;
use super::state::RankStateName;
use super::timeouts::{RETRY, START_TIMEOUT};
use super::users::asked::{not_begun, Asked};
use super::users::measurements::Measurements;
use super::users::measuring::Measuring;
use super::view::View;
use crate::record::{Record, Summary};
use eyrie_placement::{Placement, WithoutNetwork};
use eyrie_wire::control::{RankReport, StandardStream};
use eyrie_wire::{Node, RankInstance};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The machine. Each component keeps its fields to itself.
#[derive(Serialize, Deserialize)]
pub struct Machine {
    pub(super) config: Config,
    #[serde(skip, default = "without_network")]
    pub(super) placement: Box<dyn Placement>,
    pub(super) out: Outbox,
    pub(super) nodes: Nodes,
    pub(super) contact: Contact,
    pub(super) reach: Reach,
    pub(super) ranks: Ranks,
    pub(super) roles: Roles,
    pub(super) redundancy: Redundancy,
    pub(super) pmi: Pmi,
    pub(super) output: Ledger,
    pub(super) stores: Stores,
    pub(super) schedule: Schedule,
    pub(super) overdue: Overdue,
    pub(super) moves: Moves,
    pub(super) saving: Saving,
    pub(super) measurements: Measurements,
    pub(super) faults: Faults,
    pub(super) signals: Signals,
}

/// The form of a snapshot: it goes up with each change of what is in it.
const FORM: u32 = 2;

fn without_network() -> Box<dyn Placement> {
    Box::new(WithoutNetwork)
}

/// A handler that borrows these components.
macro_rules! borrow {
    ($machine:ident, $handler:ident { $($component:ident),* $(,)? }) => {
        $handler { $($component: &mut $machine.$component),* }
    };
    ($machine:ident, placing $handler:ident { $($component:ident),* $(,)? }) => {
        $handler { placement: &*$machine.placement, $($component: &mut $machine.$component),* }
    };
}

/// All components that a view has, to be read.
macro_rules! view {
    ($machine:ident) => {
        View {
            config: &$machine.config,
            out: &$machine.out,
            nodes: &$machine.nodes,
            reach: &$machine.reach,
            ranks: &$machine.ranks,
            roles: &$machine.roles,
            stores: &$machine.stores,
            schedule: &$machine.schedule,
            moves: &$machine.moves,
            saving: &$machine.saving,
        }
    };
}

impl Machine {
    /// A machine that goes on with a saved job.
    pub fn go_on(config: Config, saved: Saved) -> Machine {
        let mut machine = Machine::new(config);
        for (r, saved) in machine.ranks.iter_mut().zip(&saved.ranks) {
            saved::take(r, saved);
        }
        machine.ranks.count();
        machine.pmi = saved.pmi;
        machine.output = saved.output;
        machine.out = Outbox::new(saved.summary);
        machine.roles.set_homes(saved.home);
        machine.signals = Signals::sent(saved.signals);
        machine
    }

    pub fn new(config: Config) -> Machine {
        let Config { nodes, spares, ref hosts, heartbeat_timeout, archive, .. } = config;
        // Stores on nodes come later.
        let stores = if config.roles_on_nodes { archive.into() } else { config.stores };
        let Config { checkpoint_every, checkpoint_order, .. } = config;
        Machine {
            placement: without_network(),
            out: Outbox::new(Summary { ranks: config.ranks, ..Summary::default() }),
            nodes: Nodes::new(nodes, spares, hosts.clone(), heartbeat_timeout),
            contact: Contact::default(),
            reach: Reach::default(),
            ranks: Ranks::new(&config.start),
            roles: Roles::after(archive),
            redundancy: Redundancy::default(),
            pmi: Pmi::new(config.ranks),
            output: Ledger::new(config.ranks),
            stores: Stores::new(stores, archive),
            schedule: Schedule::new(checkpoint_every, checkpoint_order, config.ranks),
            overdue: Overdue::default(),
            moves: Moves::default(),
            saving: Saving::new(config.can_be_saved),
            measurements: Measurements::default(),
            faults: Faults::new(&config.injections),
            signals: Signals::default(),
            config,
        }
    }

    /// The same machine, asking `placement` for the nodes of displaced ranks.
    pub fn place_by(self, placement: Box<dyn Placement>) -> Machine {
        Machine { placement, ..self }
    }

    /// The state between two events, so that another machine goes on without what this one has
    /// heard. Users who wait for answers are not in it: their connections end with their
    /// controller.
    ///
    /// # Errors
    /// None but those of the encoding.
    pub fn snapshot(&self) -> postcard::Result<Vec<u8>> {
        postcard::to_stdvec(&(FORM, self))
    }

    /// Goes on from such a state; ranks are placed as before.
    ///
    /// # Errors
    /// When these bytes are none, or of another form ([`FORM`]).
    pub fn restore(&mut self, snapshot: &[u8]) -> postcard::Result<()> {
        let (form, rest) = postcard::take_from_bytes::<u32>(snapshot)?;
        if form != FORM {
            return Err(postcard::Error::SerdeDeCustom);
        }
        let mut restored: Machine = postcard::from_bytes(rest)?;
        std::mem::swap(&mut restored.placement, &mut self.placement);
        *self = restored;
        Ok(())
    }

    /// Handles one event at `now` (since the job's start, never going back) and returns what to do,
    /// in order.
    pub fn handle(&mut self, now: Duration, event: Event) -> Vec<Command> {
        if self.out.has_ended() {
            if let Event::Output { instance, stream, offset, bytes } = event {
                self.output_arrived(instance, stream, offset, bytes);
            }
            return self.out.take_commands();
        }
        self.pass_time(now.max(self.out.now()));
        let tick = event == Event::Tick;
        self.dispatch(event);
        self.follow();
        self.begin_when_all_are_up();
        if tick || self.out.now() >= self.out.look_at() {
            self.look();
        }
        if self.out.has_started() && !self.out.has_ended() && !self.contact.is_cut_off() {
            self.injecting().inject_due();
            self.saver().go_on_saving();
            self.follow();
            self.captures().capture_due();
        }
        self.end();
        self.out.take_commands()
    }

    /// When [`super::Event::Tick`] is due at the latest.
    pub fn next_tick(&self) -> Option<Duration> {
        if self.out.has_ended() {
            return None;
        }
        if !self.out.has_started() {
            return Some(self.out.look_at());
        }
        let soon = [self.schedule.next_after(self.out.now()), self.faults.next()];
        soon.into_iter().flatten().chain([self.out.look_at()]).min()
    }

    /// What follows from what a handler has found, until nothing is left: in order, and what
    /// follows from one consequence before the next.
    fn follow(&mut self) {
        while let Some((consequence, later)) = self.out.next_consequence() {
            self.handle_consequence(consequence);
            self.follow();
            self.out.put_back(later);
        }
    }

    fn handle_consequence(&mut self, consequence: Consequence) {
        use Consequence as C;
        match consequence {
            C::NodesLost(lost) => self.nodes_lost(lost),
            C::RankLost { rank, death, cause, unheard } => {
                self.recovery().fail(rank, death, cause, unheard)
            }
            C::RankFailed(rank) => {
                let again = self.out.now() + RETRY;
                self.saver().not_imaged(rank, true, again);
                self.mover().died(rank);
            }
            C::RouterFenced { router, instance, rsn } => {
                self.recovery().router_fenced(router, instance, rsn)
            }
            C::RankFenced { instance, mark } => {
                self.saver().fenced(instance.rank);
                if !self.saving.ranks_stay_fenced() {
                    self.recovery().bring_back(instance, mark);
                }
            }
            C::RankReturns { instance, mark } => {
                if !self.out.has_ended() {
                    self.recovery().bring_back(instance, mark);
                }
            }
            C::RankNotRestored(rank) => {
                self.mover().end_move(rank, Some("it could not be restored there"))
            }
            C::MoveFails { rank, why } => self.mover().end_move(rank, Some(&why)),
            C::RankArrived(rank) => self.mover().arrived(rank),
            C::RankFinished(rank) => {
                self.overdue.forget(rank);
                self.mover().end_move(rank, None);
                self.end_of_ranks().end_if_all_have();
            }
            C::ImageCounted { rank, capture } => {
                self.saving.imaged(rank, capture.asked);
                self.mover().imaged(rank, &capture);
            }
            C::ImageFailed { rank, cause, passing, again } => {
                self.saver().not_imaged(rank, passing, again);
                self.mover().not_imaged(rank, &cause, passing, again);
            }
            C::NotArchived { instance, image, cause } => {
                self.saver().not_archived(instance, image, &cause)
            }
            C::StoreUp(store) => self.captures().store_up(store),
            C::StoreLost(store) => {
                self.captures().store_lost(store);
                self.follow();
                // Fewer copies may be all that can be had now.
                self.captures().count_images();
            }
            C::Save => self.saver().save_asked(None),
        }
    }

    /// Nodes are declared dead. What is lost with any of them is known before ranks are brought
    /// back, or moves begin anew.
    fn nodes_lost(&mut self, lost: Vec<LostNode>) {
        let lost = self.watch().declare_dead(lost);
        for (LostNode { node, .. }, _) in &lost {
            self.hosting().lose_routers_on(*node);
            self.follow();
            self.hosting().lose_stores_on(*node);
            self.follow();
        }
        for (LostNode { node, .. }, _) in &lost {
            if !self.out.has_ended() {
                self.mover().lose_node(*node);
            }
        }
        for (LostNode { node, unheard, .. }, ranks) in lost {
            for rank in ranks {
                if self.out.has_ended() {
                    return;
                }
                let cause = format!("node {node} is lost");
                let (death, unheard) = (Death::Outside, Some(unheard));
                self.recovery().fail(rank, death, cause, unheard);
                self.follow();
            }
        }
    }

    /// The job is over, if that has come of this event: its record is the last one.
    fn end(&mut self) {
        let Some((code, cause)) = self.out.take_end() else { return };
        let cause = cause.map(|cause| cause + &self.watch().which_are_silent());
        self.injecting().miss_all();
        let summary = self.out.summary();
        self.out.record(Record::JobEnded { code, cause, summary });
        self.out.push(Command::End { code });
    }

    /// Time goes on. When this comes later than it should have, the controller itself was stopped,
    /// or had no processor: all deadlines move by as much. So they do while it stands aside.
    fn pass_time(&mut self, now: Duration) {
        let before = self.out.now();
        let due = self.next_tick().unwrap_or(now).max(before);
        self.out.set_now(now);
        let is_cut_off = self.contact.is_cut_off();
        let late = now.saturating_sub(if is_cut_off { before } else { due });
        if late > self.nodes.heartbeat_interval() / 8 || is_cut_off {
            self.nodes.extend(late);
            self.ranks.extend(late);
            self.moves.extend(late);
            self.roles.extend(late);
            self.reach.extend(late);
        }
    }

    fn dispatch(&mut self, event: Event) {
        match event {
            Event::Tick => {}
            Event::AgentUp(node) => self.agent_up(node),
            Event::Joining { host } => self.nodes.join(host),
            Event::AgentGone(node) => self.watch().agent_gone(node),
            Event::AgentBack(node) => self.watch().node_heard(node),
            Event::Home(nodes) => self.contact.set_home(nodes),
            Event::Reached { from, to, reached } => self.reached(from, to, reached),
            Event::Replaced { by } => self.out.end(
                1,
                Some(format!("another controller has taken over the job ({by}): this one ends")),
            ),
            Event::AgentWoke(node) => self.out.record(Record::NodeRefused { node }),
            Event::Heartbeat { node, n } => self.watch().heartbeat(node, n),
            Event::Rank(instance, report) => self.rank_reported(instance, report),
            Event::Prepared { node, instance, image, result } => {
                self.mover().prepared(node, instance, image, result)
            }
            Event::Output { instance, stream, offset, bytes } => {
                self.output_arrived(instance, stream, offset, bytes)
            }
            Event::Note(text) => self.out.note(text),
            Event::ImageBegun { instance, image } => self.captures().image_begun(instance, image),
            Event::ImageFailed { store, instance, image, reason } => {
                self.captures().image_failed(store, instance, image, reason)
            }
            Event::ImageStored { store, instance, image } => {
                self.captures().image_stored(store, instance, image)
            }
            Event::StoreUp { store } => self.captures().store_up(store),
            Event::StoreLost { store } => self.captures().store_lost(store),
            Event::StoreFull { store, reason } => self.hosting().store_full(store, &reason),
            Event::Fenced { router, instance, rsn } => self.recovery().router_fenced(router, instance, rsn),
            Event::Connected(instance) => self.recovery().connected(instance),
            Event::Disconnected(instance) => self.recovery().disconnected(instance),
            Event::Replayed { instance, messages } => self.recovery().replayed(instance, messages),
            Event::Refused { instance, reason } => self.out.refused(instance, reason),
            Event::Divergence { rank, reason } => self.out.end(
                1,
                Some(format!(
                    "rank {rank} did not repeat itself, so that it cannot be recovered: {reason}; does the program \
                     depend on clocks or random devices?"
                )),
            ),
            Event::ContentDiffers { rank, reason } => {
                self.out.record(Record::ContentDiffers { rank, cause: reason })
            }
            Event::LogGrown { rank, bytes } => self.captures().log_grown(rank, bytes),
            Event::LogScarce { rank } => self.schedule.log_scarce(rank),
            Event::Unprotected { rank, reason } => self.recovery().unprotected(rank, reason),
            Event::StoreFailed(reason) => self.out.end(1, Some(format!("the store failed: {reason}"))),
            Event::RouterFailed(reason) => self.out.end(1, Some(format!("a router failed: {reason}"))),
            Event::Inject { request, injection } => self.asked().injection_asked(request, injection),
            Event::Trace { request, rank } => self.asked().trace_asked(request, rank),
            Event::Checkpoint { request, rank } => self.asked().checkpoint_asked(request, rank),
            Event::RoleUp { role, addr } => self.hosting().role_up(role, addr),
            Event::RoleLost { role, cause } => self.hosting().role_lost(role, cause),
            Event::Adopted { role, instance } => self.hosting().adopted(role, instance),
            Event::Unheard { role, instance } => self.hosting().unheard(role, instance),
            Event::Heard { role, instance } => self.hosting().heard(role, instance),
            Event::Exposed { rank, exposed } => self.hosting().exposed(rank, exposed),
            Event::Resumed => self.resumed(),
            Event::JournalCopies(copies) => {
                self.redundancy.set_journal(copies);
                self.out.look_now();
            },
            Event::Migrate { request, ranks, to, manner } => {
                self.mover().migrate_asked(request, &ranks, to, manner)
            }
            Event::Drain { request, node } => self.mover().drain_asked(request, node, usize::MAX),
            Event::Measure { request, over, goal } => {
                let not_now = self.view().cannot_move_now();
                self.measuring().measurement_asked(request, over, goal, not_now)
            }
            Event::Measured { node, n, used } => self.measuring().measured(node, n, used),
            Event::Rearrange { request, moves, drains, manner } => {
                self.mover().rearrangement_asked(request, &moves, &drains, manner)
            }
            Event::Notice { node, cause, leaves } => self.mover().notice(node, cause, leaves),
            Event::Undrain { request, node } => self.mover().undrain_asked(request, node),
            Event::Save { request } => self.saver().save_asked(request),
            Event::RouterSaved { router, saved } => self.saver().router_saved(router, saved),
            Event::JobSaved(saved) => self.saver().job_saved(saved),
            Event::Signal(signal) => self.signals.send(&mut self.out, signal),
            Event::Stop { code, cause } => self.out.end(code, Some(cause)),
        }
    }

    fn agent_up(&mut self, node: Node) {
        if !self.watch().agent_up(node) {
            return;
        }
        if self.out.has_started() {
            self.out.extend(self.pmi.so_far(Some(node)));
            // It may take roles that are missing.
            self.out.look_now();
        }
        self.out.record(Record::NodeUp { node });
    }

    /// A node reaches another one again, or not any more.
    fn reached(&mut self, from: Node, to: Node, reached: bool) {
        if from != to && [from, to].iter().all(|node| self.nodes.get(*node).is_some()) {
            self.reach.set(from, to, reached, self.out.now());
            self.out.look_now();
        }
    }

    /// Another controller goes on: what this one was about to do may be lost.
    fn resumed(&mut self) {
        self.out.summary_mut().resumes += 1;
        self.out.record(Record::Resumed);
        self.contact.go_on();
        self.saver().give_up("its controller has died meanwhile");
        self.saver().forget_copies_to_archive();
        self.watch().ask_again();
    }

    /// What an agent says of a rank; only of its present incarnation.
    fn rank_reported(&mut self, instance: RankInstance, report: RankReport) {
        use RankReport as R;
        let Some(r) = self.ranks.current(instance) else { return };
        match report {
            R::Started { fetched, restored } => {
                self.recovery().rank_started(instance, fetched, restored)
            }
            R::StartFailed { reason, fault } => {
                self.recovery().start_failed(instance, reason, fault)
            }
            R::ProviderLoaded => {
                if let Some(on_node) = r.on_node_mut() {
                    on_node.loaded = true;
                }
                self.ranks.spoke_pmi(instance.rank);
                self.end_of_ranks().end_if_one_never_joined();
            }
            R::Library(library) => self.out.record_once(Record::Library { library }),
            R::NotOurs { library, remedy } => {
                self.end_of_ranks().end_for_library(&library, &remedy)
            }
            R::Alone { library, remedy } => {
                self.end_of_ranks().end_for_lonely_ranks(&library, &remedy)
            }
            R::StdinWanted { offset } => {
                let node = r.node;
                if instance.rank == 0 {
                    self.out.push(Command::SendStdin { node, instance, offset });
                }
            }
            R::PmiPut { key, value } => self.pmi.put(instance.rank, key, value),
            R::PmiBarrier { barrier } => {
                self.ranks.spoke_pmi(instance.rank);
                self.end_of_ranks().end_if_one_never_joined();
                let released = self.pmi.arrive(instance.rank, barrier);
                self.out.extend(released);
            }
            R::PmiFinalized => {
                if let Some(on_node) = r.on_node_mut() {
                    on_node.finalized = true;
                }
                self.ranks.spoke_pmi(instance.rank);
            }
            R::PmiAbort { code } => {
                let text = format!("rank {} called MPI_Abort with code {code}", instance.rank);
                self.out.end(code & 0xff, Some(text));
            }
            R::Captured { image, pause } => self.captures().captured(instance, image, pause),
            R::CaptureFailed { image, reason, passing } => {
                self.captures().capture_refused(instance, image, reason, passing)
            }
            R::ImageUsable { image, output } => {
                self.captures().image_checked(instance, image, output)
            }
            R::ImageUnusable { image, reason } => {
                self.captures().image_unusable(instance, image, reason)
            }
            R::ImageWanted { reason } => self.captures().image_wanted(instance, reason),
            R::Fatal { reason } => {
                self.out.end(1, Some(format!("rank {} cannot go on: {reason}", instance.rank)))
            }
            R::Exited { ending, stage } => self.end_of_ranks().exited(instance, ending, stage),
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
        if self.ranks.get(instance.rank).is_none_or(|r| r.instance() != instance) {
            return;
        }
        let known = self.output.take(instance.rank, stream, offset, bytes);
        let end = offset.saturating_add(bytes);
        self.out.push(Command::Show { instance, stream, known, end });
    }

    /// Looks at all nodes, ranks and roles, whether one of them is late: when the first of them may
    /// be, and at least as often as nodes are asked for heartbeats.
    fn look(&mut self) {
        if self.out.has_ended() {
            return;
        }
        self.watch().watch_nodes();
        self.follow();
        let (now, interval) = (self.out.now(), self.nodes.heartbeat_interval());
        if self.contact.is_cut_off() {
            return self.out.set_look_at(now + interval);
        }
        self.hosting().watch_reach();
        self.follow();
        self.recovery().watch_ranks();
        self.follow();
        self.look_at_roles();
        if self.out.has_started() && !self.out.has_ended() {
            self.look_at_images_and_moves();
        }
        let ranks = (self.ranks.iter())
            .flat_map(|r| [r.state.until(), r.capture().map(|c| c.until)].into_iter().flatten());
        let begin = (!self.out.has_started()).then_some(self.config.agents_timeout);
        let overdue = self.overdue.next(self.view()).filter(|_| self.out.has_started());
        let heartbeat = self.nodes.next_heartbeat(now, self.config.heartbeat_timeout);
        let due = ranks.chain(begin).chain(heartbeat).chain(self.roles.next()).chain(overdue);
        // What is asked for after this is looked at in time all the same. Nodes that are due one
        // shortly after another are looked at together.
        let due = due.min().unwrap_or(Duration::MAX);
        self.out.set_look_at(due.clamp(now + interval / 16, now + interval));
    }

    fn look_at_roles(&mut self) {
        self.hosting().watch_late_stores();
        self.follow();
        if self.out.has_ended() {
            return;
        }
        self.hosting().move_stores();
        self.follow();
        if self.out.has_started() && self.config.roles_on_nodes {
            self.hosting().start_missing_stores();
        }
        self.hosting().watch_routers();
        self.follow();
    }

    fn look_at_images_and_moves(&mut self) {
        self.captures().watch_captures();
        self.follow();
        let records = self.overdue.watch(view!(self));
        records.into_iter().for_each(|record| self.out.record(record));
        let why = |rank| (rank, self.view().why_no_image(rank));
        let late = not_begun(&self.out).into_iter().map(why).collect();
        self.asked().give_up(late);
        self.mover().watch_live();
        self.mover().watch_stuck_moves();
        self.mover().watch_moves();
        self.measuring().watch_measurements();
        self.follow();
        let records = self.redundancy.watch(view!(self));
        records.into_iter().for_each(|record| self.out.record(record));
    }

    /// Starts the ranks once every agent is there.
    fn begin_when_all_are_up(&mut self) {
        if self.out.has_started() || self.out.has_ended() {
            return;
        }
        if self.nodes.missing() > 0 {
            if self.out.now() >= self.config.agents_timeout {
                let text = format!(
                    "the agents of {} did not come up within {}",
                    self.nodes.missing_in_words().join(", "),
                    eyrie_units::time(self.config.agents_timeout)
                );
                self.out.end(1, Some(text));
            }
            return;
        }
        if self.hosting().are_ready() {
            self.start();
        }
    }

    /// Starts the ranks, or brings those of a saved job back that have not finished.
    fn start(&mut self) {
        let now = self.out.now();
        self.out.start();
        let Config { ranks, nodes, routers, ref job, .. } = self.config;
        let (spares, hosts) = (self.nodes.spares(), self.nodes.hosts().to_vec());
        let job = job.clone();
        self.out.record(Record::JobStarted { job, ranks, nodes, spares, hosts, routers });
        self.schedule.begin(now);
        self.faults.begin(now);
        self.out.extend(self.pmi.so_far(None));
        for rank in self.ranks.numbers() {
            let r = &mut self.ranks[rank];
            if r.is(RankStateName::Waiting) {
                r.advance(Step::JobStarted { until: now + START_TIMEOUT });
                let (instance, node) = (r.instance(), r.node);
                self.out.push(Command::Start { node, instance, from: None });
                self.out.record(Record::RankStarted { instance, node, image: None });
            } else if let Some(recovery) = r.state.recovery_mut() {
                recovery.mark = now;
                let (instance, mark) = (r.instance(), Mark::default());
                self.out.follows(Consequence::RankReturns { instance, mark });
                self.follow();
            }
        }
    }

    /// All that handlers may ask.
    pub(super) fn view(&self) -> View<'_> {
        view!(self)
    }

    pub(super) fn watch(&mut self) -> Watch<'_> {
        borrow!(self, Watch { config, out, nodes, contact, reach, ranks, roles, redundancy })
    }

    fn hosting(&mut self) -> Hosting<'_> {
        borrow!(
            self,
            Hosting { config, out, nodes, reach, ranks, roles, stores, schedule, moves, saving }
        )
    }

    fn captures(&mut self) -> Captures<'_> {
        borrow!(
            self,
            Captures {
                config,
                out,
                nodes,
                reach,
                ranks,
                roles,
                stores,
                schedule,
                moves,
                saving,
                faults,
                output
            }
        )
    }

    fn recovery(&mut self) -> Recovery<'_> {
        borrow!(
            self,
            placing Recovery {
                config, out, nodes, reach, ranks, roles, stores, schedule, overdue, moves,
                saving, faults, output
            }
        )
    }

    fn mover(&mut self) -> Mover<'_> {
        borrow!(
            self,
            placing Mover {
                config, out, nodes, reach, ranks, roles, stores, schedule, overdue, moves,
                saving
            }
        )
    }

    fn end_of_ranks(&mut self) -> EndOfRanks<'_> {
        borrow!(self, EndOfRanks { out, ranks, signals })
    }

    fn saver(&mut self) -> Saver<'_> {
        borrow!(self, Saver { config, out, ranks, roles, schedule, overdue, saving })
    }

    fn injecting(&mut self) -> Injecting<'_> {
        borrow!(self, Injecting { out, nodes, ranks, faults })
    }

    fn asked(&mut self) -> Asked<'_> {
        borrow!(self, Asked { out, nodes, ranks, schedule, faults })
    }

    fn measuring(&mut self) -> Measuring<'_> {
        borrow!(self, Measuring { config, out, nodes, ranks, moves, measurements })
    }
}
