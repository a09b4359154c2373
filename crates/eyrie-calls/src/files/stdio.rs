//! Streams of the C library (fopen(3)) read, write and look at their files through a table of
//! functions, and not by the names in front of which ours stand. Ours are put into that table as
//! well.

use super::buffers::{one, Buffers};
use super::looking::looks_at_stream;
use super::pipes::{reads_pipe, writes_pipe};
use super::reading::{reads, seeks};
use super::saying;
use super::writing::writes;
use libc::{c_int, c_void, off_t, ssize_t, FILE};
use std::ffi::CStr;
use std::sync::atomic::{AtomicPtr, Ordering};

type Read = unsafe extern "C-unwind" fn(*mut FILE, *mut c_void, ssize_t) -> ssize_t;
type Write = unsafe extern "C-unwind" fn(*mut FILE, *const c_void, ssize_t) -> ssize_t;
type Seek = unsafe extern "C-unwind" fn(*mut FILE, off_t, c_int) -> off_t;
type Stat = unsafe extern "C-unwind" fn(*mut FILE, *mut c_void) -> c_int;

/// Places in a table of the GNU C library (struct _IO_jump_t in libio/libioP.h), and the functions
/// that stand there, which it exports.
const SLOTS: [(usize, &CStr); 4] = [
    (14, c"_IO_file_read"),
    (15, c"_IO_file_write"),
    (16, c"_IO_file_seek"),
    (18, c"_IO_file_stat"),
];
/// Tables of streams that are files: of bytes, and of wide characters.
const TABLES: [&CStr; 2] = [c"_IO_file_jumps", c"_IO_wfile_jumps"];

/// Its own functions, by the order of [`SLOTS`].
static THEIRS: [AtomicPtr<c_void>; 4] = [const { AtomicPtr::new(std::ptr::null_mut()) }; 4];

/// Puts ours into the tables. In another C library, or one that has others, that is said.
pub fn begin() {
    if !THEIRS[0].load(Ordering::Relaxed).is_null() {
        return;
    }
    // SAFETY: the name is a C string, and dlsym(3) only looks.
    let find = |name: &CStr| unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    let theirs = SLOTS.map(|(_, name)| find(name));
    if theirs.iter().any(|it| it.is_null()) {
        return saying::no_streams();
    }
    THEIRS.iter().zip(theirs).for_each(|(place, it)| place.store(it, Ordering::Relaxed));
    for table in TABLES {
        if !put(find(table).cast()) {
            saying::no_streams();
        }
    }
}

/// Streams of popen(3) have a table of their own, which has no name.
///
/// # Safety
/// `file` must be null or a stream.
pub unsafe fn begin_with(file: *mut FILE) {
    /// Where the table of a stream is (struct _IO_FILE_plus): behind struct _IO_FILE.
    const TABLE: usize = 216;
    if !file.is_null() && !THEIRS[0].load(Ordering::Relaxed).is_null() {
        // SAFETY: the caller passes a stream of the GNU C library, which has its table of functions
        // there.
        let table = unsafe { *file.byte_add(TABLE).cast::<*mut *mut c_void>() };
        if !put(table) {
            saying::no_streams();
        }
    }
}

/// Puts ours into a table, which the dynamic linker has protected. False: it has others than the C
/// library's.
fn put(table: *mut *mut c_void) -> bool {
    let ours = [
        our_stream_read as *const () as *mut c_void,
        our_stream_write as *const () as *mut c_void,
        our_stream_seek as *const () as *mut c_void,
        our_stream_stat as *const () as *mut c_void,
    ];
    if table.is_null() {
        return false;
    }
    // SAFETY: a table of the C library, which has more slots than these.
    let has = SLOTS.map(|(slot, _)| unsafe { *table.add(slot) });
    if has == ours {
        return true;
    }
    if !has.iter().zip(&THEIRS).all(|(it, their)| *it == their.load(Ordering::Relaxed)) {
        return false;
    }
    const PAGE: usize = 4096;
    let first = table.addr() & !(PAGE - 1);
    let len = (table.addr() + 21 * size_of::<usize>()).next_multiple_of(PAGE) - first;
    let was_protected = is_protected(table.addr());
    // SAFETY: pages of the C library's data; what is put there has the type of what was.
    unsafe {
        let pages = table.with_addr(first).cast();
        if was_protected && libc::mprotect(pages, len, libc::PROT_READ | libc::PROT_WRITE) != 0 {
            return false;
        }
        for ((slot, _), it) in SLOTS.iter().zip(ours) {
            table.add(*slot).write(it);
        }
        if was_protected {
            libc::mprotect(pages, len, libc::PROT_READ);
        }
    }
    true
}

