//! Where the ranks of failed nodes go, and what it costs: the published substitution methods and a
//! search that is never worse than the best of them.
//!
//! Pure: no files, no clocks, no randomness except seeded. A controller calls [`choose`] (or
//! [`choose_by`], with a method of its own); `eyrie plan` shows the same decision to a person. This
//! crate must never do I/O.
//!
//! A [`Job`] is ranks on nodes with [`Traffic`] between them, laid out on a grid of cells
//! ([`eyrie_topology::Layout`]). After failures a [`Method`] moves ranks ([`method`], [`slide`],
//! [`search`], [`squeeze`]); [`evaluate`] counts messages per link, [`fluid`] estimates the step
//! time, [`plan`] compares.

mod anneal;
pub mod assign;
pub mod balance;
mod bottleneck;
pub mod cluster;
pub mod compare;
pub mod cost;
pub mod emit;
pub mod evaluate;
pub mod fluid;
pub mod job;
mod levels;
pub mod method;
pub mod objective;
mod on_network;
pub mod outcome;
pub mod plan;
pub mod planning_input;
pub mod rearrange;
pub mod search;
pub mod slide;
pub mod spares;
pub mod squeeze;
pub mod start;
pub mod traffic;
mod walk;
pub mod words;

pub use assign::{Assignment, Choice, Displaced, Links, Placement};
pub use cluster::{JobNode, JobNodes, Node, NodeState};
pub use compare::Progress;
pub use cost::{CostModel, Machine, Sharing};
pub use job::Job;
pub use method::Method;
pub use objective::{Objective, Weights};
pub use outcome::{Outcome, Placed, PlanError, Stuck};
pub use plan::{choose, choose_by, Move, Plan};
pub use planning_input::{Failures, Planner};
pub use spares::SpareSet;
pub use traffic::{Rank, Traffic};
pub use walk::Walk;
pub use words::{Instance, Words};
