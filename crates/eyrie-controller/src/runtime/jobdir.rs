//! The directory of a job: who may use it, whether its job runs, and that nothing of it
//! stays. Everything in it is for its owner only.

use anyhow::{bail, Context};
use eyrie_agent::leftovers::{self, Amount, Leftovers, LOCK};
use eyrie_agent::CONTROLLER;
use eyrie_transport::role::secret_line;
use eyrie_wire::auth::{random, Secret};
use rustix::fs::{flock, FlockOperation};
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Longest path of a Unix socket in bytes, without its closing zero.
const MAX_SOCKET_PATH: usize = 107;
/// Longest name of a job in bytes.
const MAX_NAME: usize = 64;
/// How long a name may stay taken by somebody who only looks whether its job runs, or moves
/// a dead one out of the way.
const PATIENCE: Duration = Duration::from_millis(500);

/// The directory of a job that lasts as long as this value; removed when dropped.
#[derive(Debug)]
pub struct JobDir {
    path: PathBuf,
    /// Held while the job runs: how others tell a living job from a dead one. Where an earlier
    /// controller was, its sweeper has it.
    lock: Option<File>,
    /// Held by the job's controller.
    _controller: File,
    /// It goes with this value.
    removed: bool,
}

/// What is free on the disk of a directory, in bytes.
///
/// # Errors
/// When the disk does not say.
pub fn free_bytes(dir: &Path) -> anyhow::Result<u64> {
    let disk = rustix::fs::statvfs(dir)
        .with_context(|| format!("cannot ask how much is free in {}", dir.display()))?;
    Ok(disk.f_bavail.saturating_mul(disk.f_frsize))
}

/// The directory below which jobs have theirs: `wanted`, else `$XDG_RUNTIME_DIR/eyrie`,
/// else `/tmp/eyrie-UID`.
/// Created when it is not there.
///
/// # Errors
/// When it cannot be created, or is not ours alone.
pub fn base(wanted: Option<&Path>) -> anyhow::Result<PathBuf> {
    let uid = rustix::process::getuid().as_raw();
    let base = match (wanted, std::env::var_os("XDG_RUNTIME_DIR")) {
        (Some(dir), _) => std::path::absolute(dir)?,
        (None, Some(dir)) if Path::new(&dir).is_dir() => Path::new(&dir).join("eyrie"),
        _ => PathBuf::from(format!("/tmp/eyrie-{uid}")),
    };
    let shown = base.display();
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&base)
        .with_context(|| format!("cannot create {shown}; choose another directory with --dir"))?;
    let meta = base.symlink_metadata()?;
    if !meta.is_dir() {
        bail!("{shown} is no directory; choose another one with --dir");
    }
    if meta.uid() != uid {
        bail!("{shown} belongs to another user; choose another directory with --dir");
    }
    if meta.mode() & 0o077 != 0 {
        bail!("{shown} is accessible by other users; choose a directory of your own with mode 0700 with --dir");
    }
    Ok(base)
}

fn check_name(name: &str) -> anyhow::Result<()> {
    let good = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if name.is_empty() || name.len() > MAX_NAME || name.starts_with('.') || !name.chars().all(good)
    {
        bail!(
            "{name:?} is no name for a job: use up to {MAX_NAME} letters, digits, '.', '_' and '-'"
        );
    }
    Ok(())
}

