//! Files on a server (NFS, Lustre, FUSE and the like). A node that fails loses what its kernel had
//! not written back, so a known write may not be there. Images count only when earlier writes were
//! written back. A rank that is executed again on another node compares its later known writes with
//! the file, and repeats those whose place is as it was before. What has changed later must not be
//! touched.

use super::buffers::Buffers;
use super::held_locks;
use super::kernel::{self, File};
use super::open_records::cut_by;
use super::records::{is_any_ahead, Call, Part, Record};
use super::saying;
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, Ordering};

/// What was there before a write is known by blocks of so many bytes, as pages are written back.
const BLOCK: usize = 4096;
/// Most blocks of one write of which that is known; longer ones are written back at once.
const MOST_BLOCKS: usize = 4096;
/// File systems that are told apart.
pub const MOST: usize = 4;
/// Files of which it is known that nothing cuts them later.
const MOST_WHOLE: usize = 16;

/// Files that are read by descriptors of ours while the program has locks in them.
const MOST_HELD: usize = 8;

/// Number of the record of a node, in what is recorded.
const NODE: u8 = 118;

/// File systems of servers, as statfs(2) numbers them: NFS, Lustre, FUSE, SMB (two), Ceph, 9P, AFS,
/// GFS2, OCFS2, GPFS, BeeGFS, OrangeFS, PanFS.
const FAR: [i64; 14] = [
    0x6969,
    0x0bd0_0bd0,
    0x6573_5546,
    0xff53_4d42,
    0xfe53_4d42,
    0x00c3_6400,
    0x0102_1997,
    0x5346_414f,
    0x0116_1970,
    0x7461_636f,
    0x4750_4653,
    0x1983_0326,
    0x2003_0528,
    0xaad7_aaea,
];

struct Known {
    /// File systems that were looked at: their devices, and whether they are far.
    devices: [(u64, bool); MOST],
    looked_at: usize,
    /// Far ones to which this rank has written.
    written: [u64; MOST],
    /// The node on which what is known was done; 0: none yet.
    node: u64,
    /// This one; 0: it was not looked at.
    here: u64,
    /// Files that are not cut by anything that is known; only of a rank that is executed again.
    whole: [u64; MOST_WHOLE],
    next_whole: usize,
    /// Descriptors that are not closed before the program closes their files; -1: none.
    held: [Held; MOST_HELD],
}

/// A file by its number, and a descriptor of ours that reads it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Held {
    number: (u64, u64),
    fd: i32,
}

const NOT_HELD: Held = Held { number: (0, 0), fd: -1 };

/// There may be such descriptors.
static HOLDS: AtomicBool = AtomicBool::new(false);

struct Shared(UnsafeCell<Known>);

// SAFETY: used in calls that are being recorded, of which there is one at a time, and for an image,
// while all threads stand still.
unsafe impl Sync for Shared {}

static KNOWN: Shared = Shared(UnsafeCell::new(Known {
    devices: [(0, false); MOST],
    looked_at: 0,
    written: [0; MOST],
    node: 0,
    here: 0,
    whole: [0; MOST_WHOLE],
    next_whole: 0,
    held: [NOT_HELD; MOST_HELD],
}));

fn known() -> &'static mut Known {
    // SAFETY: only calls that are being recorded use it, one at a time, and an image, while all
    // threads stand still.
    unsafe { &mut *KNOWN.0.get() }
}

/// Devices of such file systems to which this rank has written, as stat(2) numbers them; 0: none.
pub fn devices() -> [u64; MOST] {
    known().written
}

/// This node, as far as its memory goes: another one, or the same one after a reboot, has another
/// number.
fn this_node() -> u64 {
    if known().here == 0 {
        known().here = look_for_node();
    }
    known().here
}

/// This process has come back from an image, perhaps on another node.
pub fn come_back() {
    let known = known();
    // Devices have other numbers there; what was written before the image was written back.
    (known.here, known.written, known.devices) = (0, [0; MOST], [(0, false); MOST]);
    // More is known by now than when the process that the image is of was executed again itself.
    known.whole = [0; MOST_WHOLE];
    // So have files.
    for held in known.held.iter_mut().filter(|held| held.fd >= 0) {
        held.number = kernel::number_of(held.fd).map_or(held.number, |(number, _)| number);
    }
}

/// Whether [`closed`] may have something to do.
pub fn holds_any() -> bool {
    HOLDS.load(Ordering::Relaxed)
}

/// The program is about to close a descriptor of this file, and loses all its locks there.
pub fn closed(number: (u64, u64)) {
    let known = known();
    for held in known.held.iter_mut().filter(|held| held.fd >= 0 && held.number == number) {
        // The program may have put another file in its place (dup2).
        if kernel::number_of(held.fd).is_some_and(|(there, _)| there == number) {
            kernel::close(held.fd);
        }
        *held = NOT_HELD;
    }
    HOLDS.store(known.held.iter().any(|held| held.fd >= 0), Ordering::Relaxed);
}

