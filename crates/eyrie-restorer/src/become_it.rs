//! The last steps: the kernel's state of the process, then its registers. Once the working
//! descriptors are closed, no error can be reported. So every step that can fail must come first.

use crate::descriptors::Table;
use crate::fail::{self, Errno};
use crate::image::Image;
use core::arch::asm;
use eyrie_image_format::*;
use eyrie_image_kernel::processor::ASKED_FOR;
use eyrie_image_kernel::sys::{self, nr};

pub fn parent() -> usize {
    // SAFETY: the call has no arguments, so the kernel touches no memory of ours.
    unsafe { sys::call3(nr::GETPPID, 0, 0, 0) }.unwrap_or(0)
}

/// Becomes the process.
pub fn become_it(image: &Image, table: &Table, parent_before: usize) -> ! {
    let c = image.context;
    set_memory_layout(c);
    set_register_state(c);
    set_process(c);
    set_scheduling(c);
    set_settings(c);
    set_thread(c);
    // After the actions: setting one to "ignore" drops what is pending.
    for info in image.pending {
        if let Err(errno) = sys::queue_signal(info) {
            fail::kernel("queueing the pending signals", errno);
        }
    }
    if c.parent_death_signal != 0 {
        // SAFETY: the call takes numbers only, so the kernel touches no memory of ours.
        let _ = unsafe {
            sys::call3(nr::PRCTL, sys::PR_SET_PDEATHSIG, c.parent_death_signal as usize, 0)
        };
        if parent() != parent_before {
            // The parent died before PR_SET_PDEATHSIG was set.
            sys::exit(128 + c.parent_death_signal as i32);
        }
    }
    table.close_working();
    set_limits(c);
    for (i, timer) in c.itimers.iter().enumerate() {
        // SAFETY: the kernel reads one struct itimerval, which is four words and ours.
        let _ = unsafe { sys::call3(nr::SETITIMER, i, timer.as_ptr() as usize, 0) };
    }
    // SAFETY: the image's stack and code are in place; the code at `rip` unmaps our stretch.
    unsafe {
        let _ = sys::call3(nr::ARCH_PRCTL, sys::ARCH_SET_GS, c.gs_base as usize, 0);
        let _ = sys::call3(nr::ARCH_PRCTL, sys::ARCH_SET_FS, c.fs_base as usize, 0);
        asm!(
            "mov rsp, {stack}",
            "xor ebp, ebp",
            "jmp {go}",
            stack = in(reg) c.rsp,
            go = in(reg) c.rip,
            in("rdi") WINDOW_START,
            in("rsi") WINDOW_END - WINDOW_START,
            options(noreturn)
        );
    }
}

/// `struct prctl_mm_map`.
#[repr(C)]
struct MemoryMap {
    mm: [u64; 11],
    auxv: u64,
    auxv_len: u32,
    exe_fd: u32,
}

fn set_memory_layout(c: &Context) {
    let map = MemoryMap {
        mm: c.mm,
        auxv: c.auxv.as_ptr() as u64,
        auxv_len: c.auxv_words * 8,
        exe_fd: u32::MAX,
    };
    // SAFETY: the kernel reads the structure and the vector.
    let set = unsafe {
        sys::call6(
            nr::PRCTL,
            sys::PR_SET_MM,
            sys::PR_SET_MM_MAP,
            &raw const map as usize,
            core::mem::size_of::<MemoryMap>(),
            0,
            0,
        )
    };
    if let Err(errno) = set {
        fail::kernel("setting heap, arguments and environment (PR_SET_MM_MAP)", errno);
    }
}

fn set_process(c: &Context) {
    for (i, action) in c.actions.iter().enumerate() {
        let signal = i as i32 + 1;
        if signal == sys::SIGKILL || signal == sys::SIGSTOP {
            continue;
        }
        // SAFETY: the kernel reads one signal action, which is ours.
        let set = unsafe {
            sys::call6(
                nr::RT_SIGACTION,
                signal as usize,
                action as *const SigAction as usize,
                0,
                8,
                0,
                0,
            )
        };
        if let Err(errno) = set {
            fail::kernel("setting the signal actions", errno);
        }
    }
    let stack = [c.altstack_base, c.altstack_flags, c.altstack_len];
    // SAFETY: each call reads what it is given and changes a setting of this process.
    unsafe {
        if let Err(errno) = sys::call3(nr::SIGALTSTACK, stack.as_ptr() as usize, 0, 0) {
            fail::kernel("setting the signal stack", errno);
        }
        let _ = sys::call3(nr::PRCTL, sys::PR_SET_NAME, c.comm.as_ptr() as usize, 0);
        let _ = sys::call3(nr::PRCTL, sys::PR_SET_CHILD_SUBREAPER, c.subreaper as usize, 0);
        if c.dumpable <= 1 {
            let _ = sys::call3(nr::PRCTL, sys::PR_SET_DUMPABLE, c.dumpable as usize, 0);
        }
        if c.thp_disable != 0 {
            // Newer kernels report exceptions beside the first bit.
            let exceptions = (c.thp_disable & !1) as usize;
            let _ = sys::call6(nr::PRCTL, sys::PR_SET_THP_DISABLE, 1, exceptions, 0, 0, 0);
        }
        let _ = sys::call3(nr::UMASK, c.umask as usize, 0, 0);
    }
}

