//! This process as a rank of its job: the one object behind all libfabric objects. It must never let a message
//! be seen outside a progress call, nor let anything out before the determinants it depends on.

use super::delivery::Delivery;
use super::identity::{await_agent, Identity};
use super::matching::{Completion, Matching};
use super::replay::{Replay, Turn};
use super::sender::{Outgoing, Sender, Unstored};
use crate::{capture, memory, stack};
use eyrie_wire::agent::{FromRank, ToRank, MAX_MESSAGE};
use eyrie_wire::data::{home, Determinant};
use eyrie_wire::{Incarnation, Rank as RankNumber};
use std::io::{self, ErrorKind};
use std::os::fd::RawFd;
use std::sync::atomic::{compiler_fence, AtomicI32, AtomicPtr, AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How long a router may be out of reach.
const RECONNECT_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a replaying rank waits for the next message from the log.
const REPLAY_TIMEOUT: Duration = Duration::from_secs(120);
/// Progress calls that find nothing, one right after another, before the next one sleeps for a message.
const SPINS: u32 = 300;
/// Cycles between two progress calls up to which the program is taken to do nothing but wait.
const WAITING_GAP: u64 = 30_000;
/// Cycles between two looks at whether the send streams of a waiting rank still stand: about a millisecond.
const LOOK_GAP: u64 = 3_000_000;

/// The rank. One per process; the MPI library calls from one thread at a time (FI_THREAD_DOMAIN).
pub struct Rank {
    pub me: Identity,
    pub matching: Matching,
    replay: Replay,
    delivery: Delivery,
    senders: Vec<Sender>,
    unstored: Unstored,
    /// Messages sent to each rank.
    sent: Vec<u64>,
    /// Progress calls in a row that found nothing, and when the last one ended.
    idle_calls: u32,
    last_call: u64,
    /// When the send streams were last looked after.
    last_look: u64,
}

static RANK: AtomicPtr<Rank> = AtomicPtr::new(std::ptr::null_mut());
static AGENT_FD: AtomicI32 = AtomicI32::new(-1);
/// More than 0 while a provider call is under way: an image waits until it is over.
static INSIDE: AtomicU32 = AtomicU32::new(0);

/// Whether a provider call is under way.
pub fn inside() -> bool {
    INSIDE.load(Ordering::Relaxed) > 0
}

/// Makes this process a rank, once.
///
/// # Errors
/// What is missing, in words for the user.
pub fn join() -> Result<(), String> {
    if !RANK.load(Ordering::Relaxed).is_null() {
        return Ok(());
    }
    memory::reserve()?;
    // The C library makes this library's thread-local memory, with the program's malloc, when it is first
    // used: that must be now, and not when a message comes.
    std::hint::black_box(std::hash::RandomState::new());
    let me = Identity::from_environment()?;
    AGENT_FD.store(me.agent_fd, Ordering::Relaxed);
    let rank = Rank {
        matching: Matching::default(),
        replay: Replay::default(),
        delivery: Delivery::new(),
        senders: (0..me.routers).map(|k| Sender::new(k, me.size)).collect(),
        unstored: Unstored::default(),
        sent: vec![0; me.size as usize],
        idle_calls: 0,
        last_call: 0,
        last_look: 0,
        me,
    };
    RANK.store(Box::into_raw(Box::new(rank)), Ordering::Release);
    // From the next line on the agent may send the signal.
    capture::install(AGENT_FD.load(Ordering::Relaxed));
    // The agent does not answer a rank that has not met the others: the job ends before it computes. An image
    // that is asked for in the same moment waits, or it would take the answer off the channel.
    let admitted = enter(|rank| {
        tell_agent(&FromRank::Loaded { pid: std::process::id() });
        await_agent(rank.me.agent_fd, |m| (m == ToRank::Admitted).then_some(()))
    });
    capture::run_pending();
    admitted.unwrap_or(Ok(()))
}

/// Runs a provider call; an image that was asked for meanwhile is taken when it is over.
pub fn call<R>(f: impl FnOnce(&mut Rank) -> R) -> R {
    let result = enter(f).expect("no endpoint without getinfo");
    capture::run_pending();
    result
}

/// Runs `f` with the rank, if this process is one already, on the provider's stack. No image is taken meanwhile.
pub fn enter<R>(f: impl FnOnce(&mut Rank) -> R) -> Option<R> {
    let rank = RANK.load(Ordering::Relaxed);
    if rank.is_null() {
        return None;
    }
    if INSIDE.fetch_add(1, Ordering::Acquire) != 0 {
        fatal(
            "two threads were in MPI at the same time (or a signal handler called MPI while it was in MPI): \
             Eyrie's provider takes one call at a time; use MPI_THREAD_SERIALIZED or less",
        );
    }
    compiler_fence(Ordering::SeqCst);
    // SAFETY: of `errno`: this thread's, which the program may read after a call that did not fail.
    let errno = unsafe { *libc::__errno_location() };
    // SAFETY: made by `join` and never freed; INSIDE was 0 and keeps others and the signal handler out, so this is
    // the only reference, and nobody is on the stack.
    let result = unsafe { stack::run(|| f(&mut *rank)) };
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
    compiler_fence(Ordering::SeqCst);
    INSIDE.fetch_sub(1, Ordering::Release);
    Some(result)
}

/// Sends one message to the agent. Allocates nothing; a dead agent takes this process with it anyway.
pub fn tell_agent(message: &FromRank) {
    let mut buf = [0u8; MAX_MESSAGE];
    let len = message.encode(&mut buf);
    let fd = AGENT_FD.load(Ordering::Relaxed);
    // SAFETY: the buffer is as long as said.
    unsafe { libc::send(fd, buf.as_ptr().cast(), len, libc::MSG_NOSIGNAL) };
}

/// Ends this rank: it cannot go on. The agent hears why.
pub fn fatal(reason: &str) -> ! {
    tell_agent(&FromRank::Fatal { reason });
    // SAFETY: ends the process without running the program's exit handlers, which may call MPI.
    unsafe { libc::_exit(70) }
}

impl Rank {
    /// Connects to the home router, so that others' messages are taken from the start.
    pub fn attach(&mut self) {
        if !self.delivery.connected() {
            self.reconnect_delivery();
        }
    }

    /// Progress calls so far.
    pub fn clock(&self) -> u64 {
        self.replay.clock()
    }

    /// Position of the last visible message.
    pub fn position(&self) -> u64 {
        self.delivery.position()
    }

    /// Sends a message; returns when it is on its way and kept.
    pub fn send(
        &mut self,
        destination: RankNumber,
        flags: u8,
        tag: u64,
        data: u64,
        content: &[u8],
    ) {
        let seq = self.sent[destination as usize] + 1;
        let clock = self.replay.clock();
        let message = Outgoing { destination, seq, flags, tag, data, clock, content };
        let router = home(destination, self.me.routers) as usize;
        loop {
            if !self.senders[router].connected() {
                self.reconnect_sender(router);
            }
            match self.senders[router].enqueue(&message, &mut self.unstored) {
                Ok(()) => break,
                Err(e) => self.lost_sender(router, &e),
            }
        }
        self.sent[destination as usize] = seq;
        if let Err(e) = self.senders[router].write() {
            self.lost_sender(router, &e);
            self.reconnect_sender(router);
        }
    }

    fn lost_sender(&mut self, router: usize, e: &io::Error) {
        if e.kind() == ErrorKind::ConnectionRefused || e.kind() == ErrorKind::TimedOut {
            fatal(&e.to_string());
        }
        self.senders[router].disconnect();
    }

    fn reconnect_sender(&mut self, router: usize) {
        let (senders, unstored, me) = (&mut self.senders, &mut self.unstored, &self.me);
        persist(&format!("router {router}"), || senders[router].connect(me, unstored));
    }

    fn reconnect_delivery(&mut self) {
        let (delivery, me, clock) = (&mut self.delivery, &self.me, self.replay.clock());
        let script = persist("its home router", || delivery.connect(me, clock));
        let caught_up = script.is_empty();
        if let Err(e) = self.replay.load(script, self.delivery.position()) {
            fatal(&format!("the log does not fit this rank: {e}"));
        }
        if caught_up {
            // A lost notice only delays the report.
            let _ = self.delivery.say_replayed();
        }
    }

    /// A progress call: the clock ticks, messages become visible as far as this clock allows.
    /// `idle`: there is nothing else to report, so it may sleep for a message.
    pub fn progress(&mut self, idle: bool, mut done: impl FnMut(Completion)) {
        self.attach();
        match self.replay.tick() {
            Turn::Nothing => {}
            Turn::UpTo(position) => self.show_again(position, &mut done),
            Turn::Free if idle => self.show_new(&mut done),
            Turn::Free => self.idle_calls = 0,
        }
    }

    fn show_new(&mut self, done: &mut impl FnMut(Completion)) {
        let before = self.delivery.position();
        let sleep = self.waiting_only();
        if sleep {
            self.send_determinants();
        }
        let came = self.delivery.receive(sleep);
        let silent = !matches!(came, Ok(true));
        let shown = came.and_then(|_| self.delivery.show(u64::MAX, &mut self.matching, done));
        if let Err(e) = shown {
            self.lost_delivery(&e);
        }
        let position = self.delivery.position();
        if position > before {
            self.unstored.push(Determinant { clock: self.replay.clock(), position });
            self.idle_calls = 0;
        }
        // SAFETY: reads the time stamp counter.
        self.last_call = unsafe { std::arch::x86_64::_rdtsc() };
        if silent && self.last_call.wrapping_sub(self.last_look) > LOOK_GAP {
            self.last_look = self.last_call;
            self.look_after_senders();
        }
    }

    /// Whether the program has been doing nothing but asking for messages for some calls.
    fn waiting_only(&mut self) -> bool {
        // SAFETY: reads the time stamp counter.
        let now = unsafe { std::arch::x86_64::_rdtsc() };
        if now.wrapping_sub(self.last_call) > WAITING_GAP {
            self.idle_calls = 0;
        }
        self.idle_calls += 1;
        self.idle_calls > SPINS
    }

    /// Shows what was shown at this clock before; waits for it.
    fn show_again(&mut self, position: u64, done: &mut impl FnMut(Completion)) {
        let deadline = Instant::now() + REPLAY_TIMEOUT;
        loop {
            let shown = self.delivery.show(position, &mut self.matching, &mut *done);
            if self.delivery.position() == position {
                break;
            }
            if let Err(e) = shown.and_then(|()| self.delivery.receive(true)) {
                self.lost_delivery(&e);
                let (delivery, me) = (&mut self.delivery, &self.me);
                // The script in hand goes on; the router's copy of it is the same.
                let clock = self.replay.clock();
                persist("its home router", || delivery.connect(me, clock));
            }
            if Instant::now() > deadline {
                fatal(&format!(
                    "replay has waited {REPLAY_TIMEOUT:?} for message {} from its home router",
                    self.delivery.position() + 1
                ));
            }
        }
        if self.replay.shown() {
            // A lost notice only delays the report.
            let _ = self.delivery.say_replayed();
        }
    }

    fn lost_delivery(&mut self, e: &io::Error) {
        if e.kind() == ErrorKind::ConnectionRefused {
            fatal(&e.to_string());
        }
        self.delivery.disconnect();
    }

    /// Finds out whether a router has closed a stream with messages on it that it never acknowledged, and sends them again: what
    /// the rank waits for may be the answer to one of them, and nothing else would notice.
    fn look_after_senders(&mut self) {
        for router in 0..self.senders.len() {
            let sender = &mut self.senders[router];
            if !sender.busy() {
                continue;
            }
            if sender.connected() {
                match sender.take_acknowledgements(&mut self.unstored) {
                    Ok(()) => continue,
                    Err(e) => self.lost_sender(router, &e),
                }
            }
            self.reconnect_sender(router);
        }
    }

    fn send_determinants(&mut self) {
        let router = home(self.me.rank, self.me.routers) as usize;
        if self.senders[router].connected() {
            if let Err(e) = self.senders[router].send_determinants(&mut self.unstored) {
                self.lost_sender(router, &e);
            }
        } else if self.unstored.newest() > 0 {
            self.reconnect_sender(router);
        }
    }

    /// Waits until everything sent is logged.
    pub fn flush(&mut self) {
        for router in 0..self.senders.len() {
            while self.senders[router].busy() {
                if !self.senders[router].connected() {
                    self.reconnect_sender(router);
                }
                if let Err(e) = self.senders[router].flush(&mut self.unstored) {
                    self.lost_sender(router, &e);
                }
            }
        }
    }

    /// Whether an image taken now would hold all that it needs: waits shortly for payloads on their way to a router.
    pub fn settled(&mut self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        for sender in &mut self.senders {
            while sender.names_segments() {
                if sender.take_acknowledgements(&mut self.unstored).is_err() {
                    return false;
                }
                if Instant::now() > deadline {
                    return false;
                }
                std::hint::spin_loop();
            }
        }
        true
    }

    /// All descriptors of the provider but the agent channel.
    pub fn descriptors(&self) -> impl Iterator<Item = RawFd> + '_ {
        self.delivery.descriptors().chain(self.senders.iter().flat_map(Sender::descriptors))
    }

    /// This process has come back from an image as a new incarnation: all connections are gone. It connects
    /// at once, because the program may compute for long before it asks for a message: until then it could
    /// not be imaged, and others may wait for what it has sent.
    pub fn restored(&mut self, incarnation: Incarnation) {
        self.me.incarnation = incarnation;
        self.delivery.disconnect();
        self.senders.iter_mut().for_each(Sender::disconnect);
        self.attach();
        self.look_after_senders();
    }
}

/// Tries until it works; ends the rank when the router refuses it or stays out of reach.
fn persist<T>(whom: &str, mut attempt: impl FnMut() -> io::Result<T>) -> T {
    let start = Instant::now();
    let mut pause = Duration::from_micros(200);
    loop {
        match attempt() {
            Ok(value) => return value,
            Err(e) if e.kind() == ErrorKind::ConnectionRefused && e.get_ref().is_some() => {
                fatal(&e.to_string())
            }
            Err(e) if e.kind() == ErrorKind::PermissionDenied => fatal(&e.to_string()),
            Err(e) if start.elapsed() > RECONNECT_TIMEOUT => {
                fatal(&format!("{whom} has been out of reach for {RECONNECT_TIMEOUT:?}: {e}"))
            }
            Err(_) => std::thread::sleep(pause),
        }
        pause = (pause * 2).min(Duration::from_millis(100));
    }
}
