//! Which nodes have the stores. Two are never on one node, and none on a node that is drained or
//! whose disk is full while there is another. A store never leaves a node before each image has a
//! copy elsewhere. Where there are fewer stores than promised, another is started as soon as a host
//! can have it.

use super::entry::RoleEntry;
use super::hosting::{Hosting, ATTEMPTS};
use super::kind::{Kind, Look};
use super::places::Places;
use super::redundancy::{Missing, NO_OTHER_HOST};
use super::Roles;
use crate::machine::config::Config;
use crate::machine::images::why::ImageAges;
use crate::machine::io::Command;
use crate::machine::outbox::consequence::Consequence;
use crate::machine::ranks::entry::RankEntry;
use crate::machine::timeouts::ROLE_TIMEOUT;
use crate::record::{in_words, list, Record};
use eyrie_interface::status::Kept;
use eyrie_wire::control::{Role, RoleKind, ToAgent};
use eyrie_wire::role_address::Addr;
use eyrie_wire::{NodeId, Rank, StoreId};
use std::time::Duration;

/// After so long a host may have room again: a store that is missing is tried there once more.
const ROOM_AGAIN: Duration = Duration::from_secs(60);

impl Hosting<'_> {
    /// Starts the stores that are missing, where they can be.
    fn start_missing_stores(&mut self) {
        while self.roles.count(RoleKind::Store) < self.config.stores as usize {
            let Some(node) = self.places().node_for_missing_store() else { return };
            self.start_store(node);
        }
    }

    fn start_store(&mut self, node: NodeId) {
        let id = self.roles.add_store(node, self.out.now() + ROLE_TIMEOUT);
        let role = Role::first(RoleKind::Store, id.0);
        self.out.push(Command::StartRole { node, role, takes_over: false });
    }

    /// The disk of a store is full: it moves to another host, if there is one.
    pub fn store_full(&mut self, id: StoreId, reason: &str) {
        let Some(node) = self.roles.node(RoleKind::Store, id.0) else { return };
        if !self.nodes[node].note_full(self.out.now()) {
            return;
        }
        let what = match self.places().node_for_store() {
            Some(_) => "its store moves to another host",
            None => "no other host can have its store, so that ranks keep older images",
        };
        let name = in_words(node, self.nodes.hosts());
        self.out.note(format!("{name} has no room for images ({reason}): {what}"));
        self.out.look_now();
    }

    /// A store says where it listens.
    fn store_listens(&mut self, id: StoreId, addr: Addr) {
        let Some(entry) = self.roles.get_mut(RoleKind::Store, id.0) else { return };
        entry.listen(addr);
        let node = entry.node();
        self.roles.forget_failed_stores();
        let role = Role::first(RoleKind::Store, id.0).to_string();
        self.out.record(Record::RoleStarted { role, node });
        self.out.follows(Consequence::StoreUp(id));
    }

    /// A store is gone with all that it held; another one gets copies of what the others hold.
    fn store_lost(&mut self, id: StoreId, cause: String, by_itself: bool) {
        let Some(entry) = self.roles.remove(RoleKind::Store, id.0) else { return };
        if !entry.is_up() && by_itself {
            // Another node may do; and where one has the images, the job goes on with that.
            self.nodes[entry.node()].note_full(self.out.now());
            let text = format!("a store cannot be started: {cause}");
            let none_left = self.roles.count(RoleKind::Store) == 0;
            if none_left && self.roles.note_failed_store() >= ATTEMPTS {
                return self.out.end(1, Some(text));
            }
            self.out.note(text);
        }
        if entry.is_up() {
            let role = Role::first(RoleKind::Store, id.0).to_string();
            let node = entry.node();
            self.out.summary_mut().roles_lost += 1;
            self.out.record(Record::RoleLost { role, node, cause, ranks: vec![] });
        }
        self.start_missing_stores();
        self.out.follows(Consequence::StoreLost(id));
    }

    /// Stores leave nodes that are drained, or full while another has room, when each image has a
    /// copy elsewhere, one after the other.
    fn move_stores(&mut self) {
        let all_are_up = self.roles.of(RoleKind::Store).all(|(_, store)| store.is_up());
        let has_room = all_are_up && self.places().node_for_store().is_some();
        let places = self.places();
        let hosts = self.nodes.hosts();
        // A store that others do not reach moves to where they do.
        let meets = |id: StoreId| {
            let node = places.node_for_store().filter(|_| all_are_up);
            node.is_some_and(|node| places.cannot_meet_store(id, node).is_none())
        };
        let leaves = |(id, store): (u32, &RoleEntry)| {
            let id = StoreId(id);
            let on = store.node();
            let entry = &self.nodes[on];
            let full = entry.full_since().is_some() && has_room;
            let far = places.cannot_meet_store(id, on);
            let far = far.filter(|far| places.lasts(*far, on) && meets(id));
            let cause = match far {
                _ if entry.is_drained() => "is drained".to_string(),
                _ if full => "has no room for images".to_string(),
                Some(far) => format!("and {} do not reach each other", in_words(far, hosts)),
                None => return None,
            };
            let elsewhere =
                |r: &RankEntry| r.images().iter().all(|kept| kept.copies.are_beside(id));
            let leaves = store.is_up() && self.ranks.iter().all(elsewhere);
            leaves.then(|| (id, on, format!("node {on} {cause}")))
        };
        let leaving = self.roles.of(RoleKind::Store).find_map(leaves);
        if let Some((id, node, cause)) = leaving {
            let role = Role::first(RoleKind::Store, id.0);
            self.out.send_agent(node, ToAgent::StopRole(role));
            self.store_lost(id, cause, false);
        }
    }
}

