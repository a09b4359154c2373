//! Random schedules, many of them, on all processors: their seeds are printed.

use super::job::{Computed, Outcome};
use eyrie_router::testing::on_all_processors;
use std::panic::{catch_unwind, resume_unwind};

/// Runs the schedules of these seeds, or of those that EYRIE_SEED and EYRIE_SCHEDULES ask for.
/// Returns what was disturbed, `None` when other schedules were asked for.
pub fn run(count: u64, compare: impl Fn(u64) -> u64 + Sync) -> Option<u64> {
    let number = |name| std::env::var(name).ok().and_then(|v| v.parse().ok());
    let first = number("EYRIE_SEED").unwrap_or(1);
    let asked = number("EYRIE_SCHEDULES");
    let last = first + asked.unwrap_or(count);
    println!("seeds {first} to {}", last - 1);
    let sum = on_all_processors(first..last, compare);
    println!("{} kills, {} routers lost", sum & 0xffff_ffff, sum >> 32);
    asked.is_none().then_some(sum)
}

/// One schedule with kills and one without; returns what was disturbed.
pub fn compare(seed: u64, run: impl Fn(bool) -> Outcome + std::panic::RefUnwindSafe) -> u64 {
    let result = catch_unwind(|| {
        let (expected, _) = run(true);
        let (result, disturbed) = run(false);
        for (now, then) in result.iter().zip(&expected) {
            expect_same(now, then);
        }
        disturbed
    });
    result.unwrap_or_else(|e| {
        eprintln!("seed {seed} (EYRIE_SEED={seed} EYRIE_SCHEDULES=1)");
        resume_unwind(e)
    })
}

fn expect_same(now: &Computed, then: &Computed) {
    assert_eq!(now.0, then.0, "other messages were received");
    let differs = now.1.iter().zip(&then.1).position(|(a, b)| a != b);
    assert_eq!(differs, None, "memory that others write differs");
}

/// Panics of this thread are not shown from now on: they are what its test wants.
pub fn expect_panics() {
    let expecting = std::thread::current().id();
    let shown = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if std::thread::current().id() != expecting || info.to_string().contains("not caught") {
            shown(info);
        }
    }));
}
