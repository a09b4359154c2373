//! What a store holds, in memory: images, the place and use count of each chunk, and the dead parts
//! of packs. It decides and does no I/O. It must never free a place in a pack while anything refers
//! to it.

use eyrie_wire::Rank;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs::File;
use std::sync::Arc;

use crate::manifest::{ChunkKey, ChunkRef, ImageId, Manifest, Place};

/// A pack is emptied when less than this part of it is live: later images store its chunks again.
const SPARSE: u64 = 4;
/// Packs that a store may have besides four for each image, before it empties the smallest.
const SPARE_PACKS: usize = 64;

/// A chunk on disk.
struct Extent {
    key: ChunkKey,
    stored_len: u32,
    /// Images, receives and sends that need it.
    refs: u32,
    /// Found unreadable or changed: no new image may build on it.
    damaged: bool,
}

/// A pack file.
#[derive(Default)]
pub struct Pack {
    /// Length of the file; for a pack being written, of what was written.
    pub len: u64,
    /// Bytes in live chunks.
    pub live: u64,
    /// Bytes known to be on stable storage.
    pub synced: u64,
    /// Open while a receive appends to it.
    pub writer: Option<Arc<File>>,
    /// A sync failed, so the pack's content on stable storage is uncertain.
    pub broken: bool,
}

/// Space to give back to the file system.
#[derive(PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Reclaim {
    Delete { pack: u64 },
    Punch { pack: u64, offset: u64, len: u64 },
}

#[derive(Default)]
pub struct Catalog {
    images: BTreeMap<(Rank, ImageId), Arc<Manifest>>,
    index: HashMap<ChunkKey, Place>,
    extents: BTreeMap<Place, Extent>,
    packs: BTreeMap<u64, Pack>,
    next_pack: u64,
}

impl Catalog {
    /// Images of a rank, newest first.
    pub fn images_of(&self, rank: Rank) -> impl Iterator<Item = &Arc<Manifest>> {
        self.images
            .range((rank, ImageId(0))..=(rank, ImageId(u64::MAX)))
            .rev()
            .map(|(_, manifest)| manifest)
    }

    pub fn images(&self) -> impl Iterator<Item = &Arc<Manifest>> {
        self.images.values()
    }

    pub fn image(&self, rank: Rank, image: ImageId) -> Option<&Arc<Manifest>> {
        self.images.get(&(rank, image))
    }

    /// Images of a rank beyond the newest `keep`.
    pub fn surplus(&self, rank: Rank, keep: usize) -> Vec<Arc<Manifest>> {
        self.images_of(rank).skip(keep).cloned().collect()
    }

    /// Makes an image count. It takes over the references that its receive held.
    pub fn commit(&mut self, manifest: Arc<Manifest>) {
        self.images.insert((manifest.rank, manifest.image), manifest);
    }

    /// Removes an image and returns the space that this frees.
    pub fn remove(&mut self, rank: Rank, image: ImageId) -> BTreeSet<Reclaim> {
        match self.images.remove(&(rank, image)) {
            Some(manifest) => self.release(&manifest.chunks),
            None => BTreeSet::new(),
        }
    }

    /// Returns the number of a new pack. No number is used twice.
    pub fn begin_pack(&mut self) -> u64 {
        let pack = self.next_pack;
        self.next_pack += 1;
        pack
    }

    /// These packs may have content that no image here refers to: new ones get higher numbers.
    pub fn begin_packs_behind(&mut self, packs: &BTreeMap<u64, u64>) {
        let behind = packs.keys().next_back().map_or(0, |last| last + 1);
        self.next_pack = self.next_pack.max(behind);
    }

    pub fn open_pack(&mut self, pack: u64, writer: Arc<File>) {
        self.packs.insert(pack, Pack { writer: Some(writer), ..Pack::default() });
    }

    /// Ends the writing of a pack and returns the space of chunks that died in it meanwhile.
    pub fn end_pack(&mut self, pack: u64, len: u64) -> BTreeSet<Reclaim> {
        let Some(state) = self.packs.get_mut(&pack) else { return BTreeSet::new() };
        state.writer = None;
        state.len = len;
        if state.live == 0 {
            self.packs.remove(&pack);
            return BTreeSet::from([Reclaim::Delete { pack }]);
        }
        self.gaps(pack)
    }

