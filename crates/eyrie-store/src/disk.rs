//! The files of a store: their names, and the few ways in which they are written. It must never
//! leave a file under its final name before its contents are whole, and never touch a file that is
//! not the store's.

use eyrie_wire::Rank;
use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, FlockOperation};

use crate::catalog::Reclaim;
use crate::error::{IoError, StoreError};
use crate::manifest::{ImageId, MAX_MANIFEST};
use crate::options::Options;

/// Suffix of files that do not count yet.
const UNFINISHED: &str = ".new";

pub struct Disk {
    root: PathBuf,
    sync: bool,
    /// Holds the lock on the store while it is open.
    _lock: File,
}

impl Disk {
    /// Makes the directories and, last, the file `store` that declares them a store.
    pub fn create(root: &Path, options: &Options) -> Result<(), StoreError> {
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(0o700);
        builder.create(root).map_err(IoError::at("create", root))?;
        for entry in fs::read_dir(root).map_err(IoError::at("read", root))? {
            let name = entry.map_err(IoError::at("read", root))?.file_name();
            if !["packs", "images", "store.new"].iter().any(|ours| name == *ours) {
                return Err(StoreError::NotEmpty(root.to_owned()));
            }
        }
        fs::set_permissions(root, fs::Permissions::from_mode(0o700))
            .map_err(IoError::at("set the permissions of", root))?;
        for name in ["packs", "images"] {
            let dir = root.join(name);
            builder.create(&dir).map_err(IoError::at("create", &dir))?;
        }
        let Options { job, keep, sync } = options;
        let text = format!("eyrie-store 2\njob {job}\nkeep {keep}\nsync {sync}\n");
        let temp = root.join("store.new");
        let path = root.join("store");
        write_whole(&temp, text.as_bytes(), true)?;
        rename(&temp, &path)?;
        sync_dir(root)?;
        // The parent directory has the name of this one.
        let real = root.canonicalize().map_err(IoError::at("look at", root))?;
        Ok(real.parent().map_or(Ok(()), sync_dir)?)
    }

    /// Whether there is a store here.
    pub fn is_store(root: &Path) -> bool {
        root.join("store").is_file()
    }

