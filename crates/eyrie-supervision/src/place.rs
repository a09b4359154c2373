//! Where jobs have their directories on a host, the mark of a job's directory, and the locks that
//! show other processes which of them use it. A directory belongs to one run of one job: the job's
//! name never decides whose it is.

use eyrie_wire::auth::random;
use rustix::fs::{flock, FlockOperation, OFlags};
use rustix::io::Errno;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

/// Where directories of jobs are unless the user chooses another place. It exists on each host for
/// as long as a job may run; the directory of a login session goes away with the session.
pub const HOME: &str = "/tmp";
/// What the names of the directories begin with.
const PREFIX: &str = "eyrie_";

/// The files in a job's directory that are locked.
///
/// Locked by the process that made the directory, for as long as the directory is needed there:
/// marks it as a job's.
pub const LOCK: &str = "lock";
/// Locked by the job's controller.
pub const CONTROLLER: &str = "controller";
/// Locked (shared) by all agents that use the directory.
const USERS: &str = "users";
/// Locked (shared) by those agents that have a controller.
const ATTACHED: &str = "attached";

/// What a lock file begins with: no directory of anything else has such a file.
const MARK: &str = "eyrie job\n";
/// Longest lock file in bytes.
const MAX_MARK: u64 = 4096;
/// Most ranks that a mark may name.
const MAX_RANKS: u32 = 1 << 20;
/// How long another process may hold a lock that it only probes.
const LOOKED_AT: Duration = Duration::from_millis(500);
/// How long agents whose controller has just ended may take to end.
const LAST_TIMEOUT: Duration = Duration::from_secs(3);
const PAUSE: Duration = Duration::from_millis(10);

/// What a directory says about the job that it belongs to.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Mark {
    pub name: String,
    /// Which run of the job (`Secret::run`).
    pub run: String,
    /// Name of the key value space, by which MPICH names its segments.
    pub kvsname: String,
    pub ranks: u32,
    /// The job was launched on this host.
    pub launched: bool,
}

impl Mark {
    fn text(&self) -> String {
        let Mark { name, run, kvsname, ranks, launched } = self;
        let launched = if *launched { "launched here\n" } else { "" };
        format!("{MARK}kvsname {kvsname}\nranks {ranks}\nname {name}\nrun {run}\n{launched}")
    }

    /// Reads the mark from a lock file; `None` when the file is no mark.
    pub fn read(lock: &File) -> Option<Mark> {
        let mut text = String::new();
        lock.take(MAX_MARK).read_to_string(&mut text).ok()?;
        let fields = text.strip_prefix(MARK)?;
        let field =
            |name: &str| fields.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(' '));
        let text = |name| field(name).unwrap_or_default().to_string();
        Some(Mark {
            name: text("name"),
            run: text("run"),
            kvsname: text("kvsname"),
            ranks: field("ranks").and_then(|r| r.parse().ok()).unwrap_or(0).min(MAX_RANKS),
            launched: field("launched").is_some(),
        })
    }
}

/// A name that no other job has, for its key value space and for its directory.
pub fn new_name() -> String {
    format!("{PREFIX}{:016x}", u64::from_le_bytes(random()))
}

/// Whether something in [`HOME`] has the name of a job's directory.
pub fn is_name(name: &std::ffi::OsStr) -> bool {
    name.as_encoded_bytes().starts_with(PREFIX.as_bytes())
}

/// Whether something is a directory of this user that no other user may enter.
pub fn is_private(meta: &Metadata) -> bool {
    let ours = meta.uid() == rustix::process::getuid().as_raw();
    meta.is_dir() && ours && meta.mode() & 0o077 == 0
}

/// The lock file of a directory that is this user's.
pub fn open_lock(dir: &Path) -> Option<File> {
    let private = is_private(&dir.symlink_metadata().ok()?);
    let file = private.then(|| open(dir, LOCK, false).ok())??;
    let meta = file.metadata().ok()?;
    let ours = meta.uid() == rustix::process::getuid().as_raw();
    (meta.is_file() && ours).then_some(file)
}

/// Opens a file to be locked. It is opened for writing, because NFS locks no other files.
fn open(dir: &Path, name: &str, create: bool) -> io::Result<File> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(create).mode(0o600).custom_flags(flags);
    options.open(dir.join(name))
}

