//! Real processes are captured, killed and restored. Their output and files must be the same as
//! without a failure. This has its own main, because the targets are this program again, with one
//! thread. An argument that is part of a test's name runs only the tests that contain it.

mod cases;
mod harness;
mod holders;
mod registers;
mod shapes;
mod target;
mod threads;
mod tracked;
mod within;

use std::process::Command;

/// Tests that wait for seconds for something slow, and the one that computes longest. They run in
/// parallel to the others, each in a process of its own.
const LONG: [&str; 3] = [
    "locks_that_others_have_got",
    "blocked_in_nanosleep",
    "incremental_images_are_full_ones_with_less_in_them",
];

fn main() {
    let args: Vec<String> = std::env::args().collect();
    if args.get(1).is_some_and(|a| a == "target") {
        std::process::exit(target::run(&args[2..]));
    }
    // Descriptors that the starter of the tests left open are not for the targets (an agent closes
    // them as well).
    const CLOSE_RANGE_CLOEXEC: i32 = 4;
    // SAFETY: the call takes numbers and only sets a flag of descriptors.
    unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, CLOSE_RANGE_CLOEXEC) };
    let filter = args.iter().skip(1).find(|a| !a.starts_with('-')).cloned().unwrap_or_default();
    if args.iter().any(|a| a == "--list") {
        cases::TESTS.iter().for_each(|(name, _)| println!("{name}: test"));
        return;
    }
    let all = filter.is_empty();
    let beside = |name: &&'static str| (*name, Command::new(&args[0]).arg(name).spawn().unwrap());
    let long: Vec<_> = LONG.iter().filter(|_| all).map(beside).collect();
    let wanted = |name: &str| name.contains(&filter) && !(all && LONG.contains(&name));
    let mut failed = Vec::new();
    for (name, test) in cases::TESTS.iter().filter(|(name, _)| wanted(name)) {
        let started = std::time::Instant::now();
        let result = std::panic::catch_unwind(test);
        let verdict = if result.is_ok() { "ok" } else { "FAILED" };
        println!("test {name} ... {verdict} ({:.2} s)", started.elapsed().as_secs_f64());
        if result.is_err() {
            failed.push(*name);
        }
    }
    for (name, mut process) in long {
        if !process.wait().unwrap().success() {
            failed.push(name);
        }
    }
    if !failed.is_empty() {
        println!("failed: {failed:?}");
        std::process::exit(101);
    }
}
