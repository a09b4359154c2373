//! What is looked up on request: a job by its name, and events among those that are kept.

use super::failure::Failure;
use super::shared::Shared;
use crate::history::Wanted;
use crate::watch::Watch;
use axum::extract::{Path, Query, State};
use axum::http::{header, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use std::sync::Arc;

/// Most events in one answer.
const MOST: usize = 500;

/// What is looked for.
#[derive(Deserialize)]
pub struct Asked {
    #[serde(default)]
    search: String,
    /// Only those that are shown without -v.
    #[serde(default)]
    important: bool,
    /// Only those before this one.
    #[serde(default = "all")]
    before: u64,
}

fn all() -> u64 {
    u64::MAX
}

/// The job of this name.
pub async fn find(shared: &Arc<Shared>, name: String) -> Result<Arc<Watch>, Failure> {
    let shared = shared.clone();
    blocking(move || shared.jobs.find(&name))
        .await?
        .map_err(|e| Failure::not_found(format!("{e:#}")))
}

/// Does what waits for others.
pub async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Failure> {
    let failed = |_| Failure::new(StatusCode::INTERNAL_SERVER_ERROR, "it was broken off");
    tokio::task::spawn_blocking(work).await.map_err(failed)
}

/// Events of a job, newest first.
pub async fn events(
    State(shared): State<Arc<Shared>>,
    Path(name): Path<String>,
    Query(asked): Query<Asked>,
) -> Result<Response, Failure> {
    let watch = find(&shared, name).await?;
    let wanted = Wanted::new(&asked.search, asked.important);
    let found = blocking(move || watch.find(&wanted, asked.before, MOST)).await?;
    Ok(([(header::CONTENT_TYPE, "application/json")], found).into_response())
}
