//! How what a job says of its health, its network and its traffic changes the picture.

use super::health::{FindingPicture, NodeSample, RankSample};
use super::network::NetworkPicture;
use super::traffic::{per_second, NodePairs, Rows, TrafficPicture, HEAVIEST};
use super::Picture;
use eyrie_interface::health::Health;
use eyrie_interface::network::Network;
use eyrie_interface::record::list;
use eyrie_interface::traffic::{Pair, Traffic};
use eyrie_interface::Record;
use eyrie_wire::health::HealthState;
use eyrie_wire::Rank;
use std::collections::BTreeMap;

impl Picture {
    /// Nodes are as healthy as the job says at this time. What an event has said later counts more.
    pub fn health(&mut self, health: &Health, at: f64) {
        if self.has_ended() {
            return;
        }
        self.version += 1;
        for of in &health.nodes {
            self.node(of.node, |node| {
                node.sample = of.sampled.as_ref().map(NodeSample::of);
                if node.heard <= at {
                    node.health.status(of, at);
                }
            });
            for sampled in of.sampled.iter().flat_map(|sampled| &sampled.ranks) {
                self.rank(sampled.rank, |rank| rank.sample = Some(RankSample::of(sampled)));
            }
        }
    }

    /// An event about the health of a node.
    pub(super) fn of_health(&mut self, time: f64, record: &Record) {
        match record {
            Record::NodeHealth { node, rule, what, state, node_state, said } => {
                self.node(*node, |node| {
                    node.health.set_state(*node_state, time);
                    node.health.find(FindingPicture {
                        rule: rule.clone(),
                        what: what.clone(),
                        state: *state,
                        said: said.clone(),
                        since: time,
                        muted: false,
                    });
                });
            }
            Record::Precaution { node, ranks, cause } => {
                let why = cause.iter().map(|cause| format!("; not drained: {cause}"));
                let what = format!("images at once: {}{}", list(ranks), why.collect::<String>());
                self.node(*node, |node| node.health.add_done(time, what));
            }
            Record::NodeDraining { node, ranks } => self.node(*node, |node| {
                if node.health.state != HealthState::Ok {
                    node.health.add_done(time, format!("drained: {}", list(ranks)));
                }
            }),
            Record::RuleMuted { node, rule, .. } => self.node(*node, |node| node.health.mute(rule)),
            _ => {}
        }
    }
}

impl Picture {
    /// The network is this one.
    pub fn network(&mut self, network: &Network) {
        self.version += 1;
        let drawn = NetworkPicture::of(network);
        self.network.edit(self.version, |known| *known = Some(drawn));
    }
}

impl Picture {
    /// What nodes have sent each other, by where their ranks are now.
    pub fn node_pairs(&self, traffic: &Traffic) -> NodePairs {
        let mut pairs = NodePairs::new();
        for Pair { from, to, sent } in &traffic.pairs {
            let (Some(from), Some(to)) = (self.place_of(*from), self.place_of(*to)) else {
                continue;
            };
            if from != to {
                *pairs.entry((from, to)).or_default() += sent.bytes;
            }
        }
        pairs
    }

    /// What was sent since the job began, and in the last `window`; `links` is what links of the
    /// network carry.
    pub fn traffic(&mut self, total: &Traffic, window: &Traffic, links: Vec<(u32, u64)>) {
        self.version += 1;
        let seconds = window.over.as_secs_f64();
        let rows = Rows::of(total.ranks, self.nodes.len() as u32);
        let place = |rank: Rank| rows.row(rank, self.place_of(rank));
        let mut cells = BTreeMap::<(u32, u32), (u64, u64)>::new();
        for (traffic, is_window) in [(total, false), (window, true)] {
            for Pair { from, to, sent } in &traffic.pairs {
                let (Some(row), Some(column)) = (place(*from), place(*to)) else { continue };
                let (in_window, all) = cells.entry((row, column)).or_default();
                let sum = if is_window { in_window } else { all };
                *sum += sent.bytes;
            }
        }
        let cells = cells.into_iter().map(|((row, column), (in_window, all))| {
            (row, column, per_second(in_window, seconds), all)
        });
        let mut heaviest: Vec<&Pair> = window.pairs.iter().collect();
        heaviest.sort_by_key(|pair| std::cmp::Reverse(pair.sent.bytes));
        let heaviest = heaviest.into_iter().filter(|pair| pair.sent.bytes > 0).take(HEAVIEST);
        let sum = |traffic: &Traffic, of: fn(&Pair) -> u64| traffic.pairs.iter().map(of).sum();
        let bytes = |pair: &Pair| pair.sent.bytes;
        let messages = |pair: &Pair| pair.sent.messages;
        let in_window: u64 = sum(window, bytes);
        let between: u64 = self.node_pairs(window).values().sum();
        let shown = TrafficPicture {
            window: seconds,
            bytes_per_s: per_second(in_window, seconds),
            messages_per_s: per_second(sum(window, messages), seconds),
            bytes: sum(total, bytes),
            messages: sum(total, messages),
            between_nodes: (in_window > 0).then(|| between as f64 / in_window as f64),
            by: rows.by,
            size: rows.size,
            count: rows.count,
            cells: cells.collect(),
            heaviest: heaviest
                .map(|pair| (pair.from, pair.to, per_second(pair.sent.bytes, seconds)))
                .collect(),
            links,
        };
        self.traffic.edit(self.version, |traffic| *traffic = Some(shown));
    }
}

