//! What the provider does to a rank's stream of observations, for programs that have our functions
//! linked in and are the provider, too.

use eyrie_calls::for_provider::*;

/// What was recorded since the last time.
pub fn take() -> Vec<u8> {
    let entered = eyrie_calls_enter();
    let mut bytes = std::ptr::null();
    let mut from = 0;
    // SAFETY: in a call of the provider; the bytes are copied at once.
    let taken = unsafe {
        match eyrie_calls_take(&mut bytes, &mut from) {
            0 => Vec::new(),
            len => std::slice::from_raw_parts(bytes, len).to_vec(),
        }
    };
    eyrie_calls_leave(entered);
    taken
}

/// The rank has died, and is executed again with what is known.
pub fn again(known: &[u8]) {
    // SAFETY: the bytes stay as long as the process.
    unsafe { eyrie_calls_again(known.to_vec().leak().as_ptr(), known.len()) };
}
