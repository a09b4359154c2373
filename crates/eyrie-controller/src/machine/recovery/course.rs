//! From the death of a rank to the end of its recovery. A rank comes back when every router has
//! confirmed that only its new incarnation speaks. A router that does not answer is a failure: only
//! that router has the log of its ranks.

use super::gathered::{Gathered, Replay};
use super::stop::{stop_of, Stop};
use crate::machine::config::Config;
use crate::machine::faults::moments::Injecting;
use crate::machine::faults::pending::Faults;
use crate::machine::images::overdue::Overdue;
use crate::machine::images::replicate::drop_copies;
use crate::machine::images::schedule::Schedule;
use crate::machine::io::{start_rank, Command, Mark, Source, ToPeer};
use crate::machine::moves::Moves;
use crate::machine::nodes::Nodes;
use crate::machine::outbox::consequence::Consequence;
use crate::machine::outbox::Outbox;
use crate::machine::output::Ledger;
use crate::machine::placement::{assign, Destinations};
use crate::machine::ranks::entry::RankEntry;
use crate::machine::ranks::incarnation::OnNode;
use crate::machine::ranks::phases::{Death, RankRecovery, RESTORE_ATTEMPTS};
use crate::machine::ranks::Ranks;
use crate::machine::roles::Roles;
use crate::machine::signal_names::{self, is_own_fault};
use crate::machine::state::RankStateName;
use crate::machine::timeouts::{restore_timeout, CONNECT_TIMEOUT, START_TIMEOUT};
use crate::record::Record;
use eyrie_placement::{Choice, Placement};
use eyrie_router::RouterCommand;
use eyrie_wire::control::{StartFault, ToAgent};
use eyrie_wire::{NodeId, Rank, RankInstance, RouterId};
use std::time::Duration;

/// What a recovery changes, and what it asks.
pub struct Recovery<'a> {
    pub config: &'a Config,
    pub placement: &'a Placement,
    pub out: &'a mut Outbox,
    pub nodes: &'a mut Nodes,
    pub ranks: &'a mut Ranks,
    pub schedule: &'a mut Schedule,
    pub overdue: &'a mut Overdue,
    pub roles: &'a Roles,
    pub moves: &'a Moves,
    pub faults: &'a mut Faults,
    pub output: &'a Ledger,
    pub gathered: &'a mut Gathered,
}

