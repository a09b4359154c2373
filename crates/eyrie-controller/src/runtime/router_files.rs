//! What routers on nodes save, and go on with, over connections of their own: files of the
//! `--images` directory, which their hosts need not see. A file that is not whole never gets the
//! name of one that is.

use eyrie_transport::{frame, Stream};
use eyrie_wire::RouterId;
use std::fs::File;
use std::io;
use std::net::Shutdown;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

/// How long a router may neither take nor give anything.
const STALL: Duration = Duration::from_secs(60);

/// The files, by the numbers of the routers.
#[derive(Debug, Default)]
pub struct RouterFiles(Mutex<Files>);

#[derive(Debug, Default)]
struct Files {
    /// Where they save what they hold.
    saving: Vec<PathBuf>,
    /// What they go on with.
    saved: Vec<PathBuf>,
}

impl RouterFiles {
    fn files(&self) -> MutexGuard<'_, Files> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// From now on routers save what they hold there.
    pub fn save_to(&self, files: Vec<PathBuf>) {
        self.files().saving = files;
    }

    /// Routers that are started go on with these.
    pub fn go_on_with(&self, files: Vec<PathBuf>) {
        self.files().saved = files;
    }

    /// Keeps what a router hands over, and tells it how many bytes are on stable storage.
    pub fn keep(&self, id: RouterId, mut stream: Stream) {
        let path = self.files().saving.get(id.index()).cloned();
        let path = path.ok_or_else(|| "the job is not being saved".to_string());
        let kept = path.and_then(|path| keep(&path, &mut stream).map_err(|e| e.to_string()));
        // A router that is gone is not waited for.
        let _ = frame::write(&mut stream, &kept);
    }

    /// Gives a router what another one of its number held: the number of bytes, and these.
    pub fn give(&self, id: RouterId, mut stream: Stream) {
        let path = self.files().saved.get(id.index()).cloned();
        // One that is gone is not waited for; what is cut off is known by its length.
        let _ = match path {
            Some(path) => give(&path, &mut stream),
            None => frame::write(&mut stream, &Err::<u64, _>("nothing was saved")),
        };
    }
}

fn keep(path: &Path, stream: &mut Stream) -> io::Result<u64> {
    stream.set_timeout(Some(STALL))?;
    let partial = path.with_extension("partial");
    let mut file = File::create(&partial)?;
    let bytes = stream.receive_all(&mut file)?;
    file.sync_all()?;
    std::fs::rename(&partial, path)?;
    Ok(bytes)
}

fn give(path: &Path, stream: &mut Stream) -> io::Result<()> {
    stream.set_timeout(Some(STALL))?;
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(e) => return frame::write(stream, &Err::<u64, _>(e.to_string())),
    };
    frame::write(stream, &Ok::<_, String>(file.metadata()?.len()))?;
    stream.send_all(&mut file)?;
    stream.shutdown(Shutdown::Write)
}

#[cfg(test)]
mod tests {
    use super::*;
    use eyrie_transport::Listener;
    use eyrie_wire::role_address::Bind;
    use std::io::{Read, Write};

    /// Two ends of a connection.
    fn pair(dir: &Path) -> (Stream, Stream) {
        let listener = Listener::bind(&Bind::Unix(dir.join("socket"))).unwrap();
        let router = Stream::connect(&listener.addr().unwrap(), STALL).unwrap();
        std::fs::remove_file(dir.join("socket")).unwrap();
        (router, listener.accept().unwrap())
    }

    #[test]
    fn what_a_router_hands_over_is_kept_and_given_to_the_next_of_its_number() {
        let dir = tempfile::tempdir().unwrap();
        let files = RouterFiles::default();
        let hand_over = |id| {
            let (mut router, controller) = pair(dir.path());
            router.write_all(b"all that it holds").unwrap();
            router.shutdown(Shutdown::Write).unwrap();
            files.keep(id, controller);
            frame::read::<Result<u64, String>>(&mut router).unwrap()
        };
        assert!(hand_over(RouterId(1)).unwrap_err().contains("is not being saved"));
        let paths = [dir.path().join("router-0"), dir.path().join("router-1")];
        files.save_to(paths.to_vec());
        assert_eq!(hand_over(RouterId(1)), Ok(17));
        files.go_on_with(paths.to_vec());
        let fetch = |id| {
            let (mut router, controller) = pair(dir.path());
            files.give(id, controller);
            let (mut bytes, said) = (Vec::new(), frame::read::<Result<u64, String>>(&mut router));
            router.read_to_end(&mut bytes).unwrap();
            (said.unwrap(), bytes)
        };
        assert_eq!(fetch(RouterId(1)), (Ok(17), b"all that it holds".to_vec()));
        assert!(fetch(RouterId(0)).0.is_err() && fetch(RouterId(2)).0.is_err());
    }
}
