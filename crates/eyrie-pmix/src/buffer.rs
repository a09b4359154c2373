//! Values in a buffer that one rank of Open MPI packs and another one unpacks, to make
//! communicators of two groups. Both ranks use this library, so the form is its own. A buffer that
//! is too short must be refused.

use crate::abi::*;
use libc::{c_char, c_void, size_t};
use std::ffi::CStr;

/// A buffer has no more values, or not enough bytes.
const ERR_UNPACK: i32 = -20;

/// `pmix_data_buffer_t`.
#[allow(non_camel_case_types)]
#[repr(C)]
pub struct pmix_data_buffer {
    base: *mut u8,
    pack: *mut u8,
    unpack: *mut u8,
    allocated: size_t,
    used: size_t,
}

/// Length of a value of this type; `None` if this library does not support it.
fn len_of(kind: u16) -> Option<usize> {
    Some(match kind {
        1 | 2 | 7 | 12 => 1,
        8 | UINT16 => 2,
        5 | 6 | 9 | 11 | UINT32 | 16 | 20 | RANK => 4,
        4 | 10 | 15 | LAST_NUMBER => 8,
        PROC => size_of::<pmix_proc>(),
        _ => return None,
    })
}

/// Appends bytes. Returns false when there is no memory.
///
/// # Safety
/// The buffer must be constructed.
unsafe fn append(buffer: &mut pmix_data_buffer, bytes: &[u8]) -> bool {
    // SAFETY: the caller guarantees a constructed buffer: its pointers are null or within its
    // memory. They are updated when the memory moves.
    unsafe {
        let needed = buffer.used + bytes.len();
        if needed > buffer.allocated {
            let room = needed.next_power_of_two().max(256);
            let read = buffer.unpack as usize - buffer.base as usize;
            let moved = libc::realloc(buffer.base.cast(), room).cast::<u8>();
            if moved.is_null() {
                return false;
            }
            buffer.base = moved;
            buffer.unpack = moved.add(read);
            buffer.allocated = room;
        }
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), buffer.base.add(buffer.used), bytes.len());
        buffer.used = needed;
        buffer.pack = buffer.base.add(needed);
    }
    true
}

/// Reads the next bytes.
///
/// # Safety
/// As for [`append`]. The result is valid while the buffer is not changed.
unsafe fn next<'a>(buffer: &mut pmix_data_buffer, len: usize) -> Option<&'a [u8]> {
    // SAFETY: the caller guarantees a constructed buffer, and the bytes read are within those
    // packed.
    unsafe {
        if buffer.base.is_null() {
            return None;
        }
        let done = buffer.unpack as usize - buffer.base as usize;
        if buffer.used.checked_sub(done)? < len {
            return None;
        }
        let bytes = std::slice::from_raw_parts(buffer.unpack, len);
        buffer.unpack = buffer.unpack.add(len);
        Some(bytes)
    }
}

/// Packs `count` values.
///
/// # Safety
/// The buffer must be constructed, and there must be `count` values of that type.
pub unsafe fn pack(
    buffer: &mut pmix_data_buffer,
    from: *const c_void,
    count: usize,
    kind: u16,
) -> i32 {
    for i in 0..count {
        // SAFETY: the caller guarantees a constructed buffer and `count` values of that type.
        let fits = unsafe {
            match (kind, len_of(kind)) {
                (STRING, _) => {
                    let text = *from.cast::<*const c_char>().add(i);
                    let text = if text.is_null() { c"" } else { CStr::from_ptr(text) };
                    let bytes = text.to_bytes();
                    append(buffer, &(bytes.len() as u64).to_le_bytes()) && append(buffer, bytes)
                }
                (PROC, Some(len)) => {
                    // Only up to the end of the name: bytes after it may differ in another
                    // incarnation.
                    let proc = &*from.cast::<pmix_proc>().add(i);
                    let mut bytes = vec![0; len];
                    let name = CStr::from_ptr(proc.nspace.as_ptr()).to_bytes();
                    bytes[..name.len()].copy_from_slice(name);
                    bytes[NSPACE_ROOM..].copy_from_slice(&proc.rank.to_le_bytes());
                    append(buffer, &bytes)
                }
                (_, Some(len)) => {
                    let bytes = std::slice::from_raw_parts(from.cast::<u8>().add(i * len), len);
                    append(buffer, bytes)
                }
                (_, None) => return ERR_NOT_SUPPORTED,
            }
        };
        if !fits {
            return ERR_NOMEM;
        }
    }
    SUCCESS
}