/// Asks for the part of the register state that a process gets only when it asks for it: before its
/// signal stack is set, which must have room for it. The image names the other parts, too, as far
/// as its processor had them. A kernel refuses to be asked for those.
fn set_register_state(c: &Context) {
    if c.register_state & 1 << ASKED_FOR == 0 {
        return;
    }
    // SAFETY: the kernel takes numbers and changes a setting of this process.
    let asked = unsafe { sys::call3(nr::ARCH_PRCTL, sys::ARCH_REQ_XCOMP_PERM, ASKED_FOR, 0) };
    if let Err(e) = asked {
        fail::kernel("asking for the processor's whole register state", e);
    }
}

/// Sets the memory policy of the process. It is set before there is memory, and once more when a
/// note can be printed.
pub fn set_memory_policy(c: &Context) -> Result<(), i32> {
    if c.memory_policy == 0 {
        return Ok(());
    }
    let mode = c.memory_policy as usize;
    let nodes = &raw const c.memory_nodes as usize;
    // SAFETY: the kernel reads one word, which is ours.
    unsafe { sys::call3(nr::SET_MEMPOLICY, mode, nodes, 65).map(|_| ()) }
}

/// Settings of the process. Where this kernel does not know a setting, the process did not have it.
fn set_settings(c: &Context) {
    let set = |what: usize, a: usize, b: usize| {
        // SAFETY: the call takes numbers only, so the kernel touches no memory of ours.
        unsafe { sys::call6(nr::PRCTL, what, a, b, 0, 0, 0) }
    };
    if let Err(e) = set_memory_policy(c) {
        fail::note(format_args!("this node does not allow its memory policy: {}", Errno(e)));
    }
    if c.tsc != 0 {
        let _ = set(sys::PR_SET_TSC, c.tsc as usize, 0);
    }
    const MCE_KILL_SET: usize = 1;
    if c.memory_failure != UNKNOWN {
        let _ = set(sys::PR_MCE_KILL, MCE_KILL_SET, c.memory_failure as usize);
    }
    const PER_PROCESS: u32 = 1;
    for (kind, state) in c.speculation.iter().enumerate() {
        if state & PER_PROCESS != 0 {
            let state = (state & !PER_PROCESS) as usize;
            // SAFETY: the call takes numbers only, so the kernel touches no memory of ours.
            let _ = unsafe {
                sys::call6(nr::PRCTL, sys::PR_SET_SPECULATION_CTRL, kind, state, 0, 0, 0)
            };
        }
    }
    // SAFETY: the call takes numbers only, so the kernel touches no memory of ours.
    unsafe {
        for command in (0..32).map(|bit| c.membarrier & 1 << bit).filter(|command| *command != 0) {
            let _ = sys::call3(nr::MEMBARRIER, command as usize, 0, 0);
        }
        if c.lock_future != 0 {
            if let Err(e) = sys::call3(nr::MLOCKALL, c.lock_future as usize, 0, 0) {
                fail::note(format_args!(
                    "its future memory is not locked: {}; raise `ulimit -l` on this node",
                    Errno(e)
                ));
            }
        }
        if c.mdwe != 0 {
            let _ = set(sys::PR_SET_MDWE, c.mdwe as usize, 0);
        }
        let _ = sys::call3(nr::PERSONALITY, c.personality as usize, 0, 0);
    }
    if c.coredump_filter != UNKNOWN {
        write_number(b"/proc/self/coredump_filter\0", i64::from(c.coredump_filter));
    }
    if c.scheduling & scheduling::OOM_SCORE != 0 {
        write_number(b"/proc/self/oom_score_adj\0", i64::from(c.oom_score));
    }
    if c.no_new_privs == 1 {
        let _ = set(sys::PR_SET_NO_NEW_PRIVS, 1, 0);
    }
}

