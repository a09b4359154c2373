//! What a running monitor serves: OpenMetrics, the newest sample, the ring, its health. Answers
//! come from samples that were taken already: a scrape must never trigger a sample.

use crate::json;
use crate::metrics::Exporter;
use crate::shared::{lock, Shared};
use eyrie_exporter::server::{text, Answer, Answers};
use eyrie_exporter::text::OPENMETRICS;
use http_body_util::Either;
use hyper::body::{Body, Bytes, Frame as Part};
use hyper::{Response, StatusCode};
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

/// A monitor that answers.
pub struct Monitor {
    pub shared: Arc<Shared>,
    pub exporter: Arc<Mutex<Exporter>>,
}

impl Answers for Monitor {
    type Pieces = Recording;

    async fn answer(&self, path: &str) -> Answer<Recording> {
        let shared = &self.shared;
        match path {
            "/metrics" => match lock(&self.exporter).encode(shared) {
                Ok(metrics) => text(StatusCode::OK, OPENMETRICS, metrics),
                Err(e) => text(StatusCode::INTERNAL_SERVER_ERROR, "text/plain", format!("{e}\n")),
            },
            "/sample" => match shared.ring.latest() {
                Some(frame) => {
                    let line = json::line(
                        &shared.node,
                        &frame,
                        &shared.started.accuracy,
                        Some(&lock(&shared.names)),
                    );
                    text(StatusCode::OK, "application/json", line + "\n")
                }
                None => {
                    text(StatusCode::SERVICE_UNAVAILABLE, "text/plain", "no sample yet\n".into())
                }
            },
            "/ring" => {
                let body = Recording { shared: shared.clone(), after: None, until: newest(shared) };
                let answer = Response::builder().header("content-type", "application/jsonl");
                answer.body(Either::Right(body)).expect("plain headers")
            }
            "/health" => {
                let states: serde_json::Map<_, _> = lock(&shared.health)
                    .iter()
                    .map(|(rule, state)| (rule.clone(), serde_json::json!(state)))
                    .collect();
                text(
                    StatusCode::OK,
                    "application/json",
                    serde_json::json!(states).to_string() + "\n",
                )
            }
            "/" => text(
                StatusCode::OK,
                "text/plain",
                "eyrie monitor: /metrics /sample /ring /health\n".into(),
            ),
            _ => text(
                StatusCode::NOT_FOUND,
                "text/plain",
                "there are /metrics /sample /ring /health\n".into(),
            ),
        }
    }
}

fn newest(shared: &Shared) -> Option<u64> {
    shared.ring.latest().map(|frame| frame.head.number)
}

/// The ring as it was at the request, sample by sample: never all of it in memory twice.
pub struct Recording {
    shared: Arc<Shared>,
    after: Option<u64>,
    until: Option<u64>,
}

impl Body for Recording {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context,
    ) -> Poll<Option<Result<Part<Bytes>, Infallible>>> {
        if self.after == self.until {
            return Poll::Ready(None);
        }
        let Some(frame) =
            self.shared.ring.following(self.after).filter(|f| Some(f.head.number) <= self.until)
        else {
            return Poll::Ready(None);
        };
        self.after = Some(frame.head.number);
        let names = lock(&self.shared.names);
        let line =
            json::line(&self.shared.node, &frame, &self.shared.started.accuracy, Some(&names))
                + "\n";
        Poll::Ready(Some(Ok(Part::data(line.into()))))
    }
}
