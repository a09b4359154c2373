//! What a running monitor serves: OpenMetrics, the newest sample, the ring, its health. Answers
//! come from samples that were taken already: a scrape must never trigger a sample, and a slow or
//! silent client must never delay anything.

use crate::json;
use crate::metrics::Exporter;
use crate::shared::{lock, Shared};
use http_body_util::{Either, Full};
use hyper::body::{Body, Bytes, Frame as Part};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::AbortHandle;

/// Most clients at a time, over both listeners. One more replaces the oldest that has not sent its
/// request yet, or else the oldest.
const CLIENTS: usize = 64;
/// A client that takes longer than this, from its connection to the end of its answer, is
/// disconnected.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a request may take to arrive.
const QUESTION_PATIENCE: Duration = Duration::from_secs(5);
/// The pause after a connection that could not be accepted: out of descriptors, or the like, which
/// is no reason to try again at once.
const PAUSE: Duration = Duration::from_millis(100);
pub const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

type Answer = Response<Either<Full<Bytes>, Recording>>;

/// Answers on these listeners, for ever.
///
/// # Errors
/// When the listeners cannot be used.
pub fn run(
    shared: Arc<Shared>,
    exporter: Arc<Mutex<Exporter>>,
    tcp: Option<TcpListener>,
    unix: Option<UnixListener>,
) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let room = Arc::new(Room { shared, exporter, clients: Mutex::default() });
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
        let over_tcp = async {
            while let Some(listener) = &tcp {
                room.welcome(listener.accept().await).await;
            }
        };
        let over_unix = async {
            while let Some(listener) = &unix {
                room.welcome(listener.accept().await).await;
            }
        };
        tokio::join!(over_tcp, over_unix);
        Ok(())
    })
}

/// The connected clients. None of them waits for another one.
struct Room {
    shared: Arc<Shared>,
    exporter: Arc<Mutex<Exporter>>,
    clients: Mutex<Clients>,
}

#[derive(Default)]
struct Clients {
    next: u64,
    /// In the order of their arrival.
    present: BTreeMap<u64, Client>,
}

struct Client {
    /// Whether its request has arrived.
    asked: bool,
    task: AbortHandle,
}

impl Room {
    /// Serves a client. When there are too many, another one is disconnected for it.
    async fn welcome<S, A>(self: &Arc<Self>, accepted: std::io::Result<(S, A)>)
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let Ok((stream, _)) = accepted else { return tokio::time::sleep(PAUSE).await };
        let mut clients = lock(&self.clients);
        if clients.present.len() >= CLIENTS {
            let silent = clients.present.iter().find(|(_, client)| !client.asked);
            let oldest =
                silent.or_else(|| clients.present.iter().next()).map(|(number, _)| *number);
            if let Some(client) = oldest.and_then(|number| clients.present.remove(&number)) {
                client.task.abort();
            }
        }
        let number = clients.next;
        clients.next += 1;
        let room = self.clone();
        let task = tokio::spawn(async move {
            let serving = serve(TokioIo::new(stream), &room, number);
            let _ = tokio::time::timeout(PATIENCE, serving).await;
            lock(&room.clients).present.remove(&number);
        });
        clients.present.insert(number, Client { asked: false, task: task.abort_handle() });
    }

    /// Notes that a client's request has arrived.
    fn asked(&self, number: u64) {
        if let Some(client) = lock(&self.clients).present.get_mut(&number) {
            client.asked = true;
        }
    }
}

/// Answers one request. A client that wants more connects again.
async fn serve<S>(stream: S, room: &Room, number: u64)
where
    S: hyper::rt::Read + hyper::rt::Write + Unpin,
{
    let service = service_fn(|request| {
        room.asked(number);
        std::future::ready(Ok::<_, Infallible>(answer(&request, room)))
    });
    let _ = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(QUESTION_PATIENCE)
        .keep_alive(false)
        .serve_connection(stream, service)
        .await;
}

fn answer<B>(request: &Request<B>, room: &Room) -> Answer {
    let shared = &room.shared;
    if request.method() != Method::GET {
        return text(StatusCode::METHOD_NOT_ALLOWED, "text/plain", "only GET\n".into());
    }
    match request.uri().path() {
        "/metrics" => match lock(&room.exporter).encode(shared) {
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

/// The ring as it was at the request, sample by sample: never all of it in memory twice.
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
