//! All threads of the process. A signal stops them for an image, they are resumed afterwards, and a
//! restored process starts them anew: they go on when its holders have restored their state. What a
//! thread needs for that is in static memory, so that it is part of the image, and not on a stack
//! that may be small. A stopped thread may hold any lock of the program or the C library, so
//! nothing that could need one may be called before all are resumed. The first thread of a process
//! may have ended before the others. Then /proc/self has almost no information about the process,
//! but /proc/thread-self, of the calling thread, does.

use super::enter::{eyrie_image_clone, eyrie_image_enter};
use super::proc::{for_each_number, read_file, PathBuf};
use super::registers;
use super::scratch::{List, Scratch};
use super::thread_state::{give_up, Thread};
use super::vdso;
use crate::refusal::{Refusal, Text};
use crate::request::Hooks;
use core::arch::global_asm;
use core::cell::UnsafeCell;
use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use eyrie_image_format::SigAction;
use eyrie_image_kernel::maps;
use eyrie_image_kernel::sys::{self, nr};

/// Most threads of a process.
const THREADS_MAX: usize = 1024;
/// Longest wait for all threads to stop, nanoseconds.
const STOP_LIMIT_NS: u64 = 1_000_000_000;
/// How often the capture checks whether a thread has ended instead, nanoseconds.
const LOOK_NS: i64 = 10_000_000;
/// How often threads that are within the kernel's vDSO go on for a moment, before one of them
/// stands still there: then no other kernel can restore the image.
const ASIDES_MAX: u32 = 1000;
/// So many threads can be there at the same moment.
const ASIDE: usize = 64;
/// How long they go on, nanoseconds.
const ASIDE_NS: i64 = 20_000;
/// The signal that stops a thread: the one by which the GNU C library changes the rights of all
/// threads. Programs cannot wait for it, and can block it only by a raw system call. The C
/// library's handler ignores it unless the C library has sent it.
const STOP_SIGNAL: usize = 33;
/// `si_code` of the signal, as of a signal with a value.
const SI_QUEUE: i32 = -1;
/// Upper half of its value.
const MARK: u64 = 0x6579_7269 << 32;
/// Size of the stack of a stopped thread, bytes.
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

/// The memory of a thread that is being stopped.
#[repr(C, align(4096))]
struct Body {
    stack: UnsafeCell<[u8; STACK_LEN]>,
    thread: UnsafeCell<Thread>,
    result: UnsafeCell<Result<(), Refusal>>,
}
// SAFETY: the thread that has claimed a slot alone writes to its body, until `stopped` has the
// number of the stop. From then on the body is only read, until the thread is resumed.
unsafe impl Sync for Body {}

/// The use of a slot. It is apart from the bodies because all of them are searched.
struct Use {
    taken: AtomicBool,
    /// The stop in which its thread stands still; 0: in none.
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

/// An index into both arrays.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Slot(usize);

impl Slot {
    /// Claims a slot, if any is free.
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
        // SAFETY: only the thread that has claimed the slot writes it, and only before it stands
        // still.
        unsafe { &*self.body().thread.get() }
    }

    /// # Safety
    /// The slot must be the calling thread's, which does not stand still yet.
    unsafe fn thread_mut(self) -> &'static mut Thread {
        // SAFETY: the caller has claimed the slot and does not stand still yet, so no other thread
        // reads or writes its body.
        unsafe { &mut *self.body().thread.get() }
    }

    /// Records that the thread stands still from now on, and will continue at `rsp`.
    ///
    /// # Safety
    /// As [`Slot::thread_mut`].
    unsafe fn set_stopped(self, stop: u32, rsp: u64) {
        // SAFETY: the caller has claimed the slot and does not stand still yet.
        unsafe { self.thread_mut().rsp = rsp };
        USES[self.0].stopped.store(stop, Ordering::Release);
    }
}

