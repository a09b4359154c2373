//! The metrics of a job as text. However many ranks a job has, there are as many series as nodes,
//! routers and pairs of nodes, of which a bounded number is counted one by one.

mod images;
mod job;
mod messages;
mod nodes;
mod recoveries;
mod shapes;
#[cfg(test)]
mod tests;

use super::asker::Said;
use super::counts::Counts;
use eyrie_exporter::text::{Out, Source};
use std::fmt;
use std::sync::Arc;

/// What is known of a job.
#[derive(Debug)]
pub struct Snapshot {
    pub counts: Counts,
    /// `None`: the job has not answered yet.
    pub said: Option<Arc<Said>>,
}

impl Source for Snapshot {
    fn write(&self, out: &mut Out) -> fmt::Result {
        let Snapshot { counts, said } = self;
        job::of_events(out, counts)?;
        images::of_events(out, counts)?;
        recoveries::of_events(out, counts)?;
        let Some(Said { status, health, traffic, at }) = said.as_deref() else { return Ok(()) };
        job::of_status(out, status, at.elapsed())?;
        images::of_status(out, status, counts)?;
        recoveries::of_status(out, status)?;
        messages::of_status(out, status)?;
        messages::of_traffic(out, traffic)?;
        nodes::of_status(out, status)?;
        nodes::of_health(out, health)
    }
}
