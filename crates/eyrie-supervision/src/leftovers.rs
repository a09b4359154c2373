//! What a job leaves behind when all of its processes are killed: its directory, the segments of
//! its ranks in /dev/shm, and the old states of files that they have changed. Never removes a
//! directory that is not marked as a job's of this user, nor that of a job that runs or is
//! starting, nor one that an agent uses.

use crate::place::{self, is_still, open_lock, Mark, LOCK};
use crate::segments;
use eyrie_wire::agent::{OLD_STATE, OLD_STATES};
use rustix::fs::{flock, FlockOperation};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// What a dead job has left behind.
#[derive(Debug)]
pub struct Leftovers {
    dir: PathBuf,
    mark: Mark,
    /// Held until all is removed: no other process removes it meanwhile, or begins to use it.
    _locks: [File; 2],
}

/// How much a job has left behind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Amount {
    /// Bytes on disk and in /dev/shm.
    pub bytes: u64,
    /// Files in /dev/shm.
    pub segments: usize,
}

/// What is left in `dir`; `None` when it is not the directory of a dead job of this user.
pub fn find(dir: &Path) -> Option<Leftovers> {
    let lock = open_lock(dir)?;
    flock(&lock, FlockOperation::NonBlockingLockExclusive).ok()?;
    // The directory may have been removed and made again before this process got the lock.
    if !is_still(&lock, &dir.join(LOCK)) {
        return None;
    }
    let mark = Mark::read(&lock)?;
    let users = place::refuse_users(dir)?;
    Some(Leftovers { dir: dir.into(), mark, _locks: [lock, users] })
}

/// How often the directory of a job that is ending is checked.
const PAUSE: Duration = Duration::from_millis(10);

/// As [`find`], for a job that is ending. Its directory may still be locked for a while: the kernel
/// closes the files of a killed process in any order, and a child between fork and exec has them
/// open, too.
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
        if self.mark.name.is_empty() {
            self.dir.file_name().unwrap_or_default().to_string_lossy().into_owned()
        } else {
            self.mark.name.clone()
        }
    }

    /// Segments that ranks of the job may have.
    pub fn possible_segments(&self) -> Vec<String> {
        let Mark { kvsname, ranks, .. } = &self.mark;
        (0..*ranks).map(|rank| segments::predicted_segment(kvsname, rank)).collect()
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

    /// Removes all of it.
    ///
    /// # Errors
    /// When something cannot be removed. The next call of [`find`] finds what remains.
    pub fn remove(self) -> io::Result<()> {
        let found: Vec<String> = self.segments().into_iter().map(|s| s.0).collect();
        segments::remove(&found);
        if self.mark.launched {
            // Elsewhere the old states stay: the job may go on on another host and need them.
            remove_old_states(&self.dir);
        }
        remove_job_dir(&self.dir)
    }
}

/// Removes the old states of files that ranks of a job have kept and not removed themselves. The
/// caller holds the lock of the job's directory.
pub fn remove_old_states(dir: &Path) {
    let uid = rustix::process::getuid().as_raw();
    let is_ours = |path: &&Path| {
        let name = path.file_name().is_some_and(|n| n.as_bytes().starts_with(OLD_STATE.as_bytes()));
        name && fs::symlink_metadata(path).is_ok_and(|meta| meta.is_file() && meta.uid() == uid)
    };
    let listed = fs::read(dir.join(OLD_STATES)).unwrap_or_default();
    let paths = listed.split(|byte| *byte == 0).map(|path| Path::new(OsStr::from_bytes(path)));
    for path in paths.filter(is_ours) {
        // A file that cannot be removed does no harm.
        let _ = fs::remove_file(path);
    }
}

/// Removes a job's directory, whose lock the caller holds. The lock goes last: if this process dies
/// before, the rest can still be recognised as a job's.
///
/// # Errors
/// When something cannot be removed. What another process has removed is no error.
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
        gone(if entry.file_type()?.is_dir() {
            fs::remove_dir_all(entry.path())
        } else {
            fs::remove_file(entry.path())
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
    fn job(base: &Path, name: &str, kvsname: &str) -> (PathBuf, File) {
        let dir = base.join(name);
        fs::DirBuilder::new().mode(0o700).create(&dir).unwrap();
        fs::create_dir(dir.join("store")).unwrap();
        fs::write(dir.join("store/image"), vec![1; 100_000]).unwrap();
        // It does not name its job yet: the job is starting, or the directory is no job's.
        assert!(find(&dir).is_none());
        let name = name.into();
        let kvsname = kvsname.into();
        let mark = Mark { name, kvsname, ranks: 2, ..Mark::default() };
        let lock = place::mark(&dir, &mark).unwrap();
        assert!(find(&dir).is_none(), "it runs");
        (dir, lock)
    }

    /// Waits for the lock: a child that another test has just forked holds it, too, until it
    /// executes its program.
    fn found(dir: &Path) -> Leftovers {
        let left = find_until(dir, Instant::now() + Duration::from_secs(10));
        left.unwrap_or_else(|| panic!("{} is not found", dir.display()))
    }

    #[test]
    fn a_dead_job_is_removed_with_its_segments_and_a_living_one_is_not() {
        let base = tempfile::tempdir().unwrap();
        let kvsname = format!("eyrie_test_{}", std::process::id());
        let (dir, lock) = job(base.path(), "a", &kvsname);
        drop(lock);
        let segment = segments::predicted_segment(&kvsname, 1);
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
    fn what_agents_use_stays_when_its_maker_is_gone() {
        let base = tempfile::tempdir().unwrap();
        let (dir, lock) = job(base.path(), "a", "k");
        let used = place::Use::begin(&dir).unwrap().unwrap();
        drop(lock);
        let soon = Instant::now() + Duration::from_millis(100);
        assert!(find_until(&dir, soon).is_none(), "an agent uses it");
        drop(used);
        found(&dir);
    }

    #[test]
    fn what_is_not_recognisably_a_jobs_stays() {
        let base = tempfile::tempdir().unwrap();
        // The mark of something else, a link to a marked file, a directory that others may enter.
        let (dir, lock) = job(base.path(), "unmarked", "k");
        drop(lock);
        fs::write(dir.join(LOCK), "pid 1\n").unwrap();
        assert!(find(&dir).is_none());
        let (marked, lock) = job(base.path(), "marked", "k");
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
