//! What commands have in common that ask a running job which ranks should move: they show what it
//! proposes, and have it carried out. The job decides; nothing is decided here.

use super::JobPlace;
use eyrie_cli::out;
use eyrie_controller::runtime::users::ask;
use eyrie_interface::answer::Accepted;
use eyrie_interface::{Manner, Request, Status};
use serde::Serialize;
use std::path::Path;

#[derive(clap::Args)]
pub struct ProposedArgs {
    /// Name of the job (see `eyrie status`)
    job: String,
    /// Show what would move, and move nothing
    #[arg(long)]
    dry_run: bool,
    /// Print what was measured and what moves as one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    manner: Manner,
    #[command(flatten)]
    place: JobPlace,
}

impl ProposedArgs {
    /// Shows what is proposed by the job whose directory is given to `propose`: by `in_full`, or as
    /// JSON. Then orders what `order` makes of it, if anything is to move.
    ///
    /// # Errors
    /// Those of the job.
    pub fn run<P: Serialize>(
        &self,
        propose: impl FnOnce(&Path) -> anyhow::Result<P>,
        in_full: impl FnOnce(&P, &Hosts) -> String,
        order: impl FnOnce(P, Manner) -> Option<Request>,
    ) -> anyhow::Result<i32> {
        self.place.at(&self.job, |dir| {
            let proposed = propose(dir)?;
            if self.json {
                out::line(serde_json::to_string(&proposed)?)?;
            } else {
                let Status { hosts, .. } = ask(dir, &Request::Status)?;
                out::text(&in_full(&proposed, &Hosts(hosts)))?;
            }
            if let Some(request) = order(proposed, self.manner).filter(|_| !self.dry_run) {
                ask::<Accepted>(dir, &request)?;
            }
            Ok(0)
        })
    }
}

/// The hosts of a job's nodes, in order; none where all nodes are on one host.
pub struct Hosts(pub Vec<String>);

impl Hosts {
    /// A node's number and the name of its host.
    pub fn name(&self, node: u32) -> String {
        match self.0.get(node as usize) {
            Some(host) => format!("{node} ({host})"),
            None => node.to_string(),
        }
    }
}
