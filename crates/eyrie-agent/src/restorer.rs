//! The restorer as an executable in memory, and what its exit codes mean.

use eyrie_wire::control::Ending;
use rustix::fs::MemfdFlags;
use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;

/// Placeholder until the image engine is merged.
const RESTORER: &[u8] = &[];

/// The restorer, ready to be executed.
///
/// # Errors
/// When there is no memory for it.
pub fn restorer() -> std::io::Result<OwnedFd> {
    let fd = rustix::fs::memfd_create("eyrie-restorer", MemfdFlags::CLOEXEC)?;
    let mut file = File::from(fd);
    file.write_all(RESTORER)?;
    Ok(file.into())
}

/// Why a restore ended before the rank spoke.
pub fn restorer_failure(ending: Ending) -> String {
    match ending {
        Ending::Signal(signal) => format!("killed by signal {signal} while it was restored"),
        Ending::Code(code) => format!("the restorer ended with code {code}"),
    }
}