/// What all threads know of the present stop.
struct Board {
    /// Its number. When it changes, all threads continue.
    stop: AtomicU32,
    /// Upper half: number of the stop; lower half: number of threads that have stopped.
    arrived: AtomicU32,
    /// The value of `arrived` at which the capture is woken.
    awaited: AtomicU32,
    /// Offset of a thread's id in the C library's record, from its FS base.
    tid_offset: AtomicU64,
    /// Slot of the process's first thread.
    leader: AtomicUsize,
    begun_ns: AtomicU64,
    /// The stop from whose image this process was restored, when its threads may continue.
    restored: AtomicU32,
    /// Id of a thread that did not stop.
    unresponsive: AtomicI32,
    /// Ids of threads that were within the vDSO, and are to be asked again.
    aside: [AtomicI32; ASIDE],
    /// How often that was so in this stop.
    asides: AtomicU32,
    /// Always 0: it is waited at while they go on.
    aside_pause: AtomicU32,
    /// A thread stands still within the vDSO.
    within_vdso: AtomicBool,
    hooks: UnsafeCell<Hooks>,
    /// The signal's action before.
    action: UnsafeCell<SigAction>,
}
// SAFETY: only the capturing thread writes, one capture at a time, and only while no other thread
// reads: before it asks threads to stop, or while they stand still.
unsafe impl Sync for Board {}

static BOARD: Board = Board {
    stop: AtomicU32::new(0),
    arrived: AtomicU32::new(0),
    awaited: AtomicU32::new(0),
    tid_offset: AtomicU64::new(0),
    leader: AtomicUsize::new(0),
    begun_ns: AtomicU64::new(0),
    restored: AtomicU32::new(0),
    unresponsive: AtomicI32::new(0),
    aside: [const { AtomicI32::new(0) }; ASIDE],
    asides: AtomicU32::new(0),
    aside_pause: AtomicU32::new(0),
    within_vdso: AtomicBool::new(false),
    hooks: UnsafeCell::new(Hooks { interrupted: None, clock_jumped: None }),
    action: UnsafeCell::new(SigAction { handler: 0, flags: 0, restorer: 0, mask: 0 }),
};

fn half(stop: u32) -> u32 {
    stop << 16
}

// The return address of a handler of the stop signal.
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

/// Begins a stop: claims a slot for the calling thread, and stores what its restored self needs.
pub fn begin(hooks: Hooks, begun_ns: u64, context: *const c_void) -> Result<Own, Refusal> {
    let slot = Slot::claim().ok_or(TOO_MANY)?;
    // SAFETY: this thread has just claimed the slot and does not stand still yet.
    let thread = unsafe { slot.thread_mut() };
    if let Err(refusal) = thread.look() {
        slot.free();
        return Err(refusal);
    }
    thread.context = context as usize;
    let stop = BOARD.stop.load(Ordering::Relaxed) + 1;
    BOARD.arrived.store(half(stop), Ordering::Relaxed);
    BOARD.begun_ns.store(begun_ns, Ordering::Relaxed);
    let offset = thread.tid_address.wrapping_sub(thread.fs_base);
    BOARD.tid_offset.store(offset, Ordering::Relaxed);
    vdso::find();
    BOARD.asides.store(0, Ordering::Relaxed);
    BOARD.within_vdso.store(false, Ordering::Relaxed);
    BOARD.aside.iter().for_each(|tid| tid.store(0, Ordering::Relaxed));
    // SAFETY: other threads read the hooks only after they were asked to stop, which happens later.
    // This thread has claimed the slot.
    unsafe {
        *BOARD.hooks.get() = hooks;
        *slot.body().result.get() = Ok(());
    }
    BOARD.stop.store(stop, Ordering::Release);
    Ok(Own(slot))
}

impl Own {
    /// Frees the slot: the capture is over.
    pub fn end(self) {
        self.0.free();
    }

    /// Sets the state of the calling thread, which was restored. The first thread of the process
    /// starts all others anew, which stand still until [`resume_restored`].
    ///
    /// # Safety
    /// Only in a restored process, in the thread that has this slot.
    pub unsafe fn come_back(self) {
        let stop = USES[self.0 .0].stopped.load(Ordering::Relaxed);
        if sys::gettid() == sys::getpid() {
            // SAFETY: this is the only thread yet, so nothing writes the hooks.
            if let Some(tell) = unsafe { (*BOARD.hooks.get()).clock_jumped } {
                let now = sys::clock_ns(1);
                let then = BOARD.begun_ns.load(Ordering::Relaxed);
                tell(now.wrapping_sub(then) as i64);
            }
            // SAFETY: all threads stand still in the handlers whose contexts these are: this one is
            // the only one yet, and the others go on from there.
            unsafe { registers::fit(Slot::all_in(stop).map(|slot| slot.thread().context)) };
            for slot in Slot::all_in(stop).filter(|slot| *slot != self.0) {
                // SAFETY: the slot's thread stood still in the image, and each slot is started
                // once.
                unsafe { start(slot.thread()) };
            }
        } else {
            let leader = Slot(BOARD.leader.load(Ordering::Relaxed));
            // SAFETY: the caller guarantees that this is a restored process and the thread of this
            // slot.
            unsafe { self.0.thread().set_again(leader.thread()) };
        }
        self.end();
    }
}