    pub fn pack(&mut self, pack: u64) -> Option<&mut Pack> {
        self.packs.get_mut(&pack)
    }

    /// Packs to empty: a new image stores their chunks again. These are the packs that are mostly
    /// dead, and the smallest ones when there are too many.
    pub fn packs_to_empty(&self) -> HashSet<u64> {
        let done = || self.packs.iter().filter(|(_, pack)| pack.writer.is_none());
        let sparse = done().filter(|(_, pack)| pack.live * SPARSE < pack.len);
        let mut chosen: HashSet<u64> = sparse.map(|(id, _)| *id).collect();
        let bound = SPARE_PACKS + 4 * self.images.len();
        if self.packs.len() > bound {
            let mut by_size: Vec<_> = done().map(|(id, pack)| (pack.live, *id)).collect();
            by_size.sort_unstable();
            chosen.extend(by_size.iter().take(self.packs.len() - bound / 2).map(|(_, id)| id));
        }
        chosen
    }

    /// Refers to a stored chunk, if there is an undamaged one outside the packs to empty.
    pub fn find(&mut self, key: &ChunkKey, emptying: &HashSet<u64>) -> Option<ChunkRef> {
        let place = *self.index.get(key)?;
        let extent = self.extents.get_mut(&place)?;
        let broken = self.packs.get(&place.pack).is_none_or(|pack| pack.broken);
        if extent.damaged || broken || emptying.contains(&place.pack) {
            return None;
        }
        extent.refs += 1;
        Some(ChunkRef { key: *key, place, stored_len: extent.stored_len })
    }

    /// Adds a chunk just written, with one reference. If another receive stored the same chunk
    /// first, returns that one, and the given place stays free.
    pub fn add(&mut self, chunk: ChunkRef, emptying: &HashSet<u64>) -> ChunkRef {
        if let Some(present) = self.find(&chunk.key, emptying) {
            return present;
        }
        self.enter(&chunk);
        self.index.insert(chunk.key, chunk.place);
        chunk
    }

    fn enter(&mut self, chunk: &ChunkRef) {
        let ChunkRef { key, place, stored_len } = *chunk;
        self.extents.insert(place, Extent { key, stored_len, refs: 1, damaged: false });
        let pack = self.packs.entry(place.pack).or_default();
        pack.live += u64::from(stored_len);
        pack.len = pack.len.max(chunk.end());
    }

    /// Adds a reference to each of these chunks, which belong to a pinned image. Returns false and
    /// changes nothing when one of them is known to be damaged.
    pub fn share(&mut self, chunks: &[ChunkRef]) -> bool {
        let sound = |chunk: &ChunkRef| {
            let broken = self.packs.get(&chunk.place.pack).is_none_or(|pack| pack.broken);
            !broken && self.extents.get(&chunk.place).is_some_and(|extent| !extent.damaged)
        };
        let all = chunks.iter().all(sound);
        if all {
            self.hold(chunks);
        }
        all
    }

    /// Adds a reference to each chunk, for the time of a send.
    pub fn hold(&mut self, chunks: &[ChunkRef]) {
        for chunk in chunks {
            if let Some(extent) = self.extents.get_mut(&chunk.place) {
                extent.refs += 1;
            }
        }
    }

    /// Removes a reference to each chunk and returns the space that this frees.
    pub fn release(&mut self, chunks: &[ChunkRef]) -> BTreeSet<Reclaim> {
        let mut dead = Vec::new();
        for chunk in chunks {
            let Some(extent) = self.extents.get_mut(&chunk.place) else { continue };
            extent.refs -= 1;
            if extent.refs == 0 {
                dead.push(*chunk);
                self.remove_extent(chunk);
            }
        }
        dead.iter().filter_map(|chunk| self.reclaim(chunk)).collect()
    }