/// Makes and takes the lock of a directory that is not marked as a job's yet, and marks it.
///
/// # Errors
/// When there is a lock already, or it cannot be made.
pub fn mark(dir: &Path, mark: &Mark) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let mut lock =
        options.read(true).write(true).create_new(true).mode(0o600).open(dir.join(LOCK))?;
    flock(&lock, FlockOperation::LockExclusive)?;
    lock.write_all(mark.text().as_bytes())?;
    // The system's own time of it is the same for all that is written within some milliseconds:
    // which of two jobs is older could not be told.
    lock.set_modified(SystemTime::now())?;
    Ok(lock)
}

/// Keeps the directory while a process runs in it: systemd-tmpfiles, which removes old files in
/// /tmp, does not touch a locked directory. `None`: this file system has no such lock.
pub fn keep(dir: &Path) -> Option<File> {
    let dir = File::open(dir).ok()?;
    flock(&dir, FlockOperation::NonBlockingLockShared).ok()?;
    Some(dir)
}

/// An agent's use of a directory.
#[derive(Debug)]
pub struct Use {
    _users: File,
    attached: File,
    is_attached: bool,
    _kept: Option<File>,
}

impl Use {
    /// Begins to use it, with a controller; `None` when the directory is being removed.
    ///
    /// # Errors
    /// When the locks cannot be taken.
    pub fn begin(dir: &Path) -> io::Result<Option<Use>> {
        let (users, attached) = (open(dir, USERS, true)?, open(dir, ATTACHED, true)?);
        let until = Instant::now() + LOOKED_AT;
        while let Err(e) = flock(&users, FlockOperation::NonBlockingLockShared) {
            if e != Errno::WOULDBLOCK || Instant::now() > until {
                return Err(e.into());
            }
            std::thread::sleep(PAUSE);
        }
        if !is_still(&users, &dir.join(USERS)) {
            return Ok(None);
        }
        let kept = keep(dir);
        let mut used = Use { _users: users, attached, is_attached: false, _kept: kept };
        used.set_attached(true);
        Ok(Some(used))
    }

    /// Says whether the agent has a controller.
    pub fn set_attached(&mut self, attached: bool) {
        if attached == self.is_attached {
            return;
        }
        self.is_attached = attached;
        let how = if attached { FlockOperation::LockShared } else { FlockOperation::Unlock };
        // Other processes only probe this lock. Without it another job of this name may start here,
        // which does no harm.
        let _ = flock(&self.attached, how);
    }
}

/// Whether `path` leads to the file that is open as `file`.
pub fn is_still(file: &File, path: &Path) -> bool {
    let number = |meta: Metadata| (meta.dev(), meta.ino());
    let there = path.symlink_metadata().map(number).ok();
    there.is_some() && there == file.metadata().map(number).ok()
}

/// Keeps agents from using a directory; `None` while an agent uses it.
pub fn refuse_users(dir: &Path) -> Option<File> {
    let users = open(dir, USERS, true).ok()?;
    flock(&users, FlockOperation::NonBlockingLockExclusive).ok()?;
    Some(users)
}

/// Whether a process holds the exclusive lock of a directory.
pub fn is_locked(dir: &Path, name: &str) -> bool {
    is_taken(dir, name, FlockOperation::NonBlockingLockShared)
}

fn is_taken(dir: &Path, name: &str, how: FlockOperation) -> bool {
    File::open(dir.join(name)).is_ok_and(|lock| flock(&lock, how) == Err(Errno::WOULDBLOCK))
}

/// Whether an agent that has a controller uses this directory.
pub fn is_attached(dir: &Path) -> bool {
    is_taken(dir, ATTACHED, FlockOperation::NonBlockingLockExclusive)
}

/// The directory of a job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Marked {
    pub path: PathBuf,
    pub mark: Mark,
    /// When it was made, in nanoseconds.
    made: i128,
}

/// What the directory at `path` says about its job; `None` when it is no job's of this user.
pub fn look(path: PathBuf) -> Option<Marked> {
    let lock = open_lock(&path)?;
    let meta = lock.metadata().ok()?;
    let made = i128::from(meta.mtime()) * 1_000_000_000 + i128::from(meta.mtime_nsec());
    Some(Marked { mark: Mark::read(&lock)?, path, made })
}

/// The directories of this user's jobs in `home`, oldest first.
pub fn jobs(home: &Path) -> Vec<Marked> {
    let entries = fs::read_dir(home).into_iter().flatten().flatten();
    let named = entries.filter(|entry| is_name(&entry.file_name()));
    let mut found: Vec<_> = named.filter_map(|entry| look(entry.path())).collect();
    found.sort_by(|a, b| (a.made, &a.mark.run).cmp(&(b.made, &b.mark.run)));
    found
}

