//! What users ask of a job by the page: the same requests that the commands make, in the same words
//! (`eyrie_interface::Request`). It must never ask for anything without the token.

use super::failure::Failure;
use super::looking::blocking;
use super::shared::Shared;
use axum::extract::{Path, State};
use axum::http::{header, HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use eyrie_controller::runtime::jobdir;
use eyrie_controller::runtime::users::ask;
use eyrie_interface::Request;
use std::sync::Arc;

/// Whether the one who asks may act, and whether anyone can.
pub async fn access(State(shared): State<Arc<Shared>>, headers: HeaderMap) -> Response {
    let may_act = shared.guard.may_act(&headers).is_ok();
    json(serde_json::json!({ "act": may_act, "possible": shared.guard.has_token() }).to_string())
}

/// Asks a job, and waits for its answer.
pub async fn request(
    State(shared): State<Arc<Shared>>,
    Path(name): Path<String>,
    headers: HeaderMap,
    body: String,
) -> Result<Response, Failure> {
    shared.guard.may_act(&headers)?;
    let is_json = |kind: &axum::http::HeaderValue| kind.as_bytes() == b"application/json";
    if !headers.get(header::CONTENT_TYPE).is_some_and(is_json) {
        return Err(Failure::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "write application/json"));
    }
    let bad = |why: String| Failure::new(StatusCode::BAD_REQUEST, why);
    let request = Request::parse(&body).map_err(bad)?;
    if !is_offered(&request) {
        return Err(bad("the page does not ask jobs for this; there are commands for it".into()));
    }
    let too_many = |_| Failure::new(StatusCode::SERVICE_UNAVAILABLE, "too many requests wait");
    let place = shared.asking.clone().try_acquire_owned().map_err(too_many)?;
    let asked = blocking(move || {
        // As long as the job has not answered, also when the browser has left.
        let _place = place;
        let base = shared.jobs.base().ok_or_else(|| anyhow::anyhow!("the job has ended"))?;
        ask::<serde_json::Value>(&jobdir::find(base, &name)?, &request)
    });
    let refused = |e: anyhow::Error| Failure::new(StatusCode::CONFLICT, format!("{e:#}"));
    Ok(json(asked.await?.map_err(refused)?.to_string()))
}

/// What the page has a button for.
fn is_offered(request: &Request) -> bool {
    match request {
        Request::Checkpoint { .. }
        | Request::Stop
        | Request::Migrate { .. }
        | Request::Drain { .. }
        | Request::Undrain { .. }
        | Request::Measure { .. }
        | Request::Rearrange { .. }
        | Request::Inject { .. } => true,
        Request::Status
        | Request::Propose { .. }
        | Request::Traffic
        | Request::NodeTraffic
        | Request::Health
        | Request::Network
        | Request::Routes { .. }
        | Request::Output
        | Request::WayTo { .. }
        | Request::MigrateDomain { .. }
        | Request::Trace { .. }
        | Request::Subscribe { .. }
        | Request::Join { .. }
        | Request::JoinDomain { .. } => false,
    }
}

fn json(text: String) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], text).into_response()
}
