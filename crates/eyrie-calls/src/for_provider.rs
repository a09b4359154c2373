//! What the provider calls: it says when it is in a call or takes an image, takes what was written
//! down, and gives what is to be observed again.

use crate::files::{far, in_image, locks, pending, standing_in, storing};
use crate::host_clocks;
use crate::observed::{
    is_on, stream, this_thread, BUSY, HELD, INSIDE, OWNER, SEVERAL, SIGNAL, UNDERWAY, WAITS,
};
use crate::stream::Writer;
use libc::c_int;
use std::sync::atomic::Ordering;

/// A call of the provider begins in this thread: what it observes is its own, and what the owner
/// observes waits. Returns what [`eyrie_calls_leave`] is to be told.
#[no_mangle]
pub extern "C" fn eyrie_calls_enter() -> usize {
    if OWNER.load(Ordering::Relaxed) == this_thread() {
        INSIDE.store(INSIDE.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        return BY_OWNER;
    }
    if !is_on() {
        return BY_NOBODY;
    }
    if !SEVERAL.swap(true, Ordering::SeqCst) {
        see_it_everywhere();
    }
    HELD.store(true, Ordering::SeqCst);
    while BUSY.load(Ordering::SeqCst) {
        // SAFETY: gives up the processor.
        unsafe { libc::sched_yield() };
    }
    BY_OTHER
}

const BY_NOBODY: usize = 0;
const BY_OWNER: usize = 1;
const BY_OTHER: usize = 2;

/// It is over.
#[no_mangle]
pub extern "C" fn eyrie_calls_leave(entered: usize) {
    match entered {
        BY_OWNER => INSIDE.store(INSIDE.load(Ordering::Relaxed) - 1, Ordering::Relaxed),
        BY_OTHER => HELD.store(false, Ordering::SeqCst),
        _ => {}
    }
}

/// An image is about to be taken in this thread: if it is the owner, what it observes is not its
/// program's. Returns what [`eyrie_calls_leave`] is to be told.
#[no_mangle]
pub extern "C" fn eyrie_calls_enter_for_image() -> usize {
    match OWNER.load(Ordering::Relaxed) == this_thread() {
        true => eyrie_calls_enter(),
        false => BY_NOBODY,
    }
}

/// An image is to be taken: nothing is being written down when this returns 1, and nothing will be
/// before [`eyrie_calls_release`]; or 2, when that was so already. 0: something is, and the signal
/// comes when it is over; or files have stand-ins, which no image can hold; or the rank has just
/// locked a file, and has perhaps read what it will write back.
#[no_mangle]
pub extern "C" fn eyrie_calls_hold(signal: c_int) -> c_int {
    if !is_on() {
        return 1;
    }
    SIGNAL.store(signal, Ordering::Relaxed);
    if locks::is_short() {
        WAITS.store(true, Ordering::SeqCst);
        return 0;
    }
    host_clocks::set_began(host_clocks::began_ns());
    if OWNER.load(Ordering::Relaxed) == this_thread() {
        let busy = BUSY.load(Ordering::Relaxed) || UNDERWAY.load(Ordering::Relaxed);
        WAITS.store(busy, Ordering::Relaxed);
        // SAFETY: the owner is here, and in no call.
        return (!busy && unsafe { !standing_in::keep_images_away() }).into();
    }
    if HELD.swap(true, Ordering::SeqCst) {
        return 2;
    }
    see_it_everywhere();
    for _ in 0..10_000 {
        let busy = BUSY.load(Ordering::SeqCst) || UNDERWAY.load(Ordering::SeqCst);
        // SAFETY: the owner is held, and in no call.
        if !busy && unsafe { standing_in::keep_images_away() } {
            HELD.store(false, Ordering::SeqCst);
            return 0;
        }
        if !busy {
            return 1;
        }
        // SAFETY: gives up the processor.
        unsafe { libc::sched_yield() };
    }
    HELD.store(false, Ordering::SeqCst);
    WAITS.store(true, Ordering::SeqCst);
    0
}

/// The image was taken, or this process has come back from it.
#[no_mangle]
pub extern "C" fn eyrie_calls_release() {
    HELD.store(false, Ordering::SeqCst);
}

/// Every thread of this process sees what this one has written, and this one what they have.
fn see_it_everywhere() {
    const PRIVATE_EXPEDITED: c_int = 1 << 3;
    const REGISTER_PRIVATE_EXPEDITED: c_int = 1 << 4;
    // SAFETY: no memory is handed over. A restored process registers again.
    unsafe {
        libc::syscall(libc::SYS_membarrier, REGISTER_PRIVATE_EXPEDITED, 0, 0);
        libc::syscall(libc::SYS_membarrier, PRIVATE_EXPEDITED, 0, 0);
    }
}

/// Gives what was written down since it was last called: the number of bytes, where they are until
/// the next observation, and where in the stream they begin.
///
/// # Safety
/// In a call of the provider, or while the owner is held. Both pointers must be valid.
#[no_mangle]
pub unsafe extern "C" fn eyrie_calls_take(bytes: *mut *const u8, from: *mut u64) -> usize {
    // SAFETY: handed on to the caller.
    unsafe {
        let stream = stream();
        stream.writer.settle(&mut stream.buffer);
        let len = std::mem::take(&mut stream.buffer.len);
        stream.of_records = 0;
        *bytes = stream.buffer.at.load(Ordering::Relaxed);
        *from = stream.passed;
        stream.passed += len as u64;
        len
    }
}

/// Bytes of the stream that were taken, or observed again.
///
/// # Safety
/// As [`eyrie_calls_take`].
#[no_mangle]
pub unsafe extern "C" fn eyrie_calls_passed() -> u64 {
    // SAFETY: handed on to the caller.
    let stream = unsafe { stream() };
    stream.put_back_record();
    stream.passed
}

/// Bytes that wait to be taken.
///
/// # Safety
/// As [`eyrie_calls_take`].
#[no_mangle]
pub unsafe extern "C" fn eyrie_calls_waiting() -> usize {
    // SAFETY: handed on to the caller.
    unsafe { stream() }.buffer.len
}

/// These bytes, which stay where they are, are observed again behind what was, before anything
/// else. What was written down and not taken does not count.
///
/// # Safety
/// As [`eyrie_calls_take`].
#[no_mangle]
pub unsafe extern "C" fn eyrie_calls_again(bytes: *const u8, len: usize) {
    // SAFETY: handed on to the caller.
    let stream = unsafe { stream() };
    stream.set_again(bytes, len);
    if len > 0 && stream.buffer.len > 0 {
        (stream.buffer.len, stream.of_records) = (0, 0);
        stream.writer = Writer::new();
    }
}

/// Bytes up to this one will not be asked for any more.
///
/// # Safety
/// As [`eyrie_calls_take`].
#[no_mangle]
pub unsafe extern "C" fn eyrie_calls_skip(to: u64) {
    // SAFETY: handed on to the caller.
    unsafe { stream() }.skip(to);
}

/// The signal that the rank got at this clock before, if that is known; 0: none. -1: none, and
/// there is nothing more that it did before. `n` gets which of the job's it is.
///
/// # Safety
/// As [`eyrie_calls_take`]; `n` must be valid.
#[no_mangle]
pub unsafe extern "C" fn eyrie_calls_signal_again(clock: u64, n: *mut u64) -> c_int {
    if !is_on() {
        return -1;
    }
    // SAFETY: handed on to the caller.
    unsafe {
        match stream().signal_again(clock) {
            Some((number, signal)) => {
                *n = number;
                signal.into()
            }
            None if stream().is_new() => -1,
            None => 0,
        }
    }
}

/// The rank gets a signal at this clock, the `n`th of the job.
///
/// # Safety
/// As [`eyrie_calls_take`].
#[no_mangle]
pub unsafe extern "C" fn eyrie_calls_signal(clock: u64, n: u64, signal: u8) {
    if is_on() {
        // SAFETY: handed on to the caller.
        unsafe { stream() }.write_signal(clock, n, signal);
    }
}

/// `store` returns when the home router holds what was taken, and all that was written down until
/// then.
#[no_mangle]
pub extern "C" fn eyrie_calls_store_by(store: extern "C" fn()) {
    storing::store_by(store);
}

/// How much is to be done when the rank does something new: while that is nothing, the next one
/// need not be called.
#[no_mangle]
pub extern "C" fn eyrie_calls_standing_in() -> *const usize {
    pending::count()
}

/// The rank sends what it has never sent before, as far as anybody knows. What it did to files
/// behind that may be known all the same: the message can have been lost with the node of its
/// receiver.
///
/// # Safety
/// As [`eyrie_calls_take`].
#[no_mangle]
pub unsafe extern "C" fn eyrie_calls_new() {
    // SAFETY: handed on to the caller.
    unsafe {
        if stream().knows_no_call() {
            standing_in::table().put_into_effect();
        }
    }
}

/// All threads stand still for an image. Async-signal-safe.
///
/// # Safety
/// They must.
#[no_mangle]
pub unsafe extern "C" fn eyrie_calls_note_files() {
    if is_on() {
        // SAFETY: handed on to the caller.
        unsafe { in_image::note() };
    }
}

/// File systems of servers to which the rank has written, as stat(2) numbers their devices: an
/// image counts when that is written back. How many, at most as there is room for.
///
/// # Safety
/// All threads must stand still; `to` has room for so many.
#[no_mangle]
pub unsafe extern "C" fn eyrie_calls_far(to: *mut u64, room: usize) -> usize {
    let devices = far::devices().into_iter().filter(|device| *device != 0).take(room);
    // SAFETY: handed on to the caller.
    devices.enumerate().map(|(n, device)| unsafe { to.add(n).write(device) }).count()
}

/// This process has come back from an image, and nothing has gone on yet but this thread.
///
/// # Safety
/// As it says.
#[no_mangle]
pub unsafe extern "C" fn eyrie_calls_come_back() {
    if is_on() {
        // SAFETY: handed on to the caller.
        unsafe { in_image::come_back() };
        far::come_back();
    }
}
