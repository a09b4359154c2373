//! All threads of the process: stopped for an image by a signal, let go again, and made anew in a
//! restored process. Whatever a thread needs for that lies in static memory, so that it comes with
//! the image, and nothing of it on a stack that may be small. A stopped thread may hold any lock of
//! the program or the C library: until all go on, nothing that could want one may be called. The
//! first thread of a process may have ended before the others: then /proc/self tells next to
//! nothing of the process, and /proc/thread-self, of the calling thread, tells it.

use super::enter::{eyrie_image_clone, eyrie_image_enter};
use super::proc::{for_each_number, read_file, PathBuf};
use super::scratch::{List, Scratch};
use super::thread::{give_up, Thread};
use crate::format::SigAction;
use crate::maps;
use crate::refusal::{Refusal, Text};
use crate::request::Hooks;
use crate::sys::{self, nr};
use core::arch::global_asm;
use core::cell::UnsafeCell;
use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// Most threads of a process.
const THREADS_MAX: usize = 1024;
/// Longest wait for all threads to stop, nanoseconds.
const STOP_LIMIT_NS: u64 = 1_000_000_000;
/// How often it is looked whether one has ended instead, nanoseconds.
const LOOK_NS: i64 = 10_000_000;
/// The signal that stops a thread: the one by which the GNU C library has all threads change their
/// rights. Programs cannot wait for it, nor block it but by a raw system call, and the C library's
/// handler leaves alone what the C library has not sent.
const STOP_SIGNAL: usize = 33;
/// `si_code` of it, as of a signal with a value.
const SI_QUEUE: i32 = -1;
/// Upper half of its value.
const MARK: u64 = 0x6579_7269 << 32;
/// What a thread stands on while it is stopped, bytes.
const STACK_LEN: usize = 2560;

const FUTEX_WAIT: usize = 128;
const FUTEX_WAKE: usize = 129;

/// `siginfo_t` of a signal with a value.
#[repr(C)]
struct StopInfo {
    signal: i32,
    errno: i32,
    code: i32,
    pad: i32,
    pid: i32,
    uid: u32,
    value: u64,
    rest: [u64; 12],
}

/// What a thread that is being stopped has for itself.
#[repr(C, align(4096))]
struct Body {
    stack: UnsafeCell<[u8; STACK_LEN]>,
    thread: UnsafeCell<Thread>,
    result: UnsafeCell<Result<(), Refusal>>,
}
// SAFETY: whoever has taken a slot writes to its body until the slot says which stop it is in; from
// then on it is only read until the thread goes on.
unsafe impl Sync for Body {}

/// Who has a slot; apart from the bodies, because all of them are looked through.
struct Use {
    taken: AtomicBool,
    /// The stop in which its thread stands still, 0: in none.
    stopped: AtomicU32,
}

static USES: [Use; THREADS_MAX] =
    [const { Use { taken: AtomicBool::new(false), stopped: AtomicU32::new(0) } }; THREADS_MAX];
static BODIES: [Body; THREADS_MAX] = [const {
    Body {
        stack: UnsafeCell::new([0; STACK_LEN]),
        thread: UnsafeCell::new(Thread::NONE),
        result: UnsafeCell::new(Ok(())),
    }
}; THREADS_MAX];

/// A place in both.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Slot(usize);

impl Slot {
    /// Takes one, if any is free.
    fn claim() -> Option<Slot> {
        let free = |u: &Use| !u.taken.load(Ordering::Relaxed);
        let taken = |u: &Use| free(u) && !u.taken.swap(true, Ordering::Acquire);
        USES.iter().position(taken).map(Slot)
    }

    fn free(self) {
        USES[self.0].stopped.store(0, Ordering::Relaxed);
        USES[self.0].taken.store(false, Ordering::Release);
    }

    /// The threads that stand still in a stop.
    fn all_in(stop: u32) -> impl Iterator<Item = Slot> {
        let stands = move |u: &Use| u.stopped.load(Ordering::Acquire) == stop;
        USES.iter().enumerate().filter(move |(_, u)| stands(u)).map(|(i, _)| Slot(i))
    }

