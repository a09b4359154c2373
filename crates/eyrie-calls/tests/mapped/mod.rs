//! Files that a rank alone maps to be written.

use super::{again, c, close, new, open, read, stand_ins, take, write};
use eyrie_calls::for_provider::{eyrie_calls_come_back, eyrie_calls_note_files};
use libc::{c_int, c_void};
use std::fs;

pub const CASES: [(&str, fn()); 13] = [
    ("mapped to be written", what_is_stored_is_not_there_again),
    ("unmapped", what_was_stored_before_it_was_unmapped_is_in_the_file),
    ("unmapped before", what_is_known_to_be_unmapped_is_others),
    ("mapped twice", two_mappings_of_a_file_have_the_same),
    ("mapped and written", what_is_written_is_in_the_mapping),
    ("mapped and cut", what_is_cut_is_gone_from_the_mapping),
    ("mapped and longer", a_mapping_gets_longer),
    ("mapped and renamed", a_file_that_is_mapped_gets_another_name),
    ("mapped and replaced", another_mapping_in_the_place_of_one_ends_it),
    ("mapped in an image", a_file_does_not_go_back_with_an_image),
    ("mapped to be written later", a_mapping_to_be_read_is_written_later),
    ("mapped to be read", what_is_written_is_in_a_mapping_to_be_read),
    ("mapped again to be read", a_mapping_of_an_image_is_written_later),
];

const PAGE: usize = 4096;
const BOTH: c_int = libc::PROT_READ | libc::PROT_WRITE;

/// A mapping to be written.
struct Mapped(*mut u8, usize);

impl Mapped {
    fn new(file: c_int, len: usize, from: usize) -> Mapped {
        Mapped::with(BOTH, file, len, from)
    }

    fn with(access: c_int, file: c_int, len: usize, from: usize) -> Mapped {
        // SAFETY: the kernel chooses a free place, so that no other memory changes.
        let at = unsafe {
            let any = std::ptr::null_mut();
            libc::mmap(any, len, access, libc::MAP_SHARED, file, from as libc::off_t)
        };
        assert_ne!(at, libc::MAP_FAILED);
        Mapped(at.cast(), len)
    }

    fn get(&self, at: usize) -> u8 {
        // SAFETY: the tests read only within the mapping, which is there until `end`.
        unsafe { self.0.add(at).read_volatile() }
    }

    fn set(&self, at: usize, value: u8) {
        // SAFETY: the tests write only within the mapping, which is there until `end`.
        unsafe { self.0.add(at).write_volatile(value) };
    }

    fn allow(&self, access: c_int) {
        // SAFETY: these pages are of this mapping alone, which has no references into it.
        assert_eq!(unsafe { libc::mprotect(self.0.cast::<c_void>(), self.1, access) }, 0);
    }

    fn end(self) {
        // SAFETY: no code uses it any more.
        assert_eq!(unsafe { libc::munmap(self.0.cast::<c_void>(), self.1) }, 0);
    }
}

fn cut(file: c_int, size: usize) {
    // SAFETY: the call takes numbers only.
    assert_eq!(unsafe { libc::ftruncate(file, size as libc::off_t) }, 0);
}

const MAKE: c_int = libc::O_CREAT | libc::O_RDWR;

/// A file of so many pages.
fn make(path: &str, pages: usize) -> c_int {
    let file = open(path, MAKE);
    cut(file, pages * PAGE);
    file
}

