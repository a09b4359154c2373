//! Completes the messages that handlers have sent: what is the same whichever handler sends one,
//! and what a handler would have to borrow for this alone. It decides nothing.

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
        // That of another domain is known to who sends it.
        if at.addr.is_some() {
            return;
        }
        let on_node = self.roles.addr(RoleKind::Store, at.store.0);
        at.addr = on_node.or_else(|| self.stores.addr(at.store)).cloned();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::{said, Config, Event};
    use eyrie_router::{RouterCommand, RouterEvent};
    use eyrie_wire::control::{Ending, FromAgent, MpiStage, RankReport};
    use eyrie_wire::data::{Determinant, ObservedPart};
    use eyrie_wire::role_address::Addr;
    use eyrie_wire::RankInstance;
    use eyrie_wire::{Incarnation, NodeId, Rank, RouterId, StoreId};
    use std::time::Duration;

    fn started(commands: &[Command]) -> StartRank {
        let start = commands.iter().find_map(|command| match said::to_agent(command) {
            Some((NodeId(0), ToAgent::Start(start))) => Some((**start).clone()),
            _ => None,
        });
        start.unwrap_or_else(|| panic!("no start: {commands:?}"))
    }

    #[test]
    fn a_message_leaves_the_machine_complete() {
        let mut machine = Machine::new(Config::of_one_rank());
        let mut tell = |event| machine.handle(Duration::ZERO, event);
        tell(said::store_up(StoreId(0)));
        let path = "/dev/shm/left".to_string();
        tell(said::agent(NodeId(0), FromAgent::Shared { rank: Rank(0), path: path.clone() }));
        tell(Event::Signal(10));
        let first = started(&tell(said::joined(NodeId(0))));
        assert!(first.stdin && first.image.is_none() && first.beginning.is_empty());
        assert_eq!((&first.leftovers[..], &first.signals[..]), (&[path][..], &[10][..]));
        let fetched = Duration::ZERO;
        let restored = Duration::ZERO;
        tell(said::rank(first.instance, RankReport::Started { fetched, restored }));
        tell(said::rank(first.instance, RankReport::ProviderLoaded));
        let asked = tell(Event::Checkpoint { request: 1, rank: None });
        let image = asked.iter().find_map(|command| match said::to_agent(command) {
            Some((_, ToAgent::Capture { image, .. })) => Some(image.clone()),
            _ => None,
        });
        assert_eq!(image.unwrap().store.addr, Some(Addr::Unix("/store-0".into())));
        // It dies without an image: what it has observed goes to its router and to its beginning.
        let ending = Ending::Signal(libc::SIGKILL);
        let stage = MpiStage::Within;
        tell(said::rank(first.instance, RankReport::Exited { ending, stage }));
        let instance = RankInstance { incarnation: Incarnation(2), ..first.instance };
        let determinants = vec![Determinant { clock: 3, rsn: 4 }];
        let observed = vec![ObservedPart { from: 0, clock: 1, bytes: b"seen".to_vec() }];
        let fenced = RouterEvent::Fenced {
            instance,
            determinants: determinants.clone(),
            observed: observed.clone(),
        };
        let told = tell(said::router(RouterId(0), fenced));
        let recover = RouterCommand::Recover { instance, determinants, observed };
        assert!(told.contains(&Command::Send(ToPeer::Router(RouterId(0), recover))), "{told:?}");
        let again = started(&told);
        assert_eq!((again.instance, &again.beginning[..]), (instance, &b"seen"[..]));
    }
}
