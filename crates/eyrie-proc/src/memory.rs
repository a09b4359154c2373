//! How much memory this process may use, and how much is left: the machine's, or what its control
//! groups are allowed.

use crate::{host, text, OWN};
use std::path::{Path, PathBuf};

/// Bytes that this process may use. What cannot be found out is taken for unbounded.
pub fn allowed() -> u64 {
    let machine = host::memory().unwrap_or(u64::MAX);
    groups().iter().map(Group::limit).fold(machine, u64::min)
}

/// Bytes that are left to this process. What the page cache has of files counts as left. What
/// cannot be found out is taken for unbounded.
pub fn left() -> u64 {
    let machine = host::available_memory().unwrap_or(u64::MAX);
    let most = host::memory().unwrap_or(u64::MAX);
    let limited = groups().into_iter().filter(|group| group.limit() < most);
    limited.map(|group| group.left()).fold(machine, u64::min)
}

/// A control group that has a share of the memory.
struct Group {
    dir: PathBuf,
    names: &'static Names,
}

/// What the files of a group are called.
struct Names {
    limit: &'static str,
    used: &'static str,
    /// Lines of memory.stat: what of it are files in the page cache.
    cached: [&'static str; 2],
}

const SECOND: Names = Names {
    limit: "memory.max",
    used: "memory.current",
    cached: ["inactive_file ", "active_file "],
};
const FIRST: Names = Names {
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    cached: ["total_inactive_file ", "total_active_file "],
};

impl Group {
    fn number(&self, file: &str) -> Option<u64> {
        text::read(&self.dir, file).trim().parse().ok()
    }

    fn limit(&self) -> u64 {
        self.number(self.names.limit).unwrap_or(u64::MAX)
    }

    fn left(&self) -> u64 {
        let stat = text::read(&self.dir, "memory.stat");
        let cached = |key: &&str| text::after(stat.as_bytes(), key.as_bytes());
        let cached = self.names.cached.iter().filter_map(cached).filter_map(text::number);
        let cached: u64 = cached.map(|(bytes, _)| bytes).sum();
        let used = self.number(self.names.used).unwrap_or(0);
        self.limit().saturating_sub(used.saturating_sub(cached))
    }
}

/// The control groups of this process, and those above them.
fn groups() -> Vec<Group> {
    groups_in(&text::read(OWN, "cgroup"), Path::new("/sys/fs/cgroup"))
}

/// The groups that /proc/self/cgroup names.
fn groups_in(groups: &str, mounted: &Path) -> Vec<Group> {
    let mut found = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(kinds), Some(path)) = (parts.next(), parts.next()) else { continue };
        let (dir, names) = match kinds {
            "" => (mounted.to_path_buf(), &SECOND),
            _ if kinds.split(',').any(|kind| kind == "memory") => (mounted.join("memory"), &FIRST),
            _ => continue,
        };
        let own = Path::new(path.trim_start_matches('/'));
        found.extend(own.ancestors().map(|above| Group { dir: dir.join(above), names }));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_groups_of_both_versions_are_read() {
        let text = "1:cpu:/x\n4:memory:/a/b\n0::/user/job\n";
        let groups = groups_in(text, Path::new("/m"));
        let dirs: Vec<_> = groups.iter().map(|group| group.dir.to_str().unwrap()).collect();
        let first = ["/m/memory/a/b", "/m/memory/a", "/m/memory/"];
        assert_eq!(dirs, [&first[..], &["/m/user/job", "/m/user", "/m/"]].concat());
        assert!(groups_in("", Path::new("/m")).is_empty());
        assert!(allowed() > 1 << 20 && left() > 1 << 20 && left() <= allowed());
    }

    #[test]
    fn what_is_left_of_a_group_counts_the_page_cache() {
        let dir = std::env::temp_dir().join(format!("eyrie-groups-{}", std::process::id()));
        let group = dir.join("memory/job");
        std::fs::create_dir_all(&group).unwrap();
        let put = |name: &str, text: &str| std::fs::write(group.join(name), text).unwrap();
        put("memory.limit_in_bytes", "1000\n");
        put("memory.usage_in_bytes", "900\n");
        put("memory.stat", "cache 1\ninactive_file 1\ntotal_inactive_file 300\n");
        let left: Vec<_> = groups_in("4:memory:/job", &dir).iter().map(Group::left).collect();
        std::fs::remove_dir_all(&dir).unwrap();
        assert_eq!(left, [400, u64::MAX]);
    }
}
