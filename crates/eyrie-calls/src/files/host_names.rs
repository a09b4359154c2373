//! gethostname(2), uname(2): the name of the host. MPI libraries share out work by it (ROMIO
//! chooses which rank writes to a file), and a rank that is executed again may be on another host.
//! It gets the same answer as before.

use super::asking::asked;
use super::calling::outcome;
use super::records::Call;
use crate::next::next;
use libc::{c_char, c_int, c_void, size_t, utsname};

next! {
    gethostname: fn(*mut c_char, size_t) -> c_int;
    __gethostname_chk: fn(*mut c_char, size_t, size_t) -> c_int;
    uname: fn(*mut utsname) -> c_int;
}

/// Numbers of the functions, in what is recorded.
const NAME: u8 = 121;
const SYSTEM: u8 = 122;

/// Asks for the host's name, by `make`.
///
/// # Safety
/// As gethostname(2).
unsafe fn asks_for_name(to: *mut c_char, room: size_t, make: &dyn Fn() -> c_int) -> c_int {
    if to.is_null() {
        return make();
    }
    let made = || {
        let value = outcome(make());
        // SAFETY: who asks has said that there is so much room.
        let len = unsafe { libc::strnlen(to, room) };
        // Too short a room has the beginning of the name.
        (value, room.min(len + 1))
    };
    let call = Call::on_open(NAME);
    // SAFETY: the caller keeps this contract, which is that of the function called.
    let value = unsafe { asked(call, (to.cast::<c_void>(), room), &made) };
    value.map_or_else(make, |value| value as c_int)
}

/// # Safety
/// As gethostname(2).
#[export_name = "gethostname"]
pub unsafe extern "C-unwind" fn our_gethostname(to: *mut c_char, room: size_t) -> c_int {
    // SAFETY: the program keeps the contract of the C function, which gets its arguments unchanged.
    unsafe { asks_for_name(to, room, &|| gethostname.get()(to, room)) }
}

/// # Safety
/// As gethostname(2); `real` is the length of the buffer, which the C library checks.
#[export_name = "__gethostname_chk"]
pub unsafe extern "C-unwind" fn our_gethostname_chk(
    to: *mut c_char,
    room: size_t,
    real: size_t,
) -> c_int {
    // SAFETY: the program keeps the contract of the C function, which gets its arguments unchanged.
    let make = || unsafe { __gethostname_chk.get()(to, room, real) };
    if room > real {
        return make();
    }
    // SAFETY: the caller passes room for `real` bytes, and `room` is not more.
    unsafe { asks_for_name(to, room, &make) }
}

/// # Safety
/// As uname(2).
#[export_name = "uname"]
pub unsafe extern "C-unwind" fn our_uname(to: *mut utsname) -> c_int {
    // SAFETY: the program keeps the contract of the C function, which gets its arguments unchanged.
    let make = || unsafe { uname.get()(to) };
    if to.is_null() {
        return make();
    }
    let size = size_of::<utsname>();
    let made = || {
        let value = outcome(make());
        (value, if value < 0 { 0 } else { size })
    };
    // SAFETY: the caller passes a structure to be written, and `size` is its size.
    let value = unsafe { asked(Call::on_open(SYSTEM), (to.cast::<c_void>(), size), &made) };
    value.map_or_else(make, |value| value as c_int)
}
