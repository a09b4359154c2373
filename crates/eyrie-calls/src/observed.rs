//! What the rank has observed besides messages, written down as it happens, and told again to a
//! rank that is executed again: only what the thread observes that calls MPI, and only in its
//! program, never in the provider. The provider takes what was written down before anything leaves
//! the rank. Nothing here allocates; a call that is being written down is never in an image.

use crate::interruption::capture_signal;
use crate::random::{variable, ENV_AGENT_FD};
use crate::stream::{Item, Last, Reader, Sink, Writer, CLOCKS, MOST};
use libc::c_int;
use std::cell::UnsafeCell;
use std::ffi::CStr;
use std::sync::atomic::{compiler_fence, AtomicBool, AtomicPtr, AtomicUsize, Ordering};

/// "off": nothing is written down. The same in each incarnation of a rank.
const ENV_RECORD: &CStr = c"EYRIE_RECORD";

/// Room for what was not taken. Where values come so often that it gets full they are made coarser
/// ([`coarser`]); what does not fit all the same is not written down.
const ROOM: usize = 16 << 20;
/// Room for what is observed again before the provider is there. It is there in every incarnation,
/// so that no address differs.
const MOST_BEGINNING: usize = 1 << 20;
/// Bytes not taken after which the unit of clocks doubles.
const COARSER: usize = 256 << 10;

/// Something is written down in this process.
static ON: AtomicBool = AtomicBool::new(false);
/// The thread whose observations count, by its [`this_thread`].
static OWNER: AtomicUsize = AtomicUsize::new(0);
/// It is in the provider so many times.
static INSIDE: AtomicUsize = AtomicUsize::new(0);
/// It is writing something down.
static BUSY: AtomicBool = AtomicBool::new(false);
/// Another thread takes an image or is in the provider: nothing must be begun.
static HELD: AtomicBool = AtomicBool::new(false);
/// Other threads than the owner call MPI, too.
static SEVERAL: AtomicBool = AtomicBool::new(false);
/// An image waits until what is being written down is over.
static WAITS: AtomicBool = AtomicBool::new(false);

/// A buffer of fixed length.
struct Buffer {
    at: AtomicPtr<u8>,
    len: usize,
}

impl Sink for Buffer {
    #[inline]
    fn push(&mut self, byte: u8) {
        // SAFETY: who writes has looked for room for a whole item.
        unsafe { *self.at.load(Ordering::Relaxed).add(self.len) = byte };
        self.len += 1;
    }
}

/// The stream, at both its ends.
pub struct Stream {
    /// Bytes that were taken, or observed again.
    passed: u64,
    last: Last,
    writer: Writer,
    buffer: Buffer,
    /// What is to be observed again, of which `again.1` bytes were.
    again: (AtomicPtr<u8>, usize, usize),
    reader: Reader,
    /// By how much each clock is ahead of the kernel's, in microseconds: in a process that was
    /// executed again it never goes back.
    pub ahead: [i64; CLOCKS],
}

struct Shared(UnsafeCell<Stream>);

// SAFETY: only the owner uses it, and the provider while the owner does not: in one of its calls,
// or while [`HELD`].
unsafe impl Sync for Shared {}

static STREAM: Shared = Shared(UnsafeCell::new(Stream {
    passed: 0,
    last: Last::new(),
    writer: Writer::new(),
    buffer: Buffer { at: AtomicPtr::new(std::ptr::null_mut()), len: 0 },
    again: (AtomicPtr::new(std::ptr::null_mut()), 0, 0),
    reader: Reader::new(),
    ahead: [0; CLOCKS],
}));

impl Stream {
    /// What is to be observed next, when that is known from an earlier execution.
    #[inline]
    fn peek(&mut self) -> Option<Item> {
        let (bytes, len, used) = (&self.again.0, self.again.1, &mut self.again.2);
        if len == 0 {
            return None;
        }
        let before = *used;
        // SAFETY: the provider keeps as many bytes there as it has said.
        let rest = unsafe {
            std::slice::from_raw_parts(bytes.load(Ordering::Relaxed).add(before), len - before)
        };
        let item = self.reader.peek(&self.last, rest, used);
        self.passed += (*used - before) as u64;
        if item.is_none() {
            self.again.1 = 0;
        }
        item
    }

    /// What this clock said before, when it is known.
    #[inline]
    pub fn clock_again(&mut self, clock: usize) -> Option<i64> {
        match self.peek()? {
            Item::Clock { clock: asked, value } if asked == clock => {
                self.reader.take(&mut self.last);
                Some(value)
            }
            // It asks for something else than before: until the next part it is told what is.
            _ => None,
        }
    }

    /// What became of this call before, when it is known.
    pub fn result_again(&mut self) -> Option<i64> {
        match self.peek()? {
            Item::Result(value) => {
                self.reader.take(&mut self.last);
                Some(value)
            }
            Item::Clock { .. } => None,
        }
    }

    /// The last value of a clock that was observed.
    #[inline]
    pub fn last(&self, clock: usize) -> i64 {
        self.last.values[clock]
    }

