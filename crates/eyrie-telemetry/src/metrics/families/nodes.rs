//! Nodes: their ranks, their health, and what was sampled there.

use eyrie_exporter::text::{labels, Labels, Out, BYTES, SECONDS};
use eyrie_interface::health::{Health, NodeHealth, Sampled};
use eyrie_interface::status::Status;
use eyrie_wire::health::HealthState;
use eyrie_wire::NodeId;
use std::collections::BTreeMap;
use std::fmt;

/// The labels of a node; the host is empty on one machine.
fn node(number: NodeId, host: Option<&str>) -> Labels<2> {
    labels([("node", number.to_string().as_str()), ("host", host.unwrap_or_default())])
}

pub fn of_status(out: &mut Out, status: &Status) -> fmt::Result {
    let mut ranks = vec![0.0; status.nodes_up.len()];
    let is_here = |state: &str| !["finished", "elsewhere"].contains(&state);
    for rank in status.ranks.iter().filter(|rank| is_here(&rank.state)) {
        if let Some(count) = ranks.get_mut(rank.node.index()) {
            *count += 1.0;
        }
    }
    let host = |number: NodeId| status.hosts.get(number.index()).map(String::as_str);
    let of = |(number, count)| (node(NodeId(number), host(NodeId(number))), count);
    out.gauges(
        "eyrie_job_node_ranks",
        "Ranks on a node that have not finished",
        None,
        (0..).zip(ranks).map(of),
    )
}

pub fn of_health(out: &mut Out, health: &Health) -> fmt::Result {
    let of = |at: &NodeHealth| node(at.node, at.host.as_deref());
    out.gauges(
        "eyrie_job_node_up",
        "Whether the agent of a node answers",
        None,
        health.nodes.iter().map(|at| (of(at), f64::from(at.up))),
    )?;
    let state = |state: HealthState| f64::from(state as u8);
    out.gauges(
        "eyrie_job_node_health_state",
        "0 ok, 1 suspect, 2 failing",
        None,
        health.nodes.iter().map(|at| (of(at), state(at.state))),
    )?;
    let mut found: BTreeMap<(&str, HealthState), f64> = BTreeMap::new();
    for finding in health.nodes.iter().flat_map(|at| &at.findings) {
        *found.entry((&finding.rule, finding.state)).or_default() += 1.0;
    }
    let finding = |((rule, state), count): ((&str, HealthState), f64)| {
        (labels([("rule", rule), ("state", &state.to_string())]), count)
    };
    out.gauges(
        "eyrie_job_health_findings",
        "What health rules find at present, on all nodes",
        None,
        found.into_iter().map(finding),
    )?;
    sampled(out, health)
}

/// What a figure of a sample is.
type Figure = fn(&Sampled) -> Option<f64>;

fn sampled(out: &mut Out, health: &Health) -> fmt::Result {
    // A node that is gone has no figures any more.
    let all = health.nodes.iter().filter(|at| at.up);
    let all: Vec<(Labels<2>, &Sampled)> = all
        .filter_map(|at| Some((node(at.node, at.host.as_deref()), at.sampled.as_ref()?)))
        .collect();
    let each = |figure: Figure| {
        all.iter().filter_map(move |(labels, sampled)| Some((labels.clone(), figure(sampled)?)))
    };
    out.gauges(
        "eyrie_job_node_busy_ratio",
        "The part of a node's processors that was busy",
        None,
        each(|s| s.busy),
    )?;
    let memory = all.iter().flat_map(|([node, host], s)| {
        let of = |kind: &str, bytes: u64| {
            ([node.clone(), host.clone(), ("kind", kind.to_string())], bytes as f64)
        };
        [of("total", s.memory_bytes), of("available", s.available_bytes)]
    });
    out.gauges("eyrie_job_node_memory", "Memory of a node", Some(&BYTES), memory)?;
    let of_ranks: Figure =
        |s| Some(s.ranks.iter().map(|rank| rank.memory_bytes).sum::<u64>() as f64);
    out.gauges(
        "eyrie_job_node_rank_memory",
        "Memory of the ranks on a node",
        Some(&BYTES),
        each(of_ranks),
    )?;
    out.gauges(
        "eyrie_job_node_waiting_ratio",
        "The part of their time in which the ranks on a node waited for messages, on average",
        None,
        each(|s| mean(s.ranks.iter().filter_map(|rank| rank.waiting))),
    )?;
    out.gauges(
        "eyrie_job_node_sample_age",
        "How long ago the newest sample of a node came",
        Some(&SECONDS),
        each(|s| Some(s.seconds_ago)),
    )?;
    out.gauges(
        "eyrie_job_node_sample_late",
        "From the moment at which all nodes sample to that of the node",
        Some(&SECONDS),
        each(|s| Some(s.late_ns as f64 / 1e9)),
    )?;
    out.gauges(
        "eyrie_job_node_sample_cost",
        "CPU time of a sample of a node",
        Some(&SECONDS),
        each(|s| Some(s.cost_ns as f64 / 1e9)),
    )
}

fn mean(all: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = all.fold((0.0, 0.0), |(sum, count), value| (sum + value, count + 1.0));
    (count > 0.0).then(|| sum / count)
}
