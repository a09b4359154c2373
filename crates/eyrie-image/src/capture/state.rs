//! The kernel's state of the calling process and its first thread: everything in the Context record
//! except the registers, which the entry code keeps on the stack. Only looks; pending signals are
//! taken and queued again.

use super::proc::{read_file, read_link, PathBuf, Status};
use super::scratch::Scratch;
use super::thread_state::{affinity_of, io_priority_of, sched_attr_of, Thread, RSEQ_SIGNATURE};
use crate::refusal::{Refusal, Text};
use eyrie_image_format::{
    scheduling, Context, SigAction, AFFINITY_WORDS, AUXV_WORDS, PATH_LEN_MAX, PENDING_MAX,
    SIGINFO_LEN, UNKNOWN,
};
use eyrie_image_kernel::maps;
use eyrie_image_kernel::names;
use eyrie_image_kernel::sys;
use eyrie_image_kernel::sys::nr;

/// The state, and the path that follows it in its record.
pub struct CapturedState {
    pub context: &'static mut Context,
    pub cwd: &'static [u8],
    pub pending: &'static [SigInfo],
}

/// A `siginfo_t`.
pub type SigInfo = [u8; SIGINFO_LEN];

fn refused(step: &'static str) -> impl Fn(i32) -> Refusal {
    move |errno| Refusal::Kernel { step, errno }
}

impl CapturedState {
    /// Reads the state of this process. All its signals are blocked, and `leader` is its first
    /// thread. `starter` is as [`crate::Request::starter_pid`].
    ///
    /// # Safety
    /// It must not outlive the scratch.
    pub unsafe fn take(
        scratch: &mut Scratch,
        status: &Status,
        starter: i32,
        leader: &Thread,
    ) -> Result<CapturedState, Refusal> {
        // SAFETY: the caller does not use the result after the scratch is released.
        let (context, buf, room) = unsafe {
            let buf = scratch.take::<u8>(2 * PATH_LEN_MAX)?;
            (&mut scratch.take::<Context>(1)?[0], buf, scratch.take(PENDING_MAX)?)
        };
        // Before the timers are read: a timer whose signal is pending starts anew when that is
        // taken.
        let pending = take_pending(room)?;
        context.pending = pending.len() as u32;
        take_thread(context, leader);
        take_scheduling(context, leader, starter);
        // SAFETY: every pointer below is to the scratch or to the stack, with the size that the
        // call requires.
        unsafe {
            take_process(context)?;
            take_settings(context, status, buf, starter);
        }
        take_memory_layout(context, buf)?;
        let cwd = read_link(b"/proc/thread-self/cwd\0", buf)
            .map_err(refused("looking up the working directory"))?;
        let here = directory(context, cwd)?;
        // SAFETY: the caller does not use the result after the scratch is released.
        let cwd = unsafe { scratch.keep(here)? };
        context.cwd_len = cwd.len() as u32;
        Ok(CapturedState { context, cwd, pending })
    }
}

