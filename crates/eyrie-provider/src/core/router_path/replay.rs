//! The clock of a rank and the determinants it must follow after a restart. Pure. It must never
//! make a message visible at another clock than the one at which it was visible before.

use eyrie_wire::data::Determinant;
use std::collections::VecDeque;

/// What a progress call may show.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turn {
    /// Whatever has arrived.
    Free,
    /// Nothing: at this clock nothing became visible before.
    Nothing,
    /// All messages up to this receive sequence number, and no more; wait for them. `last`: nothing
    /// is to be replayed behind it.
    UpTo { rsn: u64, last: bool },
}

/// Counts progress calls and follows determinants.
#[derive(Clone, Default)]
pub struct Replay {
    clock: u64,
    script: VecDeque<Determinant>,
}

impl Replay {
    /// Progress calls so far.
    pub fn clock(&self) -> u64 {
        self.clock
    }

    /// Whether all determinants have been followed.
    pub fn is_over(&self) -> bool {
        self.script.is_empty()
    }

    /// The determinants to follow from now on: those behind this clock and message, in order.
    ///
    /// # Errors
    /// When they cannot belong to this rank.
    pub fn load(&mut self, script: Vec<Determinant>, rsn: u64) -> Result<(), String> {
        let mut last = Determinant { clock: self.clock, rsn };
        for d in &script {
            if d.clock <= last.clock || d.rsn < last.rsn {
                return Err(format!(
                    "determinant (clock {}, message {}) follows (clock {}, message {})",
                    d.clock, d.rsn, last.clock, last.rsn
                ));
            }
            last = *d;
        }
        self.script = script.into();
        Ok(())
    }

    /// The next progress call.
    pub fn tick(&mut self) -> Turn {
        self.clock += 1;
        match self.script.front() {
            None => Turn::Free,
            Some(d) if d.clock == self.clock => {
                let rsn = d.rsn;
                self.script.pop_front();
                Turn::UpTo { rsn, last: self.script.is_empty() }
            }
            Some(_) => Turn::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn d(clock: u64, rsn: u64) -> Determinant {
        Determinant { clock, rsn }
    }

    #[test]
    fn messages_show_at_their_clock_and_the_order_is_free_behind_the_last() {
        let mut r = Replay::default();
        assert_eq!(r.tick(), Turn::Free);
        r.load(vec![d(3, 2), d(4, 7)], 0).unwrap();
        assert_eq!(r.tick(), Turn::Nothing);
        assert_eq!(r.tick(), Turn::UpTo { rsn: 2, last: false });
        assert_eq!(r.tick(), Turn::UpTo { rsn: 7, last: true });
        assert_eq!((r.tick(), r.clock()), (Turn::Free, 5));
    }

    #[test]
    fn no_delivery_determinants_are_followed_too() {
        let mut r = Replay::default();
        r.load(vec![d(1, 2), d(3, 2)], 0).unwrap();
        assert_eq!(r.tick(), Turn::UpTo { rsn: 2, last: false });
        assert_eq!(r.tick(), Turn::Nothing);
        assert_eq!(r.tick(), Turn::UpTo { rsn: 2, last: true });
        assert_eq!(r.tick(), Turn::Free);
    }

    #[test]
    fn determinants_of_another_history_are_refused() {
        let mut r = Replay::default();
        r.tick();
        assert!(r.load(vec![d(1, 2)], 0).is_err());
        assert!(r.load(vec![d(5, 2), d(5, 3)], 0).is_err());
        assert!(r.load(vec![d(5, 2), d(6, 1)], 0).is_err());
        assert!(r.load(vec![d(5, 2)], 3).is_err());
    }
}
