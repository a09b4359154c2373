//! `eyrie-bench monitor`: arguments and output of the measurements of the monitor.

use super::options::{effort, eyrie};
use clap::{Args, Subcommand};
use eyrie_bench::monitor::{answer, member, Question, Setup, Source};
use eyrie_bench::plot;
use eyrie_cli::out;
use eyrie_units::positive_duration;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Subcommand)]
pub enum MonitorCommand {
    Noise(NoiseArgs),
    Bench(BenchArgs),
    Slowdown(SlowdownArgs),
    Papers(PapersArgs),
    /// One of a crowd of idle processes; started by `eyrie-bench monitor bench`
    #[command(hide = true)]
    CrowdMember(CrowdMemberArgs),
}

/// Options of all measurements.
#[derive(Args)]
struct Common {
    /// How often everything is measured, in turn [default: 5, with --quick 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    /// Few and short measurements: to see that everything works, not to rely on
    #[arg(long)]
    quick: bool,
    /// Print JSON instead of tables
    #[arg(long)]
    json: bool,
    /// Virtual environment with MPICH
    #[arg(long, value_name = "DIR", default_value = "build/venv", hide_short_help = true)]
    venv: PathBuf,
    /// The compiled example programs
    #[arg(long, value_name = "DIR", default_value = "build/examples", hide_short_help = true)]
    examples: PathBuf,
    /// process-exporter and collectl, unpacked by scripts/monitor-tools.sh
    #[arg(long, value_name = "DIR", default_value = "build/tools", hide_short_help = true)]
    tools: PathBuf,
}

/// Measure how a loop of fixed work is interrupted, with and without the monitor.
#[derive(Args)]
pub struct NoiseArgs {
    /// Time from one sample to the next
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = positive_duration)]
    interval: Duration,
    #[command(flatten)]
    common: Common,
}

/// Measure what a sample costs, by reader, against process-exporter and collectl.
#[derive(Args)]
pub struct BenchArgs {
    /// Crowds of idle processes to sample: PROCESSES or PROCESSESxTHREADS
    #[arg(
        long,
        value_name = "N[xT],...",
        value_delimiter = ',',
        default_value = "200,200x16,2000",
        value_parser = crowd
    )]
    processes: Vec<(usize, usize)>,
    #[command(flatten)]
    common: Common,
}

/// Model the slowdown of a parallel job from 2 to 65,536 nodes, and check the model.
///
/// The job works for a grain of time on every node, then all nodes synchronize. The cost of a
/// sample, and how late it is, are measured here beside a real Allreduce loop on all processors,
/// unless --cost gives them.
#[derive(Args)]
pub struct SlowdownArgs {
    /// Work between two synchronizations
    #[arg(long, value_name = "TIME", default_value = "100us", value_parser = positive_duration)]
    grain: Duration,
    /// Time from one sample to the next
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = positive_duration)]
    interval: Duration,
    /// Idle processes to start and sample
    #[arg(long, value_name = "N", default_value_t = 200, conflicts_with = "cost")]
    processes: usize,
    /// CPU time of a sample, instead of measuring
    #[arg(long, value_name = "TIME", value_parser = positive_duration, requires = "skew")]
    cost: Option<Duration>,
    /// Largest skew between nodes, instead of measuring
    #[arg(long, value_name = "TIME", value_parser = positive_duration, requires = "cost")]
    skew: Option<Duration>,
    /// Draw the slowdown by number of nodes
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    #[command(flatten)]
    common: Common,
}

/// Measure and model the experiments of Kamoshida and Taura's paper.
#[derive(Args)]
pub struct PapersArgs {
    /// Idle processes to start and sample
    #[arg(long, value_name = "N", default_value_t = 200)]
    processes: usize,
    /// Draw the modelled slowdown
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    #[command(flatten)]
    common: Common,
}

#[derive(Args)]
pub struct CrowdMemberArgs {
    threads: usize,
}

/// Parses 200 or 200x16.
fn crowd(text: &str) -> Result<(usize, usize), String> {
    let (processes, threads) = text.split_once('x').unwrap_or((text, "1"));
    let number = |text: &str| text.parse::<usize>().ok().filter(|n| (1..=20_000).contains(n));
    match (number(processes), number(threads)) {
        (Some(processes), Some(threads)) if processes * threads <= 30_000 => {
            Ok((processes, threads))
        }
        _ => Err(format!(
            "{text:?} is no crowd: write for example 200 or 200x16, at most 30000 threads"
        )),
    }
}

fn report(question: &Question, common: &Common, figure: Option<&PathBuf>) -> anyhow::Result<i32> {
    let setup = Setup {
        eyrie: eyrie()?,
        venv: std::path::absolute(&common.venv)?,
        examples: std::path::absolute(&common.examples)?,
        tools: std::path::absolute(&common.tools)?,
    };
    let report = answer(question, &setup, effort(common.rounds, common.quick))?;
    if common.json {
        out::line(report.json())?;
    } else {
        out::text(&report.to_string())?;
    }
    if let (Some(path), Some(chart)) = (figure, report.chart()) {
        plot::draw(chart, path)?;
    }
    if let Some(warning) = report.warning() {
        out::say(format!("eyrie-bench: {warning}"));
    }
    Ok(0)
}

pub fn run(command: &MonitorCommand) -> anyhow::Result<i32> {
    match command {
        MonitorCommand::Noise(args) => noise(args),
        MonitorCommand::Bench(args) => bench(args),
        MonitorCommand::Slowdown(args) => slowdown(args),
        MonitorCommand::Papers(args) => papers(args),
        MonitorCommand::CrowdMember(args) => crowd_member(args),
    }
}

fn noise(args: &NoiseArgs) -> anyhow::Result<i32> {
    report(&Question::Noise { interval: args.interval }, &args.common, None)
}

fn bench(args: &BenchArgs) -> anyhow::Result<i32> {
    report(&Question::Cost { crowds: args.processes.clone() }, &args.common, None)
}

fn slowdown(args: &SlowdownArgs) -> anyhow::Result<i32> {
    let source = match (args.cost, args.skew) {
        (Some(cost), Some(skew)) => Source::Given { cost, skew },
        _ => Source::Measured { processes: args.processes },
    };
    let question = Question::Slowdown { grain: args.grain, interval: args.interval, source };
    report(&question, &args.common, args.plot.as_ref())
}

fn papers(args: &PapersArgs) -> anyhow::Result<i32> {
    report(&Question::Papers { processes: args.processes }, &args.common, args.plot.as_ref())
}

fn crowd_member(args: &CrowdMemberArgs) -> anyhow::Result<i32> {
    member(args.threads)?;
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crowds() {
        assert_eq!(crowd("200"), Ok((200, 1)));
        assert_eq!(crowd("200x16"), Ok((200, 16)));
        assert!(crowd("0").is_err() && crowd("2000x16").is_err() && crowd("x").is_err());
    }
}
