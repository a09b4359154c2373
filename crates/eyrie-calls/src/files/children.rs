//! fork(2), vfork(2), posix_spawn(3), wait(2), system(3), popen(3) and the like, and the pipes to
//! the children. A rank that is executed again does not start a child again that is known to have
//! ended. It gets the child's number, its status and what came through its pipes from the record. A
//! child that is not known to have ended runs again, and finds files as the rank has left them.

use super::calling::{or_errno, outcome, recorded};
use super::freshness;
use super::kernel;
use super::own_mapping;
use super::pipes;
use super::records::{is_ahead, is_new_change, Call, Part};
use super::saying;
use super::standing_in;
use super::stdio;
use super::storing::store;
use crate::next::next;
use crate::process::meant;
use libc::{c_char, c_int, c_void, id_t, idtype_t, pid_t, siginfo_t, FILE};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicUsize, Ordering};

type Name = *const c_char;
type Actions = *const c_void;
type Texts = *const *mut c_char;

next! {
    fork: fn() -> pid_t;
    posix_spawn: fn(*mut pid_t, Name, Actions, Actions, Texts, Texts) -> c_int;
    posix_spawnp: fn(*mut pid_t, Name, Actions, Actions, Texts, Texts) -> c_int;
    wait: fn(*mut c_int) -> pid_t;
    waitpid: fn(pid_t, *mut c_int, c_int) -> pid_t;
    wait3: fn(*mut c_int, c_int, *mut libc::rusage) -> pid_t;
    wait4: fn(pid_t, *mut c_int, c_int, *mut libc::rusage) -> pid_t;
    waitid: fn(idtype_t, id_t, *mut siginfo_t, c_int) -> c_int;
    kill: fn(pid_t, c_int) -> c_int;
    system: fn(Name) -> c_int;
    popen: fn(Name, Name) -> *mut FILE;
    pclose: fn(*mut FILE) -> c_int;
}

/// Numbers of the functions, in what is recorded.
const START: u8 = 93;
const END: u8 = 94;
const SYSTEM: u8 = 95;
const OPEN: u8 = 99;
const CLOSE: u8 = 100;
const KILL: u8 = 101;

/// Children that run again under another number, and streams to children, that are known at a time.
const MOST: usize = 64;

struct Known {
    /// What the program calls them, and the kernel.
    again: [(pid_t, pid_t); MOST],
    /// Streams of popen(3) that are open, and their numbers.
    opened: [(usize, i64); MOST],
}

struct Shared(UnsafeCell<Known>);

// SAFETY: used in calls that are being recorded, of which there is one at a time.
unsafe impl Sync for Shared {}

static KNOWN: Shared =
    Shared(UnsafeCell::new(Known { again: [(0, 0); MOST], opened: [(0, 0); MOST] }));

fn known() -> &'static mut Known {
    // SAFETY: all of this module that uses it runs in calls that are recorded.
    unsafe { &mut *KNOWN.0.get() }
}

/// The child that the program calls so.
fn kernels(pid: pid_t) -> pid_t {
    let found = known().again.iter().find(|(given, _)| *given == pid && pid != 0);
    found.map_or(pid, |(_, real)| *real)
}

/// What the program calls a child.
fn programs(pid: pid_t) -> pid_t {
    let found = known().again.iter().find(|(_, real)| *real == pid && pid != 0);
    found.map_or(pid, |(given, _)| *given)
}

/// A child has ended.
fn forget(pid: pid_t) {
    let again = &mut known().again;
    if let Some(it) = again.iter_mut().find(|(_, real)| *real == pid) {
        *it = (0, 0);
    }
    pipes::runs_again(again.iter().any(|(given, _)| *given != 0));
}

/// What is known of a call that may wait, and so is made outside of what is recorded.
enum Before {
    /// What it gave.
    Known(i64),
    /// It is made; `Some`: what it gave before is known, but it must be made again.
    Make(Option<i64>),
}

