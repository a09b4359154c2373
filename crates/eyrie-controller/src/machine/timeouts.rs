//! How long the machine waits for whom.

use std::time::Duration;

/// How long an agent may take to start a program.
pub const START_TIMEOUT: Duration = Duration::from_secs(60);
/// What a restore may take besides moving the image, and how fast that is at least, in bytes per
/// second.
pub const RESTORE_TIMEOUT: Duration = Duration::from_secs(60);
pub const SLOWEST_TRANSFER: u64 = 10 << 20;
/// How long a router may take to confirm a fence. It never waits for anybody in between, so that
/// this is generous.
pub const FENCE_TIMEOUT: Duration = Duration::from_secs(60);
