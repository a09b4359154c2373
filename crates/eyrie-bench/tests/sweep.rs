//! `eyrie-bench sweep` as a user calls it: its table and its plot.

use std::process::Command;

#[test]
fn a_sweep_writes_a_table_and_a_plot_and_can_be_repeated() {
    let directory = tempfile::tempdir().expect("a directory");
    let sweep = |to: &str, more: &str| {
        let out = directory.path().join(to);
        let mut command = Command::new(env!("CARGO_BIN_EXE_eyrie-bench"));
        command.args(["sweep", "--network", "mesh:6x6", "--out"]).arg(&out);
        let status = command.args(more.split_whitespace()).status().expect("eyrie-bench runs");
        assert!(status.success(), "{more}: {status}");
        std::fs::read_to_string(out.join("sweep.csv")).expect("a table")
    };
    let pairs = sweep("pairs", "");
    assert_eq!(pairs.lines().count(), 1 + 25 * 11);
    assert!(directory.path().join("pairs/pairs.svg").exists());
    let more = "--sequences 4 --failures 2 --method 0d,search --seed 5";
    let sequences = sweep("a", more);
    assert_eq!(sequences.lines().count(), 1 + 4 * 2 * 2);
    assert_eq!(sequences, sweep("b", more));
    assert!(directory.path().join("a/sequences.svg").exists());
}
