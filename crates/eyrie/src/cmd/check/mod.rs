//! `eyrie check`: what works on this host or on several, and what does not. It never runs the
//! program, and leaves nothing behind.

mod domains;
mod here;
mod mpi;
mod network;
mod rank;
mod remote;
mod report;
mod trials;

use super::gateway;
use super::network::AUTO;
use clap::Args;
use eyrie_cli::out;
use eyrie_controller::hosts;
use eyrie_host::trial::{ask_library, be_a_rank, be_captured, show_start};
use eyrie_interface::options::CpuLevel;
use eyrie_wire::role_address::{Interface, Ports};
use report::HostReport;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Say what works on this host, or on several, and what does not.
///
/// Each line begins with ok, warn or fail; what is not ok comes with what to do. What `eyrie run`
/// needs is tried for real: two ranks of the program's MPI library exchange messages; one is
/// captured, killed and restored from its image; a port is opened. The program itself does not run,
/// and nothing stays.
///
/// With --hosts or --hostfile all of them are checked at once over ssh, which must ask for no
/// password, and compared: what must be the same for a rank to move from one to another is the
/// kernel, the processor's instructions, the program and every library that it loads.
///
/// With --network the network of the hosts is shown instead: where each of them is in it, where
/// that is known from, and how sure it is.
///
/// With --domains each site of the file does that for its own hosts. Then the gateway of each is
/// tried on its host: it listens as it would in a job, and each other one connects and measures the
/// way.
#[derive(Args)]
#[command(after_long_help = EXAMPLES)]
pub struct CheckArgs {
    /// Hosts to check, like n1,n2 or n[0-3]; `:SLOTS` behind a name is not looked at
    #[arg(long, value_name = "LIST", conflicts_with = "hostfile")]
    hosts: Option<String>,
    /// A file with a host on each line
    #[arg(long, value_name = "FILE")]
    hostfile: Option<PathBuf>,
    /// The file of domains of `eyrie run --domains`: each site checks its hosts, their gateways
    /// call each other, and what the sites have is compared
    #[arg(long, value_name = "FILE", conflicts_with_all = ["hosts", "hostfile"])]
    domains: Option<PathBuf>,
    /// Show the network that a job on these hosts would have, and how sure that is, instead of
    /// checking them: the words of `eyrie run --network`, or auto, which is found out
    #[arg(
        long,
        value_name = "NETWORK|auto",
        num_args = 0..=1,
        default_missing_value = AUTO,
        conflicts_with_all = ["domains", "program"]
    )]
    network: Option<String>,
    /// Print all that was found as one JSON object
    #[arg(long)]
    json: bool,
    /// Where jobs would have their directories, as for `eyrie run`
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// The interface that roles of a job would listen at: an IP address or a name as `ip link`
    /// shows it
    #[arg(long, default_value = "0.0.0.0", value_name = "IP|NAME")]
    interface: Interface,
    /// The TCP ports that roles may listen at [default: any]
    #[arg(long, value_name = "FIRST-LAST")]
    port_range: Option<Ports>,
    /// Compare the hosts for ranks that are started for this level, as for `eyrie run`
    #[arg(long, value_enum, value_name = "LEVEL")]
    cpu: Option<CpuLevel>,
    /// Try one thing, in a process that `eyrie check` has started for it
    #[arg(long, hide = true, exclusive = true, num_args = 1.., value_name = "WORD")]
    trial: Vec<OsString>,
    /// The program and its arguments: its MPI library is looked at [default: mpi4py of the python3
    /// in PATH, else the MPI that mpiexec in PATH belongs to]
    #[arg(trailing_var_arg = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

const EXAMPLES: &str = "Examples:
  Will my program run here so that it survives?
      eyrie check ./solver input.dat
  Can its ranks move between these hosts?
      eyrie check --hosts n[0-3] ./solver input.dat
  Which network do these hosts seem to have?
      eyrie check --network --hosts n[0-15]
  Would a job run over these sites?
      eyrie check --domains sites.toml ./solver input.dat
  Only what is not well:
      eyrie check ./solver | grep -v ^ok

Exit code: 0 when nothing fails (warnings do not count), else 1.";

pub fn run(args: CheckArgs) -> anyhow::Result<i32> {
    if !args.trial.is_empty() {
        return try_one(&args.trial);
    }
    if let Some(file) = &args.domains {
        return domains::run(file, &args);
    }
    let hosts = hosts::named(args.hosts.as_deref(), args.hostfile.as_deref());
    let hosts = hosts.map_err(anyhow::Error::msg)?.unwrap_or_default();
    if let Some(words) = &args.network {
        return network::run(words, hosts, args.json);
    }
    let hosts: Vec<String> = hosts.into_iter().map(|host| host.name).collect();
    let here = here::look(&args);
    if hosts.is_empty() {
        return show_one(&here, args.json);
    }
    let answers = remote::ask_all(&hosts, &args)?;
    let several = report::Several::new(here, answers, args.cpu);
    if args.json {
        out::line(serde_json::to_string(&several)?)?
    } else {
        out::text(&several.to_string())?
    }
    Ok(several.fails().into())
}

fn show_one(here: &HostReport, json: bool) -> anyhow::Result<i32> {
    if json {
        out::line(serde_json::to_string(here)?)?
    } else {
        here.findings.iter().try_for_each(out::line)?
    }
    Ok(here.fails().into())
}

/// What a process does that a check has started to try something.
fn try_one(words: &[OsString]) -> anyhow::Result<i32> {
    let path = |n: usize| words.get(n).map(Path::new).unwrap_or(Path::new(""));
    match words.first().and_then(|word| word.to_str()) {
        Some("image") => be_captured().map_err(anyhow::Error::msg)?,
        Some("start") => out::line(serde_json::to_string(&show_start())?)?,
        Some("mpi") => {
            let known = ask_library(path(1), path(2), path(3)).map_err(anyhow::Error::msg)?;
            out::line(serde_json::to_string(&known)?)?;
        }
        Some("gateway") => gateway::serve(words.get(1).map(OsString::as_os_str))?,
        Some("rank") => be_a_rank(path(1), path(2)).map_err(anyhow::Error::msg)?,
        _ => anyhow::bail!("there is no such trial"),
    }
    Ok(0)
}
