//! What the roles of a job send each other: frames of the data path, control messages, versions,
//! authentication. Pure encoding and decoding: nothing here opens, reads or waits for anything, and
//! nothing here allocates by a length that a peer names.

pub mod addr;
pub mod address;
pub mod agent;
pub mod auth;
pub mod control;
pub mod data;
pub mod directory;
pub mod entries;
pub mod page;
pub mod signals;

/// Version of everything in this crate. Processes with different versions refuse each other.
pub const VERSION: u16 = 19;

/// A process of the MPI job, numbered as in MPI_COMM_WORLD.
pub type Rank = u32;
/// A node of the job, numbered from 0; spares follow the nodes that start with ranks.
pub type Node = u32;
/// A store's number: 0 for the first, never used again for another.
pub type StoreId = u32;
/// Number of the processes that a rank has had: 1 for the first.
pub type Incarnation = u32;
/// One incarnation of a rank. At most the newest one of a rank may send.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, serde::Serialize, serde::Deserialize,
)]
pub struct RankInstance {
    pub rank: Rank,
    pub incarnation: Incarnation,
}

impl std::fmt::Display for RankInstance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "incarnation {} of rank {}", self.incarnation, self.rank)
    }
}

/// Number of a process image of a rank: 1 for the first, increasing.
pub type ImageId = u64;
