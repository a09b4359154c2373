//! Taking an image of this process when the agent asks for one by signal: at the end of the next
//! provider call, or, when the agent asks again, at once. It must not allocate: the program may be
//! inside its allocator.

use crate::core::path::{ImagePoint, Path};
use crate::core::world::World;
use crate::ending::{fatal, or_end};
use crate::identity::process_id;
use crate::observing::{self, Held};
use crate::sockets::Sockets;
use crate::{channel, entry, interrupted, level, memory, stack};
use eyrie_image::processor::Components;
use eyrie_image::{Claim, Holder, Hooks, Mode, Outcome, Request, Track, Tracker};
use eyrie_image_format::named::{self, Named, CONTENT_MAX};
use eyrie_wire::agent::{
    capture_signal, FromRank, ToRank, ENV_DROP_SOCKETS, ENV_IMAGES, IMAGES_FULL, MAX_MESSAGE,
};
use eyrie_wire::page::What;
use eyrie_wire::ImageId;
use libc::c_int;
use std::cell::RefCell;
use std::fmt::Display;
use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::{Duration, Instant};

/// Numbers that the agent knows descriptors of a restored process by (0 to 2: standard streams).
const SLOT_AGENT: u32 = 3;
const SLOT_PMI: u32 = 4;
/// How long the image waits for large messages on their way to a router.
const SETTLE_TIMEOUT: Duration = Duration::from_millis(200);
/// How long the agent may take to read the rank's output.
const GO_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a rank stands still for its move: then it goes on where it is.
const HOLD_TIMEOUT: Duration = Duration::from_secs(10);

/// What the rank has written since its last image.
static TRACKER: Tracker = Tracker::new();
static PENDING: AtomicBool = AtomicBool::new(false);
/// Sockets that lead out of the rank come back as broken connections.
static DROP_SOCKETS: AtomicBool = AtomicBool::new(false);
/// Nothing is tracked: each image has all of the memory.
static FULL: AtomicBool = AtomicBool::new(false);
static PMI_FD: AtomicI32 = AtomicI32::new(-1);

/// Reads what the environment asks for.
pub fn prepare() {
    let pmi = std::env::var("PMI_FD").ok().and_then(|v| v.parse().ok());
    PMI_FD.store(pmi.unwrap_or(-1), Ordering::Relaxed);
    DROP_SOCKETS.store(std::env::var_os(ENV_DROP_SOCKETS).is_some(), Ordering::Relaxed);
    let full = std::env::var_os(ENV_IMAGES).is_some_and(|images| images == IMAGES_FULL);
    FULL.store(full, Ordering::Relaxed);
}

/// Installs the signal handler.
pub fn install() {
    stack::for_signals();
    // SAFETY: all zero is a valid sigaction; the handler has the type that its flags ask for.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_signal as *const () as usize;
        action.sa_flags = libc::SA_RESTART | libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigfillset(&mut action.sa_mask);
        libc::sigaction(capture_signal(), &action, std::ptr::null_mut());
    }
}

extern "C" fn on_signal(_: c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let asked_before = PENDING.swap(true, Ordering::Relaxed);
    // SAFETY: the context is the kernel's.
    if entry::inside() && stack::is_on_it(unsafe { interrupted::stack_pointer(context) }) {
        return;
    }
    // SAFETY: the thread's errno, which the interrupted code may be about to read.
    let errno = unsafe { *libc::__errno_location() };
    // Another thread may be in a call: then the image is taken at its end, and this thread waits
    // on.
    if asked_before && !entry::inside() {
        PENDING.store(false, Ordering::Relaxed);
        take(context);
    }
    // SAFETY: the context is the kernel's, and the errno this thread's own.
    unsafe {
        interrupted::go_on(context);
        *libc::__errno_location() = errno;
    }
}

/// Takes the image that was asked for during a provider call.
pub fn run_pending() {
    // Looked at before it is exchanged, which costs much more: this is the end of each call.
    while PENDING.load(Ordering::Relaxed)
        && !entry::inside()
        && PENDING.swap(false, Ordering::Relaxed)
    {
        if !take(std::ptr::null()) {
            // At the end of another call.
            return;
        }
    }
}

