//! The directories of processes in /proc, and the processes below a process.

use crate::counters::Stat;
use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};

/// The directory of this process.
pub const OWN: &str = "/proc/self";

/// The directory of a process.
pub fn directory(pid: u32) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}"))
}

/// The directory that describes a process: that of its first thread, or of another one where the
/// first has ended and others go on. That of an ended thread has hardly anything.
pub fn living(pid: u32) -> PathBuf {
    let lives = |path: &PathBuf| read_stat(path).is_some_and(|stat| !stat.has_ended());
    let first = directory(pid);
    if lives(&first) {
        return first;
    }
    let tasks = std::fs::read_dir(first.join("task")).into_iter().flatten().flatten();
    tasks.map(|task| task.path()).find(lives).unwrap_or(first)
}

/// What the kernel counts of the process with this directory; `None` when it is gone.
pub fn read_stat(dir: impl AsRef<Path>) -> Option<Stat> {
    Stat::parse(&std::fs::read(dir.as_ref().join("stat")).ok()?)
}

/// The numbers of all processes.
pub fn all() -> impl Iterator<Item = u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// The children of process `pid`, of all of its threads, zombies included; none when there is no
/// such process.
pub fn children_of(pid: u32) -> Vec<u32> {
    let mut found = Vec::new();
    for task in std::fs::read_dir(directory(pid).join("task")).into_iter().flatten().flatten() {
        let list = crate::text::read(task.path(), "children");
        found.extend(list.split_whitespace().filter_map(|p| p.parse::<u32>().ok()));
    }
    found
}

/// All processes below `pid`.
pub fn descendants(pid: u32) -> Vec<u32> {
    let mut found = children_of(pid);
    let mut at = 0;
    while at < found.len() {
        found.extend(children_of(found[at]));
        at += 1;
    }
    found
}

/// The file name of the program that a process runs.
pub fn executable(pid: u32) -> Option<String> {
    let path = std::fs::read_link(directory(pid).join("exe")).ok()?;
    path.file_name().and_then(OsStr::to_str).map(str::to_string)
}

/// Links to what a process has open.
pub fn descriptors(pid: u32) -> impl Iterator<Item = PathBuf> {
    let entries = std::fs::read_dir(directory(pid).join("fd")).into_iter().flatten().flatten();
    entries.map(|entry| entry.path())
}

/// The present name of a file that this process has open. Of a removed file it is no longer a name.
pub fn path_of(file: impl AsFd) -> Option<PathBuf> {
    let link = format!("{OWN}/fd/{}", file.as_fd().as_raw_fd());
    std::fs::read_link(link).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStringExt;
    use std::process::{Command, Stdio};

    #[test]
    fn a_family_is_found_below_its_first_process() {
        let script = "sleep 1000 & echo; read line; kill $!";
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut shell = command.spawn().unwrap();
        std::io::Read::read_exact(shell.stdout.as_mut().unwrap(), &mut [0]).unwrap();
        let [below] = children_of(shell.id())[..] else { panic!("the shell has one child") };
        assert_eq!(descendants(shell.id()), [below]);
        assert!(descendants(std::process::id()).contains(&below));
        assert!(all().any(|pid| pid == below));
        assert_eq!(living(below), directory(below));
        assert_eq!(read_stat(directory(below)).unwrap().parent, shell.id());
        drop(shell.stdin.take());
        shell.wait().unwrap();
        assert!(children_of(shell.id()).is_empty() && read_stat(directory(shell.id())).is_none());
    }

    #[test]
    fn a_process_is_read_whose_name_is_no_text() {
        let name = std::ffi::OsString::from_vec(b"\xff) \xe4".to_vec());
        let path =
            std::env::temp_dir().join(format!("eyrie-proc-{}", std::process::id())).join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let sleep = std::fs::canonicalize("/bin/sleep").unwrap();
        std::os::unix::fs::symlink(sleep, &path).unwrap();
        let mut child = Command::new(&path).arg("1000").spawn().unwrap();
        let dir = directory(child.id());
        let stat = read_stat(&dir).unwrap();
        assert_eq!((&stat.command[..4], stat.has_ended()), (&b"\xff) \xe4"[..], false));
        assert!(crate::Status::read(&dir).bits("SigCgt").is_some());
        child.kill().unwrap();
        child.wait().unwrap();
        std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }

    #[test]
    fn what_this_process_runs_and_has_open_is_known() {
        let own = std::env::current_exe().unwrap();
        assert_eq!(executable(std::process::id()).as_deref(), own.file_name().unwrap().to_str());
        let file = std::fs::File::open(&own).unwrap();
        assert_eq!(path_of(&file), Some(own.clone()));
        let mut links = descriptors(std::process::id());
        assert!(links.any(|link| std::fs::read_link(link).is_ok_and(|path| path == own)));
    }
}
