//! What a rank has done to files is not done again: this program has our functions linked in
//! instead of preloaded, and is the provider, too. Each case runs in a directory of its own, once
//! from its start and then again with all or a part of what was recorded known.

mod kinds;
mod mapped;
mod provider;

use eyrie_calls::for_provider::*;
use eyrie_calls::rank_start::eyrie_calls_begin;
use eyrie_calls::table::TABLE;
use provider::{again, take};
use std::collections::BTreeSet;
use std::ffi::{CStr, CString};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The rank does something new.
fn new() {
    // SAFETY: this program is no rank and has no other user of the stream.
    unsafe { eyrie_calls_new() };
}

fn stand_ins() -> usize {
    TABLE.standing_in.load(Ordering::Relaxed)
}

/// Files that this program writes its words to: they are open in its images, too.
fn inherited() -> usize {
    let file = |fd: i32| {
        let file = fs::metadata(format!("/proc/self/fd/{fd}")).ok().filter(|file| file.is_file());
        file.map(|file| (file.dev(), file.ino()))
    };
    [1, 2].into_iter().filter_map(file).collect::<BTreeSet<_>>().len()
}

fn c(path: &str) -> CString {
    CString::new(path).unwrap()
}

fn open(path: &str, flags: i32) -> i32 {
    // SAFETY: a C string, which lives through the call.
    unsafe { libc::open(c(path).as_ptr(), flags, 0o644) }
}

fn write(fd: i32, text: &str) {
    // SAFETY: the text is as long as said.
    let n = unsafe { libc::write(fd, text.as_ptr().cast(), text.len()) };
    assert_eq!(n, text.len() as isize);
}

fn close(fd: i32) {
    // SAFETY: the call takes numbers only.
    assert_eq!(unsafe { libc::close(fd) }, 0);
}

fn rename(old: &str, new: &str) -> i32 {
    // SAFETY: C strings, which live through the call.
    unsafe { libc::rename(c(old).as_ptr(), c(new).as_ptr()) }
}

fn unlink(path: &str) -> i32 {
    // SAFETY: a C string, which lives through the call.
    unsafe { libc::unlink(c(path).as_ptr()) }
}

fn mkdir(path: &str) -> i32 {
    // SAFETY: a C string, which lives through the call.
    unsafe { libc::mkdir(c(path).as_ptr(), 0o755) }
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap()
}

/// A program writes a file with stdio.
fn print(path: &str, mode: &CStr, text: &str) {
    // SAFETY: C strings, and a stream that was opened.
    unsafe {
        let file = libc::fopen(c(path).as_ptr(), mode.as_ptr());
        assert!(!file.is_null(), "{path}: {}", std::io::Error::last_os_error());
        assert_eq!(libc::fwrite(text.as_ptr().cast(), 1, text.len(), file), text.len());
        assert_eq!(libc::fclose(file), 0);
    }
}

const MAKE: i32 = libc::O_CREAT | libc::O_EXCL | libc::O_RDWR;
const APPEND: i32 = libc::O_CREAT | libc::O_APPEND | libc::O_WRONLY;
const ANEW: i32 = libc::O_CREAT | libc::O_TRUNC | libc::O_WRONLY;

/// Runs `program` in an empty directory, and again with all that is known of it: it gets the same
/// results, and the files stay as they are.
fn twice<R: PartialEq + std::fmt::Debug>(program: impl Fn() -> R) {
    take();
    let first = program();
    let bytes = take();
    let before = tree();
    again(&bytes);
    assert_eq!(program(), first);
    assert_eq!(tree(), before, "something was done twice");
    new();
    assert_eq!((tree(), stand_ins()), (before, 0));
    assert!(take().is_empty());
}

/// All files with their content, which the program does not look at.
fn tree() -> Vec<(String, String)> {
    let entered = eyrie_calls_enter();
    let mut all: Vec<_> = fs::read_dir(".")
        .unwrap()
        .map(|entry| {
            let path = entry.unwrap().path();
            let content = if path.is_dir() { "/".into() } else { read(path.to_str().unwrap()) };
            (path.to_string_lossy().into_owned(), content)
        })
        .collect();
    all.sort();
    eyrie_calls_leave(entered);
    all
}