/// The file is executed again from before it was mapped, whatever it has by then.
fn what_is_stored_is_not_there_again() {
    let program = |steps: u8| {
        let file = make("stored", 2);
        let mapped = Mapped::new(file, 2 * PAGE, 0);
        close(file);
        (0..steps).for_each(|_| {
            let n = mapped.get(PAGE) + 1;
            mapped.set(PAGE, n);
            mapped.set(n.into(), n);
        });
        mapped
    };
    take();
    let first = program(5);
    let bytes = take();
    assert_eq!(fs::read("stored").unwrap()[PAGE], 5);
    take();
    first.end();
    take();
    again(&bytes);
    // It has not come as far as before.
    let second = program(3);
    assert_eq!((second.get(PAGE), second.get(3), second.get(5)), (3, 3, 0));
    new();
    let file = fs::read("stored").unwrap();
    assert_eq!((file[PAGE], file[3], file[5]), (3, 3, 0), "the future that is lost is gone");
    second.set(9, 9);
    assert_eq!(fs::read("stored").unwrap()[9], 9, "the file itself is mapped");
    second.end();
    take();
}

fn what_was_stored_before_it_was_unmapped_is_in_the_file() {
    take();
    let file = make("whole", 1);
    let first = Mapped::new(file, PAGE, 0);
    let bytes = take();
    first.set(0, 1);
    first.end();
    close(file);
    take();
    again(&bytes);
    let file = make("whole", 1);
    let second = Mapped::new(file, PAGE, 0);
    (0..100).for_each(|at| second.set(at, 7));
    second.end();
    close(file);
    new();
    assert_eq!(fs::read("whole").unwrap()[..101], [&[7; 100][..], &[0]].concat());
    take();
}

fn what_is_known_to_be_unmapped_is_others() {
    let program = || {
        let file = make("theirs", 1);
        let mapped = Mapped::new(file, PAGE, 0);
        mapped.set(0, mapped.get(0) + 1);
        mapped.end();
        close(file);
    };
    take();
    program();
    let bytes = take();
    fs::write("theirs", "changed by another rank").unwrap();
    take();
    again(&bytes);
    program();
    new();
    assert_eq!(read("theirs"), "changed by another rank");
}

fn two_mappings_of_a_file_have_the_same() {
    let program = || {
        let file = make("both", 3);
        let whole = Mapped::new(file, 3 * PAGE, 0);
        let end = Mapped::new(file, PAGE, 2 * PAGE);
        whole.set(2 * PAGE + 1, whole.get(2 * PAGE + 1) + 1);
        end.set(2, end.get(1) + 1);
        let found = (whole.get(2 * PAGE + 1), whole.get(2 * PAGE + 2));
        let third = Mapped::new(file, 3 * PAGE, 0);
        assert_eq!(third.get(2 * PAGE + 2), found.1);
        close(file);
        (found, [whole, end, third])
    };
    take();
    let (found, all) = program();
    assert_eq!(found, (1, 2));
    let bytes = take();
    for mapped in all {
        mapped.end();
    }
    take();
    again(&bytes);
    let (found, all) = program();
    assert_eq!(found, (1, 2));
    new();
    all[0].set(2 * PAGE + 5, 5);
    assert_eq!((all[1].get(5), fs::read("both").unwrap()[2 * PAGE + 5]), (5, 5));
    for mapped in all {
        mapped.end();
    }
    take();
}

fn what_is_written_is_in_the_mapping() {
    let program = || {
        let file = make("written", 1);
        let mapped = Mapped::new(file, PAGE, 0);
        mapped.set(0, b'a');
        write(file, "xqz");
        mapped.set(1, mapped.get(0) + 1);
        close(file);
        mapped
    };
    take();
    let first = program();
    let bytes = take();
    first.set(0, b'!');
    first.end();
    take();
    again(&bytes);
    let second = program();
    new();
    assert_eq!(&fs::read("written").unwrap()[..3], b"xyz");
    second.end();
    take();
}

fn what_is_cut_is_gone_from_the_mapping() {
    let program = || {
        let file = make("cut", 2);
        let mapped = Mapped::new(file, 2 * PAGE, 0);
        mapped.set(PAGE, 1);
        cut(file, 10);
        cut(file, 2 * PAGE);
        assert_eq!(mapped.get(PAGE), 0);
        close(file);
        mapped
    };
    take();
    let first = program();
    let bytes = take();
    first.end();
    take();
    // In the future that is lost it was cut, too.
    fs::write("cut", "").unwrap();
    take();
    again(&bytes);
    let second = program();
    new();
    assert_eq!((second.get(PAGE), fs::metadata("cut").unwrap().len()), (0, 2 * PAGE as u64));
    second.end();
    take();
}

