//! The stream of observations of a rank: records what the rank observes besides messages, and tells
//! it again to a rank that is executed again. Only observations of the thread that called MPI_Init
//! count, and only those of its program, not of the provider. The provider takes the records before
//! anything leaves the rank. This code must never allocate. A call that is being recorded must
//! never be in an image.

use crate::environment::{agent_channel, variable};
use crate::files::saying;
use crate::first_observations::first_observations;
use crate::own_stack;
use crate::stream::{missing, Item, Last, Reader, Sink, Writer, CLOCKS, MOST, WHOLE};
use std::cell::UnsafeCell;
use std::ffi::CStr;
use std::sync::atomic::{compiler_fence, AtomicBool, AtomicI32, AtomicPtr, AtomicUsize, Ordering};

/// "off": nothing is recorded. The same in each incarnation of a rank.
const ENV_RECORD: &CStr = c"EYRIE_RECORD";

/// Room for records that the provider has not taken yet. When values come so often that it fills
/// up, they are made coarser ([`coarser`]). What does not fit all the same is not recorded.
pub(crate) const ROOM: usize = 16 << 20;
/// Room for observations that are replayed before the provider is there. Every incarnation has
/// it, so that no address differs.
const MOST_BEGINNING: usize = ROOM;
/// The most bytes that are replayed before the provider is there, as `eyrie_router::BEGINNING`.
const MOST_GIVEN: usize = 1 << 20;
/// Bytes not taken after which the unit of clocks doubles.
const COARSER: usize = 256 << 10;
/// How often the unit doubles at most: then it is a second.
const MOST_COARSER: u32 = 20;

/// What the record of a signal begins with.
const SIGNAL_FRONT: &[u8; 4] = b"sgnl";

/// This process records what it observes.
static ON: AtomicBool = AtomicBool::new(false);
/// An earlier process of the rank has come further than where this one began.
static AGAIN: AtomicBool = AtomicBool::new(false);
/// The thread whose observations count, by its [`this_thread`].
pub(crate) static OWNER: AtomicUsize = AtomicUsize::new(0);
/// How many calls of the provider the owner is in.
pub(crate) static INSIDE: AtomicUsize = AtomicUsize::new(0);
/// The owner is recording something.
pub(crate) static BUSY: AtomicBool = AtomicBool::new(false);
/// Another thread takes an image or is in the provider: the owner must not begin a record.
pub(crate) static HELD: AtomicBool = AtomicBool::new(false);
/// Other threads than the owner call MPI, too.
pub(crate) static SEVERAL: AtomicBool = AtomicBool::new(false);
/// The owner is in a call that is recorded, and waits until the record is stored ([`pause`]): no
/// image may be taken.
pub(crate) static UNDERWAY: AtomicBool = AtomicBool::new(false);
/// An image waits until the record that is being made is finished.
pub(crate) static WAITS: AtomicBool = AtomicBool::new(false);

/// The signal that asks for one.
pub(crate) static SIGNAL: AtomicI32 = AtomicI32::new(0);

/// A buffer of fixed length.
pub(crate) struct Buffer {
    pub(crate) at: AtomicPtr<u8>,
    pub(crate) len: usize,
}

impl Sink for Buffer {
    #[inline]
    fn push(&mut self, byte: u8) {
        // SAFETY: each writer has checked that there is room for a whole item.
        unsafe { *self.at.load(Ordering::Relaxed).add(self.len) = byte };
        self.len += 1;
    }

    fn extend(&mut self, bytes: &[u8]) {
        // SAFETY: each writer has checked that there is room for a whole item, and none writes
        // bytes of the buffer itself.
        unsafe {
            let to = self.at.load(Ordering::Relaxed).add(self.len);
            to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        }
        self.len += bytes.len();
    }
}

/// The stream, at both its ends.
pub struct ObservedStream {
    /// Bytes that were taken, or observed again.
    pub(crate) passed: u64,
    last: Last,
    pub(crate) writer: Writer,
    pub(crate) buffer: Buffer,
    /// Bytes of records in the buffer: the rest is of clocks.
    pub(crate) of_records: usize,
    /// The observations that are replayed: where they are, their bytes, and how many of these were
    /// replayed so far.
    pub(crate) again: (AtomicPtr<u8>, usize, usize),
    reader: Reader,
    /// Up to this byte, `again` has at most one record, which begins like this. A search for
    /// another record can skip these bytes.
    coming: (u64, Option<[u8; 4]>),
    /// More is known than is in `again`: the provider gives it later.
    cut: bool,
    /// By how much each clock is ahead of the kernel's, in microseconds, so that no clock goes back
    /// in a process that was executed again.
    pub ahead: [i64; CLOCKS],
}

