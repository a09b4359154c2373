//! What a job leaves when everything of it is killed: its directory, the segments of its ranks in
//! /dev/shm, and the old states of files that they have changed. Never takes a directory for one
//! that is not marked as a job's of this user, nor that of a job that runs or is just starting, or
//! that an agent uses.

use crate::place::{self, is_still, open_lock, Mark, LOCK};
use crate::shared;
use eyrie_wire::agent::{OLD_STATE, OLD_STATES};
use rustix::fs::{flock, FlockOperation};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// What a dead job has left.
#[derive(Debug)]
pub struct Leftovers {
    dir: PathBuf,
    mark: Mark,
    /// Held until all is gone: nobody else does the same at the same time, or begins to use it.
    _locks: [File; 2],
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
    let lock = open_lock(dir)?;
    flock(&lock, FlockOperation::NonBlockingLockExclusive).ok()?;
    // The directory may have been removed, and made anew, before the lock was ours.
    if !is_still(&lock, &dir.join(LOCK)) {
        return None;
    }
    let mark = Mark::read(&lock)?;
    let users = place::refuse_users(dir)?;
    Some(Leftovers { dir: dir.into(), mark, _locks: [lock, users] })
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
        match self.mark.name.is_empty() {
            true => self.dir.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            false => self.mark.name.clone(),
        }
    }

    /// Segments that ranks of the job may have.
    pub fn possible_segments(&self) -> Vec<String> {
        let Mark { kvsname, ranks, .. } = &self.mark;
        (0..*ranks).map(|rank| shared::predicted_segment(kvsname, rank)).collect()
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
        if self.mark.launched {
            // On another host the job may go on that needs them.
            remove_old_states(&self.dir);
        }
        remove_job_dir(&self.dir)
    }
}

/// Removes what ranks of a job have kept of files that they changed, and have not removed
/// themselves; the caller holds the lock of its directory.
pub fn remove_old_states(dir: &Path) {
    let uid = rustix::process::getuid().as_raw();
    let is_ours = |path: &&Path| {
        let name = path.file_name().is_some_and(|n| n.as_bytes().starts_with(OLD_STATE.as_bytes()));
        name && fs::symlink_metadata(path).is_ok_and(|meta| meta.is_file() && meta.uid() == uid)
    };
    let listed = fs::read(dir.join(OLD_STATES)).unwrap_or_default();
    let paths = listed.split(|byte| *byte == 0).map(|path| Path::new(OsStr::from_bytes(path)));
    // One that cannot be removed does no harm.
    paths.filter(is_ours).for_each(|path| drop(fs::remove_file(path)));
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
    fn job(base: &Path, name: &str, kvsname: &str) -> (PathBuf, File) {
        let dir = base.join(name);
        fs::DirBuilder::new().mode(0o700).create(&dir).unwrap();
        fs::create_dir(dir.join("store")).unwrap();
        fs::write(dir.join("store/image"), vec![1; 100_000]).unwrap();
        // It has not yet said whose it is: it is just starting, or no job's.
        assert!(find(&dir).is_none());
        let (name, kvsname) = (name.into(), kvsname.into());
        let mark = Mark { name, kvsname, ranks: 2, ..Mark::default() };
        let lock = place::mark(&dir, &mark).unwrap();
        assert!(find(&dir).is_none(), "it runs");
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
        let kvsname = format!("eyrie_test_{}", std::process::id());
        let (dir, lock) = job(base.path(), "a", &kvsname);
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
