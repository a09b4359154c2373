//! What the core needs of the process around a rank, whatever way its messages take: what the rank
//! observes besides messages, its signals, time. The real one is `sockets.rs`; tests have one in
//! memory.

use super::asking::Asked;

/// The process around a rank.
pub trait World: Sized {
    /// The rank's observations since the last call: where they begin in its stream of observations,
    /// and the bytes.
    fn take_observed(&mut self, take: &mut dyn FnMut(u64, &[u8]));

    /// Bytes of that stream that were taken, or observed again.
    fn observed(&self) -> u64;

    /// Bytes that wait to be taken.
    fn observed_waiting(&self) -> usize;

    /// Tells the rank these bytes of its stream again, before it observes anything new.
    fn observe_again(&mut self, bytes: Vec<u8>);

    /// Bytes up to this one are not observed again any more.
    fn skip_observed(&mut self, to: u64);

    /// The signal that the program gets at the end of the progress call at this clock. `is_new`:
    /// there was no determinant to follow at this clock, nor behind it.
    fn signal(&mut self, clock: u64, is_new: bool) -> Option<i32>;

    /// What the rank does next it has never done before, as far as is known; cheap when it does not
    /// re-execute.
    fn before_new(&mut self);

    /// Time since some moment.
    fn now(&self) -> std::time::Duration;

    /// A count that goes up quickly and evenly, cheap to read.
    fn ticks(&self) -> u64;

    /// Processor time that the calling thread has used, in ns.
    fn processor_time_ns(&self) -> u64;

    /// The rank has asked for messages.
    fn asked(&mut self, asked: Asked);

    /// Keeps a record of what happens.
    fn trace(&mut self, what: eyrie_wire::page::What, clock: u64, peer: u32, number: u64);
}