fn names_are_changed_once() {
    print("a", c"w", "first");
    twice(|| {
        let renamed = rename("a", "b");
        print("a", c"w", "second");
        let made = [mkdir("d"), mkdir("d")];
        (renamed, made, rename("none", "x"), unlink("none"))
    });
    assert_eq!((read("a"), read("b")), ("second".into(), "first".into()));
    twice(|| {
        // SAFETY: C strings, which live through the call.
        let linked = unsafe { libc::link(c"b".as_ptr(), c"c".as_ptr()) };
        let gone = [unlink("b"), unlink("b")];
        // SAFETY: C strings, which live through the call.
        let directory = unsafe { [libc::rmdir(c"d".as_ptr()), libc::rmdir(c"d".as_ptr())] };
        (linked, gone, directory)
    });
    assert_eq!(read("c"), "first");
}

fn a_file_without_a_name_gets_one_once() {
    twice(|| {
        let file = open(".", libc::O_TMPFILE | libc::O_RDWR);
        write(file, "whole");
        let old = c(&format!("/proc/self/fd/{file}"));
        let here = libc::AT_FDCWD;
        let name = |new: &CStr| {
            // SAFETY: C strings, which live through the call.
            unsafe { libc::linkat(here, old.as_ptr(), here, new.as_ptr(), libc::AT_SYMLINK_FOLLOW) }
        };
        let named = [name(c"named"), name(c"named"), name(c"again")];
        close(file);
        named
    });
    assert_eq!([read("named"), read("again")], ["whole", "whole"]);
}

fn what_is_made_under_another_name_is_read_back() {
    // More of them than there are stand-ins.
    for _ in 0..70 {
        twice(|| {
            let file = open("new", MAKE);
            write(file, "whole");
            close(file);
            assert_eq!((open("new", MAKE), read("new")), (-1, "whole".into()));
            assert_eq!(fs::metadata("new").unwrap().len(), 5);
            rename("new", "result")
        });
        assert_eq!(read("result"), "whole");
    }
}

/// Every prefix of what is known, with what was done until then and a bit more.
fn a_rank_that_died_goes_on_from_there() {
    for done in 0..4 {
        let step = |n: usize, file: &mut i32| match n {
            0 => *file = open("lock", MAKE),
            1 => write(*file, "mine"),
            2 => close(*file),
            _ => assert_eq!(rename("lock", "unlocked"), 0),
        };
        take();
        let mut file = -1;
        (0..=done).for_each(|n| step(n, &mut file));
        again(&take());
        if done < 2 {
            close(file);
        }
        file = -1;
        (0..4).for_each(|n| step(n, &mut file));
        new();
        assert_eq!((read("unlocked"), Path::new("lock").exists()), ("mine".into(), false));
        assert_eq!(unlink("unlocked"), 0);
    }
}

fn an_intent_that_nothing_came_of_is_carried_out() {
    take();
    print("x", c"w", "x");
    assert_eq!(rename("x", "y"), 0);
    let bytes = take();
    // The result is the last record: two bytes in front of it, four, one number, and its end.
    fs::rename("y", "x").unwrap();
    again(&bytes[..bytes.len() - 8]);
    print("x", c"w", "x");
    assert_eq!(rename("x", "y"), 0);
    assert_eq!((read("y"), Path::new("x").exists()), ("x".into(), false));
}

fn a_log_has_each_line_once() {
    print("log", c"w", "0\n");
    take();
    print("log", c"a", "1\n");
    let known_bytes = take();
    // It died when it had written the next line, too, and another rank has.
    print("log", c"a", "2\n");
    let more = take();
    again(&[known_bytes, more].concat());
    print("log", c"a", "1\n");
    print("log", c"a", "2\n");
    new();
    assert_eq!(read("log"), "0\n1\n2\n");
    // It died when it had opened the log and written a part.
    take();
    let file = open("log", APPEND);
    let bytes = take();
    write(file, "3");
    close(file);
    again(&bytes);
    let file = open("log", APPEND);
    write(file, "3\n");
    new();
    write(file, "4\n");
    close(file);
    assert_eq!(read("log"), "0\n1\n2\n3\n4\n");
}

fn others_may_append_meanwhile() {
    // What other threads do is not recorded.
    let other = |text: &'static str| {
        let append = move || fs::write("common", read("common") + text).unwrap();
        std::thread::spawn(append).join().unwrap();
    };
    take();
    let file = open("common", APPEND);
    write(file, "a1\n");
    other("b1\n");
    write(file, "a2\n");
    other("b2\n");
    let bytes = take();
    close(file);
    again(&bytes);
    let file = open("common", APPEND);
    write(file, "a1\n");
    write(file, "a2\n");
    new();
    write(file, "a3\n");
    close(file);
    assert_eq!(read("common"), "a1\nb1\na2\nb2\na3\n");
}

