//! `eyrie run --domains`: a job over several sites. This process reads the file of domains, starts
//! the controllers of the other domains, and is the controller of its own; or it is the controller
//! of one of the others, which is told by its standard input what to do. No secret is in a command
//! line.

mod begin;
mod environment;
mod line;
mod more;
mod order;
mod output;
mod sites;
mod ssh;
mod watch;

pub use begin::{begin, read, Begun, FileOfDomains, Known, Usual};
pub use line::Line;
pub use more::new_domains;
pub use order::{this_version, Part};
pub use sites::{Command, Sites};
