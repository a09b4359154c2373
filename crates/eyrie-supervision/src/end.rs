//! The end of a child of this process: asked for, waited for with a bound, and forced.

use rustix::event::{poll, PollFd, PollFlags};
use rustix::io::Errno;
use rustix::process::{kill_process, pidfd_open, Pid, PidfdFlags, Signal};
use std::process::Child;
use std::time::{Duration, Instant};

/// Waits until a child that is not reaped yet has ended; false: it has not within `limit`.
///
/// # Errors
/// When it cannot be watched.
pub fn has_ended_within(child: &Child, limit: Duration) -> std::io::Result<bool> {
    let process = pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
    let deadline = Instant::now() + limit;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = left.try_into().map_err(|_| Errno::INVAL)?;
        match poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&left)) {
            Ok(n) => return Ok(n > 0),
            Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

/// Ends a child: with SIGTERM, and with SIGKILL when it still lives after `patience`. It is reaped.
pub fn end(child: &mut Child, patience: Duration) {
    if matches!(child.try_wait(), Ok(Some(_))) {
        return;
    }
    // It is not reaped, so that the number is its own; it may just have ended.
    let _ = kill_process(Pid::from_child(child), Signal::TERM);
    if !has_ended_within(child, patience).unwrap_or(false) {
        let _ = child.kill();
    }
    let _ = child.wait();
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, Stdio};

    fn started(script: &str) -> Child {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("{script}; echo; read line")]).stdin(Stdio::piped());
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        child
    }

    #[test]
    fn a_child_is_ended_by_the_signal_that_it_heeds() {
        for (script, patience, by) in [
            (":", Duration::from_secs(60), libc::SIGTERM),
            ("trap '' TERM", Duration::from_millis(10), libc::SIGKILL),
        ] {
            let mut child = started(script);
            assert!(!has_ended_within(&child, Duration::ZERO).unwrap());
            end(&mut child, patience);
            assert_eq!(child.try_wait().unwrap().and_then(|s| s.signal()), Some(by), "{script}");
            end(&mut child, patience);
        }
    }
}
