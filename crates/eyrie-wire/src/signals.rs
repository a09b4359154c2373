//! The signals of a job for one rank, in memory that its agent and the rank share. The agent adds
//! them; agent or rank gives each to the program, whichever claims it. No signal may be given
//! twice, nor taken for another one.
//!
//! The atomics are parameters, so that a test can run all interleavings of agent and rank.

use std::sync::atomic::{AtomicU64, AtomicU8, Ordering};

/// What is used of an atomic number.
pub trait Atomic<T> {
    fn load(&self, order: Ordering) -> T;
    fn store(&self, value: T, order: Ordering);
    /// Whether the number was `old`, and is `new` now.
    fn replace(&self, old: T, new: T, success: Ordering, failure: Ordering) -> bool;
}

macro_rules! atomic {
    ($($atomic:ty: $number:ty),*) => {$(
        impl Atomic<$number> for $atomic {
            #[inline]
            fn load(&self, order: Ordering) -> $number {
                self.load(order)
            }

            #[inline]
            fn store(&self, value: $number, order: Ordering) {
                self.store(value, order);
            }

            #[inline]
            fn replace(
                &self,
                old: $number,
                new: $number,
                success: Ordering,
                failure: Ordering,
            ) -> bool {
                self.compare_exchange(old, new, success, failure).is_ok()
            }
        }
    )*};
}

atomic!(AtomicU64: u64, AtomicU8: u8);

/// The newest `ROOM` signals for a rank. All zero: none yet.
#[repr(C)]
pub struct Signals<const ROOM: usize, Count = AtomicU64, Number = AtomicU8> {
    /// How many were sent to the job's ranks.
    sent: Count,
    /// How many the rank has got, from its agent or by itself.
    got: Count,
    /// How many the rank knows that it has got: it does not ask for their numbers any more.
    noted: Count,
    numbers: [Number; ROOM],
}

impl<const ROOM: usize, Count: Atomic<u64>, Number: Atomic<u8>> Signals<ROOM, Count, Number> {
    fn number_at(&self, n: u64) -> &Number {
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
        self.got.replace(n, n + 1, Ordering::AcqRel, Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    //! All interleavings of an agent and a rank, and all values that the processor may let them
    //! see. Three errors that could be made are made, one at a time: the test must find each.

    use super::*;
    use loom::sync::atomic as checked;
    use std::sync::Mutex;

    #[derive(Clone, Copy, PartialEq, Eq)]
    enum Error {
        None,
        /// Nothing is ordered by a store.
        Unordered,
        /// Two may claim the same signal.
        ClaimInSteps,
        /// The agent takes what it has given for what the rank knows.
        NotedByAgent,
    }

    /// A number that loom watches.
    struct Checked<A> {
        number: A,
        error: Error,
    }

    macro_rules! checked {
        ($($atomic:ty: $number:ty),*) => {$(
            impl Atomic<$number> for Checked<$atomic> {
                fn load(&self, order: Ordering) -> $number {
                    self.number.load(order)
                }

                fn store(&self, value: $number, order: Ordering) {
                    let unordered = self.error == Error::Unordered;
                    self.number.store(value, if unordered { Ordering::Relaxed } else { order });
                }

                fn replace(
                    &self,
                    old: $number,
                    new: $number,
                    success: Ordering,
                    failure: Ordering,
                ) -> bool {
                    if self.error == Error::ClaimInSteps {
                        let is_old = self.number.load(Ordering::Acquire) == old;
                        if is_old {
                            self.number.store(new, Ordering::Release);
                        }
                        return is_old;
                    }
                    self.number.compare_exchange(old, new, success, failure).is_ok()
                }
            }
        )*};
    }

    checked!(checked::AtomicU64: u64, checked::AtomicU8: u8);

    type Shared = Signals<1, Checked<checked::AtomicU64>, Checked<checked::AtomicU8>>;

    fn shared(error: Error) -> Shared {
        let count = || Checked { number: checked::AtomicU64::new(0), error };
        let number = Checked { number: checked::AtomicU8::new(0), error };
        Signals { sent: count(), got: count(), noted: count(), numbers: [number] }
    }

    const SENT: u64 = 2;

    fn number_of(n: u64) -> u8 {
        10 + n as u8
    }

    /// As the agent does: sends signals, and gives the program those that the rank has not got.
    fn agent(signals: &Shared, error: Error, given: &Mutex<Vec<u64>>) {
        let mut n = 0;
        for _ in 0..SENT {
            n += u64::from(signals.add(n, number_of(n)));
            let next = signals.got();
            if next < signals.sent() && signals.claim(next) {
                given.lock().unwrap().push(next);
                if error == Error::NotedByAgent {
                    signals.note(next + 1);
                }
            }
        }
    }

    /// As the rank does at the end of progress calls.
    fn rank(signals: &Shared, given: &Mutex<Vec<u64>>) {
        let mut got = 0;
        for _ in 0..SENT {
            if got < signals.sent() {
                let (number, claimed) = (signals.number(got), signals.claim(got));
                assert_eq!(number, number_of(got), "signal {got} is taken for another one");
                if claimed {
                    given.lock().unwrap().push(got);
                }
                got += 1;
                signals.note(got);
            }
        }
    }

    fn check(error: Error) {
        loom::model(move || {
            let signals = loom::sync::Arc::new(shared(error));
            let given = std::sync::Arc::new(Mutex::new(Vec::new()));
            let (theirs, by_agent) = (signals.clone(), given.clone());
            let agent = loom::thread::spawn(move || agent(&theirs, error, &by_agent));
            rank(&signals, &given);
            agent.join().unwrap();
            let mut given = given.lock().unwrap().clone();
            given.sort_unstable();
            assert!(given.windows(2).all(|two| two[0] != two[1]), "given twice: {given:?}");
        });
    }

    #[test]
    fn agent_and_rank_give_each_signal_once_and_as_it_is() {
        check(Error::None);
    }

    #[test]
    #[should_panic(expected = "is taken for another one")]
    fn stores_must_be_ordered() {
        check(Error::Unordered);
    }

    #[test]
    #[should_panic(expected = "given twice")]
    fn a_claim_must_be_one_step() {
        check(Error::ClaimInSteps);
    }

    #[test]
    #[should_panic(expected = "is taken for another one")]
    fn only_the_rank_notes_what_it_knows() {
        check(Error::NotedByAgent);
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