    fn body(self) -> &'static Body {
        &BODIES[self.0]
    }

    /// The thread that stands still here.
    fn thread(self) -> &'static Thread {
        // SAFETY: written only by who has taken the slot, before it stands still.
        unsafe { &*self.body().thread.get() }
    }

    /// # Safety
    /// The slot must be the caller's, who does not stand still yet.
    unsafe fn thread_mut(self) -> &'static mut Thread {
        // SAFETY: handed on to the caller.
        unsafe { &mut *self.body().thread.get() }
    }

    /// From now on the thread stands still, and will go on at `rsp`.
    ///
    /// # Safety
    /// As [`Slot::thread_mut`].
    unsafe fn stands(self, stop: u32, rsp: u64) {
        // SAFETY: handed on to the caller.
        unsafe { self.thread_mut().rsp = rsp };
        USES[self.0].stopped.store(stop, Ordering::Release);
    }
}

/// What all threads know of the stop that is under way.
struct Board {
    /// Its number; another one: all go on.
    stop: AtomicU32,
    /// Upper half: number of the stop, lower half: threads that have stopped.
    arrived: AtomicU32,
    /// What `arrived` must be for the capture to be woken.
    awaited: AtomicU32,
    /// How far above its FS base the C library keeps a thread's id.
    tid_offset: AtomicU64,
    /// Slot of the process's first thread.
    leader: AtomicUsize,
    begun_ns: AtomicU64,
    /// Id of a thread that did not stop.
    deaf: AtomicI32,
    hooks: UnsafeCell<Hooks>,
    /// What the signal did before.
    action: UnsafeCell<SigAction>,
}
// SAFETY: one capture at a time writes, when no thread reads.
unsafe impl Sync for Board {}

static BOARD: Board = Board {
    stop: AtomicU32::new(0),
    arrived: AtomicU32::new(0),
    awaited: AtomicU32::new(0),
    tid_offset: AtomicU64::new(0),
    leader: AtomicUsize::new(0),
    begun_ns: AtomicU64::new(0),
    deaf: AtomicI32::new(0),
    hooks: UnsafeCell::new(Hooks { interrupted: None, clock_jumped: None }),
    action: UnsafeCell::new(SigAction { handler: 0, flags: 0, restorer: 0, mask: 0 }),
};

fn half(stop: u32) -> u32 {
    stop << 16
}

// Where a handler of the stop signal returns to.
global_asm!(
    ".pushsection .text.eyrie_image_end_stop,\"ax\",@progbits",
    ".globl eyrie_image_end_stop",
    ".hidden eyrie_image_end_stop",
    ".type eyrie_image_end_stop,@function",
    "eyrie_image_end_stop:",
    "mov eax, 15",
    "syscall",
    "ud2",
    ".size eyrie_image_end_stop, . - eyrie_image_end_stop",
    ".popsection",
);

extern "C" {
    fn eyrie_image_end_stop();
}

/// The slot of a thread that may be restored.
pub struct Own(Slot);

/// Begins a stop: takes a slot for the calling thread, and what its restored self needs.
pub fn begin(hooks: Hooks, begun_ns: u64) -> Result<Own, Refusal> {
    let slot = Slot::claim().ok_or(TOO_MANY)?;
    // SAFETY: the slot is ours.
    let thread = unsafe { slot.thread_mut() };
    if let Err(refusal) = thread.look() {
        slot.free();
        return Err(refusal);
    }
    let stop = BOARD.stop.load(Ordering::Relaxed) + 1;
    BOARD.arrived.store(half(stop), Ordering::Relaxed);
    BOARD.begun_ns.store(begun_ns, Ordering::Relaxed);
    let offset = thread.tid_address.wrapping_sub(thread.fs_base);
    BOARD.tid_offset.store(offset, Ordering::Relaxed);
    // SAFETY: no other thread reads them before it is asked to stop; the slot is ours.
    unsafe {
        *BOARD.hooks.get() = hooks;
        *slot.body().result.get() = Ok(());
    }
    BOARD.stop.store(stop, Ordering::Release);
    Ok(Own(slot))
}

impl Own {
    /// The capture is over.
    pub fn end(self) {
        self.0.free();
    }