impl JobDir {
    /// Makes the directory of a new job with its secret. What a dead job of that name left is
    /// removed. `kvsname` and `ranks` tell whoever cleans up after the job what it had in /dev/shm.
    ///
    /// # Errors
    /// When a job of that name runs, the name is no good, or the directory cannot be written.
    pub fn create(
        base: &Path,
        name: &str,
        routers: u32,
        kvsname: &str,
        ranks: u32,
    ) -> anyhow::Result<(JobDir, Secret)> {
        check_name(name)?;
        let path = base.join(name);
        let longest = path.join(format!("router-{routers}.sock"));
        if longest.as_os_str().len() > MAX_SOCKET_PATH {
            bail!(
                "{} is too long for a socket (at most {MAX_SOCKET_PATH} bytes); choose a shorter directory with --dir",
                longest.display()
            );
        }
        let shown = path.display();
        let failed = || format!("cannot create {shown}; choose another directory with --dir");
        // Under another name until it is locked and marked: nobody ever sees a job that is half
        // there.
        let starting = base.join(format!(".starting-{name}-{}", std::process::id()));
        if let Some(left) = leftovers::find(&starting) {
            left.remove().with_context(failed)?;
        }
        DirBuilder::new().mode(0o700).create(&starting).with_context(failed)?;
        let lock = leftovers::lock(&starting).with_context(failed)?;
        let controller = new_file(&starting.join(CONTROLLER)).with_context(failed)?;
        flock(&controller, FlockOperation::LockExclusive)?;
        let marked = leftovers::mark(&lock, kvsname, ranks);
        let mut dir =
            JobDir { lock: Some(lock), _controller: controller, path: starting, removed: true };
        let secret = Secret(random());
        marked
            .and_then(|()| new_file(&dir.path.join("secret")))
            .and_then(|mut f| f.write_all(&secret.0))
            .with_context(|| format!("cannot write in {}", base.display()))?;
        make_way(&path)?;
        std::fs::rename(&dir.path, &path).map_err(|e| match e.kind() {
            ErrorKind::DirectoryNotEmpty | ErrorKind::AlreadyExists => {
                anyhow::anyhow!("a job named {name} is starting at the same moment")
            }
            _ => anyhow::Error::new(e).context(failed()),
        })?;
        dir.path = path;
        Ok((dir, secret))
    }

