//! What the kernel keeps for one thread besides the registers. The thread itself reads it, and sets
//! it again in a restored process. It must not call the C library: it may have interrupted any code
//! of the thread.

use crate::refusal::Refusal;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use eyrie_image_format::{exit, AFFINITY_WORDS};
use eyrie_image_kernel::sys::{self, nr};

/// Signature with which C libraries register their restartable sequences on x86.
pub const RSEQ_SIGNATURE: u32 = 0x5305_3053;
/// `which` of the calls about io priorities.
const PROCESS: usize = 1;

/// Where a thread's area for restartable sequences was found, from its FS base on, and its length;
/// 0: none was yet. The next thread is asked about that place first, since a C library has the area
/// of all threads at one distance, and up to two thousand places are asked about otherwise.
static FOUND_AT: AtomicU64 = AtomicU64::new(0);
static FOUND_LEN: AtomicU32 = AtomicU32::new(0);

/// The state of a thread.
#[derive(Clone, Copy)]
pub struct Thread {
    pub tid: i32,
    /// Stack pointer with which the restored thread continues, see [`super::enter`].
    pub rsp: u64,
    /// What the kernel has passed to the signal handler that it is in; 0: it is in none.
    pub context: usize,
    pub fs_base: u64,
    pub gs_base: u64,
    /// The address that the kernel clears when the thread ends: its id in the C library's record.
    pub tid_address: u64,
    pub robust_head: u64,
    pub robust_len: u64,
    /// 0: none.
    pub rseq_address: u64,
    pub rseq_len: u32,
    pub parent_death_signal: u32,
    /// Address, flags and length of its signal stack.
    pub altstack: [u64; 3],
    pub comm: [u8; 16],
    /// `struct sched_attr` in its second version, 56 bytes.
    pub sched_attr: [u64; 7],
    pub affinity: [u64; AFFINITY_WORDS],
    pub timer_slack_ns: u64,
    pub io_priority: u32,
    /// set_mempolicy(2): mode, and nodes up to 64.
    pub memory_policy: u32,
    pub memory_nodes: u64,
}

fn refused(step: &'static str) -> impl Fn(i32) -> Refusal {
    move |errno| Refusal::Kernel { step, errno }
}

impl Thread {
    pub const NONE: Thread = Thread {
        tid: 0,
        rsp: 0,
        context: 0,
        fs_base: 0,
        gs_base: 0,
        tid_address: 0,
        robust_head: 0,
        robust_len: 0,
        rseq_address: 0,
        rseq_len: 0,
        parent_death_signal: 0,
        altstack: [0; 3],
        comm: [0; 16],
        sched_attr: [0; 7],
        affinity: [0; AFFINITY_WORDS],
        timer_slack_ns: 0,
        io_priority: 0,
        memory_policy: 0,
        memory_nodes: 0,
    };

    /// Reads the state of the calling thread.
    pub fn look(&mut self) -> Result<(), Refusal> {
        self.tid = sys::gettid();
        // SAFETY: the kernel writes only into the fields whose addresses are passed, with their
        // sizes.
        unsafe {
            sys::call3(nr::ARCH_PRCTL, sys::ARCH_GET_FS, &raw mut self.fs_base as usize, 0)
                .map_err(refused("reading the FS base"))?;
            sys::call3(nr::ARCH_PRCTL, sys::ARCH_GET_GS, &raw mut self.gs_base as usize, 0)
                .map_err(refused("reading the GS base"))?;
            let head = &raw mut self.robust_head;
            let len = &raw mut self.robust_len;
            sys::call3(nr::GET_ROBUST_LIST, 0, head as usize, len as usize)
                .map_err(refused("reading the robust list"))?;
            let at = &raw mut self.tid_address as usize;
            sys::call3(nr::PRCTL, sys::PR_GET_TID_ADDRESS, at, 0)
                .map_err(refused("reading the thread id address"))?;
            sys::call3(nr::SIGALTSTACK, 0, self.altstack.as_mut_ptr() as usize, 0)
                .map_err(refused("reading the signal stack"))?;
            let _ = sys::call3(nr::PRCTL, sys::PR_GET_NAME, self.comm.as_mut_ptr() as usize, 0);
            let death = &raw mut self.parent_death_signal as usize;
            let _ = sys::call3(nr::PRCTL, sys::PR_GET_PDEATHSIG, death, 0);
            let mode = &raw mut self.memory_policy as usize;
            let nodes = &raw mut self.memory_nodes as usize;
            let _ = sys::call6(nr::GET_MEMPOLICY, mode, nodes, 65, 0, 0, 0);
        }
        // SS_ONSTACK (1) is the present state, not a setting.
        self.altstack[1] &= 0xffff_fffe;
        self.look_at_scheduling()?;
        self.find_rseq()
    }

