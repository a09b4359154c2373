//! How a job is followed by its file of events, also while that is written, and after the job: a
//! later one may write into the same file.

use super::viewers::Viewers;
use super::watched::Watch;
use crate::history::Heard;
use crate::picture::News;
use eyrie_interface::request::MAX_LINE;
use eyrie_interface::Record;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often it is looked whether the file has grown, while its job runs.
const PAUSE: Duration = Duration::from_millis(100);
/// How often it is looked whether the file is another one, or was written anew; and after the job
/// whether it has grown.
const LOOK: Duration = Duration::from_secs(1);
/// So many of its first bytes tell a file from another one: the times of its first events differ.
const HEAD: u64 = 256;
/// Lines that are taken at once: who looks is not held up by more.
const LINES: usize = 1000;

/// Why a file cannot be followed.
#[derive(Debug)]
pub struct Unreadable(String);

impl std::fmt::Display for Unreadable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unreadable {}

/// Watches a job by its file of events. Returns its name, too.
///
/// # Errors
/// When the file cannot be read, or has something else.
pub fn follow(path: PathBuf, viewers: Viewers) -> Result<(String, Arc<Watch>), Unreadable> {
    let shown = path.display().to_string();
    let cannot = |e: io::Error| Unreadable(format!("cannot read {shown}: {e}"));
    let mut file = Tail::open(&path).map_err(cannot)?;
    let first = file.lines().map_err(cannot)?;
    if first.is_empty() || first.iter().all(|line| Heard::read(line).is_none()) {
        return Err(Unreadable(format!(
            "{shown} has no events of a job: name a file that `eyrie run --events FILE` has written"
        )));
    }
    let name = name_of(&first).unwrap_or_else(|| name_by_path(&path));
    let watch = Arc::new(Watch::new(&name, viewers));
    let followed = watch.clone();
    std::thread::spawn(move || follow_lines(&followed, file, first));
    Ok((name, watch))
}

/// The name of the job, as its events have it.
fn name_of(lines: &[String]) -> Option<String> {
    lines.iter().find_map(|line| match Heard::read(line)? {
        Heard::Known(line, _) => match line.record {
            Record::JobStarted { job, .. } => Some(job),
            _ => None,
        },
        Heard::Unknown { .. } => None,
    })
}

