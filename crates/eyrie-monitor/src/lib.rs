//! Watches a node and its processes without slowing the job: light samples, taken on all nodes at
//! the same moment, each with its own cost. Must never allocate or lock something shared while it
//! samples, or stop sampling because something that it reads is gone.

pub mod accuracy;
pub mod adapt;
mod ages;
mod bpf;
pub mod budget;
pub mod clock;
#[cfg(feature = "server")]
mod commands;
pub mod health;
pub mod json;
#[cfg(feature = "server")]
pub mod metrics;
pub mod names;
pub mod node;
pub mod policy;
pub mod reader;
pub mod ring;
pub mod sample;
pub mod sampling_thread;
#[cfg(feature = "server")]
pub mod serve;
pub mod shared;
pub mod skew;
pub mod sync;
#[cfg(feature = "server")]
pub mod watch;
