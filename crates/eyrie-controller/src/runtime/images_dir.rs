//! The directory in which the images of a job outlive it (`--images`), and all else that is needed
//! to go on with it once it was saved. What is saved takes the place of what was saved before in
//! one step; until then the older one can be gone on with.

use super::backlog::SavedOutput;
use super::journal::{put, take, Beginning};
use super::stdin::SavedInput;
use super::written;
use crate::machine::Saved;
use anyhow::{bail, Context};
use eyrie_wire::facts::Facts;
use eyrie_wire::formats::SAVED_JOB;
use eyrie_wire::RouterId;
use rustix::fs::{flock, FlockOperation};
use serde::{Deserialize, Serialize};
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Held locked by the job that has its images there.
const LOCK: &str = "lock";
const STORE: &str = "store";
/// What was saved, and what is just being saved, with a number behind it.
const SAVED: &str = "saved-";
const SAVING: &str = "saving-";
const JOB: &str = "job";
/// How long a store may go on to write after the last rank has ended.
const STILL_WRITTEN: Duration = Duration::from_secs(3);

/// All that goes on with a job besides its images and what its routers held.
#[derive(Debug, Serialize, Deserialize)]
pub struct SavedJob {
    pub beginning: Beginning,
    pub machine: Saved,
    pub stdin: SavedInput,
    /// The first host, which all were compared with: its name, and what it said of itself.
    pub alike: Option<(String, Facts)>,
    /// Output of the ranks that who saved the job has not shown ([`ImagesDir::shown`]).
    pub unshown: Option<SavedOutput>,
}

/// The directory, as long as a job has its images there.
#[derive(Debug)]
pub struct ImagesDir {
    path: PathBuf,
    /// The number of what was saved last.
    saved: Option<u64>,
    _lock: File,
}

