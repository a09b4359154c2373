//! The ranks of another domain come here: its images are fetched, and when it says that the ranks
//! have moved, each comes back from its last one, as after a death, with a router of this domain.
//! And what a domain learns of ranks that go from a second to a third one. It must never take a
//! rank that its domain has not given.

use super::arriving::{spread, Arrival, Fetched, Room};
use super::handover::HandingOver;
use super::leaving::Departure;
use crate::machine::images::copies::Copies;
use crate::machine::io::{Command, ToPeer};
use crate::machine::moves::obstacles::cannot_move_now;
use crate::machine::outbox::consequence::Consequence;
use crate::machine::ranks::incarnation::Fence;
use crate::machine::ranks::kept::KeptImage;
use eyrie_interface::record::MovePhase;
use eyrie_placement::{Assignment, Choice};
use eyrie_router::RouterCommand;
use eyrie_store::role::{StoreCommand, Stored};
use eyrie_wire::control::{RoleKind, StoreAt};
use eyrie_wire::domains::{DomainSays, MovedRank};
use eyrie_wire::entries::Entry;
use eyrie_wire::{DomainId, ImageId, NodeId, Rank, RankInstance, RouterId, StoreId};
use std::collections::{BTreeMap, BTreeSet};

/// Why no ranks come to a domain that they have left.
pub(super) const CANNOT_COME_BACK: &str = "its ranks have left it: none can come there";

