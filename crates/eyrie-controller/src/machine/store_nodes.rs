//! Which nodes have the stores. Two are never on one node, and none on a node that is drained or
//! whose disk is full while there is another. A store never leaves a node before each image has a
//! copy elsewhere.

use super::io::{Command, StoreId};
use super::rank::RankEntry;
use super::reactor::Machine;
use super::role::Entry;
use super::roles::{ATTEMPTS, ROLE_TIMEOUT};
use crate::record::{in_words, Record};
use eyrie_transport::Addr;
use eyrie_wire::control::Role;
use eyrie_wire::Node;

impl Machine {
    /// Starts a store more, where one can be.
    pub(super) fn start_store(&mut self) {
        let Some(node) = self.node_for_store() else { return };
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

    /// The node for a store more: one that has none, and room.
    fn node_for_store(&self) -> Option<Node> {
        let has_store = |node| self.roles.stores.values().any(|store| store.node == node);
        let can = |node: Node| {
            let entry = &self.nodes[node as usize];
            // Where all are full, one that may fail is better than none.
            !entry.drained && (!entry.full || self.roles.stores.is_empty())
        };
        let free = self.nodes_up_with_ranks().filter(|(node, _)| can(*node) && !has_store(*node));
        free.min_by_key(|(node, ranks)| (*ranks, *node)).map(|(node, _)| node)
    }

    /// The disk of a store is full: it moves to another host, if there is one.
    pub(super) fn store_full(&mut self, id: StoreId, reason: &str) {
        let Some(node) = self.roles.stores.get(&id).map(|store| store.node) else { return };
        if std::mem::replace(&mut self.nodes[node as usize].full, true) {
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
        let (role, node) = (Role::Store { id }.to_string(), entry.node);
        self.record(Record::RoleStarted { role, node });
        self.store_up(id);
    }

    /// A store is gone with all that it held; another one gets copies of what the others hold.
    pub(super) fn store_on_node_lost(&mut self, id: StoreId, cause: String, by_itself: bool) {
        let Some(entry) = self.roles.stores.remove(&id) else { return };
        if entry.addr.is_none() && by_itself {
            // Another node may do; and where one has the images, the job goes on with that.
            self.nodes[entry.node as usize].full = true;
            self.roles.failed_stores += 1;
            let text = format!("a store cannot be started: {cause}");
            if self.roles.failed_stores >= ATTEMPTS && self.roles.stores.is_empty() {
                return self.end(1, Some(text));
            }
            self.note(text);
        }
        if entry.addr.is_some() {
            let (role, node) = (Role::Store { id }.to_string(), entry.node);
            self.summary.roles_lost += 1;
            self.record(Record::RoleLost { role, node, cause, ranks: vec![] });
        }
        self.start_store();
        self.store_lost(id);
        // Fewer copies may be all that can be had now.
        self.count_images();
    }

    /// Stores leave nodes that are drained, or full while another has room, when each image has a
    /// copy elsewhere, one after the other.
    pub(super) fn move_stores(&mut self) {
        let all_are_up = self.roles.stores.values().all(|store| store.addr.is_some());
        let has_room = all_are_up && self.node_for_store().is_some();
        let leaves = |(id, store): (&StoreId, &Entry)| {
            let entry = &self.nodes[store.node as usize];
            let cause = match (entry.drained, entry.full && has_room) {
                (true, _) => "is drained",
                (false, true) => "has no room for images",
                (false, false) => return None,
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
