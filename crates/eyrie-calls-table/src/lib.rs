//! The table of functions by which the provider (libeyrie-fi.so) calls libeyrie-calls.so, the one
//! interface between these two libraries of a rank. libeyrie-calls exports it under one name, and
//! the provider takes it once, when the process becomes a rank. A table of another version must
//! never be called: its functions may be others, or have other arguments.
//!
//! The table lies in libeyrie-calls, which is loaded before the program and never unloaded. An
//! image keeps pointers to it: it is restored only where both libraries are the same files, at the
//! same addresses.

#![no_std]

use core::ffi::{c_char, c_int, CStr};
use core::fmt;
use core::sync::atomic::AtomicUsize;

/// The version of the table. It goes up with each change of a field, its arguments or its meaning.
pub const VERSION: u32 = 1;

/// The name under which libeyrie-calls exports its [`Table`].
pub const SYMBOL: &CStr = c"eyrie_calls_table";

/// What libeyrie-calls exported, and the provider called first, before there was a table: each
/// knows the other library by it.
pub const WITHOUT_TABLE: &CStr = c"eyrie_calls_begin";

/// The beginning of the table, which is the same in all versions.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Head {
    /// [`VERSION`] of the library that has the table.
    pub version: u32,
    /// Bytes of the table, this head included.
    pub bytes: u32,
}

impl Head {
    /// The head of a [`Table`] of this version.
    pub const THIS: Head = Head { version: VERSION, bytes: size_of::<Table>() as u32 };
    /// In place of the head of a library that knows no table.
    pub const NONE: Head = Head { version: 0, bytes: 0 };
}

impl fmt::Display for Head {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Head::NONE {
            return f.write_str("none");
        }
        write!(f, "version {} ({} bytes)", self.version, self.bytes)
    }
}

/// The functions of libeyrie-calls.
///
/// The terms of the safety comments: the *stream* is the rank's stream of observations. A call *has
/// the stream* between [`Table::enter`] and [`Table::leave`], and between a [`Table::hold`] that
/// returned 1 or 2 and [`Table::release`]: no other thread observes anything meanwhile.
#[repr(C)]
pub struct Table {
    pub head: Head,

    /// This process is a rank, and images are asked for by this signal. To be called once, before
    /// any other function but [`Table::store_by`].
    pub begin: extern "C" fn(capture_signal: c_int),
    /// `store` returns when the primary router holds all records that were made until it was
    /// called. libeyrie-calls calls it in calls of the program, in the program's threads.
    pub store_by: extern "C" fn(store: extern "C" fn()),

    /// A call of the provider begins in this thread: what the thread observes is not the program's,
    /// and the program's other observations wait. Returns the argument for [`Table::leave`].
    pub enter: extern "C" fn() -> usize,
    /// As [`Table::enter`], for an image that is taken in this thread. Async-signal-safe.
    pub enter_for_image: extern "C" fn() -> usize,
    /// The call is over; takes what [`Table::enter`] has returned. Async-signal-safe.
    pub leave: extern "C" fn(entered: usize),

    /// An image is to be taken. Returns 1 when nothing is being recorded, and nothing will be
    /// before [`Table::release`]; 2 when that was so already; 0 when an image cannot be taken now:
    /// then `signal` comes when it can. Async-signal-safe.
    pub hold: extern "C" fn(signal: c_int) -> c_int,
    /// The image was taken, or this process has come back from it. Async-signal-safe.
    pub release: extern "C" fn(),

    /// Gives the records since the last call: returns the number of bytes, and writes where they
    /// are, until the next observation, and at which byte of the stream they begin.
    ///
    /// # Safety
    /// The caller has the stream. Both pointers must be valid to be written.
    pub take: unsafe extern "C" fn(bytes: *mut *const u8, from: *mut u64) -> usize,
    /// Bytes of the stream that were taken, or replayed.
    ///
    /// # Safety
    /// The caller has the stream.
    pub passed: unsafe extern "C" fn() -> u64,
    /// Bytes of records that wait to be taken.
    ///
    /// # Safety
    /// The caller has the stream.
    pub waiting: unsafe extern "C" fn() -> usize,
    /// Replays these bytes, behind those replayed so far and before anything else. Records that
    /// were not taken do not count.
    ///
    /// # Safety
    /// The caller has the stream. The bytes must stay where they are until others are given.
    pub again: unsafe extern "C" fn(bytes: *const u8, len: usize),
    /// Bytes of the stream up to this one are not replayed.
    ///
    /// # Safety
    /// The caller has the stream.
    pub skip: unsafe extern "C" fn(to: u64),

    /// The signal that the rank got at this clock before; 0: none. -1: none, and there is nothing
    /// more that it did before. `n` gets which of the job's signals it is.
    ///
    /// # Safety
    /// The caller has the stream; `n` must be valid to be written.
    pub signal_again: unsafe extern "C" fn(clock: u64, n: *mut u64) -> c_int,
    /// The rank gets a signal at this clock, the `n`th of the job.
    ///
    /// # Safety
    /// The caller has the stream.
    pub signal: unsafe extern "C" fn(clock: u64, n: u64, signal: u8),

