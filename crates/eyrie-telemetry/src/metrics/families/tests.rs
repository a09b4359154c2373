use super::super::asker::Said;
use super::super::counts::Counts;
use super::Snapshot;
use crate::follow::Event;
use eyrie_exporter::text::encode;
use eyrie_interface::health::{FindingStatus, Health, NodeHealth, RankSampled, Sampled};
use eyrie_interface::record::Phases;
use eyrie_interface::status::{
    CopiesMissing, DomainStatus, ImageStatus, Kept, LineStatus, LineTraffic, LogStatus, RankStatus,
    RoleStatus,
};
use eyrie_interface::traffic::{NodePair, NodeTraffic};
use eyrie_interface::{Record, Status, Summary};
use eyrie_wire::health::HealthState;
use eyrie_wire::traffic::Sent;
use eyrie_wire::{ImageId, Incarnation, NodeId, Rank, RankInstance, RouterId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

const DOCUMENTED: &str = include_str!("../../../../../docs/metrics.md");
const DASHBOARD: &str = include_str!("../../../../../docs/job-grafana.json");

fn instance(rank: u32) -> RankInstance {
    RankInstance { rank: Rank(rank), incarnation: Incarnation(1 + rank % 2) }
}

fn status(ranks: u32, nodes: u32) -> Status {
    let rank = |rank: u32| RankStatus {
        instance: instance(rank),
        node: NodeId(rank % nodes),
        state: if rank == 0 { "replaying" } else { "running" }.into(),
        image: (rank > 0).then_some(ImageStatus {
            number: ImageId(7),
            copies: 2,
            stores: vec![],
            bytes: 10,
            file_bytes: 0,
        }),
        overdue: None,
    };
    let line = LineTraffic {
        round_trip_s: Some(0.25),
        received_bytes: 9,
        last_second_bytes: 1,
        most_in_a_second_bytes: 5,
    };
    let other = DomainStatus {
        name: "cloud".into(),
        ranks: 4,
        gateway: "gw:7411".into(),
        line: Some(LineStatus { up: true, seconds: 1.5 }),
        traffic: Some(line),
        waiting_bytes: 3,
        letters: 1,
        finished: None,
        gone: false,
        joins: false,
    };
    Status {
        job: "melt".into(),
        program: "/opt/melt --password=secret".into(),
        nodes_up: (0..nodes).map(|node| node != 2).collect(),
        drained: vec![NodeId(1)],
        hosts: (0..nodes).map(|node| format!("h{node}")).collect(),
        domain: Some("home".into()),
        domains: vec![other],
        domain_moves: vec![],
        output: None,
        ranks: (0..ranks).map(rank).collect(),
        moves: vec![],
        roles: vec![RoleStatus { role: "router 0".into(), node: NodeId(0) }],
        journal: vec![NodeId(0)],
        cut_off: None,
        unprotected: vec![Rank(3)],
        copies_missing: vec![CopiesMissing { what: Kept::Logs, cause: "why".into() }],
        logs: vec![LogStatus { router: RouterId(0), memory_bytes: 5, disk_bytes: 6 }],
        log_memory_bytes: 5,
        log_disk_bytes: 6,
        messages: 3,
        store_bytes: 4,
        checkpoint_interval: Some(1.5),
        checkpoint_cost: None,
        summary: Summary { recoveries: 2, rank_failures: 3, ..Summary::default() },
    }
}

fn health(ranks: u32, nodes: u32) -> Health {
    let rank = |rank: u32| RankSampled {
        rank: Rank(rank),
        busy: Some(1.0),
        polling: None,
        waiting: Some(0.5),
        memory_bytes: 100,
    };
    let sampled = |node: u32| Sampled {
        seconds_ago: 0.5,
        sample: 3,
        moment_ns: 0,
        late_ns: 1000,
        in_step: true,
        reader: "proc".into(),
        cost_ns: 1000,
        busy: Some(0.75),
        memory_bytes: 1000,
        available_bytes: 400,
        ranks: (0..ranks).filter(|rank| rank % nodes == node).map(rank).collect(),
    };
    let finding = FindingStatus {
        rule: "memory".into(),
        what: "x".into(),
        state: HealthState::Suspect,
        said: "y".into(),
        seconds: 1.0,
        muted: None,
    };
    let node = |node: u32| NodeHealth {
        node: NodeId(node),
        host: Some(format!("h{node}")),
        up: node != 2,
        state: if node == 1 { HealthState::Suspect } else { HealthState::Ok },
        seconds: 1.0,
        findings: if node == 1 { vec![finding.clone()] } else { vec![] },
        done: vec![],
        sampled: Some(sampled(node)),
    };
    Health { job: "melt".into(), interval: Some(1.0), nodes: (0..nodes).map(node).collect() }
}

fn text(ranks: u32, nodes: u32) -> String {
    let mut counts = Counts::new();
    let ms = Duration::from_millis;
    let phases = Phases { placed: ms(10), replayed: ms(30), ..Phases::default() };
    let records = [
        Record::Checkpoint {
            rank: Rank(1),
            image: ImageId(1),
            bytes: 5,
            file_bytes: 0,
            pause: ms(2),
            total: ms(20),
        },
        Record::RankFailed { instance: instance(0), node: NodeId(0), cause: "killed".into() },
        Record::Recovered {
            instance: instance(0),
            node: NodeId(0),
            image: None,
            messages: 66,
            phases,
            total: phases.total(),
        },
        Record::RankMoved { rank: Rank(1), from: NodeId(0), node: NodeId(1), pause: ms(4) },
    ];
    for record in records {
        let name = serde_json::to_value(&record).unwrap()["event"].as_str().unwrap().into();
        counts.hear(&Event { name, time: 1.0, record, is_new: true });
    }
    let sent = Sent { messages: 2, bytes: 30 };
    let pair = |from, to| NodePair { from, to, sent };
    let pairs = vec![pair(Some(NodeId(0)), Some(NodeId(1))), pair(None, Some(NodeId(0)))];
    let traffic = NodeTraffic { pairs, rest: Sent::default() };
    let (status, health) = (status(ranks, nodes), health(ranks, nodes));
    let said = Some(Arc::new(Said { status, health, traffic, at: Instant::now() }));
    encode(Snapshot { counts, said }, [("eyrie_job", "melt")]).unwrap()
}

/// The values of all series, by their names with labels.
fn series(text: &str) -> BTreeMap<&str, f64> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let all: Vec<_> = lines
        .map(|line| line.rsplit_once(' ').unwrap())
        .map(|(name, value)| (name, value.parse().unwrap()))
        .collect();
    let unique: BTreeMap<_, _> = all.iter().copied().collect();
    assert_eq!(unique.len(), all.len(), "a series comes twice");
    unique
}

