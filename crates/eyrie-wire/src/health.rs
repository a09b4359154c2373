//! What agents tell of their nodes and of the ranks there: figures, and what health rules find.
//! Plain data.

use crate::RankInstance;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::time::Duration;

/// How agents watch their nodes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Monitoring {
    /// The time from one sample to the next.
    pub interval: Duration,
    /// The health rules, as the text of a rules file; `None`: those that are built in.
    pub rules: Option<String>,
    /// A directory in which the one with a node's number stands for the root directory of that
    /// node; `None`: each node has its own.
    pub roots: Option<OsString>,
}

/// How healthy a node is, or a part of it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HealthState {
    #[default]
    Ok,
    /// It may fail.
    Suspect,
    /// It is failing.
    Failing,
}

impl std::fmt::Display for HealthState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            HealthState::Ok => "ok",
            HealthState::Suspect => "suspect",
            HealthState::Failing => "failing",
        })
    }
}

/// A rule has found something else than before.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Finding {
    /// The name of the rule.
    pub rule: String,
    /// The device, interface, file system ... that it is about.
    pub what: String,
    pub state: HealthState,
    /// The evidence in words.
    pub said: String,
}

impl Finding {
    /// Longest name and longest text of a finding, in bytes.
    const NAME: usize = 64;
    const TEXT: usize = 256;

    /// The same, no longer than a finding may be, and each text in one line.
    #[must_use]
    pub fn bounded(self) -> Finding {
        let Finding { rule, what, state, said } = self;
        let rule = in_short(&rule, Finding::NAME);
        let what = in_short(&what, Finding::NAME);
        Finding { rule, what, state, said: in_short(&said, Finding::TEXT) }
    }
}

/// The first `most` bytes of a text, without control characters.
fn in_short(text: &str, most: usize) -> String {
    let mut short = String::new();
    for c in text.chars().map(|c| if c.is_control() { '?' } else { c }) {
        if short.len() + c.len_utf8() > most {
            break;
        }
        short.push(c);
    }
    short
}

/// What was sampled of a node and of ranks on it. Counts are totals since the node or the process
/// has begun.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct NodeFigures {
    /// The number of the sample on this node, from 0.
    pub sample: u64,
    /// The moment that all nodes were to sample at, in nanoseconds since 1970, and how much later
    /// this one did, in nanoseconds. `in_step`: a tick of the controller said when.
    pub moment_ns: u64,
    pub late_ns: u64,
    pub in_step: bool,
    /// What samples are read with.
    pub reader: String,
    /// Processor time that the sample before has cost, in nanoseconds.
    pub cost_ns: u64,
    /// Processor time of all processors together, in nanoseconds.
    pub busy_ns: u64,
    pub idle_ns: u64,
    /// Memory in bytes.
    pub memory: u64,
    pub available: u64,
    /// Ranks: those whose turn it is where all of them would take too much.
    pub ranks: Vec<RankFigures>,
}

/// What was sampled of one incarnation of a rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RankFigures {
    pub instance: RankInstance,
    /// Processor time of all its threads, and the part of it in which it asked for messages and
    /// found none, in nanoseconds. The former is up to 16 samples old where it uses little.
    pub used_ns: u64,
    pub polled_ns: u64,
    /// The time in which it waited for messages, busy or not, in nanoseconds.
    pub waited_ns: u64,
    /// Memory in bytes.
    pub memory: u64,
    /// Steps in its trace, mostly messages that it has sent or received.
    pub steps: u64,
    /// When this was read, in nanoseconds since 1970.
    pub at_ns: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_node_says_is_short_and_one_line() {
        let finding = Finding {
            rule: "r".repeat(1000),
            what: "a\nb\u{1b}[31m".into(),
            state: HealthState::Failing,
            said: "é".repeat(1000),
        };
        let Finding { rule, what, said, .. } = finding.bounded();
        assert_eq!((rule.len(), what.as_str(), said.len()), (64, "a?b?[31m", 256));
    }
}
