//! Which program and libraries the rank runs. This is recorded at its start. A rank that starts
//! again from its beginning on the same host must run the same ones. Otherwise it says which was
//! replaced, and ends. Programs and libraries are compared by the notes of their files (among them
//! the build ID), as they are in memory. It must not read a file.

use crate::files::{kernel, saying};
use crate::observed::ObservedStream;
use crate::own_stack;
use libc::{c_int, c_void, dl_phdr_info};
use std::ffi::CStr;

/// At most so many are compared.
const MOST: usize = 256;
/// At most so many bytes of a note are compared.
const MOST_NOTE: usize = 4096;

struct Loaded {
    /// A hash of the notes of each one's file.
    said: [i64; MOST],
    names: [*const libc::c_char; MOST],
    count: usize,
}

/// The initial value of a hash (FNV-1a).
const FIRST: u64 = 0xcbf2_9ce4_8422_2325;

fn folded(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// A hash of what a file says of itself: the sizes and kinds of its segments, and its notes.
///
/// # Safety
/// As dl_iterate_phdr(3) gives it.
unsafe fn said(info: &dl_phdr_info) -> i64 {
    // SAFETY: the caller has the structure from dl_iterate_phdr(3), which gives a list of that
    // length.
    let segments = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
    let mut hash = FIRST;
    for segment in segments {
        let numbers = [segment.p_vaddr, segment.p_filesz, segment.p_memsz];
        hash = numbers.iter().fold(hash, |hash, n| folded(hash, &n.to_le_bytes()));
        hash = folded(hash, &segment.p_type.to_le_bytes());
        if segment.p_type == libc::PT_NOTE {
            let at = (info.dlpi_addr + segment.p_vaddr) as *const u8;
            // SAFETY: notes are in memory, in a segment that is loaded.
            let note =
                unsafe { std::slice::from_raw_parts(at, MOST_NOTE.min(segment.p_memsz as usize)) };
            hash = folded(hash, note);
        }
    }
    hash as i64
}

unsafe extern "C" fn take(info: *mut dl_phdr_info, _: usize, to: *mut c_void) -> c_int {
    // SAFETY: dl_iterate_phdr(3) gives the structure; `to` is the variable of `loaded`.
    let (loaded, info) = unsafe { (&mut *to.cast::<Loaded>(), &*info) };
    // SAFETY: the name is null or a C string, which stays while the file is loaded.
    let name = (!info.dlpi_name.is_null()).then(|| unsafe { CStr::from_ptr(info.dlpi_name) });
    // The kernel's vDSO, which each host has.
    let is_file = name.is_none_or(|name| name.is_empty() || name.to_bytes().contains(&b'/'));
    if is_file && loaded.count < MOST {
        // SAFETY: the structure is as dl_iterate_phdr(3) has given it.
        loaded.said[loaded.count] = unsafe { said(info) };
        loaded.names[loaded.count] = info.dlpi_name;
        loaded.count += 1;
    }
    0
}

fn loaded() -> Loaded {
    let mut all = Loaded { said: [0; MOST], names: [std::ptr::null(); MOST], count: 0 };
    // SAFETY: the callback gets what it casts.
    unsafe { libc::dl_iterate_phdr(Some(take), (&raw mut all).cast()) };
    all
}

/// Identifies this host.
fn host() -> i64 {
    // SAFETY: all zero is a valid structure.
    let mut name: libc::utsname = unsafe { std::mem::zeroed() };
    // Of the kernel: the function of the C library tells what was told before.
    // SAFETY: the structure lives through the call.
    unsafe { own_stack::system_call(libc::SYS_uname, [(&raw mut name).expose_provenance(), 0, 0]) };
    let bytes = name.nodename.iter().take_while(|byte| **byte != 0);
    bytes.fold(FIRST, |hash, byte| folded(hash, &byte.to_le_bytes())) as i64
}

/// The path of the program.
fn program(room: &mut [u8; 4096]) -> &[u8] {
    let path = c"/proc/self/exe".as_ptr();
    let to = room.as_mut_ptr().cast();
    // SAFETY: a C string, and room for so many bytes.
    let n = unsafe { libc::readlink(path, to, room.len()) };
    &room[..usize::try_from(n).unwrap_or(0)]
}

/// Identifies the rank's program and arguments.
pub(crate) fn words() -> i64 {
    let mut room = [0; 4096];
    let hash = folded(FIRST, program(&mut room));
    let fd = kernel::open(kernel::HERE, c"/proc/self/cmdline", libc::O_RDONLY | libc::O_CLOEXEC, 0);
    let n = kernel::read_at(fd as c_int, &mut room, 0);
    kernel::close(fd as c_int);
    folded(hash, &room[..n]) as i64
}

/// Records what is loaded, or compares it with what was loaded when the rank began.
pub fn begin(stream: &mut ObservedStream) {
    let now = loaded();
    let mut first = |value: i64| {
        let replayed = stream.result_again();
        replayed.unwrap_or_else(|| {
            stream.write_result(value);
            value
        })
    };
    // A shell, or a script that starts the program, is told what that has observed.
    let [is_host, is_program] = [host(), words()].map(|n| first(n) == n);
    let is_it = is_host && is_program;
    saying::know_program(is_program);
    let count = first(now.count as i64) as usize;
    let mut other = None;
    for n in 0..count.min(MOST) {
        if first(now.said[n]) != now.said[n] {
            other = other.or(Some(n));
        }
    }
    match other {
        Some(n) if is_it => is_another(now.names[n]),
        None if is_it && count != now.count => is_another(std::ptr::null()),
        _ => {}
    }
}

/// Says which one was replaced, and ends the rank.
fn is_another(name: *const libc::c_char) -> ! {
    let mut room = [0u8; 4096];
    // SAFETY: a C string of the dynamic linker's, or none.
    let name = (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) }.to_bytes());
    let name = name.filter(|name| !name.is_empty()).unwrap_or_else(|| program(&mut room));
    saying::program_changed(name)
}
