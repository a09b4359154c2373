//! The `eyrie-bench` command: Eyrie measured against the same programs without it, and the papers'
//! experiments. It has only arguments and output; the measurements are in the library.

mod monitor;
mod options;
mod ppmr;
mod scale;
mod sweep;

use clap::{Parser, Subcommand};
use eyrie_bench::{answer, plot, Question};
use eyrie_cli::{ending, out};
use eyrie_host::enough;
use options::Options;

/// Measures what Eyrie costs, and repeats the experiments of the papers that it follows.
///
/// Both sides of a comparison run in turn, round after round, on this machine. The results are
/// ratios with their spread, beside the figure of the paper. Jobs need MPICH, LAMMPS and the
/// example programs, which `make build` makes. Other work on the machine disturbs the figures: the
/// report says how much there was.
#[derive(Parser)]
#[command(name = "eyrie-bench", version, after_long_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Half round trips between two ranks, 8 B to 4 MiB
    Pingpong(Options),
    /// MPI_Alltoall, with 2, 4 and 8 ranks at one router
    Alltoall(Options),
    /// Whole programs: LAMMPS, an integer sort, conjugate gradients, a stencil
    Apps(Options),
    /// Six checkpoint strategies by number of checkpoints, and the pause by image size
    Checkpoint(Options),
    /// Recoveries by image size and log length, phase by phase
    Recovery(Options),
    /// Ranks that move, live and stopped: pauses, rounds, run time
    Migration(Options),
    /// PPMR's experiments: ranks leave a node through files, or through a pipeline of buffers
    Ppmr(Box<ppmr::PpmrArgs>),
    /// The controller alone, by number of ranks, up to a million: its agents are simulated
    Scale(scale::ScaleArgs),
    /// What the monitor costs, and what it would do to a parallel job
    #[command(subcommand)]
    Monitor(monitor::MonitorCommand),
    /// Run all failed x spare pairs, or N random failure sequences, and write a table and plots
    Sweep(Box<sweep::SweepArgs>),
}

const EXAMPLES: &str = "Examples:
  Does it work here?
      eyrie-bench pingpong --quick
  The figure as well, and JSON for other programs:
      eyrie-bench checkpoint --plot figure6.svg --json >checkpoint.json
  Will the monitor disturb a job on 4096 nodes?
      eyrie-bench monitor slowdown --plot slowdown.svg";

fn run(command: Command) -> anyhow::Result<i32> {
    match command {
        Command::Pingpong(options) => measure(Question::Pingpong, &options),
        Command::Alltoall(options) => measure(Question::Alltoall, &options),
        Command::Apps(options) => measure(Question::Apps, &options),
        Command::Checkpoint(options) => measure(Question::Checkpoint, &options),
        Command::Recovery(options) => measure(Question::Recovery, &options),
        Command::Migration(options) => measure(Question::Migration, &options),
        Command::Ppmr(args) => ppmr::run(*args),
        Command::Scale(args) => scale::run(&args),
        Command::Monitor(command) => monitor::run(&command),
        Command::Sweep(args) => sweep::run(*args),
    }
}

fn measure(question: Question, options: &Options) -> anyhow::Result<i32> {
    let setup = options.setup()?;
    if options.plot.is_some() && !question.has_figure() {
        anyhow::bail!("this measurement has no figure: leave --plot out");
    }
    let report = answer(question, &setup, options.effort())?;
    if options.json {
        out::line(report.json())?;
    } else {
        out::text(&report.to_string())?;
    }
    if let (Some(path), Some(chart)) = (&options.plot, report.chart()) {
        plot::draw(chart, path)?;
    }
    if let Some(warning) = report.warning() {
        out::say(format!("eyrie-bench: {warning}"));
    }
    Ok(0)
}

fn main() {
    ending::abort_on_panic();
    if let Err(lacking) = enough::for_a_command() {
        ending::fail(&anyhow::Error::msg(lacking), 1);
    }
    enough::prepare();
    let Cli { command } = Cli::try_parse().unwrap_or_else(|e| ending::refuse(&e));
    match run(command) {
        Ok(code) => std::process::exit(code),
        Err(e) => ending::fail(&e, 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_arguments_are_consistent() {
        Cli::command().debug_assert();
    }
}
