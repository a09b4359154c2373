//! The socket at which a monitor answers `eyrie monitor dump`.

use super::client;
use anyhow::Context;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

/// A socket that is removed with its guard.
pub struct Socket(PathBuf);

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Makes this process's socket in `base`, a folder that only this user can enter.
pub fn listen(base: &Path) -> anyhow::Result<(UnixListener, Socket)> {
    let path = client::socket(base, std::process::id());
    let _ = std::fs::remove_file(&path);
    let listener =
        UnixListener::bind(&path).with_context(|| format!("cannot make {}", path.display()))?;
    Ok((listener, Socket(path)))
}
