//! The events of the job, one after the other, as long as it has some.

use crate::named::Say;
use eyrie_controller::runtime::users::Subscription;
use eyrie_interface::record::Line;
use eyrie_interface::{FirstEvent, Record};
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long after events have broken off they are asked for again.
const PAUSE: Duration = Duration::from_secs(1);

/// An event.
#[derive(Debug)]
pub struct Event {
    /// Its name (docs/events.md).
    pub name: String,
    /// Seconds since the job began.
    pub time: f64,
    pub record: Record,
    /// This controller was there.
    pub is_new: bool,
}

/// What every line has.
#[derive(Deserialize)]
struct Common {
    seq: u64,
    event: String,
}

/// Follows the events of a job.
pub struct Follower {
    dir: PathBuf,
    /// The number of the next event; 0: none has come.
    next: u64,
    /// The number of the first event that no earlier controller has told.
    first_new: u64,
}

impl Follower {
    /// Of the job that has this directory. `first_new`: the number of the first event that no
    /// earlier controller has told.
    pub fn new(dir: &Path, first_new: u64) -> Follower {
        Follower { dir: dir.into(), next: 0, first_new }
    }

    /// Hears all events until the job has ended. When they cannot be read that is said once.
    pub fn run(&mut self, say: &Say, hear: &mut dyn FnMut(&Event)) {
        let mut is_said = false;
        let mut from = FirstEvent::Oldest;
        while self.dir.exists() {
            let before = self.next;
            let Err(e) = self.listen(from, hear) else { return };
            if !is_said && self.dir.exists() {
                say(&format!("metrics and traces may lack what happens now: {e:#}"));
                is_said = true;
            }
            from = FirstEvent::At(self.next);
            if self.next == before {
                // Nothing came. The event that was asked for is not kept any more, perhaps.
                from = FirstEvent::Oldest;
                std::thread::sleep(PAUSE);
            }
        }
    }

    fn listen(&mut self, from: FirstEvent, hear: &mut dyn FnMut(&Event)) -> anyhow::Result<()> {
        let events = Subscription::begin(&self.dir, from)?;
        events.hear(&mut |line| {
            self.take(line, hear);
            Ok(true)
        })
    }

    fn take(&mut self, line: &str, hear: &mut dyn FnMut(&Event)) {
        // What cannot be read is no event of this version.
        let Ok(Common { seq, event: name }) = serde_json::from_str(line) else { return };
        if seq < self.next {
            return;
        }
        self.next = seq + 1;
        let Ok(Line { time, record, .. }) = serde_json::from_str(line) else { return };
        hear(&Event { name, time, record, is_new: seq >= self.first_new });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_event_is_heard_once_and_one_is_new_that_no_controller_has_told() {
        let mut follower = Follower::new(Path::new("/"), 2);
        let mut heard = Vec::new();
        let line = |seq: u64| format!("{{\"seq\":{seq},\"time\":1.5,\"event\":\"saving\"}}");
        let mut take = |line: &str| {
            follower.take(line, &mut |event| heard.push((event.name.clone(), event.is_new)));
        };
        (0..2).for_each(|seq| take(&line(seq)));
        take("{\"seq\":2,\"time\":1.5,\"event\":\"of another version\"}");
        take("no event");
        (1..4).for_each(|seq| take(&line(seq)));
        let saving = |is_new| ("saving".to_string(), is_new);
        assert_eq!(heard, [saving(false), saving(false), saving(true)]);
    }
}
