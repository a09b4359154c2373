//! What the ranks of a job have sent each other, as the job tells it.

use crate::seconds;
use eyrie_wire::traffic::Sent;
use eyrie_wire::{NodeId, Rank};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// What ranks have sent each other: the answer to [`crate::Request::Traffic`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Traffic {
    pub job: String,
    /// How many ranks the job has.
    pub ranks: u32,
    /// The time in which it was sent: as a rule all of the job so far.
    #[serde(rename = "seconds", with = "seconds")]
    pub over: Duration,
    /// The pairs that have sent something, by sender and then receiver.
    pub pairs: Vec<Pair>,
}

/// What one rank has sent to another one: `[from, to, messages, bytes]`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(from = "(Rank, Rank, u64, u64)", into = "(Rank, Rank, u64, u64)")]
pub struct Pair {
    pub from: Rank,
    pub to: Rank,
    pub sent: Sent,
}

impl From<(Rank, Rank, u64, u64)> for Pair {
    fn from((from, to, messages, bytes): (Rank, Rank, u64, u64)) -> Pair {
        Pair { from, to, sent: Sent { messages, bytes } }
    }
}

impl From<Pair> for (Rank, Rank, u64, u64) {
    fn from(Pair { from, to, sent: Sent { messages, bytes } }: Pair) -> (Rank, Rank, u64, u64) {
        (from, to, messages, bytes)
    }
}

impl Traffic {
    /// What was sent since `before`, an earlier answer of the same job.
    #[must_use]
    pub fn since(self, before: &Traffic) -> Traffic {
        let known: BTreeMap<_, _> =
            before.pairs.iter().map(|pair| ((pair.from, pair.to), pair.sent)).collect();
        let since = |pair: Pair| {
            let before = known.get(&(pair.from, pair.to)).copied().unwrap_or_default();
            Pair { sent: pair.sent.since(before), ..pair }
        };
        let pairs = self.pairs.into_iter().map(since).filter(|pair| pair.sent.messages > 0);
        Traffic {
            over: self.over.saturating_sub(before.over),
            pairs: pairs.collect(),
            job: self.job,
            ranks: self.ranks,
        }
    }
}

/// What the nodes of a job have sent each other: the answer to [`crate::Request::NodeTraffic`].
/// Counts begin when the controller is asked for the first time, with all that was sent before, and
/// only grow.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct NodeTraffic {
    /// A bounded number of pairs of nodes.
    pub pairs: Vec<NodePair>,
    /// What all others have sent.
    pub rest: Sent,
}

/// What the ranks on one node have sent to those on another one, or on the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodePair {
    /// `None`: in another domain.
    pub from: Option<NodeId>,
    pub to: Option<NodeId>,
    #[serde(flatten)]
    pub sent: Sent,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn traffic(seconds: u64, pairs: &[(u32, u32, u64, u64)]) -> Traffic {
        let pair = |(from, to, messages, bytes): &(u32, u32, u64, u64)| {
            Pair::from((Rank(*from), Rank(*to), *messages, *bytes))
        };
        let over = Duration::from_secs(seconds);
        Traffic { job: "j".into(), ranks: 3, over, pairs: pairs.iter().map(pair).collect() }
    }

    #[test]
    fn a_thousand_ranks_that_have_all_sent_to_each_other_fit_into_an_answer() {
        let all =
            (0..1000).flat_map(|from| (0..1000).map(move |to| (from, to, 9_999_999, 1 << 40)));
        let text = serde_json::to_string(&traffic(9, &all.collect::<Vec<_>>())).unwrap();
        assert!((text.len() as u64) < crate::request::MAX_LINE, "{} bytes", text.len());
    }

    #[test]
    fn pairs_are_written_in_short_and_those_that_sent_nothing_meanwhile_are_left_out() {
        let before = traffic(3, &[(0, 1, 4, 40), (1, 0, 1, 1)]);
        let now = traffic(5, &[(0, 1, 6, 100), (1, 0, 1, 1), (2, 0, 1, 0)]);
        let text = serde_json::to_string(&now.since(&before)).unwrap();
        let wanted = r#"{"job":"j","ranks":3,"seconds":2.0,"pairs":[[0,1,2,60],[2,0,1,0]]}"#;
        assert_eq!(text, wanted);
        assert_eq!(serde_json::from_str::<Traffic>(&text).unwrap().pairs.len(), 2);
    }
}