impl Recovery<'_> {
    fn destinations(&self) -> Destinations<'_> {
        let config = self.config;
        Destinations { config, nodes: self.nodes, ranks: self.ranks, moves: self.moves }
    }

    fn stop(&mut self) -> Stop<'_> {
        stop_of!(self)
    }

    fn injecting(&mut self) -> Injecting<'_> {
        Injecting { out: self.out, nodes: self.nodes, ranks: self.ranks, faults: self.faults }
    }

    /// The rank's present incarnation is dead: the routers are told to refuse it. `unheard`: how
    /// long ago the last sign of it was, if that is known.
    pub fn rank_failed(
        &mut self,
        rank: Rank,
        death: Death,
        cause: String,
        unheard: Option<Duration>,
    ) {
        let node = self.ranks[rank].node();
        let Some((dead, capture)) = self.stop().replace(rank, death, unheard) else { return };
        self.out.summary_mut().rank_failures += 1;
        self.out.record(Record::RankFailed { instance: dead, node, cause });
        self.stop().drop_capture(rank, capture, "the rank died meanwhile");
        self.stop().fence(rank);
        self.out.follows(Consequence::RankFailed(rank));
    }

    /// A router lets only this incarnation speak, and says what it holds of the rank. When all
    /// do, the rank can come back.
    pub fn router_fenced(
        &mut self,
        router: RouterId,
        instance: RankInstance,
        rsn: u64,
        replay: Replay,
    ) {
        let Some(r) = self.ranks.get_mut(instance.rank) else { return };
        // It may have died again: only the newest fence counts.
        if r.instance() != instance {
            return;
        }
        self.gathered.add(instance, replay);
        if let Some(rsn) = r.confirm_fence(router, rsn) {
            let mark = Mark { rsn, output: self.output.total(instance.rank) };
            let primary = self.roles.primary_of(instance.rank);
            // Where routers run beside the controller, ranks go round them.
            let primary = primary.unwrap_or(RouterId(instance.rank.0 % self.config.routers));
            let Replay { determinants, observed } = self.gathered.take(instance);
            let recover = RouterCommand::Recover { instance, determinants, observed };
            self.out.push(Command::Send(ToPeer::Router(primary, recover)));
            self.out.follows(Consequence::RankFenced { instance, mark });
        }
    }

    /// A router has not confirmed the fence of this rank in time.
    pub fn router_is_late(&mut self, rank: Rank) {
        let r = &self.ranks[rank];
        let Some(fence) = r.fence() else { return };
        let Some(router) = fence.first_missing() else { return };
        let waited = eyrie_units::time(self.out.now() - fence.since());
        let text = format!(
            "router {router} has not answered for {waited}, since it was told to let only {} speak: the rank \
             cannot be recovered without the log of that router, and a router cannot be replaced",
            r.instance()
        );
        self.out.end(1, Some(text));
    }

    /// Older incarnations cannot speak any more: bring the rank back.
    pub fn bring_back(&mut self, instance: RankInstance, mark: Mark) {
        let RankInstance { rank, .. } = instance;
        let r = &mut self.ranks[rank];
        if let Some((signal, again)) = r.count_death(mark) {
            let words = signal_names::in_words(signal);
            let known = again.in_words(signal);
            let text = format!("rank {rank} was killed by {words} {known}, the job ends");
            return self.out.end(signal, Some(text));
        }
        let kept = match r.way_back() {
            Ok(kept) => kept.cloned(),
            Err(reason) => {
                let text = format!("rank {rank} cannot be recovered: {reason}");
                return self.out.end(1, Some(text));
            }
        };
        let died_on = r.node();
        let Some((node, choice)) = self.destination(rank) else {
            return self.out.end(1, Some("no node is left".into()));
        };
        self.take_node(rank, node, choice, died_on);
        let now = self.out.now();
        let until =
            now + kept.as_ref().map_or(START_TIMEOUT, |kept| restore_timeout(kept.image.bytes));
        let avoid = self.ranks[rank].recovery().and_then(RankRecovery::avoid);
        let from = kept.and_then(|kept| kept.source(rank, avoid));
        let image = from.map(|from| from.image);
        self.ranks[rank].bring_back(node, now, from, until);
        self.out.record(Record::Placed { instance, node, choice, image });
        self.out.send_agent(node, ToAgent::Start(start_rank(instance, from)));
        self.injecting().in_recovery(rank, false);
    }

    /// Ranks have lost their nodes, and where they were going if they moved: others are asked for
    /// once for all of them.
    pub fn assign_displaced(&mut self) {
        let ranks = self.destinations().ranks_without_node();
        self.assign(&ranks);
    }

    /// These ranks are to come back together: nodes are asked for once for all that have none.
    pub fn assign_returning(&mut self, instances: &[RankInstance]) {
        let to = self.destinations();
        let has_none = |rank: &Rank| to.assigned_node(*rank).is_none();
        let ranks: Vec<Rank> = instances.iter().map(|i| i.rank).filter(has_none).collect();
        self.assign(&ranks);
    }

    fn assign(&mut self, ranks: &[Rank]) {
        let assigned = assign(self.placement, self.destinations(), ranks);
        self.ranks.assign(assigned);
    }

    /// Where the rank comes back; `None` when no node is up.
    fn destination(&mut self, rank: Rank) -> Option<(NodeId, Choice)> {
        let assigned = self.destinations().assigned_node(rank);
        if assigned.is_none() {
            self.assign(&[rank]);
        }
        let found = self.ranks[rank].take_assignment().map(|a| (NodeId(a.to), a.choice));
        assigned.or(found)
    }

    fn take_node(&mut self, rank: Rank, node: NodeId, choice: Choice, from: NodeId) {
        let state = &mut self.nodes[node];
        match choice {
            Choice::Same => {}
            Choice::Asked => state.receive(),
            Choice::Spare => {
                if state.replace(from) {
                    self.out.summary_mut().spares_used += 1;
                    self.out.record(Record::SpareUsed { spare: node, node: from });
                }
            }
            Choice::Shared => {
                state.receive();
                let there = |r: &&RankEntry| r.node() == node && r.on_node().is_some();
                let ranks = self.ranks.iter().filter(there).count() as u32 + 1;
                self.out.record(Record::NodeShared { node, rank, ranks });
            }
        }
    }

    pub fn rank_started(&mut self, instance: RankInstance, fetched: Duration, restored: Duration) {
        let now = self.out.now();
        let Some(r) = self.ranks.current(instance) else { return };
        let Some(back) = r.started(now, fetched) else { return };
        self.out.record(Record::Restored { instance, fetched, restored });
        self.injecting().in_recovery(instance.rank, true);
        if let Some(messages) = back.caught_up {
            self.replayed(instance, messages);
        }
    }

    pub fn connected(&mut self, instance: RankInstance) {
        let now = self.out.now();
        let Some(r) = self.ranks.current(instance) else { return };
        r.connected(now);
        if r.on_node_mut().is_some_and(OnNode::reconnect) {
            self.out.record(Record::ConnectionLost { instance });
        }
        self.out.record(Record::Connected { instance });
    }

    /// Said only when the rank has another connection, or has none for a while: one that ends well
    /// or dies has none either, and its agent's word of that may come after the router's.
    pub fn disconnected(&mut self, instance: RankInstance) {
        let now = self.out.now();
        if let Some(on_node) = self.ranks.current(instance).and_then(RankEntry::on_node_mut) {
            on_node.disconnect(now);
        }
    }

    /// The rank has caught up: its recovery is over.
    pub fn replayed(&mut self, instance: RankInstance, messages: u64) {
        let now = self.out.now();
        let Some(r) = self.ranks.current(instance) else { return };
        let node = r.node();
        let Some(recovery) = r.caught_up(now, messages) else { return };
        let phases = recovery.phases();
        let total = phases.total();
        if recovery.is_of_failure() {
            let summary = self.out.summary_mut();
            summary.recoveries += 1;
            summary.longest_recovery = summary.longest_recovery.max(total);
        }
        let image = recovery.from().map(|from| from.image);
        self.out.record(Record::Recovered { instance, node, image, messages, phases, total });
        self.out.follows(Consequence::RankArrived(instance.rank));
    }

    pub fn start_failed(&mut self, instance: RankInstance, reason: String, fault: StartFault) {
        let Some(r) = self.ranks.current(instance) else { return };
        let from = match r.state() {
            RankStateName::Restoring | RankStateName::Starting => {
                r.recovery().and_then(RankRecovery::from)
            }
            // It had been started: its end is reported by itself.
            _ => return,
        };
        let rank = instance.rank;
        let Some(Source { image, store }) = from else {
            return self.out.end(1, Some(format!("rank {rank} cannot be started: {reason}")));
        };
        match fault {
            // The image is as good as before.
            StartFault::Killed(signal) if !is_own_fault(signal) => {
                return self.rank_failed(rank, Death::Signal(signal), reason, None);
            }
            // What has come of the image fails by itself: the older one may do.
            StartFault::Killed(_) | StartFault::Attempt | StartFault::Image => {}
        }
        self.out.follows(Consequence::RankNotRestored(rank));
        let attempts = self.ranks[rank].fail_restore(store);
        self.out.record(Record::RestoreFailed { instance, image: Some(image), cause: reason });
        let all = attempts >= RESTORE_ATTEMPTS;
        if fault == StartFault::Image || all {
            self.ranks[rank].try_another_image();
            let only = (!all).then_some(store);
            drop_copies(self.out, self.ranks, self.schedule, (rank, image), only);
        }
        self.rank_failed(
            rank,
            Death::Outside,
            format!("image {image} could not be restored"),
            None,
        );
    }

    /// Ranks that did not come up in time, or have no connection, and routers that did not answer.
    pub fn watch_ranks(&mut self) {
        let now = self.out.now();
        for r in self.ranks.iter_mut() {
            let instance = r.instance();
            let stays = |on_node: &mut OnNode| on_node.stays_disconnected(now, CONNECT_TIMEOUT);
            if r.on_node_mut().is_some_and(stays) {
                self.out.record(Record::ConnectionLost { instance });
            }
        }
        let late: Vec<Rank> = (self.ranks.iter())
            .filter(|r| r.until().is_some_and(|until| until <= now))
            .map(RankEntry::rank)
            .collect();
        for rank in late {
            if self.out.has_ended() {
                return;
            }
            let r = &self.ranks[rank];
            if r.is(RankStateName::Lost) {
                return self.router_is_late(rank);
            }
            let instance = r.instance();
            let node = r.node();
            self.out.send_agent(node, ToAgent::Kill(instance));
            let reason = format!("node {node} did not bring it up in time");
            self.start_failed(instance, reason, StartFault::Attempt);
        }
    }

    pub fn unprotected(&mut self, rank: Rank, cause: String) {
        let now = self.out.now();
        let Some(r) = self.ranks.get_mut(rank).filter(|r| r.is_living()) else { return };
        if r.log_mut().break_off(now) {
            self.out.record(Record::Unprotected { rank, cause });
            // An image makes it whole again.
            self.schedule.want(rank, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::{said, Config, Event, Machine};
    use eyrie_store::role::Stored;
    use eyrie_wire::control::{Ending, MpiStage, RankReport};
    use eyrie_wire::NodeId;
    use eyrie_wire::{ImageId, Incarnation, StoreId};

    /// What is recorded of the connections of a rank that runs while its router and its agent say
    /// this, at these seconds.
    fn connections(events: impl IntoIterator<Item = (u64, Event)>) -> Vec<Record> {
        let mut machine = Machine::new(Config::of_one_rank());
        let up = machine.handle(Duration::ZERO, said::joined(NodeId(0)));
        let (_, instance) = start_of(&up);
        let none = Duration::ZERO;
        let started = RankReport::Started { fetched: none, restored: none };
        for report in [started, RankReport::ProviderLoaded] {
            machine.handle(Duration::ZERO, said::rank(instance, report));
        }
        let mut records = Vec::new();
        for (second, event) in events {
            let commands = machine.handle(Duration::from_secs(second), event);
            let recorded = commands.into_iter().filter_map(|command| match command {
                Command::Record(record) => Some(record),
                _ => None,
            });
            records.extend(recorded.filter(|record| {
                matches!(record, Record::Connected { .. } | Record::ConnectionLost { .. })
            }));
        }
        records
    }

    #[test]
    fn a_lost_connection_is_said_only_of_a_rank_that_lives() {
        let instance = RankInstance { rank: Rank(0), incarnation: Incarnation(1) };
        let gone = || said::disconnected(instance);
        let [connected, lost] =
            [Record::Connected { instance }, Record::ConnectionLost { instance }];
        // The router's word comes before the agent's.
        let ends = [gone(), said::rank(instance, RankReport::PmiFinalized), Event::Tick];
        assert_eq!(connections((0..).map(|n| n * 5).zip(ends)), []);
        let comes_back = [gone(), said::connected(instance), Event::Tick];
        let said = connections((0..).map(|n| n * 5).zip(comes_back));
        assert_eq!(said, [lost.clone(), connected]);
        let stays_away = [gone(), Event::Tick, Event::Tick];
        assert_eq!(connections((0..).map(|n| n * 5).zip(stays_away)), [lost]);
    }

    fn start_of(commands: &[Command]) -> (NodeId, RankInstance) {
        let start = commands.iter().find_map(said::start);
        let (node, instance, _) = start.unwrap_or_else(|| panic!("no start: {commands:?}"));
        (node, instance)
    }

    /// A rank on a node with two spares, which has an image or not, and then loses its node.
    /// `fails` is how an attempt to bring it back fails. Returns the nodes of three attempts.
    fn nodes_of_attempts(with_image: bool, fails: &RankReport) -> [NodeId; 3] {
        let mut machine = Machine::new(Config { spares: 2, ..Config::of_one_rank() });
        let mut tell = |event| machine.handle(Duration::ZERO, event);
        let up = [0, 1, 2].map(|node| tell(said::joined(NodeId(node))));
        let (_, first) = start_of(&up[2]);
        let fetched = Duration::ZERO;
        let restored = Duration::ZERO;
        tell(said::rank(first, RankReport::Started { fetched, restored }));
        tell(said::rank(first, RankReport::ProviderLoaded));
        if with_image {
            tell(Event::Checkpoint { request: 1, rank: Some(Rank(0)) });
            let image = Stored {
                image: ImageId(1),
                clock: 5,
                rsn: 5,
                observed: 0,
                stdin: 0,
                bytes: 1000,
                file_bytes: 0,
            };
            tell(said::stored(StoreId(0), first, image));
            let image = 1;
            let output = [0; 2];
            tell(said::rank(first, RankReport::ImageUsable { image: ImageId(image), output }));
        }
        tell(Event::AgentGone(NodeId(0)));
        let mut incarnation = 2;
        [(); 3].map(|()| {
            let instance = RankInstance { incarnation: Incarnation(incarnation), ..first };
            let (node, _) = start_of(&tell(said::fenced(RouterId(0), instance, 0)));
            if !with_image {
                tell(said::rank(instance, RankReport::Started { fetched, restored }));
            }
            tell(said::rank(instance, fails.clone()));
            incarnation += 1;
            node
        })
    }

    #[test]
    fn the_last_attempt_is_made_on_another_node() {
        let reason = "no space is left in /dev/shm".into();
        let fault = StartFault::Attempt;
        assert_eq!(
            nodes_of_attempts(true, &RankReport::StartFailed { reason, fault }),
            [1, 1, 2].map(NodeId)
        );
        let ending = Ending::Signal(libc::SIGBUS);
        let killed = RankReport::Exited { ending, stage: MpiStage::Before };
        assert_eq!(nodes_of_attempts(false, &killed), [1, 1, 2].map(NodeId));
    }
}