/// In a restored process, in the thread that took the image: resumes all others.
pub fn resume_restored() {
    BOARD.restored.store(BOARD.stop.load(Ordering::Relaxed), Ordering::Release);
    let _ = futex(&BOARD.restored, FUTEX_WAKE, i32::MAX as u32, None);
}

/// In a restored process, in another thread: waits for [`resume_restored`]. Holders, which come
/// before it, wait for nothing.
fn await_resumption(stop: u32) {
    loop {
        let restored = BOARD.restored.load(Ordering::Acquire);
        if restored == stop {
            return;
        }
        let _ = futex(&BOARD.restored, FUTEX_WAIT, restored, None);
    }
}

/// Starts a thread anew, with its old id if the kernel allows that: the process needs the right to
/// restore checkpoints, and the id must be free.
///
/// # Safety
/// The thread must have stood still in the image.
unsafe fn start(thread: &Thread) {
    // struct clone_args: flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls,
    // set_tid, set_tid_size.
    const BELOW: u64 = 64;
    // SAFETY: the C library's record of the thread is at its old address, as all restored memory
    // is.
    let id = unsafe { (thread.tid_address as *const i32).read_volatile() };
    let at = thread.tid_address;
    let flags = sys::CLONE_AS_THREAD as u64;
    let arguments =
        [flags, 0, at, 0, 0, thread.rsp - BELOW, BELOW, thread.fs_base, &raw const id as u64, 1];
    // SAFETY: the new thread continues where its old self called `enter`, on its own stack, which
    // the image has restored.
    let started = unsafe {
        let from = arguments.as_ptr() as usize;
        let len = size_of_val(&arguments);
        match eyrie_image_clone(nr::CLONE3, from, len, 0, 0, 0) {
            tid if tid > 0 => tid,
            _ => {
                let stack = thread.rsp as usize;
                let tls = thread.fs_base as usize;
                eyrie_image_clone(nr::CLONE, flags as usize, stack, 0, at as usize, tls)
            }
        }
    };
    if started < 0 {
        give_up(b"starting it", -started as i32);
    }
}

/// All threads of the process. All but the calling one stand still.
pub struct Threads {
    stop: u32,
    own: i32,
    /// Thread ids of the others.
    asked: List<i32>,
    /// How many of them have ended instead of stopping.
    ended: usize,
}

const TOO_MANY: Refusal =
    Refusal::State { what: "it has more than 1024 threads", detail: Text::EMPTY };

impl Threads {
    /// Stops all threads but the calling one, which has `own` and will continue at `rsp`.
    ///
    /// # Safety
    /// Must not outlive the scratch, and only one at a time.
    pub unsafe fn stop(scratch: &mut Scratch, own: &Own, rsp: u64) -> Result<Threads, Refusal> {
        let stop = BOARD.stop.load(Ordering::Relaxed);
        // SAFETY: `own` is the calling thread's slot, and it does not stand still yet. The caller
        // guarantees that the threads are not used after the scratch is released.
        let (buf, asked) = unsafe {
            own.0.set_stopped(stop, rsp);
            (scratch.take::<u8>(16384)?, scratch.list(THREADS_MAX)?)
        };
        let mut threads = Threads { stop, own: own.0.thread().tid, asked, ended: 0 };
        let stopped = threads.stop_all(buf);
        if !threads.asked.as_slice().is_empty() {
            restore_signal(stopped.is_ok());
        }
        match stopped.and_then(|()| threads.check_results(own)) {
            Ok(()) => Ok(threads),
            Err(refusal) => {
                threads.resume();
                Err(refusal)
            }
        }
    }

    /// Resumes all threads.
    pub fn resume(self) {
        BOARD.stop.store(self.stop + 1, Ordering::Release);
        if !self.asked.as_slice().is_empty() {
            let _ = futex(&BOARD.stop, FUTEX_WAKE, i32::MAX as u32, None);
        }
    }

