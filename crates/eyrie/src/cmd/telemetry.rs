//! Metrics and traces of the job that this process controls: what was asked for, where it listens,
//! and what is said of it. The rest is in eyrie-telemetry.

use eyrie_cli::out;
use eyrie_controller::runtime::{JobOptions, Running};
use eyrie_exporter::listen::bind;
use eyrie_interface::record::LogLevel;
use eyrie_telemetry::{Named, Say, Telemetry, Wanted};
use std::sync::Arc;

/// What users want to have told of a job that is to start.
///
/// # Errors
/// When the address of the metrics is taken, or is none of this host; says what to do.
pub fn wanted(options: &JobOptions) -> anyhow::Result<Wanted> {
    let metrics = options.metrics.map(|address| bind(address, "--metrics")).transpose()?;
    let traces = options.traces.as_deref().map(str::parse).transpose();
    Ok(Wanted { metrics, traces: traces.map_err(anyhow::Error::msg)? })
}

/// What they want of one that goes on, perhaps on another host: it does so without what cannot be.
fn still_wanted(options: &JobOptions) -> Wanted {
    wanted(options).unwrap_or_else(|e| {
        out::say(format_args!("eyrie: metrics are not served: {e:#}"));
        wanted(&JobOptions { metrics: None, ..options.clone() }).unwrap_or_default()
    })
}

/// Begins to tell of a job that is there.
pub fn start(wanted: Wanted, running: &Running) -> Option<Telemetry> {
    let options = &running.beginning.options;
    let address = wanted.metrics.as_ref().and_then(|listener| listener.local_addr().ok());
    if let Some(address) = address.filter(|_| options.show <= LogLevel::Normal) {
        out::say(format_args!("eyrie: metrics at http://{address}/metrics"));
    }
    let domain = options.domains.as_ref().map(|of| of.domains.own().name.clone());
    let named = Named { job: running.beginning.name.clone(), domain };
    let say: Say = Arc::new(|text| out::say(format_args!("eyrie: {text}")));
    let started = Telemetry::start(wanted, running.dir, &named, running.first_event, say);
    started.map_err(|e| out::say(format_args!("eyrie: no metrics and traces: {e:#}"))).ok()
}

/// Begins again to tell of a job that goes on.
pub fn start_again(running: &Running) -> Option<Telemetry> {
    start(still_wanted(&running.beginning.options), running)
}
