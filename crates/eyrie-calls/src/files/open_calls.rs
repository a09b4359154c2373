//! open(2), creat(2), fopen(3), freopen(3) and the like. A rank that is executed again gets the
//! same file as it is by then. It gets a shadow file ([`super::standing_in`]) where the name does
//! not lead to the file any more, and the same error where it had got one.

use super::calling::{outcome, recorded};
use super::freshness;
use super::keeping;
use super::kernel::{self, errno, look, look_at, Found, Identity, HERE};
use super::mapping::opened_to_change;
use super::memory;
use super::open_records::{How, FOPEN, OPEN};
use super::own_mapping;
use super::path::Path;
use super::places::NOWHERE;
use super::records::{is_new_change, Call, Part, Record};
use super::saying;
use super::standing_in::{self, table, Entry};
use super::storing::store;
use crate::devices;
use crate::next::next;
use crate::own_number;
use crate::random;
use libc::{c_char, c_int, mode_t, FILE};
use std::ffi::CStr;

type Name = *const c_char;

next! {
    open: fn(Name, c_int, mode_t) -> c_int;
    open64: fn(Name, c_int, mode_t) -> c_int;
    __open_2: fn(Name, c_int) -> c_int;
    __open64_2: fn(Name, c_int) -> c_int;
    openat: fn(c_int, Name, c_int, mode_t) -> c_int;
    openat64: fn(c_int, Name, c_int, mode_t) -> c_int;
    __openat_2: fn(c_int, Name, c_int) -> c_int;
    __openat64_2: fn(c_int, Name, c_int) -> c_int;
    creat: fn(Name, mode_t) -> c_int;
    creat64: fn(Name, mode_t) -> c_int;
    fopen: fn(Name, Name) -> *mut FILE;
    fopen64: fn(Name, Name) -> *mut FILE;
    freopen: fn(Name, Name, *mut FILE) -> *mut FILE;
    freopen64: fn(Name, Name, *mut FILE) -> *mut FILE;
    shm_open: fn(Name, c_int, mode_t) -> c_int;
}

extern "C" {
    fn fdopen(fd: c_int, mode: Name) -> *mut FILE;
}

/// Flags by which a file is made or emptied.
const MAKES: c_int = libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC;
/// Why nothing has come of making a file: the process has ended before.
const AGAIN: i64 = -(libc::EAGAIN as i64);

/// A call that opens a file.
pub(super) struct Opening<'a> {
    pub call: Call,
    pub dir: c_int,
    pub path: Name,
    pub flags: c_int,
    pub mode: mode_t,
    /// It is a stream of the C library's.
    pub is_stream: bool,
    /// Opens a path with flags; what that gives, or a negative errno.
    pub open: &'a dyn Fn(c_int, Name, c_int) -> i64,
    /// The descriptor of what was opened.
    pub fd: &'a dyn Fn(i64) -> c_int,
    /// What is to be given for a descriptor.
    pub adopt: &'a dyn Fn(c_int) -> i64,
}

