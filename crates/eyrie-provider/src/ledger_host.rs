//! This process as one that has ledgers: hands on to its windows.

use crate::core::ledger_path::host::{AdmissionError, LedgerHost};
use crate::sockets::Sockets;
use crate::windows::{Ledger, MappedWindows, SpilledOnDisk};
use eyrie_ledger::mapped::{Mapped, MappedHints, MappedView};
use eyrie_wire::keeper::ToKeeper;
use std::os::fd::RawFd;
use std::time::Duration;

impl LedgerHost for Sockets {
    type Own = Mapped;
    type Region = MappedView;
    type Bells = MappedHints;
    type Spilled = SpilledOnDisk;

    fn admit(&mut self, timeout: Duration) -> Result<MappedWindows, AdmissionError> {
        self.ledger.admit(&self.identity, timeout)
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
