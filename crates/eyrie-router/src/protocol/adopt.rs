//! Taking over from a lost router. A router that takes over is empty. It knows nothing of the ranks
//! whose primary router it is until a rank's delivery stream says what the rank has received. Until
//! then messages for the rank are pending. It must never adopt a rank that has died or re-executes:
//! the messages that such a rank would need are lost.

use super::adoption::{Adoption, Pending};
use super::mutation::{active, Mutation};
use super::{Output, Protocol, RouterEvent};
use crate::space::Store;
use eyrie_transport::KeptUntil;
use eyrie_wire::data::{content_hash, Message, Repeat};
use eyrie_wire::{Rank, RankInstance};

impl<S: Store> Protocol<S> {
    /// Makes this router take over from a lost one of the same number.
    #[must_use]
    pub fn taking_over(mut self) -> Self {
        self.takes_over = true;
        for (state, (adoption, here)) in
            self.ranks.iter_mut().zip(self.adoptions.iter_mut().zip(&self.at_home))
        {
            state.has_reported = false;
            *adoption = here.then(Adoption::default);
        }
        self
    }

    /// A rank goes on behind `rsn`. If it was not adopted yet, its log begins there.
    ///
    /// # Errors
    /// Why it cannot be adopted.
    pub(super) fn adopt(
        &mut self,
        rank: Rank,
        rsn: u64,
        out: &mut impl Output<S::File>,
    ) -> Result<(), String> {
        let Some(adoption) = &mut self.adoptions[rank as usize] else { return Ok(()) };
        let instance = RankInstance { rank, incarnation: self.ranks[rank as usize].incarnation };
        let begins = instance.incarnation == 1 && rsn == 0;
        let why = match adoption.has {
            _ if adoption.died => "had died before it said what it has received",
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
        let mut ssn = vec![0; self.ranks.len()];
        for shown in adoption.table.drain(..).filter(|_| !active(Mutation::ForgetTheTable)) {
            if let Some(last) = ssn.get_mut(shown.source as usize) {
                *last = shown.ssn;
            }
        }
        let pending = std::mem::take(&mut adoption.pending);
        if !active(Mutation::AdoptTwice) {
            self.adoptions[rank as usize] = None;
        }
        self.logs[rank as usize].adopt(rsn, &ssn);
        out.event(RouterEvent::Adopted { instance, rsn });
        for message in pending {
            self.log_pending(message, out);
        }
        let newest = self.logs[rank as usize].newest();
        if let Some(receipts) = self.receipts.get_mut(rank as usize) {
            receipts.adopt(rsn, &ssn, newest);
        }
        let senders: Vec<_> = self.ranks.iter().filter_map(|state| state.send).collect();
        for id in senders {
            self.acknowledge(id, false, out);
        }
        Ok(())
    }

    /// Logs a message that was pending, unless its destination has it.
    fn log_pending(&mut self, pending: Pending, out: &mut impl Output<S::File>) {
        let Pending { source, message: m, payload } = pending;
        self.pending_bytes -= payload.len() as u64;
        let last = self.logs[m.destination as usize].last_ssn(source);
        if m.ssn > last + 1 {
            self.missing(source, m.destination, last, m.ssn, out);
        }
        if m.ssn > last {
            self.append(source, &m, &payload, out);
        } else if let Some(place) = m.place {
            self.space.segments.frames_truncated(place.segment, 1);
        }
    }

    /// After the message `last` comes `next`: those in between are missing. If this router has
    /// taken over, they are lost for good. If not, the sender is at fault; returns what it did
    /// wrong.
    pub(super) fn missing(
        &self,
        source: Rank,
        destination: Rank,
        last: u64,
        next: u64,
        out: &mut impl Output<S::File>,
    ) -> &'static str {
        if self.takes_over {
            let reason = format!(
                "messages {} to {} from rank {source} to rank {destination} were lost with a \
                 router",
                last + 1,
                next - 1
            );
            out.event(RouterEvent::Fatal { reason });
        }
        "a message is missing in the sequence of its sender"
    }

    /// A message that is here arrives again, as a whole. If its sender re-executes, it is compared
    /// as a [`Repeat`] is.
    pub(super) fn verify_whole(
        &mut self,
        source: Rank,
        m: &Message,
        payload: &[u8],
        out: &mut impl Output<S::File>,
    ) {
        let again = self.ranks[source as usize].incarnation > 1;
        // A payload in a segment is not read for this.
        if self.kept_until == KeptUntil::Logged || !again || m.place.is_some() {
            return;
        }
        let Message { destination, ssn, clock, envelope, size, .. } = *m;
        let hash = content_hash(payload);
        let again = Repeat { destination, ssn, clock, envelope, size, hash };
        self.compare(source, &again, out);
    }
}