impl Opening<'_> {
    fn writes(&self) -> bool {
        self.flags & libc::O_ACCMODE != libc::O_RDONLY
    }

    fn is_exclusive(&self) -> bool {
        const BOTH: c_int = libc::O_CREAT | libc::O_EXCL;
        self.flags & BOTH == BOTH
    }

    /// Opens the file itself.
    fn really(&self) -> i64 {
        (self.open)(self.dir, self.path, self.flags)
    }

    /// Opens the file itself as it is, whether it was made or emptied then.
    fn as_it_is(&self) -> i64 {
        if self.flags & MAKES == 0 {
            return self.really();
        }
        if !self.is_stream {
            return (self.open)(self.dir, self.path, self.flags & !MAKES);
        }
        // A mode that writes to a stream cannot be told from one that empties its file.
        let value = (self.open)(HERE, c"/dev/null".as_ptr(), 0);
        if value < 0 {
            return value;
        }
        match kernel::open(self.dir, self.name(), self.flags & !MAKES, 0) {
            fd @ 0.. => {
                kernel::put_in_place(fd as c_int, (self.fd)(value));
                kernel::close(fd as c_int);
            }
            _ => saying::lost_its_name(self.name().to_bytes()),
        }
        value
    }

    fn name(&self) -> &CStr {
        // SAFETY: who made this has looked that it is a C string.
        unsafe { CStr::from_ptr(self.path) }
    }

    fn absolute(&self) -> Option<Path> {
        // SAFETY: who made this has looked that it is a C string.
        unsafe { Path::of(self.dir, self.path) }
    }

    /// Opens it, once in all processes of the rank.
    pub fn run(&self) -> i64 {
        if self.call.done_again() {
            return self.read_again();
        }
        if let Some(error) = self.call.result_again() {
            return error;
        }
        if let Some(opened) = self.call.again(Part::Opened) {
            return self.open_again(opened);
        }
        if let Some(making) = self.call.again(Part::Intent) {
            return self.make_again(making);
        }
        if !is_new_change() {
            // It does something else than before.
            return self.really();
        }
        standing_in::before_new();
        if self.is_exclusive() {
            self.make()
        } else {
            self.open_first()
        }
    }

    fn open_first(&self) -> i64 {
        let changes = self.writes() || self.flags & (libc::O_CREAT | libc::O_TRUNC) != 0;
        // A file that is only opened to be written is as it was, until a write changes it; one that
        // is opened to append to is marked.
        if self.flags & (libc::O_CREAT | libc::O_TRUNC | libc::O_APPEND) != 0 {
            freshness::before_any_change();
        }
        if changes {
            self.keep();
        }
        let value = self.really();
        if value < 0 {
            freshness::looked_around();
            return self.call.write_result(value);
        }
        let fd = (self.fd)(value);
        let is_kept = |found: &Found| found.is_regular() || found.is_directory();
        let Some(found) = look_at(fd).ok().filter(is_kept) else {
            // A device: it is opened again.
            self.call.write_done();
            return value;
        };
        if !changes && !found.in_job {
            self.call.write_done();
            return value;
        }
        let how = match self.flags & (libc::O_TRUNC | libc::O_APPEND) {
            _ if found.is_directory() => How::Directory,
            _ if !self.writes() => How::Read,
            0 => How::Anywhere,
            libc::O_APPEND => How::Append,
            _ => How::Empty,
        };
        let numbers = [how as i64, found.id.ino as i64, found.id.born_ns, found.size as i64];
        if how == How::Append && kernel::writer(fd) != random::name() {
            kernel::set_writer(fd, random::name());
        }
        self.call.write(Part::Opened, &numbers);
        if self.writes() && found.is_regular() {
            opened_to_change(fd);
        }
        if how == How::Append {
            // SAFETY: this call is being recorded, of which there is one at a time.
            unsafe { store() };
        }
        value
    }

    /// What a file from before the job has is kept before it may be changed: where it ends, too.
    fn keep(&self) {
        if let Some(path) = self.absolute() {
            keeping::before(&path, keeping::Change::Content);
        }
    }

    /// A file from before the job was opened to be read, or a device.
    fn read_again(&self) -> i64 {
        let is_same = |now: Found| !now.is_regular() && !now.is_directory() || !now.in_job;
        let now = look(self.dir, self.path, true);
        if now.is_ok_and(is_same) {
            return self.really();
        }
        let path = self.absolute();
        match path.as_ref().and_then(keeping::of) {
            Some(old) => (self.open)(HERE, old.as_c().as_ptr(), self.flags & !libc::O_NOFOLLOW),
            None if now.is_err() && self.flags & libc::O_DIRECTORY != 0 => self.open_no_directory(),
            None => {
                if let (Err(_), Some(path)) = (now, path) {
                    saying::gone_since(path.as_bytes());
                }
                self.really()
            }
        }
    }

    /// It was opened before.
    fn open_again(&self, mut opened: Record) -> i64 {
        let how = How::of(opened.number());
        let real = opened.identity();
        let size = opened.number() as u64;
        let path = self.absolute();
        let writes = !matches!(how, How::Read | How::Directory);
        if let Some(path) = path.as_ref().filter(|_| writes) {
            keeping::again(path);
        }
        if let Some(path) = path.as_ref().filter(|_| how == How::Empty) {
            own_mapping::cut_at(path, 0);
        }
        let is_there = look(self.dir, self.path, true).is_ok_and(|found| found.id == real);
        if is_there {
            let value = self.as_it_is();
            if let (0.., Some(path), true) = (value, &path, writes) {
                // SAFETY: this call is being recorded, of which there is one at a time.
                unsafe { table() }.add(path, real, how, size, (self.fd)(value));
            }
            return value;
        }
        if how == How::Directory {
            return self.open_no_directory();
        }
        // SAFETY: the call is being recorded, so no other thread uses the table.
        let entry = path.and_then(|path| unsafe { table() }.add_stand_in(&path, real, how, size));
        match entry {
            Some(entry) => self.open_stand_in(entry),
            None => self.as_it_is(),
        }
    }

    /// What it had is replayed; of what is done in it nothing may come about anywhere else.
    fn open_no_directory(&self) -> i64 {
        let flags = libc::O_RDONLY | libc::O_DIRECTORY | self.flags & libc::O_CLOEXEC;
        match kernel::open(HERE, NOWHERE, flags, 0) {
            fd @ 0.. => (self.adopt)(fd as c_int),
            error => error,
        }
    }

    fn open_stand_in(&self, entry: &Entry) -> i64 {
        let mut room = [0; 32];
        let Some(link) = entry.link(&mut room) else { return self.as_it_is() };
        let less = MAKES | libc::O_NOFOLLOW;
        if self.is_exclusive() {
            match kernel::open(HERE, link, self.flags & !less, 0) {
                fd @ 0.. => (self.adopt)(fd as c_int),
                error => error,
            }
        } else {
            (self.open)(HERE, link.as_ptr(), self.flags & !less)
        }
    }

    // Files that must not exist before.

    /// Makes the file without a name first, so that a process that finds the name can tell which
    /// rank has made it.
    fn make(&self) -> i64 {
        if look(self.dir, self.path, false).is_ok() {
            return self.call.write_result(-i64::from(libc::EEXIST));
        }
        let fd = self.absolute().map_or(-1, |path| self.make_nameless(&path));
        let id = match c_int::try_from(fd) {
            Ok(fd) if fd >= 0 => look_at(fd).map_or(Identity::default(), |found| found.id),
            _ => Identity::default(),
        };
        self.call.write(Part::Intent, &[id.ino as i64, id.born_ns]);
        // SAFETY: this call is being recorded, of which there is one at a time.
        unsafe { store() };
        if id == Identity::default() {
            // Where there are no such files, it is made by its name.
            let value = self.make_by_name();
            self.call.write_result(value.min(0));
            return value;
        }
        let named = kernel::give_name(fd as c_int, self.dir, self.path);
        self.call.write_result(named.min(0));
        if named < 0 {
            kernel::close(fd as c_int);
            return named;
        }
        self.open_by_name(fd as c_int);
        (self.adopt)(fd as c_int)
    }

    fn make_nameless(&self, path: &Path) -> i64 {
        let makes = libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC | libc::O_NOFOLLOW;
        kernel::nameless(path.parent().as_c(), self.flags & !makes, self.mode)
    }

    fn make_by_name(&self) -> i64 {
        match kernel::open(self.dir, self.name(), self.flags, self.mode) {
            fd @ 0.. => (self.adopt)(fd as c_int),
            error => error,
        }
    }

    /// The kernel shows the name of a file by which it was opened.
    fn open_by_name(&self, fd: c_int) {
        let makes = libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC;
        let named = kernel::open(self.dir, self.name(), self.flags & !makes, 0);
        if let Some(named) = c_int::try_from(named).ok().filter(|named| *named >= 0) {
            kernel::put_in_place(named, fd);
            kernel::close(named);
        }
    }

    /// It was about to be made.
    fn make_again(&self, mut making: Record) -> i64 {
        let real = making.identity();
        match self.call.result_again() {
            Some(AGAIN) => self.run(),
            Some(0) => self.open_made_before(real),
            Some(error) => error,
            None if !is_new_change() => self.as_it_is(),
            None => {
                standing_in::before_new();
                let there = look(self.dir, self.path, false).map(|found| found.id);
                let is_ours = there == Ok(real) || real == Identity::default() && there.is_ok();
                self.call.write_result(if is_ours { 0 } else { AGAIN });
                if is_ours {
                    self.open_made()
                } else {
                    self.make()
                }
            }
        }
    }

    /// It was made: what the rank wrote to it is there, wherever it is by now.
    fn open_made_before(&self, real: Identity) -> i64 {
        let Some(path) = self.absolute() else { return self.open_made() };
        // SAFETY: this call is being recorded, of which there is one at a time.
        let table = unsafe { table() };
        let there = look(self.dir, self.path, false).map(|found| found.id);
        if there == Ok(real) || real == Identity::default() && there.is_ok() {
            return match kernel::open(self.dir, self.name(), self.flags & !MAKES, 0) {
                fd @ 0.. => {
                    if let Ok(found) = look_at(fd as c_int) {
                        table.add(&path, found.id, How::Empty, 0, fd as c_int);
                    }
                    (self.adopt)(fd as c_int)
                }
                error => error,
            };
        }
        match table.add_stand_in(&path, real, How::Empty, 0) {
            Some(entry) => self.open_stand_in(entry),
            None => self.open_made(),
        }
    }

    /// Opens the file that was made, with nothing in it.
    fn open_made(&self) -> i64 {
        match kernel::open(self.dir, self.name(), self.flags & !MAKES, 0) {
            fd @ 0.. => {
                if self.writes() {
                    kernel::set_size(fd as c_int, 0);
                }
                (self.adopt)(fd as c_int)
            }
            error => error,
        }
    }
}