impl ImagesDir {
    /// Opens the directory, or makes it.
    ///
    /// # Errors
    /// When it cannot be written, holds something else, or a job runs that has its images there.
    pub fn open(path: &Path) -> anyhow::Result<ImagesDir> {
        let path = std::path::absolute(path)?;
        let shown = path.display();
        let failed = || format!("cannot keep images in {shown}");
        DirBuilder::new().recursive(true).mode(0o700).create(&path).with_context(failed)?;
        let known = |name: &str| {
            [LOCK, STORE].contains(&name) || name.starts_with(SAVED) || name.starts_with(SAVING)
        };
        for entry in std::fs::read_dir(&path).with_context(failed)? {
            let name = entry?.file_name();
            if !name.to_str().is_some_and(known) {
                bail!(
                    "{shown} holds {}: --images wants a directory of its own for each job",
                    name.to_string_lossy()
                );
            }
        }
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(0o600);
        let lock = options.open(path.join(LOCK)).with_context(failed)?;
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            bail!("a job runs that keeps its images in {shown}");
        }
        let saved = numbers(&path, SAVED).into_iter().max();
        Ok(ImagesDir { path, saved, _lock: lock })
    }

    /// Opens the directory for a job that has its images there already, from whatever host.
    ///
    /// # Errors
    /// When it is not there; as [`ImagesDir::open`].
    pub fn open_again(path: &Path) -> anyhow::Result<ImagesDir> {
        let shown = path.display();
        std::fs::metadata(path.join(LOCK))
            .with_context(|| format!("{shown} is not on this host"))?;
        ImagesDir::open(path)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where the store has its images.
    pub fn store(path: &Path) -> PathBuf {
        path.join(STORE)
    }

    /// What a router has saved, when something was saved.
    pub fn router(&self, id: RouterId) -> Option<PathBuf> {
        Some(self.path.join(format!("{SAVED}{}", self.saved?)).join(router_file(id)))
    }

    /// What was saved last, if something was.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn saved(&self) -> anyhow::Result<Option<SavedJob>> {
        let Some(number) = self.saved else { return Ok(None) };
        let file = self.path.join(format!("{SAVED}{number}")).join(JOB);
        let bytes =
            std::fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
        if let Some(what) = SAVED_JOB.mistaken(&bytes) {
            bail!("{} cannot be read: {what}", file.display());
        }
        match SAVED_JOB.strip(&bytes).map(take::<SavedJob>) {
            Some(Ok((saved, []))) => Ok(Some(saved)),
            _ => bail!("{} is damaged, or of another version of Eyrie", file.display()),
        }
    }

    /// Nothing was saved: what an earlier job has left goes.
    ///
    /// # Errors
    /// When it cannot be removed.
    pub fn begin_anew(&self) -> anyhow::Result<()> {
        let store = ImagesDir::store(&self.path);
        match std::fs::remove_dir_all(&store) {
            Err(e) if e.kind() != ErrorKind::NotFound => {
                Err(e).with_context(|| format!("cannot remove {}", store.display()))
            }
            _ => Ok(()),
        }
    }

    /// The file that says how much of the output was shown that came with what was saved last.
    pub fn shown(&self) -> Option<PathBuf> {
        Some(self.path.join(format!("{SAVED}{}", self.saved?)).join(written::FILE))
    }

    fn next(&self) -> u64 {
        self.saved.map_or(1, |last| last + 1)
    }

    /// Begins to save: where each router is to save what it holds.
    ///
    /// # Errors
    /// When the directory cannot be made.
    pub fn begin_to_save(&self, routers: u32) -> anyhow::Result<Vec<PathBuf>> {
        let dir = self.path.join(format!("{SAVING}{}", self.next()));
        let shown = dir.display();
        let made = || {
            if dir.exists() {
                std::fs::remove_dir_all(&dir)?;
            }
            DirBuilder::new().mode(0o700).create(&dir)
        };
        made().with_context(|| format!("cannot make {shown}"))?;
        Ok((0..routers).map(|id| dir.join(router_file(RouterId(id)))).collect())
    }

    /// Saves the rest: from now on this is what the job is gone on with. `written`: the file that
    /// says how much output was shown, if some was not.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn save(&mut self, job: &SavedJob, written: Option<&Path>) -> anyhow::Result<()> {
        let number = self.next();
        let dir = self.path.join(format!("{SAVING}{number}"));
        let file = dir.join(JOB);
        let mut bytes = SAVED_JOB.magic.to_vec();
        put(&mut bytes, job)?;
        let write = || {
            let mut options = OpenOptions::new();
            let mut out = options.write(true).create_new(true).mode(0o600).open(&file)?;
            out.write_all(&bytes)?;
            out.sync_all()?;
            if let Some(written) = written {
                std::fs::copy(written, dir.join(written::FILE))?;
            }
            File::open(&dir)?.sync_all()?;
            std::fs::rename(&dir, self.path.join(format!("{SAVED}{number}")))?;
            File::open(&self.path)?.sync_all()
        };
        write().with_context(|| format!("cannot write {}", file.display()))?;
        self.saved = Some(number);
        for older in numbers(&self.path, SAVED).into_iter().filter(|n| *n < number) {
            // It is of no use any more, and of no harm.
            let _ = std::fs::remove_dir_all(self.path.join(format!("{SAVED}{older}")));
        }
        Ok(())
    }

    /// The job has ended. `finished`: by itself; then nothing of it is needed any more. Else what
    /// was saved stays.
    pub fn end(self, finished: bool) {
        for number in numbers(&self.path, SAVING) {
            let _ = std::fs::remove_dir_all(self.path.join(format!("{SAVING}{number}")));
        }
        if finished || self.saved.is_none() {
            // What cannot be removed stays: the user may look there.
            let _ = remove_while_written(&self.path);
        }
    }
}

/// Removes a directory in which the store's threads may still write, or remove, a file: they had
/// begun when the ranks ended. Nothing comes into a directory that is gone.
fn remove_while_written(path: &Path) -> std::io::Result<()> {
    let until = Instant::now() + STILL_WRITTEN;
    loop {
        match std::fs::remove_dir_all(path) {
            Err(e) if e.kind() == ErrorKind::NotFound && !path.exists() => return Ok(()),
            Err(e)
                if [ErrorKind::DirectoryNotEmpty, ErrorKind::NotFound].contains(&e.kind())
                    && Instant::now() < until =>
            {
                std::thread::yield_now();
            }
            done => return done,
        }
    }
}

