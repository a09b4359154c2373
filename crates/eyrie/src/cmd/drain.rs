//! `eyrie drain` and `eyrie undrain`: a node of a running job becomes free, and is used again.

use super::moving::ask_and_show;
use super::{node_named, JobPlace};
use eyrie_interface::Request;
use eyrie_wire::NodeId;

#[derive(clap::Args)]
struct NodeOfJob {
    /// Name of the job (see `eyrie status`)
    job: String,
    /// The node, by its number or the name of its host
    node: String,
    #[command(flatten)]
    place: JobPlace,
}

/// Make a node of a running job free: its ranks, routers and stores go to other nodes.
///
/// Returns when nothing of the job needs the node any more, so that it can be switched off. No rank
/// comes there until `eyrie undrain`, or as long as another node is up.
#[derive(clap::Args)]
pub struct DrainArgs {
    #[command(flatten)]
    node: NodeOfJob,
}

/// Let ranks of a running job come to a node again that was drained.
///
/// A node without ranks is a spare from then on.
#[derive(clap::Args)]
pub struct UndrainArgs {
    #[command(flatten)]
    node: NodeOfJob,
}

pub fn drain(args: &DrainArgs) -> anyhow::Result<i32> {
    args.node.ask(|node| Request::Drain { node })
}

pub fn undrain(args: &UndrainArgs) -> anyhow::Result<i32> {
    args.node.ask(|node| Request::Undrain { node })
}

impl NodeOfJob {
    fn ask(&self, request: impl FnOnce(NodeId) -> Request) -> anyhow::Result<i32> {
        self.place.at(&self.job, |dir| {
            ask_and_show(dir, &request(node_named(dir, &self.node)?))?;
            Ok(0)
        })
    }
}
