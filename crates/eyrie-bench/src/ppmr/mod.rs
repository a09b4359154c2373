//! PPMR's experiments: ranks leave a node through files or through a pipeline of buffers, and, for
//! comparison, live as the ranks of a job. The ranks are real processes with real images, and each
//! must go on to the right result. Jobs of Eyrie do not use the ways through files or buffers.

mod bandwidth;
mod driver;
mod held;
mod kinds;
mod live;
mod mpi;
mod network;
mod node;
mod options;
mod orders;
mod pace;
mod pool;
mod process;
mod pull;
mod rank;
mod runs;
mod source;
mod target;
mod task;
mod ways;
mod wire;

pub use kinds::Kind;
pub use options::{Experiment, Options};
pub use task::{Rdma, Way};

use crate::report::{Measured, Report};
use crate::{job, machine, Effort};
use anyhow::bail;
use serde_json::{Map, Value};

/// Measures, and reports its progress on standard error.
///
/// # Errors
/// When something that is needed is missing, or a part of it fails.
pub fn measure(what: &[Experiment], options: &Options, effort: Effort) -> anyhow::Result<Report> {
    options.check(what)?;
    job::watch_signals()?;
    let watch = machine::Watch::begin();
    let mut all = Measured { tables: vec![], notes: vec![], data: Value::Null, chart: None };
    let mut data = Map::new();
    for experiment in what {
        let measured = match experiment {
            Experiment::Aggregation => bandwidth::aggregation(options, effort)?,
            Experiment::Network => bandwidth::network(options, effort)?,
            Experiment::Pipeline => bandwidth::pipeline(options, effort)?,
            Experiment::Ways => ways::measure(options, effort)?,
            Experiment::Runs => runs::measure(options, effort)?,
        };
        all.tables.extend(measured.tables);
        all.notes.extend(measured.notes);
        data.insert(experiment.name().into(), measured.data);
        all.chart = measured.chart;
    }
    all.data = data.into();
    Ok(Report::new("ppmr", effort, all, watch.end()))
}

/// Runs as a process of a migration that a measurement has started.
///
/// # Errors
/// Any failure.
pub fn be_part(words: &[String]) -> anyhow::Result<()> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["rank", work, number] => rank::be_rank(&serde_json::from_str(work)?, number.parse()?),
        ["rank-of-a-job", work, library] => {
            live::be_rank(&serde_json::from_str(work)?, library.as_ref())
        }
        ["node", begin, end, task] => {
            node::be_node(&serde_json::from_str(task)?, begin == node::BEGIN, end == node::END)
        }
        _ => bail!("there is no such part"),
    }
}
