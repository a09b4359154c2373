//! Real processes are captured, killed and restored; what they leave behind must be the same as
//! without a failure. Brings its own main: the targets are this program once more, with one thread.
//! Arguments: part of a test's name runs only the tests that contain it.

mod cases;
mod harness;
mod shapes;
mod target;
mod threads;
mod tracked;
mod within;

use std::process::Command;

/// Tests that wait for seconds for what is slow on purpose, and the one that computes longest:
/// beside the others, each in a process of its own.
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
    // What whoever runs the tests left open is not the targets' (an agent does the same).
    const CLOSE_RANGE_CLOEXEC: i32 = 4;
    // SAFETY: only marks descriptors.
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
