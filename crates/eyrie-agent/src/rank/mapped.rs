//! What a rank's memory map shows: which MPI library it has, and the segments in /dev/shm that the
//! library made.

use eyrie_proc::{Mapping, Maps};
use eyrie_supervision::segments;
use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The paths that a process has mapped.
fn mapped(pid: u32) -> Vec<String> {
    let maps = Maps::read(eyrie_proc::living(pid));
    let mut paths: Vec<String> =
        maps.files().map(|file| file.path.to_string_lossy().into()).collect();
    paths.sort();
    paths.dedup();
    paths
}

/// The segments in /dev/shm that a process has mapped.
pub fn segments(pid: u32) -> Vec<String> {
    mapped(pid).into_iter().filter(|path| segments::is_segment(path)).collect()
}

/// Memory that a process may share with another one of this host: files in /dev/shm and System V
/// segments that it has mapped shared and writable, as paths with the number of the file.
pub fn common_memory(pid: u32) -> BTreeSet<String> {
    let common = |file: &Mapping<'_>| {
        let system_v = || file.path.as_os_str().as_bytes().starts_with(b"/SYSV");
        file.permissions == "rw-s" && (file.path.starts_with("/dev/shm") || system_v())
    };
    let maps = Maps::read(eyrie_proc::living(pid));
    let all = maps.files().filter(common).map(|Mapping { path, inode, .. }| {
        // The segment of System V was removed, as is usual once all have it.
        let path = path.to_string_lossy();
        let path = path.strip_suffix(" (deleted)").unwrap_or(&path);
        format!("{path}, file {inode}")
    });
    all.collect()
}

/// Path of the MPI library of a process, if it has one.
pub fn mpi_library(pid: u32) -> Option<String> {
    mapped(pid).into_iter().find(|path| {
        let name = Path::new(path).file_name().unwrap_or_default().to_string_lossy().into_owned();
        name.starts_with("libmpi") && name.contains(".so")
    })
}

/// Those of a dead rank's segments that no living process has mapped. Where the rank goes on on the
/// same host, as a rank of another node, its next process has made a file of the same name.
pub fn left_behind(paths: &BTreeSet<String>) -> Vec<String> {
    let mut left: Vec<String> =
        paths.iter().filter(|path| Path::new(path).exists()).cloned().collect();
    for pid in eyrie_proc::all() {
        if left.is_empty() {
            break;
        }
        // Of a removed file the path ends with " (deleted)": it is another path.
        let mapped: Vec<String> = mapped(pid);
        left.retain(|path| !mapped.contains(path));
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::process::{Command, Stdio};

    #[test]
    fn a_segment_that_a_living_process_has_mapped_is_not_left_behind() {
        let path = format!("/dev/shm/mpich_shm_{:x}_0", std::process::id());
        std::fs::write(&path, [1; 4096]).unwrap();
        let paths = BTreeSet::from([path.clone()]);
        assert_eq!(left_behind(&paths), std::slice::from_ref(&path));
        let script =
            "import mmap, sys; f = open(sys.argv[1], 'r+b'); m = mmap.mmap(f.fileno(), 0); \
                      f.close(); print('mapped', flush=True); sys.stdin.read()";
        let mut other = Command::new("python3")
            .args(["-c", script, &path])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // The end of the line may come by itself, through a pipe that is still open.
        let mut line = [0; b"mapped\n".len()];
        other.stdout.as_mut().unwrap().read_exact(&mut line).unwrap();
        assert_eq!(left_behind(&paths), [""; 0]);
        drop(other.stdin.take());
        other.wait().unwrap();
        segments::remove(&left_behind(&paths));
        assert!(!Path::new(&path).exists());
    }
}
