//! Takes an image of a process and restores it: a trial of everything that images need from the
//! kernel.

use super::trials::{failure, Trials, LONGEST};
use eyrie_image::{capture, restore, start, Mode, Outcome, Request};
use eyrie_supervision::bounded;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, FromRawFd, OwnedFd, RawFd};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// Descriptor of the stream for the image in the captured process.
const STREAM: RawFd = 3;
/// What a restored process prints.
const RESTORED: &[u8] = b"restored\n";

/// An image was taken, and a process was restored from it.
#[derive(Debug)]
pub struct Taken {
    pub bytes: usize,
    pub restored_in: Duration,
}

/// Runs in the trial: takes an image of itself. Does not return in the restored process.
///
/// # Errors
/// Why there is no image.
pub fn be_captured() -> Result<(), String> {
    let starter_pid = std::os::unix::process::parent_id() as i32;
    let request = Request { starter_pid, ..Request::plain(STREAM, Mode::Async) };
    // SAFETY: this process has one thread, and no state that depends on its id, parent or
    // descriptors.
    match unsafe { capture(&request) } {
        Outcome::Captured { .. } => Ok(()),
        Outcome::Refused(refusal) => Err(refusal.to_string()),
        // SAFETY: the call writes constant bytes, and _exit ends the process without running
        // anything of the original.
        Outcome::Restored => unsafe {
            libc::write(libc::STDOUT_FILENO, RESTORED.as_ptr().cast(), RESTORED.len());
            libc::_exit(0)
        },
    }
}

impl Trials<'_> {
    /// Takes an image of a process and restores a process from it.
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

/// Restores a process from an image, and reads what it prints.
fn restore(image: &[u8]) -> Result<(), String> {
    let cannot = |e: std::io::Error| format!("a process could not be restored: {e}");
    let (image_out, image_in) = pipe().map_err(cannot)?;
    let (said, say) = pipe().map_err(cannot)?;
    let slots = [None, Some(say.as_fd()), None];
    let mut command = restore::command(image_out.as_fd(), &slots, &[]).map_err(cannot)?;
    let bytes = image.to_vec();
    // The thread ends when the restorer has read everything or is gone.
    std::thread::spawn(move || drop(File::from(image_in).write_all(&bytes)));
    let ran = bounded::run(&mut command, LONGEST).map_err(cannot)?;
    drop((command, say, image_out));
    let mut words = Vec::new();
    File::from(said).read_to_end(&mut words).map_err(cannot)?;
    match (ran.succeeded(), words == RESTORED) {
        (true, true) => Ok(()),
        (true, false) => Err("a restored process continued at the wrong place".into()),
        (false, _) => Err(format!("a process could not be restored: {}", failure(&ran))),
    }
}

fn pipe() -> std::io::Result<(OwnedFd, OwnedFd)> {
    let mut fds = [0; 2];
    // SAFETY: the kernel writes two descriptors, which nothing else owns.
    unsafe {
        match libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC) {
            0 => Ok((OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1]))),
            _ => Err(std::io::Error::last_os_error()),
        }
    }
}
