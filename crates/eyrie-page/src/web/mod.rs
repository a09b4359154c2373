//! The page over HTTP: what is served where, and how connections are kept within bounds. It must
//! never do anything for one that [`guard`] refuses.

mod acting;
mod assets;
mod failure;
mod guard;
mod live;
mod looking;
mod owner;
mod shared;
mod token;

use crate::jobs::{Jobs, Source};
use crate::watch::Watch;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::middleware::{from_fn_with_state, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::Router;
use failure::Failure;
use guard::Guard;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use shared::Shared;
use std::future::Future;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
pub use token::Token;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Most connections at a time. Further ones wait.
const CONNECTIONS: usize = 256;
/// Most connections of other users at a time: each is told that it is refused. Further ones are
/// closed at once, so that they take no place from ours.
const STRANGERS: usize = 16;
/// How long a request may take to arrive.
const REQUEST_PATIENCE: Duration = Duration::from_secs(10);
/// Longest request in bytes, without its head.
const LONGEST: usize = 1 << 20;
/// The pause after a connection that could not be accepted: out of descriptors, or the like.
const PAUSE: Duration = Duration::from_millis(100);

/// How long after the end of its job a page is served that ends with it, while someone looks: they
/// are told within a part of it.
const LAST_NEWS: Duration = Duration::from_millis(400);

/// The page, ready to be served.
pub struct Page {
    listener: TcpListener,
    shared: Arc<Shared>,
}

impl Page {
    /// Listens there. Only one that has the token can act; without a token no one can.
    ///
    /// # Errors
    /// When it cannot listen there, or a file of events cannot be read or has something else.
    pub fn open(listen: SocketAddr, source: Source, token: Option<&Token>) -> anyhow::Result<Page> {
        let jobs = Jobs::open(source)?;
        let listener = TcpListener::bind(listen).map_err(|e| {
            anyhow::anyhow!("cannot listen at {listen}: {e}; choose another port with --listen")
        })?;
        Page::at(listener, jobs, token)
    }

    /// The page of the jobs in a directory, on a listener that is there.
    ///
    /// # Errors
    /// When the listener cannot be used.
    pub fn on(listener: TcpListener, base: PathBuf, token: &Token) -> anyhow::Result<Page> {
        Page::at(listener, Jobs::open(Source::Living(base))?, Some(token))
    }

    fn at(listener: TcpListener, jobs: Jobs, token: Option<&Token>) -> anyhow::Result<Page> {
        listener.set_nonblocking(true)?;
        let guard = Guard::new(token, guard::own_names());
        Ok(Page { listener, shared: Arc::new(Shared::new(jobs, guard)) })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// When the system does not say.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves it, for ever.
    ///
    /// # Errors
    /// When the listener cannot be used.
    pub fn serve(self) -> std::io::Result<()> {
        self.serve_until(|_| std::future::pending())
    }

    /// Serves it until this job has ended, and those who look know that. `found` is called when the
    /// job is there.
    ///
    /// # Errors
    /// When the listener cannot be used.
    pub fn serve_job(self, name: &str, found: impl FnOnce()) -> std::io::Result<()> {
        let name = name.to_string();
        self.serve_until(|shared| async move {
            let watch = job_named(&shared, &name).await;
            found();
            until_over(&watch).await;
            if shared.jobs.has_viewers() {
                tokio::time::sleep(LAST_NEWS).await;
            }
        })
    }

    fn serve_until<F: Future<Output = ()>>(
        self,
        end: impl FnOnce(Arc<Shared>) -> F,
    ) -> std::io::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(2 * shared::ASKING)
            .build()?;
        let Page { listener, shared } = self;
        let end = end(shared.clone());
        let served = runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener)?;
            tokio::select! {
                served = accept(listener, router(shared), owner::is_ours) => served,
                () = end => Ok(()),
            }
        });
        // Threads that wait for jobs do not matter any more.
        runtime.shutdown_background();
        served
    }
}

/// Serves what comes, for ever. `is_ours`: whether this user, or root, is at the other end of a
/// connection, by its two addresses.
async fn accept(
    listener: tokio::net::TcpListener,
    router: Router,
    is_ours: impl Fn(SocketAddr, SocketAddr) -> bool + Clone + Send + 'static,
) -> std::io::Result<()> {
    let closed = Router::new().fallback(|| async {
        Failure::forbidden("this page is another user's: only they can look at it")
    });
    let is_private = listener.local_addr()?.ip().is_loopback();
    let [room, strangers] = [CONNECTIONS, STRANGERS].map(|most| Arc::new(Semaphore::new(most)));
    loop {
        let Ok((stream, other)) = listener.accept().await else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        // A place is taken only by one whose it is known to be.
        if !is_private || asked(is_ours.clone(), &stream, other).await {
            let Ok(place) = room.clone().acquire_owned().await else { return Ok(()) };
            serve(stream, router.clone(), true, place);
        } else if let Ok(place) = strangers.clone().try_acquire_owned() {
            serve(stream, closed.clone(), false, place);
        }
    }
}

