//! Which handler takes which event, and which message of a peer. Decides nothing.

use super::components::Machine;
use super::domains::outgoing::Window;
use super::io::{Command, Event, FromPeer};
use super::moves::obstacles::cannot_move_now;
use super::recovery::gathered::Replay;
use crate::record::Record;
use eyrie_router::RouterEvent;
use eyrie_store::role::{StoreCommand, StoreEvent};
use eyrie_wire::control::{FromAgent, RankReport, Role, RoleKind, StandardStream};
use eyrie_wire::directory::MessagePath;
use eyrie_wire::domains::DomainSays;
use eyrie_wire::{NodeId, Rank, RankInstance, RouterId, StoreId};

impl Machine {
    pub(super) fn dispatch(&mut self, event: Event) {
        match event {
            Event::Tick => {}
            Event::From(FromPeer::Agent(node, message)) => self.agent_says(node, message),
            Event::From(FromPeer::Router(role, message)) => self.router_says(role, message),
            Event::From(FromPeer::Store(role, message)) => self.store_says(role, message),
            Event::Joining { host } => {
                self.nodes.join(host);
                self.placement.join(self.nodes.hosts());
            }
            Event::NoAgent { node, cause } => self.no_agent(node, cause),
            Event::AgentGone(node) => self.watch().agent_gone(node),
            Event::AgentBack(node) => self.watch().node_heard(node),
            Event::NodesHere(nodes) => self.contact.set_here(nodes),
            Event::Replaced { by } => {
                self.domains.forget();
                self.out.end(
                    1,
                    Some(format!(
                        "another controller has taken over the job ({by}): this one ends"
                    )),
                )
            }
            Event::AgentWoke(node) => self.out.record(Record::NodeRefused { node }),
            Event::Note(text) => self.out.note(text),
            Event::Line { is_error, text } => self.printing().say(is_error, text),
            Event::Shown { domain, bytes } => self.printing().shown(domain, bytes),
            Event::OutputOpened(result) => self.succeeding().opened(result),
            Event::InputEnds { bytes } => self.handover.input_ends(bytes),
            Event::Watched => self.domains.watch(),
            Event::Unwatched => self.exchange().unwatched(),
            Event::StoreLost { store } => self.counting().store_lost(store),
            Event::RoleLost { role, cause } => self.hosting().role_lost(role, cause),
            Event::Inject { request, injection } => {
                self.asked().injection_asked(request, injection)
            }
            Event::Trace { request, rank } => self.asked().trace_asked(request, rank),
            Event::Checkpoint { request, rank } => self.asked().checkpoint_asked(request, rank),
            Event::Resumed => self.resumed(),
            Event::JournalCopies(copies) => {
                self.redundancy.set_journal(copies);
                self.out.look_now();
            }
            Event::MigrateDomain { request, to: None, .. }
                if self.domains.succession().can_stay() =>
            {
                self.succeeding().cancel(request)
            }
            Event::MigrateDomain { request, to, way, leave } => {
                self.handing_over().migration_asked(request, to, way, leave)
            }
            Event::JoinDomain { request, new, keys } => {
                self.newcomers().join_asked(request, new, keys)
            }
            Event::DomainLost { domain, code, cause } => self.newcomers().lost(domain, code, cause),
            Event::Migrate { request, .. }
            | Event::Drain { request, .. }
            | Event::Rearrange { request, .. }
                if self.handover.forbids_moves().is_some() =>
            {
                let why = self.handover.forbids_moves().unwrap_or_default();
                self.out.refuse(request, why)
            }
            Event::Migrate { request, ranks, to, manner } => {
                self.mover().migrate_asked(request, &ranks, to, manner)
            }
            Event::Drain { request, node } => self.mover().drain_asked(request, node, usize::MAX),
            Event::Measure { request, over, goal } => {
                let not_now = cannot_move_now(&self.out, &self.saving);
                self.balancing().measurement_asked(request, over, goal, not_now)
            }
            Event::Propose { request, left } => self.mover().proposal_asked(request, left),
            Event::Rearrange { request, moves, drains, whole, manner } => {
                self.mover().rearrangement_asked(request, &moves, &drains, whole, manner)
            }
            Event::Undrain { request, node } => {
                self.mover().undrain_asked(request, node);
                self.precautions().undrained(node)
            }
            Event::Save { request } => self.saver().save_asked(request),
            Event::RouterNotSaved { router, reason } => {
                self.saver().router_saved(router, Err(reason))
            }
            Event::JobSaved(saved) => self.saver().job_saved(saved),
            Event::Traffic(traffic) => {
                if self.traffic.pairs.is_empty() {
                    let pairs = traffic.pairs.len() as u64;
                    let (bytes, over) = (traffic.bytes(), traffic.over);
                    self.out.record(Record::TrafficMeasured { pairs, bytes, over });
                }
                self.place_by_traffic(traffic)
            }
            Event::Compared(times) => self.precautions().compared(times),
            Event::Signal(signal) => {
                self.signals.send(&mut self.out, signal);
                self.exchange().tell_to(None, DomainSays::Signal { signal });
            }
            Event::Stop { code, cause } => self.out.end(code, Some(cause)),
        }
    }

