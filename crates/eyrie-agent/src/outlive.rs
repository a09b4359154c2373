//! Signals that must not end a process of Eyrie's.

use signal_hook::consts::{SIGALRM, SIGURG, SIGUSR1, SIGUSR2, SIGXCPU};
use std::sync::atomic::AtomicBool;
use std::sync::Arc;

/// Keeps signals that batch systems send to all processes of a job, and that are meant for its
/// ranks, from ending this process. The programs that it starts get the default actions.
///
/// # Errors
/// Those of the system.
pub fn outlive_signals() -> std::io::Result<()> {
    for signal in [SIGUSR1, SIGUSR2, SIGALRM, SIGURG, SIGXCPU] {
        signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)))?;
    }
    Ok(())
}
