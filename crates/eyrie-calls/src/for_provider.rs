//! The functions that the provider calls, through [`crate::table`]. It says when it is in a call or
//! takes an image. It takes records, and gives the observations that are replayed.

use crate::files::{far, held_locks, in_image, own_mapping, standing_in, storing};
use crate::host_clocks;
use crate::observed::{
    is_on, stream, this_thread, BUSY, HELD, INSIDE, OWNER, SEVERAL, SIGNAL, UNDERWAY, WAITS,
};
use crate::stream::Writer;
use libc::c_int;
use std::sync::atomic::Ordering;

/// A call of the provider begins in this thread. Its observations do not count, and the owner's
/// observations wait. Returns the argument for [`eyrie_calls_leave`].
pub extern "C" fn eyrie_calls_enter() -> usize {
    if OWNER.load(Ordering::Relaxed) == this_thread() {
        INSIDE.store(INSIDE.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        return BY_OWNER;
    }
    if !is_on() {
        return BY_NONE;
    }
    if !SEVERAL.swap(true, Ordering::SeqCst) {
        see_it_everywhere();
    }
    HELD.store(true, Ordering::SeqCst);
    while BUSY.load(Ordering::SeqCst) {
        // SAFETY: sched_yield(2) has no arguments and touches no memory.
        unsafe { libc::sched_yield() };
    }
    BY_OTHER
}

const BY_NONE: usize = 0;
const BY_OWNER: usize = 1;
const BY_OTHER: usize = 2;

/// The call is over.
pub extern "C" fn eyrie_calls_leave(entered: usize) {
    match entered {
        BY_OWNER => INSIDE.store(INSIDE.load(Ordering::Relaxed) - 1, Ordering::Relaxed),
        BY_OTHER => HELD.store(false, Ordering::SeqCst),
        _ => {}
    }
}

/// An image is about to be taken in this thread. If the thread is the owner, its observations are
/// not its program's. Returns the argument for [`eyrie_calls_leave`].
pub extern "C" fn eyrie_calls_enter_for_image() -> usize {
    if OWNER.load(Ordering::Relaxed) == this_thread() {
        eyrie_calls_enter()
    } else {
        BY_NONE
    }
}

/// An image is to be taken. Returns 1 when nothing is being recorded, and nothing will be before
/// [`eyrie_calls_release`]; 2 when that was so already. Returns 0 in three cases. A record is being
/// made, and the signal comes when it is finished. Files have shadow files, which no image can
/// hold. The rank has just locked a file, and has perhaps read what it will write back.
pub extern "C" fn eyrie_calls_hold(signal: c_int) -> c_int {
    if !is_on() {
        return 1;
    }
    SIGNAL.store(signal, Ordering::Relaxed);
    if held_locks::is_short() {
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
        // SAFETY: sched_yield(2) has no arguments and touches no memory.
        unsafe { libc::sched_yield() };
    }
    HELD.store(false, Ordering::SeqCst);
    WAITS.store(true, Ordering::SeqCst);
    0
}

/// The image was taken, or this process has come back from it.
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

/// Gives the records since the last call: the number of bytes, where they are until the next
/// observation, and where in the stream they begin.
///
/// # Safety
/// In a call of the provider, or while the owner is held. Both pointers must be valid.
pub unsafe extern "C" fn eyrie_calls_take(bytes: *mut *const u8, from: *mut u64) -> usize {
    // SAFETY: the caller promises sole access to the stream, and two valid pointers.
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

/// Bytes of the stream that were taken, or replayed.
///
/// # Safety
/// As [`eyrie_calls_take`].
pub unsafe extern "C" fn eyrie_calls_passed() -> u64 {
    // SAFETY: the caller promises sole access to the stream.
    let stream = unsafe { stream() };
    stream.put_back_record();
    stream.passed
}

/// Bytes that wait to be taken.
///
/// # Safety
/// As [`eyrie_calls_take`].
pub unsafe extern "C" fn eyrie_calls_waiting() -> usize {
    // SAFETY: the caller promises sole access to the stream.
    unsafe { stream() }.waiting()
}

/// Replays these bytes, behind those replayed so far and before anything else. They must stay where
/// they are. Records that were not taken do not count.
///
/// # Safety
/// As [`eyrie_calls_take`].
pub unsafe extern "C" fn eyrie_calls_again(bytes: *const u8, len: usize) {
    // SAFETY: the caller promises sole access to the stream.
    let stream = unsafe { stream() };
    stream.set_again(bytes, len);
    if len > 0 && stream.waiting() > 0 {
        (stream.buffer.len, stream.of_records) = (0, 0);
        stream.writer = Writer::new();
    }
}

/// The provider will not ask for bytes up to this one any more.
///
/// # Safety
/// As [`eyrie_calls_take`].
pub unsafe extern "C" fn eyrie_calls_skip(to: u64) {
    // SAFETY: the caller promises sole access to the stream.
    unsafe { stream() }.skip(to);
}

/// The signal that the rank got at this clock before, if that is known; 0: none. -1: none, and
/// there is nothing more that it did before. `n` gets which of the job's it is.
///
/// # Safety
/// As [`eyrie_calls_take`]; `n` must be valid.
pub unsafe extern "C" fn eyrie_calls_signal_again(clock: u64, n: *mut u64) -> c_int {
    if !is_on() {
        return -1;
    }
    // SAFETY: the caller promises sole access to the stream, and that `n` is valid.
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
pub unsafe extern "C" fn eyrie_calls_signal(clock: u64, n: u64, signal: u8) {
    if is_on() {
        // SAFETY: the caller promises sole access to the stream.
        unsafe { stream() }.write_signal(clock, n, signal);
    }
}

/// `store` returns when the primary router holds all records that were made until then.
pub extern "C" fn eyrie_calls_store_by(store: extern "C" fn()) {
    storing::store_by(store);
}

/// The rank sends a message that is new, as far as its router knows. Later changes of files may be
/// known all the same, because the message may have been lost with the node of its receiver.
///
/// # Safety
/// As [`eyrie_calls_take`].
pub unsafe extern "C" fn eyrie_calls_new() {
    // SAFETY: the caller promises sole access to the stream.
    unsafe {
        if stream().knows_no_call() {
            standing_in::table().put_into_effect();
        }
    }
}

/// All threads stand still for an image. Async-signal-safe. False: the rank has more mapped to be
/// written than an image can have.
///
/// # Safety
/// They must.
pub unsafe extern "C" fn eyrie_calls_note_files() -> bool {
    // SAFETY: the caller promises that all threads stand still.
    !is_on() || unsafe { in_image::note() }
}

/// Whether an image is to have the content of the mapping that begins there, although it is mapped
/// to be read only: the restored rank maps the file again. Async-signal-safe.
///
/// # Safety
/// All threads must stand still, and the files must be noted ([`eyrie_calls_note_files`]).
pub unsafe extern "C" fn eyrie_calls_takes_mapping(start: usize) -> bool {
    // SAFETY: the caller promises that all threads stand still.
    is_on() && unsafe { own_mapping::takes(start) }
}

/// File systems of servers to which the rank has written, by their device numbers of stat(2). An
/// image counts when these writes are written back. Returns how many, at most the room given.
///
/// # Safety
/// All threads must stand still; `to` has room for so many.
pub unsafe extern "C" fn eyrie_calls_far(to: *mut u64, room: usize) -> usize {
    let devices = far::devices().into_iter().filter(|device| *device != 0).take(room);
    // SAFETY: the caller promises room for so many numbers at `to`.
    devices.enumerate().map(|(n, device)| unsafe { to.add(n).write(device) }).count()
}

/// This process was restored from an image. What stands in for a mapped file is copied from memory
/// that other threads may write, so they must not go on yet.
///
/// # Safety
/// All other threads must stand still.
pub unsafe extern "C" fn eyrie_calls_come_back() {
    if is_on() {
        // SAFETY: the caller promises that all other threads stand still.
        unsafe { in_image::come_back() };
        far::come_back();
        held_locks::come_back();
    }
}