fn a_file_that_is_written_anew_loses_the_lost_future() {
    take();
    let file = open("out", ANEW);
    write(file, "one\n");
    let bytes = take();
    write(file, "lost future\n");
    close(file);
    again(&bytes);
    let file = open("out", ANEW);
    // SAFETY: the call takes numbers only.
    let other = unsafe { libc::dup(file) };
    write(file, "one\n");
    write(other, "two\n");
    // As others see it.
    let seen = std::thread::spawn(|| read("out")).join().unwrap();
    assert_eq!((seen.as_str(), read("out").as_str()), ("one\ntwo\n", "one\ntwo\n"));
    new();
    assert_eq!(read("out"), "one\ntwo\n");
    write(file, "three\n");
    write(other, "four\n");
    close(file);
    close(other);
    assert_eq!(read("out"), "one\ntwo\nthree\nfour\n");
}

/// The rank computes its second result from what it reads by then, but that it has the name is
/// known.
fn what_was_closed_before_something_known_is_in_its_file() {
    let result = |text| {
        print("new", c"w", text);
        assert_eq!(rename("new", "result"), 0);
    };
    take();
    result("2");
    again(&take());
    result("3");
    new();
    assert_eq!(read("result"), "2");
}

/// A counter is read and written in the same place.
fn what_is_changed_in_place_is_changed_once() {
    print("counter", c"w", "5");
    let count = || {
        let mut digit = [0u8; 1];
        // SAFETY: a C string and one byte.
        unsafe {
            let file = libc::fopen(c"counter".as_ptr(), c"r+".as_ptr());
            assert_eq!(libc::fread(digit.as_mut_ptr().cast(), 1, 1, file), 1);
            digit[0] += 1;
            libc::rewind(file);
            assert_eq!(libc::fwrite(digit.as_ptr().cast(), 1, 1, file), 1);
            assert_eq!(libc::fclose(file), 0);
        }
        digit[0]
    };
    twice(|| [count(), count()]);
    assert_eq!(read("counter"), "7");
    // It died when it had opened it: whether it had written is not known.
    take();
    assert_eq!(count(), b'8');
    again(&take());
    assert_eq!(count(), b'8');
    new();
    assert_eq!(read("counter"), "8");
}

fn a_file_of_several_ranks_keeps_what_others_write() {
    let place = |at: usize, byte: u8| {
        // SAFETY: one byte, and a descriptor that was opened.
        unsafe {
            let file = open("shared", libc::O_CREAT | libc::O_RDWR);
            assert_eq!(libc::pwrite(file, (&raw const byte).cast(), 1, at as i64), 1);
            file
        }
    };
    take();
    close(place(9, b'a'));
    let bytes = take();
    close(place(1, b'b'));
    std::thread::spawn(move || {
        fs::write("shared", b"0123456789").unwrap();
    })
    .join()
    .unwrap();
    again(&bytes);
    close(place(9, b'a'));
    let kept = place(1, b'b');
    new();
    assert_eq!(read("shared"), "0b23456789");
    close(kept);
}

/// Two ranks want the same directory; this one has died when it was about to make it.
fn a_directory_that_another_rank_has_made_is_not_ours() {
    for another in [true, false] {
        take();
        assert_eq!(mkdir("lock"), 0);
        let bytes = take();
        if another {
            fs::remove_dir("lock").unwrap();
            fs::create_dir("lock").unwrap();
        }
        again(&bytes[..bytes.len() - 8]);
        assert_eq!(mkdir("lock"), if another { -1 } else { 0 });
        assert_eq!(tree().len(), 1, "{:?}", tree());
        fs::remove_dir("lock").unwrap();
    }
}

/// A rank that finds a lock taken has not taken it, even if it is released at that moment: no
/// record would say so.
fn a_lock_that_is_released_meanwhile_is_not_taken_in_secret() {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // What other threads do is not recorded.
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                let _ = fs::create_dir("lock").and_then(|()| fs::remove_dir("lock"));
            }
        });
        for _ in 0..300 {
            take();
            let mut found_taken = 0;
            while mkdir("lock") != 0 {
                found_taken += 1;
            }
            let bytes = take();
            again(&bytes[..bytes.len() - 8]);
            let tries: Vec<_> = (0..=found_taken).map(|_| mkdir("lock")).collect();
            if tries.last() != Some(&0) {
                over.store(true, Ordering::Relaxed);
                panic!("its own lock keeps it out");
            }
            fs::remove_dir("lock").unwrap();
        }
        over.store(true, Ordering::Relaxed);
    });
}

