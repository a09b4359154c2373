//! The page's own files, which are in the binary.

use super::failure::Failure;
use axum::extract::Path;
use axum::http::header;
use axum::response::{IntoResponse, Response};

const SCRIPT: &str = "text/javascript; charset=utf-8";

/// Names, kinds and content.
const FILES: &[(&str, &str, &str)] = &[
    ("style.css", "text/css; charset=utf-8", include_str!("../../www/style.css")),
    ("icon.svg", "image/svg+xml", include_str!("../../www/icon.svg")),
    ("main.js", SCRIPT, include_str!("../../www/main.js")),
    ("access.js", SCRIPT, include_str!("../../www/access.js")),
    ("actions.js", SCRIPT, include_str!("../../www/actions.js")),
    ("courses.js", SCRIPT, include_str!("../../www/courses.js")),
    ("details.js", SCRIPT, include_str!("../../www/details.js")),
    ("dialog.js", SCRIPT, include_str!("../../www/dialog.js")),
    ("dom.js", SCRIPT, include_str!("../../www/dom.js")),
    ("drag.js", SCRIPT, include_str!("../../www/drag.js")),
    ("events.js", SCRIPT, include_str!("../../www/events.js")),
    ("figures.js", SCRIPT, include_str!("../../www/figures.js")),
    ("health.js", SCRIPT, include_str!("../../www/health.js")),
    ("heat.js", SCRIPT, include_str!("../../www/heat.js")),
    ("job.js", SCRIPT, include_str!("../../www/job.js")),
    ("jobs.js", SCRIPT, include_str!("../../www/jobs.js")),
    ("live.js", SCRIPT, include_str!("../../www/live.js")),
    ("map.js", SCRIPT, include_str!("../../www/map.js")),
    ("network.js", SCRIPT, include_str!("../../www/network.js")),
    ("nodes.js", SCRIPT, include_str!("../../www/nodes.js")),
    ("output.js", SCRIPT, include_str!("../../www/output.js")),
    ("state.js", SCRIPT, include_str!("../../www/state.js")),
    ("traffic.js", SCRIPT, include_str!("../../www/traffic.js")),
    ("units.js", SCRIPT, include_str!("../../www/units.js")),
];

/// The page itself, for the list of jobs and for each job.
pub async fn page() -> Response {
    answer("text/html; charset=utf-8", include_str!("../../www/index.html"))
}

/// One of its files.
pub async fn file(Path(name): Path<String>) -> Result<Response, Failure> {
    let found = FILES.iter().find(|(known, ..)| *known == name);
    let (_, kind, content) = found.ok_or_else(|| Failure::not_found("there is no such file"))?;
    Ok(answer(kind, content))
}

fn answer(kind: &'static str, content: &'static str) -> Response {
    // A newer binary may have other files.
    ([(header::CONTENT_TYPE, kind), (header::CACHE_CONTROL, "no-cache")], content).into_response()
}
