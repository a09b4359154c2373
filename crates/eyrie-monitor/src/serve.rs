//! What a running monitor tells others: OpenMetrics, the newest sample, the ring, its health. Answers come from what was sampled already: a
//! scrape must never trigger a sample, and a slow or silent client must never hold anything up.

use crate::health::State;
use crate::json;
use crate::metrics::Exporter;
use crate::names::Directory;
use crate::ring::Ring;
use crate::sampler::Started;
use http_body_util::{Either, Full};
use hyper::body::{Body, Bytes, Frame as Part};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

/// What answers are made from.
pub struct Shared {
    pub node: String,
    pub ring: Ring,
    pub started: Started,
    pub exporter: Mutex<Exporter>,
    pub names: Mutex<Directory>,
    pub health: Mutex<Vec<(String, State)>>,
}

/// Locks although another thread may have panicked with it: samples are plain data.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Clients at a time, over both listeners; more wait.
const CLIENTS: usize = 16;
/// A client that takes longer than this is sent away.
const PATIENCE: Duration = Duration::from_secs(30);
pub const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

type Answer = Response<Either<Full<Bytes>, Recording>>;

/// Answers on these listeners, for ever.
///
/// # Errors
/// When the listeners cannot be used.
pub fn run(
    shared: Arc<Shared>,
    tcp: Option<TcpListener>,
    unix: Option<UnixListener>,
) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let room = Arc::new(tokio::sync::Semaphore::new(CLIENTS));
        let tcp = match tcp {
            Some(listener) => {
                listener.set_nonblocking(true)?;
                Some(tokio::net::TcpListener::from_std(listener)?)
            }
            None => None,
        };
        let unix = match unix {
            Some(listener) => {
                listener.set_nonblocking(true)?;
                Some(tokio::net::UnixListener::from_std(listener)?)
            }
            None => None,
        };
        loop {
            let permit = room.clone().acquire_owned().await.expect("never closed");
            let shared = shared.clone();
            let accepted = tokio::select! {
                Ok((stream, _)) = accept_tcp(&tcp) => Either::Left(stream),
                Ok(stream) = accept_unix(&unix) => Either::Right(stream),
                // No more descriptors, or the like: not to be tried again at once.
                else => { tokio::time::sleep(Duration::from_millis(100)).await; continue }
            };
            tokio::spawn(async move {
                let serving = async {
                    match accepted {
                        Either::Left(stream) => serve(TokioIo::new(stream), shared).await,
                        Either::Right(stream) => serve(TokioIo::new(stream), shared).await,
                    }
                };
                let _ = tokio::time::timeout(PATIENCE, serving).await;
                drop(permit);
            });
        }
    })
}

async fn accept_tcp(
    listener: &Option<tokio::net::TcpListener>,
) -> std::io::Result<(tokio::net::TcpStream, std::net::SocketAddr)> {
    match listener {
        Some(listener) => listener.accept().await,
        None => std::future::pending().await,
    }
}

async fn accept_unix(
    listener: &Option<tokio::net::UnixListener>,
) -> std::io::Result<tokio::net::UnixStream> {
    match listener {
        Some(listener) => listener.accept().await.map(|(stream, _)| stream),
        None => std::future::pending().await,
    }
}

async fn serve<S: hyper::rt::Read + hyper::rt::Write + Unpin>(stream: S, shared: Arc<Shared>) {
    let service =
        service_fn(|request| std::future::ready(Ok::<_, Infallible>(answer(&request, &shared))));
    let _ = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(Duration::from_secs(5))
        .serve_connection(stream, service)
        .await;
}

fn answer<B>(request: &Request<B>, shared: &Arc<Shared>) -> Answer {
    if request.method() != Method::GET {
        return text(StatusCode::METHOD_NOT_ALLOWED, "text/plain", "only GET\n".into());
    }
    match request.uri().path() {
        "/metrics" => match lock(&shared.exporter).encode(shared) {
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
            None => text(StatusCode::SERVICE_UNAVAILABLE, "text/plain", "no sample yet\n".into()),
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
            text(StatusCode::OK, "application/json", serde_json::json!(states).to_string() + "\n")
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

fn newest(shared: &Shared) -> Option<u64> {
    shared.ring.latest().map(|frame| frame.head.number)
}

fn text(status: StatusCode, kind: &str, text: String) -> Answer {
    let answer = Response::builder().status(status).header("content-type", kind);
    answer.body(Either::Left(Full::from(text))).expect("plain headers")
}

/// The ring as it was when it was asked for, sample by sample: never all of it in memory twice.
struct Recording {
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