/// A number, or a negative errno.
fn pointer(file: *mut FILE) -> i64 {
    if file.is_null() {
        -i64::from(errno())
    } else {
        file as i64
    }
}

/// Whether a call may make, change or read a file as such.
fn concerns_a_file(path: Name, flags: c_int) -> bool {
    let other = flags & libc::O_PATH != 0;
    let is_of_the_kernel = |front: &&[u8]| {
        // SAFETY: a C string, as is looked below.
        unsafe { CStr::from_ptr(path) }.to_bytes().starts_with(front)
    };
    !other && !path.is_null() && ![&b"/proc/"[..], b"/sys/"].iter().any(is_of_the_kernel)
}

/// Whether a file is made that has no name.
fn is_nameless(flags: c_int) -> bool {
    flags & libc::O_TMPFILE == libc::O_TMPFILE
}

/// Makes a file without a name in a directory: what is in it is the rank's own, so it is made
/// again. The directory may be gone by then: memory does as well.
fn opened_nameless(call: Call, make: &dyn Fn() -> i64) -> i64 {
    if call.done_again() {
        return match make() {
            fd @ 0.. => fd,
            _ => kernel::in_memory(),
        };
    }
    if let Some(error) = call.result_again() {
        return error;
    }
    let value = make();
    if is_new_change() {
        standing_in::before_new();
        match value {
            0.. => call.write_done(),
            error => {
                call.write_result(error);
            }
        }
    }
    value
}

