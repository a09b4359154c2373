//! scandir(3), glob(3), ftw(3), nftw(3) and the like. The C library makes them of calls of its own,
//! and not by the names in front of which ours stand. So they are made here of calls that are
//! recorded. Memory that they give to the program comes from malloc(3), as the C library's does.

use super::asking::counts;
use super::saying;
use crate::interruption::{errno, set_errno};
use crate::next::next;
use libc::{c_char, c_int, c_void, dirent64};
use std::ffi::{CStr, CString};
use std::mem::MaybeUninit;

type Name = *const c_char;
/// DIR of the C library.
type Dir = *mut c_void;
type Entries = *mut *mut dirent64;
type Filter = Option<unsafe extern "C-unwind" fn(*const dirent64) -> c_int>;
type Order = Option<unsafe extern "C" fn(*const c_void, *const c_void) -> c_int>;
type OnError = Option<unsafe extern "C-unwind" fn(Name, c_int) -> c_int>;
/// What ftw(3) and nftw(3) call for each file; only the latter with where its name begins.
type Visit = unsafe extern "C-unwind" fn(Name, *const libc::stat, c_int, *mut Place) -> c_int;
/// struct FTS of the C library.
type Fts = *mut c_void;

next! {
    scandir: fn(Name, *mut Entries, Filter, Order) -> c_int;
    scandir64: fn(Name, *mut Entries, Filter, Order) -> c_int;
    scandirat: fn(c_int, Name, *mut Entries, Filter, Order) -> c_int;
    scandirat64: fn(c_int, Name, *mut Entries, Filter, Order) -> c_int;
    glob: fn(Name, c_int, OnError, *mut Globbed) -> c_int;
    glob64: fn(Name, c_int, OnError, *mut Globbed) -> c_int;
    ftw: fn(Name, Visit, c_int) -> c_int;
    ftw64: fn(Name, Visit, c_int) -> c_int;
    nftw: fn(Name, Visit, c_int, c_int) -> c_int;
    nftw64: fn(Name, Visit, c_int, c_int) -> c_int;
    fts_open: fn(*const Name, c_int, Order) -> Fts;
    fts64_open: fn(*const Name, c_int, Order) -> Fts;
}

// By their names: a library of the user's that stands in front of ours sees them, too.
extern "C-unwind" {
    fn opendir(path: Name) -> Dir;
    fn fdopendir(fd: c_int) -> Dir;
    fn readdir64(dir: Dir) -> *mut dirent64;
    fn closedir(dir: Dir) -> c_int;
    fn openat64(dir: c_int, path: Name, flags: c_int, ...) -> c_int;
    fn stat64(path: Name, to: *mut libc::stat) -> c_int;
    fn lstat64(path: Name, to: *mut libc::stat) -> c_int;
}

/// The entries of a directory, and the error with which it ended; it is closed.
///
/// # Safety
/// It must be open, and is not used any more.
unsafe fn entries(dir: Dir, each: &mut dyn FnMut(&dirent64) -> c_int) -> c_int {
    // SAFETY: handed on to the caller; an entry is there until the next one is asked for.
    unsafe {
        let error = loop {
            set_errno(0);
            let Some(entry) = readdir64(dir).as_ref() else { break errno() };
            let error = each(entry);
            if error != 0 {
                break error;
            }
        };
        closedir(dir);
        error
    }
}

// scandir(3).

/// Entries for the program, in memory of the C library's.
struct Found {
    all: Entries,
    count: usize,
    room: usize,
}

impl Found {
    /// One more; an error: there is no memory for it.
    fn add(&mut self, entry: &dirent64) -> c_int {
        let len = usize::from(entry.d_reclen);
        // SAFETY: all is this one's; an entry is as long as it says.
        unsafe {
            if self.count == self.room {
                let room = (2 * self.room).max(16);
                let all = libc::realloc(self.all.cast(), room * size_of::<*mut dirent64>());
                if all.is_null() {
                    return libc::ENOMEM;
                }
                (self.all, self.room) = (all.cast(), room);
            }
            let copy = libc::malloc(len).cast::<u8>();
            if copy.is_null() {
                return libc::ENOMEM;
            }
            copy.copy_from_nonoverlapping((&raw const *entry).cast(), len);
            self.all.add(self.count).write(copy.cast());
        }
        self.count += 1;
        0
    }

    fn free(self) {
        // SAFETY: `add` has put `count` strings there, each from malloc(3). They are not used after
        // this.
        unsafe {
            (0..self.count).for_each(|n| libc::free((*self.all.add(n)).cast()));
            libc::free(self.all.cast());
        }
    }
}