impl Places<'_> {
    /// The node that a store may move to: one that has none, and room.
    pub fn node_for_store(self) -> Option<NodeId> {
        self.node_with_room(|full| full.is_none())
    }

    /// The node for a store more, also one that had no room some time ago.
    pub fn node_for_missing_store(self) -> Option<NodeId> {
        // Where all are full, one that may fail is better than none.
        let none_left = self.roles.count(RoleKind::Store) == 0;
        let again = |full: Duration| none_left || self.now >= full + ROOM_AGAIN;
        self.node_for_store().or_else(|| self.node_with_room(|full| full.is_none_or(again)))
    }

    fn node_with_room(self, has_room: impl Fn(Option<Duration>) -> bool) -> Option<NodeId> {
        let has_store =
            |node| self.roles.of(RoleKind::Store).any(|(_, store)| store.node() == node);
        let can = |node: NodeId| {
            let entry = &self.nodes[node];
            !entry.is_drained() && has_room(entry.full_since()) && !has_store(node)
        };
        let free = self.nodes_up_with_ranks().filter(|(node, _)| can(*node));
        let far = |node| self.cannot_meet_store(StoreId(u32::MAX), node).is_some();
        free.min_by_key(|(node, ranks)| (far(*node), *ranks, *node)).map(|(node, _)| node)
    }

    /// A node with ranks or another store that cannot meet this store's.
    pub fn cannot_meet_store(self, id: StoreId, node: NodeId) -> Option<NodeId> {
        let others = self.roles.of(RoleKind::Store).filter(|(other, _)| *other != id.0);
        let other =
            others.map(|(_, s)| s.node()).find(|other| self.reach.cannot_meet(*other, node));
        other.or_else(|| self.rank_that_cannot_meet(node))
    }

    fn missing_images(self, config: &Config) -> Option<Missing> {
        let what = Kept::Images;
        let wanted = config.stores as usize;
        let up = self.roles.of(RoleKind::Store).filter(|(_, store)| store.is_up());
        let up: Vec<NodeId> = up.map(|(_, store)| store.node()).collect();
        if up.len() < wanted {
            let on = up.first().map_or("no store".into(), |node| {
                format!("one store only, on {}", in_words(*node, self.nodes.hosts()))
            });
            let started = self.roles.count(RoleKind::Store);
            let comes = started >= wanted || self.node_for_missing_store().is_some();
            let why = if comes { "another is being started" } else { NO_OTHER_HOST };
            return Some(Missing { what, cause: format!("images are in {on}: {why}"), comes });
        }
        let promised = config.image_copies as usize;
        let short = self.ranks.living();
        let short =
            short.filter(|r| r.images().newest().is_some_and(|i| i.copies.count() < promised));
        let short: Vec<Rank> = short.map(RankEntry::rank).collect();
        let cause = format!("the images of {} are in one store only, and copied", list(&short));
        (!short.is_empty()).then_some(Missing { what, cause, comes: true })
    }
}

/// Stores: they keep images.
pub struct StoreKind;

