//! What a rank does to files is done once: calls that change names, make files or cut them are
//! written down with what became of them ([`crate::observed`]), and a rank that is executed again
//! is told so instead of making them again. Files that it opens again to write have stand-ins
//! ([`standing_in`]) until it is where it had come to. Only calls of the thread that has called
//! MPI_Init count, and only in its program; nothing here allocates.

mod calling;
mod change;
mod directories;
pub(crate) mod in_image;
mod in_place;
mod kernel;
mod locking;
mod looking;
mod names;
mod opening;
pub(crate) mod path;
mod records;
pub(crate) mod standing_in;
pub(crate) mod storing;
mod temporary;

pub use locking::*;
pub use looking::*;
pub use names::*;
pub use opening::*;
pub use temporary::*;

use crate::observed::is_on;

/// The process ends: what the C library still has in its buffers goes to the files themselves.
extern "C" fn end() {
    if standing_in::any() && is_on() {
        // SAFETY: nothing is written down any more.
        unsafe { standing_in::table() }.put_into_effect();
    }
}

#[used]
#[link_section = ".fini_array"]
static END: extern "C" fn() = end;
