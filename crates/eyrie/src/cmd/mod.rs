//! One file per subcommand. Argument parsing and output only; the work is in the other crates.

pub mod agent;
pub mod check;
pub mod checkpoint;
pub mod clean;
pub mod completions;
pub mod domains;
pub mod drain;
pub mod events;
pub mod inject;
pub mod join;
pub mod man;
pub mod migrate;
pub mod migrate_domain;
pub mod monitor;
pub mod moving;
pub mod plan;
pub mod rearrange;
pub mod resume;
pub mod role;
pub mod run;
pub mod sbatch;
pub mod status;
pub mod stop;
pub mod sweep;
pub mod trace;

use eyrie_controller::runtime::users::ask;
use eyrie_interface::{Request, Status};
use eyrie_wire::NodeId;
use std::path::{Path, PathBuf};

/// Where running jobs are looked for.
#[derive(clap::Args)]
pub struct JobPlace {
    /// Where jobs have their directories, as given to `eyrie run`
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

impl JobPlace {
    /// The directory, checked.
    pub fn base(&self) -> anyhow::Result<PathBuf> {
        eyrie_controller::runtime::jobdir::base(self.dir.as_deref())
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
