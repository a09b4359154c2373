//! What users ask of a job by the page: the same requests that the commands make, in the same words
//! (`eyrie_interface::Request`). It must never ask for anything without the token.

use super::failure::Failure;
use super::looking::blocking;
use super::shared::Shared;
use super::REQUEST_PATIENCE;
use axum::extract::{FromRequest, Path, Request as Asked, State};
use axum::http::{header, HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use eyrie_controller::runtime::jobdir;
use eyrie_controller::runtime::users::ask;
use eyrie_interface::Request;
use std::sync::Arc;
use std::time::Duration;

/// Whether the one who asks may act, and whether anyone can.
pub async fn access(State(shared): State<Arc<Shared>>, headers: HeaderMap) -> Response {
    let may_act = shared.guard.may_act(&headers).is_ok();
    json(serde_json::json!({ "act": may_act, "possible": shared.guard.has_token() }).to_string())
}

/// Asks a job, and waits for its answer.
pub async fn request(
    State(shared): State<Arc<Shared>>,
    Path(name): Path<String>,
    asked: Asked,
) -> Result<Response, Failure> {
    // One that may not act can let its request's body come slowly, or never.
    shared.guard.may_act(asked.headers())?;
    let is_json = |kind: &axum::http::HeaderValue| kind.as_bytes() == b"application/json";
    if !asked.headers().get(header::CONTENT_TYPE).is_some_and(is_json) {
        return Err(Failure::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "write application/json"));
    }
    let bad = |why: String| Failure::new(StatusCode::BAD_REQUEST, why);
    let request = Request::parse(&body_of(asked, REQUEST_PATIENCE).await?).map_err(bad)?;
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

/// The body of a request, which must have come within this time.
async fn body_of(asked: Asked, within: Duration) -> Result<String, Failure> {
    match tokio::time::timeout(within, String::from_request(asked, &())).await {
        Ok(body) => body.map_err(|e| Failure::new(e.status(), e.body_text())),
        Err(_) => {
            let within = eyrie_units::time(within);
            let why = format!("the request has not arrived within {within}");
            Err(Failure::new(StatusCode::REQUEST_TIMEOUT, why))
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;
    use futures_util::stream::pending;
    use std::convert::Infallible;

    #[test]
    fn a_body_that_does_not_come_is_not_waited_for_for_ever() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let read = |body| runtime.block_on(body_of(Asked::new(body), Duration::from_millis(20)));
        assert_eq!(read(Body::from("{}")).unwrap(), "{}");
        let never = Body::from_stream(pending::<Result<&[u8], Infallible>>());
        assert_eq!(read(never).unwrap_err().status, StatusCode::REQUEST_TIMEOUT);
    }
}
