//! What a process shares with the process that started it, and a restored one with the process that
//! restores it: rights, namespaces, the root directory. A process that has left these would
//! continue in another environment, so it is refused. So is one with state that cannot be given to
//! another process. Only looks.

use super::proc::{read_file, read_link, PathBuf, Status};
use super::scratch::Scratch;
use super::thread_state::Thread;
use crate::refusal::{Refusal, Text};
use eyrie_image_kernel::sys::{self, nr};

/// Lines of /proc/PID/status that must be the same in both.
const SAME: [(&[u8], &str); 9] = [
    (b"Uid:", "it has other users' rights than the process that started it"),
    (b"Gid:", "it has other groups' rights than the process that started it"),
    (b"Groups:", "it has other groups' rights than the process that started it"),
    (b"CapInh:", "it has other capabilities than the process that started it"),
    (b"CapPrm:", "it has other capabilities than the process that started it"),
    (b"CapEff:", "it has other capabilities than the process that started it"),
    (b"CapBnd:", "it has other capabilities than the process that started it"),
    (b"CapAmb:", "it has other capabilities than the process that started it"),
    (b"Seccomp:", "it has a seccomp filter of its own"),
];

/// Namespaces that decide what the process sees.
const NAMESPACES: [&[u8]; 9] = [
    b"mnt",
    b"user",
    b"net",
    b"uts",
    b"ipc",
    b"pid",
    b"pid_for_children",
    b"time",
    b"time_for_children",
];

/// Refuses a process whose environment differs from its starter's (0: unknown), or whose state
/// cannot be made again.
pub fn check(scratch: &mut Scratch, status: &Status, starter: i32) -> Result<(), Refusal> {
    check_own()?;
    check_keyrings()?;
    check_cpu()?;
    if starter > 0 {
        // SAFETY: both buffers are dropped at the end of this function, before the scratch is
        // released.
        let (mine, theirs) = unsafe { (scratch.take::<u8>(16384)?, scratch.take::<u8>(16384)?) };
        let path = PathBuf::new(b"/proc/", starter as u64, b"/status");
        // SAFETY: the status is dropped before the scratch is released. (If the starter is gone,
        // nothing is compared.)
        if let Ok(other) = unsafe { Status::read(scratch, path.as_c()) } {
            check_status(status, &other)?;
        }
        check_places(mine, theirs, starter as u64)?;
    }
    Ok(())
}

/// Refuses threads that differ from the calling one, whose status is `status`, in what an image has
/// once for the process. Also refuses threads with state that an image has no place for.
pub fn check_threads<'a>(
    scratch: &mut Scratch,
    status: &Status,
    threads: impl Iterator<Item = &'a Thread>,
) -> Result<(), Refusal> {
    for thread in threads {
        let refuse =
            |what| Err(Refusal::Thread { tid: thread.tid, name: Text::new(&thread.comm), what });
        let path = PathBuf::new(b"/proc/self/task/", thread.tid as u64, b"/status");
        // SAFETY: the status is dropped at the end of this function, before the scratch is
        // released.
        let its = unsafe { Status::read(scratch, path.as_c())? };
        let same = |(name, _): &(&[u8], _)| status.line(name) == its.line(name);
        if !SAME.iter().all(same) || status.line(b"NoNewPrivs:") != its.line(b"NoNewPrivs:") {
            return refuse("has other rights than the thread that takes the image");
        }
        if its.line(b"SigPnd:").is_some_and(|set| set.iter().any(|digit| *digit != b'0')) {
            return refuse("has signals pending that are for it alone");
        }
        if its.number(b"TracerPid:").is_some_and(|pid| pid != 0) {
            return refuse("is traced");
        }
        if !shares_files(thread.tid) {
            return refuse("has descriptors or a working directory of its own (unshare)");
        }
    }
    Ok(())
}

/// Whether a thread shares descriptors and directories with the calling one. Kernels built without
/// kcmp(2) cannot tell.
fn shares_files(tid: i32) -> bool {
    const KCMP_FILES: usize = 2;
    const KCMP_FS: usize = 3;
    let own = sys::gettid() as usize;
    let tid = tid as usize;
    // SAFETY: the arguments are numbers; the kernel accesses no memory.
    let compare = |what| unsafe { sys::call6(nr::KCMP, own, tid, what, 0, 0, 0) };
    [KCMP_FILES, KCMP_FS].into_iter().all(|what| matches!(compare(what), Ok(0) | Err(_)))
}

fn refuse(what: &'static str) -> Result<(), Refusal> {
    Err(Refusal::State { what, detail: Text::new(b"") })
}

fn prctl(what: usize, arg: usize) -> sys::SysResult {
    // SAFETY: callers only use operations that read a setting and take numbers.
    unsafe { sys::call6(nr::PRCTL, what, arg, 0, 0, 0, 0) }
}