/// A call that is to be observed again.
pub(crate) enum Recorded {
    Record(&'static [u8]),
    Done(u8),
}

/// The beginning of such a call in [`ObservedStream::coming`]. No record begins like this.
fn front_of_done(kind: u8) -> [u8; 4] {
    [0, 0xff, 0xff, kind]
}

/// A place in the observations that are replayed.
type Place = ((Reader, Last), (usize, usize, u64, usize));

pub(crate) struct Shared(pub(crate) UnsafeCell<ObservedStream>);

// SAFETY: only the owner uses it, and the provider while the owner does not: in one of its calls,
// or while [`HELD`].
unsafe impl Sync for Shared {}

pub(crate) static STREAM: Shared = Shared(UnsafeCell::new(ObservedStream {
    passed: 0,
    last: Last::new(),
    writer: Writer::new(),
    buffer: Buffer { at: AtomicPtr::new(std::ptr::null_mut()), len: 0 },
    of_records: 0,
    again: (AtomicPtr::new(std::ptr::null_mut()), 0, 0),
    reader: Reader::new(),
    coming: (0, None),
    cut: false,
    ahead: [0; CLOCKS],
}));

impl ObservedStream {
    /// What is to be observed next, when that is known from an earlier execution.
    #[inline]
    fn peek(&mut self) -> Option<Item> {
        loop {
            match self.peek_any()? {
                Item::Record { len } if self.record(len).last() != Some(&WHOLE) => {
                    self.reader.take(&mut self.last);
                }
                item => return Some(item),
            }
        }
    }

    /// The bytes of a record that is the next item.
    fn record(&self, len: usize) -> &'static [u8] {
        let bytes = self.again.0.load(Ordering::Relaxed);
        let used = self.again.2;
        // SAFETY: the record was the last that was read there, and the bytes stay until the
        // provider gives others: not during a call that is being recorded.
        unsafe { std::slice::from_raw_parts(bytes.add(used - len), len) }
    }

    #[inline]
    fn peek_any(&mut self) -> Option<Item> {
        if !self.is_again() {
            return None;
        }
        let bytes = &self.again.0;
        let len = self.again.1;
        let used = &mut self.again.2;
        let before = *used;
        let rest = match len {
            0 => &[],
            // SAFETY: the provider keeps as many bytes there as it has said.
            len => unsafe {
                std::slice::from_raw_parts(bytes.load(Ordering::Relaxed).add(before), len - before)
            },
        };
        let item = self.reader.peek(&self.last, rest, used);
        let used = &self.again.2;
        self.passed += (*used - before) as u64;
        if item.is_none() {
            self.fill_up(&rest[*used - before..]);
            (self.again.1, self.again.2) = (0, 0);
        }
        item
    }

    /// The known stream ends within an item. The missing bytes are added, so that items behind it
    /// can be read, and no reader takes it for a whole item.
    fn fill_up(&mut self, rest: &[u8]) {
        let missing = missing(rest).filter(|missing| self.buffer.len + missing <= ROOM);
        if let Some(missing) = missing {
            self.passed += rest.len() as u64;
            (0..missing).for_each(|_| self.buffer.push(0));
        }
    }

    /// What this clock said before, when it is known.
    #[inline]
    pub fn clock_again(&mut self, clock: usize) -> Option<i64> {
        match self.peek()? {
            Item::Clock { clock: asked, value } if asked == clock => {
                self.reader.take(&mut self.last);
                Some(value)
            }
            // The rank reads another clock than before. Until the next part it gets the current
            // values.
            _ => None,
        }
    }

