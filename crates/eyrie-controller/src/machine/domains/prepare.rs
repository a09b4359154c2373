//! Has each image of a rank that is to come put in place on the rank's node, as soon as it is safe
//! in this domain, and answers the other domain when it is. Whatever fails here only makes the
//! coming back slower: it must never keep a rank from coming.

use super::arriving::Arrival;
use super::handover::HandingOver;
use super::in_place::Waiting;
use crate::machine::io::{start_rank, Source};
use crate::record::Record;
use eyrie_wire::control::ToAgent;
use eyrie_wire::{ImageId, NodeId, RankInstance};

impl HandingOver<'_> {
    /// An image of a rank that is to come is safe here.
    pub(super) fn image_safe(&mut self, instance: RankInstance, image: ImageId) {
        if !self.put_in_place(instance, image) {
            self.answer(instance.rank, image, Ok(()));
        }
    }

    /// Whether the image is on its way to the node of the rank now.
    fn put_in_place(&mut self, instance: RankInstance, image: ImageId) -> bool {
        let RankInstance { rank, incarnation } = instance;
        let comes = RankInstance { rank, incarnation: incarnation.next() };
        let now = self.out.now();
        let Some(arrival) = &mut self.handover.arrival else { return false };
        let Some(known) = arrival.get(instance, image) else { return false };
        let bytes = known.image.bytes;
        let Some(store) = known.copies.source(rank, None) else { return false };
        let Some(node) = arrival.node(rank).filter(|node| self.nodes.is_up(*node)) else {
            return false;
        };
        let before = arrival.in_place().get(rank).copied();
        if !arrival.in_place_mut().send((node, comes), image, bytes, now) {
            return false;
        }
        // Another incarnation than expected was still computing there.
        if let Some(other) = before.filter(|waiting| waiting.instance != comes) {
            self.unprepare(&other);
        }
        let start = start_rank(comes, Some(Source { image, store }));
        self.out.send_agent(node, ToAgent::Prepare(start));
        true
    }

    /// An image is in place on a node, or could not be put there. Whether that is one of a rank
    /// that is to come.
    pub fn prepared(
        &mut self,
        node: NodeId,
        instance: RankInstance,
        image: ImageId,
        result: &Result<u64, String>,
    ) -> bool {
        let Some(arrival) = &mut self.handover.arrival else { return false };
        if !arrival.in_place_mut().arrive(node, instance, image) {
            return false;
        }
        let rank = instance.rank;
        if let Err(cause) = result {
            self.out.record(Record::MoveNotPrepared { rank, node, cause: cause.clone() });
        }
        self.answer(rank, image, Ok(()));
        true
    }

    /// A node is lost, with what waits there for ranks.
    pub fn node_lost(&mut self, node: NodeId) {
        let arrival = self.handover.arrival.as_mut();
        let lost = arrival.map_or(Vec::new(), |arrival| arrival.in_place_mut().lose_node(node));
        for (rank, image) in lost {
            self.answer(rank, image, Ok(()));
        }
    }

    /// Gives up what takes too long to be put in place. A rank that was started there already has
    /// a bound of its own.
    pub(super) fn watch_in_place(&mut self) {
        let now = self.out.now();
        let arrival = self.handover.arrival.as_mut().filter(|arrival| !arrival.has_taken());
        let late = arrival.map_or(Vec::new(), |arrival| arrival.in_place_mut().drop_late(now));
        for (waiting, image) in late {
            self.unprepare(&waiting);
            let Waiting { node, instance, .. } = waiting;
            let cause = "it took too long".to_string();
            self.out.record(Record::MoveNotPrepared { rank: instance.rank, node, cause });
            self.answer(instance.rank, image, Ok(()));
        }
    }

    /// What still waits for a rank is needed no more: the rank does not come, or has come.
    pub(super) fn unprepare_all(&mut self, arrival: &Arrival) {
        for waiting in arrival.in_place().all() {
            self.unprepare(waiting);
        }
    }

    fn unprepare(&mut self, waiting: &Waiting) {
        if self.nodes.is_up(waiting.node) {
            self.out.send_agent(waiting.node, ToAgent::Unprepare(waiting.instance));
        }
    }
}