/// # Safety
/// As scandir(3); the directory is closed.
unsafe fn scans(dir: Dir, to: *mut Entries, filter: Filter, order: Order) -> c_int {
    if dir.is_null() {
        return -1;
    }
    let before = errno();
    let mut found = Found { all: std::ptr::null_mut(), count: 0, room: 0 };
    // SAFETY: the caller keeps this contract, which is that of the function called.
    unsafe {
        let error = entries(dir, &mut |entry| match filter {
            Some(filter) if filter(entry) == 0 => 0,
            _ => found.add(entry),
        });
        if error != 0 {
            found.free();
            set_errno(error);
            return -1;
        }
        if let Some(order) = order.filter(|_| found.count > 0) {
            let size = size_of::<*mut dirent64>();
            libc::qsort(found.all.cast(), found.count, size, Some(order));
        }
        *to = found.all;
    }
    set_errno(before);
    found.count as c_int
}

/// Functions like scandir(3): ours, the one behind it, its name, its arguments in front of the
/// others, the directory.
macro_rules! scanning {
    ($($our:ident, $next:ident, $symbol:literal, ($($arg:ident: $kind:ty),*), $dir:expr;)*) => {
        $(
            /// # Safety
            /// As scandir(3).
            #[export_name = $symbol]
            pub unsafe extern "C-unwind" fn $our(
                $($arg: $kind,)*
                to: *mut Entries,
                filter: Filter,
                order: Order,
            ) -> c_int {
                // SAFETY: the program keeps the contract of the C function, which gets its
                // arguments unchanged.
                unsafe {
                    if counts() {
                        scans($dir, to, filter, order)
                    } else {
                        $next.get()($($arg,)* to, filter, order)
                    }
                }
            }
        )*
    };
}
scanning! {
    our_scandir, scandir, "scandir", (path: Name), opendir(path);
    our_scandir64, scandir64, "scandir64", (path: Name), opendir(path);
    our_scandirat, scandirat, "scandirat", (at: c_int, path: Name), opendir_at(at, path);
    our_scandirat64, scandirat64, "scandirat64", (at: c_int, path: Name), opendir_at(at, path);
}

/// # Safety
/// As openat(2).
unsafe fn opendir_at(at: c_int, path: Name) -> Dir {
    const HOW: c_int = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NONBLOCK | libc::O_CLOEXEC;
    // SAFETY: the caller keeps this contract, which is that of the function called.
    unsafe {
        match openat64(at, path, HOW) {
            fd @ 0.. => fdopendir(fd),
            _ => std::ptr::null_mut(),
        }
    }
}

// glob(3).

/// glob_t of the C library.
#[repr(C)]
pub struct Globbed {
    paths: [usize; 3],
    flags: c_int,
    /// How it is to close, read and open directories and to look at files, if it is told so; else
    /// what the program's memory happens to have there.
    functions: [MaybeUninit<*const c_void>; 5],
}

/// Lets glob(3) use the functions that are recorded.
///
/// # Safety
/// As glob(3), by `make`, which gets other flags.
unsafe fn globs(flags: c_int, to: *mut Globbed, make: &dyn Fn(c_int) -> c_int) -> c_int {
    const OTHER_FUNCTIONS: c_int = 1 << 9;
    if flags & OTHER_FUNCTIONS != 0 || to.is_null() || !counts() {
        return make(flags);
    }
    let ours = [
        closedir as *const c_void,
        readdir64 as *const c_void,
        opendir as *const c_void,
        lstat64 as *const c_void,
        stat64 as *const c_void,
    ];
    // SAFETY: the caller keeps this contract, which is that of the function called.
    unsafe {
        let before = std::mem::replace(&mut (*to).functions, ours.map(MaybeUninit::new));
        let value = make(flags | OTHER_FUNCTIONS);
        (*to).functions = before;
        (*to).flags &= !OTHER_FUNCTIONS;
        value
    }
}

/// Functions like glob(3): ours, the one behind it, its name.
macro_rules! globbing {
    ($($our:ident, $next:ident, $symbol:literal;)*) => {
        $(
            /// # Safety
            /// As glob(3).
            #[export_name = $symbol]
            pub unsafe extern "C-unwind" fn $our(
                pattern: Name,
                flags: c_int,
                on_error: OnError,
                to: *mut Globbed,
            ) -> c_int {
                // SAFETY: the program keeps the contract of the C function, which gets its
                // arguments unchanged.
                unsafe { globs(flags, to, &|flags| $next.get()(pattern, flags, on_error, to)) }
            }
        )*
    };
}
globbing! {
    our_glob, glob, "glob";
    our_glob64, glob64, "glob64";
}

