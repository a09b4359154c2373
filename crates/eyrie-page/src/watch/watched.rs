//! A job that is watched: its picture and its events for those who look at them. One who looks
//! slowly, or not at all, holds nothing up: nothing is kept for each.

use super::viewers::Viewers;
use crate::history::{Entry, Heard, History, Wanted};
use crate::output::{Output, OutputLine};
use crate::picture::{Changes, News, NodePairs, Picture, Row, Version};
use eyrie_interface::health::Health;
use eyrie_interface::network::Network;
use eyrie_interface::output::Printed;
use eyrie_interface::traffic::Traffic;
use eyrie_interface::Status;
use serde::Serialize;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tokio::sync::watch::{Receiver, Sender};

/// Most events that one piece of news has. Of more the newest are in it.
const EVENTS: usize = 500;

/// A job that is watched.
#[derive(Debug)]
pub struct Watch {
    known: Mutex<Known>,
    /// The version of the picture.
    version: Sender<Version>,
    viewers: Viewers,
}

/// What is known of it.
#[derive(Debug)]
struct Known {
    picture: Picture,
    history: History,
    output: Output,
    /// Since when no news follow.
    over: Option<Instant>,
}

/// News of a job for one who looks.
#[derive(Serialize)]
struct Piece<'a> {
    #[serde(flatten)]
    changes: Changes<'a>,
    /// The newest events.
    events: Vec<&'a Entry>,
    /// The number of the next event: others that are not here can be asked for.
    next: u64,
    /// Lines that ranks have printed, new ones and those that have become longer.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    output: Vec<&'a OutputLine>,
}

/// What one who looks has seen.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    version: Version,
    next: u64,
    printed: u64,
}

impl Watch {
    pub fn new(name: &str, viewers: Viewers) -> Watch {
        let known = Mutex::new(Known::new(Picture::new(name)));
        Watch { known, version: Sender::new(0), viewers }
    }

    /// Tells when there are news.
    pub fn news(&self) -> Receiver<Version> {
        self.version.subscribe()
    }

    /// The news for one who has seen that much, as JSON, and what it has seen then.
    pub fn piece(&self, seen: Seen) -> (String, Seen) {
        let known = self.lock();
        let changes = known.picture.since(seen.version);
        let version = changes.version;
        let next = known.history.next();
        // It has begun anew.
        let from = if next < seen.next { 0 } else { seen.next };
        let events = known.history.since(from, EVENTS);
        let printed = if changes.whole { 0 } else { seen.printed };
        let output = known.output.since(printed);
        let piece = Piece { changes, events, next, output };
        let text = serde_json::to_string(&piece).unwrap_or_default();
        (text, Seen { version, next, printed: known.output.changes() })
    }

    /// Wanted events before this one, newest first, as JSON.
    pub fn find(&self, wanted: &Wanted, before: u64, most: usize) -> String {
        let known = self.lock();
        serde_json::to_string(&known.history.find(wanted, before, most)).unwrap_or_default()
    }

    pub fn row(&self) -> Row {
        self.lock().picture.row()
    }

    /// Whether no news follow.
    pub fn is_over(&self) -> bool {
        self.over_since().is_some()
    }

    /// Since when no news follow.
    pub fn over_since(&self) -> Option<Instant> {
        self.lock().over
    }

    /// Whether the job has said that it ended.
    pub fn has_ended(&self) -> bool {
        self.lock().picture.has_ended()
    }

    /// Those who look.
    pub fn viewers(&self) -> &Viewers {
        &self.viewers
    }

    /// Takes lines of the event stream. Those that were heard before are passed over.
    pub fn hear(&self, lines: &[&str]) {
        let heard = lines.iter().filter_map(|line| Heard::read(line));
        self.change(|known| heard.for_each(|heard| known.hear(&heard)));
    }

    /// Takes lines of a file of events. Another job may write into it, which begins with its first
    /// event.
    pub fn hear_from_file(&self, lines: &[String]) {
        let heard = lines.iter().filter_map(|line| Heard::read(line));
        self.change(|known| {
            for heard in heard {
                if heard.seq() == 0 && known.history.next() > 0 {
                    *known = Known::new(known.picture.begin_anew());
                }
                known.hear(&heard);
            }
        });
    }

