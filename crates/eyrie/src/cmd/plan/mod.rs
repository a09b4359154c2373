//! `eyrie plan`: where a failed node's ranks go, and what it costs. Reads arguments and files,
//! prints and writes results; every decision is eyrie-placement's.

use std::path::PathBuf;
use std::sync::mpsc::{channel, RecvTimeoutError};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use anyhow::{anyhow, bail, Context};
use clap::Args;
use eyrie_cli::ending;
use eyrie_cli::instance::{methods, InstanceArgs};
use eyrie_cli::out;
use eyrie_cli::progress;
use eyrie_placement::emit::{self, Format};
use eyrie_placement::{method, Instance, Method, Outcome, Planner, Progress, Stuck};
use eyrie_topology::NetworkNode;
use eyrie_units::{duration, written};

mod json;
mod picture;
mod table;

/// Say where a failed node's ranks should go, and what it costs.
///
/// Lays a job and its spares on a network, lets nodes fail, and compares the published substitution
/// methods and a search that is never worse than the best of them.
#[derive(Args)]
#[command(
    allow_negative_numbers = true,
    after_help = "Examples:\n  \
    eyrie plan --network torus:12x12 --spares '2d(2,1)' --failed 5,5\n  \
    eyrie plan --network tofu:2x1x6x2x3x2:shape=12x12 --spares contiguous:12 --failed 3,4 --picture plan.svg\n  \
    eyrie plan --network slurm:topology.conf --job 4x4 --failed tux7 --method search --emit hostfile hosts"
)]
pub struct PlanArgs {
    #[command(flatten)]
    instance: InstanceArgs,

    /// A node that fails: coordinates (5,5), a node number or a node name; repeat for several
    /// failures
    #[arg(long, value_name = "NODE", required = true)]
    failed: Vec<String>,

    /// All failures at once instead of one after another
    #[arg(long)]
    at_once: bool,

    /// squeeze, first-free, 0d, 1d, 2d, 3d (any nd), hybrid, search, or all of them
    #[arg(long, default_value = method::ALL)]
    method: String,

    /// Print JSON (docs/plan-schema.json) instead of a table
    #[arg(long)]
    json: bool,

    /// Write the placement of the method (of search, with all) to a file: permutation, hostfile,
    /// rankfile or rankmap
    #[arg(long, num_args = 2, value_names = ["FORMAT", "FILE"], action = clap::ArgAction::Append)]
    emit: Vec<String>,

    /// Draw nodes, spares, failed and moved ranks and link loads as SVG
    #[arg(long, value_name = "FILE.svg")]
    picture: Option<PathBuf>,

    /// Most time that planning may take; methods that have not ended by then are left out
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = duration)]
    limit: Duration,
}

pub fn run(args: &PlanArgs) -> anyhow::Result<i32> {
    let instance_args = &args.instance;
    let formats =
        args.emit.chunks(2).map(|pair| format(&pair[0])).collect::<Result<Vec<_>, _>>()?;
    let progress =
        progress::Progress::start(instance_args.progress, "planning: reading the network");
    within(args.limit, args, instance_args, progress, |plan| conclude(args, &formats, &plan))
}

/// Prints and writes a plan; returns the exit code.
fn conclude(args: &PlanArgs, formats: &[Format], plan: &Plan) -> anyhow::Result<i32> {
    let chosen = plan.chosen();
    if args.json {
        out::line(json::text(plan)?)?;
    } else {
        out::text(&table::text(plan)?)?;
    }
    let write = |path: &std::path::Path, text: String| {
        std::fs::write(path, text).with_context(|| format!("writing {}", path.display()))
    };
    if !formats.is_empty() || args.picture.is_some() {
        let Some(Outcome { result: Ok(placed), .. }) = chosen else {
            bail!("no method found a placement: nothing to write");
        };
        for (format, pair) in formats.iter().zip(args.emit.chunks(2)) {
            if placed.squeezed.is_some() {
                bail!("squeezing moves no rank: there is no {} to write", pair[0]);
            }
            let Instance { network, names, .. } = plan.instance;
            let host = |n| emit::host_name(network.as_ref(), names, n);
            write(pair[1].as_ref(), emit::text(*format, &placed.placement, &host))?;
        }
        if let Some(path) = &args.picture {
            write(path, picture::svg(plan.instance, &plan.failed, placed))?;
        }
    }
    Ok(if chosen.is_some_and(|o| o.result.is_ok()) { 0 } else { 2 })
}

/// A plan and what it was made from.
struct Plan<'a> {
    instance: &'a Instance,
    planner: &'a Planner<'a>,
    failed: Vec<NetworkNode>,
    outcomes: Vec<Outcome>,
}

impl Plan<'_> {
    /// The outcome that is written to files: search if it found anything, else the first that did.
    fn chosen(&self) -> Option<&Outcome> {
        let found = |o: &&Outcome| o.result.is_ok();
        let search = self.outcomes.iter().find(|o| o.method == Method::Search).filter(found);
        search.or_else(|| self.outcomes.iter().find(found)).or(self.outcomes.first())
    }

    /// What the network does with messages of others at dead nodes, if it is worth saying.
    fn detour_lines(&self, outcome: &Outcome) -> anyhow::Result<Vec<String>> {
        let Ok(placed) = &outcome.result else { return Ok(Vec::new()) };
        if placed.squeezed.is_some() {
            return Ok(Vec::new());
        }
        let report = self.planner.detours(&self.failed, &placed.placement)?;
        let Some(report) = report else { return Ok(Vec::new()) };
        let mut lines = vec![format!(
            "routes round dead routers: {} in the deadlock-free order, {} outside it",
            report.in_order, report.around
        )];
        lines.extend(report.violations);
        Ok(lines)
    }
}

