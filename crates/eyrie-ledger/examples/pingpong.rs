//! Two processes and a ledger between them: half round trips of 8 B, 64 KiB and 1 MiB, and the same
//! through a Unix socket and a pipe. Shows how a rank uses the crate, and what its checks cost.
//!
//! `cargo run --release -p eyrie-ledger --example pingpong [ROUNDS]`
//!
//! The agent's part (preparing regions, releasing what was received) is done by the two processes
//! themselves. Both wait as a rank does: they look for a while, then sleep at their bell.

use eyrie_ledger::bells::Bells;
use eyrie_ledger::layout::{Channel, Layout};
use eyrie_ledger::mapped::{Mapped, MappedHints, MappedView};
use eyrie_ledger::reader::Reader;
use eyrie_ledger::writer::{Message, Sizes, Writer};
use eyrie_ledger::{region, Envelope};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::net::UnixStream;
use std::ptr;
use std::time::Instant;

const REGION: u64 = 256 << 20;
const SIZES: [usize; 3] = [8, 64 << 10, 1 << 20];

fn main() {
    let rounds = std::env::args().nth(1).map_or(2000, |n| n.parse().expect("a number of rounds"));
    println!("half round trips in µs, median of {rounds} rounds (1 MiB: a tenth)");
    println!("{:>10} {:>10} {:>10} {:>10}", "bytes", "ledger", "socket", "pipe");
    for bytes in SIZES {
        let rounds = if bytes < 1 << 20 { rounds } else { rounds / 10 + 1 };
        let ledger = over_ledgers(bytes, rounds);
        let (a, b) = UnixStream::pair().expect("a socket");
        let a2 = a.try_clone().expect("its other half");
        let b2 = b.try_clone().expect("the same");
        let socket = over_bytes(bytes, rounds, (a, a2), (b, b2));
        let (there, to) = pipe();
        let (back, from) = pipe();
        let pipe = over_bytes(bytes, rounds, (back, to), (there, from));
        println!("{bytes:>10} {ledger:>10.2} {socket:>10.2} {pipe:>10.2}");
    }
    #[cfg(target_arch = "x86_64")]
    check_costs();
}

/// What a check costs, and would cost over payload: the instruction over so many bytes, in ns, with
/// one chain of results and with three beside each other; and a copy of them.
#[cfg(target_arch = "x86_64")]
fn check_costs() {
    use std::arch::x86_64::_mm_crc32_u64;
    use std::hint::black_box;
    #[target_feature(enable = "sse4.2")]
    #[allow(unused_unsafe)] // It is safe to call here since Rust 1.87 only.
    unsafe fn checks<const CHAINS: usize>(words: &[u64]) -> u64 {
        let mut chains = [!0; CHAINS];
        for words in words.chunks_exact(CHAINS) {
            for (chain, word) in chains.iter_mut().zip(words) {
                // SAFETY: the caller has asked for the instruction.
                *chain = unsafe { _mm_crc32_u64(*chain, *word) };
            }
        }
        chains.iter().fold(0, |all, chain| all ^ chain)
    }
    fn each(mut what: impl FnMut() -> u64) -> f64 {
        let times = (0..200).map(|_| {
            let begin = Instant::now();
            for _ in 0..20 {
                black_box(what());
            }
            begin.elapsed().as_nanos() as f64 / 20.0
        });
        median(times.collect())
    }
    if !std::arch::is_x86_feature_detected!("sse4.2") {
        return;
    }
    println!("\na check in ns: over so many bytes, with three chains, and a copy of them");
    for bytes in [64, 1 << 10, 64 << 10] {
        let words = vec![0x55; bytes / 8];
        let mut copy = vec![0; bytes / 8];
        // SAFETY: the processor has the instruction, as was asked above.
        let one = each(|| unsafe { checks::<1>(black_box(&words)) });
        // SAFETY: the processor has the instruction, as was asked above.
        let three = each(|| unsafe { checks::<3>(black_box(&words)) });
        let copied = each(|| {
            copy.copy_from_slice(black_box(&words));
            black_box(&copy)[0]
        });
        println!("{bytes:>10} {one:>10.1} {three:>10.1} {copied:>10.1}");
    }
}