/// Opens a path for a descriptor; `None` in a thread whose calls are not recorded.
///
/// # Safety
/// As openat(2).
pub(super) unsafe fn opened(dir: c_int, path: Name, flags: c_int, mode: mode_t) -> Option<i64> {
    // SAFETY: the program keeps the contract of the C function, which gets its arguments unchanged.
    let next =
        |dir: c_int, path: Name, flags: c_int| unsafe { openat64.get()(dir, path, flags, mode) };
    // SAFETY: the caller keeps the contract of openat(2), which is that of the function called.
    unsafe { opened_by(dir, path, (flags, mode), &next) }
}

/// The same by another function, which is given a directory, a path and flags.
///
/// # Safety
/// As openat(2).
pub(super) unsafe fn opened_by(
    dir: c_int,
    path: Name,
    (flags, mode): (c_int, mode_t),
    make: &dyn Fn(c_int, Name, c_int) -> c_int,
) -> Option<i64> {
    if !concerns_a_file(path, flags) {
        return None;
    }
    let next = |dir: c_int, path: Name, flags: c_int| outcome(make(dir, path, flags));
    // SAFETY: the path is a C string, which outlives the call.
    let call = unsafe { Call::new(OPEN, path) };
    if is_nameless(flags) {
        return recorded(&mut || opened_nameless(call, &|| next(dir, path, flags)));
    }
    let adopt = |fd| i64::from(fd);
    let fd = |value| value as c_int;
    let opening = Opening {
        call,
        dir,
        path,
        flags,
        mode,
        is_stream: false,
        open: &next,
        fd: &fd,
        adopt: &adopt,
    };
    recorded(&mut || opening.run())
}