#[test]
fn each_figure_has_its_series() {
    let text = text(8, 4);
    let series = series(&text);
    let of = |name: &str, labels: &str| {
        let labels = if labels.is_empty() { String::new() } else { format!(",{labels}") };
        let name = format!("eyrie_job_{name}{{eyrie_job=\"melt\"{labels}}}");
        *series.get(name.as_str()).unwrap_or_else(|| panic!("{name} is not in\n{text}"))
    };
    for (name, labels, value) in [
        ("info", r#"program="melt""#, 1.0),
        ("ranks", r#"state="running""#, 7.0),
        ("ranks", r#"state="replaying""#, 1.0),
        ("ranks", r#"state="lost""#, 0.0),
        ("incarnations_total", "", 12.0),
        ("most_incarnations", "", 2.0),
        ("rank_failures_total", "", 3.0),
        ("unprotected_ranks", "", 1.0),
        ("nodes", r#"state="up""#, 2.0),
        ("nodes", r#"state="drained""#, 1.0),
        ("nodes", r#"state="gone""#, 1.0),
        ("role", r#"role="router 0",node="0""#, 1.0),
        ("copies_missing", r#"what="logs""#, 1.0),
        ("copies_missing", r#"what="images""#, 0.0),
        ("events_total", r#"event="recovered""#, 1.0),
        ("newest_images", r#"copies="2""#, 7.0),
        ("newest_images", r#"copies="0""#, 1.0),
        ("newest_images_bytes", "", 70.0),
        ("checkpoint_interval_seconds", "", 1.5),
        ("recoveries_total", "", 2.0),
        ("recovery_seconds_sum", "", 0.04),
        ("recovery_seconds_bucket", r#"le="0.1""#, 1.0),
        ("recovery_phase_seconds_total", r#"phase="replayed""#, 0.03),
        ("replayed_messages_total", "", 66.0),
        ("move_pause_seconds_count", "", 1.0),
        ("checkpoint_pause_seconds_count", "", 1.0),
        ("log_bytes", r#"router="0",place="disk""#, 6.0),
        ("sent_bytes_total", r#"from="0",to="1""#, 30.0),
        ("sent_messages_total", r#"from="elsewhere",to="0""#, 2.0),
        ("sent_bytes_total", r#"from="other",to="other""#, 0.0),
        ("line_up", r#"to="cloud""#, 1.0),
        ("line_round_trip_seconds", r#"to="cloud""#, 0.25),
        ("node_ranks", r#"node="3",host="h3""#, 2.0),
        ("node_up", r#"node="2",host="h2""#, 0.0),
        ("node_health_state", r#"node="1",host="h1""#, 1.0),
        ("health_findings", r#"rule="memory",state="suspect""#, 1.0),
        ("node_busy_ratio", r#"node="0",host="h0""#, 0.75),
        ("node_memory_bytes", r#"node="0",host="h0",kind="available""#, 400.0),
        ("node_rank_memory_bytes", r#"node="0",host="h0""#, 200.0),
        ("node_waiting_ratio", r#"node="0",host="h0""#, 0.5),
    ] {
        assert_eq!(of(name, labels), value, "{name} {labels}");
    }
    assert!(!text.contains("secret"), "arguments are no one else's affair");
    assert!(!text.contains(r#"busy_ratio{eyrie_job="melt",node="2""#), "it is gone");
}

#[test]
fn more_ranks_are_no_more_series() {
    let few = text(100, 100);
    let many = text(20_000, 100);
    assert_eq!(series(&few).len(), series(&many).len());
    assert!(series(&many).len() < 1500, "{} series", series(&many).len());
}

/// The names of all metrics as they are asked for.
fn names(text: &str) -> BTreeSet<String> {
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let name = |line: &str| {
        let (name, kind) = line.split_once(' ').unwrap();
        if kind == "counter" {
            format!("{name}_total")
        } else {
            name.into()
        }
    };
    types.map(name).collect()
}

#[test]
fn the_page_lists_all_metrics_and_no_others() {
    let names = names(&text(8, 4));
    let listed: BTreeSet<String> = DOCUMENTED
        .lines()
        .filter_map(|line| line.strip_prefix("| `eyrie_job_"))
        .filter_map(|line| line.split(['`', '{']).next())
        .map(|name| format!("eyrie_job_{name}"))
        .collect();
    assert_eq!(listed, names);
}

#[test]
fn the_dashboard_asks_for_metrics_that_there_are() {
    let names = names(&text(8, 4));
    let dashboard: serde_json::Value = serde_json::from_str(DASHBOARD).unwrap();
    let expressions = dashboard.to_string();
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let asked: BTreeSet<&str> = expressions
        .split(|c| !is_of_name(c))
        .filter(|word| word.starts_with("eyrie_job_"))
        .collect();
    assert!(asked.len() > 20, "{asked:?}");
    for name in asked {
        let plain = ["_bucket", "_count", "_sum"].iter().find_map(|end| name.strip_suffix(end));
        let is_there = names.contains(name) || plain.is_some_and(|name| names.contains(name));
        assert!(is_there, "the dashboard asks for {name}");
    }
}
