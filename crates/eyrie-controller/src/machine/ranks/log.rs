//! What is known of the log of one rank: whether a router holds all that the rank needs to come
//! back. Decides nothing.

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The log of a rank.
#[derive(Clone, Default, Debug, Serialize, Deserialize)]
pub struct RankLog {
    /// Its router is lost, and the new one does not know the rank yet.
    is_lost: bool,
    /// It has a hole until an image is asked for after this moment.
    hole: Option<Duration>,
    /// Messages to the rank are at its router alone.
    is_only_copy: bool,
    /// It no longer reaches back to the program's start.
    is_truncated: bool,
    /// The rank stands still, on its way from one domain to another: its image has all that it ever
    /// received.
    is_in_image: bool,
}

impl RankLog {
    /// It is lost with its router. An image that was asked for before does not help any more.
    /// Returns whether messages are lost that no rank has.
    pub fn lose(&mut self) -> bool {
        let lost_messages = std::mem::take(&mut self.is_only_copy);
        (self.is_lost, self.hole) = (true, None);
        lost_messages
    }

    /// A new router goes on with it at `now`: it has a hole until then. False: it was not lost.
    pub fn adopt(&mut self, now: Duration) -> bool {
        let was_lost = std::mem::take(&mut self.is_lost);
        if was_lost {
            self.hole = Some(now);
        }
        was_lost
    }

    /// It has a hole from `now` on. Returns whether it had none.
    pub fn break_off(&mut self, now: Duration) -> bool {
        self.hole.replace(now).is_none()
    }

    /// An image counts that was asked for then. Returns whether that ends a hole: nothing older is
    /// of use.
    pub fn heal(&mut self, asked: Duration) -> bool {
        self.hole.take_if(|since| *since <= asked).is_some()
    }

    /// What is before an image is removed.
    pub fn truncate(&mut self) {
        self.is_truncated = true;
    }

    /// The rank stands still, and its image has all that it ever received.
    pub fn stand_still(&mut self) {
        self.is_in_image = true;
    }

    /// The rank goes on: what it receives from now on is in no image.
    pub fn go_on(&mut self) {
        self.is_in_image = false;
    }

    /// Whether the rank needs nothing of what its router holds: not either what its senders do not
    /// keep.
    pub fn is_needless(&self) -> bool {
        self.is_in_image && !self.is_only_copy
    }

    /// Messages to the rank are at its router alone, or are so no longer.
    pub fn set_only_copy(&mut self, is_only_copy: bool) {
        self.is_only_copy = is_only_copy;
    }

    pub fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// Whether it has a hole that only an image ends.
    pub fn has_hole(&self) -> bool {
        self.hole.is_some()
    }

    /// Whether the rank can come back by it from its newest image.
    pub fn is_whole(&self) -> bool {
        !self.is_lost && self.hole.is_none()
    }

    /// Whether its router alone has messages to the rank.
    pub fn is_only_copy(&self) -> bool {
        self.is_only_copy
    }

    /// Whether it no longer reaches back to the program's start.
    pub fn is_truncated(&self) -> bool {
        self.is_truncated
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_log_is_whole_again_by_an_image_that_was_asked_for_after_its_adoption() {
        let s = Duration::from_secs;
        let mut log = RankLog::default();
        assert!(log.is_whole() && !log.adopt(s(1)));
        log.set_only_copy(true);
        assert!(log.lose(), "messages were there alone");
        assert!(!log.lose() && log.is_lost() && !log.heal(s(9)), "no image helps before adoption");
        assert!(log.adopt(s(10)) && !log.is_whole() && !log.is_lost());
        assert!(!log.heal(s(9)), "it was asked for before");
        assert!(log.heal(s(10)) && log.is_whole());
        log.stand_still();
        assert!(log.is_needless() && log.is_whole());
        log.set_only_copy(true);
        assert!(!log.is_needless(), "its senders do not keep them");
        log.set_only_copy(false);
        log.go_on();
        assert!(!log.is_needless());
        assert!(log.break_off(s(11)) && !log.break_off(s(12)) && !log.heal(s(11)));
        assert!(log.heal(s(12)) && log.is_whole());
    }
}
