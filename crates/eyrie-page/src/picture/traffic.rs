//! What ranks send each other in the picture: a matrix of bounded size, the heaviest pairs, and
//! what the links of the network carry.

use eyrie_wire::{NodeId, Rank};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};

/// Most rows of the matrix, and most columns: more ranks are put together by node, and more nodes
/// by several of them. So the matrix has 4,096 cells at most, and takes 192 KiB at most each time
/// that it is sent.
const MOST: u32 = 64;
/// How many of the heaviest pairs are told.
pub const HEAVIEST: usize = 10;

/// What has a row of the matrix.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum By {
    #[default]
    Rank,
    Node,
}

/// What ranks send each other. Rates are of the last window.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct TrafficPicture {
    /// The length of the window, in seconds.
    pub window: f64,
    pub bytes_per_s: u64,
    pub messages_per_s: u64,
    /// Since the job began.
    pub bytes: u64,
    pub messages: u64,
    /// The share of the bytes of the window that went from one node to another.
    pub between_nodes: Option<f64>,
    pub by: By,
    /// How many of these follow each other in one row.
    pub size: u32,
    /// How many rows the matrix has, and columns.
    pub count: u32,
    /// Row, column, bytes a second, bytes since the job began; those without messages are left out.
    pub cells: Vec<(u32, u32, u64, u64)>,
    /// From, to, bytes a second.
    pub heaviest: Vec<(Rank, Rank, u64)>,
    /// What links of the network carry: the number of the link, and bytes a second.
    pub links: Vec<(u32, u64)>,
}

/// The routes between nodes, as far as they are known.
pub type Routed = HashMap<(NodeId, NodeId), Vec<u32>>;

/// Pairs of nodes that send each other something, with the bytes.
pub type NodePairs = BTreeMap<(NodeId, NodeId), u64>;

/// What links carry a second when nodes send each other so much in this time.
pub fn loads(pairs: &NodePairs, routed: &Routed, seconds: f64) -> Vec<(u32, u64)> {
    let mut loads = BTreeMap::<u32, u64>::new();
    for (pair, bytes) in pairs {
        for link in routed.get(pair).into_iter().flatten() {
            *loads.entry(*link).or_default() += bytes;
        }
    }
    loads.into_iter().map(|(link, bytes)| (link, per_second(bytes, seconds))).collect()
}

/// A rate.
pub fn per_second(count: u64, seconds: f64) -> u64 {
    (count as f64 / seconds.max(0.001)).round() as u64
}

/// Which row a rank has.
pub struct Rows {
    pub by: By,
    pub size: u32,
    pub count: u32,
}

impl Rows {
    pub fn of(ranks: u32, nodes: u32) -> Rows {
        let (by, all) = if ranks <= MOST { (By::Rank, ranks) } else { (By::Node, nodes) };
        let size = all.div_ceil(MOST).max(1);
        Rows { by, size, count: all.div_ceil(size) }
    }

    /// `None`: its node is not known.
    pub fn row(&self, rank: Rank, node: Option<NodeId>) -> Option<u32> {
        let number = match self.by {
            By::Rank => rank.0,
            By::Node => node?.0,
        };
        Some(number / self.size).filter(|row| *row < self.count)
    }
}
