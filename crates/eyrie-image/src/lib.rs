//! Process images: the capture in the process itself, and readers. [`capture`] and
//! all that it calls never allocate, lock or call the C library, because it may run in a signal
//! handler. The program that restores is embedded, see [`restore`].

mod capture;
mod carried;
mod holder;
pub mod inspect;
mod mapped;
mod outcome;
mod refusal;
mod request;
pub mod restore;
pub mod start;
mod tracker;

pub use capture::{beyond_level, is_made_up};
pub use eyrie_image_kernel::{fingerprint, hide, processor};
pub use holder::{Claim, Given, Holder};
pub use mapped::number_in_maps;
pub use outcome::Outcome;
pub use refusal::{Refusal, Text};
pub use request::{Hooks, Mode, Request, Track};
pub use tracker::Tracker;

/// Takes an image of the calling process.
///
/// Returns like `setjmp`: in the original with [`Outcome::Captured`], and once more with
/// [`Outcome::Restored`] in every process restored from the image. Async-signal-safe. Needs about 1
/// KiB of stack, and otherwise uses one of its own. All signals are blocked meanwhile, SIGPIPE
/// included. Other threads are stopped; in a restored process they continue like the calling one.
/// The caller closes `out_fd` in the original. If the reader closes the stream, the writing child
/// just ends.
///
/// # Safety
/// Only one capture at a time. The caller's state must be able to continue in another process:
/// after [`Outcome::Restored`] the process id, the parent and the other ends of descriptors differ.
pub unsafe fn capture(request: &Request) -> Outcome {
    // SAFETY: the caller keeps this contract, which is that of the function called.
    unsafe { capture::capture(request) }
}