    /// Makes the calling thread, which was restored, what it was; the first thread of the process
    /// makes all others anew.
    ///
    /// # Safety
    /// Only in a restored process, in the thread that has this slot.
    pub unsafe fn come_back(self) {
        let stop = USES[self.0 .0].stopped.load(Ordering::Relaxed);
        if sys::gettid() == sys::getpid() {
            // SAFETY: nobody writes to it while there is one thread.
            if let Some(tell) = unsafe { (*BOARD.hooks.get()).clock_jumped } {
                let (now, then) = (sys::clock_ns(1), BOARD.begun_ns.load(Ordering::Relaxed));
                tell(now.wrapping_sub(then) as i64);
            }
            for slot in Slot::all_in(stop).filter(|slot| *slot != self.0) {
                // SAFETY: its thread stands still in the image, and was not made anew yet.
                unsafe { start(slot.thread()) };
            }
        } else {
            let leader = Slot(BOARD.leader.load(Ordering::Relaxed));
            // SAFETY: as the caller vouches.
            unsafe { self.0.thread().set_again(leader.thread()) };
        }
        self.end();
    }
}

/// Makes a thread anew, with its old id where the kernel allows that (to who may restore
/// checkpoints, and if the id is free).
///
/// # Safety
/// The thread must stand still in the image.
unsafe fn start(thread: &Thread) {
    // struct clone_args: flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls,
    // set_tid, set_tid_size.
    const BELOW: u64 = 64;
    // SAFETY: the C library's record of the thread is where it was.
    let id = unsafe { (thread.tid_address as *const i32).read_volatile() };
    let (at, flags) = (thread.tid_address, sys::CLONE_AS_THREAD as u64);
    let arguments =
        [flags, 0, at, 0, 0, thread.rsp - BELOW, BELOW, thread.fs_base, &raw const id as u64, 1];
    // SAFETY: the new thread goes on where its old self called `enter`; its stack is its own.
    let started = unsafe {
        let (from, len) = (arguments.as_ptr() as usize, size_of_val(&arguments));
        match eyrie_image_clone(nr::CLONE3, from, len, 0, 0, 0) {
            tid if tid > 0 => tid,
            _ => {
                let (stack, tls) = (thread.rsp as usize, thread.fs_base as usize);
                eyrie_image_clone(nr::CLONE, flags as usize, stack, 0, at as usize, tls)
            }
        }
    };
    if started < 0 {
        give_up(b"starting it", -started as i32);
    }
}

/// All threads of the process, standing still but for the calling one.
pub struct Threads {
    stop: u32,
    own: i32,
    /// Thread ids of the others.
    asked: List<i32>,
    /// How many of them have ended instead.
    ended: usize,
}

const TOO_MANY: Refusal =
    Refusal::State { what: "it has more than 1024 threads", detail: Text::EMPTY };

impl Threads {
    /// Stops all threads but the calling one, which has `own` and will go on at `rsp`.
    ///
    /// # Safety
    /// Must not outlive the scratch, and only one at a time.
    pub unsafe fn stop(scratch: &mut Scratch, own: &Own, rsp: u64) -> Result<Threads, Refusal> {
        let stop = BOARD.stop.load(Ordering::Relaxed);
        // SAFETY: the slot is ours; the rest is handed on to the caller.
        let (buf, asked) = unsafe {
            own.0.stands(stop, rsp);
            (scratch.take::<u8>(16384)?, scratch.list(THREADS_MAX)?)
        };
        let mut threads = Threads { stop, own: own.0.thread().tid, asked, ended: 0 };
        let stopped = threads.stop_all(buf);
        if !threads.asked.as_slice().is_empty() {
            give_signal_back(stopped.is_ok());
        }
        match stopped.and_then(|()| threads.look_at_answers(own)) {
            Ok(()) => Ok(threads),
            Err(refusal) => {
                threads.let_go();
                Err(refusal)
            }
        }
    }

    /// Lets all go on.
    pub fn let_go(self) {
        BOARD.stop.store(self.stop + 1, Ordering::Release);
        if !self.asked.as_slice().is_empty() {
            let _ = futex(&BOARD.stop, FUTEX_WAKE, i32::MAX as u32, None);
        }
    }

    /// The first thread of the process; where it has ended the calling one, with which a restored
    /// process begins then.
    pub fn leader(&self) -> &Thread {
        Slot(BOARD.leader.load(Ordering::Relaxed)).thread()
    }

