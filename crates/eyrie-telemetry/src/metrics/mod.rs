//! The metrics of a job: counts of its events, and what it says of itself when it is asked.
//! docs/metrics.md lists them all, and a test keeps both in step.

mod asker;
mod counts;
mod families;
mod histogram;

use crate::follow::Event;
use crate::named::{Named, Say};
use asker::Asker;
use counts::Counts;
use eyrie_exporter::server::{self, text, Answer, Answers};
use eyrie_exporter::text::{encode, OPENMETRICS};
use families::Snapshot;
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::StatusCode;
use std::net::TcpListener;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// What is known of a job, for Prometheus.
#[derive(Debug)]
pub struct Metrics {
    named: Named,
    counts: Mutex<Counts>,
    asker: Asker,
}

impl Metrics {
    /// Of the job that has this directory.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn begin(dir: &Path, named: &Named) -> std::io::Result<Metrics> {
        let counts = Mutex::new(Counts::new());
        Ok(Metrics { named: named.clone(), counts, asker: Asker::start(dir)? })
    }

    /// Counts an event.
    pub fn hear(&self, event: &Event) {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner).hear(event);
    }

    async fn metrics(&self) -> Answer<Full<Bytes>> {
        let said = self.asker.said().await;
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Named { job, domain } = &self.named;
        let domain = domain.as_ref().map(|name| ("domain", name.as_str()));
        let labels = [("eyrie_job", job.as_str())].into_iter().chain(domain);
        match encode(Snapshot { counts, said }, labels) {
            Ok(metrics) => text(StatusCode::OK, OPENMETRICS, metrics),
            Err(e) => text(StatusCode::INTERNAL_SERVER_ERROR, "text/plain", format!("{e}\n")),
        }
    }
}

/// A job that answers.
struct Served(Arc<Metrics>);

impl Answers for Served {
    type Pieces = Full<Bytes>;

    async fn answer(&self, path: &str) -> Answer<Full<Bytes>> {
        match path {
            "/metrics" => self.0.metrics().await,
            _ => text(StatusCode::NOT_FOUND, "text/plain", "there is /metrics\n".into()),
        }
    }
}

/// Answers Prometheus there as long as this process runs.
///
/// # Errors
/// When no thread can be started.
pub fn serve(metrics: Arc<Metrics>, listener: TcpListener, say: Say) -> std::io::Result<()> {
    let serving = move || {
        // It fails before it has served anything, or not at all.
        if let Err(e) = server::run(Served(metrics), Some(listener), None) {
            say(&format!("metrics cannot be served: {e}"));
        }
    };
    std::thread::Builder::new().name("metrics".into()).spawn(serving).map(drop)
}
