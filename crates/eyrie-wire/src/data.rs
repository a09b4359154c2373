//! Frames of the data path between a rank and a router.

/// One nondeterministic event of a rank: at this clock all messages up to this position had become
/// visible to matching.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Determinant {
    /// The rank's progress calls so far, this one included.
    pub clock: u64,
    /// Place of the last visible message in the total order of the rank's messages, from 1.
    pub position: u64,
}
