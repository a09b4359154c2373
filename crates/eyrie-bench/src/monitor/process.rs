//! A program that runs while something else is measured; it ends with its guard.

use anyhow::Context;
use eyrie_monitor::clock::cpu_of;
use eyrie_supervision::end;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub struct Running {
    child: Child,
}

impl Running {
    pub fn start(command: &mut Command) -> anyhow::Result<Running> {
        let name = command.get_program().to_string_lossy().into_owned();
        let child =
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        Ok(Running { child: child.with_context(|| format!("cannot start {name}"))? })
    }

    /// Its CPU time so far.
    pub fn cpu(&self) -> anyhow::Result<Duration> {
        let ns = cpu_of(self.child.id()).context("a program that was to be measured has died")?;
        Ok(Duration::from_nanos(ns))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        end(&mut self.child, Duration::from_secs(3));
    }
}

/// `eyrie monitor` with these options, writing its samples to a file.
pub struct Monitor {
    running: Running,
    file: PathBuf,
}

/// What a monitor reported about its samples, in seconds.
#[derive(Clone, Debug, Default)]
pub struct Said {
    /// CPU time of the sampling thread for each sample, with waking.
    pub costs: Vec<f64>,
    pub skews: Vec<f64>,
    /// CPU time of the whole monitor for each sample.
    pub whole: Vec<f64>,
    pub taken: Vec<eyrie_monitor::skew::Taken>,
    /// The reader that it chose.
    pub reader: String,
}

impl Monitor {
    /// Starts a monitor and waits for its first sample.
    pub fn start(eyrie: &Path, options: &[String], file: PathBuf) -> anyhow::Result<Monitor> {
        let mut command = Command::new(eyrie);
        command
            .args(["monitor", "--no-health", "--command-lines", "none", "--json"])
            .arg(&file)
            .args(options);
        let mut running = Running::start(&mut command)?;
        let until = Instant::now() + Duration::from_secs(30);
        while std::fs::metadata(&file).map_or(0, |m| m.len()) == 0 {
            if let Some(status) = running.child.try_wait()? {
                anyhow::bail!("eyrie monitor {} ended with {status}", options.join(" "));
            }
            anyhow::ensure!(
                Instant::now() < until,
                "eyrie monitor {} took no sample for 30 s",
                options.join(" ")
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(Monitor { running, file })
    }

    /// Ends it, and reads its output.
    pub fn end(self) -> anyhow::Result<Said> {
        let Monitor { running, file } = self;
        drop(running);
        let text = std::fs::read_to_string(&file)?;
        std::fs::remove_file(&file)?;
        let mut said = Said::default();
        let mut before = None;
        for line in text.lines() {
            // The last line may be incomplete.
            let Ok(line) = serde_json::from_str::<Value>(line) else { continue };
            let ns = |v: &Value| v.as_f64().unwrap_or(0.0) / 1e9;
            let whole = ns(&line["cost"]["monitor_ns"]);
            if line["number"].as_u64() > Some(1) {
                said.costs.push(ns(&line["cost"]["whole_ns"]));
                said.skews.push(ns(&line["skew_ns"]));
                said.whole.extend(before.map(|before: f64| (whole - before).max(0.0)));
            }
            before = Some(whole);
            said.reader = line["reader"].as_str().unwrap_or_default().into();
            said.taken.push(eyrie_monitor::skew::Taken {
                node: file.display().to_string(),
                intended_ns: line["intended_ns"].as_u64().unwrap_or(0),
                skew_ns: line["skew_ns"].as_i64().unwrap_or(0),
            });
        }
        Ok(said)
    }
}