/// Whether the dynamic linker has protected what is at this address (PT_GNU_RELRO).
fn is_protected(at: usize) -> bool {
    unsafe extern "C" fn look(
        info: *mut libc::dl_phdr_info,
        _: libc::size_t,
        asked: *mut c_void,
    ) -> c_int {
        // SAFETY: what dl_iterate_phdr(3) gives, and the variable of the caller.
        unsafe {
            let asked = &mut *asked.cast::<(usize, bool)>();
            let headers =
                std::slice::from_raw_parts((*info).dlpi_phdr, usize::from((*info).dlpi_phnum));
            let covers = |header: &libc::Elf64_Phdr| {
                let from = (*info).dlpi_addr + header.p_vaddr;
                header.p_type == libc::PT_GNU_RELRO
                    && (from..from + header.p_memsz).contains(&(asked.0 as u64))
            };
            asked.1 |= headers.iter().any(covers);
        }
        0
    }
    let mut asked = (at, false);
    // SAFETY: the function only looks, at what it is given.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut asked).cast()) };
    asked.1
}

/// Their function for a slot.
///
/// # Safety
/// `F` must be the type of that slot's function.
unsafe fn their<F: Copy>(slot: usize) -> F {
    let found = THEIRS[slot].load(Ordering::Relaxed);
    // SAFETY: handed on to the caller; a function pointer is as long as any.
    unsafe { std::mem::transmute_copy(&found) }
}

unsafe extern "C-unwind" fn our_stream_read(
    file: *mut FILE,
    to: *mut c_void,
    len: ssize_t,
) -> ssize_t {
    // SAFETY: the C library calls it as it calls its own.
    unsafe {
        let next = || their::<Read>(0)(file, to, len);
        let buffers = one(to, len as usize);
        let fd = libc::fileno(file);
        let buffers = Buffers::new(&buffers);
        let pipe = || reads_pipe(fd, buffers, &next);
        reads(fd, buffers, None, &next).or_else(pipe).unwrap_or_else(next)
    }
}

unsafe extern "C-unwind" fn our_stream_write(
    file: *mut FILE,
    from: *const c_void,
    len: ssize_t,
) -> ssize_t {
    // SAFETY: the C library passes a stream that is open, with the arguments that such a function
    // has.
    unsafe {
        let next = || their::<Write>(1)(file, from, len);
        let buffers = one(from, len as usize);
        let fd = libc::fileno(file);
        let buffers = Buffers::new(&buffers);
        let pipe = || writes_pipe(fd, &next);
        writes(fd, buffers, None, &next).or_else(pipe).unwrap_or_else(next)
    }
}

unsafe extern "C-unwind" fn our_stream_seek(file: *mut FILE, to: off_t, how: c_int) -> off_t {
    // SAFETY: the C library passes a stream that is open, with the arguments that such a function
    // has.
    unsafe {
        let next = || their::<Seek>(2)(file, to, how);
        seeks(libc::fileno(file), how, &next).unwrap_or_else(next)
    }
}

unsafe extern "C-unwind" fn our_stream_stat(file: *mut FILE, to: *mut c_void) -> c_int {
    // SAFETY: the C library passes a stream that is open, with the arguments that such a function
    // has.
    unsafe { looks_at_stream(libc::fileno(file), to, &|| their::<Stat>(3)(file, to)) }
}
