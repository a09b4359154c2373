//! Ranks of another domain on their way into this one: where they are to go, which of their images
//! are here, and what was told when they had moved. Decides nothing about ranks. It must never say
//! that a rank can be taken whose image is not here.

use super::in_place::InPlace;
use crate::machine::images::copies::Copies;
use eyrie_wire::domains::{MovedRank, Stored};
use eyrie_wire::entries::Entry;
use eyrie_wire::{DomainId, ImageId, NodeId, Rank, RankInstance, StoreId};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How soon an image is fetched again that is needed by now.
const AGAIN: Duration = Duration::from_millis(500);

/// An image that is fetched, or was.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Fetched {
    pub instance: RankInstance,
    pub image: Stored,
    /// The store here that fetches it from the other domain.
    pub store: StoreId,
    /// The stores here that have it whole, or are to.
    pub copies: Copies,
}

impl Fetched {
    /// An image that this store is to fetch.
    pub fn by(store: StoreId, instance: RankInstance, image: Stored) -> Fetched {
        let mut copies = Copies::default();
        copies.order(store);
        Fetched { instance, image, store, copies }
    }

    fn is(&self, instance: RankInstance, image: ImageId) -> bool {
        (self.instance, self.image.image) == (instance, image)
    }

    /// Whether a store here has it whole.
    pub fn is_here(&self) -> bool {
        !self.copies.are_lost()
    }

    /// Whether the loss of a store cannot take it away, as far as that can be had: as many stores
    /// have it as are promised, or no more are about to.
    pub fn is_safe(&self, promised: usize) -> bool {
        self.is_here() && (self.copies.count() >= promised || !self.copies.are_coming())
    }
}

/// What the other domain tells when the ranks have moved
/// ([`eyrie_wire::domains::DomainSays::Moved`]).
#[derive(Debug, Serialize, Deserialize)]
pub struct MovedRanks {
    pub ranks: Vec<MovedRank>,
    pub entries: Vec<Entry>,
    pub known: u32,
}

/// The ranks have moved.
#[derive(Debug, Serialize, Deserialize)]
struct Moved {
    told: MovedRanks,
    /// When images that are not here are fetched again.
    again: Duration,
}

/// Ranks that are to come.
#[derive(Debug, Serialize, Deserialize)]
pub struct Arrival {
    from: DomainId,
    since: Duration,
    nodes: BTreeMap<Rank, NodeId>,
    /// Of each rank the newest, and one before it until that is here.
    images: BTreeMap<Rank, Vec<Fetched>>,
    /// The stores of the other domain that have the newest image of each rank.
    sources: BTreeMap<Rank, Vec<StoreId>>,
    in_place: InPlace,
    moved: Option<Moved>,
    /// They are ranks of this domain, and these do not run yet.
    coming_back: Option<BTreeSet<Rank>>,
}

impl Arrival {
    /// Ranks of that domain are to come to these nodes.
    pub fn new(from: DomainId, nodes: BTreeMap<Rank, NodeId>, now: Duration) -> Arrival {
        Arrival {
            from,
            since: now,
            nodes,
            images: BTreeMap::new(),
            sources: BTreeMap::new(),
            in_place: InPlace::default(),
            moved: None,
            coming_back: None,
        }
    }

    pub fn from(&self) -> DomainId {
        self.from
    }

    /// How long ago it was asked for.
    pub fn took(&self, now: Duration) -> Duration {
        now.saturating_sub(self.since)
    }

    /// The node that was found for the rank.
    pub fn node(&self, rank: Rank) -> Option<NodeId> {
        self.nodes.get(&rank).copied()
    }

    /// What waits on nodes for the ranks.
    pub fn in_place(&self) -> &InPlace {
        &self.in_place
    }

    /// As [`Arrival::in_place`].
    pub fn in_place_mut(&mut self) -> &mut InPlace {
        &mut self.in_place
    }

    /// The store that has, or fetches, an image of the rank: it has most of the next one as well.
    pub fn store(&self, rank: Rank) -> Option<StoreId> {
        Some(self.images.get(&rank)?.last()?.store)
    }