    /// The record of a call that begins like this, when it is known. Skips the values of clocks
    /// before it: a library may read clocks more or less often, depending on a clock that is not
    /// recorded (Open MPI does). Calls on files still come in the same order.
    pub fn record_again(&mut self, front: [u8; 4]) -> Option<&'static [u8]> {
        if !self.is_again() || self.passed < self.coming.0 && self.coming.1 != Some(front) {
            return None;
        }
        let before = self.place();
        let record = self.pass_over_clocks().and_then(|call| match call {
            Recorded::Record(record) => record.starts_with(&front).then_some(record),
            Recorded::Done(_) => None,
        });
        match record {
            Some(_) => self.reader.take(&mut self.last),
            None => self.go_back_to(before),
        }
        record
    }

    /// Whether the next record is a call of this kind that returned what was asked for; takes it.
    /// Skips the values of clocks before it.
    pub fn done_again(&mut self, kind: u8) -> bool {
        let other = self.coming.1 != Some(front_of_done(kind));
        if !self.is_again() || self.passed < self.coming.0 && other {
            return false;
        }
        let before = self.place();
        let is_next = matches!(self.pass_over_clocks(), Some(Recorded::Done(it)) if it == kind);
        if is_next {
            self.reader.take(&mut self.last)
        } else {
            self.go_back_to(before)
        }
        is_next
    }

    /// Records that a call of this kind returned what was asked for.
    pub fn write_done(&mut self, kind: u8) {
        if self.has_room() {
            self.writer.done(kind, &mut self.buffer);
        }
    }

    /// The signal that the rank got at this clock of its progress calls before, and its number
    /// among those of the job. One that it has missed comes now.
    pub fn signal_again(&mut self, clock: u64) -> Option<(u64, u8)> {
        if self.passed < self.coming.0 && self.coming.1 != Some(*SIGNAL_FRONT) {
            return None;
        }
        let before = self.place();
        let due = self.pass_over_clocks().and_then(|call| {
            let Recorded::Record(record) = call else { return None };
            let (at, rest) = record.strip_prefix(SIGNAL_FRONT)?.split_first_chunk::<8>()?;
            let (n, rest) = rest.split_first_chunk::<8>()?;
            let due = u64::from_le_bytes(*at) <= clock;
            due.then(|| (u64::from_le_bytes(*n), rest.first().copied().unwrap_or(0)))
        });
        match due {
            Some(_) => self.reader.take(&mut self.last),
            None => self.go_back_to(before),
        }
        due
    }

    /// The rank gets a signal at this clock, the `n`th of the job.
    pub fn write_signal(&mut self, clock: u64, n: u64, signal: u8) {
        let mut record = [0; 21];
        record[..4].copy_from_slice(SIGNAL_FRONT);
        record[4..12].copy_from_slice(&clock.to_le_bytes());
        record[12..20].copy_from_slice(&n.to_le_bytes());
        record[20] = signal;
        // Without room the record is lost, as any other: a rank that is executed again does not get
        // the signal.
        self.write_record(&record, &[WHOLE]);
    }

    /// Whether the rank does now what it never did before, as far as files are concerned: no record
    /// is left. Values of clocks that are left are then dropped.
    pub fn ends_without_record(&mut self) -> bool {
        if !self.is_again() {
            return true;
        }
        let before = self.place();
        let over = self.pass_over_clocks().is_none() && self.is_new();
        if !over {
            self.go_back_to(before);
        }
        if over && self.cut {
            saying::beginning_is_lost();
        }
        over
    }

    /// The next call, behind the values of clocks. It is not taken yet.
    fn pass_over_clocks(&mut self) -> Option<Recorded> {
        let call = loop {
            match self.peek() {
                Some(Item::Record { len }) => {
                    break Some(Recorded::Record(&self.record(len)[..len - 1]));
                }
                Some(Item::Done(kind)) => break Some(Recorded::Done(kind)),
                Some(Item::Clock { .. }) => self.reader.take(&mut self.last),
                Some(Item::Result(_)) | None => break None,
            }
        };
        let front = call.as_ref().and_then(|call| match call {
            Recorded::Record(record) => record.first_chunk().copied(),
            Recorded::Done(kind) => Some(front_of_done(*kind)),
        });
        self.coming = (self.passed, front);
        call
    }

    /// Whether no later call is known. Values of clocks may be.
    pub fn knows_no_call(&mut self) -> bool {
        let before = self.place();
        let is_over = self.pass_over_clocks().is_none() && self.is_new();
        self.go_back_to(before);
        is_over
    }

    /// Shows `is_enough` the known calls that come next, until it returns true; returns whether it
    /// did. None of them is taken.
    pub(crate) fn look_ahead(&mut self, is_enough: &mut dyn FnMut(&Recorded) -> bool) -> bool {
        let before = self.place();
        let found = loop {
            let call = match self.peek() {
                Some(Item::Record { len }) => Recorded::Record(&self.record(len)[..len - 1]),
                Some(Item::Done(kind)) => Recorded::Done(kind),
                Some(_) => {
                    self.reader.take(&mut self.last);
                    continue;
                }
                None => break false,
            };
            if is_enough(&call) {
                break true;
            }
            self.reader.take(&mut self.last);
        };
        self.go_back_to(before);
        found
    }

    /// Skips so many known calls.
    pub fn pass_over(&mut self, calls: usize) {
        for _ in 0..calls {
            if self.pass_over_clocks().is_some() {
                self.reader.take(&mut self.last);
            }
        }
    }

    /// Bytes that wait to be taken. Items that were only counted are a byte.
    #[inline]
    pub fn waiting(&self) -> usize {
        self.buffer.len + usize::from(!self.writer.is_settled())
    }

    /// Bytes that were recorded so far, or replayed.
    pub fn written(&self) -> u64 {
        self.passed + self.buffer.len as u64
    }

    fn place(&self) -> Place {
        let reading = (self.reader.clone(), self.last.clone());
        (reading, (self.again.1, self.again.2, self.passed, self.buffer.len))
    }

    fn go_back_to(&mut self, place: Place) {
        (self.reader, self.last) = place.0;
        (self.again.1, self.again.2, self.passed, self.buffer.len) = place.1;
    }

    /// The result of this call before, when it is known.
    pub fn result_again(&mut self) -> Option<i64> {
        match self.peek()? {
            Item::Result(value) => {
                self.reader.take(&mut self.last);
                Some(value)
            }
            Item::Clock { .. } | Item::Done(_) | Item::Record { .. } => None,
        }
    }

    /// The last value of a clock that was observed.
    #[inline]
    pub fn last(&self, clock: usize) -> i64 {
        self.last.values[clock]
    }

    /// Whether observations are left to be replayed, or it is not known yet whether there are.
    #[inline]
    pub fn is_again(&self) -> bool {
        self.again.1 > 0 || !self.reader.is_empty()
    }

    #[inline]
    fn has_room(&self) -> bool {
        self.buffer.len + MOST <= ROOM && !self.is_again()
    }

    /// By how many bits the unit of clocks is coarser than a microsecond.
    #[inline]
    pub fn coarser(&self) -> u32 {
        let of_clocks = self.buffer.len.saturating_sub(self.of_records);
        ((of_clocks / COARSER) as u32).min(MOST_COARSER)
    }

    #[inline]
    pub fn write_clock(&mut self, clock: usize, value: i64) {
        if self.has_room() {
            self.writer.clock(&mut self.last, clock, value, &mut self.buffer);
        }
    }

    pub fn write_result(&mut self, value: i64) {
        if self.has_room() {
            self.writer.result(value, &mut self.buffer);
        }
    }

    /// Whether a record with so many bytes fits.
    pub fn has_room_for(&self, len: usize) -> bool {
        self.buffer.len + 2 * MOST + len <= ROOM
    }

    /// Writes a record. False: there is no room for it.
    pub fn write_record(&mut self, head: &[u8], more: &[u8]) -> bool {
        let fits = self.has_room() && self.has_room_for(head.len() + more.len());
        if fits {
            let before = self.buffer.len;
            self.writer.record([head, more], &mut self.buffer);
            self.of_records += self.buffer.len - before;
        }
        fits
    }

    /// Whether the rank does now what it never did before.
    pub fn is_new(&mut self) -> bool {
        self.peek().is_none()
    }

    /// Gives back the bytes of a record that was read but not asked for: it is read once more.
    pub(crate) fn put_back_record(&mut self) {
        if let Some(len) = self.reader.drop_record() {
            self.passed -= len as u64;
            self.again.2 = self.again.2.saturating_sub(len);
        }
    }

    /// An empty stream with room for records.
    #[cfg(test)]
    pub(crate) fn with_room(room: *mut u8) -> ObservedStream {
        ObservedStream {
            passed: 0,
            last: Last::new(),
            writer: Writer::new(),
            buffer: Buffer { at: AtomicPtr::new(room), len: 0 },
            of_records: 0,
            again: (AtomicPtr::new(std::ptr::null_mut()), 0, 0),
            reader: Reader::new(),
            coming: (0, None),
            cut: false,
            ahead: [0; CLOCKS],
        }
    }

    /// The stream as an image has it, when nothing is left to be taken or replayed.
    #[cfg(test)]
    pub(crate) fn copy(&self) -> ObservedStream {
        let mut copy = ObservedStream::with_room(self.buffer.at.load(Ordering::Relaxed));
        (copy.passed, copy.last, copy.ahead) = (self.passed, self.last.clone(), self.ahead);
        copy
    }

    /// Replaces the observations that are replayed.
    pub(crate) fn set_again(&mut self, bytes: *const u8, len: usize) {
        self.again = (AtomicPtr::new(bytes.cast_mut()), len, 0);
        self.coming = (0, None);
        self.cut = false;
    }

    /// Skips all up to this byte, which the program has not asked for.
    pub(crate) fn skip(&mut self, to: u64) {
        while self.passed < to && self.peek().is_some() {
            self.reader.take(&mut self.last);
        }
        if self.passed == to {
            while self.reader.peek(&self.last, &[], &mut 0).is_some() {
                self.reader.take(&mut self.last);
            }
        }
    }
}

