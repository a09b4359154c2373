//! What the program observes besides messages: libeyrie-calls records it. A static program has not
//! loaded that library, and nothing is observed again. Observations of the provider itself must
//! never be recorded.

use crate::calls::functions;
use eyrie_calls_table::Table;
use eyrie_wire::agent::{capture_signal, FAR};
use std::ffi::CStr;
use std::sync::atomic::Ordering;

/// What this thread observes as long as this lives is the provider's own.
pub struct Inside(usize);

impl Inside {
    #[inline]
    pub fn new() -> Inside {
        Inside(functions().map_or(0, |f| (f.enter)()))
    }

    /// For an image.
    pub fn for_image() -> Inside {
        Inside(functions().map_or(0, |f| (f.enter_for_image)()))
    }
}

impl Drop for Inside {
    #[inline]
    fn drop(&mut self) {
        if let Some(f) = functions() {
            (f.leave)(self.0);
        }
    }
}

/// As long as this lives nothing is being recorded, so that an image can be taken.
pub struct Held(bool);

impl Held {
    /// `None`: something is; the signal that asks for an image comes again when it is over.
    pub fn new() -> Option<Held> {
        match functions().map(|f| (f.hold)(capture_signal())) {
            Some(0) => None,
            held => Some(Held(held == Some(1))),
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(f) = functions().filter(|_| self.0) {
            (f.release)();
        }
    }
}

/// What was recorded since it was last asked for, and where in the stream that begins.
pub fn take(take: &mut dyn FnMut(u64, &[u8])) {
    let Some(f) = functions() else { return };
    let mut bytes = std::ptr::null();
    let mut from = 0;
    // SAFETY: the rank is entered, so that its thread observes nothing else; the bytes stay until
    // it does.
    unsafe {
        let len = (f.take)(&mut bytes, &mut from);
        if len > 0 {
            take(from, std::slice::from_raw_parts(bytes, len));
        }
    }
}

/// Bytes of the stream that were taken, or observed again.
pub fn passed() -> u64 {
    // SAFETY: the rank is entered, so that its thread observes nothing else.
    functions().map_or(0, |f| unsafe { (f.passed)() })
}

pub fn waiting() -> usize {
    // SAFETY: the rank is entered, so that its thread observes nothing else.
    functions().map_or(0, |f| unsafe { (f.waiting)() })
}

/// The bytes are observed again.
///
/// # Safety
/// They must stay where they are until others are.
pub unsafe fn again(bytes: &[u8]) {
    if let Some(f) = functions() {
        // SAFETY: the rank is entered, and the caller promises that the bytes stay.
        unsafe { (f.again)(bytes.as_ptr(), bytes.len()) };
    }
}

pub fn skip(to: u64) {
    if let Some(f) = functions() {
        // SAFETY: the rank is entered, so that its thread observes nothing else.
        unsafe { (f.skip)(to) };
    }
}

/// What the rank does next it has never done before.
#[inline]
pub fn new() {
    let waits = |f: &&Table| f.standing_in.load(Ordering::Relaxed) > 0;
    if let Some(f) = functions().filter(waits) {
        // SAFETY: the rank is entered, so that its thread observes nothing else.
        unsafe { (f.new)() };
    }
}

/// What is known of the end of a progress call.
pub enum Before {
    /// The rank got this signal, the `n`th of the job, there.
    Signal { n: u64, signal: u8 },
    /// It got none.
    None,
    /// There is nothing that it is known to have observed behind this.
    Unknown,
}

/// What is known of the end of the progress call at this clock.
pub fn signal_before(clock: u64) -> Before {
    let Some(f) = functions() else { return Before::Unknown };
    let mut n = 0;
    // SAFETY: the rank is entered, so that its thread observes nothing else; the number is ours.
    match unsafe { (f.signal_again)(clock, &mut n) } {
        -1 => Before::Unknown,
        0 => Before::None,
        signal => Before::Signal { n, signal: signal as u8 },
    }
}

/// The rank gets a signal at the end of the progress call at this clock, the `n`th of the job.
pub fn note_signal(clock: u64, n: u64, signal: u8) {
    if let Some(f) = functions() {
        // SAFETY: the rank is entered, so that its thread observes nothing else.
        unsafe { (f.signal)(clock, n, signal) };
    }
}

/// The path of a file that this rank has mapped to write it, and that another one has mapped or
/// opened to write.
pub fn shared_file() -> Option<&'static CStr> {
    let path = functions().map(|f| (f.shares)()).filter(|path| !path.is_null())?;
    // SAFETY: a C string, which stays until it is asked for again.
    Some(unsafe { CStr::from_ptr(path) })
}

/// Whether what this process does to files is recorded.
pub fn records_files() -> bool {
    // SAFETY: the rank is entered, so that its thread observes nothing else.
    functions().is_some_and(|f| unsafe { (f.passed)() } > 0)
}

/// Notes which files are open and mapped; for an image, when all threads stand still. False: more
/// is mapped to be written than an image can have.
pub fn note_files() -> bool {
    // SAFETY: the caller has stopped all threads for an image.
    functions().is_none_or(|f| unsafe { (f.note_files)() })
}

/// Whether an image is to have the content of the shared mapping of a file that begins there,
/// although it is mapped to be read only; when all threads stand still since [`note_files`].
pub fn takes_mapping(start: usize) -> bool {
    // SAFETY: all threads stand still since the files were noted.
    functions().is_some_and(|f| unsafe { (f.takes_mapping)(start) })
}

/// Devices of file systems on servers to which the rank has written; 0: none. For an image, when
/// all threads stand still.
pub fn far_devices() -> [u64; FAR] {
    let mut devices = [0; FAR];
    if let Some(f) = functions() {
        // SAFETY: they do; and so many have room.
        unsafe { (f.far)(devices.as_mut_ptr(), FAR) };
    }
    devices
}

/// The `number`th path that the process has watched by inotify(7); `None`: there are no more.
pub fn watched(number: usize) -> Option<&'static CStr> {
    let path = (functions()?.watched)(number);
    // SAFETY: a C string, which stays as long as all threads stand still.
    (!path.is_null()).then(|| unsafe { CStr::from_ptr(path) })
}

/// This process has come back from an image, and all its other threads still stand still.
pub fn come_back() {
    if let Some(f) = functions() {
        // SAFETY: the caller is a holder that restores its state: all other threads stand still.
        unsafe { (f.come_back)() };
    }
}
