//! Values that are read from and written as their bytes. Must never be implemented for a type with
//! padding, whose bytes are not all initialised.

use core::mem::size_of;

/// Plain data that may be read from and written as its bytes.
///
/// # Safety
/// Only for `#[repr(C)]` types without padding in which every bit pattern is a value.
pub unsafe trait Plain: Copy {}

/// The bytes of a plain value.
pub fn bytes_of<T: Plain>(value: &T) -> &[u8] {
    // SAFETY: plain types have no padding, so all their bytes are initialised.
    unsafe { core::slice::from_raw_parts((value as *const T).cast(), size_of::<T>()) }
}

/// The bytes of plain values.
pub fn bytes_of_all<T: Plain>(values: &[T]) -> &[u8] {
    // SAFETY: as in `bytes_of`; nothing lies between the values of a slice.
    unsafe { core::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

/// Reads a plain value from the front of `bytes`; `None` when they are too few.
pub fn take<T: Plain>(bytes: &[u8]) -> Option<(T, &[u8])> {
    if bytes.len() < size_of::<T>() {
        return None;
    }
    // SAFETY: the length was checked above, `Plain` guarantees that any bit pattern is a value, and
    // the read may be unaligned.
    let value = unsafe { bytes.as_ptr().cast::<T>().read_unaligned() };
    Some((value, &bytes[size_of::<T>()..]))
}
