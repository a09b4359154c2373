//! What a rank sends, and what waits for it to be taken and to be safe. Nothing leaves before what
//! it depends on: determinants, and what the rank has observed besides messages.

use super::connecting::ANSWER_TIMEOUT;
use super::host::Host;
use super::send_stream::{Offer, Outgoing};
use super::{refused, RouterPath};
use crate::core::error::RankError;
use crate::core::mutation::{active, Mutation};
use eyrie_wire::data::{self, Envelope, Message, ObservedPart};
use eyrie_wire::directory::KeptUntil;
use eyrie_wire::page::What;
use eyrie_wire::{Rank, RouterId};
use std::io;
use std::time::Duration;

/// Longest single wait.
const WAIT: Duration = Duration::from_millis(100);

/// What a sender is waited for.
#[derive(Clone, Copy)]
pub(super) enum Want {
    Greeting,
    Written,
    Room,
    Segment,
    AllAcknowledged,
    /// What was shown up to this clock is safe, and what was observed up to this byte.
    Stored {
        clock: u64,
        observed: u64,
    },
}

impl<H: Host> RouterPath<H> {
    /// Sends a message; returns when it is on its way and kept.
    ///
    /// # Errors
    /// When its router cannot be reached or does not answer.
    pub(super) fn send_message(
        &mut self,
        destination: Rank,
        envelope: Envelope,
        content: &[u8],
    ) -> Result<(), RankError> {
        if !active(Mutation::SendUnobserved) {
            self.cut_observed();
        }
        let clock = self.replay.clock();
        let size = content.len() as u64;
        let sent = self.sent[destination.index()].and(size);
        let ssn = sent.messages;
        let sent_bytes = sent.bytes;
        let place = None;
        let message = Message { destination, ssn, clock, envelope, size, sent_bytes, place };
        let mut k = self.host.primary_router(destination).index();
        if self.dies_with(k) {
            self.store_determinants()?;
        }
        loop {
            self.ready_sender(k)?;
            let serves = self.host.primary_router(destination).index();
            if std::mem::replace(&mut k, serves) != serves {
                // Another router serves it by now, and has what was sent before to come first.
                continue;
            }
            if !self.senders[k].has(&message) {
                self.host.before_new();
            }
            match self.senders[k].offer(&Outgoing { message, content }, &mut self.unstored) {
                Ok(Offer::Kept) => break,
                Ok(Offer::NoRoom) => self.await_sender(k, Want::Room)?,
                Ok(Offer::NoSegment) => self.await_sender(k, Want::Segment)?,
                Err(e) => self.lose_sender(k, &e)?,
            }
        }
        self.sent[destination.index()] = sent;
        self.host.trace(What::Sent, clock, destination.0, ssn);
        self.write_sender(k)
    }

    /// Gives the router everything that is kept, over a new connection if this one breaks. The
    /// router always reads, so this ends.
    fn write_sender(&mut self, k: usize) -> Result<(), RankError> {
        loop {
            self.ready_sender(k)?;
            match self.senders[k].write() {
                Ok(true) => return Ok(()),
                Ok(false) => self.await_sender(k, Want::Written)?,
                Err(e) => self.lose_sender(k, &e)?,
            }
        }
    }

    /// The stream is lost; what is kept is given to the next one. A refusal is final.
    fn lose_sender(&mut self, k: usize, e: &io::Error) -> Result<(), RankError> {
        let code = e.raw_os_error().unwrap_or(0) as u64;
        self.host.trace(What::SendLost, self.replay.clock(), k as u32, code);
        self.senders[k].disconnect();
        refused(e)
    }

    /// Connects the stream to a router if it is not, and gives it what earlier ones were left with.
    pub(super) fn ready_sender(&mut self, k: usize) -> Result<(), RankError> {
        if self.senders[k].is_ready() {
            return Ok(());
        }
        let mut attempts = self.attempts(RouterId(k as u32));
        while !self.senders[k].is_ready() {
            self.look_at_directory();
            if self.senders[k].stream().is_none() {
                if self.dies_with(k) {
                    self.store_determinants()?;
                }
                match self.host.connect(RouterId(k as u32), data::StreamKind::Send) {
                    Ok(stream) => self.senders[k].begin(stream),
                    Err(e) => {
                        attempts.failed(&mut self.host, RouterId(k as u32), e)?;
                        continue;
                    }
                }
            }
            if !self.senders[k].is_greeted() {
                self.await_sender(k, Want::Greeting)?;
                continue;
            }
            match self.senders[k].offer_backlog(&mut self.unstored)? {
                Ok(Offer::Kept) => {}
                Ok(Offer::NoRoom) => self.await_sender(k, Want::Room)?,
                Ok(Offer::NoSegment) => self.await_sender(k, Want::Segment)?,
                Err(e) => self.lose_sender(k, &e)?,
            }
        }
        let again = self.senders[k].unacknowledged() as u64;
        self.host.trace(What::SendBegun, self.replay.clock(), k as u32, again);
        self.senders[k].end_backlog(&self.unstored);
        Ok(())
    }

