//! Does what an agent does: starts targets, takes their images, kills and restores them.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, FromRawFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Longest wait for anything that a target does.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running target and its output.
pub struct Running {
    pub child: Child,
    output: Option<JoinHandle<Vec<u8>>>,
    reports: Receiver<String>,
    first_output: Receiver<()>,
    /// Kept open until asked to close.
    pub input: Option<File>,
    dir: PathBuf,
}

/// How a target ended.
pub struct Ended {
    pub status: ExitStatus,
    pub output: Vec<u8>,
    pub reports: Vec<String>,
}

pub fn make_dir() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let path = std::ffi::CString::new(dir.path().join("image").to_str().unwrap()).unwrap();
    // SAFETY: the path ends in a NUL and outlives the call.
    assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o666) }, 0);
    dir
}

pub fn start(dir: &Path, args: &[&str]) -> Running {
    start_as(dir, args, |_| {})
}

/// `adjust` may change the command before it is spawned.
pub fn start_as(dir: &Path, args: &[&str], adjust: impl FnOnce(&mut Command)) -> Running {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.arg("target").arg(args[0]).arg(dir).args(&args[1..]);
    let (read, write) = pipe();
    adjust(&mut command);
    command.stdin(read).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    watch(dir, child, write)
}

pub fn pipe() -> (File, File) {
    let mut fds = [0; 2];
    // SAFETY: the kernel writes two descriptors into `fds`; nothing else owns them.
    unsafe {
        assert_eq!(libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC), 0);
        (File::from_raw_fd(fds[0]), File::from_raw_fd(fds[1]))
    }
}

fn watch(dir: &Path, mut child: Child, input: File) -> Running {
    let mut stdout = child.stdout.take().unwrap();
    let stderr = child.stderr.take().unwrap();
    let (report, reports) = channel();
    let (first, first_output) = channel();
    let output = std::thread::spawn(move || {
        let mut all = Vec::new();
        let mut piece = [0; 65536];
        loop {
            match stdout.read(&mut piece) {
                Ok(0) | Err(_) => return all,
                Ok(n) => all.extend_from_slice(&piece[..n]),
            }
            let _ = first.send(());
        }
    });
    std::thread::spawn(move || {
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            let _ = report.send(line);
        }
    });
    let dir = dir.to_path_buf();
    Running { child, output: Some(output), reports, first_output, input: Some(input), dir }
}

impl Running {
    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    pub fn signal(&self, signal: i32) {
        // SAFETY: the target is a child that was not waited for yet, so its id is not reused.
        assert_eq!(unsafe { libc::kill(self.pid(), signal) }, 0, "the target is gone");
    }

    /// Waits until the target has printed something.
    pub fn wait_for_output(&self) {
        self.first_output.recv_timeout(PATIENCE).expect("the target prints nothing");
    }

    pub fn next_report(&self) -> String {
        self.reports.recv_timeout(PATIENCE).expect("the target reports nothing")
    }

    /// Empty when the target has ended.
    pub fn next_report_or_end(&self) -> String {
        match self.reports.recv_timeout(PATIENCE) {
            Err(RecvTimeoutError::Timeout) => panic!("the target reports nothing"),
            report => report.unwrap_or_default(),
        }
    }

    /// Reads an image from the target's pipe while it captures.
    pub fn read_image(&self) -> JoinHandle<Vec<u8>> {
        let path = self.dir.join("image");
        std::thread::spawn(move || {
            let mut image = Vec::new();
            File::open(path).unwrap().read_to_end(&mut image).unwrap();
            image
        })
    }

    /// Asks for an image by `signal`. Returns the stream and the target's report.
    pub fn capture(&self, signal: i32) -> (Vec<u8>, String) {
        let reader = self.read_image();
        self.signal(signal);
        let report = self.next_report();
        (reader.join().unwrap(), report)
    }

    pub fn kill(mut self) -> Ended {
        let _ = self.child.kill();
        self.wait()
    }

    pub fn wait(&mut self) -> Ended {
        let status = self.child.wait().unwrap();
        let output = self.output.take().unwrap().join().unwrap();
        let reports = self.reports.iter().collect();
        Ended { status, output, reports }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts the restorer on an image held in memory.
pub fn restore(dir: &Path, image: &[u8]) -> Running {
    restore_with(dir, image, None, |_| {})
}

/// `extra` is slot 3.
pub fn restore_with(
    dir: &Path,
    image: &[u8],
    extra: Option<File>,
    adjust: impl FnOnce(&mut Command),
) -> Running {
    restore_held(dir, image, extra, &[], adjust)
}

/// `held` are files that the image may need.
pub fn restore_held(
    dir: &Path,
    image: &[u8],
    extra: Option<File>,
    held: &[File],
    adjust: impl FnOnce(&mut Command),
) -> Running {
    let held: Vec<_> = held.iter().map(|f| f.as_fd()).collect();
    let (image_read, mut image_write) = pipe();
    let (in_read, in_write) = pipe();
    let (out_read, out_write) = pipe();
    let (err_read, err_write) = pipe();
    let slots = [
        Some(in_read.as_fd()),
        Some(out_write.as_fd()),
        Some(err_write.as_fd()),
        extra.as_ref().map(|f| f.as_fd()),
    ];
    let mut command = eyrie_image::restore::command(image_read.as_fd(), &slots, &held).unwrap();
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(err_write.try_clone().unwrap());
    adjust(&mut command);
    let mut child = command.spawn().unwrap();
    drop(command);
    child.stdout = Some(std::process::ChildStdout::from(std::os::fd::OwnedFd::from(out_read)));
    child.stderr = Some(std::process::ChildStderr::from(std::os::fd::OwnedFd::from(err_read)));
    drop((image_read, in_read, out_write, err_write, extra));
    let bytes = image.to_vec();
    std::thread::spawn(move || {
        let _ = image_write.write_all(&bytes); // the restorer may have refused it
    });
    watch(dir, child, in_write)
}

/// Holds a file as an agent does: it exists even if its names are removed.
pub fn hold(path: &Path) -> File {
    use std::os::unix::fs::OpenOptionsExt;
    File::options().read(true).custom_flags(libc::O_PATH).open(path).unwrap()
}

/// All regular files of a directory by name.
pub fn contents(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let mut all: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|e| e.unwrap())
        .filter(|e| e.file_type().unwrap().is_file())
        .map(|e| (e.file_name().into_string().unwrap(), fs::read(e.path()).unwrap()))
        .collect();
    all.sort();
    all
}

/// Waits until `condition` holds.
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = std::time::Instant::now() + PATIENCE;
    while !condition() {
        assert!(std::time::Instant::now() < deadline, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(1));
    }
}
