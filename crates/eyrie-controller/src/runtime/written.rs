//! How much of what the ranks print has been written, kept in a file of the job: a controller that
//! goes on with the job writes the rest, and nothing twice where that can be known. Output is never
//! left out for a file that is damaged: it is written again.

use eyrie_wire::control::StandardStream;
use eyrie_wire::formats::WRITTEN;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The file in the job's directory.
pub const FILE: &str = "written";

/// Standard output and standard error of the ranks as far as they have been written.
#[derive(Debug, Default)]
pub struct Written {
    file: Option<File>,
    kept: Kept,
    /// Bytes that need not be written, because another controller has done it.
    skip: [u64; 2],
}

/// What is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Kept {
    /// Bytes of standard output and standard error that have been written.
    bytes: [u64; 2],
    /// What is being written now.
    intent: Option<Intent>,
}

/// A piece that is being written: a controller that finds this tells by the file whether it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Intent {
    stream: usize,
    bytes: u64,
    /// Device and inode of the file, and where in it; 0 where it is no file, or not its end.
    dev: u64,
    ino: u64,
    at: u64,
}

const FIELDS: usize = 7;
/// They are followed by the beginning of their hash.
const LEN: usize = (FIELDS + 1) * 8;

impl Kept {
    fn encode(&self) -> Vec<u8> {
        let [out, err] = self.bytes;
        let intent = self.intent.map(|i| [i.stream as u64 + 1, i.bytes, i.dev, i.ino, i.at]);
        let fields = [out, err].into_iter().chain(intent.unwrap_or_default());
        let mut bytes: Vec<u8> = fields.flat_map(u64::to_le_bytes).collect();
        bytes.extend(check(&bytes));
        [&WRITTEN.magic[..], &bytes].concat()
    }

    /// What was encoded; `None` for other bytes.
    fn decode(bytes: &[u8]) -> Option<Kept> {
        let bytes = WRITTEN.strip(bytes)?;
        let (known, sum) = bytes.split_last_chunk::<8>()?;
        if bytes.len() != LEN || *sum != check(known) {
            return None;
        }
        let mut fields = [0; FIELDS];
        for (field, bytes) in fields.iter_mut().zip(known.chunks_exact(8)) {
            *field = bytes.try_into().map_or(0, u64::from_le_bytes);
        }
        let [out, err, stream, bytes, dev, ino, at] = fields;
        let stream = usize::try_from(stream).ok().and_then(|s| s.checked_sub(1));
        let intent = stream.filter(|stream| *stream < 2);
        let intent = intent.map(|stream| Intent { stream, bytes, dev, ino, at });
        Some(Kept { bytes: [out, err], intent })
    }
}

fn check(fields: &[u8]) -> [u8; 8] {
    std::array::from_fn(|i| blake3::hash(fields).as_bytes()[i])
}

impl Intent {
    fn new(stream: usize, bytes: u64, fd: BorrowedFd<'_>) -> Intent {
        let file = rustix::fs::fstat(fd).ok();
        let file = file.filter(|f| rustix::fs::FileType::from_raw_mode(f.st_mode).is_file());
        // It grows by what is written, unless something else is overwritten.
        let at_its_end = |size: u64| {
            let appends = rustix::fs::fcntl_getfl(fd)
                .is_ok_and(|flags| flags.contains(rustix::fs::OFlags::APPEND));
            appends || rustix::fs::seek(fd, rustix::fs::SeekFrom::Current(0)).ok() == Some(size)
        };
        match file {
            Some(f) if at_its_end(f.st_size as u64) => {
                Intent { stream, bytes, dev: f.st_dev, ino: f.st_ino, at: f.st_size as u64 }
            }
            _ => Intent { stream, bytes, dev: 0, ino: 0, at: 0 },
        }
    }