/// Something is about to be started. `is_over`: whether what was started is known to have ended.
fn before_start(call: Call, is_over: &dyn Fn(i64) -> bool) -> Option<Before> {
    let mut before = Before::Make(None);
    recorded(&mut || {
        match call.result_again() {
            Some(value) if value <= 0 || is_over(value) => {
                pipes::note();
                before = Before::Known(value);
            }
            Some(value) => before = Before::Make(Some(value)),
            None if is_new_change() => {
                standing_in::before_new();
                freshness::before_any_change();
            }
            None => {}
        }
        0
    })?;
    Some(before)
}

/// It was started: `value` is its number, or a negative errno. Gives what the program calls it.
fn started(call: Call, replayed: Option<i64>, value: i64) -> i64 {
    let mut given = value;
    recorded(&mut || {
        pipes::note();
        // An image may have been taken in between.
        match replayed.or_else(|| call.result_again()) {
            Some(replayed) if value > 0 => {
                given = replayed;
                if let Some(free) = known().again.iter_mut().find(|(given, _)| *given == 0) {
                    *free = (replayed as pid_t, value as pid_t);
                    pipes::runs_again(true);
                }
            }
            None if is_new_change() => {
                call.write_result(value);
            }
            _ => {}
        }
        0
    });
    given
}

/// Whether it is known that this child has ended.
fn has_ended(pid: i64) -> bool {
    is_ahead(Call::on_open(END), &|record| record.number() == pid && record.number() == 1)
}

/// Starts a child by `make`, which gives its number or a negative errno.
fn starts(make: &dyn Fn() -> i64) -> i64 {
    let call = Call::on_open(START);
    match before_start(call, &has_ended) {
        None => make(),
        Some(Before::Known(value)) => value,
        Some(Before::Make(replayed)) => {
            let value = make();
            match value {
                // The child is no rank.
                0 => 0,
                _ => started(call, replayed, value),
            }
        }
    }
}

/// What a wait has given.
#[derive(Clone, Copy)]
#[repr(C)]
struct Ended {
    status: c_int,
    info: [u8; size_of::<siginfo_t>()],
}

/// Waits for a child by `make`, which is given what the kernel calls it; the number that comes back
/// is what the program calls it.
fn waits(pid: pid_t, ended: &mut Ended, make: &mut dyn FnMut(pid_t, &mut Ended) -> i64) -> i64 {
    if !pipes::any_started() {
        return make(pid, ended);
    }
    let call = Call::on_open(END);
    let mut replayed = None;
    let mut real = pid;
    let counts = recorded(&mut || {
        replayed = replayed_end(call, ended);
        if replayed.is_none() && is_new_change() {
            standing_in::before_new();
        }
        real = kernels(pid);
        0
    });
    if let Some(value) = replayed {
        return value;
    }
    let value = make(real, ended);
    if counts.is_none() {
        return value;
    }
    let mut given = value;
    recorded(&mut || {
        given = if value > 0 { programs(value as pid_t).into() } else { value };
        if value > 0 {
            forget(value as pid_t);
        }
        let mut before = *ended;
        if replayed_end(call, &mut before).is_none() && is_new_change() {
            write_end(call, given, ended);
        }
        0
    });
    given
}

fn replayed_end(call: Call, ended: &mut Ended) -> Option<i64> {
    if call.done_again() {
        return Some(0);
    }
    let mut record = call.again(Part::Result)?;
    let value = record.number();
    let _ = record.number();
    let content = record.content();
    let (status, info) = content.split_first_chunk::<4>()?;
    ended.status = c_int::from_le_bytes(*status);
    ended.info[..info.len()].copy_from_slice(info);
    Some(value)
}

