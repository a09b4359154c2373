//! `eyrie monitor rules`: the health rules.

use clap::Args;
use eyrie_cli::out;
use eyrie_monitor::health::{rules::DEFAULT, Rules};
use std::path::PathBuf;

/// Print the health rules, or check a file of rules.
#[derive(Args)]
pub struct RulesArgs {
    /// Check this file instead
    #[arg(long, value_name = "FILE.toml")]
    check: Option<PathBuf>,
}

pub fn run(args: &RulesArgs) -> anyhow::Result<i32> {
    match &args.check {
        None => out::text(DEFAULT)?,
        Some(path) => {
            let rules = Rules::load(path).map_err(anyhow::Error::msg)?;
            out::line(format_args!("{}: {} rules", path.display(), rules.rule.len()))?;
        }
    }
    Ok(0)
}
