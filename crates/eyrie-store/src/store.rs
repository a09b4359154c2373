//! The store itself: creating, opening with recovery, listing, discarding. The manifests alone say
//! what is on disk; space that no manifest refers to is free. It must never free a chunk before the
//! manifests that need it are gone for good.

use eyrie_wire::Rank;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::catalog::{Catalog, Reclaim};
use crate::disk::Disk;
use crate::error::{IoError, StoreError};
use crate::manifest::{ImageId, ImageInfo, Manifest, ManifestError};
use crate::options::{Options, MAX_JOB};

/// A committed image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageSummary {
    pub rank: Rank,
    pub image: ImageId,
    pub info: ImageInfo,
    /// Length of the stream in bytes.
    pub bytes: u64,
}

/// What opening a store had to drop.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Images that were committed once and are damaged now, with the reason.
    pub lost: Vec<(Rank, ImageId, String)>,
    /// Images of another version of Eyrie, with the reason why this one cannot read them. They stay
    /// as they are, with their space.
    pub left: Vec<(Rank, ImageId, String)>,
}

/// Space taken by a store, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// What the file system has allocated.
    pub on_disk: u64,
    /// What the chunks of live images take, each chunk counted once.
    pub live: u64,
}

/// The checkpoint store of one job. All calls may run at the same time from several threads.
pub struct Store {
    pub(crate) disk: Disk,
    pub(crate) keep: usize,
    catalog: Mutex<Catalog>,
    /// Held while manifests appear or disappear, so that disk and catalog change in the same order.
    pub(crate) publishing: Mutex<()>,
    pub(crate) attempts: AtomicU64,
    recovery: Recovery,
}

impl Store {
    /// Creates a store in `dir`, which must be empty or not exist. Only its owner gets access to
    /// it.
    pub fn create(dir: impl AsRef<Path>, options: Options) -> Result<Store, StoreError> {
        if options.keep == 0 {
            return Err(StoreError::KeepNothing);
        }
        if options.job.len() > MAX_JOB || options.job.contains(['\n', '\r']) {
            return Err(StoreError::JobName);
        }
        Disk::create(dir.as_ref(), &options)?;
        Store::open(dir)
    }

    /// Opens the store in `dir`, which must be of the same job, or creates one where there is none.
    /// A store that exists keeps the options that it was created with.
    pub fn open_or_create(dir: impl AsRef<Path>, options: Options) -> Result<Store, StoreError> {
        if !Disk::is_store(dir.as_ref()) {
            return Store::create(dir, options);
        }
        let (disk, found) = Disk::open(dir.as_ref())?;
        if found.job != options.job {
            let path = dir.as_ref().to_owned();
            return Err(StoreError::OtherJob { path, job: found.job });
        }
        Store::load(disk, found.keep)
    }

    /// Opens a store, also after its process was killed. Images that were not committed are dropped
    /// and their space is freed. Damaged manifests are dropped with a reason (see
    /// [`Store::recovery`]).
    pub fn open(dir: impl AsRef<Path>) -> Result<Store, StoreError> {
        let (disk, Options { keep, .. }) = Disk::open(dir.as_ref())?;
        Store::load(disk, keep)
    }

    fn load(disk: Disk, keep: usize) -> Result<Store, StoreError> {
        let mut catalog = Catalog::default();
        let recovery = load(&disk, &mut catalog, keep)?;
        Ok(Store {
            disk,
            keep,
            catalog: Mutex::new(catalog),
            publishing: Mutex::new(()),
            attempts: AtomicU64::new(0),
            recovery,
        })
    }

    /// What opening this store had to drop or could not read.
    pub fn recovery(&self) -> &Recovery {
        &self.recovery
    }

    /// The committed images of a rank, newest first.
    pub fn images(&self, rank: Rank) -> Vec<ImageSummary> {
        self.catalog().images_of(rank).map(|manifest| summary(manifest)).collect()
    }

    /// All committed images, by rank and then oldest first.
    pub fn all_images(&self) -> Vec<ImageSummary> {
        self.catalog().images().map(|manifest| summary(manifest)).collect()
    }

    /// Drops all images of a rank. A receive that is still running may commit afterwards.
    pub fn discard_rank(&self, rank: Rank) -> Result<(), StoreError> {
        Ok(self.prune(rank, 0)?)
    }

    /// Space taken. Both figures include what a running receive has written.
    pub fn usage(&self) -> Result<Usage, StoreError> {
        Ok(Usage { on_disk: self.disk.allocated()?, live: self.live_bytes() })
    }

    /// Bytes that the chunks of the kept images take.
    pub fn live_bytes(&self) -> u64 {
        self.catalog().live_bytes()
    }

    /// Drops one image of a rank, if the store has it. A damaged image must not count among those
    /// that are kept.
    pub fn discard(&self, rank: Rank, image: ImageId) -> Result<(), StoreError> {
        Ok(self.drop_images(|catalog| catalog.image(rank, image).into_iter().cloned().collect())?)
    }

