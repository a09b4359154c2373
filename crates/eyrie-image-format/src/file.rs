//! The file table: objects that mappings and descriptors refer to, descriptors, and locks.

use crate::plain::Plain;

/// `flags` of a File record: which payload it has.
pub const FILE_OBJECT: u32 = 1;
pub const FILE_DESCRIPTOR: u32 = 2;

/// Identifies a file independently of its name.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Identity {
    pub dev: u64,
    pub ino: u64,
    /// Time of its creation, nanoseconds since 1970; 0 if the file system does not know. It is
    /// needed because the inode number of a removed file is soon reused.
    pub born_ns: u64,
}
// SAFETY: `repr(C)` with integers only, no padding.
unsafe impl Plain for Identity {}

impl Identity {
    /// Whether this is the file `then`. Device numbers are only comparable within one boot.
    pub fn is(&self, then: &Identity, same_boot: bool) -> bool {
        let born = [self.born_ns, then.born_ns];
        self.ino == then.ino
            && (self.dev == then.dev || !same_boot)
            && (born.contains(&0) || born[0] == born[1])
    }
}

/// What a mapping or a descriptor refers to.
pub mod object_kind {
    /// A file mapped privately or to be read only: opened again, and must be as it was.
    pub const FILE: u32 = 1;
    /// A file on a disk that is mapped shared and writable, or that the process maps again by
    /// itself ([`MAPS_FILES`](super::MAPS_FILES)): opened again. The ranges whose content the image
    /// has get it back when the whole image has been read.
    pub const SHARED_FILE: u32 = 2;
    /// A file in /dev/shm that is mapped shared and writable: replaced by a new file of the same
    /// name. Its content is in pages of the object.
    pub const SHM_FILE: u32 = 3;
    /// Memory without a name (shared anonymous, memfd, a deleted file that is only mapped): a
    /// memfd. Its content is in pages of the object if it has an open descriptor, otherwise in
    /// pages of its mapping.
    pub const MEMORY: u32 = 4;
    /// An open file that was unlinked or never had a name: a file without a name in the directory
    /// of the path, or else a memfd. Its content is in pages of the object.
    pub const UNLINKED: u32 = 5;
    /// A file on a disk that is mapped shared, to be read only, by a descriptor that could write:
    /// opened again to be read, and must be the same file, but not as it was.
    pub const READ_FILE: u32 = 6;
    /// As [`FILE`], but the image has the content of all its mappings: it need not be on the node.
    /// Where it is, and certainly as it was, mappings without pages of their own share its pages.
    pub const CARRIED: u32 = 7;

    /// Whether its content stays in the file, so that no pages of the object can have it.
    pub fn stays_on_disk(kind: u32) -> bool {
        matches!(kind, FILE | SHARED_FILE | READ_FILE | CARRIED)
    }
}

/// Payload of a File record with [`FILE_OBJECT`]; `path_len` bytes follow. Objects are numbered
/// from 0 in the order of their records.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Object {
    pub kind: u32,
    /// Permission bits.
    pub mode: u32,
    pub size: u64,
    pub mtime_s: i64,
    pub mtime_ns: i64,
    pub identity: Identity,
    /// Hash of the ELF build id, 0 if it has none.
    pub build_id: u64,
    pub path_len: u32,
    /// F_GET_SEALS of a memfd.
    pub seals: u32,
}
// SAFETY: `repr(C)` with integers only, no padding.
unsafe impl Plain for Object {}

impl Object {
    /// Memory that no path leads to, whose size is not known yet.
    pub fn nameless(identity: Identity) -> Object {
        Object {
            kind: object_kind::MEMORY,
            mode: 0o600,
            size: 0,
            mtime_s: 0,
            mtime_ns: 0,
            identity,
            build_id: 0,
            path_len: 0,
            seals: 0,
        }
    }
}

/// What a descriptor is.
pub mod fd_kind {
    /// `arg` is the slot.
    pub const SLOT: u32 = 1;
    /// A dead socket: reads return end of file, writes EPIPE.
    pub const DROPPED: u32 = 2;
    /// Opened again by path.
    pub const PATH: u32 = 3;
    /// `arg` is the object.
    pub const OBJECT: u32 = 4;
    /// Shares the open file of descriptor `arg`, which is earlier in the table.
    pub const DUP: u32 = 5;
    /// An event counter: `offset` is its value, `arg` its flags.
    pub const EVENT: u32 = 6;
    /// A directory that was removed: it is created where it was, opened and removed again.
    pub const GONE_DIRECTORY: u32 = 7;
    /// An end of a pipe within the process: `identity` identifies the pipe, `offset` is its
    /// capacity, and `arg` is 1 when the other end is closed. The content is the bytes in the pipe.
    pub const PIPE: u32 = 8;
    /// An end of a socket pair within the process: `offset` is the inode of the other end. Its
    /// content is a [`Socket`](super::Socket) and the bytes that can be read here.
    pub const SOCKET: u32 = 9;
    /// The content is a list of [`Watch`](super::Watch).
    pub const EPOLL: u32 = 10;
    /// The content is a [`TimerState`](super::TimerState).
    pub const TIMER: u32 = 11;
    /// `size` is the set of signals.
    pub const SIGNALS: u32 = 12;
    /// The content is a list of [`WatchedPath`](super::WatchedPath), each with its path.
    pub const INOTIFY: u32 = 13;
    /// A file that the kernel generates (/proc, /sys, control groups): opened again by path, at its
    /// offset, even if it has another inode number there.
    pub const KERNEL: u32 = 14;

