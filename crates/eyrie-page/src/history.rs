//! The events of a job in words, as far as they are kept for the page, and what is found among
//! them. Pure.

use eyrie_interface::record::{Line, LogLevel};
use eyrie_interface::Record;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// How much is kept, in events and in bytes of their words.
const KEPT: usize = 200_000;
const KEPT_BYTES: usize = 64 << 20;
/// Longest text of an event in bytes.
const LONGEST: usize = 4096;

/// An event in words.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Entry {
    pub seq: u64,
    /// Seconds since the job's start.
    pub time: f64,
    /// Its name (docs/events.md).
    pub event: String,
    /// Whether it is shown without -v.
    pub important: bool,
    pub text: String,
}

/// What every event has, also one of a newer job.
#[derive(Deserialize)]
struct Common {
    seq: u64,
    time: f64,
    event: String,
}

/// A line of the event stream as it was understood.
pub enum Heard {
    Known(Line<Record>, String),
    /// An event that this version does not know.
    Unknown {
        seq: u64,
        time: f64,
        event: String,
        text: String,
    },
}

impl Heard {
    /// Reads a line; `None` when it is no event.
    pub fn read(line: &str) -> Option<Heard> {
        let Common { seq, time, event } = serde_json::from_str(line).ok()?;
        Some(match serde_json::from_str(line) {
            Ok(known) => Heard::Known(known, event),
            Err(_) => Heard::Unknown { seq, time, event, text: line.into() },
        })
    }

    pub fn seq(&self) -> u64 {
        match self {
            Heard::Known(Line { seq, .. }, _) | Heard::Unknown { seq, .. } => *seq,
        }
    }

    /// In words. `hosts`: the names of the nodes, where they have some.
    pub fn entry(&self, hosts: &[String]) -> Entry {
        let (seq, time, event, important, mut text) = match self {
            Heard::Known(Line { seq, time, record }, event) => {
                let (level, text) = in_words(record, hosts);
                (*seq, *time, event, level >= LogLevel::Normal, text)
            }
            Heard::Unknown { seq, time, event, text } => (*seq, *time, event, false, text.clone()),
        };
        if text.len() > LONGEST {
            let end = (0..=LONGEST).rev().find(|end| text.is_char_boundary(*end));
            text.truncate(end.unwrap_or(0));
            text.push_str(" ...");
        }
        Entry { seq, time, event: event.clone(), important, text }
    }
}

/// An event for people. Those that a terminal is not told of, too.
fn in_words(record: &Record, hosts: &[String]) -> (LogLevel, String) {
    record.line(hosts).unwrap_or_else(|| {
        let text = match record {
            Record::CheckpointStarted { rank, image } => {
                format!("checkpoint of rank {rank} begins: image {image}")
            }
            other => serde_json::to_string(other).unwrap_or_default(),
        };
        (LogLevel::Detail, text)
    })
}

/// What is looked for among the events: all of these words, in any case, in their names and texts.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    words: Vec<String>,
    /// Only those that are shown without -v.
    important: bool,
}

impl Wanted {
    pub fn new(text: &str, important: bool) -> Wanted {
        let words = text.split_whitespace().map(str::to_lowercase).collect();
        Wanted { words, important }
    }

    fn is(&self, entry: &Entry) -> bool {
        if self.important && !entry.important {
            return false;
        }
        if self.words.is_empty() {
            return true;
        }
        let text = entry.text.to_lowercase();
        self.words.iter().all(|word| text.contains(word) || entry.event.contains(word))
    }
}

/// The events that are kept, by their numbers.
#[derive(Debug, Default)]
pub struct History {
    entries: VecDeque<Entry>,
    bytes: usize,
    /// The number of the next one.
    next: u64,
}

impl History {
    /// The number of the next event.
    pub fn next(&self) -> u64 {
        self.next
    }

