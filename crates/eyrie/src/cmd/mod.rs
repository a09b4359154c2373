//! One file per subcommand. Argument parsing and output only; the work is in the other crates.

pub mod agent;
pub mod balance;
pub mod check;
pub mod checkpoint;
pub mod clean;
pub mod completions;
pub mod domains;
pub mod drain;
mod elsewhere;
pub mod events;
mod gateway;
pub mod health;
pub mod inject;
pub mod join;
pub mod man;
pub mod migrate;
pub mod migrate_domain;
pub mod monitor;
pub mod moving;
mod network;
pub mod plan;
mod proposed;
pub mod rearrange;
pub mod resume;
pub mod role;
pub mod run;
pub mod sbatch;
pub mod serve;
pub mod status;
pub mod stop;
pub mod sweep;
mod telemetry;
pub mod trace;
pub mod traffic;

use eyrie_controller::runtime::jobdir;
use eyrie_controller::runtime::users::ask;
use eyrie_interface::answer::WayTo;
use eyrie_interface::{Request, Status};
use eyrie_wire::NodeId;
use std::path::{Path, PathBuf};

/// Where jobs are looked for.
#[derive(clap::Args)]
pub struct Place {
    /// Where jobs have their directories, as given to `eyrie run`
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

impl Place {
    /// The directory, checked.
    pub fn base(&self) -> anyhow::Result<PathBuf> {
        jobdir::base(self.dir.as_deref())
    }
}

/// Where a running job is looked for, and which domain of it is meant.
#[derive(clap::Args)]
pub struct JobPlace {
    #[command(flatten)]
    place: Place,
    /// Of a job over several sites: do it at the site of this domain. The site at which the job was
    /// started knows the way to all others [default: the domain of this site]
    #[arg(long, value_name = "NAME", requires = "job")]
    domain: Option<String>,
}

impl JobPlace {
    /// The directory in which jobs have theirs, checked.
    pub fn base(&self) -> anyhow::Result<PathBuf> {
        self.place.base()
    }

    /// Carries this command out: `here`, with the directory of the job, or at the site of the
    /// domain that is meant. Returns its exit code.
    ///
    /// # Errors
    /// Those of `here`; when there is no such job, or no way to the domain.
    pub fn at(
        &self,
        job: &str,
        here: impl FnOnce(&Path) -> anyhow::Result<i32>,
    ) -> anyhow::Result<i32> {
        let dir = jobdir::find(&self.base()?, job)?;
        let Some(domain) = &self.domain else { return here(&dir) };
        match ask(&dir, &Request::WayTo { domain: domain.clone() })? {
            WayTo::Here => here(&dir),
            WayTo::Ssh { program, destination, eyrie } => {
                let way = elsewhere::Way { program: &program, destination: &destination };
                elsewhere::run(domain, way, &eyrie)
            }
        }
    }
}

/// The node of a running job by its number, or by the name of its host.
///
/// # Errors
/// When the job has no such node.
pub fn node_named(dir: &Path, name: &str) -> anyhow::Result<NodeId> {
    if let Ok(number) = name.parse() {
        return Ok(number);
    }
    let status: Status = ask(dir, &Request::Status)?;
    let Some(node) = last_named(&status.hosts, &status.nodes_up, name) else {
        anyhow::bail!("no node of the job is {name}: see `eyrie status JOB`");
    };
    Ok(node)
}

/// The node of a host: a host that was lost and has joined again is its last one, and one that was
/// refused when it was to join again is none.
fn last_named(hosts: &[String], nodes_up: &[bool], name: &str) -> Option<NodeId> {
    let named: Vec<usize> = (0..hosts.len()).filter(|node| hosts[*node] == name).collect();
    let up = named.iter().rev().find(|node| nodes_up.get(**node) == Some(&true));
    up.or(named.last()).map(|node| NodeId(*node as u32))
}

#[cfg(test)]
mod tests {
    use super::{last_named, NodeId};

    #[test]
    fn a_host_is_its_last_node_that_is_up() {
        let hosts = ["a", "b", "a", "a"].map(String::from);
        assert_eq!(last_named(&hosts, &[true, true, true, false], "a"), Some(NodeId(2)));
        assert_eq!(last_named(&hosts, &[false; 4], "a"), Some(NodeId(3)));
        assert_eq!(last_named(&hosts, &[true; 4], "c"), None);
    }
}
