//! How a job is followed by its file of events, also while that is written, and after the job.

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
use std::time::Duration;

/// How often it is looked whether the file has grown.
const PAUSE: Duration = Duration::from_millis(100);
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
        let refs: Vec<&str> = lines.iter().map(String::as_str).collect();
        watch.hear(&refs);
        if lines.is_empty() {
            if watch.has_ended() {
                return watch.end("");
            }
            std::thread::sleep(PAUSE);
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

/// The file as it is read. Others may empty it meanwhile.
struct Tail {
    input: BufReader<File>,
    /// Where the next line begins.
    at: u64,
}

impl Tail {
    fn open(path: &Path) -> io::Result<Tail> {
        Ok(Tail { input: BufReader::new(File::open(path)?), at: 0 })
    }

    /// The whole lines that follow, as far as they are there.
    fn lines(&mut self) -> io::Result<Vec<String>> {
        if self.input.get_ref().metadata()?.len() < self.at {
            self.go_to(0)?;
        }
        let mut lines = Vec::new();
        while lines.len() < LINES {
            let mut line = Vec::new();
            let read = self.input.by_ref().take(MAX_LINE).read_until(b'\n', &mut line)?;
            if line.last() != Some(&b'\n') {
                if read > 0 {
                    self.go_to(self.at)?;
                }
                break;
            }
            self.at += read as u64;
            lines.push(String::from_utf8_lossy(&line).into_owned());
        }
        Ok(lines)
    }

    fn go_to(&mut self, at: u64) -> io::Result<()> {
        self.at = at;
        self.input.seek(SeekFrom::Start(at)).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::watched::Seen;
    use std::fs::OpenOptions;
    use std::io::Write;
    use std::time::Instant;

    fn line(seq: u64, rest: &str) -> String {
        format!("{{\"seq\":{seq},\"time\":{seq}.0,\"event\":{rest}}}\n")
    }

    const STARTED: &str =
        r#""job_started","job":"melt","ranks":2,"nodes":1,"spares":1,"hosts":[],"routers":1"#;
    const ENDED: &str = r#""job_ended","code":3,"cause":"why","summary":{"elapsed":1.0,"ranks":2,"checkpoints":0,"checkpoints_failed":0,"checkpoint_bytes":0,"rank_failures":0,"nodes_lost":0,"roles_lost":0,"resumes":0,"spares_used":0,"recoveries":0,"longest_recovery":0.0}"#;

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
        write(&line(1, ENDED));
        await_row(&watch, |row| matches!(row.head.news, News::Over { .. }));
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
