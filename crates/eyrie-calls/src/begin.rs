//! When this process becomes a rank: as a rule when the library is loaded, because the agent itself
//! has started it; one that a script has started, when the provider says so.

use crate::{environment, interruption, observed, process, random};

/// The provider tells that this process is a rank, and by which signal images are asked for.
#[no_mangle]
pub extern "C" fn eyrie_calls_begin(capture_signal: libc::c_int) {
    interruption::begin(capture_signal);
    begin();
}

fn begin() {
    random::begin();
    observed::begin(process::begin);
}

extern "C" fn look() {
    if environment::is_started_by_agent() {
        begin();
    }
}

#[used]
#[link_section = ".init_array"]
static LOOK: extern "C" fn() = look;
