//! Compares incremental images with full ones of the same moment. A program changes memory at
//! random in all possible ways. An incremental image together with its base must have, page for
//! page, what a full image has.

use super::harness::{make_dir, restore, start, Running};
use super::target::{report, Random};
use eyrie_image::inspect::ImageReader;
use eyrie_image::{capture, Claim, Holder, Mode, Outcome, Request, Track, Tracker};
use eyrie_image_format::stream::{Kind, RecordHeader, RECORD_HEADER_LEN};
use eyrie_image_format::{
    writer_exit, PAGES_GUARD, PAGES_OF_OBJECT, PAGES_SAME, WINDOW_END, WINDOW_START,
};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

const PAGE: usize = 4096;
/// Address of the first slot, and distance between slots. Nothing else is mapped there.
const ARENA: usize = 0x1000_0000_0000;
const SLOTS: usize = 8;
const SLOT: usize = 32 << 20;
/// Longer than what is marked while the process stands still.
const LONG: usize = 24 << 20;
const SHORT_PAGES: usize = 300;
/// Most pages outside the arena that may differ, because the program runs between the two images:
/// those of its stack, of the engine and of its own variables.
const OWN_PAGES: usize = 40;
const ROUNDS: u64 = 25;
/// Where parts of the libraries are mapped, and how many pages these have.
const LIBRARIES: usize = ARENA + SLOTS * SLOT + (1 << 20);
const LIBRARY_PAGES: usize = 200;

static TRACKER: Tracker = Tracker::new();

/// The mapping of each slot: start and length.
struct World {
    random: Random,
    slots: [(usize, usize); SLOTS],
    heap: Vec<Vec<u8>>,
    forks_whole: bool,
    file: File,
    shared: usize,
    /// Two files that are mapped privately, as libraries are, when images have their content.
    libraries: Option<[PathBuf; 2]>,
}

/// The program. In each round it changes memory, then takes an incremental and a full image.
pub fn run(dir: &Path, seed: u64) {
    let started = TRACKER.start();
    let path = dir.join("mapped");
    let file = File::options().read(true).write(true).create_new(true).open(path).unwrap();
    file.set_len(64 * PAGE as u64).unwrap();
    let shared = map(ARENA + SLOTS * SLOT, 64 * PAGE, libc::MAP_SHARED, file.as_raw_fd());
    let mut world = World {
        random: Random(seed),
        slots: std::array::from_fn(|n| (ARENA + n * SLOT, 0)),
        heap: (0..16).map(|_| Vec::new()).collect(),
        forks_whole: forks_whole(seed),
        file,
        shared,
        libraries: is_self_contained(seed).then(|| ["one", "two"].map(|name| library(dir, name))),
    };
    world.map_library(0, LIBRARY_PAGES);
    let rw = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    world.slots[0] = (map(ARENA, LONG, rw, -1), LONG);
    world.write(0, LONG / PAGE);
    match started {
        Ok(()) => report(format_args!("ready")),
        Err(refusal) => return report(format_args!("untracked: {refusal}")),
    }
    for image in 1..=ROUNDS {
        let Some(base) = next_number() else { return };
        for _ in 0..30 {
            world.step();
        }
        let track = Some(Track { tracker: &TRACKER, image, base, marks: true });
        take(dir, track, is_self_contained(seed));
        next_number();
        take(dir, None, is_self_contained(seed));
    }
}

fn next_number() -> Option<u64> {
    let mut text = [0u8; 16];
    // SAFETY: the kernel writes at most `text.len()` bytes into `text`. The test writes one number
    // at a time.
    let n = unsafe { libc::read(0, text.as_mut_ptr().cast(), text.len()) };
    (n > 0).then(|| std::str::from_utf8(&text[..n as usize]).unwrap().trim().parse().unwrap())
}

/// The tracker's descriptor is not left out of images that are not tracked.
struct OwnTracker;

impl Holder for OwnTracker {
    fn claim(&self, fd: i32) -> Option<Claim> {
        (fd == TRACKER.descriptor()).then_some(Claim::Dropped)
    }
}

