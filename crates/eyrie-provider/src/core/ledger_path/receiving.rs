//! What becomes visible in a progress call, and how a rank waits for it. What was shown is in the
//! rank's ledger before the call returns to MPI. Messages of one source are shown in the order in
//! which it has sent them, and only when they are whole.

use super::ahead::Copied;
use super::attached::Attached;
use super::envelope::decode;
use super::host::LedgerHost;
use super::LedgerPath;
use crate::core::error::RankError;
use crate::core::matching::Content;
use crate::core::mutation::{active, Mutation};
use crate::core::path::{Arrived, Found, Show};
use eyrie_ledger::memory::View;
use eyrie_ledger::reader::Reader;
use eyrie_ledger::Entry;
use eyrie_wire::page::What;
use eyrie_wire::Rank;
use std::io;
use std::time::Duration;

/// Sources up to which all are looked at, which is quicker than their board; tests have both.
const FEW: usize = if cfg!(test) { 3 } else { 8 };
/// Most messages of one source that a progress call shows.
const MOST_AT_ONCE: u32 = if cfg!(test) { 5 } else { 1024 };
/// How long a rank that re-executes waits for the next message.
const REPLAY_TIMEOUT: Duration = Duration::from_secs(120);

/// What became of a look at one source.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Looked {
    /// It has nothing more.
    Nothing,
    /// It has a part of a message; a new one since the last look, or none.
    Part { is_new: bool },
    /// So much was shown as may be.
    Enough,
    /// Nothing else may be shown in this call.
    Over,
}

/// The payload of a message, in its sender's ledger.
struct Payload<'a, V> {
    reader: &'a Reader<V>,
    entry: &'a Entry,
    /// What of it lies where it will be copied to.
    ahead: Copied,
}

impl<V: View> Content for Payload<'_, V> {
    unsafe fn copy_to(&self, to: *mut u8, len: usize) -> io::Result<()> {
        if len as u64 > self.entry.len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let there = self.ahead.at(to).min(len);
        // SAFETY: the caller vouches for `len` bytes at `to`, which nothing else refers to.
        let to = unsafe { std::slice::from_raw_parts_mut(to, len) };
        self.reader.read(self.entry, there as u64, &mut to[there..]);
        Ok(())
    }
}

impl<H: LedgerHost> LedgerPath<H> {
    /// Shows what has arrived, and records it.
    #[inline]
    pub(super) fn show_arrived(
        &mut self,
        sleep: bool,
        show: &mut impl Show,
    ) -> Result<Found, RankError> {
        let mut found = self.look_at_all(show)?;
        if sleep && !found.something {
            self.sleep();
            found = self.look_at_all(show)?;
        }
        if found.messages && !active(Mutation::ForgetWhatWasShown) {
            // An observation that a message was asked for by comes before it.
            self.observe()?;
            if !active(Mutation::RecordLate) {
                self.record_shown()?;
            }
        }
        Ok(found)
    }

    /// Shows what was shown at this clock before; waits for it.
    pub(super) fn show_due(&mut self, show: &mut impl Show) -> Result<(), RankError> {
        for n in 0.. {
            let Some(&(source, count)) = self.script.due().get(n) else { break };
            self.show_of(source, count, show)?;
        }
        self.end_step()
    }

    /// A step of the script is over; the keeper hears when it was the last one.
    pub(super) fn end_step(&mut self) -> Result<(), RankError> {
        self.script.followed().map_err(RankError::Ledger)?;
        self.report_if_replayed();
        Ok(())
    }

    /// The clock has ticked: what was observed before has been observed again, or never will be.
    pub(super) fn end_observed(&mut self) {
        if let Some(end) = self.again.end_before(self.script.clock()) {
            self.host.skip_observed(end);
        }
    }

    /// What a rank that waits looks at now and then: whether a message is there that no hint names,
    /// and whether the keeper still knows of this rank.
    ///
    /// # Errors
    /// When a ledger is damaged, or the keeper refuses this incarnation.
    #[cold]
    pub(super) fn look_rarely(&mut self) -> Result<(), RankError> {
        if let Some(attached) = &mut self.attached {
            attached.look_for_unnamed(self.number.0).map_err(RankError::Ledger)?;
        }
        self.observe_much()?;
        self.stay_connected()
    }

    /// Shows so many messages of a source; waits for them.
    fn show_of(&mut self, source: u32, count: u32, show: &mut impl Show) -> Result<(), RankError> {
        let mut begun = self.host.now();
        let mut left = count;
        loop {
            let before = left;
            let Some(attached) = &mut self.attached else { return self.attach_ledgers() };
            let clock = self.script.clock();
            let host = &mut self.host;
            let mut shown = Shown { host, clock, rsn: &mut self.rsn };
            let looked = attached.show_source(source, left, &mut shown, show)?;
            left -= attached.showing.drain(..).map(|(_, count)| count).sum::<u32>();
            self.shown_again += u64::from(before - left);
            if left == 0 {
                return Ok(());
            }
            if left < before || looked == (Looked::Part { is_new: true }) {
                begun = self.host.now();
                continue;
            }
            self.sleep();
            let waited = self.host.now().saturating_sub(begun);
            if waited > REPLAY_TIMEOUT {
                return Err(RankError::NoReplayFrom { source: Rank(source), waited });
            }
            self.look_rarely()?;
        }
    }

    #[inline]
    fn look_at_all(&mut self, show: &mut impl Show) -> Result<Found, RankError> {
        let Some(attached) = &mut self.attached else {
            return Ok(Found { something: false, messages: false });
        };
        let clock = self.script.clock();
        let mut shown = Shown { host: &mut self.host, clock, rsn: &mut self.rsn };
        attached.showing.clear();
        let something = attached.look(self.number.0, &mut shown, show)?;
        Ok(Found { something, messages: !attached.showing.is_empty() })
    }

