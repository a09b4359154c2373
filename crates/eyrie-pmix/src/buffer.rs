//! Values in a buffer that one rank of Open MPI packs and another one unpacks, to make
//! communicators of two groups. Both come through this library, so the form is ours; a buffer that
//! is too short must be refused.

use crate::abi::*;
use libc::{c_char, c_void, size_t};
use std::ffi::CStr;

/// Nothing more is in a buffer, or not enough.
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

/// How long a value of this type is; `None`: it is none that we carry.
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

/// Appends bytes. False without memory.
///
/// # Safety
/// A buffer that was constructed.
unsafe fn append(buffer: &mut pmix_data_buffer, bytes: &[u8]) -> bool {
    // SAFETY: as above; the pointers are moved with the memory.
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

/// Takes the next bytes.
///
/// # Safety
/// As [`append`]; the result lives as long as the buffer stays as it is.
unsafe fn next<'a>(buffer: &mut pmix_data_buffer, len: usize) -> Option<&'a [u8]> {
    // SAFETY: as above; what is taken is within what was packed.
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
/// A constructed buffer, and as many values of that type.
pub unsafe fn pack(
    buffer: &mut pmix_data_buffer,
    from: *const c_void,
    count: usize,
    kind: u16,
) -> i32 {
    for i in 0..count {
        // SAFETY: as above.
        let fits = unsafe {
            match (kind, len_of(kind)) {
                (STRING, _) => {
                    let text = *from.cast::<*const c_char>().add(i);
                    let text = if text.is_null() { c"" } else { CStr::from_ptr(text) };
                    let bytes = text.to_bytes();
                    append(buffer, &(bytes.len() as u64).to_le_bytes()) && append(buffer, bytes)
                }
                (PROC, Some(len)) => {
                    // Nothing behind the end of the name: it may be others in another incarnation.
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

/// Unpacks up to `count` values; those that are there are counted in it.
///
/// # Safety
/// A constructed buffer, and room for as many values of that type.
pub unsafe fn unpack(
    buffer: &mut pmix_data_buffer,
    to: *mut c_void,
    count: &mut i32,
    kind: u16,
) -> i32 {
    let wanted = usize::try_from(*count).unwrap_or(0);
    *count = 0;
    for i in 0..wanted {
        // SAFETY: as above.
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
    fn what_is_packed_comes_out_again_and_no_more() {
        let none = std::ptr::null_mut();
        let mut buffer =
            pmix_data_buffer { base: none, pack: none, unpack: none, allocated: 0, used: 0 };
        let numbers: Vec<u32> = (0..200).collect();
        let text = c"a name".as_ptr();
        let mut nspace = [7; NSPACE_ROOM];
        (nspace[0], nspace[1]) = (b'n' as c_char, 0);
        let proc = pmix_proc { nspace, rank: 3 };
        // SAFETY: values and room of the types that are named.
        unsafe {
            assert_eq!(pack(&mut buffer, (&raw const text).cast(), 1, STRING), SUCCESS);
            assert_eq!(pack(&mut buffer, numbers.as_ptr().cast(), 200, UINT32), SUCCESS);
            assert_eq!(pack(&mut buffer, (&raw const proc).cast(), 1, PROC), SUCCESS);
            assert_eq!(pack(&mut buffer, (&raw const proc).cast(), 1, 39), ERR_NOT_SUPPORTED);
            let (mut got, mut count) = (std::ptr::null_mut::<c_char>(), 1);
            assert_eq!(unpack(&mut buffer, (&raw mut got).cast(), &mut count, STRING), SUCCESS);
            assert_eq!((CStr::from_ptr(got), count), (c"a name", 1));
            libc::free(got.cast());
            let (mut got, mut count) = ([0u32; 200], 200);
            assert_eq!(unpack(&mut buffer, got.as_mut_ptr().cast(), &mut count, UINT32), SUCCESS);
            assert!(got[..] == numbers[..] && count == 200);
            let (mut got, mut count) = (pmix_proc { nspace: [1; NSPACE_ROOM], rank: 0 }, 1);
            assert_eq!(unpack(&mut buffer, (&raw mut got).cast(), &mut count, PROC), SUCCESS);
            assert_eq!((got.rank, got.nspace[0], got.nspace[5]), (3, b'n' as c_char, 0));
            let (mut got, mut count) = (0u8, 1);
            assert_eq!(unpack(&mut buffer, (&raw mut got).cast(), &mut count, 1), ERR_UNPACK);
            assert_eq!(count, 0);
            libc::free(buffer.base.cast());
        }
    }
}
