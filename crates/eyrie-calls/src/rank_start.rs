//! When this process becomes a rank. If the agent itself has started it, this is when the library
//! is loaded. If a script has started it, the provider says when.

use crate::{
    early_clocks, environment, files, interruption, level, observed, own_stack, process, program,
    random, stack_guard,
};

/// The provider tells that this process is a rank, and by which signal images are asked for.
pub extern "C" fn eyrie_calls_begin(capture_signal: libc::c_int) {
    interruption::begin(capture_signal);
    begin();
}

fn begin() {
    level::keep();
    random::begin();
    observed::begin(|stream| {
        early_clocks::begin(stream);
        process::begin(stream);
        program::begin(stream);
    });
    if observed::is_on() {
        files::begin();
    }
}

extern "C" fn look() {
    if environment::agent_channel().is_none() || !own_stack::prepare() {
        return;
    }
    // SAFETY: the process has one thread as yet.
    unsafe { stack_guard::replace() };
    // SAFETY: no thread observes anything yet. (The agent may be another one in each incarnation.)
    if unsafe { own_stack::run(is_started_by_agent, 0) } != 0 {
        begin();
    }
}

extern "C" fn is_started_by_agent(_: usize) -> i64 {
    environment::is_started_by_agent().into()
}

#[used]
#[link_section = ".init_array"]
static LOOK: extern "C" fn() = look;
