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
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError, Sender};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long after an attempt a job is asked again.
const PAUSE: Duration = Duration::from_secs(1);
/// The longest pause until it is asked again, however long its answer took.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// How often it is looked meanwhile whether it is gone.
const GLANCE: Duration = Duration::from_millis(50);
/// How often in a row a job must not be found before it counts as gone.
const MISSED: u32 = 3;
/// How long after its last event what a job printed last may take to come.
const LAST_OUTPUT: Duration = Duration::from_secs(2);
const GONE: &str = "it is gone and has not said how it ended: its controller was killed";

/// A job by its name and its directory: another job of the same name has another one.
struct Followed {
    watch: Arc<Watch>,
    base: PathBuf,
    name: String,
    dir: PathBuf,
}

impl Followed {
    /// # Errors
    /// When the job is not there, at present or any more.
    fn dir(&self) -> anyhow::Result<&Path> {
        let found = jobdir::find(&self.base, &self.name)?;
        anyhow::ensure!(self.dir == found, "another job has its name");
        Ok(&self.dir)
    }

    /// A job's directory goes with the job.
    fn is_gone(&self) -> bool {
        !self.dir.exists()
    }

    /// Waits until the job can be asked again, or is gone.
    fn rest(&self) {
        let until = Instant::now() + PAUSE;
        while !self.is_gone() && Instant::now() < until {
            std::thread::sleep(GLANCE);
        }
    }

    /// Takes events until the job has ended. `ended` is dropped then; the other end of `printed`
    /// when nothing more comes of what ranks print.
    fn follow_events(&self, ended: Sender<()>, printed: &Receiver<()>) {
        let mut from = FirstEvent::Oldest;
        let mut missed = 0;
        while missed < MISSED {
            let before = from;
            let dir = self.dir();
            missed = match &dir {
                Ok(_) => 0,
                Err(_) if self.is_gone() => MISSED,
                Err(_) => missed + 1,
            };
            match dir.and_then(|dir| self.listen(dir, &mut from)) {
                Ok(()) => break,
                Err(e) => self.watch.set_news(News::Missing { why: format!("{e:#}") }),
            }
            if from == before {
                // Nothing came. The event that was asked for is not kept any more, perhaps.
                from = FirstEvent::Oldest;
                self.rest();
            }
        }
        drop(ended);
        end_with_output(&self.watch, printed);
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

    /// Takes what ranks print until the job has ended: the other end of `ended` is dropped then.
    fn follow_output(&self, ended: &Receiver<()>) {
        loop {
            let hear = &mut |printed: Printed| self.watch.add_output(&printed);
            // What is wrong is said by the one that follows the events. It also knows whether the
            // job has ended, or only its controller.
            let _ = self.dir().and_then(|dir| hear_output(dir, hear));
            if ended.recv_timeout(PAUSE) == Err(RecvTimeoutError::Disconnected) {
                return;
            }
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

/// Nothing more comes of a job, as soon as what it printed last has come: events and output come by
/// two connections.
fn end_with_output(watch: &Watch, printed: &Receiver<()>) {
    // It fails either way: nothing is sent.
    let _ = printed.recv_timeout(LAST_OUTPUT);
    watch.end(GONE);
}

/// Watches the living job with this directory until it has ended.
pub fn follow(base: PathBuf, name: &str, dir: PathBuf, viewers: Viewers) -> Arc<Watch> {
    let watch = Arc::new(Watch::new(name, viewers));
    let followed = Arc::new(Followed { watch: watch.clone(), base, name: name.into(), dir });
    let asked = followed.clone();
    let heard = followed.clone();
    let (ended, has_ended) = channel();
    let (printing, printed) = channel();
    std::thread::spawn(move || followed.follow_events(ended, &printed));
    std::thread::spawn(move || {
        heard.follow_output(&has_ended);
        drop(printing);
    });
    std::thread::spawn(move || asked.follow_status());
    watch
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::watched::tests::ENDED;
    use crate::watch::watched::Seen;
    use eyrie_wire::control::StandardStream::Stdout;

    #[test]
    fn a_job_is_over_only_when_its_last_output_has_come() {
        let watch = Arc::new(Watch::new("melt", Viewers::default()));
        watch.hear(&[ENDED]);
        let (printing, printed) = channel();
        let ending = watch.clone();
        let ends = std::thread::spawn(move || end_with_output(&ending, &printed));
        assert!(watch.has_ended() && !watch.is_over());
        let last = Printed { gap: false, pieces: vec![(Stdout, "the result\n".into())] };
        watch.add_output(&last);
        assert!(!watch.is_over());
        drop(printing);
        ends.join().unwrap();
        assert!(watch.is_over());
        let (all, _) = watch.piece(Seen::default());
        assert!(all.contains("the result"), "{all}");
    }

    #[test]
    fn a_job_whose_directory_is_gone_is_over_at_once() {
        let base = tempfile::tempdir().unwrap();
        let dir = base.path().join("dir");
        std::fs::create_dir(&dir).unwrap();
        let began = Instant::now();
        let watch = follow(base.path().into(), "melt", dir.clone(), Viewers::default());
        std::fs::remove_dir(dir).unwrap();
        while !watch.is_over() {
            std::thread::yield_now();
        }
        assert!(began.elapsed() < MISSED * PAUSE, "{:?}", began.elapsed());
    }

    #[test]
    fn output_that_does_not_end_is_not_waited_for_for_ever() {
        let watch = Watch::new("melt", Viewers::default());
        let (_printing, printed) = channel();
        end_with_output(&watch, &printed);
        assert!(watch.is_over());
    }
}
