//! Whether the limits of this process let a part of Eyrie work, looked at before it begins: what is
//! lacking is named, with what is needed. It must never ask for more than is needed: some threads
//! are started to see that they can be, and no limit is changed.

use std::sync::{Arc, Barrier};

const MIB: u64 = 1 << 20;
/// Threads that a launcher or an agent may have at once.
const THREADS: usize = 12;
/// Descriptors of a rank that its agent holds, and those that an agent has for itself.
const FILES_OF_A_RANK: u64 = 10;
const FILES: u64 = 64;
/// Descriptors that ranks inherit are made from number 400 on.
const LEAST_FILES: u64 = 416;

/// A limit of a process.
struct Limit {
    resource: libc::__rlimit_resource_t,
    /// What it is a limit on, and the option of ulimit.
    name: &'static str,
    option: &'static str,
}

const STACK: Limit = Limit { resource: libc::RLIMIT_STACK, name: "the stack", option: "-s" };
const ADDRESSES: Limit = Limit { resource: libc::RLIMIT_AS, name: "address space", option: "-v" };
const DATA: Limit = Limit { resource: libc::RLIMIT_DATA, name: "data", option: "-d" };
const FILE_SIZE: Limit =
    Limit { resource: libc::RLIMIT_FSIZE, name: "the size of files", option: "-f" };
const OPEN_FILES: Limit = Limit { resource: libc::RLIMIT_NOFILE, name: "open files", option: "-n" };

/// What a launcher or an agent needs for itself; a rank needs at least as much.
const NEEDED: [(Limit, u64); 3] =
    [(ADDRESSES, 512 * MIB), (DATA, 192 * MIB), (FILE_SIZE, 64 * MIB)];

impl Limit {
    /// What this process may have; `None`: there is no limit.
    fn now(&self) -> Option<u64> {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the structure is ours.
        let known = unsafe { libc::getrlimit(self.resource, &mut limit) } == 0;
        // Agents raise that of open files as far as they may.
        let highest = match self.resource {
            libc::RLIMIT_NOFILE => limit.rlim_max,
            _ => limit.rlim_cur,
        };
        (known && highest != libc::RLIM_INFINITY).then_some(highest)
    }

    fn check(&self, needed: u64) -> Result<(), String> {
        match self.now() {
            Some(limit) if limit < needed => Err(self.too_low(limit, needed)),
            _ => Ok(()),
        }
    }

    fn too_low(&self, limit: u64, needed: u64) -> String {
        let Limit { name, option, .. } = self;
        // In the shell's unit.
        let (unit, words) = match self.resource {
            libc::RLIMIT_NOFILE => (1, ""),
            _ => (1024, " KiB"),
        };
        format!(
            "the limit on {name} is {}{words}, and Eyrie needs {}{words}: raise it (`ulimit {option} {}`)",
            limit / unit,
            needed / unit,
            needed / unit
        )
    }
}

/// Whether any command can run: to be asked first of all.
///
/// # Errors
/// What is lacking.
pub fn for_a_command() -> Result<(), String> {
    STACK.check(256 << 10)
}

/// Prepares this process for what limits there are; to be called before there are threads. A file
/// that gets too large is an error, as on a full disk, and does not end the process. Where address
/// space is limited, threads share what they allocate from: else each takes 64 MiB of addresses for
/// itself.
pub fn prepare() {
    // SAFETY: no handler, only a setting of the process.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    if ADDRESSES.now().is_some() || DATA.now().is_some() {
        // SAFETY: a setting of the C library's allocator.
        unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
    }
}

/// Whether a launcher, or an agent with so many ranks, can work.
///
/// # Errors
/// What is lacking.
pub fn for_a_job(ranks: u32) -> Result<(), String> {
    NEEDED.iter().try_for_each(|(limit, needed)| limit.check(*needed))?;
    OPEN_FILES.check(LEAST_FILES.max(FILES + FILES_OF_A_RANK * u64::from(ranks)))?;
    threads()
}

/// Starts as many threads as may be needed, at once.
fn threads() -> Result<(), String> {
    let all = Arc::new(Barrier::new(THREADS + 1));
    let mut started = Vec::new();
    let mut refused = None;
    while started.len() < THREADS && refused.is_none() {
        let barrier = Arc::clone(&all);
        match std::thread::Builder::new().spawn(move || {
            barrier.wait();
        }) {
            Ok(thread) => started.push(thread),
            Err(e) => refused = Some(e),
        }
    }
    let Some(e) = refused else {
        all.wait();
        // They only wait for each other.
        started.into_iter().for_each(|thread| drop(thread.join()));
        return Ok(());
    };
    // Those that were started wait for good: this process ends.
    Err(format!(
        "no more than {} threads can be started ({e}): raise the limits on processes (`ulimit -u`) \
         and address space (`ulimit -v`), or those of the control group (pids.max)",
        started.len()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_low_is_named_in_the_shells_unit() {
        let text = ADDRESSES.too_low(300_000 << 10, 512 * MIB);
        let said =
            "the limit on address space is 300000 KiB, and Eyrie needs 524288 KiB: raise it \
                    (`ulimit -v 524288`)";
        assert_eq!(text, said);
        assert!(OPEN_FILES.too_low(64, 416).contains("is 64, and Eyrie needs 416"));
    }

    #[test]
    fn tests_have_enough() {
        assert_eq!((for_a_command(), for_a_job(2)), (Ok(()), Ok(())));
    }
}
