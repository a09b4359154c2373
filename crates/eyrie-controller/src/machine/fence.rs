//! Fences: a rank comes back when every router has confirmed that only its new incarnation speaks.
//! A router that does not answer is a failure: nobody else has the log of its ranks.

use super::io::{Command, Mark};
use super::rank::{Fence, RankState};
use super::reactor::Machine;
use super::timeouts::FENCE_TIMEOUT;
use eyrie_transport::RouterId;
use eyrie_wire::{Rank, RankInstance};

impl Machine {
    /// A fence of all routers that is asked for now.
    pub(super) fn new_fence(&self) -> Fence {
        let waiting = (0..self.config.routers).collect();
        Fence { waiting, rsn: 0, since: self.now, until: self.now + FENCE_TIMEOUT }
    }

    /// A router lets only this incarnation speak. When all do, the rank can come back.
    pub(super) fn router_fenced(&mut self, router: RouterId, instance: RankInstance, rsn: u64) {
        let Some(r) = self.ranks.get_mut(instance.rank as usize) else { return };
        // It may have died again: only the newest fence counts.
        if r.instance() != instance {
            return;
        }
        let RankState::Lost { fence, .. } = &mut r.state else { return };
        if !fence.waiting.remove(&router) {
            return;
        }
        fence.rsn = fence.rsn.max(rsn);
        if fence.waiting.is_empty() {
            let mark = Mark { rsn: fence.rsn, output: self.output.total(instance.rank) };
            self.commands.push(Command::Recover(instance));
            self.fenced_for_saving(instance.rank);
            if !self.ranks_stay_fenced() {
                self.bring_back(instance, mark);
            }
        }
    }

    /// A router has not confirmed the fence of this rank in time.
    pub(super) fn router_is_late(&mut self, rank: Rank) {
        let r = &self.ranks[rank as usize];
        let RankState::Lost { fence, .. } = &r.state else { return };
        let Some(router) = fence.waiting.first() else { return };
        let waited = eyrie_units::time(self.now - fence.since);
        let text = format!(
            "router {router} has not answered for {waited}, since it was told to let only {} speak: the rank \
             cannot be recovered without the log of that router, and a router cannot be replaced",
            r.instance()
        );
        self.end(1, Some(text));
    }
}