    /// The other domain has the newest image of the rank in these stores.
    pub fn set_sources(&mut self, rank: Rank, stores: Vec<StoreId>) {
        self.sources.insert(rank, stores);
    }

    /// A store of the other domain that has the newest image of the rank.
    pub fn source(&self, rank: Rank) -> Option<StoreId> {
        self.sources.get(&rank)?.first().copied()
    }

    /// An image that is here or is fetched.
    pub fn get(&self, instance: RankInstance, image: ImageId) -> Option<&Fetched> {
        let mut of_rank = self.images.get(&instance.rank).into_iter().flatten();
        of_rank.find(|known| known.is(instance, image))
    }

    /// As [`Arrival::get`]; `None` as soon as the ranks are taken: what becomes of it then is the
    /// business of this domain's images.
    pub fn get_mut(&mut self, instance: RankInstance, image: ImageId) -> Option<&mut Fetched> {
        if self.has_taken() {
            return None;
        }
        self.images.get_mut(&instance.rank)?.iter_mut().find(|known| known.is(instance, image))
    }

    /// Another image is fetched. One that is not here yet, or is the same, is not waited for any
    /// more: returned, since it may come all the same.
    pub fn fetch(&mut self, fetched: Fetched) -> Vec<Fetched> {
        let images = self.images.entry(fetched.instance.rank).or_default();
        let number = fetched.image.image;
        let is_of_use = |known: &Fetched| known.is_here() && known.image.image != number;
        let (kept, dropped) = std::mem::take(images).into_iter().partition(is_of_use);
        *images = kept;
        images.push(fetched);
        dropped
    }

    /// An image is safe here: returns those that are needed no more because of it.
    pub fn drop_older(&mut self, instance: RankInstance, image: ImageId) -> Vec<Fetched> {
        let Some(images) = self.images.get_mut(&instance.rank) else { return Vec::new() };
        let older = images.iter().position(|known| known.is(instance, image)).unwrap_or(0);
        images.drain(..older).collect()
    }

    /// An image cannot be fetched from where it was tried.
    pub fn forget(&mut self, instance: RankInstance, image: ImageId) {
        if let Some(images) = self.images.get_mut(&instance.rank) {
            images.retain(|known| !known.is(instance, image));
        }
        if let Some(sources) = self.sources.get_mut(&instance.rank).filter(|all| !all.is_empty()) {
            sources.rotate_left(1);
        }
    }

    /// A store is lost with what it had, or was to have. Returns the images that it had to do with,
    /// and whether each is here still; those that are not are forgotten.
    pub fn lose_store(&mut self, store: StoreId) -> Vec<(RankInstance, ImageId, bool)> {
        let mut concerned = Vec::new();
        for images in self.images.values_mut() {
            for known in images.iter_mut().filter(|known| known.copies.concerns(store)) {
                known.copies.lose(store);
                concerned.push((known.instance, known.image.image, known.is_here()));
            }
            images.retain(|known| known.is_here() || known.copies.are_coming());
        }
        concerned
    }

    /// All images that are here, or may come.
    pub fn images(&self) -> impl Iterator<Item = &Fetched> {
        self.images.values().flatten()
    }

    /// The ranks have moved: they are to be taken when the images are here from which they go on.
    pub fn move_in(&mut self, told: MovedRanks, now: Duration) {
        self.moved = Some(Moved { told, again: now + AGAIN });
    }

    /// Whether the ranks have moved: nothing stops that any more.
    pub fn has_moved(&self) -> bool {
        self.moved.is_some() || self.has_taken()
    }

    /// Whether they are ranks of this domain.
    pub fn has_taken(&self) -> bool {
        self.coming_back.is_some()
    }

    /// The image from which a rank goes on, if it is here.
    pub fn image_of(&self, moved: &MovedRank) -> Option<&Fetched> {
        let (image, _) = moved.image.as_ref()?;
        let images = self.images.get(&moved.rank)?;
        images.iter().find(|known| known.is_here() && known.image.image == image.image)
    }