/// What is known ends in the middle of a record.
fn half_a_record_is_none() {
    take();
    print("x", c"w", "x");
    let bytes = take();
    again(&bytes[..bytes.len() - 3]);
    print("x", c"w", "x");
    let rest = take();
    again(&[&bytes[..bytes.len() - 3], &rest].concat());
    print("x", c"w", "x");
    assert_eq!(stand_ins(), 1);
    new();
    assert!(take().is_empty());
}

/// What was noted for an image goes on from there.
fn files_that_are_open_in_an_image_go_back() {
    let file = open("log", APPEND);
    write(file, "0\n");
    take();
    // SAFETY: no other thread runs, so all others stand still.
    assert!(unsafe { eyrie_calls_note_files() });
    let appended = |text| {
        write(file, text);
        close(file);
        let file = open("log", APPEND);
        write(file, "2\n");
        file
    };
    let rest = appended("1\n");
    let bytes = take();
    close(rest);
    // It comes back.
    assert_eq!(open("log", libc::O_WRONLY | libc::O_APPEND), file);
    take();
    again(&bytes);
    // SAFETY: only this thread runs, as in a process that was just restored.
    unsafe { eyrie_calls_come_back() };
    assert_eq!(stand_ins(), 1 + inherited());
    let rest = appended("1\n");
    new();
    write(rest, "3\n");
    close(rest);
    assert_eq!(read("log"), "0\n1\n2\n3\n");
}

/// A message that a rank sends is new to its router, but what it wrote behind that is known:
/// nothing of it is cut off.
fn a_new_message_may_come_before_what_is_known_to_be_written() {
    let file = open("steps", libc::O_RDWR | libc::O_CREAT);
    write(file, "0\n");
    take();
    // SAFETY: no other thread runs, so all others stand still.
    assert!(unsafe { eyrie_calls_note_files() });
    write(file, "1\n");
    write(file, "2\n");
    let bytes = take();
    // It comes back, with the place in the file that it had then.
    // SAFETY: the call takes numbers only.
    assert_eq!(unsafe { libc::lseek(file, 2, libc::SEEK_SET) }, 2);
    take();
    again(&bytes);
    // SAFETY: only this thread runs, as in a process that was just restored.
    unsafe { eyrie_calls_come_back() };
    write(file, "1\n");
    new();
    write(file, "2\n");
    new();
    write(file, "3\n");
    close(file);
    assert_eq!(read("steps"), "0\n1\n2\n3\n");
}

/// An image was taken between reading and writing in place.
fn a_small_file_that_is_open_in_an_image_has_what_it_had() {
    print("count", c"w", "5");
    let file = open("count", libc::O_RDWR);
    take();
    // SAFETY: no other thread runs, so all others stand still.
    assert!(unsafe { eyrie_calls_note_files() });
    let put = |byte: u8| {
        // SAFETY: one byte is read, of a variable that lives through the call.
        assert_eq!(unsafe { libc::pwrite(file, (&raw const byte).cast(), 1, 0) }, 1);
    };
    let has = || {
        let mut byte = 0u8;
        // SAFETY: one byte is written, to a variable that lives through the call.
        assert_eq!(unsafe { libc::pread(file, (&raw mut byte).cast(), 1, 0) }, 1);
        byte
    };
    assert_eq!(has(), b'5');
    // What it has read is with a router before it changes it.
    let bytes = take();
    put(b'6');
    put(b'7');
    again(&bytes);
    // SAFETY: only this thread runs, as in a process that was just restored.
    unsafe { eyrie_calls_come_back() };
    assert_eq!(has(), b'5');
    put(b'6');
    new();
    assert_eq!(read("count"), "6");
    close(file);
}

/// What other threads do is not recorded.
fn another(does: impl FnOnce() + Send) {
    std::thread::scope(|scope| scope.spawn(does).join().unwrap());
}

/// A line by the C library's stream, which reads its file by a table of its own.
fn line(path: &str) -> String {
    let mut room = [0u8; 64];
    // SAFETY: C strings, and a stream that was opened.
    unsafe {
        let file = libc::fopen(c(path).as_ptr(), c"r".as_ptr());
        assert!(!file.is_null(), "{path}: {}", std::io::Error::last_os_error());
        libc::fgets(room.as_mut_ptr().cast(), 64, file);
        libc::fclose(file);
    }
    CStr::from_bytes_until_nul(&room).unwrap().to_str().unwrap().to_owned()
}

