//! The state of a process that is started as ranks are: random bytes that replace the kernel's, and
//! addresses that are not randomized.

use super::trials::Trials;
use serde::{Deserialize, Serialize};
use std::process::Command;

use std::ffi::OsStr;

/// What the process found.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Start {
    /// The bytes at AT_RANDOM.
    pub random: [u8; 16],
    pub fixed_addresses: bool,
}

/// Runs in the trial.
pub fn show_start() -> Start {
    // SAFETY: the kernel puts 16 bytes at AT_RANDOM. personality with this argument only returns
    // the present one.
    unsafe {
        let at = libc::getauxval(libc::AT_RANDOM) as *const [u8; 16];
        let personality = libc::personality(0xffff_ffff);
        Start {
            random: at.read_unaligned(),
            fixed_addresses: personality & libc::ADDR_NO_RANDOMIZE == libc::ADDR_NO_RANDOMIZE,
        }
    }
}

impl Trials<'_> {
    /// The command of a process that prints this on its standard output. The caller that starts it
    /// replaces the random bytes.
    pub fn start(&self) -> Command {
        self.command(&[OsStr::new("start")])
    }
}
