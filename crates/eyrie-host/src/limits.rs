//! Limits that a restored rank may reach: those of the host and those that the agent passes on.

use eyrie_wire::facts::Limits;

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

/// A number of /proc/sys/vm; 0 where there is none.
fn setting(name: &str) -> u64 {
    eyrie_proc::host::setting(&format!("vm/{name}")).parse().unwrap_or(0)
}

fn hard(resource: libc::__rlimit_resource_t) -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel writes struct rlimit, a local variable.
    match unsafe { libc::getrlimit(resource, &mut limit) } {
        0 => limit.rlim_max,
        _ => u64::MAX,
    }
}
