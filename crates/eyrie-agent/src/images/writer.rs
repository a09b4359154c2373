//! The process that writes an image while its rank computes on. It is a child of the agent, which
//! learns its number from the rank. Its end must not be lost: it may end before the rank has sent
//! its number.

use eyrie_image_format::writer_exit;

/// An end of a writer that says why there is no image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// This signal killed it.
    Killed(i32),
    /// The rank has kept memory from it. The next image does without such trust.
    LacksMemory,
}

impl Failure {
    /// What the end of a child says, by a signal or with an exit code.
    pub fn of(signal: Option<i32>, code: Option<i32>) -> Option<Failure> {
        match (signal, code) {
            (Some(signal), _) => Some(Failure::Killed(signal)),
            (_, Some(writer_exit::TRY_AGAIN)) => Some(Failure::LacksMemory),
            _ => None,
        }
    }
}

/// What is known of the writer.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Writer {
    pid: Option<u32>,
    failure: Option<Failure>,
    /// Children that failed before the rank named the writer: one of them may be it.
    failed_before: Vec<(u32, Failure)>,
}

impl Writer {
    /// The rank has sent its number; 0: the rank writes the image itself.
    pub fn named(&mut self, pid: u32) {
        self.pid = Some(pid).filter(|pid| *pid > 0);
        let before = std::mem::take(&mut self.failed_before);
        self.failure = before.iter().find(|(of, _)| Some(*of) == self.pid).map(|(_, how)| *how);
    }

    /// A child has ended in a way that makes no image.
    pub fn child_failed(&mut self, pid: u32, how: Failure) {
        match self.pid {
            Some(known) if known == pid => self.failure = Some(how),
            Some(_) => {}
            None => self.failed_before.push((pid, how)),
        }
    }

    pub fn pid(&self) -> Option<u32> {
        self.pid
    }

    pub fn failure(&self) -> Option<Failure> {
        self.failure
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_end_is_known_whether_it_is_named_before_or_after() {
        let mut after = Writer::default();
        after.child_failed(7, Failure::Killed(15));
        after.child_failed(8, Failure::LacksMemory);
        assert_eq!(after.failure(), None);
        after.named(8);
        assert_eq!((after.pid(), after.failure()), (Some(8), Some(Failure::LacksMemory)));
        let mut before = Writer::default();
        before.named(8);
        before.child_failed(7, Failure::Killed(15));
        assert_eq!(before.failure(), None);
        before.child_failed(8, Failure::Killed(9));
        assert_eq!(before.failure(), Some(Failure::Killed(9)));
    }

    #[test]
    fn a_rank_that_writes_its_image_itself_has_no_writer() {
        let mut writer = Writer::default();
        writer.child_failed(7, Failure::Killed(9));
        writer.named(0);
        assert_eq!((writer.pid(), writer.failure()), (None, None));
    }

    #[test]
    fn only_some_ends_say_why_there_is_no_image() {
        assert_eq!(Failure::of(Some(9), None), Some(Failure::Killed(9)));
        assert_eq!(Failure::of(None, Some(writer_exit::TRY_AGAIN)), Some(Failure::LacksMemory));
        assert_eq!(Failure::of(None, Some(writer_exit::DONE)), None);
    }
}