/// Takes all pending signals in their order and queues them again.
fn take_pending(room: &'static mut [SigInfo]) -> Result<&'static [SigInfo], Refusal> {
    let all = u64::MAX;
    let at_once = [0u64; 2];
    let mut count = 0;
    let result = loop {
        if count == room.len() {
            break Err(Refusal::Signals { limit: PENDING_MAX });
        }
        let set = &raw const all as usize;
        let info = room[count].as_mut_ptr() as usize;
        // SAFETY: the kernel reads the set and the time, local variables, and writes a siginfo_t
        // into a room of that length.
        let taken = unsafe {
            sys::call6(nr::RT_SIGTIMEDWAIT, set, info, at_once.as_ptr() as usize, 8, 0, 0)
        };
        match taken {
            Ok(_) => count += 1,
            Err(sys::EAGAIN) => break Ok(()),
            Err(errno) => break Err(refused("taking the pending signals")(errno)),
        }
    };
    let pending = &room[..count];
    let queued = pending.iter().try_for_each(sys::queue_signal);
    result.and(queued.map_err(refused("queueing the pending signals again")))?;
    Ok(pending)
}

/// Reads settings that a kernel may not know. If it does not, a restore has nothing to set.
///
/// # Safety
/// The context must be writable.
unsafe fn take_settings(c: &mut Context, status: &Status, buf: &mut [u8], starter: i32) {
    // SAFETY: the kernel writes only into words of `c` and of local variables, whose addresses are
    // passed.
    unsafe {
        let prctl = |what: usize, a: usize| sys::call6(nr::PRCTL, what, a, 0, 0, 0, 0);
        let number = |result: sys::SysResult| result.unwrap_or(0) as u32;
        c.personality = number(sys::call3(nr::PERSONALITY, 0xffff_ffff, 0, 0));
        c.no_new_privs = number(prctl(sys::PR_GET_NO_NEW_PRIVS, 0));
        let _ = prctl(sys::PR_GET_TSC, &raw mut c.tsc as usize);
        c.memory_failure = prctl(sys::PR_MCE_KILL_GET, 0).map_or(UNKNOWN, |n| n as u32);
        c.mdwe = number(prctl(sys::PR_GET_MDWE, 0));
        for (i, kind) in c.speculation.iter_mut().enumerate() {
            *kind = number(prctl(sys::PR_GET_SPECULATION_CTRL, i));
        }
        // Kernels before 6.3 do not report registrations. Registering for more does no harm.
        const GET_REGISTRATIONS: usize = 512;
        const USUAL: usize = 1 << 2 | 1 << 4;
        c.membarrier = sys::call3(nr::MEMBARRIER, GET_REGISTRATIONS, 0, 0).unwrap_or(USUAL) as u32;
        let at = &raw mut c.register_state as usize;
        let _ = sys::call3(nr::ARCH_PRCTL, sys::ARCH_GET_XCOMP_PERM, at, 0);
    }
    c.lock_future = locks_future(status, buf);
    let filter = read_file(b"/proc/self/coredump_filter\0", buf);
    c.coredump_filter =
        filter.ok().and_then(|len| maps::hex(&buf[..len])).map_or(UNKNOWN, |(n, _)| n as u32);
    let mut score = |path: &[u8]| -> Option<i32> {
        let len = read_file(path, buf).ok()?;
        let text = &buf[..len];
        let digits = text.strip_prefix(b"-").unwrap_or(text);
        let (number, _) = maps::decimal(digits)?;
        Some(if digits.len() < text.len() { -(number as i32) } else { number as i32 })
    };
    let own = score(b"/proc/self/oom_score_adj\0");
    let path = PathBuf::new(b"/proc/", starter.max(0) as u64, b"/oom_score_adj");
    c.oom_score = own.unwrap_or(0);
    if own.is_some() && (starter == 0 || own != score(path.as_c())) {
        c.scheduling |= scheduling::OOM_SCORE;
    }
}

/// Whether the process has locked its future memory (mlockall), which shows in what the kernel does
/// with new memory.
fn locks_future(status: &Status, buf: &mut [u8]) -> u32 {
    const FUTURE: u32 = 2;
    const ONFAULT: u32 = 4;
    if status.number(b"VmLck:").is_none_or(|kib| kib == 0) {
        return 0; // the capture's own memory would be locked
    }
    let mut locked = || -> Option<u64> {
        let len = read_file(b"/proc/thread-self/status\0", buf).ok()?;
        let mut lines = buf[..len].split(|b| *b == b'\n');
        let line = lines.find_map(|l| l.strip_prefix(b"VmLck:"))?;
        Some(maps::decimal(line.trim_ascii_start())?.0)
    };
    let before = locked();
    let Ok(at) = sys::map_anonymous(sys::PAGE, sys::MAP_PRIVATE) else { return 0 };
    let grown = locked() > before;
    let mut resident = 0u8;
    // SAFETY: the page at `at` was mapped above, and mincore writes one byte into `resident`.
    unsafe {
        let _ = sys::call3(nr::MINCORE, at, sys::PAGE, &raw mut resident as usize);
        let _ = sys::munmap(at, sys::PAGE);
    }
    match (grown, resident & 1) {
        (false, _) => 0,
        (true, 0) => FUTURE | ONFAULT,
        (true, _) => FUTURE,
    }
}

/// Reads on which processors and how the process runs, and what of that differs from its starter.
fn take_scheduling(c: &mut Context, leader: &Thread, starter: i32) {
    c.affinity = leader.affinity;
    c.sched_attr = leader.settable_sched_attr();
    c.io_priority = leader.io_priority;
    c.timer_slack_ns = leader.timer_slack_ns;
    let mut theirs = [0; AFFINITY_WORDS];
    let mut their_attr = [0; 7];
    let pid = starter as usize;
    let known = starter > 0;
    // If the starter is gone, nothing is known.
    let same = known && affinity_of(pid, &mut theirs).is_ok() && theirs == leader.affinity;
    c.scheduling |= u32::from(!same) * scheduling::AFFINITY;
    let same =
        known && sched_attr_of(pid, &mut their_attr).is_ok() && their_attr == leader.sched_attr;
    c.scheduling |= u32::from(!same) * scheduling::POLICY;
    let same = known && io_priority_of(pid) == Ok(leader.io_priority as usize);
    c.scheduling |= u32::from(!same) * scheduling::IO_PRIORITY;
}

/// Identifies the working directory and returns its path.
fn directory<'a>(c: &mut Context, path: &'a [u8]) -> Result<&'a [u8], Refusal> {
    let failed = refused("looking at the working directory");
    let flags = sys::O_PATH | sys::O_DIRECTORY | sys::O_CLOEXEC;
    let fd = sys::open(b".\0", flags, 0).map_err(&failed)?;
    let identity = sys::identity(fd);
    sys::close(fd);
    c.cwd = identity.map_err(&failed)?;
    let there = names::Path::join(&[path]).and_then(|path| sys::stat(path.as_c()).ok());
    if there.is_some_and(|st| (st.dev, st.ino) == (c.cwd.dev, c.cwd.ino)) {
        return Ok(path);
    }
    if !path.ends_with(names::DELETED) {
        return Err(Refusal::Directory { name: Text::new(path) });
    }
    c.cwd_gone = 1;
    Ok(names::without_mark(path))
}

