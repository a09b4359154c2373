//! The last lines that ranks have printed, for users who look at them. A user has a thread that
//! takes from here: one that reads slowly misses something, is told so, and holds up neither the
//! job nor others.

use super::users::written;
use eyrie_interface::output::Printed;
use eyrie_interface::request::STREAM_HEARTBEAT;
use eyrie_wire::control::StandardStream;
use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How many bytes are kept, at least: with the piece that they begin in.
const KEPT: usize = 64 << 10;
/// Time between two lines that a user is told, at least. A program that prints without end then
/// costs a user who looks no more than so many times what is kept.
const PACE: Duration = Duration::from_millis(100);

/// What ranks have printed last.
#[derive(Clone, Debug, Default)]
pub struct LastOutput(Arc<(Mutex<Kept>, Condvar)>);

#[derive(Debug, Default)]
struct Kept {
    pieces: VecDeque<(StandardStream, Arc<[u8]>)>,
    bytes: usize,
    /// How many pieces there have been.
    added: u64,
    /// None follows.
    closed: bool,
}

impl LastOutput {
    /// This is printed now.
    pub fn add(&self, stream: StandardStream, bytes: &Arc<[u8]>) {
        let mut kept = self.lock();
        kept.bytes += bytes.len();
        kept.added += 1;
        kept.pieces.push_back((stream, Arc::clone(bytes)));
        while kept.pieces.front().is_some_and(|(_, oldest)| kept.bytes - oldest.len() >= KEPT) {
            let Some((_, oldest)) = kept.pieces.pop_front() else { break };
            kept.bytes -= oldest.len();
        }
        self.0 .1.notify_all();
    }

    /// Nothing more is printed.
    pub fn close(&self) {
        self.lock().closed = true;
        self.0 .1.notify_all();
    }

    /// Tells a user what is kept, and then what is printed, until the job ends.
    ///
    /// # Errors
    /// When the user has left, or takes longer than its stream allows.
    pub fn stream(&self, out: &mut impl Write) -> io::Result<()> {
        let mut told = 0;
        loop {
            let (printed, closed) = self.after(&mut told);
            match printed {
                Some(printed) => writeln!(out, "{}", written(&printed))?,
                None => writeln!(out)?,
            }
            if closed {
                return Ok(());
            }
            self.rest();
        }
    }

    /// What follows these pieces, when there is some or none follows, or after a while nothing; and
    /// whether none follows.
    fn after(&self, told: &mut u64) -> (Option<Printed>, bool) {
        let nothing = |kept: &mut Kept| kept.added == *told && !kept.closed;
        let waited = self.0 .1.wait_timeout_while(self.lock(), STREAM_HEARTBEAT, nothing);
        let (kept, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let oldest = kept.added - kept.pieces.len() as u64;
        let skipped = told.saturating_sub(oldest) as usize;
        let gap = *told < oldest;
        let new: Vec<_> = kept.pieces.iter().skip(skipped).cloned().collect();
        *told = kept.added;
        let closed = kept.closed;
        drop(kept);
        let text = |(stream, bytes): (_, Arc<[u8]>)| {
            (stream, String::from_utf8_lossy(&bytes).into_owned())
        };
        let pieces: Vec<_> = new.into_iter().map(text).collect();
        ((!pieces.is_empty()).then_some(Printed { gap, pieces }), closed)
    }

    /// Waits for a moment, unless nothing more is printed.
    fn rest(&self) {
        drop(self.0 .1.wait_timeout_while(self.lock(), PACE, |kept| !kept.closed));
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.0 .0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use StandardStream::{Stderr, Stdout};

    fn streamed(output: &LastOutput) -> Vec<Printed> {
        let mut out = Vec::new();
        output.stream(&mut out).unwrap();
        let lines = out.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        lines.map(|line| serde_json::from_slice(line).unwrap()).collect()
    }

    #[test]
    fn a_user_is_told_what_is_kept_and_what_is_printed_until_the_end() {
        let output = LastOutput::default();
        output.add(Stdout, &b"one\n"[..].into());
        let other = output.clone();
        let user = std::thread::spawn(move || streamed(&other));
        output.add(Stderr, &b"two\n"[..].into());
        output.close();
        let told = user.join().unwrap();
        assert!(told.iter().all(|printed| !printed.gap));
        let pieces: Vec<_> = told.into_iter().flat_map(|printed| printed.pieces).collect();
        assert_eq!(pieces, [(Stdout, "one\n".to_string()), (Stderr, "two\n".to_string())]);
    }

    #[test]
    fn of_much_the_last_is_kept_and_a_gap_is_said() {
        let output = LastOutput::default();
        for n in 0..1000 {
            output.add(Stdout, &format!("{n:1023}\n").into_bytes().into());
        }
        output.close();
        let told = streamed(&output);
        assert_eq!((told.len(), told[0].gap), (1, true));
        assert_eq!(told[0].pieces.len(), KEPT / 1024);
        assert!(told[0].pieces[0].1.trim() == "936", "{}", told[0].pieces[0].1);
    }
}
