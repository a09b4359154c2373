//! How long the machine waits for whom.

use std::time::Duration;

/// How long a rank that lives may take to connect again until it is said that it has not.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// How long an agent may take to start a program.
pub const START_TIMEOUT: Duration = Duration::from_secs(60);
/// What a restore may take besides moving the image, and how fast that is at least, in bytes per
/// second.
pub const RESTORE_TIMEOUT: Duration = Duration::from_secs(60);
pub const SLOWEST_TRANSFER: u64 = 10 << 20;

/// How long the restore of an image of so many bytes may take.
pub fn restore_timeout(bytes: u64) -> Duration {
    RESTORE_TIMEOUT + Duration::from_secs(bytes / SLOWEST_TRANSFER)
}

/// How long who waits for an image of a rank waits while none can be taken; one that is under way
/// has its own time.
pub const IMAGE_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a drained node without ranks may have roles that do not leave it.
pub const LEAVE_TIMEOUT: Duration = Duration::from_secs(120);
/// How long a router may take to confirm a fence. It waits for no other process in between, so that
/// this is generous.
pub const FENCE_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a checkpoint may take until its image begins to arrive. Its agent, which sees what the
/// rank does, refuses it sooner: after half a minute when the rank will not stand still, after ten
/// minutes when it may only be slow.
pub const BEGIN_TIMEOUT: Duration = Duration::from_secs(660);
/// How long one may take in all.
pub const STORE_TIMEOUT: Duration = Duration::from_secs(1800);
/// How soon an image that is waited for is tried again, when the rank could not be captured just
/// now.
pub const RETRY: Duration = Duration::from_millis(200);
/// How long a role may take to say where it listens.
pub const ROLE_TIMEOUT: Duration = Duration::from_secs(25);
/// How long routers, and the one who writes the rest of a job that is saved, may take.
pub const WRITE_TIMEOUT: Duration = Duration::from_secs(1800);