    /// How much of it was written, by what is in the file; `None` when that is not open here.
    fn written(&self, fd: BorrowedFd<'_>) -> Option<u64> {
        let file = rustix::fs::fstat(fd).ok()?;
        let same = self.ino != 0 && (file.st_dev, file.st_ino) == (self.dev, self.ino);
        same.then(|| (file.st_size as u64).saturating_sub(self.at).min(self.bytes))
    }
}

impl Written {
    /// Nothing has been written.
    ///
    /// # Errors
    /// When the file cannot be made.
    pub fn create(path: &Path) -> io::Result<Written> {
        let mut options = File::options();
        let file = options.write(true).create(true).truncate(true).mode(0o600).open(path)?;
        let written = Written { file: Some(file), ..Written::default() };
        written.keep();
        Ok(written)
    }

    /// What another controller has written, which is to be skipped: nothing, where no file says it.
    /// Output comes again from `from` on, bytes of both streams. `into`: files in which it may have
    /// written besides this process's output. Also what users must know of it.
    ///
    /// # Errors
    /// When the file is there and cannot be read.
    pub fn go_on(
        path: &Path,
        from: [u64; 2],
        into: &[PathBuf],
    ) -> io::Result<(Written, Option<String>)> {
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let mut file = options.open(path)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        let kept = Kept::decode(&bytes);
        let shown = path.display();
        let why = match WRITTEN.mistaken(&bytes) {
            _ if bytes.is_empty() => "it is not known here how much was".into(),
            Some(what) => format!("{shown} cannot be read: {what}"),
            None => format!("{shown} is damaged, which says how much was"),
        };
        let mut note = kept.is_none().then(|| match from.iter().sum() {
            0 => format!("what the ranks have printed is printed again: {why}"),
            known => format!(
                "of what the ranks have printed the first {} were printed by an earlier \
                 controller, and the rest is printed again: {why}",
                eyrie_units::bytes(known)
            ),
        });
        let Kept { bytes: mut skip, intent } = kept.unwrap_or_default();
        if let Some(intent) = intent {
            let outputs = (rustix::stdio::stdout(), rustix::stdio::stderr());
            let fd = if intent.stream == 0 { &outputs.0 } else { &outputs.1 };
            let mut files = into.iter().filter_map(|path| File::open(path).ok());
            let in_file = || files.find_map(|file| intent.written(file.as_fd()));
            match intent.written(fd.as_fd()).or_else(in_file) {
                Some(written) => skip[intent.stream] += written,
                None => {
                    let bytes = intent.bytes;
                    note =
                        Some(format!("{bytes} bytes that the ranks have printed may come twice"));
                }
            }
        }
        Ok((Written { file: Some(file), kept: Kept { bytes: from, intent: None }, skip }, note))
    }

    /// Bytes of standard output and standard error that have been written so far.
    pub fn bytes(&self) -> [u64; 2] {
        self.kept.bytes
    }

