//! Clocks that a program reads before what it observes is recorded: while its libraries are loaded,
//! and until MPI_Init where a script or another program has started it. (LAMMPS reads one when its
//! library is loaded, and measures from there.) The values are kept here, and go to the front of
//! the stream. The agent puts that into the channel of a rank that starts again from its beginning.
//! The program that has read the values reads them again; no other program that a script starts
//! may.

use crate::environment::agent_channel;
use crate::first_observations::first_observations;
use crate::host_clocks::kernels_ns;
use crate::observed::{this_thread, ObservedStream};
use crate::own_stack;
use crate::program;
use crate::stream::{Item, Last, Reader};
use libc::{clockid_t, timespec};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicUsize, Ordering};

/// At most so many values of a clock are kept, and of all. Later ones are the kernel's. (UCX polls
/// the time of day while it is loaded.)
const MOST_OF_CLOCK: usize = 16;
const MOST: usize = 128;
/// Bytes at the front of the stream that have all of them.
const FRONT: usize = 4096;
const NS: i64 = 1_000_000_000;

/// Values of clocks, in the order in which they were read: the clock, and nanoseconds.
#[derive(Clone, Copy)]
struct Values {
    all: [(i64, i64); MOST],
    count: usize,
}

impl Values {
    fn of(&self, clock: i64) -> impl Iterator<Item = i64> + '_ {
        let kept = &self.all[..self.count];
        kept.iter().filter(move |(of, _)| *of == clock).map(|(_, ns)| *ns)
    }

    fn has_room(&self, clock: i64) -> bool {
        self.count < MOST && self.of(clock).count() < MOST_OF_CLOCK
    }
}

const NONE: Values = Values { all: [(0, 0); MOST], count: 0 };

struct Early {
    read: Values,
    /// Those that an earlier process of the rank has read.
    before: Values,
}

struct Shared(UnsafeCell<Early>);

// SAFETY: only the owner uses it.
unsafe impl Sync for Shared {}

static EARLY: Shared = Shared(UnsafeCell::new(Early { read: NONE, before: NONE }));

/// The thread whose values are kept, or one of the following.
static OWNER: AtomicUsize = AtomicUsize::new(NOT_KNOWN);
/// No thread has read a clock yet.
const NOT_KNOWN: usize = 0;
/// No values are kept: not in this process, or not any more.
const NO_THREAD: usize = 1;

/// # Safety
/// In the owner, or where no values are kept any more.
unsafe fn early<'a>() -> &'a mut Early {
    // SAFETY: as the caller promises.
    unsafe { &mut *EARLY.0.get() }
}

/// Whether what this thread reads from a clock is kept. The first that reads one is the owner:
/// there is no other one yet.
pub fn keeps() -> bool {
    match OWNER.load(Ordering::Relaxed) {
        NO_THREAD => false,
        NOT_KNOWN => begin_to_keep(),
        owner => owner == this_thread(),
    }
}

#[cold]
fn begin_to_keep() -> bool {
    let may_be_rank = agent_channel().is_some() && own_stack::prepare();
    OWNER.store(if may_be_rank { this_thread() } else { NO_THREAD }, Ordering::Relaxed);
    if may_be_rank {
        // SAFETY: the stack is free: nothing is recorded yet.
        unsafe { own_stack::run(look_there, 0) };
    }
    may_be_rank
}

/// Looks for what an earlier process of the rank has read.
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
    // SAFETY: this is the owner.
    unsafe { early() }.before = of_front(front, program::words).unwrap_or(NONE);
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

/// The value of a clock, where it is kept.
pub fn read(clock: clockid_t) -> Option<timespec> {
    // SAFETY: this is the owner.
    if !keeps() || unsafe { !early().read.has_room(clock.into()) } {
        return None;
    }
    // SAFETY: the stack was prepared before values are kept, and the owner is in no other call.
    let ns = unsafe { own_stack::run(read_there, clock as usize) };
    Some(timespec { tv_sec: ns.div_euclid(NS), tv_nsec: ns.rem_euclid(NS) })
}

extern "C" fn read_there(clock: usize) -> i64 {
    // SAFETY: this is the owner.
    let early = unsafe { early() };
    let n = early.read.of(clock as i64).count();
    let known = early.before.of(clock as i64).nth(n);
    let ns = known.unwrap_or_else(|| kernels_ns(clock as clockid_t));
    early.read.all[early.read.count] = (clock as i64, ns);
    early.read.count += 1;
    ns
}

/// What is observed begins, with these values.
pub fn begin(stream: &mut ObservedStream) {
    OWNER.store(NO_THREAD, Ordering::Relaxed);
    // SAFETY: no values are kept any more.
    let early = unsafe { early() };
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
