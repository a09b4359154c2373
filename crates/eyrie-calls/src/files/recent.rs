//! What a rank has read under a lock in order to change a part of it and write it back (as MPI-IO
//! does with data that has gaps). When the rank is executed again, others may have changed other
//! parts since. So only what it has changed is written.

use super::buffers::Buffers;
use super::held_locks;
use super::kernel;
use super::saying;
use std::cell::UnsafeCell;

/// Most bytes that are remembered, and in how many pieces.
const ROOM: usize = 8 << 20;
const MOST: usize = 16;

#[derive(Clone, Copy)]
struct Read {
    number: (u64, u64),
    at: u64,
    /// Bytes that were asked for, and how many there were.
    asked: usize,
    len: usize,
    from: usize,
}

struct Reads {
    reads: [Read; MOST],
    count: usize,
    bytes: [u8; ROOM],
}

struct Shared(UnsafeCell<Reads>);

// SAFETY: used in calls that are being recorded, of which there is one at a time.
unsafe impl Sync for Shared {}

static READS: Shared = Shared(UnsafeCell::new(Reads {
    reads: [Read { number: (0, 0), at: 0, asked: 0, len: 0, from: 0 }; MOST],
    count: 0,
    bytes: [0; ROOM],
}));

fn reads() -> &'static mut Reads {
    // SAFETY: all of this module runs in calls that are recorded.
    unsafe { &mut *READS.0.get() }
}

/// So many bytes were replayed that had been read at a place, or where the file stood.
pub fn replayed(number: (u64, u64), fd: i32, n: i64, to: Buffers, at: Option<i64>) {
    let all = reads();
    if !held_locks::is_locked(number) {
        return forget(number);
    }
    let at = at.filter(|at| *at != -1);
    let at = at.unwrap_or_else(|| kernel::seek(fd, 0, libc::SEEK_CUR) - n) as u64;
    let used = all.reads[..all.count].last().map_or(0, |read| read.from + read.len);
    let len = n as usize;
    if all.count == MOST || used + len > ROOM {
        saying::too_much_locked();
        return;
    }
    let mut done = 0;
    while done < len {
        // SAFETY: so many bytes were put there.
        let piece = unsafe { to.bytes(done, len - done) };
        all.bytes[used + done..used + done + piece.len()].copy_from_slice(piece);
        done += piece.len();
    }
    all.reads[all.count] = Read { number, at, asked: to.len(), len, from: used };
    all.count += 1;
}

/// It was known to be written, or its lock is released.
pub fn forget(number: (u64, u64)) {
    let all = reads();
    if all.reads[..all.count].iter().any(|read| read.number == number) {
        all.count = 0;
    }
}

/// Whether something of this file was replayed that is perhaps not there any more.
pub fn any(number: (u64, u64)) -> bool {
    let all = reads();
    all.reads[..all.count].iter().any(|read| read.number == number)
}

/// The newest of what was replayed that covers a place.
fn covering(number: (u64, u64), at: u64) -> Option<&'static Read> {
    let all = reads();
    let covers =
        |read: &&Read| read.number == number && read.at <= at && at < read.at + read.asked as u64;
    all.reads[..all.count].iter().rfind(covers)
}

/// Writes what differs from what was told that had been read there; false: that is not known.
pub fn write_changed(fd: i32, number: (u64, u64), from: &Buffers, at: Option<i64>) -> bool {
    if reads().count == 0 {
        return false;
    }
    let at = at.unwrap_or_else(|| kernel::seek(fd, 0, libc::SEEK_CUR));
    let is_known = each_changed(number, from, at as u64, &mut |new, old, at| {
        say_if_others_changed(fd, new, old, at);
        kernel::write_at(fd, new, at);
    });
    if is_known {
        remember_written(number, from, at as u64);
    }
    let size = kernel::file_at(fd).map_or(0, |file| file.size);
    let end = at as u64 + from.len() as u64;
    if is_known && size < end {
        kernel::set_size(fd, end);
    }
    is_known
}

/// The rank has written there: what it writes next under the lock differs from that.
fn remember_written(number: (u64, u64), from: &Buffers, at: u64) {
    let all = reads();
    for read in all.reads[..all.count].iter_mut().filter(|read| read.number == number) {
        let end = at + from.len() as u64;
        if end <= read.at || at >= read.at + read.asked as u64 {
            continue;
        }
        if end > read.at + read.len as u64 {
            // Behind that nothing is remembered: all that is written there counts.
            read.asked = read.len;
        }
        let first = at.max(read.at);
        let last = end.min(read.at + read.len as u64);
        let mut place = first;
        while place < last {
            // SAFETY: the program gives them to be written.
            let piece = unsafe { from.bytes((place - at) as usize, (last - place) as usize) };
            let to = read.from + (place - read.at) as usize;
            all.bytes[to..to + piece.len()].copy_from_slice(piece);
            place += piece.len() as u64;
        }
    }
}

/// Says if others have changed what is about to be written, since it was read.
pub fn look_for_others(fd: i32, number: (u64, u64), from: &Buffers, at: Option<i64>) {
    let at = at.unwrap_or_else(|| kernel::seek(fd, 0, libc::SEEK_CUR));
    let look =
        &mut |new: &[u8], old: &dyn Fn(usize) -> u8, at| say_if_others_changed(fd, new, old, at);
    each_changed(number, from, at as u64, look);
}

/// Is given bytes that are written, what was read in the place of each, and that place.
type Run<'a> = &'a mut dyn FnMut(&[u8], &dyn Fn(usize) -> u8, u64);

/// Calls `f` with each run of bytes that differ from what was told that had been read there, with
/// that and their place; false: that is not known.
fn each_changed(number: (u64, u64), from: &Buffers, at: u64, f: Run) -> bool {
    let Some(read) = covering(number, at) else { return false };
    let skipped = (at - read.at) as usize;
    let len = from.len();
    let old = &reads().bytes[read.from..read.from + read.len];
    let old = old.get(skipped..).unwrap_or(&[]);
    // Behind what was asked for, nothing is known.
    let known = read.asked - skipped;
    let mut done = 0;
    while done < len {
        // SAFETY: the program gives them to be written.
        let new = unsafe { from.bytes(done, len - done) };
        // Where there was nothing to read, zeros are not the rank's.
        let before = |i: usize| old.get(done + i).copied().unwrap_or(0);
        let is_same = |i: &usize| done + i < known && new[*i] == before(*i);
        let mut first = 0;
        while let Some(start) = (first..new.len()).find(|i| !is_same(i)) {
            let end = (start..new.len()).find(is_same).unwrap_or(new.len());
            f(&new[start..end], &|i| before(start + i), at + (done + start) as u64);
            first = end;
        }
        done += new.len();
    }
    true
}

/// Bytes that are compared at a time.
const STEP: usize = 4096;

fn say_if_others_changed(fd: i32, new: &[u8], old: &dyn Fn(usize) -> u8, at: u64) {
    let mut now = [0; STEP];
    for (step, new) in new.chunks(STEP).enumerate() {
        let first = step * STEP;
        let n = kernel::read_at(fd, &mut now[..new.len()], at + first as u64);
        if (0..n).any(|i| now[i] != new[i] && now[i] != old(first + i)) {
            return saying::changed_under_lock();
        }
    }
}
