//! Which jobs there are to look at: those that run on this host, or those of files of events. What
//! is looked at is watched from then on. A job that has ended stays to be looked at as long as this
//! process runs.

use crate::picture::Row;
use crate::watch::{follow_file, follow_job, Unreadable, Viewers, Viewing, Watch};
use eyrie_controller::runtime::jobdir;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Ended jobs that stay to be looked at.
const ENDED: usize = 16;

/// Where jobs are looked for.
#[derive(Debug)]
pub enum Source {
    /// Those that run, in the directory where jobs have theirs.
    Living(PathBuf),
    /// Files of events.
    Files(Vec<PathBuf>),
}

/// The jobs that there are to look at.
#[derive(Debug)]
pub struct Jobs {
    /// Where jobs run; `None`: they have ended, and cannot be asked for anything.
    base: Option<PathBuf>,
    watched: Mutex<BTreeMap<String, Arc<Watch>>>,
    viewers: Viewers,
}

impl Jobs {
    /// # Errors
    /// When a file cannot be read, or has something else.
    pub fn open(source: Source) -> Result<Jobs, Unreadable> {
        let viewers = Viewers::default();
        let mut watched = BTreeMap::new();
        let base = match source {
            Source::Living(base) => Some(base),
            Source::Files(paths) => {
                for path in paths {
                    let (name, watch) = follow_file(path, viewers.clone())?;
                    watched.insert(unused(&watched, name), watch);
                }
                None
            }
        };
        Ok(Jobs { base, watched: Mutex::new(watched), viewers })
    }

    /// Where jobs run that can be asked for something.
    pub fn base(&self) -> Option<&Path> {
        self.base.as_deref()
    }

    /// Someone looks.
    pub fn enter(&self) -> Viewing {
        self.viewers.enter()
    }

    /// Whether someone looks.
    pub fn has_viewers(&self) -> bool {
        self.viewers.wait(Duration::ZERO)
    }

    /// All jobs, by name. New ones are watched from now on.
    pub fn rows(&self) -> Vec<(String, Row)> {
        let living = self.base.as_deref().map(jobdir::living_jobs).unwrap_or_default();
        let mut watched = self.lock();
        for (name, _) in living {
            self.watch(&mut watched, &name);
        }
        drop_oldest(&mut watched);
        watched.iter().map(|(name, watch)| (name.clone(), watch.row())).collect()
    }

    /// The job of this name, which is watched from now on.
    ///
    /// # Errors
    /// When there is none, and has been none.
    pub fn find(&self, name: &str) -> anyhow::Result<Arc<Watch>> {
        let mut watched = self.lock();
        let lives = match &self.base {
            Some(base) => jobdir::find(base, name),
            None => Err(anyhow::anyhow!("no file has events of a job named {name}")),
        };
        match lives {
            Ok(_) => Ok(self.watch(&mut watched, name)),
            Err(e) => watched.get(name).cloned().ok_or(e),
        }
    }

    /// Watches a living job, unless it is watched.
    fn watch(&self, watched: &mut BTreeMap<String, Arc<Watch>>, name: &str) -> Arc<Watch> {
        if let Some(known) = watched.get(name).filter(|watch| !watch.is_over()) {
            return known.clone();
        }
        let base = self.base.clone().unwrap_or_default();
        let watch = follow_job(base, name, self.viewers.clone());
        watched.insert(name.into(), watch.clone());
        watch
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Watch>>> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A name that none of these has: two files may be of one job.
fn unused(watched: &BTreeMap<String, Arc<Watch>>, name: String) -> String {
    let numbered = (2..).map(|number| format!("{name}.{number}"));
    let mut names = std::iter::once(name.clone()).chain(numbered);
    names.find(|name| !watched.contains_key(name)).unwrap_or(name)
}

/// Of the jobs that have ended only so many stay, the newest.
fn drop_oldest(watched: &mut BTreeMap<String, Arc<Watch>>) {
    let over = watched.iter().filter(|(_, watch)| watch.is_over());
    let mut over: Vec<_> = over.map(|(name, watch)| (watch.begun(), name.clone())).collect();
    over.sort();
    let too_many = over.len().saturating_sub(ENDED);
    for (_, name) in over.into_iter().take(too_many) {
        watched.remove(&name);
    }
}