// nftw(3).

/// struct FTW of the C library: where the name begins in a path, and how deep it is.
#[repr(C)]
pub struct Place {
    base: c_int,
    level: c_int,
}

/// What the program is shown: a file, a directory, one that cannot be read, one that has been
/// walked through, a link, a link that leads nowhere, or nothing that can be looked at.
const FILE: c_int = 0;
const DIRECTORY: c_int = 1;
const UNREADABLE: c_int = 2;
const NOTHING: c_int = 3;
const LINK: c_int = 4;
const DIRECTORY_AFTER: c_int = 5;
const LINK_TO_NOTHING: c_int = 6;

/// How it is walked: links are not followed; only on one file system; to each directory; what is in
/// a directory comes before it; the program says how it goes on.
const PHYSICAL: c_int = 1;
const ONE_SYSTEM: c_int = 2;
const GOES_THERE: c_int = 4;
const DEPTH_FIRST: c_int = 8;
const ACTIONS: c_int = 16;

/// What the program says to [`ACTIONS`].
const SKIP_SUBTREE: c_int = 2;
const SKIP_SIBLINGS: c_int = 3;

struct Walk {
    how: c_int,
    visit: Visit,
    /// ftw(3), which knows fewer kinds of files.
    is_old: bool,
    device: u64,
    /// Directories that were walked, when links are followed.
    seen: Vec<(u64, u64)>,
}

impl Walk {
    /// Shows the program a file.
    fn show(&self, path: &CStr, st: &libc::stat, kind: c_int, level: c_int) -> c_int {
        let kind = match kind {
            LINK if self.is_old => FILE,
            DIRECTORY_AFTER if self.is_old => DIRECTORY,
            LINK_TO_NOTHING if self.is_old => NOTHING,
            kind => kind,
        };
        let bytes = path.to_bytes();
        let base = bytes.iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1);
        // The root is its own name.
        let base = if base == bytes.len() { 0 } else { base };
        let mut place = Place { base: base as c_int, level };
        // SAFETY: the program has passed this function for such arguments, which outlive the call.
        unsafe { (self.visit)(path.as_ptr(), st, kind, &mut place) }
    }

    /// Walks through a file and what is below it: 0, or what ends the walk.
    fn walk(&mut self, path: &CStr, level: c_int) -> c_int {
        // SAFETY: all zero is a valid structure; C strings.
        let mut st: libc::stat = unsafe { std::mem::zeroed() };
        let failed = |look: unsafe extern "C-unwind" fn(Name, *mut libc::stat) -> c_int,
                      st: &mut libc::stat| {
            // SAFETY: the path is a C string, and the kernel writes one structure to `st`.
            unsafe { look(path.as_ptr(), st) != 0 }
        };
        let follows = self.how & PHYSICAL == 0;
        if failed(if follows { stat64 } else { lstat64 }, &mut st) {
            if ![libc::EACCES, libc::ENOENT].contains(&errno()) || level == 0 && !follows {
                return -1;
            }
            let is_link = |st: &libc::stat| st.st_mode & libc::S_IFMT == libc::S_IFLNK;
            let leads_nowhere = follows && !failed(lstat64, &mut st) && is_link(&st);
            if level == 0 && !leads_nowhere {
                return -1;
            }
            let kind = if leads_nowhere { LINK_TO_NOTHING } else { NOTHING };
            return self.show(path, &st, kind, level);
        }
        if level == 0 {
            self.device = st.st_dev;
        }
        if self.how & ONE_SYSTEM != 0 && st.st_dev != self.device {
            return 0;
        }
        match st.st_mode & libc::S_IFMT {
            libc::S_IFDIR => self.walk_directory(path, &st, level),
            libc::S_IFLNK => self.show(path, &st, LINK, level),
            _ => self.show(path, &st, FILE, level),
        }
    }

    fn walk_directory(&mut self, path: &CStr, st: &libc::stat, level: c_int) -> c_int {
        if self.how & PHYSICAL == 0 {
            if self.seen.contains(&(st.st_dev, st.st_ino)) {
                return 0;
            }
            self.seen.push((st.st_dev, st.st_ino));
        }
        // SAFETY: the path is a C string, which outlives the call.
        let dir = unsafe { opendir(path.as_ptr()) };
        if dir.is_null() {
            return match errno() {
                libc::EACCES => self.show(path, st, UNREADABLE, level),
                _ => -1,
            };
        }
        let mut below = Vec::new();
        // SAFETY: it is open; names are C strings.
        let error = unsafe {
            entries(dir, &mut |entry| {
                let name = CStr::from_ptr(entry.d_name.as_ptr());
                if ![c".", c".."].contains(&name) {
                    below.push(joined(path, name));
                }
                0
            })
        };
        if error != 0 {
            set_errno(error);
            return -1;
        }
        let depth_first = self.how & DEPTH_FIRST != 0;
        let mut value = if depth_first { 0 } else { self.show(path, st, DIRECTORY, level) };
        let acts = self.how & ACTIONS != 0;
        if acts && value == SKIP_SUBTREE {
            return 0;
        }
        for path in below.iter().flatten() {
            if value != 0 {
                break;
            }
            value = self.walk(path, level + 1);
            if acts && value == SKIP_SUBTREE {
                value = 0;
            }
        }
        if acts && value == SKIP_SIBLINGS {
            value = 0;
        }
        match value {
            0 if depth_first => self.show(path, st, DIRECTORY_AFTER, level),
            value => value,
        }
    }
}

