//! The network of a job, as the job tells it: to be drawn, and to say what its links carry. Plain
//! data.

use serde::{Deserialize, Serialize};

/// The answer to [`crate::Request::Network`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Networked {
    /// `None`: the job does not know its network.
    pub network: Option<Network>,
}

/// A network of nodes and switches, joined by directed links.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Network {
    /// What it is, as `--network` has it or in words.
    pub network: String,
    /// The grid that its nodes are, if they are one: extents, the last axis fastest.
    pub grid: Option<Vec<usize>>,
    /// How many nodes it has: they are the first vertices, and the others are switches.
    pub nodes: usize,
    /// The names of its vertices. None of them, and no links: it is too large to be drawn.
    pub vertices: Vec<String>,
    /// Its links: the number of each, and the vertices from and to which it leads.
    pub links: Vec<(u32, u32, u32)>,
    /// The vertex that each node of the job is, by number; `None`: it is not known in the network.
    pub at: Vec<Option<u32>>,
}

impl Network {
    /// Most vertices that are told.
    pub const MOST_VERTICES: usize = 4096;
    /// Most links that are told.
    pub const MOST_LINKS: usize = 16_384;
}

/// The answer to [`crate::Request::Routes`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Routes {
    /// The numbers of the links of each route, in the order in which the routes were asked for;
    /// none within a node, nor where the network has no route.
    pub routes: Vec<Vec<u32>>,
}

impl Routes {
    /// Most routes that are told at once.
    pub const MOST: usize = 4096;
}
