//! A rank whose memory is put in place where it is going while it computes, round by round. Decides
//! when more rounds do not help any more, and nothing else.

use eyrie_wire::{ImageId, NodeId, RankInstance};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Most rounds of a rank that is not slowed. With one that writes faster than its memory goes over
/// the last one is long.
const ROUNDS_MAX: u32 = 8;

/// A rank whose memory is put in place where it is going while it computes.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Live {
    /// Where it most likely goes, and as which incarnation.
    node: NodeId,
    instance: RankInstance,
    /// The image that is on its way there, and since when.
    sent: Option<(ImageId, Duration)>,
    /// Images that are in place.
    rounds: u32,
    /// When this round began; how long the last one has taken, and what it brought.
    begun: Duration,
    took: Duration,
    bytes: u64,
}

impl Live {
    /// Its first round begins.
    pub fn new(node: NodeId, instance: RankInstance, begun: Duration) -> Live {
        Live { node, instance, sent: None, rounds: 0, begun, took: Duration::ZERO, bytes: 0 }
    }

    /// Where it most likely goes.
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// As which incarnation it goes there.
    pub fn instance(&self) -> RankInstance {
        self.instance
    }

    /// The image that is on its way there, and since when.
    pub fn sent(&self) -> Option<(ImageId, Duration)> {
        self.sent
    }

    /// How many images are in place.
    pub fn rounds(&self) -> u32 {
        self.rounds
    }

    /// How long the last round has taken.
    pub fn took(&self) -> Duration {
        self.took
    }

    /// What the last round has brought, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether this image is on its way there.
    pub fn is_sending(&self, image: ImageId) -> bool {
        self.sent.is_some_and(|(sent, _)| sent == image)
    }

    /// An image is sent there; false when one is on its way.
    pub fn send(&mut self, image: ImageId, now: Duration) -> bool {
        let is_free = self.sent.is_none();
        if is_free {
            self.sent = Some((image, now));
        }
        is_free
    }

    /// A round is over that brought so many bytes. How long it has taken, and whether the next one
    /// should be the last. The first may have put an old image in place. A round that has not
    /// become a third shorter shows that more of them do not help.
    pub fn end_round(
        &mut self,
        now: Duration,
        bytes: u64,
        pause_budget: Duration,
    ) -> (Duration, bool) {
        let took = now.saturating_sub(self.begun);
        let shrinks = self.rounds < 2 || took * 3 <= self.took * 2;
        self.rounds += 1;
        self.sent = None;
        let enough = took <= pause_budget || !shrinks || self.rounds >= ROUNDS_MAX;
        (self.took, self.begun, self.bytes) = (took, now, bytes);
        (took, self.rounds >= 2 && enough)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use eyrie_wire::{Incarnation, Rank};

    #[test]
    fn a_rank_is_ready_when_a_round_is_short_or_does_not_shrink() {
        let ms = Duration::from_millis;
        let mut live = Live::new(
            NodeId(9),
            RankInstance { rank: Rank(0), incarnation: Incarnation(2) },
            ms(0),
        );
        assert!(
            live.send(ImageId(1), ms(0))
                && !live.send(ImageId(2), ms(0))
                && live.is_sending(ImageId(1))
        );
        let mut is_ready_at = |at| live.end_round(ms(at), 7, ms(50)).1;
        assert!(!is_ready_at(10), "the first may have put an old image in place");
        assert!(!is_ready_at(1010));
        assert!(!is_ready_at(1310), "300 ms after 1000 ms");
        assert!(is_ready_at(1590), "280 ms after 300 ms");
        assert!(live.send(ImageId(2), ms(1600)), "a round that is over has room for the next");
        assert_eq!((live.rounds(), live.took(), live.bytes()), (4, ms(280), 7));
    }
}
