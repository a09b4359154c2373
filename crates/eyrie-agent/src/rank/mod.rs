//! One rank of this node: how its process is started, what it shares with the agent, its streams
//! and its PMI session, and what /proc says of it.

pub mod channel;
pub mod guards;
pub mod launch;
pub mod mapped;
pub mod obstacle;
pub mod page;
pub mod pmi;
pub mod process;
pub mod slow;
pub mod streams;
