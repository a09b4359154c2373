//! Which nodes have the stores. Two are never on one node, and none on a node that is drained or
//! whose disk is full while there is another. A store never leaves a node before each image has a
//! copy elsewhere. Where there are fewer stores than promised, another is started as soon as a host
//! can have it.

use super::io::{Command, StoreId};
use super::rank::RankEntry;
use super::reactor::Machine;
use super::role::Entry;
use super::roles::{ATTEMPTS, ROLE_TIMEOUT};
use crate::record::{in_words, Record};
use eyrie_transport::Addr;
use eyrie_wire::control::Role;
use eyrie_wire::Node;
use std::time::Duration;

/// After so long a host may have room again: a store that is missing is tried there once more.
const ROOM_AGAIN: Duration = Duration::from_secs(60);

impl Machine {
    /// Starts the stores that are missing, where they can be.
    pub(super) fn start_missing_stores(&mut self) {
        while self.roles.stores.len() < self.config.stores as usize {
            let Some(node) = self.node_for_missing_store() else { return };
            self.start_store(node);
        }
    }

    fn start_store(&mut self, node: Node) {
        let (id, until) = (self.roles.next_store, self.now + ROLE_TIMEOUT);
        self.roles.next_store += 1;
        let entry = Entry { generation: 0, node, before: None, addr: None, until, failed: 0 };
        self.roles.stores.insert(id, entry);
        let role = Role::Store { id };
        self.commands.push(Command::StartRole { node, role, takes_over: false });
    }

    /// How many stores must have an image: as many as promised, or as there are on nodes.
    pub(super) fn promised_copies(&self) -> usize {
        let promised = self.config.image_copies as usize;
        match self.config.roles_on_nodes && self.config.stores > 0 {
            true => promised.min(self.roles.stores.len()).max(1),
            false => promised,
        }
    }

    /// The node that a store may move to: one that has none, and room.
    fn node_for_store(&self) -> Option<Node> {
        self.node_with_room(|full| full.is_none())
    }

    /// The node for a store more, also one that had no room some time ago.
    pub(super) fn node_for_missing_store(&self) -> Option<Node> {
        // Where all are full, one that may fail is better than none.
        let none_left = self.roles.stores.is_empty();
        let again = |full: Duration| none_left || self.now >= full + ROOM_AGAIN;
        self.node_for_store().or_else(|| self.node_with_room(|full| full.is_none_or(again)))
    }

    fn node_with_room(&self, has_room: impl Fn(Option<Duration>) -> bool) -> Option<Node> {
        let has_store = |node| self.roles.stores.values().any(|store| store.node == node);
        let can = |node: Node| {
            let entry = &self.nodes[node as usize];
            !entry.drained && has_room(entry.full) && !has_store(node)
        };
        let free = self.nodes_up_with_ranks().filter(|(node, _)| can(*node));
        let far = |node| self.cannot_meet_store(StoreId::MAX, node).is_some();
        free.min_by_key(|(node, ranks)| (far(*node), *ranks, *node)).map(|(node, _)| node)
    }

    /// The disk of a store is full: it moves to another host, if there is one.
    pub(super) fn store_full(&mut self, id: StoreId, reason: &str) {
        let Some(node) = self.roles.stores.get(&id).map(|store| store.node) else { return };
        if self.nodes[node as usize].full.replace(self.now).is_some() {
            return;
        }
        let what = match self.node_for_store() {
            Some(_) => "its store moves to another host",
            None => "no other host can have its store, so that ranks keep older images",
        };
        let name = in_words(node, &self.config.hosts);
        self.note(format!("{name} has no room for images ({reason}): {what}"));
        self.look_at = self.now;
    }

    /// A store says where it listens.
    pub(super) fn store_listens(&mut self, id: StoreId, addr: Addr) {
        let Some(entry) = self.roles.stores.get_mut(&id) else { return };
        entry.addr = Some(addr);
        self.roles.failed_stores = 0;
        let node = entry.node;
        let role = Role::Store { id }.to_string();
        self.record(Record::RoleStarted { role, node });
        self.store_up(id);
    }

    /// A store is gone with all that it held; another one gets copies of what the others hold.
    pub(super) fn store_on_node_lost(&mut self, id: StoreId, cause: String, by_itself: bool) {
        let Some(entry) = self.roles.stores.remove(&id) else { return };
        if entry.addr.is_none() && by_itself {
            // Another node may do; and where one has the images, the job goes on with that.
            self.nodes[entry.node as usize].full = Some(self.now);
            let text = format!("a store cannot be started: {cause}");
            if self.roles.stores.is_empty() {
                self.roles.failed_stores += 1;
                if self.roles.failed_stores >= ATTEMPTS {
                    return self.end(1, Some(text));
                }
            }
            self.note(text);
        }
        if entry.addr.is_some() {
            let (role, node) = (Role::Store { id }.to_string(), entry.node);
            self.summary.roles_lost += 1;
            self.record(Record::RoleLost { role, node, cause, ranks: vec![] });
        }
        self.start_missing_stores();
        self.store_lost(id);
        // Fewer copies may be all that can be had now.
        self.count_images();
    }

    /// Stores leave nodes that are drained, or full while another has room, when each image has a
    /// copy elsewhere, one after the other.
    pub(super) fn move_stores(&mut self) {
        let all_are_up = self.roles.stores.values().all(|store| store.addr.is_some());
        let has_room = all_are_up && self.node_for_store().is_some();
        let hosts = &self.config.hosts;
        // A store that others do not reach moves to where they do.
        let meets = |id: StoreId| {
            let node = self.node_for_store().filter(|_| all_are_up);
            node.is_some_and(|node| self.cannot_meet_store(id, node).is_none())
        };
        let leaves = |(id, store): (&StoreId, &Entry)| {
            let entry = &self.nodes[store.node as usize];
            let full = entry.full.is_some() && has_room;
            let far = self.cannot_meet_store(*id, store.node);
            let far = far.filter(|far| self.lasts(*far, store.node) && meets(*id));
            let cause = match far {
                _ if entry.drained => "is drained".to_string(),
                _ if full => "has no room for images".to_string(),
                Some(far) => format!("and {} do not reach each other", in_words(far, hosts)),
                None => return None,
            };
            let elsewhere = |r: &RankEntry| {
                r.images.iter().all(|kept| kept.copies.stores.iter().any(|other| other != id))
            };
            let leaves = store.addr.is_some() && self.ranks.iter().all(elsewhere);
            leaves.then(|| (*id, store.node, format!("node {} {cause}", store.node)))
        };
        if let Some((id, node, cause)) = self.roles.stores.iter().find_map(leaves) {
            self.commands.push(Command::StopRole { node, role: Role::Store { id } });
            self.store_on_node_lost(id, cause, false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::{Config, Event};
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
                let answer = match bad.contains(&node) {
                    true => Event::RoleLost { role, cause: "no space".into() },
                    false => Event::RoleUp { role, addr: Addr::Unix(format!("/{role}").into()) },
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
        // It is none any more: nobody listens to it.
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
        assert_eq!((job.machine.promised_copies(), job.machine.has_ended()), (1, false));
    }
}
