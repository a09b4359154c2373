//! What a rank writes into its own ledger: messages, in front of them what it has observed and when
//! it has received nothing. Where there is no room it waits, and an image may be taken meanwhile.

use super::envelope::encode;
use super::host::LedgerHost;
use super::LedgerPath;
use crate::core::error::RankError;
use crate::core::mutation::{active, Mutation};
use eyrie_ledger::error::LedgerError;
use eyrie_ledger::observed::MAX_PART;
use eyrie_ledger::writer::{Message, Sent, Writer};
use eyrie_wire::data::Envelope;
use eyrie_wire::keeper::{ToKeeper, MAX_REASON};
use eyrie_wire::page::What;
use eyrie_wire::Rank;
use std::time::Duration;

/// How long a rank waits for memory that the system does not have. Where only the keeper has not
/// granted enough there is no such bound: the rank may wait for one that computes, and the keeper
/// grants more, or ends the job, where nothing else could help.
const MEMORY_TIMEOUT: Duration = Duration::from_secs(600);
/// The pause between two attempts.
const ROOM_PAUSE: Duration = Duration::from_micros(500);
/// Attempts after which the keeper is asked again.
const ASK_EVERY: u32 = 1000;
/// Bytes observed that are written when nothing else is; tests are short.
const MOST_WAITING: usize = if cfg!(test) { 8 } else { 16 << 10 };

/// A rank that waits for room in its ledger.
struct Shortage {
    begun: Duration,
    attempts: u32,
}

impl<H: LedgerHost> LedgerPath<H> {
    /// Sends a message; when this returns it lies in the ledger.
    ///
    /// # Errors
    /// When there is no memory for too long, or the rank sends something other than before its
    /// death.
    #[inline]
    pub(super) fn send_message(
        &mut self,
        to: Rank,
        envelope: Envelope,
        content: &[u8],
    ) -> Result<(), RankError> {
        if !active(Mutation::SendUnobserved) {
            self.observe()?;
        }
        self.record_nothing()?;
        let message = Message {
            to: to.0,
            envelope: encode(&envelope),
            clock: self.script.clock() as u32,
            payload: content,
        };
        let mut shortage = None;
        loop {
            self.attach_ledgers()?;
            match self.append(&message) {
                Ok(sent) => {
                    self.note_sent(to, sent);
                    return Ok(());
                }
                Err(e) => self.await_room(e, &mut shortage)?,
            }
        }
    }

    /// Writes what was observed until now: it lies in front of whatever comes next.
    ///
    /// # Errors
    /// When there is no memory for too long.
    #[inline]
    pub(super) fn observe(&mut self) -> Result<(), RankError> {
        if self.host.observed_waiting() == 0 && self.unwritten.bytes.is_empty() {
            return Ok(());
        }
        let mut shortage = None;
        loop {
            self.attach_ledgers()?;
            match self.try_observe() {
                Ok(()) => return Ok(()),
                Err(e) => self.await_room(e, &mut shortage)?,
            }
        }
    }

    /// As [`LedgerPath::observe`], when it has become much.
    pub(super) fn observe_much(&mut self) -> Result<(), RankError> {
        if self.host.observed_waiting() >= MOST_WAITING {
            self.observe()
        } else {
            Ok(())
        }
    }

    /// As [`LedgerPath::observe`], and waits for nothing.
    pub(super) fn try_observe(&mut self) -> Result<(), LedgerError> {
        let Some(attached) = &mut self.attached else { return Ok(()) };
        let clock = self.script.clock();
        self.unwritten.take(&mut self.host);
        loop {
            // An earlier incarnation may have written some of it.
            self.unwritten.drop_before(attached.writer.observed());
            let Some(part) = self.unwritten.bytes.chunks(MAX_PART).next() else { return Ok(()) };
            attached.writer.observe(clock, part)?;
        }
    }

    /// Records that nothing became visible between the last determinant and the present clock, as
    /// far as that is so and not known yet: what is sent next may depend on it.
    #[inline]
    pub(super) fn record_nothing(&mut self) -> Result<(), RankError> {
        if active(Mutation::ForgetNoDelivery) {
            return Ok(());
        }
        self.record_with(|writer, clock, _| writer.record(clock, &[]))
    }