/// Copies the state of the first thread.
fn take_thread(c: &mut Context, leader: &Thread) {
    (c.rsp, c.fs_base, c.gs_base) = (leader.rsp, leader.fs_base, leader.gs_base);
    c.tid_address = leader.tid_address;
    (c.robust_head, c.robust_len) = (leader.robust_head, leader.robust_len);
    (c.rseq_address, c.rseq_len) = (leader.rseq_address, leader.rseq_len);
    c.rseq_signature = RSEQ_SIGNATURE;
    [c.altstack_base, c.altstack_flags, c.altstack_len] = leader.altstack;
    c.comm = leader.comm;
    c.parent_death_signal = leader.parent_death_signal;
    (c.memory_policy, c.memory_nodes) = (leader.memory_policy, leader.memory_nodes);
}

/// Keeps a timer running. One that has expired while its signal is still pending has no time left:
/// the kernel starts it anew when the signal is taken. Restored like that it would be off.
fn keep_going(timer: &mut [i64; 4]) {
    let [interval_s, interval_us, s, us] = *timer;
    if (s, us) == (0, 0) {
        *timer = [interval_s, interval_us, interval_s, interval_us];
    }
}

/// Reads signal actions, timers, limits and settings.
///
/// # Safety
/// The context must be writable.
unsafe fn take_process(c: &mut Context) -> Result<(), Refusal> {
    for (i, action) in c.actions.iter_mut().enumerate() {
        // SAFETY: the kernel writes one action of 32 bytes, the size of SigAction.
        unsafe {
            sys::call6(nr::RT_SIGACTION, i + 1, 0, action as *mut SigAction as usize, 8, 0, 0)
        }
        .map_err(refused("reading the signal actions"))?;
    }
    for (i, timer) in c.itimers.iter_mut().enumerate() {
        // SAFETY: the kernel writes struct itimerval, four words, which `timer` holds.
        unsafe { sys::call3(nr::GETITIMER, i, timer.as_mut_ptr() as usize, 0) }
            .map_err(refused("reading the interval timers"))?;
        keep_going(timer);
    }
    for (i, limit) in c.rlimits.iter_mut().enumerate() {
        // SAFETY: the kernel writes struct rlimit64, two words, which `limit` holds.
        unsafe { sys::call6(nr::PRLIMIT64, 0, i, 0, limit.as_mut_ptr() as usize, 0, 0) }
            .map_err(refused("reading the resource limits"))?;
    }
    // SAFETY: the kernel writes at most 4 bytes for each address in `c`. The umask is set back at
    // once.
    unsafe {
        let _ =
            sys::call3(nr::PRCTL, sys::PR_GET_CHILD_SUBREAPER, &raw mut c.subreaper as usize, 0);
        c.dumpable = sys::call3(nr::PRCTL, sys::PR_GET_DUMPABLE, 0, 0).unwrap_or(1) as u32;
        c.thp_disable =
            sys::call6(nr::PRCTL, sys::PR_GET_THP_DISABLE, 0, 0, 0, 0, 0).unwrap_or(0) as u32;
        c.umask = sys::call3(nr::UMASK, 0o077, 0, 0).unwrap_or(0o022) as u32;
        let _ = sys::call3(nr::UMASK, c.umask as usize, 0, 0);
    }
    Ok(())
}