    /// What the agent of a node says.
    fn agent_says(&mut self, node: NodeId, message: FromAgent) {
        use FromAgent as F;
        match message {
            F::Joined(Ok(_)) => self.agent_up(node),
            F::Joined(Err(cause)) => self.no_agent(node, cause),
            F::Rank(instance, report) => self.rank_reported(instance, report),
            F::Output { instance, stream, offset, bytes } => {
                self.output_arrived(node, instance, stream, offset, bytes)
            }
            F::Shared { rank, path } => self.leftovers.add(rank, path),
            F::Note { text } => self.out.note(text),
            F::Prepared { instance, image, result } => {
                if !self.handing_over().prepared(node, instance, image, &result) {
                    self.mover().prepared(node, instance, image, result);
                }
            }
            F::Reached { node: to, reached } => self.reached(node, to, reached),
            F::Heartbeat { n } => self.watch().heartbeat(node, n),
            F::Measured { n, used } => self.balancing().measured(node, n, used),
            F::RoleEnded { role, cause } => self.hosting().role_lost(role, cause),
            F::Notice { cause, leaves } => {
                self.precautions().noticed(node, &cause);
                self.mover().notice(node, cause, leaves)
            }
            F::Found(finding) => self.precautions().found(node, finding),
            // For users and for the journal: nothing is decided by them.
            F::Trace { .. } | F::Sampled(_) | F::Reachable { .. } | F::JournalKept(_) => {}
        }
    }

    /// What a router says.
    pub(super) fn router_says(&mut self, role: Role, message: RouterEvent) {
        use RouterEvent as R;
        match message {
            R::Listening(addr) => {
                self.hosting().role_up(role, addr);
                if self.is_gateway(role) {
                    self.handing_over().tell_gateway_of_stores();
                }
            }
            R::Fenced { instance, determinants, observed } => {
                let rsn = determinants.iter().map(|d| d.rsn).max().unwrap_or(0);
                let replay = Replay { determinants, observed };
                self.recovery().router_fenced(RouterId(role.id), instance, rsn, replay)
            }
            R::Connected(instance) => self.recovery().connected(instance),
            R::Disconnected(instance) => self.recovery().disconnected(instance),
            R::Replayed { instance, messages } => self.recovery().replayed(instance, messages),
            R::Refused { instance, reason } => self.out.refused(instance, reason),
            R::Divergence { rank, reason } => self.out.end(
                1,
                Some(format!(
                    "rank {rank} did not repeat itself, so that it cannot be recovered: {reason}; does the program \
                     depend on clocks or random devices?"
                )),
            ),
            R::ContentDiffers { rank, reason } => {
                self.out.record(Record::ContentDiffers { rank, cause: reason })
            }
            R::LogGrown { rank, bytes } => self.captures().log_grown(rank, bytes),
            R::LogScarce { rank } if self.ranks.is_here(rank) => self.schedule.log_scarce(rank),
            R::LogScarce { .. } => {}
            R::HeldBack { reason } => self.out.note(format!("ranks wait: {reason}")),
            R::BoundExceeded { bytes } => self.out.note(format!(
                "the log of messages may take {} MiB more than --log-memory: what is not received \
                 yet cannot go to disk",
                bytes.div_ceil(1 << 20)
            )),
            R::Unprotected { rank, reason } => self.recovery().unprotected(rank, reason),
            R::Adopted { instance, .. } => self.hosting().adopted(role, instance),
            R::Unheard { instance } => self.hosting().unheard(role, instance),
            R::Heard { instance } => self.hosting().heard(role, instance),
            R::Exposed { rank } => self.hosting().exposed(rank, true),
            R::Covered { rank } => self.hosting().exposed(rank, false),
            R::Saved(saved) => self.saver().router_saved(RouterId(role.id), saved),
            R::Fatal { reason } if self.config.roles_on_nodes => {
                self.hosting().role_lost(role, reason)
            }
            R::Fatal { reason } => {
                let who = match self.config.path {
                    MessagePath::Router => role.to_string(),
                    MessagePath::Direct => "the keeper of the ledgers".into(),
                };
                self.out.end(1, Some(format!("{who} cannot go on: {reason}")))
            }
            R::Fetches(fetches) => {
                if self.is_gateway(role) {
                    self.handing_over().fetches(fetches);
                }
            }
            R::ImagesAt(addr) => {
                if self.is_gateway(role) {
                    self.handover.set_images_at(Some(addr));
                }
            }
            R::Line { domain, up } => {
                if self.is_gateway(role) {
                    self.exchange().line(domain, up);
                }
            }
            R::FromDomain { domain, letter } => {
                if self.is_gateway(role) {
                    self.exchange().letter(domain, letter);
                }
            }
            // For users: nothing is decided by them.
            R::Stats(_) | R::Lines(_) | R::Traffic(_) => {}
        }
    }

