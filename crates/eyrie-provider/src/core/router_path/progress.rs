//! What becomes visible in a progress call, and what the call tells the routers.

use super::host::Host;
use super::replay;
use super::RouterPath;
use crate::core::error::RankError;
use crate::core::path::{Arrived, Found, Show, Turn};
use eyrie_wire::data::Determinant;
use eyrie_wire::directory::KeptUntil;
use eyrie_wire::page::What;
use std::io;
use std::time::Duration;

/// Determinants that the primary router is not known to hold, where it must, before they are sent
/// by themselves; tests are short.
const MAX_UNSTORED: usize = if cfg!(test) { 8 } else { 64 };
/// Bytes observed that are sent by themselves when nothing else is; tests are short.
const MOST_WAITING: usize = if cfg!(test) { 8 } else { 16 << 10 };
/// How long a replaying rank waits for the next message from the log.
const REPLAY_TIMEOUT: Duration = Duration::from_secs(120);
/// Ticks between two looks at whether the send streams of a waiting rank still stand: about a
/// millisecond.
const LOOK_GAP: u64 = 3_000_000;

impl<H: Host> RouterPath<H> {
    pub(super) fn begin_progress(&mut self) -> Result<Turn, RankError> {
        self.seen = self.now();
        self.look_at_directory();
        self.connect()?;
        let turn = match self.replay.tick() {
            replay::Turn::Free => {
                self.host.before_new();
                Turn::New
            }
            replay::Turn::Nothing => Turn::Nothing,
            replay::Turn::UpTo { rsn, last } => {
                self.due = (rsn, last);
                Turn::Again
            }
        };
        self.end_observed();
        Ok(turn)
    }

    /// Shows what has arrived; the primary router hears of it.
    pub(super) fn show_arrived(
        &mut self,
        sleep: bool,
        show: &mut impl Show,
    ) -> Result<Found, RankError> {
        let before = self.delivery.rsn();
        let mut reported = Ok(());
        if sleep {
            self.send_determinants()?;
            reported = self.delivery.report_received();
        }
        let came = reported.and_then(|()| self.delivery.receive(sleep));
        let something = matches!(came, Ok(true));
        let shown = match came {
            Ok(_) if self.delivery.is_all_shown() => Ok(()),
            Ok(_) => self.show(u64::MAX, show)?,
            Err(e) => Err(e),
        };
        if let Err(e) = shown {
            self.lose_delivery(&e)?;
        }
        let rsn = self.delivery.rsn();
        let messages = rsn > before;
        if messages {
            self.unstored.push(Determinant { clock: self.replay.clock(), rsn });
        }
        if self.kept_until == KeptUntil::Received {
            self.seen = self.now();
            self.report_progress()?;
        }
        Ok(Found { something, messages })
    }

    pub(super) fn look_after_streams(&mut self, found: Found, now: u64) -> Result<(), RankError> {
        if found.something {
            self.send_much_observed()?;
        } else if now.wrapping_sub(self.last_look) > LOOK_GAP {
            self.last_look = now;
            self.send_much_observed()?;
            self.look_after_senders()?;
        }
        Ok(())
    }

    /// Shows what was shown at this clock before; waits for it.
    pub(super) fn show_due(&mut self, show: &mut impl Show) -> Result<(), RankError> {
        let (rsn, last) = self.due;
        let mut begun = self.host.now();
        loop {
            let shown = self.show(rsn, show)?;
            if self.delivery.rsn() == rsn {
                break;
            }
            match shown.and_then(|()| self.delivery.receive(true)) {
                // A large message takes its time.
                Ok(true) => begun = self.host.now(),
                Ok(false) if self.delivery.is_alone() => {
                    // A message is missing: only the router can have it, or say that it has not.
                    self.delivery.disconnect();
                    self.connect()?;
                }
                Ok(false) => {}
                Err(e) => {
                    self.lose_delivery(&e)?;
                    self.connect()?;
                }
            }
            self.look_at_directory();
            let waited = self.host.now().saturating_sub(begun);
            if waited > REPLAY_TIMEOUT {
                let router = self.host.primary_router(self.number);
                let rsn = self.delivery.rsn() + 1;
                return Err(RankError::NoReplay { router, rsn, waited });
            }
        }
        if last {
            self.report_if_replayed();
        }
        self.seen = self.now();
        Ok(())
    }

    /// Shows messages that have been read, up to `up_to`.
    fn show(&mut self, up_to: u64, show: &mut impl Show) -> Result<io::Result<()>, RankError> {
        let host = &mut self.host;
        let clock = self.replay.clock();
        self.delivery.show(up_to, |deliver, payload| {
            host.trace(What::Shown, clock, deliver.source.0, deliver.rsn);
            let source = deliver.source;
            let envelope = deliver.envelope;
            show.show(&Arrived { source, envelope, len: deliver.size as usize }, payload)
        })
    }

    /// The clock has ticked: what was observed before has been observed again, or never will be.
    pub(super) fn end_observed(&mut self) {
        if let Some(end) = self.again.end_before(self.replay.clock()) {
            self.host.skip_observed(end);
        }
    }

    /// Sends what was observed when it has become much.
    pub(super) fn send_much_observed(&mut self) -> Result<(), RankError> {
        if self.host.observed_waiting() >= MOST_WAITING {
            self.send_determinants()
        } else {
            Ok(())
        }
    }

    /// After messages were shown, tells the primary router what was received before that is too
    /// much, and that a re-execution has ended.
    pub(super) fn report_progress(&mut self) -> Result<(), RankError> {
        if self.unstored.len() >= MAX_UNSTORED && self.unstored.len() % MAX_UNSTORED == 0 {
            self.send_determinants()?;
        }
        self.report_if_replayed();
        if self.delivery.owes_receipt() {
            if let Err(e) = self.delivery.report_received() {
                self.lose_delivery(&e)?;
            }
        }
        Ok(())
    }
}
