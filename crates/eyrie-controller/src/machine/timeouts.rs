//! How long the machine waits for whom.

use std::time::Duration;

/// How long an agent may take to start a program.
pub const START_TIMEOUT: Duration = Duration::from_secs(60);
/// What a restore may take besides moving the image, and how fast that is at least, in bytes per
/// second.
pub const RESTORE_TIMEOUT: Duration = Duration::from_secs(60);
pub const SLOWEST_TRANSFER: u64 = 10 << 20;
/// How long who waits for an image of a rank waits while none can be taken; one that is under way
/// has its own time.
pub const IMAGE_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a drained node without ranks may have roles that do not leave it.
pub const LEAVE_TIMEOUT: Duration = Duration::from_secs(120);
/// How long a router may take to confirm a fence. It never waits for anybody in between, so that
/// this is generous.
pub const FENCE_TIMEOUT: Duration = Duration::from_secs(60);
