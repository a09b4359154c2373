//! `eyrie join`: more hosts for a running job.

use super::JobPlace;
use anyhow::Context;
use eyrie_cli::out;
use eyrie_controller::hosts;
use eyrie_controller::runtime::jobdir;
use eyrie_controller::runtime::users::ask;
use eyrie_interface::answer::Joined;
use eyrie_interface::Request;
use eyrie_supervision::bounded;
use std::process::Command;
use std::time::Duration;

/// How long Slurm may take to say what it knows of a job.
const ASKING_TIMEOUT: Duration = Duration::from_secs(10);

/// Give a running job more hosts.
///
/// They stay free until ranks of a lost host need them, as spares do. The job must have been
/// started with --hosts, or in an allocation of Slurm. A host that was lost may join again.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct JoinArgs {
    /// Name of the job (see `eyrie status`)
    job: String,
    /// The hosts, like c or n[4-5]
    #[arg(required_unless_present = "jobid")]
    hosts: Option<String>,
    /// All nodes of this job of Slurm: another allocation of the same user
    #[arg(long, value_name = "ID", conflicts_with = "hosts")]
    jobid: Option<u64>,
    #[command(flatten)]
    place: JobPlace,
}

const EXAMPLES: &str = "Examples:
  Two hosts more for a job that has lost some:
      eyrie join melt n[4-5]
  A node of another allocation, which sleeps meanwhile:
      sbatch -N1 --wrap 'sleep infinity'      # says: Submitted batch job 4711
      eyrie join melt --jobid 4711";

pub fn run(args: JoinArgs) -> anyhow::Result<i32> {
    let dir = jobdir::find(&args.place.base()?, &args.job)?;
    let list = match (args.hosts, args.jobid) {
        (Some(list), _) => list,
        (None, Some(id)) => nodes_of(id)?,
        (None, None) => anyhow::bail!("name a host, or an allocation with --jobid"),
    };
    let hosts = hosts::parse_list(&list).map_err(anyhow::Error::msg)?;
    let mut code = 0;
    for host in hosts {
        let asked = Request::Join { host: host.name.clone(), allocation: args.jobid };
        match ask(&dir, &asked) {
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
