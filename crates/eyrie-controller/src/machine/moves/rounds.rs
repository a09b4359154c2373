//! A rank that is to move computes on while one image after the other is put in place where it is
//! going: each brings what was written since the one before, until the last one, for which it
//! stands still. Each of them is a checkpoint that counts, so that the rank is recovered as ever
//! when anything fails, and nothing of this must be needed for that.

use super::entry::{Move, Round};
use super::live::Live;
use super::mover::Mover;
use super::orders::{end_slowing, slow};
use crate::machine::io::start_rank;
use crate::machine::outbox::consequence::Consequence;
use crate::machine::placement::assign;
use crate::machine::state::MoveName;
use crate::machine::timeouts::restore_timeout;
use crate::record::Record;
use eyrie_interface::{IfSlow, Manner, Way};
use eyrie_units::time;
use eyrie_wire::control::ToAgent;
use eyrie_wire::{ImageId, NodeId, Rank, RankInstance};
use std::time::Duration;

/// How soon a rank that waits for others of its node has its next round, so that its last one stays
/// short.
const WAITING_ROUND: Duration = Duration::from_millis(500);

/// Why a rank stays that writes faster than its memory goes over.
fn too_slow(bytes: u64, took: Duration, pause_budget: Duration) -> String {
    let bytes = eyrie_units::bytes(bytes);
    let took = time(took);
    let budget = time(pause_budget);
    format!(
        "it writes faster than its memory goes over ({bytes} in {took}, --pause-budget is {budget}): \
         give a longer one, or --if-slow slow-down or accept"
    )
}

