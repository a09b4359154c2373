//! mkstemp(3), mkdtemp(3), mktemp(3), tmpnam(3) and the like. The C library draws their names
//! without its own public functions, and a rank that is executed again must get the same names.

use super::kernel::errno;
use super::names::our_mkdir;
use super::open_calls::opened;
use crate::next::next;
use crate::random;
use libc::{c_char, c_int};
use std::cell::UnsafeCell;
use std::ffi::CStr;

next! {
    mkstemp: fn(*mut c_char) -> c_int;
    mkstemp64: fn(*mut c_char) -> c_int;
    mkostemp: fn(*mut c_char, c_int) -> c_int;
    mkostemp64: fn(*mut c_char, c_int) -> c_int;
    mkstemps: fn(*mut c_char, c_int) -> c_int;
    mkstemps64: fn(*mut c_char, c_int) -> c_int;
    mkostemps: fn(*mut c_char, c_int, c_int) -> c_int;
    mkostemps64: fn(*mut c_char, c_int, c_int) -> c_int;
    mkdtemp: fn(*mut c_char) -> *mut c_char;
    mktemp: fn(*mut c_char) -> *mut c_char;
    tmpnam: fn(*mut c_char) -> *mut c_char;
    tmpnam_r: fn(*mut c_char) -> *mut c_char;
    tempnam: fn(*const c_char, *const c_char) -> *mut c_char;
}

extern "C-unwind" {
    fn secure_getenv(name: *const c_char) -> *mut c_char;
}

/// How many names are tried.
const TRIES: usize = 10_000;
const PLACES: usize = 6;
const LETTERS: &[u8] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";

/// The places of a template that are to be filled, if the rank draws by itself.
///
/// # Safety
/// `template` must be a C string of the caller's.
unsafe fn places<'a>(template: *mut c_char, behind: c_int) -> Option<&'a mut [u8]> {
    if template.is_null() || !random::draws() {
        return None;
    }
    // SAFETY: the caller passes a C string that may be written, and the places are within it.
    unsafe {
        let len = CStr::from_ptr(template).count_bytes();
        let end = len.checked_sub(usize::try_from(behind).ok()?)?;
        let from = end.checked_sub(PLACES)?;
        let places = std::slice::from_raw_parts_mut(template.add(from).cast::<u8>(), PLACES);
        (places == b"XXXXXX").then_some(places)
    }
}

fn draw(places: &mut [u8]) {
    random::fill(places);
    places.iter_mut().for_each(|byte| *byte = LETTERS[*byte as usize % LETTERS.len()]);
}

fn exists() -> bool {
    errno() == libc::EEXIST
}

/// # Safety
/// As mkostemps(3).
unsafe fn make(template: *mut c_char, behind: c_int, flags: c_int) -> Option<c_int> {
    // SAFETY: the caller keeps this contract, which is that of the function called.
    let places = unsafe { places(template, behind) }?;
    let flags = flags & !libc::O_ACCMODE | libc::O_RDWR | libc::O_CREAT | libc::O_EXCL;
    for _ in 0..TRIES {
        draw(places);
        // SAFETY: the template is a C string: `places` has found its end.
        let fd = unsafe { opened(libc::AT_FDCWD, template, flags, 0o600) };
        let Some(fd) = fd else {
            places.fill(b'X');
            return None;
        };
        if fd >= 0 || !exists() {
            return Some(fd as c_int);
        }
    }
    Some(-1)
}

/// Functions like mkstemp(3): ours, the one behind it, its name, its other arguments, how many
/// bytes come behind the places, flags.
macro_rules! making {
    ($($our:ident, $next:ident, $symbol:literal, ($($arg:ident: $kind:ty),*), $behind:expr, $flags:expr;)*) => {
        $(
            /// # Safety
            /// As mkstemp(3).
            #[export_name = $symbol]
            pub unsafe extern "C-unwind" fn $our(template: *mut c_char, $($arg: $kind),*) -> c_int {
                // SAFETY: the program keeps the contract of the C function, which gets its
                // arguments unchanged.
                unsafe {
                    let made = make(template, $behind, $flags);
                    made.unwrap_or_else(|| $next.get()(template, $($arg),*))
                }
            }
        )*
    };
}
making! {
    our_mkstemp, mkstemp, "mkstemp", (), 0, 0;
    our_mkstemp64, mkstemp64, "mkstemp64", (), 0, 0;
    our_mkostemp, mkostemp, "mkostemp", (flags: c_int), 0, flags;
    our_mkostemp64, mkostemp64, "mkostemp64", (flags: c_int), 0, flags;
    our_mkstemps, mkstemps, "mkstemps", (behind: c_int), behind, 0;
    our_mkstemps64, mkstemps64, "mkstemps64", (behind: c_int), behind, 0;
    our_mkostemps, mkostemps, "mkostemps", (behind: c_int, flags: c_int), behind, flags;
    our_mkostemps64, mkostemps64, "mkostemps64", (behind: c_int, flags: c_int), behind, flags;
}