/// What tells threads of a process apart, the same in a restored one: the address of their control
/// block (x86-64 psABI, thread-local storage).
#[inline(always)]
pub fn this_thread() -> usize {
    let at: usize;
    // SAFETY: reads the first word of the control block, which is its own address.
    unsafe {
        std::arch::asm!("mov {}, fs:0", out(reg) at, options(nostack, preserves_flags, readonly))
    };
    at
}

/// The right to record something. No image is taken meanwhile.
pub struct Observing(());

impl Observing {
    /// For the thread whose observations count, in its program.
    #[inline]
    pub fn begin() -> Option<Observing> {
        let counts = ON.load(Ordering::Relaxed)
            && OWNER.load(Ordering::Relaxed) == this_thread()
            && INSIDE.load(Ordering::Relaxed) == 0
            && !BUSY.load(Ordering::Relaxed);
        if !counts {
            return None;
        }
        if SEVERAL.load(Ordering::Relaxed) {
            BUSY.store(true, Ordering::SeqCst);
        } else {
            // A thread that takes an image sets HELD, and then makes this processor see it
            // (`hold`).
            BUSY.store(true, Ordering::Relaxed);
            compiler_fence(Ordering::SeqCst);
        }
        if HELD.load(Ordering::Relaxed) {
            await_release();
        }
        Some(Observing(()))
    }

