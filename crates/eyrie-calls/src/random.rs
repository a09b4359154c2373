//! getrandom(2), getentropy(3), arc4random(3) and their like. A rank that is executed again must
//! draw the same numbers again, because they get into its messages (by hash tables, by names of
//! files). So a rank draws from a stream with a secret key of the job. An image holds the rank's
//! place in the stream. Processes that the rank starts must draw from the kernel.

use crate::environment::variable;
use crate::next::next;
use libc::{c_int, c_uint, c_void, size_t, ssize_t};
use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::OnceLock;

next! {
    getrandom: fn(*mut c_void, size_t, c_uint) -> ssize_t;
    getentropy: fn(*mut c_void, size_t) -> c_int;
}

/// Key of the job's streams: 64 hexadecimal digits. The same for each incarnation of each rank.
const ENV_KEY: &CStr = c"EYRIE_RANDOM";
const ENV_RANK: &CStr = c"EYRIE_RANK";

/// Whether this process draws from the rank's stream.
static DRAWS: AtomicBool = AtomicBool::new(false);

static KEY: OnceLock<[u8; 32]> = OnceLock::new();
/// Identifies the rank's job.
static JOB: AtomicU64 = AtomicU64::new(0);
/// Bytes of the stream that were drawn.
static DRAWN: AtomicU64 = AtomicU64::new(0);

/// The key of this rank's stream, from the job's.
fn key() -> Option<[u8; 32]> {
    let digits = variable(ENV_KEY)?.to_bytes();
    if digits.len() != 64 {
        return None;
    }
    let mut job = [0; 32];
    for (byte, pair) in job.iter_mut().zip(digits.chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    JOB.store(first_bytes(blake3::keyed_hash(&job, b"job")), Ordering::Relaxed);
    let rank = variable(ENV_RANK)?.to_bytes();
    Some(*blake3::keyed_hash(&job, rank).as_bytes())
}

/// This process draws from the rank's stream from now on. The first call starts the stream.
pub fn begin() {
    if KEY.get().is_none() {
        let Some(key) = key() else { return };
        let _ = KEY.set(key);
        // SAFETY: the function has the type that is asked for. A forked process is not the rank.
        unsafe { libc::pthread_atfork(None, None, Some(draw_from_the_kernel)) };
    }
    DRAWS.store(true, Ordering::Relaxed);
}

extern "C" fn draw_from_the_kernel() {
    DRAWS.store(false, Ordering::Relaxed);
}

/// The bytes of which guards are made ([`crate::stack_guard`]), the same in each process of the
/// rank.
pub fn guards() -> Option<[u8; 16]> {
    let hash = blake3::keyed_hash(&key()?, b"guards");
    hash.as_bytes().first_chunk().copied()
}

/// A number that no other rank has, of any job; 0: none.
pub fn name() -> u64 {
    KEY.get().map_or(0, |key| first_bytes(blake3::keyed_hash(key, b"name")))
}

/// A number that no other job has; 0: none.
pub fn job() -> u64 {
    JOB.load(Ordering::Relaxed)
}

fn first_bytes(hash: blake3::Hash) -> u64 {
    hash.as_bytes().iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// Whether this process draws from the rank's stream.
pub fn draws() -> bool {
    DRAWS.load(Ordering::Relaxed)
}

/// Fills `buffer`; false when this process draws from the kernel.
pub fn draw(buffer: &mut [u8]) -> bool {
    if !draws() {
        return false;
    }
    let Some(key) = KEY.get() else { return false };
    let mut stream = blake3::Hasher::new_keyed(key).finalize_xof();
    stream.set_position(DRAWN.fetch_add(buffer.len() as u64, Ordering::Relaxed));
    stream.fill(buffer);
    true
}

/// The caller's buffer, if it is one that can be filled.
///
/// # Safety
/// `buffer` must be null or have `len` bytes, for as long as the result is used.
unsafe fn bytes<'a>(buffer: *mut c_void, len: size_t) -> Option<&'a mut [u8]> {
    // SAFETY: by the contract of this function, `buffer` is null or has `len` bytes, for as long as
    // the result is used.
    (!buffer.is_null() && len <= isize::MAX as usize)
        .then(|| unsafe { std::slice::from_raw_parts_mut(buffer.cast(), len) })
}

/// # Safety
/// As getrandom(2).
#[export_name = "getrandom"]
pub unsafe extern "C-unwind" fn our_getrandom(
    buffer: *mut c_void,
    len: size_t,
    flags: c_uint,
) -> ssize_t {
    // SAFETY: handed on to the caller. Flags that there are not are the kernel's to refuse.
    unsafe {
        if flags & !7 == 0 && bytes(buffer, len).is_some_and(draw) {
            return len as ssize_t;
        }
        getrandom.get()(buffer, len, flags)
    }
}

/// # Safety
/// As getentropy(3).
#[export_name = "getentropy"]
pub unsafe extern "C-unwind" fn our_getentropy(buffer: *mut c_void, len: size_t) -> c_int {
    // SAFETY: the caller keeps the contract of the C function, which gets the same arguments.
    unsafe {
        if len <= 256 && bytes(buffer, len).is_some_and(draw) {
            return 0;
        }
        getentropy.get()(buffer, len)
    }
}

/// Fills `buffer` where that cannot fail: for arc4random(3), which the C library may lack.
pub fn fill(mut buffer: &mut [u8]) {
    if draw(buffer) {
        return;
    }
    while !buffer.is_empty() {
        // SAFETY: the buffer has that length.
        let n = unsafe { getrandom.get()(buffer.as_mut_ptr().cast(), buffer.len(), 0) };
        // Negative: a signal interrupted the call, which is repeated.
        let n = usize::try_from(n).unwrap_or(0);
        buffer = &mut buffer[n..];
    }
}

fn number() -> u32 {
    let mut bytes = [0; 4];
    fill(&mut bytes);
    u32::from_ne_bytes(bytes)
}

#[export_name = "arc4random"]
pub extern "C-unwind" fn our_arc4random() -> u32 {
    number()
}

/// # Safety
/// As arc4random_buf(3).
#[export_name = "arc4random_buf"]
pub unsafe extern "C-unwind" fn our_arc4random_buf(buffer: *mut c_void, len: size_t) {
    // SAFETY: the caller keeps the contract of the C function, which gets the same arguments.
    if let Some(to) = unsafe { bytes(buffer, len) } {
        fill(to);
    }
}

/// Numbers below `bound`, all equally likely.
#[export_name = "arc4random_uniform"]
pub extern "C-unwind" fn our_arc4random_uniform(bound: u32) -> u32 {
    if bound < 2 {
        return 0;
    }
    // The rest of all numbers when they are divided by `bound`.
    let rest = bound.wrapping_neg() % bound;
    loop {
        let n = number();
        if n >= rest {
            return n % bound;
        }
    }
}
