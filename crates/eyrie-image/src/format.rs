//! The payloads of an image's records, and the restorer's exit codes. Compiled into both sides (the
//! restorer includes it by `#[path]`), so it uses only `core` and never allocates. All numbers are
//! little-endian, as x86_64 holds them in memory.

use core::mem::size_of;

/// First bytes of a Header record.
pub const MAGIC: [u8; 8] = *b"EYRIEIMG";
/// Version of the payloads below; another one is refused.
pub const VERSION: u32 = 5;
/// Longest opaque `meta` in a Header record, bytes.
pub const META_MAX: usize = 4096;
/// Longest path in a record, bytes, without the NUL.
pub const PATH_LEN_MAX: usize = 4095;
/// The range of addresses in which the restorer lives and works. No captured mapping may touch it.
/// The restored process unmaps all of it as its first step, so nothing of a restore is ever
/// captured again. It is between the range where Linux puts position-independent programs (up to
/// 0x57…) and that of `mmap` regions (from 0x7e… up).
pub const WINDOW_START: u64 = 0x6500_0000_0000;
/// End of the restorer's range, see [`WINDOW_START`].
pub const WINDOW_END: u64 = 0x6600_0000_0000;
/// End of user addresses with four-level page tables.
pub const USER_END: u64 = 0x7fff_ffff_f000;
/// Most descriptors given to the restorer.
pub const SLOTS_MAX: usize = 1024;
/// Slots from this one on have files that the image may need and whose names may lead elsewhere
/// now. The restorer identifies them by their [`Identity`].
pub const HELD_FROM: usize = 16;

/// Exit codes of the restorer. A restore that ends with one of these has printed one line on
/// standard error and has run no instruction of the restored program.
pub mod exit {
    /// The stream ended before its trailer.
    pub const TRUNCATED: i32 = 120;
    /// Kernel, vDSO, CPU or address-space layout differ from where the image was taken.
    pub const FINGERPRINT: i32 = 121;
    /// A file the image needs is missing, has changed, or cannot be opened.
    pub const FILE: i32 = 122;
    /// The stream is not an image, or contradicts itself.
    pub const MALFORMED: i32 = 123;
    /// The kernel refused a step (out of memory, a limit, a missing feature).
    pub const KERNEL: i32 = 124;
    /// The restorer itself is at fault.
    pub const INTERNAL: i32 = 125;
    /// Wrong arguments.
    pub const USAGE: i32 = 126;
}

/// Exit codes of the image-writing child of an asynchronous capture.
pub mod writer_exit {
    /// The whole image was written.
    pub const DONE: i32 = 0;
    /// The reader of the stream has closed it.
    pub const READER_GONE: i32 = 112;
    /// The kernel refused a step; the stream has no trailer.
    pub const FAILED: i32 = 113;
    /// The child found mappings missing and told its parent; another child follows.
    pub const TRY_AGAIN: i32 = 114;
}

/// Plain data that may be read from and written as its bytes.
///
/// # Safety
/// Only for `#[repr(C)]` types without padding in which every bit pattern is a value.
pub unsafe trait Plain: Copy {}

/// The bytes of a plain value.
pub fn bytes_of<T: Plain>(value: &T) -> &[u8] {
    // SAFETY: plain types have no padding, so all their bytes are initialised.
    unsafe { core::slice::from_raw_parts((value as *const T).cast(), size_of::<T>()) }
}