/// The path of a name in a directory.
fn joined(path: &CStr, name: &CStr) -> Option<CString> {
    let slash: &[u8] = if path.to_bytes().ends_with(b"/") { b"" } else { b"/" };
    CString::new([path.to_bytes(), slash, name.to_bytes()].concat()).ok()
}

/// # Safety
/// As nftw(3).
unsafe fn walks(
    path: Name,
    visit: Visit,
    how: c_int,
    is_old: bool,
    make: &dyn Fn() -> c_int,
) -> c_int {
    if path.is_null() || !counts() {
        return make();
    }
    if how & GOES_THERE != 0 {
        saying::not_walked();
        return make();
    }
    // SAFETY: the caller passes a C string, as its contract says.
    let given = unsafe { CStr::from_ptr(path) }.to_bytes();
    let name = given.iter().rposition(|byte| *byte != b'/').map_or(1, |last| last + 1);
    let Ok(path) = CString::new(&given[..name.min(given.len())]) else { return make() };
    let mut walk = Walk { how, visit, is_old, device: 0, seen: Vec::new() };
    let value = walk.walk(&path, 0);
    if how & ACTIONS != 0 && [SKIP_SUBTREE, SKIP_SIBLINGS].contains(&value) {
        0
    } else {
        value
    }
}

/// Functions like ftw(3) and nftw(3): ours, the one behind it, its name, the last argument of some,
/// how it is walked, whether it knows fewer kinds of files.
macro_rules! walking {
    ($($our:ident, $next:ident, $symbol:literal, ($($arg:ident: $kind:ty),*), $how:expr, $old:expr;)*) => {
        $(
            /// # Safety
            /// As nftw(3).
            #[export_name = $symbol]
            pub unsafe extern "C-unwind" fn $our(
                path: Name,
                visit: Visit,
                most_open: c_int,
                $($arg: $kind),*
            ) -> c_int {
                // SAFETY: the program keeps the contract of the C function, which gets its
                // arguments unchanged.
                unsafe {
                    let make = || $next.get()(path, visit, most_open, $($arg),*);
                    walks(path, visit, $how, $old, &make)
                }
            }
        )*
    };
}
walking! {
    our_ftw, ftw, "ftw", (), 0, true;
    our_ftw64, ftw64, "ftw64", (), 0, true;
    our_nftw, nftw, "nftw", (how: c_int), how, false;
    our_nftw64, nftw64, "nftw64", (how: c_int), how, false;
}

/// Functions that begin to walk by fts(3), which keeps what it finds in structures of its own, past
/// all that is recorded: ours, the one behind it, its name.
macro_rules! not_walking {
    ($($our:ident, $next:ident, $symbol:literal;)*) => {
        $(
            /// # Safety
            /// As fts_open(3).
            #[export_name = $symbol]
            pub unsafe extern "C-unwind" fn $our(
                paths: *const Name,
                how: c_int,
                order: Order,
            ) -> Fts {
                if counts() {
                    saying::not_walked();
                }
                // SAFETY: the program keeps the contract of the C function, which gets its
                // arguments unchanged.
                unsafe { $next.get()(paths, how, order) }
            }
        )*
    };
}
not_walking! {
    our_fts_open, fts_open, "fts_open";
    our_fts64_open, fts64_open, "fts64_open";
}
