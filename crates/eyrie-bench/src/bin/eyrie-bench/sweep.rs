//! `eyrie-bench sweep`: all failed × spare pairs, or random failure sequences; a table and plots.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{anyhow, bail, Context};
use clap::Args;
use eyrie_cli::instance::{methods, InstanceArgs};
use eyrie_cli::out;
use eyrie_cli::progress::Progress;
use eyrie_cli::table::align;
use eyrie_placement::evaluate::Evaluator;
use eyrie_placement::{fluid, method, CostModel, Instance, Method};
use eyrie_topology::NetworkNode;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::SeedableRng;
use rayon::prelude::*;

/// Run all failed x spare pairs, or N random failure sequences, and write a table and plots.
#[derive(Args)]
#[command(allow_negative_numbers = true)]
pub struct SweepArgs {
    #[command(flatten)]
    instance: InstanceArgs,

    /// N random sequences of failures instead of all failed x spare pairs
    #[arg(long, value_name = "N")]
    sequences: Option<usize>,

    /// Failures in each sequence
    #[arg(long, value_name = "COUNT", default_value_t = 5, requires = "sequences")]
    failures: usize,

    /// Seed of the first sequence; the next have the next numbers
    #[arg(long, default_value_t = 1, requires = "sequences")]
    seed: u64,

    /// What fails next: the first node of a random rank, the same for every method (node), or
    /// wherever that rank is by then, so that every failure hits a rank (rank)
    #[arg(
        long,
        value_name = "WHAT",
        default_value = "node",
        requires = "sequences",
        value_parser = ["node", "rank"]
    )]
    fails: String,

    /// Methods of the sequences, comma-separated, or all
    #[arg(long, default_value = method::ALL, requires = "sequences")]
    method: String,

    /// Directory for sweep.csv and the SVG plots
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

pub fn run(args: SweepArgs) -> anyhow::Result<i32> {
    let count = Count {
        progress: Progress::start(args.instance.progress, "sweep: reading the network"),
        done: AtomicUsize::new(0),
    };
    let instance = args.instance.instance()?;
    std::fs::create_dir_all(&args.out).with_context(|| format!("making {}", args.out.display()))?;
    let table = match args.sequences {
        None => pairs(&instance, &args.instance.costs()?, &args.out, &count)?,
        Some(0) => bail!("--sequences 0: at least 1"),
        Some(sequences) => self::sequences(&instance, &args, sequences, &count)?,
    };
    drop(count);
    out::text(&table)?;
    Ok(0)
}

/// How much has been done, for the progress line.
struct Count {
    progress: Progress,
    done: AtomicUsize,
}

impl Count {
    fn begin(&self, what: &str, all: usize) {
        self.done.store(0, Ordering::Relaxed);
        self.progress.now(format!("sweep: {what}: 0 of {all}"));
    }

    fn one_more(&self, what: &str, all: usize) {
        let done = 1 + self.done.fetch_add(1, Ordering::Relaxed);
        self.progress.now(format!("sweep: {what}: {done} of {all}"));
    }
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(path, text).with_context(|| format!("writing {}", path.display()))
}

