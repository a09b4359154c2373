//! Output of the ranks of this domain on its way to the domain that shows it. It goes there by
//! letters, in order, and so that few bytes of it are unconfirmed: what is not confirmed in time is
//! sent again. What waits is bounded by the windows of the ranks' streams, which open when the
//! other domain has written it. It must never lose a byte, nor tell one twice.

use eyrie_units::counted;
use eyrie_wire::control::StandardStream;
use eyrie_wire::{NodeId, RankInstance};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Most letters that wait and bytes of output in them, when more output is told. Then small pieces
/// become a large one.
const MAX_LETTERS: usize = 64;
const MAX_UNCONFIRMED: usize = 256 << 10;
/// Largest such piece, in bytes.
const MAX_PIECE: usize = 64 << 10;
/// Most letters that wait when a line of Eyrie's own is told; more lines are left out and counted.
const MAX_LETTERS_BEFORE_LINES: usize = 1000;

/// A stream of a rank whose agent is to be told that there is room for more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Window {
    pub node: NodeId,
    pub instance: RankInstance,
    pub stream: StandardStream,
    /// The offset of the rank's stream up to which it was written.
    pub end: u64,
}

/// Output on its way.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Outgoing {
    /// What is in no letter yet.
    waiting: VecDeque<(StandardStream, Vec<u8>)>,
    /// Bytes that were ever added, and those of them that were written.
    added: u64,
    shown: u64,
    /// Windows that open when so many bytes were written.
    windows: VecDeque<(u64, Window)>,
    /// Lines that were left out since the last one.
    left_out: u64,
}

impl Outgoing {
    /// Adds a piece of a rank's output, which is not empty.
    pub fn add(&mut self, window: Window, bytes: Vec<u8>) {
        self.added += bytes.len() as u64;
        self.windows.push_back((self.added, window));
        match self.waiting.back_mut() {
            Some((stream, last))
                if *stream == window.stream && last.len() + bytes.len() <= MAX_PIECE =>
            {
                last.extend(bytes)
            }
            _ => self.waiting.push_back((window.stream, bytes)),
        }
    }

    /// The next piece to be told, when so many letters wait and so many bytes of output in them.
    pub fn next(&mut self, letters: usize, bytes: usize) -> Option<(StandardStream, Vec<u8>)> {
        if letters < MAX_LETTERS && bytes < MAX_UNCONFIRMED {
            self.waiting.pop_front()
        } else {
            None
        }
    }

    /// All pieces that wait, however many bytes are not confirmed.
    pub fn take_all(&mut self) -> VecDeque<(StandardStream, Vec<u8>)> {
        std::mem::take(&mut self.waiting)
    }

    /// Takes out what is in no letter yet, and its windows: another domain is told that. What was
    /// told stays.
    pub fn split_off(&mut self) -> Outgoing {
        let waiting = std::mem::take(&mut self.waiting);
        let added = waiting.iter().map(|(_, bytes)| bytes.len() as u64).sum();
        self.added -= added;
        let told = self.windows.iter().take_while(|(at, _)| *at <= self.added).count();
        let windows = self.windows.split_off(told);
        let windows = windows.into_iter().map(|(at, window)| (at - self.added, window)).collect();
        let left_out = std::mem::take(&mut self.left_out);
        Outgoing { waiting, added, shown: 0, windows, left_out }
    }

    /// All windows open: nothing more is waited for.
    pub fn open_all(&mut self) -> Vec<Window> {
        self.windows.drain(..).map(|(_, window)| window).collect()
    }

    /// Whether all is in letters.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// So many bytes were written. The windows that open.
    ///
    /// # Errors
    /// When there were not so many.
    pub fn shown(&mut self, bytes: u64) -> Result<Vec<Window>, String> {
        if bytes > self.added {
            return Err(format!(
                "it says that {bytes} bytes of output were written, of {}",
                self.added
            ));
        }
        self.shown = self.shown.max(bytes);
        let opens = self.windows.iter().take_while(|(at, _)| *at <= self.shown).count();
        Ok(self.windows.drain(..opens).map(|(_, window)| window).collect())
    }