    /// Locks the store and reads what it was created with.
    pub fn open(root: &Path) -> Result<(Disk, Options), StoreError> {
        let not_a_store =
            |reason: &str| StoreError::NotAStore { path: root.to_owned(), reason: reason.into() };
        if !Disk::is_store(root) {
            return Err(not_a_store("no file `store`"));
        }
        let path = root.join("store");
        // NFS locks only files that are open for writing.
        let mut options = OpenOptions::new();
        let mut lock =
            options.read(true).write(true).open(&path).map_err(IoError::at("open", &path))?;
        let mode = fs::metadata(root).map_err(IoError::at("look at", root))?.mode();
        if mode & 0o077 != 0 {
            return Err(StoreError::Exposed(root.to_owned()));
        }
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(StoreError::InUse(root.to_owned())),
            other => other.map_err(|errno| IoError::at("lock", &path)(errno.into()))?,
        }
        let mut text = Vec::new();
        (&mut lock).take(256).read_to_end(&mut text).map_err(IoError::at("read", &path))?;
        let options = parse_options(&text)
            .ok_or_else(|| not_a_store("its file `store` has another version or is damaged"))?;
        Ok((Disk { root: root.to_owned(), sync: options.sync, _lock: lock }, options))
    }

    pub fn pack_path(&self, pack: u64) -> PathBuf {
        self.root.join("packs").join(format!("{pack:016x}"))
    }

    pub fn image_path(&self, rank: Rank, image: ImageId) -> PathBuf {
        self.root.join("images").join(format!("{rank}-{image}"))
    }

    pub fn create_pack(&self, pack: u64) -> Result<File, IoError> {
        let path = self.pack_path(pack);
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        options.open(&path).map_err(IoError::at("create", &path))
    }

    pub fn open_pack(&self, pack: u64) -> Result<File, IoError> {
        let path = self.pack_path(pack);
        File::open(&path).map_err(IoError::at("open", &path))
    }

    /// Writes a pack's contents to stable storage, if the store has the option `sync`.
    pub fn sync_pack(&self, pack: u64, file: &File) -> Result<(), IoError> {
        if self.sync {
            file.sync_data().map_err(IoError::at("sync", &self.pack_path(pack)))
        } else {
            Ok(())
        }
    }

    pub fn sync_pack_names(&self) -> Result<(), IoError> {
        self.sync_names("packs")
    }

    fn sync_names(&self, dir: &str) -> Result<(), IoError> {
        if self.sync {
            sync_dir(&self.root.join(dir))
        } else {
            Ok(())
        }
    }

    /// Writes a manifest under a name that does not count. `attempt` makes the names of concurrent
    /// writers differ.
    pub fn write_manifest(
        &self,
        rank: Rank,
        image: ImageId,
        attempt: u64,
        bytes: &[u8],
    ) -> Result<PathBuf, IoError> {
        let temp = self.root.join("images").join(format!("{rank}-{image}-{attempt}{UNFINISHED}"));
        write_whole(&temp, bytes, self.sync).inspect_err(|_| drop(fs::remove_file(&temp)))?;
        Ok(temp)
    }

    /// Gives a written manifest its final name; from then on the image counts. On `Err` the image
    /// does not count, and both names are gone.
    pub fn publish(&self, temp: &Path, rank: Rank, image: ImageId) -> Result<(), IoError> {
        let path = self.image_path(rank, image);
        let done = rename(temp, &path).and_then(|()| self.sync_names("images"));
        done.inspect_err(|_| {
            let _ = fs::remove_file(temp);
            let _ = fs::remove_file(&path);
        })
    }

    /// Removes manifests for good. Their chunks may be freed once this returns.
    pub fn unpublish(&self, images: &[(Rank, ImageId)]) -> Result<(), IoError> {
        for &(rank, image) in images {
            remove_if_there(&self.image_path(rank, image))?;
        }
        self.sync_names("images")
    }

    /// Frees space. A failure is logged and only costs space; the next open tries again.
    pub fn reclaim<'a>(&self, work: impl IntoIterator<Item = &'a Reclaim>) {
        for item in work {
            let done = match *item {
                Reclaim::Delete { pack } => remove_if_there(&self.pack_path(pack)),
                Reclaim::Punch { pack, offset, len } => self.punch(pack, offset, len),
            };
            if let Err(error) = done {
                tracing::warn!(%error, "cannot free the space of dead chunks for now");
            }
        }
    }

    fn punch(&self, pack: u64, offset: u64, len: u64) -> Result<(), IoError> {
        let path = self.pack_path(pack);
        let file = match OpenOptions::new().write(true).open(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            other => other.map_err(IoError::at("open", &path))?,
        };
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match rustix::fs::fallocate(&file, flags, offset, len) {
            // Not supported by this file system: the space is freed when the pack is empty.
            Err(rustix::io::Errno::OPNOTSUPP) => Ok(()),
            other => other.map_err(|errno| IoError::at("free a part of", &path)(errno.into())),
        }
    }

    /// Numbers and lengths of all pack files.
    pub fn packs(&self) -> Result<BTreeMap<u64, u64>, IoError> {
        let mut packs = BTreeMap::new();
        for (path, name, meta) in list(&self.root.join("packs"))? {
            match u64::from_str_radix(&name, 16) {
                Ok(pack) if meta.is_file() && self.pack_path(pack) == path && pack < u64::MAX => {
                    packs.insert(pack, meta.len());
                }
                _ => tracing::warn!(path = %path.display(), "not a pack of this store; left alone"),
            }
        }
        Ok(packs)
    }

    /// Rank and number of every published manifest, by rank and then newest first. Removes
    /// unfinished manifests.
    pub fn manifests(&self) -> Result<Vec<(Rank, ImageId)>, IoError> {
        let mut found = Vec::new();
        for (path, name, meta) in list(&self.root.join("images"))? {
            let numbers = name.split_once('-').map(|(rank, image)| (rank.parse(), image.parse()));
            match numbers {
                _ if name.ends_with(UNFINISHED) => remove_if_there(&path)?,
                Some((Ok(rank), Ok(image)))
                    if meta.is_file() && self.image_path(rank, image) == path =>
                {
                    found.push((rank, image));
                }
                _ => {
                    tracing::warn!(path = %path.display(), "not an image of this store; left alone")
                }
            }
        }
        found.sort_unstable_by_key(|&(rank, image)| (rank, std::cmp::Reverse(image)));
        Ok(found)
    }

    /// The bytes of a manifest, `None` when it is longer than any manifest can be.
    pub fn read_manifest(&self, rank: Rank, image: ImageId) -> Result<Option<Vec<u8>>, IoError> {
        let path = self.image_path(rank, image);
        let file = File::open(&path).map_err(IoError::at("open", &path))?;
        let mut bytes = Vec::new();
        let limit = MAX_MANIFEST as u64 + 1;
        file.take(limit).read_to_end(&mut bytes).map_err(IoError::at("read", &path))?;
        Ok((bytes.len() as u64 != limit).then_some(bytes))
    }

    /// Bytes that the file system has allocated for the store's files.
    pub fn allocated(&self) -> Result<u64, IoError> {
        let mut blocks = 0;
        for dir in ["packs", "images"] {
            blocks += list(&self.root.join(dir))?.iter().map(|(_, _, m)| m.blocks()).sum::<u64>();
        }
        Ok(blocks * 512)
    }
}

fn parse_options(text: &[u8]) -> Option<Options> {
    let text = std::str::from_utf8(text).ok()?;
    let rest = text.strip_prefix("eyrie-store 2\njob ")?;
    let (job, rest) = rest.strip_suffix('\n')?.split_once("\nkeep ")?;
    let (keep, sync) = rest.split_once("\nsync ")?;
    let job = job.to_owned();
    Some(Options { job, keep: keep.parse().ok().filter(|n| *n > 0)?, sync: sync.parse().ok()? })
}

/// The files of a folder. A file that is removed meanwhile is left out.
fn list(dir: &Path) -> Result<Vec<(PathBuf, String, fs::Metadata)>, IoError> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).map_err(IoError::at("read", dir))? {
        let entry = entry.map_err(IoError::at("read", dir))?;
        match entry.metadata() {
            Ok(meta) => {
                let name = entry.file_name().to_string_lossy().into_owned();
                found.push((entry.path(), name, meta));
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(IoError::at("look at", &entry.path())(error)),
        }
    }
    Ok(found)
}

fn write_whole(path: &Path, bytes: &[u8], sync: bool) -> Result<(), IoError> {
    let write = || -> io::Result<()> {
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(path)?;
        file.write_all(bytes)?;
        if sync {
            file.sync_all()?;
        }
        Ok(())
    };
    write().map_err(IoError::at("write", path))
}

fn rename(from: &Path, to: &Path) -> Result<(), IoError> {
    fs::rename(from, to).map_err(IoError::at("rename to", to))
}

fn sync_dir(dir: &Path) -> Result<(), IoError> {
    File::open(dir).and_then(|d| d.sync_all()).map_err(IoError::at("sync", dir))
}

fn remove_if_there(path: &Path) -> Result<(), IoError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(IoError::at("remove", path)(error))
        }
        _ => Ok(()),
    }
}