fn names(path: &str) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(path)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// Everything that a program can find out about files, in every way that it has.
fn what_was_observed_is_observed_again() {
    print("a", c"w", "before\n");
    print("gone", c"w", "was here");
    let look = || {
        let file = open("a", libc::O_RDONLY);
        // SAFETY: the call takes numbers only.
        let end = unsafe { libc::lseek(file, 0, libc::SEEK_END) };
        close(file);
        let gone = fs::metadata("gone").map(|about| (about.len(), about.ino()));
        let there = [c"gone", c"new"].map(|path| {
            // SAFETY: a C string, which lives through the call.
            unsafe { libc::access(path.as_ptr(), libc::F_OK) }
        });
        (line("a"), read("a"), end, gone.ok(), there, names("."), Path::new("new").exists())
    };
    take();
    let first = look();
    let bytes = take();
    another(|| {
        fs::write("a", "changed since, and longer\n").unwrap();
        fs::remove_file("gone").unwrap();
        fs::write("new", "new").unwrap();
    });
    again(&bytes);
    assert_eq!(look(), first);
    new();
    let now = look();
    assert_eq!((now.0.as_str(), now.4, now.6), ("changed since, and longer\n", [-1, 0], true));
}

/// What others write in the place of what a rank has written stays.
fn what_is_known_to_be_written_is_not_written_again() {
    let program = || {
        let file = open("shared", libc::O_CREAT | libc::O_RDWR);
        write(file, "aaaa");
        // SAFETY: four bytes are read, of a constant that has as many.
        let placed = unsafe { libc::pwrite(file, b"bbbb".as_ptr().cast(), 4, 8) };
        // SAFETY: the call takes numbers only.
        let cut = unsafe { libc::ftruncate(file, 10) };
        write(file, "cc");
        close(file);
        print("log", c"a", "line\n");
        (placed, cut)
    };
    take();
    let first = program();
    let bytes = take();
    another(|| {
        fs::write("shared", "others have this").unwrap();
        fs::write("log", "turned over\n").unwrap();
    });
    again(&bytes);
    assert_eq!(program(), first);
    new();
    assert_eq!([read("shared"), read("log")], ["others have this", "turned over\n"]);
}

/// It was released, and another process has it by now.
fn a_lock_that_was_released_is_not_taken_again() {
    let lock = |file, how| {
        // SAFETY: the call takes numbers only.
        assert_eq!(unsafe { libc::flock(file, how) }, 0);
    };
    take();
    let file = open("lock", libc::O_CREAT | libc::O_RDWR);
    lock(file, libc::LOCK_EX);
    lock(file, libc::LOCK_UN);
    let bytes = take();
    close(file);
    let others = std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let file = open("lock", libc::O_RDWR);
            lock(file, libc::LOCK_EX);
            file
        });
        other.join().unwrap()
    });
    again(&bytes);
    let file = open("lock", libc::O_CREAT | libc::O_RDWR);
    lock(file, libc::LOCK_EX);
    lock(file, libc::LOCK_UN);
    new();
    // SAFETY: the call takes numbers only.
    let tried = unsafe { libc::flock(file, libc::LOCK_EX | libc::LOCK_NB) };
    assert_eq!(tried, -1, "another has it");
    another(|| close(others));
    close(file);
    // It dies while it has it.
    take();
    let file = open("lock", libc::O_RDWR);
    lock(file, libc::LOCK_EX);
    let bytes = take();
    close(file);
    again(&bytes);
    let file = open("lock", libc::O_RDWR);
    lock(file, libc::LOCK_EX);
    new();
    let is_locked = std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let file = open("lock", libc::O_RDWR);
            // SAFETY: the call takes numbers only.
            let tried = unsafe { libc::flock(file, libc::LOCK_EX | libc::LOCK_NB) };
            close(file);
            tried == -1
        });
        other.join().unwrap()
    });
    assert!(is_locked, "it was not taken again");
    close(file);
}

/// Two ranks change parts of one block, which each reads and writes back under a lock.
fn only_what_was_changed_is_written_back() {
    print("block", c"w", "................");
    let change = |at: usize| {
        let mut block = [0u8; 16];
        // SAFETY: a descriptor, and as many bytes as said.
        unsafe {
            let file = open("block", libc::O_RDWR);
            assert_eq!(libc::lockf(file, libc::F_LOCK, 16), 0);
            assert_eq!(libc::pread(file, block.as_mut_ptr().cast(), 16, 0), 16);
            let bytes = take();
            block[at] = b'a';
            assert_eq!(libc::pwrite(file, block.as_ptr().cast(), 16, 0), 16);
            assert_eq!(libc::lockf(file, libc::F_ULOCK, 16), 0);
            close(file);
            bytes
        }
    };
    take();
    let bytes = change(3);
    another(|| fs::write("block", ".......b........").unwrap());
    again(&bytes);
    change(3);
    assert_eq!(read("block"), "...a...b........");
}