impl HandingOver<'_> {
    /// Another domain gives its ranks away, or keeps them.
    pub fn gives(&mut self, from: DomainId, to: Option<DomainId>) {
        match to {
            Some(to) => {
                self.handover.given.insert(from, to);
            }
            None => {
                self.handover.given.remove(&from);
                self.drop_arrival(from);
            }
        }
        if to.is_some() && to == self.own() {
            let result = self.prepare(from);
            self.tell(from, DomainSays::MayCome(result));
        }
    }

    /// Finds nodes for the ranks of another domain.
    fn prepare(&mut self, from: DomainId) -> Result<(), String> {
        self.drop_arrival(from);
        if let Some(why) = cannot_move_now(self.out, self.saving) {
            return Err(why);
        }
        if self.handover.gone_to.is_some() {
            return Err(CANNOT_COME_BACK.into());
        }
        if self.handover.departure.is_some() || self.handover.arrival.is_some() {
            return Err("ranks are on their way to or from it already".into());
        }
        if self.ranks.have_all_finished() {
            return Err("its own ranks have finished".into());
        }
        if self.stores.for_images().next().is_none() {
            return Err("it has no store for their images".into());
        }
        let ranks = self.ranks_of(from);
        let many = ranks.len();
        let nodes = spread(ranks, self.rooms()).map_err(|room| {
            format!("{many} ranks do not fit: it has {room} free slots; `eyrie join` adds a host")
        })?;
        self.handover.arrival = Some(Arrival::new(from, nodes, self.out.now()));
        Ok(())
    }

    /// Nodes that can take ranks.
    fn rooms(&self) -> Vec<Room> {
        let open = self.nodes.iter().filter(|(_, entry)| entry.is_up() && !entry.is_drained());
        let room = |(node, is_spare): (NodeId, bool)| {
            let slots = self.config.slots.get(node.index()).copied().flatten();
            let ranks = self.ranks.on(node).len() as u32;
            let free = slots.unwrap_or(u32::MAX).saturating_sub(ranks);
            Room { node, free, is_spare, ranks }
        };
        open.map(|(node, entry)| room((node, entry.is_free_spare()))).collect()
    }

    /// Nothing comes of it: images that were fetched are needed no more.
    fn drop_arrival(&mut self, from: DomainId) {
        let is_it = |arrival: &mut Arrival| arrival.from() == from && !arrival.has_moved();
        let Some(arrival) = self.handover.arrival.take_if(is_it) else { return };
        for fetched in arrival.images() {
            self.discard(fetched.store, fetched.instance.rank, fetched.image.image);
        }
        if self.ranks.have_all_finished() {
            self.out.follows(Consequence::AllFinished);
        }
    }

    fn discard(&mut self, store: StoreId, rank: Rank, image: ImageId) {
        self.out.send_store(store, StoreCommand::Discard { rank, image });
    }

    /// Another domain has an image of a rank that is to come.
    pub fn image_there(
        &mut self,
        from: DomainId,
        instance: RankInstance,
        image: Stored,
        stores: Vec<StoreId>,
    ) {
        let is_it =
            |arrival: &Arrival| arrival.from() == from && arrival.node(instance.rank).is_some();
        let Some(arrival) = self.handover.arrival.as_mut().filter(|arrival| is_it(arrival)) else {
            return;
        };
        arrival.set_sources(instance.rank, stores);
        if arrival.has(instance, image.image) {
            return self.answer(instance.rank, image.image, Ok(()));
        }
        self.fetch(instance, image);
    }

    /// A store here fetches the image.
    fn fetch(&mut self, instance: RankInstance, image: Stored) {
        let rank = instance.rank;
        let at = self.handover.images_at.clone();
        let Some(arrival) = &mut self.handover.arrival else { return };
        let up: Vec<StoreId> = self.stores.for_images().collect();
        let known = arrival.store(rank).filter(|store| up.contains(store));
        let store = known.or_else(|| up.get(rank.index() % up.len().max(1)).copied());
        let (Some(store), Some(from), Some(_)) = (store, arrival.source(rank), &at) else {
            let why = if at.is_none() { "its gateway is gone" } else { "no store can fetch it" };
            return self.answer(rank, image.image, Err(why.into()));
        };
        let fetched = Fetched { instance, image, store, is_here: false };
        let dropped = arrival.fetch(fetched);
        for old in dropped.iter().filter(|old| old.image.image != image.image) {
            self.discard(old.store, rank, old.image.image);
        }
        let from = StoreAt { store: from, addr: at };
        let image = image.image;
        self.out.send_store(store, StoreCommand::Copy { instance, image, from });
    }

    fn answer(&mut self, rank: Rank, image: ImageId, result: Result<(), String>) {
        let waits = |arrival: &&Arrival| !arrival.has_moved();
        let from = self.handover.arrival.as_ref().filter(waits).map(Arrival::from);
        if let Some(from) = from {
            self.tell(from, DomainSays::ImageHere { rank, image, result });
        }
    }

    /// A store has an image whole. Whether it was to fetch it for a rank that is to come.
    pub fn image_stored(&mut self, store: StoreId, instance: RankInstance, image: ImageId) -> bool {
        let Some(arrival) = &mut self.handover.arrival else { return false };
        let Some(older) = arrival.stored(store, instance, image) else { return false };
        for old in older {
            self.discard(old.store, instance.rank, old.image.image);
        }
        self.answer(instance.rank, image, Ok(()));
        true
    }

    /// A store could not fetch an image. Whether that was for a rank that is to come.
    pub fn image_failed(
        &mut self,
        store: StoreId,
        instance: RankInstance,
        image: ImageId,
        reason: &str,
    ) -> bool {
        let Some(arrival) = &mut self.handover.arrival else { return false };
        let was_it = arrival.failed(store, instance, image);
        if was_it {
            self.answer(instance.rank, image, Err(reason.into()));
        }
        was_it
    }

    /// A store is lost with the images that it had.
    pub fn store_lost(&mut self, store: StoreId) {
        let Some(arrival) = &mut self.handover.arrival else { return };
        for (rank, image) in arrival.lose_store(store) {
            self.answer(rank, image, Err(format!("store {store} is lost")));
        }
    }

    /// The ranks of another domain have moved here.
    pub fn moved(&mut self, from: DomainId, ranks: Vec<MovedRank>, entries: Vec<Entry>) {
        let now = self.out.now();
        let of_it: BTreeSet<Rank> = self.ranks_of(from).into_iter().collect();
        let told: BTreeSet<Rank> = ranks.iter().map(|moved| moved.rank).collect();
        let arrival = self.handover.arrival.as_mut().filter(|arrival| arrival.from() == from);
        let Some(arrival) = arrival.filter(|arrival| !arrival.has_moved() && told == of_it) else {
            let name = self.name(from);
            return self.out.note(format!(
                "domain {name} is not believed: it gives ranks away that are not its own, or that \
                 it was not asked for"
            ));
        };
        arrival.move_in(ranks, entries, now);
    }

    /// Takes ranks that have moved as soon as their images are here.
    pub(super) fn go_on_arriving(&mut self) {
        let now = self.out.now();
        let Some(arrival) = &mut self.handover.arrival else { return };
        if let Some((ranks, entries)) = arrival.take() {
            return self.take(&ranks, entries);
        }
        let missing = if arrival.is_due(now) { arrival.missing() } else { Vec::new() };
        for (instance, image) in missing {
            let Some(arrival) = &self.handover.arrival else { return };
            let same = |known: &&Fetched| {
                known.instance.rank == instance.rank && known.image.image == image.image
            };
            // One that is coming may take long.
            if arrival.images().any(|known| same(&known)) {
                continue;
            }
            self.fetch(instance, image);
        }
    }

    /// The ranks of another domain are those of this one.
    fn take(&mut self, ranks: &[MovedRank], entries: Vec<Entry>) {
        let now = self.out.now();
        let (Some(own), Some(arrival)) = (self.own(), &self.handover.arrival) else { return };
        let (from, took) = (arrival.from(), arrival.took(now));
        self.handover.given.remove(&from);
        self.record((from, own), MovePhase::Moved, took, None);
        self.pass(from, own);
        for entry in entries {
            self.pmi.put_of_taken(from, entry);
        }
        let arrivals: Vec<(Rank, u32)> =
            ranks.iter().map(|moved| (moved.rank, moved.arrived)).collect();
        let released = self.pmi.take(from, &arrivals);
        self.out.extend(released);
        let mut serve: BTreeMap<RouterId, Vec<Rank>> = BTreeMap::new();
        for moved in ranks {
            self.output.set(moved.rank, moved.output);
            let router = self.come(moved);
            serve.entry(router).or_default().push(moved.rank);
        }
        let living = ranks.iter().filter(|moved| moved.code.is_none()).map(|moved| moved.rank);
        let living: Vec<Rank> = living.collect();
        for rank in &living {
            self.stop().fence(*rank);
        }
        for (router, ranks) in serve {
            let serve = RouterCommand::Serve(ranks);
            self.out.push(Command::Send(ToPeer::Router(router, serve)));
        }
        let all = ranks.iter().map(|moved| moved.rank).collect();
        self.send_gateway(RouterCommand::Leave(all));
        self.schedule.begin(&living, now);
        self.out.follows(Consequence::PrimariesChanged);
        let arrived = self.pmi.arrived();
        self.tell_all(DomainSays::Took { from, arrived });
        self.out.follows(Consequence::CopiesWanted);
        if living.is_empty() {
            self.all_run();
        }
    }

    /// The rank is one of this domain, and is being fenced. Its primary router.
    fn come(&mut self, moved: &MovedRank) -> RouterId {
        let now = self.out.now();
        let rank = moved.rank;
        let arrival = self.handover.arrival.as_ref();
        let fetched = arrival.and_then(|arrival| arrival.image_of(moved));
        let kept = fetched.map(|fetched| KeptImage {
            image: fetched.image,
            instance: fetched.instance,
            asked: now,
            copies: Copies::in_one(fetched.store),
            saved: false,
        });
        let node = arrival.and_then(|arrival| arrival.node(rank)).unwrap_or_default();
        let fence = Fence::new(self.roles.that_fence(self.config), now);
        self.ranks.come(moved, node, kept, fence, now);
        let to = node.0;
        let assigned = Assignment { rank: rank.0, from: to, to, choice: Choice::Asked };
        self.ranks.assign(vec![assigned]);
        let router = self.router_for(node);
        self.roles.set_primary(rank, router);
        router
    }

    /// The router for a rank on this node: one on another, with few ranks.
    fn router_for(&self, node: NodeId) -> RouterId {
        let load = |id: &RouterId| {
            let is_there = self.roles.node(RoleKind::Router, id.0) == Some(node);
            (is_there, self.roles.ranks_at(*id).count(), *id)
        };
        RouterId::first(self.config.routers).min_by_key(load).unwrap_or_default()
    }

    /// A rank runs, or has ended.
    pub fn rank_runs(&mut self, rank: Rank) {
        if self.handover.arrival.as_mut().is_some_and(|arrival| arrival.runs(rank)) {
            self.all_run();
        }
    }

    fn all_run(&mut self) {
        let now = self.out.now();
        let (Some(arrival), Some(own)) = (self.handover.arrival.take(), self.own()) else { return };
        let from = arrival.from();
        self.record((from, own), MovePhase::Resumed, arrival.took(now), None);
        self.tell(from, DomainSays::Run);
        if self.ranks.have_all_finished() {
            self.out.follows(Consequence::AllFinished);
        }
    }

    /// Another domain has taken the ranks of this one, or of a third one. That one has said before
    /// that it may.
    pub fn took(&mut self, by: DomainId, from: DomainId, arrived: u32) {
        if Some(from) == self.own() {
            let is_it = |departure: &Departure| departure.is_final() && departure.to() == by;
            if self.handover.departure.as_ref().is_some_and(is_it) {
                let released = self.pmi.taken(by, from, arrived);
                self.out.extend(released);
                self.were_taken();
            }
            return;
        }
        let (of, to) = (self.name(from), self.name(by));
        if self.handover.given.get(&from) != Some(&by) {
            return self.out.note(format!(
                "domain {to} is not believed: it says that it has the ranks of {of}, which has not \
                 said so"
            ));
        }
        self.handover.given.remove(&from);
        let released = self.pmi.taken(by, from, arrived);
        self.out.extend(released);
        self.pass(from, by);
        self.out.note(format!("the ranks of domain {of} are ranks of {to} now"));
    }
}
