//! What a job leaves when everything of it is killed: its directory, and the segments of its ranks
//! in /dev/shm. Never takes a directory for one that is not marked as a job's of this user, nor
//! that of a job that runs or is just starting.

use crate::shared;
use rustix::fs::{flock, FlockOperation, OFlags};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The file in a job's directory that its controller holds locked while it runs.
pub const LOCK: &str = "lock";
/// What the lock file begins with: nobody else's directory has such a file.
const MARK: &str = "eyrie job\n";
/// Longest lock file in bytes.
const MAX_MARK: u64 = 4096;
/// Most ranks that are believed of a mark.
const MAX_RANKS: u32 = 1 << 20;

/// Whether something is this user's directory, which nobody else may enter.
pub fn is_private(meta: &fs::Metadata) -> bool {
    let ours = meta.uid() == rustix::process::getuid().as_raw();
    meta.is_dir() && ours && meta.mode() & 0o077 == 0
}

/// Makes and takes the lock of a directory that is not yet known as a job's: who else takes it lets
/// go at once.
///
/// # Errors
/// When it is there already, or cannot be made.
pub fn lock(dir: &Path) -> io::Result<File> {
    let lock = OpenOptions::new().write(true).create_new(true).mode(0o600).open(dir.join(LOCK))?;
    flock(&lock, FlockOperation::LockExclusive)?;
    Ok(lock)
}

/// Writes into a job's lock file, which its maker holds locked, what whoever cleans up after it
/// must know.
///
/// # Errors
/// When it cannot be written.
pub fn mark(mut lock: &File, kvsname: &str, ranks: u32) -> io::Result<()> {
    lock.write_all(format!("{MARK}kvsname {kvsname}\nranks {ranks}\n").as_bytes())
}

/// What a dead job has left.
#[derive(Debug)]
pub struct Leftovers {
    dir: PathBuf,
    kvsname: String,
    ranks: u32,
    /// Held until all is gone: nobody else does the same at the same time.
    _lock: File,
}

/// How much was left.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Amount {
    /// Bytes on disk and in /dev/shm.
    pub bytes: u64,
    /// Files in /dev/shm.
    pub segments: usize,
}

/// What is left in `dir`; `None` when it is no dead job's of this user.
pub fn find(dir: &Path) -> Option<Leftovers> {
    let uid = rustix::process::getuid().as_raw();
    let meta = dir.symlink_metadata().ok()?;
    if !is_private(&meta) {
        return None;
    }
    let path = dir.join(LOCK);
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    // Writable, because NFS locks nothing else.
    let mut options = OpenOptions::new();
    let lock = options.read(true).write(true).custom_flags(flags.bits() as i32).open(&path).ok()?;
    let held = lock.metadata().ok()?;
    if !held.is_file() || held.uid() != uid {
        return None;
    }
    flock(&lock, FlockOperation::NonBlockingLockExclusive).ok()?;
    // Somebody may have removed the directory, and made it anew, before the lock was ours.
    let there = path.symlink_metadata().ok()?;
    if (there.dev(), there.ino()) != (held.dev(), held.ino()) {
        return None;
    }
    let mut text = String::new();
    (&lock).take(MAX_MARK).read_to_string(&mut text).ok()?;
    let fields = text.strip_prefix(MARK)?;
    let field = |name: &str| fields.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(' '));
    let kvsname = field("kvsname").unwrap_or_default().to_string();
    let ranks = field("ranks").and_then(|r| r.parse().ok()).unwrap_or(0).min(MAX_RANKS);
    Some(Leftovers { dir: dir.into(), kvsname, ranks, _lock: lock })
}

/// How often a directory is looked at whose job is just dying.
const PAUSE: Duration = Duration::from_millis(10);

/// As [`find`], of a job that is just dying: until then its directory may be held, because the
/// kernel closes the files of a killed process in any order, and a child of it that is on its way
/// to its program has them, too.
pub fn find_until(dir: &Path, until: Instant) -> Option<Leftovers> {
    loop {
        match find(dir) {
            None if dir.exists() && Instant::now() < until => std::thread::sleep(PAUSE),
            left => return left,
        }
    }
}