    /// Runs `f`, which may use [`stream`], on a stack of our own, so that it leaves nothing behind.
    #[inline]
    pub fn run(&mut self, f: extern "C" fn(usize) -> i64, argument: usize) -> i64 {
        // SAFETY: the stack was made before the first observation, and BUSY keeps all other users
        // out.
        unsafe { own_stack::run(f, argument) }
    }
}

/// The stream.
///
/// # Safety
/// In [`Observing::run`], in a call of the provider, or while the owner is held.
#[inline]
pub unsafe fn stream<'a>() -> &'a mut ObservedStream {
    // SAFETY: the caller promises sole access to the stream.
    unsafe { &mut *STREAM.0.get() }
}

impl Drop for Observing {
    #[inline]
    fn drop(&mut self) {
        compiler_fence(Ordering::SeqCst);
        BUSY.store(false, Ordering::Release);
        compiler_fence(Ordering::SeqCst);
        if WAITS.load(Ordering::Relaxed) {
            let_image();
        }
    }
}

/// Lets the provider run `f` in the middle of a call that is being recorded. Other threads may use
/// the provider meanwhile, but no image may be taken.
///
/// # Safety
/// In [`Observing::run`].
pub unsafe fn pause(f: impl FnOnce()) {
    UNDERWAY.store(true, Ordering::SeqCst);
    step_aside(f);
    UNDERWAY.store(false, Ordering::SeqCst);
}

/// As [`pause`], where no call is being recorded: an image may be taken meanwhile.
///
/// # Safety
/// In [`Observing::run`], before its call has done anything.
#[cold]
pub unsafe fn rest(f: impl FnOnce()) {
    step_aside(|| {
        if WAITS.load(Ordering::Relaxed) {
            let_image();
        }
        f();
    });
}

