//! getrusage(2), times(2): what a process has used. Programs tell each other how much processor
//! time they took (LAMMPS does so at the end of each run), and a rank that is executed again takes
//! another time. It gets the same answers as before, and goes on from there. Its processor time
//! must never go back, although each process of a rank begins at zero.

use super::asking::asked;
use super::calling::outcome;
use super::records::Call;
use crate::host_clocks::ahead_ns;
use crate::next::next;
use libc::{c_int, c_void, clock_t, rusage, timeval, tms};
use std::sync::atomic::{AtomicI64, Ordering};

next! {
    getrusage: fn(c_int, *mut rusage) -> c_int;
    times: fn(*mut tms) -> clock_t;
}

/// Numbers of the functions, in what is recorded: getrusage(2) has one for each of whom it tells.
const OF_PROCESS: u8 = 123;
const OF_CHILDREN: u8 = 124;
const OF_THREAD: u8 = 125;
const TIMES: u8 = 126;

/// The unit of times(2), in nanoseconds: the kernel tells programs of 100 a second.
const TICK_NS: i64 = 10_000_000;

/// A time that begins at zero in each process, and must not in a rank.
struct Onward {
    /// What the rank was told last.
    last: AtomicI64,
    /// By how much its times are ahead of the kernel's.
    ahead: AtomicI64,
}

impl Onward {
    const fn new() -> Onward {
        Onward { last: AtomicI64::new(0), ahead: AtomicI64::new(0) }
    }

    /// The time in the rank when the kernel says this.
    fn rank_time(&self, kernels: i64) -> i64 {
        let time = kernels.saturating_add(self.ahead.load(Ordering::Relaxed));
        let last = self.last.load(Ordering::Relaxed);
        if time < last {
            self.ahead.fetch_add(last - time, Ordering::Relaxed);
        }
        time.max(last)
    }

    /// The rank is told this, now or again.
    fn told(&self, time: i64) {
        self.last.store(time, Ordering::Relaxed);
    }
}

/// Of the process, its children and the thread: in user mode and in the kernel, in microseconds.
static USED: [[Onward; 2]; 3] = [const { [const { Onward::new() }; 2] }; 3];
/// As times(2) tells them: passed, and used in user mode and in the kernel, by the process and by
/// its children.
static TICKS: [Onward; 5] = [const { Onward::new() }; 5];

fn us(time: timeval) -> i64 {
    time.tv_sec.saturating_mul(1_000_000).saturating_add(time.tv_usec)
}

/// # Safety
/// As getrusage(2).
#[export_name = "getrusage"]
pub unsafe extern "C-unwind" fn our_getrusage(who: c_int, to: *mut rusage) -> c_int {
    // SAFETY: the program keeps the contract of the C function, which gets its arguments unchanged.
    let make = || unsafe { getrusage.get()(who, to) };
    let (what, used) = match who {
        libc::RUSAGE_SELF => (OF_PROCESS, &USED[0]),
        libc::RUSAGE_CHILDREN => (OF_CHILDREN, &USED[1]),
        libc::RUSAGE_THREAD => (OF_THREAD, &USED[2]),
        _ => return make(),
    };
    if to.is_null() {
        return make();
    }
    // SAFETY: the program has room for the structure there, in which any bytes are valid.
    let both = || unsafe { [&mut (*to).ru_utime, &mut (*to).ru_stime] };
    let made = || {
        let value = outcome(make());
        if value < 0 {
            return (value, 0);
        }
        for (time, used) in both().into_iter().zip(used) {
            let onward = used.rank_time(us(*time));
            *time = timeval { tv_sec: onward / 1_000_000, tv_usec: onward % 1_000_000 };
        }
        (value, size_of::<rusage>())
    };
    let room = (to.cast::<c_void>(), size_of::<rusage>());
    // SAFETY: the program has room for the structure there.
    let Some(value) = (unsafe { asked(Call::on_open(what), room, &made) }) else { return make() };
    if value >= 0 {
        for (time, used) in both().into_iter().zip(used) {
            used.told(us(*time));
        }
    }
    value as c_int
}

/// # Safety
/// As times(2).
#[export_name = "times"]
pub unsafe extern "C-unwind" fn our_times(to: *mut tms) -> clock_t {
    let mut told = tms { tms_utime: 0, tms_stime: 0, tms_cutime: 0, tms_cstime: 0 };
    let at = &raw mut told;
    let made = || {
        // SAFETY: the structure is ours.
        let passed = unsafe { times.get()(at) };
        let passed = passed.saturating_add(ahead_ns(libc::CLOCK_MONOTONIC) / TICK_NS);
        // SAFETY: the structure is ours, and nothing else uses it meanwhile.
        let used = unsafe { &mut *at };
        onward(used);
        (TICKS[0].rank_time(passed), size_of::<tms>())
    };
    let room = (at.cast::<c_void>(), size_of::<tms>());
    // SAFETY: the structure is ours.
    let Some(passed) = (unsafe { asked(Call::on_open(TIMES), room, &made) }) else {
        // SAFETY: the program keeps the contract of the C function.
        return unsafe { times.get()(to) };
    };
    let all = [passed, told.tms_utime, told.tms_stime, told.tms_cutime, told.tms_cstime];
    for (time, ticks) in all.into_iter().zip(&TICKS) {
        ticks.told(time);
    }
    if !to.is_null() {
        // SAFETY: the program has room for the structure there.
        unsafe { *to = told };
    }
    passed
}

/// What a process has used, as times of the rank.
fn onward(used: &mut tms) {
    let all =
        [&mut used.tms_utime, &mut used.tms_stime, &mut used.tms_cutime, &mut used.tms_cstime];
    for (time, ticks) in all.into_iter().zip(&TICKS[1..]) {
        *time = ticks.rank_time(*time);
    }
}