    /// All threads but that one.
    pub fn others(&self) -> impl Iterator<Item = &Thread> {
        let first = Slot(BOARD.leader.load(Ordering::Relaxed));
        Slot::all_in(self.stop)
            .filter(move |slot| *slot != first)
            .map(|slot| -> &Thread { slot.thread() })
    }

    /// Asks all until there is none that was not asked: who still runs may start others.
    fn stop_all(&mut self, buf: &mut [u8]) -> Result<(), Refusal> {
        let deadline = sys::clock_ns(1) + STOP_LIMIT_NS;
        loop {
            let before = self.asked.as_slice().len();
            for_each_number(b"/proc/self/task\0", buf, |tid, _| self.ask(tid as i32))?;
            if self.asked.as_slice().len() == before {
                return Ok(());
            }
            self.await_all(deadline)?;
        }
    }

    fn ask(&mut self, tid: i32) -> Result<(), Refusal> {
        if tid == self.own || self.asked.as_slice().contains(&tid) || is_ended_leader(tid) {
            return Ok(());
        }
        if self.asked.as_slice().len() + 1 >= THREADS_MAX {
            return Err(TOO_MANY);
        }
        if tid == BOARD.deaf.load(Ordering::Relaxed) && has_not_heard(tid) {
            return Err(unstopped(tid)); // another signal would only wait beside that one
        }
        if self.asked.as_slice().is_empty() {
            take_signal()?;
        }
        let pid = sys::getpid();
        let info = StopInfo {
            signal: STOP_SIGNAL as i32,
            errno: 0,
            code: SI_QUEUE,
            pad: 0,
            pid,
            uid: 0,
            value: MARK | u64::from(self.stop),
            rest: [0; 12],
        };
        let (pid, at) = (pid as usize, &raw const info as usize);
        // SAFETY: the kernel reads a siginfo_t.
        let sent =
            unsafe { sys::call6(nr::RT_TGSIGQUEUEINFO, pid, tid as usize, STOP_SIGNAL, at, 0, 0) };
        match sent {
            Ok(_) => self.asked.push(tid),
            Err(sys::ESRCH) => Ok(()),
            Err(errno) => Err(Refusal::Kernel { step: "asking a thread to stop", errno }),
        }
    }

    /// Waits until all that were asked stand still or have ended.
    fn await_all(&mut self, deadline: u64) -> Result<(), Refusal> {
        loop {
            let standing = self.asked.as_slice().len() - self.ended;
            let awaited = half(self.stop) | standing as u32;
            BOARD.awaited.store(awaited, Ordering::SeqCst);
            let arrived = BOARD.arrived.load(Ordering::SeqCst);
            if arrived == awaited {
                return Ok(());
            }
            if sys::clock_ns(1) > deadline {
                return Err(self.silent());
            }
            if futex(&BOARD.arrived, FUTEX_WAIT, arrived, Some(LOOK_NS)) == Err(sys::ETIMEDOUT) {
                self.ended = self.asked.as_slice().iter().filter(|tid| !is_there(**tid)).count();
            }
        }
    }

    /// Who does not stop.
    fn silent(&self) -> Refusal {
        let stands = |tid: i32| Slot::all_in(self.stop).any(|slot| slot.thread().tid == tid);
        let silent = |tid: &&i32| is_there(**tid) && !stands(**tid);
        let tid = self.asked.as_slice().iter().find(silent).copied().unwrap_or(0);
        BOARD.deaf.store(tid, Ordering::Relaxed);
        unstopped(tid)
    }

    /// Refuses what cannot be made anew, and finds the first thread.
    fn look_at_answers(&self, own: &Own) -> Result<(), Refusal> {
        let pid = sys::getpid();
        BOARD.leader.store(own.0 .0, Ordering::Relaxed);
        for slot in Slot::all_in(self.stop) {
            // SAFETY: written by its thread before it stood still.
            unsafe { *slot.body().result.get() }?;
            if slot.thread().tid == pid {
                BOARD.leader.store(slot.0, Ordering::Relaxed);
            }
        }
        Ok(())
    }
}