    /// Drops all but the newest `keep` images of a rank and frees what only they needed.
    pub(crate) fn prune(&self, rank: Rank, keep: usize) -> Result<(), IoError> {
        self.drop_images(|catalog| catalog.surplus(rank, keep))
    }

    fn drop_images(&self, which: impl Fn(&Catalog) -> Vec<Arc<Manifest>>) -> Result<(), IoError> {
        let mut work = BTreeSet::new();
        {
            let _publishing = lock(&self.publishing);
            let dropped = which(&self.catalog());
            if dropped.is_empty() {
                return Ok(());
            }
            let names: Vec<_> = dropped.iter().map(|m| (m.rank, m.image)).collect();
            self.disk.unpublish(&names)?;
            let mut catalog = self.catalog();
            for (rank, image) in names {
                work.extend(catalog.remove(rank, image));
            }
        }
        self.disk.reclaim(&work);
        Ok(())
    }

    pub(crate) fn catalog(&self) -> MutexGuard<'_, Catalog> {
        lock(&self.catalog)
    }

    /// Pins an image: it stays readable until the pin is dropped, even if it is discarded
    /// meanwhile.
    pub(crate) fn pin(&self, rank: Rank, image: ImageId) -> Option<Pin<'_>> {
        let mut catalog = self.catalog();
        let manifest = Arc::clone(catalog.image(rank, image)?);
        catalog.hold(&manifest.chunks);
        Some(Pin { store: self, manifest })
    }
}

/// Keeps the chunks of an image from being freed.
pub(crate) struct Pin<'a> {
    store: &'a Store,
    pub manifest: Arc<Manifest>,
}

impl Drop for Pin<'_> {
    fn drop(&mut self) {
        let work = self.store.catalog().release(&self.manifest.chunks);
        self.store.disk.reclaim(&work);
    }
}

/// A panic in another thread leaves the data of these locks whole: every change under them is
/// complete or has not begun.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

pub(crate) fn summary(manifest: &Manifest) -> ImageSummary {
    ImageSummary {
        rank: manifest.rank,
        image: manifest.image,
        info: manifest.info.clone(),
        bytes: manifest.bytes,
    }
}

/// Reads all manifests into the catalog and frees everything that they do not refer to. Returns the
/// images that are damaged or of another version. What the latter refer to is not known: while
/// there are any, nothing is freed.
fn load(disk: &Disk, catalog: &mut Catalog, keep: usize) -> Result<Recovery, StoreError> {
    let packs = disk.packs()?;
    let mut recovery = Recovery::default();
    let mut drop = Vec::new();
    for (rank, image) in disk.manifests()? {
        if catalog.images_of(rank).count() >= keep {
            drop.push((rank, image));
            continue;
        }
        let bytes = disk.read_manifest(rank, image)?;
        let decoded = match decode_named(bytes, rank, image) {
            Err(Unusable::OtherVersion(reason)) => {
                tracing::warn!(%rank, %image, reason, "an image is left alone");
                recovery.left.push((rank, image, reason));
                continue;
            }
            Err(Unusable::Damaged(reason)) => Err(reason),
            Ok(manifest) => Ok(manifest),
        };
        if let Err(reason) = decoded.and_then(|manifest| catalog.adopt(manifest, &packs)) {
            tracing::warn!(%rank, %image, reason, "an image is lost");
            drop.push((rank, image));
            recovery.lost.push((rank, image, reason));
        }
    }
    if !drop.is_empty() {
        disk.unpublish(&drop)?;
    }
    if !recovery.left.is_empty() {
        catalog.begin_packs_behind(&packs);
        return Ok(recovery);
    }
    let known: BTreeSet<u64> = catalog.pack_ids().collect();
    let unknown = packs.keys().filter(|pack| !known.contains(pack));
    let mut work: BTreeSet<Reclaim> = unknown.map(|&pack| Reclaim::Delete { pack }).collect();
    work.extend(known.iter().flat_map(|&pack| catalog.gaps(pack)));
    disk.reclaim(&work);
    Ok(recovery)
}

/// Why an image cannot be used.
enum Unusable {
    OtherVersion(String),
    Damaged(String),
}

fn decode_named(bytes: Option<Vec<u8>>, rank: Rank, image: ImageId) -> Result<Manifest, Unusable> {
    let damaged = |reason: &str| Unusable::Damaged(reason.into());
    let bytes = bytes.ok_or_else(|| damaged("it is longer than a manifest can be"))?;
    let manifest = Manifest::decode(&bytes).map_err(|error| match error {
        ManifestError::Version(_) => Unusable::OtherVersion(error.to_string()),
        _ => Unusable::Damaged(error.to_string()),
    })?;
    if (manifest.rank, manifest.image) == (rank, image) {
        Ok(manifest)
    } else {
        Err(damaged("it belongs to another rank or image"))
    }
}
