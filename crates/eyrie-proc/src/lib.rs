//! Reads /proc: what the kernel says of processes and of this host. It only reads, and it must
//! never fail where a field is missing: sandboxes have a /proc with few of them, and a process may
//! end while it is read. (So it is not the crate `procfs`, whose types fail as a whole then, and
//! which allocates for each read.)
//!
//! What runs inside a rank reads /proc by itself, without allocating and without the C library:
//! `eyrie-image`, `eyrie-restorer`, `eyrie-calls`, `eyrie-provider` and `eyrie-pmix`.

mod counters;
pub mod host;
pub mod kept;
mod maps;
pub mod memory;
mod mounts;
mod process;
mod status;
pub mod text;

pub use counters::{exit_status, Stat, TICK_NS};
pub use maps::{Mapping, Maps};
pub use mounts::mount_point;
pub use process::{
    all, children_of, descendants, descriptors, directory, executable, living, path_of, read_stat,
    OWN,
};
pub use status::Status;