#[cfg(test)]
mod tests {
    use super::super::traffic::By;
    use super::super::traffic::{loads, Routed};
    use super::*;
    use eyrie_wire::{Incarnation, NodeId, RankInstance};
    use std::time::Duration;

    /// A job whose ranks are on so many nodes, in order.
    fn job(ranks: u32, nodes: u32) -> Picture {
        let mut picture = Picture::new("j");
        picture.event(0.0, &Record::NodeUp { node: NodeId(nodes - 1) });
        for rank in 0..ranks {
            let instance = RankInstance { rank: Rank(rank), incarnation: Incarnation(1) };
            let node = NodeId(rank * nodes / ranks);
            picture.event(0.0, &Record::RankStarted { instance, node, image: None });
        }
        picture
    }

    fn traffic(ranks: u32, seconds: u64, pairs: &[(u32, u32, u64, u64)]) -> Traffic {
        let pair = |(from, to, messages, bytes): &(u32, u32, u64, u64)| {
            Pair::from((Rank(*from), Rank(*to), *messages, *bytes))
        };
        let over = Duration::from_secs(seconds);
        Traffic { job: "j".into(), ranks, over, pairs: pairs.iter().map(pair).collect() }
    }

    #[test]
    fn few_ranks_have_a_row_each() {
        let mut picture = job(4, 2);
        let total = traffic(4, 10, &[(0, 1, 5, 500), (1, 2, 5, 700)]);
        let window = traffic(4, 2, &[(1, 2, 2, 300)]);
        picture.traffic(&total, &window, vec![(3, 150)]);
        let shown = picture.since(0).traffic.unwrap().clone();
        assert_eq!((shown.by, shown.size, shown.count), (By::Rank, 1, 4));
        assert_eq!(shown.cells, [(0, 1, 0, 500), (1, 2, 150, 700)]);
        assert_eq!(shown.heaviest, [(Rank(1), Rank(2), 150)]);
        assert_eq!((shown.bytes, shown.messages, shown.messages_per_s), (1200, 10, 1));
        assert_eq!(shown.between_nodes, Some(1.0));
    }

    #[test]
    fn many_ranks_are_put_together_by_node_within_a_bound() {
        let mut picture = job(10_000, 400);
        // Each node sends to each other one.
        let far = (0..400).flat_map(|a| (0..400).map(move |b| (a * 25, b * 25, 1 << 40, 1 << 60)));
        let all = traffic(10_000, 1, &far.collect::<Vec<_>>());
        picture.traffic(&all, &all, vec![]);
        let shown = picture.since(0).traffic.unwrap();
        assert_eq!((shown.by, shown.size, shown.count), (By::Node, 7, 58));
        assert_eq!(shown.cells.len(), 58 * 58);
        let text = serde_json::to_string(shown).unwrap();
        assert!(text.len() <= 192 << 10, "{} bytes", text.len());
    }

    #[test]
    fn links_carry_what_goes_over_them() {
        let picture = job(4, 4);
        let window = traffic(4, 2, &[(0, 1, 1, 100), (0, 2, 1, 60), (3, 3, 1, 7)]);
        let pairs = picture.node_pairs(&window);
        assert_eq!(pairs.len(), 2);
        let routed =
            Routed::from([((NodeId(0), NodeId(1)), vec![4]), ((NodeId(0), NodeId(2)), vec![4, 9])]);
        assert_eq!(loads(&pairs, &routed, 2.0), [(4, 80), (9, 30)]);
    }
}