/// The bytes of plain values.
pub fn bytes_of_all<T: Plain>(values: &[T]) -> &[u8] {
    // SAFETY: as in `bytes_of`; nothing lies between the values of a slice.
    unsafe { core::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

/// Reads a plain value from the front of `bytes`; `None` when they are too few.
pub fn take<T: Plain>(bytes: &[u8]) -> Option<(T, &[u8])> {
    if bytes.len() < size_of::<T>() {
        return None;
    }
    // SAFETY: the length was checked above, `Plain` guarantees that any bit pattern is a value, and
    // the read may be unaligned.
    let value = unsafe { bytes.as_ptr().cast::<T>().read_unaligned() };
    Some((value, &bytes[size_of::<T>()..]))
}

/// What must be the same on the node an image was taken on and the one it is restored on.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fingerprint {
    /// Kernel release as uname(2) says, NUL-padded.
    pub kernel: [u8; 64],
    /// CPU vendor as cpuid says, NUL-padded.
    pub cpu_vendor: [u8; 16],
    /// Instruction set bits a program can use, from cpuid leaves 1 (ecx, edx), 7.0 (ebx, ecx, edx),
    /// 7.1 (eax) and 0x80000001 (ecx, edx), masked to what user code can see.
    pub features: [u32; 8],
    /// Register state components the kernel has enabled (XCR0).
    pub xcr0: u64,
    /// Bytes of register state in a signal frame for those.
    pub xsave_len: u64,
    /// Lengths of the kernel's mappings in every process: vvar, vvar_vclock, vdso.
    pub vvar_len: u64,
    pub vvar_vclock_len: u64,
    pub vdso_len: u64,
    /// Hash of the vDSO's build id. If it is the same, its functions are where the image expects
    /// them.
    pub vdso_id: u64,
    /// Hash of the C library's build id (0: none found). For information: the library's file
    /// itself is checked like every mapped file.
    pub libc_id: u64,
}
// SAFETY: `repr(C)` with arrays and integers only, 64 + 16 + 32 + 7 * 8 bytes, no padding.
unsafe impl Plain for Fingerprint {}

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

/// Payload of a Header record; `meta_len` opaque bytes follow.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Header {
    pub magic: [u8; 8],
    pub version: u32,
    pub rank: u32,
    pub incarnation: u32,
    pub meta_len: u32,
    pub clock: u64,
    pub rsn: u64,
    /// Wall-clock time of the capture, nanoseconds since 1970.
    pub taken_unix_ns: u64,
    /// Process id in the original.
    pub pid: u32,
    /// [`NAMES_STAY`]: files keep the names that they have at the time of the restore. And
    /// [`MAPS_FILES`]: where the process had files mapped, shared and to be written, it gets memory
    /// of its own with what was there, and maps the files again by itself.
    pub names_stay: u32,
    /// /proc/sys/kernel/random/boot_id: identifies the boot of the node.
    pub boot_id: [u8; 40],
    pub fingerprint: Fingerprint,
}
// SAFETY: `repr(C)`: 8 + 4 * 4 + 3 * 8 + 8 + 40 bytes, then a plain type aligned to 8; no padding.
unsafe impl Plain for Header {}

/// `names_stay` of a Header record.
pub const NAMES_STAY: u32 = 1;
pub const MAPS_FILES: u32 = 2;

/// `struct kernel_sigaction`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct SigAction {
    pub handler: u64,
    pub flags: u64,
    pub restorer: u64,
    pub mask: u64,
}

/// Most entries of the auxiliary vector (the kernel holds 22 to 26 pairs).
pub const AUXV_WORDS: usize = 104;

/// Words of the set of processors a thread may run on: 8192 processors.
pub const AFFINITY_WORDS: usize = 128;
/// Most signals that may be pending.
pub const PENDING_MAX: usize = 512;
/// Length of a `siginfo_t` in bytes.
pub const SIGINFO_LEN: usize = 128;

/// Bits of [`Context::scheduling`]: what differs from the time when the process was started.
pub mod scheduling {
    pub const AFFINITY: u32 = 1;
    /// Policy, nice value, priority and the rest of `struct sched_attr`.
    pub const POLICY: u32 = 1 << 1;
    pub const IO_PRIORITY: u32 = 1 << 2;
    /// How likely it is to be killed when memory is short.
    pub const OOM_SCORE: u32 = 1 << 3;
}

/// `coredump_filter` of a context if the kernel does not report it.
pub const UNKNOWN: u32 = u32::MAX;

