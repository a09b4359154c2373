//! The tests, each with the target it needs.

use super::harness::*;
use std::path::Path;

type Test = (&'static str, fn());

pub const TESTS: &[Test] = &[
    ("a_killed_walk_ends_as_an_undisturbed_one_async", || walk_survives(libc::SIGUSR1)),
    ("a_killed_walk_ends_as_an_undisturbed_one_sync", || walk_survives(libc::SIGUSR2)),
];

pub fn run(name: &str, _dir: &Path, _args: &[String]) {
    panic!("no target {name}");
}

const STEPS: &str = "60000";

fn walk_dir() -> tempfile::TempDir {
    let dir = make_dir();
    let input: Vec<u8> =
        (0..100_003u32).map(|i| (i.wrapping_mul(2654435761) >> 24) as u8).collect();
    std::fs::write(dir.path().join("input"), input).unwrap();
    dir
}

fn undisturbed_walk() -> (Vec<u8>, Vec<(String, Vec<u8>)>) {
    let dir = walk_dir();
    let ended = start(dir.path(), &["walk", STEPS]).wait();
    assert!(ended.status.success(), "{:?} {:?}", ended.status, ended.reports);
    (ended.output, contents(dir.path()))
}

fn position(image: &[u8]) -> usize {
    eyrie_image::inspect::summary(image).unwrap().header.position as usize
}

fn walk_survives(signal: i32) {
    let (output, files) = undisturbed_walk();
    let dir = walk_dir();
    let running = start(dir.path(), &["walk", STEPS]);
    running.wait_for_output();
    let (image, report) = running.capture(signal);
    assert!(report.starts_with("captured"), "{report}");
    let mut shown = running.kill().output;
    shown.truncate(position(&image));
    let mut restored = restore(dir.path(), &image);
    let ended = restored.wait();
    assert!(ended.status.success(), "{:?} {:?}", ended.status, ended.reports);
    assert_eq!(ended.reports, ["restored"]);
    shown.extend_from_slice(&ended.output);
    assert!(shown == output, "the output differs");
    assert!(contents(dir.path()) == files, "the files differ");
}