    /// The first thread of the process. If it has ended, the calling one: a restored process then
    /// begins with that.
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

    /// What the kernel has passed to the handlers in which they stand still; 0: to none.
    pub fn contexts(&self) -> impl Iterator<Item = usize> {
        Slot::all_in(self.stop).map(|slot| slot.thread().context)
    }

    /// Bytes of the smallest signal stack; 0: none has one.
    pub fn smallest_signal_stack(&self) -> u64 {
        let stacks = Slot::all_in(self.stop).map(|slot| slot.thread().altstack[2]);
        stacks.filter(|len| *len != 0).min().unwrap_or(0)
    }

    /// Whether one of them stands still within the kernel's vDSO.
    pub fn is_within_vdso(&self) -> bool {
        BOARD.within_vdso.load(Ordering::Acquire)
    }

    /// Asks threads to stop until all were asked: a thread that still runs may start others.
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
        if tid == BOARD.unresponsive.load(Ordering::Relaxed) && has_pending_stop(tid) {
            return Err(unstopped(tid)); // another signal would only be pending beside that one
        }
        if self.asked.as_slice().is_empty() {
            take_signal()?;
        }
        match self.send_signal(tid) {
            Ok(_) => self.asked.push(tid),
            Err(sys::ESRCH) => Ok(()),
            Err(errno) => Err(Refusal::Kernel { step: "asking a thread to stop", errno }),
        }
    }

    fn send_signal(&self, tid: i32) -> sys::SysResult {
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
        let pid = pid as usize;
        let at = &raw const info as usize;
        // SAFETY: the kernel reads a siginfo_t of 128 bytes, the size of StopInfo, from a local
        // variable.
        unsafe { sys::call6(nr::RT_TGSIGQUEUEINFO, pid, tid as usize, STOP_SIGNAL, at, 0, 0) }
    }

    /// Asks those again that were within the vDSO, when they have gone on.
    fn ask_again(&self) -> Result<(), Refusal> {
        if BOARD.aside.iter().all(|aside| aside.load(Ordering::SeqCst) == 0) {
            return Ok(());
        }
        // One that is asked at once stops where it was.
        let _ = futex(&BOARD.aside_pause, FUTEX_WAIT, 0, Some(ASIDE_NS));
        for aside in &BOARD.aside {
            let tid = aside.swap(0, Ordering::SeqCst);
            match if tid == 0 { Ok(0) } else { self.send_signal(tid) } {
                // One that has ended is found in the wait for all.
                Ok(_) | Err(sys::ESRCH) => {}
                Err(errno) => {
                    return Err(Refusal::Kernel { step: "asking a thread to stop", errno })
                }
            }
        }
        Ok(())
    }

    /// Waits until all that were asked stand still or have ended.
    fn await_all(&mut self, deadline: u64) -> Result<(), Refusal> {
        loop {
            self.ask_again()?;
            let standing = self.asked.as_slice().len() - self.ended;
            let awaited = half(self.stop) | standing as u32;
            BOARD.awaited.store(awaited, Ordering::SeqCst);
            let arrived = BOARD.arrived.load(Ordering::SeqCst);
            if arrived == awaited {
                return Ok(());
            }
            if sys::clock_ns(1) > deadline {
                return Err(self.unstopped_one());
            }
            if futex(&BOARD.arrived, FUTEX_WAIT, arrived, Some(LOOK_NS)) == Err(sys::ETIMEDOUT) {
                self.ended = self.asked.as_slice().iter().filter(|tid| !is_there(**tid)).count();
            }
        }
    }

    /// Finds a thread that does not stop.
    fn unstopped_one(&self) -> Refusal {
        let stands = |tid: i32| Slot::all_in(self.stop).any(|slot| slot.thread().tid == tid);
        let silent = |tid: &&i32| is_there(**tid) && !stands(**tid);
        let tid = self.asked.as_slice().iter().find(silent).copied().unwrap_or(0);
        BOARD.unresponsive.store(tid, Ordering::Relaxed);
        unstopped(tid)
    }

    /// Refuses threads that cannot be started anew, and finds the first thread.
    fn check_results(&self, own: &Own) -> Result<(), Refusal> {
        let pid = sys::getpid();
        BOARD.leader.store(own.0 .0, Ordering::Relaxed);
        for slot in Slot::all_in(self.stop) {
            // SAFETY: its thread wrote the result before it stood still, and does not write now.
            unsafe { *slot.body().result.get() }?;
            if slot.thread().tid == pid {
                BOARD.leader.store(slot.0, Ordering::Relaxed);
            }
        }
        Ok(())
    }
}

