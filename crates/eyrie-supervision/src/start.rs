//! How a process of Eyrie's is started: this command again, in a session of its own, ended with the
//! process that starts it; and the signals that must not end it.

use rustix::process::{getppid, set_parent_process_death_signal, setsid, Pid, Signal};
use signal_hook::consts::{SIGALRM, SIGURG, SIGUSR1, SIGUSR2, SIGXCPU};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::sync::Arc;

/// This command again, under its own name. The file may have been replaced or removed meanwhile.
pub fn own_command() -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("eyrie");
    command
}

/// Starts the process in a session of its own: what is sent to the group of this process, by a
/// terminal for instance, does not reach it.
pub fn in_own_session(command: &mut Command) -> &mut Command {
    // SAFETY: between fork and exec the closure makes one system call, and allocates nothing.
    unsafe { command.pre_exec(|| Ok(setsid().map(drop)?)) }
}

/// The kernel sends the process this signal when the thread ends that starts it: that must be the
/// one that lives longest. A process whose starter is gone before ends at once.
pub fn dies_with_starter(command: &mut Command, signal: Signal) -> &mut Command {
    let starter = Pid::from_raw(std::process::id() as i32);
    // SAFETY: between fork and exec the closure only makes system calls, and allocates nothing.
    unsafe {
        command.pre_exec(move || {
            set_parent_process_death_signal(Some(signal))?;
            if getppid() != starter {
                libc::_exit(1);
            }
            Ok(())
        })
    }
}

/// The process blocks no signal, whatever the thread does that starts it.
pub fn with_no_signal_blocked(command: &mut Command) -> &mut Command {
    // SAFETY: between fork and exec the closure only makes system calls, and allocates nothing;
    // `sigemptyset` fills the set before its use.
    unsafe {
        command.pre_exec(|| {
            let mut none: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut none);
            match libc::sigprocmask(libc::SIG_SETMASK, &none, std::ptr::null_mut()) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            }
        })
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;
    use eyrie_proc::Status;
    use std::io::{BufRead, BufReader};
    use std::process::Stdio;

    #[test]
    fn a_process_is_alone_in_its_session_and_blocks_nothing() {
        let mut command = Command::new("cat");
        let mut child = std::thread::spawn(move || {
            // SAFETY: the set is filled before its use, and both live through the calls. Only this
            // thread blocks the signal.
            unsafe {
                let mut set: libc::sigset_t = std::mem::zeroed();
                libc::sigemptyset(&mut set);
                libc::sigaddset(&mut set, libc::SIGUSR1);
                libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
            }
            with_no_signal_blocked(in_own_session(&mut command));
            command.stdin(Stdio::piped()).spawn().unwrap()
        })
        .join()
        .unwrap();
        let pid = Pid::from_child(&child);
        assert_eq!(rustix::process::getsid(Some(pid)), Ok(pid));
        let status = Status::read(eyrie_proc::directory(child.id()));
        assert_eq!(status.has_signal("SigBlk", libc::SIGUSR1), Some(false));
        drop(child.stdin.take());
        child.wait().unwrap();
    }

    #[test]
    fn a_process_dies_with_the_thread_that_starts_it() {
        let mut child = std::thread::spawn(|| {
            let mut command = Command::new("sh");
            command.args(["-c", "echo; exec sleep 1000"]).stdout(Stdio::piped());
            let mut child = dies_with_starter(&mut command, Signal::KILL).spawn().unwrap();
            let mut line = String::new();
            BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
            child
        })
        .join()
        .unwrap();
        let status = child.wait().unwrap();
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(libc::SIGKILL));
    }
}