    /// Whether something is left that is to be observed again.
    #[inline]
    pub fn is_again(&self) -> bool {
        self.again.1 > 0
    }

    #[inline]
    fn has_room(&self) -> bool {
        self.buffer.len + MOST <= ROOM && !self.is_again()
    }

    /// By how many bits the unit of clocks is coarser than a microsecond.
    #[inline]
    pub fn coarser(&self) -> u32 {
        (self.buffer.len / COARSER) as u32
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

    /// Observes again all up to this byte, which the program has not asked for.
    fn skip(&mut self, to: u64) {
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

/// The right to write something down. No image is taken meanwhile.
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
            // Whoever takes an image says so and then makes this processor see it (`hold`).
            BUSY.store(true, Ordering::Relaxed);
            compiler_fence(Ordering::SeqCst);
        }
        if HELD.load(Ordering::Relaxed) {
            await_release();
        }
        Some(Observing(()))
    }

    #[inline]
    pub fn stream(&mut self) -> &mut Stream {
        // SAFETY: BUSY keeps everybody else out.
        unsafe { &mut *STREAM.0.get() }
    }
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

#[cold]
fn await_release() {
    loop {
        BUSY.store(false, Ordering::SeqCst);
        while HELD.load(Ordering::SeqCst) {
            // SAFETY: gives up the processor.
            unsafe { libc::sched_yield() };
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
    // SAFETY: the handler is the provider's.
    unsafe { libc::raise(capture_signal()) };
}

/// From now on what this thread observes counts. The first call begins it.
pub fn begin() {
    OWNER.store(this_thread(), Ordering::Relaxed);
    let off = variable(ENV_RECORD).is_some_and(|value| value.to_bytes() == b"off");
    if off || ON.load(Ordering::Relaxed) {
        return;
    }
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
        return;
    }
    // SAFETY: nobody observes anything yet.
    let stream = unsafe { &mut *STREAM.0.get() };
    stream.buffer.at.store(at.cast(), Ordering::Relaxed);
    observe_beginning_again(stream);
    ON.store(true, Ordering::Relaxed);
    crate::process::begin(stream);
}

/// A forked process is not the rank.
extern "C" fn observe_no_more() {
    ON.store(false, Ordering::Relaxed);
}

/// Whether this process writes down what it observes.
pub fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// A rank that starts again from its beginning observes what it observed then: the agent has put it
/// into the channel, in front of all else ([`eyrie_wire::agent::BEGINNING`]).
fn observe_beginning_again(stream: &mut Stream) {
    let fd = variable(ENV_AGENT_FD).and_then(|v| v.to_str().ok()?.parse::<c_int>().ok());
    let Some((file, len)) = fd.and_then(beginning) else { return };
    // SAFETY: the mapping has room for it behind that of the buffer.
    unsafe {
        let at = stream.buffer.at.load(Ordering::Relaxed).add(ROOM);
        if libc::pread(file, at.cast(), len.min(MOST_BEGINNING), 0) == len as isize {
            stream.again = (AtomicPtr::new(at), len, 0);
        }
        libc::close(file);
    }
}

/// The file and its length, when it is there. It is left there for the provider, who does not look
/// at it.
fn beginning(channel: c_int) -> Option<(c_int, usize)> {
    let mut kind = 0u8;
    let mut iov = libc::iovec { iov_base: (&raw mut kind).cast(), iov_len: 1 };
    let mut control = [0u64; 8];
    // SAFETY: the structures live through the calls, and are as long as said; a control message
    // that the kernel has written is read where it lies.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        (message.msg_iov, message.msg_iovlen) = (&mut iov, 1);
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control);
        let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
        if libc::recvmsg(channel, &mut message, flags) < 1 {
            return None;
        }
        let mut files = [-1; 8];
        let mut count = 0;
        let mut header = libc::CMSG_FIRSTHDR(&message);
        while !header.is_null() {
            if ((*header).cmsg_level, (*header).cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                let bytes = (*header).cmsg_len - libc::CMSG_LEN(0) as usize;
                let data = libc::CMSG_DATA(header).cast::<c_int>();
                for n in 0..bytes / size_of::<c_int>() {
                    files[count] = data.add(n).read_unaligned();
                    count += 1;
                }
            }
            header = libc::CMSG_NXTHDR(&message, header);
        }
        let mut st: libc::stat = std::mem::zeroed();
        if kind == BEGINNING && count == 1 && libc::fstat(files[0], &mut st) == 0 && st.st_size > 0
        {
            return Some((files[0], st.st_size as usize));
        }
        for fd in &files[..count] {
            libc::close(*fd);
        }
        None
    }
}

/// `eyrie_wire::agent::BEGINNING`, which a test of eyrie-agent compares with it.
pub const BEGINNING: u8 = 5;

// What the provider calls.