/// Payload of the Context record: registers and kernel state of the process. The pending signals
/// follow, each as its `siginfo_t`, then the path of the working directory (`cwd_len` bytes).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Context {
    /// Stack pointer and instruction at which to continue: a label of the capture that pops the
    /// rest.
    pub rsp: u64,
    pub rip: u64,
    pub fs_base: u64,
    pub gs_base: u64,
    /// The argument of set_tid_address(2).
    pub tid_address: u64,
    pub robust_head: u64,
    pub robust_len: u64,
    /// Restartable-sequence area, its length and signature (address 0: none).
    pub rseq_address: u64,
    pub rseq_len: u32,
    pub rseq_signature: u32,
    pub altstack_base: u64,
    pub altstack_flags: u64,
    pub altstack_len: u64,
    /// Signal actions 1 to 64.
    pub actions: [SigAction; 64],
    /// Real, virtual and profiling timers: interval and remaining time as (s, µs).
    pub itimers: [[i64; 4]; 3],
    /// Soft and hard limits by number.
    pub rlimits: [[u64; 2]; 16],
    pub comm: [u8; 16],
    pub umask: u32,
    pub parent_death_signal: u32,
    pub dumpable: u32,
    pub subreaper: u32,
    pub thp_disable: u32,
    pub cwd_len: u32,
    pub auxv_words: u32,
    /// 1: the working directory was removed.
    pub cwd_gone: u32,
    pub cwd: Identity,
    /// How many signals are pending.
    pub pending: u32,
    pub scheduling: u32,
    /// `struct sched_attr` in its second version, 56 bytes.
    pub sched_attr: [u64; 7],
    pub affinity: [u64; AFFINITY_WORDS],
    pub timer_slack_ns: u64,
    pub io_priority: u32,
    pub oom_score: i32,
    /// personality(2).
    pub personality: u32,
    pub no_new_privs: u32,
    /// Whether reading the time stamp counter is forbidden (PR_GET_TSC).
    pub tsc: u32,
    /// What happens at a memory failure (PR_MCE_KILL_GET).
    pub memory_failure: u32,
    /// Memory may not be both writable and executable (PR_GET_MDWE).
    pub mdwe: u32,
    /// PR_GET_SPECULATION_CONTROL: store bypass, indirect branches, cache flushes.
    pub speculation: [u32; 3],
    /// Commands of membarrier(2) that the process has registered for.
    pub membarrier: u32,
    /// mlockall(2): MCL_FUTURE and MCL_ONFAULT.
    pub lock_future: u32,
    pub coredump_filter: u32,
    /// set_mempolicy(2): mode, and nodes up to 64.
    pub memory_policy: u32,
    pub memory_nodes: u64,
    /// Parts of the register state that the process has asked for (ARCH_GET_XCOMP_PERM).
    pub register_state: u64,
    /// start_code, end_code, start_data, end_data, start_brk, brk, start_stack, arg_start,
    /// arg_end, env_start, env_end: the order of `struct prctl_mm_map`.
    pub mm: [u64; 11],
    pub auxv: [u64; AUXV_WORDS],
}
// SAFETY: `repr(C)` with words of 8 bytes, pairs of 4-byte words, and arrays of them; no padding.
unsafe impl Plain for Context {}

/// `object` of a mapping that has none.
pub const NO_OBJECT: u32 = u32::MAX;

/// Properties of a mapping.
pub mod map_flag {
    pub const SHARED: u32 = 1;
    pub const GROWS_DOWN: u32 = 1 << 1;
    pub const NO_RESERVE: u32 = 1 << 2;
    pub const DROPPABLE: u32 = 1 << 3;
    /// Pages records for it follow.
    pub const HAS_PAGES: u32 = 1 << 4;
    pub const VVAR: u32 = 1 << 5;
    pub const VVAR_VCLOCK: u32 = 1 << 6;
    pub const VDSO: u32 = 1 << 7;
    /// Huge pages from the pool; bits 24 to 31 hold the binary logarithm of their size.
    pub const HUGETLB: u32 = 1 << 8;
    /// A shared mapping whose content is all in the image: where it has no pages it is zero.
    pub const WHOLE: u32 = 1 << 9;
    /// The mapping cannot be changed (mseal).
    pub const SEALED: u32 = 1 << 10;
    /// The kernel's own mappings of every process.
    pub const SPECIAL: u32 = VVAR | VVAR_VCLOCK | VDSO;
    pub const HUGETLB_SHIFT: u32 = 24;
    pub const ALL: u32 = 0x7ff | 0xff << HUGETLB_SHIFT;
}

