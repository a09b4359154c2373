//! Output of the ranks that may not have been written yet, kept until it is: a controller that goes
//! on from a snapshot of the job has to write it.

use super::output::{Piece, WrittenBytes};
use eyrie_wire::control::StandardStream;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::Arc;

/// It is as long as the windows of the ranks' streams let it become.
#[derive(Default)]
pub struct Backlog {
    written: Arc<WrittenBytes>,
    /// Bytes of each stream that were ever added.
    added: [u64; 2],
    /// In order, each with the bytes of its stream up to its end.
    pieces: VecDeque<(StandardStream, u64, Arc<[u8]>)>,
}

/// What is kept of it in a snapshot.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct SavedOutput {
    /// Bytes of each stream before the pieces.
    pub before: [u64; 2],
    pub pieces: Vec<(StandardStream, Vec<u8>)>,
}

impl SavedOutput {
    /// Keeps a piece that is not written here. Its rank goes on as if it were.
    pub fn take(&mut self, piece: Piece) {
        let Piece { stream, bytes, shown } = piece;
        self.pieces.push((stream, bytes.to_vec()));
        if let Some(shown) = shown {
            shown.tell();
        }
    }
}

impl Backlog {
    /// Goes on behind `before` bytes of each stream. `written` says how far both are written.
    pub fn new(written: Arc<WrittenBytes>, before: [u64; 2]) -> Backlog {
        Backlog { written, added: before, pieces: VecDeque::new() }
    }

    /// These bytes are going to be written.
    pub fn add(&mut self, stream: StandardStream, bytes: &Arc<[u8]>) {
        self.leave_written_out();
        self.added[stream as usize] += bytes.len() as u64;
        self.pieces.push_back((stream, self.added[stream as usize], Arc::clone(bytes)));
    }

    /// They are written in order.
    fn leave_written_out(&mut self) {
        while let Some((stream, end, _)) = self.pieces.front() {
            if self.written[*stream as usize].load(Ordering::Relaxed) < *end {
                return;
            }
            self.pieces.pop_front();
        }
    }

    /// What may not have been written yet.
    pub fn saved(&mut self) -> SavedOutput {
        self.leave_written_out();
        let mut before = self.added;
        let mut pieces = Vec::new();
        for (stream, _, bytes) in &self.pieces {
            before[*stream as usize] -= bytes.len() as u64;
            pieces.push((*stream, bytes.to_vec()));
        }
        SavedOutput { before, pieces }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_left_out_and_the_rest_is_kept_in_order() {
        let written: Arc<WrittenBytes> = Arc::default();
        let mut unwritten = Backlog::new(Arc::clone(&written), [0; 2]);
        let pieces = [
            (StandardStream::Stdout, "ab"),
            (StandardStream::Stderr, "c"),
            (StandardStream::Stdout, "def"),
        ];
        for (stream, text) in pieces {
            unwritten.add(stream, &text.as_bytes().into());
        }
        written[0].store(2, Ordering::Relaxed);
        let left = vec![
            (StandardStream::Stderr, b"c".to_vec()),
            (StandardStream::Stdout, b"def".to_vec()),
        ];
        assert_eq!(unwritten.saved(), SavedOutput { before: [2, 0], pieces: left });
        // A piece of which a part is written is kept as a whole.
        written[1].store(1, Ordering::Relaxed);
        written[0].store(4, Ordering::Relaxed);
        let left = vec![(StandardStream::Stdout, b"def".to_vec())];
        assert_eq!(unwritten.saved(), SavedOutput { before: [2, 1], pieces: left });
        written[0].store(5, Ordering::Relaxed);
        assert_eq!(unwritten.saved(), SavedOutput { before: [5, 1], pieces: vec![] });
    }
}