fn write_end(call: Call, value: i64, ended: &Ended) {
    if value == 0 {
        // It goes on.
        return call.write_done();
    }
    let is_over = libc::WIFEXITED(ended.status) || libc::WIFSIGNALED(ended.status);
    let mut content = [0u8; 4 + size_of::<siginfo_t>()];
    content[..4].copy_from_slice(&ended.status.to_le_bytes());
    let len = ended.info.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    content[4..4 + len].copy_from_slice(&ended.info[..len]);
    let numbers = [value, (value > 0 && is_over).into()];
    call.write_with(Part::Result, &numbers, &content[..4 + len]);
    if value > 0 {
        // It is not to run a second time.
        // SAFETY: this call is being recorded, of which there is one at a time.
        unsafe { store() };
    }
}

const NOT_ENDED: Ended = Ended { status: 0, info: [0; size_of::<siginfo_t>()] };

/// Waits that tell a status: what they are given and where it is put.
///
/// # Safety
/// `status` must be null or have room.
unsafe fn waits_for_status(
    pid: pid_t,
    status: *mut c_int,
    usage: *mut libc::rusage,
    make: &dyn Fn(pid_t, *mut c_int) -> pid_t,
) -> pid_t {
    let mut ended = NOT_ENDED;
    let mut made = false;
    let value = waits(pid, &mut ended, &mut |pid, ended| {
        made = true;
        outcome(make(pid, &mut ended.status))
    });
    // SAFETY: the caller passes null, or room for a status and for what the child has used.
    unsafe {
        if let Some(status) = status.as_mut().filter(|_| value > 0) {
            *status = ended.status;
        }
        if let Some(usage) = usage.as_mut().filter(|_| !made) {
            // What it used is not recorded.
            *usage = std::mem::zeroed();
        }
    }
    or_errno(value) as pid_t
}

#[export_name = "fork"]
pub extern "C-unwind" fn our_fork() -> pid_t {
    let value = forks();
    if value > 0 {
        recorded(&mut || {
            // It may store where a file is mapped, unless it becomes another program at once.
            if let Some(path) = own_mapping::a_path() {
                saying::helper_may_have_stored(path.as_bytes());
            }
            0
        });
    }
    or_errno(value) as pid_t
}

fn forks() -> i64 {
    // SAFETY: fork(2) has no arguments and accesses no memory of ours.
    starts(&|| outcome(unsafe { fork.get()() }))
}

/// What it lets its caller do fork(2) does, too: a function in front of it could not return twice.
#[export_name = "vfork"]
pub extern "C-unwind" fn our_vfork() -> pid_t {
    or_errno(forks()) as pid_t
}

/// # Safety
/// As posix_spawn(3).
unsafe fn spawns(to: *mut pid_t, make: &dyn Fn(*mut pid_t) -> c_int) -> c_int {
    let value = starts(&|| {
        let mut pid = 0;
        match make(&mut pid) {
            0 => pid.into(),
            error => -i64::from(error),
        }
    });
    if value < 0 {
        return -value as c_int;
    }
    // SAFETY: the caller passes null, or what is valid for this call.
    if let Some(to) = unsafe { to.as_mut() } {
        *to = value as pid_t;
    }
    0
}

/// Functions like posix_spawn(3): ours, the one behind it, its name.
macro_rules! spawning {
    ($($our:ident, $next:ident, $symbol:literal;)*) => {
        $(
            /// # Safety
            /// As posix_spawn(3).
            #[export_name = $symbol]
            pub unsafe extern "C-unwind" fn $our(
                pid: *mut pid_t,
                path: Name,
                actions: Actions,
                how: Actions,
                arguments: Texts,
                environment: Texts,
            ) -> c_int {
                // SAFETY: the program keeps the contract of the C function, which gets its
                // arguments unchanged.
                unsafe {
                    spawns(pid, &|pid| {
                        $next.get()(pid, path, actions, how, arguments, environment)
                    })
                }
            }
        )*
    };
}
spawning! {
    our_posix_spawn, posix_spawn, "posix_spawn";
    our_posix_spawnp, posix_spawnp, "posix_spawnp";
}