/// What fopen(3) makes of a mode.
fn flags_of(mode: &CStr) -> Option<c_int> {
    let bytes = mode.to_bytes();
    let has = |letter| bytes.iter().take_while(|byte| **byte != b',').any(|byte| *byte == letter);
    let (alone, more) = match bytes.first()? {
        b'r' => (libc::O_RDONLY, 0),
        b'w' => (libc::O_WRONLY, libc::O_CREAT | libc::O_TRUNC),
        b'a' => (libc::O_WRONLY, libc::O_CREAT | libc::O_APPEND),
        _ => return None,
    };
    let how = if has(b'+') { libc::O_RDWR } else { alone };
    let exclusive = if has(b'x') && more != 0 { libc::O_EXCL } else { 0 };
    Some(how | more | exclusive | if has(b'e') { libc::O_CLOEXEC } else { 0 })
}

/// The same for a stream of the C library, which `next` opens.
///
/// # Safety
/// As fopen(3).
unsafe fn opened_stream(
    path: Name,
    mode: Name,
    next: &dyn Fn(Name) -> *mut FILE,
) -> Option<*mut FILE> {
    // SAFETY: the caller passes a C string, as its contract says.
    let flags = flags_of(unsafe { mode.as_ref().map(|mode| CStr::from_ptr(mode)) }?)?;
    if !concerns_a_file(path, flags) {
        return None;
    }
    // SAFETY: the path is a C string, which outlives the call.
    let call = unsafe { Call::new(FOPEN, path) };
    let next = |_: c_int, path: Name, _: c_int| pointer(next(path));
    // SAFETY: the value is what the C library has given for a stream that is open.
    let fd = |value| unsafe { libc::fileno(value as *mut FILE) };
    // SAFETY: the descriptor is open and the mode is a C string, in which fdopen(3) ignores `x`.
    let adopt = |fd| pointer(unsafe { fdopen(fd, mode) });
    let opening = Opening {
        call,
        dir: HERE,
        path,
        flags,
        mode: 0o666,
        is_stream: true,
        open: &next,
        fd: &fd,
        adopt: &adopt,
    };
    let value = recorded(&mut || opening.run())?;
    Some(if value < 0 { std::ptr::null_mut() } else { value as *mut FILE })
}

/// Functions that open by a path: ours, what is behind it, its name, and the directory, the path,
/// flags and mode.
macro_rules! opening {
    ($($our:ident, $next:ident, $symbol:literal, ($($arg:ident: $kind:ty),*),
        $dir:expr, $path:ident, $flags:expr, $mode:expr;)*) => {
        $(
            /// # Safety
            /// As open(2). A mode that was not given is not looked at.
            #[export_name = $symbol]
            pub unsafe extern "C-unwind" fn $our($($arg: $kind),*) -> c_int {
                let mut room = own_number::NO_PATH;
                // SAFETY: the program keeps the contract of the C function, which gets its
                // arguments unchanged.
                unsafe {
                    let $path = own_number::path($path, &mut room);
                    let fd = match opened($dir, $path, $flags, $mode) {
                        Some(fd) => fd as c_int,
                        None => $next.get()($($arg),*),
                    };
                    devices::opened(fd, $path)
                }
            }
        )*
    };
}
const CREATES: c_int = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC;
opening! {
    our_open, open, "open", (path: Name, flags: c_int, mode: mode_t), HERE, path, flags, mode;
    our_open64, open64, "open64", (path: Name, flags: c_int, mode: mode_t),
        HERE, path, flags, mode;
    our_open_2, __open_2, "__open_2", (path: Name, flags: c_int), HERE, path, flags, 0;
    our_open64_2, __open64_2, "__open64_2", (path: Name, flags: c_int), HERE, path, flags, 0;
    our_openat, openat, "openat", (at: c_int, path: Name, flags: c_int, mode: mode_t),
        at, path, flags, mode;
    our_openat64, openat64, "openat64", (at: c_int, path: Name, flags: c_int, mode: mode_t),
        at, path, flags, mode;
    our_openat_2, __openat_2, "__openat_2", (at: c_int, path: Name, flags: c_int),
        at, path, flags, 0;
    our_openat64_2, __openat64_2, "__openat64_2", (at: c_int, path: Name, flags: c_int),
        at, path, flags, 0;
    our_creat, creat, "creat", (path: Name, mode: mode_t), HERE, path, CREATES, mode;
    our_creat64, creat64, "creat64", (path: Name, mode: mode_t), HERE, path, CREATES, mode;
}

