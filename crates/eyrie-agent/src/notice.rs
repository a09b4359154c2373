//! Notices that this host is about to be taken away: a file that appears, a command that succeeds,
//! SIGTERM. The agent tells the controller once. A notice must never end ranks before the
//! controller has had its time to move them.

use crate::background::{Background, Done};
use crate::controller::connection::Connection;
use eyrie_supervision::bounded;
use eyrie_wire::control::{FromAgent, Notices};
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

/// How often the agent looks for the file, and runs the command.
const FILE_EVERY: Duration = Duration::from_millis(500);
const COMMAND_EVERY: Duration = Duration::from_secs(5);
/// How long the command may take.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(10);

/// Waits for a notice, in a thread of its own, because the command may take its time. It ends with
/// the first notice, or with the process.
struct Watch {
    file: Option<PathBuf>,
    command: Option<OsString>,
}

impl Watch {
    /// Returns the cause of the notice.
    fn run(self) -> String {
        let mut next_command = Instant::now();
        loop {
            if let Some(file) = self.file.as_ref().filter(|file| file.exists()) {
                return format!("there is {}", file.display());
            }
            if let Some(command) = self.command.as_ref().filter(|_| Instant::now() >= next_command)
            {
                // A command that cannot be run, or takes too long, gives no notice.
                let ran = bounded::run(&mut shell(command), COMMAND_TIMEOUT);
                if ran.is_ok_and(|ran| ran.stdout == SUCCESS) {
                    return format!("`{}` says so", command.to_string_lossy());
                }
                next_command = Instant::now() + COMMAND_EVERY;
            }
            std::thread::sleep(FILE_EVERY);
        }
    }
}

/// Runs a line of shell. The agent's loop reaps all of its children, this one too: what the shell
/// has written says how the line ended.
fn shell(line: &OsStr) -> Command {
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", "eval \"$1\" >/dev/null 2>&1 && echo yes", "sh"]).arg(line);
    shell
}

const SUCCESS: &str = "yes\n";

/// When the agent leaves after SIGTERM.
#[derive(Default)]
pub struct Leaving {
    /// How long it stays after SIGTERM; `None` while it has no job.
    grace: Option<Duration>,
    /// When it ends after SIGTERM.
    at: Option<Instant>,
}

impl Leaving {
    /// When the agent ends, if it was sent SIGTERM.
    pub fn at(&self) -> Option<Instant> {
        self.at
    }

    /// Waits for notices from now on.
    pub fn watch(&mut self, notices: &Notices, background: &Background) {
        let Notices { file, command, grace } = notices.clone();
        self.grace = Some(grace);
        if file.is_some() || command.is_some() {
            let watch = Watch { file: file.map(PathBuf::from), command };
            background.run(|| Done::Notice(watch.run()));
        }
    }

    /// Handles SIGTERM: the ranks are to leave first. False: the agent ends now, because it was
    /// told before, or because there is no controller that could move the ranks.
    pub fn leaves_later(&mut self, connection: &mut Connection) -> bool {
        let Some(grace) = self.grace.filter(|grace| !grace.is_zero()) else { return false };
        if self.at.is_some() || connection.fd().is_none() {
            return false;
        }
        tracing::info!("SIGTERM: the ranks are to leave");
        self.at = Some(Instant::now() + grace);
        let cause = "its agent was sent SIGTERM".to_string();
        connection.send(&FromAgent::Notice { cause, leaves: true });
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output_of(line: &str) -> String {
        bounded::run(&mut shell(line.as_ref()), COMMAND_TIMEOUT).unwrap().stdout
    }

    #[test]
    fn what_is_written_tells_a_line_that_succeeds_from_others() {
        assert_eq!(output_of("echo much; test 1 = 1"), SUCCESS);
        for fails in ["test 1 = 2", "echo yes; false", "exit 3", "no-such-command", "( unbalanced"]
        {
            assert_ne!(output_of(fails), SUCCESS, "{fails}");
        }
    }

    #[test]
    fn a_file_gives_notice_as_soon_as_it_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("going");
        let command = Some("false".into());
        let watch = Watch { file: Some(file.clone()), command };
        let watching = std::thread::spawn(|| watch.run());
        std::thread::sleep(FILE_EVERY / 2);
        assert!(!watching.is_finished());
        std::fs::write(&file, b"").unwrap();
        assert_eq!(watching.join().unwrap(), format!("there is {}", file.display()));
    }
}
