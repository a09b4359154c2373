//! What `eyrie monitor` costs and disturbs: samples by reader, detours of a loop, the slowdown of a
//! parallel job modelled and measured, and the experiments of Kamoshida and Taura. Each figure is
//! beside an alternative that was measured in the same run.

mod allreduce;
mod cost;
mod crowd;
pub mod model;
mod noise;
mod papers;
mod process;
mod setup;
mod slowdown;
mod tools;

pub use crowd::member;
pub use setup::Setup;
pub use slowdown::Source;

use crate::machine::Watch;
use crate::report::{Measured, Report};
use crate::Effort;
use std::time::Duration;

/// The possible measurements of the monitor.
#[derive(Clone, Debug)]
pub enum Question {
    /// CPU time of a sample, by reader, for crowds of (processes, threads each).
    Cost { crowds: Vec<(usize, usize)> },
    /// Detours of a loop of fixed work.
    Noise { interval: Duration },
    /// A modelled job.
    Slowdown { grain: Duration, interval: Duration, source: Source },
    /// The paper's experiments.
    Papers { processes: usize },
}

/// Measures, and reports its progress on standard error.
///
/// # Errors
/// When something that is needed is missing, or a program fails.
pub fn answer(question: &Question, setup: &Setup, effort: Effort) -> anyhow::Result<Report> {
    let watch = Watch::begin();
    if let Some(warning) = watch.warning() {
        crate::progress(&format!("eyrie-bench: {warning}"));
    }
    let (name, measured): (_, Measured) = match question {
        Question::Cost { crowds } => ("monitor-bench", cost::measure(setup, effort, crowds)?),
        Question::Noise { interval } => {
            ("monitor-noise", noise::measure(setup, effort, *interval)?)
        }
        Question::Slowdown { grain, interval, source } => {
            ("monitor-slowdown", slowdown::measure(setup, effort, *grain, *interval, source)?)
        }
        Question::Papers { processes } => {
            ("monitor-papers", papers::measure(setup, effort, *processes)?)
        }
    };
    Ok(Report::new(name, effort, measured, watch.end()))
}