/// Serves a connection, which has this place until it ends.
fn serve(
    stream: tokio::net::TcpStream,
    router: Router,
    keep_alive: bool,
    place: OwnedSemaphorePermit,
) {
    tokio::spawn(async move {
        let connection = hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(REQUEST_PATIENCE)
            .keep_alive(keep_alive)
            .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
        // One that breaks is the other side's affair.
        let _ = connection.await;
        drop(place);
    });
}

/// What `is_ours` says of this connection. It reads lists of the kernel's.
async fn asked(
    is_ours: impl Fn(SocketAddr, SocketAddr) -> bool + Send + 'static,
    stream: &tokio::net::TcpStream,
    other: SocketAddr,
) -> bool {
    let Ok(ours) = stream.local_addr() else { return false };
    tokio::task::spawn_blocking(move || is_ours(ours, other)).await.unwrap_or(false)
}

/// Waits until this job has begun.
async fn job_named(shared: &Arc<Shared>, name: &str) -> Arc<Watch> {
    loop {
        match looking::find(shared, name.into()).await {
            Ok(watch) => return watch,
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}

/// Waits until this job has ended.
async fn until_over(watch: &Watch) {
    let mut news = watch.news();
    while !watch.is_over() && news.changed().await.is_ok() {}
}

fn router(shared: Arc<Shared>) -> Router {
    Router::new()
        .route("/api/live", get(live::all))
        .route("/api/access", get(acting::access))
        .route("/api/jobs/{job}/live", get(live::job))
        .route("/api/jobs/{job}/events", get(looking::events))
        .route("/api/jobs/{job}/request", post(acting::request))
        .route("/", get(assets::page))
        .route("/job/{job}", get(assets::page))
        .route("/{file}", get(assets::file))
        .fallback(|| async { Failure::not_found("there is no such page") })
        .layer(DefaultBodyLimit::max(LONGEST))
        .layer(from_fn_with_state(shared.clone(), admitted))
        .with_state(shared)
}

/// Stands before all that is served.
async fn admitted(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    guard::fence_in(match shared.guard.admit(request.method(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(refused) => refused.into_response(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// Serves a page without jobs; whether its connections are ours is as said there.
    fn page(ours: &Arc<AtomicBool>) -> SocketAddr {
        let base = std::env::temp_dir().join("eyrie-page-without-jobs");
        let jobs = Jobs::open(Source::Living(base)).unwrap();
        let shared = Arc::new(Shared::new(jobs, Guard::new(Some(&Token::draw()), vec![])));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let (address, ours) = (listener.local_addr().unwrap(), ours.clone());
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                let is_ours = move |_, _| ours.load(Ordering::SeqCst);
                accept(listener, router(shared), is_ours).await
            })
        });
        address
    }

    /// The first bytes of the answer, or why none came in time.
    fn answer(to: SocketAddr, head: &str) -> std::io::Result<String> {
        let mut stream = TcpStream::connect(to)?;
        // Less than a request may take to arrive.
        stream.set_read_timeout(Some(REQUEST_PATIENCE / 2))?;
        write!(stream, "{head}\r\nhost: {to}\r\n\r\n")?;
        let mut bytes = [0; 32];
        let read = stream.read(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes[..read]).into_owned())
    }

    #[test]
    fn other_users_take_no_place_from_ours() {
        let ours = Arc::new(AtomicBool::new(false));
        let page = page(&ours);
        let get = || answer(page, "GET / HTTP/1.1");
        assert!(get().unwrap().starts_with("HTTP/1.1 403 "));
        // They say nothing.
        let _held: Vec<_> =
            (0..CONNECTIONS + 20).map(|_| TcpStream::connect(page).unwrap()).collect();
        let waits = get().is_err_and(|e| e.kind() == std::io::ErrorKind::WouldBlock);
        assert!(!waits, "one that has no place is closed");
        ours.store(true, Ordering::SeqCst);
        assert!(get().unwrap().starts_with("HTTP/1.1 200 "));
    }

    #[test]
    fn one_without_the_token_is_refused_before_its_request_is_read() {
        let page = page(&Arc::new(AtomicBool::new(true)));
        let head = "POST /api/jobs/melt/request HTTP/1.1\r\ncontent-length: 100";
        assert!(answer(page, head).unwrap().starts_with("HTTP/1.1 403 "));
    }
}
