//! Which jobs there are to look at: those that run on this host, or those of files of events. What
//! is looked at is watched from then on. A job that has ended stays to be looked at as long as this
//! process runs.

use crate::picture::Row;
use crate::watch::{follow_file, follow_job, Unreadable, Viewers, Viewing, Watch};
use eyrie_controller::runtime::jobdir;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

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
    watched: Mutex<Watched>,
    viewers: Viewers,
}

/// The jobs that are watched, by name.
type Watched = BTreeMap<String, Job>;

/// A job that is watched.
#[derive(Debug)]
struct Job {
    watch: Arc<Watch>,
    /// The directory of a living one: another job of the same name has another one. `None`: it is
    /// in a file of events.
    dir: Option<PathBuf>,
}

impl Job {
    /// Whether the living job with this directory is watched by this. It may be there for a while
    /// after its end was seen, or go on by `eyrie resume` after none was.
    fn is(&self, dir: &Path) -> bool {
        !self.watch.is_over() || (self.dir.as_deref() == Some(dir) && self.watch.has_ended())
    }

    /// Since when it is over; `None`: it is not, or it is in a file, which can be looked at again.
    fn dropped_by(&self) -> Option<Instant> {
        self.dir.as_ref().and_then(|_| self.watch.over_since())
    }
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
                    watched.insert(unused(&watched, name), Job { watch, dir: None });
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
        for (name, dir) in living {
            self.watch(&mut watched, &name, dir);
        }
        drop_oldest(&mut watched);
        watched.iter().map(|(name, job)| (name.clone(), job.watch.row())).collect()
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
            Ok(dir) => Ok(self.watch(&mut watched, name, dir)),
            Err(e) => watched.get(name).map(|job| job.watch.clone()).ok_or(e),
        }
    }

    /// Watches a living job by its directory, unless it is watched.
    fn watch(&self, watched: &mut Watched, name: &str, dir: PathBuf) -> Arc<Watch> {
        if let Some(known) = watched.get(name).filter(|job| job.is(&dir)) {
            return known.watch.clone();
        }
        let base = self.base.clone().unwrap_or_default();
        let watch = follow_job(base, name, dir.clone(), self.viewers.clone());
        watched.insert(name.into(), Job { watch: watch.clone(), dir: Some(dir) });
        watch
    }

    fn lock(&self) -> MutexGuard<'_, Watched> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A name that none of these has: two files may be of one job.
fn unused(watched: &Watched, name: String) -> String {
    let numbered = (2..).map(|number| format!("{name}.{number}"));
    let mut names = std::iter::once(name.clone()).chain(numbered);
    names.find(|name| !watched.contains_key(name)).unwrap_or(name)
}

/// Of the living jobs that have ended only so many stay, those that did so last.
fn drop_oldest(watched: &mut Watched) {
    let over = watched.iter().filter_map(|(name, job)| Some((job.dropped_by()?, name.clone())));
    let mut over: Vec<_> = over.collect();
    over.sort();
    let too_many = over.len().saturating_sub(ENDED);
    for (_, name) in over.into_iter().take(too_many) {
        watched.remove(&name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A watch that has seen the end of its job.
    fn ended() -> Arc<Watch> {
        let watch = Arc::new(Watch::new("j", Viewers::default()));
        watch.hear(&[crate::watch::ENDED]);
        watch.end("");
        watch
    }

    fn names(watched: &Watched) -> Vec<&str> {
        watched.keys().map(String::as_str).collect()
    }

    #[test]
    fn of_the_jobs_that_have_ended_those_stay_that_did_so_last() {
        let mut watched = Watched::new();
        let long = Arc::new(Watch::new("long", Viewers::default()));
        for number in 0..ENDED {
            let dir = Some(PathBuf::from(format!("/{number}")));
            watched.insert(format!("{number:02}"), Job { watch: ended(), dir });
        }
        // It began first.
        watched.insert("long".into(), Job { watch: long.clone(), dir: Some("/long".into()) });
        drop_oldest(&mut watched);
        assert_eq!(watched.len(), ENDED + 1, "one runs");
        long.end("it is gone");
        drop_oldest(&mut watched);
        assert_eq!(watched.len(), ENDED);
        assert!(names(&watched).contains(&"long") && !names(&watched).contains(&"00"));
    }

    #[test]
    fn the_jobs_of_files_all_stay() {
        let dir = tempfile::tempdir().unwrap();
        let number = ENDED + 3;
        let path = |n| dir.path().join(format!("{n}.events"));
        (0..number).for_each(|n| std::fs::write(path(n), crate::watch::ENDED).unwrap());
        let jobs = Jobs::open(Source::Files((0..number).map(path).collect())).unwrap();
        // A file that cannot be read any more is over, too.
        jobs.lock().values().for_each(|job| job.watch.end("it cannot be read"));
        assert_eq!(jobs.rows().len(), number);
    }

    #[test]
    fn a_job_is_watched_anew_only_when_it_is_another_one_or_goes_on() {
        let job = |watch| Job { watch, dir: Some("/a".into()) };
        let [same, other] = ["/a", "/b"].map(Path::new);
        // Its directory is there for a while after its end.
        assert!(job(ended()).is(same));
        assert!(!job(ended()).is(other));
        let watch = Arc::new(Watch::new("j", Viewers::default()));
        assert!(job(watch.clone()).is(same));
        // `eyrie resume` goes on in the same directory.
        watch.end("its controller was killed");
        assert!(!job(watch).is(same));
    }
}