    /// How much there is to do when the rank does something new. While it is 0, [`Table::new`] need
    /// not be called. It lies in libeyrie-calls, and so lives as long as the process.
    pub standing_in: &'static AtomicUsize,
    /// The rank sends a message that is new, as far as its router knows.
    ///
    /// # Safety
    /// The caller has the stream.
    pub new: unsafe extern "C" fn(),

    /// Notes which files are open and mapped, for an image. False: the rank has more mapped to be
    /// written than an image can have. Async-signal-safe.
    ///
    /// # Safety
    /// All other threads stand still.
    pub note_files: unsafe extern "C" fn() -> bool,
    /// Whether the image is to have the content of the shared mapping of a file that begins there,
    /// although it is mapped to be read only: [`Table::come_back`] maps the file again.
    /// Async-signal-safe.
    ///
    /// # Safety
    /// All other threads stand still since [`Table::note_files`].
    pub takes_mapping: unsafe extern "C" fn(start: usize) -> bool,
    /// File systems of servers to which the rank has written, by their device numbers of stat(2).
    /// Returns how many were written to `to`, at most `room`. Async-signal-safe.
    ///
    /// # Safety
    /// All other threads stand still; `to` is valid for `room` numbers.
    pub far: unsafe extern "C" fn(to: *mut u64, room: usize) -> usize,
    /// The `number`th path that the process has watched by inotify(7), a C string that stays while
    /// all threads stand still; null: there are no more. Async-signal-safe.
    pub watched: extern "C" fn(number: usize) -> *const c_char,
    /// The path of a file that this rank has mapped to write it, and that another one has mapped or
    /// opened to write, a C string that stays until the next call; null: there is none. One thread
    /// at a time may call it. Async-signal-safe.
    pub shares: extern "C" fn() -> *const c_char,

    /// This process was restored from an image.
    ///
    /// # Safety
    /// All other threads still stand still, as they did for the image.
    pub come_back: unsafe extern "C" fn(),
    /// In a restored process: the monotonic clock is `ns` nanoseconds ahead of where it was when
    /// the image was taken. Async-signal-safe.
    pub clock_jumped: extern "C" fn(ns: i64),
    /// An image has interrupted a system call, and nothing else has; `stack_pointer` is that of the
    /// call. Returns 1 when a function of libeyrie-calls waits there: it will go on by itself.
    /// Async-signal-safe.
    pub interrupted: extern "C" fn(stack_pointer: usize) -> c_int,
}

/// Why a table cannot be used: the two libraries know different ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OtherVersion {
    /// The head of the table of libeyrie-calls.
    pub calls: Head,
    /// The head of the table that the provider knows.
    pub provider: Head,
}

impl fmt::Display for OtherVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "libeyrie-calls.so and libeyrie-fi.so are of different releases of Eyrie (of their \
             table of functions the first has {}, the second {}): install both from the same \
             release",
            self.calls, self.provider
        )
    }
}

impl Table {
    /// The table behind this head, if it is of this version.
    ///
    /// # Errors
    /// When it is not. Nothing behind the head is read then.
    ///
    /// # Safety
    /// `head` is that of the table that libeyrie-calls of any version exports as [`SYMBOL`].
    pub unsafe fn of_head(head: *const Head) -> Result<&'static Table, OtherVersion> {
        // SAFETY: by the contract a head is there, whatever its version is.
        let found = unsafe { *head };
        if found != Head::THIS {
            return Err(OtherVersion { calls: found, provider: Head::THIS });
        }
        // SAFETY: by the contract the head is that of a table; it has our version and our length.
        Ok(unsafe { &*head.cast() })
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use std::string::ToString;

    #[test]
    fn a_table_of_another_version_or_length_is_refused_with_the_remedy() {
        let Head { version, bytes } = Head::THIS;
        let others = [
            Head { version: version + 1, bytes },
            Head { version: 0, bytes },
            Head { version, bytes: bytes - 8 },
            Head { version, bytes: bytes + 8 },
        ];
        for found in others {
            // SAFETY: nothing behind a head of another version is read.
            let refused = unsafe { Table::of_head(&found) }.err();
            assert_eq!(refused, Some(OtherVersion { calls: found, provider: Head::THIS }));
        }
        let text = OtherVersion { calls: others[0], provider: Head::NONE }.to_string();
        let versions = std::format!("the first has version {} ({bytes} bytes)", version + 1);
        assert!(text.contains(&versions) && text.contains("the second none"), "{text}");
        assert!(text.ends_with("install both from the same release"), "{text}");
    }

    /// The fields of this version, with the version: a change of one reminds of the other.
    #[test]
    fn the_version_goes_up_with_the_fields() {
        // 23 functions and one number, behind the head.
        assert_eq!((VERSION, size_of::<Table>()), (1, 8 + 24 * size_of::<usize>()));
        assert_eq!(core::mem::offset_of!(Table, head), 0);
    }
}