/// A block ends behind the file, and another one begins there. What the buffer has there is not the
/// rank's: others may have written to its place since.
fn what_a_short_read_leaves_in_a_buffer_is_not_written_back() {
    let change = |place: i64, n: isize| {
        let mut block = [b'x'; 16];
        // SAFETY: a descriptor, and as many bytes as said.
        unsafe {
            let file = open("short", libc::O_RDWR);
            libc::lseek(file, place, libc::SEEK_SET);
            assert_eq!(libc::lockf(file, libc::F_LOCK, 16), 0);
            assert_eq!(libc::pread(file, block.as_mut_ptr().cast(), 16, place), n);
            let bytes = take();
            (block[3], block[9]) = (b'a', b'a');
            assert_eq!(libc::pwrite(file, block.as_ptr().cast(), 16, place), 16);
            assert_eq!(libc::lockf(file, libc::F_ULOCK, 16), 0);
            close(file);
            bytes
        }
    };
    for (place, before) in [(0, "wwww"), (4, "")] {
        print("short", c"w", "wwww");
        take();
        let bytes = change(place, 4 - place as isize);
        let block = || read("short")[place as usize..].to_string();
        assert!(block().ends_with("a\0\0\0\0\0a\0\0\0\0\0\0"), "{:?}", block());
        for (now, then) in [
            ("..bb..bb....", "..bb.abb...."),
            ("\0\0bb\0\0bb", "\0\0bb\0abb\0\0\0\0"),
            ("", "\0\0\0\0\0a\0\0\0\0\0\0"),
        ] {
            // Four bytes of the block, of which the rank changes the last one.
            let first = if before.is_empty() { "wwwwcccc" } else { before };
            another(|| fs::write("short", [first, now].concat()).unwrap());
            again(&bytes);
            change(place, 4 - place as isize);
            let kept = if before.is_empty() { "ccca" } else { "wwwa" };
            assert_eq!(block(), [kept, then].concat());
        }
    }
}

/// Under one lock a rank writes a block twice, back to what it was, and behind what it has read.
fn what_is_written_twice_under_a_lock_is_written_twice() {
    let change = || {
        let mut block = [0u8; 24];
        // SAFETY: a descriptor, and as many bytes as said.
        unsafe {
            let file = open("twice", libc::O_RDWR);
            assert_eq!(libc::lockf(file, libc::F_LOCK, 32), 0);
            assert_eq!(libc::pread(file, block.as_mut_ptr().cast(), 16, 0), 16);
            let bytes = take();
            let before = block;
            block[3] = b'a';
            assert_eq!(libc::pwrite(file, block.as_ptr().cast(), 24, 0), 24);
            assert_eq!(libc::pwrite(file, before.as_ptr().cast(), 16, 0), 16);
            assert_eq!(libc::lockf(file, libc::F_ULOCK, 32), 0);
            close(file);
            bytes
        }
    };
    print("twice", c"w", "................++++++++");
    take();
    let bytes = change();
    again(&bytes);
    print("twice", c"w", "................++++++++");
    again(&bytes);
    change();
    assert_eq!(read("twice"), "................\0\0\0\0\0\0\0\0");
}

/// A helper counts how often it is run.
fn what_has_ended_is_not_started_again() {
    // What a handler of this C library does with a signal of its own is no part of this.
    let program = || {
        // SAFETY: C strings, room of the size that is said, and a child that only executes or ends.
        unsafe {
            let status = libc::system(c"echo run >> runs; exit 3".as_ptr());
            let pipe = libc::popen(c"echo piped >> runs; cat runs | wc -l".as_ptr(), c"r".as_ptr());
            let mut said = [0u8; 32];
            libc::fgets(said.as_mut_ptr().cast(), 32, pipe);
            let closed = libc::pclose(pipe);
            let child = libc::fork();
            if child == 0 {
                libc::execl(
                    c"/bin/sh".as_ptr(),
                    c"sh".as_ptr(),
                    c"-c".as_ptr(),
                    c"echo child >> runs; exit 5".as_ptr(),
                    std::ptr::null::<libc::c_char>(),
                );
                libc::_exit(1);
            }
            let mut ended = 0;
            let waited = libc::waitpid(child, &mut ended, 0);
            (status, said, closed, child == waited, ended)
        }
    };
    take();
    let first = program();
    let bytes = take();
    assert_eq!(first.1[..1], *b"2");
    again(&bytes);
    assert_eq!(program(), first);
    new();
    assert_eq!(read("runs"), "run\npiped\nchild\n");
    // The end of the last one is not known: it runs again.
    take();
    let first = program();
    let bytes = take();
    let last = bytes.len() - 16;
    again(&bytes[..last]);
    assert_eq!(program().4, first.4);
    assert_eq!(read("runs").lines().filter(|line| *line == "child").count(), 3);
}

