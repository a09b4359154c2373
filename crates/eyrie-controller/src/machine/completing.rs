//! Completes the messages that handlers have sent: what is the same whichever handler sends one, and
//! what a handler would have to borrow for this alone. It decides nothing.

use super::components::Machine;
use super::io::{Command, ToPeer};
use eyrie_store::role::StoreCommand;
use eyrie_wire::control::{RoleKind, StartRank, StoreAt, ToAgent};

impl Machine {
    pub(super) fn complete(&self, commands: &mut [Command]) {
        for command in commands {
            match command {
                Command::Send(ToPeer::Agent(
                    _,
                    ToAgent::Start(start) | ToAgent::Prepare(start),
                )) => self.complete_start(start),
                Command::Send(ToPeer::Agent(_, ToAgent::Capture { image, .. })) => {
                    self.find(&mut image.store)
                }
                Command::Send(ToPeer::Store(_, StoreCommand::Copy { from, .. })) => self.find(from),
                _ => {}
            }
        }
    }

    fn complete_start(&self, start: &mut StartRank) {
        let rank = start.instance.rank;
        match &mut start.image {
            Some(image) => self.find(&mut image.store),
            None => start.beginning = self.gathered.beginning(rank),
        }
        start.leftovers = self.leftovers.of(rank);
        start.signals = self.signals.all().to_vec();
    }

    /// Where the store listens.
    fn find(&self, at: &mut StoreAt) {
        let on_node = self.roles.addr(RoleKind::Store, at.store);
        at.addr = on_node.or_else(|| self.stores.addr(at.store)).cloned();
    }
}