/// Runs `child` in another process and `parent` here; both are to end.
fn in_two(child: impl FnOnce(), parent: impl FnOnce() -> f64) -> f64 {
    // SAFETY: this process has one thread, so the child may go on as if nothing had happened.
    match unsafe { libc::fork() } {
        0 => {
            child();
            std::process::exit(0);
        }
        pid => {
            assert!(pid > 0, "fork: {}", std::io::Error::last_os_error());
            let result = parent();
            // SAFETY: the child is ours, and its status is not asked for.
            unsafe { libc::waitpid(pid, ptr::null_mut(), 0) };
            result
        }
    }
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn over_ledgers(bytes: usize, rounds: usize) -> f64 {
    // SAFETY: a plain call; the result is looked at.
    let fd = unsafe { libc::memfd_create(c"ledger".as_ptr(), libc::MFD_CLOEXEC) };
    assert!(fd >= 0, "memfd_create: {}", std::io::Error::last_os_error());
    // SAFETY: the descriptor is new and ours.
    let file = unsafe { File::from_raw_fd(fd) };
    let bells = Bells::<MappedHints>::bytes(2);
    file.set_len(2 * REGION + bells).expect("the size of the file");
    // SAFETY: the mapping is new, of a file that never shrinks, and stays until the process ends.
    let base: *mut u8 = unsafe {
        libc::mmap(
            ptr::null_mut(),
            (2 * REGION + bells) as usize,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        )
    }
    .cast();
    assert_ne!(base.cast(), libc::MAP_FAILED, "mmap: {}", std::io::Error::last_os_error());
    let region_of = |rank: u32| {
        // SAFETY: the region is in the mapping, which stays until the process ends.
        unsafe { Mapped::new(base.add((u64::from(rank) * REGION) as usize), REGION) }
    };
    for rank in 0..2 {
        region::prepare(&region_of(rank), &Layout::new(rank, 2, REGION), 1, REGION);
    }
    // SAFETY: the bells are in the mapping, behind both regions, and it stays until the process
    // ends.
    let hints = unsafe { MappedHints::new(base.add(2 * REGION as usize), bells) };
    let side = |me: u32| Side::new(me, region_of(me), region_of(1 - me), hints);
    let ping = move || {
        let mut side = side(0);
        let mut times = Vec::with_capacity(rounds);
        for round in 0..rounds + rounds / 10 + 10 {
            let begin = Instant::now();
            side.send(bytes, round as u8);
            side.receive(bytes, round as u8);
            if round >= rounds / 10 + 10 {
                times.push(begin.elapsed().as_nanos() as f64 / 2000.0);
            }
        }
        median(times)
    };
    let pong = move || {
        let mut side = side(1);
        for round in 0..rounds + rounds / 10 + 10 {
            side.receive(bytes, round as u8);
            side.send(bytes, round as u8);
        }
    };
    let result = in_two(pong, ping);
    // SAFETY: nothing uses the mapping any more.
    unsafe { libc::munmap(base.cast(), (2 * REGION + bells) as usize) };
    result
}

/// What a rank has.
struct Side {
    me: u32,
    writer: Writer<Mapped>,
    reader: Reader<MappedView>,
    bells: Bells<MappedHints>,
    hints: MappedHints,
    /// As the agent of the other one.
    other: Mapped,
    clock: u64,
    payload: Vec<u8>,
}

impl Side {
    fn new(me: u32, own: Mapped, other: Mapped, hints: MappedHints) -> Side {
        let layout = Layout::new(me, 2, REGION);
        Side {
            me,
            writer: Writer::open(own, layout, |_| 0, Sizes::default()).expect("a new region"),
            reader: Reader::new(other.view(), Layout::new(1 - me, 2, REGION), me, 0),
            bells: Bells::new(hints, 2),
            hints,
            other,
            clock: 0,
            payload: vec![0; 1 << 20],
        }
    }

    fn send(&mut self, bytes: usize, round: u8) {
        self.payload[..bytes].fill(round);
        let to = 1 - self.me;
        let envelope = Envelope { kind: 2, ..Envelope::default() };
        let payload = &self.payload[..bytes];
        let message = Message { to, envelope, clock: self.clock as u32, payload };
        let bells = &self.bells;
        let me = self.me;
        let word = self.hints.word(self.bells.word(to));
        let ssn = self.writer.sent(to) + 1;
        let ring = || {
            if bells.ring(to, me, ssn) {
                // SAFETY: the word is mapped for as long as the process lives.
                unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, 1) };
            }
        };
        self.writer.append(&message, ring).expect("there is room");
    }

    fn receive(&mut self, bytes: usize, round: u8) {
        let mut looks = 0;
        let entry = loop {
            self.clock += 1;
            match self.reader.look().expect("a sound ledger") {
                Some(entry) => break entry,
                None => self.wait(&mut looks),
            }
        };
        assert_eq!(entry.len, bytes as u64);
        let mut copied = 0;
        while copied < bytes {
            // What is written of a large message is copied while the rest is written.
            let there = self.reader.filled(&entry).expect("a sound ledger") as usize;
            self.reader.read(&entry, copied as u64, &mut self.payload[copied..there]);
            copied = there;
        }
        assert_eq!((self.payload[0], self.payload[bytes - 1]), (round, round));
        self.reader.pass(&entry);
        self.writer.record(self.clock, &[(1 - self.me, 1)]).expect("there is room");
        let layout = Layout::new(1 - self.me, 2, REGION);
        region::release(&self.other, &layout, Channel::Rank(self.me), self.reader.count());
    }

    fn wait(&mut self, looks: &mut u32) {
        *looks += 1;
        if *looks % 4000 != 0 {
            return std::hint::spin_loop();
        }
        let seen = self.bells.begin_sleep(self.me);
        if self.reader.look().expect("a sound ledger").is_none() {
            let word = self.hints.word(self.bells.word(self.me)).as_ptr();
            let time = libc::timespec { tv_sec: 0, tv_nsec: 1_000_000 };
            // SAFETY: word and time are valid for the call.
            unsafe {
                libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAIT, seen, &raw const time)
            };
        }
        self.bells.end_sleep(self.me);
    }
}

