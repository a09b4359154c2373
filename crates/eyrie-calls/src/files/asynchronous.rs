//! aio_read(3), aio_write(3), lio_listio(3), with which MPI libraries make MPI_File_iread and
//! MPI_File_iwrite. The C library runs them in threads of its own, whose calls are not recorded. So
//! they are made here at once, like other reads and writes, and are complete when they have begun.

use super::buffers::{one, Buffers};
use super::calling::of_file;
use super::kernel::{self, errno};
use super::reading::reads;
use super::saying;
use super::writing::writes;
use crate::next::next;
use libc::{c_int, c_void, off_t, sigevent, size_t, ssize_t};

next! {
    aio_read: fn(*mut Control) -> c_int;
    aio_read64: fn(*mut Control) -> c_int;
    aio_write: fn(*mut Control) -> c_int;
    aio_write64: fn(*mut Control) -> c_int;
    lio_listio: fn(c_int, *const *mut Control, c_int, *mut sigevent) -> c_int;
    lio_listio64: fn(c_int, *const *mut Control, c_int, *mut sigevent) -> c_int;
    pread64: fn(c_int, *mut c_void, size_t, off_t) -> ssize_t;
    pwrite64: fn(c_int, *const c_void, size_t, off_t) -> ssize_t;
    write: fn(c_int, *const c_void, size_t) -> ssize_t;
}

/// struct aiocb of the C library: what is asked for, and what its own functions look at to say what
/// became of it.
#[repr(C)]
pub struct Control {
    fd: c_int,
    what: c_int,
    priority: c_int,
    bytes: *mut c_void,
    len: size_t,
    event: sigevent,
    next: *mut c_void,
    absolute_priority: c_int,
    policy: c_int,
    error: c_int,
    value: ssize_t,
    at: off_t,
}

const _: () = assert!(
    std::mem::offset_of!(Control, error) == 112 && std::mem::offset_of!(Control, at) == 128
);

/// What is asked for in a list.
const READ: c_int = 0;
const WRITE: c_int = 1;
/// How the program is notified of the end of a call: by a signal, or not at all.
const BY_SIGNAL: c_int = 0;
const NOT_AT_ALL: c_int = 1;
/// A list is waited for.
const WAIT: c_int = 0;

/// Whether the program can be notified from here that something is over.
fn can_be_notified(event: &sigevent) -> bool {
    [BY_SIGNAL, NOT_AT_ALL].contains(&event.sigev_notify)
}

/// Notifies the program that something is over.
fn notify(event: &sigevent) {
    if event.sigev_notify == BY_SIGNAL && event.sigev_signo > 0 {
        kernel::signal_self(event.sigev_signo, event.sigev_value);
    }
}

/// Whether this is a file of which calls are recorded, so that it is done here.
fn is_ours(control: &Control) -> bool {
    let is_file = of_file(control.fd, &mut |_| 0).is_some();
    if is_file && !can_be_notified(&control.event) {
        saying::not_at_once();
        return false;
    }
    is_file
}

/// Does it, if it is a read or a write; the program is not notified of its end yet.
///
/// # Safety
/// As aio_read(3).
unsafe fn run(control: &mut Control, what: c_int) {
    let Control { fd, bytes, len, at, .. } = *control;
    let flags = kernel::fcntl(fd, libc::F_GETFL, 0) as c_int;
    let buffer = one(bytes, len);
    // SAFETY: the program keeps the contract of the C function, which gets its arguments unchanged.
    let value = unsafe {
        let buffers = Buffers::new(&buffer);
        match what {
            READ => {
                let next = || pread64.get()(fd, bytes, len, at);
                reads(fd, buffers, Some(at), &next).unwrap_or_else(next)
            }
            WRITE if flags & libc::O_APPEND != 0 => {
                let next = || write.get()(fd, bytes, len);
                writes(fd, buffers, None, &next).unwrap_or_else(next)
            }
            WRITE => {
                let next = || pwrite64.get()(fd, bytes, len, at);
                writes(fd, buffers, Some(at), &next).unwrap_or_else(next)
            }
            _ => 0,
        }
    };
    control.value = value;
    control.error = if value < 0 { errno() } else { 0 };
}

