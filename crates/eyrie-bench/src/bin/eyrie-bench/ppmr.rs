//! `eyrie-bench ppmr`: the arguments of PPMR's experiments, and the processes that they start.

use super::options::Options as Common;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::Args;
use eyrie_bench::plot;
use eyrie_bench::ppmr::{be_part, measure, Experiment, Kind, Options, Rdma, Way};
use eyrie_cli::out;
use std::path::PathBuf;

/// Ranks of this many MiB each are moved; runs take the one in the middle.
const MIB: [u64; 3] = [8, 32, 64];
const QUICK_MIB: [u64; 1] = [4];

#[derive(Clone, Args)]
pub struct PpmrArgs {
    /// What to measure [default: all]
    #[arg(value_name = "EXPERIMENT", value_parser = experiments())]
    experiments: Vec<Experiment>,
    /// Only these ways
    #[arg(long = "way", value_name = "WAY,...", value_delimiter = ',', value_parser = ways())]
    ways: Vec<Way>,
    /// Only programs of these kinds: like NPB's LU, BT, SP
    #[arg(long = "kind", value_name = "KIND,...", value_delimiter = ',', value_parser = kinds())]
    kinds: Vec<Kind>,
    /// Ranks that leave the node
    #[arg(long, value_name = "N", default_value_t = 8)]
    ranks: u32,
    /// Memory of a rank in MiB, one or several sizes, the middle one for runs [default: 8,32,64,
    /// with --quick 4]
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    mib: Vec<u64>,
    /// Buffers of each node
    #[arg(long, value_name = "SIZE", default_value = "8MiB", value_parser = eyrie_units::size)]
    pool: u64,
    /// Bytes pulled at a time
    #[arg(long, value_name = "SIZE", default_value = "128KiB", value_parser = eyrie_units::size)]
    chunk: u64,
    /// Connections, or reads of remote memory under way, at the same time
    #[arg(long, value_name = "N", default_value_t = 4)]
    streams: usize,
    /// The site's libfabric [default: that of the virtual environment's MPICH]
    #[arg(long, value_name = "FILE")]
    libfabric: Option<PathBuf>,
    /// Its provider, which must read remote memory
    #[arg(long, value_name = "NAME", default_value = "tcp")]
    provider: String,
    /// The address at which it is reached here
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    address: String,
    /// A network of their own between the nodes, of this rate as tc has it (1gbit); needs root
    #[arg(long, value_name = "RATE", conflicts_with = "address")]
    rate: Option<String>,
    /// Run as a process of an experiment; used by the experiments
    #[arg(long, hide = true, exclusive = true, num_args = 1.., value_name = "WORD")]
    part: Vec<String>,
    #[command(flatten)]
    common: Common,
}

fn experiments() -> impl TypedValueParser<Value = Experiment> {
    let named = |name: String| Experiment::ALL.into_iter().find(|e| e.name() == name);
    PossibleValuesParser::new(Experiment::ALL.map(Experiment::name))
        .try_map(move |name| named(name).ok_or("no such experiment"))
}

fn ways() -> impl TypedValueParser<Value = Way> {
    PossibleValuesParser::new(Way::ALL.map(Way::name)).try_map(|name| name.parse::<Way>())
}

fn kinds() -> impl TypedValueParser<Value = Kind> {
    PossibleValuesParser::new(Kind::ALL.map(Kind::name)).try_map(|name| name.parse::<Kind>())
}

pub fn run(asked: PpmrArgs) -> anyhow::Result<i32> {
    if !asked.part.is_empty() {
        return be_part(&asked.part).map(|()| 0);
    }
    let setup = asked.common.setup()?;
    let effort = asked.common.effort();
    let Common { quick, json, plot, .. } = asked.common;
    let library = asked.libfabric.unwrap_or_else(|| setup.venv.join("lib/mpich/libfabric.so.1"));
    let mib = match (asked.mib.is_empty(), quick) {
        (false, _) => asked.mib,
        (true, true) => QUICK_MIB.to_vec(),
        (true, false) => MIB.to_vec(),
    };
    let options = Options {
        ways: all_or(&Way::ALL, asked.ways),
        kinds: all_or(if quick { &Kind::ALL[..1] } else { &Kind::ALL }, asked.kinds),
        ranks: asked.ranks,
        mib,
        pool: usize::try_from(asked.pool)?,
        chunk: usize::try_from(asked.chunk)?,
        streams: asked.streams,
        setup,
        rdma: Rdma { library: std::path::absolute(library)?, provider: asked.provider },
        address: asked.address,
        rate: asked.rate,
    };
    let experiments = all_or(&Experiment::ALL, asked.experiments);
    let report = measure(&experiments, &options, effort)?;
    if json {
        out::line(report.json())?;
    } else {
        out::text(&report.to_string())?;
    }
    if let (Some(path), Some(chart)) = (plot, report.chart()) {
        plot::draw(chart, &path)?;
    }
    if let Some(warning) = report.warning() {
        out::say(format!("eyrie-bench: {warning}"));
    }
    Ok(0)
}

/// The given ones, or all.
fn all_or<T: Clone>(all: &[T], asked: Vec<T>) -> Vec<T> {
    if asked.is_empty() {
        return all.to_vec();
    }
    asked
}
