//! Where a role listens.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// An address: a Unix socket on the same host.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Addr {
    Unix(PathBuf),
}

impl std::fmt::Display for Addr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Addr::Unix(path) => path.display().fmt(f),
        }
    }
}
