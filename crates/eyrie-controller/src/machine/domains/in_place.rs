//! The memory of ranks of another domain is put in place on the nodes that they are to come to,
//! image after image, while they compute or stand still: what remains to be done when they have
//! come is little. Nothing of this is needed: a rank whose memory could not be put in place is
//! restored from its image. It must never have two images of a rank put in place at the same time.

use crate::machine::timeouts::restore_timeout;
use eyrie_wire::{ImageId, NodeId, Rank, RankInstance};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// What waits on a node for a rank to come.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Waiting {
    pub node: NodeId,
    /// As which incarnation it comes.
    pub instance: RankInstance,
    /// The image that is on its way there, and until when it is waited for.
    sent: Option<(ImageId, Duration)>,
}

/// What waits for which rank.
#[derive(Default, Debug, Serialize, Deserialize)]
pub struct InPlace {
    of: BTreeMap<Rank, Waiting>,
}

impl InPlace {
    /// An image of so many bytes is to go to where the rank is to come as this incarnation. False
    /// when an image of it is on its way.
    pub fn send(
        &mut self,
        (node, instance): (NodeId, RankInstance),
        image: ImageId,
        bytes: u64,
        now: Duration,
    ) -> bool {
        if self.of.get(&instance.rank).is_some_and(|waiting| waiting.sent.is_some()) {
            return false;
        }
        let sent = Some((image, now + restore_timeout(bytes)));
        self.of.insert(instance.rank, Waiting { node, instance, sent });
        true
    }

    /// What waits for the rank.
    pub fn get(&self, rank: Rank) -> Option<&Waiting> {
        self.of.get(&rank)
    }

    /// An image is in place there, or could not be put there. False when it was not expected.
    pub fn arrive(&mut self, node: NodeId, instance: RankInstance, image: ImageId) -> bool {
        let waiting = self.of.get_mut(&instance.rank);
        let is_it = |waiting: &&mut Waiting| {
            (waiting.node, waiting.instance) == (node, instance)
                && waiting.sent.is_some_and(|(sent, _)| sent == image)
        };
        waiting.filter(is_it).map(|waiting| waiting.sent = None).is_some()
    }

    /// What waits on a node that is lost is lost. The images that were on their way there.
    pub fn lose_node(&mut self, node: NodeId) -> Vec<(Rank, ImageId)> {
        self.drop_if(|waiting| waiting.node == node)
            .into_iter()
            .filter_map(|waiting| Some((waiting.instance.rank, waiting.sent?.0)))
            .collect()
    }

    /// What takes too long is not waited for. The images, and where they were to go.
    pub fn drop_late(&mut self, now: Duration) -> Vec<(Waiting, ImageId)> {
        self.drop_if(|waiting| waiting.sent.is_some_and(|(_, until)| until <= now))
            .into_iter()
            .filter_map(|waiting| Some((waiting, waiting.sent?.0)))
            .collect()
    }

    fn drop_if(&mut self, is_to_go: impl Fn(&Waiting) -> bool) -> Vec<Waiting> {
        let all = std::mem::take(&mut self.of).into_iter();
        let (gone, kept): (Vec<_>, Vec<_>) = all.partition(|(_, waiting)| is_to_go(waiting));
        self.of = kept.into_iter().collect();
        gone.into_iter().map(|(_, waiting)| waiting).collect()
    }

    /// All that waits.
    pub fn all(&self) -> impl Iterator<Item = &Waiting> {
        self.of.values()
    }

    /// When something is waited for no longer.
    pub fn next(&self) -> Option<Duration> {
        self.all().filter_map(|waiting| Some(waiting.sent?.1)).min()
    }

    /// The controller itself stood still for so long.
    pub fn extend(&mut self, gap: Duration) {
        for (_, until) in self.of.values_mut().filter_map(|waiting| waiting.sent.as_mut()) {
            *until += gap;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::timeouts::{RESTORE_TIMEOUT, SLOWEST_TRANSFER};
    use eyrie_wire::Incarnation;

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn instance(rank: u32) -> RankInstance {
        RankInstance { rank: Rank(rank), incarnation: Incarnation(2) }
    }

    /// One image of rank 4 on its way to node 1.
    fn sent() -> InPlace {
        let mut in_place = InPlace::default();
        assert!(in_place.send((NodeId(1), instance(4)), ImageId(7), SLOWEST_TRANSFER, s(1)));
        in_place
    }

    #[test]
    fn one_image_of_a_rank_is_on_its_way_at_a_time() {
        let mut in_place = sent();
        assert!(!in_place.send((NodeId(1), instance(4)), ImageId(8), 0, s(2)));
        assert!(!in_place.arrive(NodeId(0), instance(4), ImageId(7)), "another node");
        assert!(!in_place.arrive(NodeId(1), instance(4), ImageId(8)), "another image");
        assert!(in_place.arrive(NodeId(1), instance(4), ImageId(7)));
        assert!(!in_place.arrive(NodeId(1), instance(4), ImageId(7)), "said twice");
        assert!(in_place.send((NodeId(1), instance(4)), ImageId(8), 0, s(2)));
        assert!(in_place.send((NodeId(1), instance(5)), ImageId(1), 0, s(2)), "of another rank");
        assert_eq!(in_place.all().count(), 2);
    }

    #[test]
    fn what_takes_too_long_or_goes_to_a_lost_node_is_not_waited_for() {
        let mut in_place = sent();
        let until = s(2) + RESTORE_TIMEOUT;
        assert_eq!(in_place.next(), Some(until));
        in_place.extend(s(3));
        assert!(in_place.drop_late(until).is_empty());
        let dropped = in_place.drop_late(until + s(3));
        assert_eq!((dropped.len(), dropped[0].1, in_place.next()), (1, ImageId(7), None));
        let mut in_place = sent();
        in_place.send((NodeId(2), instance(5)), ImageId(1), 0, s(1));
        assert_eq!(in_place.lose_node(NodeId(1)), [(Rank(4), ImageId(7))]);
        assert!(in_place.get(Rank(4)).is_none() && in_place.get(Rank(5)).is_some());
        assert!(in_place.arrive(NodeId(2), instance(5), ImageId(1)));
        assert!(in_place.lose_node(NodeId(2)).is_empty(), "it was in place already");
        assert!(in_place.all().next().is_none());
    }
}
