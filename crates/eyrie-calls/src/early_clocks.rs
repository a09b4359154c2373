//! Clocks that a program reads before it is known that it is a rank. A program that a script or
//! another one has started becomes a rank in MPI_Init. What it has read from its clocks until then
//! (LAMMPS reads one when its library is loaded, and measures from there) is kept here, and goes to
//! the front of the stream. The agent puts that into the channel of a rank that starts again from
//! its beginning; the program which has read these values then reads them again. No other program
//! that the script starts may.

use crate::environment::agent_channel;
use crate::first_observations::first_observations;
use crate::host_clocks::kernels_ns;
use crate::observed::{this_thread, ObservedStream};
use crate::own_stack;
use crate::program;
use crate::stream::{Item, Last, Reader};
use libc::{clockid_t, timespec};
use std::cell::UnsafeCell;

/// At most so many values are kept. Later ones are the kernel's.
const MOST: usize = 64;
/// Bytes at the front of the stream that have all of them.
const FRONT: usize = 4096;
const NS: i64 = 1_000_000_000;

/// Values of clocks, in the order in which they were read: the clock, and nanoseconds.
#[derive(Clone, Copy)]
struct Values {
    all: [(i64, i64); MOST],
    count: usize,
}

const NONE: Values = Values { all: [(0, 0); MOST], count: 0 };

struct Early {
    /// The thread whose values are kept; 0: none are, in this process or any more.
    owner: usize,
    read: Values,
    /// Those that an earlier process of the rank has read.
    before: Values,
}

struct Shared(UnsafeCell<Early>);

// SAFETY: only the thread that has loaded this library uses it.
unsafe impl Sync for Shared {}

static EARLY: Shared = Shared(UnsafeCell::new(Early { owner: 0, read: NONE, before: NONE }));

/// # Safety
/// In the thread that has loaded this library.
unsafe fn early<'a>() -> &'a mut Early {
    // SAFETY: as the caller promises.
    unsafe { &mut *EARLY.0.get() }
}

/// From now on values of this thread are kept: it has just loaded this library, and may be a rank.
///
/// # Safety
/// [`own_stack::prepare`] has succeeded, and nothing runs there.
pub unsafe fn look() {
    // SAFETY: as the caller promises.
    unsafe { own_stack::run(look_there, 0) };
}

extern "C" fn look_there(_: usize) -> i64 {
    let mut front = [0; FRONT];
    let front = match agent_channel().and_then(first_observations) {
        Some((file, _)) => {
            // SAFETY: the buffer is ours, and so is the descriptor.
            let n = unsafe {
                let n = libc::pread(file, front.as_mut_ptr().cast(), FRONT, 0);
                libc::close(file);
                n
            };
            &front[..usize::try_from(n).unwrap_or(0)]
        }
        None => &[],
    };
    // SAFETY: this thread has loaded the library.
    let early = unsafe { early() };
    early.owner = this_thread();
    early.before = of_front(front, program::words).unwrap_or(NONE);
    0
}

/// The values at the front of a stream, if it is that of this program.
fn of_front(front: &[u8], program: impl FnOnce() -> i64) -> Option<Values> {
    let (mut reader, mut last, mut used) = (Reader::new(), Last::new(), 0);
    let mut next = || {
        let item = reader.peek(&last, &front[used..], &mut used);
        reader.take(&mut last);
        match item {
            Some(Item::Result(value)) => Some(value),
            _ => None,
        }
    };
    let mut values = NONE;
    values.count = usize::try_from(next()?).ok().filter(|count| (1..=MOST).contains(count))?;
    if next()? != program() {
        return None;
    }
    for value in &mut values.all[..values.count] {
        *value = (next()?, next()?);
    }
    Some(values)
}

/// Whether what this thread reads from a clock is kept.
pub fn keeps() -> bool {
    // SAFETY: another thread only reads who the owner is, which does not change while there are
    // several: it is set when the library is loaded, and taken back in MPI_Init.
    let early = unsafe { early() };
    early.owner != 0 && early.owner == this_thread() && early.read.count < MOST
}

/// The value of a clock, where it is kept.
pub fn read(clock: clockid_t) -> Option<timespec> {
    if !keeps() {
        return None;
    }
    // SAFETY: the stack was made before values are kept. One thread is here, in no other call.
    let ns = unsafe { own_stack::run(read_there, clock as usize) };
    Some(timespec { tv_sec: ns.div_euclid(NS), tv_nsec: ns.rem_euclid(NS) })
}

extern "C" fn read_there(clock: usize) -> i64 {
    // SAFETY: this is the owner.
    let early = unsafe { early() };
    let n = early.read.count;
    let known = early.before.all[..early.before.count].get(n);
    let ns = match known {
        Some((of, ns)) if *of == clock as i64 => *ns,
        // It reads other clocks than before.
        _ => {
            early.before.count = 0;
            kernels_ns(clock as clockid_t)
        }
    };
    early.read.all[n] = (clock as i64, ns);
    early.read.count += 1;
    ns
}

/// What is observed begins, with these values.
pub fn begin(stream: &mut ObservedStream) {
    // SAFETY: this thread has loaded the library, or no value is kept.
    let early = unsafe { early() };
    early.owner = 0;
    let mut first = |value: i64| {
        let again = stream.result_again();
        again.unwrap_or_else(|| {
            stream.write_result(value);
            value
        })
    };
    let count = first(early.read.count as i64);
    if count > 0 {
        first(program::words());
    }
    for n in 0..usize::try_from(count).unwrap_or(0).min(MOST) {
        let (clock, ns) = early.read.all[n];
        first(clock);
        first(ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::Writer;

    fn front(numbers: &[i64]) -> Vec<u8> {
        let mut out = Vec::new();
        for n in numbers {
            Writer::new().result(*n, &mut out);
        }
        out
    }

    #[test]
    fn a_front_is_for_the_program_that_has_written_it() {
        let values = |numbers: &[i64]| {
            of_front(&front(numbers), || 77).map(|values| values.all[..values.count].to_vec())
        };
        assert_eq!(values(&[2, 77, 1, 5_000, 0, -3, 9]), Some(vec![(1, 5_000), (0, -3)]));
        assert_eq!(values(&[2, 78, 1, 5_000, 0, -3, 9]), None);
        assert_eq!(values(&[2, 77, 1, 5_000, 0]), None);
        assert_eq!(values(&[0, 77, 1, 5_000]), None);
        assert_eq!(values(&[MOST as i64 + 1, 77, 1, 5_000]), None);
        assert_eq!(values(&[]), None);
    }
}
