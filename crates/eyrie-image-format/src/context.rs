//! Registers and kernel state of the process, and of its first thread.

use crate::file::Identity;
use crate::plain::Plain;

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
    /// Parts of the register state that the process may use (ARCH_GET_XCOMP_PERM): those that every
    /// process may, and those that it has asked for.
    pub register_state: u64,
    /// start_code, end_code, start_data, end_data, start_brk, brk, start_stack, arg_start,
    /// arg_end, env_start, env_end: the order of `struct prctl_mm_map`.
    pub mm: [u64; 11],
    pub auxv: [u64; AUXV_WORDS],
}
// SAFETY: `repr(C)` with words of 8 bytes, pairs of 4-byte words, and arrays of them; no padding.
unsafe impl Plain for Context {}