/// Takes the image that the agent has asked for, if it has. It waits for the end of a call that
/// another thread has begun in this moment; false: now there can be none. `context` is what the
/// kernel has passed to the signal handler that this is, if it is one.
fn take(context: *const libc::c_void) -> bool {
    // Before this process was a rank, no agent could ask.
    let done = entry::enter_for_image(|rank| {
        let _held = Held::new()?;
        if let Some(order) = order() {
            take_image(&mut rank.path, order, context);
        }
        Some(())
    });
    let done = done.flatten().is_some();
    if !done {
        PENDING.store(true, Ordering::Relaxed);
    }
    done
}

fn take_image(
    path: &mut impl Path<World = Sockets>,
    Order { image, sync, base, hold, self_contained, out }: Order,
    context: *const libc::c_void,
) {
    let start = Instant::now();
    let Some(starter_pid) = may_begin(path, image.0) else { return };
    let connections = Connections { path: RefCell::new(path), image: image.0 };
    // It goes on elsewhere, or here when it is told so or hears nothing.
    let written = |pause_ns| {
        channel::send(&FromRank::Captured { image, child_pid: 0, pause_ns });
        // SAFETY: the stream is whole, and its end is to be seen; `take_image` forgets it.
        unsafe { libc::close(out.as_raw_fd()) };
        await_go(image, HOLD_TIMEOUT);
    };
    let (rank, incarnation, clock, rsn) = connections.identify();
    let mut exclude = vec![memory::PAGE_STRETCH];
    exclude.extend_from_slice(connections.path.borrow().world().ledger.stretches());
    let request = Request {
        out_fd: out.as_raw_fd(),
        mode: if sync { Mode::Sync } else { Mode::Async },
        rank,
        incarnation,
        clock,
        rsn,
        exclude: &exclude,
        holders: &[&Files, &connections],
        drop_sockets: DROP_SOCKETS.load(Ordering::Relaxed),
        names_stay: observing::records_files(),
        self_contained,
        watched: Some(observing::watched),
        meta: &[],
        starter_pid,
        written: if hold { Some(&written) } else { None },
        hooks: Hooks {
            interrupted: Some(let_go_on),
            clock_jumped: Some(interrupted::clock_jumped),
        },
        level: level::level(),
        context,
        track: TRACKER.is_started().then(|| Track {
            tracker: &TRACKER,
            image: image.0,
            base: base.0,
            marks: TRACKER.pays(),
        }),
    };
    let exceeded_before = eyrie_image::beyond_level();
    // SAFETY: the rank can continue in another process: each part of its state that the kernel does
    // not know has a holder.
    let outcome = without_pipe_signal(|| unsafe { eyrie_image::capture(&request) });
    // A restored process was told of when its image was taken.
    if exceeded_before == 0 && !matches!(outcome, Outcome::Restored) {
        tell_beyond_level();
    }
    match outcome {
        // `written` has reported it, and has closed the descriptor.
        Outcome::Captured { .. } if sync && hold => std::mem::forget(out),
        Outcome::Captured { child_pid, .. } => {
            let pause_ns = start.elapsed().as_nanos() as u64;
            channel::send(&FromRank::Captured { image, child_pid: child_pid as u32, pause_ns });
            // Closed after the pause was sent: when the image is stored, the pause is known.
            drop(out);
        }
        Outcome::Refused(refusal) => {
            refuse(image.0, &refusal);
            // Closed after the reason was sent: a store that sees the stream end can then know the
            // reason.
            drop(out);
        }
        // The descriptor is not open here.
        Outcome::Restored => std::mem::forget(out),
    }
}

/// Tells the agent, if it is so, that the rank uses registers beyond its level.
fn tell_beyond_level() {
    let beyond = eyrie_image::beyond_level();
    if beyond != 0 {
        let mut text = [0u8; 64];
        let mut rest = &mut text[..];
        // A text that does not fit is cut.
        let _ = write!(rest, "{}", Components(beyond));
        let len = 64 - rest.len();
        let registers = std::str::from_utf8(&text[..len]).unwrap_or("more");
        channel::send(&FromRank::Exceeds { registers });
    }
}

