//! write(2), pwrite(2), writev(2), ftruncate(2), fallocate(2) and the like on regular files. A
//! known write is not repeated. A write that may not have been made yet goes to the file itself, at
//! its place.

use super::buffers::{one, Buffers};
use super::calling::{of_file, outcome};
use super::far::{self, Far, Old, Room};
use super::freshness;
use super::kernel::{self, File};
use super::once::{self, Wrote};
use super::open_records::CUT;
use super::others;
use super::own_mapping;
use super::pending;
use super::recent;
use super::records::{is_new_change, Call, Part, Record};
use super::standing_in::{self, table};
use super::storing::store;
use super::under_lock;
use crate::next::next;
use libc::{c_int, c_void, iovec, off_t, size_t, ssize_t};

next! {
    pwrite: fn(c_int, *const c_void, size_t, off_t) -> ssize_t;
    pwrite64: fn(c_int, *const c_void, size_t, off_t) -> ssize_t;
    pwritev: fn(c_int, *const iovec, c_int, off_t) -> ssize_t;
    pwritev64: fn(c_int, *const iovec, c_int, off_t) -> ssize_t;
    pwritev2: fn(c_int, *const iovec, c_int, off_t, c_int) -> ssize_t;
    pwritev64v2: fn(c_int, *const iovec, c_int, off_t, c_int) -> ssize_t;
    ftruncate: fn(c_int, off_t) -> c_int;
    ftruncate64: fn(c_int, off_t) -> c_int;
    fallocate: fn(c_int, c_int, off_t, off_t) -> c_int;
    fallocate64: fn(c_int, c_int, off_t, off_t) -> c_int;
    posix_fallocate: fn(c_int, off_t, off_t) -> c_int;
    posix_fallocate64: fn(c_int, off_t, off_t) -> c_int;
}

/// Numbers of the functions, in what is recorded.
pub(super) const WRITE: u8 = 82;
const ALLOCATE: u8 = 84;

/// Writes these bytes to an open file, at a place in it or where it stands; `None`: it is no file
/// of which that is recorded.
pub(crate) fn writes(
    fd: c_int,
    from: Buffers,
    at: Option<off_t>,
    make: &dyn Fn() -> ssize_t,
) -> Option<ssize_t> {
    let at = at.filter(|at| *at != -1);
    let value = of_file(fd, &mut |file| {
        let far = far::at(fd, file);
        once::write(Call::on_open(WRITE), &mut Writing { fd, file, far, from, at, make })
    });
    if value.is_none() {
        others::changed(fd);
    }
    value.map(|n| n as ssize_t)
}

struct Writing<'a> {
    fd: c_int,
    file: &'a File,
    far: Option<Far<'a>>,
    from: Buffers<'a>,
    at: Option<off_t>,
    make: &'a dyn Fn() -> ssize_t,
}

