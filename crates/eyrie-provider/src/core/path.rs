//! The way that a rank's messages take: who orders them, where they are kept, and from where they
//! are replayed. Above it is [`super::rank`], which matches messages and applies one-sided requests
//! and knows no way. A path must never show a message outside a progress call, nor let anything out
//! before the determinants that it depends on. It waits with bounds.

use super::error::RankError;
use super::matching::{Content, Place};
use super::world::World;
use eyrie_wire::data::Envelope;
use eyrie_wire::Rank;
use std::time::Duration;

/// A process of which images are taken in the middle of calls.
pub trait ImagePoint: World {
    /// An image may be taken here, in a call that waits: the state of the rank bears being
    /// continued elsewhere.
    fn image_point(path: &mut impl Path<World = Self>);
}

/// What a progress call may show.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turn {
    /// Whatever has arrived ([`Path::show_new`]).
    New,
    /// Nothing: the rank re-executes, and at this clock nothing became visible before.
    Nothing,
    /// What became visible at this clock before ([`Path::show_again`]).
    Again,
}

/// What a call of [`Path::show_new`] has found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found {
    /// Something came, if no whole message.
    pub something: bool,
    /// Messages have become visible.
    pub messages: bool,
}

/// A message that becomes visible, without its content.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arrived {
    pub source: Rank,
    pub envelope: Envelope,
    /// Bytes of content.
    pub len: usize,
}

/// To whom messages become visible.
pub trait Show {
    /// A message becomes visible. False: no other one may until the progress call is over.
    ///
    /// # Errors
    /// When the content cannot be read.
    fn show(&mut self, arrived: &Arrived, content: &impl Content) -> Result<bool, RankError>;

    /// Where the content of this message will go when it becomes visible, if that is settled: it is
    /// the next one of its source.
    fn place_of(&self, arrived: &Arrived) -> Option<Place>;
}

/// The way that the messages of one rank take.
///
/// A progress call is [`Path::tick`], then what its [`Turn`] says, then [`Path::end_progress`].
pub trait Path {
    type World: World;

    fn world(&self) -> &Self::World;
    fn world_mut(&mut self) -> &mut Self::World;

    /// The rank's number.
    fn number(&self) -> Rank;

    /// Progress calls so far.
    fn clock(&self) -> u64;

    /// Receive sequence number of the last visible message.
    fn rsn(&self) -> u64;

    /// Connects the rank, so that others' messages are taken from the start.
    ///
    /// # Errors
    /// When it cannot be connected, or the determinants do not fit.
    fn attach(&mut self) -> Result<(), RankError>;

    /// Sends a message; returns when it is on its way and kept.
    ///
    /// # Errors
    /// When nothing takes it in time.
    fn send(&mut self, to: Rank, envelope: Envelope, content: &[u8]) -> Result<(), RankError>;

    /// A progress call begins: the clock ticks.
    ///
    /// # Errors
    /// As [`Path::attach`].
    fn tick(&mut self) -> Result<Turn, RankError>;

    /// Shows what has arrived. With `sleep` it waits shortly for something.
    ///
    /// # Errors
    /// When the rank is cut off, or what `show` returns.
    fn show_new(&mut self, sleep: bool, show: &mut impl Show) -> Result<Found, RankError>;

    /// Shows what was shown at this clock before; waits for it.
    ///
    /// # Errors
    /// As [`Path::show_new`], and when it does not come in time.
    fn show_again(&mut self, show: &mut impl Show) -> Result<(), RankError>;

    /// What is to be done now and then, in a progress call that has `found` something, or nothing,
    /// when [`World::ticks`] are so many.
    ///
    /// # Errors
    /// As [`Path::send`].
    fn look_after(&mut self, found: Found, ticks: u64) -> Result<(), RankError>;

    /// The progress call is over.
    fn end_progress(&mut self);

    /// Waits until everything sent is safe, as far as receivers receive it in time.
    ///
    /// # Errors
    /// As [`Path::send`].
    fn flush(&mut self) -> Result<(), RankError>;

    /// Waits until what the rank has observed is safe: what the program does next cannot be undone,
    /// and is seen by others than those that it sends messages to.
    ///
    /// # Errors
    /// As [`Path::send`].
    fn store_observed(&mut self) -> Result<(), RankError>;

    /// Waits, at most so long, until an image that is taken now would hold all that it needs.
    ///
    /// # Errors
    /// Why it would not, in words for users. Allocates nothing for that.
    fn settle(&mut self, timeout: Duration) -> Result<(), &'static str>;

    /// Descriptors that an image must not keep.
    fn descriptors(&self) -> impl Iterator<Item = i32> + '_;

    /// This process has come back from an image: all connections are gone.
    fn forget_connections(&mut self);

    /// A restored rank connects at once, because the program may compute for long before it asks
    /// for a message: until then it could not be imaged, and others may wait for what it has sent.
    ///
    /// # Errors
    /// As [`Path::attach`].
    fn reconnect(&mut self) -> Result<(), RankError>;
}