/// Refuses a thread that does not stop, and says what it does.
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

/// Whether the stop signal of an earlier capture is still pending for a thread.
fn has_pending_stop(tid: i32) -> bool {
    let mut text = [0u8; 4096];
    let path = PathBuf::new(b"/proc/self/task/", tid as u64, b"/status");
    let len = read_file(path.as_c(), &mut text).unwrap_or(0);
    let mut lines = text[..len].split(|b| *b == b'\n');
    let pending = lines.find_map(|line| line.strip_prefix(b"SigPnd:\t")).and_then(maps::hex);
    pending.is_some_and(|(set, _)| set >> (STOP_SIGNAL - 1) & 1 != 0)
}

fn is_there(tid: i32) -> bool {
    // SAFETY: signal 0 only checks whether the thread exists.
    let asked = unsafe { sys::call3(nr::TGKILL, sys::getpid() as usize, tid as usize, 0) };
    asked != Err(sys::ESRCH) && !is_ended_leader(tid)
}

/// Whether this is the first thread of the process and it has ended. The kernel keeps it until all
/// have ended, and accepts signals for it that it never gets.
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
    let at = word.as_ptr() as usize;
    let value = value as usize;
    // SAFETY: the word is a static, and the time is a local variable that outlives the call.
    unsafe { sys::call6(nr::FUTEX, at, operation, value, time, 0, 0) }
}

fn set_action(action: &SigAction, before: Option<&mut SigAction>) -> sys::SysResult {
    let before = before.map_or(0, |action| &raw mut *action as usize);
    // SAFETY: the kernel reads and writes one action of 32 bytes each, the size of SigAction.
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
    // SAFETY: handlers read the action only after it was set below, and one capture at a time is
    // under way.
    let before = unsafe { &mut *BOARD.action.get() };
    let failed = |errno| Refusal::Kernel { step: "taking a signal to stop threads by", errno };
    set_action(&action, Some(before)).map(|_| ()).map_err(failed)
}

/// Restores the signal's action. A late thread may get the signal when the capture is over: if that
/// would end the process, the signal is ignored instead.
fn restore_signal(all_have_come: bool) {
    const DEFAULT: u64 = 0;
    const IGNORE: u64 = 1;
    // SAFETY: `take_signal` wrote the action before, and only the capturing thread writes it.
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
    // SAFETY: the kernel passes a valid siginfo_t, whose beginning StopInfo describes.
    let (code, pid, value) = unsafe { ((*info).code, (*info).pid, (*info).value) };
    if code != SI_QUEUE || pid != sys::getpid() || value & !0xffff_ffff != MARK {
        // SAFETY: these are the kernel's arguments, unchanged.
        return unsafe { forward(signal, info, context) };
    }
    let stop = value as u32;
    // SAFETY: the kernel passes the context of the interrupted code.
    if BOARD.stop.load(Ordering::Acquire) == stop && vdso::has(unsafe { instruction(context) }) {
        if steps_aside() {
            return;
        }
        BOARD.within_vdso.store(true, Ordering::Release);
    }
    let slot = loop {
        if BOARD.stop.load(Ordering::Acquire) != stop {
            return; // it is late: the capture is over
        }
        // There are enough slots, but threads of the last stop may still be leaving theirs.
        match Slot::claim() {
            Some(slot) => break slot,
            // SAFETY: the call has no arguments.
            None => drop(unsafe { sys::call3(nr::SCHED_YIELD, 0, 0, 0) }),
        }
    };
    // SAFETY: this thread has just claimed the slot. The hooks were written before any thread was
    // asked to stop.
    let interrupted = unsafe {
        *slot.body().result.get() = look(slot);
        slot.thread_mut().context = context as usize;
        (*BOARD.hooks.get()).interrupted
    };
    let mut job = Stopping { slot, stop };
    let top = slot.body().stack.get() as usize + STACK_LEN;
    // SAFETY: `stand_still` has the C calling convention. `job` and the stack in the slot exist
    // until it returns.
    let restored = unsafe { eyrie_image_enter(stand_still, (&raw mut job).cast(), top) };
    let own = Own(slot);
    if restored == 1 {
        // SAFETY: the result 1 means that this is a restored process, in the thread that stopped
        // here.
        unsafe { own.come_back() };
        await_resumption(stop);
    } else {
        own.end();
    }
    // Not earlier: a signal that arrived meanwhile interrupts the call, and code that repeats the
    // call would wait for the next signal.
    if let Some(tell) = interrupted {
        // SAFETY: the hook takes the context that the kernel passes to a signal handler, and this
        // is it.
        unsafe { tell(context) };
    }
}

