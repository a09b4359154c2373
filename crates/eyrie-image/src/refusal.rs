//! Why a process was not captured, in words for its user. `Copy` and without allocation, because it
//! is made inside a signal handler. Its `Display` is called only afterwards.

use core::fmt;

/// A short text held in place (cut at its capacity).
#[derive(Clone, Copy)]
pub struct Text {
    bytes: [u8; 80],
    len: u8,
}

impl Text {
    pub const EMPTY: Text = Text { bytes: [0; 80], len: 0 };

    /// Keeps the beginning of `bytes`, up to a newline.
    pub fn new(bytes: &[u8]) -> Text {
        let mut text = Text::EMPTY;
        for &b in bytes.iter().take(80).take_while(|b| **b != b'\n' && **b != 0) {
            text.bytes[text.len as usize] = b;
            text.len += 1;
        }
        text
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.bytes[..self.len as usize].utf8_chunks() {
            f.write_str(chunk.valid())?;
        }
        Ok(())
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

/// Why there is no image. All but [`Refusal::Output`] and [`Refusal::Writer`] are found before a
/// byte is written.
#[derive(Clone, Copy, Debug)]
pub enum Refusal {
    /// A thread that cannot be brought back.
    Thread { tid: i32, name: Text, what: &'static str },
    /// A thread did not stop in time; `call` is the number of the system call that it is in.
    Unstopped { tid: i32, name: Text, call: Option<u32> },
    /// The process has a child (running, or ended and not waited for).
    Child { pid: i32 },
    /// A debugger or tracer is attached.
    Traced { pid: i32 },
    /// The process has POSIX timers (timer_create).
    Timer,
    /// A descriptor that cannot be brought back.
    Descriptor { fd: i32, what: &'static str, name: Text },
    /// A deleted file too large to be saved in the image; sizes in bytes.
    DeletedFile { fd: i32, size: u64, limit: u64 },
    /// The process has state that cannot be given to another process.
    State { what: &'static str, detail: Text },
    /// More signals are pending than an image may carry.
    Signals { limit: usize },
    /// No path leads to the working directory.
    Directory { name: Text },
    /// A mapping that cannot be brought back.
    Mapping { start: u64, what: &'static str, name: Text },
    /// The CPU's shadow stack is in use.
    ShadowStack,
    /// The request itself is wrong.
    Request(&'static str),
    /// The kernel refused a step.
    Kernel { step: &'static str, errno: i32 },
    /// The stream could not be written (synchronous captures only; the reader has an incomplete
    /// stream).
    Output { errno: i32 },
    /// The image-writing child ended or hung before it began to write.
    Writer,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Thread { tid, name, what } => write!(f, "thread {tid} ({name}) {what}"),
            Refusal::Unstopped { tid, name, call: Some(call) } => write!(
                f,
                "thread {tid} ({name}) has not stopped within a second: it is in system call {call}"
            ),
            Refusal::Unstopped { tid, name, call: None } => {
                write!(f, "thread {tid} ({name}) has not stopped within a second: it is running")
            }
            Refusal::Child { pid: 0 } => write!(f, "the process has a child process"),
            Refusal::Child { pid } => write!(f, "the process has a child process ({pid})"),
            Refusal::Traced { pid } => write!(f, "process {pid} is tracing it"),
            Refusal::Timer => write!(f, "the process has a POSIX timer (timer_create)"),
            Refusal::Descriptor { fd, what, name } => {
                write!(f, "descriptor {fd} is {what} ({name})")
            }
            Refusal::DeletedFile { fd, size, limit } => write!(
                f,
                "descriptor {fd} is a deleted file of {size} bytes, more than the {limit} an image \
                 may carry"
            ),
            Refusal::State { what, detail: Text { len: 0, .. } } => write!(f, "{what}"),
            Refusal::State { what, detail } => write!(f, "{what} ({detail})"),
            Refusal::Signals { limit } => write!(f, "more than {limit} signals are pending"),
            Refusal::Directory { name } => {
                write!(f, "no path leads to the working directory ({name})")
            }
            Refusal::Mapping { start, what, name } => {
                write!(f, "the memory at {start:#x} is {what} ({name})")
            }
            Refusal::ShadowStack => write!(f, "the process uses a shadow stack"),
            Refusal::Request(what) => write!(f, "the request is wrong: {what}"),
            Refusal::Kernel { step, errno } => {
                write!(f, "{step} failed: {}", std::io::Error::from_raw_os_error(*errno))?;
                f.write_str(match *errno {
                    libc::ENOMEM => " (`ulimit -v` or `ulimit -d` may be too low)",
                    libc::EAGAIN => " (`ulimit -u` may be too low)",
                    _ => "",
                })
            }
            Refusal::Output { errno } => write!(
                f,
                "the image could not be written: {}",
                std::io::Error::from_raw_os_error(*errno)
            ),
            Refusal::Writer => write!(f, "the image-writing process did not start"),
        }
    }
}

impl std::error::Error for Refusal {}