fn router_file(id: RouterId) -> String {
    format!("router-{id}")
}

/// The numbers of what is there under a name.
fn numbers(path: &Path, name: &str) -> Vec<u64> {
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter_map(|n| n.strip_prefix(name)?.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::{Config, Machine};
    use crate::runtime::journal::tests::beginning;
    use eyrie_wire::formats;

    fn job(name: &str) -> SavedJob {
        let machine = Machine::new(Config::of_one_rank()).saved();
        let beginning = Beginning { name: name.into(), ..beginning() };
        SavedJob { beginning, machine, stdin: SavedInput::default(), alike: None, unshown: None }
    }

    #[test]
    fn what_is_saved_takes_the_place_of_what_was_saved_before() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("images");
        let mut images = ImagesDir::open(&path).unwrap();
        assert!(images.saved().unwrap().is_none() && images.router(RouterId(0)).is_none());
        let busy = ImagesDir::open(&path).unwrap_err().to_string();
        assert!(busy.contains("a job runs"), "{busy}");
        for name in ["first", "second"] {
            let routers = images.begin_to_save(1).unwrap();
            std::fs::write(&routers[0], name).unwrap();
            images.save(&job(name), None).unwrap();
        }
        // The next one is torn.
        images.begin_to_save(1).unwrap();
        drop(images);
        let images = ImagesDir::open(&path).unwrap();
        assert_eq!(images.saved().unwrap().unwrap().beginning.name, "second");
        assert_eq!(std::fs::read(images.router(RouterId(0)).unwrap()).unwrap(), b"second");
        assert_eq!(numbers(&path, SAVED), [2]);
        images.end(false);
        assert_eq!((numbers(&path, SAVED), numbers(&path, SAVING)), (vec![2], vec![]));
        ImagesDir::open(&path).unwrap().end(true);
        assert!(!path.exists());
    }

    #[test]
    fn what_a_store_still_writes_at_the_end_does_not_keep_the_rest() {
        for _ in 0..20 {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("images");
            let images = ImagesDir::open(&path).unwrap();
            let packs = ImagesDir::store(&path).join("packs");
            std::fs::create_dir_all(&packs).unwrap();
            let (begun, begins) = std::sync::mpsc::channel();
            let writer = std::thread::spawn(move || {
                for n in 0..2000 {
                    if std::fs::write(packs.join(n.to_string()), "").is_err() {
                        break;
                    }
                    let _ = begun.send(());
                }
            });
            begins.recv().unwrap();
            images.end(true);
            assert!(!path.exists());
            writer.join().unwrap();
        }
    }

    #[test]
    fn damage_and_other_formats_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let mut images = ImagesDir::open(dir.path()).unwrap();
        images.begin_to_save(1).unwrap();
        images.save(&job("j"), None).unwrap();
        let file = dir.path().join("saved-1/job");
        let bytes = std::fs::read(&file).unwrap();
        for changed in [&bytes[..bytes.len() - 1], &[&bytes[..], b"x"].concat()] {
            std::fs::write(&file, changed).unwrap();
            let refused = images.saved().unwrap_err().to_string();
            assert!(refused.contains("damaged"), "{refused}");
        }
        for other in formats::ALL.into_iter().filter(|other| **other != SAVED_JOB) {
            std::fs::write(&file, [&other.magic[..], &bytes[other.magic.len()..]].concat())
                .unwrap();
            let refused = images.saved().unwrap_err().to_string();
            assert!(refused.contains(&format!("it is {}", other.name)), "{refused}");
        }
        drop(images);
        std::fs::write(dir.path().join("thesis.tex"), "x").unwrap();
        let refused = ImagesDir::open(dir.path()).unwrap_err().to_string();
        assert!(refused.contains("thesis.tex"), "{refused}");
    }
}
