//! What rules find on nodes, and what is to be done about it. A false alarm costs an image: a node
//! is drained only where it is failing, another one is well, and few are drained already; and a
//! rule that fires too often is muted.

use super::acting::{Taken, Wanted};
use super::equals::NodeTime;
use super::muting::{Firing, LONG, TIMES, WITHIN};
use super::Health;
use crate::machine::config::Config;
use crate::machine::nodes::Nodes;
use crate::machine::outbox::consequence::Consequence;
use crate::machine::outbox::Outbox;
use crate::record::Record;
use eyrie_interface::options::Precaution;
use eyrie_wire::health::{Finding, HealthState};
use eyrie_wire::NodeId;

/// The rule of notices: hosts that will be taken away.
const NOTICE: &str = "notice";
/// That of nodes that compute the same work slower than others.
const STRAGGLER: &str = "straggler";

pub struct Precautions<'a> {
    pub config: &'a Config,
    pub out: &'a mut Outbox,
    pub nodes: &'a mut Nodes,
    pub health: &'a mut Health,
}

impl Precautions<'_> {
    /// A rule has found something on a node, or finds it no longer.
    pub fn found(&mut self, node: NodeId, finding: Finding) {
        if !self.nodes.is_up(node) {
            return;
        }
        let finding = finding.bounded();
        let now = self.out.now();
        let entry = self.health.entry(node);
        let Some(firing) = entry.take(&finding, now) else { return };
        let node_state = entry.state();
        self.nodes.set_unwell(node, node_state != HealthState::Ok);
        let Finding { rule, what, state, said } = finding;
        match firing {
            Some(Firing::Muted) => return,
            None if entry.muted(&rule, now).is_some() => return,
            Some(Firing::TooOften) => {
                let (within, muted_for) = (WITHIN, LONG);
                let times = TIMES as u32;
                self.out.record(Record::RuleMuted { node, rule, times, within, muted_for })
            }
            Some(Firing::Counts) | None => {
                self.out.record(Record::NodeHealth { node, rule, what, state, node_state, said })
            }
        }
        self.go_on_with(node);
    }

    /// A host will be taken away. What is done about it is said elsewhere.
    pub fn noticed(&mut self, node: NodeId, said: &str) {
        let now = self.out.now();
        let finding = Finding {
            rule: NOTICE.into(),
            what: "host".into(),
            state: HealthState::Failing,
            said: said.into(),
        };
        if self.nodes.is_up(node) {
            let entry = self.health.entry(node);
            entry.take(&finding.bounded(), now);
            let done = "it has had a notice (--on-notice)".into();
            entry.take_precaution(Precaution::Drain, false, done, now);
        }
    }

    /// A user lets ranks come to a node again: it is not taken away, and not left for its health.
    pub fn undrained(&mut self, node: NodeId) {
        if self.nodes.is_drained(node) || self.health.get(node).is_none() {
            return;
        }
        let now = self.out.now();
        let (rule, what, said) = (NOTICE.into(), "host".into(), String::new());
        let entry = self.health.entry(node);
        entry.take(&Finding { rule, what, state: HealthState::Ok, said }, now);
        entry.undrain();
        let unwell = entry.state() != HealthState::Ok;
        self.nodes.set_unwell(node, unwell);
    }

    /// How long the ranks of nodes took in the last window for the same work as their equals. Of a
    /// node that was not slow before, and is not, nothing need be said.
    pub fn compared(&mut self, times: Vec<NodeTime>) {
        for NodeTime { node, permille } in times {
            if !self.nodes.is_up(node) {
                continue;
            }
            let Some(slow) = self.health.entry(node).compare(permille) else { continue };
            let times = f64::from(permille) / 1000.0;
            let said = format!(
                "its ranks compute {times:.2} times as long as their equals on other nodes"
            );
            let state = if slow { HealthState::Suspect } else { HealthState::Ok };
            let (rule, what) = (STRAGGLER.into(), "ranks".into());
            self.found(node, Finding { rule, what, state, said });
        }
    }

    /// What could not be done about nodes before.
    pub fn go_on(&mut self) {
        let nodes: Vec<NodeId> =
            self.health.nodes().filter(|node| self.nodes.is_up(*node)).collect();
        nodes.into_iter().for_each(|node| self.go_on_with(node));
    }

    fn go_on_with(&mut self, node: NodeId) {
        if self.wanted(node).is_some() {
            self.out.follows(Consequence::NodeUnwell(node));
        }
    }

    /// What is wanted about a node now that was not done yet.
    pub fn wanted(&self, node: NodeId) -> Option<Wanted> {
        let Config { on_suspect, on_failing, .. } = *self.config;
        let precaution = self.health.pending(node, [on_suspect, on_failing])?;
        let drains = precaution == Precaution::Drain;
        let cannot_drain = drains.then(|| self.health.cannot_drain(self.nodes, node)).flatten();
        let imaged = self.health.get(node).is_some_and(|entry| entry.taken() >= Precaution::Image);
        let is_possible = self.out.has_started() && !(imaged && cannot_drain.is_some());
        is_possible.then_some(Wanted { precaution, cannot_drain, imaged })
    }

    /// This was done about a node.
    pub fn taken(&mut self, node: NodeId, taken: Taken) {
        let now = self.out.now();
        let entry = self.health.entry(node);
        let drained = matches!(taken, Taken::Drained { .. });
        entry.take_precaution(taken.precaution(), drained, taken.in_words(), now);
        // That ranks leave it is said by the drain.
        if let Some((ranks, cause)) = taken.images().filter(|(ranks, _)| !ranks.is_empty()) {
            self.out.record(Record::Precaution { node, ranks, cause });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::roles::trial::Trial;
    use crate::machine::{said, Command, Event, Machine, ToPeer};
    use eyrie_interface::Order;
    use eyrie_wire::control::{FromAgent, RankReport, RoleKind, ToAgent};
    use eyrie_wire::{Incarnation, Rank, RankInstance};
    use std::time::Duration;

    /// Two ranks on each of the first two of these nodes.
    fn machine(nodes: u32) -> Machine {
        let start = [0, 0, 1, 1].map(NodeId).to_vec();
        let checkpoint_order = Order::Batch;
        let config = Config { ranks: 4, nodes, start, checkpoint_order, ..Config::of_one_rank() };
        let mut machine = Machine::new(config);
        machine.handle(Duration::ZERO, said::store_up(eyrie_wire::StoreId(0)));
        machine
    }

    fn start(machine: &mut Machine, nodes: u32) -> Vec<Command> {
        let mut commands = Vec::new();
        for node in NodeId::first(nodes) {
            commands.extend(machine.handle(Duration::ZERO, said::joined(node)));
        }
        for rank in Rank::first(4) {
            let instance = RankInstance { rank, incarnation: Incarnation(1) };
            let started = RankReport::Started { fetched: Duration::ZERO, restored: Duration::ZERO };
            for report in [started, RankReport::ProviderLoaded] {
                commands.extend(machine.handle(Duration::ZERO, said::rank(instance, report)));
            }
        }
        commands
    }

    fn found(
        machine: &mut Machine,
        at: u64,
        node: u32,
        rule: &str,
        state: HealthState,
    ) -> Vec<Command> {
        let node = NodeId(node);
        let finding = Finding { rule: rule.into(), what: "it".into(), state, said: "so".into() };
        let found = said::agent(node, FromAgent::Found(finding));
        machine.handle(Duration::from_secs(at), found)
    }

    fn records(commands: &[Command]) -> Vec<&Record> {
        let all = commands.iter();
        all.filter_map(|of| if let Command::Record(record) = of { Some(record) } else { None })
            .collect()
    }

    /// The ranks that are imaged by these commands.
    fn imaged(commands: &[Command]) -> Vec<Rank> {
        let rank = |command: &Command| match command {
            Command::Send(ToPeer::Agent(_, ToAgent::Capture { instance, .. })) => {
                Some(instance.rank)
            }
            _ => None,
        };
        commands.iter().filter_map(rank).collect()
    }

    fn why_images(commands: &[Command]) -> Option<String> {
        records(commands).into_iter().find_map(|record| match record {
            Record::Precaution { cause, .. } => cause.clone(),
            _ => None,
        })
    }

    fn drains(commands: &[Command]) -> bool {
        records(commands).into_iter().any(|r| matches!(r, Record::NodeDraining { .. }))
    }

    #[test]
    fn the_ranks_of_a_suspect_node_are_imaged_once_until_it_is_well() {
        let mut machine = machine(3);
        start(&mut machine, 3);
        let commands = found(&mut machine, 1, 1, "heat", HealthState::Suspect);
        assert!(matches!(
            records(&commands)[..2],
            [
                Record::NodeHealth { node_state: HealthState::Suspect, .. },
                Record::Precaution { .. }
            ]
        ));
        assert_eq!(imaged(&commands), [2, 3].map(Rank));
        assert!(imaged(&found(&mut machine, 2, 1, "disk", HealthState::Suspect)).is_empty());
        found(&mut machine, 3, 1, "heat", HealthState::Ok);
        found(&mut machine, 3, 1, "disk", HealthState::Ok);
        let again = found(&mut machine, 4, 1, "heat", HealthState::Suspect);
        assert!(records(&again).iter().any(|r| matches!(r, Record::Precaution { .. })));
    }

    #[test]
    fn a_failing_node_is_drained_where_another_is_well_and_few_are_drained() {
        let mut machine = machine(3);
        start(&mut machine, 3);
        assert!(drains(&found(&mut machine, 1, 0, "heat", HealthState::Failing)));
        let commands = found(&mut machine, 2, 1, "heat", HealthState::Failing);
        assert!(!drains(&commands) && imaged(&commands) == [2, 3].map(Rank));
        let why = why_images(&commands).unwrap();
        assert!(why.contains("1 of the nodes are drained for their health already"), "{why}");
        // A user says that it is well: then there is room for the next one.
        let undrain = Event::Undrain { request: 1, node: NodeId(0) };
        let mut commands = machine.handle(Duration::from_secs(3), undrain);
        machine.out.look_now();
        commands.extend(machine.handle(Duration::from_secs(4), Event::Tick));
        assert!(drains(&commands), "{commands:?}");
    }

    #[test]
    fn nothing_starts_on_a_node_that_is_drained_again_as_soon_as_it_is_undrained() {
        let node = NodeId(1);
        let mut trial = Trial::new(Config::with_roles_on(2));
        trial.handle(Event::Drain { request: Some(1), node });
        trial.now += Duration::from_secs(1);
        trial.handle(Event::Tick);
        let stores = |trial: &Trial| trial.machine.roles.of_kind_on(RoleKind::Store, node);
        assert!(stores(&trial).is_empty());
        let (rule, what, said) = ("heat".into(), "it".into(), "so".into());
        let finding = Finding { rule, what, state: HealthState::Failing, said };
        trial.handle(said::agent(node, FromAgent::Found(finding)));
        let commands = trial.handle(Event::Undrain { request: 2, node });
        assert!(drains(&commands), "{commands:?}");
        assert!(stores(&trial).is_empty());
    }

    #[test]
    fn ranks_do_not_come_to_a_node_that_is_not_well_where_another_can_take_them() {
        let mut machine = machine(4);
        start(&mut machine, 4);
        found(&mut machine, 1, 2, "heat", HealthState::Suspect);
        machine.handle(Duration::from_secs(2), Event::Drain { request: None, node: NodeId(0) });
        let to = |machine: &Machine| -> Vec<Option<NodeId>> {
            machine.moves().map(|(_, moving)| moving.goes_to()).collect()
        };
        assert!(to(&machine).iter().all(|to| *to != Some(NodeId(2))), "{:?}", to(&machine));
    }

    #[test]
    fn a_node_is_not_drained_to_one_that_is_not_well() {
        let mut machine = machine(2);
        start(&mut machine, 2);
        found(&mut machine, 1, 0, "disk", HealthState::Suspect);
        let commands = found(&mut machine, 2, 1, "heat", HealthState::Failing);
        let why = why_images(&commands).unwrap();
        assert!(why.contains("no other node that is well") && !drains(&commands), "{why}");
    }

    #[test]
    fn what_is_found_before_the_job_starts_is_acted_on_when_it_has() {
        let mut machine = machine(2);
        machine.handle(Duration::ZERO, said::joined(NodeId(1)));
        let commands = found(&mut machine, 0, 1, "heat", HealthState::Suspect);
        assert!(imaged(&commands).is_empty() && records(&commands).len() == 1);
        let mut other = Machine::new(Config::of_one_rank());
        other.restore(&machine.snapshot().unwrap()).unwrap();
        for machine in [&mut machine, &mut other] {
            let mut commands = start(machine, 2);
            machine.out.look_now();
            commands.extend(machine.handle(Duration::from_secs(1), Event::Tick));
            assert_eq!(imaged(&commands), [2, 3].map(Rank));
        }
    }

    #[test]
    fn a_straggler_is_suspect_and_its_ranks_are_imaged() {
        let mut machine = machine(3);
        start(&mut machine, 3);
        let mut window = |at, permille| {
            let times = [(0, 900), (1, permille), (7, 5000)];
            let time = |(node, permille)| NodeTime { node: NodeId(node), permille };
            machine.handle(Duration::from_secs(at), Event::Compared(times.map(time).into()))
        };
        assert!(records(&window(1, 2100)).is_empty() && records(&window(2, 2100)).is_empty());
        let commands = window(3, 2100);
        assert_eq!(imaged(&commands), [2, 3].map(Rank));
        let said = records(&commands)[0].line(&[]).unwrap().1;
        let wanted =
            "node 1 is suspect: straggler, ranks: its ranks compute 2.10 times as long as \
                      their equals on other nodes";
        assert_eq!(said, wanted);
    }

    #[test]
    fn a_rule_that_fires_too_often_does_nothing_more() {
        let mut machine = machine(3);
        start(&mut machine, 3);
        for n in 0..3 {
            let fires = found(&mut machine, 2 * n, 1, "heat", HealthState::Suspect);
            assert!(records(&fires).iter().any(|r| matches!(r, Record::Precaution { .. })));
            found(&mut machine, 2 * n + 1, 1, "heat", HealthState::Ok);
        }
        let muted = found(&mut machine, 7, 1, "heat", HealthState::Suspect);
        assert!(matches!(records(&muted)[..], [Record::RuleMuted { .. }]), "{muted:?}");
        assert!(records(&found(&mut machine, 8, 1, "heat", HealthState::Ok)).is_empty());
        assert!(records(&found(&mut machine, 9, 1, "heat", HealthState::Failing)).is_empty());
    }
}