    /// Whether this role is the gateway that there is now.
    pub(super) fn is_gateway(&self, role: Role) -> bool {
        role.kind == RoleKind::Router
            && self.roles.is_gateway(RouterId(role.id))
            && self.is_current(role)
    }

    /// What a store says.
    fn store_says(&mut self, role: Role, message: StoreEvent) {
        use StoreEvent as S;
        let store = role.id;
        match message {
            S::Listening(addr) if self.roles.get(role.kind, store).is_some() => {
                self.hosting().role_up(role, addr)
            }
            S::Listening(addr) => {
                self.stores.listens(StoreId(store), addr);
                self.counting().store_up(StoreId(store));
            }
            S::Begun { instance, image } => self.captures().image_begun(instance, image),
            S::Stored { instance, stored, .. } => {
                let image = stored.image;
                let is_up = self.stores.is_up(StoreId(store));
                if !self.handing_over().image_stored(StoreId(store), instance, image) {
                    self.counting().image_stored(StoreId(store), instance, stored);
                }
                if is_up {
                    // The store then answers the agent that has sent it.
                    self.out.send_store(StoreId(store), StoreCommand::Heard { instance, image });
                }
            }
            S::Failed { instance, image, ref reason }
                if self.handing_over().image_failed(StoreId(store), instance, image, reason) => {}
            S::Failed { instance, image, reason } => {
                self.counting().image_failed(StoreId(store), instance, image, reason)
            }
            S::Full { reason } => self.hosting().store_full(StoreId(store), &reason),
            S::Note(text) => self.out.note(text),
            // The runtime compares it with what was saved.
            S::Inventory { .. } => {}
        }
    }

    /// The agent of a node does not come, or cannot take part: at the start that ends the job.
    fn no_agent(&mut self, node: NodeId, cause: String) {
        if !self.out.has_started() {
            return self.out.end(1, Some(cause));
        }
        self.out.note(cause);
        self.watch().agent_gone(node);
    }

    fn agent_up(&mut self, node: NodeId) {
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
    fn reached(&mut self, from: NodeId, to: NodeId, reached: bool) {
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
        self.domains.unwatch(self.out.now());
        self.newcomers().resumed();
        self.printing().resumed();
        self.succeeding().resumed();
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
                if instance.rank == Rank(0) {
                    self.out.push(Command::SendStdin { node, instance, offset });
                }
            }
            R::PmiPut { key, value } => self.pmi.put(instance.rank, key, value),
            R::PmiBarrier { barrier } => {
                self.ranks.spoke_pmi(instance.rank);
                self.end_of_ranks().end_if_one_never_joined();
                let released = self.pmi.arrive(instance.rank, barrier);
                self.out.extend(released);
                self.exchange().tell_arrival();
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
    /// when the job has ended: what its ranks wrote until then is on the way. The bytes go through
    /// here and are never copied.
    pub(super) fn output_arrived(
        &mut self,
        node: NodeId,
        instance: RankInstance,
        stream: StandardStream,
        offset: u64,
        mut bytes: Vec<u8>,
    ) {
        if self.ranks.get(instance.rank).is_none_or(|r| r.instance() != instance) {
            return;
        }
        let end = offset.saturating_add(bytes.len() as u64);
        let known = self.output.take(instance.rank, stream, offset, bytes.len() as u64);
        bytes.drain(..(known as usize).min(bytes.len()));
        let window = Window { node, instance, stream, end };
        self.printing().print(window, known, bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::{said, Config};
    use std::time::Duration;

    #[test]
    fn what_cannot_go_on_is_named_as_users_know_it() {
        for (path, who) in
            [(MessagePath::Router, "router 0"), (MessagePath::Direct, "the keeper of the ledgers")]
        {
            let mut machine = Machine::new(Config { path, ..Config::of_one_rank() });
            let reason = "its disk is broken".into();
            let fatal = said::router(RouterId(0), RouterEvent::Fatal { reason });
            let said = format!("{:?}", machine.handle(Duration::ZERO, fatal));
            assert!(said.contains(&format!("{who} cannot go on: its disk is broken")), "{said}");
        }
    }
}
