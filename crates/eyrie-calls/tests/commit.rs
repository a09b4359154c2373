//! A counter in a file, which ranks read, change and write back under a lock: each number is given
//! once, wherever a rank dies. This program has our functions linked in instead of preloaded, and
//! is the provider and the other ranks, too.

mod provider;

use eyrie_calls::for_provider::*;
use eyrie_calls::rank_start::eyrie_calls_begin;
use provider::{again, take};
use std::ffi::CStr;
use std::fs;
use std::sync::Mutex;

const NAME: &CStr = c"counter";
const ATTRIBUTE: &CStr = c"user.eyrie.commit";
/// Where the attribute says that the write is perhaps not in the file yet.
const OPEN: usize = 40;

/// What the router has.
static STORED: Mutex<Vec<u8>> = Mutex::new(Vec::new());

extern "C" fn store() {
    STORED.lock().unwrap().extend(take());
}

/// Draws the next number: what the rank does.
fn draw() -> u64 {
    let mut number = [0u8; 8];
    // SAFETY: C strings, descriptors, and buffers as long as said.
    unsafe {
        let file = libc::open(NAME.as_ptr(), libc::O_RDWR);
        assert_eq!(libc::flock(file, libc::LOCK_EX), 0);
        assert_eq!(libc::pread(file, number.as_mut_ptr().cast(), 8, 0), 8);
        let next = (u64::from_le_bytes(number) + 1).to_le_bytes();
        assert_eq!(libc::pwrite(file, next.as_ptr().cast(), 8, 0), 8);
        assert_eq!(libc::flock(file, libc::LOCK_UN), 0);
        libc::close(file);
    }
    u64::from_le_bytes(number)
}

/// What is done past our functions, by other ranks or the kernel.
fn outside<R: Send>(does: impl FnOnce() -> R + Send) -> R {
    std::thread::scope(|scope| scope.spawn(does).join().unwrap())
}

fn set(number: u64) {
    outside(|| fs::write("counter", number.to_le_bytes()).unwrap());
}

fn get() -> u64 {
    outside(|| u64::from_le_bytes(fs::read("counter").unwrap().try_into().unwrap()))
}

/// Draws, and dies when its write is about to be made, and with nothing known of what came then.
fn draw_and_die() -> (u64, Vec<u8>) {
    take();
    STORED.lock().unwrap().clear();
    let number = draw();
    take();
    (number, std::mem::take(&mut *STORED.lock().unwrap()))
}

fn a_write_that_was_not_made_is_not_made_for_a_number_that_another_has() {
    set(5);
    let (number, known) = draw_and_die();
    assert_eq!(number, 5);
    // It was not made, and others have drawn since.
    set(9);
    // SAFETY: C strings, which live through the call.
    outside(|| unsafe { libc::removexattr(NAME.as_ptr(), ATTRIBUTE.as_ptr()) });
    again(&known);
    assert_eq!((draw(), get()), (9, 10), "it draws anew");
    // And once more, with all that is known by now.
    let more = [std::mem::take(&mut *STORED.lock().unwrap()), take()].concat();
    set(12);
    again(&[known, more].concat());
    assert_eq!((draw(), get()), (9, 12));
}

fn a_write_that_was_made_is_not_made_again() {
    set(20);
    let (_, known) = draw_and_die();
    set(33);
    again(&known);
    assert_eq!((draw(), get()), (20, 33));
}

fn a_write_that_counts_is_made_by_who_has_the_lock_next() {
    set(40);
    let (_, known) = draw_and_die();
    set(40);
    let mut said = [0u8; 4096];
    // SAFETY: C strings, and a buffer as long as said.
    unsafe {
        let file = NAME.as_ptr();
        let name = ATTRIBUTE.as_ptr();
        let n = libc::getxattr(file, name, said.as_mut_ptr().cast(), said.len());
        said[OPEN] = 1;
        libc::setxattr(file, name, said.as_ptr().cast(), n as usize, 0);
    }
    assert_eq!((draw(), get()), (41, 42), "as another rank draws");
    take();
    again(&known);
    assert_eq!((draw(), get()), (40, 42));
}

fn what_has_left_the_rank_is_not_read_again() {
    set(50);
    take();
    let mut number = [0u8; 8];
    // SAFETY: C strings, descriptors, and buffers as long as said.
    let run = |number: &mut [u8; 8], told: &mut dyn FnMut()| unsafe {
        let file = libc::open(NAME.as_ptr(), libc::O_RDWR);
        assert_eq!(libc::flock(file, libc::LOCK_EX), 0);
        assert_eq!(libc::pread(file, number.as_mut_ptr().cast(), 8, 0), 8);
        told();
        let next = (u64::from_le_bytes(*number) + 1).to_le_bytes();
        assert_eq!(libc::pwrite(file, next.as_ptr().cast(), 8, 0), 8);
        libc::close(file);
    };
    STORED.lock().unwrap().clear();
    run(&mut number, &mut || store());
    take();
    let known = std::mem::take(&mut *STORED.lock().unwrap());
    // SAFETY: C strings, which live through the call.
    outside(|| unsafe { libc::removexattr(NAME.as_ptr(), ATTRIBUTE.as_ptr()) });
    set(50);
    again(&known);
    run(&mut number, &mut || ());
    assert_eq!((u64::from_le_bytes(number), get()), (50, 51));
}

fn main() {
    std::env::set_var("EYRIE_RANDOM", "5".repeat(64));
    std::env::set_var("EYRIE_RANK", "0");
    let place = std::env::temp_dir().join(format!("eyrie-commit-{}", std::process::id()));
    fs::create_dir_all(&place).unwrap();
    std::env::set_current_dir(&place).unwrap();
    eyrie_calls_begin(libc::SIGUSR2);
    eyrie_calls_store_by(store);
    set(0);
    // SAFETY: C strings, and a byte.
    let tried = unsafe {
        libc::setxattr(NAME.as_ptr(), c"user.eyrie.tried".as_ptr(), c"1".as_ptr().cast(), 1, 0)
    };
    if tried == 0 {
        a_write_that_was_not_made_is_not_made_for_a_number_that_another_has();
        a_write_that_was_made_is_not_made_again();
        a_write_that_counts_is_made_by_who_has_the_lock_next();
        what_has_left_the_rank_is_not_read_again();
        println!("ok");
    } else {
        println!("SKIPPED: {} has no extended attributes", place.display());
    }
    std::env::set_current_dir("/").unwrap();
    fs::remove_dir_all(&place).unwrap();
}
