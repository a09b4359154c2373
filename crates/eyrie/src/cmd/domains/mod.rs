//! `eyrie run --domains`: a job over several sites. This process reads the file of domains, starts
//! the controllers of the other domains, and is the controller of its own; or it is the controller
//! of one of the others, which is told by its standard input what to do. No secret is in a command
//! line.

mod begin;
mod line;
mod order;
mod output;
mod sites;

pub use begin::{begin, Begun, Usual};
pub use order::Part;
pub use sites::{Command, Sites};
