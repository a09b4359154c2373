//! A short write under a lock to a file that was read under it: a counter, or a shared file pointer
//! of MPI-IO. Another process goes on from it as soon as the lock is free, so it must be made
//! exactly once, whenever the rank dies. It counts from the moment when it is noted at the file
//! ([`super::commit`]). A rank that is executed again finds there whether its own write counts. If
//! not, it takes the lock again and reads anew.

use super::buffers::Buffers;
use super::commit::{Commit, MOST_BYTES};
use super::held_locks::{self, Lock};
use super::kernel::{self, File};
use super::pending;
use super::recent;
use super::records::{is_new_change, look_ahead, pass_over, Call, Part};
use super::saying;
use super::standing_in::table;
use crate::random;
use std::sync::atomic::{AtomicU64, Ordering};

/// What has become of a write that does not count, in what is recorded.
const ASIDE: i64 = -(libc::EAGAIN as i64);

/// Writes of this rank so far.
static COUNT: AtomicU64 = AtomicU64::new(0);
/// Whether a write is one of those.
pub fn applies(file: &File, from: &Buffers) -> bool {
    (1..=MOST_BYTES).contains(&from.len())
        && held_locks::was_read(file.number)
        && !recent::any(file.number)
        && random::name() != 0
}

/// What is recorded of the next one: its number, and whether something has left the rank since it
/// has the lock: then it cannot read again.
pub fn next(number: (u64, u64)) -> [i64; 2] {
    let next = COUNT.fetch_add(1, Ordering::Relaxed) + 1;
    [next as i64, held_locks::has_left(number).into()]
}

/// Writes these bytes at a place, or where the file stands.
pub fn write(fd: i32, number: u64, from: &Buffers, at: Option<i64>, make: &dyn Fn() -> i64) -> i64 {
    let at = at.unwrap_or_else(|| kernel::seek(fd, 0, libc::SEEK_CUR)) as u64;
    let mut commit = Commit::of(fd).then(number, at);
    let mut done = 0;
    while done < from.len() {
        // SAFETY: the program gives them to be written.
        let piece = unsafe { from.bytes(done, from.len() - done) };
        commit.add(piece);
        done += piece.len();
    }
    if !commit.put(fd) {
        saying::no_commit();
        return make();
    }
    let n = make();
    commit.close(fd);
    n
}

/// There was a write of this number.
pub fn seen(number: u64) {
    COUNT.fetch_max(number, Ordering::Relaxed);
}

/// Whether the write of this number counts. It is in the file then.
pub fn is_made(fd: i32, number: u64) -> bool {
    let commit = Commit::of(fd);
    let is_made = commit.has(random::name(), number);
    if is_made {
        commit.complete(fd);
    }
    is_made
}

/// What is known to come of a rank that is known to have had a lock.
enum Ahead {
    /// It was about to make such a write, which is the last that is known.
    Open {
        calls: usize,
        number: u64,
    },
    /// That has come to nothing, and it has taken the lock once more.
    Aside {
        calls: usize,
    },
    Other,
}

/// Looks as far as the rank did nothing but read, by these calls.
fn ahead(write: Call, reads: &[Call]) -> Ahead {
    let mut calls = 0;
    let mut open = None;
    let came = look_ahead(&mut |seen| {
        calls += 1;
        if let (Some(number), true) = (open, seen.result_of(write) == Some(ASIDE)) {
            open = Some(number);
            return true;
        }
        let begun = seen.part_of(write, Part::Intent).map(|mut it| (it.number(), it.number()));
        match begun.filter(|_| open.is_none()) {
            Some((number, 0)) => {
                open = Some(number as u64);
                false
            }
            _ => open.take().is_some() || !reads.iter().any(|call| seen.is_of(*call)),
        }
    });
    match (open, came) {
        (Some(_), true) => Ahead::Aside { calls },
        (Some(number), false) => Ahead::Open { calls, number },
        (None, _) => Ahead::Other,
    }
}

/// The rank is known to have had this lock. Whether it is to ask for it again, because what it then
/// read and was about to write does not count; what is known of that is passed over.
pub fn is_to_lock_again(lock: &Lock, write: Call, reads: &[Call]) -> bool {
    // SAFETY: this call is being recorded, of which there is one at a time.
    let stands_in = || pending::any() && unsafe { table() }.stands_in(lock.fd);
    if !lock.is_of_all() || stands_in() {
        return false;
    }
    match ahead(write, reads) {
        Ahead::Aside { calls } => {
            pass_over(calls);
            true
        }
        Ahead::Open { calls, number } if lock.take_in_time() => {
            if is_made(lock.fd, number) {
                lock.noted(false);
                return false;
            }
            pass_over(calls);
            if is_new_change() {
                write.write_result(ASIDE);
            }
            true
        }
        Ahead::Open { .. } | Ahead::Other => false,
    }
}
