//! `eyrie join`: more hosts for a running job, or a domain more.

use super::domains::new_domains;
use super::JobPlace;
use anyhow::Context;
use eyrie_cli::out;
use eyrie_controller::hosts;
use eyrie_controller::runtime::users::ask;
use eyrie_interface::answer::{Accepted, Joined};
use eyrie_interface::{Request, Status};
use eyrie_supervision::bounded;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// How long Slurm may take to say what it knows of a job.
const ASKING_TIMEOUT: Duration = Duration::from_secs(10);

/// Give a running job more hosts, or a job over several sites another domain.
///
/// Hosts stay free until ranks of a lost host need them, as spares do. The job must have been
/// started with --hosts, or in an allocation of Slurm. A host that was lost may join again.
///
/// A domain joins where `eyrie run` was started, and has no ranks: `eyrie migrate-domain --to`
/// brings those of another domain there. One that has ended may join again.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct JoinArgs {
    /// Name of the job (see `eyrie status`)
    job: String,
    /// The hosts, like c or n[4-5]
    #[arg(required_unless_present_any = ["jobid", "domains"])]
    hosts: Option<String>,
    /// All nodes of this job of Slurm: another allocation of the same user
    #[arg(long, value_name = "ID", conflicts_with = "hosts")]
    jobid: Option<u64>,
    /// The domains of this file that are no parts of the job, one after another. The others may be
    /// in it, as they are, or not (docs/domains.md)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["hosts", "jobid", "domain"])]
    domains: Option<PathBuf>,
    #[command(flatten)]
    place: JobPlace,
}

const EXAMPLES: &str = "Examples:
  Two hosts more for a job that has lost some:
      eyrie join melt n[4-5]
  A node of another allocation, which sleeps meanwhile:
      sbatch -N1 --wrap 'sleep infinity'      # says: Submitted batch job 4711
      eyrie join melt --jobid 4711
  Another site, for all ranks of the domain cloud:
      eyrie join melt --domains lab.toml      # has [domain.lab]
      eyrie migrate-domain melt --to lab --domain cloud";

pub fn run(args: &JoinArgs) -> anyhow::Result<i32> {
    args.place.at(&args.job, |dir| join(dir, args))
}

fn join(dir: &Path, args: &JoinArgs) -> anyhow::Result<i32> {
    if let Some(file) = &args.domains {
        return join_domains(dir, file);
    }
    let list = match (args.hosts.clone(), args.jobid) {
        (Some(list), _) => list,
        (None, Some(id)) => nodes_of(id)?,
        (None, None) => anyhow::bail!("name a host, or an allocation with --jobid"),
    };
    let hosts = hosts::parse_list(&list).map_err(anyhow::Error::msg)?;
    let mut code = 0;
    for host in hosts {
        let asked = Request::Join { host: host.name.clone(), allocation: args.jobid };
        match ask(dir, &asked) {
            Ok(Joined { node }) => {
                out::line(format_args!("{} has joined as node {node}", host.name))?;
            }
            Err(e) => {
                out::say(format_args!("eyrie: {} has not joined: {e:#}", host.name));
                code = 1;
            }
        }
    }
    Ok(code)
}

/// The domains of a file join that are new.
fn join_domains(dir: &Path, file: &Path) -> anyhow::Result<i32> {
    let status: Status = ask(dir, &Request::Status)?;
    for domain in new_domains(file, &status)? {
        let name = domain.name.clone();
        let request = Request::JoinDomain { domain: Box::new(domain), keys: vec![] };
        ask::<Accepted>(dir, &request)?;
        out::line(format_args!("domain {name} has joined"))?;
    }
    Ok(0)
}

/// The nodes of a job of Slurm.
fn nodes_of(id: u64) -> anyhow::Result<String> {
    let id = id.to_string();
    let words = ["--noheader", "--states=RUNNING", "--format=%N", "--jobs", &id];
    let asked = bounded::run(Command::new("squeue").args(words), ASKING_TIMEOUT);
    let asked = asked.context("cannot run squeue")?;
    let nodes = asked.stdout.trim();
    anyhow::ensure!(!nodes.is_empty(), "job {id} of Slurm does not run; {}", asked.stderr.trim());
    Ok(nodes.to_string())
}