    /// Takes over the directory of a job whose controller has died.
    ///
    /// # Errors
    /// When there is no such job here, or its controller lives.
    pub fn take_over(base: &Path, name: &str) -> anyhow::Result<(JobDir, Secret)> {
        check_name(name)?;
        let path = base.join(name);
        let shown = path.display();
        let none = || {
            format!(
                "{shown} is no job's: go on with a job on the host where it was started, or on one \
                 that its `eyrie status` names as having its journal"
            )
        };
        if !leftovers::is_private(&path.symlink_metadata().with_context(none)?) {
            bail!(none());
        }
        let secret = eyrie_agent::read_secret(&path).with_context(none)?;
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(0o600);
        let controller = options.open(path.join(CONTROLLER)).with_context(none)?;
        let until = Instant::now() + PATIENCE;
        while flock(&controller, FlockOperation::NonBlockingLockExclusive).is_err() {
            if Instant::now() > until {
                bail!("the controller of job {name} runs: see `eyrie status {name}`");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        // Else the sweeper of an earlier controller has it, or the agent on this host.
        let lock =
            File::options().read(true).write(true).open(path.join(LOCK)).with_context(none)?;
        let ours = flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok();
        // Nobody listens there any more.
        drop(std::fs::remove_file(eyrie_agent::user_socket(&path)));
        let lock = ours.then_some(lock);
        Ok((JobDir { lock, _controller: controller, path, removed: false }, secret))
    }

    /// The job goes on: its directory goes with this value from now on.
    pub fn own(&mut self) {
        self.removed = true;
    }

    /// The directory's lock, when it is held here.
    pub fn lock(&self) -> Option<&File> {
        self.lock.as_ref()
    }

    /// Writes the job's secret as agents read it on their standard input; returns the file.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write_secret_line(&self) -> anyhow::Result<PathBuf> {
        let secret = eyrie_agent::read_secret(&self.path)?;
        let path = self.path.join("agent-secret");
        new_file(&path)
            .and_then(|mut file| file.write_all(secret_line(&secret).as_bytes()))
            .with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for JobDir {
    fn drop(&mut self) {
        if self.removed {
            // Somebody who removed it first has done no harm.
            let _ = leftovers::remove_job_dir(&self.path);
        }
    }
}

fn new_file(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

/// Removes what a dead job left at `path`.
fn make_way(path: &Path) -> anyhow::Result<()> {
    let (shown, name) = (path.display(), path.file_name().unwrap_or_default().to_string_lossy());
    let until = Instant::now() + PATIENCE;
    while path.symlink_metadata().is_ok() {
        if let Some(left) = leftovers::find(path) {
            left.remove()
                .with_context(|| format!("cannot remove what a dead job left in {shown}"))?;
        } else if Instant::now() > until {
            if is_alive(path) && is_locked(&path.join(CONTROLLER)) {
                bail!("a job named {name} is running already; choose another name with --job");
            }
            if is_alive(path) {
                bail!(
                    "the controller of job {name} has died and its nodes wait for another one: \
                     `eyrie resume {name}` goes on with it, or they end after --orphan-timeout; or \
                     choose another name with --job"
                );
            }
            bail!(
                "{shown} is in the way and is no directory of a job of yours; choose another name \
                 with --job"
            );
        } else {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    Ok(())
}

/// A dead job whose leftovers were found, and how much they are.
#[derive(Debug)]
pub struct DeadJob {
    pub name: String,
    pub amount: Amount,
    left: Leftovers,
}

impl DeadJob {
    /// Removes what it left.
    ///
    /// # Errors
    /// When something cannot be removed.
    pub fn remove(self) -> std::io::Result<()> {
        self.left.remove()
    }
}

/// What jobs that live no more have left below `base`, by name.
pub fn dead_jobs(base: &Path) -> Vec<DeadJob> {
    let mut found: Vec<DeadJob> = std::fs::read_dir(base)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| leftovers::find(&entry.path()))
        .map(|left| DeadJob { name: left.name(), amount: left.amount(), left })
        .collect();
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

/// How much dead jobs left, in words.
pub fn in_words(jobs: &[(String, Amount)]) -> String {
    let several =
        |n: usize, one: &str, many: &str| format!("{n} {}", if n == 1 { one } else { many });
    let segments: usize = jobs.iter().map(|j| j.1.segments).sum();
    let bytes: u64 = jobs.iter().map(|j| j.1.bytes).sum();
    let shared = match segments {
        0 => String::new(),
        n => format!(" and {} in /dev/shm", several(n, "file", "files")),
    };
    let directories = several(jobs.len(), "directory", "directories");
    format!("{directories}{shared}, {}", eyrie_units::bytes(bytes))
}

/// The names of the living jobs below `base`.
pub fn living_jobs(base: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(base)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| is_alive(&entry.path()))
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| check_name(name).is_ok())
        .collect();
    names.sort();
    names
}

/// Whether the job of this directory runs.
fn is_alive(dir: &Path) -> bool {
    is_locked(&dir.join(LOCK))
}

/// Whether a process holds the lock of this file.
fn is_locked(file: &Path) -> bool {
    let Ok(lock) = File::open(file) else { return false };
    matches!(
        flock(&lock, FlockOperation::NonBlockingLockShared),
        Err(rustix::io::Errno::WOULDBLOCK)
    )
}

/// The directory of the living job `name`.
///
/// # Errors
/// When there is none; names those that there are.
pub fn find(base: &Path, name: &str) -> anyhow::Result<PathBuf> {
    check_name(name)?;
    let path = base.join(name);
    if is_alive(&path) {
        return Ok(path);
    }
    match living_jobs(base).as_slice() {
        [] => bail!("no job is running in {}; --dir names another place to look", base.display()),
        names => bail!("no job named {name} is running; running are: {}", names.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn private() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
        dir
    }

    #[test]
    fn a_job_dir_is_private_and_goes_with_its_job() {
        let base_dir = private();
        let base = base(Some(base_dir.path())).unwrap();
        let (dir, _) = JobDir::create(&base, "a", 1, "k", 1).unwrap();
        let mode = |p: &Path| p.metadata().unwrap().mode() & 0o777;
        assert_eq!((mode(dir.path()), mode(&dir.path().join("secret"))), (0o700, 0o600));
        assert_eq!(living_jobs(&base), ["a"]);
        assert!(find(&base, "a").is_ok());
        let error = JobDir::create(&base, "a", 1, "k", 1).unwrap_err().to_string();
        assert!(error.contains("is running already"), "{error}");
        assert!(find(&base, "b").unwrap_err().to_string().contains("running are: a"));
        // Its controller has died, and an agent has the other lock.
        flock(&dir._controller, FlockOperation::Unlock).unwrap();
        let error = JobDir::create(&base, "a", 1, "k", 1).unwrap_err().to_string();
        assert!(error.contains("`eyrie resume a`"), "{error}");
        drop(dir);
        assert!(!base.join("a").exists());
    }

    /// What a job leaves that is killed.
    fn killed(base: &Path, name: &str) {
        let (mut dir, _) = JobDir::create(base, name, 1, "k", 1).unwrap();
        std::fs::write(dir.path().join("control.sock"), b"").unwrap();
        dir.lock = None;
        dir._controller = File::open("/dev/null").unwrap();
        std::mem::forget(dir);
    }

    #[test]
    fn what_a_dead_job_left_is_replaced() {
        let base = private();
        killed(base.path(), "a");
        assert!(living_jobs(base.path()).is_empty());
        let (dir, _) = JobDir::create(base.path(), "a", 1, "k", 1).unwrap();
        assert!(!dir.path().join("control.sock").exists());
        assert_eq!(living_jobs(base.path()), ["a"]);
    }

    #[test]
    fn what_is_no_jobs_is_neither_replaced_nor_cleaned() {
        let base = private();
        std::fs::create_dir(base.path().join("a")).unwrap();
        std::fs::write(base.path().join("a/thesis.tex"), b"years of work").unwrap();
        let error = JobDir::create(base.path(), "a", 1, "k", 1).unwrap_err().to_string();
        assert!(error.contains("is in the way"), "{error}");
        assert!(dead_jobs(base.path()).is_empty());
        assert!(base.path().join("a/thesis.tex").exists());
        assert_eq!(std::fs::read_dir(base.path()).unwrap().count(), 1);
    }

    #[test]
    fn cleaners_at_once_and_jobs_that_start_meanwhile_do_no_harm() {
        let base = private();
        let base = base.path();
        (0..20).for_each(|i| killed(base, &format!("dead{i}")));
        let removed = std::sync::atomic::AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while removed.load(std::sync::atomic::Ordering::SeqCst) < 20 {
                        for job in dead_jobs(base) {
                            job.remove().unwrap();
                            removed.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                        }
                    }
                });
            }
            for i in 0..20 {
                let (dir, _) = JobDir::create(base, &format!("new{i}"), 1, "k", 1).unwrap();
                assert!(dir.path().join("secret").exists());
                if i % 2 == 0 {
                    std::mem::forget(dir);
                }
            }
        });
        assert_eq!(living_jobs(base).len(), 10);
        assert_eq!(std::fs::read_dir(base).unwrap().count(), 10);
    }

    #[test]
    fn bad_places_and_names_are_refused_in_one_line() {
        let open = private();
        std::fs::set_permissions(open.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        assert!(base(Some(open.path())).unwrap_err().to_string().contains("mode 0700"));
        let dir = private();
        for name in ["", "../x", ".x", "a b", &"x".repeat(65)] {
            assert!(JobDir::create(dir.path(), name, 1, "k", 1).is_err(), "{name}");
        }
        let deep = dir.path().join("d".repeat(90));
        let error = JobDir::create(&deep, "a", 1, "k", 1).unwrap_err().to_string();
        assert!(error.contains("too long for a socket"), "{error}");
    }
}