fn look_for_node() -> u64 {
    let mut text = [0u8; 256];
    let n = kernel::content(c"/proc/sys/kernel/random/boot_id", &mut text[..128]);
    let n = n + kernel::content(c"/proc/sys/kernel/hostname", &mut text[n..]);
    hash(&text[..n]) | 1
}

/// A number for bytes; others have another one but for one in 2^64.
fn hash(bytes: &[u8]) -> u64 {
    let word = |part: &[u8]| {
        let mut word = [0; 8];
        word[..part.len()].copy_from_slice(part);
        u64::from_le_bytes(word)
    };
    let mixed = bytes.chunks(8).fold(bytes.len() as u64, |hash, part| {
        (hash.rotate_left(29) ^ word(part)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    });
    mixed ^ mixed >> 32
}

/// A file on a server that is about to be written.
#[derive(Clone, Copy)]
pub struct Far<'a> {
    fd: i32,
    file: &'a File,
}

/// What was in a file where something was written.
#[derive(Clone, Copy)]
pub struct Old<'a> {
    /// The file's size, as far as it was less than the end of what was written.
    size: u64,
    /// Numbers of the blocks up to there.
    blocks: &'a [u8],
}

impl Old<'_> {
    /// It ended before.
    pub const NOTHING: Old<'static> = Old { size: 0, blocks: &[] };
}

/// The file, if it is on a server; what is known of the node on which that was written is read.
pub fn at(fd: i32, file: &File) -> Option<Far<'_>> {
    is_far(fd, file.number.0).then(|| {
        while let Some(node) = Call::on_open(NODE).result_again() {
            known().node = node as u64;
        }
        Far { fd, file }
    })
}

fn is_far(fd: i32, device: u64) -> bool {
    let known = known();
    if let Some((_, far)) = known.devices.iter().find(|(of, _)| *of == device && device != 0) {
        return *far;
    }
    let far = kernel::file_system(fd).is_some_and(|kind| FAR.contains(&kind));
    known.devices[known.looked_at % MOST] = (device, far);
    known.looked_at += 1;
    far
}

/// Something is about to be written to a file on a server that was never written before. False:
/// there are more of them than images wait for, so that it must be there before anything is said of
/// it.
pub fn begin_to_write(file: &File) -> bool {
    let waits = is_waited_for(file.number.0);
    let known = known();
    let node = this_node();
    if known.node != node {
        known.node = node;
        Call::on_open(NODE).write(Part::Result, &[node as i64]);
    }
    waits
}

/// Whether images wait until what was written to a file system is there, from now on.
fn is_waited_for(device: u64) -> bool {
    let written = &mut known().written;
    let place = written.iter_mut().find(|of| [0, device].contains(*of));
    place.map(|of| *of = device).is_some()
}

/// A file was mapped to be written: what is stored there is on its server, if it is on one, when an
/// image counts.
pub fn mapped(fd: i32, file: &File) {
    if is_far(fd, file.number.0) && !is_waited_for(file.number.0) {
        saying::many_servers();
    }
}

/// The parts of a write that lie in one block each: where they begin in it, and their length.
fn blocks(at: u64, len: usize) -> impl Iterator<Item = (usize, usize)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let within = (at + done as u64) as usize % BLOCK;
        let n = (BLOCK - within).min(len - done);
        let part = (done, n);
        done += n;
        (n > 0).then_some(part)
    })
}