/// Advice given for a mapping, as bits.
pub mod advice {
    pub const HUGE_PAGE: u32 = 1;
    pub const NO_HUGE_PAGE: u32 = 1 << 1;
    pub const DONT_FORK: u32 = 1 << 2;
    pub const WIPE_ON_FORK: u32 = 1 << 3;
    pub const DONT_DUMP: u32 = 1 << 4;
    pub const MERGEABLE: u32 = 1 << 5;
    pub const SEQUENTIAL: u32 = 1 << 6;
    pub const RANDOM: u32 = 1 << 7;
    pub const LOCKED: u32 = 1 << 8;
}

/// Payload of a Mapping record.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    pub start: u64,
    pub end: u64,
    /// Offset into the object, bytes.
    pub offset: u64,
    /// PROT_READ, PROT_WRITE, PROT_EXEC.
    pub prot: u32,
    pub flags: u32,
    pub advice: u32,
    /// Number of the object it maps, or [`NO_OBJECT`].
    pub object: u32,
    /// mbind(2): mode and nodes up to 64; the mode is [`UNKNOWN`] if the process's own applies.
    pub memory_policy: u32,
    pub reserved: u32,
    pub memory_nodes: u64,
}
// SAFETY: `repr(C)` with integers only, no padding.
unsafe impl Plain for Mapping {}

impl Mapping {
    /// Whether it is the process's own memory, private and anonymous. Such memory can be put in
    /// place on another node before the rest of an image is known.
    pub fn is_own(&self) -> bool {
        let other = map_flag::SHARED | map_flag::SPECIAL | map_flag::DROPPABLE | map_flag::HUGETLB;
        self.object == NO_OBJECT && self.flags & other == 0
    }
}

/// `flags` of a File record: which payload it has.
pub const FILE_OBJECT: u32 = 1;
pub const FILE_DESCRIPTOR: u32 = 2;
/// `flags` of a Pages record that holds file content: `a` is the offset, `b` the object.
pub const PAGES_OF_OBJECT: u32 = 1;
/// `flags` of a Pages record without content: `b` bytes from `a` on are guard pages.
pub const PAGES_GUARD: u32 = 2;
/// `flags` of a Pages record without content, in an incremental image. `a` is a multiple of the
/// longest payload. Those of the pages from `a` on whose bits are set in `b` (lowest first) are
/// unchanged since the image that this one builds on.
pub const PAGES_SAME: u32 = 4;

/// What a mapping or a descriptor refers to.
pub mod object_kind {
    /// A file mapped privately or read-only: opened again, and must be the same file.
    pub const FILE: u32 = 1;
    /// A file on a disk that is mapped shared and writable: opened again. The mapped range gets its
    /// content back when the whole image has been read.
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
    /// content is a [`super::Socket`](super::Socket) and the bytes that can be read here.
    pub const SOCKET: u32 = 9;
    /// The content is a list of [`super::Watch`](super::Watch).
    pub const EPOLL: u32 = 10;
    /// The content is a [`super::TimerState`](super::TimerState).
    pub const TIMER: u32 = 11;
    /// `size` is the set of signals.
    pub const SIGNALS: u32 = 12;
    /// The content is a list of [`super::WatchedPath`](super::WatchedPath), each with its path.
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

/// Running hash over headers and payloads of the records that describe the process. The trailer has
/// it. It is not cryptographic: it finds mix-ups, and the store's checksums find corruption.
#[derive(Clone, Copy)]
pub struct MetaHash(u64);

impl MetaHash {
    #[allow(clippy::new_without_default)]
    pub const fn new() -> MetaHash {
        MetaHash(0xcbf2_9ce4_8422_2325)
    }

    pub fn update(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0u8; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.0 = (self.0 ^ u64::from_le_bytes(word)).wrapping_mul(0x0000_0100_0000_01b3);
            self.0 ^= self.0 >> 29;
        }
    }

    pub fn value(self) -> u64 {
        self.0
    }
}
