//! The process that writes an image while its rank computes on. It is a child of the agent, which
//! learns its number from the rank. Its end must not be lost: it may end before the rank has sent
//! its number.

/// What is known of the writer.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Writer {
    pid: Option<u32>,
    /// The signal that killed it, if one did.
    killed: Option<i32>,
    /// Children that were killed before the rank named the writer: one of them may be it.
    killed_before: Vec<(u32, i32)>,
}

impl Writer {
    /// The rank has sent its number; 0: the rank writes the image itself.
    pub fn named(&mut self, pid: u32) {
        self.pid = Some(pid).filter(|pid| *pid > 0);
        let before = std::mem::take(&mut self.killed_before);
        self.killed = before.iter().find(|(of, _)| Some(*of) == self.pid).map(|(_, by)| *by);
    }

    /// A child was killed by a signal.
    pub fn child_killed(&mut self, pid: u32, signal: i32) {
        match self.pid {
            Some(known) if known == pid => self.killed = Some(signal),
            Some(_) => {}
            None => self.killed_before.push((pid, signal)),
        }
    }

    pub fn pid(&self) -> Option<u32> {
        self.pid
    }

    pub fn killed(&self) -> Option<i32> {
        self.killed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_end_is_known_whether_it_is_named_before_or_after() {
        let mut after = Writer::default();
        after.child_killed(7, 15);
        after.child_killed(8, 9);
        assert_eq!(after.killed(), None);
        after.named(8);
        assert_eq!((after.pid(), after.killed()), (Some(8), Some(9)));
        let mut before = Writer::default();
        before.named(8);
        before.child_killed(7, 15);
        assert_eq!(before.killed(), None);
        before.child_killed(8, 9);
        assert_eq!(before.killed(), Some(9));
    }

    #[test]
    fn a_rank_that_writes_its_image_itself_has_no_writer() {
        let mut writer = Writer::default();
        writer.child_killed(7, 9);
        writer.named(0);
        assert_eq!((writer.pid(), writer.killed()), (None, None));
    }
}
