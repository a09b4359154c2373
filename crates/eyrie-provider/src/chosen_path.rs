//! The way that this job's messages take, as its directory says: through routers, or straight
//! through ledgers. It must never change while the job runs.

use crate::core::error::RankError;
use crate::core::ledger_path::LedgerPath;
use crate::core::path::{Found, Path, Show, Turn};
use crate::core::router_path::RouterPath;
use crate::sockets::Sockets;
use eyrie_wire::data::Envelope;
use eyrie_wire::directory::MessagePath;
use eyrie_wire::Rank;
use std::time::Duration;

/// The way of this rank's messages. A process has one, so its size does not matter: each call would
/// follow a pointer if the larger kind were boxed.
#[allow(clippy::large_enum_variant)]
pub enum ChosenPath {
    Router(RouterPath<Sockets>),
    Direct(LedgerPath<Sockets>),
}

impl ChosenPath {
    /// Of rank `number` of `ranks`.
    pub fn new(host: Sockets, number: Rank, ranks: u32) -> ChosenPath {
        match host.identity.directory.path {
            MessagePath::Router => ChosenPath::Router(RouterPath::new(host, number, ranks)),
            MessagePath::Direct => ChosenPath::Direct(LedgerPath::new(host, number, ranks)),
        }
    }
}

/// Hands a call on to the way that was chosen.
macro_rules! chosen {
    ($self:ident, $path:ident => $call:expr) => {
        match $self {
            ChosenPath::Router($path) => $call,
            ChosenPath::Direct($path) => $call,
        }
    };
}

impl Path for ChosenPath {
    type World = Sockets;

    #[inline]
    fn world(&self) -> &Sockets {
        chosen!(self, path => path.world())
    }

    #[inline]
    fn world_mut(&mut self) -> &mut Sockets {
        chosen!(self, path => path.world_mut())
    }

    #[inline]
    fn number(&self) -> Rank {
        chosen!(self, path => path.number())
    }

    #[inline]
    fn clock(&self) -> u64 {
        chosen!(self, path => path.clock())
    }

    #[inline]
    fn rsn(&self) -> u64 {
        chosen!(self, path => path.rsn())
    }

    fn attach(&mut self) -> Result<(), RankError> {
        chosen!(self, path => path.attach())
    }

    #[inline]
    fn send(&mut self, to: Rank, envelope: Envelope, content: &[u8]) -> Result<(), RankError> {
        chosen!(self, path => path.send(to, envelope, content))
    }

    #[inline]
    fn tick(&mut self) -> Result<Turn, RankError> {
        chosen!(self, path => path.tick())
    }

    #[inline]
    fn show_new(&mut self, sleep: bool, show: &mut impl Show) -> Result<Found, RankError> {
        chosen!(self, path => path.show_new(sleep, show))
    }

    fn show_again(&mut self, show: &mut impl Show) -> Result<(), RankError> {
        chosen!(self, path => path.show_again(show))
    }

    #[inline]
    fn look_after(&mut self, found: Found, ticks: u64) -> Result<(), RankError> {
        chosen!(self, path => path.look_after(found, ticks))
    }

    #[inline]
    fn end_progress(&mut self) {
        chosen!(self, path => path.end_progress());
    }

    fn flush(&mut self) -> Result<(), RankError> {
        chosen!(self, path => path.flush())
    }

    fn store_observed(&mut self) -> Result<(), RankError> {
        chosen!(self, path => path.store_observed())
    }

    fn settle(&mut self, timeout: Duration) -> Result<(), &'static str> {
        chosen!(self, path => path.settle(timeout))
    }

    fn descriptors(&self) -> impl Iterator<Item = i32> + '_ {
        let (router, direct) = match self {
            ChosenPath::Router(path) => (Some(path.descriptors()), None),
            ChosenPath::Direct(path) => (None, Some(path.descriptors())),
        };
        router.into_iter().flatten().chain(direct.into_iter().flatten())
    }

    fn forget_connections(&mut self) {
        chosen!(self, path => path.forget_connections());
    }

    fn reconnect(&mut self) -> Result<(), RankError> {
        chosen!(self, path => path.reconnect())
    }
}
