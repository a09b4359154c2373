//! Fencing: only the new incarnation of a rank may connect from then on.

use super::closing::Close;
use super::conns::Conns;
use super::kept::Kept;
use super::mutation::{active, Mutation};
use super::orders::RouterEvent;
use super::output::Output;
use super::pending_adoptions::Adoptions;
use super::ranks::Ranks;
use super::room::Room;
use super::streams::Streams;
use crate::space::{Space, Store};
use eyrie_wire::RankInstance;

/// Most bytes of a rank's first observations that the rank is given when it starts anew.
pub const BEGINNING: u64 = 1 << 20;

/// Fences ranks.
pub struct Fence<'a, S: Store> {
    pub conns: &'a mut Conns,
    pub ranks: &'a mut Ranks,
    pub kept: &'a Kept,
    pub adoptions: &'a mut Adoptions,
    pub streams: &'a mut Streams,
    pub room: &'a mut Room,
    pub space: &'a mut Space<S>,
}

impl<S: Store> Fence<'_, S> {
    /// Admits only this incarnation, and reports what this router has of the older ones.
    pub fn fence(&mut self, instance: RankInstance, out: &mut impl Output<S::File>) {
        let rank = instance.rank;
        if !self.ranks.has(rank) {
            return;
        }
        self.ranks.fence(instance);
        self.streams.of_mut(rank).early = None;
        let ended = self.conns.take(rank);
        for id in ended.filter(|_| !active(Mutation::ForgetTheFence)) {
            let Fence { conns, kept, room, space, .. } = self;
            Close { conns, kept, room, space }.remove(id);
            out.close(id);
        }
        if let Some(adoption) = self.adoptions.of_mut(rank) {
            adoption.fence();
        }
        if !self.ranks.has_reported(rank) {
            out.event(RouterEvent::Unheard { instance });
        }
        let determinants = self.ranks.fenced_determinants(rank);
        // The primary router keeps a rank's observations. It returns their beginning, for the case
        // that the rank is started anew.
        let observed = self.ranks.observed(rank);
        let observed =
            if self.kept.is_primary_of(rank) { observed.first(BEGINNING) } else { observed.all() };
        out.event(RouterEvent::Fenced { instance, determinants, observed });
    }
}