/// A file gets longer, and shorter, and longer than that: replayed, it keeps its last length.
fn a_file_keeps_its_length() {
    let program = || {
        let file = open("resized", libc::O_CREAT | libc::O_RDWR);
        // SAFETY: the call takes numbers only.
        let set = |size| unsafe { libc::ftruncate(file, size) };
        assert_eq!([set(500), set(10), set(70)], [0; 3]);
        close(file);
    };
    twice(program);
    assert_eq!(fs::metadata("resized").unwrap().len(), 70);
    take();
    program();
    let bytes = take();
    fs::write("resized", "shorter").unwrap();
    again(&bytes);
    program();
    new();
    assert_eq!(read("resized"), "shorter", "a size was given again");
}

/// What is mapped to be read, shared as numpy does it, is there again when it was changed since.
fn a_shared_mapping_has_what_it_had() {
    let program = || {
        let file = open("mapped", libc::O_RDONLY);
        // SAFETY: a new mapping of as many bytes as the file has.
        let bytes = unsafe {
            let access = libc::PROT_READ;
            let flags = libc::MAP_SHARED;
            let at = libc::mmap(std::ptr::null_mut(), 5, access, flags, file, 0);
            assert_ne!(at, libc::MAP_FAILED);
            let bytes = std::slice::from_raw_parts(at.cast::<u8>(), 5).to_vec();
            libc::munmap(at, 5);
            bytes
        };
        close(file);
        String::from_utf8(bytes).unwrap()
    };
    print("mapped", c"w", "first");
    take();
    assert_eq!(program(), "first");
    let bytes = take();
    print("mapped", c"w", "");
    take();
    again(&bytes);
    assert_eq!(program(), "first");
    new();
}

/// What is asked for extended attributes is replayed, without our own.
fn attributes_are_observed_again() {
    if set_attribute("coloured", "red") != 0 {
        return;
    }
    let colour = || {
        let mut room = [0u8; 16];
        let path = c("coloured");
        let name = c"user.colour";
        // SAFETY: C strings, and as much room as said.
        let n = unsafe {
            libc::getxattr(path.as_ptr(), name.as_ptr(), room.as_mut_ptr().cast(), room.len())
        };
        String::from_utf8(room[..n as usize].to_vec()).unwrap()
    };
    let names = || {
        let mut room = [0u8; 256];
        // SAFETY: a C string, and as much room as said.
        let n = unsafe {
            libc::listxattr(c("coloured").as_ptr(), room.as_mut_ptr().cast(), room.len())
        };
        String::from_utf8(room[..n as usize].to_vec()).unwrap()
    };
    let program = || {
        let first = (colour(), names());
        set_attribute("coloured", "green");
        (first, (colour(), names()))
    };
    take();
    let listed = "user.colour\0".to_owned();
    let first = program();
    assert_eq!(first, (("red".into(), listed.clone()), ("green".into(), listed)));
    let bytes = take();
    again(&bytes);
    assert_eq!(program(), first);
    new();
    assert_eq!(colour(), "green");
}

/// Makes a file, if there is none, and sets an attribute of it.
fn set_attribute(path: &str, value: &str) -> i32 {
    let file = open(path, APPEND);
    close(file);
    let path = c(path);
    let value = value.as_bytes();
    let name = c"user.colour".as_ptr();
    // SAFETY: C strings, and a value as long as said.
    unsafe { libc::setxattr(path.as_ptr(), name, value.as_ptr().cast(), value.len(), 0) }
}

