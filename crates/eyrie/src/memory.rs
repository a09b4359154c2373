//! How much memory this process may use: the machine's, or what its control group is allowed.

use std::path::Path;

/// Bytes. What cannot be found out is taken for unbounded.
pub fn allowed_bytes() -> u64 {
    let read = |path: &Path| std::fs::read_to_string(path).unwrap_or_default();
    let groups = read(Path::new("/proc/self/cgroup"));
    let limits = groups_and_parents(&groups).map(|dir| {
        let text = read(&Path::new("/sys/fs/cgroup").join(dir).join("memory.max"));
        text.trim().parse().unwrap_or(u64::MAX)
    });
    limits.fold(machine_bytes(&read(Path::new("/proc/meminfo"))), u64::min)
}

/// The memory of the machine, from /proc/meminfo.
fn machine_bytes(meminfo: &str) -> u64 {
    let total = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = total.and_then(|text| text.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.map_or(u64::MAX, |kib| kib * 1024)
}

/// The control group of version 2 that /proc/self/cgroup names, and those above it.
fn groups_and_parents(groups: &str) -> impl Iterator<Item = &Path> {
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/"));
    own.into_iter().flat_map(|path| Path::new(path).ancestors())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_and_its_groups_are_read() {
        assert_eq!(machine_bytes("MemFree: 5 kB\nMemTotal:  24576 kB\n"), 24 << 20);
        assert_eq!(machine_bytes("nothing"), u64::MAX);
        let dirs: Vec<_> = groups_and_parents("1:cpu:/x\n0::/user/job\n").collect();
        assert_eq!(dirs, [Path::new("user/job"), Path::new("user"), Path::new("")]);
        assert_eq!(groups_and_parents("").count(), 0);
        assert!(allowed_bytes() > 1 << 20);
    }
}
