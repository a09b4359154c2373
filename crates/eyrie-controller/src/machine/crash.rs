//! Tells a program that crashes by its own fault from one that has bad luck.

use super::io::Mark;

/// Own-fault crashes without progress that end the job.
const OWN_FAULT_LIMIT: u32 = 3;
/// Deaths from outside (SIGKILL and the like) without progress that end the job.
const OUTSIDE_LIMIT: u32 = 50;

/// Whether a process that dies of this signal has done it itself. Ending signals come from outside.
pub fn is_own_fault(signal: i32) -> bool {
    !matches!(signal, libc::SIGKILL | libc::SIGTERM | libc::SIGINT | libc::SIGHUP | libc::SIGQUIT)
}

/// Deaths of one rank in a row without progress between them.
#[derive(Clone, Default, Debug)]
pub struct Crashes {
    best: Mark,
    /// Images of the rank that counted at its last death.
    images: u64,
    own: u32,
    outside: u32,
}

impl Crashes {
    /// Notes a death by `signal` (`None`: its node was lost) at `mark`, with `images` taken so far. Returns how
    /// often it died so without progress, when that is too often.
    pub fn note(&mut self, signal: Option<i32>, mark: Mark, images: u64) -> Option<u32> {
        if mark.position > self.best.position
            || mark.output > self.best.output
            || images > self.images
        {
            self.own = 0;
            self.outside = 0;
        }
        self.best.position = self.best.position.max(mark.position);
        self.best.output = self.best.output.max(mark.output);
        self.images = self.images.max(images);
        let own = is_own_fault(signal?);
        let (count, limit) =
            if own { (&mut self.own, OWN_FAULT_LIMIT) } else { (&mut self.outside, OUTSIDE_LIMIT) };
        *count += 1;
        (*count >= limit).then_some(*count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(position: u64, output: u64) -> Mark {
        Mark { position, output }
    }

    #[test]
    fn the_third_crash_at_one_place_is_too_many() {
        let mut c = Crashes::default();
        assert_eq!(c.note(Some(libc::SIGSEGV), mark(5, 10), 0), None);
        assert_eq!(c.note(Some(libc::SIGSEGV), mark(5, 10), 0), None);
        assert_eq!(c.note(Some(libc::SIGSEGV), mark(5, 10), 0), Some(3));
    }

    #[test]
    fn progress_of_any_kind_forgives() {
        let mut c = Crashes::default();
        for i in 0..20 {
            let m = match i % 2 {
                0 => mark(i, 3),
                _ => mark(0, 3 + i),
            };
            assert_eq!(c.note(Some(libc::SIGSEGV), m, 0), None);
        }
        c.note(Some(libc::SIGSEGV), mark(0, 0), 0);
        assert_eq!(c.note(Some(libc::SIGSEGV), mark(0, 0), 1), None);
    }

    #[test]
    fn kills_from_outside_have_a_generous_bound() {
        let mut c = Crashes::default();
        for _ in 0..49 {
            assert_eq!(c.note(Some(libc::SIGKILL), mark(0, 0), 0), None);
            assert_eq!(c.note(None, mark(0, 0), 0), None);
        }
        assert_eq!(c.note(Some(libc::SIGKILL), mark(0, 0), 0), Some(50));
    }
}