/// A call of the provider begins in this thread: what it observes is its own, and what the owner
/// observes waits. Returns what [`eyrie_calls_leave`] is to be told.
#[no_mangle]
pub extern "C" fn eyrie_calls_enter() -> usize {
    if OWNER.load(Ordering::Relaxed) == this_thread() {
        INSIDE.store(INSIDE.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        return BY_OWNER;
    }
    if !is_on() {
        return BY_NOBODY;
    }
    if !SEVERAL.swap(true, Ordering::SeqCst) {
        see_it_everywhere();
    }
    HELD.store(true, Ordering::SeqCst);
    while BUSY.load(Ordering::SeqCst) {
        // SAFETY: gives up the processor.
        unsafe { libc::sched_yield() };
    }
    BY_OTHER
}

const BY_NOBODY: usize = 0;
const BY_OWNER: usize = 1;
const BY_OTHER: usize = 2;

/// It is over.
#[no_mangle]
pub extern "C" fn eyrie_calls_leave(entered: usize) {
    match entered {
        BY_OWNER => INSIDE.store(INSIDE.load(Ordering::Relaxed) - 1, Ordering::Relaxed),
        BY_OTHER => HELD.store(false, Ordering::SeqCst),
        _ => {}
    }
}

/// An image is about to be taken in this thread: if it is the owner, what it observes is not its
/// program's. Returns what [`eyrie_calls_leave`] is to be told.
#[no_mangle]
pub extern "C" fn eyrie_calls_enter_for_image() -> usize {
    match OWNER.load(Ordering::Relaxed) == this_thread() {
        true => eyrie_calls_enter(),
        false => BY_NOBODY,
    }
}

/// An image is to be taken: nothing is being written down when this returns 1, and nothing will be
/// before [`eyrie_calls_release`]; or 2, when that was so already. 0: something is; the signal comes
/// again when it is over.
#[no_mangle]
pub extern "C" fn eyrie_calls_hold() -> c_int {
    if !is_on() {
        return 1;
    }
    crate::clocks::set_began(crate::clocks::began_ns());
    if OWNER.load(Ordering::Relaxed) == this_thread() {
        let busy = BUSY.load(Ordering::Relaxed);
        WAITS.store(busy, Ordering::Relaxed);
        return (!busy).into();
    }
    if HELD.swap(true, Ordering::SeqCst) {
        return 2;
    }
    see_it_everywhere();
    for _ in 0..10_000 {
        if !BUSY.load(Ordering::SeqCst) {
            return 1;
        }
        // SAFETY: gives up the processor.
        unsafe { libc::sched_yield() };
    }
    HELD.store(false, Ordering::SeqCst);
    WAITS.store(true, Ordering::SeqCst);
    0
}

/// The image was taken, or this process has come back from it.
#[no_mangle]
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

/// The stream, for the provider.
///
/// # Safety
/// In a call of the provider, or while the owner is held.
unsafe fn stream<'a>() -> &'a mut Stream {
    // SAFETY: handed on to the caller.
    unsafe { &mut *STREAM.0.get() }
}

/// Gives what was written down since it was last called: the number of bytes, where they are until
/// the next observation, and where in the stream they begin.
///
/// # Safety
/// In a call of the provider, or while the owner is held. Both pointers must be valid.
#[no_mangle]
pub unsafe extern "C" fn eyrie_calls_take(bytes: *mut *const u8, from: *mut u64) -> usize {
    // SAFETY: handed on to the caller.
    unsafe {
        let stream = stream();
        stream.writer.settle(&mut stream.buffer);
        let len = std::mem::take(&mut stream.buffer.len);
        *bytes = stream.buffer.at.load(Ordering::Relaxed);
        *from = stream.passed;
        stream.passed += len as u64;
        len
    }
}

/// Bytes of the stream that were taken, or observed again.
///
/// # Safety
/// As [`eyrie_calls_take`].
#[no_mangle]
pub unsafe extern "C" fn eyrie_calls_passed() -> u64 {
    // SAFETY: handed on to the caller.
    unsafe { stream() }.passed
}

/// Bytes that wait to be taken.
///
/// # Safety
/// As [`eyrie_calls_take`].
#[no_mangle]
pub unsafe extern "C" fn eyrie_calls_waiting() -> usize {
    // SAFETY: handed on to the caller.
    unsafe { stream() }.buffer.len
}

/// These bytes, which stay where they are, are observed again behind what was, before anything
/// else. What was written down and not taken does not count.
///
/// # Safety
/// As [`eyrie_calls_take`].
#[no_mangle]
pub unsafe extern "C" fn eyrie_calls_again(bytes: *const u8, len: usize) {
    // SAFETY: handed on to the caller.
    let stream = unsafe { stream() };
    stream.again = (AtomicPtr::new(bytes.cast_mut()), len, 0);
    if len > 0 && stream.buffer.len > 0 {
        stream.buffer.len = 0;
        stream.writer = Writer::new();
    }
}

/// Bytes up to this one will not be asked for any more.
///
/// # Safety
/// As [`eyrie_calls_take`].
#[no_mangle]
pub unsafe extern "C" fn eyrie_calls_skip(to: u64) {
    // SAFETY: handed on to the caller.
    unsafe { stream() }.skip(to);
}