    /// Takes what the job says of itself.
    pub fn set_status(&self, status: &Status) {
        self.change(|known| known.picture.status(status));
    }

    /// Takes what the job says of the health of its nodes, at this time of the job in seconds.
    pub fn set_health(&self, health: &Health, at: f64) {
        self.change(|known| known.picture.health(health, at));
    }

    /// Takes the network of the job.
    pub fn set_network(&self, network: &Network) {
        self.change(|known| known.picture.network(network));
    }

    /// How many nodes are known.
    pub fn count_nodes(&self) -> usize {
        self.lock().picture.count_nodes()
    }

    /// What nodes have sent each other, by where their ranks are now.
    pub fn node_pairs(&self, traffic: &Traffic) -> NodePairs {
        self.lock().picture.node_pairs(traffic)
    }

    /// Takes what ranks have sent each other since the job began, and in the last window, and what
    /// links of the network carry.
    pub fn set_traffic(&self, total: &Traffic, window: &Traffic, links: Vec<(u32, u64)>) {
        self.change(|known| known.picture.traffic(total, window, links));
    }

    /// Takes what ranks have printed.
    pub fn add_output(&self, printed: &Printed) {
        self.change(|known| {
            known.output.add(printed);
            known.picture.touch();
        });
    }

    /// Says whether news come.
    pub fn set_news(&self, news: News) {
        self.change(|known| {
            if known.picture.head().news != news {
                known.picture.set_news(news);
            }
        });
    }

    /// Nothing more comes: the job has ended, or the reason why nothing is known of that.
    pub fn end(&self, why: &str) {
        self.change(|known| {
            let why = (!known.picture.has_ended()).then(|| why.to_string());
            known.picture.set_news(News::Over { why });
            known.over = Some(Instant::now());
        });
    }

    fn change(&self, change: impl FnOnce(&mut Known)) {
        let mut known = self.lock();
        change(&mut known);
        let version = known.picture.version();
        drop(known);
        self.version.send_if_modified(|sent| {
            let is_new = *sent != version;
            *sent = version;
            is_new
        });
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    fn new(picture: Picture) -> Known {
        Known { picture, history: History::default(), output: Output::default(), over: None }
    }

    fn hear(&mut self, heard: &Heard) {
        if heard.seq() < self.history.next() {
            return;
        }
        match heard {
            Heard::Known(line, _) => self.picture.event(line.time, &line.record),
            Heard::Unknown { time, .. } => self.picture.unknown_event(*time),
        }
        self.history.add(heard.entry(self.picture.hosts()));
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use eyrie_wire::control::StandardStream::Stdout;

    /// The event that a job has ended, as a line.
    pub const ENDED: &str = concat!(
        r#"{"seq":1,"time":1.0,"event":"job_ended","code":3,"cause":"why","summary":{"#,
        r#""elapsed":1.0,"ranks":2,"checkpoints":0,"checkpoints_failed":0,"checkpoint_bytes":0,"#,
        r#""rank_failures":0,"nodes_lost":0,"roles_lost":0,"resumes":0,"spares_used":0,"#,
        r#""recoveries":0,"longest_recovery":0.0}}"#,
        "\n"
    );

    #[test]
    fn events_that_come_again_change_nothing() {
        let watch = Watch::new("melt", Viewers::default());
        let lines: Vec<String> = (0..3)
            .map(|seq| format!(r#"{{"seq":{seq},"time":{seq}.0,"event":"note","text":"n"}}"#))
            .collect();
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        watch.hear(&lines);
        let printed = Printed { gap: false, pieces: vec![(Stdout, "kept\n".into())] };
        watch.add_output(&printed);
        let (_, seen) = watch.piece(Seen::default());
        // As those of a job that goes on with another controller do.
        watch.hear(&lines);
        let (piece, _) = watch.piece(seen);
        assert!(piece.contains(r#""whole":false"#) && piece.contains(r#""events":[]"#), "{piece}");
        let (all, _) = watch.piece(Seen::default());
        assert!(all.contains("kept") && all.contains(r#""next":3"#), "{all}");
    }
}
