//! Keeps this library to what the rank may use of its processor (`eyrie run --cpu`): blake3 in it
//! chooses its code once, by what cpuid shows, and a restored rank goes on with that choice. Must
//! run before anything is hashed here.

use crate::environment::variable;
use eyrie_image_kernel::hide;
use eyrie_image_kernel::processor::Level;
use std::ffi::CStr;
use std::sync::Once;

/// As eyrie-wire names it.
const ENV_CPU: &CStr = c"EYRIE_CPU";

static ONCE: Once = Once::new();

/// Has blake3 choose its code by what the level has. Where that cannot be, the provider says in
/// each image what was chosen.
pub fn keep() {
    ONCE.call_once(|| {
        let level = variable(ENV_CPU).and_then(|text| Level::parse(text.to_bytes()));
        let Some(level) = level else { return };
        let choose = || {
            std::hint::black_box(blake3::keyed_hash(&[0; 32], &[]));
        };
        // SAFETY: this is the loader, or the provider while it starts: no thread sets the action of
        // SIGSEGV meanwhile.
        unsafe { hide::hidden(&level, choose) };
    });
}