/// The address of the interrupted instruction.
///
/// # Safety
/// `context` must be what the kernel passes to a signal handler.
unsafe fn instruction(context: *const c_void) -> u64 {
    /// Of RIP in ucontext_t: behind flags, link and stack it has 16 other registers.
    const AT: usize = 40 + 16 * 8;
    // SAFETY: the caller promises that it is a ucontext_t, which is longer.
    unsafe { context.byte_add(AT).cast::<u64>().read() }
}

/// Whether the calling thread, which is within the vDSO, goes on for a moment: it is asked again
/// then.
fn steps_aside() -> bool {
    if BOARD.asides.fetch_add(1, Ordering::Relaxed) >= ASIDES_MAX {
        return false;
    }
    let tid = sys::gettid();
    let free = |place: &AtomicI32| {
        place.compare_exchange(0, tid, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    };
    let noted = BOARD.aside.iter().any(free);
    if noted {
        let _ = futex(&BOARD.arrived, FUTEX_WAKE, 1, None);
    }
    noted
}

/// # Safety
/// The arguments must be the kernel's.
unsafe fn forward(signal: i32, info: *mut StopInfo, context: *mut c_void) {
    // SAFETY: `take_signal` wrote the action before it set this handler.
    let action = unsafe { *BOARD.action.get() };
    if action.handler > 1 {
        type Handler = unsafe extern "C" fn(i32, *mut StopInfo, *mut c_void);
        // SAFETY: `handler` is the address of the program's handler. A handler without SA_SIGINFO
        // ignores the other two arguments.
        unsafe { core::mem::transmute::<u64, Handler>(action.handler)(signal, info, context) }
    }
}

/// # Safety
/// The slot must be the calling thread's.
unsafe fn look(slot: Slot) -> Result<(), Refusal> {
    // SAFETY: the caller guarantees that the slot is the calling thread's, which does not stand
    // still yet.
    let thread = unsafe { slot.thread_mut() };
    thread.look()?;
    let offset = thread.tid_address.wrapping_sub(thread.fs_base);
    if offset != BOARD.tid_offset.load(Ordering::Relaxed) {
        let tid = thread.tid;
        let name = Text::new(&thread.comm);
        return Err(Refusal::Thread { tid, name, what: "was not made by the C library" });
    }
    Ok(())
}

/// # Safety
/// `job` must be a [`Stopping`].
unsafe extern "C" fn stand_still(job: *mut c_void, rsp: u64) {
    // SAFETY: the caller, `eyrie_image_enter`, passes the `Stopping` of `on_stop`, which outlives
    // the call.
    let job = unsafe { &*job.cast::<Stopping>() };
    // SAFETY: `on_stop` claimed the slot in this thread, which does not stand still yet.
    unsafe { job.slot.set_stopped(job.stop, rsp) };
    arrive(job.stop);
    while BOARD.stop.load(Ordering::Acquire) == job.stop {
        let _ = futex(&BOARD.stop, FUTEX_WAIT, job.stop, None);
    }
}

/// Counts the calling thread as stopped, unless the stop is over.
fn arrive(stop: u32) {
    let count = |arrived: u32| (arrived & 0xffff_0000 == half(stop)).then_some(arrived + 1);
    let counted = BOARD.arrived.fetch_update(Ordering::SeqCst, Ordering::SeqCst, count);
    if counted.is_ok_and(|before| before + 1 == BOARD.awaited.load(Ordering::SeqCst)) {
        let _ = futex(&BOARD.arrived, FUTEX_WAKE, 1, None);
    }
}
