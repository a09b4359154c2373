//! The directory of a job: who may use it, whether its job lives, and that nothing of it stays. Everything in it
//! is for its owner only.

use anyhow::{bail, Context};
use eyrie_wire::auth::{random, Secret};
use rustix::fs::{flock, FlockOperation};
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Longest path of a Unix socket in bytes, without its closing zero.
const MAX_SOCKET_PATH: usize = 107;
/// Longest name of a job in bytes.
const MAX_NAME: usize = 64;

/// The directory of a job that lives as long as this value; removed when dropped.
#[derive(Debug)]
pub struct JobDir {
    path: PathBuf,
    /// Held while the job lives: how others tell a living job from a dead one.
    _lock: File,
}

/// The directory below which jobs have theirs: `wanted`, else `$XDG_RUNTIME_DIR/eyrie`, else `/tmp/eyrie-UID`.
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

/// Takes the job's lock; `None` when its job lives.
fn try_lock(dir: &Path) -> std::io::Result<Option<File>> {
    let lock = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(dir.join("lock"))?;
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(lock)),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

impl JobDir {
    /// Makes the directory of a new job with its secret. What a dead job of that name left is removed.
    ///
    /// # Errors
    /// When a job of that name lives, the name is no good, or the directory cannot be written.
    pub fn create(base: &Path, name: &str, routers: u32) -> anyhow::Result<(JobDir, Secret)> {
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
        if path.exists() {
            if try_lock(&path).with_context(|| format!("cannot use {shown}"))?.is_none() {
                bail!("a job named {name} is running already; choose another name with --job");
            }
            std::fs::remove_dir_all(&path)
                .with_context(|| format!("cannot remove what a dead job left in {shown}"))?;
        }
        DirBuilder::new().mode(0o700).create(&path).with_context(|| {
            format!("cannot create {shown}; choose another directory with --dir")
        })?;
        let lock = try_lock(&path)?
            .with_context(|| format!("a job named {name} is starting at the same moment"))?;
        let dir = JobDir { path, _lock: lock };
        let secret = Secret(random());
        OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(dir.path.join("secret"))
            .and_then(|mut f| f.write_all(&secret.0))
            .with_context(|| format!("cannot write in {}", dir.path.display()))?;
        Ok((dir, secret))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for JobDir {
    fn drop(&mut self) {
        // Somebody who removed it first has done no harm.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// The names of the living jobs below `base`.
pub fn living_jobs(base: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(base)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| is_alive(&entry.path()))
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort();
    names
}

/// Whether the job of this directory lives.
fn is_alive(dir: &Path) -> bool {
    let Ok(lock) = File::open(dir.join("lock")) else { return false };
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
        let (dir, _) = JobDir::create(&base, "a", 1).unwrap();
        let mode = |p: &Path| p.metadata().unwrap().mode() & 0o777;
        assert_eq!((mode(dir.path()), mode(&dir.path().join("secret"))), (0o700, 0o600));
        assert_eq!(living_jobs(&base), ["a"]);
        assert!(find(&base, "a").is_ok());
        let error = JobDir::create(&base, "a", 1).unwrap_err().to_string();
        assert!(error.contains("is running already"), "{error}");
        assert!(find(&base, "b").unwrap_err().to_string().contains("running are: a"));
        drop(dir);
        assert!(!base.join("a").exists());
    }

    #[test]
    fn what_a_dead_job_left_is_replaced() {
        let base = private();
        std::fs::create_dir(base.path().join("a")).unwrap();
        std::fs::write(base.path().join("a/control.sock"), b"").unwrap();
        assert!(living_jobs(base.path()).is_empty());
        let (dir, _) = JobDir::create(base.path(), "a", 1).unwrap();
        assert!(!dir.path().join("control.sock").exists());
    }

    #[test]
    fn bad_places_and_names_are_refused_in_one_line() {
        let open = private();
        std::fs::set_permissions(open.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        assert!(base(Some(open.path())).unwrap_err().to_string().contains("mode 0700"));
        let dir = private();
        for name in ["", "../x", ".x", "a b", &"x".repeat(65)] {
            assert!(JobDir::create(dir.path(), name, 1).is_err(), "{name}");
        }
        let deep = dir.path().join("d".repeat(90));
        let error = JobDir::create(&deep, "a", 1).unwrap_err().to_string();
        assert!(error.contains("too long for a socket"), "{error}");
    }
}