/// A directory that got other names since is listed as it was; what is kept beside files is not.
fn names_are_listed_again() {
    let list = || {
        // SAFETY: a C string, and a directory that was opened.
        unsafe {
            let dir = libc::opendir(c"listed".as_ptr());
            let mut names = Vec::new();
            loop {
                let entry = libc::readdir64(dir);
                if entry.is_null() {
                    break;
                }
                names.push(CStr::from_ptr((*entry).d_name.as_ptr()).to_str().unwrap().to_owned());
            }
            libc::closedir(dir);
            names.sort();
            names
        }
    };
    mkdir("listed");
    print("listed/.eyrie-was-old", c"w", "old");
    print("listed/first", c"w", "first");
    take();
    assert_eq!(list(), [".", "..", "first"]);
    let bytes = take();
    print("listed/second", c"w", "second");
    take();
    again(&bytes);
    assert_eq!(list(), [".", "..", "first"]);
    new();
    assert_eq!(list(), [".", "..", "first", "second"]);
}

/// A file without a name is made again, in memory when its directory is gone.
fn a_file_that_never_has_a_name() {
    let program = || {
        mkdir("passing");
        let file = open("passing", libc::O_TMPFILE | libc::O_RDWR | libc::O_CLOEXEC);
        assert!(file >= 0, "{}", std::io::Error::last_os_error());
        write(file, "its own");
        close(file);
        // SAFETY: a C string, which lives through the call.
        assert_eq!(unsafe { libc::rmdir(c"passing".as_ptr()) }, 0);
    };
    twice(program);
}

static STORED: AtomicUsize = AtomicUsize::new(0);

extern "C" fn stored() {
    STORED.fetch_add(1, Ordering::Relaxed);
}

fn only_a_change_waits_for_the_router() {
    eyrie_calls_store_by(stored);
    print("file", c"w", "one\n");
    assert_eq!(read("file"), "one\n");
    let before = STORED.load(Ordering::Relaxed);
    let fd = open("file", libc::O_RDWR);
    assert_eq!(STORED.load(Ordering::Relaxed), before, "opened to be written, it is as it was");
    write(fd, "two\n");
    assert_eq!(STORED.load(Ordering::Relaxed), before + 1, "it was read, and is changed");
    close(fd);
    take();
}

fn main() {
    let place = std::env::temp_dir().join(format!("eyrie-files-{}", std::process::id()));
    eyrie_calls_begin(libc::SIGUSR2);
    let cases: [(&str, fn()); 30] = [
        ("names", names_are_changed_once),
        ("nameless", a_file_without_a_name_gets_one_once),
        ("temporary", what_is_made_under_another_name_is_read_back),
        ("died", a_rank_that_died_goes_on_from_there),
        ("intent", an_intent_that_nothing_came_of_is_carried_out),
        ("log", a_log_has_each_line_once),
        ("others", others_may_append_meanwhile),
        ("anew", a_file_that_is_written_anew_loses_the_lost_future),
        ("in place", what_is_changed_in_place_is_changed_once),
        ("shared", a_file_of_several_ranks_keeps_what_others_write),
        ("directory", a_directory_that_another_rank_has_made_is_not_ours),
        ("taken", a_lock_that_is_released_meanwhile_is_not_taken_in_secret),
        ("half", half_a_record_is_none),
        ("closed", what_was_closed_before_something_known_is_in_its_file),
        ("small", a_small_file_that_is_open_in_an_image_has_what_it_had),
        ("observed", what_was_observed_is_observed_again),
        ("written", what_is_known_to_be_written_is_not_written_again),
        ("locked", a_lock_that_was_released_is_not_taken_again),
        ("block", only_what_was_changed_is_written_back),
        ("twice", what_is_written_twice_under_a_lock_is_written_twice),
        ("short block", what_a_short_read_leaves_in_a_buffer_is_not_written_back),
        ("helpers", what_has_ended_is_not_started_again),
        ("length", a_file_keeps_its_length),
        ("mapped", a_shared_mapping_has_what_it_had),
        ("attributes", attributes_are_observed_again),
        ("listed", names_are_listed_again),
        ("never named", a_file_that_never_has_a_name),
        ("image", files_that_are_open_in_an_image_go_back),
        ("waits for none", only_a_change_waits_for_the_router),
        ("new message", a_new_message_may_come_before_what_is_known_to_be_written),
    ];
    for (name, case) in cases.into_iter().chain(kinds::CASES).chain(mapped::CASES) {
        println!("{name}");
        let here = place.join(name);
        fs::create_dir_all(&here).unwrap();
        std::env::set_current_dir(&here).unwrap();
        case();
        assert_eq!(stand_ins(), 0);
    }
    std::env::set_current_dir("/").unwrap();
    fs::remove_dir_all(&place).unwrap();
    println!("ok");
}