/// Functions that give a stream for a path: ours, what is behind it, its name.
macro_rules! streaming {
    ($($our:ident, $next:ident, $symbol:literal, ($($arg:ident: $kind:ty),*);)*) => {
        $(
            /// # Safety
            /// As fopen(3).
            #[export_name = $symbol]
            pub unsafe extern "C-unwind" fn $our(path: Name, mode: Name, $($arg: $kind),*) -> *mut FILE {
                let mut room = own_number::NO_PATH;
                // SAFETY: the program keeps the contract of the C function, which gets its
                // arguments unchanged.
                unsafe {
                    let path = own_number::path(path, &mut room);
                    let next = |path: Name| $next.get()(path, mode, $($arg),*);
                    let ours = devices::stream(path, mode);
                    ours.or_else(|| opened_stream(path, mode, &next)).unwrap_or_else(|| next(path))
                }
            }
        )*
    };
}
streaming! {
    our_fopen, fopen, "fopen", ();
    our_fopen64, fopen64, "fopen64", ();
}

/// # Safety
/// As freopen(3).
#[export_name = "freopen"]
pub unsafe extern "C-unwind" fn our_freopen(path: Name, mode: Name, file: *mut FILE) -> *mut FILE {
    // SAFETY: the program keeps the contract of the C function, which gets its arguments unchanged.
    let next = |path: Name| unsafe { freopen.get()(path, mode, file) };
    // SAFETY: the caller keeps this contract, which is that of the function called.
    unsafe { opened_stream(path, mode, &next) }.unwrap_or_else(|| next(path))
}

/// # Safety
/// As freopen(3).
#[export_name = "freopen64"]
pub unsafe extern "C-unwind" fn our_freopen64(
    path: Name,
    mode: Name,
    file: *mut FILE,
) -> *mut FILE {
    // SAFETY: the program keeps the contract of the C function, which gets its arguments unchanged.
    let next = |path: Name| unsafe { freopen64.get()(path, mode, file) };
    // SAFETY: the caller keeps this contract, which is that of the function called.
    unsafe { opened_stream(path, mode, &next) }.unwrap_or_else(|| next(path))
}

/// # Safety
/// As shm_open(3).
#[export_name = "shm_open"]
pub unsafe extern "C-unwind" fn our_shm_open(name: Name, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: the program keeps the contract of the C function, which gets its arguments unchanged.
    let fd = unsafe { shm_open.get()(name, flags, mode) };
    if fd >= 0 {
        recorded(&mut || {
            if let Some(file) = kernel::file_at(fd) {
                memory::note(file.number);
            }
            0
        });
    }
    fd
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_of_streams_are_flags() {
        assert_eq!(flags_of(c"rb"), Some(libc::O_RDONLY));
        assert_eq!(flags_of(c"r+"), Some(libc::O_RDWR));
        assert_eq!(flags_of(c"wx"), Some(CREATES | libc::O_EXCL));
        assert_eq!(
            flags_of(c"a+e"),
            Some(libc::O_RDWR | libc::O_CREAT | libc::O_APPEND | libc::O_CLOEXEC)
        );
        assert_eq!(flags_of(c"w,ccs=x+"), Some(CREATES));
        assert_eq!(flags_of(c""), None);
    }
}