fn take(dir: &Path, track: Option<Track>, self_contained: bool) {
    let out = File::options().write(true).open(dir.join("image")).unwrap();
    let holders: &[&dyn Holder] = &[&OwnTracker];
    let plain = Request::plain(out.as_raw_fd(), Mode::Async);
    // What the tracker has noted is not left out of images that are not tracked.
    let exclude = &[(WINDOW_START as usize, (WINDOW_END - WINDOW_START) as usize)];
    let request = Request { track, holders, self_contained, exclude, ..plain };
    // SAFETY: this process has one thread, and can continue in another process.
    match unsafe { capture(&request) } {
        Outcome::Captured { child_pid, .. } => report(format_args!("{child_pid}")),
        Outcome::Refused(refusal) => report(format_args!("refused: {refusal}")),
        Outcome::Restored => report(format_args!("restored")),
    }
}

fn map(at: usize, len: usize, flags: i32, fd: i32) -> usize {
    let rw = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the range is in the arena, where only this program maps memory.
    let got = unsafe { libc::mmap(at as *mut _, len, rw, flags | libc::MAP_FIXED, fd, 0) };
    assert_eq!(got as usize, at);
    at
}

/// A file without holes, whose length is no multiple of a page.
fn library(dir: &Path, name: &str) -> PathBuf {
    let path = dir.join(name);
    let content: Vec<u8> =
        (0..(LIBRARY_PAGES * PAGE - 1000) as u64)
            .map(|at| {
                if at / PAGE as u64 % 9 == 4 {
                    0
                } else {
                    (at * 31 / 7) as u8 ^ name.as_bytes()[0]
                }
            })
            .collect();
    std::fs::write(&path, content).unwrap();
    path
}

impl World {
    /// Maps a part of one of the libraries, in place of what is there. The file is not open
    /// afterwards: only then its content is in images.
    fn map_library(&mut self, first: usize, pages: usize) {
        let Some([one, other]) = self.libraries.clone() else { return };
        let (path, shift) = match self.random.next() % 4 {
            0 => (other, 0),
            1 => (one, first.min(3)),
            _ => (one, 0),
        };
        let file = File::open(path).unwrap();
        let rw = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_FIXED;
        let at = LIBRARIES + first * PAGE;
        let len = pages * PAGE;
        let offset = ((first - shift) * PAGE) as i64;
        // SAFETY: the range is in the arena, where only this program maps memory.
        let got = unsafe { libc::mmap(at as *mut _, len, rw, flags, file.as_raw_fd(), offset) };
        assert_eq!(got as usize, at);
    }

    /// Does to a mapped library what linkers and programs do.
    fn change_library(&mut self) {
        let first = self.below(LIBRARY_PAGES);
        let pages = 1 + self.below((LIBRARY_PAGES - first).min(30));
        let at = LIBRARIES + first * PAGE;
        let word = self.random.next();
        // SAFETY: the range is a mapping of the arena, which is writable but for the moments in
        // between, and within the file.
        unsafe {
            match word % 5 {
                0 | 1 => (at as *mut u64).write_volatile(word),
                // What was written is as in the file again.
                2 => drop(libc::madvise(at as *mut _, pages * PAGE, libc::MADV_DONTNEED)),
                3 => self.map_library(first, pages),
                _ => {
                    libc::mprotect(at as *mut _, pages * PAGE, libc::PROT_NONE);
                    libc::mprotect(at as *mut _, PAGE, libc::PROT_READ);
                    let seen = (at as *const u64).read_volatile();
                    let rw = libc::PROT_READ | libc::PROT_WRITE;
                    libc::mprotect(at as *mut _, pages * PAGE, rw);
                    assert_eq!(seen, (at as *const u64).read_volatile());
                }
            }
        }
    }

    fn below(&mut self, bound: usize) -> usize {
        self.random.next() as usize % bound
    }

    /// A range of pages in a mapping: address and length.
    fn range(&mut self, slot: usize) -> (usize, usize) {
        let (start, len) = self.slots[slot];
        let pages = len / PAGE;
        let first = self.below(pages);
        let count = 1 + self.below((pages - first).min(40));
        (start + first * PAGE, count * PAGE)
    }