    /// Writes a piece of a rank's output.
    ///
    /// # Errors
    /// The output's.
    pub fn write(&mut self, stream: StandardStream, mut bytes: &[u8]) -> io::Result<()> {
        let at = stream as usize;
        let skipped = self.skip[at].saturating_sub(self.kept.bytes[at]).min(bytes.len() as u64);
        bytes = &bytes[skipped as usize..];
        self.kept.bytes[at] += skipped;
        let outputs = (rustix::stdio::stdout(), rustix::stdio::stderr());
        let fd = match stream {
            StandardStream::Stdout => outputs.0.as_fd(),
            StandardStream::Stderr => outputs.1.as_fd(),
        };
        while !bytes.is_empty() {
            if self.file.is_some() {
                self.kept.intent = Some(Intent::new(at, bytes.len() as u64, fd));
                self.keep();
            }
            // Not std's: it would buffer by lines, and a program's output is passed as it comes.
            match rustix::io::write(fd, bytes) {
                Ok(n) => {
                    bytes = &bytes[n..];
                    self.kept.bytes[at] += n as u64;
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => wait_for(fd),
                Err(e) => return Err(e.into()),
            }
            self.kept.intent = None;
            self.keep();
        }
        Ok(())
    }

    fn keep(&self) {
        if let Some(file) = &self.file {
            // What is not known as written is written again, if it comes to that.
            let _ = file.write_all_at(&self.kept.encode(), 0);
        }
    }
}

/// Another process made our output non-blocking.
fn wait_for(fd: BorrowedFd<'_>) {
    let mut fds = [rustix::event::PollFd::from_borrowed_fd(fd, rustix::event::PollFlags::OUT)];
    let _ = rustix::event::poll(&mut fds, None);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn what_is_kept_comes_back() {
        let intent = Some(Intent { stream: 1, bytes: 3, dev: 4, ino: 5, at: 6 });
        for kept in [Kept { bytes: [1, 2], intent }, Kept { bytes: [7, 8], intent: None }] {
            let bytes = kept.encode();
            assert_eq!(Kept::decode(&bytes), Some(kept));
            for changed in 0..bytes.len() {
                let mut damaged = bytes.clone();
                damaged[changed] ^= 1 << (changed % 8);
                assert_eq!(Kept::decode(&damaged), None);
                assert_eq!(Kept::decode(&bytes[..changed]), None);
            }
        }
    }

    #[test]
    fn a_damaged_file_is_named_and_nothing_is_skipped() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        let kept = Kept { bytes: [100, 7], intent: None };
        std::fs::write(&path, kept.encode()).unwrap();
        let (written, note) = Written::go_on(&path, [40, 0], &[]).unwrap();
        assert_eq!((written.skip, note), ([100, 7], None));
        let mut bytes = kept.encode();
        bytes[0] ^= 1;
        std::fs::write(&path, bytes).unwrap();
        let (written, note) = Written::go_on(&path, [40, 0], &[]).unwrap();
        let note = note.unwrap();
        assert!(note.contains("written is damaged") && note.contains("first 40 B"), "{note}");
        assert_eq!((written.skip, written.bytes()), ([0; 2], [40, 0]));
        std::fs::write(&path, eyrie_wire::formats::JOURNAL.magic).unwrap();
        let (_, note) = Written::go_on(&path, [40, 0], &[]).unwrap();
        assert!(note.unwrap().contains("it is the journal of a job"));
    }

    #[test]
    fn what_went_into_another_file_than_the_output_is_found_there() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        let taken = dir.path().join("eyrie-j.out");
        let mut file = File::options().append(true).create(true).open(&taken).unwrap();
        let intent = Some(Intent::new(0, 4, file.as_fd()));
        file.write_all(b"ab").unwrap();
        std::fs::write(&path, Kept { bytes: [10, 0], intent }.encode()).unwrap();
        let (written, note) = Written::go_on(&path, [0; 2], &[taken]).unwrap();
        assert_eq!((written.skip, note), ([12, 0], None));
        let (_, note) = Written::go_on(&path, [0; 2], &[]).unwrap();
        assert!(note.unwrap().contains("may come twice"));
    }

    #[test]
    fn the_file_says_how_much_of_a_piece_was_written() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"before").unwrap();
        let intent = Intent::new(0, 4, file.as_fd());
        assert_eq!(intent.written(file.as_fd()), Some(0));
        file.write_all(b"ab").unwrap();
        assert_eq!(intent.written(file.as_fd()), Some(2));
        file.write_all(b"cd, and of another controller").unwrap();
        assert_eq!(intent.written(file.as_fd()), Some(4));
        let other = tempfile::tempfile().unwrap();
        assert_eq!(intent.written(other.as_fd()), None);
        let (pipe, _other_end) = rustix::pipe::pipe().unwrap();
        let intent = Intent::new(0, 4, pipe.as_fd());
        assert_eq!(intent.written(pipe.as_fd()), None);
    }
}
