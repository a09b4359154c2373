//! The table of functions of libeyrie-calls, which is preloaded into ranks. A static program has
//! not loaded it. A table of another version must never be used.

use crate::symbol;
use eyrie_calls_table::{Head, OtherVersion, Table, SYMBOL, WITHOUT_TABLE};
use eyrie_wire::agent::capture_signal;
use std::sync::atomic::{AtomicPtr, Ordering};

static TABLE: AtomicPtr<Table> = AtomicPtr::new(std::ptr::null_mut());

/// The table, if the process has one and [`begin`] has found it. Async-signal-safe.
#[inline]
pub fn functions() -> Option<&'static Table> {
    // SAFETY: only `begin` sets it, to a table that is never unloaded.
    unsafe { TABLE.load(Ordering::Relaxed).as_ref() }
}

/// Looks for the table and tells libeyrie-calls that this process is a rank. `store` returns when
/// what was observed is safe.
///
/// # Errors
/// When libeyrie-calls is of another release.
pub fn begin(store: extern "C" fn()) -> Result<(), String> {
    let Some(table) = find().map_err(|e| e.to_string())? else { return Ok(()) };
    (table.store_by)(store);
    TABLE.store(std::ptr::from_ref(table).cast_mut(), Ordering::Relaxed);
    (table.begin)(capture_signal());
    Ok(())
}

fn find() -> Result<Option<&'static Table>, OtherVersion> {
    let symbol = |name| {
        // SAFETY: a pointer to whatever has the name.
        unsafe { symbol::function::<*const Head>(libc::RTLD_DEFAULT, name) }
    };
    match symbol(SYMBOL) {
        // SAFETY: only libeyrie-calls exports that name, for its table.
        Some(head) => unsafe { Table::of_head(head) }.map(Some),
        None if symbol(WITHOUT_TABLE).is_some() => {
            Err(OtherVersion { calls: Head::NONE, provider: Head::THIS })
        }
        None => Ok(None),
    }
}
