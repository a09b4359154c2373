//! What a rank's memory map shows: which MPI library it has, and the segments in /dev/shm that the
//! library made. A killed process leaves those behind, and the next one refuses to start over them.

use crate::family::{descendants, directory_of};
use crate::mpi::is_segment;
use std::collections::BTreeSet;
use std::path::Path;

/// The segment that MPICH 5 makes for a rank. Its name has the FNV-1a hash of the PMI key value
/// space. A rank that dies before the agent has read its memory map is cleaned up by this.
pub fn predicted_segment(kvsname: &str, rank: u32) -> String {
    let hash =
        kvsname.bytes().fold(0x811c_9dc5_u32, |h, b| (h ^ u32::from(b)).wrapping_mul(0x0100_0193));
    format!("/dev/shm/mpich_shm_{hash:x}_{rank}")
}

/// The paths that a process has mapped.
fn mapped(pid: u32) -> Vec<String> {
    let maps = std::fs::read_to_string(directory_of(pid).join("maps")).unwrap_or_default();
    let mut paths: Vec<String> =
        maps.lines().filter_map(|line| Some(line[line.find('/')?..].to_string())).collect();
    paths.sort();
    paths.dedup();
    paths
}

/// The segments in /dev/shm that a process has mapped.
pub fn segments(pid: u32) -> Vec<String> {
    mapped(pid).into_iter().filter(|path| is_segment(path)).collect()
}

/// Memory that a process may share with another one of this host: files in /dev/shm and System V
/// segments that it has mapped shared and writable, as paths with the number of the file.
pub fn common_memory(pid: u32) -> BTreeSet<String> {
    let maps = std::fs::read_to_string(directory_of(pid).join("maps")).unwrap_or_default();
    let lines = maps.lines().map(|line| line.split_ascii_whitespace().collect::<Vec<_>>());
    lines
        .filter_map(|fields| match &fields[..] {
            [_, "rw-s", _, _, inode, path, ..]
                if path.starts_with("/dev/shm/") || path.starts_with("/SYSV") =>
            {
                Some(format!("{path}, file {inode}"))
            }
            _ => None,
        })
        .collect()
}

/// Path of the MPI library of a process, if it has one.
pub fn mpi_library(pid: u32) -> Option<String> {
    mapped(pid).into_iter().find(|path| {
        let name = Path::new(path).file_name().unwrap_or_default().to_string_lossy().into_owned();
        name.starts_with("libmpi") && name.contains(".so")
    })
}

/// Whether a process that is not reaped, or one below it, has ended or is about to: it has no
/// memory any more.
pub fn has_ended(pid: u32) -> bool {
    let mut family = descendants(pid).into_iter().chain([pid]);
    family.any(|pid| memory(pid).is_none_or(|bytes| bytes == 0))
}

/// Bytes of a process's address space at one moment. (/proc/PID/maps is that of the old program,
/// and empty, when the process executes another one meanwhile.)
fn memory(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(directory_of(pid).join("stat")).ok()?;
    let (_, fields) = stat.rsplit_once(") ")?;
    // proc(5): the fields here begin with the third; field 23 is the size.
    fields.split_whitespace().nth(20)?.parse().ok()
}

/// Those of a dead rank's segments that no living process has mapped. Where the rank goes on on the
/// same host, as a rank of another node, its next process has made a file of the same name.
pub fn left_behind(paths: &BTreeSet<String>) -> Vec<String> {
    let mut left: Vec<String> =
        paths.iter().filter(|path| Path::new(path).exists()).cloned().collect();
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    for pid in pids {
        if left.is_empty() {
            break;
        }
        // Of a removed file the path ends with " (deleted)": it is another path.
        let mapped: Vec<String> = mapped(pid);
        left.retain(|path| !mapped.contains(path));
    }
    left
}

/// Removes segments that dead ranks left. It never touches anything else.
pub fn remove<'a>(paths: impl IntoIterator<Item = &'a String>) {
    for path in paths {
        if is_segment(path) {
            // It may be gone already.
            let _ = std::fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::process::{Command, Stdio};

    #[test]
    fn a_process_that_was_killed_has_ended() {
        let below = |script| {
            let mut command = Command::new("sh");
            command.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
            command.spawn().unwrap()
        };
        let await_end = |pid| while !has_ended(pid) {};
        let mut child = below("exec cat");
        assert!(!has_ended(child.id()));
        child.kill().unwrap();
        await_end(child.id());
        child.wait().unwrap();
        // A wrapper that has not reaped its program yet.
        let mut wrapper = below("sh -c 'kill -9 $$' & exec cat");
        await_end(wrapper.id());
        drop(wrapper.stdin.take());
        wrapper.wait().unwrap();
    }

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
        remove(&left_behind(&paths));
        assert!(!Path::new(&path).exists());
    }

    #[test]
    fn a_process_in_the_middle_of_an_exec_has_not_ended() {
        let script = r#"[ "$1" = 0 ] && exec cat; exec sh -c "$0" "$0" $(($1 - 1))"#;
        let mut chain = Command::new("sh")
            .args(["-c", script, script, "1000"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // The line comes back from `cat` at the chain's end.
        let mut input = chain.stdin.take().unwrap();
        input.write_all(b"through").unwrap();
        let mut output = chain.stdout.take().unwrap();
        let through = std::thread::spawn(move || output.read_exact(&mut [0; 7]));
        while !through.is_finished() {
            assert!(!has_ended(chain.id()));
        }
        through.join().unwrap().unwrap();
        drop(input);
        chain.wait().unwrap();
    }

    #[test]
    fn the_predicted_name_is_that_of_mpich() {
        // Seen with MPICH 5.0.2.
        let path = predicted_segment("kvs_14893_0_231376119_vm", 1);
        assert_eq!(path, "/dev/shm/mpich_shm_2b6751d6_1");
    }

    #[test]
    fn only_segments_are_removed() {
        let path = format!("/dev/shm/mpich_shm_test{}_0", std::process::id());
        std::fs::write(&path, b"x").unwrap();
        remove([&path, &"/dev/null".to_string()]);
        assert!(!Path::new(&path).exists() && Path::new("/dev/null").exists());
    }
}
