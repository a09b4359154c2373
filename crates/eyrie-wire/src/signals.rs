//! The signals of a job for one rank, in memory that its agent and the rank share. The agent adds
//! them in their order, as far as there is room; agent or rank gives each to the program, whichever
//! claims it. No signal may be given twice, nor taken for another one.

use std::sync::atomic::{AtomicU64, AtomicU8, Ordering};

/// The signals for a rank, up to `ROOM` that it has not noted. All zero: none yet.
#[repr(C)]
pub struct Signals<const ROOM: usize> {
    /// How many of those that were sent to the job's ranks were added.
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
    /// False: it is not there, because earlier ones are not, or because the rank has yet to note
    /// that it got earlier ones.
    pub fn add(&self, n: u64, number: u8) -> bool {
        let sent = self.sent.load(Ordering::Relaxed);
        if n != sent {
            return n < sent;
        }
        if n >= self.noted.load(Ordering::Acquire).saturating_add(ROOM as u64) {
            return false;
        }
        self.number_at(n).store(number, Ordering::Relaxed);
        self.sent.store(n + 1, Ordering::Release);
        true
    }

    /// How many signals were added.
    #[inline]
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Acquire)
    }

    /// How many the rank has got. More than were added: its agent has given those that had no room.
    pub fn got(&self) -> u64 {
        self.got.load(Ordering::Acquire)
    }

    /// Notes how many signals the rank got before it had this memory, or has got again. Those that
    /// its agent has claimed meanwhile stay claimed. Only the rank calls this.
    pub fn set_got(&self, got: u64) {
        self.got.fetch_max(got, Ordering::AcqRel);
        self.note(got);
    }

    /// Takes the `n`th signal, if it was added: its number, and whether the caller gives it to the
    /// program, which its agent has done otherwise. Only the rank calls this, before it notes that
    /// it got the signal.
    pub fn take(&self, n: u64) -> Option<(u8, bool)> {
        let number = (n < self.sent()).then(|| self.number_at(n).load(Ordering::Relaxed))?;
        Some((number, self.claim(n)))
    }

    /// Notes that the rank knows of its first `got` signals. Only the rank calls this.
    pub fn note(&self, got: u64) {
        self.noted.store(got, Ordering::Release);
    }

    /// Claims the `n`th signal (from 0). Only the caller that gets true gives it to the program.
    /// The agent may claim one that it has yet to add.
    pub fn claim(&self, n: u64) -> bool {
        self.got.compare_exchange(n, n + 1, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn none<const ROOM: usize>() -> Signals<ROOM> {
        // SAFETY: all zero is valid, and says that there is no signal yet.
        unsafe { std::mem::zeroed() }
    }

    #[test]
    fn a_slot_is_not_used_again_before_the_rank_has_noted_its_signal() {
        let signals = none::<2>();
        assert!(signals.add(0, 10) && signals.add(1, 12));
        assert!(signals.claim(0) && signals.claim(1), "the agent gives both");
        assert!(!signals.add(2, 15), "the rank has yet to note them");
        assert_eq!(signals.take(0), Some((10, false)));
        signals.note(1);
        assert!(signals.add(2, 15));
        assert_eq!(signals.take(1), Some((12, false)));
    }

    #[test]
    fn a_signal_behind_one_that_had_no_room_waits_for_it() {
        let signals = none::<2>();
        assert!(signals.add(0, 10) && signals.add(1, 12) && signals.add(1, 12));
        assert!(!signals.add(2, 10) && !signals.add(3, 10), "there is no room");
        signals.set_got(1);
        assert!(signals.add(2, 15));
        assert_eq!([1, 2, 3].map(|n| signals.take(n)), [Some((12, true)), Some((15, true)), None]);
    }

    #[test]
    fn a_rank_that_begins_does_not_get_again_what_its_agent_has_given() {
        let signals = none::<2>();
        assert!(signals.claim(0) && signals.add(0, 10), "before the rank has this memory");
        signals.set_got(0);
        assert!(signals.add(1, 12) && signals.claim(1), "before the agent knows that it has begun");
        assert_eq!([0, 1].map(|n| signals.take(n)), [Some((10, false)), Some((12, false))]);
    }

    #[test]
    fn a_rank_that_comes_back_takes_what_it_has_not_got() {
        let signals = none::<2>();
        assert!(signals.add(0, 10) && signals.add(1, 12));
        signals.set_got(1);
        assert_eq!([0, 1].map(|n| signals.claim(n)), [false, true]);
    }

    #[test]
    fn what_had_no_room_may_be_given_before_it_is_added() {
        let signals = none::<1>();
        assert!(signals.add(0, 10) && signals.claim(0) && !signals.add(1, 12));
        assert!(signals.claim(1) && !signals.claim(1), "the agent gives it");
        assert_eq!((signals.take(0), signals.take(1)), (Some((10, false)), None));
        signals.note(1);
        assert!(signals.add(1, 12));
        assert_eq!(signals.take(1), Some((12, false)));
    }
}
