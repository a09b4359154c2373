//! The controller of a job: the state machine that decides, and the runtime that stands around it
//! with sockets, timers and processes.

pub mod domains;
pub mod hosts;
pub mod machine;
pub mod runtime;

pub use eyrie_interface::{inject, record};
