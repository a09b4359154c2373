//! The ranks of another domain come here: its images are fetched, and when it says that the ranks
//! have moved, each comes back from its last one, as after a death, with a router of this domain.
//! And what a domain learns of ranks that go from a second to a third one. It must never take a
//! rank that its domain has not given.

use super::arriving::{spread, Arrival, Fetched, MovedRanks, Room};
use super::exchange::is_of;
use super::handover::HandingOver;
use crate::machine::images::store_choice::StoreChoice;
use crate::machine::images::stores::{copy_image, discard};
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
use eyrie_wire::{DomainId, ImageId, NodeId, Rank, RankInstance, RouterId, StoreId};
use std::collections::{BTreeMap, BTreeSet};

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
        if self.handover.departure.is_some() || self.handover.arrival.is_some() {
            return Err("ranks are on their way to or from it already".into());
        }
        if self.domains.are_to_be_left() {
            return Err("its ranks have left it, and it is about to end".into());
        }
        if self.domains.has_finished_here() {
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
        arrival.images().for_each(|fetched| self.discard(fetched));
        self.unprepare_all(&arrival);
        // One without ranks has finished when the others have.
        if self.ranks.here() > 0 && self.ranks.have_all_finished() {
            self.out.follows(Consequence::AllFinished);
        }
    }

    /// Copies that are still coming are discarded when they have come.
    fn discard(&mut self, fetched: &Fetched) {
        discard(self.out, fetched.instance.rank, fetched.image.image, &fetched.copies);
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
        match arrival.get(instance, image.image).map(Fetched::is_here) {
            Some(true) => self.spread_copies(instance, image.image),
            _ => self.fetch(instance, image),
        }
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
        let dropped = arrival.fetch(Fetched::by(store, instance, image));
        for old in dropped.iter().filter(|old| old.image.image != image.image) {
            self.discard(old);
        }
        let from = StoreAt { store: from, addr: at };
        let image = image.image;
        self.out.send_store(store, StoreCommand::Copy { instance, image, from });
    }

    /// A store has an image whole. Whether that is one of a rank that is to come.
    pub fn image_stored(&mut self, store: StoreId, instance: RankInstance, image: ImageId) -> bool {
        let Some(arrival) = &mut self.handover.arrival else { return false };
        let Some(known) = arrival.get_mut(instance, image) else { return false };
        if !known.copies.arrive(store, false) {
            return known.copies.has(store);
        }
        self.spread_copies(instance, image);
        true
    }

    /// Has an image that is here copied to as many stores as are promised: also those of a rank
    /// that comes are not lost with one store. Then the other domain is answered.
    fn spread_copies(&mut self, instance: RankInstance, image: ImageId) {
        let promised = self.roles.promised_copies(self.config);
        let choice = StoreChoice {
            stores: self.stores,
            reach: self.reach,
            ranks: self.ranks,
            roles: self.roles,
        };
        let Some(arrival) = &self.handover.arrival else { return };
        let Some(known) = arrival.get(instance, image) else { return };
        let mut copies = known.copies.clone();
        let mut ordered = Vec::new();
        while copies.expected() < promised {
            let from = copies.source(instance.rank, None);
            let (Some(from), Some(store)) = (from, choice.store_for(instance.rank, &copies)) else {
                break;
            };
            copies.order(store);
            ordered.push((store, from));
        }
        for (store, from) in ordered {
            copy_image(self.out, store, from, instance, image);
        }
        let Some(arrival) = &mut self.handover.arrival else { return };
        let Some(known) = arrival.get_mut(instance, image) else { return };
        known.copies = copies;
        if known.is_safe(promised) {
            let older = arrival.drop_older(instance, image);
            older.iter().for_each(|old| self.discard(old));
            self.image_safe(instance, image);
        }
    }

    /// A store could not fetch or copy an image. Whether that is one of a rank that is to come.
    pub fn image_failed(
        &mut self,
        store: StoreId,
        instance: RankInstance,
        image: ImageId,
        reason: &str,
    ) -> bool {
        let Some(arrival) = &mut self.handover.arrival else { return false };
        let Some(known) = arrival.get_mut(instance, image) else { return false };
        if !known.copies.copy_failed(store) {
            return false;
        }
        if known.is_here() {
            self.spread_copies(instance, image);
        } else {
            arrival.forget(instance, image);
            self.answer(instance.rank, image, Err(reason.into()));
        }
        true
    }

    /// A store is lost with the images that it had.
    pub fn store_lost(&mut self, store: StoreId) {
        let Some(arrival) = &mut self.handover.arrival else { return };
        for (instance, image, is_here) in arrival.lose_store(store) {
            if is_here {
                self.spread_copies(instance, image);
            } else {
                let why = format!("store {store} is lost");
                self.answer(instance.rank, image, Err(why));
            }
        }
    }

    /// The ranks of another domain have moved here.
    pub fn moved(&mut self, from: DomainId, moved: MovedRanks) {
        let now = self.out.now();
        let of_it: BTreeSet<Rank> = self.ranks_of(from).into_iter().collect();
        let told: BTreeSet<Rank> = moved.ranks.iter().map(|moved| moved.rank).collect();
        let arrival = self.handover.arrival.as_mut().filter(|arrival| arrival.from() == from);
        let domains = self.config.domains.as_ref();
        let are_known = domains
            .is_some_and(|domains| moved.entries.iter().all(|entry| is_of(domains, from, entry)));
        let is_sound = |arrival: &&mut Arrival| !arrival.has_moved() && told == of_it && are_known;
        let Some(arrival) = arrival.filter(is_sound) else {
            let name = self.name(from);
            return self.out.note(format!(
                "domain {name} is not believed: it gives ranks away that are not its own, or that \
                 it was not asked for"
            ));
        };
        arrival.move_in(moved, now);
    }

    /// Takes ranks that have moved as soon as their images are here.
    pub(super) fn go_on_arriving(&mut self) {
        self.watch_in_place();
        let now = self.out.now();
        let Some(arrival) = &mut self.handover.arrival else { return };
        if let Some(moved) = arrival.take() {
            return self.take(moved);
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
    fn take(&mut self, MovedRanks { ranks, entries, known }: MovedRanks) {
        let now = self.out.now();
        let (Some(own), Some(arrival)) = (self.own(), &self.handover.arrival) else { return };
        let (from, took) = (arrival.from(), arrival.took(now));
        self.handover.given.remove(&from);
        self.record((from, own), MovePhase::Moved, took, None);
        self.pass(from, own);
        if self.handover.gone_to.take().is_some() {
            // It fetched nothing since the ranks that were here had left.
            self.tell_gateway(RouterCommand::Fetch(true));
        }
        for entry in entries {
            self.pmi.put_of_taken(from, entry);
        }
        let arrivals: Vec<(Rank, u32)> =
            ranks.iter().map(|moved| (moved.rank, moved.arrived)).collect();
        let released = self.pmi.take(from, &arrivals, known);
        self.out.extend(released);
        let mut serve: BTreeMap<RouterId, Vec<Rank>> = BTreeMap::new();
        for moved in &ranks {
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
        self.tell_gateway(RouterCommand::Leave(all));
        self.schedule.begin(&living, now);
        self.out.follows(Consequence::PrimariesChanged);
        let arrived = self.pmi.told();
        self.tell_all(DomainSays::Took { from, arrived });
        self.out.follows(Consequence::TellArrival);
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
            copies: fetched.copies.clone(),
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
        self.unprepare_all(&arrival);
        self.record((from, own), MovePhase::Resumed, arrival.took(now), None);
        self.tell(from, DomainSays::Run);
        if self.ranks.have_all_finished() {
            self.out.follows(Consequence::AllFinished);
        }
    }
}
