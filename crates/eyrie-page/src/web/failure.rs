//! Why a request is not carried out: a status and a sentence for the user, as JSON.

use axum::http::{header, StatusCode};
use axum::response::{IntoResponse, Response};

/// Why not.
#[derive(Debug)]
pub struct Failure {
    pub status: StatusCode,
    pub why: String,
}

impl Failure {
    pub fn new(status: StatusCode, why: impl Into<String>) -> Failure {
        Failure { status, why: why.into() }
    }

    pub fn not_found(why: impl Into<String>) -> Failure {
        Failure::new(StatusCode::NOT_FOUND, why)
    }

    pub fn forbidden(why: impl Into<String>) -> Failure {
        Failure::new(StatusCode::FORBIDDEN, why)
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let text = eyrie_interface::answer::refusal(&self.why);
        (self.status, [(header::CONTENT_TYPE, "application/json")], text).into_response()
    }
}
