//! Limits that a restored rank may reach: those of the host and those that the agent passes on.

use serde::{Deserialize, Serialize};

/// The limits of a process on a host. [`u64::MAX`]: no limit.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Limits {
    /// vm.overcommit_memory: 2 counts memory that was never touched.
    pub overcommit: u64,
    /// The lowest address that may be mapped.
    pub lowest_address: u64,
    /// Most mappings of a process.
    pub mappings: u64,
    /// Huge pages in the pool.
    pub huge_pages: u64,
    /// Hard limits: RLIMIT_NOFILE, RLIMIT_MEMLOCK, RLIMIT_STACK, RLIMIT_AS.
    pub open_files: u64,
    pub locked_memory: u64,
    pub stack: u64,
    pub address_space: u64,
}

impl Limits {
    /// Reads those of this host and this process.
    pub fn look() -> Limits {
        Limits {
            overcommit: setting("overcommit_memory"),
            lowest_address: setting("mmap_min_addr"),
            mappings: setting("max_map_count"),
            huge_pages: setting("nr_hugepages"),
            open_files: hard(libc::RLIMIT_NOFILE),
            locked_memory: hard(libc::RLIMIT_MEMLOCK),
            stack: hard(libc::RLIMIT_STACK),
            address_space: hard(libc::RLIMIT_AS),
        }
    }
}

/// A number of /proc/sys/vm; 0 where there is none.
fn setting(name: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/sys/vm/{name}")).unwrap_or_default();
    text.trim().parse().unwrap_or(0)
}

fn hard(resource: libc::__rlimit_resource_t) -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel writes struct rlimit, a local variable.
    match unsafe { libc::getrlimit(resource, &mut limit) } {
        0 => limit.rlim_max,
        _ => u64::MAX,
    }
}