fn a_mapping_gets_longer() {
    let program = || {
        let file = make("longer", 3);
        write(file, "front");
        // SAFETY: text as long as said.
        unsafe { libc::pwrite(file, b"behind".as_ptr().cast(), 6, 2 * PAGE as libc::off_t) };
        let mapped = Mapped::new(file, PAGE, 0);
        close(file);
        // SAFETY: no code uses the old one now.
        let at = unsafe { libc::mremap(mapped.0.cast(), PAGE, 3 * PAGE, libc::MREMAP_MAYMOVE) };
        assert_ne!(at, libc::MAP_FAILED);
        let mapped = Mapped(at.cast(), 3 * PAGE);
        let found = (mapped.get(0), mapped.get(2 * PAGE));
        mapped.set(2 * PAGE, b'B');
        (found, mapped)
    };
    take();
    let (found, first) = program();
    assert_eq!(found, (b'f', b'b'));
    let bytes = take();
    first.end();
    take();
    again(&bytes);
    let (found, second) = program();
    assert_eq!(found, (b'f', b'b'));
    new();
    assert_eq!(&fs::read("longer").unwrap()[2 * PAGE..2 * PAGE + 6], b"Behind");
    second.end();
    take();
}

fn a_file_that_is_mapped_gets_another_name() {
    let program = || {
        let file = make("a", 1);
        let mapped = Mapped::new(file, PAGE, 0);
        mapped.set(0, mapped.get(0) + 1);
        // SAFETY: C strings, which live through the call.
        assert_eq!(unsafe { libc::rename(c("a").as_ptr(), c("b").as_ptr()) }, 0);
        close(file);
        mapped
    };
    take();
    let first = program();
    let bytes = take();
    first.set(7, 7);
    first.end();
    take();
    again(&bytes);
    let second = program();
    assert!(stand_ins() > 0);
    new();
    assert_eq!((fs::read("b").unwrap()[0], fs::read("b").unwrap()[7]), (1, 0));
    assert!(fs::metadata("a").is_err());
    second.set(8, 8);
    assert_eq!(fs::read("b").unwrap()[8], 8);
    second.end();
    take();
}

fn another_mapping_in_the_place_of_one_ends_it() {
    let program = || {
        let file = make("gone", 1);
        let mapped = Mapped::new(file, PAGE, 0);
        mapped.set(0, mapped.get(0) + 1);
        close(file);
        // SAFETY: no code uses the old one now.
        let at = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
            libc::mmap(mapped.0.cast(), PAGE, BOTH, flags, -1, 0)
        };
        assert_eq!(at, mapped.0.cast());
        mapped
    };
    take();
    let first = program();
    let bytes = take();
    first.end();
    fs::write("gone", "changed").unwrap();
    take();
    again(&bytes);
    let second = program();
    new();
    assert_eq!((read("gone"), second.get(0)), ("changed".into(), 0));
    second.end();
    take();
}

