//! The machine, and what else it was doing during a run: a figure from a busy machine must be
//! recognisable.

use eyrie_proc::{host, text, TICK_NS};
use serde::Serialize;
use std::time::Instant;

/// A figure is doubtful if other processes use more than this share of all cores on average.
const QUIET_SHARE: f64 = 0.1;

/// The machine and its state during one run, as reported.
#[derive(Clone, Debug, Serialize)]
pub struct Conditions {
    pub cores: usize,
    pub cpu: String,
    pub kernel: String,
    pub memory_gib: f64,
    /// One-minute load average before the run, without the run itself.
    pub load_before: f64,
    /// The same at its end, with the run itself.
    pub load_after: f64,
    /// Cores that other processes kept busy, on average over the run.
    pub others_cores: f64,
    /// Cores that the hypervisor gave to other machines, on average.
    pub stolen_cores: f64,
    pub seconds: f64,
    pub busy: bool,
}

/// The counts at the beginning of a run.
pub struct Watch {
    start: Instant,
    load: f64,
    before: Ticks,
    ours: f64,
}

/// Processor time of the machine since its start, in seconds.
#[derive(Clone, Copy, Default, Debug, PartialEq)]
struct Ticks {
    busy: f64,
    stolen: f64,
}

impl Watch {
    pub fn begin() -> Watch {
        let load = load_average();
        let before = Ticks::now();
        let ours = processor_time();
        Watch { start: Instant::now(), load, before, ours }
    }

    /// The warning before a run on a busy machine.
    pub fn warning(&self) -> Option<String> {
        let cores = cores();
        (self.load > QUIET_SHARE * 2.0 * cores as f64).then(|| {
            format!(
                "the load average is {:.2} on {cores} cores before anything is measured: expect \
                 noise, or wait until it is lower",
                self.load
            )
        })
    }

    pub fn end(self) -> Conditions {
        let seconds = self.start.elapsed().as_secs_f64();
        let now = Ticks::now();
        let busy = now.busy - self.before.busy - (processor_time() - self.ours);
        let others_cores = (busy / seconds).max(0.0);
        let stolen_cores = (now.stolen - self.before.stolen) / seconds;
        Conditions {
            cores: cores(),
            cpu: cpu_model(),
            kernel: kernel_version(),
            memory_gib: memory_gib(),
            load_before: self.load,
            load_after: load_average(),
            others_cores,
            stolen_cores,
            seconds,
            busy: others_cores + stolen_cores > QUIET_SHARE * cores() as f64,
        }
    }
}

/// Processors that this process may use.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn load_average() -> f64 {
    text::read("/proc", "loadavg").split(' ').next().and_then(|n| n.parse().ok()).unwrap_or(0.0)
}

fn cpu_model() -> String {
    let info = text::read("/proc", "cpuinfo");
    let line = info.lines().find(|l| l.starts_with("model name"));
    line.and_then(|l| l.split_once(": ")).map_or("unknown".into(), |(_, name)| name.to_string())
}

fn memory_gib() -> f64 {
    host::memory().unwrap_or(0) as f64 / f64::from(1 << 30)
}

impl Ticks {
    fn now() -> Ticks {
        let all = host::processors().into_iter().find(|processor| processor.number.is_none());
        let seconds = |ticks: u64| ticks as f64 * TICK_NS as f64 / 1e9;
        all.map_or(Ticks::default(), |all| Ticks {
            busy: seconds(all.busy()),
            stolen: seconds(all.stolen()),
        })
    }
}

/// Processor time of this process and of all its reaped descendants, in seconds.
fn processor_time() -> f64 {
    let stat = eyrie_proc::read_stat(eyrie_proc::OWN);
    let ticks = stat.map_or(0, |stat| stat.user_ticks + stat.system_ticks + stat.reaped_ticks);
    ticks as f64 * TICK_NS as f64 / 1e9
}

/// The kernel's version, without what the site has appended to it.
fn kernel_version() -> String {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    release.split('-').next().unwrap_or_default().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_work_is_not_counted_as_that_of_others() {
        let before = processor_time();
        let start = Instant::now();
        while start.elapsed().as_millis() < 200 {
            std::hint::black_box(load_average());
        }
        assert!(processor_time() > before);
    }
}