impl Writing<'_> {
    /// Writes to a file on a server, and records what was there before.
    fn write_far(&self, far: &Far, call: Call, place: u64) -> (i64, Wrote) {
        let mut room = Room::new();
        let over = far.look(place, self.from.len(), &mut room);
        let n = self.write_now(false);
        if n > 0 && over.is_none() {
            kernel::write_back(self.fd);
        }
        let over = over.unwrap_or(0);
        if n <= 0 || over == 0 {
            return (n, Wrote::Somewhere);
        }
        let numbers = [n, self.file.size as i64];
        call.write_with(Part::Over, &numbers, room.numbers(over));
        (n, Wrote::Noted)
    }

    fn commit(&self, call: Call, number: u64) -> i64 {
        let n = under_lock::write(self.fd, number, &self.from, self.at, &|| self.call());
        call.write_result(n)
    }

    /// It was about to be made once.
    fn commit_again(&self, call: Call, mut intent: Record) -> i64 {
        let number = intent.number() as u64;
        under_lock::seen(number);
        if let Some(n) = call.result_again() {
            return if n > 0 { self.written_before(n, None, Old::NOTHING) } else { n };
        }
        if !is_new_change() {
            return self.call();
        }
        standing_in::before_new();
        if under_lock::is_made(self.fd, number) {
            let n = self.from.len() as i64;
            return call.write_result(self.written_before(n, None, Old::NOTHING));
        }
        recent::look_for_others(self.fd, self.file.number, &self.from, self.at);
        self.commit(call, number)
    }

    fn make_now(&self, call: Call) -> (i64, Wrote) {
        let appends = self.appends();
        if let Some(far) = &self.far {
            let place = self.at.unwrap_or_else(|| kernel::seek(self.fd, 0, libc::SEEK_CUR));
            if let (false, 0..) = (appends, place) {
                return self.write_far(far, call, place as u64);
            }
        }
        let n = self.write_now(appends);
        let end = (appends && n > 0).then(|| kernel::seek(self.fd, 0, libc::SEEK_CUR));
        (n, end.filter(|end| *end >= 0).map_or(Wrote::Somewhere, Wrote::AtTheEnd))
    }

    fn appends(&self) -> bool {
        let flags = kernel::fcntl(self.fd, libc::F_GETFL, 0);
        self.at.is_none() && flags & i64::from(libc::O_APPEND) != 0
    }

    /// It is not known to have been written: but what is appended may be there, and of what was
    /// read to change a part of it others may have changed another.
    fn write_now(&self, appends: bool) -> i64 {
        let n = self.from.len();
        if appends && standing_in::is_there(self.fd, self.file.number, &self.from) {
            kernel::seek(self.fd, 0, libc::SEEK_END);
            return n as i64;
        }
        if !appends && recent::write_changed(self.fd, self.file.number, &self.from, self.at) {
            if self.at.is_none() {
                kernel::seek(self.fd, n as i64, libc::SEEK_CUR);
            }
            return n as i64;
        }
        self.call()
    }

    /// So many bytes were written before; `end`: they were appended, and it ended there; `old`:
    /// what was there.
    fn written_before(&self, n: i64, end: Option<i64>, old: Old) -> i64 {
        let here = || kernel::seek(self.fd, 0, libc::SEEK_CUR);
        let place = || end.map(|end| end - n).or(self.at).unwrap_or_else(here).max(0) as u64;
        if own_mapping::any() {
            own_mapping::written(self.file.number, &self.from, place(), n as usize);
        }
        // SAFETY: this call is being recorded, of which there is one at a time.
        if pending::any() && unsafe { table() }.stands_in(self.fd) {
            self.call();
            return n;
        }
        if let Some(far) = &self.far {
            far.again(&self.from, place(), n as usize, old);
        }
        match (end, self.at) {
            (Some(end), _) => {
                kernel::seek(self.fd, end, libc::SEEK_SET);
                standing_in::appended(self.file.number, n as u64, end as u64);
            }
            (None, Some(at)) => standing_in::written(self.file.number, (at + n) as u64),
            (None, None) => {
                let end = kernel::seek(self.fd, n, libc::SEEK_CUR);
                standing_in::written(self.file.number, end as u64);
            }
        }
        recent::forget(self.file.number);
        n
    }

    fn call(&self) -> i64 {
        outcome((self.make)() as i64)
    }
}

impl once::Writing for Writing<'_> {
    fn make(&mut self) -> i64 {
        self.call()
    }

    fn make_first(&mut self, call: Call) -> (i64, Wrote) {
        let waits = self.far.is_none() || far::begin_to_write(self.file);
        let made = self.make_now(call);
        if !waits {
            kernel::write_back(self.fd);
        }
        made
    }

    fn make_otherwise(&mut self, call: Call) -> Option<i64> {
        if !under_lock::applies(self.file, &self.from) || self.appends() {
            return None;
        }
        let intent = under_lock::next(self.file.number);
        call.write(Part::Intent, &intent);
        // SAFETY: this call is being recorded, of which there is one at a time.
        unsafe { store() };
        Some(self.commit(call, intent[0] as u64))
    }

    fn made_otherwise(&mut self, call: Call) -> Option<i64> {
        if let (Some(far), Some(mut over)) = (&self.far, call.again(Part::Over)) {
            let n = over.number();
            let size = over.number();
            return Some(self.written_before(n, None, far.old(size, over.content())));
        }
        let intent = call.again(Part::Intent)?;
        Some(self.commit_again(call, intent))
    }

    fn made_before(&mut self, n: i64, end: Option<i64>) -> i64 {
        self.written_before(n, end, Old::NOTHING)
    }

    fn len(&self) -> i64 {
        self.from.len() as i64
    }

    fn number(&self) -> (u64, u64) {
        self.file.number
    }
}

/// A call that changes an open file, and of which nothing but a number comes back. `again`: what
/// else it did, when it was made before. A size that it gave the file is not given again: the file
/// may have got another one since.
pub(super) fn changes(
    (what, size): (u8, Option<off_t>),
    fd: c_int,
    again: &dyn Fn(&File, i64),
    make: &dyn Fn() -> i64,
) -> Option<i64> {
    let value = of_file(fd, &mut |file| {
        let call = Call::on_open(what);
        if let Some(value) = call.result_again() {
            // SAFETY: this call is being recorded, of which there is one at a time.
            if pending::any() && unsafe { table() }.stands_in(fd) {
                make();
                if let Some(size) = size.filter(|_| value == 0) {
                    own_mapping::cut(file.number, size as u64);
                }
            } else {
                again(file, value)
            }
            return value;
        }
        if !is_new_change() {
            return make();
        }
        standing_in::before_new();
        freshness::before_change(file.number);
        let value = make();
        match size {
            Some(size) => call.write(Part::Result, &[value, file.number.1 as i64, size]),
            None => _ = call.write_result(value),
        }
        value
    });
    if value.is_none() {
        others::changed(fd);
    }
    value
}

