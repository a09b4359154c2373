//! mmap(2) of files. What is mapped to be read is content like any other: of a file that has
//! changed since the job began it is written down, and a rank that is executed again has a copy. A
//! file that several ranks map to be written is memory that messages do not protect: it is marked,
//! so that images of such ranks are refused. What one rank alone has stored by a mapping is in the
//! file already when it is executed again: that is said.

use super::calling::{of_file, outcome, written_down};
use super::freshness;
use super::kernel::{self, File, Mark};
use super::memory;
use super::path::Path;
use super::pending;
use super::records::{is_new_change, Call};
use super::saying;
use super::standing_in::{self, table};
use crate::next::next;
use crate::observed::stream;
use crate::process::changed_in_job;
use crate::random;
use libc::{c_char, c_int, c_void, off_t, size_t};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, Ordering};

next! {
    mmap: fn(*mut c_void, size_t, c_int, c_int, c_int, off_t) -> *mut c_void;
    mmap64: fn(*mut c_void, size_t, c_int, c_int, c_int, off_t) -> *mut c_void;
}

/// Number of the functions, in what is written down.
const MAP: u8 = 103;
/// Most bytes of a mapping that are written down.
const MOST: usize = 64 << 20;
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
        if self.flags & libc::MAP_ANONYMOUS != 0 || self.fd < 0 {
            return self.make();
        }
        let is_shared = self.flags & libc::MAP_SHARED != 0;
        if is_shared && (self.access & libc::PROT_WRITE != 0 || others_map(self.fd)) {
            self.share();
            return self.make();
        }
        let value = of_file(self.fd, &mut |file| self.look(file));
        match value {
            Some(value) if value < 0 => libc::MAP_FAILED,
            Some(value) => std::ptr::with_exposed_provenance_mut(value as usize),
            None => self.make(),
        }
    }

    /// What others are to see of a file that has a stand-in they would not see, so it takes its
    /// place; and who maps it to write it is noted at the file.
    fn share(&self) {
        written_down(&mut || {
            if pending::any() {
                // SAFETY: in a call that is being written down.
                unsafe { table() }.give_back(self.fd);
            }
            if self.access & libc::PROT_WRITE != 0 {
                mark(self.fd);
                self.say_what_is_lost();
            }
            0
        });
    }

    /// A rank that is executed again maps a file that it alone had mapped to write it: what it has
    /// stored there since is there already.
    fn say_what_is_lost(&self) {
        // SAFETY: in a call that is being written down.
        let is_again = !unsafe { stream() }.knows_no_call();
        let own = Some(Mark { job: random::job(), who: random::name() });
        if is_again && kernel::mark(self.fd).is_ok_and(|mark| mark == own) {
            let path = Path::of_link(kernel::link_of(self.fd, &mut [0; 32]));
            saying::mapped_before(path.as_ref().map_or(b"a file", |path| path.as_bytes()));
        }
    }

    /// Maps a file to read it, or to have a copy.
    fn look(&self, file: &File) -> i64 {
        let call = Call::on_open(MAP);
        if call.done_again() {
            return address(self.make());
        }
        let mut copy = std::ptr::null_mut::<c_void>();
        let told = call.content_again(&mut |at, bytes| {
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
        if let Some(n) = told {
            if n >= 0 && self.access & libc::PROT_WRITE == 0 {
                // SAFETY: the mapping is ours.
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

    fn write(&self, call: Call, file: &File, made: *mut c_void) {
        if made == libc::MAP_FAILED {
            return call.write_content(address(made), &mut |_, _| &[]);
        }
        let there = (file.size as usize).saturating_sub(self.from as usize).min(self.len);
        let changed = changed_in_job(file.changed_s);
        if !changed || there > MOST || self.access & libc::PROT_READ == 0 {
            return call.write_done();
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

fn address(at: *mut c_void) -> i64 {
    match at == libc::MAP_FAILED {
        true => outcome(-1),
        false => at.expose_provenance() as i64,
    }
}

/// Whether another rank maps a file to write it: then what it writes there is to be seen, by a rank
/// that is executed again, too.
fn others_map(fd: c_int) -> bool {
    let own = random::name();
    kernel::mark(fd)
        .is_ok_and(|mark| mark.is_some_and(|it| it.job == random::job() && it.who != own))
}

/// Notes at a file that this rank maps it to write it.
fn mark(fd: c_int) {
    let Some(file) = kernel::file_at(fd).filter(|file| !file.nameless) else { return };
    if memory::is_memory(file.number) || random::name() == 0 {
        return;
    }
    MARKS.store(true, Ordering::Relaxed);
    let own = Mark { job: random::job(), who: random::name() };
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

/// The path of a file that this rank and another one have mapped to write it: then there can be no
/// image. Null: there is none.
#[no_mangle]
pub extern "C" fn eyrie_calls_shares() -> *const c_char {
    if !MARKS.load(Ordering::Relaxed) {
        return std::ptr::null();
    }
    // SAFETY: one thread takes images.
    let room = unsafe { &mut *REFUSED.0.get() };
    let is_shared = |path: &std::ffi::CStr| {
        kernel::mark_of(path).is_some_and(|it| it.job == random::job() && it.who == SEVERAL)
    };
    match kernel::written_mapping(room, &is_shared) {
        true => room.as_ptr().cast(),
        false => std::ptr::null(),
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
                // SAFETY: handed on to the caller.
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
