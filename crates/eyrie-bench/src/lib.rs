//! What `eyrie-bench` measures: always Eyrie and the same MPICH over its own tcp provider, in turn
//! within one run, and always as a ratio with its spread. A figure must never come without what it
//! is compared with and what else the machine was doing.

mod alltoall;
mod apps;
mod checkpoint;
mod effort;
mod job;
mod kernel;
mod machine;
mod migration;
pub mod monitor;
mod pause;
mod pingpong;
pub mod plot;
pub mod ppmr;
mod recovery;
pub mod report;
mod setup;
mod statistics;

pub use effort::Effort;
pub use report::Report;
pub use setup::Setup;

/// The possible measurements.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Question {
    Pingpong,
    Alltoall,
    Apps,
    Checkpoint,
    Recovery,
    Migration,
}

impl Question {
    fn name(self) -> &'static str {
        match self {
            Question::Pingpong => "pingpong",
            Question::Alltoall => "alltoall",
            Question::Apps => "apps",
            Question::Checkpoint => "checkpoint",
            Question::Recovery => "recovery",
            Question::Migration => "migration",
        }
    }

    /// Whether it has a figure.
    pub fn has_figure(self) -> bool {
        self != Question::Apps
    }
}

/// Measures, and reports its progress on standard error.
///
/// # Errors
/// When something that is needed is missing, or a job fails.
pub fn answer(question: Question, setup: &Setup, effort: Effort) -> anyhow::Result<Report> {
    setup.check()?;
    job::watch_signals()?;
    let watch = machine::Watch::begin();
    if let Some(warning) = watch.warning() {
        progress(&format!("eyrie-bench: {warning}"));
    }
    let measured = match question {
        Question::Pingpong => pingpong::measure(setup, effort)?,
        Question::Alltoall => alltoall::measure(setup, effort)?,
        Question::Apps => apps::measure(setup, effort)?,
        Question::Checkpoint => checkpoint::measure(setup, effort)?,
        Question::Recovery => recovery::measure(setup, effort)?,
        Question::Migration => migration::measure(setup, effort)?,
    };
    Ok(Report::new(question.name(), effort, measured, watch.end()))
}

/// Reports progress on standard error. A failure to write is ignored.
fn progress(words: &str) {
    let _ = std::io::Write::write_all(&mut std::io::stderr(), format!("{words}\n").as_bytes());
}
