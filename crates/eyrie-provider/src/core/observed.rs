//! What a rank observes besides messages: clocks, what became of calls that are not made twice.
//! [`super::host::Host`] records it as a stream of bytes that means nothing here. It must be with a
//! router before anything leaves the rank that may depend on it; a rank that re-executes is given
//! it back.

use super::again::behind;
use super::error::RankError;
use super::rank::{ImagePoint, RankCore, Want};
use eyrie_wire::data::ObservedPart;

/// Bytes that are sent by themselves when nothing else is; tests are short.
const MOST_WAITING: usize = if cfg!(test) { 8 } else { 16 << 10 };

impl<H: ImagePoint> RankCore<H> {
    /// What was observed until now goes before whatever is sent next.
    pub(super) fn cut_observed(&mut self) {
        let (clock, unstored) = (self.replay.clock(), &mut self.unstored);
        self.host.take_observed(&mut |from, bytes| {
            ObservedPart::cut(clock, from, bytes).for_each(|part| unstored.push_observed(part));
        });
    }

    /// Waits until the home router holds what was observed until now: what the program does next
    /// cannot be undone, and is seen by others than those that it sends messages to.
    ///
    /// # Errors
    /// When the router cannot be reached or does not answer.
    pub fn store_observed(&mut self) -> Result<(), RankError> {
        self.cut_observed();
        let observed = self.unstored.observed();
        let home = self.host.home(self.number) as usize;
        while !self.unstored.are_stored(0, observed) {
            self.ready_sender(home)?;
            if !self.unstored.are_stored(0, observed) {
                // Where messages are acknowledged when they were received, a flush waits for that.
                match self.until_received {
                    true => self.senders[home].offer_word(&self.unstored),
                    false => self.senders[home].offer_flush(&self.unstored),
                }
                self.await_sender(home, Want::Stored { clock: 0, observed })?;
            }
        }
        Ok(())
    }

    /// These are to be observed again.
    pub(super) fn observe_again(&mut self, parts: Vec<ObservedPart>) {
        let (bytes, again) = behind(self.host.observed(), parts);
        self.again = again;
        self.host.observe_again(bytes);
    }

    /// The clock has ticked: what was observed before has been observed again, or never will be.
    pub(super) fn end_observed(&mut self) {
        if let Some(end) = self.again.end_before(self.replay.clock()) {
            self.host.skip_observed(end);
        }
    }

    /// Sends what was observed when it has become much.
    pub(super) fn send_much_observed(&mut self) -> Result<(), RankError> {
        match self.host.observed_waiting() >= MOST_WAITING {
            true => self.send_determinants(),
            false => Ok(()),
        }
    }
}