    pub fn add(&mut self, entry: Entry) {
        self.next = entry.seq + 1;
        self.bytes += entry.text.len();
        self.entries.push_back(entry);
        while self.entries.len() > KEPT || self.bytes > KEPT_BYTES {
            let Some(oldest) = self.entries.pop_front() else { break };
            self.bytes -= oldest.text.len();
        }
    }

    /// Those from this number on, oldest first; of more than `most` the newest.
    pub fn since(&self, seq: u64, most: usize) -> Vec<&Entry> {
        let newest = self.entries.iter().rev().take_while(|entry| entry.seq >= seq).take(most);
        let mut newest: Vec<&Entry> = newest.collect();
        newest.reverse();
        newest
    }

    /// The newest `most` before this number that are wanted, newest first.
    pub fn find(&self, wanted: &Wanted, before: u64, most: usize) -> Vec<&Entry> {
        let older = self.entries.iter().rev().skip_while(|entry| entry.seq >= before);
        older.filter(|entry| wanted.is(entry)).take(most).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(seq: u64, event: &str, text: &str, important: bool) -> Entry {
        Entry { seq, time: 0.0, event: event.into(), important, text: text.into() }
    }

    fn history() -> History {
        let mut history = History::default();
        for (seq, event, text, important) in [
            (0, "node_up", "node 0 is up", false),
            (1, "rank_failed", "rank 12 on node 0 failed: killed", true),
            (2, "recovered", "rank 12 recovered on node 1", true),
            (3, "rank_failed", "rank 1 on node 0 failed: killed", true),
        ] {
            history.add(entry(seq, event, text, important));
        }
        history
    }

    fn seqs(found: Vec<&Entry>) -> Vec<u64> {
        found.iter().map(|entry| entry.seq).collect()
    }

    #[test]
    fn all_words_are_looked_for_in_names_and_texts() {
        let history = history();
        let find =
            |text, important| seqs(history.find(&Wanted::new(text, important), u64::MAX, 10));
        assert_eq!(find("", false), [3, 2, 1, 0]);
        assert_eq!(find("", true), [3, 2, 1]);
        assert_eq!(find("RANK_failed node", false), [3, 1]);
        assert_eq!(find("rank 12", false), [2, 1]);
        assert_eq!(find("absent", false), [0; 0]);
        assert_eq!(seqs(history.find(&Wanted::default(), 2, 1)), [1]);
    }

    #[test]
    fn of_many_new_ones_the_newest_are_given_in_order() {
        let history = history();
        assert_eq!(seqs(history.since(1, 10)), [1, 2, 3]);
        assert_eq!(seqs(history.since(0, 2)), [2, 3]);
        assert_eq!(seqs(history.since(4, 2)), [0; 0]);
        assert_eq!(history.next(), 4);
    }

    #[test]
    fn the_oldest_go_when_there_are_too_many_bytes() {
        let mut history = History::default();
        for seq in 0..40 {
            history.add(entry(seq, "note", &"x".repeat(2 << 20), true));
        }
        assert_eq!(seqs(history.since(0, 100)), (8..40).collect::<Vec<_>>());
    }

    #[test]
    fn lines_of_newer_jobs_and_no_lines() {
        let heard = Heard::read(r#"{"seq":7,"time":1.5,"event":"eclipse","of":"the sun"}"#);
        let entry = heard.unwrap().entry(&[]);
        assert_eq!((entry.seq, entry.event.as_str(), entry.important), (7, "eclipse", false));
        assert!(entry.text.contains("the sun"));
        assert!(Heard::read("").is_none() && Heard::read(r#"{"seq":7}"#).is_none());
        let long = format!(r#"{{"seq":1,"time":0,"event":"note","text":"{}"}}"#, "ä".repeat(9000));
        let text = Heard::read(&long).unwrap().entry(&[]).text;
        assert!(text.len() < 4200 && text.ends_with("ä ..."));
        let begun = r#"{"seq":1,"time":0,"event":"checkpoint_started","rank":3,"image":7}"#;
        let text = Heard::read(begun).unwrap().entry(&[]).text;
        assert_eq!(text, "checkpoint of rank 3 begins: image 7");
    }
}