    /// Writes to pages of a mapping, here and there.
    fn write(&mut self, slot: usize, count: usize) {
        let (start, len) = self.slots[slot];
        for n in 0..count {
            let page = if count == len / PAGE { n } else { self.below(len / PAGE) };
            let word = self.random.next() | 1;
            let at = start + page * PAGE + (word as usize >> 3) % 512 * 8;
            // SAFETY: the word is within the mapping, which is writable; `guard` removes its guard
            // pages again.
            unsafe { (at as *mut u64).write_volatile(word) };
        }
    }

    fn advise(&mut self, slot: usize, advice: i32) {
        let (at, len) = self.range(slot);
        // SAFETY: the range is memory of the arena, which may lose its content. Advice that the
        // kernel refuses changes nothing.
        unsafe { libc::madvise(at as *mut _, len, advice) };
    }

    fn unmap(&mut self, slot: usize) {
        let (at, len) = self.slots[slot];
        if len > 0 {
            // SAFETY: the range is a mapping of the arena, to which nothing has a reference.
            unsafe { libc::munmap(at as *mut _, len) };
        }
        self.slots[slot] = (ARENA + slot * SLOT, 0);
    }

    /// Makes a mapping in this slot, before other mappings or after the last.
    fn map_anew(&mut self, slot: usize) {
        self.unmap(slot);
        let pages = 1 + self.below(SHORT_PAGES);
        let first = self.below(600);
        let sparse = [0, libc::MAP_NORESERVE][self.below(2)];
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | sparse;
        let at = ARENA + slot * SLOT + first * PAGE;
        let len = pages * PAGE;
        self.slots[slot] = (map(at, len, flags, -1), len);
    }

    fn step(&mut self) {
        if self.libraries.is_some() && self.below(4) == 0 {
            return self.change_library();
        }
        let slot = self.below(SLOTS);
        if self.slots[slot].1 == 0 {
            return self.map_anew(slot);
        }
        match self.below(22) {
            0 | 1 => {
                let count = self.below(30);
                self.write(slot, count)
            }
            // The kernel writes.
            2 => {
                let (at, len) = self.range(slot);
                // SAFETY: the range is within the mapping, which is writable.
                unsafe { libc::getrandom(at as *mut _, len, 0) };
            }
            // Pages become zero.
            3 => {
                let (at, len) = self.range(slot);
                // SAFETY: the range is within the mapping, which is writable.
                unsafe { std::ptr::write_bytes(at as *mut u8, 0, len) };
            }
            // Memory is unmapped, and mapped again at the same place.
            4 => {
                let (at, len) = self.range(slot);
                map(at, len, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1);
                let word = self.random.next();
                // SAFETY: the word is at the beginning of the mapping just made.
                unsafe { (at as *mut u64).write_volatile(word) };
            }
            5 if slot > 0 => self.map_anew(slot),
            6 => self.resize(slot),
            7 => self.move_to_another(slot),
            8 => self.move_beside(slot),
            9 => self.leave_empty(slot),
            10 => self.advise(slot, libc::MADV_DONTNEED),
            11 => self.advise(slot, libc::MADV_FREE),
            12 => self.advise(slot, libc::MADV_HUGEPAGE),
            13 => self.advise(slot, libc::MADV_COLLAPSE),
            14 | 15 if self.forks_whole => self.write(slot, 1),
            14 => {
                let advice = [libc::MADV_DONTFORK, libc::MADV_DOFORK][self.below(2)];
                self.advise(slot, advice)
            }
            15 => {
                let advice = [libc::MADV_WIPEONFORK, libc::MADV_KEEPONFORK][self.below(2)];
                self.advise(slot, advice)
            }
            16 => self.guard(slot),
            17 => self.protect(slot),
            18 => self.fork(slot),
            19 => self.change_file(),
            20 => self.map_file(slot),
            _ => {
                let n = self.below(16);
                let len = self.below(400_000);
                let byte = self.random.next() as u8;
                self.heap[n] = vec![byte; len];
            }
        }
    }

    fn remap(&mut self, (at, len): (usize, usize), to: usize, new_len: usize, flags: i32) -> bool {
        // SAFETY: both ranges are in the arena, where only this program maps memory.
        let got =
            unsafe { libc::mremap(at as *mut _, len, new_len, flags, to as *mut libc::c_void) };
        got != libc::MAP_FAILED
    }

