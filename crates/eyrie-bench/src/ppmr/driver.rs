//! Has a task carried out by its two nodes, and knows what ranks print that never move.

use anyhow::{ensure, Context};
use std::collections::HashMap;
use std::time::Duration;

use crate::ppmr::network;
use crate::ppmr::process::{as_a_rank, part, Part};
use crate::ppmr::task::{Feed, Sink, SourceReport, TargetReport, Task};

/// How long a node may take for any step.
const LIMIT: Duration = Duration::from_secs(180);

/// What the nodes reported.
#[derive(Clone, Debug)]
pub struct Done {
    pub source: SourceReport,
    /// Without a target what it would have said: nothing.
    pub target: TargetReport,
}

/// Carries a task out.
///
/// # Errors
/// When a node fails or takes too long; it has said why on standard error.
pub fn carry_out(task: &Task) -> anyhow::Result<Done> {
    let words = serde_json::to_string(task)?;
    let start = |name: &str, part_words: &[&str]| {
        let mut command = part(part_words);
        if task.rate.is_some() {
            network::apart(&mut command);
        }
        Part::start(name, &mut command)
    };
    let mut source = start("the source", &["source", &words])?;
    let mut target = match task.sink {
        Sink::Stay => None,
        Sink::Restore | Sink::Drop => Some(start("the target", &["target", &words])?),
    };
    if let (Some(rate), Some(target)) = (&task.rate, &target) {
        network::connect([&source, target], rate)?;
    }
    source.order()?;
    let port = source.line(LIMIT)?;
    if let Some(target) = &mut target {
        target.tell(&port)?;
        target.line(LIMIT)?;
        target.order()?;
    }
    source.order()?;
    let mut done = Done { source: SourceReport::default(), target: TargetReport::default() };
    if let Some(target) = &mut target {
        done.target = serde_json::from_str(&target.line(LIMIT)?).context("of the target")?;
    }
    done.source = serde_json::from_str(&source.line(LIMIT)?).context("of the source")?;
    Ok(done)
}

/// What ranks print that never move, by memory and rank.
#[derive(Default)]
pub struct Undisturbed(HashMap<(u64, u32), String>);

impl Undisturbed {
    /// Compares the results of a task with those of ranks that never moved.
    ///
    /// # Errors
    /// When they differ, or a rank fails.
    pub fn check(&mut self, task: &Task, done: &Done) -> anyhow::Result<()> {
        if (task.feed, task.sink) != (Feed::Ranks, Sink::Restore) {
            return Ok(());
        }
        let printed = &done.target.results;
        ensure!(printed.len() == task.ranks as usize, "{} results", printed.len());
        for (rank, printed) in (0..task.ranks).zip(printed) {
            let expected = self.of(task.mib, rank)?;
            ensure!(
                *printed == expected,
                "rank {rank} of {} MiB printed {printed:?} after its move, undisturbed {expected:?}",
                task.mib
            );
        }
        Ok(())
    }

    fn of(&mut self, mib: u64, rank: u32) -> anyhow::Result<String> {
        if let Some(known) = self.0.get(&(mib, rank)) {
            return Ok(known.clone());
        }
        let mut command = part(&["rank", &mib.to_string(), &rank.to_string(), "stays"]);
        as_a_rank(&mut command);
        let mut running = Part::start("a rank that stays", &mut command)?;
        running.line(LIMIT)?;
        let result = running.line(LIMIT)?;
        self.0.insert((mib, rank), result.clone());
        Ok(result)
    }
}
