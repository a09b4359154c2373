//! The domains of a job as users write them: the file of `eyrie run --domains`, and which ranks and
//! nodes each domain gets by it. Nothing here reads a file or asks a network.

pub mod file;
pub mod nodes;
pub mod shares;
