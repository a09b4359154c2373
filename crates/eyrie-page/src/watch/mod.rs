//! Jobs that are watched. Each is followed from when the page asks for it first until it has ended,
//! by threads of its own.

mod file;
mod job;
mod sending;
mod viewers;
mod watched;

pub use file::{follow as follow_file, Unreadable};
pub use job::follow as follow_job;
pub use viewers::{Viewers, Viewing};
#[cfg(test)]
pub use watched::tests::ENDED;
pub use watched::{Seen, Watch};