/// Sets a file's size.
fn cuts(fd: c_int, size: off_t, make: &dyn Fn() -> c_int) -> Option<c_int> {
    let again = |file: &File, value| {
        if value == 0 {
            standing_in::cut(file.number, size as u64);
        }
    };
    changes((CUT, Some(size)), fd, &again, &|| outcome(make())).map(|value| value as c_int)
}

/// Makes room in a file, or takes it away.
fn allocates(
    fd: c_int,
    (how, at, len): (c_int, off_t, off_t),
    make: &dyn Fn() -> i64,
) -> Option<i64> {
    let again = |file: &File, value| {
        if value == 0 {
            own_mapping::allocated(file.number, how, at as u64, len as u64);
        }
    };
    changes((ALLOCATE, None), fd, &again, make)
}

/// Functions that write: ours, the one behind it, its name, its arguments, the buffers, the place.
macro_rules! writing {
    ($($our:ident, $next:ident, $symbol:literal, ($($arg:ident: $kind:ty),*), $from:expr, $at:expr;)*) => {
        $(
            /// # Safety
            /// As the function of the C library.
            #[export_name = $symbol]
            pub unsafe extern "C-unwind" fn $our(fd: c_int, $($arg: $kind),*) -> ssize_t {
                // SAFETY: the program keeps the contract of the C function, which gets its
                // arguments unchanged.
                unsafe {
                    let next = || $next.get()(fd, $($arg),*);
                    writes(fd, $from, Some($at), &next).unwrap_or_else(next)
                }
            }
        )*
    };
}
writing! {
    our_pwrite, pwrite, "pwrite", (from: *const c_void, len: size_t, at: off_t),
        Buffers::new(&one(from, len)), at;
    our_pwrite64, pwrite64, "pwrite64", (from: *const c_void, len: size_t, at: off_t),
        Buffers::new(&one(from, len)), at;
    our_pwritev, pwritev, "pwritev", (parts: *const iovec, n: c_int, at: off_t),
        Buffers::of(parts, n), at;
    our_pwritev64, pwritev64, "pwritev64", (parts: *const iovec, n: c_int, at: off_t),
        Buffers::of(parts, n), at;
    our_pwritev2, pwritev2, "pwritev2", (parts: *const iovec, n: c_int, at: off_t, how: c_int),
        Buffers::of(parts, n), at;
    our_pwritev64v2, pwritev64v2, "pwritev64v2",
        (parts: *const iovec, n: c_int, at: off_t, how: c_int), Buffers::of(parts, n), at;
}

/// Functions that change an open file: ours, the one behind it, its name, its arguments, the
/// function that is given the call.
macro_rules! changing {
    ($($our:ident, $next:ident, $symbol:literal, ($($arg:ident: $kind:ty),*), $how:expr;)*) => {
        $(
            /// # Safety
            /// As the function of the C library.
            #[export_name = $symbol]
            pub unsafe extern "C-unwind" fn $our(fd: c_int, $($arg: $kind),*) -> c_int {
                // SAFETY: the program keeps the contract of the C function, which gets its
                // arguments unchanged.
                let next = || unsafe { $next.get()(fd, $($arg),*) };
                let how: &dyn Fn(&dyn Fn() -> c_int) -> Option<c_int> = &|make| $how(fd, make);
                how(&next).unwrap_or_else(next)
            }
        )*
    };
}
/// A number of an error, as posix_fallocate(3) returns it.
fn allocates_or_says(
    fd: c_int,
    (at, len): (off_t, off_t),
    make: &dyn Fn() -> c_int,
) -> Option<c_int> {
    allocates(fd, (0, at, len), &|| i64::from(make())).map(|value| value as c_int)
}

/// The same as fallocate(2) says it.
fn allocates_by(fd: c_int, what: (c_int, off_t, off_t), make: &dyn Fn() -> c_int) -> Option<c_int> {
    allocates(fd, what, &|| outcome(make())).map(|value| value as c_int)
}

changing! {
    our_ftruncate, ftruncate, "ftruncate", (size: off_t), |fd, make| cuts(fd, size, make);
    our_ftruncate64, ftruncate64, "ftruncate64", (size: off_t), |fd, make| cuts(fd, size, make);
    our_fallocate, fallocate, "fallocate", (how: c_int, at: off_t, len: off_t),
        |fd, make| allocates_by(fd, (how, at, len), make);
    our_fallocate64, fallocate64, "fallocate64", (how: c_int, at: off_t, len: off_t),
        |fd, make| allocates_by(fd, (how, at, len), make);
    our_posix_fallocate, posix_fallocate, "posix_fallocate", (at: off_t, len: off_t),
        |fd, make| allocates_or_says(fd, (at, len), make);
    our_posix_fallocate64, posix_fallocate64, "posix_fallocate64", (at: off_t, len: off_t),
        |fd, make| allocates_or_says(fd, (at, len), make);
}