    /// Waits until a sender has what is wanted, or has lost its stream.
    pub(super) fn await_sender(&mut self, k: usize, want: Want) -> Result<(), RankError> {
        self.await_senders(vec![k], want)
    }

    /// Waits until each of these senders has what is wanted, or has lost its stream.
    fn await_senders(&mut self, mut pending: Vec<usize>, want: Want) -> Result<(), RankError> {
        let mut begun = self.host.now();
        let mut given = self.given(&pending);
        loop {
            let came = self.exchange_all(&mut pending, want)?;
            let Some(first) = pending.first().copied() else { return Ok(()) };
            if came {
                // The router lives. A gateway whose line is broken says so from time to time.
                begun = self.host.now();
                continue;
            }
            if given != self.given(&pending) {
                // A large message takes its time.
                (begun, given) = (self.host.now(), self.given(&pending));
            }
            let waited = self.host.now().saturating_sub(begun);
            if waited > ANSWER_TIMEOUT {
                return Err(RankError::NoAnswer { router: RouterId(first as u32), waited });
            }
            let unacknowledged = self.senders[first].unacknowledged() as u64;
            self.host.trace(What::Waits, self.replay.clock(), first as u32, unacknowledged);
            self.wait_for_senders(&pending, WAIT);
            self.look_at_directory();
            self.attach_meanwhile()?;
            if !self.progressing {
                // The router that does not take more may itself wait for an image of this very
                // rank.
                H::image_point(self);
            }
        }
    }

    /// Bytes that were given to these senders' streams.
    fn given(&self, which: &[usize]) -> u64 {
        which.iter().map(|k| self.senders[*k].given()).sum()
    }

    /// Writes to the streams of the senders that are `pending` what they take, and reads what has
    /// come. Those that have what is wanted, or have lost their streams, are pending no more.
    /// Returns whether something came for one that still is.
    fn exchange_all(&mut self, pending: &mut Vec<usize>, want: Want) -> Result<bool, RankError> {
        let mut any = false;
        let mut next = 0;
        while let Some(k) = pending.get(next).copied() {
            let (written, came) = match self.exchange(k) {
                Ok(step) => step,
                Err(e) => {
                    self.lose_sender(k, &e)?;
                    pending.remove(next);
                    continue;
                }
            };
            let sender = &self.senders[k];
            let has = match want {
                Want::Greeting => sender.is_greeted(),
                Want::Written => written,
                Want::Room => came,
                Want::Segment => !sender.has_segment_request(),
                Want::AllAcknowledged => !sender.is_busy(),
                Want::Stored { clock, observed } => self.unstored.are_stored(clock, observed),
            };
            if has {
                pending.remove(next);
            } else {
                any |= came;
                next += 1;
            }
        }
        Ok(any)
    }

    /// Writes to a stream what it takes, and reads what has come over it. Returns whether
    /// everything was written, and whether something came.
    fn exchange(&mut self, k: usize) -> io::Result<(bool, bool)> {
        let written = self.senders[k].write()?;
        Ok((written, self.senders[k].receive(&mut self.unstored)?))
    }

    /// Waits until something may have come over one of these senders' streams, or, where not
    /// everything is written, one takes more.
    fn wait_for_senders(&mut self, which: &[usize], timeout: Duration) {
        let streams = which.iter().filter_map(|k| self.senders[*k].awaited());
        self.host.wait(streams, timeout);
    }

    /// Finds out whether a router has closed a stream with messages on it that it never
    /// acknowledged, and sends them again: what the rank waits for may be the answer to one of
    /// them, and nothing else would notice.
    pub(super) fn look_after_senders(&mut self) -> Result<(), RankError> {
        for k in 0..self.senders.len() {
            if !self.senders[k].is_busy() {
                continue;
            }
            if self.senders[k].stream().is_some() {
                match self.senders[k].receive(&mut self.unstored) {
                    Ok(_) => continue,
                    Err(e) => self.lose_sender(k, &e)?,
                }
            }
            self.write_sender(k)?;
        }
        Ok(())
    }