    /// Resizes a mapping in place.
    fn resize(&mut self, slot: usize) {
        let (at, len) = self.slots[slot];
        let new_len = (1 + self.below(2 * SHORT_PAGES)) * PAGE;
        if slot > 0 && self.remap((at, len), 0, new_len, 0) {
            self.slots[slot].1 = new_len;
            self.write(slot, 3);
        }
    }

    fn move_to_another(&mut self, slot: usize) {
        let to = self.below(SLOTS);
        let (at, len) = self.slots[slot];
        if to == slot || to == 0 || slot == 0 {
            return;
        }
        self.unmap(to);
        let place = ARENA + to * SLOT + self.below(700) * PAGE;
        if self.remap((at, len), place, len, libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) {
            self.slots[to] = (place, len);
            self.slots[slot].1 = 0;
        } else {
            self.unmap(slot); // if there are several mappings, some may have moved
        }
    }

    /// Moves a mapping directly behind another one, with which it may merge.
    fn move_beside(&mut self, slot: usize) {
        let to = self.below(SLOTS);
        let ((at, len), (other, other_len)) = (self.slots[slot], self.slots[to]);
        let place = other + other_len;
        let room = ARENA + (to + 1) * SLOT - place;
        if to == slot || to == 0 || slot == 0 || other_len == 0 || len > room {
            return;
        }
        if self.remap((at, len), place, len, libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) {
            self.slots[to].1 += len;
            self.slots[slot].1 = 0;
            self.write(to, 5);
        } else {
            self.unmap(slot);
        }
    }

    /// Moves the pages of a mapping elsewhere, while the mapping stays.
    fn leave_empty(&mut self, slot: usize) {
        let to = self.below(SLOTS);
        let (at, len) = self.slots[slot];
        if to == slot || to == 0 || slot == 0 {
            return;
        }
        self.unmap(to);
        let place = ARENA + to * SLOT;
        const DONTUNMAP: i32 = 4;
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | DONTUNMAP;
        if self.remap((at, len), place, len, flags) {
            self.slots[to] = (place, len);
            self.write(slot, 2);
        } else {
            self.unmap(slot);
        }
    }

    /// Sets guard pages, and removes them before the program accesses them.
    fn guard(&mut self, slot: usize) {
        const INSTALL: i32 = 102;
        const REMOVE: i32 = 103;
        let (at, len) = self.range(slot);
        // SAFETY: the range is memory of the arena, and is not accessed while it has guard pages.
        unsafe {
            libc::madvise(at as *mut _, len, INSTALL);
            libc::madvise(at as *mut _, len, REMOVE);
        }
    }

    /// Makes memory inaccessible and accessible again.
    fn protect(&mut self, slot: usize) {
        let (at, len) = self.range(slot);
        let rw = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the range is memory of the arena, and is not accessed before it is writable
        // again.
        unsafe {
            libc::mprotect(at as *mut _, len, libc::PROT_NONE);
            libc::mprotect(at as *mut _, len, libc::PROT_READ);
            libc::mprotect(at as *mut _, len, rw);
        }
        self.write(slot, 2);
    }

    /// A child writes to the memory that it has inherited, and meanwhile so does the program.
    fn fork(&mut self, slot: usize) {
        let (at, len) = self.slots[slot];
        // SAFETY: the child only writes to its copy of the memory and ends by _exit.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::alarm(10);
                // The child ends at memory that it does not inherit.
                for page in (0..len).step_by(7 * PAGE) {
                    ((at + page) as *mut u64).write_volatile(0x0bad);
                }
                libc::_exit(0);
            }
            self.write(slot, 4);
            assert_eq!(libc::waitpid(child, std::ptr::null_mut(), 0), child);
        }
    }

    /// Writes to a file that is mapped shared, cuts it and makes it longer.
    fn change_file(&mut self) {
        use std::os::unix::fs::FileExt;
        let pages = 1 + self.below(64);
        self.file.set_len((pages * PAGE) as u64).unwrap();
        let offset = self.below(pages) * PAGE + 100;
        let word = self.random.next();
        self.file.write_all_at(&word.to_le_bytes(), offset as u64 % 1000).unwrap();
        // SAFETY: the word is in the first page, which is never cut off.
        unsafe { ((self.shared + 8) as *mut u64).write_volatile(word) };
    }

    /// Replaces memory by a private mapping of a file, and writes to it.
    fn map_file(&mut self, slot: usize) {
        if slot == 0 {
            return;
        }
        self.unmap(slot);
        let pages = self.file.metadata().unwrap().len() as usize / PAGE;
        let at = ARENA + slot * SLOT;
        let len = pages.max(1) * PAGE;
        self.slots[slot] = (map(at, len, libc::MAP_PRIVATE, self.file.as_raw_fd()), len);
        let word = self.random.next();
        // SAFETY: the word is in the first page, which is never cut off.
        unsafe { (at as *mut u64).write_volatile(word) };
        // Later steps could access pages that were cut off the file.
        let copy = map(at + len, PAGE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1);
        self.slots[slot] = (copy, PAGE);
    }
}

