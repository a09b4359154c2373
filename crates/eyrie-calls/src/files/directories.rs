//! mkdir(2), mkfifo(3), mknod(2). A directory or a pipe is made under a name that no other process
//! uses. So its number is known before it gets its own name, and a process that finds that name can
//! tell which rank has made it.

use super::change::{free, of_call_by, Change, UNKNOWN};
use super::kernel::{self, look, Identity, HERE};
use super::path::Path;
use super::records::Call;
use crate::random;
use libc::{c_char, c_int, dev_t, mode_t};

/// What the name of such a directory is: this, and so many digits.
const FRONT: &[u8] = b".eyrie-";
const DIGITS: usize = 16;

/// Whether a directory has this name that has not got its own yet.
pub fn is_nameless(name: &[u8]) -> bool {
    let digits = name.strip_prefix(FRONT);
    digits.is_some_and(|it| it.len() == DIGITS && it.iter().all(u8::is_ascii_hexdigit))
}

/// The name of a directory of this rank that has not got its own yet.
fn nameless(dir: c_int, path: *const c_char) -> Option<Path> {
    let mut name = [0; FRONT.len() + DIGITS];
    name[..FRONT.len()].copy_from_slice(FRONT);
    let mut number = random::name();
    for digit in name.iter_mut().rev().take(DIGITS) {
        *digit = b"0123456789abcdef"[(number & 15) as usize];
        number >>= 4;
    }
    // SAFETY: a C string, as the caller has looked.
    unsafe { Path::of(dir, path) }?.parent().below(&name)
}

/// What is made: its kind and its rights, and the device, if it is one.
pub type Kind = (mode_t, dev_t);

/// Makes it without its name.
fn make_nameless(at: &Path, (mode, device): Kind) -> Result<Identity, i64> {
    let mut made = kernel::make_node(at.as_c(), mode, device);
    if made == -i64::from(libc::EEXIST) {
        // The rank has died before it could say that it had one.
        kernel::remove_node(at.as_c(), mode);
        made = kernel::make_node(at.as_c(), mode, device);
    }
    match made {
        0 => look(HERE, at.as_c().as_ptr(), false).map(|found| found.id),
        error => Err(error),
    }
}

/// Gives it its name; `None`: not in this way.
fn give_name(at: &Path, dir: c_int, path: *const c_char, mode: mode_t) -> Option<i64> {
    look(HERE, at.as_c().as_ptr(), false).ok()?;
    let named = kernel::rename_to_free(at.as_c(), dir, path);
    if named < 0 {
        kernel::remove_node(at.as_c(), mode);
    }
    let taken = named == 0 || named == -i64::from(libc::EEXIST);
    taken.then_some(named)
}

/// Makes it, once in all processes of the rank.
pub fn made(
    what: u8,
    dir: c_int,
    path: *const c_char,
    kind: Kind,
    make: &dyn Fn() -> c_int,
) -> c_int {
    if path.is_null() {
        return make();
    }
    let change = Change {
        // SAFETY: the path is a C string, which outlives the call.
        call: unsafe { Call::new(what, path) },
        before: &|| {
            free(dir, path)?;
            let at = nameless(dir, path).ok_or(UNKNOWN)?;
            make_nameless(&at, kind)
        },
        is_done: &|made| look(dir, path, false).is_ok_and(|found| found.id == made),
        stand_ins: &|| (),
        keep: &|_| (),
    };
    let make_once = || {
        let named = nameless(dir, path).and_then(|at| give_name(&at, dir, path, kind.0));
        match named {
            Some(0) => 0,
            Some(error) => {
                // SAFETY: errno of this thread is valid while the thread runs, and no other thread
                // uses it.
                unsafe { *libc::__errno_location() = -error as c_int };
                -1
            }
            None => make(),
        }
    };
    of_call_by(&change, &make_once, make)
}
