//! Has a task carried out by its nodes, and knows the output of ranks that never move.

use anyhow::{ensure, Context};
use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::ppmr::network;
use crate::ppmr::node::{BEGIN, END};
use crate::ppmr::process::{part, rank, Part};
use crate::ppmr::task::{Sink, SourceReport, TargetReport, Task, Work};

/// How long a node may take for any step.
const LIMIT: Duration = Duration::from_secs(180);

/// The reports of the nodes of a move.
#[derive(Clone, Debug)]
pub struct Done {
    pub source: SourceReport,
    pub target: TargetReport,
}

/// The result of a task.
#[derive(Clone, Debug)]
pub struct Ran {
    /// The reports for each move.
    pub moves: Vec<Done>,
    /// The output of each rank, if they were not dropped.
    pub results: Vec<String>,
    /// From the start of the nodes to the last result.
    pub took: Duration,
}

/// Carries out a task: ranks begin on one node, and move to another one as often as they are to.
///
/// # Errors
/// When a node fails or takes too long; it has written the reason to standard error.
pub fn carry_out(task: &Task) -> anyhow::Result<Ran> {
    let words = serde_json::to_string(task)?;
    let last = match task.sink {
        Sink::Stay => 0,
        Sink::Restore | Sink::Drop => task.work.moves as usize,
    };
    let start = |node: usize| {
        let begin = if node == 0 { BEGIN } else { "arrive" };
        let end = if node == last && task.sink != Sink::Stay { END } else { "leave" };
        let mut command = part(&["node", begin, end, &words]);
        if task.rate.is_some() {
            network::apart(&mut command);
        }
        Part::start(&format!("node {node}"), &mut command)
    };
    let begun = Instant::now();
    let mut nodes = (0..=last).map(start).collect::<anyhow::Result<Vec<_>>>()?;
    if let (Some(rate), [source, target]) = (&task.rate, &nodes[..]) {
        network::connect([source, target], rate)?;
    }
    nodes[0].line(LIMIT)?;
    nodes[0].order()?;
    let moves = 0..task.work.moves as usize;
    let moves = moves.map(|node| one_move(&mut nodes[node..])).collect::<anyhow::Result<_>>()?;
    let results = match task.sink {
        Sink::Stay => Vec::new(),
        Sink::Restore | Sink::Drop => serde_json::from_str(&nodes[last].line(LIMIT)?)?,
    };
    Ok(Ran { moves, results, took: begun.elapsed() })
}

/// Moves the ranks of the first of these nodes to the second, if there is one.
fn one_move(nodes: &mut [Part]) -> anyhow::Result<Done> {
    let mut nodes = nodes.iter_mut();
    let source = nodes.next().context("no node")?;
    let mut target = nodes.next();
    let port = source.line(LIMIT)?;
    if let Some(target) = &mut target {
        target.send_line(&port)?;
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

/// The output of ranks that never move, by their work and rank.
#[derive(Default)]
pub struct Undisturbed(HashMap<(Work, u32), String>);

impl Undisturbed {
    /// Compares the results of a task with those of ranks that never moved.
    ///
    /// # Errors
    /// When they differ, or a rank fails.
    pub fn check(&mut self, task: &Task, ran: &Ran) -> anyhow::Result<()> {
        ensure!(ran.results.len() == task.ranks as usize, "{} results", ran.results.len());
        for (rank, printed) in (0..task.ranks).zip(&ran.results) {
            let expected = self.of(task.work, rank)?;
            ensure!(
                *printed == expected,
                "rank {rank} of {:?} printed {printed:?} after its moves, undisturbed {expected:?}",
                task.work
            );
        }
        Ok(())
    }

    fn of(&mut self, work: Work, number: u32) -> anyhow::Result<String> {
        let work = Work { moves: 0, ..work };
        if let Some(known) = self.0.get(&(work, number)) {
            return Ok(known.clone());
        }
        let mut running = Part::start("a rank that stays", &mut rank(&work, number))?;
        running.line(LIMIT)?;
        running.order()?;
        let result = running.line(LIMIT)?;
        self.0.insert((work, number), result.clone());
        Ok(result)
    }
}
