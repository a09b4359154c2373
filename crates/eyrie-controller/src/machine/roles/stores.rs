//! Which nodes have the stores. Two are never on one node, and none on a node that is drained or
//! whose disk is full while there is another. A store never leaves a node before each image has a
//! copy elsewhere. Where there are fewer stores than promised, another is started as soon as a host
//! can have it.

use super::entry::{Entry, Step};
use super::hosting::{too_late, Hosting, ATTEMPTS};
use crate::machine::io::{Command, StoreId};
use crate::machine::outbox::consequence::Consequence;
use crate::machine::ranks::entry::RankEntry;
use crate::machine::timeouts::ROLE_TIMEOUT;
use crate::record::{in_words, Record};
use eyrie_transport::Addr;
use eyrie_wire::control::Role;
use eyrie_wire::Node;

impl Hosting<'_> {
    /// Starts the stores that are missing, where they can be.
    pub fn start_missing_stores(&mut self) {
        while self.roles.stores.len() < self.config.stores as usize {
            let Some(node) = self.view().node_for_missing_store() else { return };
            self.start_store(node);
        }
    }

    fn start_store(&mut self, node: Node) {
        let (id, until) = (self.roles.next_store, self.out.now() + ROLE_TIMEOUT);
        self.roles.next_store += 1;
        self.roles.stores.insert(id, Entry::new(node, until));
        let role = Role::Store { id };
        self.out.push(Command::StartRole { node, role, takes_over: false });
    }

    /// The disk of a store is full: it moves to another host, if there is one.
    pub fn store_full(&mut self, id: StoreId, reason: &str) {
        let Some(node) = self.roles.node_of_store(id) else { return };
        if self.nodes[node].full.replace(self.out.now()).is_some() {
            return;
        }
        let what = match self.view().node_for_store() {
            Some(_) => "its store moves to another host",
            None => "no other host can have its store, so that ranks keep older images",
        };
        let name = in_words(node, self.nodes.hosts());
        self.out.note(format!("{name} has no room for images ({reason}): {what}"));
        self.out.look_now();
    }

    /// A store says where it listens.
    pub fn store_listens(&mut self, id: StoreId, addr: Addr) {
        let Some(entry) = self.roles.stores.get_mut(&id) else { return };
        entry.advance(Step::Listens { addr });
        self.roles.failed_stores = 0;
        let node = entry.node;
        let role = Role::Store { id }.to_string();
        self.out.record(Record::RoleStarted { role, node });
        self.out.follows(Consequence::StoreUp(id));
    }

    /// A store is gone with all that it held; another one gets copies of what the others hold.
    pub fn store_lost(&mut self, id: StoreId, cause: String, by_itself: bool) {
        let Some(entry) = self.roles.stores.remove(&id) else { return };
        if !entry.is_up() && by_itself {
            // Another node may do; and where one has the images, the job goes on with that.
            self.nodes[entry.node].full = Some(self.out.now());
            let text = format!("a store cannot be started: {cause}");
            if self.roles.stores.is_empty() {
                self.roles.failed_stores += 1;
                if self.roles.failed_stores >= ATTEMPTS {
                    return self.out.end(1, Some(text));
                }
            }
            self.out.note(text);
        }
        if entry.is_up() {
            let (role, node) = (Role::Store { id }.to_string(), entry.node);
            self.out.summary_mut().roles_lost += 1;
            self.out.record(Record::RoleLost { role, node, cause, ranks: vec![] });
        }
        self.start_missing_stores();
        self.out.follows(Consequence::StoreLost(id));
    }

    /// Stores that did not come up in time.
    pub fn watch_late_stores(&mut self) {
        let now = self.out.now();
        let late = self.roles.stores.iter();
        let late = late.filter(|(_, store)| store.until().is_some_and(|until| until <= now));
        for id in late.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.store_lost(id, too_late(), true);
        }
    }

    /// Stores leave nodes that are drained, or full while another has room, when each image has a
    /// copy elsewhere, one after the other.
    pub fn move_stores(&mut self) {
        let all_are_up = self.roles.stores.values().all(|store| store.is_up());
        let has_room = all_are_up && self.view().node_for_store().is_some();
        let (view, hosts) = (self.view(), self.nodes.hosts());
        // A store that others do not reach moves to where they do.
        let meets = |id: StoreId| {
            let node = view.node_for_store().filter(|_| all_are_up);
            node.is_some_and(|node| view.cannot_meet_store(id, node).is_none())
        };
        let leaves = |(id, store): (&StoreId, &Entry)| {
            let entry = &self.nodes[store.node];
            let full = entry.full.is_some() && has_room;
            let far = view.cannot_meet_store(*id, store.node);
            let far = far.filter(|far| view.lasts(*far, store.node) && meets(*id));
            let cause = match far {
                _ if entry.drained => "is drained".to_string(),
                _ if full => "has no room for images".to_string(),
                Some(far) => format!("and {} do not reach each other", in_words(far, hosts)),
                None => return None,
            };
            let elsewhere = |r: &RankEntry| {
                r.images.iter().all(|kept| kept.copies.stores.iter().any(|other| other != id))
            };
            let leaves = store.is_up() && self.ranks.iter().all(elsewhere);
            leaves.then(|| (*id, store.node, format!("node {} {cause}", store.node)))
        };
        if let Some((id, node, cause)) = self.roles.stores.iter().find_map(leaves) {
            self.out.push(Command::StopRole { node, role: Role::Store { id } });
            self.store_lost(id, cause, false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::{Config, Event, Machine};
    use std::time::Duration;

    /// A machine of so many nodes with one rank and two stores, and the time.
    struct Job {
        machine: Machine,
        now: Duration,
    }

    impl Job {
        fn new(nodes: u32) -> Job {
            let config = Config { routers: 2, ..Config::with_roles_on(nodes) };
            let mut job = Job { machine: Machine::new(config), now: Duration::ZERO };
            (0..nodes).for_each(|node| drop(job.tell(Event::AgentUp(node))));
            assert!(job.machine.has_started());
            job
        }

        /// Every role that is started listens at once, unless it is on a node of `bad`.
        fn tell_with(&mut self, event: Event, bad: &[Node]) -> Vec<Command> {
            self.now += Duration::from_millis(1);
            let commands = self.machine.handle(self.now, event);
            for command in commands.clone() {
                let Command::StartRole { node, role, .. } = command else { continue };
                let addr = Addr::Unix(format!("/{role}").into());
                let answer = if bad.contains(&node) {
                    Event::RoleLost { role, cause: "no space".into() }
                } else {
                    Event::RoleUp { role, addr }
                };
                self.tell_with(answer, bad);
            }
            commands
        }

        fn tell(&mut self, event: Event) -> Vec<Command> {
            self.tell_with(event, &[])
        }

        fn full(&mut self, store: StoreId) -> Vec<Command> {
            self.tell(Event::StoreFull { store, reason: "no space".into() })
        }

        /// The nodes of the stores by their numbers.
        fn stores(&self) -> Vec<(StoreId, Node)> {
            let stores = self.machine.roles.stores.iter();
            stores.map(|(id, store)| (*id, store.node)).collect()
        }
    }

    fn notes(commands: &[Command]) -> Vec<&str> {
        let note = |c| match c {
            &Command::Record(Record::Note { ref text }) => Some(text.as_str()),
            _ => None,
        };
        commands.iter().filter_map(note).collect()
    }

    #[test]
    fn a_full_store_moves_and_is_told_of_once() {
        let mut job = Job::new(3);
        assert_eq!(job.stores(), [(0, 1), (1, 2)]);
        let told = job.full(0);
        assert_eq!(
            notes(&told),
            ["node 1 has no room for images (no space): its store moves to another host"]
        );
        assert!(told.contains(&Command::StopRole { node: 1, role: Role::Store { id: 0 } }));
        assert_eq!(job.stores(), [(1, 2), (2, 0)]);
        // It is no store any more: what it says does not count.
        assert!(notes(&job.full(0)).is_empty());
    }

    #[test]
    fn a_full_store_stays_where_no_other_node_has_room_until_one_has() {
        let mut job = Job::new(2);
        let told = job.full(0);
        assert!(notes(&told)[0].contains("no other host can have its store"), "{told:?}");
        assert_eq!(job.stores(), [(0, 1), (1, 0)]);
        assert!(notes(&job.full(0)).is_empty());
        job.tell(Event::Joining { host: "late".into() });
        job.tell(Event::AgentUp(2));
        job.tell(Event::Tick);
        assert_eq!(job.stores(), [(1, 0), (2, 2)]);
    }

    #[test]
    fn a_store_that_cannot_be_started_is_tried_elsewhere_and_one_is_enough() {
        let mut job = Job::new(4);
        assert_eq!(job.stores(), [(0, 1), (1, 2)]);
        job.tell_with(Event::AgentGone(2), &[3]);
        assert_eq!(job.stores(), [(0, 1), (3, 0)]);
        job.tell_with(Event::AgentGone(0), &[3]);
        assert_eq!(job.stores(), [(0, 1)]);
        assert_eq!(
            (job.machine.roles.promised_copies(&job.machine.config), job.machine.has_ended()),
            (1, false)
        );
    }
}
