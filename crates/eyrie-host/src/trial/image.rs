//! A process of which an image is taken, and which is made again from it: all that images need of
//! the kernel, tried at once.

use super::{failure, Trials, LONGEST};
use crate::bounded;
use eyrie_image::{capture, restore, start, Mode, Outcome, Request};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, FromRawFd, OwnedFd, RawFd};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// Where the process that is captured has the stream for its image.
const STREAM: RawFd = 3;
/// What a restored process says.
const RESTORED: &[u8] = b"restored\n";

/// An image was taken and a process made from it.
#[derive(Debug)]
pub struct Taken {
    pub bytes: usize,
    pub restored_in: Duration,
}

/// Runs in the trial: takes an image of itself. In the restored process it does not return.
///
/// # Errors
/// Why there is no image.
pub fn be_captured() -> Result<(), String> {
    let starter_pid = std::os::unix::process::parent_id() as i32;
    let request = Request { starter_pid, ..Request::plain(STREAM, Mode::Async) };
    // SAFETY: this process has one thread, and holds nothing that a restored one may not have.
    match unsafe { capture(&request) } {
        Outcome::Captured { .. } => Ok(()),
        Outcome::Refused(refusal) => Err(refusal.to_string()),
        // SAFETY: writes constant bytes and ends, without what was left of the original.
        Outcome::Restored => unsafe {
            libc::write(libc::STDOUT_FILENO, RESTORED.as_ptr().cast(), RESTORED.len());
            libc::_exit(0)
        },
    }
}

impl Trials<'_> {
    /// Takes an image of a process and makes one from it.
    ///
    /// # Errors
    /// What does not work, and why.
    pub fn image(&self) -> Result<Taken, String> {
        let image = self.take()?;
        let since = Instant::now();
        restore(&image)?;
        Ok(Taken { bytes: image.len(), restored_in: since.elapsed() })
    }

    fn take(&self) -> Result<Vec<u8>, String> {
        let cannot = |e: std::io::Error| format!("no image could be taken: {e}");
        let (read, write) = pipe().map_err(cannot)?;
        let mut command = self.command(&[OsStr::new("image")]);
        start::with_stream(&mut command, &write, STREAM);
        let (send, received) = channel();
        std::thread::spawn(move || {
            let mut image = Vec::new();
            let _ = send.send(File::from(read).read_to_end(&mut image).map(|_| image));
        });
        let ran = bounded::run(&mut command, LONGEST).map_err(cannot)?;
        drop(write);
        if !ran.succeeded() {
            return Err(format!("no image could be taken: {}", failure(&ran)));
        }
        let image =
            received.recv_timeout(LONGEST).map_err(|_| "an image was not written in time")?;
        let image = image.map_err(cannot)?;
        eyrie_image::inspect::summary(&image[..]).map_err(cannot)?;
        Ok(image)
    }
}

/// Makes a process from an image, and hears from it.
fn restore(image: &[u8]) -> Result<(), String> {
    let cannot = |e: std::io::Error| format!("a process could not be restored: {e}");
    let (image_out, image_in) = pipe().map_err(cannot)?;
    let (said, say) = pipe().map_err(cannot)?;
    let slots = [None, Some(say.as_fd()), None];
    let mut command = restore::command(image_out.as_fd(), &slots, &[]).map_err(cannot)?;
    let bytes = image.to_vec();
    // It ends when the restorer has read all or is gone.
    std::thread::spawn(move || drop(File::from(image_in).write_all(&bytes)));
    let ran = bounded::run(&mut command, LONGEST).map_err(cannot)?;
    drop((command, say, image_out));
    let mut words = Vec::new();
    File::from(said).read_to_end(&mut words).map_err(cannot)?;
    match (ran.succeeded(), words == RESTORED) {
        (true, true) => Ok(()),
        (true, false) => Err("a restored process went on where it should not".into()),
        (false, _) => Err(format!("a process could not be restored: {}", failure(&ran))),
    }
}

fn pipe() -> std::io::Result<(OwnedFd, OwnedFd)> {
    let mut fds = [0; 2];
    // SAFETY: the kernel writes two descriptors, which are then ours.
    unsafe {
        match libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC) {
            0 => Ok((OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1]))),
            _ => Err(std::io::Error::last_os_error()),
        }
    }
}