/// Does one; `make`: the C library does.
///
/// # Safety
/// As aio_read(3).
unsafe fn does(control: *mut Control, what: c_int, make: &dyn Fn() -> c_int) -> c_int {
    // SAFETY: the caller passes null, or what is valid for this call.
    let Some(it) = (unsafe { control.as_mut() }).filter(|it| is_ours(it)) else { return make() };
    let before = errno();
    // SAFETY: the block is the program's, which keeps it until the operation has ended.
    unsafe { run(it, what) };
    // SAFETY: errno of this thread is valid while the thread runs, and no other thread uses it.
    unsafe { *libc::__errno_location() = before };
    notify(&it.event);
    0
}

/// Functions that begin to read or to write: ours, the one behind it, its name, which of them.
macro_rules! beginning {
    ($($our:ident, $next:ident, $symbol:literal, $what:ident;)*) => {
        $(
            /// # Safety
            /// As the function of the C library.
            #[export_name = $symbol]
            pub unsafe extern "C-unwind" fn $our(control: *mut Control) -> c_int {
                // SAFETY: the program keeps the contract of the C function, which gets its
                // arguments unchanged.
                unsafe { does(control, $what, &|| $next.get()(control)) }
            }
        )*
    };
}
beginning! {
    our_aio_read, aio_read, "aio_read", READ;
    our_aio_read64, aio_read64, "aio_read64", READ;
    our_aio_write, aio_write, "aio_write", WRITE;
    our_aio_write64, aio_write64, "aio_write64", WRITE;
}

/// Does a list of them, if all are files.
///
/// # Safety
/// As lio_listio(3).
unsafe fn lists(
    waits: bool,
    list: *const *mut Control,
    n: c_int,
    event: *mut sigevent,
    make: &dyn Fn() -> c_int,
) -> c_int {
    let n = usize::try_from(n).unwrap_or(0);
    // SAFETY: the caller passes `n` pointers, each null or to a control block, and an event or
    // null.
    unsafe {
        let of_list = |at: usize| (*list.add(at)).as_mut();
        let asks = |it: &Control| [READ, WRITE].contains(&it.what);
        let event = event.as_ref().filter(|_| !waits);
        let mut all = (0..n).filter_map(of_list).filter(|it| asks(it)).peekable();
        if list.is_null() || all.peek().is_none() || !all.all(|it| is_ours(it)) {
            return make();
        }
        if !event.is_none_or(can_be_notified) {
            saying::not_at_once();
            return make();
        }
        let mut failed = false;
        for it in (0..n).filter_map(of_list).filter(|it| asks(it)) {
            run(it, it.what);
            failed |= it.error != 0;
            notify(&it.event);
        }
        if let Some(event) = event {
            notify(event);
        }
        if failed {
            *libc::__errno_location() = libc::EIO;
            return -1;
        }
    }
    0
}

/// Functions like lio_listio(3): ours, the one behind it, its name.
macro_rules! listing {
    ($($our:ident, $next:ident, $symbol:literal;)*) => {
        $(
            /// # Safety
            /// As lio_listio(3).
            #[export_name = $symbol]
            pub unsafe extern "C-unwind" fn $our(
                how: c_int,
                list: *const *mut Control,
                n: c_int,
                event: *mut sigevent,
            ) -> c_int {
                // SAFETY: the program keeps the contract of the C function, which gets its
                // arguments unchanged.
                unsafe { lists(how == WAIT, list, n, event, &|| $next.get()(how, list, n, event)) }
            }
        )*
    };
}
listing! {
    our_lio_listio, lio_listio, "lio_listio";
    our_lio_listio64, lio_listio64, "lio_listio64";
}
