//! Messages: what nodes send each other, what routers hold, and the lines to other domains.

use eyrie_exporter::text::{label, labels, Labels, Out, BYTES, SECONDS};
use eyrie_interface::status::{DomainStatus, LineTraffic, LogStatus, Status};
use eyrie_interface::traffic::{NodePair, NodeTraffic};
use eyrie_wire::traffic::Sent;
use eyrie_wire::NodeId;
use std::fmt;

/// Where ranks of other domains are.
const ELSEWHERE: &str = "elsewhere";
/// All nodes of pairs that have no series of their own.
const OTHER: &str = "other";

pub fn of_traffic(out: &mut Out, traffic: &NodeTraffic) -> fmt::Result {
    let NodeTraffic { pairs, rest } = traffic;
    let name = |node: Option<NodeId>| node.map_or(ELSEWHERE.into(), |node| node.to_string());
    let pair = |pair: &NodePair| {
        (labels([("from", name(pair.from).as_str()), ("to", &name(pair.to))]), pair.sent)
    };
    let mut all: Vec<(Labels<2>, Sent)> = pairs.iter().map(pair).collect();
    all.push((labels([("from", OTHER), ("to", OTHER)]), *rest));
    out.counters(
        "eyrie_job_sent_messages",
        "Messages from ranks on one node to ranks on another, or on the same",
        None,
        all.iter().map(|(labels, sent)| (labels.clone(), sent.messages as f64)),
    )?;
    out.counters(
        "eyrie_job_sent",
        "Bytes of the content of these messages",
        Some(&BYTES),
        all.iter().map(|(labels, sent)| (labels.clone(), sent.bytes as f64)),
    )
}

pub fn of_status(out: &mut Out, status: &Status) -> fmt::Result {
    let log = |log: &LogStatus| {
        let router = log.router.to_string();
        [("memory", log.memory_bytes), ("disk", log.disk_bytes)]
            .map(|(place, bytes)| (labels([("router", &router), ("place", place)]), bytes as f64))
    };
    out.gauges(
        "eyrie_job_log",
        "What each router, or the keeper, holds of the log",
        Some(&BYTES),
        status.logs.iter().flat_map(log),
    )?;
    if status.domain.is_none() {
        return Ok(());
    }
    lines(out, &status.domains)
}

/// The lines to other domains.
fn lines(out: &mut Out, domains: &[DomainStatus]) -> fmt::Result {
    let to = |domain: &DomainStatus| label("to", &domain.name);
    let is_up = |domain: &DomainStatus| domain.line.as_ref().is_some_and(|line| line.up);
    out.gauges(
        "eyrie_job_line_up",
        "Whether there is a line to another domain",
        None,
        domains.iter().map(|domain| (to(domain), f64::from(is_up(domain)))),
    )?;
    let figures = |of: fn(&LineTraffic) -> Option<f64>| {
        domains.iter().filter_map(move |d| Some((to(d), of(d.traffic.as_ref()?)?)))
    };
    out.gauges(
        "eyrie_job_line_round_trip",
        "Time to another domain and back",
        Some(&SECONDS),
        figures(|line| line.round_trip_s),
    )?;
    out.counters(
        "eyrie_job_line_received",
        "What came from another domain since the gateway began",
        Some(&BYTES),
        figures(|line| Some(line.received_bytes as f64)),
    )?;
    out.gauges(
        "eyrie_job_line_waiting",
        "Messages that wait until they are safe in another domain",
        Some(&BYTES),
        domains.iter().map(|domain| (to(domain), domain.waiting_bytes as f64)),
    )
}
