//! What the caller of a capture asks for, and what it gets.

use crate::refusal::Refusal;
use crate::tracker::Tracker;
use core::ffi::{c_void, CStr};

/// Who writes the image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// A copy-on-write child; the process goes on after a short pause.
    Async,
    /// The process itself, which waits until the stream is written.
    Sync,
}

/// What to do with one descriptor at restore.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FdRole {
    /// The restorer puts the descriptor here that it was given as this slot (below 256).
    /// Slots 0, 1 and 2 are standard input, output and error.
    Slot(u32),
    /// A dead socket: reads give end of file, writes EPIPE.
    Dropped,
}

/// What the caller has done in other threads and other processes than that of its call. Called in
/// signal handlers, with all signals blocked, while any lock of the process may be held.
#[derive(Clone, Copy)]
pub struct Hooks {
    /// In each other thread, when it goes on after it was stopped for the image, restored or not,
    /// with the context that the kernel has given to the signal handler: for a system call that
    /// only this has interrupted.
    pub interrupted: Option<unsafe fn(*mut c_void)>,
    /// In a restored process before other threads run: by how many nanoseconds the monotonic clock
    /// is ahead of where it was when the image was begun.
    pub clock_jumped: Option<fn(i64)>,
}

/// An image that need not be a full one.
pub struct Track<'a> {
    /// Of this process, started.
    pub tracker: &'a Tracker,
    /// Number of the image, not 0.
    pub image: u64,
    /// An earlier one of this process that whoever takes the stream is known to have; 0: none. If
    /// it was the last one, only what was written since goes to the stream.
    pub base: u64,
    /// Whether memory is marked, so that a later image can build on this one; else this is a full
    /// one.
    pub marks: bool,
}

/// What to capture and where to.
pub struct Request<'a> {
    /// Pipe or socket that takes the stream. Not open in the restored process.
    pub out_fd: i32,
    pub mode: Mode,
    pub rank: u32,
    pub incarnation: u32,
    pub clock: u64,
    /// Receive sequence number of the last message that the process holds.
    pub rsn: u64,
    /// Stretches (start, length in bytes) left out; nothing is mapped there after a restore.
    pub exclude: &'a [(usize, usize)],
    /// Roles of the caller's own descriptors.
    pub fds: &'a [(i32, FdRole)],
    /// Sockets that lead out of the process become dead ones, where they would refuse the image.
    pub drop_sockets: bool,
    /// The process will not rename or remove files again that it has renamed or removed since: they
    /// keep the names that they have by then.
    pub names_stay: bool,
    /// The n-th path that the process has watched by inotify(7), `None` where there are no more: by
    /// these an image finds what its instances watch. As for [`Hooks`], any lock may be held.
    pub watched: Option<fn(usize) -> Option<&'static CStr>>,
    /// At most 4096 bytes for the header, as they are.
    pub meta: &'a [u8],
    /// Who started the process; 0: nobody knows. Processors, policy and priorities that are the
    /// same as that one's are not the process's own: a restored one has those of who restores it.
    pub starter_pid: i32,
    /// Called when all threads stand still and nothing was looked at: what the process does to
    /// others, its output say, is before the image or after it. An error, in words for the user,
    /// refuses the image. As for [`Hooks`], any lock may be held.
    pub still: Option<&'a dyn Fn() -> Result<(), &'static str>>,
    /// For [`Mode::Sync`]: called when the stream is written, with the nanoseconds that this has
    /// taken, while all threads still stand still; the process goes on when it returns. As for
    /// [`Hooks`], any lock may be held.
    pub written: Option<&'a dyn Fn(u64)>,
    pub hooks: Hooks,
    /// `None`: a full image, and nothing is tracked for the next one.
    pub track: Option<Track<'a>>,
}

impl Request<'static> {
    /// Of the process as it stands, by somebody who is no rank.
    pub fn plain(out_fd: i32, mode: Mode) -> Request<'static> {
        Request {
            out_fd,
            mode,
            rank: 0,
            incarnation: 0,
            clock: 0,
            rsn: 0,
            exclude: &[],
            fds: &[],
            drop_sockets: false,
            names_stay: false,
            watched: None,
            meta: &[],
            starter_pid: 0,
            still: None,
            written: None,
            hooks: Hooks { interrupted: None, clock_jumped: None },
            track: None,
        }
    }
}

/// How a capture ended, and in which process this is.
#[derive(Clone, Copy, Debug)]
pub enum Outcome {
    /// In the original process.
    Captured {
        /// The image-writing process, a child of this one's parent; 0 for [`Mode::Sync`].
        child_pid: i32,
        /// How long the process was stopped, nanoseconds.
        pause_ns: u64,
        /// Bytes of shared memory that were copied within that time.
        shared_bytes: u64,
        /// Length of the stream; known for [`Mode::Sync`] only, else 0.
        image_bytes: u64,
    },
    /// In a restored process: the same call returns once more.
    Restored,
    /// There is no image (or a torn one, which counts as none), and the process goes on as before.
    Refused(Refusal),
}
