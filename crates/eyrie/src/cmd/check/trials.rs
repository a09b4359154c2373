//! What the checks of a host share: how this command is started to try something, and errors that
//! name their remedy.

use eyrie_host::trial::Trials;
use eyrie_host::Finding;

/// How this command is started as a trial.
pub const TRIALS: Trials<'static> = Trials { words: &["check", "--trial"] };

/// An error whose remedy stands behind its first semicolon.
pub fn with_remedy(subject: &str, error: &str) -> Finding {
    let (text, remedy) = error.split_once("; ").unwrap_or((error, ""));
    Finding::fail(subject, text, remedy)
}
