//! What the nodes of a job have sent each other: what their ranks have, counted where ranks were
//! when it was looked at. However many ranks and nodes there are, it is bounded, and no count ever
//! goes back.

use super::traffic::Traffic;
use eyrie_interface::traffic::{NodePair, NodeTraffic as Answer};
use eyrie_wire::traffic::Sent;
use eyrie_wire::{NodeId, Rank};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Most pairs of nodes that are counted one by one. Pairs keep their place; free ones go to those
/// that have sent most meanwhile.
const PAIRS: usize = 256;

/// Where a rank is; `None`: in another domain.
type Place = Option<NodeId>;

/// What is known of all pairs of nodes.
#[derive(Debug, Default)]
pub struct NodeTraffic {
    /// What ranks had sent when it was last looked at.
    before: Traffic,
    pairs: BTreeMap<(Place, Place), Sent>,
    /// That of all other pairs.
    rest: Sent,
}

fn sum(a: Sent, b: Sent) -> Sent {
    Sent { messages: a.messages + b.messages, bytes: a.bytes + b.bytes }
}

impl NodeTraffic {
    /// Counts what was sent since it was last looked at. `at`: where ranks are.
    pub fn look(&mut self, traffic: &Traffic, at: impl Fn(Rank) -> Place) {
        let mut grown: BTreeMap<(Place, Place), Sent> = BTreeMap::new();
        for pair in traffic.since(&self.before) {
            let of = grown.entry((at(pair.from), at(pair.to))).or_default();
            *of = sum(*of, pair.sent);
        }
        self.before = traffic.clone();
        let is_new = |pair: &(Place, Place)| !self.pairs.contains_key(pair);
        let mut new: Vec<_> = grown.keys().copied().filter(is_new).collect();
        new.sort_by_key(|pair| Reverse(grown[pair].bytes));
        new.truncate(PAIRS.saturating_sub(self.pairs.len()));
        self.pairs.extend(new.into_iter().map(|pair| (pair, Sent::default())));
        for (pair, sent) in grown {
            let of = self.pairs.get_mut(&pair).unwrap_or(&mut self.rest);
            *of = sum(*of, sent);
        }
    }

    /// All of it.
    pub fn answer(&self) -> Answer {
        let pair = |(&(from, to), &sent)| NodePair { from, to, sent };
        Answer { pairs: self.pairs.iter().map(pair).collect(), rest: self.rest }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use eyrie_wire::traffic::PairSent;

    fn traffic(pairs: impl IntoIterator<Item = (u32, u32, u64)>) -> Traffic {
        // Bytes come with messages.
        let sent = |bytes| Sent { messages: bytes, bytes };
        let pair =
            |(from, to, bytes)| PairSent { from: Rank(from), to: Rank(to), sent: sent(bytes) };
        let mut traffic = Traffic::default();
        traffic.add(pairs.into_iter().map(pair).collect());
        traffic
    }

    fn on(node: u32) -> Place {
        Some(NodeId(node))
    }

    #[test]
    fn what_a_rank_sent_before_it_moved_stays_with_the_node_that_it_was_on() {
        let mut nodes = NodeTraffic::default();
        nodes.look(&traffic([(0, 1, 30), (1, 0, 10), (0, 2, 5)]), |rank| on(rank.0 / 2));
        // Rank 0 is on node 1 now, and rank 2 in another domain.
        let now = traffic([(0, 1, 50), (1, 0, 10), (0, 2, 5), (2, 0, 7)]);
        nodes.look(&now, |rank| if rank == Rank(2) { None } else { on(1 - rank.0) });
        let Answer { pairs, rest } = nodes.answer();
        let bytes: Vec<_> =
            pairs.iter().map(|pair| (pair.from, pair.to, pair.sent.bytes)).collect();
        let wanted = [(None, on(1), 7), (on(0), on(0), 40), (on(0), on(1), 5), (on(1), on(0), 20)];
        assert_eq!(bytes, wanted);
        assert_eq!(rest, Sent::default());
        let messages: u64 = pairs.iter().map(|pair| pair.sent.messages).sum();
        assert_eq!(messages, 50 + 10 + 5 + 7);
    }

    #[test]
    fn of_many_nodes_the_largest_pairs_are_counted_one_by_one_and_nothing_is_lost() {
        let mut nodes = NodeTraffic::default();
        let all = |round: u64| {
            (0..100).flat_map(move |a| (0..100).map(move |b| (a, b, round * u64::from(a * b + 1))))
        };
        let mut before = BTreeMap::new();
        for round in 1..4 {
            let now = traffic(all(round));
            nodes.look(&now, |rank| on(rank.0));
            let Answer { pairs, rest } = nodes.answer();
            assert_eq!(pairs.len(), PAIRS);
            let sum: u64 = pairs.iter().map(|pair| pair.sent.bytes).sum();
            assert_eq!(sum + rest.bytes, all(round).map(|(.., bytes)| bytes).sum::<u64>());
            assert!(pairs.iter().any(|pair| (pair.from, pair.to) == (on(99), on(99))));
            for pair in pairs {
                let earlier = before.insert((pair.from, pair.to), pair.sent.bytes);
                assert!(earlier.is_none_or(|earlier| earlier <= pair.sent.bytes));
            }
            assert_eq!(before.len(), PAIRS, "they keep their places");
        }
    }
}