/// # Safety
/// As wait(2).
#[export_name = "wait"]
pub unsafe extern "C-unwind" fn our_wait(status: *mut c_int) -> pid_t {
    let usage = std::ptr::null_mut();
    // SAFETY: the program keeps the contract of the C function, which gets its arguments unchanged.
    unsafe { waits_for_status(-1, status, usage, &|_, status| wait.get()(status)) }
}

/// # Safety
/// As waitpid(2).
#[export_name = "waitpid"]
pub unsafe extern "C-unwind" fn our_waitpid(pid: pid_t, status: *mut c_int, how: c_int) -> pid_t {
    let usage = std::ptr::null_mut();
    // SAFETY: the program keeps the contract of the C function, which gets its arguments unchanged.
    unsafe { waits_for_status(pid, status, usage, &|pid, status| waitpid.get()(pid, status, how)) }
}

/// # Safety
/// As wait3(2).
#[export_name = "wait3"]
pub unsafe extern "C-unwind" fn our_wait3(
    status: *mut c_int,
    how: c_int,
    usage: *mut libc::rusage,
) -> pid_t {
    // SAFETY: the program keeps the contract of the C function, which gets its arguments unchanged.
    unsafe { waits_for_status(-1, status, usage, &|_, status| wait3.get()(status, how, usage)) }
}

/// # Safety
/// As wait4(2).
#[export_name = "wait4"]
pub unsafe extern "C-unwind" fn our_wait4(
    pid: pid_t,
    status: *mut c_int,
    how: c_int,
    usage: *mut libc::rusage,
) -> pid_t {
    // SAFETY: the program keeps the contract of the C function, which gets its arguments unchanged.
    unsafe {
        let make = |pid, status| wait4.get()(pid, status, how, usage);
        waits_for_status(pid, status, usage, &make)
    }
}

/// # Safety
/// As waitid(2).
#[export_name = "waitid"]
pub unsafe extern "C-unwind" fn our_waitid(
    kind: idtype_t,
    id: id_t,
    info: *mut siginfo_t,
    how: c_int,
) -> c_int {
    if info.is_null() || how & libc::WNOWAIT != 0 {
        // SAFETY: the program keeps the contract of the C function, which gets its arguments
        // unchanged.
        return unsafe { waitid.get()(kind, id, info, how) };
    }
    let mut ended = NOT_ENDED;
    let asked = if kind == libc::P_PID { id as pid_t } else { -1 };
    let value = waits(asked, &mut ended, &mut |pid, ended| {
        let id = if kind == libc::P_PID { pid as id_t } else { id };
        // SAFETY: handed on to the caller; what it has put there is copied.
        unsafe {
            if waitid.get()(kind, id, info, how) != 0 {
                return -i64::from(kernel::errno());
            }
            let bytes = std::slice::from_raw_parts(info.cast::<u8>(), size_of::<siginfo_t>());
            ended.info.copy_from_slice(bytes);
            (*info).si_pid().into()
        }
    });
    if value > 0 {
        // SAFETY: handed on to the caller; the bytes are of such a structure.
        unsafe {
            info.cast::<u8>().copy_from_nonoverlapping(ended.info.as_ptr(), ended.info.len());
        }
    }
    or_errno(value.min(0)) as c_int
}

/// # Safety
/// As kill(2).
#[export_name = "kill"]
pub unsafe extern "C-unwind" fn our_kill(pid: pid_t, signal: c_int) -> c_int {
    // SAFETY: the program keeps the contract of the C function, which gets its arguments unchanged.
    let plain = |pid| unsafe { kill.get()(meant(pid), signal) };
    if !pipes::any_started() || meant(pid) != pid || pid <= 0 {
        return plain(pid);
    }
    let call = Call::on_open(KILL);
    let value = recorded(&mut || {
        if let Some(value) = call.result_again() {
            return value;
        }
        let value = outcome(plain(kernels(pid)));
        if is_new_change() {
            call.write_result(value)
        } else {
            value
        }
    });
    value.map_or_else(|| plain(pid), |value| value as c_int)
}