/// Runs `f` as a call of the provider, of which nothing is observed, and not as one that records.
fn step_aside(f: impl FnOnce()) {
    INSIDE.fetch_add(1, Ordering::Relaxed);
    BUSY.store(false, Ordering::SeqCst);
    f();
    BUSY.store(true, Ordering::SeqCst);
    if HELD.load(Ordering::SeqCst) {
        await_release();
    }
    INSIDE.fetch_sub(1, Ordering::Relaxed);
}

/// As [`let_image`] it leaves nothing on the program's stack.
#[cold]
fn await_release() {
    loop {
        BUSY.store(false, Ordering::SeqCst);
        while HELD.load(Ordering::SeqCst) {
            // SAFETY: sched_yield(2) has no arguments and touches no memory.
            unsafe { own_stack::system_call(libc::SYS_sched_yield, [0; 3]) };
        }
        BUSY.store(true, Ordering::SeqCst);
        if !HELD.load(Ordering::SeqCst) {
            return;
        }
    }
}

/// The image that was asked for meanwhile is taken now.
#[cold]
fn let_image() {
    WAITS.store(false, Ordering::Relaxed);
    let signal = SIGNAL.load(Ordering::Relaxed) as usize;
    // SAFETY: the handler is the provider's; it runs on a stack for signals.
    unsafe {
        let process = own_stack::system_call(libc::SYS_getpid, [0; 3]) as usize;
        let thread = own_stack::system_call(libc::SYS_gettid, [0; 3]) as usize;
        own_stack::system_call(libc::SYS_tgkill, [process, thread, signal]);
    }
}

/// What every rank observes first, before any other observation.
type First = fn(&mut ObservedStream);

/// From now on observations of this thread count. The first call begins the stream.
pub fn begin(first: First) {
    OWNER.store(this_thread(), Ordering::Relaxed);
    let off = variable(ENV_RECORD).is_some_and(|value| value.to_bytes() == b"off");
    if off || ON.load(Ordering::Relaxed) || !own_stack::prepare() {
        return;
    }
    // SAFETY: no thread observes anything before the stream has begun.
    unsafe { own_stack::run(begin_there, first as usize) };
}

extern "C" fn begin_there(first: usize) -> i64 {
    // SAFETY: `begin` has it from a function of this type.
    let first = unsafe { std::mem::transmute::<usize, First>(first) };
    let Some(stream) = make_room() else { return 0 };
    if observe_beginning_again(stream) {
        executed_again();
    }
    ON.store(true, Ordering::Relaxed);
    first(stream);
    0
}

