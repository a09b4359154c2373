//! Whether a rank that was asked for an image and has not stood still for long ever will. On a slow
//! or busy machine that may take minutes. A rank that blocks the signal or waits for a device never
//! will. This module only looks; it never waits.

use eyrie_proc::Status;
use eyrie_wire::agent::capture_signal;
use std::time::Duration;

/// Processor time after which a process has had the occasion to handle a signal.
const OCCASION: Duration = Duration::from_millis(50);

/// Processor time of a process so far; zero when it is gone.
pub fn used(pid: u32) -> Duration {
    let stat = eyrie_proc::read_stat(eyrie_proc::directory(pid));
    stat.map_or(Duration::ZERO, |stat| stat.processor_time())
}

/// Why a rank will never stand still. `used_before`: its processor time when it was asked.
pub fn of(pid: u32, used_before: Duration) -> Option<&'static str> {
    judge(&Status::read(eyrie_proc::directory(pid)), used(pid).saturating_sub(used_before))
}

/// The same, from /proc/PID/status and the processor time used since the rank was asked.
fn judge(status: &Status, used: Duration) -> Option<&'static str> {
    let pends = |name| status.has_signal(name, capture_signal()).unwrap_or(false);
    if !pends("ShdPnd") && !pends("SigPnd") {
        return None; // it has taken the signal, and is being captured
    }
    match status.value("State")?.chars().next()? {
        'D' => Some("it waits in the kernel for a device or a file server"),
        'T' | 't' => Some("it is stopped"),
        'R' if used < OCCASION => None, // it waits for a processor
        _ => Some("all of its threads block the signal for images"),
    }
}

/// Whether a process handles a signal. A process that has executed another program since it loaded
/// the provider does not handle the signal for images, and would die of it.
pub fn catches(pid: u32, signal: i32) -> bool {
    let caught = Status::read(eyrie_proc::living(pid)).has_signal("SigCgt", signal);
    // Where the kernel does not say, the process is assumed to handle it.
    caught.unwrap_or(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(state: &str, pending: bool) -> Status {
        let mask = if pending { 1u64 << (capture_signal() - 1) } else { 0 };
        let state = format!("Name:\tx\nState:\t{state}\n");
        format!("{state}SigPnd:\t0000000000000000\nShdPnd:\t{mask:016x}\n").into()
    }

    #[test]
    fn a_rank_that_is_only_slow_has_no_obstacle() {
        let none = Duration::from_millis(1);
        let some = Duration::from_secs(1);
        assert_eq!(judge(&status("R (running)", false), some), None, "it is being captured");
        assert_eq!(judge(&status("S (sleeping)", false), none), None, "it is being captured");
        assert_eq!(judge(&status("R (running)", true), none), None, "it gets no processor");
        assert!(judge(&status("R (running)", true), some).unwrap().contains("block"));
        assert!(judge(&status("S (sleeping)", true), none).unwrap().contains("block"));
        assert!(judge(&status("D (disk sleep)", true), none).unwrap().contains("device"));
        assert!(judge(&status("T (stopped)", true), none).unwrap().contains("stopped"));
        assert_eq!(judge(&Status::default(), some), None, "it is gone");
    }

    #[test]
    fn a_process_that_blocks_the_signal_is_recognised() {
        use std::os::unix::process::CommandExt;
        let mut command = std::process::Command::new("sleep");
        command.arg("60");
        // SAFETY: between fork and exec the closure only sets the signal mask, which the program
        // inherits; `set` is filled before its use.
        unsafe {
            command.pre_exec(|| {
                let mut set = std::mem::zeroed();
                libc::sigemptyset(&mut set);
                libc::sigaddset(&mut set, capture_signal());
                libc::sigprocmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
                Ok(())
            });
        }
        let mut child = command.spawn().unwrap();
        let before = used(child.id());
        assert_eq!(of(child.id(), before), None, "it was not asked yet");
        // SAFETY: kill(2) takes no pointer, and the child is not reaped yet.
        unsafe { libc::kill(child.id() as i32, capture_signal()) };
        let until = std::time::Instant::now() + Duration::from_secs(60);
        // It sleeps, with the signal blocked, once it has started.
        while of(child.id(), before).is_none() {
            assert!(std::time::Instant::now() < until, "it is not found to block the signal");
            std::thread::yield_now();
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
