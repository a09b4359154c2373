//! What a rank does to files is done once, and what it observes of them it observes again. Calls
//! are recorded with their results ([`crate::observed`]), and a rank that is executed again gets
//! the results instead of making the calls again. Only calls of the thread that has called MPI_Init
//! count, and only in its program. Nothing here may allocate.

mod address_space;
mod asking;
mod asynchronous;
mod attributes;
pub(crate) mod buffers;
#[cfg(naked_functions)]
mod by_number;
mod calling;
mod change;
mod children;
mod commit;
mod copying;
mod directories;
pub(crate) mod far;
mod freshness;
pub(crate) mod held_locks;
mod host_names;
pub(crate) mod in_image;
mod keeping;
pub(crate) mod kernel;
mod listing;
#[cfg(naked_functions)]
mod loading;
mod lock_calls;
mod looking;
mod mapping;
mod memory;
mod names;
mod once;
mod open_calls;
mod open_records;
mod others;
pub(crate) mod own_mapping;
pub(crate) mod path;
pub(crate) mod pending;
pub(crate) mod pipes;
mod places;
mod processor_time;
mod reading;
mod recent;
mod records;
pub(crate) mod saying;
pub(crate) mod standing_in;
mod stdio;
pub(crate) mod storing;
mod temporary;
mod under_lock;
mod walking;
pub(crate) mod writing;

pub use asking::*;
pub use asynchronous::*;
pub use attributes::*;
#[cfg(naked_functions)]
pub use by_number::our_syscall;
pub use children::*;
pub use copying::*;
pub use host_names::*;
pub use listing::*;
#[cfg(naked_functions)]
pub use loading::*;
pub use lock_calls::*;
pub use looking::*;
pub use mapping::*;
pub use names::*;
pub use open_calls::*;
pub use places::*;
pub use processor_time::*;
pub use reading::*;
pub use temporary::*;
pub use walking::*;
pub use writing::*;

use crate::observed::is_on;

/// What a rank does by streams of the C library counts, too.
pub(crate) fn begin() {
    stdio::begin();
}

/// The process ends: what the C library still has in its buffers goes to the files themselves.
extern "C" fn end() {
    if !is_on() {
        return;
    }
    if pending::any() {
        // SAFETY: nothing is recorded any more.
        unsafe { standing_in::table() }.put_into_effect();
    }
    keeping::end();
}

#[used]
#[link_section = ".fini_array"]
static END: extern "C" fn() = end;