    /// Records what was shown in the progress call that is over, which is too late: a mutation.
    #[cfg(test)]
    pub(super) fn record_late(&mut self) {
        let is_shown = self.attached.as_ref().is_some_and(|a| !a.showing.is_empty());
        if is_shown && self.record_shown().is_ok() {
            if let Some(attached) = &mut self.attached {
                attached.showing.clear();
            }
        }
    }

    /// Records what is being shown in this progress call.
    #[inline]
    pub(super) fn record_shown(&mut self) -> Result<(), RankError> {
        self.record_with(|writer, clock, showing| writer.record(clock, showing))
    }

    #[inline]
    fn record_with(
        &mut self,
        mut record: impl FnMut(&mut Writer<H::Own>, u64, &[(u32, u32)]) -> Result<(), LedgerError>,
    ) -> Result<(), RankError> {
        let clock = self.script.clock();
        let mut shortage = None;
        loop {
            let Some(attached) = &mut self.attached else {
                // It has come back from an image in the wait for room.
                self.attach_ledgers()?;
                continue;
            };
            if clock <= attached.writer.recorded() {
                return Ok(());
            }
            match record(&mut attached.writer, clock, &attached.showing) {
                Ok(()) => return Ok(()),
                Err(e) => self.await_room(e, &mut shortage)?,
            }
        }
    }

    #[inline]
    fn append(&mut self, message: &Message) -> Result<Sent, LedgerError> {
        let Some(attached) = &mut self.attached else { return Ok(Sent::New) };
        let writer = &mut attached.writer;
        let bells = &attached.bells;
        let host = &mut self.host;
        if !writer.has_sent(message.to)? {
            host.before_new();
        }
        let ssn = writer.sent(message.to) + 1;
        let me = self.number.0;
        writer.append(message, || {
            if bells.ring(message.to, me, ssn) {
                host.wake(bells.word(message.to));
            }
        })
    }

    /// A message is in the ledger.
    #[inline]
    fn note_sent(&mut self, to: Rank, sent: Sent) {
        let ssn = self.attached.as_ref().map_or(0, |attached| attached.writer.sent(to.0));
        let what = if sent == Sent::New { What::Sent } else { What::Repeated };
        self.trace(what, to, ssn);
        if sent == Sent::Differs {
            self.report_difference(to, ssn);
        }
    }

    #[cold]
    fn report_difference(&mut self, to: Rank, ssn: u64) {
        let reason = format!("message {ssn} to rank {to} has other content than before");
        self.host.tell(&ToKeeper::ContentDiffers { reason });
    }

    /// There is no room for what is to be written next: waits a little, and lets an image be taken.
    #[cold]
    fn await_room(
        &mut self,
        error: LedgerError,
        shortage: &mut Option<Shortage>,
    ) -> Result<(), RankError> {
        let lacks_memory = matches!(error, LedgerError::NoMemory { .. });
        match error {
            LedgerError::Full { .. } | LedgerError::NoMemory { .. } => {}
            LedgerError::Diverged { .. } => {
                let mut reason = error.to_string();
                reason.truncate(MAX_REASON);
                self.host.tell(&ToKeeper::Diverged { reason });
                return Err(RankError::Ledger(error));
            }
            _ => return Err(RankError::Ledger(error)),
        }
        let now = self.host.now();
        let shortage = shortage.get_or_insert(Shortage { begun: now, attempts: 0 });
        if lacks_memory && now.saturating_sub(shortage.begun) > MEMORY_TIMEOUT {
            return Err(RankError::Ledger(error));
        }
        if shortage.attempts % ASK_EVERY == 0 {
            if self.attached.is_some() {
                // The keeper grants nothing to a rank that is gone.
                self.stay_connected()?;
            }
            let asked = shortage.attempts / ASK_EVERY;
            self.trace(What::LacksRoom, Rank(0), u64::from(asked));
            self.host.tell(&ToKeeper::RoomWanted);
        }
        shortage.attempts += 1;
        self.host.let_pass(ROOM_PAUSE);
        if !self.progressing {
            // Room may come of an image of this very rank.
            H::image_point(self);
        }
        Ok(())
    }
}
