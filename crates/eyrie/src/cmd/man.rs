//! `eyrie man`: manual pages, one per subcommand.

use anyhow::Context;
use std::path::PathBuf;

/// Write the manual pages into a directory.
#[derive(clap::Args)]
pub struct ManArgs {
    dir: PathBuf,
}

pub fn run(args: &ManArgs, command: clap::Command) -> anyhow::Result<i32> {
    std::fs::create_dir_all(&args.dir)
        .and_then(|()| clap_mangen::generate_to(command, &args.dir))
        .with_context(|| format!("cannot write to {}", args.dir.display()))?;
    Ok(0)
}
