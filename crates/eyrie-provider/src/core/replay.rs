//! The clock of a rank and the determinants it must follow after a restart. Pure. It must never make a message
//! visible at another clock than the one at which it was visible before.

use eyrie_wire::data::Determinant;
use std::collections::VecDeque;

/// What a progress call may show.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turn {
    /// Whatever has arrived.
    Free,
    /// Nothing: at this clock nothing became visible before.
    Nothing,
    /// All messages up to this position, and no more; wait for them.
    UpTo(u64),
}

/// Counts progress calls and follows determinants.
#[derive(Default)]
pub struct Replay {
    clock: u64,
    script: VecDeque<Determinant>,
}

impl Replay {
    /// Progress calls so far.
    pub fn clock(&self) -> u64 {
        self.clock
    }

    /// The determinants to follow from now on: those behind this clock and position, in order. One that repeats the
    /// position before it says that nothing had become visible by its clock.
    ///
    /// # Errors
    /// When they cannot belong to this rank.
    pub fn load(&mut self, script: Vec<Determinant>, position: u64) -> Result<(), String> {
        let mut last = Determinant { clock: self.clock, position };
        for d in &script {
            if d.clock <= last.clock || d.position < last.position {
                return Err(format!(
                    "determinant (clock {}, position {}) follows (clock {}, position {})",
                    d.clock, d.position, last.clock, last.position
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
            Some(d) if d.clock == self.clock => Turn::UpTo(d.position),
            Some(_) => Turn::Nothing,
        }
    }

    /// What [`Turn::UpTo`] asked for has been shown. True: it was the last determinant.
    pub fn shown(&mut self) -> bool {
        self.script.pop_front();
        self.script.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_show_at_their_clock_and_the_order_is_free_behind_the_last() {
        let mut r = Replay::default();
        assert_eq!(r.tick(), Turn::Free);
        let d = |clock, position| Determinant { clock, position };
        r.load(vec![d(3, 2), d(4, 7)], 0).unwrap();
        assert_eq!(r.tick(), Turn::Nothing);
        assert_eq!(r.tick(), Turn::UpTo(2));
        assert!(!r.shown());
        assert_eq!(r.tick(), Turn::UpTo(7));
        assert!(r.shown());
        assert_eq!((r.tick(), r.clock()), (Turn::Free, 5));
    }

    #[test]
    fn silence_is_followed_too() {
        let d = |clock, position| Determinant { clock, position };
        let mut r = Replay::default();
        r.load(vec![d(1, 2), d(3, 2)], 0).unwrap();
        assert_eq!(r.tick(), Turn::UpTo(2));
        assert!(!r.shown());
        assert_eq!(r.tick(), Turn::Nothing);
        assert_eq!(r.tick(), Turn::UpTo(2));
        assert!(r.shown());
        assert_eq!(r.tick(), Turn::Free);
    }

    #[test]
    fn determinants_of_another_history_are_refused() {
        let d = |clock, position| Determinant { clock, position };
        let mut r = Replay::default();
        r.tick();
        assert!(r.load(vec![d(1, 2)], 0).is_err());
        assert!(r.load(vec![d(5, 2), d(5, 3)], 0).is_err());
        assert!(r.load(vec![d(5, 2), d(6, 1)], 0).is_err());
        assert!(r.load(vec![d(5, 2)], 3).is_err());
    }
}
