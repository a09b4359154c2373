//! Files that the kernel generates when they are read: in /proc, /sys and control groups. Programs
//! and libraries leave them open (MPICH one of Yama's, hwloc those of /sys). A file that a restore
//! can open again by the same path is no reason to refuse an image. One with information about
//! another process is. Never reads from a file, because that moves its offset.

use super::proc::read_link;
use eyrie_image_kernel::maps::decimal;
use eyrie_image_kernel::names::Path;
use eyrie_image_kernel::sys;

/// The file systems, by the magic numbers of statfs(2).
const PROC: u64 = 0x9fa0;
const SYS: u64 = 0x6265_6572;
const CGROUP: u64 = 0x27_e0eb;
const CGROUP2: u64 = 0x6367_7270;

/// Whether the kernel generates the files of this file system: they are on no disk, and their inode
/// numbers mean nothing on another node.
pub fn is_made_up(magic: u64) -> bool {
    matches!(magic, PROC | SYS | CGROUP | CGROUP2)
}

/// The path by which a restored process opens such a file again.
///
/// # Errors
/// What the file is, when there is no such path.
pub fn path_again(magic: u64, path: &[u8], open_flags: u32) -> Result<Path, &'static str> {
    let unnamed = "a file whose path no longer leads to it";
    if magic != PROC {
        return Path::join(&[path]).ok_or(unnamed);
    }
    if open_flags & sys::O_ACCMODE != sys::O_RDONLY {
        return Err("a file of /proc that is open for writing");
    }
    let rest = match path.strip_prefix(b"/proc") {
        Some([]) => return Path::join(&[path]).ok_or(unnamed),
        Some([b'/', rest @ ..]) => rest,
        _ => return Err("a file of another /proc than the process's own"),
    };
    let (prefix, rest) = match decimal(rest) {
        // Files about the whole system.
        None if rest == b"kmsg" => return Err("the kernel's log"),
        None => (&b"/proc/"[..], rest),
        Some((pid, rest)) => of_a_process(pid, rest)?,
    };
    Path::join(&[prefix, rest]).ok_or(unnamed)
}

/// The beginning and the rest of the path of a file about a process. It must be this process, whose
/// number changes with a restore.
fn of_a_process(pid: u64, rest: &[u8]) -> Result<(&'static [u8], &[u8]), &'static str> {
    let mut room = [0; 24];
    let own = read_link(b"/proc/self\0", &mut room).ok().and_then(decimal);
    if own.is_none_or(|(own, _)| own != pid) {
        return Err("a file of /proc about another process");
    }
    let Some((thread, of_thread)) = rest.strip_prefix(b"/task/").and_then(decimal) else {
        return Ok((b"/proc/self", rest));
    };
    // Only the first thread can be identified in a restored process.
    if thread != pid {
        return Err("a file of /proc about one of its threads");
    }
    Ok((b"/proc/thread-self", of_thread))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn again(path: &str) -> Result<String, &'static str> {
        let path = path_again(PROC, path.as_bytes(), sys::O_RDONLY)?;
        Ok(String::from_utf8_lossy(path.as_bytes()).into_owned())
    }

    #[test]
    fn a_restored_process_finds_what_is_its_own_by_another_number() {
        let pid = std::process::id();
        for (path, found) in [
            ("/proc/sys/kernel/yama/ptrace_scope".into(), "/proc/sys/kernel/yama/ptrace_scope"),
            (format!("/proc/{pid}/status"), "/proc/self/status"),
            (format!("/proc/{pid}/fd"), "/proc/self/fd"),
            (format!("/proc/{pid}"), "/proc/self"),
            (format!("/proc/{pid}/task/{pid}/stat"), "/proc/thread-self/stat"),
            (format!("/proc/{pid}/task"), "/proc/self/task"),
        ] {
            assert_eq!(again(&path).as_deref(), Ok(found), "{path}");
        }
        for (path, why) in [
            ("/proc/1/status".into(), "another process"),
            (format!("/proc/{pid}0/status"), "another process"),
            (format!("/proc/{pid}/task/1/stat"), "one of its threads"),
            ("/proc/kmsg".into(), "the kernel's log"),
            ("/host/proc/cpuinfo".into(), "another /proc"),
        ] {
            assert!(again(&path).is_err_and(|e| e.contains(why)), "{path}: {:?}", again(&path));
        }
        assert!(path_again(PROC, b"/proc/sys/kernel/hostname", 2).is_err());
        assert!(path_again(SYS, b"/sys/bus/pci/devices/0/config", 2).is_ok());
    }
}
