//! Determinants: the nondeterministic events of a rank, which are all that a replay needs besides
//! the messages.

/// Length of a determinant in bytes.
pub const DETERMINANT_LEN: usize = 16;

/// One nondeterministic event of a rank: at this clock all messages up to this receive sequence
/// number had become visible to matching. A determinant that repeats the number of the one before
/// is a *no-delivery determinant*: nothing more had become visible by this clock.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, serde::Serialize, serde::Deserialize,
)]
pub struct Determinant {
    /// The rank's progress calls so far, including this one.
    pub clock: u64,
    /// Receive sequence number: the position of the last visible message in the total order of the
    /// rank's messages, from 1.
    pub rsn: u64,
}

impl Determinant {
    /// The determinant as it is in a frame.
    pub fn encode(&self) -> [u8; DETERMINANT_LEN] {
        let mut out = [0; DETERMINANT_LEN];
        out[..8].copy_from_slice(&self.clock.to_le_bytes());
        out[8..].copy_from_slice(&self.rsn.to_le_bytes());
        out
    }

    /// The determinants in `bytes`, one after another (a rest that is too short is ignored).
    pub fn decode_all(bytes: &[u8]) -> impl Iterator<Item = Determinant> + '_ {
        bytes.chunks_exact(DETERMINANT_LEN).map(|c| {
            let mut r = super::bytes::Reader(c);
            Determinant { clock: r.u64(), rsn: r.u64() }
        })
    }
}
