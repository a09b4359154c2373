//! Ends the present incarnation of a rank. It must never leave an image under way that could count
//! for a later one.

use crate::machine::images::overdue::Overdue;
use crate::machine::images::schedule::Schedule;
use crate::machine::images::stores::discard;
use crate::machine::io::{Command, ToPeer};
use crate::machine::outbox::Outbox;
use crate::machine::ranks::capture::Capture;
use crate::machine::ranks::incarnation::Fence;
use crate::machine::ranks::phases::Death;
use crate::machine::ranks::Ranks;
use crate::record::Record;
use eyrie_router::RouterCommand;
use eyrie_store::role::StoreCommand;
use eyrie_wire::control::ToAgent;
use eyrie_wire::{Rank, RankInstance, RouterId};
use std::time::Duration;

/// What ends with an incarnation.
pub struct Stop<'a> {
    /// Those that are to refuse older incarnations.
    pub routers: Vec<RouterId>,
    pub out: &'a mut Outbox,
    pub ranks: &'a mut Ranks,
    pub schedule: &'a mut Schedule,
    pub overdue: &'a mut Overdue,
}

/// What a handler that has these components borrows to end an incarnation.
macro_rules! stop_of {
    ($handler:expr) => {
        $crate::machine::recovery::stop::Stop {
            routers: $handler.roles.that_fence($handler.config),
            out: &mut *$handler.out,
            ranks: &mut *$handler.ranks,
            schedule: &mut *$handler.schedule,
            overdue: &mut *$handler.overdue,
        }
    };
}

pub(in crate::machine) use stop_of;

impl Stop<'_> {
    /// The present incarnation of the rank ends. Returns the one that ended, with the capture that
    /// was under way; `None` when it had ended.
    pub fn replace(
        &mut self,
        rank: Rank,
        death: Death,
        unheard: Option<Duration>,
    ) -> Option<(RankInstance, Option<Capture>)> {
        let now = self.out.now();
        let fence = Fence::new(self.routers.iter().copied(), now);
        let replaced = self.ranks[rank].end_incarnation(now, death, unheard, fence)?;
        self.overdue.forget(rank);
        Some(replaced)
    }

    /// An image that was under way does not count: its rank is there no more.
    pub fn drop_capture(&mut self, rank: Rank, capture: Option<Capture>, cause: &str) {
        let Some(capture) = capture else { return };
        let image = capture.image();
        self.schedule.ended(rank, self.out.now(), None);
        discard(self.out, rank, image, capture.copies());
        let cause = cause.into();
        self.out.record(Record::CheckpointFailed { rank, image, cause, passing: true });
    }

    /// All routers are to refuse older incarnations of the rank than the present one.
    pub fn fence(&mut self, rank: Rank) {
        let instance = self.ranks[rank].instance();
        // Stores refuse images of older incarnations as well.
        self.out.push(Command::Send(ToPeer::Stores(StoreCommand::Present(instance))));
        self.out.push(Command::Send(ToPeer::Routers(RouterCommand::Fence(instance))));
    }

    /// The rank is stopped as if it had died: no older incarnation of it speaks any more. Nothing
    /// happens while it is being fenced.
    pub fn stop(&mut self, rank: Rank) {
        let node = self.ranks[rank].node();
        let Some((instance, capture)) = self.replace(rank, Death::Stopped, None) else { return };
        self.out.send_agent(node, ToAgent::Kill(instance));
        self.drop_capture(rank, capture, "the rank was stopped meanwhile");
        self.fence(rank);
    }
}
