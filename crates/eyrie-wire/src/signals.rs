//! The signals of a job for one rank, in memory that its agent and the rank share. The agent adds
//! them; agent or rank gives each to the program, whichever claims it. No signal may be given
//! twice, nor taken for another one.

use std::sync::atomic::{AtomicU64, AtomicU8, Ordering};

/// The newest `ROOM` signals for a rank. All zero: none yet.
#[repr(C)]
pub struct Signals<const ROOM: usize> {
    /// How many were sent to the job's ranks.
    sent: AtomicU64,
    /// How many the rank has got, from its agent or by itself.
    got: AtomicU64,
    /// How many the rank knows that it has got: it does not ask for their numbers any more.
    noted: AtomicU64,
    numbers: [AtomicU8; ROOM],
}

impl<const ROOM: usize> Signals<ROOM> {
    fn number_at(&self, n: u64) -> &AtomicU8 {
        &self.numbers[n as usize % ROOM]
    }

    /// Adds the `n`th signal of the job (from 0), unless it is there. Only the agent calls this.
    /// False: it is not there, because the rank does not know of earlier ones.
    pub fn add(&self, n: u64, number: u8) -> bool {
        let sent = self.sent.load(Ordering::Relaxed);
        if n != sent {
            return n < sent;
        }
        if n >= self.noted.load(Ordering::Acquire) + ROOM as u64 {
            return false;
        }
        self.number_at(n).store(number, Ordering::Relaxed);
        self.sent.store(n + 1, Ordering::Release);
        true
    }

    /// Notes all signals that were sent before the rank had this memory. Only the agent calls this.
    pub fn set_sent(&self, all: &[u8]) {
        let from = all.len().saturating_sub(ROOM);
        for (n, number) in all.iter().enumerate().skip(from) {
            self.number_at(n as u64).store(*number, Ordering::Relaxed);
        }
        self.sent.store(all.len() as u64, Ordering::Release);
    }

    /// How many signals were sent.
    #[inline]
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Acquire)
    }

    /// How many of them the rank has got.
    pub fn got(&self) -> u64 {
        self.got.load(Ordering::Acquire)
    }

    /// The number of the `n`th signal, which was sent, and of which the rank has not noted yet that
    /// it got it.
    pub fn number(&self, n: u64) -> u8 {
        self.number_at(n).load(Ordering::Relaxed)
    }

    /// Notes how many signals the rank got before it had this memory, or has got again. Only the
    /// rank calls this.
    pub fn set_got(&self, got: u64) {
        self.got.store(got, Ordering::Release);
        self.note(got);
    }

    /// Notes that the rank knows of its first `got` signals. Only the rank calls this.
    pub fn note(&self, got: u64) {
        self.noted.store(got, Ordering::Release);
    }

    /// Claims the `n`th signal (from 0). Only the caller that gets true gives it to the program.
    pub fn claim(&self, n: u64) -> bool {
        self.got.compare_exchange(n, n + 1, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_not_used_again_before_the_rank_has_noted_its_signal() {
        // SAFETY: all zero is valid, and says that there is no signal yet.
        let signals: Signals<2> = unsafe { std::mem::zeroed() };
        assert!(signals.add(0, 10) && signals.add(1, 12));
        assert!(signals.claim(0) && signals.claim(1), "the agent gives both");
        assert!(!signals.add(2, 15) && signals.number(0) == 10, "the rank has yet to note them");
        signals.note(1);
        assert!(signals.add(2, 15) && signals.number(1) == 12);
    }

    #[test]
    fn a_signal_behind_one_that_had_no_room_is_not_lost_in_silence() {
        // SAFETY: all zero is valid, and says that there is no signal yet.
        let signals: Signals<2> = unsafe { std::mem::zeroed() };
        assert!(signals.add(0, 10) && signals.add(1, 12) && signals.add(1, 12));
        assert!(!signals.add(2, 10) && !signals.add(3, 10), "there is no room");
        signals.set_got(1);
        assert!(signals.add(2, 15) && signals.number(1) == 12 && signals.number(2) == 15);
    }
}
