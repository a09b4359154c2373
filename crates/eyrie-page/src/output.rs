//! The last lines that ranks have printed, as far as they are kept for the page. Pure.

use eyrie_interface::output::Printed;
use eyrie_units::plain;
use eyrie_wire::control::StandardStream;
use serde::Serialize;
use std::collections::VecDeque;

/// How many lines are kept, and how many bytes of each.
const KEPT: usize = 300;
const LONGEST: usize = 1000;

/// A line.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct OutputLine {
    /// Counts the lines.
    pub number: u64,
    pub stream: StandardStream,
    pub text: String,
    /// It has not come to its end.
    #[serde(skip)]
    is_open: bool,
    /// The change by which it became what it is.
    #[serde(skip)]
    change: u64,
}

/// The lines that are kept.
#[derive(Debug, Default)]
pub struct Output {
    lines: VecDeque<OutputLine>,
    /// How many lines there have been.
    begun: u64,
    changes: u64,
}

impl Output {
    /// Counts the changes.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// This was printed.
    pub fn add(&mut self, printed: &Printed) {
        self.changes += 1;
        if printed.gap {
            self.lines.iter_mut().for_each(|line| line.is_open = false);
            self.begin(StandardStream::Stderr, "... (more was printed than is shown here)", false);
        }
        for (stream, text) in &printed.pieces {
            for part in text.split_inclusive('\n') {
                let is_open = !part.ends_with('\n');
                self.part(*stream, part, is_open);
            }
        }
    }

    /// A part of a line, which goes on with the open line of its stream if there is one.
    fn part(&mut self, stream: StandardStream, part: &str, is_open: bool) {
        let change = self.changes;
        let text = plain::line(part.trim_end_matches(['\r', '\n']));
        let before = self.lines.iter_mut().rev().find(|line| line.stream == stream);
        let Some(line) = before.filter(|line| line.is_open) else {
            return self.begin(stream, &text, is_open);
        };
        line.text.push_str(&text);
        cut(&mut line.text);
        (line.is_open, line.change) = (is_open, change);
    }

    fn begin(&mut self, stream: StandardStream, text: &str, is_open: bool) {
        let mut text = text.to_string();
        cut(&mut text);
        let (number, change) = (self.begun, self.changes);
        self.lines.push_back(OutputLine { number, stream, text, is_open, change });
        self.begun += 1;
        if self.lines.len() > KEPT {
            self.lines.pop_front();
        }
    }

    /// The lines that are other than before this change, or new.
    pub fn since(&self, change: u64) -> Vec<&OutputLine> {
        self.lines.iter().filter(|line| line.change > change).collect()
    }
}

fn cut(text: &mut String) {
    if text.len() > LONGEST {
        let end = (0..=LONGEST).rev().find(|end| text.is_char_boundary(*end));
        text.truncate(end.unwrap_or(0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use StandardStream::{Stderr, Stdout};

    fn printed(pieces: &[(StandardStream, &str)]) -> Printed {
        let pieces = pieces.iter().map(|(stream, text)| (*stream, text.to_string())).collect();
        Printed { gap: false, pieces }
    }

    fn texts(lines: Vec<&OutputLine>) -> Vec<(u64, &str)> {
        lines.into_iter().map(|line| (line.number, line.text.as_str())).collect()
    }

    #[test]
    fn lines_come_in_pieces_of_two_streams() {
        let mut output = Output::default();
        output.add(&printed(&[(Stdout, "one\ntw"), (Stderr, "oh\n"), (Stdout, "o\n")]));
        assert_eq!(texts(output.since(0)), [(0, "one"), (1, "two"), (2, "oh")]);
        let seen = output.changes();
        output.add(&printed(&[(Stdout, "three")]));
        assert_eq!(texts(output.since(seen)), [(3, "three")]);
        let seen = output.changes();
        output.add(&printed(&[(Stdout, " and more\r\n")]));
        assert_eq!(texts(output.since(seen)), [(3, "three and more")]);
        assert_eq!(texts(output.since(output.changes())), []);
    }

    #[test]
    fn of_much_the_last_lines_are_kept_and_none_is_long() {
        let mut output = Output::default();
        for n in 0..1000 {
            output.add(&printed(&[(Stdout, &format!("{n}\n"))]));
        }
        let lines = texts(output.since(0));
        assert_eq!((lines.len(), lines[0], lines[KEPT - 1]), (KEPT, (700, "700"), (999, "999")));
        output.add(&printed(&[(Stdout, &"ä".repeat(100_000))]));
        output.add(&printed(&[(Stdout, "more")]));
        assert_eq!(output.since(0)[KEPT - 1].text.len(), LONGEST);
        output.add(&Printed { gap: true, pieces: vec![(Stdout, "new\n".into())] });
        let lines = texts(output.since(output.changes() - 1));
        assert!(lines[0].1.contains("more was printed") && lines[1].1 == "new", "{lines:?}");
    }
}
