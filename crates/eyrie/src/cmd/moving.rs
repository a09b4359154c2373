//! Waiting until ranks have moved, and how far they are meanwhile. Never decides anything: who does
//! not look at it loses nothing.

use eyrie_cli::progress::Progress;
use eyrie_controller::runtime::users::{ask, Request};
use serde_json::Value;
use std::path::Path;
use std::sync::mpsc::{channel, RecvTimeoutError};
use std::time::Duration;

/// How often the job is asked.
const EVERY: Duration = Duration::from_millis(500);

/// Asks a job to move ranks, and shows on a terminal how far they are until they have moved.
///
/// # Errors
/// As [`ask`].
pub fn ask_and_show(dir: &Path, request: &Request) -> anyhow::Result<()> {
    let progress = Progress::start(false, "waiting for the first round");
    if !progress.is_shown() {
        return ask(dir, request).map(drop);
    }
    let (over, waits) = channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            while waits.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
                // Without an answer the last line stands.
                if let Ok(status) = ask(dir, &Request::Status) {
                    progress.now(shown(&status));
                }
            }
        });
        let answer = ask(dir, request);
        drop(over);
        answer.map(drop)
    })
}

/// One line for all moves.
fn shown(status: &Value) -> String {
    let moves = status["moves"].as_array().map(Vec::as_slice).unwrap_or_default();
    let lines: Vec<String> = moves.iter().map(of_one).collect();
    match lines.is_empty() {
        true => "waiting until nothing needs the node".into(),
        false => lines.join("; "),
    }
}

/// A rank that moves: its rounds, what the last one brought, how fast, and how long it would stand
/// still if that was the last.
pub fn of_one(moving: &Value) -> String {
    let to = moving["to"].as_u64().map_or("another node".into(), |node| format!("node {node}"));
    let (rank, rounds) = (&moving["rank"], moving["rounds"].as_u64().unwrap_or(0));
    let slowed = match moving["slowed"].as_u64() {
        None | Some(0) => String::new(),
        Some(share) => format!(", slowed by {share} %"),
    };
    if rounds == 0 {
        return format!("rank {rank} moves to {to}");
    }
    let bytes = moving["bytes"].as_u64().unwrap_or(0);
    let took = moving["took"].as_f64().unwrap_or(0.0);
    let rate = eyrie_units::bytes((bytes as f64 / took.max(1e-3)) as u64);
    let (bytes, took) =
        (eyrie_units::bytes(bytes), eyrie_units::time(Duration::from_secs_f64(took)));
    format!(
        "rank {rank} moves to {to}: round {rounds} brought {bytes} in {took} ({rate}/s){slowed}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn each_move_in_words() {
        let moving =
            json!({ "rank": 3, "to": 2, "rounds": 4, "bytes": 1 << 20, "took": 0.5, "slowed": 20 });
        let line = of_one(&moving);
        assert_eq!(
            line,
            "rank 3 moves to node 2: round 4 brought 1 MiB in 500 ms (2 MiB/s), slowed by 20 %"
        );
        let begun =
            json!({ "rank": 3, "to": null, "rounds": 0, "bytes": 0, "took": 0.0, "slowed": 0 });
        assert_eq!(of_one(&begun), "rank 3 moves to another node");
        assert_eq!(shown(&json!({ "moves": [begun] })), "rank 3 moves to another node");
    }
}
