//! The job's directory on this host, at the same path on each: where ranks find the provider. An
//! agent makes it where there is none, unless this host has a job of the same name. The last agent
//! that leaves it removes it. The directory of another run is never used.

use eyrie_host::Start;
use eyrie_supervision::leftovers;
use eyrie_supervision::place::{self, Mark, Rival, Use};
use eyrie_wire::control::{JobOnHost, Program};
use eyrie_wire::facts::{self, Facts};
use std::ffi::{OsStr, OsString};
use std::fs::{DirBuilder, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{symlink, DirBuilderExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long a controller that has died may still hold its directory.
const LET_GO: Duration = Duration::from_secs(5);
/// How long another agent that leaves at the same moment may hold it.
const OTHERS_LEAVE: Duration = Duration::from_millis(100);
/// How long a directory may take to be marked, or to be removed.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(10);

/// The directory, held by the agent.
pub struct HostDir {
    path: PathBuf,
    /// Its lock, when it was made here.
    made: Option<File>,
    used: Use,
}

impl HostDir {
    /// Makes the directory with the files that ranks find in it, unless it exists. `run`: that of
    /// the job, see `Secret::run`. `sent`: the directory with the files that came with the agent.
    ///
    /// # Errors
    /// Why ranks cannot run here: a text for the user, without the host's name.
    pub fn enter(job: &JobOnHost, run: &str, sent: Option<&Path>) -> Result<HostDir, String> {
        let path = PathBuf::from(&job.dir);
        let provided: Vec<(&str, PathBuf)> = job
            .provided
            .iter()
            .map(|(name, at)| (name.as_str(), at_host(name, at, sent)))
            .collect();
        for (name, target) in &provided {
            if let Err(e) = std::fs::metadata(target) {
                let target = target.display();
                return Err(format!(
                    "{name} cannot be reached at {target}: {e}; see --send-binaries"
                ));
            }
        }
        let dir = open(path, job, run)?;
        if let Some(text) = dir.name_is_taken(&job.name) {
            dir.leave(false);
            return Err(text);
        }
        for (name, target) in &provided {
            let to = dir.path.join(name);
            let put = if job.copied { copy(target, &to) } else { symlink(target, &to) };
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

    /// Shows other jobs whether the agent has a controller.
    pub fn set_attached(&mut self, attached: bool) {
        self.used.set_attached(attached);
    }

    /// Why a job of this name cannot run here.
    fn name_is_taken(&self, name: &str) -> Option<String> {
        let rival = place::lasting_rival(&place::look(self.path.clone())?)?;
        let where_it_is = match rival {
            Rival::Runs | Rival::Waits => "runs there",
            Rival::HasNode => "that was launched on another host has a node there",
        };
        Some(format!("another job named {name} {where_it_is}: choose another name with --job"))
    }

    /// Leaves the directory when the agent ends. The last one that leaves removes it, also when the
    /// controller is dead.
    ///
    /// `dying`: the controller has just died, and may still hold the directory.
    pub fn leave(self, dying: bool) {
        let HostDir { path, made, used } = self;
        drop((made, used));
        let patience = if dying {
            LET_GO
        } else if place::is_locked(&path, place::CONTROLLER) {
            Duration::ZERO
        } else {
            OTHERS_LEAVE
        };
        // `eyrie clean` finds what cannot be removed.
        if let Some(left) = leftovers::find_until(&path, Instant::now() + patience) {
            let _ = left.remove();
        }
    }
}

/// Checks that the program and its working directory exist: without them all facts would differ.
/// Where images are self-contained, ranks can come by them without the program.
///
/// # Errors
/// What is missing, and the remedy.
pub fn check(job: &JobOnHost) -> Result<(), String> {
    let JobOnHost { program, self_contained, .. } = job;
    let cwd = Path::new(&program.cwd);
    let exe = Path::new(&program.exe);
    if let Err(e) = std::fs::read_dir(cwd) {
        let cwd = cwd.display();
        return Err(format!("no working directory {cwd}: {e}; run in one that all hosts share"));
    }
    match std::fs::metadata(exe) {
        Err(e) if !self_contained => {
            let exe = exe.display();
            Err(format!(
                "no program {exe}: {e}; it must be at the same path on all hosts, or use \
                 --self-contained"
            ))
        }
        _ => Ok(()),
    }
}

/// Longest description of a host, in bytes: it must fit into a message.
const MAX_FACTS: usize = 2 << 20;

/// The facts of this host.
///
/// # Errors
/// When they are too long for a message.
pub fn facts(job: &JobOnHost) -> Result<Facts, String> {
    let loaded = |(name, at): &(String, OsString)| {
        if job.copied {
            Path::new(&job.dir).join(name)
        } else {
            at.into()
        }
    };
    let loaded: Vec<PathBuf> = job.provided.iter().map(loaded).collect();
    let facts = facts_of(&job.program, &loaded);
    bounded(facts)
}

fn bounded(facts: Facts) -> Result<Facts, String> {
    let texts = |file: &facts::File| file.path.len() + file.content.len() + file.problem.len();
    let bytes: usize = facts.files.iter().map(texts).sum();
    if bytes > MAX_FACTS {
        let files = facts.files.len();
        return Err(format!("the names of the {files} files that its ranks load are too long"));
    }
    Ok(facts)
}

/// The facts of this host for the ranks of a program, which load the files `loaded` besides its
/// own.
pub fn facts_of(program: &Program, loaded: &[PathBuf]) -> Facts {
    let start = Start {
        exe: Path::new(&program.exe),
        argv: &program.argv,
        env: &program.env,
        cwd: Path::new(&program.cwd),
    };
    let loaded: Vec<&Path> = loaded.iter().map(PathBuf::as_path).collect();
    eyrie_host::gather(env!("CARGO_PKG_VERSION"), Some(&start), &loaded)
}

/// Where a file is on this host.
fn at_host(name: &str, at: &OsStr, sent: Option<&Path>) -> PathBuf {
    sent.map_or(at.into(), |dir| dir.join(name))
}

/// Copies a file under another name and renames it, so that no process ever sees half of it.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let partial = to.with_extension(format!("partial-{}", std::process::id()));
    std::fs::copy(from, &partial)?;
    std::fs::rename(&partial, to)
}

/// Makes the directory, or uses that of this run.
fn open(path: PathBuf, job: &JobOnHost, run: &str) -> Result<HostDir, String> {
    let until = Instant::now() + PATIENCE;
    loop {
        let failed = |e| format!("cannot make the directory {}: {e}; see --dir", path.display());
        let made = make(&path, job, run).map_err(failed)?;
        match join(&path, job, run).map_err(failed)? {
            Some(used) => return Ok(HostDir { path, made, used }),
            // It belongs to a job that is starting, or is being removed.
            None if Instant::now() < until => std::thread::sleep(PAUSE),
            None => return Err(failed(io::Error::from(ErrorKind::ResourceBusy))),
        }
    }
}

/// Makes the directory and locks it; `None` when it exists.
fn make(path: &Path, job: &JobOnHost, run: &str) -> io::Result<Option<File>> {
    match path.parent() {
        Some(home) if home != Path::new(place::HOME) => {
            DirBuilder::new().recursive(true).mode(0o700).create(home)?;
            check_ours(home)?;
        }
        _ => {}
    }
    // Left by a dead run on this host.
    if let Some(left) = leftovers::find(path) {
        left.remove()?;
    }
    match DirBuilder::new().mode(0o700).create(path) {
        Err(e) if e.kind() == ErrorKind::AlreadyExists => return Ok(None),
        made => made?,
    }
    let mark = Mark {
        name: job.name.clone(),
        run: run.into(),
        kvsname: job.kvsname.clone(),
        ranks: job.ranks,
        launched: false,
    };
    // Without its mark it would not be recognised as a job's.
    place::mark(path, &mark).map(Some).inspect_err(|_| drop(leftovers::remove_job_dir(path)))
}

/// Begins to use the directory, which exists; `None` when it is not marked yet, or is being
/// removed.
fn join(path: &Path, job: &JobOnHost, run: &str) -> io::Result<Option<Use>> {
    match path.symlink_metadata() {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        _ => check_ours(path)?,
    }
    match place::look(path.into()) {
        None => Ok(None),
        Some(there) if there.mark.run == run => Use::begin(path),
        Some(_) => Err(io::Error::other(format!(
            "an earlier run of job {} uses it, whose agents end after its --orphan-timeout",
            job.name
        ))),
    }
}

/// Checks that other users cannot put anything into the directory.
fn check_ours(path: &Path) -> io::Result<()> {
    if !place::is_private(&path.symlink_metadata()?) {
        let text = format!("{} is not a directory of yours with mode 0700", path.display());
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
            name: "melt".into(),
            dir: dir.into(),
            provided: vec![("libeyrie-fi.so".into(), target.into())],
            copied: false,
            kvsname: "k".into(),
            ranks: 2,
            program: Default::default(),
            self_contained: false,
            compared: false,
            orphans: None,
            notices: Notices::default(),
            monitoring: None,
        }
    }

    #[test]
    fn a_host_without_the_program_takes_part_where_images_have_it() {
        let dir = tempfile::tempdir().unwrap();
        let mut job = job(dir.path(), "/bin/sh");
        job.program.cwd = dir.path().into();
        job.program.exe = dir.path().join("program").into();
        let why = check(&job).unwrap_err();
        assert!(why.contains("no program") && why.ends_with("or use --self-contained"), "{why}");
        job.self_contained = true;
        assert_eq!(check(&job), Ok(()));
        job.program.cwd = dir.path().join("nowhere").into();
        assert!(check(&job).unwrap_err().contains("no working directory"));
    }

    fn enter(dir: &Path) -> HostDir {
        HostDir::enter(&job(dir, "/bin/sh"), "r", None).unwrap()
    }

    fn refused(dir: &Path, run: &str) -> String {
        HostDir::enter(&job(dir, "/bin/sh"), run, None).err().unwrap()
    }

    #[test]
    fn the_first_agent_makes_it_with_its_links_and_the_last_one_removes_it() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("eyrie/eyrie_1");
        let first = enter(&path);
        assert_eq!(std::fs::read_link(path.join("libeyrie-fi.so")).unwrap(), Path::new("/bin/sh"));
        assert!(leftovers::find(&path).is_none(), "it lives");
        // Agents of hosts that share the directory.
        let second = enter(&path);
        let third = enter(&path);
        second.leave(false);
        assert!(path.exists());
        first.leave(false);
        assert!(path.exists(), "it is used still");
        third.leave(false);
        assert!(!path.exists());
    }

    #[test]
    fn that_of_a_dead_job_is_replaced_and_one_that_others_may_enter_is_refused() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("eyrie/eyrie_1");
        drop(enter(&path));
        std::fs::write(path.join("old"), b"").unwrap();
        let dir = enter(&path);
        assert!(!path.join("old").exists());
        dir.leave(false);
        let error = HostDir::enter(&job(&path, "/no/such/file"), "r", None).err().unwrap();
        assert!(error.contains("libeyrie-fi.so cannot be reached at /no/such/file"), "{error}");
        let open = base.path().join("open");
        std::fs::create_dir(&open).unwrap();
        std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o755)).unwrap();
        let error = refused(&open.join("job"), "r");
        assert!(error.contains("mode 0700"), "{error}");
    }

    #[test]
    fn another_run_and_another_job_of_the_name_are_refused_unless_their_agents_are_cut_off() {
        let base = tempfile::tempdir().unwrap();
        let home = base.path().join("eyrie");
        let path = home.join("eyrie_1");
        let other = home.join("eyrie_2");
        let mut dir = enter(&path);
        let error = refused(&path, "another");
        assert!(error.contains("an earlier run of job melt uses it"), "{error}");
        let error = refused(&other, "another");
        assert!(error.contains("another job named melt that was launched on another"), "{error}");
        assert!(!other.exists());
        dir.set_attached(false);
        enter(&other).leave(false);
        assert!(path.exists() && !other.exists());
        dir.leave(false);
    }
}
