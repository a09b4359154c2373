//! Networks, routes and link loads.
//!
//! Everything here is a pure function of its arguments: readers take text, never a path, so that a
//! controller can plan inside a running job. This crate must never do I/O.
//!
//! One network per file: [`cartesian`] (mesh and torus), [`tofu`], [`fat_tree`], [`dragonfly`],
//! [`graph`] (any graph with routes), [`switch_tree`], which [`slurm`] reads from topology.conf and
//! topology.yaml. [`guess`] makes one of hosts' names or of what was measured between hosts.
//! [`spec`] makes one of them from a text such as `torus:12x12`, [`layout`] lays a logical grid of
//! ranks over one, [`detour`] routes round dead routers, [`deadlock`] finds out whether a set of
//! routes can deadlock, [`load`] counts messages.

pub mod cartesian;
pub mod coords;
pub mod deadlock;
pub mod detour;
pub mod dragonfly;
pub mod error;
pub mod fat_tree;
pub mod graph;
pub mod guess;
pub mod hostlist;
pub mod layout;
pub mod load;
mod names;
pub mod network;
pub mod picture;
pub mod slurm;
pub mod spec;
pub mod switch_tree;
pub mod tofu;

pub use error::TopologyError;
pub use layout::Layout;
pub use load::{Busiest, LinkLoads};
pub use network::{Lines, LinkId, Network, NetworkNode, RouteError, Run, VertexId};
