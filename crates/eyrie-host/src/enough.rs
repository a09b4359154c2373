//! Checks before a part of Eyrie starts whether the limits of this process are high enough. The
//! error names what is lacking and what is needed. It must never ask for more than is needed. It
//! starts some threads to see that they can be started, and changes no limit.

use std::sync::{Arc, Barrier};

const MIB: u64 = 1 << 20;
/// Threads that a launcher or an agent may have at the same time.
const THREADS: usize = 12;
/// Descriptors that an agent holds for each rank, and those that it has for itself.
const FILES_OF_A_RANK: u64 = 10;
const FILES: u64 = 64;
/// Least limit of open files: descriptors that ranks inherit are numbered from 400 on.
const LEAST_FILES: u64 = 416;

/// A limit of a process.
struct Limit {
    resource: libc::__rlimit_resource_t,
    /// The name of the limit, and the option of ulimit.
    name: &'static str,
    option: &'static str,
}

const STACK: Limit = Limit { resource: libc::RLIMIT_STACK, name: "the stack", option: "-s" };
const ADDRESSES: Limit = Limit { resource: libc::RLIMIT_AS, name: "address space", option: "-v" };
const DATA: Limit = Limit { resource: libc::RLIMIT_DATA, name: "data", option: "-d" };
const FILE_SIZE: Limit =
    Limit { resource: libc::RLIMIT_FSIZE, name: "the size of files", option: "-f" };
const OPEN_FILES: Limit = Limit { resource: libc::RLIMIT_NOFILE, name: "open files", option: "-n" };

/// What a launcher or an agent needs for itself. A rank needs at least as much.
const NEEDED: [(Limit, u64); 3] =
    [(ADDRESSES, 512 * MIB), (DATA, 192 * MIB), (FILE_SIZE, 64 * MIB)];

impl Limit {
    /// The present limit of this process; `None`: there is no limit.
    fn now(&self) -> Option<u64> {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the kernel writes struct rlimit, a local variable.
        let known = unsafe { libc::getrlimit(self.resource, &mut limit) } == 0;
        // Agents raise the limit of open files up to the hard limit.
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
        // In the unit of the shell's ulimit.
        let (unit, words) = match self.resource {
            libc::RLIMIT_NOFILE => (1, ""),
            _ => (1024, " KiB"),
        };
        format!(
            "the limit on {name} is {}{words}, and Eyrie needs {}{words}: raise it (`ulimit \
             {option} {}`)",
            limit / unit,
            needed / unit,
            needed / unit
        )
    }
}

/// Whether any command can run. Must be called first of all.
///
/// # Errors
/// The limit that is too low.
pub fn for_a_command() -> Result<(), String> {
    STACK.check(256 << 10)
}

/// Prepares this process for the limits that it has. Must be called before there are threads. A
/// file that exceeds the limit is then an error, as on a full disk, and does not end the process.
/// If address space is limited, threads share their allocation arena: otherwise each takes 64 MiB
/// of addresses for itself.
pub fn prepare() {
    // SAFETY: this sets the signal to be ignored, so no handler runs.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    if ADDRESSES.now().is_some() || DATA.now().is_some() {
        // SAFETY: mallopt takes two numbers, and no other thread exists yet, as the function
        // requires.
        unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
    }
}

/// Whether a launcher, or an agent with so many ranks, can work.
///
/// # Errors
/// The limit that is too low.
pub fn for_a_job(ranks: u32) -> Result<(), String> {
    NEEDED.iter().try_for_each(|(limit, needed)| limit.check(*needed))?;
    OPEN_FILES.check(LEAST_FILES.max(FILES + FILES_OF_A_RANK * u64::from(ranks)))?;
    threads()
}

/// Starts as many threads at the same time as may be needed.
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
        // The threads only wait for each other.
        for thread in started {
            drop(thread.join());
        }
        return Ok(());
    };
    // The threads that were started wait forever, but this process ends.
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
