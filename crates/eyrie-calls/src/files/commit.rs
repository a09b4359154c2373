//! A note in an attribute of a file that ranks read and change under a lock: the last short write,
//! which rank makes it, and what it writes ([`super::under_lock`]). From then on the write counts.
//! The rank that has the lock next writes it if it is not in the file yet.

use super::kernel;
use crate::random;
use std::ffi::CStr;

const NAME: &CStr = c"user.eyrie.commit";
/// Most bytes of such a write.
pub const MOST_BYTES: usize = 256;
/// Ranks of which the last write to a file is known.
const MOST_OTHERS: usize = 64;
/// Numbers in front of the others.
const HEAD: usize = 6;
const ROOM: usize = 8 * (HEAD + 2 * MOST_OTHERS) + MOST_BYTES;

/// What the attribute says.
pub struct Commit {
    job: u64,
    /// The last write: of which rank, its number among that rank's, its place, and whether it is
    /// perhaps not in the file yet.
    who: u64,
    number: u64,
    at: u64,
    open: bool,
    bytes: [u8; MOST_BYTES],
    len: usize,
    /// Ranks that wrote before, the last one first, each with the number of its last write.
    others: [(u64, u64); MOST_OTHERS],
    count: usize,
}

impl Commit {
    const NONE: Commit = Commit {
        job: 0,
        who: 0,
        number: 0,
        at: 0,
        open: false,
        bytes: [0; MOST_BYTES],
        len: 0,
        others: [(0, 0); MOST_OTHERS],
        count: 0,
    };

    /// That of an open file, if it is of this job.
    pub fn of(fd: i32) -> Commit {
        let mut room = [0u8; ROOM];
        let Some(rest) = kernel::attribute(fd, NAME, &mut room) else { return Commit::NONE };
        let mut numbers =
            rest.chunks_exact(8).map_while(|n| Some(u64::from_le_bytes(n.try_into().ok()?)));
        let mut number = || numbers.next().unwrap_or(0);
        let mut commit =
            Commit { job: number(), who: number(), number: number(), at: number(), ..Commit::NONE };
        let lengths = number();
        commit.open = number() != 0;
        (commit.len, commit.count) = ((lengths & 0xffff) as usize, (lengths >> 16) as usize);
        let at = 8 * (HEAD + 2 * commit.count);
        let bytes = rest.get(at..at + commit.len);
        let is_one = |bytes: &&[u8]| {
            bytes.len() <= MOST_BYTES && commit.count <= MOST_OTHERS && commit.job == random::job()
        };
        let Some(bytes) = bytes.filter(is_one) else { return Commit::NONE };
        commit.bytes[..bytes.len()].copy_from_slice(bytes);
        commit.others[..commit.count].iter_mut().for_each(|other| *other = (number(), number()));
        commit
    }

    /// That of this rank's next write, of this number and at this place; [`Commit::add`] says what.
    pub fn then(&self, number: u64, at: u64) -> Commit {
        let who = random::name();
        let mut next = Commit { job: random::job(), who, number, at, open: true, ..Commit::NONE };
        let last = std::iter::once((self.who, self.number)).filter(|(it, _)| *it != 0);
        let before = self.others[..self.count].iter().copied().filter(|(it, _)| *it != self.who);
        for other in last.chain(before).filter(|(it, _)| *it != who).take(MOST_OTHERS) {
            next.others[next.count] = other;
            next.count += 1;
        }
        next
    }

    /// More bytes of the write; at most [`MOST_BYTES`] in all.
    pub fn add(&mut self, bytes: &[u8]) {
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    /// The write is in the file.
    pub fn close(&mut self, fd: i32) {
        self.open = false;
        self.put(fd);
    }

    /// Puts it there; false: the file system has no attributes, or no room for this one.
    pub fn put(&self, fd: i32) -> bool {
        let mut room = [0u8; ROOM];
        let lengths = self.len as u64 | (self.count as u64) << 16;
        let head = [self.job, self.who, self.number, self.at, lengths, self.open.into()];
        let others = self.others[..self.count].iter().flat_map(|(who, number)| [*who, *number]);
        let mut used = 0;
        for n in head.into_iter().chain(others) {
            room[used..used + 8].copy_from_slice(&n.to_le_bytes());
            used += 8;
        }
        room[used..used + self.len].copy_from_slice(&self.bytes[..self.len]);
        kernel::set_attribute(fd, NAME, &room[..used + self.len])
    }

    /// Whether a rank's write of this number counts.
    pub fn has(&self, who: u64, number: u64) -> bool {
        let others = self.others[..self.count].iter().copied();
        let all = std::iter::once((self.who, self.number)).chain(others);
        all.into_iter().any(|(it, last)| it == who && last >= number)
    }

    /// What was noted and is perhaps not in the file is written.
    pub fn complete(mut self, fd: i32) {
        if self.open && kernel::write_at(fd, &self.bytes[..self.len], self.at) {
            self.close(fd);
        }
    }
}
