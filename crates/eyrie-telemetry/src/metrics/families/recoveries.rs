//! Recoveries and moves.

use super::super::counts::Counts;
use super::shapes::durations;
use eyrie_exporter::text::{label, Out, BYTES, SECONDS};
use eyrie_interface::status::Status;
use std::fmt;

pub fn of_events(out: &mut Out, counts: &Counts) -> fmt::Result {
    durations(
        out,
        "eyrie_job_recovery",
        "How long recoveries took, from the last sign of life",
        &counts.recoveries,
    )?;
    out.counters(
        "eyrie_job_recovery_phase",
        "Time of all recoveries, by phase",
        Some(&SECONDS),
        counts.phases.named().map(|(phase, time)| (label("phase", phase), time.as_secs_f64())),
    )?;
    out.counter(
        "eyrie_job_replayed_messages",
        "Messages that were delivered again",
        None,
        counts.replayed as f64,
    )?;
    out.counter(
        "eyrie_job_restores_failed",
        "Images that could not be restored",
        None,
        counts.of("restore_failed") as f64,
    )?;
    durations(
        out,
        "eyrie_job_move_pause",
        "For how long ranks stood still to move to another node",
        &counts.move_pauses,
    )?;
    out.counter(
        "eyrie_job_move",
        "Bytes that were copied ahead for live moves",
        Some(&BYTES),
        counts.move_bytes as f64,
    )
}

pub fn of_status(out: &mut Out, status: &Status) -> fmt::Result {
    out.counter(
        "eyrie_job_recoveries",
        "Recoveries that are complete",
        None,
        status.summary.recoveries as f64,
    )?;
    out.gauge(
        "eyrie_job_longest_recovery",
        "The longest recovery",
        Some(&SECONDS),
        status.summary.longest_recovery.as_secs_f64(),
    )?;
    out.gauge("eyrie_job_moving_ranks", "Ranks that move", None, status.moves.len() as f64)
}
