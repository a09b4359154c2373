//! How a living job is followed: its events and what it prints, and while someone looks what it
//! says of itself. The job is asked seldom enough that this takes it a fiftieth of its time as a
//! rule.

use super::sending::{Sending, REST};
use super::viewers::Viewers;
use super::watched::Watch;
use crate::picture::News;
use eyrie_controller::runtime::jobdir;
use eyrie_controller::runtime::users::{ask, hear_output, Subscription};
use eyrie_interface::health::Health;
use eyrie_interface::output::Printed;
use eyrie_interface::record::Line;
use eyrie_interface::{FirstEvent, Request, Status};
use serde::de::IgnoredAny;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// How long after an attempt a job is asked again.
const PAUSE: Duration = Duration::from_secs(1);
/// The longest pause until it is asked again, however long its answer took.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// How often in a row a job must not be found before it counts as gone.
const MISSED: u32 = 3;
const GONE: &str = "it is gone and has not said how it ended: its controller was killed";

/// A job by its name, and by its directory as soon as that was found: another job of the same name
/// has another one.
struct Followed {
    watch: Arc<Watch>,
    base: PathBuf,
    name: String,
    dir: OnceLock<PathBuf>,
}

impl Followed {
    /// # Errors
    /// When the job is not there, at present or any more.
    fn dir(&self) -> anyhow::Result<&Path> {
        let found = jobdir::find(&self.base, &self.name)?;
        let dir = self.dir.get_or_init(|| found.clone());
        anyhow::ensure!(*dir == found, "another job has its name");
        Ok(dir)
    }

    fn follow_events(&self) {
        let mut from = FirstEvent::Oldest;
        let mut missed = 0;
        while missed < MISSED {
            let before = from;
            let dir = self.dir();
            missed = if dir.is_ok() { 0 } else { missed + 1 };
            match dir.and_then(|dir| self.listen(dir, &mut from)) {
                Ok(()) => break,
                Err(e) => self.watch.set_news(News::Missing { why: format!("{e:#}") }),
            }
            if from == before {
                // Nothing came. The event that was asked for is not kept any more, perhaps.
                from = FirstEvent::Oldest;
                std::thread::sleep(PAUSE);
            }
        }
        self.watch.end(GONE);
    }

    /// Takes events until the job has ended. `from`: the one to go on with.
    fn listen(&self, dir: &Path, from: &mut FirstEvent) -> anyhow::Result<()> {
        let events = Subscription::begin(dir, *from)?;
        self.watch.set_news(News::Come);
        events.hear(&mut |line| {
            self.watch.hear(&[line]);
            if let Ok(Line { seq, .. }) = serde_json::from_str::<Line<IgnoredAny>>(line) {
                *from = FirstEvent::At(seq + 1);
            }
            Ok(true)
        })
    }

    /// Takes what ranks print until the job has ended.
    fn follow_output(&self) {
        while !self.watch.is_over() {
            let hear = &mut |printed: Printed| self.watch.add_output(&printed);
            // What is wrong is said by the one that follows the events. It also knows whether the
            // job has ended, or only its controller.
            let _ = self.dir().and_then(|dir| hear_output(dir, hear));
            std::thread::sleep(PAUSE);
        }
    }

    fn follow_status(&self) {
        let mut sending = Sending::default();
        while !self.watch.is_over() {
            if !self.watch.viewers().wait(PAUSE) {
                continue;
            }
            let began = Instant::now();
            // What is wrong is said by the one that follows the events.
            let _ = self.dir().and_then(|dir| self.look(dir));
            let took = began.elapsed();
            // It is asked for this less often.
            let _ = self.dir().and_then(|dir| sending.look_when_due(dir, &self.watch));
            std::thread::sleep((took * REST).clamp(PAUSE, LONGEST_PAUSE));
        }
    }

    fn look(&self, dir: &Path) -> anyhow::Result<()> {
        let status: Status = ask(dir, &Request::Status)?;
        self.watch.set_status(&status);
        let health: Health = ask(dir, &Request::Health)?;
        self.watch.set_health(&health, status.summary.elapsed.as_secs_f64());
        Ok(())
    }
}

/// Watches a living job until it has ended.
pub fn follow(base: PathBuf, name: &str, viewers: Viewers) -> Arc<Watch> {
    let watch = Arc::new(Watch::new(name, viewers));
    let dir = OnceLock::new();
    let followed = Arc::new(Followed { watch: watch.clone(), base, name: name.into(), dir });
    let asked = followed.clone();
    let heard = followed.clone();
    std::thread::spawn(move || followed.follow_events());
    std::thread::spawn(move || heard.follow_output());
    std::thread::spawn(move || asked.follow_status());
    watch
}