/// Pages that hold anything but zeros, by kind, object and address.
type Pages = BTreeMap<(u32, u64, u64), Vec<u8>>;

/// The content of an image, and how much of it is in the stream.
struct Read {
    base: u64,
    pages: Pages,
    content: usize,
    same: u64,
}

fn read(stream: &[u8], earlier: &BTreeMap<u64, Pages>) -> Read {
    let mut reader = ImageReader::new(stream);
    let mut read = Read { base: 0, pages: Pages::new(), content: 0, same: 0 };
    let mut behind = 0;
    while let Some((record, payload)) = reader.next_record().unwrap() {
        match (record.kind, record.flags) {
            (Kind::Base, _) => read.base = record.a,
            (Kind::Pages, PAGES_SAME) => {
                assert!(record.a + 64 * PAGE as u64 >= behind, "windows ascend");
                behind = behind.max(record.a);
                read.same += u64::from(record.b.count_ones());
                for page in (0..64).filter(|n| record.b >> n & 1 != 0) {
                    let key = (0, 0, record.a + page * PAGE as u64);
                    if let Some(content) = earlier[&read.base].get(&key) {
                        assert!(read.pages.insert(key, content.clone()).is_none(), "{key:x?}");
                    }
                }
            }
            (Kind::Pages, PAGES_GUARD) => {
                read.pages.insert((PAGES_GUARD, record.b, record.a), Vec::new());
            }
            (Kind::Pages, flags) => {
                if flags == 0 {
                    assert!(record.a >= behind, "pages ascend");
                    behind = record.a + record.len;
                }
                read.content += payload.len();
                let object = if flags == PAGES_OF_OBJECT { record.b } else { 0 };
                for (n, page) in payload.chunks(PAGE).enumerate() {
                    let key = (flags, object, record.a + (n * PAGE) as u64);
                    if page.iter().any(|b| *b != 0) {
                        assert!(read.pages.insert(key, page.to_vec()).is_none(), "{key:x?}");
                    }
                }
            }
            _ => {}
        }
    }
    read
}

/// Compares images of several programs.
pub fn compare() {
    let mut incremental = 0;
    let mut same = 0;
    let mut content = 0;
    for seed in seeds() {
        println!("seed {seed}");
        let (images, pages, bytes) = compare_one(seed);
        incremental += images;
        same += pages;
        content += bytes;
    }
    let written = content / PAGE as u64;
    println!("{incremental} incremental images: {written} pages written, {same} as they were");
    assert!(same > 4 * written, "too much is sent");
}

fn seeds() -> Vec<u64> {
    let number = |name| std::env::var(name).ok().and_then(|v: String| v.parse::<u64>().ok());
    match number("EYRIE_TEST_SEED") {
        Some(seed) => vec![seed],
        None => {
            let count = if std::env::var_os("EYRIE_TEST_MORE").is_some() { 100 } else { 3 };
            let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_millis() as u64;
            (now..now + count).collect()
        }
    }
}

