//! The same programs as ranks of a job of Eyrie, all on one node, which leave it together and
//! compute meanwhile. The other ways are compared with them.

use anyhow::{ensure, Context};
use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::job::{Contender, Event, Job, Program, What};
use crate::ppmr::kinds::Solver;
use crate::ppmr::mpi::Mpi;
use crate::ppmr::options::Options;
use crate::ppmr::process::WORDS;
use crate::ppmr::task::Work;

/// How long a move, or what comes before it, may take.
const LIMIT: Duration = Duration::from_secs(180);
/// A file in the job's folder which says that all moves are done, and how often a rank checks it.
const MOVED: &str = "moved";
const GLANCE: Duration = Duration::from_millis(5);
const JOB: &str = "--nodes 1 --spares 1 --checkpoint-every off";

/// The result of a job.
#[derive(Clone, Debug)]
pub struct LiveRun {
    pub moves: Vec<LiveMove>,
    pub took: Duration,
}

/// A move of all ranks; times in seconds.
#[derive(Clone, Copy, Debug)]
pub struct LiveMove {
    /// From the command to its answer.
    pub total: f64,
    /// The longest time that a rank stood still.
    pub still: f64,
    pub bytes: u64,
}

/// Runs as a rank of a job, and prints when it is time for a move.
///
/// # Errors
/// When MPI fails, or its output is closed.
pub fn be_rank(work: &Work, library: &Path) -> anyhow::Result<()> {
    let mpi = Mpi::init(library)?;
    let mut solver = Solver::new(work.kind, work.mib, u64::from(mpi.rank) + 1);
    for step in 0..work.steps {
        if mpi.rank == 0 && work.moves_before(step) {
            println!("{}", time_for(step));
        }
        solver.step(|face| mpi.pass_on(face.as_flattened_mut()))?;
    }
    // A rank that has nothing more to do can still be moved. It checks for the file now and then. A
    // pipe to wait at would have to move with the rank.
    while mpi.rank == 0 && work.moves > 0 && !Path::new(MOVED).exists() {
        std::thread::sleep(GLANCE);
    }
    mpi.barrier()?;
    println!("rank {}: {:016x}", mpi.rank, solver.sum());
    mpi.finalize()
}

fn time_for(step: u32) -> String {
    format!("time for a move before step {step}")
}

/// Jobs, and the output of those whose ranks never moved, by the work of their ranks.
#[derive(Default)]
pub struct LiveRuns(HashMap<Work, Vec<String>>);

impl LiveRuns {
    /// Runs a job whose ranks move back and forth.
    ///
    /// # Errors
    /// When it fails, takes too long, or prints something else than without moves.
    pub fn run(&mut self, options: &Options, work: Work) -> anyhow::Result<LiveRun> {
        let (ran, printed) = run(options, &work)?;
        let stays = Work { moves: 0, ..work };
        if work.moves > 0 && !self.0.contains_key(&stays) {
            self.run(options, stays)?;
        }
        let expected = self.0.entry(stays).or_insert_with(|| printed.clone());
        ensure!(
            *expected == printed,
            "ranks of {work:?} printed {printed:?} after their moves, undisturbed {expected:?}"
        );
        Ok(ran)
    }
}

/// The result of a job, and the output of its ranks.
fn run(options: &Options, work: &Work) -> anyhow::Result<(LiveRun, Vec<String>)> {
    let setup = &options.setup;
    let words = serde_json::to_string(work)?;
    let library = setup.libmpi();
    let part = ["rank-of-a-job", &words, &library.to_string_lossy()];
    let program = Program {
        ranks: options.ranks,
        exe: std::env::current_exe().context("cannot find the command itself")?,
        args: WORDS.into_iter().chain(part).map(String::from).collect(),
    };
    let mut job = Job::start(setup, &Contender::eyrie("Eyrie", JOB), &program)?;
    let times = (0..work.steps).filter(|step| work.moves_before(*step));
    let moves = times.zip([1, 0].into_iter().cycle()).map(|(step, to)| {
        job.await_output(&format!("{}\n", time_for(step)), LIMIT)?;
        one_move(&mut job, options.ranks, to)
    });
    let moves = moves.collect::<anyhow::Result<_>>()?;
    std::fs::write(job.dir().join(MOVED), "")?;
    let finished = job.finish()?;
    let mut printed: Vec<String> =
        finished.stdout.lines().filter(|l| l.starts_with("rank ")).map(String::from).collect();
    printed.sort();
    ensure!(printed.len() == options.ranks as usize, "{} results", printed.len());
    Ok((LiveRun { moves, took: finished.elapsed }, printed))
}

/// Moves all ranks to the node `to`.
fn one_move(job: &mut Job, ranks: u32, to: u32) -> anyhow::Result<LiveMove> {
    let all: Vec<String> = (0..ranks).map(|rank| rank.to_string()).collect();
    let begun = Instant::now();
    job.order("migrate", &[&all.join(","), "--to", &to.to_string()])?;
    let mut moved = LiveMove { total: begun.elapsed().as_secs_f64(), still: 0.0, bytes: 0 };
    let mut left = ranks;
    job.await_event("the moves", LIMIT, |Event { what, .. }| {
        match what {
            What::MoveRound { bytes, .. } => moved.bytes += bytes,
            What::RankMoved { pause, .. } => {
                moved.still = moved.still.max(*pause);
                left -= 1;
            }
            _ => {}
        }
        (left == 0).then_some(())
    })?;
    Ok(moved)
}
