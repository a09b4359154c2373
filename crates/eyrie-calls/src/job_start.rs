//! When the job began on this host, and so which files it may have changed. It must never ask the
//! kernel anything: what it is asked about files comes with each call.

use std::sync::atomic::{AtomicI64, Ordering};

/// In nanoseconds of CLOCK_REALTIME.
static BEGAN_NS: AtomicI64 = AtomicI64::new(i64::MAX);

const SECOND_NS: i64 = 1_000_000_000;
/// By how much the clocks of hosts and file servers may differ, or times of files be coarse.
const MARGIN_NS: i64 = 2 * SECOND_NS;
/// The same of a file system of this host that keeps nanoseconds: they are of the kernel's coarse
/// clock, which ticks every 1 to 10 ms, and when the agent began is known to 10 ms.
const FINE_MARGIN_NS: i64 = 25_000_000;

/// The job began then on this host, or on the one on which this rank was at its beginning.
pub fn set(ns: i64) {
    BEGAN_NS.store(ns, Ordering::Relaxed);
}

/// Whether a file that was changed at this time (its ctime) may have been changed by the job.
/// `is_fine` says whether it is on a file system of this host that keeps nanoseconds; it is asked
/// only where that matters.
pub fn changed_in_job(changed_ns: i64, is_fine: impl FnOnce() -> bool) -> bool {
    let began = BEGAN_NS.load(Ordering::Relaxed);
    if changed_ns >= began.saturating_sub(FINE_MARGIN_NS) {
        return true;
    }
    // A whole second: the file system may have been made without room for more.
    let may_be_coarse = changed_ns % SECOND_NS == 0;
    changed_ns >= began.saturating_sub(MARGIN_NS) && (may_be_coarse || !is_fine())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_count_as_far_as_they_are_known() {
        const BEGAN: i64 = 1_000 * SECOND_NS;
        set(BEGAN);
        let at =
            |before_ms: i64, is_fine| changed_in_job(BEGAN - before_ms * 1_000_000, || is_fine);
        assert!([0, -1, 10].iter().all(|ms| at(*ms, true) && at(*ms, false)));
        assert_eq!([at(500, true), at(500, false)], [false, true]);
        assert_eq!([at(1_000, true), at(2_500, true), at(2_500, false)], [true, false, false]);
    }
}