/// Unpacks up to `count` values, and sets `count` to the number unpacked.
///
/// # Safety
/// The buffer must be constructed, and there must be room for `count` values of that type.
pub unsafe fn unpack(
    buffer: &mut pmix_data_buffer,
    to: *mut c_void,
    count: &mut i32,
    kind: u16,
) -> i32 {
    let wanted = usize::try_from(*count).unwrap_or(0);
    *count = 0;
    for i in 0..wanted {
        // SAFETY: the caller guarantees a constructed buffer and room for `count` values of that
        // type.
        unsafe {
            match (kind, len_of(kind)) {
                (STRING, _) => {
                    let Some(len) = next(buffer, 8) else { return ERR_UNPACK };
                    let len = u64::from_le_bytes(len.try_into().unwrap_or_default()) as usize;
                    let Some(bytes) = next(buffer, len) else { return ERR_UNPACK };
                    let text: *mut u8 = libc::calloc(1, len + 1).cast();
                    if text.is_null() {
                        return ERR_NOMEM;
                    }
                    std::ptr::copy_nonoverlapping(bytes.as_ptr(), text, len);
                    *to.cast::<*mut u8>().add(i) = text;
                }
                (_, Some(len)) => {
                    let Some(bytes) = next(buffer, len) else { return ERR_UNPACK };
                    let to = to.cast::<u8>().add(i * len);
                    std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, len);
                }
                (_, None) => return ERR_NOT_SUPPORTED,
            }
        }
        *count += 1;
    }
    SUCCESS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unpacking_returns_exactly_what_was_packed() {
        let none = std::ptr::null_mut();
        let mut buffer =
            pmix_data_buffer { base: none, pack: none, unpack: none, allocated: 0, used: 0 };
        let numbers: Vec<u32> = (0..200).collect();
        let text = c"a name".as_ptr();
        let mut nspace = [7; NSPACE_ROOM];
        (nspace[0], nspace[1]) = (b'n' as c_char, 0);
        let proc = pmix_proc { nspace, rank: 3 };
        // SAFETY: the buffer is constructed, and values and room have the types that are passed.
        unsafe {
            assert_eq!(pack(&mut buffer, (&raw const text).cast(), 1, STRING), SUCCESS);
            assert_eq!(pack(&mut buffer, numbers.as_ptr().cast(), 200, UINT32), SUCCESS);
            assert_eq!(pack(&mut buffer, (&raw const proc).cast(), 1, PROC), SUCCESS);
            assert_eq!(pack(&mut buffer, (&raw const proc).cast(), 1, 39), ERR_NOT_SUPPORTED);
            let mut got = std::ptr::null_mut::<c_char>();
            let mut count = 1;
            assert_eq!(unpack(&mut buffer, (&raw mut got).cast(), &mut count, STRING), SUCCESS);
            assert_eq!((CStr::from_ptr(got), count), (c"a name", 1));
            libc::free(got.cast());
            let mut got = [0u32; 200];
            let mut count = 200;
            assert_eq!(unpack(&mut buffer, got.as_mut_ptr().cast(), &mut count, UINT32), SUCCESS);
            assert!(got[..] == numbers[..] && count == 200);
            let mut got = pmix_proc { nspace: [1; NSPACE_ROOM], rank: 0 };
            let mut count = 1;
            assert_eq!(unpack(&mut buffer, (&raw mut got).cast(), &mut count, PROC), SUCCESS);
            assert_eq!((got.rank, got.nspace[0], got.nspace[5]), (3, b'n' as c_char, 0));
            let mut got = 0u8;
            let mut count = 1;
            assert_eq!(unpack(&mut buffer, (&raw mut got).cast(), &mut count, 1), ERR_UNPACK);
            assert_eq!(count, 0);
            libc::free(buffer.base.cast());
        }
    }
}