/// What libeyrie-calls knows of the program's files.
struct Files;

impl Holder for Files {
    fn before_capture(&self) -> Result<(), &'static str> {
        observing::note_files().then_some(()).ok_or(
            "it has more files mapped to be written (mmap, numpy.memmap) than an image holds, \
             which is 128: unmap some, or write to them by write",
        )
    }

    fn describe<'a>(&self, _: &'a mut [u8; CONTENT_MAX]) -> Option<Named<'a>> {
        let named = Named { name: named::FILES, content: &[], is_optional: false };
        observing::records_files().then_some(named)
    }

    fn maps_again(&self, start: usize) -> bool {
        observing::takes_mapping(start)
    }

    fn restore(&self) {
        observing::come_back();
    }
}

/// The connections of the rank to its agent, to routers and to other ranks.
struct Connections<'a, P> {
    path: RefCell<&'a mut P>,
    /// The number of the image.
    image: u64,
}

impl<P: Path<World = Sockets>> Connections<'_, P> {
    /// Rank and incarnation, clock and rsn.
    fn identify(&self) -> (u32, u32, u64, u64) {
        let path = self.path.borrow();
        let incarnation = path.world().identity.instance.incarnation;
        (path.number().0, incarnation.0, path.clock(), path.rsn())
    }
}

impl<P: Path<World = Sockets>> Holder for Connections<'_, P> {
    /// The agent reads the rank's output to its end: no other thread prints any more either.
    fn before_capture(&self) -> Result<(), &'static str> {
        let image = self.image;
        let (_, _, clock, rsn) = self.identify();
        let observed = self.path.borrow().world().observed();
        let far = observing::far_devices();
        channel::send(&FromRank::Still { image: ImageId(image), clock, rsn, observed, far });
        await_go(ImageId(image), GO_TIMEOUT)
            .then_some(())
            .ok_or("the agent has not read the rank's output in time")
    }

    fn claim(&self, fd: i32) -> Option<Claim> {
        let path = self.path.borrow();
        let is_dropped = path.world().identity.descriptor() == Some(fd)
            || path.descriptors().any(|other| other == fd);
        match fd {
            _ if is_dropped => Some(Claim::Dropped),
            _ if fd == channel::descriptor() => Some(Claim::Slot(SLOT_AGENT)),
            _ if fd == PMI_FD.load(Ordering::Relaxed) => Some(Claim::Slot(SLOT_PMI)),
            _ => None,
        }
    }

    /// Says how many connections come back dead.
    fn describe<'a>(&self, room: &'a mut [u8; CONTENT_MAX]) -> Option<Named<'a>> {
        let count = self.path.borrow().descriptors().count() as u32;
        let content = &mut room[..size_of::<u32>()];
        content.copy_from_slice(&count.to_le_bytes());
        Some(Named { name: named::CONNECTIONS, content, is_optional: false })
    }

    // Not earlier: what is forgotten gives memory back, and a thread that stands still may be in
    // the allocator.
    fn resume(&self, outcome: &Outcome) {
        let mut path = self.path.borrow_mut();
        match outcome {
            Outcome::Captured { .. } => {
                let clock = path.clock();
                path.world_mut().trace(What::Image, clock, 0, self.image);
            }
            Outcome::Restored => {
                path.forget_connections();
                join_again(&mut **path);
            }
            Outcome::Refused(_) => {}
        }
    }
}

/// Tells the agent why there is no image. Allocates nothing: a text that does not fit is cut.
fn refuse(image: u64, reason: &dyn Display) {
    let mut text = [0u8; MAX_MESSAGE];
    let mut rest = &mut text[..];
    // A text that does not fit is cut.
    let _ = write!(rest, "{reason}");
    let len = MAX_MESSAGE - rest.len();
    let reason = std::str::from_utf8(&text[..len]).unwrap_or("the process cannot be captured");
    channel::send(&FromRank::Refused { image: ImageId(image), reason });
}