impl Kind for StoreKind {
    fn start(&self, hosting: &mut Hosting<'_>) -> bool {
        hosting.start_missing_stores();
        true
    }

    fn listens(&self, hosting: &mut Hosting<'_>, id: u32, addr: Addr) {
        hosting.store_listens(StoreId(id), addr);
    }

    fn lost(&self, hosting: &mut Hosting<'_>, id: u32, cause: String, by_itself: bool) {
        hosting.store_lost(StoreId(id), cause, by_itself);
    }

    fn looks(&self) -> &'static [Look] {
        &[
            |hosting| hosting.move_stores(),
            |hosting| {
                if hosting.config.roles_on_nodes && hosting.out.has_started() {
                    hosting.start_missing_stores();
                }
            },
        ]
    }

    fn missing(&self, config: &Config, places: Places<'_>) -> Option<Missing> {
        places.missing_images(config)
    }

    fn why_it_stays(&self, _: &Roles, ages: ImageAges<'_>, id: u32) -> Option<(Rank, String)> {
        let has_only =
            |r: &&RankEntry| r.images().iter().any(|kept| !kept.copies.are_beside(StoreId(id)));
        let why = "no other store has its images";
        ages.ranks.living().find(has_only).map(|r| (r.rank(), why.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::roles::trial::{listens, Trial};
    use crate::machine::{said, Config, Event};

    fn trial(nodes: u32) -> Trial {
        Trial::new(Config { routers: 2, ..Config::with_roles_on(nodes) })
    }

    impl Trial {
        fn full(&mut self, store: StoreId) -> Vec<Command> {
            self.handle(said::store_full(store, "no space".into()))
        }

        /// The nodes of the stores by their numbers.
        fn stores(&self) -> Vec<(StoreId, NodeId)> {
            let stores = self.machine.roles.of(RoleKind::Store);
            stores.map(|(id, store)| (StoreId(id), store.node())).collect()
        }
    }

    fn on<const N: usize>(stores: [(u32, u32); N]) -> [(StoreId, NodeId); N] {
        stores.map(|(store, node)| (StoreId(store), NodeId(node)))
    }

    /// A role on this node cannot be started.
    fn fails_on(bad: NodeId) -> impl Fn(NodeId, Role) -> Option<Event> {
        move |node, role| {
            if node == bad {
                Some(Event::RoleLost { role, cause: "no space".into() })
            } else {
                listens(node, role)
            }
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
        let mut job = trial(3);
        assert_eq!(job.stores(), on([(0, 1), (1, 2)]));
        let told = job.full(StoreId(0));
        assert_eq!(
            notes(&told),
            ["node 1 has no room for images (no space): its store moves to another host"]
        );
        let stop = ToAgent::StopRole(Role::first(RoleKind::Store, 0));
        assert!(told.iter().any(|c| said::to_agent(c) == Some((NodeId(1), &stop))));
        assert_eq!(job.stores(), on([(1, 2), (2, 0)]));
        // It is no store any more: what it says does not count.
        assert!(notes(&job.full(StoreId(0))).is_empty());
    }

    #[test]
    fn a_full_store_stays_where_no_other_node_has_room_until_one_has() {
        let mut job = trial(2);
        let told = job.full(StoreId(0));
        assert!(notes(&told)[0].contains("no other host can have its store"), "{told:?}");
        assert_eq!(job.stores(), on([(0, 1), (1, 0)]));
        assert!(notes(&job.full(StoreId(0))).is_empty());
        job.handle(Event::Joining { host: "late".into() });
        job.handle(said::joined(NodeId(2)));
        job.handle(Event::Tick);
        assert_eq!(job.stores(), on([(1, 0), (2, 2)]));
    }

    #[test]
    fn a_store_that_cannot_be_started_is_tried_elsewhere_and_one_is_enough() {
        let mut job = trial(4);
        assert_eq!(job.stores(), on([(0, 1), (1, 2)]));
        job.handle_with(Event::AgentGone(NodeId(2)), &fails_on(NodeId(3)));
        assert_eq!(job.stores(), on([(0, 1), (3, 0)]));
        job.handle_with(Event::AgentGone(NodeId(0)), &fails_on(NodeId(3)));
        assert_eq!(job.stores(), on([(0, 1)]));
        assert_eq!(
            (job.machine.roles.promised_copies(&job.machine.config), job.machine.has_ended()),
            (1, false)
        );
    }
}
