//! What drives report about themselves, through smartctl's JSON. A drive that smartctl cannot read,
//! or a node without smartctl, gives no reading.

use super::external::{run, Ended};
use super::reading::{Reading, Value};
use serde::Deserialize;
use std::time::Duration;

/// smartctl waits for busy drives. What takes longer than this is read the next time.
const LIMIT: Duration = Duration::from_secs(20);

#[derive(Deserialize)]
struct Scan {
    #[serde(default)]
    devices: Vec<Device>,
}

#[derive(Deserialize)]
struct Device {
    name: String,
}

/// The parts that are used of `smartctl --json --all` (smartmontools 7.0 and later).
#[derive(Deserialize)]
struct Report {
    smart_status: Option<Status>,
    ata_smart_attributes: Option<Attributes>,
    nvme_smart_health_information_log: Option<Nvme>,
}

#[derive(Deserialize)]
struct Status {
    passed: bool,
}

#[derive(Deserialize)]
struct Attributes {
    table: Vec<Attribute>,
}

#[derive(Deserialize)]
struct Attribute {
    id: u64,
    name: String,
    raw: Raw,
}

#[derive(Deserialize)]
struct Raw {
    value: u64,
}

#[derive(Deserialize)]
struct Nvme {
    critical_warning: u64,
    media_errors: Option<u64>,
}

fn smartctl(program: Option<&str>, arguments: &[&str]) -> Option<Vec<u8>> {
    let arguments: Vec<String> = arguments.iter().map(|a| a.to_string()).collect();
    match run(program.unwrap_or("smartctl"), &arguments, LIMIT) {
        // The exit code is a set of bits about the drive; the JSON is more precise.
        Ended::Code(_, text) => Some(text),
        _ => None,
    }
}

fn reports(program: Option<&str>) -> Vec<(String, Report)> {
    let scan = smartctl(program, &["--json=c", "--scan"])
        .and_then(|text| serde_json::from_slice::<Scan>(&text).ok());
    let devices = scan.map(|s| s.devices).unwrap_or_default();
    let report = |device: Device| {
        let text = smartctl(program, &["--json=c", "--all", &device.name])?;
        serde_json::from_slice(&text).ok().map(|report| (device.name, report))
    };
    devices.into_iter().filter_map(report).collect()
}

/// Raw values of the wanted attributes; the media errors of NVMe drives.
pub fn attributes(program: Option<&str>, wanted: &[u64]) -> Vec<Reading> {
    let mut all = Vec::new();
    for (device, report) in reports(program) {
        let mut add = |name: &str, value: u64| {
            all.push(Reading {
                what: format!("{device} {name}"),
                value: Value::Level(value as f64),
                said: format!("raw value {value}"),
                read_from: format!("smartctl --all {device}"),
            })
        };
        for a in report
            .ata_smart_attributes
            .iter()
            .flat_map(|a| &a.table)
            .filter(|a| wanted.contains(&a.id))
        {
            // Seagate packs three counters into attribute 188; the lowest is the count.
            add(
                &format!("{} {}", a.id, a.name),
                if a.id == 188 { a.raw.value & 0xffff } else { a.raw.value },
            );
        }
        if let Some(errors) = report.nvme_smart_health_information_log.and_then(|n| n.media_errors)
        {
            add("media errors", errors);
        }
    }
    all
}

/// The drive's own verdict: 1 is bad.
pub fn verdicts(program: Option<&str>) -> Vec<Reading> {
    let verdict = |(device, report): (String, Report)| {
        let failed = report.smart_status.map(|s| !s.passed);
        let warned = report.nvme_smart_health_information_log.map(|n| n.critical_warning != 0);
        let bad = match (failed, warned) {
            (None, None) => return None,
            (failed, warned) => failed.unwrap_or(false) || warned.unwrap_or(false),
        };
        let said = if bad { "the drive expects to fail" } else { "the drive reports no fault" };
        Some(Reading {
            what: device.clone(),
            value: Value::Level(bad.into()),
            said: said.into(),
            read_from: format!("smartctl --all {device}"),
        })
    };
    reports(program).into_iter().filter_map(verdict).collect()
}
