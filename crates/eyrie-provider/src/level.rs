//! What this rank may use of its processor (`eyrie run --cpu`), and this library with it: the
//! libraries in it choose their code once, by what cpuid shows them, and a restored rank goes on
//! with that choice. Must run before anything else here asks the processor.

use eyrie_image::hide;
use eyrie_image::processor::{self, Level};
use eyrie_wire::agent::ENV_CPU;
use std::sync::OnceLock;

static LEVEL: OnceLock<Level> = OnceLock::new();

/// The level; `None`: the rank may use all that its processor has.
pub fn level() -> Option<&'static Level> {
    LEVEL.get()
}

/// Reads the level from the environment, and has the libraries in this one find no more than that.
/// Where cpuid cannot be made to show less, images demand what they use as well.
pub fn prepare() {
    let Some(text) = std::env::var_os(ENV_CPU) else { return };
    let Some(level) = Level::parse(text.as_encoded_bytes()) else { return };
    // SAFETY: MPI libraries start one provider at a time, before they start threads that set the
    // action of SIGSEGV; libeyrie-calls, which does the same, has done it when it was loaded.
    let hidden = unsafe { hide::hidden(&level, eyrie_transport::choose_code) };
    let features = level.demanded(&processor::of_this_node().features, hidden);
    let _ = LEVEL.set(Level { features, ..level });
}
