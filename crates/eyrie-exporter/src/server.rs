//! A server for few clients at a time, each of which asks once: it answers GET and nothing else. A
//! slow or silent client must never delay another one, nor what is served.

use http_body_util::{Either, Full};
use hyper::body::{Body, Bytes};
use hyper::service::service_fn;
use hyper::{Method, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::Future;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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

/// An answer: all of it, or piece by piece.
pub type Answer<P> = Response<Either<Full<Bytes>, P>>;

/// What answers requests.
pub trait Answers: Send + Sync + 'static {
    /// An answer that is sent piece by piece.
    type Pieces: Body<Data = Bytes, Error = Infallible> + Send + 'static;

    /// The answer to a request for this path.
    fn answer(&self, path: &str) -> impl Future<Output = Answer<Self::Pieces>> + Send;
}

/// An answer that is a text.
pub fn text<P>(status: StatusCode, kind: &str, text: String) -> Answer<P> {
    let answer = Response::builder().status(status).header("content-type", kind);
    answer.body(Either::Left(Full::from(text))).expect("plain headers")
}

/// Answers on these listeners, for ever.
///
/// # Errors
/// When the listeners cannot be used.
pub fn run<A: Answers>(
    answers: A,
    tcp: Option<TcpListener>,
    unix: Option<UnixListener>,
) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let room = Arc::new(Room { answers, clients: Mutex::default() });
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
struct Room<A> {
    answers: A,
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

impl<A: Answers> Room<A> {
    /// Serves a client. When there are too many, another one is disconnected for it.
    async fn welcome<S, N>(self: &Arc<Self>, accepted: std::io::Result<(S, N)>)
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let Ok((stream, _)) = accepted else { return tokio::time::sleep(PAUSE).await };
        let mut clients = self.clients();
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
            room.clients().present.remove(&number);
        });
        clients.present.insert(number, Client { asked: false, task: task.abort_handle() });
    }

    /// Notes that a client's request has arrived.
    fn asked(&self, number: u64) {
        if let Some(client) = self.clients().present.get_mut(&number) {
            client.asked = true;
        }
    }

    /// Also after a thread has panicked with it: it is plain data.
    fn clients(&self) -> MutexGuard<'_, Clients> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Answers one request. A client that wants more connects again.
async fn serve<S, A: Answers>(stream: S, room: &Room<A>, number: u64)
where
    S: hyper::rt::Read + hyper::rt::Write + Unpin,
{
    let service = service_fn(|request| async move {
        room.asked(number);
        Ok::<_, Infallible>(answer(&request, room).await)
    });
    let _ = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(QUESTION_PATIENCE)
        .keep_alive(false)
        .serve_connection(stream, service)
        .await;
}

async fn answer<A: Answers>(
    request: &hyper::Request<hyper::body::Incoming>,
    room: &Room<A>,
) -> Answer<A::Pieces> {
    if request.method() != Method::GET {
        return text(StatusCode::METHOD_NOT_ALLOWED, "text/plain", "only GET\n".into());
    }
    room.answers.answer(request.uri().path()).await
}
