//! What this library exports for the provider: the table of its functions, and what a provider
//! looks for that knows no table. It must never lead to a function that waits for the program.

use crate::files::{eyrie_calls_shares, pending, saying};
use crate::for_provider::*;
use crate::inotify::eyrie_calls_watched;
use crate::interruption::{eyrie_calls_clock_jumped, eyrie_calls_interrupted};
use crate::rank_start::eyrie_calls_begin;
use eyrie_calls_table::{Head, OtherVersion, Table};
use std::io::Write;

/// Exported as [`eyrie_calls_table::SYMBOL`].
#[export_name = "eyrie_calls_table"]
pub static TABLE: Table = Table {
    head: Head::THIS,
    begin: eyrie_calls_begin,
    store_by: eyrie_calls_store_by,
    enter: eyrie_calls_enter,
    enter_for_image: eyrie_calls_enter_for_image,
    leave: eyrie_calls_leave,
    hold: eyrie_calls_hold,
    release: eyrie_calls_release,
    take: eyrie_calls_take,
    passed: eyrie_calls_passed,
    waiting: eyrie_calls_waiting,
    again: eyrie_calls_again,
    skip: eyrie_calls_skip,
    signal_again: eyrie_calls_signal_again,
    signal: eyrie_calls_signal,
    standing_in: pending::count(),
    new: eyrie_calls_new,
    note_files: eyrie_calls_note_files,
    takes_mapping: eyrie_calls_takes_mapping,
    far: eyrie_calls_far,
    watched: eyrie_calls_watched,
    shares: eyrie_calls_shares,
    come_back: eyrie_calls_come_back,
    clock_jumped: eyrie_calls_clock_jumped,
    interrupted: eyrie_calls_interrupted,
};

/// Exported as [`eyrie_calls_table::WITHOUT_TABLE`]. A provider that calls it does not find the
/// functions by which it recorded, either, and would let its rank compute unrecorded: the rank
/// ends.
#[export_name = "eyrie_calls_begin"]
pub extern "C" fn end_without_table(_: libc::c_int) -> ! {
    let other = OtherVersion { calls: Head::THIS, provider: Head::NONE };
    let mut text = [0u8; 512];
    let mut rest = &mut text[..];
    // It has room for the sentence.
    let _ = write!(rest, "{other}");
    let len = 512 - rest.len();
    saying::other_provider(&text[..len])
}
