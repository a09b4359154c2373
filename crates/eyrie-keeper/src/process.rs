//! The process at the other end of a connection: the kernel says which it is. It is held by a
//! descriptor, so that no other process is taken for it, whatever its number is used for later.

use eyrie_transport::Stream;
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{pidfd_open, pidfd_send_signal, Pid, PidfdFlags, Signal};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// linux/socket.h, since Linux 6.5.
const SO_PEERPIDFD: libc::c_int = 77;

/// Does not wait.
const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// A process.
#[derive(Debug)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    descriptor: OwnedFd,
}

impl Process {
    /// The process that has made this connection. `None`: it has ended, or has closed the
    /// connection and cannot be told from others any more.
    ///
    /// # Errors
    /// In words for users, when there is such a process and its end could not be awaited.
    pub fn of(stream: &Stream) -> Result<Option<Process>, String> {
        let mut cred = libc::ucred { pid: 0, uid: 0, gid: 0 };
        option(stream, libc::SO_PEERCRED, &mut cred)
            .ok_or("the kernel does not say which process has connected")?;
        let pid = Pid::from_raw(cred.pid).ok_or(
            "it is in a pid namespace that `eyrie run` does not see into: start both in one, or \
             use --path router",
        )?;
        let descriptor = match peer_descriptor(stream) {
            Some(descriptor) => descriptor,
            None => match pidfd_open(pid, PidfdFlags::empty()) {
                // While its connection is open the number is its own: it was not used again before
                // the descriptor was made.
                Ok(_) if has_hung_up(stream) => return Ok(None),
                Ok(descriptor) => descriptor,
                Err(Errno::SRCH) => return Ok(None),
                Err(Errno::MFILE) => {
                    return Err(
                        "`eyrie run` has no descriptor left for it: raise `ulimit -n`".into()
                    )
                }
                Err(e) => return Err(format!("it cannot be watched (pidfd_open: {e})")),
            },
        };
        Ok(Some(Process { pid: cred.pid as u32, descriptor }))
    }

    /// Whether it has ended.
    pub fn has_ended(&self) -> bool {
        let mut polled = [PollFd::new(&self.descriptor, PollFlags::IN)];
        poll(&mut polled, Some(&AT_ONCE)).is_ok_and(|n| n > 0)
    }

    /// Kills it, unless it has ended.
    ///
    /// # Errors
    /// Why it cannot be killed.
    pub fn kill(&self) -> Result<(), Errno> {
        match pidfd_send_signal(&self.descriptor, Signal::KILL) {
            Err(Errno::SRCH) => Ok(()),
            killed => killed,
        }
    }
}

/// Can be read when the process has ended.
impl AsFd for Process {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// The kernel's descriptor of the process, where it has such.
fn peer_descriptor(stream: &Stream) -> Option<OwnedFd> {
    let mut descriptor: libc::c_int = -1;
    option(stream, SO_PEERPIDFD, &mut descriptor)?;
    // SAFETY: the kernel has just made the descriptor for this call, and nothing else owns it.
    (descriptor >= 0).then(|| unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// An option of a socket; `None` when the kernel does not have it.
fn option<T: Copy>(stream: &Stream, name: libc::c_int, value: &mut T) -> Option<()> {
    let mut len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes, the size of `value`, whose type has no invalid
    // values: it is one of numbers. The socket is open because the stream is borrowed.
    let got = unsafe {
        let at = std::ptr::from_mut(value).cast();
        libc::getsockopt(stream.as_fd().as_raw_fd(), libc::SOL_SOCKET, name, at, &mut len)
    };
    (got == 0 && len as usize == size_of::<T>()).then_some(())
}

fn has_hung_up(stream: &Stream) -> bool {
    let mut polled = [PollFd::new(stream, PollFlags::empty())];
    let _ = poll(&mut polled, Some(&AT_ONCE));
    polled[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{getrlimit, setrlimit, Resource, Rlimit};
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::path::Path;
    use std::process::{Command, Stdio};

    /// Tells one of the processes below where to connect to.
    const TOLD: &str = "EYRIE_KEEPER_PROCESS_TEST";

    /// Runs one of the tests below in a process of its own, to its end.
    fn run(test: &str, told: &Path) {
        let test = format!("process::tests::{test}");
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", &test, "--ignored"]).env(TOLD, told).stdout(Stdio::null());
        assert!(command.status().unwrap().success(), "{test}");
    }

    #[test]
    fn the_process_at_the_other_end_is_this_one_and_runs() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let process = Process::of(&Stream::Unix(ours)).unwrap().unwrap();
        assert_eq!(process.pid, std::process::id());
        assert!(!process.has_ended());
        drop(theirs);
    }

    #[test]
    fn a_process_that_has_ended_is_none_or_has_ended() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("keeper");
        let listener = UnixListener::bind(&at).unwrap();
        run("connects_and_ends", &at);
        let stream = Stream::Unix(listener.accept().unwrap().0);
        // Newer kernels hold such a process, too.
        assert!(Process::of(&stream).unwrap().is_none_or(|process| process.has_ended()));
    }

    #[test]
    #[ignore = "another test starts it"]
    fn connects_and_ends() {
        let Some(at) = std::env::var_os(TOLD) else { return };
        UnixStream::connect(at).unwrap();
    }

    #[test]
    fn one_that_cannot_be_held_is_an_error_and_not_one_that_has_ended() {
        run("has_no_descriptor_left", Path::new("nothing"));
    }

    #[test]
    #[ignore = "another test starts it, in a process of its own: it limits all of the process"]
    fn has_no_descriptor_left() {
        if std::env::var_os(TOLD).is_none() {
            return;
        }
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let before = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: Some(0), ..before }).unwrap();
        let found = Process::of(&Stream::Unix(ours));
        setrlimit(Resource::Nofile, before).unwrap();
        let said = found.unwrap_err();
        assert!(said.contains("ulimit -n"), "{said}");
    }
}