/// An older job of the same name on this host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rival {
    /// Its controller runs here.
    Runs,
    /// It has a node here; its controller is elsewhere.
    HasNode,
    /// It was launched here, and its nodes wait for another controller.
    Waits,
}

/// A job that this one cannot share its name with. The name is free where the agents of the other
/// job have lost their controller and that job was not launched here: nothing here shows whether
/// it goes on.
pub fn rival(own: &Marked) -> Option<Rival> {
    let home = own.path.parent()?;
    let found = jobs(home);
    let others = found.iter().take_while(|other| other.path != own.path);
    others.filter(|other| other.mark.name == own.mark.name).find_map(
        |Marked { path, mark, .. }| {
            if is_locked(path, CONTROLLER) {
                Some(Rival::Runs)
            } else if is_attached(path) {
                Some(Rival::HasNode)
            } else {
                let waits = own.mark.launched && mark.launched && is_locked(path, LOCK);
                waits.then_some(Rival::Waits)
            }
        },
    )
}

/// As [`rival`], if it lasts: the rival may be ending, and other processes probe its locks.
pub fn lasting_rival(own: &Marked) -> Option<Rival> {
    let since = Instant::now();
    loop {
        let rival = rival(own);
        let patience = if rival == Some(Rival::HasNode) { LAST_TIMEOUT } else { LOOKED_AT };
        if rival.is_none() || since.elapsed() > patience {
            return rival;
        }
        std::thread::sleep(PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::DirBuilderExt;

    fn job(home: &Path, run: &str, launched: bool) -> (Marked, File) {
        let path = home.join(format!("{PREFIX}{run}"));
        fs::DirBuilder::new().mode(0o700).create(&path).unwrap();
        let name = "melt".into();
        let run = run.into();
        let kvsname = "k".into();
        let lock = mark(&path, &Mark { name, run, kvsname, ranks: 3, launched }).unwrap();
        (look(path).unwrap(), lock)
    }

    #[test]
    fn a_mark_is_read_as_it_was_written() {
        let home = tempfile::tempdir().unwrap();
        let (a, _lock) = job(home.path(), "a", true);
        let name = "melt".into();
        let run = "a".into();
        let kvsname = "k".into();
        assert_eq!(a.mark, Mark { name, run, kvsname, ranks: 3, launched: true });
        assert_eq!(jobs(home.path()), [a]);
    }

    #[test]
    fn of_two_jobs_that_start_at_once_the_first_one_is_older() {
        for _ in 0..100 {
            let home = tempfile::tempdir().unwrap();
            let (first, _lock) = job(home.path(), "2", true);
            let controller = open(&first.path, CONTROLLER, true).unwrap();
            flock(&controller, FlockOperation::LockExclusive).unwrap();
            let (second, _lock) = job(home.path(), "1", true);
            assert_eq!((rival(&first), rival(&second)), (None, Some(Rival::Runs)));
        }
    }

    #[test]
    fn only_an_older_job_that_has_a_controller_or_was_launched_here_keeps_its_name() {
        let home = tempfile::tempdir().unwrap();
        let (first, lock) = job(home.path(), "1", false);
        let (second, _lock) = job(home.path(), "2", false);
        let mut used = Use::begin(&first.path).unwrap().unwrap();
        let _also = Use::begin(&second.path).unwrap().unwrap();
        assert_eq!((rival(&first), rival(&second)), (None, Some(Rival::HasNode)));
        used.set_attached(false);
        assert_eq!(rival(&second), None, "its controller is gone");
        used.set_attached(true);
        assert_eq!(rival(&second), Some(Rival::HasNode));
        drop(used);
        drop(lock);
        let (third, lock) = job(home.path(), "3", true);
        let (fourth, _lock) = job(home.path(), "4", true);
        let (fifth, _lock) = job(home.path(), "5", false);
        drop(_also);
        assert_eq!((rival(&fourth), rival(&fifth)), (Some(Rival::Waits), None));
        let controller = open(&third.path, CONTROLLER, true).unwrap();
        flock(&controller, FlockOperation::LockExclusive).unwrap();
        assert_eq!((rival(&fourth), rival(&fifth)), (Some(Rival::Runs), Some(Rival::Runs)));
        drop((controller, lock));
        assert_eq!((rival(&fourth), lasting_rival(&fifth)), (None, None));
    }
}
