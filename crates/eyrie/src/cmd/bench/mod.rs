//! `eyrie bench`: Eyrie measured against the same MPICH without it.

mod options;
mod ppmr;
mod scale;

use crate::out;
use clap::{Args, Subcommand};
use eyrie_bench::{answer, plot, Effort, Question};
use options::Options;

/// Measure Eyrie against the same MPICH over its own tcp provider.
///
/// Both sides run in turn about, round after round, on this machine; what is shown are ratios with
/// their spread, beside the figure of Eagle, whose design Eyrie follows. Needs MPICH, LAMMPS and
/// the example programs, which `make build` makes. Other work on the machine disturbs the figures:
/// how much there was is part of the report.
#[derive(Args)]
#[command(after_long_help = EXAMPLES)]
pub struct BenchArgs {
    #[command(subcommand)]
    question: QuestionArg,
    #[command(flatten)]
    options: Options,
}

#[derive(Clone, Subcommand)]
enum QuestionArg {
    /// Half round trips between two ranks, 8 B to 4 MiB
    Pingpong,
    /// MPI_Alltoall, with 2, 4 and 8 ranks at one router
    Alltoall,
    /// Whole programs: LAMMPS, an integer sort, conjugate gradients, a stencil
    Apps,
    /// Six checkpoint strategies by number of checkpoints, and the pause by image size
    Checkpoint,
    /// Recoveries by image size and log length, phase by phase
    Recovery,
    /// Ranks that move, live and stopped: pauses, rounds, run time
    Migration,
    /// PPMR's experiments: ranks leave a node through files, or through a pipeline of buffers
    #[command(hide = true)]
    Ppmr(Box<ppmr::PpmrArgs>),
    /// The controller alone, by number of ranks, up to a million: its agents are simulated
    Scale,
}

const EXAMPLES: &str = "Examples:
  Does it work here?
      eyrie bench pingpong --quick
  The figure as well, and JSON for other programs:
      eyrie bench checkpoint --plot figure6.svg --json >checkpoint.json";

pub fn run(args: BenchArgs) -> anyhow::Result<i32> {
    let question = match args.question {
        QuestionArg::Pingpong => Question::Pingpong,
        QuestionArg::Alltoall => Question::Alltoall,
        QuestionArg::Apps => Question::Apps,
        QuestionArg::Checkpoint => Question::Checkpoint,
        QuestionArg::Recovery => Question::Recovery,
        QuestionArg::Migration => Question::Migration,
        QuestionArg::Ppmr(asked) => return ppmr::run(*asked, args.options),
        QuestionArg::Scale => {
            let Options { quick, json, plot, .. } = args.options;
            return scale::run(quick, json, plot.as_deref()).map(|()| 0);
        }
    };
    let setup = args.options.setup()?;
    let Options { rounds, quick, json, plot, .. } = args.options;
    if plot.is_some() && !question.has_figure() {
        anyhow::bail!("this measurement has no figure: leave --plot out");
    }
    let effort = Effort { rounds: rounds.unwrap_or(if quick { 2 } else { 5 }), quick };
    let report = answer(question, &setup, effort)?;
    if json {
        out::line(report.json())?;
    } else {
        out::text(&report.to_string())?;
    }
    if let (Some(path), Some(chart)) = (plot, report.chart()) {
        plot::draw(chart, &path)?;
    }
    if let Some(warning) = report.warning() {
        out::say(format!("eyrie bench: {warning}"));
    }
    Ok(0)
}
