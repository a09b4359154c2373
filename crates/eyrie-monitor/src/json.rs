//! Samples as JSON lines (docs/monitor-schema.json): one line for each sample, whatever the reader.
//! Values that the reader does not know are null.

use crate::accuracy::Accuracy;
use crate::names::{Directory, Names};
use crate::reader::Kind;
use crate::ring::Frame;
use crate::sample::{Cost, Detail, Head, NodeSample, Process, UNKNOWN};
use serde::Serialize;

pub const SCHEMA: &str = "eyrie-sample/1";

#[derive(Serialize)]
struct Line<'a> {
    schema: &'static str,
    node: &'a str,
    number: u64,
    /// Nanoseconds since 1970. A double does not hold that many digits, so readers of JSON need
    /// care in some languages.
    intended_ns: u64,
    skew_ns: i64,
    step: u32,
    interval_ns: u64,
    reader: Kind,
    detail: Detail,
    accuracy: &'a Accuracy,
    cost: Cost,
    beyond: u32,
    failed: u32,
    system: &'a NodeSample,
    processes: Vec<Row<'a>>,
}

#[derive(Serialize)]
struct Row<'a> {
    pid: u32,
    parent: u32,
    command: std::borrow::Cow<'a, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    command_line: Option<&'a str>,
    cgroup: Option<&'a str>,
    threads: u32,
    state: char,
    kernel: bool,
    start_ns: u64,
    cpu_ns: u64,
    user_ns: Option<u64>,
    system_ns: Option<u64>,
    rss_bytes: u64,
    age: u16,
}

/// One line, without its end. `names` may be of another moment; missing names are left out.
pub fn line(node: &str, frame: &Frame, accuracy: &Accuracy, names: Option<&Directory>) -> String {
    let processes = frame
        .processes
        .iter()
        .filter(|p| p.due)
        .map(|p| row(p, names.and_then(|n| n.of(p.pid))))
        .collect();
    let Head {
        number,
        intended_ns,
        skew_ns,
        step,
        interval_ns,
        reader,
        detail,
        cost,
        beyond,
        failed,
        node: ref system,
    } = frame.head;
    let line = Line {
        schema: SCHEMA,
        node,
        number,
        intended_ns,
        skew_ns,
        step,
        interval_ns,
        reader,
        detail,
        accuracy,
        cost,
        beyond,
        failed,
        system,
        processes,
    };
    serde_json::to_string(&line).expect("plain data")
}

fn row<'a>(p: &'a Process, names: Option<&'a Names>) -> Row<'a> {
    Row {
        pid: p.pid,
        parent: p.parent,
        command: p.command(),
        command_line: names.and_then(|n| n.command_line.as_deref()),
        cgroup: names.map(|n| n.cgroup.as_str()),
        threads: p.threads,
        state: char::from(p.state),
        kernel: p.kernel_thread,
        start_ns: p.start_ns,
        cpu_ns: p.cpu_ns,
        user_ns: known(p.user_ns),
        system_ns: known(p.system_ns),
        rss_bytes: p.rss_bytes,
        age: p.age,
    }
}

fn known(n: u64) -> Option<u64> {
    (n != UNKNOWN).then_some(n)
}

/// The name of this node, as uname(2) has it.
pub fn node_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
