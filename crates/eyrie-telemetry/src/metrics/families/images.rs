//! Images: how many, how large, how old, and what they cost.

use super::super::counts::Counts;
use super::shapes::{durations, tally};
use eyrie_exporter::text::{label, Out, BYTES, SECONDS};
use eyrie_interface::status::{RankStatus, Status};
use std::fmt;

pub fn of_events(out: &mut Out, counts: &Counts) -> fmt::Result {
    durations(
        out,
        "eyrie_job_checkpoint_pause",
        "For how long ranks stood still for an image",
        &counts.pauses,
    )?;
    durations(
        out,
        "eyrie_job_checkpoint_duration",
        "From the order of an image until it counts",
        &counts.checkpoints,
    )
}

pub fn of_status(out: &mut Out, status: &Status, counts: &Counts) -> fmt::Result {
    let summary = &status.summary;
    let taken = summary.checkpoints as f64;
    out.counter("eyrie_job_checkpoints", "Images that count", None, taken)?;
    out.counter(
        "eyrie_job_checkpoints_failed",
        "Images that could not be taken or stored",
        None,
        summary.checkpoints_failed as f64,
    )?;
    out.counter(
        "eyrie_job_checkpoint",
        "Bytes of all images that count",
        Some(&BYTES),
        summary.checkpoint_bytes as f64,
    )?;
    if let Some(interval) = status.checkpoint_interval {
        out.gauge(
            "eyrie_job_checkpoint_interval",
            "From one image of a rank to its next, as it is at present",
            Some(&SECONDS),
            interval,
        )?;
    }
    out.gauge(
        "eyrie_job_store",
        "Bytes that images take in stores",
        Some(&BYTES),
        status.store_bytes as f64,
    )?;
    newest(out, status, counts)
}

/// The newest image of each rank that has not finished.
fn newest(out: &mut Out, status: &Status, counts: &Counts) -> fmt::Result {
    let is_here = |rank: &&RankStatus| !["finished", "elsewhere"].contains(&rank.state.as_str());
    let ranks: Vec<&RankStatus> = status.ranks.iter().filter(is_here).collect();
    let copies = |rank: &&RankStatus| match rank.image.as_ref().map_or(0, |image| image.copies) {
        0 => "0",
        1 => "1",
        _ => "2",
    };
    out.gauges(
        "eyrie_job_newest_images",
        "Ranks, by the number of stores that have their newest image",
        None,
        tally(&["0", "1", "2"], ranks.iter().map(copies))
            .into_iter()
            .map(|(copies, count)| (label("copies", copies), count)),
    )?;
    let sizes = ranks.iter().filter_map(|rank| Some(rank.image.as_ref()?.bytes));
    out.gauge(
        "eyrie_job_newest_images",
        "Bytes of the newest images of all ranks",
        Some(&BYTES),
        sizes.sum::<u64>() as f64,
    )?;
    let at = |rank: &&RankStatus| counts.images.get(&rank.instance.rank);
    let mut ages: Vec<f64> =
        ranks.iter().filter_map(at).map(|time| counts.time.age(*time)).collect();
    ages.sort_by(f64::total_cmp);
    let part = |part: f64| ages.get(((ages.len().max(1) - 1) as f64 * part) as usize);
    let parts = [("0", part(0.0)), ("0.5", part(0.5)), ("1", part(1.0))];
    out.gauges(
        "eyrie_job_image_age",
        "Age of the newest image: that of this part of the ranks is no older",
        Some(&SECONDS),
        parts.into_iter().filter_map(|(name, age)| Some((label("part", name), *age?))),
    )?;
    out.gauge(
        "eyrie_job_overdue_ranks",
        "Ranks that have had no new image for longer than three intervals",
        None,
        ranks.iter().filter(|rank| rank.overdue.is_some()).count() as f64,
    )
}