/// Refuses a thread that does not stop, with what it does.
fn unstopped(tid: i32) -> Refusal {
    let mut text = [0u8; 64];
    let mut read = |suffix: &[u8]| {
        let path = PathBuf::new(b"/proc/self/task/", tid as u64, suffix);
        let len = read_file(path.as_c(), &mut text).unwrap_or(0);
        (text, len)
    };
    let (name, len) = read(b"/comm");
    let name = Text::new(&name[..len]);
    let (call, len) = read(b"/syscall");
    let call = maps::decimal(&call[..len]).map(|(number, _)| number as u32);
    Refusal::Unstopped { tid, name, call }
}

/// Whether the stop signal of an earlier capture still waits for a thread.
fn has_not_heard(tid: i32) -> bool {
    let mut text = [0u8; 4096];
    let path = PathBuf::new(b"/proc/self/task/", tid as u64, b"/status");
    let len = read_file(path.as_c(), &mut text).unwrap_or(0);
    let mut lines = text[..len].split(|b| *b == b'\n');
    let pending = lines.find_map(|line| line.strip_prefix(b"SigPnd:\t")).and_then(maps::hex);
    pending.is_some_and(|(set, _)| set >> (STOP_SIGNAL - 1) & 1 != 0)
}

fn is_there(tid: i32) -> bool {
    // SAFETY: signal 0 only asks.
    let asked = unsafe { sys::call3(nr::TGKILL, sys::getpid() as usize, tid as usize, 0) };
    asked != Err(sys::ESRCH) && !is_ended_leader(tid)
}

/// Whether this is the first thread of the process and it has ended: the kernel keeps it until all
/// have, and takes signals for it that it never gets.
fn is_ended_leader(tid: i32) -> bool {
    if tid != sys::getpid() {
        return false;
    }
    let mut text = [0u8; 4096];
    let len = read_file(b"/proc/self/status\0", &mut text).unwrap_or(0);
    let state = text[..len].split(|b| *b == b'\n').find_map(|line| line.strip_prefix(b"State:\t"));
    matches!(state, Some([b'Z' | b'X', ..]))
}

fn futex(word: &AtomicU32, operation: usize, value: u32, limit_ns: Option<i64>) -> sys::SysResult {
    let time = [0, limit_ns.unwrap_or(0)];
    let time = limit_ns.map_or(0, |_| time.as_ptr() as usize);
    let (at, value) = (word.as_ptr() as usize, value as usize);
    // SAFETY: the word and the time live through the call.
    unsafe { sys::call6(nr::FUTEX, at, operation, value, time, 0, 0) }
}

fn set_action(action: &SigAction, before: Option<&mut SigAction>) -> sys::SysResult {
    let before = before.map_or(0, |action| &raw mut *action as usize);
    // SAFETY: the kernel reads and writes one action of 32 bytes each.
    unsafe {
        let at = &raw const *action as usize;
        sys::call6(nr::RT_SIGACTION, STOP_SIGNAL, at, before, 8, 0, 0)
    }
}

fn take_signal() -> Result<(), Refusal> {
    const SA_SIGINFO: u64 = 4;
    const SA_RESTORER: u64 = 0x0400_0000;
    const SA_ONSTACK: u64 = 0x0800_0000;
    const SA_RESTART: u64 = 0x1000_0000;
    let action = SigAction {
        handler: on_stop as *const () as u64,
        flags: SA_SIGINFO | SA_RESTORER | SA_ONSTACK | SA_RESTART,
        restorer: eyrie_image_end_stop as *const () as u64,
        mask: u64::MAX,
    };
    // SAFETY: no handler reads it before the action is set.
    let before = unsafe { &mut *BOARD.action.get() };
    let failed = |errno| Refusal::Kernel { step: "taking a signal to stop threads by", errno };
    set_action(&action, Some(before)).map(|_| ()).map_err(failed)
}

/// The signal does again what it did. For a thread that is late it may come when the capture is
/// over: where it would end the process, it is ignored instead.
fn give_signal_back(all_have_come: bool) {
    const DEFAULT: u64 = 0;
    const IGNORE: u64 = 1;
    // SAFETY: all stand still, or the capture that set it gives up.
    let mut action = unsafe { *BOARD.action.get() };
    if action.handler == DEFAULT && !all_have_come {
        action.handler = IGNORE;
    }
    let _ = set_action(&action, None);
}

