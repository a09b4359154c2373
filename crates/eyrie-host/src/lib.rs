//! The properties of a host that matter for a rank that moves to another host, and the differences
//! between two hosts. Facts are gathered in milliseconds, without root. [`differences`]
//! compares and does no I/O. [`checks`] and [`trial`] say what works on this host. Nothing here
//! decides about a job, and nothing changes the host.

pub mod checks;
mod differences;
mod elf;
pub mod enough;
mod facts;
mod file;
pub mod finding;
mod identity;
mod limits;
mod node;
mod old_libc;
pub mod program;
pub mod shell;
pub mod trial;

pub use differences::{differences, same_host, Difference, Images, Needs, Severity, What};
pub use facts::gather;
pub use file::{look as look_at_file, mapped_by};
pub use finding::{Finding, Level};
pub use node::{in_common, lacking, level, look as look_at_node};
pub use program::Start;
