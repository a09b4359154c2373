//! mmap(2) of files. What is mapped to be read is content like any other: of a file that has
//! changed since the job began it is recorded, and a rank that is executed again has a copy. A file
//! that several ranks map to be written is memory that messages do not protect. It is marked, so
//! that images of such ranks are refused. If a rank alone maps a file to be written, the content is
//! recorded. Executed again, the rank has memory in its place ([`super::own_mapping`]).

use super::address_space;
use super::calling::{of_file, outcome, recorded};
use super::far;
use super::freshness;
use super::keeping;
use super::kernel::{self, File, Mark};
use super::memory;
use super::others;
use super::own_mapping::{self, Part};
use super::path::Path;
use super::pending;
use super::records::{is_new_change, Call};
use super::saying;
use super::standing_in::{self, table};
use super::storing::store;
use crate::next::next;
use crate::random;
use libc::{c_char, c_int, c_void, off_t, size_t};
use std::cell::UnsafeCell;
use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, Ordering};

next! {
    mmap: fn(*mut c_void, size_t, c_int, c_int, c_int, off_t) -> *mut c_void;
    mmap64: fn(*mut c_void, size_t, c_int, c_int, c_int, off_t) -> *mut c_void;
    munmap: fn(*mut c_void, size_t) -> c_int;
    mprotect: fn(*mut c_void, size_t, c_int) -> c_int;
    mremap: fn(*mut c_void, size_t, size_t, c_int, *mut c_void) -> *mut c_void;
}

/// Numbers of the functions, in what is recorded.
const MAP: u8 = 103;
const UNMAP: u8 = 107;
const REMAP: u8 = 108;
/// Most bytes of a mapping that are recorded.
const MOST: usize = 64 << 20;
/// In front of what a file has that is mapped to be written: its size.
const SIZE: usize = size_of::<u64>();
/// Who maps a file, when several do.
const SEVERAL: u64 = u64::MAX;

/// A file was mapped to be written: images look whether another rank has it mapped so, too.
static MARKS: AtomicBool = AtomicBool::new(false);

/// A call of mmap(2).
struct Mapping<'a> {
    at: *mut c_void,
    len: size_t,
    access: c_int,
    flags: c_int,
    fd: c_int,
    from: off_t,
    next: &'a dyn Fn(*mut c_void, size_t, c_int, c_int, c_int, off_t) -> *mut c_void,
}

