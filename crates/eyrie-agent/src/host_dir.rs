//! The job's directory on this host, at the same path on each: where ranks find the provider. It is
//! made where there is none, and removed by who made it; the controller's own, or one that hosts
//! share, is only used.

use crate::leftovers;
use eyrie_host::{Facts, Start};
use eyrie_wire::control::{JobOnHost, Program};
use std::ffi::{OsStr, OsString};
use std::fs::{DirBuilder, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{symlink, DirBuilderExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long a controller that has died may hold its directory.
const LET_GO: Duration = Duration::from_secs(5);

/// The directory while the agent lives.
pub struct HostDir {
    path: PathBuf,
    /// Its lock, when it was made here.
    made: Option<File>,
}

impl HostDir {
    /// Makes the directory with what ranks find in it, unless it is there. `sent`: where files are
    /// that came with the agent.
    ///
    /// # Errors
    /// Why ranks could not run here: a text for the user, without the host's name.
    pub fn enter(job: &JobOnHost, sent: Option<&Path>) -> Result<HostDir, String> {
        let path = PathBuf::from(&job.dir);
        let shown = path.display();
        let provided: Vec<(&str, PathBuf)> =
            job.provided.iter().map(|(name, at)| (name.as_str(), place(name, at, sent))).collect();
        for (name, target) in &provided {
            if let Err(e) = std::fs::metadata(target) {
                let target = target.display();
                return Err(format!(
                    "{name} cannot be reached at {target}: {e}; see --send-binaries"
                ));
            }
        }
        let made = make(&path, job)
            .map_err(|e| format!("cannot make the directory {shown}: {e}; see --dir"))?;
        let dir = HostDir { path, made };
        for (name, target) in &provided {
            let to = dir.path.join(name);
            let put = match job.copied {
                true => copy(target, &to),
                false => symlink(target, &to),
            };
            match put {
                Err(e) if e.kind() != ErrorKind::AlreadyExists => {
                    let text = format!("cannot put {name} into {}: {e}", dir.path.display());
                    dir.leave(false);
                    return Err(text);
                }
                _ => {}
            }
        }
        Ok(dir)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The directory, when it was made here.
    pub fn made_at(&self) -> Option<&Path> {
        self.made.as_ref().map(|_| self.path.as_path())
    }

    /// The agent ends: nobody else removes what it has made, or what a dead controller has left.
    ///
    /// `dying`: the controller has just died, and may not have let go of its directory.
    pub fn leave(self, dying: bool) {
        // What cannot be removed is found by `eyrie clean`.
        if self.made.is_some() {
            return drop(leftovers::remove_job_dir(&self.path));
        }
        let until = Instant::now() + if dying { LET_GO } else { Duration::ZERO };
        if let Some(left) = leftovers::find_until(&self.path, until) {
            let _ = left.remove();
        }
    }
}

/// Whether what the ranks run is there: without that all else would differ, too.
///
/// # Errors
/// What is missing, and the remedy.
pub fn check(program: &Program) -> Result<(), String> {
    let (cwd, exe) = (Path::new(&program.cwd), Path::new(&program.exe));
    if let Err(e) = std::fs::read_dir(cwd) {
        let cwd = cwd.display();
        return Err(format!("no working directory {cwd}: {e}; run in one that all hosts share"));
    }
    std::fs::metadata(exe).map(drop).map_err(|e| {
        let exe = exe.display();
        format!("no program {exe}: {e}; it must be at the same path on all hosts")
    })
}

/// Longest text by which a host says what it is, in bytes: it must fit into a message.
const MAX_FACTS: usize = 2 << 20;

/// What this host is, as JSON; empty when it takes too much to say.
pub fn facts(job: &JobOnHost) -> String {
    let loaded = |(name, at): &(String, OsString)| match job.copied {
        true => Path::new(&job.dir).join(name),
        false => at.into(),
    };
    let loaded: Vec<PathBuf> = job.provided.iter().map(loaded).collect();
    let facts = facts_of(&job.program, &loaded);
    let text = serde_json::to_string(&facts).expect("facts are plain data");
    if text.len() > MAX_FACTS {
        String::new()
    } else {
        text
    }
}

/// What this host is for the ranks of a program, which load the files `loaded` besides its own.
pub fn facts_of(program: &Program, loaded: &[PathBuf]) -> Facts {
    let start = Start {
        exe: Path::new(&program.exe),
        argv: &program.argv,
        env: &program.env,
        cwd: Path::new(&program.cwd),
    };
    let loaded: Vec<&Path> = loaded.iter().map(PathBuf::as_path).collect();
    Facts::gather(env!("CARGO_PKG_VERSION"), Some(&start), &loaded)
}

/// Where a file is on this host.
fn place(name: &str, at: &OsStr, sent: Option<&Path>) -> PathBuf {
    sent.map_or(at.into(), |dir| dir.join(name))
}

/// Copies a file that nobody must see half of: who finds it there has it whole.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let partial = to.with_extension(format!("partial-{}", std::process::id()));
    std::fs::copy(from, &partial)?;
    std::fs::rename(&partial, to)
}

/// Makes the directory and locks it; `None` when a job that lives has it.
fn make(path: &Path, job: &JobOnHost) -> io::Result<Option<File>> {
    if let Some(base) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(base)?;
        check_ours(base)?;
    }
    // A dead job's of the same name on this host.
    if let Some(left) = leftovers::find(path) {
        left.remove()?;
    }
    match DirBuilder::new().mode(0o700).create(path) {
        Err(e) if e.kind() == ErrorKind::AlreadyExists => {
            check_ours(path)?;
            return Ok(None);
        }
        made => made?,
    }
    // Without its mark nobody would know it for a job's.
    lock_and_mark(path, job).map(Some).inspect_err(|_| drop(leftovers::remove_job_dir(path)))
}

fn lock_and_mark(path: &Path, job: &JobOnHost) -> io::Result<File> {
    let lock = leftovers::lock(path)?;
    leftovers::mark(&lock, &job.kvsname, job.ranks)?;
    Ok(lock)
}

/// Others must not be able to put anything into it.
fn check_ours(path: &Path) -> io::Result<()> {
    if !leftovers::is_private(&path.symlink_metadata()?) {
        let text = format!("{} is no directory of yours with mode 0700", path.display());
        return Err(io::Error::new(ErrorKind::PermissionDenied, text));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use eyrie_wire::control::Notices;
    use std::os::unix::fs::PermissionsExt;

    fn job(dir: &Path, target: &str) -> JobOnHost {
        JobOnHost {
            dir: dir.into(),
            provided: vec![("libeyrie-fi.so".into(), target.into())],
            copied: false,
            kvsname: "k".into(),
            ranks: 2,
            program: Default::default(),
            compared: false,
            orphans: None,
            notices: Notices::default(),
        }
    }

    #[test]
    fn it_is_made_with_its_links_and_removed() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("eyrie/job");
        let dir = HostDir::enter(&job(&path, "/bin/sh"), None).unwrap();
        assert_eq!(std::fs::read_link(path.join("libeyrie-fi.so")).unwrap(), Path::new("/bin/sh"));
        assert!(leftovers::find(&path).is_none(), "it lives");
        // A second agent that sees the same directory uses it, and leaves it there.
        HostDir::enter(&job(&path, "/bin/sh"), None).unwrap().leave(false);
        assert!(path.exists());
        dir.leave(false);
        assert!(!path.exists());
    }

    #[test]
    fn a_dead_jobs_is_replaced_and_what_others_may_enter_is_refused() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("eyrie/job");
        drop(HostDir::enter(&job(&path, "/bin/sh"), None).unwrap());
        std::fs::write(path.join("old"), b"").unwrap();
        let dir = HostDir::enter(&job(&path, "/bin/sh"), None).unwrap();
        assert!(!path.join("old").exists());
        dir.leave(false);
        let error = HostDir::enter(&job(&path, "/no/such/file"), None).err().unwrap();
        assert!(error.contains("libeyrie-fi.so cannot be reached at /no/such/file"), "{error}");
        let open = base.path().join("open");
        std::fs::create_dir(&open).unwrap();
        std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o755)).unwrap();
        let error = HostDir::enter(&job(&open.join("job"), "/bin/sh"), None).err().unwrap();
        assert!(error.contains("mode 0700"), "{error}");
    }
}
