//! Identifies this host by what its kernel says, because one host may have several names.
//! Containers on one kernel are hosts of their own, because each can fail by itself.

use std::path::Path;

/// Namespaces that distinguish a container from others and from the machine. Mount namespaces do
/// not: a batch system gives each of its jobs another one on the same host.
const NAMESPACES: [&str; 3] = ["pid", "net", "uts"];

/// A text that is the same on the same host until it is booted again, and different on every other
/// host; empty if the kernel does not say.
pub fn look() -> String {
    of(Path::new("/proc")).unwrap_or_default()
}

fn of(proc: &Path) -> Option<String> {
    let boot = std::fs::read_to_string(proc.join("sys/kernel/random/boot_id")).ok()?;
    let link = |name| std::fs::read_link(proc.join("self/ns").join(name)).ok();
    let mut all = boot.trim().to_string();
    for name in NAMESPACES {
        all += &format!(" {}", link(name)?.to_string_lossy());
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_same_each_time_and_unknown_without_proc() {
        let known = look();
        assert!(known.contains("net:["), "{known}");
        assert_eq!(look(), known);
        assert_eq!(of(Path::new("/none")), None);
    }
}