impl Far<'_> {
    /// Something is about to be written there that was never written before: looks at what is
    /// there; how many blocks that are. `None`: they cannot be read, or are more than are looked
    /// at, and what is written there must be on the server before anything is said of it.
    pub fn look(&self, at: u64, len: usize, room: &mut Room) -> Option<usize> {
        let len = (self.file.size.saturating_sub(at) as usize).min(len);
        if len == 0 {
            return Some(0);
        }
        let reader = (len <= MOST_BLOCKS * BLOCK - BLOCK).then(|| self.reader()).flatten()?;
        let mut count = 0;
        for (done, n) in blocks(at, len) {
            let mut bytes = [0; BLOCK];
            let there = kernel::read_at(reader.fd, &mut bytes[..n], at + done as u64);
            room.0[count * 8..][..8].copy_from_slice(&hash(&bytes[..there]).to_le_bytes());
            count += 1;
        }
        Some(count)
    }

    /// Another descriptor by which it can be read: opened anew, so that it is what the server has
    /// by now. To close it would release the locks that the program has there by fcntl(2). Then it
    /// is the program's own, if that can read, or it is held.
    fn reader(&self) -> Option<Reader> {
        let how = kernel::fcntl(self.fd, libc::F_GETFL, 0) as i32;
        let reads = how & libc::O_ACCMODE != libc::O_WRONLY && how & libc::O_DIRECT == 0;
        if reads && held_locks::is_locked(self.file.number) {
            return Some(Reader { fd: self.fd, is_closed: false });
        }
        let number = self.file.number;
        let all = &mut known().held;
        if let Some(held) = all.iter().find(|held| held.fd >= 0 && held.number == number) {
            return Some(Reader { fd: held.fd, is_closed: false });
        }
        let is_closed = !held_locks::is_locked(number);
        let room = all.iter_mut().find(|held| held.fd < 0);
        if !is_closed && room.is_none() {
            return None;
        }
        let mut link = [0; 32];
        let link = kernel::link_of(self.fd, &mut link);
        let fd = kernel::open(kernel::HERE, link, libc::O_RDONLY | libc::O_CLOEXEC, 0);
        let fd = i32::try_from(fd).ok().filter(|fd| *fd >= 0)?;
        if let (false, Some(room)) = (is_closed, room) {
            *room = Held { number, fd };
            HOLDS.store(true, Ordering::Relaxed);
        }
        Some(Reader { fd, is_closed })
    }

    /// What was in the file, as [`Far::look`] has found it.
    pub fn old<'a>(&self, size: i64, blocks: &'a [u8]) -> Old<'a> {
        Old { size: size as u64, blocks }
    }

    /// This is known to have been written there. Where the node on which it was is another one, and
    /// what is there is what was before, it is written again.
    pub fn again(&self, from: &Buffers, at: u64, len: usize, old: Old) {
        self.again_from(&|done, to| gather(from, done, to), at, len, old);
    }

    /// The same; `new` gives what was written, from a place in it on.
    fn again_from(&self, new: &dyn Fn(usize, &mut [u8]), at: u64, len: usize, old: Old) {
        if [0, this_node()].contains(&known().node) || self.is_cut_later(at + len as u64) {
            return;
        }
        let Some(reader) = self.reader() else { return saying::not_compared() };
        let mut missing = 0;
        for (n, (done, len)) in blocks(at, len).enumerate() {
            let mut ours = [0; BLOCK];
            let mut there = [0; BLOCK];
            new(done, &mut ours[..len]);
            let found = kernel::read_at(reader.fd, &mut there[..len], at + done as u64);
            if found == len && there[..len] == ours[..len] {
                continue;
            }
            let before = (old.size.saturating_sub(at + done as u64) as usize).min(len);
            let number = old.blocks.get(n * 8..n * 8 + 8).filter(|_| before > 0);
            let is_old = match number {
                Some(number) => {
                    hash(&there[..before.min(found)]).to_le_bytes() == *number
                        && there[before..].iter().all(|byte| *byte == 0)
                }
                None => before == 0 && there.iter().all(|byte| *byte == 0),
            };
            if is_old {
                self.write(&ours[..len], at + done as u64);
                missing += len;
            }
        }
        if missing > 0 {
            saying::written_again();
        }
    }

    /// Writes at this place, also where the program writes at the end.
    fn write(&self, bytes: &[u8], at: u64) {
        let flags = kernel::fcntl(self.fd, libc::F_GETFL, 0);
        let appends = flags & i64::from(libc::O_APPEND) != 0;
        let set = |flags: i64| kernel::fcntl(self.fd, libc::F_SETFL, flags as usize);
        if appends {
            set(flags & !i64::from(libc::O_APPEND));
        }
        kernel::write_at(self.fd, bytes, at);
        if appends {
            set(flags);
        }
    }

    /// Whether it is known to be cut before this place later, or emptied: then what was written
    /// there is of no use.
    fn is_cut_later(&self, end: u64) -> bool {
        let known = known();
        let number = self.file.number.1;
        if known.whole.contains(&number) {
            return false;
        }
        let cut = |what: u8, part: Part, record: &mut Record| {
            cut_by(what, part, record).filter(|(of, _)| *of == number).map(|(_, size)| size)
        };
        if !is_any_ahead(&|what, part, record| cut(what, part, record).is_some()) {
            known.whole[known.next_whole % MOST_WHOLE] = number;
            known.next_whole += 1;
            return false;
        }
        is_any_ahead(&|what, part, record| cut(what, part, record).is_some_and(|to| to < end))
    }
}

/// By which a file is read.
struct Reader {
    fd: i32,
    /// It is closed then.
    is_closed: bool,
}

impl Drop for Reader {
    fn drop(&mut self) {
        if self.is_closed {
            kernel::close(self.fd);
        }
    }
}