    fn remove_extent(&mut self, chunk: &ChunkRef) {
        self.extents.remove(&chunk.place);
        if self.index.get(&chunk.key) == Some(&chunk.place) {
            self.index.remove(&chunk.key);
        }
        if let Some(pack) = self.packs.get_mut(&chunk.place.pack) {
            pack.live -= u64::from(chunk.stored_len);
        }
    }

    /// What to do about a dead chunk. An empty pack is deleted. Otherwise the whole gap around the
    /// chunk is punched out, so that neighbours that died earlier leave no half blocks. A pack that
    /// is still written is left alone.
    fn reclaim(&mut self, chunk: &ChunkRef) -> Option<Reclaim> {
        let id = chunk.place.pack;
        let pack = self.packs.get(&id)?;
        if pack.writer.is_some() {
            return None;
        }
        if pack.live == 0 {
            self.packs.remove(&id);
            return Some(Reclaim::Delete { pack: id });
        }
        let before = self.extents.range(Place { pack: id, offset: 0 }..chunk.place).next_back();
        let start = before.map_or(0, |(place, e)| place.offset + u64::from(e.stored_len));
        let mut after = self.extents.range(chunk.place..=Place { pack: id, offset: u64::MAX });
        let end = after.next().map_or(pack.len, |(place, _)| place.offset);
        Some(Reclaim::Punch { pack: id, offset: start, len: end - start })
    }

    /// All parts of a pack that are not live chunks.
    pub fn gaps(&self, id: u64) -> BTreeSet<Reclaim> {
        let Some(pack) = self.packs.get(&id) else { return BTreeSet::new() };
        let all = Place { pack: id, offset: 0 }..=Place { pack: id, offset: u64::MAX };
        let mut gaps = BTreeSet::new();
        let mut from = 0;
        let ends = self.extents.range(all).map(|(p, e)| (p.offset, u64::from(e.stored_len)));
        for (offset, len) in ends.chain([(pack.len, 0)]) {
            if offset > from {
                gaps.insert(Reclaim::Punch { pack: id, offset: from, len: offset - from });
            }
            from = offset + len;
        }
        gaps
    }

    /// Keeps new images from using this chunk; an image with the same content stores it again.
    pub fn mark_damaged(&mut self, place: Place) {
        if let Some(extent) = self.extents.get_mut(&place) {
            extent.damaged = true;
        }
    }

    /// Adds an image found on disk. `Err` says why it cannot be whole; then nothing is changed.
    /// `pack_len` is the length of each pack file on disk.
    pub fn adopt(
        &mut self,
        manifest: Manifest,
        pack_len: &BTreeMap<u64, u64>,
    ) -> Result<(), String> {
        for (done, chunk) in manifest.chunks.iter().enumerate() {
            if let Err(reason) = self.adopt_chunk(chunk, pack_len) {
                self.release(&manifest.chunks[..done]);
                return Err(format!("chunk {done}: {reason}"));
            }
        }
        self.commit(Arc::new(manifest));
        Ok(())
    }

    fn adopt_chunk(
        &mut self,
        chunk: &ChunkRef,
        pack_len: &BTreeMap<u64, u64>,
    ) -> Result<(), String> {
        let Place { pack, offset } = chunk.place;
        let len = *pack_len.get(&pack).ok_or_else(|| format!("pack {pack} is missing"))?;
        if chunk.end() > len {
            return Err(format!("pack {pack} is cut off at byte {len}"));
        }
        if let Some(extent) = self.extents.get_mut(&chunk.place) {
            if extent.key != chunk.key || extent.stored_len != chunk.stored_len {
                return Err(format!("another chunk lies at byte {offset} of pack {pack}"));
            }
            extent.refs += 1;
            return Ok(());
        }
        let before = Place { pack, offset: 0 }..chunk.place;
        let reaches = |(place, e): (&Place, &Extent)| place.offset + u64::from(e.stored_len);
        let clear_before = self.extents.range(before).next_back().map_or(0, reaches) <= offset;
        let inside = chunk.place..Place { pack, offset: chunk.end() };
        if !clear_before || self.extents.range(inside).next().is_some() {
            return Err(format!("it overlaps another chunk at byte {offset} of pack {pack}"));
        }
        self.enter(chunk);
        let state = self.packs.get_mut(&pack).expect("just entered");
        (state.len, state.synced) = (len, len);
        self.index.insert(chunk.key, chunk.place);
        self.next_pack = self.next_pack.max(pack + 1);
        Ok(())
    }

