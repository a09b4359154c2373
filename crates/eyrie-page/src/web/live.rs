//! What browsers are told as it happens, by server-sent events: at most ten times a second. One
//! that reads slowly gets fewer, larger pieces.

use super::failure::Failure;
use super::looking;
use super::shared::Shared;
use crate::picture::Version;
use crate::watch::{Seen, Viewing, Watch};
use axum::extract::{Path, State};
use axum::response::sse::{Event, KeepAlive, Sse};
use futures_util::stream::{unfold, Stream};
use serde::Serialize;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch::Receiver;
use tokio::time::{sleep_until, Instant};

/// Time between two pieces of news of a job, at least.
const PACE: Duration = Duration::from_millis(100);
/// Time between two lists of jobs.
const LIST_PACE: Duration = Duration::from_secs(1);
/// How often a browser is told that we are still there.
const HEARTBEAT: Duration = Duration::from_secs(10);
/// When a browser that has lost us tries again.
const RETRY: Duration = Duration::from_secs(1);

type News = Result<Event, Infallible>;

/// One who looks at a job.
struct Looking {
    watch: Arc<Watch>,
    news: Receiver<Version>,
    seen: Seen,
    next: Instant,
    /// It has all that will ever be known.
    has_all: bool,
    _viewing: Viewing,
}

impl Looking {
    async fn piece(mut self) -> Option<(News, Looking)> {
        if self.has_all {
            // The browser closes the connection, and would ask again if we did.
            std::future::pending::<()>().await;
        }
        sleep_until(self.next).await;
        self.news.changed().await.ok()?;
        self.has_all = self.watch.is_over();
        let (text, seen) = self.watch.piece(self.seen);
        (self.seen, self.next) = (seen, Instant::now() + PACE);
        Some((Ok(Event::default().event("news").retry(RETRY).data(text)), self))
    }
}

/// News of a job: first all that is known, then what changes.
pub async fn job(
    State(shared): State<Arc<Shared>>,
    Path(name): Path<String>,
) -> Result<Sse<impl Stream<Item = News>>, Failure> {
    let watch = looking::find(&shared, name).await?;
    let mut news = watch.news();
    news.mark_changed();
    let looking = Looking {
        watch,
        news,
        seen: Seen::default(),
        next: Instant::now(),
        has_all: false,
        _viewing: shared.jobs.enter(),
    };
    Ok(sse(unfold(looking, Looking::piece)))
}

/// A job in the list.
#[derive(Serialize)]
struct Listed {
    name: String,
    #[serde(flatten)]
    row: crate::picture::Row,
}

/// The list of jobs, whenever it changes.
pub async fn all(State(shared): State<Arc<Shared>>) -> Sse<impl Stream<Item = News>> {
    let viewing = shared.jobs.enter();
    let begin = (shared, viewing, String::new(), Instant::now());
    sse(unfold(begin, |(shared, viewing, sent, mut next)| async move {
        loop {
            sleep_until(next).await;
            next = Instant::now() + LIST_PACE;
            let asked = shared.clone();
            // Directories are read.
            let rows = tokio::task::spawn_blocking(move || asked.jobs.rows()).await.ok()?;
            let rows: Vec<Listed> =
                rows.into_iter().map(|(name, row)| Listed { name, row }).collect();
            let text = serde_json::to_string(&rows).ok()?;
            if text != sent {
                let event = Event::default().event("jobs").retry(RETRY).data(&text);
                return Some((Ok(event), (shared, viewing, text, next)));
            }
        }
    }))
}

fn sse<S: Stream<Item = News> + Send + 'static>(stream: S) -> Sse<impl Stream<Item = News>> {
    Sse::new(stream).keep_alive(KeepAlive::new().interval(HEARTBEAT))
}