/// A file that was new when the rank opened it has got another name since, and is open at `real`; a
/// shadow file has got all that is known to have been written to it.
pub fn renamed(real: i32, stand_in: i32) {
    let Some(file) = kernel::file_at(real) else { return };
    let Some(far) = at(real, &file) else { return };
    let Some(whole) = kernel::file_at(stand_in) else { return };
    let new = |from: usize, to: &mut [u8]| {
        kernel::read_at(stand_in, to, from as u64);
    };
    far.again_from(&new, 0, whole.size as usize, Old::NOTHING);
}

/// Room for the numbers of blocks.
pub struct Room([u8; MOST_BLOCKS * 8]);

impl Room {
    pub const fn new() -> Room {
        Room([0; MOST_BLOCKS * 8])
    }

    pub fn numbers(&self, blocks: usize) -> &[u8] {
        &self.0[..blocks * 8]
    }
}

/// Copies bytes of a write, which may lie in several buffers.
fn gather(from: &Buffers, at: usize, to: &mut [u8]) {
    let mut done = 0;
    while done < to.len() {
        // SAFETY: the program gives them to be written.
        let part = unsafe { from.bytes(at + done, to.len() - done) };
        if part.is_empty() {
            return;
        }
        to[done..done + part.len()].copy_from_slice(part);
        done += part.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_is_cut_where_pages_are() {
        let parts: Vec<_> = blocks(4000, 5000).collect();
        assert_eq!(parts, [(0, 96), (96, 4096), (4192, 808)]);
        assert_eq!(blocks(8192, 4096).collect::<Vec<_>>(), [(0, 4096)]);
        assert_eq!(blocks(5, 0).count(), 0);
    }

    #[test]
    fn what_is_known_of_files_does_not_come_back_with_an_image() {
        known().whole[0] = 7;
        known().written[0] = 8;
        come_back();
        assert_eq!((known().whole, known().written), ([0; MOST_WHOLE], [0; MOST]));
        // No server is forgotten for another.
        let all = 1..=MOST as u64;
        assert!(all.clone().chain(all.clone()).all(is_waited_for));
        assert!(!is_waited_for(MOST as u64 + 1));
        assert!(all.eq(devices()));
    }

    #[test]
    fn to_look_at_a_file_releases_no_lock() {
        use std::io::Write;
        use std::os::fd::AsRawFd;
        use std::os::unix::fs::MetadataExt;
        let mut file = tempfile();
        file.write_all(b"before").unwrap();
        let number = (file.metadata().unwrap().dev(), file.metadata().unwrap().ino());
        let fd = file.as_raw_fd();
        let wanted = lock_of_all();
        // SAFETY: the structure lives through the call.
        assert_eq!(unsafe { libc::fcntl(fd, libc::F_SETLK, &raw const wanted) }, 0);
        let kind = held_locks::Kind::Posix;
        held_locks::Lock {
            fd,
            number,
            kind,
            how: libc::F_WRLCK as i16,
            to: i64::MAX,
            ..held_locks::NONE
        }
        .noted(false);
        let known = kernel::file_at(fd).unwrap();
        let far = Far { fd, file: &File { nameless: false, ..known } };
        let mut room = Box::new(Room::new());
        assert_eq!(far.look(0, 3, &mut room), Some(1));
        assert_eq!(far.look(1, 3, &mut room), Some(1));
        assert!(is_locked_for_others(fd), "the lock is gone");
        assert_eq!(super::known().held.iter().filter(|held| held.fd >= 0).count(), 1);
        held_locks::closed(fd, number);
        closed(number);
        assert!(!holds_any() && super::known().held == [NOT_HELD; MOST_HELD]);
    }

    /// One that can only be written.
    fn tempfile() -> std::fs::File {
        let path = std::env::temp_dir().join(format!("eyrie-far-{}", std::process::id()));
        let file = std::fs::File::create(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        file
    }

    fn lock_of_all() -> libc::flock {
        // SAFETY: all zero is a valid structure: from the first byte to the last.
        let mut lock: libc::flock = unsafe { std::mem::zeroed() };
        lock.l_type = libc::F_WRLCK as i16;
        lock
    }

    /// Another process asks.
    fn is_locked_for_others(fd: i32) -> bool {
        // SAFETY: the child makes system calls only.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                let mut asked = lock_of_all();
                libc::fcntl(fd, libc::F_GETLK, &raw mut asked);
                libc::_exit((asked.l_type != libc::F_UNLCK as i16).into());
            }
            let mut status = 0;
            libc::waitpid(child, &mut status, 0);
            libc::WEXITSTATUS(status) == 1
        }
    }

    #[test]
    fn other_bytes_have_another_number() {
        let numbers = [&b""[..], b"\0", b"\0\0", b"a", b"b", b"abcdefgh", b"abcdefgha"];
        let all: std::collections::BTreeSet<u64> = numbers.map(hash).into();
        assert_eq!(all.len(), numbers.len());
    }
}