/// Every node of the job fails and every spare replaces it: messages on the busiest link and
/// slowdown, as a table. A node goes by its lowest rank.
fn pairs(
    instance: &Instance,
    costs: &CostModel,
    out: &Path,
    count: &Count,
) -> anyhow::Result<String> {
    let evaluator =
        Evaluator { network: instance.network.as_ref(), traffic: &instance.job.traffic };
    let base = evaluator.count(instance.job.home.clone())?;
    let before_s = fluid::step_time(&evaluator, &base, costs)?;
    let mut ranks_of: BTreeMap<NetworkNode, Vec<u32>> = BTreeMap::new();
    for (rank, &node) in (0..).zip(&instance.job.home) {
        ranks_of.entry(node).or_default().push(rank);
    }
    let mut of_nodes: Vec<Vec<u32>> = ranks_of.into_values().collect();
    of_nodes.sort_unstable();
    let pairs: Vec<(&[u32], NetworkNode)> = of_nodes
        .iter()
        .flat_map(|ranks| instance.laid.spares.iter().map(move |&spare| (&ranks[..], spare)))
        .collect();
    count.begin("pairs", pairs.len());
    let results: Vec<(u64, f64)> = pairs
        .par_iter()
        .map_init(
            || evaluator.scratch(),
            |scratch, &(ranks, spare)| {
                let moves: Vec<_> = ranks.iter().map(|rank| (*rank, spare)).collect();
                let counted = evaluator.apply(&base, &moves, scratch)?;
                let step_s = fluid::step_time(&evaluator, &counted, costs)?;
                count.one_more("pairs", pairs.len());
                Ok((counted.score.messages, step_s / before_s))
            },
        )
        .collect::<anyhow::Result<_>>()?;
    let mut csv = String::from("rank,failed,spare,busiest_link,slowdown\n");
    let mut by_load: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
    for (&(ranks, spare), &(load, ratio)) in pairs.iter().zip(&results) {
        let rank = ranks[0];
        let failed = instance.job.home[rank as usize];
        csv += &format!("{rank},{failed},{spare},{load},{ratio:.4}\n");
        by_load.entry(load).or_default().push(ratio);
    }
    write(&out.join("sweep.csv"), &csv)?;
    let mut rows =
        vec![["messages", "pairs", "least", "median", "largest"].map(String::from).to_vec()];
    for (load, ratios) in &mut by_load {
        ratios.sort_by(f64::total_cmp);
        rows.push(vec![
            load.to_string(),
            ratios.len().to_string(),
            format!("{:.2}x", ratios[0]),
            format!("{:.2}x", ratios[ratios.len() / 2]),
            format!("{:.2}x", ratios[ratios.len() - 1]),
        ]);
    }
    plot_pairs(&out.join("pairs.svg"), instance, &by_load)?;
    Ok(align(&rows))
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
type Drawn<'a> = Result<(), DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>>;
type Chart<'a> = ChartContext<'a, SVGBackend<'a>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

/// What is around a chart; both axes begin near 0.
struct Frame<'f> {
    size: (u32, u32),
    title: String,
    x: std::ops::Range<f64>,
    x_desc: &'f str,
    x_labels: usize,
    /// The largest value.
    largest: f64,
    y_desc: &'f str,
}

impl Frame<'_> {
    /// Draws a chart into an SVG file. It draws in memory first: the backend by itself does not
    /// report a full disk.
    fn draw(
        self,
        path: &Path,
        what: impl for<'a> FnOnce(&mut Chart<'a>) -> Drawn<'a>,
    ) -> anyhow::Result<()> {
        let mut svg = String::new();
        let root = SVGBackend::with_string(&mut svg, self.size).into_drawing_area();
        self.draw_in(&root, what)
            .and_then(|()| root.present())
            .map_err(|e| anyhow!("drawing {}: {e}", path.display()))?;
        drop(root);
        write(path, &svg)
    }

    fn draw_in<'a>(
        self,
        root: &Area<'a>,
        what: impl FnOnce(&mut Chart<'a>) -> Drawn<'a>,
    ) -> Drawn<'a> {
        root.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(root)
            .caption(self.title, ("sans-serif", 18))
            .margin(14)
            .x_label_area_size(42)
            .y_label_area_size(52)
            .build_cartesian_2d(self.x, 0.0..self.largest * 1.1)?;
        chart
            .configure_mesh()
            .x_desc(self.x_desc)
            .y_desc(self.y_desc)
            .x_labels(self.x_labels)
            .x_label_formatter(&|x| format!("{x:.0}"))
            .draw()?;
        what(&mut chart)
    }
}

fn plot_pairs(
    path: &Path,
    instance: &Instance,
    by_load: &BTreeMap<u64, Vec<f64>>,
) -> anyhow::Result<()> {
    let largest = by_load.values().flatten().copied().fold(1.0, f64::max);
    let most = by_load.keys().last().copied().unwrap_or(1);
    let title = format!("{}, {}", instance.network.describe(), instance.job.traffic.name);
    let frame = Frame {
        size: (760, 440),
        title,
        x: 0.5..most as f64 + 0.5,
        x_desc: "messages on the busiest link (failed x spare pairs: least, median, largest)",
        x_labels: most as usize + 1,
        largest,
        y_desc: "slowdown",
    };
    frame.draw(path, |chart| {
        for (&load, ratios) in by_load {
            let x = load as f64;
            let low = ratios[0];
            let middle = ratios[ratios.len() / 2];
            let high = ratios[ratios.len() - 1];
            chart
                .draw_series([PathElement::new(vec![(x, low), (x, high)], BLUE.stroke_width(3))])?;
            chart.draw_series([low, high].map(|y| Circle::new((x, y), 3, BLUE.filled())))?;
            chart.draw_series([Circle::new((x, middle), 6, RED.filled())])?;
        }
        Ok(())
    })
}

/// The result of one method after one failure of one sequence.
struct Point {
    load: u64,
    ratio: f64,
    moved: usize,
}

