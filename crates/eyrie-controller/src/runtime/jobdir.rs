//! The directory of a job: who may use it, whether its job runs, and that nothing of it
//! stays. Everything in it is for its owner only.

use anyhow::{bail, Context};
use eyrie_supervision::leftovers::{self, Amount, Leftovers};
use eyrie_supervision::place::{self, is_locked, Mark, Rival, CONTROLLER, LOCK};
use eyrie_transport::role::secret_line;
use eyrie_wire::agent::OLD_STATES;
use eyrie_wire::auth::{random, Secret};
use rustix::fs::{access, flock, Access, FlockOperation};
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Longest path of a Unix socket in bytes, without its closing zero.
const MAX_SOCKET_PATH: usize = 107;
/// Longest name of a job in bytes.
const MAX_NAME: usize = 64;
/// How long the lock of a controller that has just died, or the directory of a dead job that is
/// just being removed, may be there.
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
    /// Keeps others from removing what is old.
    _kept: Option<File>,
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

/// The directory in which jobs have theirs: `wanted`, which is created when it is not there, else
/// the same one on each host.
///
/// # Errors
/// When it cannot be created or written, or is not ours alone.
pub fn base(wanted: Option<&Path>) -> anyhow::Result<PathBuf> {
    let Some(wanted) = wanted.filter(|dir| *dir != Path::new(place::HOME)) else {
        let home = PathBuf::from(place::HOME);
        if let Err(e) = access(&home, Access::WRITE_OK | Access::EXEC_OK) {
            bail!("cannot write in {}: {e}; choose another directory with --dir", home.display());
        }
        return Ok(home);
    };
    let base = std::path::absolute(wanted)?;
    if base.to_str().is_none() {
        // It is part of addresses, which are text.
        let shown = base.display();
        bail!("{shown} is not valid UTF-8; choose another directory with --dir");
    }
    match private(&base) {
        Ok(()) => Ok(base),
        Err(e) => bail!("{e:#}; choose another directory with --dir"),
    }
}

/// Creates a directory of this user's own, unless it is there.
///
/// # Errors
/// When it cannot be created, or is not ours alone.
pub fn private(dir: &Path) -> anyhow::Result<()> {
    let uid = rustix::process::getuid().as_raw();
    let shown = dir.display();
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .with_context(|| format!("cannot create {shown}"))?;
    let meta = dir.symlink_metadata()?;
    if !meta.is_dir() {
        bail!("{shown} is no directory");
    }
    if meta.uid() != uid {
        bail!("{shown} belongs to another user");
    }
    if meta.mode() & 0o077 != 0 {
        bail!("{shown} is accessible by other users: it must be your own, with mode 0700");
    }
    Ok(())
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
    /// Makes the directory of a new job with its secret. What a dead run of the same job left is
    /// removed. `kvsname` and `ranks` tell the process that cleans up what the job had in /dev/shm.
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
        let path = base.join(kvsname);
        let longest = path.join(format!("router-{routers}.sock"));
        if longest.as_os_str().len() > MAX_SOCKET_PATH {
            bail!(
                "{} is too long for a socket (at most {MAX_SOCKET_PATH} bytes); choose a shorter directory with --dir",
                longest.display()
            );
        }
        let failed = {
            let path = path.clone();
            move || format!("cannot create {}; choose another with --dir", path.display())
        };
        make_way(&path, name)?;
        DirBuilder::new().mode(0o700).create(&path).with_context(&failed)?;
        let secret = Secret(random());
        let kvsname = kvsname.into();
        let run = secret.run();
        let mark = Mark { name: name.into(), run, kvsname, ranks, launched: true };
        let controller = new_file(&path.join(CONTROLLER)).with_context(&failed)?;
        flock(&controller, FlockOperation::LockExclusive)?;
        let lock = place::mark(&path, &mark).with_context(&failed)?;
        let kept = place::keep(&path);
        let dir =
            JobDir { lock: Some(lock), _controller: controller, _kept: kept, path, removed: true };
        new_file(&dir.path.join("secret"))
            .and_then(|mut f| f.write_all(&secret.kept()))
            .with_context(|| format!("cannot write in {}", dir.path.display()))?;
        let own = place::look(dir.path.clone()).with_context(&failed)?;
        match place::lasting_rival(&own) {
            None => Ok((dir, secret)),
            Some(Rival::Runs) => {
                bail!("a job named {name} is running already; choose another name with --job")
            }
            Some(Rival::HasNode) => bail!(
                "a job named {name} has a node on this host, and its controller is on another one; \
                 choose another name with --job"
            ),
            Some(Rival::Waits) => bail!(
                "the controller of job {name} has died and its nodes wait for another one: `eyrie \
                 resume {name}` goes on with it, or they end after --orphan-timeout; or choose \
                 another name with --job"
            ),
        }
    }

    /// Takes over the directory of a job whose controller has died.
    ///
    /// # Errors
    /// When it is no job's, or the job's controller runs on this host.
    pub fn take_over(path: &Path) -> anyhow::Result<(JobDir, Secret)> {
        let none = || format!("{} is no job's; {WHERE_TO_RESUME}", path.display());
        let place::Marked { mark, path, .. } = place::look(path.into()).with_context(none)?;
        let secret = eyrie_agent::read_secret(&path)?;
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(0o600);
        let controller = options.open(path.join(CONTROLLER)).with_context(none)?;
        let until = Instant::now() + PATIENCE;
        while flock(&controller, FlockOperation::NonBlockingLockExclusive).is_err() {
            if Instant::now() > until {
                let name = mark.name;
                let text = format!("the controller of job {name} runs: see `eyrie status {name}`");
                bail!(ControllerRuns(text));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        // Else the sweeper of an earlier controller has it, or the agent on this host.
        let lock =
            File::options().read(true).write(true).open(path.join(LOCK)).with_context(none)?;
        let ours = flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok();
        // No process listens there any more.
        drop(std::fs::remove_file(eyrie_agent::user_socket(&path)));
        let lock = ours.then_some(lock);
        let kept = place::keep(&path);
        Ok((JobDir { lock, _controller: controller, _kept: kept, path, removed: false }, secret))
    }

    /// The job goes on: its directory goes with this value from now on.
    pub fn own(&mut self) {
        self.removed = true;
    }

    /// The job is saved: who goes on with it needs what its ranks have kept.
    pub fn leave_old_states(&self) {
        // Where there is no list they have kept nothing.
        let _ = std::fs::remove_file(self.path.join(OLD_STATES));
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
            leftovers::remove_old_states(&self.path);
            // Who removed it first has done no harm.
            let _ = leftovers::remove_job_dir(&self.path);
        } else {
            // No controller listens there after all.
            let _ = std::fs::remove_file(eyrie_agent::user_socket(&self.path));
        }
    }
}