    /// Whether the content of a descriptor of this kind follows it, instead of a path.
    pub fn has_content(kind: u32) -> bool {
        matches!(kind, PIPE | SOCKET | EPOLL | TIMER | INOTIFY)
    }
}

/// Longest content of a descriptor, bytes.
pub const CONTENT_MAX: usize = 200 << 10;

/// What an epoll instance watches.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watch {
    pub fd: i32,
    pub events: u32,
    pub data: u64,
}
// SAFETY: `repr(C)` with integers only, no padding.
unsafe impl Plain for Watch {}

/// What an inotify instance watches: the number of the watch, the events, and the length of the
/// path that follows, with its NUL.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchedPath {
    pub watch: u32,
    pub events: u32,
    pub path_len: u32,
}
// SAFETY: `repr(C)` with integers only, no padding.
unsafe impl Plain for WatchedPath {}

/// A timerfd: its clock, how often it has expired unread, and the remaining time.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimerState {
    pub clock: u64,
    pub ticks: u64,
    /// Seconds and nanoseconds.
    pub value: [u64; 2],
    pub interval: [u64; 2],
}
// SAFETY: `repr(C)` with integers only, no padding.
unsafe impl Plain for TimerState {}

/// An end of a socket pair.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Socket {
    /// SOCK_STREAM, SOCK_DGRAM or SOCK_SEQPACKET.
    pub kind: u32,
    /// 1: nothing more is received here, 2: nothing more is sent.
    pub shutdown: u32,
    /// SO_SNDBUF and SO_RCVBUF.
    pub send_room: u32,
    pub receive_room: u32,
}
// SAFETY: `repr(C)` with integers only, no padding.
unsafe impl Plain for Socket {}

/// Payload of a File record with [`FILE_DESCRIPTOR`]; `locks` locks and `path_len` bytes follow:
/// its path, or its content ([`fd_kind::has_content`]).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Descriptor {
    pub fd: i32,
    pub kind: u32,
    pub arg: u32,
    /// As fcntl F_GETFL gives them.
    pub open_flags: u32,
    /// FD_CLOEXEC.
    pub fd_flags: u32,
    /// File type bits of st_mode.
    pub file_type: u32,
    pub offset: u64,
    pub size: u64,
    pub identity: Identity,
    pub path_len: u32,
    /// 1: an empty file, open for writing, that no other process had open. A restore empties it
    /// again if no other process has it open then.
    pub alone: u32,
    /// How many locks it has.
    pub locks: u32,
    pub reserved: u32,
}
// SAFETY: `repr(C)` with integers only, no padding.
unsafe impl Plain for Descriptor {}

/// How a lock was taken.
pub mod lock_kind {
    /// flock(2): the whole file, of the open file.
    pub const FLOCK: u32 = 1;
    /// fcntl(2) F_SETLK: of the process.
    pub const POSIX: u32 = 2;
    /// fcntl(2) F_OFD_SETLK: of the open file.
    pub const OFD: u32 = 3;
}

/// A lock on a file.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lock {
    pub kind: u32,
    /// 1: for writing, no other lock beside it.
    pub exclusive: u32,
    pub start: u64,
    /// Bytes; 0: to the end of the file, whatever its length.
    pub len: u64,
}
// SAFETY: `repr(C)` with integers only, no padding.
unsafe impl Plain for Lock {}

/// Whether a restore cuts a file back to its captured length. It does if the process was writing at
/// the end of the file: then what follows was written after the image. Files written at other
/// offsets (several ranks may share one) are never cut. For an empty file this cannot be decided:
/// see [`Descriptor::alone`].
pub fn owns_tail(d: &Descriptor) -> bool {
    let writable = d.open_flags & 3 != 0;
    let append = d.open_flags & 0o2000 != 0;
    d.file_type == 0o100000 && writable && (append || (d.offset == d.size && d.size > 0))
}

/// Whether a restore gives the file a name back that it has lost. It does if the process writes the
/// file: then most likely the process itself renamed or replaced it, and will do so again.
pub fn owns_name(d: &Descriptor) -> bool {
    d.file_type == 0o100000 && d.open_flags & 3 != 0
}

/// Whether a capture must find out if other processes have the file open.
pub fn is_begun(d: &Descriptor) -> bool {
    d.file_type == 0o100000 && d.open_flags & 3 != 0 && d.size == 0 && !owns_tail(d)
}