impl Leftovers {
    /// Name of the job.
    pub fn name(&self) -> String {
        self.dir.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Segments that ranks of the job may have.
    pub fn possible_segments(&self) -> Vec<String> {
        (0..self.ranks).map(|rank| shared::predicted_segment(&self.kvsname, rank)).collect()
    }

    /// Segments that MPICH has made for the job: they are named by its random key value space.
    fn segments(&self) -> Vec<(String, u64)> {
        let uid = rustix::process::getuid().as_raw();
        (self.possible_segments().into_iter())
            .filter_map(|path| {
                let meta = fs::symlink_metadata(&path).ok()?;
                (meta.is_file() && meta.uid() == uid).then(|| (path, meta.blocks() * 512))
            })
            .collect()
    }

    pub fn amount(&self) -> Amount {
        let segments = self.segments();
        let shared: u64 = segments.iter().map(|s| s.1).sum();
        Amount { bytes: bytes_below(&self.dir) + shared, segments: segments.len() }
    }

    /// Removes it all.
    ///
    /// # Errors
    /// When something cannot be removed. What is left is found again the next time.
    pub fn remove(self) -> io::Result<()> {
        let segments: Vec<String> = self.segments().into_iter().map(|s| s.0).collect();
        shared::remove(&segments);
        // Out of the way of a new job of that name. Where that fails the name stays taken a little
        // longer.
        let aside =
            self.dir.with_file_name(format!(".dead-{}-{}", self.name(), std::process::id()));
        let dir = match fs::rename(&self.dir, &aside) {
            Ok(()) => &aside,
            Err(_) => &self.dir,
        };
        remove_job_dir(dir)
    }
}

/// Removes a job's directory, whose lock the caller holds: the lock at the end, so that what an
/// early death of ours leaves is still known for what it is.
///
/// # Errors
/// When something cannot be removed; what somebody else has removed is none.
pub fn remove_job_dir(dir: &Path) -> io::Result<()> {
    let gone = |result: io::Result<()>| match result {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    };
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_name() == LOCK {
            continue;
        }
        gone(match entry.file_type()?.is_dir() {
            true => fs::remove_dir_all(entry.path()),
            false => fs::remove_file(entry.path()),
        })?;
    }
    gone(fs::remove_file(dir.join(LOCK)))?;
    gone(fs::remove_dir(dir))
}

/// Bytes on disk of everything below a directory.
fn bytes_below(dir: &Path) -> u64 {
    let size = |entry: fs::DirEntry| match entry.metadata() {
        Ok(meta) if meta.is_dir() => meta.blocks() * 512 + bytes_below(&entry.path()),
        Ok(meta) => meta.blocks() * 512,
        Err(_) => 0,
    };
    fs::read_dir(dir).into_iter().flatten().flatten().map(size).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{DirBuilderExt, PermissionsExt};

    /// A job's directory, and its lock as its controller holds it.
    fn job(base: &Path, name: &str) -> (PathBuf, File) {
        let dir = base.join(name);
        fs::DirBuilder::new().mode(0o700).create(&dir).unwrap();
        let lock = File::create_new(dir.join(LOCK)).unwrap();
        flock(&lock, FlockOperation::LockExclusive).unwrap();
        fs::create_dir(dir.join("store")).unwrap();
        fs::write(dir.join("store/image"), vec![1; 100_000]).unwrap();
        (dir, lock)
    }

    /// A child that another test has just forked holds our locks, too, until it executes its
    /// program.
    fn found(dir: &Path) -> Leftovers {
        let left = find_until(dir, Instant::now() + Duration::from_secs(10));
        left.unwrap_or_else(|| panic!("{} is not found", dir.display()))
    }

    #[test]
    fn a_dead_job_is_removed_with_its_segments_and_a_living_one_is_not() {
        let base = tempfile::tempdir().unwrap();
        let (dir, lock) = job(base.path(), "a");
        let kvsname = format!("eyrie_test_{}", std::process::id());
        // It has not yet said whose it is: it is just starting, or somebody else's.
        assert!(find(&dir).is_none());
        mark(&lock, &kvsname, 2).unwrap();
        assert!(find(&dir).is_none(), "it runs");
        drop(lock);
        let segment = shared::predicted_segment(&kvsname, 1);
        fs::write(&segment, vec![1; 10_000]).unwrap();
        let left = found(&dir);
        assert!(find(&dir).is_none(), "two clean at once");
        let Amount { bytes, segments } = left.amount();
        assert!((110_000..200_000).contains(&bytes), "{bytes}");
        assert_eq!((left.name().as_str(), segments), ("a", 1));
        left.remove().unwrap();
        assert_eq!(fs::read_dir(base.path()).unwrap().count(), 0);
        assert!(!Path::new(&segment).exists());
    }

    #[test]
    fn what_is_not_recognisably_a_jobs_stays() {
        let base = tempfile::tempdir().unwrap();
        // No mark, the mark of something else, a link to a marked file, a directory that others may
        // enter.
        let (dir, lock) = job(base.path(), "unmarked");
        drop(lock);
        assert!(find(&dir).is_none());
        fs::write(dir.join(LOCK), "pid 1\n").unwrap();
        assert!(find(&dir).is_none());
        let (marked, lock) = job(base.path(), "marked");
        mark(&lock, "x", 1).unwrap();
        drop(lock);
        fs::remove_file(dir.join(LOCK)).unwrap();
        std::os::unix::fs::symlink(marked.join(LOCK), dir.join(LOCK)).unwrap();
        assert!(find(&dir).is_none());
        std::os::unix::fs::symlink(&marked, base.path().join("link")).unwrap();
        assert!(find(&base.path().join("link")).is_none());
        fs::set_permissions(&marked, fs::Permissions::from_mode(0o755)).unwrap();
        assert!(find(&marked).is_none());
        fs::set_permissions(&marked, fs::Permissions::from_mode(0o700)).unwrap();
        found(&marked);
    }
}
