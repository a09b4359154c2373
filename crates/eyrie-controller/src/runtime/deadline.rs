//! The end of the allocation that a job runs in: the job is saved before. Slurm is asked for it,
//! and asked again before anything is done, because the limit may have been changed.

use super::inbound::Inbound;
use crate::machine::Event;
use crossbeam_channel::Sender;
use eyrie_supervision::bounded;
use std::process::Command;
use std::time::Duration;

/// How long Slurm may take for an answer, how soon it is asked again when it has none, and at the
/// latest.
const ASKING_TIMEOUT: Duration = Duration::from_secs(20);
const ASK_AGAIN: Duration = Duration::from_secs(30);
const ASK_AT_LEAST_EVERY: Duration = Duration::from_secs(600);
/// Without a wish: this share of what is left at the start, and at most so long.
const USUAL_SHARE: u32 = 10;
const USUAL_MOST: Duration = Duration::from_secs(300);

/// Has the job saved before the allocation of Slurm ends that this process runs in, if it does: so
/// long before, or as long as is usual.
pub fn watch(before: Option<Duration>, inbound: Sender<Inbound>) {
    let Ok(allocation) = std::env::var("SLURM_JOB_ID") else { return };
    std::thread::spawn(move || {
        let mut before = before;
        loop {
            let left = time_left(&allocation);
            if let Some(left) = left {
                let before = *before.get_or_insert((left / USUAL_SHARE).min(USUAL_MOST));
                if left <= before {
                    let left = eyrie_units::time(left);
                    let text = format!("the allocation {allocation} ends in {left}");
                    // The main thread receives no more only while the job ends.
                    let _ = inbound.send(Inbound::Heard(Event::Note(text).into()));
                    let _ = inbound.send(Inbound::Heard(Event::Save { request: None }.into()));
                    return;
                }
            }
            let wait = left.map_or(ASK_AGAIN, |left| left - before.unwrap_or_default());
            std::thread::sleep(wait.min(ASK_AT_LEAST_EVERY));
        }
    });
}

/// How long the allocation lasts; `None`: Slurm does not say, or it has no end.
fn time_left(allocation: &str) -> Option<Duration> {
    let words = ["--noheader", "--jobs", allocation, "--format", "%L"];
    let said = bounded::run(Command::new("squeue").args(words), ASKING_TIMEOUT).ok()?;
    read(said.stdout.trim())
}

/// Reads `[[days-]hours:]minutes:seconds`, as squeue writes it.
fn read(text: &str) -> Option<Duration> {
    let (days, rest) = text.split_once('-').unwrap_or(("0", text));
    let mut seconds = 0u64;
    for part in rest.split(':') {
        seconds = seconds.checked_mul(60)?.checked_add(part.parse().ok()?)?;
    }
    let days: u64 = days.parse().ok()?;
    Some(Duration::from_secs(days.checked_mul(86_400)?.checked_add(seconds)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_slurm_are_read() {
        let seconds = |text| read(text).map(|d| d.as_secs());
        assert_eq!(seconds("0:07"), Some(7));
        assert_eq!(seconds("59:30"), Some(3570));
        assert_eq!(seconds("2:00:00"), Some(7200));
        assert_eq!(seconds("10-01:00:01"), Some(10 * 86_400 + 3601));
        for none in ["UNLIMITED", "INVALID", "", "1:x", "99999999999999999999-0:0"] {
            assert_eq!(seconds(none), None, "{none}");
        }
    }
}