/// Whether an image can be taken now: then the agent's number as a process. If not, the agent has
/// been told why.
fn may_begin(path: &mut impl Path<World = Sockets>, image: u64) -> Option<i32> {
    let agent = channel::agent_pid();
    if agent == 0 {
        refuse(image, &"it is in another namespace of process ids than its agent");
        return None;
    }
    if let Some(shared) = observing::shared_file() {
        let reason = format_args!(
            "it has {} mapped to be written (mmap, numpy.memmap), and another rank has mapped it \
             or opened it to write, too: what they store there is lost when one goes back to an \
             image; let one rank alone map and write it, or all write to it by write or MPI-IO",
            shared.to_str().unwrap_or("a file")
        );
        refuse(image, &reason);
        return None;
    }
    if let Err(why) = path.settle(SETTLE_TIMEOUT) {
        refuse(image, &why);
        return None;
    }
    Some(agent)
}

/// Lets a system call of another thread go on that only the image has interrupted.
///
/// # Safety
/// As [`interrupted::go_on`].
unsafe fn let_go_on(context: *mut libc::c_void) {
    // SAFETY: the thread's errno, which the interrupted code may be about to read; the rest is
    // handed on to the caller.
    unsafe {
        let errno = *libc::__errno_location();
        interrupted::go_on(context);
        *libc::__errno_location() = errno;
    }
}

/// Begins to track what this process writes. Where that cannot be, images are full ones.
pub fn track() {
    if FULL.load(Ordering::Relaxed) {
        return;
    }
    if let Err(refusal) = TRACKER.start() {
        channel::send(&FromRank::Untracked { reason: &refusal.to_string() });
    }
}

/// Does `work` so that a pipe whose reader has left is an error and no signal: the agent or the
/// store may give an image up at any time, and the rank must go on.
fn without_pipe_signal<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: plain calls on signal sets of this frame and the mask of this thread; a signal that
    // was pending before is left to the program.
    unsafe {
        let mut pipe: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        let mut pending: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut pipe);
        libc::sigaddset(&mut pipe, libc::SIGPIPE);
        libc::pthread_sigmask(libc::SIG_BLOCK, &pipe, &mut before);
        libc::sigpending(&mut pending);
        let result = work();
        if libc::sigismember(&pending, libc::SIGPIPE) == 0 {
            let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            libc::sigtimedwait(&pipe, std::ptr::null_mut(), &at_once);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        result
    }
}

/// The restored process is a new incarnation, and connects again.
fn join_again(path: &mut impl Path<World = Sockets>) {
    if let Err(e) = path.world_mut().identity.be_welcomed() {
        fatal(&e);
    }
    channel::send(&FromRank::Loaded { pid: process_id() });
    track();
    let incarnation = path.world().identity.instance.incarnation;
    let clock = path.clock();
    let rsn = path.rsn();
    path.world_mut().trace(What::Restored, clock, incarnation.0, rsn);
    or_end(path.reconnect());
}

impl ImagePoint for Sockets {
    fn image_point(path: &mut impl Path<World = Sockets>) {
        if PENDING.swap(false, Ordering::Relaxed) {
            let Some(_held) = Held::new() else { return PENDING.store(true, Ordering::Relaxed) };
            if let Some(order) = order() {
                take_image(path, order, std::ptr::null());
            }
        }
    }
}

/// What the agent asks for: whether to wait until the image is written, which image it may build on
/// (0: none), whether to stand still from then on, whether it has the content of mapped files, and
/// where it goes.
struct Order {
    image: ImageId,
    sync: bool,
    base: ImageId,
    hold: bool,
    self_contained: bool,
    out: OwnedFd,
}

/// The agent's order, if one has come.
fn order() -> Option<Order> {
    loop {
        let (message, [descriptor, _]) = channel::receive()?;
        let capture = (message, descriptor);
        if let (Some(ToRank::Capture { image, sync, base, hold, self_contained }), Some(out)) =
            capture
        {
            return Some(Order { image, sync, base, hold, self_contained, out });
        }
    }
}

fn await_go(image: ImageId, timeout: Duration) -> bool {
    let deadline = Instant::now() + timeout;
    while Instant::now() < deadline {
        match channel::receive() {
            Some((Some(ToRank::Go { image: named }), _)) if named == image => return true,
            Some(_) => {}
            None => channel::wait(deadline),
        }
    }
    false
}