/// The stream with its buffer, if there is memory for it.
fn make_room() -> Option<&'static mut ObservedStream> {
    // SAFETY: a new mapping wherever there is room for it, whose pages come when they are used; the
    // function has the type that is asked for.
    let at = unsafe {
        libc::pthread_atfork(None, None, Some(observe_no_more));
        libc::mmap(
            std::ptr::null_mut(),
            ROOM + MOST_BEGINNING,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    if at == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: no thread observes anything before the stream has begun.
    let stream = unsafe { stream() };
    stream.buffer.at.store(at.cast(), Ordering::Relaxed);
    Some(stream)
}

/// A forked process is not the rank.
extern "C" fn observe_no_more() {
    ON.store(false, Ordering::Relaxed);
}

/// This process is executed again, from its beginning or from an image.
pub fn executed_again() {
    AGAIN.store(true, Ordering::Relaxed);
}

pub fn is_executed_again() -> bool {
    AGAIN.load(Ordering::Relaxed)
}

/// Whether observations of this thread do not count, in a process that has an owner.
pub fn is_other_thread() -> bool {
    ON.load(Ordering::Relaxed) && OWNER.load(Ordering::Relaxed) != this_thread()
}

/// Whether this process records what it observes.
pub fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// A rank that starts again from its beginning observes what it observed then: the agent has put it
/// into the channel, in front of all else ([`crate::first_observations`]). False: there is nothing.
fn observe_beginning_again(stream: &mut ObservedStream) -> bool {
    let Some((file, len)) = agent_channel().and_then(first_observations) else { return false };
    // SAFETY: the mapping has room for it behind that of the buffer.
    unsafe {
        let at = stream.buffer.at.load(Ordering::Relaxed).add(ROOM);
        if libc::pread(file, at.cast(), len.min(MOST_BEGINNING), 0) == len as isize {
            stream.again = (AtomicPtr::new(at), len, 0);
            stream.cut = len >= MOST_GIVEN;
        }
        libc::close(file);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stream that is replayed, with room for what comes behind it.
    fn again(write: impl FnOnce(&mut ObservedStream)) -> ObservedStream {
        let fresh = || ObservedStream::with_room(vec![0; ROOM].leak().as_mut_ptr());
        let mut first = fresh();
        write(&mut first);
        first.writer.settle(&mut first.buffer);
        let mut second = fresh();
        second.set_again(first.buffer.at.load(Ordering::Relaxed), first.buffer.len);
        second
    }

    /// What is read of files makes clocks no coarser.
    #[test]
    fn clocks_are_coarser_only_where_they_are_many() {
        let stream = again(|stream| {
            assert!(stream.write_record(&vec![7; 8 << 20], b""));
            assert_eq!(stream.coarser(), 0);
            (0..2 * COARSER as i64).for_each(|value| stream.write_clock(1, value * 1000));
            assert!(stream.coarser() > 0);
        });
        assert!(stream.is_again());
    }

    /// A path that asks whether something waits would otherwise send before it is recorded.
    #[test]
    fn whatever_was_recorded_waits_also_where_it_was_only_counted() {
        type Write = fn(&mut ObservedStream);
        let kinds: [(&str, Write); 3] = [
            ("a record", |stream| assert!(stream.write_record(b"made", b""))),
            ("a value as before", |stream| stream.write_clock(0, 0)),
            ("a call as before", |stream| stream.write_done(7)),
        ];
        for (kind, write) in kinds {
            let mut stream = ObservedStream::with_room(vec![0; ROOM].leak().as_mut_ptr());
            assert_eq!(stream.waiting(), 0);
            write(&mut stream);
            assert!(stream.waiting() > 0, "{kind}");
        }
    }

    #[test]
    fn a_signal_comes_again_at_its_clock() {
        let mut same = again(|stream| {
            stream.write_clock(1, 5);
            stream.write_signal(40, 2, 10);
            stream.write_clock(1, 9);
        });
        assert_eq!(same.signal_again(7), None);
        assert_eq!(same.clock_again(1), Some(5));
        assert_eq!((same.signal_again(39), same.signal_again(40)), (None, Some((2, 10))));
        assert_eq!((same.signal_again(40), same.clock_again(1)), (None, Some(9)));
        assert!(same.is_new());
    }

    #[test]
    fn what_was_done_to_files_is_found_however_often_clocks_are_looked_at() {
        let write = |stream: &mut ObservedStream| {
            [5, 5, 9].iter().for_each(|value| stream.write_clock(1, *value));
            stream.write_record(b"made", b"");
            stream.write_clock(1, 12);
            stream.write_record(b"gone", b"");
            stream.write_clock(1, 20);
        };
        let mut less = again(write);
        assert_eq!(less.clock_again(1), Some(5));
        assert_eq!(less.record_again(*b"made"), Some(&b"made"[..]));
        assert_eq!(less.record_again(*b"gone"), Some(&b"gone"[..]));
        assert!(!less.is_new());
        assert_eq!(less.record_again(*b"made"), None);
        assert!(!less.is_new(), "nothing was passed over");
        assert!(less.ends_without_record() && less.is_new(), "only what clocks said was left");

        let mut more = again(write);
        let said: Vec<_> = (0..5).map(|_| more.clock_again(1)).collect();
        assert_eq!(said, [Some(5), Some(5), Some(9), None, None]);
        assert!(more.record_again(*b"made").is_some());

        let mut other = again(write);
        assert_eq!(other.record_again(*b"gone"), None, "it comes too early");
        assert!(!other.is_new());
        assert_eq!(other.clock_again(1), Some(5), "nothing was passed over");
        assert_eq!(other.record_again(*b"made"), Some(&b"made"[..]));

        assert!(!again(write).ends_without_record());
        let mut none = again(|stream| [5, 9].iter().for_each(|v| stream.write_clock(1, *v)));
        assert_eq!(none.record_again(*b"made"), None);
        assert!(!none.is_new(), "what was looked through to its end is still there");
        assert_eq!((none.clock_again(1), none.clock_again(1)), (Some(5), Some(9)));
    }
}
