//! Taking over from a lost router. A router that takes over is empty. It knows nothing of the ranks
//! whose primary router it is until a rank's delivery stream says what the rank has received. Until
//! then messages for the rank are pending. It must never adopt a rank that has died or re-executes:
//! the messages that such a rank would need are lost.

use super::acknowledge::Acknowledge;
use super::append::Append;
use super::conns::Conns;
use super::kept::Kept;
use super::mutation::{active, Mutation};
use super::orders::RouterEvent;
use super::output::Output;
use super::pending_adoptions::{Adoptions, Pending};
use super::ranks::Ranks;
use super::receipts::Receipts;
use super::room::Room;
use crate::space::{Space, Store};
use eyrie_wire::traffic::Sent;
use eyrie_wire::{Incarnation, Rank};

/// Adopts ranks.
pub struct Adopt<'a, S: Store> {
    pub conns: &'a mut Conns,
    pub ranks: &'a mut Ranks,
    pub kept: &'a mut Kept,
    pub receipts: &'a mut Receipts,
    pub adoptions: &'a mut Adoptions,
    pub room: &'a Room,
    pub space: &'a mut Space<S>,
}

impl<S: Store> Adopt<'_, S> {
    /// A rank goes on behind `rsn`. If it was not adopted yet, its log begins there.
    ///
    /// # Errors
    /// Why it cannot be adopted.
    pub fn adopt(
        &mut self,
        rank: Rank,
        rsn: u64,
        out: &mut impl Output<S::File>,
    ) -> Result<(), String> {
        let Some(adoption) = self.adoptions.of_mut(rank) else { return Ok(()) };
        let instance = self.ranks.instance(rank);
        let begins = instance.incarnation == Incarnation(1) && rsn == 0;
        let why = match adoption.has {
            _ if adoption.died => "had died before it said what it has received",
            _ if adoption.moved => "",
            Some(has) if has == rsn => "",
            None if begins => "",
            _ => "was re-executing",
        };
        if !why.is_empty() {
            return Err(format!(
                "this router has taken over from one that was lost, and rank {rank} {why}: the \
                 messages that it needs are lost"
            ));
        }
        let mut sent = vec![Sent::default(); self.ranks.count()];
        for shown in adoption.table.drain(..).filter(|_| !active(Mutation::ForgetTheTable)) {
            if let Some(last) = sent.get_mut(shown.source.index()) {
                *last = shown.sent;
            }
        }
        let pending = std::mem::take(&mut adoption.pending);
        if !active(Mutation::AdoptTwice) {
            self.adoptions.end(rank);
        }
        self.kept.begin_log(rank, rsn, &sent);
        out.event(RouterEvent::Adopted { instance, rsn });
        for message in pending {
            self.log_pending(message, out);
        }
        let ssn: Vec<u64> = sent.iter().map(|sent| sent.messages).collect();
        self.receipts.adopt(rank, rsn, &ssn, self.kept.log(rank).newest());
        let Adopt { conns, ranks, receipts, .. } = self;
        for id in conns.of_senders() {
            Acknowledge { conns, ranks, receipts }.acknowledge(id, false, out);
        }
        Ok(())
    }

    /// Logs a message that was pending, unless its destination has it.
    fn log_pending(&mut self, pending: Pending, out: &mut impl Output<S::File>) {
        let Pending { source, message: m, payload } = pending;
        self.adoptions.log_pending(payload.len());
        let last = self.kept.log(m.destination).last_ssn(source);
        if m.ssn > last + 1 {
            self.adoptions.missing((source, m.destination), last, m.ssn, out);
        }
        if m.ssn > last {
            let Adopt { ranks, kept, room, space, .. } = self;
            Append { ranks, kept, room, space }.append(source, &m, &payload, out);
        } else if let Some(place) = m.place {
            self.space.segments.frames_truncated(place.segment, 1);
        }
    }
}
