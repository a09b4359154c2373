//! The way through routers: the rank's primary router orders its messages and keeps them, each
//! message goes to the primary router of its receiver. It must never let a message be seen outside
//! a progress call, nor let anything out before the determinants it depends on. It waits here and
//! nowhere below, with bounds; what it cannot go on after is an error.
//!
//! Each file calls only those before it: [`connecting`], [`sending`], [`progress`].

mod connecting;
mod delivery;
pub mod host;
mod progress;
mod replay;
mod send_stream;
mod sending;
#[cfg(test)]
mod tests;

use self::delivery::Delivery;
use self::host::Host;
use self::replay::Replay;
use self::send_stream::{Sender, Unstored};
use super::again::Again;
use super::error::RankError;
use super::path::{Found, Path, Show, Turn};
use eyrie_wire::data::{Determinant, Envelope};
use eyrie_wire::directory::KeptUntil;
use eyrie_wire::traffic::Sent;
use eyrie_wire::{Rank, RouterId};
use std::io::{self, ErrorKind};
use std::time::Duration;

/// The way of one rank's messages through routers.
pub struct RouterPath<H: Host> {
    pub host: H,
    number: Rank,
    replay: Replay,
    /// What the progress call under way shows again: up to which message, and whether nothing is to
    /// be replayed behind it.
    due: (u64, bool),
    delivery: Delivery<H>,
    senders: Vec<Sender<H>>,
    unstored: Unstored,
    again: Again,
    /// Until when messages are kept by those who send them: until they are received, where routers
    /// may be lost and replaced.
    kept_until: KeptUntil,
    /// What this incarnation is to follow is known.
    followed: bool,
    /// The last clock of which it is known what was visible, while a progress call is under way.
    seen: Determinant,
    /// What was sent to each rank.
    sent: Vec<Sent>,
    /// A progress call is under way.
    progressing: bool,
    /// When the send streams were last looked after.
    last_look: u64,
}

impl<H: Host> RouterPath<H> {
    /// Of rank `number` of `ranks`, without any connection.
    pub fn new(host: H, number: Rank, ranks: u32) -> RouterPath<H> {
        let primary = host.primary_router(number);
        let kept_until = host.kept_until();
        let sender = |k| Sender::new(ranks, kept_until, RouterId(k) == primary);
        let sources = match kept_until {
            KeptUntil::Logged => 0,
            KeptUntil::Received => ranks,
        };
        RouterPath {
            number,
            replay: Replay::default(),
            due: (0, false),
            delivery: Delivery::new(sources),
            senders: (0..host.routers()).map(sender).collect(),
            unstored: Unstored::default(),
            again: Again::default(),
            kept_until,
            followed: false,
            seen: Determinant { clock: 0, rsn: 0 },
            sent: vec![Sent::default(); ranks as usize],
            progressing: false,
            last_look: 0,
            host,
        }
    }
}

impl<H: Host> Path for RouterPath<H> {
    type World = H;

    fn world(&self) -> &H {
        &self.host
    }

    fn world_mut(&mut self) -> &mut H {
        &mut self.host
    }

    fn number(&self) -> Rank {
        self.number
    }

    fn clock(&self) -> u64 {
        self.replay.clock()
    }

    fn rsn(&self) -> u64 {
        self.delivery.rsn()
    }

    fn attach(&mut self) -> Result<(), RankError> {
        self.connect()
    }

    fn send(&mut self, to: Rank, envelope: Envelope, content: &[u8]) -> Result<(), RankError> {
        self.send_message(to, envelope, content)
    }

    fn tick(&mut self) -> Result<Turn, RankError> {
        self.progressing = true;
        self.begin_progress()
    }

    fn show_new(&mut self, sleep: bool, show: &mut impl Show) -> Result<Found, RankError> {
        self.show_arrived(sleep, show)
    }

    fn show_again(&mut self, show: &mut impl Show) -> Result<(), RankError> {
        self.show_due(show)
    }

    fn look_after(&mut self, found: Found, ticks: u64) -> Result<(), RankError> {
        self.look_after_streams(found, ticks)
    }

    fn end_progress(&mut self) {
        self.progressing = false;
    }

    fn flush(&mut self) -> Result<(), RankError> {
        self.await_acknowledgements()
    }

    fn store_observed(&mut self) -> Result<(), RankError> {
        self.store_what_was_observed()
    }

    fn settle(&mut self, timeout: Duration) -> Result<(), &'static str> {
        let settled = self.settle_payloads(timeout);
        settled.then_some(()).ok_or("what it has sent is still on its way to a router")
    }

    fn descriptors(&self) -> impl Iterator<Item = i32> + '_ {
        self.delivery.descriptors().chain(self.senders.iter().flat_map(Sender::descriptors))
    }

    fn forget_connections(&mut self) {
        self.followed = false;
        self.delivery.disconnect();
        self.senders.iter_mut().for_each(Sender::disconnect);
    }

    fn reconnect(&mut self) -> Result<(), RankError> {
        self.connect()?;
        self.look_after_senders()
    }
}

/// A refusal by a router is final.
fn refused(e: &io::Error) -> Result<(), RankError> {
    match e.kind() {
        ErrorKind::ConnectionRefused if e.get_ref().is_some() => {
            Err(RankError::Refused(e.to_string()))
        }
        _ => Ok(()),
    }
}

/// What an image of this rank would hold, to be continued with another host: for tests.
#[cfg(test)]
impl<H: Host> RouterPath<H> {
    pub fn follows(&self) -> bool {
        !self.replay.is_over()
    }

    pub fn image(&self) -> impl Fn(H) -> RouterPath<H> {
        let number = self.number;
        let replay = self.replay.clone();
        let delivery = self.delivery.clone();
        let senders = self.senders.clone();
        let unstored = self.unstored.clone();
        let sent = self.sent.clone();
        let kept_until = self.kept_until;
        move |host| RouterPath {
            host,
            number,
            replay: replay.clone(),
            due: (0, false),
            delivery: delivery.clone(),
            senders: senders.clone(),
            unstored: unstored.clone(),
            again: Again::default(),
            kept_until,
            followed: false,
            seen: Determinant { clock: 0, rsn: 0 },
            sent: sent.clone(),
            progressing: false,
            last_look: 0,
        }
    }
}
