//! Processes that start, watch and end each other, and what killed ones leave behind: for the
//! controller, its agents, and all that starts them. No process outlives the one that answers for
//! it, but for the sweeper and the saver; no wait is without a bound; and nothing is killed or
//! removed that is not known to be ours.

pub mod bounded;
mod death;
mod end;
mod family;
pub mod leftovers;
pub mod place;
pub mod saver;
pub mod segments;
mod start;
mod sweeper;

pub use death::{can_be_collected, death_of, has_ended, is_ending, Death};
pub use end::{end, has_ended_within};
pub use family::{children, kill_children_but, kill_group, Reaped};
pub use start::{
    dies_with_starter, in_own_session, outlive_signals, own_command, with_no_signal_blocked,
};
pub use sweeper::{sweep, Sweeper, Wait};