fn new_file(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

/// Removes what a dead run of the job left at `path`.
fn make_way(path: &Path, name: &str) -> anyhow::Result<()> {
    let shown = path.display();
    let until = Instant::now() + PATIENCE;
    while path.symlink_metadata().is_ok() {
        if let Some(left) = leftovers::find(path) {
            left.remove()
                .with_context(|| format!("cannot remove what a dead job left in {shown}"))?;
        } else if Instant::now() > until {
            bail!(
                "an earlier run of job {name} still has {shown}: it runs, or its agents wait for a \
                 controller until their --orphan-timeout is over"
            );
        } else {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    Ok(())
}

/// A job is not gone on with, because its controller runs.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ControllerRuns(pub String);

/// Where a job can be gone on with.
const WHERE_TO_RESUME: &str = "go on with a job on the host where it was started, or on one that \
                               its `eyrie status` names as having its journal";

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

/// What jobs that live no more have left in `base`, by name.
pub fn dead_jobs(base: &Path) -> Vec<DeadJob> {
    // Where all users have their files, only what is called as a job's directory is looked at.
    let all = base != Path::new(place::HOME);
    let mut found: Vec<DeadJob> = std::fs::read_dir(base)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| all || place::is_name(&entry.file_name()))
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

/// The directories of the jobs in `base` that live, with their names. Of several that have one name
/// the one whose controller runs on this host comes first, then the newest.
fn living(base: &Path) -> Vec<(String, PathBuf)> {
    let all = place::jobs(base).into_iter().rev();
    let living = all.filter(|job| is_locked(&job.path, LOCK));
    let named = living.filter(|job| check_name(&job.mark.name).is_ok());
    let mut found: Vec<_> = named.map(|job| (job.mark.name, job.path)).collect();
    found.sort_by_key(|(name, path)| (name.clone(), !is_locked(path, CONTROLLER)));
    found
}

/// The living jobs in `base`: names and directories.
pub fn living_jobs(base: &Path) -> Vec<(String, PathBuf)> {
    let mut found = living(base);
    found.dedup_by(|a, b| a.0 == b.0);
    found
}

/// The directory of the living job `name`.
///
/// # Errors
/// When there is none; names those that there are.
pub fn find(base: &Path, name: &str) -> anyhow::Result<PathBuf> {
    check_name(name)?;
    let living = living_jobs(base);
    if let Some((_, path)) = living.iter().find(|(known, _)| known == name) {
        return Ok(path.clone());
    }
    if living.is_empty() {
        bail!("no job is running in {}; --dir names another place to look", base.display());
    }
    let names: Vec<_> = living.into_iter().map(|(name, _)| name).collect();
    bail!("no job named {name} is running; running are: {}", names.join(", "))
}

/// The directory of the job `name` that another controller may go on with: of several that have
/// this name, one whose agents here have no controller.
///
/// # Errors
/// When there is none.
pub fn find_to_resume(base: &Path, name: &str) -> anyhow::Result<PathBuf> {
    check_name(name)?;
    let named = place::jobs(base).into_iter().filter(|job| job.mark.name == name);
    let waits = |job: &place::Marked| !place::is_attached(&job.path);
    let found = named.max_by_key(waits).map(|job| job.path);
    let none = || format!("no job named {name} is in {}; {WHERE_TO_RESUME}", base.display());
    found.with_context(none)
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

    /// Makes a job's directory, each one of its own.
    fn create(base: &Path, name: &str) -> anyhow::Result<JobDir> {
        JobDir::create(base, name, 1, &place::new_name(), 1).map(|(dir, _)| dir)
    }

    fn names(base: &Path) -> Vec<String> {
        living_jobs(base).into_iter().map(|(name, _)| name).collect()
    }

    #[test]
    fn a_base_that_is_no_text_is_refused() {
        use std::os::unix::ffi::OsStrExt;
        let name = std::ffi::OsStr::from_bytes(b"/nowhere/\xff");
        let error = base(Some(Path::new(name))).unwrap_err().to_string();
        assert!(error.contains("not valid UTF-8; choose another directory with --dir"), "{error}");
    }

    #[test]
    fn a_job_dir_is_private_and_goes_with_its_job() {
        let base_dir = private();
        let base = base(Some(base_dir.path())).unwrap();
        let dir = create(&base, "a").unwrap();
        let mode = |p: &Path| p.metadata().unwrap().mode() & 0o777;
        assert_eq!((mode(dir.path()), mode(&dir.path().join("secret"))), (0o700, 0o600));
        assert_eq!(
            (names(&base), find(&base, "a").unwrap()),
            (vec!["a".into()], dir.path().into())
        );
        let error = create(&base, "a").unwrap_err().to_string();
        assert!(error.contains("is running already"), "{error}");
        assert!(find(&base, "b").unwrap_err().to_string().contains("running are: a"));
        // Its controller has died, and its sweeper has the other lock.
        flock(&dir._controller, FlockOperation::Unlock).unwrap();
        let error = create(&base, "a").unwrap_err().to_string();
        assert!(error.contains("`eyrie resume a`"), "{error}");
        assert_eq!(find_to_resume(&base, "a").unwrap(), dir.path());
        drop(dir);
        assert_eq!(std::fs::read_dir(&base).unwrap().count(), 0);
    }

    /// What a job leaves that is killed.
    fn killed(base: &Path, name: &str, kvsname: &str) {
        let (mut dir, _) = JobDir::create(base, name, 1, kvsname, 1).unwrap();
        std::fs::write(dir.path().join("control.sock"), b"").unwrap();
        dir.lock = None;
        dir._controller = File::open("/dev/null").unwrap();
        std::mem::forget(dir);
    }

    #[test]
    fn what_a_dead_job_left_is_replaced() {
        let base = private();
        killed(base.path(), "a", "eyrie_k");
        assert!(living_jobs(base.path()).is_empty());
        let (dir, _) = JobDir::create(base.path(), "a", 1, "eyrie_k", 1).unwrap();
        assert!(!dir.path().join("control.sock").exists());
        assert_eq!(names(base.path()), ["a"]);
        let error = JobDir::create(base.path(), "b", 1, "eyrie_k", 1).unwrap_err().to_string();
        assert!(error.contains("an earlier run of job b still has"), "{error}");
    }

    #[test]
    fn what_is_no_jobs_is_neither_replaced_nor_cleaned() {
        let base = private();
        std::fs::create_dir(base.path().join("eyrie_k")).unwrap();
        std::fs::write(base.path().join("eyrie_k/thesis.tex"), b"years of work").unwrap();
        let error = JobDir::create(base.path(), "a", 1, "eyrie_k", 1).unwrap_err().to_string();
        assert!(error.contains("still has"), "{error}");
        assert!(dead_jobs(base.path()).is_empty());
        assert!(base.path().join("eyrie_k/thesis.tex").exists());
        assert_eq!(std::fs::read_dir(base.path()).unwrap().count(), 1);
    }

    #[test]
    fn cleaners_at_once_and_jobs_that_start_meanwhile_do_no_harm() {
        let base = private();
        let base = base.path();
        (0..20).for_each(|i| killed(base, &format!("dead{i}"), &place::new_name()));
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
                let dir = create(base, &format!("new{i}")).unwrap();
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
        assert!(format!("{:#}", base(Some(open.path())).unwrap_err()).contains("mode 0700"));
        let dir = private();
        for name in ["", "../x", ".x", "a b", &"x".repeat(65)] {
            assert!(create(dir.path(), name).is_err(), "{name}");
        }
        let deep = dir.path().join("d".repeat(90));
        let error = create(&deep, "a").unwrap_err().to_string();
        assert!(error.contains("too long for a socket"), "{error}");
    }
}