    /// Sleeps shortly, unless something has come.
    fn sleep(&mut self) {
        let Some(attached) = &mut self.attached else { return };
        let me = self.number.0;
        let word = attached.bells.begin_sleep(me);
        if active(Mutation::SleepAtOnce) || !attached.has_something(me) {
            self.host.sleep(attached.bells.word(me), word);
        }
        attached.bells.end_sleep(me);
    }
}

/// What is noted of a message that becomes visible.
struct Shown<'a, H> {
    host: &'a mut H,
    clock: u64,
    rsn: &'a mut u64,
}

impl<H: LedgerHost> Shown<'_, H> {
    #[inline]
    fn note(&mut self, source: u32) {
        *self.rsn += 1;
        self.host.trace(What::Shown, self.clock, source, *self.rsn);
    }
}

impl<H: LedgerHost> Attached<H> {
    /// Looks at all sources. True: something came, if no whole message.
    #[inline]
    fn look(
        &mut self,
        me: u32,
        shown: &mut Shown<'_, H>,
        show: &mut impl Show,
    ) -> Result<bool, RankError> {
        let sources = self.readers.len() as u32;
        let mut something = false;
        let all = sources as usize <= FEW || std::mem::take(&mut self.is_unnamed);
        for n in 0..sources {
            let behind = self.first + n;
            let source = if behind < sources { behind } else { behind - sources };
            if !all && !self.bells.has_new(me, source, self.passed[source as usize]) {
                continue;
            }
            let looked = self.show_source(source, MOST_AT_ONCE, shown, show)?;
            something |= !matches!(looked, Looked::Nothing | Looked::Part { is_new: false });
            if looked == Looked::Over {
                break;
            }
        }
        let any = !self.showing.is_empty();
        if any && sources > 1 {
            // The source that was served first comes last next time, when others have something.
            let (last, _) = self.showing[0];
            self.first = if self.showing.len() > 1 { last + 1 } else { last };
            if self.first == sources {
                self.first = 0;
            }
        }
        Ok(something || any)
    }

    /// Shows the next message of a source that was taken out of its ledger, if there is one.
    #[cold]
    fn show_spilled(
        &mut self,
        source: u32,
        shown: &mut Shown<'_, H>,
        show: &mut impl Show,
    ) -> Result<bool, RankError> {
        let ssn = self.passed[source as usize] + 1;
        let Some(content) = self.spilled.first(source, ssn)? else { return Ok(false) };
        let envelope = decode(&content.message.envelope).map_err(|what| damaged(source, what))?;
        shown.note(source);
        let len = content.message.len as usize;
        let arrived = Arrived { source: Rank(source), envelope, len };
        // Only messages that were recorded are taken out, so that no other one comes behind.
        show.show(&arrived, &content)?;
        self.spilled.pass()?;
        self.passed[source as usize] += 1;
        self.showing.push((source, 1));
        Ok(true)
    }

    /// Shows what a source has, at most so many messages.
    #[inline]
    fn show_source(
        &mut self,
        source: u32,
        most: u32,
        shown: &mut Shown<'_, H>,
        show: &mut impl Show,
    ) -> Result<Looked, RankError> {
        if !self.spilled.is_empty() && self.show_spilled(source, shown, show)? {
            return Ok(Looked::Enough);
        }
        let reader = &mut self.readers[source as usize];
        let mut count = 0;
        let looked = loop {
            if count == most {
                break Looked::Enough;
            }
            let Some(entry) = reader.look().map_err(RankError::Ledger)? else {
                break Looked::Nothing;
            };
            let filled = reader.progress(&entry).map_err(RankError::Ledger)?;
            let envelope = decode(&entry.envelope).map_err(|what| damaged(source, what))?;
            let arrived = Arrived { source: Rank(source), envelope, len: entry.len as usize };
            let ahead = &mut self.ahead[source as usize];
            if filled.bytes < entry.len && !active(Mutation::ShowParts) {
                ahead.copy(reader, &entry, filled, show.place_of(&arrived));
                let part = (entry.ssn, filled.bytes);
                let before = std::mem::replace(&mut self.partial[source as usize], part);
                break Looked::Part { is_new: before != part };
            }
            shown.note(source);
            let ahead = ahead.copied(&entry, filled, || show.place_of(&arrived));
            let more = show.show(&arrived, &Payload { reader, entry: &entry, ahead })?;
            reader.pass(&entry);
            count += 1;
            if !more {
                break Looked::Over;
            }
        };
        if count > 0 {
            self.passed[source as usize] += u64::from(count);
            self.showing.push((source, count));
        }
        Ok(looked)
    }

    /// Whether a look would find something.
    fn has_something(&mut self, me: u32) -> bool {
        let all = self.readers.len() <= FEW;
        let Attached { readers, bells, passed, partial, .. } = self;
        let mut sources = (0..).zip(readers).zip(passed.iter().zip(partial));
        sources.any(|((source, reader), (passed, partial))| {
            if !all && !bells.has_new(me, source, *passed) {
                return false;
            }
            let Ok(Some(entry)) = reader.look() else {
                // What is damaged is found by the look that follows.
                return !matches!(reader.look(), Ok(None));
            };
            let filled = reader.filled(&entry);
            filled.map_or(true, |filled| filled == entry.len || (entry.ssn, filled) != *partial)
        })
    }
}

fn damaged(source: u32, what: &'static str) -> RankError {
    RankError::Damaged { source: Rank(source), what }
}
