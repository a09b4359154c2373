//! Cuts a damaged channel behind its last sound message, after the rank that writes it has died of
//! that: when the rank is executed again it writes the rest anew. A channel must not be cut before
//! a message that its receiver, or an image of that, has counted. Only tests do this so far: a
//! ledger that is damaged ends the job.

use crate::cursor::Cursor;
use crate::error::LedgerError;
use crate::layout::{channel, extent, Channel, Layout, Rank};
use crate::memory::Memory;

/// Ends the messages to a rank behind message `behind`. The region's writer is dead, and its next
/// incarnation has not begun. It may be repeated, also where it was interrupted.
///
/// # Errors
/// When what lies before is damaged, too.
///
/// # Panics
/// When the job has no such rank.
pub fn cut(
    memory: &impl Memory,
    layout: &Layout,
    to: Rank,
    behind: u64,
) -> Result<(), LedgerError> {
    assert!(to < layout.ranks(), "rank {to} of {}", layout.ranks());
    let index = layout.index(Channel::Rank(to));
    let mut cursor = Cursor::new(*layout, index, behind + 1);
    cursor.find(memory)?;
    // What lies behind is in no chain, before the message goes: then it can be used again.
    memory.store(cursor.extent + extent::NEXT, 0);
    memory.store_release(cursor.at, 0);
    memory.store_release(layout.channel(index) + channel::NEWEST, behind);
    Ok(())
}
