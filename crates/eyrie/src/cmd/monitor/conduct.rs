//! `eyrie monitor conduct`: what --sync once and always agree with.

use super::args;
use clap::Args;
use eyrie_cli::out;
use eyrie_exporter::listen::address;
use eyrie_monitor::sync::Conductor;
use eyrie_units::positive_duration;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Send ticks and the time to monitors that run with --sync once or always.
///
/// Best on a node where no job runs. Monitors there say `--with HOST:PORT` and the same interval.
#[derive(Args)]
pub struct ConductArgs {
    /// Where to answer (UDP); a port alone is loopback only
    #[arg(long, value_name = "HOST:PORT", default_value = "9465", value_parser = address)]
    listen: SocketAddr,
    /// Time from one sample to the next
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = positive_duration)]
    interval: Duration,
    /// File with a secret that the monitors share
    #[arg(long, value_name = "FILE")]
    secret: Option<PathBuf>,
}

pub fn run(args: &ConductArgs) -> anyhow::Result<i32> {
    let key = args::key(args.secret.as_deref())?;
    let interval_ns = args.interval.as_nanos() as u64;
    let mut conductor =
        Conductor::new(args.listen, interval_ns, key).map_err(anyhow::Error::msg)?;
    let secret = if args.secret.is_none() { ", without a secret" } else { "" };
    out::say(format_args!(
        "eyrie monitor: conducting every {} at {}{secret}",
        eyrie_units::time(args.interval),
        conductor.address()?
    ));
    conductor.run(&AtomicBool::new(false));
    Ok(0)
}
