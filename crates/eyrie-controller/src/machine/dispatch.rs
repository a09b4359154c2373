//! Which handler takes which event. Decides nothing.

use super::components::Machine;
use super::io::{Command, Event};
use super::moves::obstacles::cannot_move_now;
use crate::record::Record;
use eyrie_wire::control::{RankReport, StandardStream};
use eyrie_wire::{Node, RankInstance};

impl Machine {
    pub(super) fn dispatch(&mut self, event: Event) {
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
                self.counting().image_failed(store, instance, image, reason)
            }
            Event::ImageStored { store, instance, image } => {
                self.counting().image_stored(store, instance, image)
            }
            Event::StoreUp { store } => self.counting().store_up(store),
            Event::StoreLost { store } => self.counting().store_lost(store),
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
                let not_now = cannot_move_now(&self.out, &self.saving);
                self.balancing().measurement_asked(request, over, goal, not_now)
            }
            Event::Measured { node, n, used } => self.balancing().measured(node, n, used),
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
                    on_node.load();
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
                let node = r.node();
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
                    on_node.finalize();
                }
                self.ranks.spoke_pmi(instance.rank);
            }
            R::PmiAbort { code } => {
                let text = format!("rank {} called MPI_Abort with code {code}", instance.rank);
                self.out.end(code & 0xff, Some(text));
            }
            R::Captured { image, pause } => self.captures().captured(instance, image, pause),
            R::CaptureFailed { image, reason, passing } => {
                self.counting().capture_refused(instance, image, reason, passing)
            }
            R::ImageUsable { image, output } => {
                self.counting().image_checked(instance, image, output)
            }
            R::ImageUnusable { image, reason } => {
                self.counting().image_unusable(instance, image, reason)
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
    pub(super) fn output_arrived(
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
}