    /// The lines to be told with a new one, when so many letters wait; none when it is left out.
    pub fn lines(&mut self, text: String, letters: usize) -> Vec<String> {
        if letters >= MAX_LETTERS_BEFORE_LINES {
            self.left_out += 1;
            return Vec::new();
        }
        let left_out = std::mem::take(&mut self.left_out);
        let says = (left_out > 0).then(|| format!("{} left out", counted(left_out, "line")));
        says.into_iter().chain([text]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use eyrie_wire::{Incarnation, Rank};

    fn window(end: u64) -> Window {
        let instance = RankInstance { rank: Rank(3), incarnation: Incarnation(1) };
        Window { node: NodeId(1), instance, stream: StandardStream::Stdout, end }
    }

    #[test]
    fn few_bytes_are_on_the_way_and_windows_open_when_they_are_written() {
        let mut out = Outgoing::default();
        let piece = vec![7; MAX_UNCONFIRMED];
        for n in 1..=3 {
            out.add(window(n * MAX_UNCONFIRMED as u64), piece.clone());
        }
        assert_eq!(out.next(0, MAX_UNCONFIRMED), None);
        assert_eq!(out.next(MAX_LETTERS, 0), None);
        let next = out.next(MAX_LETTERS - 1, MAX_UNCONFIRMED - 1);
        assert_eq!(next, Some((StandardStream::Stdout, piece)));
        let one = MAX_UNCONFIRMED as u64;
        assert_eq!(out.shown(one - 1), Ok(vec![]));
        assert_eq!(out.shown(one * 2), Ok(vec![window(one), window(one * 2)]));
        assert_eq!(out.shown(one), Ok(vec![]), "known");
        assert!(out.shown(one * 3 + 1).is_err());
        assert_eq!((out.take_all().len(), out.is_empty()), (2, true));
    }

    #[test]
    fn another_domain_is_told_what_the_first_one_was_not() {
        let mut out = Outgoing::default();
        let err = Window { stream: StandardStream::Stderr, ..window(2) };
        out.add(window(1), vec![1]);
        out.add(err, vec![2; 2]);
        out.add(window(3), vec![3; 3]);
        out.add(window(4), vec![4; 4]);
        assert_eq!(out.next(0, 0), Some((StandardStream::Stdout, vec![1])));
        let mut rest = out.split_off();
        assert!(out.is_empty() && out.shown(2).is_err(), "one byte was told");
        assert_eq!(out.shown(1), Ok(vec![window(1)]));
        assert_eq!(rest.next(0, 0), Some((StandardStream::Stderr, vec![2; 2])));
        assert_eq!(rest.shown(2), Ok(vec![err]));
        assert_eq!(rest.shown(5), Ok(vec![window(3)]));
        assert_eq!(rest.open_all(), [window(4)]);
        assert!(rest.shown(10).is_err());
    }

    #[test]
    fn small_pieces_of_a_stream_become_a_large_one() {
        let mut out = Outgoing::default();
        let err = Window { stream: StandardStream::Stderr, ..window(9) };
        let pieces = [(window(1), "a"), (window(2), "b"), (err, "c"), (window(3), "d")];
        pieces.into_iter().for_each(|(window, text)| out.add(window, text.into()));
        let told: Vec<_> = std::iter::from_fn(|| out.next(0, 0)).collect();
        let is = |stream, text: &str| (stream, text.as_bytes().to_vec());
        use StandardStream::{Stderr, Stdout};
        assert_eq!(told, [is(Stdout, "ab"), is(Stderr, "c"), is(Stdout, "d")]);
        assert_eq!(out.shown(1), Ok(vec![window(1)]));
    }

    #[test]
    fn lines_that_are_not_read_are_left_out_and_counted() {
        let mut out = Outgoing::default();
        assert_eq!(out.lines("a".into(), 0), ["a"]);
        assert!(out.lines("b".into(), MAX_LETTERS_BEFORE_LINES).is_empty());
        assert!(out.lines("c".into(), MAX_LETTERS_BEFORE_LINES).is_empty());
        assert_eq!(out.lines("d".into(), 9), ["2 lines left out", "d"]);
        assert_eq!(out.lines("e".into(), 9), ["e"]);
    }
}
