//! What the compiler expects from a C library. Nothing else may call these by name.

use core::arch::asm;

/// # Safety
/// As memcpy(3).
#[no_mangle]
unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, len: usize) -> *mut u8 {
    // SAFETY: the caller gives two valid ranges; the direction flag is clear by convention.
    unsafe {
        asm!("rep movsb", inout("rcx") len => _, inout("rdi") to => _, inout("rsi") from => _,
             options(nostack, preserves_flags));
    }
    to
}

/// # Safety
/// As memmove(3).
#[no_mangle]
unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, len: usize) -> *mut u8 {
    if (to as usize).wrapping_sub(from as usize) >= len {
        // SAFETY: copying upwards never overwrites what is still to be read.
        return unsafe { memcpy(to, from, len) };
    }
    // SAFETY: copying downwards from the last bytes; the direction flag is set back.
    unsafe {
        asm!("std", "rep movsb", "cld",
             inout("rcx") len => _,
             inout("rdi") to.wrapping_add(len).wrapping_sub(1) => _,
             inout("rsi") from.wrapping_add(len).wrapping_sub(1) => _,
             options(nostack));
    }
    to
}

/// # Safety
/// As memset(3).
#[no_mangle]
unsafe extern "C" fn memset(to: *mut u8, byte: i32, len: usize) -> *mut u8 {
    // SAFETY: the caller gives a valid range.
    unsafe {
        asm!("rep stosb", inout("rcx") len => _, inout("rdi") to => _, in("al") byte as u8,
             options(nostack, preserves_flags));
    }
    to
}

/// # Safety
/// As memcmp(3).
#[no_mangle]
unsafe extern "C" fn memcmp(a: *const u8, b: *const u8, len: usize) -> i32 {
    let mut i = 0;
    while i < len {
        // SAFETY: below the length the caller gave. Volatile, so that this loop is not turned
        // into a call of the function it is.
        let (x, y) = unsafe { (a.add(i).read_volatile(), b.add(i).read_volatile()) };
        if x != y {
            return x as i32 - y as i32;
        }
        i += 1;
    }
    0
}

/// # Safety
/// As bcmp(3).
#[no_mangle]
unsafe extern "C" fn bcmp(a: *const u8, b: *const u8, len: usize) -> i32 {
    // SAFETY: the caller promises two ranges that are valid for this length.
    unsafe { memcmp(a, b, len) }
}

/// # Safety
/// As strlen(3).
#[no_mangle]
unsafe extern "C" fn strlen(text: *const u8) -> usize {
    let mut len = 0;
    // SAFETY: up to the NUL the caller vouches for.
    while unsafe { text.add(len).read_volatile() } != 0 {
        len += 1;
    }
    len
}

/// Named by the prebuilt `core`; a panic here ends the program, so it is never called.
#[no_mangle]
extern "C" fn rust_eh_personality() {}