    pub fn pack_ids(&self) -> impl Iterator<Item = u64> + '_ {
        self.packs.keys().copied()
    }

    pub fn live_bytes(&self) -> u64 {
        self.packs.values().map(|pack| pack.live).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::ImageInfo;
    use crate::window::Pages;
    use proptest::prelude::*;

    fn chunk(content: u8, pack: u64, offset: u64) -> ChunkRef {
        let key = ChunkKey { hash: [content; 32], raw_len: 200 };
        ChunkRef { key, place: Place { pack, offset }, stored_len: 100 }
    }

    fn manifest(image: u64, chunks: Vec<ChunkRef>) -> Manifest {
        let bytes = chunks.iter().map(|c| u64::from(c.key.raw_len)).sum();
        let pages = vec![Pages::NONE; chunks.len()];
        Manifest {
            rank: Rank(0),
            image: ImageId(image),
            info: ImageInfo::default(),
            bytes,
            records: 0,
            chunks,
            pages,
        }
    }

    #[test]
    fn a_gap_reaches_from_one_live_chunk_to_the_next() {
        let mut catalog = Catalog::default();
        let lens = BTreeMap::from([(0, 500)]);
        let all: Vec<_> = (0..5).map(|n| chunk(n, 0, u64::from(n) * 100)).collect();
        catalog.adopt(manifest(1, all.clone()), &lens).unwrap();
        catalog.adopt(manifest(2, vec![all[0], all[4], all[2]]), &lens).unwrap();
        catalog.adopt(manifest(3, vec![all[4]]), &lens).unwrap();
        let punch = |offset, len| Reclaim::Punch { pack: 0, offset, len };
        assert_eq!(
            catalog.remove(Rank(0), ImageId(1)),
            BTreeSet::from([punch(100, 100), punch(300, 100)])
        );
        assert_eq!(catalog.remove(Rank(0), ImageId(2)), BTreeSet::from([punch(0, 400)]));
        assert_eq!(
            catalog.remove(Rank(0), ImageId(3)),
            BTreeSet::from([Reclaim::Delete { pack: 0 }])
        );
    }

    #[test]
    fn images_that_contradict_each_other_are_not_both_taken() {
        let lens = BTreeMap::from([(0, 500)]);
        let mut catalog = Catalog::default();
        catalog.adopt(manifest(1, vec![chunk(1, 0, 100)]), &lens).unwrap();
        let live = catalog.live_bytes();
        for bad in
            [chunk(2, 0, 100), chunk(2, 0, 50), chunk(2, 0, 150), chunk(2, 0, 401), chunk(2, 1, 0)]
        {
            let good = chunk(3, 0, 200);
            catalog.adopt(manifest(2, vec![good, bad]), &lens).unwrap_err();
            assert_eq!(catalog.live_bytes(), live, "nothing of a refused image stays");
        }
    }

    /// One step of several receives, sends and removals in any order.
    #[derive(Clone, Debug)]
    enum Step {
        Store { receive: usize, content: u8 },
        Commit { receive: usize },
        GiveUp { receive: usize },
        Remove { image: usize },
        Pin { image: usize },
        Unpin { pin: usize },
        Damage { image: usize },
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            8 => (0usize..3, 0u8..30)
                .prop_map(|(receive, content)| Step::Store { receive, content }),
            2 => (0usize..3).prop_map(|receive| Step::Commit { receive }),
            1 => (0usize..3).prop_map(|receive| Step::GiveUp { receive }),
            2 => any::<usize>().prop_map(|image| Step::Remove { image }),
            1 => any::<usize>().prop_map(|image| Step::Pin { image }),
            1 => any::<usize>().prop_map(|pin| Step::Unpin { pin }),
            1 => any::<usize>().prop_map(|image| Step::Damage { image }),
        ]
    }

    /// Does what a store does. Keeps the readable places in place of the files' contents.
    #[derive(Default)]
    struct World {
        catalog: Catalog,
        receives: [Option<(u64, u64, Vec<ChunkRef>)>; 3],
        pins: Vec<Vec<ChunkRef>>,
        readable: BTreeSet<Place>,
        images: u64,
    }

    impl World {
        fn play(&mut self, step: Step) {
            match step {
                Step::Store { receive, content } => self.store(receive, content),
                Step::Commit { receive } => self.end(receive, true),
                Step::GiveUp { receive } => self.end(receive, false),
                Step::Remove { image } => {
                    if let Some(found) = self.pick(image) {
                        let work = self.catalog.remove(Rank(0), found.image);
                        self.reclaim(work);
                    }
                }
                Step::Pin { image } => {
                    if let Some(found) = self.pick(image) {
                        self.catalog.hold(&found.chunks);
                        self.pins.push(found.chunks.clone());
                    }
                }
                Step::Unpin { pin } if !self.pins.is_empty() => {
                    let chunks = self.pins.swap_remove(pin % self.pins.len());
                    let work = self.catalog.release(&chunks);
                    self.reclaim(work);
                }
                Step::Unpin { .. } => {}
                Step::Damage { image } => {
                    if let Some(chunk) = self.pick(image).and_then(|m| m.chunks.first().copied()) {
                        self.catalog.mark_damaged(chunk.place);
                    }
                }
            }
        }

        fn pick(&self, number: usize) -> Option<Arc<Manifest>> {
            let count = self.catalog.images().count();
            self.catalog.images().nth(number.checked_rem(count)?).cloned()
        }

        fn store(&mut self, receive: usize, content: u8) {
            let emptying = self.catalog.packs_to_empty();
            let catalog = &mut self.catalog;
            let (pack, len, chunks) = self.receives[receive].get_or_insert_with(|| {
                let pack = catalog.begin_pack();
                let file = File::open("/dev/null").expect("the null device");
                catalog.open_pack(pack, Arc::new(file));
                (pack, 0, Vec::new())
            });
            let own = chunk(content, *pack, *len);
            let found = catalog.find(&own.key, &emptying);
            let entered = found.unwrap_or_else(|| catalog.add(own, &emptying));
            if entered == own {
                *len += 100;
                self.readable.insert(own.place);
            }
            chunks.push(entered);
        }

        fn end(&mut self, receive: usize, commit: bool) {
            let Some((pack, len, chunks)) = self.receives[receive].take() else { return };
            if commit {
                self.images += 1;
                self.catalog.commit(Arc::new(manifest(self.images, chunks)));
            } else {
                let work = self.catalog.release(&chunks);
                self.reclaim(work);
            }
            let work = self.catalog.end_pack(pack, len);
            self.reclaim(work);
        }

        fn reclaim(&mut self, work: BTreeSet<Reclaim>) {
            for item in work {
                self.readable.retain(|place| match item {
                    Reclaim::Delete { pack } => place.pack != pack,
                    Reclaim::Punch { pack, offset, len } => {
                        place.pack != pack
                            || place.offset + 100 <= offset
                            || place.offset >= offset + len
                    }
                });
            }
        }

        /// All chunks that something refers to, each once.
        fn needed(&self) -> BTreeSet<Place> {
            let images = self.catalog.images().flat_map(|m| m.chunks.iter());
            let receives = self.receives.iter().flatten().flat_map(|(_, _, chunks)| chunks);
            let pins = self.pins.iter().flatten();
            images.chain(receives).chain(pins).map(|chunk| chunk.place).collect()
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(3_000))]

        #[test]
        fn only_places_that_are_referred_to_stay(
            steps in prop::collection::vec(step(), 1..120),
        ) {
            let mut world = World::default();
            for step in steps {
                world.play(step);
                let needed = world.needed();
                prop_assert!(needed.is_subset(&world.readable));
                prop_assert_eq!(world.catalog.live_bytes(), 100 * needed.len() as u64);
            }
            for receive in 0..3 {
                world.end(receive, true);
            }
            prop_assert_eq!(world.needed(), world.readable.clone(), "no space is lost");
        }
    }
}
