//! What can only be known by trying it. A trial is this same command, started as a process of its
//! own with the trial's words as arguments. It may crash, hang or be killed, and it is started as
//! ranks are.

mod image;
mod mpi;
mod rank;
mod start;
mod trials;

pub use image::{be_captured, Taken};
pub use mpi::{ask_library, Library};
pub use rank::{be_a_rank, CONNECTED};
pub use start::{show_start, Start};
pub use trials::{Trials, LONGEST};
