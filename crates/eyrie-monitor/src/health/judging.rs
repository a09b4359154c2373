//! Judges a node right after its samples, so that this too happens at the same moment everywhere.

use super::{Event, Health, World};
use crate::clock::Clock;
use crate::ring::Ring;
use std::time::{Duration, Instant};

/// Longer than any interval. The end of the monitor ends the wait early.
const LONG: Duration = Duration::from_secs(365 * 86_400);

/// Judges until the ring ends its waits. `changed` is called with what has changed.
pub fn judge(
    health: &mut Health,
    world: &World,
    ring: &Ring,
    mut changed: impl FnMut(&Health, &[Event]),
) {
    let begin = Instant::now();
    let mut seen = None;
    let mut next = Duration::ZERO;
    loop {
        // Rules are rarely due; in between the thread does not wake up.
        if let Some(wait) = next.checked_sub(begin.elapsed()) {
            std::thread::sleep(wait);
        }
        let Some(frame) = ring.wait(seen, LONG) else { return };
        seen = Some(frame.head.number);
        let events = health.check(world, begin.elapsed(), Clock::Realtime.now_ns());
        if !events.is_empty() {
            changed(health, &events);
        }
        next = health.next_due();
    }
}
