//! What the tests of all paths share: a random program whose every message depends on all that it
//! has seen and when, processes that are killed and come back from images of all ages, and the
//! comparison with an undisturbed run. How messages go, and what may break there, each path's tests
//! say in a [`job::Scene`].

pub mod job;
pub mod program;
pub mod schedules;