    /// Images from which ranks are to go on that have moved, and that are not here.
    pub fn missing(&self) -> Vec<(RankInstance, Stored)> {
        let ranks = self.moved.iter().flat_map(|moved| &moved.told.ranks);
        let missing = ranks.filter(|rank| rank.image.is_some() && self.image_of(rank).is_none());
        let of = |moved: &MovedRank| {
            let (image, incarnation) = moved.image?;
            Some((RankInstance { rank: moved.rank, incarnation }, image))
        };
        missing.filter_map(of).collect()
    }

    /// Whether missing images are to be fetched again by now; the time for the next time begins.
    pub fn is_due(&mut self, now: Duration) -> bool {
        let Some(moved) = self.moved.as_mut().filter(|moved| moved.again <= now) else {
            return false;
        };
        moved.again = now + AGAIN;
        true
    }

    /// When something is to be looked at.
    pub fn next(&self) -> Option<Duration> {
        let again = self.moved.as_ref().map(|moved| moved.again);
        let in_place = self.in_place.next().filter(|_| !self.has_taken());
        [again, in_place].into_iter().flatten().min()
    }

    /// What was told of the ranks, when all of them can be taken.
    pub fn take(&mut self) -> Option<MovedRanks> {
        if self.moved.is_none() || !self.missing().is_empty() {
            return None;
        }
        let Moved { told, .. } = self.moved.take()?;
        let living = told.ranks.iter().filter(|moved| moved.code.is_none());
        self.coming_back = Some(living.map(|moved| moved.rank).collect());
        Some(told)
    }

    /// A rank that was taken runs, or has ended. Whether it was the last one.
    pub fn runs(&mut self, rank: Rank) -> bool {
        let Some(waiting) = &mut self.coming_back else { return false };
        waiting.remove(&rank) && waiting.is_empty()
    }
}

/// A node that ranks may come to: how many more it has room for, and whether it is a free spare.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Room {
    pub node: NodeId,
    pub free: u32,
    pub is_spare: bool,
    pub ranks: u32,
}