impl Mapping<'_> {
    fn make(&self) -> *mut c_void {
        (self.next)(self.at, self.len, self.access, self.flags, self.fd, self.from)
    }

    fn run(&self) -> *mut c_void {
        if self.flags & libc::MAP_FIXED != 0 && own_mapping::may_touch(self.at as usize, self.len) {
            // What lies there is gone then.
            unmaps(self.at, self.len, &|| 0);
        }
        if self.flags & libc::MAP_ANONYMOUS != 0 || self.fd < 0 {
            return self.make();
        }
        let is_shared = self.flags & libc::MAP_SHARED != 0;
        let value = if is_shared && self.may_be_written() {
            of_file(self.fd, &mut |file| self.share(file))
        } else if is_shared && others_use(self.fd) {
            recorded(&mut || self.give_back());
            None
        } else {
            of_file(self.fd, &mut |file| self.look(file))
        };
        match value {
            Some(value) if value < 0 => libc::MAP_FAILED,
            Some(value) => std::ptr::with_exposed_provenance_mut(value as usize),
            None => self.make(),
        }
    }

    /// Whether the program may store there, now or after mprotect(2), for which the kernel wants a
    /// descriptor that can write. By that it may write to the file, too, and find it there.
    fn may_be_written(&self) -> bool {
        let how = kernel::fcntl(self.fd, libc::F_GETFL, 0) as c_int;
        self.access & libc::PROT_WRITE != 0 || how & libc::O_ACCMODE == libc::O_RDWR
    }

    /// What others are to see of a file that has a stand-in they would not see, so it takes its
    /// place.
    fn give_back(&self) -> i64 {
        if pending::any() {
            // SAFETY: this call is being recorded, of which there is one at a time.
            unsafe { table() }.give_back(self.fd);
        }
        0
    }

    /// Maps a file to write it, and notes at the file who does.
    fn share(&self, file: &File) -> i64 {
        if is_in_memory(self.fd) {
            return address(self.share_now());
        }
        let call = Call::on_open(MAP);
        let made = if call.done_again() {
            self.say_what_is_lost();
            self.share_now()
        } else {
            match self.share_again(call) {
                Some(made) => made,
                None => self.share_first(call, file),
            }
        };
        if made != libc::MAP_FAILED {
            let start = made as usize;
            let from = self.from as u64;
            own_mapping::follow(Part { start, len: self.len, from, number: file.number });
        }
        address(made)
    }

    /// The file itself is mapped.
    fn share_now(&self) -> *mut c_void {
        self.give_back();
        mark(self.fd);
        self.make()
    }

    fn share_first(&self, call: Call, file: &File) -> *mut c_void {
        if !is_new_change() {
            // It does something else than before.
            return self.share_now();
        }
        standing_in::before_new();
        let made = self.share_now();
        far::mapped(self.fd, file);
        freshness::looked(file.number);
        if made == libc::MAP_FAILED {
            call.write_content(address(made), &mut |_, _| &[]);
            return made;
        }
        let from = self.from as u64;
        if own_mapping::has_room() {
            write_own(call, self.fd, from, from + self.len as u64)
        } else {
            call.write_done()
        }
        // What is stored there next is in the file at once.
        // SAFETY: this call is being recorded, of which there is one at a time.
        unsafe { store() };
        made
    }

    /// It was mapped before, with a content that is known: memory takes its place, where no other
    /// rank has come to use the file.
    fn share_again(&self, call: Call) -> Option<*mut c_void> {
        // SAFETY: this call is being recorded, of which there is one at a time.
        let of = pending::any().then(|| unsafe { table() }.of_stand_in(self.fd)).flatten();
        let is_own = of.is_some() || !others_use(self.fd);
        let end = self.from as u64 + self.len as u64;
        let memory = || is_own.then(|| own_mapping::stand_in(self.fd, of, end)).flatten();
        let (memory, n) = own_again(call, self.from as u64, &memory)?;
        if n < 0 {
            // SAFETY: errno of this thread is valid while the thread runs, and no other thread uses
            // it.
            unsafe { *libc::__errno_location() = -n as c_int };
            return Some(libc::MAP_FAILED);
        }
        let Some(memory) = memory else {
            self.say_what_is_lost();
            return Some(self.share_now());
        };
        Some((self.next)(self.at, self.len, self.access, self.flags, memory, self.from))
    }

    /// A rank that is executed again maps a file that is mapped to be written: what it has stored
    /// there since is there already.
    fn say_what_is_lost(&self) {
        let path = Path::of_link(kernel::link_of(self.fd, &mut [0; 32]));
        saying::mapped_before(path.as_ref().map_or(b"a file", |path| path.as_bytes()));
    }

    /// Maps a file to read it, or to have a copy.
    fn look(&self, file: &File) -> i64 {
        let call = Call::on_open(MAP);
        if call.done_again() {
            return address(self.make_of_old(file));
        }
        if let Some(changed_ns) = call.result_again() {
            return address(self.make_of_same(file, changed_ns));
        }
        let mut copy = std::ptr::null_mut::<c_void>();
        let replayed = call.content_again(&mut |at, bytes| {
            if copy.is_null() {
                copy = self.empty();
            }
            if copy != libc::MAP_FAILED {
                // SAFETY: as long as the mapping, which can be written.
                unsafe {
                    let to = copy.cast::<u8>().add(at);
                    to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
                }
            }
        });
        if let Some(n) = replayed {
            if n >= 0 && self.access & libc::PROT_WRITE == 0 {
                // SAFETY: the mapping was made above, and only this function has its address.
                unsafe { libc::mprotect(copy, self.len, self.access) };
            }
            return if n < 0 { n } else { address(copy) };
        }
        let new = is_new_change();
        if new {
            standing_in::before_new();
        }
        let made = self.make();
        if new {
            freshness::looked(file.number);
            self.write(call, file, made);
        }
        address(made)
    }

    /// The job had not changed the file when it was mapped first: it is what it was, or its old
    /// state is kept, or it is said.
    fn make_of_old(&self, file: &File) -> *mut c_void {
        let path = Path::of_link(kernel::link_of(self.fd, &mut [0; 32]));
        let Some(path) = path.filter(|it| file.in_job && !keeping::is_old_state(it.name())) else {
            return self.make();
        };
        let Some(old) = keeping::opened(&path, libc::O_RDONLY) else {
            saying::changed_since(path.as_bytes());
            return self.make();
        };
        let made = (self.next)(self.at, self.len, self.access, self.flags, old, self.from);
        kernel::close(old);
        made
    }

    /// More was mapped than is recorded, of a file that had been changed at this time.
    fn make_of_same(&self, file: &File, changed_ns: i64) -> *mut c_void {
        if file.changed_ns != changed_ns {
            let path = Path::of_link(kernel::link_of(self.fd, &mut [0; 32]));
            saying::changed_since(path.as_ref().map_or(b"a file", |path| path.as_bytes()));
        }
        self.make()
    }

    fn write(&self, call: Call, file: &File, made: *mut c_void) {
        if made == libc::MAP_FAILED {
            return call.write_content(address(made), &mut |_, _| &[]);
        }
        let there = (file.size as usize).saturating_sub(self.from as usize).min(self.len);
        if !file.in_job {
            return call.write_done();
        }
        if there > MOST || self.access & libc::PROT_READ == 0 {
            call.write_result(file.changed_ns);
            return;
        }
        // SAFETY: so many bytes of the file are mapped there, to be read.
        let bytes = unsafe { std::slice::from_raw_parts(made.cast::<u8>(), there) };
        call.write_content(there as i64, &mut |at, most| &bytes[at..at + most]);
    }

    /// Memory in the place of the mapping.
    fn empty(&self) -> *mut c_void {
        let flags = self.flags & libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        (self.next)(self.at, self.len, self.access | libc::PROT_WRITE, flags, -1, 0)
    }
}

