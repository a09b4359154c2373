//! What a rank has written to file systems of servers (NFS, Lustre, FUSE). When a node fails, what
//! its kernel had not written back is lost, so an image counts only after that is done. Never runs
//! in the agent's own thread: a server may not answer.

use anyhow::{bail, Context};
use rustix::fs::{fdatasync, major, minor, syncfs};
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::mpsc::{channel, RecvTimeoutError};
use std::time::Duration;

/// How long a server may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// File systems, opened where a process has them mounted, and the files that it has open there.
#[derive(Debug, Default)]
pub struct FileSystems {
    whole: Vec<(PathBuf, File)>,
    files: Vec<(PathBuf, File)>,
}

impl FileSystems {
    /// The file systems of these devices, as stat(2) numbers them in the process `pid`; 0: none.
    ///
    /// # Errors
    /// When the process has no such device mounted, or the mount point cannot be opened.
    pub fn open(pid: u32, devices: &[u64]) -> anyhow::Result<FileSystems> {
        let devices: Vec<u64> = devices.iter().copied().filter(|device| *device != 0).collect();
        if devices.is_empty() {
            return Ok(FileSystems::default());
        }
        let of_rank = eyrie_proc::directory(pid);
        let open = |device: &u64| {
            let high = major(*device);
            let low = minor(*device);
            let place = eyrie_proc::mount_point(&of_rank, (high, low))
                .context("cannot read which file systems the rank has mounted")?
                .with_context(|| format!("the file system {high}:{low} is not mounted any more"))?;
            let below = place.strip_prefix("/").unwrap_or(&place);
            let path = of_rank.join("root").join(below);
            let file = File::open(&path).with_context(|| format!("{}", place.display()))?;
            Ok((place, file))
        };
        let whole = devices.iter().map(open).collect::<anyhow::Result<_>>()?;
        Ok(FileSystems { whole, files: files_of(pid, &devices) })
    }

    /// Returns when all that was written to them before is where a failure of this node does not
    /// lose it.
    ///
    /// # Errors
    /// When a server refuses to write it, or takes too long.
    pub fn write_back(self) -> anyhow::Result<()> {
        // On FUSE, syncfs(2) only begins the writing: open files are waited for one by one.
        let all = self.files.into_iter().map(|(place, file)| (place, file, Of::File));
        let all = all.chain(self.whole.into_iter().map(|(place, file)| (place, file, Of::All)));
        for (place, file, of) in all {
            let (done, end) = channel();
            // The kernel may wait for a server for ever: then only this thread waits with it.
            std::thread::spawn(move || {
                done.send(match of {
                    Of::File => fdatasync(&file),
                    Of::All => syncfs(&file),
                })
            });
            let what = || format!("what the rank has written to {}", place.display());
            match end.recv_timeout(PATIENCE) {
                Ok(result) => result.with_context(|| format!("{} cannot be kept", what()))?,
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    bail!("{} was not written back within {PATIENCE:?}", what())
                }
            }
        }
        Ok(())
    }
}

/// What is written back.
enum Of {
    File,
    /// Its whole file system.
    All,
}

/// The files on these devices that a process has open. A file that it closes meanwhile is left out:
/// its file system is written back as a whole.
fn files_of(pid: u32, devices: &[u64]) -> Vec<(PathBuf, File)> {
    let is_there = |link: &PathBuf| {
        std::fs::metadata(link).is_ok_and(|st| st.is_file() && devices.contains(&st.dev()))
    };
    let open = |link: PathBuf| {
        let place = std::fs::read_link(&link).unwrap_or_else(|_| link.clone());
        File::open(&link).ok().map(|file| (place, file))
    };
    eyrie_proc::descriptors(pid).filter(is_there).filter_map(open).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_written_back() {
        let dir = tempfile::tempdir().unwrap();
        let device = rustix::fs::stat(dir.path()).unwrap().st_dev;
        let open = File::create(dir.path().join("open")).unwrap();
        let own = FileSystems::open(std::process::id(), &[0, device]).unwrap();
        assert_eq!(own.whole.len(), 1);
        assert!(own.files.iter().any(|(place, _)| *place == dir.path().join("open")));
        drop(open);
        own.write_back().unwrap();
        assert!(FileSystems::open(std::process::id(), &[u64::MAX >> 33]).is_err());
    }
}