/// A node for each rank: those with the fewest ranks first, and spares only when the others have
/// no room left.
///
/// # Errors
/// When there is too little room: how much there is.
pub fn spread(
    ranks: impl IntoIterator<Item = Rank>,
    mut nodes: Vec<Room>,
) -> Result<BTreeMap<Rank, NodeId>, u32> {
    let room = nodes.iter().fold(0, |all: u32, node| all.saturating_add(node.free));
    let mut found = BTreeMap::new();
    for rank in ranks {
        let has_room = nodes.iter_mut().filter(|node| node.free > 0);
        let node =
            has_room.min_by_key(|node| (node.is_spare, node.ranks, node.node)).ok_or(room)?;
        node.free -= 1;
        node.ranks += 1;
        found.insert(rank, node.node);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use eyrie_wire::Incarnation;

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn instance(rank: u32) -> RankInstance {
        RankInstance { rank: Rank(rank), incarnation: Incarnation(1) }
    }

    fn stored(image: u64) -> Stored {
        let image = ImageId(image);
        Stored { image, clock: 1, rsn: 1, observed: 0, stdin: 0, bytes: 1, file_bytes: 0 }
    }

    fn fetched(rank: u32, image: u64, store: u32) -> Fetched {
        Fetched::by(StoreId(store), instance(rank), stored(image))
    }

    /// This store has the image. Those that are needed no more.
    fn arrive(a: &mut Arrival, image: u64, store: u32) -> Option<Vec<ImageId>> {
        let image = ImageId(image);
        let known = a.get_mut(instance(4), image)?;
        known.copies.arrive(StoreId(store), false).then_some(())?;
        let older = a.drop_older(instance(4), image);
        Some(older.iter().map(|known| known.image.image).collect())
    }

    fn moved(rank: u32, image: Option<u64>) -> MovedRank {
        MovedRank {
            rank: Rank(rank),
            incarnation: Incarnation(2),
            code: image.is_none().then_some(0),
            spoke_pmi: true,
            arrived: 1,
            image: image.map(|image| (stored(image), Incarnation(1))),
            next_image: ImageId(9),
            output: [0, 0],
        }
    }

    fn told(ranks: Vec<MovedRank>) -> MovedRanks {
        MovedRanks { ranks, entries: vec![], known: 1 }
    }

    fn arrival() -> Arrival {
        Arrival::new(DomainId(1), BTreeMap::from([(Rank(4), NodeId(0))]), s(1))
    }

    #[test]
    fn ranks_are_taken_when_the_images_are_here_that_they_go_on_from() {
        let mut a = arrival();
        assert!(a.fetch(fetched(4, 1, 0)).is_empty());
        assert!(arrive(&mut a, 1, 1).is_none(), "another store");
        assert_eq!(arrive(&mut a, 1, 0), Some(vec![]));
        a.fetch(fetched(4, 2, 0));
        a.move_in(told(vec![moved(4, Some(2)), moved(5, None)]), s(2));
        assert!(a.has_moved() && a.take().is_none());
        assert_eq!(a.missing(), [(instance(4), stored(2))]);
        assert!(!a.is_due(s(2)) && a.is_due(s(3)) && !a.is_due(s(3)));
        assert_eq!(arrive(&mut a, 2, 0), Some(vec![ImageId(1)]));
        assert_eq!((a.take().unwrap().ranks.len(), a.next()), (2, None));
        assert!(a.get_mut(instance(4), ImageId(2)).is_none(), "it is the rank's own by now");
        assert!(a.has_moved() && !a.runs(Rank(5)) && a.runs(Rank(4)) && !a.runs(Rank(4)));
    }

    #[test]
    fn an_image_is_missing_again_when_all_stores_are_lost_that_had_it() {
        let mut a = arrival();
        a.fetch(fetched(4, 1, 3));
        arrive(&mut a, 1, 3).unwrap();
        a.get_mut(instance(4), ImageId(1)).unwrap().copies.order(StoreId(2));
        let is_safe = |a: &Arrival| a.get(instance(4), ImageId(1)).unwrap().is_safe(2);
        assert!(!is_safe(&a), "another store is about to have it");
        arrive(&mut a, 1, 2).unwrap();
        assert!(is_safe(&a));
        a.move_in(told(vec![moved(4, Some(1))]), s(2));
        assert_eq!(a.lose_store(StoreId(3)), [(instance(4), ImageId(1), true)]);
        assert!(a.missing().is_empty() && is_safe(&a), "no more can be had");
        assert_eq!(a.lose_store(StoreId(2)), [(instance(4), ImageId(1), false)]);
        assert!(a.take().is_none() && a.store(Rank(4)).is_none());
        a.set_sources(Rank(4), vec![StoreId(8), StoreId(9)]);
        a.fetch(fetched(4, 1, 1));
        a.forget(instance(4), ImageId(1));
        assert_eq!((a.missing().len(), a.source(Rank(4))), (1, Some(StoreId(9))));
        a.fetch(fetched(4, 1, 1));
        assert!(arrive(&mut a, 1, 1).is_some() && a.take().is_some());
    }

    #[test]
    fn one_that_has_not_come_gives_way_to_a_newer_one() {
        let mut a = arrival();
        a.fetch(fetched(4, 1, 0));
        let dropped = a.fetch(fetched(4, 2, 1));
        assert_eq!(dropped.iter().map(|f| f.store).collect::<Vec<_>>(), [StoreId(0)]);
        assert!(arrive(&mut a, 1, 0).is_none());
        assert_eq!((a.store(Rank(4)), a.images().count()), (Some(StoreId(1)), 1));
    }

    #[test]
    fn ranks_go_to_nodes_with_room_and_to_spares_last() {
        let room = |node, free, ranks, is_spare| Room { node: NodeId(node), free, ranks, is_spare };
        let nodes = vec![room(0, 0, 0, false), room(1, 2, 1, false), room(2, 1, 0, false)];
        let with_spare = [nodes.clone(), vec![room(3, 2, 0, true)]].concat();
        let found = spread(Rank::first(4), with_spare).unwrap();
        assert_eq!(found.values().copied().collect::<Vec<_>>(), [2, 1, 1, 3].map(NodeId));
        assert_eq!(spread(Rank::first(4), nodes), Err(3));
    }
}