/// Records what a file that is mapped to be written has from a place on to another one, but for the
/// zeros at the end of that. What is more than can be recorded is not protected.
fn write_own(call: Call, fd: c_int, from: u64, to: u64) {
    let size = kernel::file_at(fd).map_or(0, |file| file.size);
    let there = kernel::end_of_content(fd, from, size.min(to)).saturating_sub(from) as usize;
    let mapped = (there > 0).then(|| kernel::map(fd, from, there)).flatten();
    let bytes = mapped.unwrap_or(&[]);
    let len = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    if len > MOST || there > 0 && mapped.is_none() {
        call.write_done()
    } else {
        let head = size.to_le_bytes();
        call.write_content((SIZE + len) as i64, &mut |at, most| match at.checked_sub(SIZE) {
            Some(at) => &bytes[at..at + most],
            None => &head[at..],
        });
    }
    if let Some(bytes) = mapped {
        kernel::unmap(bytes);
    }
}

/// What [`write_own`] has recorded goes to the memory that stands in for the file, if there is any;
/// and what came of the call.
fn own_again(
    call: Call,
    from: u64,
    memory: &dyn Fn() -> Option<c_int>,
) -> Option<(Option<c_int>, i64)> {
    let mut there = None;
    let mut looked = false;
    let n = call.content_again(&mut |at, bytes| {
        if !std::mem::replace(&mut looked, true) {
            there = memory();
        }
        let Some(memory) = there else { return };
        match at.checked_sub(SIZE) {
            Some(at) => _ = kernel::write_at(memory, bytes, from + at as u64),
            None => {
                if let Some(size) = bytes.first_chunk() {
                    own_mapping::had_size(memory, u64::from_le_bytes(*size));
                }
            }
        }
    })?;
    Some((there, n))
}

/// Whether an open file is memory that has a name: MPI libraries map it, and make it anew.
fn is_in_memory(fd: c_int) -> bool {
    Path::of_link(kernel::link_of(fd, &mut [0; 32]))
        .is_some_and(|path| path.as_bytes().starts_with(b"/dev/shm/"))
}

fn address(at: *mut c_void) -> i64 {
    if at == libc::MAP_FAILED {
        outcome(-1)
    } else {
        at.expose_provenance() as i64
    }
}

/// Whether another rank uses a file that is mapped to be written: then what it writes there is to
/// be seen, by a rank that is executed again, too.
fn others_use(fd: c_int) -> bool {
    let own = random::name();
    kernel::mark(fd)
        .is_ok_and(|mark| mark.is_some_and(|it| it.job == random::job() && it.who != own))
}

/// What this rank notes at a file.
fn own_mark() -> Mark {
    Mark { job: random::job(), who: random::name() }
}

