//! One file per subcommand. Argument parsing and output only; the work is in the other crates.

pub mod agent;
pub mod bench;
pub mod checkpoint;
pub mod completions;
pub mod inject;
pub mod man;
pub mod monitor;
pub mod plan;
pub mod run;
pub mod status;

use std::path::PathBuf;

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