fn a_file_does_not_go_back_with_an_image() {
    let file = make("imaged", 2);
    let mapped = Mapped::new(file, 2 * PAGE, 0);
    mapped.set(PAGE, 1);
    take();
    // SAFETY: no other code uses files now.
    assert!(unsafe { eyrie_calls_note_files() });
    let step = || {
        mapped.set(PAGE, mapped.get(PAGE) + 1);
        write(file, "told");
    };
    step();
    let bytes = take();
    mapped.set(PAGE, 9);
    // The restorer leaves memory there, with what was there.
    // SAFETY: what was mapped there is not used any more.
    unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        let place = (mapped.0, 2 * PAGE, BOTH, flags, -1, 0);
        let (at, len, access, flags, none, from) = place;
        let made = libc::syscall(libc::SYS_mmap, at, len, access, flags, none, from);
        assert_eq!(made, mapped.0 as i64);
        mapped.set(PAGE, 1);
        again(&bytes);
        eyrie_calls_come_back();
        libc::lseek(file, 0, libc::SEEK_SET);
    }
    let there = || {
        let mut byte = [0u8];
        let mut file = fs::File::open("imaged").unwrap();
        std::io::Seek::seek(&mut file, std::io::SeekFrom::Start(PAGE as u64)).unwrap();
        std::io::Read::read_exact(&mut file, &mut byte).unwrap();
        byte[0]
    };
    let without_us = |f: &dyn Fn() -> u8| {
        let entered = eyrie_calls::for_provider::eyrie_calls_enter();
        let found = f();
        eyrie_calls::for_provider::eyrie_calls_leave(entered);
        found
    };
    assert_eq!((mapped.get(PAGE), without_us(&there)), (1, 9));
    step();
    assert_eq!((mapped.get(PAGE), mapped.get(0), without_us(&there)), (2, b't', 9));
    new();
    assert_eq!(without_us(&there), 2);
    mapped.set(PAGE, 3);
    assert_eq!(without_us(&there), 3);
    close(file);
    mapped.end();
    take();
}

fn a_mapping_to_be_read_is_written_later() {
    let program = |steps: u8| {
        let file = make("later", 1);
        let mapped = Mapped::with(libc::PROT_READ, file, PAGE, 0);
        close(file);
        let before = mapped.get(1);
        mapped.allow(BOTH);
        (0..steps).for_each(|_| mapped.set(1, mapped.get(1) + 1));
        (before, mapped)
    };
    take();
    let (before, first) = program(5);
    assert_eq!(before, 0);
    let bytes = take();
    first.end();
    take();
    again(&bytes);
    let (before, second) = program(3);
    assert_eq!((before, second.get(1)), (0, 3));
    new();
    assert_eq!(fs::read("later").unwrap()[1], 3);
    second.set(1, 4);
    assert_eq!(fs::read("later").unwrap()[1], 4);
    second.end();
    take();
}

fn what_is_written_is_in_a_mapping_to_be_read() {
    let program = || {
        let file = make("database", 1);
        let mapped = Mapped::with(libc::PROT_READ, file, PAGE, 0);
        let before = mapped.get(0);
        write(file, "xyz");
        let found = (before, mapped.get(0), mapped.get(2));
        close(file);
        (found, mapped)
    };
    take();
    let (found, first) = program();
    assert_eq!(found, (0, b'x', b'z'));
    let bytes = take();
    first.end();
    fs::write("database", "lost future").unwrap();
    take();
    again(&bytes);
    let (found, second) = program();
    assert_eq!(found, (0, b'x', b'z'));
    new();
    fs::write("database", "the file itself").unwrap();
    assert_eq!(second.get(0), b't', "the file itself is mapped");
    second.end();
    take();
}

/// The restorer maps such a file by a descriptor that only reads.
fn a_mapping_of_an_image_is_written_later() {
    let file = make("restored", 1);
    let mapped = Mapped::with(libc::PROT_READ, file, PAGE, 0);
    let readable = open("restored", libc::O_RDONLY);
    // SAFETY: what was mapped there is not used any more.
    unsafe {
        let flags = libc::MAP_SHARED | libc::MAP_FIXED;
        let at = mapped.0;
        let none = libc::PROT_READ;
        let made = libc::syscall(libc::SYS_mmap, at, PAGE, none, flags, readable, 0);
        assert_eq!(made, mapped.0 as i64);
    }
    mapped.allow(BOTH);
    mapped.set(3, 3);
    assert_eq!(fs::read("restored").unwrap()[3], 3);
    close(readable);
    close(file);
    mapped.end();
    take();
}
