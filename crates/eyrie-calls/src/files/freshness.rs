//! What a rank has observed of files must be with a router before the rank changes them. Otherwise,
//! executed again, it would observe its own change.

use super::storing::{store, times};
use std::cell::UnsafeCell;

/// Files that are told apart; of others a rank stores what it has observed perhaps in vain.
const PLACES: usize = 64;

struct Looked {
    /// Files that were looked at since the last time, by their numbers; 0: none.
    files: [u64; PLACES],
    /// Anything was, names and directories among it.
    any: bool,
    /// How many times something had been stored then.
    stored: u64,
}

struct Shared(UnsafeCell<Looked>);

// SAFETY: used in calls that are being recorded, of which there is one at a time.
unsafe impl Sync for Shared {}

static LOOKED: Shared =
    Shared(UnsafeCell::new(Looked { files: [0; PLACES], any: false, stored: 0 }));

fn place((device, number): (u64, u64)) -> (usize, u64) {
    let hash = (device ^ number.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    ((hash >> 58) as usize, hash)
}

/// What was looked at and is not stored yet.
fn looked_at() -> &'static mut Looked {
    // SAFETY: all of this module runs in calls that are recorded.
    let looked = unsafe { &mut *LOOKED.0.get() };
    if looked.stored != times() {
        *looked = Looked { files: [0; PLACES], any: false, stored: times() };
    }
    looked
}

/// A file was looked at or read.
pub fn looked(number: (u64, u64)) {
    let (place, hash) = place(number);
    let looked = looked_at();
    let other = looked.files[place] != 0 && looked.files[place] != hash;
    looked.files[place] = if other { u64::MAX } else { hash };
    looked.any = true;
}

/// Something else was observed of files: that there is none, or what a directory has.
pub fn looked_around() {
    looked_at().any = true;
}

/// Something was observed that any write may change: how much space there is.
pub fn looked_everywhere() {
    *looked_at() = Looked { files: [u64::MAX; PLACES], any: true, stored: times() };
}

/// This file is about to be changed.
pub fn before_change(number: (u64, u64)) {
    let (place, hash) = place(number);
    if [hash, u64::MAX].contains(&looked_at().files[place]) {
        store_all();
    }
}

/// Files or names are about to be changed.
pub fn before_any_change() {
    if looked_at().any {
        store_all();
    }
}

/// What was observed is with a router, or there is none yet.
fn store_all() {
    // SAFETY: this call is being recorded, of which there is one at a time.
    unsafe { store() };
}
