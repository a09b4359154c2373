//! The page on which jobs are watched, and acted on: `eyrie serve`. It learns of a job only what
//! `eyrie status` and `eyrie events` tell, and asks of it only what the commands ask. It must never
//! decide anything for a job, nor hold it up.

mod history;
mod jobs;
mod output;
mod picture;
mod watch;
mod web;

pub use jobs::Source;
pub use web::{Page, Token};
