//! This process as one that has ledgers: hands on to its windows.

use crate::core::ledger_path::host::{AdmissionError, LedgerHost, Windows};
use crate::sockets::Sockets;
use crate::windows::{Ledger, Opened};
use eyrie_ledger::mapped::{Mapped, MappedHints, MappedView};
use eyrie_wire::keeper::ToKeeper;
use std::os::fd::RawFd;
use std::time::Duration;

impl LedgerHost for Sockets {
    type Own = Mapped;
    type Region = MappedView;
    type Bells = MappedHints;

    fn admit(&mut self, timeout: Duration) -> Result<Windows<Self>, AdmissionError> {
        let Opened { ledgers, own, regions, bells, spilled } =
            self.ledger.admit(&self.identity, timeout)?;
        Ok(Windows { ledgers, own, regions, bells, spilled })
    }

    fn tell(&mut self, message: &ToKeeper) {
        self.ledger.tell(message);
    }

    fn is_connected(&mut self) -> bool {
        self.ledger.is_connected()
    }

    fn connect_again(&mut self, timeout: Duration) -> Result<(), AdmissionError> {
        self.ledger.connect_again(&self.identity, timeout)
    }

    fn forget_windows(&mut self) {
        self.ledger = Ledger::default();
    }

    fn keeper_descriptor(&self) -> Option<RawFd> {
        self.ledger.descriptor()
    }

    #[inline]
    fn wake(&self, at: u64) {
        self.ledger.wake(at);
    }

    fn sleep(&mut self, at: u64, value: u32) {
        self.ledger.sleep(at, value);
    }

    fn let_pass(&mut self, time: Duration) {
        std::thread::sleep(time);
    }
}