    pub(super) fn send_determinants(&mut self) -> Result<(), RankError> {
        self.cut_observed();
        if self.unstored.is_empty() {
            return Ok(());
        }
        let k = self.host.primary_router(self.number).index();
        self.ready_sender(k)?;
        self.senders[k].offer_determinants(&self.unstored);
        self.write_sender(k)
    }

    /// Waits until the primary router holds what this rank has seen up to now: the next message may
    /// be lost together with the rank, but not with its receivers.
    pub(super) fn store_determinants(&mut self) -> Result<(), RankError> {
        if active(Mutation::DoNotStoreFirst) {
            return Ok(());
        }
        let present = self.present();
        self.unstored.push_no_delivery(present);
        self.cut_observed();
        let observed = self.unstored.observed();
        while !self.unstored.are_stored(present.clock, observed) {
            let primary = self.host.primary_router(self.number).index();
            self.ready_sender(primary)?;
            if !self.unstored.are_stored(present.clock, observed) {
                self.senders[primary].offer_word(&self.unstored);
                self.await_sender(primary, Want::Stored { clock: present.clock, observed })?;
            }
        }
        Ok(())
    }

    /// What was observed until now goes before whatever is sent next.
    pub(super) fn cut_observed(&mut self) {
        let clock = self.replay.clock();
        let unstored = &mut self.unstored;
        self.host.take_observed(&mut |from, bytes| {
            ObservedPart::cut(clock, from, bytes).for_each(|part| unstored.push_observed(part));
        });
    }

    /// Waits until the primary router holds what was observed until now. The next action of the
    /// program cannot be undone, and other processes than the receivers of its messages can see it.
    ///
    /// # Errors
    /// When the router cannot be reached or does not answer.
    pub(super) fn store_what_was_observed(&mut self) -> Result<(), RankError> {
        self.cut_observed();
        let observed = self.unstored.observed();
        while !self.unstored.are_stored(0, observed) {
            let primary = self.host.primary_router(self.number).index();
            self.ready_sender(primary)?;
            if !self.unstored.are_stored(0, observed) {
                // Where messages are acknowledged when they were received, a flush waits for that.
                match self.kept_until {
                    KeptUntil::Received => self.senders[primary].offer_word(&self.unstored),
                    KeptUntil::Logged => self.senders[primary].offer_flush(&self.unstored),
                }
                self.await_sender(primary, Want::Stored { clock: 0, observed })?;
            }
        }
        Ok(())
    }

    /// Waits until everything sent is safe, as far as receivers receive it in time.
    ///
    /// # Errors
    /// When a router cannot be reached or does not answer.
    pub(super) fn await_acknowledgements(&mut self) -> Result<(), RankError> {
        self.host.before_new();
        if let Err(e) = self.delivery.report_received() {
            self.lose_delivery(&e)?;
        }
        loop {
            let busy: Vec<usize> =
                (0..self.senders.len()).filter(|k| self.senders[*k].is_busy()).collect();
            if busy.is_empty() {
                return Ok(());
            }
            for k in &busy {
                self.ready_sender(*k)?;
                if self.senders[*k].is_busy() {
                    self.senders[*k].offer_flush(&self.unstored);
                }
            }
            // All at once: each router may take its time for receivers that do not receive.
            self.await_senders(busy, Want::AllAcknowledged)?;
        }
    }

    /// Whether an image taken now would hold all that it needs: waits shortly for payloads on their
    /// way to a router.
    pub(super) fn settle_payloads(&mut self, timeout: Duration) -> bool {
        // What is lost with the stream is sent again over the next one.
        let _ = self.delivery.report_received();
        self.cut_observed();
        let end = self.host.now() + timeout;
        for k in 0..self.senders.len() {
            while self.senders[k].names_segments() {
                self.senders[k].ask_about_segments(&self.unstored);
                let left = end.saturating_sub(self.host.now());
                match self.exchange(k) {
                    Ok((_, true)) => {}
                    Ok((_, false)) if !left.is_zero() => self.wait_for_senders(&[k], left),
                    _ => return false,
                }
            }
        }
        true
    }
}