impl Mover<'_> {
    /// Asks for nodes for these ranks, which move by the same event. One that only its own node can
    /// take is asked for again when it comes back: another node may have joined by then.
    pub fn assign(&mut self, ranks: &[Rank]) {
        let mut assigned = assign(self.placement, self.destinations(), ranks);
        assigned.retain(|a| a.to != a.from);
        self.ranks.assign(assigned);
    }

    /// The rank is to move: what is stored of it goes ahead.
    pub fn begin_live(&mut self, rank: Rank) {
        if self.moves.get(rank).is_some_and(|moving| moving.manner().way == Way::Stop) {
            return self.schedule.want(rank, self.out.now());
        }
        if self.destinations().assigned_node(rank).is_none() {
            self.assign(&[rank]);
        }
        let r = &self.ranks[rank];
        let instance = RankInstance { rank, incarnation: r.incarnation().next() };
        let node = self.destinations().assigned_node(rank).map(|(node, _)| node);
        let now = self.out.now();
        if let Some(moving) = self.moves.get_mut(rank) {
            moving.begin(node.map(|node| Live::new(node, instance, now)), now);
        }
        end_slowing(self.moves, self.ranks, self.out, rank);
        self.send_image(rank);
    }

    /// The newest image of the rank is to be put in place. Where there is none, one is taken. While
    /// a node is declared dead, its stores are before the moves to it: those begin anew soon.
    pub fn send_image(&mut self, rank: Rank) {
        let now = self.out.now();
        let to = self.moves.get(rank).and_then(Move::live);
        if to.is_some_and(|live| !self.nodes[live.node()].is_up()) {
            return;
        }
        let newest = self.ranks[rank].images().newest();
        let from = newest.and_then(|kept| kept.source(rank, None));
        let live = self.moves.get_mut(rank).and_then(Move::live_mut);
        match (live, from) {
            (Some(live), _) if live.sent().is_some() => {}
            (Some(live), Some(from)) => {
                live.send(from.image, now);
                let node = live.node();
                let instance = live.instance();
                self.out.send_agent(node, ToAgent::Prepare(start_rank(instance, Some(from))));
            }
            _ => self.schedule.want(rank, now),
        }
    }

    /// An image is in place where the rank is going, or not: then the rank goes by its next image
    /// alone.
    pub fn prepared(
        &mut self,
        node: NodeId,
        instance: RankInstance,
        image: ImageId,
        result: Result<u64, String>,
    ) {
        let rank = instance.rank;
        let now = self.out.now();
        let Some(moving) = self.moves.get_mut(rank) else { return };
        let from = moving.from();
        let Manner { pause_budget, if_slow, .. } = moving.manner();
        let is_it = |live: &&Live| live.node() == node && live.instance() == instance;
        let Some(live) = moving.live().filter(is_it) else { return };
        match result {
            Ok(bytes) if live.is_sending(image) => {
                let Some(Round { n, took, is_too_slow }) = moving.end_round(now, bytes) else {
                    return;
                };
                self.out.record(Record::MoveRound { rank, node, image, round: n, bytes, took });
                match if_slow {
                    IfSlow::GiveUp if is_too_slow => {
                        let why = too_slow(bytes, took, pause_budget);
                        return self.out.follows(Consequence::MoveFails { rank, why });
                    }
                    IfSlow::SlowDown if is_too_slow => self.slow_down(rank),
                    _ => {}
                }
                self.next_round(rank, from);
            }
            Ok(_) => {}
            Err(cause) => {
                moving.go_alone();
                end_slowing(self.moves, self.ranks, self.out, rank);
                self.out.record(Record::MoveNotPrepared { rank, node, cause });
                self.next_round(rank, from);
                self.depart(from);
            }
        }
    }

    /// The next image of the rank: at once, unless it is ready and waits for others of its node.
    fn next_round(&mut self, rank: Rank, from: NodeId) {
        let now = self.out.now();
        let Some(moving) = self.moves.get(rank) else { return };
        match moving.name() {
            MoveName::Stopped => {}
            MoveName::Ready => {
                self.schedule.retry(rank, now + WAITING_ROUND);
                self.depart(from);
            }
            _ => self.schedule.want(rank, now),
        }
    }

    /// Lets those go for their last round that need not wait for others of their node any more.
    pub fn depart(&mut self, from: NodeId) {
        let now = self.out.now();
        let ranks = self.moves.depart(from, now);
        for rank in ranks {
            self.schedule.want(rank, now);
        }
    }

    /// The rank writes too fast: it is slowed one step more, and goes on with rounds; or it is as
    /// slow as it can be made, and goes as it is.
    fn slow_down(&mut self, rank: Rank) {
        // Its next process is not slowed.
        if self.ranks[rank].on_node().is_none() {
            return;
        }
        let Some(share) = self.moves.get_mut(rank).and_then(Move::slow_down) else { return };
        slow(self.ranks, self.out, rank, share);
        self.out.record(Record::MoveSlowed { rank, share });
    }

    /// The rank does not come to where it was expected.
    pub fn unprepare(&mut self, live: &Live) {
        let node = live.node();
        let instance = live.instance();
        if self.nodes[node].is_up() {
            self.out.send_agent(node, ToAgent::Unprepare(instance));
        }
    }

    /// Ranks that were going to a node that is lost go elsewhere.
    pub fn lose_node(&mut self, node: NodeId) {
        let going = |moving: &Move| moving.live().is_some_and(|live| live.node() == node);
        let ranks: Vec<Rank> = (self.moves.iter())
            .filter(|(_, moving)| going(moving) && moving.stopped().is_none())
            .map(|(rank, _)| rank)
            .collect();
        for rank in ranks {
            self.begin_live(rank);
        }
    }

    /// Gives up what takes too long to be put in place.
    pub fn watch_live(&mut self) {
        let now = self.out.now();
        let late: Vec<(Live, ImageId)> = (self.moves.iter())
            .filter_map(|(rank, moving)| {
                let live = *moving.live()?;
                let (image, since) = live.sent()?;
                let bytes = self.ranks[rank].images().newest().map_or(0, |k| k.image.bytes);
                (now >= since + restore_timeout(bytes)).then_some((live, image))
            })
            .collect();
        for (live, image) in late {
            self.unprepare(&live);
            let cause = "it took too long".to_string();
            self.prepared(live.node(), live.instance(), image, Err(cause));
        }
    }
}