/// Refuses settings of the process itself.
fn check_own() -> Result<(), Refusal> {
    // SAFETY: the call has no arguments.
    let root = unsafe { sys::call3(nr::GETEUID, 0, 0, 0) } == Ok(0);
    if prctl(sys::PR_GET_DUMPABLE, 0) == Ok(0) && !root {
        return refuse("it has closed its /proc to itself (PR_SET_DUMPABLE)");
    }
    if prctl(sys::PR_GET_SECCOMP, 0) == Ok(1) {
        return refuse("it has a seccomp filter of its own");
    }
    if prctl(sys::PR_GET_SECUREBITS, 0).is_ok_and(|bits| bits != 0) {
        return refuse("it has changed what its capabilities mean (securebits)");
    }
    let mut cookie = 0u64;
    const SCHED_CORE_GET: usize = 0;
    // SAFETY: the kernel writes one word into `cookie`.
    let asked = unsafe {
        let at = &raw mut cookie as usize;
        sys::call6(nr::PRCTL, sys::PR_SCHED_CORE, SCHED_CORE_GET, 0, 0, at, 0)
    };
    if asked.is_ok() && cookie != 0 {
        return refuse("it shares its processor cores with chosen processes only (PR_SCHED_CORE)");
    }
    Ok(())
}

fn check_keyrings() -> Result<(), Refusal> {
    const GET_ID: usize = 0;
    for ring in [-1isize, -2] {
        // SAFETY: the arguments are numbers, and 0 as the last one means that no keyring is made.
        let id = unsafe { sys::call3(nr::KEYCTL, GET_ID, ring as usize, 0) };
        if id.is_ok() {
            return refuse("it has a keyring of its own (of the thread or process)");
        }
    }
    Ok(())
}

/// Refuses processor state that the kernel keeps for the process.
fn check_cpu() -> Result<(), Refusal> {
    // struct user_desc: number, base, limit, bits.
    for entry in 12..15u32 {
        let mut desc = [entry, 0, 0, 0];
        // SAFETY: the kernel reads and writes struct user_desc, four words, which `desc` holds.
        let got = unsafe { sys::call3(nr::GET_THREAD_AREA, desc.as_mut_ptr() as usize, 0, 0) };
        if got.is_ok() && (desc[1] != 0 || desc[2] != 0) {
            return refuse("it has segments of its own (set_thread_area)");
        }
    }
    let mut table = [0u64; 2];
    // SAFETY: function 0 only reads the table; the kernel writes at most 16 bytes into `table`.
    let got = unsafe { sys::call3(nr::MODIFY_LDT, 0, table.as_mut_ptr() as usize, 16) };
    if got.is_ok_and(|len| len > 0 && table != [0; 2]) {
        return refuse("it has segments of its own (modify_ldt)");
    }
    let mut mask = 0u64;
    // SAFETY: the kernel writes one word into `mask`. Kernels without this call return EINVAL.
    let (asked, cpuid) = unsafe {
        let at = &raw mut mask as usize;
        (
            sys::call3(nr::ARCH_PRCTL, sys::ARCH_GET_UNTAG_MASK, at, 0),
            sys::call3(nr::ARCH_PRCTL, sys::ARCH_GET_CPUID, 0, 0),
        )
    };
    if asked.is_ok() && mask != u64::MAX {
        return refuse("it keeps data in its pointers (LAM)");
    }
    if cpuid == Ok(0) {
        return refuse("it has the cpuid instruction forbidden (ARCH_SET_CPUID)");
    }
    Ok(())
}

/// Refuses a process that has memory protection keys. `own` of the keys are the kernel's own.
pub fn check_keys(own: usize) -> Result<(), Refusal> {
    // SAFETY: the arguments are numbers, and the new key is freed at once.
    unsafe {
        // The lowest free key. Key 0 is the default of all memory.
        let Ok(key) = sys::call3(nr::PKEY_ALLOC, 0, 0, 0) else { return Ok(()) };
        let _ = sys::call3(nr::PKEY_FREE, key, 0, 0);
        if key <= 1 + own {
            return Ok(());
        }
    }
    refuse("it uses memory protection keys (pkey_alloc)")
}

fn check_status(mine: &Status, theirs: &Status) -> Result<(), Refusal> {
    for (name, what) in SAME {
        match (mine.line(name), theirs.line(name)) {
            (Some(a), Some(b)) if a != b => {
                return Err(Refusal::State { what, detail: Text::new(a) })
            }
            _ => {}
        }
    }
    Ok(())
}

fn check_places(mine: &mut [u8], theirs: &mut [u8], starter: u64) -> Result<(), Refusal> {
    for name in NAMESPACES {
        let own = PathBuf::join(&[b"/proc/thread-self/ns/", name]);
        let other = PathBuf::of(b"/proc/", starter, &[b"/ns/", name]);
        // A kernel without that kind of namespace has no link. The starter's may be unreadable.
        if let (Ok(a), Ok(b)) = (read_link(own.as_c(), mine), read_link(other.as_c(), theirs)) {
            if a != b {
                let what = "it is in another namespace than the process that started it";
                return Err(Refusal::State { what, detail: Text::new(a) });
            }
        }
    }
    let other = PathBuf::new(b"/proc/", starter, b"/root");
    if let (Ok(a), Ok(b)) = (sys::stat(b"/\0"), sys::stat(other.as_c())) {
        if (a.dev, a.ino) != (b.dev, b.ino) {
            return refuse(
                "it has another root directory than the process that started it (chroot)",
            );
        }
    }
    let other = PathBuf::new(b"/proc/", starter, b"/attr/current");
    let label = read_file(b"/proc/thread-self/attr/current\0", mine);
    if let (Ok(a), Ok(b)) = (label, read_file(other.as_c(), theirs)) {
        if mine[..a] != theirs[..b] {
            let what = "it has another security label than the process that started it";
            return Err(Refusal::State { what, detail: Text::new(&mine[..a]) });
        }
    }
    Ok(())
}