/// A file was opened to be changed: if another rank has it mapped to be written, that is as if this
/// one did, too.
pub(super) fn opened_to_change(fd: c_int) {
    let others =
        |it: &Mark| it.job == random::job() && ![random::name(), SEVERAL].contains(&it.who);
    let Ok(Some(mark)) = kernel::mark(fd) else { return };
    if others(&mark) && kernel::alone(fd) != Some(true) {
        kernel::set_mark(fd, Mark { who: SEVERAL, ..mark }, libc::XATTR_REPLACE);
    }
}

/// Whether several ranks use a file of which at least one maps it to write it.
pub(super) fn is_shared(path: &Path) -> bool {
    kernel::mark_of(path.as_c()).is_some_and(|it| it.job == random::job() && it.who == SEVERAL)
}

/// Notes at a file that this rank maps it to write it.
fn mark(fd: c_int) {
    let Some(file) = kernel::file_at(fd).filter(|file| !file.nameless) else { return };
    if memory::is_memory(file.number) || random::name() == 0 {
        return;
    }
    MARKS.store(true, Ordering::Relaxed);
    let own = own_mark();
    loop {
        let set = match kernel::mark(fd) {
            Ok(Some(found)) if found.job == own.job && [own.who, SEVERAL].contains(&found.who) => {
                return;
            }
            Ok(Some(found)) if found.job == own.job => {
                kernel::set_mark(fd, Mark { who: SEVERAL, ..own }, libc::XATTR_REPLACE)
            }
            Ok(Some(_)) => kernel::set_mark(fd, own, libc::XATTR_REPLACE),
            Ok(None) => kernel::set_mark(fd, own, libc::XATTR_CREATE),
            Err(_) => -i64::from(libc::ENOTSUP),
        };
        match set {
            0 => return,
            e if e == -i64::from(libc::EEXIST) || e == -i64::from(libc::ENODATA) => {}
            _ => return saying::not_marked(),
        }
    }
}

/// A path with a NUL; empty: none.
struct Name(UnsafeCell<[u8; 4096]>);

// SAFETY: used for an image only, which one thread takes.
unsafe impl Sync for Name {}

static REFUSED: Name = Name(UnsafeCell::new([0; 4096]));

/// The path of a file that this rank has mapped to write it, and that another one has mapped or
/// opened to write: then there can be no image. Null: there is none.
pub extern "C" fn eyrie_calls_shares() -> *const c_char {
    if !MARKS.load(Ordering::Relaxed) {
        return std::ptr::null();
    }
    // SAFETY: only the thread that takes an image uses the room, and one thread at a time takes
    // images.
    let room = unsafe { &mut *REFUSED.0.get() };
    let mut is_used =
        |path: &CStr| Path::of_absolute(path.to_bytes()).is_some_and(|path| is_shared(&path));
    if address_space::written_mapping(room, &mut is_used) {
        room.as_ptr().cast()
    } else {
        std::ptr::null()
    }
}

/// Something is unmapped that may be followed: it is known whether that was before what the rank
/// does anew.
fn unmaps(at: *mut c_void, len: usize, make: &dyn Fn() -> c_int) -> Option<c_int> {
    let value = recorded(&mut || {
        own_mapping::forget_others(at as usize, len);
        if !own_mapping::touches(at as usize, len) {
            return outcome(make());
        }
        let call = Call::on_open(UNMAP);
        let new = !call.done_again() && is_new_change();
        if new {
            standing_in::before_new();
        }
        let value = outcome(make());
        if value == 0 {
            own_mapping::unfollow(at as usize, len);
        }
        if new {
            call.write_done();
        }
        value
    });
    value.map(|value| value as c_int)
}

/// A mapping gets longer or shorter, or lies somewhere else.
struct Moving<'a> {
    at: *mut c_void,
    old: usize,
    new: usize,
    make: &'a dyn Fn() -> *mut c_void,
}

