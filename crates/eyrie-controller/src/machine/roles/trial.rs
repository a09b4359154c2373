//! A machine with roles on its nodes, for tests of what becomes of roles.

use crate::machine::said;
use crate::machine::{Command, Config, Event, Machine};
use eyrie_wire::control::Role;
use eyrie_wire::role_address::Addr;
use eyrie_wire::NodeId;
use std::time::Duration;

/// A machine of so many nodes, each up, with one rank and two stores; and the time.
pub struct Trial {
    pub machine: Machine,
    pub now: Duration,
}

/// Every role that is started listens at once.
pub fn listens(_: NodeId, role: Role) -> Option<Event> {
    Some(said::listens(role, Addr::Unix(format!("/{role}").into())))
}

impl Trial {
    pub fn new(config: Config) -> Trial {
        let nodes = config.nodes;
        let mut trial = Trial { machine: Machine::new(config), now: Duration::ZERO };
        (0..nodes).for_each(|node| drop(trial.handle(said::joined(NodeId(node)))));
        assert!(trial.machine.has_started());
        trial
    }

    /// What the machine commands after this event, and after what a role that is started for it
    /// `answers`.
    pub fn handle_with(
        &mut self,
        event: Event,
        answers: &dyn Fn(NodeId, Role) -> Option<Event>,
    ) -> Vec<Command> {
        self.now += Duration::from_millis(1);
        let mut all = Vec::new();
        for command in self.machine.handle(self.now, event) {
            let answer = match command {
                Command::StartRole { node, role, .. } => answers(node, role),
                _ => None,
            };
            all.push(command);
            all.extend(answer.into_iter().flat_map(|answer| self.handle_with(answer, answers)));
        }
        all
    }

    /// As [`Trial::handle_with`], where each role listens.
    pub fn handle(&mut self, event: Event) -> Vec<Command> {
        self.handle_with(event, &listens)
    }
}
