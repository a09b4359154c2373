//! Advice that keeps memory from a child. It is lifted during the clone and must always be given
//! again.

use super::own::advise;
use super::ranges::Range;
use crate::refusal::{Refusal, Text};
use eyrie_image_format::advice;
use eyrie_image_kernel::sys;

/// Advice that keeps memory from a child and is lifted during the clone.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Lifted {
    pub range: Range,
    /// A bit of [`advice`].
    pub advice: u32,
}

/// Lifts advice, so that a child gets the memory.
pub fn lift(lifted: &[Lifted]) -> Result<(), Refusal> {
    for l in lifted {
        let (what, undone) = match l.advice {
            advice::DONT_FORK => {
                ("memory that a device uses and no child may inherit", sys::MADV_DOFORK)
            }
            _ => ("memory that no child may inherit", sys::MADV_KEEPONFORK),
        };
        let refuse = Refusal::Mapping { start: l.range.0, what, name: Text::new(b"") };
        advise(l.range, undone).map_err(|_| refuse)?;
    }
    Ok(())
}

/// Gives the advice again that [`lift`] has lifted.
pub fn give_back(lifted: &[Lifted]) {
    for l in lifted {
        let what = match l.advice {
            advice::DONT_FORK => sys::MADV_DONTFORK,
            _ => sys::MADV_WIPEONFORK,
        };
        let _ = advise(l.range, what);
    }
}