/// A thread that was asked to stop, and its slot.
struct Stopping {
    slot: Slot,
    stop: u32,
}

/// The handler of the stop signal.
///
/// # Safety
/// Only the kernel may call it.
unsafe extern "C" fn on_stop(signal: i32, info: *mut StopInfo, context: *mut c_void) {
    // SAFETY: the kernel's.
    let (code, pid, value) = unsafe { ((*info).code, (*info).pid, (*info).value) };
    if code != SI_QUEUE || pid != sys::getpid() || value & !0xffff_ffff != MARK {
        // SAFETY: handed on to the caller.
        return unsafe { hand_on(signal, info, context) };
    }
    let stop = value as u32;
    let slot = loop {
        if BOARD.stop.load(Ordering::Acquire) != stop {
            return; // it is late: the capture is over
        }
        // There are enough, but threads of the last stop may just be leaving theirs.
        match Slot::claim() {
            Some(slot) => break slot,
            // SAFETY: no arguments.
            None => drop(unsafe { sys::call3(nr::SCHED_YIELD, 0, 0, 0) }),
        }
    };
    // SAFETY: the slot is ours; the hooks were written before any thread was asked to stop.
    let interrupted = unsafe {
        *slot.body().result.get() = look(slot);
        (*BOARD.hooks.get()).interrupted
    };
    let mut job = Stopping { slot, stop };
    let top = slot.body().stack.get() as usize + STACK_LEN;
    // SAFETY: follows the C calling convention; job and stack are there until it returns.
    let restored = unsafe { eyrie_image_enter(stand_still, (&raw mut job).cast(), top) };
    let own = Own(slot);
    match restored {
        // SAFETY: a restored process, in the thread that stood here.
        1 => unsafe { own.come_back() },
        _ => own.end(),
    }
    // Not before: a signal that has come meanwhile ends the call, and whoever made the call again
    // would wait for the next one.
    if let Some(tell) = interrupted {
        // SAFETY: handed on to the caller.
        unsafe { tell(context) };
    }
}

/// # Safety
/// The arguments must be the kernel's.
unsafe fn hand_on(signal: i32, info: *mut StopInfo, context: *mut c_void) {
    // SAFETY: set before this handler was.
    let action = unsafe { *BOARD.action.get() };
    if action.handler > 1 {
        type Handler = unsafe extern "C" fn(i32, *mut StopInfo, *mut c_void);
        // SAFETY: the program's handler; one without SA_SIGINFO leaves two arguments alone.
        unsafe { core::mem::transmute::<u64, Handler>(action.handler)(signal, info, context) }
    }
}

/// # Safety
/// The slot must be the calling thread's.
unsafe fn look(slot: Slot) -> Result<(), Refusal> {
    // SAFETY: handed on to the caller.
    let thread = unsafe { slot.thread_mut() };
    thread.look()?;
    let offset = thread.tid_address.wrapping_sub(thread.fs_base);
    if offset != BOARD.tid_offset.load(Ordering::Relaxed) {
        let (tid, name) = (thread.tid, Text::new(&thread.comm));
        return Err(Refusal::Thread { tid, name, what: "was not made by the C library" });
    }
    Ok(())
}

/// # Safety
/// `job` must be a [`Stopping`].
unsafe extern "C" fn stand_still(job: *mut c_void, rsp: u64) {
    // SAFETY: handed on to the caller.
    let job = unsafe { &*job.cast::<Stopping>() };
    // SAFETY: the slot is the calling thread's.
    unsafe { job.slot.stands(job.stop, rsp) };
    arrive(job.stop);
    while BOARD.stop.load(Ordering::Acquire) == job.stop {
        let _ = futex(&BOARD.stop, FUTEX_WAIT, job.stop, None);
    }
}

/// Counts the calling thread, unless the stop is over.
fn arrive(stop: u32) {
    let count = |arrived: u32| (arrived & 0xffff_0000 == half(stop)).then_some(arrived + 1);
    let counted = BOARD.arrived.fetch_update(Ordering::SeqCst, Ordering::SeqCst, count);
    if counted.is_ok_and(|before| before + 1 == BOARD.awaited.load(Ordering::SeqCst)) {
        let _ = futex(&BOARD.arrived, FUTEX_WAKE, 1, None);
    }
}
