//! The programs and folders for measurements of the monitor.

use std::path::PathBuf;

/// The programs and folders that are used.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The `eyrie` command.
    pub eyrie: PathBuf,
    /// Virtual environment with the wheel of MPICH.
    pub venv: PathBuf,
    /// The compiled example programs.
    pub examples: PathBuf,
    /// Debian's process-exporter and collectl, unpacked (scripts/monitor-tools.sh).
    pub tools: PathBuf,
}

/// The seed of all random choices in models, so that figures can be repeated.
pub const SEED: u64 = 2010;
