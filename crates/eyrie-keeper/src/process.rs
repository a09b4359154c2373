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
    /// The process that has made this connection; `None` when that cannot be found out: it is in a
    /// pid namespace beside or above this one, or has ended already.
    pub fn of(stream: &Stream) -> Option<Process> {
        let mut cred = libc::ucred { pid: 0, uid: 0, gid: 0 };
        option(stream, libc::SO_PEERCRED, &mut cred)?;
        let pid = Pid::from_raw(cred.pid)?;
        let descriptor = peer_descriptor(stream).or_else(|| {
            let descriptor = pidfd_open(pid, PidfdFlags::empty()).ok()?;
            // While its connection is open the number is its own: it was not used again before the
            // line above.
            (!has_hung_up(stream)).then_some(descriptor)
        })?;
        Some(Process { pid: cred.pid as u32, descriptor })
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
    use std::os::unix::net::UnixStream;

    #[test]
    fn the_process_at_the_other_end_is_this_one_and_runs() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let process = Process::of(&Stream::Unix(ours)).unwrap();
        assert_eq!(process.pid, std::process::id());
        assert!(!process.has_ended());
        drop(theirs);
    }
}