    fn look_at_scheduling(&mut self) -> Result<(), Refusal> {
        affinity_of(0, &mut self.affinity)
            .map_err(refused("reading the processors it may run on"))?;
        sched_attr_of(0, &mut self.sched_attr).map_err(refused("reading the scheduling policy"))?;
        self.io_priority = io_priority_of(0).map_err(refused("reading the io priority"))? as u32;
        // SAFETY: the arguments are numbers; the kernel accesses no memory.
        let slack = unsafe { sys::call3(nr::PRCTL, sys::PR_GET_TIMERSLACK, 0, 0) };
        self.timer_slack_ns = slack.map_err(refused("reading the timer slack"))? as u64;
        Ok(())
    }

    /// `struct sched_attr` as it must be set: with bounds of the processor's speed only if there
    /// are any.
    pub fn settable_sched_attr(&self) -> [u64; 7] {
        const UTIL_CLAMP: u64 = 0x60;
        let mut attr = self.sched_attr;
        if attr[6] != 1024 << 32 && attr[6] != 0 {
            attr[1] |= UTIL_CLAMP;
        }
        attr
    }

    /// Finds the area registered for restartable sequences. The kernel does not report it, but it
    /// returns EBUSY for a second registration of the same area and EINVAL for one of another area.
    fn find_rseq(&mut self) -> Result<(), Refusal> {
        #[repr(C, align(64))]
        struct Area([u8; 64]);
        const UNREGISTER: usize = 1;
        let mut probe = Area([0; 64]);
        let own = &raw mut probe as u64;
        match register_rseq(own, 32, 0) {
            Ok(_) => {
                return match register_rseq(own, 32, UNREGISTER) {
                    Ok(_) => Ok(()),
                    Err(errno) => Err(refused("looking for restartable sequences")(errno)),
                }
            }
            Err(sys::EINVAL) | Err(sys::EBUSY) | Err(sys::EPERM) => {}
            Err(_) => return Ok(()), // no such call
        }
        // glibc 2.35 and later has it near the thread pointer, in the first versions 0x9a0 above
        // it.
        let base = self.fs_base;
        let (found_at, found_len) =
            (FOUND_AT.load(Ordering::Relaxed), FOUND_LEN.load(Ordering::Relaxed));
        if found_len > 0 && self.is_rseq(base.wrapping_add(found_at), found_len) {
            return Ok(());
        }
        let near = (0..8192u64).step_by(32).map(|d| base.wrapping_sub(4096).wrapping_add(d));
        for address in core::iter::once(base.wrapping_add(0x9a0)).chain(near) {
            for len in [32, 64, 28, 36, 40, 44, 48, 56] {
                if self.is_rseq(address, len) {
                    FOUND_AT.store(address.wrapping_sub(base), Ordering::Relaxed);
                    FOUND_LEN.store(len, Ordering::Relaxed);
                    return Ok(());
                }
            }
        }
        Err(Refusal::Kernel { step: "finding the restartable-sequence area", errno: sys::EINVAL })
    }

    /// Whether the area for restartable sequences is this one: then it is noted.
    fn is_rseq(&mut self, address: u64, len: u32) -> bool {
        let is_it = register_rseq(address, len, 0) == Err(sys::EBUSY);
        if is_it {
            (self.rseq_address, self.rseq_len) = (address, len);
        }
        is_it
    }

