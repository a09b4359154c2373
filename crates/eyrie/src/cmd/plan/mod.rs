//! `eyrie plan`: where a failed node's ranks go, and what it costs. Reads arguments and files, prints and writes
//! results; every decision is eyrie-placement's.

use std::path::PathBuf;

use anyhow::{bail, Context};
use clap::{Args, Subcommand};
use eyrie_placement::emit::{self, Format};
use eyrie_placement::{method, Method, Outcome, Planner};
use eyrie_topology::NodeId;

mod instance;
mod json;
mod picture;
mod sweep;
mod table;

use instance::{Instance, InstanceArgs};

/// Say where a failed node's ranks should go, and what it costs.
///
/// Lays a job and its spares on a network, lets nodes fail, and compares the published substitution methods and a
/// search that is never worse than the best of them.
#[derive(Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    allow_negative_numbers = true,
    after_help = "Examples:\n  \
    eyrie plan --network torus:12x12 --spares '2d(2,1)' --failed 5,5\n  \
    eyrie plan --network tofu:2x1x6x2x3x2:shape=12x12 --spares contiguous:12 --failed 3,4 --picture plan.svg\n  \
    eyrie plan --network slurm:topology.conf --job 4x4 --failed tux7 --method search --emit hostfile hosts\n  \
    eyrie plan sweep --network mesh:13x13 --sequences 100 --failures 5 --out sweep"
)]
pub struct PlanArgs {
    #[command(subcommand)]
    command: Option<PlanCommand>,

    #[command(flatten)]
    instance: Option<InstanceArgs>,

    /// A node that fails: coordinates (5,5), a node number or a node name; repeat for several failures
    #[arg(long, value_name = "NODE", required = true)]
    failed: Vec<String>,

    /// All failures at once instead of one after another
    #[arg(long)]
    at_once: bool,

    /// squeeze, first-free, 0d, 1d, 2d, 3d (any nd), hybrid, search, or all of them
    #[arg(long, default_value = "all")]
    method: String,

    /// Print JSON (docs/plan-schema.json) instead of a table
    #[arg(long)]
    json: bool,

    /// Write the placement of the method (of search, with all) to a file: permutation, hostfile, rankfile or rankmap
    #[arg(long, num_args = 2, value_names = ["FORMAT", "FILE"], action = clap::ArgAction::Append)]
    emit: Vec<String>,

    /// Draw nodes, spares, failed and moved ranks and link loads as SVG
    #[arg(long, value_name = "FILE.svg")]
    picture: Option<PathBuf>,
}

#[derive(Subcommand)]
enum PlanCommand {
    /// Run all failed x spare pairs, or N random failure sequences, and write a table and plots
    Sweep(sweep::SweepArgs),
}

pub fn run(args: PlanArgs) -> anyhow::Result<i32> {
    if let Some(PlanCommand::Sweep(args)) = args.command {
        return sweep::run(args);
    }
    let Some(instance_args) = args.instance else {
        bail!("--network is needed: see eyrie plan --help")
    };
    let instance = Instance::read(&instance_args)?;
    let methods = methods(&args.method, &instance)?;
    let failed = instance.failed(&args.failed)?;
    let groups: Vec<Vec<NodeId>> = match args.at_once {
        true => vec![failed.clone()],
        false => failed.iter().map(|&n| vec![n]).collect(),
    };
    let formats =
        args.emit.chunks(2).map(|pair| format(&pair[0])).collect::<Result<Vec<_>, _>>()?;

    let planner = instance.planner()?;
    let outcomes = planner.compare(&methods, &groups)?;
    let chosen = chosen(&outcomes);
    if args.json {
        println!("{}", json::text(&instance, &planner, &failed, &outcomes)?);
    } else {
        table::print(&instance, &planner, &failed, &outcomes)?;
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
            let host = |n| emit::host_name(instance.network.as_ref(), &instance.names, n);
            write(pair[1].as_ref(), emit::text(*format, &placed.placement, &host))?;
        }
        if let Some(path) = &args.picture {
            write(path, picture::svg(&instance, &failed, placed))?;
        }
    }
    Ok(if chosen.is_some_and(|o| o.result.is_ok()) { 0 } else { 2 })
}

/// The outcome that is written to files: search if it ran, else the first that is not stuck.
fn chosen(outcomes: &[Outcome]) -> Option<&Outcome> {
    let search = outcomes.iter().find(|o| o.method == Method::Search);
    search.or_else(|| outcomes.iter().find(|o| o.result.is_ok())).or(outcomes.first())
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

/// The methods named on the command line, comma-separated.
fn methods(text: &str, instance: &Instance) -> anyhow::Result<Vec<Method>> {
    let axes = instance.laid.layout.dims().len();
    if text == "all" {
        let mut methods = vec![Method::Squeeze];
        methods.extend(Method::published(axes));
        methods.push(Method::Search);
        return Ok(methods);
    }
    text.split(',')
        .map(|name| match Method::parse(name.trim()) {
            Some(Method::Slide(k)) if k > axes => {
                bail!("--method {k}d: the grid has {axes} axes, so at most {axes}d")
            }
            Some(method) => Ok(method),
            None => bail!("--method `{name}`: {}", method::FORMS),
        })
        .collect()
}

/// Seconds as a person reads them.
fn seconds(s: f64) -> String {
    match s {
        s if s < 1e-3 => format!("{:.1} us", s * 1e6),
        s if s < 1.0 => format!("{:.2} ms", s * 1e3),
        s => format!("{s:.2} s"),
    }
}

/// What the network does with messages of others at dead nodes, if it is worth saying.
fn detour_lines(
    planner: &Planner,
    failed: &[NodeId],
    outcome: &Outcome,
) -> anyhow::Result<Vec<String>> {
    let Ok(placed) = &outcome.result else { return Ok(Vec::new()) };
    if placed.squeezed.is_some() {
        return Ok(Vec::new());
    }
    let Some(report) = planner.detours(failed, &placed.placement)? else { return Ok(Vec::new()) };
    let mut lines = vec![format!(
        "routes round dead routers: {} in the deadlock-free order, {} outside it",
        report.in_order, report.around
    )];
    lines.extend(report.violations);
    Ok(lines)
}
