//! A real tightly coupled program (examples/allreduce.c) over the wheel's MPICH, a rank on each
//! processor.

use super::setup::Setup;
use anyhow::{bail, ensure, Context};
use serde::Deserialize;
use std::process::Command;
use std::time::Duration;

/// The program's output; other fields are not needed.
#[derive(Deserialize)]
struct Line {
    seconds: f64,
    median_us: f64,
}

pub struct Allreduce<'a> {
    setup: &'a Setup,
    pub ranks: usize,
    pub loops: u64,
    steps: u64,
}

impl<'a> Allreduce<'a> {
    /// Finds how many steps of work take about `grain`, on all processors at once.
    pub fn calibrate(
        setup: &'a Setup,
        grain: Duration,
        loops: u64,
    ) -> anyhow::Result<Allreduce<'a>> {
        for path in [setup.venv.join("bin/mpiexec"), setup.examples.join("allreduce")] {
            ensure!(
                path.is_file(),
                "{} is missing: run `make build` in the source folder, and this command from \
                 there; or say where things are with --venv and --examples",
                path.display()
            );
        }
        let ranks = std::thread::available_parallelism()?.get();
        let mut program = Allreduce { setup, ranks, loops: 200, steps: 200_000 };
        let line = program.line()?;
        program.steps = (200_000.0 * grain.as_secs_f64() * 1e6 / line.median_us).max(1.0) as u64;
        program.loops = loops;
        Ok(program)
    }

    fn line(&self) -> anyhow::Result<Line> {
        let done = Command::new(self.setup.venv.join("bin/mpiexec"))
            .args(["-n", &self.ranks.to_string()])
            .arg(self.setup.examples.join("allreduce"))
            .args(["--loops", &self.loops.to_string(), "--steps", &self.steps.to_string()])
            .output()
            .context("cannot run mpiexec")?;
        if !done.status.success() {
            bail!("the Allreduce loop failed: {}", String::from_utf8_lossy(&done.stderr).trim());
        }
        serde_json::from_slice(&done.stdout).context("the Allreduce loop printed something else")
    }

    /// Runs it; returns the seconds that it took.
    pub fn run(&self) -> anyhow::Result<f64> {
        Ok(self.line()?.seconds)
    }
}