/// What the planning thread sends.
enum Update {
    Doing(String),
    Ready { failed: Vec<NetworkNode>, methods: Vec<Method> },
    Ends(Box<Outcome>),
    Failed(anyhow::Error),
}

/// Plans in a thread and concludes with what it has when it ends or `limit` is over. The thread
/// cannot be stopped then: the process ends with it.
fn within(
    limit: Duration,
    args: &PlanArgs,
    instance_args: &InstanceArgs,
    progress: progress::Progress,
    conclude: impl FnOnce(Plan) -> anyhow::Result<i32>,
) -> anyhow::Result<i32> {
    let instance = OnceLock::new();
    let planner = OnceLock::new();
    let (sender, updates) = channel();
    let until = Instant::now() + limit;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // The receiver is gone when the time is over.
            let send = move |what| drop(sender.send(what));
            if let Err(e) = work(args, instance_args, &instance, &planner, &send) {
                send(Update::Failed(e));
            }
        });
        let mut failed = Vec::new();
        let mut methods = Vec::new();
        let mut outcomes = Vec::new();
        let mut doing = String::from("the network was being read");
        let late = loop {
            match updates.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(Update::Doing(what)) => {
                    progress.now(format!("planning: {what}"));
                    doing = what;
                }
                Ok(Update::Ready { failed: f, methods: m }) => (failed, methods) = (f, m),
                Ok(Update::Ends(outcome)) => outcomes.push(*outcome),
                Ok(Update::Failed(e)) => return Err(e),
                Err(RecvTimeoutError::Disconnected) => break false,
                Err(RecvTimeoutError::Timeout) => break true,
            }
        };
        drop(progress);
        let concluded = match (instance.get(), planner.get()) {
            (Some(instance), Some(planner)) if !methods.is_empty() => {
                complete(planner, &methods, &mut outcomes, limit);
                conclude(Plan { instance, planner, failed, outcomes })
            }
            _ => {
                let limit = written(limit);
                Err(anyhow!("no plan within {limit} ({doing}): --limit gives more time"))
            }
        };
        match (late, concluded) {
            (true, Ok(code)) => std::process::exit(code),
            (true, Err(e)) => ending::fail(&e, 1),
            (false, concluded) => concluded,
        }
    })
}

/// Reads everything and runs the methods, telling what is done.
fn work<'a>(
    args: &PlanArgs,
    instance_args: &InstanceArgs,
    instance: &'a OnceLock<Instance>,
    planner: &OnceLock<Planner<'a>>,
    send: &dyn Fn(Update),
) -> anyhow::Result<()> {
    let read = instance_args.instance()?;
    let instance = instance.get_or_init(|| read);
    let methods = methods(&args.method, instance)?;
    let failures = instance.failures(&args.failed, args.at_once)?;
    send(Update::Doing("the job before any failure".into()));
    let made = instance_args.planner(instance)?;
    let planner = planner.get_or_init(|| made);
    let failed = failures.nodes();
    let count = methods.len();
    send(Update::Ready { failed, methods: methods.clone() });
    planner.plan(&methods, &failures, &mut |progress| {
        send(match progress {
            Progress::Begins(method, Some(i)) => {
                Update::Doing(format!("{} ({} of {count})", method.name(), i + 1))
            }
            Progress::Begins(method, None) => {
                Update::Doing(format!("{} to compare with", method.name()))
            }
            Progress::Ends(outcome) => Update::Ends(outcome),
        })
    })?;
    Ok(())
}

/// The outcomes of all methods asked for, in order, with break-even; those that did not end say so.
fn complete(planner: &Planner, methods: &[Method], outcomes: &mut Vec<Outcome>, limit: Duration) {
    planner.weigh(outcomes, methods);
    let late = methods[outcomes.len()..].iter().map(|&method| {
        let why = format!("it did not end within {}: --limit gives more time", written(limit));
        Outcome { method, result: Err(Stuck { after: 0, why }) }
    });
    outcomes.extend(late);
}

fn format(text: &str) -> anyhow::Result<Format> {
    Ok(match text {
        "permutation" => Format::Permutation,
        "hostfile" => Format::Hostfile,
        "rankfile" => Format::Rankfile,
        "rankmap" => Format::Rankmap,
        _ => bail!("--emit `{text}`: permutation, hostfile, rankfile or rankmap"),
    })
}

/// Seconds as a person reads them.
fn seconds(s: f64) -> String {
    eyrie_units::nanoseconds(s * 1e9)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        instance: InstanceArgs,
    }

    #[test]
    fn methods_that_did_not_end_say_so_and_the_others_stand() {
        let line = Line::parse_from(["plan", "--network", "torus:7x7"]);
        let instance = line.instance.instance().unwrap();
        let planner = line.instance.planner(&instance).unwrap();
        let methods = [Method::FirstFree, Method::Best0D, Method::Search];
        let failures = instance.failures(&["1,2".into()], false).unwrap();
        let mut outcomes =
            methods[..2].iter().map(|&m| planner.run(m, &failures).unwrap()).collect();
        complete(&planner, &methods, &mut outcomes, Duration::from_secs(3));
        assert_eq!(outcomes.iter().map(|o| o.method).collect::<Vec<_>>(), methods);
        let search = outcomes[2].result.as_ref().unwrap_err();
        assert!(search.why.contains("did not end within 3s"), "{}", search.why);
        let instance = &instance;
        let planner = &planner;
        let plan = Plan { instance, planner, failed: failures.nodes(), outcomes };
        assert_eq!(plan.chosen().map(|o| o.method), Some(Method::FirstFree));
        assert_eq!(plan.outcomes[1].result.as_ref().unwrap().break_even, Some(0));
    }
}