fn sequences(
    instance: &Instance,
    args: &SweepArgs,
    count: usize,
    counted: &Count,
) -> anyhow::Result<String> {
    let ranks = instance.job.ranks();
    if args.failures == 0 || args.failures > ranks {
        bail!("--failures {}: 1 to {ranks}", args.failures);
    }
    let by_rank = args.fails == "rank";
    let planner = args.instance.planner(instance)?;
    let mut methods = methods(&args.method, instance)?;
    methods.retain(|m| *m != Method::Squeeze || args.method != method::ALL);
    let mut csv = String::from("method,seed,failures,busiest_link,slowdown,ranks_moved\n");
    let mut table: Vec<Vec<String>> = vec![[
        "method",
        "failures",
        "mean load",
        "largest",
        "mean slowdown",
        "largest",
        "mean moved",
        "stuck",
    ]
    .map(String::from)
    .to_vec()];
    let mut lines: Vec<(String, Vec<(f64, f64)>)> = Vec::new();
    for &method in &methods {
        let what = format!("sequences of {}", method.name());
        counted.begin(&what, count);
        let trails: Vec<Vec<Point>> = (0..count)
            .into_par_iter()
            .map(|i| {
                let mut order: Vec<usize> = (0..ranks).collect();
                order.shuffle(&mut SmallRng::seed_from_u64(args.seed + i as u64));
                let mut walk = planner.walk(method, &[])?;
                let mut trail = Vec::new();
                for &rank in order.iter().take(args.failures) {
                    let node =
                        if by_rank { walk.placement()[rank] } else { instance.job.home[rank] };
                    let Ok(p) = walk.fail(&[node])?.result else { break };
                    trail.push(Point { load: p.score.messages, ratio: p.ratio, moved: p.moved });
                }
                counted.one_more(&what, count);
                Ok(trail)
            })
            .collect::<anyhow::Result<_>>()?;
        let mut line = Vec::new();
        for k in 1..=args.failures {
            let points: Vec<&Point> = trails.iter().filter_map(|t| t.get(k - 1)).collect();
            let n = points.len().max(1) as f64;
            let largest = points.iter().map(|p| p.ratio).fold(0.0, f64::max);
            table.push(vec![
                method.name(),
                k.to_string(),
                format!("{:.2}", points.iter().map(|p| p.load as f64).sum::<f64>() / n),
                points.iter().map(|p| p.load).max().unwrap_or(0).to_string(),
                format!("{:.2}x", points.iter().map(|p| p.ratio).sum::<f64>() / n),
                format!("{largest:.2}x"),
                format!("{:.1}", points.iter().map(|p| p.moved as f64).sum::<f64>() / n),
                (count - points.len()).to_string(),
            ]);
            if !points.is_empty() {
                line.push((k as f64, largest));
            }
        }
        for (i, trail) in trails.iter().enumerate() {
            for (k, p) in trail.iter().enumerate() {
                csv += &format!(
                    "{},{},{},{},{:.4},{}\n",
                    method.name(),
                    args.seed + i as u64,
                    k + 1,
                    p.load,
                    p.ratio,
                    p.moved
                );
            }
        }
        lines.push((method.name(), line));
    }
    write(&args.out.join("sweep.csv"), &csv)?;
    plot_sequences(&args.out.join("sequences.svg"), instance, count, args.failures, &lines)?;
    Ok(align(&table))
}

fn plot_sequences(
    path: &Path,
    instance: &Instance,
    count: usize,
    failures: usize,
    lines: &[(String, Vec<(f64, f64)>)],
) -> anyhow::Result<()> {
    let largest = lines.iter().flat_map(|(_, l)| l).map(|p| p.1).fold(1.0, f64::max);
    let title =
        format!("{}, {}, worst of {count}", instance.network.describe(), instance.job.traffic.name);
    let frame = Frame {
        size: (820, 460),
        title,
        x: 0.8..failures as f64 + 0.2,
        x_desc: "failures",
        x_labels: failures,
        largest,
        y_desc: "largest slowdown",
    };
    frame.draw(path, |chart| {
        for (i, (name, line)) in lines.iter().enumerate() {
            let color = Palette99::pick(i).to_rgba();
            chart
                .draw_series(LineSeries::new(line.clone(), color.stroke_width(2)).point_size(3))?
                .label(name.clone())
                .legend(move |(x, y)| {
                    PathElement::new(vec![(x, y), (x + 18, y)], color.stroke_width(2))
                });
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.85))
            .border_style(BLACK.mix(0.3))
            .draw()
    })
}