/// A name for a job whose events begin later.
fn name_by_path(path: &Path) -> String {
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    name.chars()
        .map(|c| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' })
        .collect()
}

fn follow_lines(watch: &Watch, mut file: Tail, first: Vec<String>) {
    let mut lines = first;
    loop {
        watch.hear_from_file(&lines);
        if lines.is_empty() {
            std::thread::sleep(if watch.has_ended() { LOOK } else { PAUSE });
        }
        match file.lines() {
            Ok(more) => lines = more,
            Err(e) => {
                let why = format!("the file of events cannot be read: {e}");
                watch.set_news(News::Missing { why: why.clone() });
                return watch.end(&why);
            }
        }
    }
}

/// The file as it is read. Others may write it anew meanwhile, or put another one in its place.
struct Tail {
    path: PathBuf,
    input: BufReader<File>,
    /// Where the next line begins.
    at: u64,
    /// Its first bytes.
    head: Vec<u8>,
    looked: Instant,
}

impl Tail {
    fn open(path: &Path) -> io::Result<Tail> {
        let mut file = File::open(path)?;
        let head = head_of(&mut file)?;
        let (input, looked) = (BufReader::new(file), Instant::now());
        Ok(Tail { path: path.into(), input, at: 0, head, looked })
    }

    /// The whole lines that follow, as far as they are there.
    fn lines(&mut self) -> io::Result<Vec<String>> {
        if self.looked.elapsed() >= LOOK {
            self.look()?;
        }
        let mut lines = Vec::new();
        while lines.len() < LINES {
            let mut line = Vec::new();
            let read = self.input.by_ref().take(MAX_LINE).read_until(b'\n', &mut line)?;
            if line.last() != Some(&b'\n') {
                if read > 0 {
                    self.input.seek(SeekFrom::Start(self.at))?;
                }
                break;
            }
            self.at += read as u64;
            lines.push(String::from_utf8_lossy(&line).into_owned());
        }
        Ok(lines)
    }

    /// Begins again where the file begins otherwise than before.
    fn look(&mut self) -> io::Result<()> {
        self.looked = Instant::now();
        let found = match Tail::open(&self.path) {
            Ok(found) => found,
            // Its last lines may still come.
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(e) => return Err(e),
        };
        if found.head.starts_with(&self.head) {
            // It was shorter, perhaps.
            self.head = found.head;
        } else {
            *self = found;
        }
        Ok(())
    }
}

/// The first bytes of a file, which is at its beginning before and after.
fn head_of(file: &mut File) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    file.by_ref().take(HEAD).read_to_end(&mut head)?;
    file.rewind()?;
    Ok(head)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::picture::JobState;
    use crate::watch::watched::tests::ENDED;
    use crate::watch::watched::Seen;
    use std::fs::OpenOptions;
    use std::io::Write;

    fn line(seq: u64, rest: &str) -> String {
        format!("{{\"seq\":{seq},\"time\":{seq}.0,\"event\":{rest}}}\n")
    }

    const STARTED: &str =
        r#""job_started","job":"melt","ranks":2,"nodes":1,"spares":1,"hosts":[],"routers":1"#;

    fn await_row(watch: &Watch, is: impl Fn(&crate::picture::Row) -> bool) {
        let until = Instant::now() + Duration::from_secs(60);
        while !is(&watch.row()) {
            assert!(Instant::now() < until, "{:?}", watch.row());
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_file_is_followed_while_it_is_written_and_when_it_begins_anew() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("events");
        let write = |text: &str| {
            let mut file = OpenOptions::new().create(true).append(true).open(&path).unwrap();
            file.write_all(text.as_bytes()).unwrap();
        };
        write(&line(0, STARTED));
        // A line that is not whole yet.
        write(r#"{"seq":1,"time":1.0,"event":"no"#);
        let (name, watch) = follow(path.clone(), Viewers::default()).unwrap();
        assert_eq!(name, "melt");
        await_row(&watch, |row| row.summary.ranks == 2);
        let (piece, seen) = watch.piece(Seen::default());
        assert!(
            piece.contains(r#""whole":true"#) && piece.contains("job melt: 2 ranks"),
            "{piece}"
        );
        write("te\",\"text\":\"one\"}\n");
        await_row(&watch, |row| row.time == 1.0);
        let (piece, seen) = watch.piece(seen);
        assert!(piece.contains(r#""whole":false"#) && piece.contains(r#""text":"one""#), "{piece}");
        assert!(!piece.contains("job melt"), "{piece}");
        // Another job in the same file.
        write(&line(0, &STARTED.replace("\"ranks\":2", "\"ranks\":1")));
        await_row(&watch, |row| row.summary.ranks == 1);
        let (piece, _) = watch.piece(seen);
        assert!(piece.contains(r#""whole":true"#) && piece.contains(r#""next":1"#), "{piece}");
        write(ENDED);
        await_row(&watch, has_ended);
    }

    fn has_ended(row: &crate::picture::Row) -> bool {
        matches!(row.head.state, JobState::Ended { .. })
    }

    #[test]
    fn a_later_run_into_the_same_file_is_shown() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("events");
        let first = line(0, STARTED) + ENDED;
        std::fs::write(&path, &first).unwrap();
        let (_, watch) = follow(path.clone(), Viewers::default()).unwrap();
        await_row(&watch, has_ended);
        // It writes the file anew, and more than there was.
        let started =
            |ranks| line(0, &STARTED.replace("\"ranks\":2", &format!("\"ranks\":{ranks}")));
        std::fs::write(&path, started(3) + ENDED + &line(2, r#""saving""#)).unwrap();
        await_row(&watch, |row| row.summary.ranks == 3);
        // It is put in the place of the other one.
        let other = dir.path().join("other");
        std::fs::write(&other, started(4)).unwrap();
        std::fs::rename(&other, &path).unwrap();
        await_row(&watch, |row| row.summary.ranks == 4 && !has_ended(row));
        // It goes on after the end of the one before.
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all((ENDED.to_string() + &started(5)).as_bytes()).unwrap();
        await_row(&watch, |row| row.summary.ranks == 5 && !has_ended(row));
    }

    #[test]
    fn what_is_no_file_of_events_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        let refused = || follow(path.clone(), Viewers::default()).err().unwrap().to_string();
        assert!(refused().contains("cannot read"), "{}", refused());
        std::fs::write(&path, "nothing\nof that\n").unwrap();
        assert!(refused().contains("--events FILE"), "{}", refused());
    }
}