    /// Sets all of it again in a thread that was started anew by one in the state of `leader`. It
    /// already has what the two have in common, or what the node sets.
    ///
    /// # Safety
    /// The calling thread must be this one, restored.
    pub unsafe fn set_again(&self, leader: &Thread) {
        // SAFETY: the kernel reads fields of `self`, and registers addresses that the thread had
        // registered before the image.
        unsafe {
            let prctl = |what: usize, arg: usize| sys::call3(nr::PRCTL, what, arg, 0);
            if self.robust_head != 0 {
                let head = self.robust_head as usize;
                let len = self.robust_len as usize;
                let _ = sys::call3(nr::SET_ROBUST_LIST, head, len, 0);
            }
            if self.rseq_address != 0 {
                if let Err(errno) = register_rseq(self.rseq_address, self.rseq_len, 0) {
                    give_up(b"registering restartable sequences", errno);
                }
            }
            if self.gs_base != 0 {
                let _ = sys::call3(nr::ARCH_PRCTL, sys::ARCH_SET_GS, self.gs_base as usize, 0);
            }
            let _ = sys::call3(nr::SIGALTSTACK, self.altstack.as_ptr() as usize, 0, 0);
            let _ = prctl(sys::PR_SET_NAME, self.comm.as_ptr() as usize);
            let _ = prctl(sys::PR_SET_TIMERSLACK, self.timer_slack_ns as usize);
            if (self.memory_policy, self.memory_nodes)
                != (leader.memory_policy, leader.memory_nodes)
            {
                let mode = self.memory_policy as usize;
                let nodes = &raw const self.memory_nodes;
                let _ = sys::call3(nr::SET_MEMPOLICY, mode, nodes as usize, 65);
            }
            self.set_scheduling_again(leader);
        }
    }

    /// Sets scheduling again, as far as this node has and allows it: it only affects speed.
    ///
    /// # Safety
    /// As [`Thread::set_again`].
    unsafe fn set_scheduling_again(&self, leader: &Thread) {
        // SAFETY: the kernel reads fields of `self`, with their sizes.
        unsafe {
            if self.affinity != leader.affinity {
                let len = size_of_val(&self.affinity);
                let at = self.affinity.as_ptr() as usize;
                let _ = sys::call3(nr::SCHED_SETAFFINITY, 0, len, at);
            }
            if self.sched_attr != leader.sched_attr {
                let attr = self.settable_sched_attr();
                let _ = sys::call3(nr::SCHED_SETATTR, 0, attr.as_ptr() as usize, 0);
            }
            if self.io_priority != leader.io_priority {
                let _ = sys::call3(nr::IOPRIO_SET, PROCESS, 0, self.io_priority as usize);
            }
        }
    }
}

/// Ends a restored process that cannot be made what it was.
pub fn give_up(step: &[u8], errno: i32) -> ! {
    let number = super::proc::PathBuf::new(b": error ", errno as u64, b"\n");
    let text = number.as_c();
    for part in [b"eyrie: a thread cannot be restored: ", step, &text[..text.len() - 1]] {
        let _ = sys::write(2, part);
    }
    sys::exit(exit::KERNEL)
}

fn register_rseq(address: u64, len: u32, flags: usize) -> sys::SysResult {
    let at = address as usize;
    let len = len as usize;
    let signature = RSEQ_SIGNATURE as usize;
    // SAFETY: the area is the thread's own, or a local one that is unregistered at once, or one
    // that the kernel refuses because another is registered.
    unsafe { sys::call6(nr::RSEQ, at, len, flags, signature, 0, 0) }
}

/// The processors that a thread may run on; 0 is the calling thread.
pub fn affinity_of(pid: usize, to: &mut [u64; AFFINITY_WORDS]) -> sys::SysResult {
    // SAFETY: the kernel writes at most `size_of_val(to)` bytes into `to`.
    unsafe { sys::call3(nr::SCHED_GETAFFINITY, pid, size_of_val(to), to.as_mut_ptr() as usize) }
}

/// Policy, nice value and priority of a thread; 0 is the calling thread.
pub fn sched_attr_of(pid: usize, to: &mut [u64; 7]) -> sys::SysResult {
    let at = to.as_mut_ptr() as usize;
    let len = size_of_val(to);
    // SAFETY: the kernel writes at most `len` bytes into `to`, which is that long.
    unsafe { sys::call6(nr::SCHED_GETATTR, pid, at, len, 0, 0, 0) }
}

pub fn io_priority_of(pid: usize) -> sys::SysResult {
    // SAFETY: the arguments are numbers; the kernel accesses no memory.
    unsafe { sys::call3(nr::IOPRIO_GET, PROCESS, pid, 0) }
}
