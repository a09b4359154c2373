//! Routers that are lost and replaced: a rank follows a new directory, and what its messages depend
//! on is safe before it can be lost together with the rank. Nothing here is done where routers are
//! as safe as the job.

use super::error::RankError;
use super::mutation::{active, Mutation};
use super::rank::{ImagePoint, RankCore, Want, MAX_UNSTORED};
use eyrie_wire::data::Determinant;
use eyrie_wire::page::What;

impl<H: ImagePoint> RankCore<H> {
    /// Leaves routers in whose place others listen by now, also those that are silently dead. Their
    /// successors hear at once what this rank had seen when it spoke with them last.
    pub(super) fn look_at_directory(&mut self) {
        for router in self.host.changed_routers() {
            if self.until_received && !active(Mutation::ForgetWhatWasSeen) {
                self.unstored.push_no_delivery(self.present());
            }
            let clock = self.replay.clock();
            self.host.trace(What::SendLost, clock, router, 0);
            self.senders[router as usize].replace();
            if router == self.host.home(self.number) && !self.is_replaying_alone() {
                self.host.trace(What::DeliveryLost, clock, router, 0);
                self.drop_delivery();
            }
        }
    }

    /// The delivery stream is lost. A rank that re-executes, and has read all that it needs for
    /// that, goes on without one until it is done: by then its router may be another one, which
    /// learns from it what it has.
    pub(super) fn drop_delivery(&mut self) {
        match self.can_replay_alone() && !self.delivery.is_alone() {
            true => self.delivery.go_on_alone(),
            false => self.delivery.disconnect(),
        }
    }

    /// Whether a rank that re-executes needs its home router no more.
    fn can_replay_alone(&self) -> bool {
        self.followed && !self.is_live() && self.delivery.holds_all()
    }

    /// Whether the rank re-executes from what it has read, without a delivery stream.
    pub(super) fn is_replaying_alone(&self) -> bool {
        self.delivery.is_alone() && !self.is_live()
    }

    /// Whether it can go on when its home router is lost: for tests.
    #[cfg(test)]
    pub fn can_lose_its_router(&self) -> bool {
        self.is_live() || self.can_replay_alone()
    }

    /// What has been visible up to now.
    fn present(&self) -> Determinant {
        if self.progressing {
            self.seen
        } else {
            self.now()
        }
    }

    /// Whether what a router knows of this rank may be lost together with it, and is to be found
    /// elsewhere. Where its home router is on its own host, nothing can help it.
    pub(super) fn dies_with(&self, k: usize) -> bool {
        let is_home = self.host.home(self.number) as usize == k;
        self.until_received && !is_home && self.host.is_beside(k as u32)
    }

    /// Waits until the home router holds what this rank has seen up to now: what it sends next may
    /// be lost together with it, and not with those who see it.
    pub(super) fn store_determinants(&mut self) -> Result<(), RankError> {
        if active(Mutation::DoNotStoreFirst) {
            return Ok(());
        }
        let present = self.present();
        self.unstored.push_no_delivery(present);
        self.cut_observed();
        let observed = self.unstored.observed();
        let home = self.host.home(self.number) as usize;
        while !self.unstored.are_stored(present.clock, observed) {
            self.ready_sender(home)?;
            if !self.unstored.are_stored(present.clock, observed) {
                self.senders[home].offer_word(&self.unstored);
                self.await_sender(home, Want::Stored { clock: present.clock, observed })?;
            }
        }
        Ok(())
    }

    /// After messages were shown: the home router hears of it before it is too much, of what was
    /// received, and of the end of a re-execution.
    pub(super) fn keep_home_informed(&mut self) -> Result<(), RankError> {
        if self.unstored.len() >= MAX_UNSTORED && self.unstored.len() % MAX_UNSTORED == 0 {
            self.send_determinants()?;
        }
        self.tell_if_replayed();
        if self.delivery.owes_receipt() {
            if let Err(e) = self.delivery.tell_received() {
                self.lose_delivery(&e)?;
            }
        }
        Ok(())
    }
}
