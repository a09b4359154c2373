//! What the controllers of other domains print, passed on to our own output as it is, but for
//! Eyrie's own lines: these name the domain. Whole lines are passed on at once, so that lines of
//! two domains do not mix.

use rustix::event::{poll, PollFd, PollFlags, Timespec};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;

/// How long the beginning of a line waits for the rest of it.
const PATIENCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
/// Longest beginning of a line that waits, in bytes.
const MAX_WAITING: usize = 64 << 10;
/// What Eyrie's own lines begin with.
const OWN: &[u8] = b"eyrie: ";

/// Passes on all that comes, with Eyrie's own lines as those of the domain `name`, where it is
/// given.
///
/// # Errors
/// Those of `to`; one of `from` is its end.
pub fn pass(mut from: impl Read + AsFd, mut to: impl Write, name: Option<&str>) -> io::Result<()> {
    let mut lines = Lines { name, is_within: false, waiting: Vec::new() };
    let mut piece = vec![0; MAX_WAITING];
    loop {
        if !lines.waiting.is_empty() && !comes(from.as_fd()) {
            to.write_all(&lines.rest())?;
            to.flush()?;
        }
        let got = match from.read(&mut piece) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Ok(got @ 1..) => got,
            _ => break,
        };
        to.write_all(&lines.take(&piece[..got]))?;
        to.flush()?;
    }
    to.write_all(&lines.rest())?;
    to.flush()
}

/// Whether something comes, or the end, soon.
fn comes(from: impl AsFd) -> bool {
    let mut fds = [PollFd::new(&from, PollFlags::IN)];
    // An error shows when it is read.
    poll(&mut fds, Some(&PATIENCE)).map_or(true, |ready| ready > 0)
}

/// The lines of a stream.
struct Lines<'a> {
    name: Option<&'a str>,
    /// The beginning of the present line was passed on.
    is_within: bool,
    /// The beginning of a line.
    waiting: Vec<u8>,
}

impl Lines<'_> {
    /// What is to be passed on when these bytes come.
    fn take(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.waiting.extend_from_slice(bytes);
        let whole = match self.waiting.iter().rposition(|byte| *byte == b'\n') {
            Some(end) => end + 1,
            None if self.waiting.len() > MAX_WAITING => self.waiting.len(),
            None => 0,
        };
        let rest = self.waiting.split_off(whole);
        let whole = std::mem::replace(&mut self.waiting, rest);
        self.named(&whole)
    }

    /// What waits, though no more of its line has come.
    fn rest(&mut self) -> Vec<u8> {
        let rest = std::mem::take(&mut self.waiting);
        self.named(&rest)
    }

    fn named(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut passed = Vec::with_capacity(bytes.len() + 64);
        for line in bytes.split_inclusive(|byte| *byte == b'\n') {
            let own = line.strip_prefix(OWN).filter(|_| !self.is_within);
            match (self.name, own) {
                (Some(name), Some(text)) => {
                    passed.extend_from_slice(OWN);
                    passed.extend_from_slice(name.as_bytes());
                    passed.extend_from_slice(b": ");
                    passed.extend_from_slice(text);
                }
                _ => passed.extend_from_slice(line),
            }
            self.is_within = !line.ends_with(b"\n");
        }
        passed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passed(pieces: &[&str], name: Option<&str>) -> Vec<String> {
        let mut lines = Lines { name, is_within: false, waiting: Vec::new() };
        let text = |bytes| String::from_utf8(bytes).unwrap();
        let mut all: Vec<String> =
            pieces.iter().map(|piece| text(lines.take(piece.as_bytes()))).collect();
        all.push(text(lines.rest()));
        all
    }

    #[test]
    fn lines_are_whole_and_those_of_eyrie_name_the_domain() {
        let said = ["one\ntwo", " more\neyrie: a rank died\nno eyrie: here\nthree"];
        let out = passed(&said, None);
        assert_eq!(out, ["one\n", "two more\neyrie: a rank died\nno eyrie: here\n", "three"]);
        let err = passed(&said, Some("cloud"));
        assert_eq!(
            err,
            ["one\n", "two more\neyrie: cloud: a rank died\nno eyrie: here\n", "three"]
        );
    }

    #[test]
    fn the_rest_of_a_line_that_was_passed_on_is_no_line_of_its_own() {
        let mut lines = Lines { name: Some("cloud"), is_within: false, waiting: Vec::new() };
        assert_eq!(lines.take(b"prompt "), b"");
        assert_eq!(lines.rest(), b"prompt ");
        assert_eq!(
            lines.take(b"eyrie: typed\neyrie: said\n"),
            b"eyrie: typed\neyrie: cloud: said\n"
        );
    }

    #[test]
    fn what_waits_for_the_rest_of_its_line_comes_all_the_same() {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let (told, heard) = std::sync::mpsc::channel();
        struct Told(std::sync::mpsc::Sender<Vec<u8>>);
        impl Write for Told {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0.send(bytes.to_vec()).map_err(io::Error::other)?;
                Ok(bytes.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let thread = std::thread::spawn(move || pass(ours, Told(told), None));
        (&theirs).write_all(b"a prompt: ").unwrap();
        assert_eq!(heard.recv().unwrap(), b"a prompt: ");
        drop(theirs);
        thread.join().unwrap().unwrap();
    }
}
