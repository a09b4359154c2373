//! How much memory this process may use: the machine's, or what its control group is allowed.

use eyrie_proc::{host, text};
use std::path::Path;

/// Bytes. What cannot be found out is taken for unbounded.
pub fn allowed_bytes() -> u64 {
    let groups = text::read(eyrie_proc::OWN, "cgroup");
    let limits = groups_and_parents(&groups).map(|dir| {
        let text = text::read(Path::new("/sys/fs/cgroup").join(dir), "memory.max");
        text.trim().parse().unwrap_or(u64::MAX)
    });
    limits.fold(host::memory().unwrap_or(u64::MAX), u64::min)
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
    fn control_groups_are_read() {
        let dirs: Vec<_> = groups_and_parents("1:cpu:/x\n0::/user/job\n").collect();
        assert_eq!(dirs, [Path::new("user/job"), Path::new("user"), Path::new("")]);
        assert_eq!(groups_and_parents("").count(), 0);
        assert!(allowed_bytes() > 1 << 20);
    }
}
