//! Waiting until ranks have moved, and how far they are meanwhile. Never decides anything: who does
//! not look at it loses nothing.

use eyrie_cli::progress::Progress;
use eyrie_controller::runtime::users::ask;
use eyrie_interface::answer::Accepted;
use eyrie_interface::status::MoveStatus;
use eyrie_interface::{Request, Status};
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
        return ask::<Accepted>(dir, request).map(drop);
    }
    let (over, waits) = channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            while waits.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
                // Without an answer the last line stands.
                if let Ok(Status { moves, .. }) = ask(dir, &Request::Status) {
                    progress.now(shown(&moves));
                }
            }
        });
        let answer = ask::<Accepted>(dir, request);
        drop(over);
        answer.map(drop)
    })
}

/// One line for all moves.
fn shown(moves: &[MoveStatus]) -> String {
    let lines: Vec<String> = moves.iter().map(of_one).collect();
    if lines.is_empty() {
        return "waiting until nothing needs the node".into();
    }
    lines.join("; ")
}

/// A rank that moves: its rounds, what the last one brought, how fast, and how long it would stand
/// still if that was the last.
pub fn of_one(moving: &MoveStatus) -> String {
    let MoveStatus { rank, to, rounds, bytes, took, slowed } = *moving;
    let to = to.map_or("another node".into(), |node| format!("node {node}"));
    let slowed = match slowed {
        0 => String::new(),
        share => format!(", slowed by {share} %"),
    };
    if rounds == 0 {
        return format!("rank {rank} moves to {to}");
    }
    let rate = eyrie_units::bytes((bytes as f64 / took.max(1e-3)) as u64);
    let (bytes, took) =
        (eyrie_units::bytes(bytes), eyrie_units::time(Duration::from_secs_f64(took.max(0.0))));
    format!(
        "rank {rank} moves to {to}: round {rounds} brought {bytes} in {took} ({rate}/s){slowed}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_move_in_words() {
        let moving =
            MoveStatus { rank: 3, to: Some(2), rounds: 4, bytes: 1 << 20, took: 0.5, slowed: 20 };
        let line = of_one(&moving);
        assert_eq!(
            line,
            "rank 3 moves to node 2: round 4 brought 1 MiB in 500 ms (2 MiB/s), slowed by 20 %"
        );
        let begun = MoveStatus { rank: 3, to: None, rounds: 0, bytes: 0, took: 0.0, slowed: 0 };
        assert_eq!(of_one(&begun), "rank 3 moves to another node");
        assert_eq!(shown(&[begun]), "rank 3 moves to another node");
    }
}
