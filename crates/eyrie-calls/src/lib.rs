//! libeyrie-calls.so, preloaded into every rank: it stands in front of functions of the C library
//! that an image would disturb, one file for each family of calls. A wait that an image has
//! interrupted goes on for the rest of its time, in the process and in one restored from the image;
//! what a rank draws at random, and what its clocks say ([`observed`]), is the same when it is
//! executed again.
//!
//! The provider tells it when an image was taken ([`interruption`]); until one has told it that the
//! process is a rank, every call goes straight to the next library. It must never allocate, lock,
//! or start anything.

mod clock_waits;
mod clocks;
mod descriptors;
mod devices;
mod early_clocks;
mod environment;
mod files;
pub mod first_observations;
pub mod for_provider;
pub mod host_clocks;
mod inotify;
mod intel_heap;
pub mod interruption;
mod job_start;
mod level;
mod next;
pub mod observed;
mod own_number;
mod own_stack;
mod process;
mod program;
mod random;
pub mod rank_start;
mod signals;
mod sleeps;
mod stack_guard;
mod stream;
pub mod table;
mod threads;
mod writes;

pub use clock_waits::*;
pub use clocks::*;
pub use descriptors::*;
pub use files::*;
pub use inotify::our_inotify_add_watch;
pub use intel_heap::*;
pub use own_number::{
    our_pthread_getaffinity_np, our_pthread_setaffinity_np, our_sched_getaffinity,
    our_sched_setaffinity,
};
pub use process::*;
pub use random::*;
pub use signals::*;
pub use sleeps::*;
pub use threads::*;
pub use writes::*;