impl Moving<'_> {
    fn run(&self) -> Option<*mut c_void> {
        let mut made = libc::MAP_FAILED;
        recorded(&mut || {
            made = if own_mapping::touches(self.at as usize, self.old) {
                self.follow()
            } else {
                (self.make)()
            };
            address(made)
        })?;
        Some(made)
    }

    fn follow(&self) -> *mut c_void {
        let (old, new) = (self.old.next_multiple_of(4096), self.new.next_multiple_of(4096));
        let part = own_mapping::part_at(self.at as usize).filter(|part| part.len == old);
        let from = part.map_or(0, |part| part.from + old as u64);
        let to = part.map_or(0, |part| part.from + new as u64);
        let call = Call::on_open(REMAP);
        let memory = || part.and_then(|part| own_mapping::standing_in_for(part.number, to));
        let again = own_again(call, from, &memory);
        let known = again.is_some() || call.done_again();
        if known && own_mapping::any() && again.is_none_or(|(memory, _)| memory.is_none()) {
            saying::mapped_before(own_mapping::a_path().map_or(b"a file", |path| path.as_bytes()));
        }
        let first = !known && is_new_change();
        if first {
            standing_in::before_new();
        }
        let made = (self.make)();
        let moved = part.filter(|_| made != libc::MAP_FAILED);
        let moved = moved.map(|part| Part { start: made as usize, len: new, ..part });
        if made != libc::MAP_FAILED {
            own_mapping::unfollow(self.at as usize, self.old);
            if let Some(moved) = moved {
                own_mapping::follow(moved);
            }
        }
        if first {
            match moved.and_then(|part| part.reach()) {
                Some(there) => write_own(call, there.fd, from, to),
                None => call.write_done(),
            }
            // What is stored there next is in the file at once.
            // SAFETY: this call is being recorded, of which there is one at a time.
            unsafe { store() };
        }
        made
    }
}

/// Functions like mmap(2): ours, the one behind it, its name.
macro_rules! mapping {
    ($($our:ident, $next:ident, $symbol:literal;)*) => {
        $(
            /// # Safety
            /// As mmap(2).
            #[export_name = $symbol]
            pub unsafe extern "C-unwind" fn $our(
                at: *mut c_void,
                len: size_t,
                access: c_int,
                flags: c_int,
                fd: c_int,
                from: off_t,
            ) -> *mut c_void {
                // SAFETY: the program keeps the contract of the C function, which gets its
                // arguments unchanged.
                let next = |at, len, access, flags, fd, from| unsafe {
                    $next.get()(at, len, access, flags, fd, from)
                };
                Mapping { at, len, access, flags, fd, from, next: &next }.run()
            }
        )*
    };
}
mapping! {
    our_mmap, mmap, "mmap";
    our_mmap64, mmap64, "mmap64";
}

/// # Safety
/// As munmap(2).
#[export_name = "munmap"]
pub unsafe extern "C-unwind" fn our_munmap(at: *mut c_void, len: size_t) -> c_int {
    // SAFETY: the program keeps the contract of the C function, which gets its arguments unchanged.
    let next = || unsafe { munmap.get()(at, len) };
    if own_mapping::may_touch(at as usize, len) {
        unmaps(at, len, &next).unwrap_or_else(|| {
            others::unmapped();
            next()
        })
    } else {
        next()
    }
}

/// A rank that has come back from an image has its files mapped by descriptors that only read,
/// where they were mapped to be read only.
///
/// # Safety
/// As mprotect(2).
#[export_name = "mprotect"]
pub unsafe extern "C-unwind" fn our_mprotect(at: *mut c_void, len: size_t, access: c_int) -> c_int {
    // SAFETY: the program keeps the contract of the C function, which gets its arguments unchanged.
    let next = || unsafe { mprotect.get()(at, len, access) };
    let made = next();
    let is_refused = made < 0 && kernel::errno() == libc::EACCES;
    if !is_refused || access & libc::PROT_WRITE == 0 || !own_mapping::may_touch(at as usize, len) {
        return made;
    }
    let again = recorded(&mut || {
        own_mapping::let_write(at as usize, len);
        outcome(next())
    });
    again.map_or(made, |value| value as c_int)
}

/// # Safety
/// As mremap(2), of which the last argument may be missing.
#[export_name = "mremap"]
pub unsafe extern "C-unwind" fn our_mremap(
    at: *mut c_void,
    old: size_t,
    new: size_t,
    flags: c_int,
    to: *mut c_void,
) -> *mut c_void {
    // SAFETY: the program keeps the contract of the C function, which gets its arguments unchanged.
    let next = || unsafe { mremap.get()(at, old, new, flags, to) };
    if own_mapping::may_touch(at as usize, old) {
        Moving { at, old, new, make: &next }.run().unwrap_or_else(next)
    } else {
        next()
    }
}