/// The same through something that is read and written.
fn over_bytes<R: Read, W: Write>(
    bytes: usize,
    rounds: usize,
    (mut read, mut write): (R, W),
    (mut read_there, mut write_there): (R, W),
) -> f64 {
    let all = rounds + rounds / 10 + 10;
    let pong = || {
        let mut payload = vec![0; bytes];
        for _ in 0..all {
            read_there.read_exact(&mut payload).expect("the other end");
            write_there.write_all(&payload).expect("the other end");
        }
    };
    let ping = || {
        let mut payload = vec![0; bytes];
        let mut times = Vec::with_capacity(rounds);
        for round in 0..all {
            let begin = Instant::now();
            write.write_all(&payload).expect("the other end");
            read.read_exact(&mut payload).expect("the other end");
            if round >= all - rounds {
                times.push(begin.elapsed().as_nanos() as f64 / 2000.0);
            }
        }
        median(times)
    };
    in_two(pong, ping)
}

/// Both ends of a pipe.
fn pipe() -> (File, File) {
    let mut ends = [0; 2];
    // SAFETY: there is room for two descriptors.
    assert_eq!(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) }, 0, "pipe2");
    // SAFETY: both descriptors are new and ours.
    unsafe { (File::from_raw_fd(ends[0]), File::from_raw_fd(ends[1])) }
}