/// # Safety
/// As system(3).
#[export_name = "system"]
pub unsafe extern "C-unwind" fn our_system(command: Name) -> c_int {
    // SAFETY: the program keeps the contract of the C function, which gets its arguments unchanged.
    let plain = || unsafe { system.get()(command) };
    let call = Call::on_open(SYSTEM);
    let mut replayed = None;
    let counts = recorded(&mut || {
        replayed = call.result_again();
        if replayed.is_none() && is_new_change() {
            standing_in::before_new();
            freshness::before_any_change();
        }
        0
    });
    if let Some(status) = replayed {
        return status as c_int;
    }
    let status = plain();
    if counts.is_some() {
        recorded(&mut || {
            if call.result_again().is_none() && is_new_change() {
                call.write_result(status.into());
                // It is not to run a second time.
                // SAFETY: this call is being recorded, of which there is one at a time.
                unsafe { store() };
            }
            0
        });
    }
    status
}

/// # Safety
/// As popen(3).
#[export_name = "popen"]
pub unsafe extern "C-unwind" fn our_popen(command: Name, mode: Name) -> *mut FILE {
    let call = Call::on_open(OPEN);
    let is_over = |number: i64| is_ahead(Call::on_open(CLOSE), &|r| r.number() == number);
    let before = before_start(call, &is_over);
    // SAFETY: the program keeps the contract of the C function, which gets its arguments unchanged.
    unsafe {
        let replayed = match before {
            None => return popen.get()(command, mode),
            Some(Before::Known(value)) if value < 0 => {
                or_errno(value);
                return std::ptr::null_mut();
            }
            Some(Before::Known(_)) => {
                // What comes through it is replayed.
                let reads = *mode == b'r' as c_char;
                let nothing = if reads { c":" } else { c"cat > /dev/null" };
                let file = popen.get()(nothing.as_ptr(), mode);
                stdio::begin_with(file);
                started_pipe(call, Some(0), file);
                return file;
            }
            Some(Before::Make(replayed)) => replayed,
        };
        let file = popen.get()(command, mode);
        stdio::begin_with(file);
        started_pipe(call, replayed, file);
        file
    }
}

/// How many were opened by popen(3): their numbers.
static OPENED: AtomicUsize = AtomicUsize::new(0);

fn started_pipe(call: Call, replayed: Option<i64>, file: *mut FILE) {
    recorded(&mut || {
        pipes::note();
        let number = OPENED.fetch_add(1, Ordering::Relaxed) as i64 + 1;
        if let Some(free) = known().opened.iter_mut().find(|(file, _)| *file == 0) {
            *free = (file.addr(), number);
        }
        if replayed.is_none() && call.result_again().is_none() && is_new_change() {
            let error = -i64::from(kernel::errno());
            call.write_result(if file.is_null() { error } else { number });
        }
        0
    });
}

/// # Safety
/// As pclose(3).
#[export_name = "pclose"]
pub unsafe extern "C-unwind" fn our_pclose(file: *mut FILE) -> c_int {
    // SAFETY: the program keeps the contract of the C function, which gets its arguments unchanged.
    let status = unsafe { pclose.get()(file) };
    let call = Call::on_open(CLOSE);
    let mut given = i64::from(status);
    recorded(&mut || {
        let opened = known().opened.iter_mut().find(|(it, _)| *it == file.addr());
        let number = opened.map_or(0, |opened| std::mem::take(opened).1);
        if let Some(mut record) = call.again(Part::Result) {
            record.number();
            given = record.number();
        } else if is_new_change() {
            call.write(Part::Result, &[number, given]);
            // It is not to run a second time.
            // SAFETY: this call is being recorded, of which there is one at a time.
            unsafe { store() };
        }
        0
    });
    given as c_int
}
