//! The job itself: its ranks, nodes and roles, and how it goes on.

use super::super::counts::Counts;
use super::shapes::tally;
use eyrie_exporter::text::{label, labels, Out, SECONDS};
use eyrie_interface::status::{Kept, RoleStatus, Status};
use std::fmt;
use std::time::Duration;

/// The states that a rank may have (`eyrie status`).
const STATES: [&str; 8] =
    ["waiting", "starting", "running", "lost", "restoring", "replaying", "finished", "elsewhere"];
/// What may be kept once only.
const KEPT: [(Kept, &str); 3] =
    [(Kept::Images, "images"), (Kept::Logs, "logs"), (Kept::Journal, "journal")];

pub fn of_events(out: &mut Out, counts: &Counts) -> fmt::Result {
    out.counters(
        "eyrie_job_events",
        "Events of the job, by their names",
        None,
        counts.events.iter().map(|(name, count)| (label("event", name), *count as f64)),
    )
}

/// `age`: of the status.
pub fn of_status(out: &mut Out, status: &Status, age: Duration) -> fmt::Result {
    out.gauges(
        "eyrie_job_info",
        "The program of the job, without its arguments",
        None,
        [(label("program", program(&status.program)), 1.0)],
    )?;
    out.gauge(
        "eyrie_job_elapsed",
        "How long the job runs",
        Some(&SECONDS),
        status.summary.elapsed.as_secs_f64(),
    )?;
    out.gauge(
        "eyrie_job_status_age",
        "How long ago the job said what it is asked for",
        Some(&SECONDS),
        age.as_secs_f64(),
    )?;
    ranks(out, status)?;
    nodes_and_roles(out, status)
}

fn ranks(out: &mut Out, status: &Status) -> fmt::Result {
    let states = status.ranks.iter().map(|rank| rank.state.as_str());
    out.gauges(
        "eyrie_job_ranks",
        "Ranks, by what they do",
        None,
        tally(&STATES, states).into_iter().map(|(state, count)| (label("state", state), count)),
    )?;
    let incarnations = status.ranks.iter().map(|rank| rank.instance.incarnation.0);
    out.counter(
        "eyrie_job_incarnations",
        "Processes that all ranks have had",
        None,
        incarnations.clone().map(f64::from).sum(),
    )?;
    out.gauge(
        "eyrie_job_most_incarnations",
        "Processes that the rank has had that had most",
        None,
        incarnations.max().map_or(0.0, f64::from),
    )?;
    out.counter(
        "eyrie_job_rank_failures",
        "Failures of ranks",
        None,
        status.summary.rank_failures as f64,
    )?;
    out.gauge(
        "eyrie_job_unprotected_ranks",
        "Ranks that cannot be recovered at present",
        None,
        status.unprotected.len() as f64,
    )
}

fn nodes_and_roles(out: &mut Out, status: &Status) -> fmt::Result {
    let state = |(node, up): (u32, &bool)| match up {
        false => "gone",
        true if status.drained.iter().any(|drained| drained.0 == node) => "drained",
        true => "up",
    };
    let states = (0..).zip(&status.nodes_up).map(state);
    out.gauges(
        "eyrie_job_nodes",
        "Nodes, by their state",
        None,
        tally(&["up", "drained", "gone"], states)
            .into_iter()
            .map(|(state, count)| (label("state", state), count)),
    )?;
    let summary = &status.summary;
    out.counter("eyrie_job_nodes_lost", "Nodes that were lost", None, summary.nodes_lost as f64)?;
    out.counter(
        "eyrie_job_spares_used",
        "Spares that have taken the ranks of a node",
        None,
        summary.spares_used as f64,
    )?;
    let role = |RoleStatus { role, node }: &RoleStatus| {
        (labels([("role", role.as_str()), ("node", &node.to_string())]), 1.0)
    };
    out.gauges(
        "eyrie_job_role",
        "Where each role runs that runs on a node",
        None,
        status.roles.iter().map(role),
    )?;
    out.counter(
        "eyrie_job_roles_lost",
        "Routers and stores on nodes that were lost",
        None,
        summary.roles_lost as f64,
    )?;
    let is_missing = |what| f64::from(status.copies_missing.iter().any(|m| m.what == what));
    out.gauges(
        "eyrie_job_copies_missing",
        "Whether what should be kept twice is kept once",
        None,
        KEPT.map(|(what, name)| (label("what", name), is_missing(what))),
    )?;
    out.gauge(
        "eyrie_job_journal_copies",
        "Hosts where another controller could go on with the job",
        None,
        status.journal.len() as f64,
    )?;
    out.counter(
        "eyrie_job_resumes",
        "Controllers that have gone on with the job",
        None,
        summary.resumes as f64,
    )?;
    out.gauge(
        "eyrie_job_cut_off",
        "For how long no node on another host has answered",
        Some(&SECONDS),
        status.cut_off.unwrap_or(0.0),
    )
}

/// The name of the program, without its directory: what else it was called with is its users'
/// affair.
fn program(words: &str) -> &str {
    let first = words.split_whitespace().next().unwrap_or_default();
    first.rsplit('/').next().unwrap_or(first)
}

#[cfg(test)]
pub mod tests {
    use super::*;

    #[test]
    fn a_program_is_named_without_what_it_was_called_with() {
        assert_eq!(program("/home/me/solver --password=x in"), "solver");
        assert_eq!((program("./a"), program("")), ("a", ""));
    }
}