/// # Safety
/// As mkdtemp(3).
#[export_name = "mkdtemp"]
pub unsafe extern "C-unwind" fn our_mkdtemp(template: *mut c_char) -> *mut c_char {
    // SAFETY: the program keeps the contract of the C function, which gets its arguments unchanged.
    unsafe {
        let Some(places) = places(template, 0) else { return mkdtemp.get()(template) };
        for _ in 0..TRIES {
            draw(places);
            if our_mkdir(template, 0o700) == 0 {
                return template;
            }
            if !exists() {
                break;
            }
        }
        std::ptr::null_mut()
    }
}

/// A name that no file has, in the place of the template; `None`: the C library draws it.
///
/// # Safety
/// `template` must be null or a C string of the caller's.
unsafe fn free_name(template: *mut c_char) -> Option<*mut c_char> {
    // SAFETY: the caller keeps this contract, which is that of the function called.
    let places = unsafe { places(template, 0) }?;
    for _ in 0..TRIES {
        draw(places);
        // SAFETY: the template is a C string: `places` has found its end.
        if unsafe { libc::access(template, libc::F_OK) } != 0 {
            return Some(template);
        }
    }
    // SAFETY: a C string of the caller's, which is longer.
    unsafe { *template = 0 };
    Some(template)
}

/// # Safety
/// As mktemp(3).
#[export_name = "mktemp"]
pub unsafe extern "C-unwind" fn our_mktemp(template: *mut c_char) -> *mut c_char {
    // SAFETY: the program keeps the contract of the C function, which gets its arguments unchanged.
    unsafe { free_name(template).unwrap_or_else(|| mktemp.get()(template)) }
}

/// Room for what tmpnam(3) gives (L_tmpnam).
type Name = [u8; 20];
const NAME: &Name = b"/tmp/fileXXXXXX\0\0\0\0\0";

/// The room that tmpnam(3) has for a program that gives none.
struct Own(UnsafeCell<Name>);

// SAFETY: the program must not call tmpnam(3) in several threads without giving room.
unsafe impl Sync for Own {}

static OWN: Own = Own(UnsafeCell::new([0; 20]));

/// # Safety
/// `to` must have room as tmpnam(3) wants it.
unsafe fn names_anew(to: *mut c_char, make: &dyn Fn() -> *mut c_char) -> *mut c_char {
    if !random::draws() {
        return make();
    }
    // SAFETY: the caller keeps this contract, which is that of the function called.
    unsafe {
        to.cast::<u8>().copy_from_nonoverlapping(NAME.as_ptr(), NAME.len());
        free_name(to).filter(|name| **name != 0).unwrap_or(std::ptr::null_mut())
    }
}

/// # Safety
/// As tmpnam(3).
#[export_name = "tmpnam"]
pub unsafe extern "C-unwind" fn our_tmpnam(to: *mut c_char) -> *mut c_char {
    let room = if to.is_null() { OWN.0.get().cast() } else { to };
    // SAFETY: the program keeps the contract of the C function, which gets its arguments unchanged.
    unsafe { names_anew(room, &|| tmpnam.get()(to)) }
}

/// # Safety
/// As tmpnam_r(3).
#[export_name = "tmpnam_r"]
pub unsafe extern "C-unwind" fn our_tmpnam_r(to: *mut c_char) -> *mut c_char {
    if to.is_null() {
        return to;
    }
    // SAFETY: the program keeps the contract of the C function, which gets its arguments unchanged.
    unsafe { names_anew(to, &|| tmpnam_r.get()(to)) }
}

/// # Safety
/// As tempnam(3).
#[export_name = "tempnam"]
pub unsafe extern "C-unwind" fn our_tempnam(
    dir: *const c_char,
    front: *const c_char,
) -> *mut c_char {
    // SAFETY: handed on to the caller; memory of malloc(3) as long as what is put there.
    unsafe {
        if !random::draws() {
            return tempnam.get()(dir, front);
        }
        let asked = secure_getenv(c"TMPDIR".as_ptr()).cast_const();
        let is_usable = |dir: &*const c_char| !dir.is_null() && libc::access(*dir, libc::W_OK) == 0;
        let dir = [asked, dir].into_iter().find(is_usable).unwrap_or(c"/tmp".as_ptr());
        let front = if front.is_null() { c"file".as_ptr() } else { front };
        let (dir, front) = (CStr::from_ptr(dir).to_bytes(), CStr::from_ptr(front).to_bytes());
        let parts = [dir, b"/", &front[..front.len().min(5)], b"XXXXXX\0"];
        let len = parts.iter().map(|part| part.len()).sum();
        let name = libc::malloc(len).cast::<u8>();
        let mut at = 0;
        for part in parts.iter().filter(|_| !name.is_null()) {
            name.add(at).copy_from_nonoverlapping(part.as_ptr(), part.len());
            at += part.len();
        }
        match free_name(name.cast()) {
            Some(name) if *name == 0 => {
                libc::free(name.cast());
                std::ptr::null_mut()
            }
            name => name.unwrap_or(std::ptr::null_mut()),
        }
    }
}
