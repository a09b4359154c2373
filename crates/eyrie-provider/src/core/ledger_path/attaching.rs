//! How a rank comes to its ledgers: the keeper lets this incarnation in, its own ledger says what
//! it has sent, received and observed before, and the others' ledgers are read behind what the rank
//! has shown. A pointer into a ledger lives no longer than [`Attached`], which no image holds.

use super::ahead::Ahead;
use super::attached::Attached;
use super::host::{AdmissionError, LedgerHost, Windows, WindowsOf};
use super::spilled::SpilledMessages;
use super::LedgerPath;
use crate::core::again::behind;
use crate::core::error::RankError;
use crate::core::mutation::{active, Mutation};
use eyrie_ledger::bells::Bells;
use eyrie_ledger::layout::Layout;
use eyrie_ledger::observed::ObservedReader;
use eyrie_ledger::reader::Reader;
use eyrie_ledger::writer::{Sizes, Writer};
use eyrie_wire::data::ObservedPart;
use eyrie_wire::keeper::ToKeeper;
use eyrie_wire::page::What;
use eyrie_wire::Rank;
use std::time::Duration;

/// How long the keeper may be out of reach, and how long it may take to let a rank in.
const ADMISSION_TIMEOUT: Duration = Duration::from_secs(120);
/// The pauses between attempts to connect.
const FIRST_PAUSE: Duration = Duration::from_micros(200);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// When messages are large; tests have small ones.
fn sizes() -> Sizes {
    if cfg!(test) {
        Sizes { at_once: 3000, step: 1000 }
    } else {
        Sizes::default()
    }
}

impl<H: LedgerHost> LedgerPath<H> {
    /// Attaches the ledgers, if they are not, so that messages of others are received from the
    /// start.
    ///
    /// # Errors
    /// When the keeper cannot be reached or refuses, or a ledger is damaged.
    pub(super) fn attach_ledgers(&mut self) -> Result<(), RankError> {
        if self.attached.is_some() {
            return Ok(());
        }
        let windows = self.be_admitted()?;
        self.open(windows)?;
        self.report_if_replayed();
        Ok(())
    }

    /// Gives the ledgers up, and keeps what an image needs of them.
    pub(super) fn detach(&mut self) {
        (self.sent, self.shown) = self.counts();
        self.attached = None;
        self.script.forget();
        (self.shown_again, self.owes_replayed) = (0, true);
    }

    /// Messages sent to each rank, and shown of each.
    pub(super) fn counts(&self) -> (Vec<u64>, Vec<u64>) {
        match &self.attached {
            _ if active(Mutation::ForgetWhatWasSent) => {
                (vec![0; self.sent.len()], self.shown.clone())
            }
            Some(attached) => {
                let ranks = 0..self.sent.len() as u32;
                let sent = ranks.map(|to| attached.writer.sent(to)).collect();
                (sent, attached.passed.clone())
            }
            None => (self.sent.clone(), self.shown.clone()),
        }
    }

    /// Tells the keeper, once for each process, that this rank re-executes no more.
    pub(super) fn report_if_replayed(&mut self) {
        if self.owes_replayed && self.script.is_over() && self.attached.is_some() {
            self.owes_replayed = false;
            self.trace(What::Replayed, Rank(0), self.rsn);
            self.host.tell(&ToKeeper::Replayed { messages: self.shown_again });
        }
    }

    /// Connects to the keeper again, if it no longer knows of this rank. What it cannot reach it
    /// tries again at the next call.
    ///
    /// # Errors
    /// When the keeper refuses this incarnation.
    pub(super) fn stay_connected(&mut self) -> Result<(), RankError> {
        if self.host.is_connected() {
            return Ok(());
        }
        match self.host.connect_again(ADMISSION_TIMEOUT) {
            Ok(()) => {
                // What was told last may be lost with the connection.
                self.owes_replayed = true;
                self.report_if_replayed();
                Ok(())
            }
            Err(AdmissionError::Unreachable(_)) => Ok(()),
            Err(AdmissionError::Refused(reason)) => Err(RankError::Refused(reason)),
        }
    }

