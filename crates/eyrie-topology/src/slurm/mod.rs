//! Slurm's topology files: topology.conf (tree and block) and topology.yaml (tree, block, torus3d).
//!
//! What Slurm reads is read as it reads it, what it refuses is refused. What is not understood is
//! refused with its line, and never left out.

mod block_sizes;
mod conf;
mod torus;
mod words;
mod yaml;

pub use conf::{parse_conf, Include};
pub use yaml::{parse_yaml, SlurmTopology};