/// Runs one program. Returns the number of incremental images, the number of unchanged pages in
/// them and the bytes of other pages.
fn compare_one(seed: u64) -> (u64, u64, u64) {
    let dir = make_dir();
    let mut running = start(dir.path(), &["tracked", &seed.to_string()]);
    assert_eq!(running.next_report(), "ready");
    let mut random = Random(seed);
    let mut known: BTreeMap<u64, Pages> = BTreeMap::new();
    let mut last = 0;
    let mut lost = false;
    let mut sums = (0, 0, 0);
    let mut before = Vec::new();
    for image in 1..=ROUNDS {
        // Sometimes the last image was lost, so that the reader has an earlier one or none.
        let base = match random.next() % 8 {
            0 => 0,
            1 => last - last.min(1),
            _ => last,
        };
        let base = if lost { 0 } else { base };
        let stream = ask(&mut running, base);
        let full = ask(&mut running, 0).expect("a child without trust has all memory");
        lost = stream.is_none();
        let Some(stream) = stream else {
            // Its child was trusted to have all memory, but the program has kept some from it.
            assert!(base != 0, "image {image} was lost, although no child was trusted");
            assert!(!forks_whole(seed), "image {image} was lost without a reason");
            last = image;
            continue;
        };
        let changed = read(&stream, &known);
        let full = read(&full, &known);
        assert!(changed.base == 0 || changed.base == last, "builds on {}", changed.base);
        assert_eq!(full.base, 0);
        assert_eq!(changed.base != 0, base != 0 && base == last, "image {image} on {base}");
        if changed.base != 0 {
            sums = (sums.0 + 1, sums.1 + changed.same, sums.2 + changed.content as u64);
        }
        compare_pages(&changed.pages, &full.pages, image);
        if image % 7 == 0 || image == ROUNDS {
            let after = after_others(dir.path(), &before, &stream);
            compare_pages(&read(&after, &known).pages, &full.pages, image);
        }
        before.extend(prepared(image).into_iter().chain(stream));
        known.insert(image, changed.pages);
        last = image;
    }
    running.kill();
    sums
}

/// Whether the images of the program of this seed have the content of mapped files.
fn is_self_contained(seed: u64) -> bool {
    seed % 3 != 0
}

/// Whether the program of this seed keeps no memory from its children.
fn forks_whole(seed: u64) -> bool {
    seed % 2 == 0
}

/// Has the program take an image and returns its stream; `None`: the child that was to write it had
/// not all memory.
fn ask(running: &mut Running, number: u64) -> Option<Vec<u8>> {
    let reader = running.read_image();
    // In one write, because the program reads one number at a time.
    let order = format!("{number}\n");
    let asked = running.input.as_mut().unwrap().write_all(order.as_bytes());
    let child = asked.map_or(String::new(), |()| running.next_report_or_end());
    let Ok(child) = child.parse::<i32>() else {
        running.signal(libc::SIGKILL);
        panic!("{child}")
    };
    let stream = reader.join().unwrap();
    let mut status = 0;
    // SAFETY: the writer is a child of this process (CLONE_PARENT). It ends after it has marked new
    // memory.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    let lacks = libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == writer_exit::TRY_AGAIN;
    (!lacks).then_some(stream)
}

/// The record before an image that another one follows.
fn prepared(image: u64) -> [u8; RECORD_HEADER_LEN] {
    RecordHeader { kind: Kind::Prepared, flags: 0, a: image, b: 0, len: 0 }.encode()
}

/// Restores a process from an image for which earlier ones have put memory in place, and returns a
/// full image of that process.
fn after_others(dir: &Path, before: &[u8], last: &[u8]) -> Vec<u8> {
    let mut running = restore(dir, &[before, last].concat());
    assert_eq!(running.next_report(), "restored");
    let stream = ask(&mut running, 0);
    running.kill();
    stream.expect("a child without trust has all memory")
}

fn compare_pages(changed: &Pages, full: &Pages, image: u64) {
    let keys = changed.keys().chain(full.keys());
    let mut differing: Vec<_> = keys.filter(|key| changed.get(key) != full.get(key)).collect();
    differing.sort();
    differing.dedup();
    let arena = ARENA as u64..(ARENA + (SLOTS + 1) * SLOT) as u64;
    let inside: Vec<_> = differing.iter().filter(|(_, _, at)| arena.contains(at)).collect();
    assert!(inside.is_empty(), "image {image}: {} pages differ: {inside:x?}", inside.len());
    assert!(differing.len() < OWN_PAGES, "image {image}: outside: {differing:x?}");
}
