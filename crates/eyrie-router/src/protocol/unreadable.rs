//! The fatal error of a router that cannot read back what it has logged.

use super::{Output, RouterEvent};
use eyrie_wire::Rank;

pub(super) fn unreadable<F>(rank: Rank, e: &std::io::Error, out: &mut impl Output<F>) {
    let reason = format!("the log of rank {rank} cannot be read back: {e}");
    out.event(RouterEvent::Fatal { reason });
}