    pub(super) fn trace(&mut self, what: What, peer: Rank, number: u64) {
        let clock = self.script.clock();
        self.host.trace(what, clock, peer.0, number);
    }

    fn be_admitted(&mut self) -> Result<WindowsOf<H>, RankError> {
        let begun = self.host.now();
        let mut pause = FIRST_PAUSE;
        loop {
            let waited = self.host.now().saturating_sub(begun);
            let cause = match self.host.admit(ADMISSION_TIMEOUT.saturating_sub(waited)) {
                Ok(windows) => return Ok(windows),
                Err(AdmissionError::Refused(reason)) => return Err(RankError::Refused(reason)),
                Err(AdmissionError::Unreachable(cause)) => cause,
            };
            let waited = self.host.now().saturating_sub(begun);
            if waited > ADMISSION_TIMEOUT {
                return Err(RankError::KeeperOutOfReach { waited, cause });
            }
            self.host.let_pass(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    fn open(&mut self, windows: WindowsOf<H>) -> Result<(), RankError> {
        let Windows { ledgers, own, mut regions, bells, spilled } = windows;
        let layout = |rank| Layout::new(rank, ledgers.ranks, ledgers.region_bytes);
        let me = self.number.0;
        let sent = &self.sent;
        let writer = Writer::open(own, layout(me), |to| sent[to as usize], sizes());
        let writer = writer.map_err(RankError::Ledger)?;
        let mut observed =
            ObservedReader::open(&regions[me as usize], layout(me), self.host.observed())
                .map_err(RankError::Ledger)?;
        let mut parts = Vec::new();
        while let Some(part) = observed.next().map_err(RankError::Ledger)? {
            let from = part.from;
            let clock = part.clock;
            let bytes = part.bytes.to_vec();
            parts.push(ObservedPart { from, clock, bytes });
        }
        drop(observed);
        let mut observed_at = parts.last().map_or(0, |part| part.clock);
        if active(Mutation::ForgetWhenItObserved) {
            observed_at = 0;
        }
        let (bytes, again) = behind(self.host.observed(), parts);
        self.again = again;
        self.host.observe_again(bytes);
        // Two readers of the own region: of what it sends to itself, and of its order.
        let order = regions[me as usize].clone();
        self.script.load(order, layout(me), observed_at).map_err(RankError::Ledger)?;
        let spilled = SpilledMessages::behind(&self.shown, spilled)?;
        let readers = (0..)
            .zip(regions.drain(..))
            .map(|(from, region)| {
                let behind = self.shown[from as usize].max(spilled.newest(from));
                let early = u64::from(active(Mutation::BeginTooEarly));
                Reader::new(region, layout(from), me, behind.saturating_sub(early))
            })
            .collect();
        let bells = Bells::new(bells, ledgers.ranks);
        self.attached = Some(Attached {
            writer,
            readers,
            bells,
            spilled,
            passed: self.shown.clone(),
            showing: Vec::with_capacity(self.shown.len()),
            first: 0,
            partial: vec![(0, 0); self.shown.len()],
            ahead: vec![Ahead::default(); self.shown.len()],
            is_unnamed: false,
        });
        if !active(Mutation::ForgetBoards) {
            self.write_boards();
        }
        let again = u64::from(!self.script.is_over());
        self.trace(What::Replay, Rank(0), again);
        Ok(())
    }

    /// Says to all others, on their boards, how many messages there are for them: hints that an
    /// earlier incarnation may have been killed before.
    fn write_boards(&mut self) {
        let Some(attached) = &self.attached else { return };
        for to in 0..self.sent.len() as u32 {
            let newest = attached.writer.newest(to);
            if newest > 0 && attached.bells.ring(to, self.number.0, newest) {
                self.host.wake(attached.bells.word(to));
            }
        }
    }
}
