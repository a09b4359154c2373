//! What a region says of its rank's past, for the controller. The rank's process has ended, as far
//! as is known; what lies there may be damaged all the same, and is said then.

use eyrie_ledger::error::LedgerError;
use eyrie_ledger::layout::Layout;
use eyrie_ledger::memory::View;
use eyrie_ledger::observed::ObservedReader;
use eyrie_ledger::order::OrderReader;
use eyrie_router::BEGINNING;
use eyrie_wire::data::{Determinant, ObservedPart};

/// The last determinant of a rank, if there is one.
///
/// # Errors
/// When the ledger is damaged.
pub fn last_determinant(
    view: &impl View,
    layout: &Layout,
) -> Result<Option<Determinant>, LedgerError> {
    let order = OrderReader::open(view, *layout, u64::MAX)?;
    let last = Determinant { clock: order.clock(), rsn: order.rsn() };
    Ok(Some(last).filter(|last| last.clock > 0))
}

/// The first parts of what a rank has observed, of about [`BEGINNING`] bytes, for the case that it
/// is started anew. None when an image has them: then they may be released.
///
/// # Errors
/// When the ledger is damaged.
pub fn beginning(view: &impl View, layout: &Layout) -> Result<Vec<ObservedPart>, LedgerError> {
    let mut reader = match ObservedReader::open(view, *layout, 0) {
        Err(LedgerError::Gone { .. }) => return Ok(Vec::new()),
        reader => reader?,
    };
    let mut parts = Vec::new();
    while let Some(part) = reader.next()? {
        if part.from >= BEGINNING {
            break;
        }
        let cut = ObservedPart::cut(part.clock, part.from, part.bytes);
        parts.extend(cut.map(|part| part.to_owned()));
    }
    Ok(parts)
}