/// Writes a setting that has a file. A value that is not allowed here stays as it is.
fn write_number(path: &[u8], number: i64) {
    use core::fmt::Write;
    struct Text([u8; 24], usize);
    impl Write for Text {
        fn write_str(&mut self, text: &str) -> core::fmt::Result {
            let end = self.1 + text.len();
            self.0.get_mut(self.1..end).ok_or(core::fmt::Error)?.copy_from_slice(text.as_bytes());
            self.1 = end;
            Ok(())
        }
    }
    let mut text = Text([0; 24], 0);
    let _ = write!(text, "{number}");
    if let Ok(fd) = sys::open(path, sys::O_WRONLY | sys::O_CLOEXEC, 0) {
        let _ = sys::write(fd, &text.0[..text.1]);
        sys::close(fd);
    }
}

/// Settings that the process had changed since its start, as far as this node allows them.
fn set_scheduling(c: &Context) {
    const PROCESS: usize = 1;
    let changed = |what: u32| c.scheduling & what != 0;
    // SAFETY: the kernel reads what it is given and changes a setting of this process.
    unsafe {
        if changed(scheduling::AFFINITY) {
            let len = core::mem::size_of_val(&c.affinity);
            let at = c.affinity.as_ptr() as usize;
            if sys::call3(nr::SCHED_SETAFFINITY, 0, len, at).is_err() {
                fail::note(format_args!(
                    "this node has none of its processors: it may use those of its agent"
                ));
            }
        }
        if changed(scheduling::POLICY) {
            let at = c.sched_attr.as_ptr() as usize;
            if let Err(e) = sys::call3(nr::SCHED_SETATTR, 0, at, 0) {
                let e = Errno(e);
                fail::note(format_args!(
                    "this node does not allow its scheduling policy and nice value: {e}"
                ));
            }
        }
        if changed(scheduling::IO_PRIORITY) {
            if let Err(e) = sys::call3(nr::IOPRIO_SET, PROCESS, 0, c.io_priority as usize) {
                fail::note(format_args!("this node does not allow its io priority: {}", Errno(e)));
            }
        }
        let _ = sys::call3(nr::PRCTL, sys::PR_SET_TIMERSLACK, c.timer_slack_ns as usize, 0);
    }
}

fn set_thread(c: &Context) {
    // SAFETY: the addresses were checked to lie in the image's writable memory, or are only
    // handed to the kernel, which checks them.
    unsafe {
        // The C library keeps the thread id that it remembers. The id is also in the owner fields
        // of the mutexes that the thread holds, and they must agree.
        let _ = sys::call3(nr::SET_TID_ADDRESS, c.tid_address as usize, 0, 0);
        if c.robust_head != 0 {
            let head = c.robust_head as usize;
            let len = c.robust_len as usize;
            let _ = sys::call3(nr::SET_ROBUST_LIST, head, len, 0);
        }
        if c.rseq_address != 0 {
            let registered = sys::call6(
                nr::RSEQ,
                c.rseq_address as usize,
                c.rseq_len as usize,
                0,
                c.rseq_signature as usize,
                0,
                0,
            );
            if let Err(errno) = registered {
                fail::kernel("registering restartable sequences", errno);
            }
        }
    }
}

/// Raises the limits on memory: the image and this program are there side by side for a while.
/// [`set_limits`] sets the limits of the process.
pub fn lift_limits() {
    const RLIMIT_DATA: usize = 2;
    const RLIMIT_AS: usize = 9;
    for which in [RLIMIT_DATA, RLIMIT_AS] {
        let mut here = [0u64; 2];
        let none = [u64::MAX; 2];
        // SAFETY: the kernel reads one struct rlimit64, which is two words and ours. A process that
        // may not raise the hard limit raises the soft one.
        unsafe {
            let _ = sys::call6(nr::PRLIMIT64, 0, which, 0, here.as_mut_ptr() as usize, 0, 0);
            let lifted = sys::call6(nr::PRLIMIT64, 0, which, none.as_ptr() as usize, 0, 0, 0);
            if lifted.is_err() {
                let highest = [here[1]; 2];
                let _ = sys::call6(nr::PRLIMIT64, 0, which, highest.as_ptr() as usize, 0, 0, 0);
            }
        }
    }
}

/// Limits as they were, as far as the hard limits here allow.
fn set_limits(c: &Context) {
    for (i, limit) in c.rlimits.iter().enumerate() {
        let mut here = [0u64; 2];
        // SAFETY: the kernel reads one struct rlimit64, which is two words and ours.
        unsafe {
            if sys::call6(nr::PRLIMIT64, 0, i, 0, here.as_mut_ptr() as usize, 0, 0).is_ok() {
                let wanted = [limit[0].min(here[1]), limit[1].min(here[1])];
                let _ = sys::call6(nr::PRLIMIT64, 0, i, wanted.as_ptr() as usize, 0, 0, 0);
            }
        }
    }
}
