//! Tells a program that crashes by its own fault from one that has bad luck.

use crate::machine::io::Mark;
use crate::machine::signal_names::is_own_fault;
use eyrie_wire::ImageId;
use serde::{Deserialize, Serialize};

/// Own-fault crashes without progress that end the job.
const OWN_FAULT_LIMIT: u32 = 3;
/// Deaths from outside (SIGKILL and the like) without progress that end the job.
const OUTSIDE_LIMIT: u32 = 50;

/// Deaths of one rank in a row without progress between them.
#[derive(Clone, Default, Debug, Serialize, Deserialize)]
pub struct Crashes {
    best: Mark,
    /// An image was taken since the last death, no earlier in the rank's life than `best`.
    imaged: bool,
    own: Vec<Option<ImageId>>,
    outside: u32,
}

/// Deaths without progress that were too many.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Again {
    pub count: u32,
    /// The image that each incarnation was started from whose death was its own doing.
    from: Vec<Option<ImageId>>,
}

impl Crashes {
    /// Notes an image taken at receive sequence number `rsn`. One that a rank takes while it
    /// re-executes what it had done before it died is no progress.
    pub fn imaged(&mut self, rsn: u64) {
        self.imaged |= rsn >= self.best.rsn;
    }

    /// Notes a death by `signal` (`None`: its node was lost) at `mark` of an incarnation that was
    /// started from image `from`. Returns what is known of all such deaths without progress, when
    /// they are too many.
    pub fn note(
        &mut self,
        signal: Option<i32>,
        mark: Mark,
        from: Option<ImageId>,
    ) -> Option<Again> {
        let imaged = std::mem::take(&mut self.imaged);
        if mark.rsn > self.best.rsn || mark.output > self.best.output || imaged {
            self.own.clear();
            self.outside = 0;
        }
        self.best.rsn = self.best.rsn.max(mark.rsn);
        self.best.output = self.best.output.max(mark.output);
        if is_own_fault(signal?) {
            self.own.push(from);
            let count = self.own.len() as u32;
            return (count >= OWN_FAULT_LIMIT).then(|| Again { count, from: self.own.clone() });
        }
        self.outside += 1;
        let count = self.outside;
        (count >= OUTSIDE_LIMIT).then(|| Again { count, from: Vec::new() })
    }
}

impl Crashes {
    /// Whether another death by its own fault would be one too many.
    pub fn next_is_last(&self) -> bool {
        self.own.len() as u32 + 1 >= OWN_FAULT_LIMIT
    }
}

impl Again {
    /// How often, where, and what follows from it: `for the 3rd time at the same place, …`. That
    /// the program is at fault is said only when it died so without having been restored from an
    /// image: else the image, or its restoring, may be.
    pub fn in_words(&self, signal: i32) -> String {
        let ordinal = if self.count == 3 { "3rd".into() } else { format!("{}th", self.count) };
        let by_itself = self.from.iter().any(Option::is_none);
        let faulty = [libc::SIGSEGV, libc::SIGABRT, libc::SIGFPE, libc::SIGILL];
        let known = match self.from[..] {
            [Some(image), ..] if self.from.iter().all(|f| *f == Some(image)) => {
                format!("each time it was re-executed from image {image}")
            }
            [_, ..] if !by_itself => "each time it was re-executed from an image".into(),
            [_, ..] if faulty.contains(&signal) => {
                "without progress: the program itself is at fault".into()
            }
            _ => "without progress".into(),
        };
        format!("for the {ordinal} time at the same place, {known}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(rsn: u64, output: u64) -> Mark {
        Mark { rsn, output }
    }

    fn again(count: u32, incarnations: usize) -> Again {
        Again { count, from: vec![None; incarnations] }
    }

    #[test]
    fn the_third_crash_at_one_place_is_too_many() {
        let mut c = Crashes::default();
        assert_eq!(c.note(Some(libc::SIGSEGV), mark(5, 10), None), None);
        assert_eq!(c.note(Some(libc::SIGSEGV), mark(5, 10), None), None);
        assert_eq!(c.note(Some(libc::SIGSEGV), mark(5, 10), None), Some(again(3, 3)));
    }

    #[test]
    fn progress_of_any_kind_forgives() {
        let mut c = Crashes::default();
        for i in 0..20 {
            let m = match i % 2 {
                0 => mark(i, 3),
                _ => mark(0, 3 + i),
            };
            assert_eq!(c.note(Some(libc::SIGSEGV), m, None), None);
        }
        c.note(Some(libc::SIGSEGV), mark(0, 0), None);
        c.imaged(18);
        assert_eq!(c.note(Some(libc::SIGSEGV), mark(0, 0), None), None);
    }

    #[test]
    fn images_of_what_is_done_again_are_no_progress() {
        let mut c = Crashes::default();
        let mut crash = || {
            let again = c.note(Some(libc::SIGSEGV), mark(5, 10), None);
            c.imaged(3);
            c.imaged(4);
            again
        };
        assert_eq!((crash(), crash(), crash()), (None, None, Some(again(3, 3))));
    }

    #[test]
    fn kills_from_outside_have_a_generous_bound() {
        let mut c = Crashes::default();
        for _ in 0..49 {
            assert_eq!(c.note(Some(libc::SIGKILL), mark(0, 0), None), None);
            assert_eq!(c.note(None, mark(0, 0), None), None);
        }
        assert_eq!(c.note(Some(libc::SIGKILL), mark(0, 0), None), Some(again(50, 0)));
    }

    #[test]
    fn the_program_is_at_fault_only_where_it_died_without_a_restore() {
        let said = |signal: i32, incarnations: [Option<ImageId>; 3]| {
            let mut c = Crashes::default();
            let notes = incarnations.map(|from| c.note(Some(signal), mark(5, 10), from));
            notes[2].as_ref().unwrap().in_words(signal)
        };
        let fault = "the program itself is at fault";
        for incarnations in [[None; 3], [None, Some(ImageId(7)), Some(ImageId(7))]] {
            assert!(said(libc::SIGSEGV, incarnations).ends_with(fault));
            assert!(said(libc::SIGABRT, incarnations).ends_with(fault));
            assert!(!said(libc::SIGBUS, incarnations).contains(fault));
        }
        let words = said(libc::SIGSEGV, [Some(ImageId(7)); 3]);
        assert_eq!(
            words,
            "for the 3rd time at the same place, each time it was re-executed from image 7"
        );
        let words = said(libc::SIGSEGV, [Some(ImageId(7)), Some(ImageId(7)), Some(ImageId(6))]);
        assert!(words.ends_with("each time it was re-executed from an image"), "{words}");
    }
}