/// Reads where code, data, heap, stack, arguments and environment are, as the kernel has it.
fn take_memory_layout(c: &mut Context, buf: &mut [u8]) -> Result<(), Refusal> {
    let step = "reading the memory layout";
    let len = read_file(b"/proc/thread-self/auxv\0", buf).map_err(refused(step))?;
    c.auxv_words = (len / 8).min(AUXV_WORDS) as u32;
    for (word, bytes) in c.auxv.iter_mut().zip(buf[..len].chunks_exact(8)) {
        *word = u64::from_le_bytes(bytes.try_into().unwrap_or([0; 8]));
    }
    let len = read_file(b"/proc/thread-self/stat\0", buf).map_err(refused(step))?;
    // The command name may hold anything, so the fields are counted from the last parenthesis,
    // which ends field 2. Numbers are those of proc(5).
    let wrong = Refusal::Kernel { step, errno: sys::EINVAL };
    let text = &buf[..len];
    let after = text.iter().rposition(|b| *b == b')').ok_or(wrong)? + 2;
    let mut fields = [0u64; 64];
    for (i, field) in text[after..].split(|b| *b == b' ').take(60).enumerate() {
        fields[i + 3] = maps::decimal(field).map_or(0, |(n, _)| n);
    }
    // SAFETY: brk(0) changes nothing; it returns the present end of the heap.
    let brk = unsafe { sys::call3(nr::BRK, 0, 0, 0) }.map_err(refused(step))? as u64;
    c.mm = [
        fields[26], fields[27], fields[45], fields[46], fields[47], brk, fields[28], fields[48],
        fields[49], fields[50], fields[51],
    ];
    if fields[26] == 0 || fields[28] == 0 {
        return Err(wrong);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::keep_going;

    #[test]
    fn a_timer_whose_signal_is_pending_keeps_running() {
        let kept = |mut timer| {
            keep_going(&mut timer);
            timer
        };
        assert_eq!(kept([0, 5000, 0, 0]), [0, 5000, 0, 5000]);
        assert_eq!(kept([0, 5000, 0, 70]), [0, 5000, 0, 70]);
        assert_eq!(kept([0, 0, 1, 0]), [0, 0, 1, 0], "it ticks once");
        assert_eq!(kept([0; 4]), [0; 4], "it is off");
    }
}
