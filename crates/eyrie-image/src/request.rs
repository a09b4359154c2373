//! The arguments of a capture.

use crate::holder::Holder;
use crate::tracker::Tracker;
use core::ffi::{c_void, CStr};
use eyrie_image_kernel::processor::Level;

/// Which process writes the image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// A copy-on-write child; the process continues after a short pause.
    Async,
    /// The process itself, which waits until the stream is written.
    Sync,
}

/// Functions of the caller that run in other threads and in restored processes. They are called in
/// signal handlers, with all signals blocked, while any lock of the process may be held.
#[derive(Clone, Copy)]
pub struct Hooks {
    /// Called in each other thread when it continues after it was stopped for the image, restored
    /// or not, with the context that the kernel passed to the signal handler. It is for a system
    /// call that only the stop has interrupted.
    pub interrupted: Option<unsafe fn(*mut c_void)>,
    /// Called in a restored process before other threads run, with the nanoseconds by which the
    /// monotonic clock is ahead of the time when the image was begun.
    pub clock_jumped: Option<fn(i64)>,
}

/// What an image needs in order to be incremental.
pub struct Track<'a> {
    /// The tracker of this process, started.
    pub tracker: &'a Tracker,
    /// Number of the image, not 0.
    pub image: u64,
    /// An earlier image of this process that the reader of the stream is known to have; 0: none. If
    /// it was the last one, the stream has only what was written since.
    pub base: u64,
    /// Whether memory is marked, so that a later image can build on this one. Otherwise this is a
    /// full image.
    pub marks: bool,
}

/// What to capture and where to.
pub struct Request<'a> {
    /// Pipe or socket for the stream. Not open in the restored process.
    pub out_fd: i32,
    pub mode: Mode,
    pub rank: u32,
    pub incarnation: u32,
    pub clock: u64,
    /// Receive sequence number of the last message that the image contains.
    pub rsn: u64,
    /// Ranges (start, length in bytes) that are left out. After a restore nothing is mapped there.
    pub exclude: &'a [(usize, usize)],
    /// The parts of the process with state that the kernel does not know.
    pub holders: &'a [&'a dyn Holder],
    /// Sockets that lead out of the process become dead ones instead of refusing the image.
    pub drop_sockets: bool,
    /// The process will not repeat renames and removals of files: files keep the names that they
    /// have at the time of the restore.
    pub names_stay: bool,
    /// The image has the content of the mapped files that the process has not open as well: its
    /// program and libraries. It can be restored where these are missing or others.
    pub self_contained: bool,
    /// Returns the n-th path that the process has watched by inotify(7), and `None` after the last.
    /// The image describes by these what the instances watch. As for [`Hooks`], any lock may be
    /// held.
    pub watched: Option<fn(usize) -> Option<&'static CStr>>,
    /// At most 4096 bytes, which are put into the header unchanged.
    pub meta: &'a [u8],
    /// The process that started this one; 0: unknown. Processors, policy and priorities that are
    /// the same there are not the process's own: a restored one has those of the process that
    /// restores it.
    pub starter_pid: i32,
    /// For [`Mode::Sync`]: called when the stream is written, with the nanoseconds that this took.
    /// All threads still stand still, and continue when it returns. As for [`Hooks`], any lock may
    /// be held.
    pub written: Option<&'a dyn Fn(u64)>,
    pub hooks: Hooks,
    /// What the process was started to use of its processor, at most. `None`: the image demands all
    /// that the processor has.
    pub level: Option<&'a Level>,
    /// What the kernel has passed to the signal handler of the calling thread in which this is
    /// called; null: it is called in none.
    pub context: *const c_void,
    /// `None`: a full image, and nothing is tracked for the next one.
    pub track: Option<Track<'a>>,
}

impl Request<'static> {
    /// A request that captures a process that is not a rank, as it is.
    pub fn plain(out_fd: i32, mode: Mode) -> Request<'static> {
        Request {
            out_fd,
            mode,
            rank: 0,
            incarnation: 0,
            clock: 0,
            rsn: 0,
            exclude: &[],
            holders: &[],
            drop_sockets: false,
            names_stay: false,
            self_contained: false,
            watched: None,
            meta: &[],
            starter_pid: 0,
            written: None,
            hooks: Hooks { interrupted: None, clock_jumped: None },
            level: None,
            context: core::ptr::null(),
            track: None,
        }
    }
}
