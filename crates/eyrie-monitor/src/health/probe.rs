//! What rules read: counters and levels of this node, below a root that tests may replace. What
//! does not exist gives no reading; nothing is ever assumed about it.

use super::reading::{Reading, Value};
use super::time::Time;
use super::{external, smart};
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where readings come from.
pub struct World {
    /// `/`, or a tree that looks like it.
    pub root: PathBuf,
    /// Whether the kernel's clock is synchronized, and its largest error.
    pub clock: fn() -> (bool, Duration),
}

impl World {
    pub fn new(root: &Path) -> World {
        World { root: root.into(), clock: clock_status }
    }

    fn at(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    fn text(&self, path: &Path) -> Option<String> {
        std::fs::read_to_string(path).ok().map(|t| t.trim().to_string())
    }

    fn number(&self, path: &Path) -> Option<u64> {
        self.text(path)?.parse().ok()
    }

    /// The entries of a directory in order, if there is one.
    fn list(&self, path: &Path) -> Vec<(String, PathBuf)> {
        let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
        let mut all: Vec<_> =
            entries.map(|e| (e.file_name().to_string_lossy().into_owned(), e.path())).collect();
        all.sort();
        all
    }

    /// The path on the node, without the root.
    fn shown(&self, path: &Path) -> String {
        Path::new("/").join(path.strip_prefix(&self.root).unwrap_or(path)).display().to_string()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Errors {
    Corrected,
    Uncorrected,
}

/// A kind of reading.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "probe", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Probe {
    Edac {
        errors: Errors,
    },
    Temperature {},
    Throttle {},
    ProcessorLimit {},
    Network {},
    Infiniband {
        counters: Vec<String>,
    },
    LinkSpeed {},
    Smart {
        attributes: Vec<u64>,
        program: Option<String>,
    },
    SmartVerdict {
        program: Option<String>,
    },
    Space {
        paths: Vec<String>,
    },
    Memory {},
    Pressure {},
    Clock {},
    ClockStep {},
    Check {
        program: String,
        #[serde(default)]
        arguments: Vec<String>,
        limit: Time,
    },
}

impl Probe {
    pub fn read(&self, world: &World) -> Vec<Reading> {
        match self {
            Probe::Edac { errors } => edac(world, *errors),
            Probe::Temperature {} => temperatures(world),
            Probe::Throttle {} => throttle(world),
            Probe::ProcessorLimit {} => processor_limit(world).into_iter().collect(),
            Probe::Network {} => network(world),
            Probe::Infiniband { counters } => infiniband(world, counters),
            Probe::LinkSpeed {} => link_speed(world),
            Probe::Smart { attributes, program } => {
                smart::attributes(program.as_deref(), attributes)
            }
            Probe::SmartVerdict { program } => smart::verdicts(program.as_deref()),
            Probe::Space { paths } => paths.iter().filter_map(|path| space(world, path)).collect(),
            Probe::Memory {} => memory(world).into_iter().collect(),
            Probe::Pressure {} => pressure(world).into_iter().collect(),
            Probe::Clock {} => vec![clock(world)],
            Probe::ClockStep {} => clock_step(world).into_iter().collect(),
            Probe::Check { program, arguments, limit } => {
                vec![external::check(program, arguments, limit.0)]
            }
        }
    }
}

/// Errors of memory: of each module where the driver knows the modules, else of the controller.
fn edac(world: &World, errors: Errors) -> Vec<Reading> {
    let short = match errors {
        Errors::Corrected => "ce",
        Errors::Uncorrected => "ue",
    };
    let mut all = Vec::new();
    for (controller, dir) in world.list(&world.at("sys/devices/system/edac/mc")) {
        if !controller.starts_with("mc") {
            continue;
        }
        let before = all.len();
        for (module, dir) in world.list(&dir) {
            let file = dir.join(format!("dimm_{short}_count"));
            let Some(count) = world.number(&file) else { continue };
            let label = world.text(&dir.join("dimm_label")).filter(|l| !l.is_empty());
            let what = label.unwrap_or_else(|| format!("{controller}/{module}"));
            all.push(counter(world, what, count, &file, "errors"));
        }
        let file = dir.join(format!("{short}_count"));
        if let (true, Some(count)) = (all.len() == before, world.number(&file)) {
            all.push(counter(world, controller, count, &file, "errors"));
        }
    }
    all
}

fn counter(world: &World, what: String, count: u64, file: &Path, unit: &str) -> Reading {
    Reading {
        what,
        value: Value::Count(count),
        said: format!("{count} {unit} in all"),
        read_from: world.shown(file),
    }
}

fn temperatures(world: &World) -> Vec<Reading> {
    let mut all = Vec::new();
    for (chip, dir) in world.list(&world.at("sys/class/hwmon")) {
        for (name, file) in world.list(&dir) {
            let Some(sensor) = name.strip_suffix("_input").filter(|s| s.starts_with("temp")) else {
                continue;
            };
            let milli = |suffix: &str| -> Option<f64> {
                let text = world.text(&dir.join(format!("{sensor}_{suffix}")))?;
                text.parse::<f64>().ok().map(|m| m / 1000.0)
            };
            let (Some(now), Some(critical)) = (milli("input"), milli("crit")) else { continue };
            // Firmware without a critical temperature reports 0 or an absurd one.
            if !(20.0..200.0).contains(&critical) {
                continue;
            }
            let label = world
                .text(&dir.join(format!("{sensor}_label")))
                .or_else(|| world.text(&dir.join("name")));
            all.push(Reading {
                what: format!("{chip}/{} ({sensor})", label.unwrap_or_default()),
                value: Value::Level(now - critical),
                said: format!("{now} degrees, critical at {critical}"),
                read_from: world.shown(&file),
            });
        }
    }
    all
}

fn throttle(world: &World) -> Vec<Reading> {
    let mut all = Vec::new();
    for (cpu, dir) in world.list(&world.at("sys/devices/system/cpu")) {
        let file = dir.join("thermal_throttle/core_throttle_count");
        if let Some(count) = world.number(&file) {
            all.push(counter(world, cpu, count, &file, "times too hot"));
        }
    }
    all
}

/// The clock rate that processors may have at most: the mean over them, in MHz. Firmware lowers it
/// when power or cooling fails, and says so in `bios_limit` or by the policy's own limit.
fn processor_limit(world: &World) -> Option<Reading> {
    let dir = world.at("sys/devices/system/cpu/cpufreq");
    let limit = |(_, policy): &(String, PathBuf)| {
        let limit = |file: &str| world.number(&policy.join(file));
        let policy = limit("scaling_max_freq")?;
        Some(limit("bios_limit").map_or(policy, |of_firmware| of_firmware.min(policy)))
    };
    let all: Vec<u64> = world.list(&dir).iter().filter_map(limit).collect();
    let mhz = all.iter().sum::<u64>() as f64 / 1000.0 / all.len().max(1) as f64;
    (mhz > 0.0).then(|| Reading {
        what: "processors".into(),
        value: Value::Height(mhz),
        said: format!("{mhz:.0} MHz at most, less than before"),
        read_from: world.shown(&dir),
    })
}

fn network(world: &World) -> Vec<Reading> {
    let mut all = Vec::new();
    for (name, dir) in world.list(&world.at("sys/class/net")) {
        let count = |file: &str| world.number(&dir.join("statistics").join(file));
        let (Some(receive), Some(send)) = (count("rx_errors"), count("tx_errors")) else {
            continue;
        };
        if name == "lo" {
            continue;
        }
        let file = dir.join("statistics/rx_errors");
        let mut reading = counter(world, name, receive + send, &file, "errors");
        reading.said = format!("{receive} errors in receiving and {send} in sending in all");
        all.push(reading);
    }
    all
}

fn infiniband(world: &World, counters: &[String]) -> Vec<Reading> {
    let mut all = Vec::new();
    for (device, dir) in world.list(&world.at("sys/class/infiniband")) {
        for (port, dir) in world.list(&dir.join("ports")) {
            for name in counters {
                let file = dir.join("counters").join(name);
                if let Some(count) = world.number(&file) {
                    all.push(counter(
                        world,
                        format!("{device} port {port} {name}"),
                        count,
                        &file,
                        "events",
                    ));
                }
            }
        }
    }
    all
}

/// The speed of links that are up: of interfaces in Mbit/s, of InfiniBand's ports in Gbit/s.
fn link_speed(world: &World) -> Vec<Reading> {
    let reading = |what: String, speed: f64, unit: &str, file: &Path| Reading {
        what,
        value: Value::Height(speed),
        said: format!("{speed} {unit} now, less than before"),
        read_from: world.shown(file),
    };
    let mut all = Vec::new();
    for (name, dir) in world.list(&world.at("sys/class/net")) {
        let up = world.text(&dir.join("operstate")).is_some_and(|state| state == "up");
        let file = dir.join("speed");
        // What has no speed says -1, or cannot be read.
        if let Some(speed) = world.number(&file).filter(|speed| up && *speed > 0) {
            all.push(reading(name, speed as f64, "Mbit/s", &file));
        }
    }
    for (device, dir) in world.list(&world.at("sys/class/infiniband")) {
        for (port, dir) in world.list(&dir.join("ports")) {
            let file = dir.join("rate");
            let rate = world.text(&file).and_then(|text| text.split(' ').next()?.parse().ok());
            if let Some(rate) = rate {
                all.push(reading(format!("{device} port {port}"), rate, "Gbit/s", &file));
            }
        }
    }
    all
}

/// The used part of a file system, of its bytes or its inodes, whichever is larger.
fn space(world: &World, path: &str) -> Option<Reading> {
    let s = rustix::fs::statvfs(world.at(path)).ok()?;
    // As df counts: what is reserved for root is neither used nor free.
    let used = |total: u64, free: u64, available: u64| {
        let used = total.saturating_sub(free);
        if used + available == 0 {
            0.0
        } else {
            used as f64 / (used + available) as f64
        }
    };
    let bytes = used(s.f_blocks, s.f_bfree, s.f_bavail);
    let inodes = used(s.f_files, s.f_ffree, s.f_favail);
    Some(Reading {
        what: path.into(),
        value: Value::Level(bytes.max(inodes)),
        said: format!(
            "{:.1} % of the bytes and {:.1} % of the inodes are used",
            bytes * 100.0,
            inodes * 100.0
        ),
        read_from: format!("statvfs {path}"),
    })
}

fn memory(world: &World) -> Option<Reading> {
    let path = world.at("proc/meminfo");
    let text = std::fs::read(&path).ok()?;
    let kib = |key: &[u8]| {
        eyrie_proc::text::after(&text, key).and_then(eyrie_proc::text::number).map(|n| n.0 as f64)
    };
    let total = kib(b"MemTotal:")?;
    let available = kib(b"MemAvailable:")?;
    Some(Reading {
        what: "memory".into(),
        value: Value::Level(1.0 - available / total.max(1.0)),
        said: format!("{:.0} of {:.0} MiB are available", available / 1024.0, total / 1024.0),
        read_from: world.shown(&path),
    })
}

/// The part of the last ten seconds, in percent, in which all processes that could run waited for
/// memory.
fn pressure(world: &World) -> Option<Reading> {
    let path = world.at("proc/pressure/memory");
    let text = world.text(&path)?;
    let full = text.lines().find_map(|line| line.strip_prefix("full avg10="))?;
    let percent: f64 = full.split(' ').next()?.parse().ok()?;
    Some(Reading {
        what: "memory".into(),
        value: Value::Level(percent),
        said: format!("all processes waited for memory in {percent} % of the last 10 s"),
        read_from: world.shown(&path),
    })
}

/// The time of the boot by the clock: it changes when the clock is set, and by nothing else.
fn clock_step(world: &World) -> Option<Reading> {
    let path = world.at("proc/stat");
    let text = std::fs::read(&path).ok()?;
    let booted = eyrie_proc::text::after(&text, b"btime").and_then(eyrie_proc::text::number)?.0;
    Some(Reading {
        what: "clock".into(),
        value: Value::Still(booted as f64),
        said: format!("the clock was set: by it the node was booted at {booted} s since 1970"),
        read_from: world.shown(&path),
    })
}

fn clock(world: &World) -> Reading {
    let (synchronized, error) = (world.clock)();
    let said = if synchronized {
        format!("the clock is synchronized within {} ms", error.as_millis())
    } else {
        "the clock is not synchronized: is chronyd, ntpd or ptp4l running?".into()
    };
    Reading {
        what: "clock".into(),
        value: Value::Level(if synchronized { 0.0 } else { 1.0 }),
        said,
        read_from: "adjtimex".into(),
    }
}

fn clock_status() -> (bool, Duration) {
    // SAFETY: a timex of zeros is valid, and changes nothing.
    let mut timex: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: `timex` lives through the call.
    let state = unsafe { libc::adjtimex(&mut timex) };
    let synchronized = state != libc::TIME_ERROR && timex.status & libc::STA_UNSYNC == 0;
    (synchronized, Duration::from_micros(timex.maxerror.max(0) as u64))
}
