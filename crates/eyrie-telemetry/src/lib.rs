//! What a running job tells monitoring systems: metrics for Prometheus, traces for OpenTelemetry.
//! It learns of the job only what `eyrie status`, `health`, `traffic` and `events` tell, as a user
//! does. It must never hold the job up, nor end it.

mod follow;
mod job_time;
mod metrics;
mod named;
mod traces;

pub use named::{Named, Say};
pub use traces::Collector;

use follow::Follower;
use metrics::Metrics;
use std::net::TcpListener;
use std::path::Path;
use std::sync::mpsc::{channel, Receiver};
use std::sync::Arc;
use std::time::Duration;
use traces::Traces;

/// How long the last events and traces of a job may take once it has ended.
const LAST_TIMEOUT: Duration = Duration::from_secs(2);

/// What users want to have told.
#[derive(Debug, Default)]
pub struct Wanted {
    /// Where Prometheus asks.
    pub metrics: Option<TcpListener>,
    /// Where traces go.
    pub traces: Option<Collector>,
}

/// What follows a job as long as this process runs.
#[must_use = "its end is waited for"]
pub struct Telemetry {
    /// Tells that no more events come, with the traces that are to be sent.
    over: Option<Receiver<Traces>>,
}

impl Telemetry {
    /// Tells of the job that has this directory. `first_new`: the number of the first event that no
    /// earlier controller has told.
    ///
    /// # Errors
    /// When a thread cannot be started, or the variables of OpenTelemetry in the environment say
    /// what cannot be.
    pub fn start(
        wanted: Wanted,
        dir: &Path,
        named: &Named,
        first_new: u64,
        say: Say,
    ) -> anyhow::Result<Telemetry> {
        let Wanted { metrics: listener, traces } = wanted;
        if listener.is_none() && traces.is_none() {
            return Ok(Telemetry { over: None });
        }
        let mut traces = traces.map(|to| Traces::begin(to, named, say.clone())).transpose()?;
        let serve = |listener| -> std::io::Result<Arc<Metrics>> {
            let metrics = Arc::new(Metrics::begin(dir, named)?);
            metrics::serve(metrics.clone(), listener, say.clone())?;
            Ok(metrics)
        };
        let metrics = listener.map(serve).transpose()?;
        let (ended, over) = channel();
        let is_waited_for = traces.is_some();
        let mut follower = Follower::new(dir, first_new);
        std::thread::Builder::new().name("telemetry".into()).spawn(move || {
            follower.run(&say, &mut |event| {
                if let Some(metrics) = &metrics {
                    metrics.hear(event);
                }
                if let Some(traces) = &mut traces {
                    traces.hear(event);
                }
            });
            if let Some(traces) = traces {
                // It may not be waited for any more.
                let _ = ended.send(traces);
            }
        })?;
        Ok(Telemetry { over: is_waited_for.then_some(over) })
    }

    /// The job has ended: sends what is left, within a bound.
    pub fn finish(self) {
        let Some(over) = self.over else { return };
        if let Ok(traces) = over.recv_timeout(LAST_TIMEOUT) {
            traces.finish(LAST_TIMEOUT);
        }
    }
}
