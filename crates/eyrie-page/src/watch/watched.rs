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
    begun: Instant,
}

/// What is known of it.
#[derive(Debug)]
struct Known {
    picture: Picture,
    history: History,
    output: Output,
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
        let picture = Picture::new(name);
        let known =
            Mutex::new(Known { picture, history: History::default(), output: Output::default() });
        Watch { known, version: Sender::new(0), viewers, begun: Instant::now() }
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

    /// Since when it is watched.
    pub fn begun(&self) -> Instant {
        self.begun
    }

    pub fn row(&self) -> Row {
        self.lock().picture.row()
    }

    /// Whether no news follow.
    pub fn is_over(&self) -> bool {
        self.lock().picture.is_over()
    }

    /// Whether the job has said that it ended.
    pub fn has_ended(&self) -> bool {
        self.lock().picture.has_ended()
    }

    /// Those who look.
    pub fn viewers(&self) -> &Viewers {
        &self.viewers
    }

    /// Takes lines of the event stream.
    pub fn hear(&self, lines: &[&str]) {
        self.change(|known| lines.iter().for_each(|line| known.hear(line)));
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
        let why = (!self.has_ended()).then(|| why.to_string());
        self.set_news(News::Over { why });
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
    fn hear(&mut self, line: &str) {
        let Some(heard) = Heard::read(line) else { return };
        let seq = heard.seq();
        if seq == 0 && self.history.next() > 0 {
            // Another job writes into this file.
            self.picture = self.picture.begin_anew();
            self.history = History::default();
            self.output = Output::default();
        } else if seq < self.history.next() {
            return;
        }
        match &heard {
            Heard::Known(line, _) => self.picture.event(line.time, &line.record),
            Heard::Unknown { time, .. } => self.picture.unknown_event(*time),
        }
        self.history.add(heard.entry(self.picture.hosts()));
    }
}
