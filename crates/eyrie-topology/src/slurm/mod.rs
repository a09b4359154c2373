//! Slurm's topology files: topology.conf (tree and block) and topology.yaml (tree, block, torus3d).
//!
//! What Slurm accepts is read as Slurm reads it; what Slurm refuses is refused. What Eyrie does not
//! understand is refused with its line, and never ignored.

mod block_sizes;
mod conf;
mod shown;
mod torus;
mod words;
mod yaml;

pub use conf::{parse_conf, Include};
pub use shown::conf_of_shown;
pub use yaml::{parse_yaml, SlurmTopology};
